"""The log in a streaming query's checkpoint: the query's id, and the input of each of its batches. No Spark.

Here belong Spark's files of offsets and of sources. The consequences of a disagreement between a checkpoint and a table
belong to `batches`.

The input of a batch identifies it, its number does not: a checkpoint that was set back plans a batch of the same number
again, from the data that has arrived by then. The offsets of most sources describe the input of a batch completely. A
file source has only a number there, and lists the files in a log of its own.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Iterator
from typing import Any

from pipeline.delta.storage.file_system import file_system, local_folder

# The folder below the root with the checkpoints of streaming assets.
STREAMS = "_streams"
_COMPACT = ".compact"
_HEAD_LINES = 2  # the format's version, and the time at which the batch was planned


def query_id(checkpoint: str) -> str | None:
    """The id that Spark gave the query at its first start. If the checkpoint has no query, None.

    Raises:
        OSError, ValueError: the checkpoint can't be read.
    """
    text = _text(checkpoint, "metadata")
    return None if text is None else str(json.loads(text)["id"])


def batch_content(checkpoint: str, number: int) -> str | None:
    """The identity of a batch's input. If the checkpoint no longer has its offsets, None.

    Raises:
        OSError, ValueError: the checkpoint can't be read.
    """
    ends = _offsets(checkpoint, number)
    starts = _offsets(checkpoint, number - 1) if number else {}
    if ends is None or starts is None:
        return None
    inputs = [
        [source, end, list(_files(checkpoint, source, starts.get(source), end))] for source, end in sorted(ends.items())
    ]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]


def name_beside(checkpoint: str, location: str) -> str:
    """A checkpoint's path relative to the table: it stays the same if both are moved together."""
    (system, path), (other, table) = file_system(checkpoint), file_system(location)
    return posixpath.relpath(path, table) if system.type_name == other.type_name else checkpoint.rstrip("/")


def checkpoint_beside(name: str, location: str) -> str:
    """The URI of a checkpoint from its name by `name_beside`."""
    if "://" in name or name.startswith("/"):
        return name
    if local_folder(location) is not None:
        return posixpath.normpath(posixpath.join(str(local_folder(location)), name))
    scheme, _, path = location.partition("://")
    return f"{scheme}://{posixpath.normpath(posixpath.join(path, name))}"


def _offsets(checkpoint: str, number: int) -> dict[str, str] | None:
    """The end offsets of a batch, by source. If they no longer exist, None."""
    text = _text(checkpoint, f"offsets/{number}")
    if text is None:
        return None
    lines = text.split("\n")[_HEAD_LINES:]
    # Spark writes a line for each source. A newer format names the sources, in lines or in one line for all.
    names = _json(lines[0]) if len(lines) == 1 else None
    if isinstance(names, dict) and names and all(isinstance(offset, str) for offset in names.values()):
        return names
    offsets: dict[str, str] = {}
    for position, line in enumerate(lines):
        name, colon, offset = line.partition(":")
        is_named = bool(colon) and not line.lstrip().startswith(("{", "[", '"'))
        offsets[name if is_named else str(position)] = offset if is_named else line
    return offsets


def _files(checkpoint: str, source: str, start: str | None, end: str) -> Iterator[Any]:
    """The entries of a batch in the log of a file source. For any other source, nothing."""
    last = _log_offset(end)
    if last is None:
        return
    first = _log_offset(start or "")
    for number in range(0 if first is None else first + 1, last + 1):
        entries = _entries(checkpoint, f"sources/{source}", number)
        yield "gone" if entries is None else sorted(entries)


def _log_offset(offset: str) -> int | None:
    parsed = _json(offset)
    number = parsed.get("logOffset") if isinstance(parsed, dict) else None
    return number if isinstance(number, int) else None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _entries(checkpoint: str, folder: str, number: int) -> list[str] | None:
    """The lines of one batch in a source's log. If they no longer exist, None. Old batches share a compacted file."""
    text = _text(checkpoint, f"{folder}/{number}")
    if text is not None:
        return _of_batch(text, number)
    for name in _compacted(checkpoint, folder, number):
        text = _text(checkpoint, f"{folder}/{name}")
        lines = [] if text is None else _of_batch(text, number)
        if lines:
            return lines
    return None


def _of_batch(text: str, number: int) -> list[str]:
    lines = [line for line in text.split("\n")[1:] if line.strip()]
    return [line for line in lines if json.loads(line).get("batchId", number) == number]


def _compacted(checkpoint: str, folder: str, number: int) -> list[str]:
    """The compacted files that may hold a batch, the oldest first."""
    from pyarrow import fs

    system, path = file_system(checkpoint)
    selector = fs.FileSelector(f"{path}/{folder}", allow_not_found=True)
    names = [info.base_name for info in system.get_file_info(selector)]
    numbers = (name.removesuffix(_COMPACT) for name in names if name.endswith(_COMPACT))
    return [f"{newest}{_COMPACT}" for newest in sorted(int(n) for n in numbers if n.isdigit()) if newest >= number]


def _text(checkpoint: str, name: str) -> str | None:
    system, path = file_system(checkpoint)
    try:
        with system.open_input_stream(f"{path.rstrip('/')}/{name}") as stream:
            return str(stream.read().decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
