"""The files of a sink's journal, one at a time: their names, their writing and their checks.

Here belong the writing and the checked reading of one file. The set of files that a journal must have belongs to
`journal`.

The name of a file of rows ends with the digest of its bytes, and the file holds its number. So a file that was changed,
or copied under another number, is detected. Files of older journals have neither.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.delta.frames.staging import ROW_GROUP_ROWS
from pipeline.delta.log.checkpoints import first_line
from pipeline.delta.storage.local_files import TEMPORARY, synced_file

SEGMENT = re.compile(r"segment-(\d{20})(?:-([0-9a-f]{32}))?\.parquet")
GOOD = re.compile(r"good-\d{20}-[0-9a-f]{8}(?:-([0-9a-f]{32}))?\.parquet")
BATCH = re.compile(r"batch-(\d{20})\.json")
_TOKEN = re.compile(r"[0-9a-f]{32}")
# An operator adds this to the name of a file to give up its rows.
GIVEN_UP = ".given-up"
# Keys of the Parquet metadata: the submitted position of each source, and the number of the segment.
_POSITIONS = b"pipeline.positions"
_NUMBER = b"pipeline.segment"
_DIGEST_BYTES = 16


class UntrustedFileError(ValueError):
    """A file whose content is not what was written."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One file of acknowledged rows. Segments of one `shape` can be read as one frame."""

    number: int
    path: Path
    rows: int
    size_bytes: int
    shape: str


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The segments of one commit. The token distinguishes it from another sink's batch with the same epoch."""

    epoch: int
    token: str
    segments: tuple[Segment, ...]
    replaces: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """The number of rows in all segments."""
        return sum(segment.rows for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        """The size of all segments' files."""
        return sum(segment.size_bytes for segment in self.segments)


def batch_name(batch: Batch) -> str:
    """The name of a batch's file."""
    return f"batch-{batch.epoch:020d}.json"


def epoch_of(path: Path) -> int:
    """The epoch in the name of a batch's file."""
    return int(path.stem.partition("-")[2])


def batch_document(batch: Batch) -> dict[str, Any]:
    """The content of a batch's file."""
    names = [segment.path.name for segment in batch.segments]
    return {"epoch": batch.epoch, "token": batch.token, "segments": names, "replaces": list(batch.replaces)}


# --- writing ----------------------------------------------------------------------------------------------------------


def write_segment(folder: Path, stem: str, number: int, table: Any, positions: Mapping[str, int]) -> Path:
    """Write an Arrow table as a synced file. Its name is the final one with `TEMPORARY`, and is not synced.

    Raises:
        OSError: it can't be written. No file is left.
    """
    temporary = folder / f"{stem}.parquet{TEMPORARY}"
    try:
        _write(temporary, number, table, positions)
        final = folder / f"{stem}-{_digest(temporary)}.parquet{TEMPORARY}"
        os.replace(temporary, final)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return final


def _write(path: Path, number: int, table: Any, positions: Mapping[str, int]) -> None:
    import pyarrow.parquet as pq

    metadata = {_POSITIONS: json.dumps(dict(positions)).encode(), _NUMBER: str(number).encode()}
    with (
        synced_file(path) as file,
        pq.ParquetWriter(file, table.schema, store_schema=False, write_page_checksum=True) as writer,
    ):
        writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        writer.add_key_value_metadata(metadata)


def segment_of(path: Path, number: int) -> Segment:
    """A segment that this process wrote."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        rows, shape = file.metadata.num_rows, str(file.schema_arrow.remove_metadata())
    return Segment(number=number, path=path, rows=rows, size_bytes=path.stat().st_size, shape=shape)


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


# --- reading ----------------------------------------------------------------------------------------------------------


def read_segment(path: Path) -> tuple[Segment, dict[str, int]]:
    """A segment that an earlier process wrote, read to its end, and its positions.

    Raises:
        UntrustedFileError: its content is not what was written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    match = SEGMENT.fullmatch(path.name)
    number = int(match[1]) if match else 0
    digest = (match or GOOD.fullmatch(path.name) or ("", None))[2 if match else 1]
    try:
        if digest is not None and _digest(path) != digest:
            raise UntrustedFileError("it is not what was written, its digest differs")
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            rows = sum(batch.num_rows for batch in file.iter_batches())
            if rows != file.metadata.num_rows:
                raise UntrustedFileError(f"it holds {rows} rows of {file.metadata.num_rows}")
            metadata = file.metadata.metadata or {}
            shape = str(file.schema_arrow.remove_metadata())
        positions = _positions(json.loads(metadata.get(_POSITIONS, b"{}")))
    except UntrustedFileError:
        raise
    except (pa.ArrowException, OSError, ValueError, RecursionError) as error:
        raise UntrustedFileError(f"it is truncated or damaged ({first_line(error)})") from error
    written_number = metadata.get(_NUMBER, str(number).encode())
    if written_number != str(number).encode():
        raise UntrustedFileError(f"it was written as segment {written_number.decode('ascii', 'replace')}")
    segment = Segment(number=number, path=path, rows=rows, size_bytes=path.stat().st_size, shape=shape)
    return segment, positions


def read_document(path: Path) -> dict[str, Any]:
    """A document of a journal. The file names in it are names of files of rows in the same folder, nothing else.

    Raises:
        UntrustedFileError: it is not such a document.
    """
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UntrustedFileError(f"it is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise UntrustedFileError("it is not a JSON object")
    document: dict[str, Any] = {
        "segments": _names(content.get("segments")),
        "replaces": _names(content.get("replaces", [])),
        "positions": _positions(content.get("positions", {})),
        "token": content.get("token", "0" * 32),
    }
    for name, least in {"epoch": 0, "next_segment": 1, "version": -1}.items():
        document[name] = content.get(name, least)
        if isinstance(document[name], bool) or not isinstance(document[name], int) or document[name] < least:
            raise UntrustedFileError(f"{name} is not an integer of {least} or more")
    if not isinstance(document["token"], str) or not _TOKEN.fullmatch(document["token"]):
        raise UntrustedFileError("the token is not valid")
    return document


def _names(names: Any) -> list[str]:
    if not isinstance(names, list) or not all(isinstance(n, str) and _is_rows(n) for n in names):
        raise UntrustedFileError("its file names are not those of journal files")
    return names


def _is_rows(name: str) -> bool:
    return bool(SEGMENT.fullmatch(name) or GOOD.fullmatch(name))


def _positions(positions: Any) -> dict[str, int]:
    if not isinstance(positions, dict) or not all(isinstance(position, int) for position in positions.values()):
        raise UntrustedFileError("the positions of its sources are not valid")
    return positions


def numbers_of(names: list[str]) -> list[int]:
    """The numbers of the segments among file names."""
    return [int(match[1]) for name in names if (match := SEGMENT.fullmatch(name.removesuffix(GIVEN_UP)))]


def irregular_problem(folder: Path) -> list[Path]:
    """The entries of a folder that are not regular files: opening a pipe or a device would block."""
    with os.scandir(folder) as entries:
        return sorted(Path(entry.path) for entry in entries if not entry.is_file(follow_symlinks=False))


def open_lock(path: Path) -> int:
    """A handle of a lock file that is never written to. A symbolic link is not followed.

    Raises:
        OSError: it can't be opened.
        UntrustedFileError: it is not a regular file.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise UntrustedFileError("it is not a regular file")
    return handle


def table_of(segments: Iterable[Segment]) -> Any:
    """The rows of segments as one Arrow table.

    Raises:
        UntrustedFileError: one can't be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pa.concat_tables([pq.read_table(segment.path, partitioning=None) for segment in segments])
    except (pa.ArrowException, OSError) as error:
        raise UntrustedFileError(f"it can't be read ({first_line(error)})") from error
