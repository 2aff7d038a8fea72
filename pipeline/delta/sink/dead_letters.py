"""Records that a sink refused, each with its reason, in files that only an operator reads.

Here belong the value of such a record and its file: one JSON document a line, written completely or not at all. The
code that finds a bad record gives the reason.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.delta.frames.records import MAX_DEPTH, shown_value
from pipeline.delta.storage.local_files import TEMPORARY, write_durably
from pipeline.errors import JournalError, JournalWriteError

# The most characters or bytes that are kept. Of longer bytes the size and the digest are kept too.
EXCERPT = 1 << 16
# Python writes no integers of more than 4 300 digits.
_WRITTEN_BITS = 1 << 13


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A refused record: its content in JSON's types, and the reason.

    `source` describes its origin, such as a file and a line.
    """

    reason: str
    record: Any
    source: str | None = None
    at: dt.datetime = field(default_factory=lambda: dt.datetime.now(dt.timezone.utc))


def raw_letter(
    content: bytes, reason: str, *, source: str | None = None, size_bytes: int | None = None, digest: str | None = None
) -> DeadLetter:
    """A letter of bytes that could not be read. `size_bytes` and `digest` are those of all bytes, if there are more."""
    size = len(content) if size_bytes is None else size_bytes
    excerpt = content[:EXCERPT]
    record: dict[str, Any] = {"bytes": size}
    try:
        record["text"] = excerpt.decode("utf-8")
    except UnicodeDecodeError:
        record["base64"] = base64.b64encode(excerpt).decode("ascii")
    if size > len(excerpt):
        record["sha256"] = digest or hashlib.sha256(content).hexdigest()
    return DeadLetter(reason=reason, record=record, source=source)


def json_value(value: Any, depth: int = MAX_DEPTH) -> Any:
    """A value in JSON's types. A value that JSON has no type for becomes its text; long texts are cut.

    A value nested deeper than `depth` becomes the beginning of its text, and so does an integer too long for JSON.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() < _WRITTEN_BITS else shown_value(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value if len(value) <= EXCERPT else {"text": value[:EXCERPT], "characters": len(value)}
    if isinstance(value, bytes | bytearray):
        return raw_letter(bytes(value), "").record
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if depth > 0 and isinstance(value, Mapping):
        return {
            name if isinstance(name, str) else shown_value(name): json_value(inner, depth - 1)
            for name, inner in value.items()
        }
    if depth > 0 and isinstance(value, list | tuple):
        return [json_value(inner, depth - 1) for inner in value]
    return shown_value(value)


class DeadLetters:
    """The folder of one writer's dead letters."""

    def __init__(self, folder: Path, dataset: str, writer: str) -> None:
        self.folder = folder
        self._dataset, self._writer = dataset, writer

    def write(self, letters: Iterable[DeadLetter], name: str) -> Path:
        """Write the letters as one file, which is on disk when this returns. A file of that name is replaced.

        Raises:
            JournalWriteError: it can't be written.
        """
        path = self.folder / f"{name}.ndjson"
        text = "".join(f"{json.dumps(self._document(letter))}\n" for letter in letters)
        try:
            write_durably(path, text.encode("ascii"))
        except OSError as error:
            raise JournalWriteError(dataset=self._dataset, path=str(path), reason=str(error)) from error
        return path

    def sweep(self) -> None:
        """Remove the files that an earlier process did not finish.

        Raises:
            JournalError: a file can't be removed.
        """
        try:
            for path in self.folder.glob(f"*.ndjson{TEMPORARY}"):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise JournalError(dataset=self._dataset, path=str(self.folder), reason=str(error)) from error

    def _document(self, letter: DeadLetter) -> dict[str, Any]:
        return {
            "at": letter.at.isoformat(),
            "dataset": self._dataset,
            "writer": self._writer,
            "reason": letter.reason,
            "source": letter.source,
            "record": letter.record,
        }
