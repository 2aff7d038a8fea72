"""The built-in sources of a sink: JSON lines from a stream, and from the files of a folder that it tails.

Here belong the bounded reading of lines and their submission to a sink. A line that can't be read becomes a dead letter
like any other record that does not fit, and the next line is read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

from pyspark.sql.types import DecimalType

from pipeline.dataset import Dataset
from pipeline.dataset.schema import walk
from pipeline.delta.frames.records import is_deep
from pipeline.delta.sink.dead_letters import EXCERPT, raw_letter
from pipeline.delta.sink.intake import TOO_DEEP
from pipeline.delta.sink.sink import DeltaSink

_LOG = logging.getLogger(__name__)
PATTERN = "*.ndjson"
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line without its end, or the beginning of a line that is too long. `size_bytes` and `digest` are of all of it.

    `end` is the position in the stream after the line. If the line ended with a line break, `is_complete`.
    """

    number: int
    content: bytes
    size_bytes: int
    end: int
    is_complete: bool
    digest: str | None = None


def lines(stream: BinaryIO, limit: int) -> Iterator[Line]:
    """The lines of a stream. If a line is longer than the limit, only its beginning is kept."""
    number, end = 0, 0
    while chunk := stream.readline(limit + 2):
        number += 1
        size, digest, is_complete = len(chunk), None, chunk.endswith(b"\n")
        content = chunk.removesuffix(b"\n").removesuffix(b"\r")
        if len(content) > limit:
            hasher = hashlib.sha256(content)
            while not is_complete and (more := stream.readline(_CHUNK)):
                is_complete, size = more.endswith(b"\n"), size + len(more)
                hasher.update(more.removesuffix(b"\n"))
            content, digest = content[:EXCERPT], hasher.hexdigest()
        end += size
        yield Line(
            number=number,
            content=content,
            size_bytes=size - is_complete,
            end=end,
            is_complete=is_complete,
            digest=digest,
        )


def parser(dataset: Dataset) -> Callable[[bytes], Any]:
    """The function that parses a line. It raises ValueError, ArithmeticError or RecursionError if it is not UTF-8 JSON.

    If the dataset has decimals, numbers with a point are exact.
    """
    is_exact = any(isinstance(field.dataType, DecimalType) for _, field in walk(dataset.schema))
    decoder = json.JSONDecoder(parse_float=Decimal if is_exact else float)

    def parse(content: bytes) -> Any:
        return decoder.decode(content.decode("utf-8"))

    return parse


def record_of(line: Line, parse: Callable[[bytes], Any], limit: int, source: str) -> Any:
    """The record of a line. If the line has none, a dead letter; if it is blank, None."""
    if line.digest is not None:
        reason = f"the line takes {line.size_bytes} bytes, at most {limit} are allowed"
        return raw_letter(line.content, reason, source=source, size_bytes=line.size_bytes, digest=line.digest)
    if not line.content.strip():
        return None
    try:
        record = parse(line.content)
    except UnicodeDecodeError as error:
        return raw_letter(line.content, f"not UTF-8 at byte {error.start}", source=source)
    except (ValueError, RecursionError) as error:
        return raw_letter(line.content, f"not JSON: {error}", source=source)
    except ArithmeticError:
        return raw_letter(line.content, "a number has an exponent that no number can have", source=source)
    if is_deep(record):
        return raw_letter(line.content, TOO_DEEP, source=source)
    return record if isinstance(record, dict) else raw_letter(line.content, "not a JSON object", source=source)


def submit_lines(stream: BinaryIO, sink: DeltaSink, source: str = "stdin") -> int:
    """Submit every line of a stream until its end. Return how many. A last line without a line break counts."""
    limit, parse, count = sink.options.record_bytes, parser(sink.dataset), 0
    for line in lines(stream, limit):
        origin = f"{source}, line {line.number}"
        record = record_of(line, parse, limit, origin)
        if record is not None:
            sink.submit(record, source=origin)
            count += 1
    return count


class Tail:
    """The files of a folder, read as they grow, in the order of their names.

    The position in each file is stored with the rows, so a restart continues there. A line counts once it has its line
    break. A file that has become shorter is read again from its beginning.
    """

    def __init__(self, folder: Path, sink: DeltaSink, *, pattern: str = PATTERN) -> None:
        self.folder, self._sink, self._pattern = folder, sink, pattern
        self._ends: dict[str, int] = {}
        self._parse = parser(sink.dataset)
        self._skipped: set[str] = set()

    def read(self) -> int:
        """Submit new lines. Return how many. A path that is not a file, such as a pipe, is skipped with a warning."""
        paths = sorted(self.folder.glob(self._pattern))
        for path in paths:
            if not path.is_file() and path.name not in self._skipped:
                self._skipped.add(path.name)
                _LOG.warning("sink %s (%s): %s is not a file and is skipped", self._sink.dataset.name,
                             self._sink.writer_id, path)  # fmt: skip
        return sum(self._read(path) for path in paths if path.is_file())

    def follow(self, stop: threading.Event, every_seconds: float) -> None:
        """Submit new lines again and again, until `stop` is set."""
        while not stop.is_set():
            if not self.read():
                stop.wait(every_seconds)

    def _read(self, path: Path) -> int:
        limit, count, name = self._sink.options.record_bytes, 0, path.name
        start = self._ends.get(name, self._sink.positions.get(str(path), 0))
        size = path.stat().st_size
        start = 0 if size < start else start
        if size == start:
            return 0
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:  # it may be a pipe by now
            stream.seek(start)
            for line in lines(stream, limit):
                if not line.is_complete:
                    break
                origin = f"{name}, the line before byte {start + line.end}"
                record = record_of(line, self._parse, limit, origin)
                if record is not None:
                    self._sink.submit(record, position=(str(path), start + line.end), source=origin)
                    count += 1
                self._ends[name] = start + line.end
        return count
