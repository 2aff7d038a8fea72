"""The write-ahead copies of a sink: what it has acknowledged and the table does not hold yet, on this machine's disk.

Here belong the folder of one writer, its lock and its files, and what a process finds there that a killed one left.
When rows come here and when they are committed is the receiver's and the sink's to say. No Spark.

In the folder lie
  lock                     held by the kernel for the process that has the folder open
  segment-<number>.parquet acknowledged rows
  batch-<epoch>.json       which segments the commit of an epoch is made of: fixed before it begins, so that a replay
                           of the epoch is of the same rows
  good-<epoch>-….parquet   the rows of a batch without those that Delta has refused, in place of its segments
  committed.json           the batch that was committed last, of which segments may still be there
Every file is written beside its name, synced and renamed, so that a name stands for a whole file.
"""

from __future__ import annotations

import json
import os
import re
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from pipeline.delta.dead_letters import sync_folder, write_durably
from pipeline.delta.staging import ROW_GROUP_ROWS
from pipeline.errors import JournalError, SinkRunningError

_SEGMENT = re.compile(r"segment-(\d{20})\.parquet")
_BATCH = re.compile(r"batch-(\d{20})\.json")
_COMMITTED = "committed.json"
# In a segment's Parquet metadata: how far each source had been submitted.
_POSITIONS = b"pipeline.positions"
_NOTHING: dict[str, Any] = {"epoch": 0, "segments": [], "replaces": [], "positions": {}, "next_segment": 1}


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One file of acknowledged rows; segments of one `shape` can be read as one frame."""

    number: int
    path: Path
    rows: int
    size_bytes: int
    shape: str


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The segments of one commit; the token tells this batch from any that another sink makes of the same epoch."""

    epoch: int
    token: str
    segments: tuple[Segment, ...]
    replaces: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Rows of all segments."""
        return sum(segment.rows for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments, as files."""
        return sum(segment.size_bytes for segment in self.segments)


class Journal:
    """The folder of one writer, held by one process at a time.

    One thread may append while another begins and ends batches.
    """

    def __init__(self, folder: Path, dataset: str, writer: str) -> None:
        self.folder = folder
        self._dataset, self._writer = dataset, writer
        self._lock: TextIO | None = None
        self._guard = threading.Lock()
        self._next_segment = 1
        self._loose: list[Segment] = []
        self.last_epoch = 0
        self.unfinished: Batch | None = None
        self.positions: dict[str, int] = {}

    # --- the folder ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take the folder and read what is there.

        What was never acknowledged goes. `unfinished` is the batch whose commit had begun, `loose` what no batch holds
        yet, `last_epoch` the newest epoch that the folder knows of, `positions` how far its sources were submitted.

        Raises:
            SinkRunningError: another process has it.
            JournalError: it can't be read, or an acknowledged file is damaged or missing.
        """
        with self._failing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = self._locked()
        try:
            with self._failing(self.folder):
                self._read()
        except JournalError:
            self.close()
            raise

    def close(self) -> None:
        """Let the folder go; what is in it stays."""
        if self._lock is not None:
            self._lock.close()  # and the kernel's lock with it
            self._lock = None

    def _locked(self) -> TextIO:
        import fcntl

        lock = (self.folder / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.close()
            raise SinkRunningError(dataset=self._dataset, writer=self._writer, folder=str(self.folder)) from error
        return lock

    def _read(self) -> None:
        for name in sorted(os.listdir(self.folder)):
            if name.endswith(".tmp"):
                (self.folder / name).unlink()
        path = self.folder / _COMMITTED
        committed = self._document(path) if path.exists() else _NOTHING
        self.last_epoch, self._next_segment = committed["epoch"], committed["next_segment"]
        self.positions = dict(committed["positions"])
        self._remove([*committed["segments"], *committed["replaces"]])
        batches = [path for path in sorted(self.folder.iterdir()) if _BATCH.fullmatch(path.name)]
        begun = [path for path in batches if _epoch_of(path) > self.last_epoch]
        self._remove(path.name for path in batches if path not in begun)
        if len(begun) > 1:
            raise self._error(self.folder, f"{len(begun)} batches were begun at once")
        self.unfinished = self._batch(begun[0]) if begun else None
        held = [segment.path for segment in self.unfinished.segments] if self.unfinished else []
        rest = [path for path in sorted(self.folder.iterdir()) if path.suffix == ".parquet" and path not in held]
        self._remove(path.name for path in rest if not _SEGMENT.fullmatch(path.name))
        self._loose = [self._segment(path) for path in rest if _SEGMENT.fullmatch(path.name)]
        numbers = [segment.number for segment in self._loose]
        self._next_segment = max(self._next_segment, *(number + 1 for number in numbers), 1)

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

    def _segment(self, path: Path) -> Segment:
        """A segment that a process before this one has left, read to its end: an acknowledged row must not be lost."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                rows = sum(batch.num_rows for batch in file.iter_batches())
                if rows != file.metadata.num_rows:
                    raise self._error(path, f"it holds {rows} rows of {file.metadata.num_rows}")
                positions = json.loads((file.metadata.metadata or {}).get(_POSITIONS, b"{}"))
                shape = str(file.schema_arrow.remove_metadata())
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._error(path, f"it is cut off or damaged ({error})") from error
        self.positions.update(positions)
        found = _SEGMENT.fullmatch(path.name)
        return Segment(
            number=int(found[1]) if found else 0, path=path, rows=rows, size_bytes=path.stat().st_size, shape=shape
        )

    def _batch(self, path: Path) -> Batch:
        """A batch that was begun."""
        document = self._document(path)
        missing = [name for name in document["segments"] if not (self.folder / name).exists()]
        if missing:
            raise self._error(path, f"of its files {', '.join(missing)} are missing")
        self._remove(document["replaces"])
        self.last_epoch, self._next_segment = document["epoch"], document["next_segment"]
        held = tuple(self._segment(self.folder / name) for name in document["segments"])
        return Batch(epoch=document["epoch"], token=document["token"], segments=held)

    def _document(self, path: Path) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise self._error(path, f"it is no JSON ({error})") from error
        return found

    # --- segments -----------------------------------------------------------------------------------------------------

    @property
    def loose(self) -> tuple[Segment, ...]:
        """Segments that no batch holds, in the order in which they were acknowledged."""
        with self._guard:
            return tuple(self._loose)

    @property
    def backlog(self) -> tuple[int, int]:
        """Acknowledged and not committed: rows and segments."""
        with self._guard:
            held = [*self._loose, *(self.unfinished.segments if self.unfinished else ())]
        return sum(segment.rows for segment in held), len(held)

    @property
    def newest(self) -> int:
        """The number of the newest segment, 0 where there never was one."""
        with self._guard:
            return self._next_segment - 1

    def holds(self, number: int) -> bool:
        """Whether a segment up to this number is not committed yet."""
        with self._guard:
            held = [*self._loose, *(self.unfinished.segments if self.unfinished else ())]
        return any(segment.number <= number for segment in held)

    def append(self, table: Any, positions: Mapping[str, int] | None = None) -> Segment:
        """The rows of an Arrow table as a segment, on disk when this returns.

        Args:
            positions: how far each source has been submitted with these rows.

        Raises:
            JournalError: they can't be written; what was there before is as it was.
        """
        number = self._next_segment
        segment = self._written(f"segment-{number:020d}.parquet", number, table, positions or {})
        with self._guard:
            self._next_segment = number + 1
            self._loose.append(segment)
            self.positions.update(positions or {})
        return segment

    def _written(self, name: str, number: int, table: Any, positions: Mapping[str, int]) -> Segment:
        import pyarrow.parquet as pq

        path = self.folder / name
        temporary = path.with_name(f"{path.name}.tmp")
        with self._failing(path):
            with temporary.open("wb") as file:
                writer = pq.ParquetWriter(file, table.schema, store_schema=False, write_page_checksum=True)
                with writer:
                    writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
                    writer.add_key_value_metadata({_POSITIONS: json.dumps(dict(positions)).encode()})
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(self.folder)
            shape = str(pq.read_schema(path).remove_metadata())
            return Segment(number=number, path=path, rows=table.num_rows, size_bytes=path.stat().st_size, shape=shape)

    # --- batches ------------------------------------------------------------------------------------------------------

    def begin(self, epoch: int, rows: int) -> Batch | None:
        """Fix what the commit of an epoch is made of: the oldest segments of one shape; None where there are none.

        Args:
            rows: at most so many, but one segment always.

        Raises:
            JournalError: it can't be written down, or the batch before has not ended.
        """
        if self.unfinished is not None:
            raise self._error(self.folder, f"epoch {self.unfinished.epoch} has not ended")
        chosen: list[Segment] = []
        for segment in self.loose:
            is_over = chosen and sum(held.rows for held in chosen) + segment.rows > rows
            if is_over or (chosen and segment.shape != chosen[0].shape):
                break
            chosen.append(segment)
        if not chosen:
            return None
        batch = Batch(epoch=epoch, token=uuid.uuid4().hex, segments=tuple(chosen))
        self._write_batch(batch)
        with self._guard:
            self._loose = self._loose[len(chosen) :]
            self.unfinished = batch
            self.last_epoch = max(self.last_epoch, epoch)
        return batch

    def replace(self, batch: Batch, table: Any) -> Batch:
        """Other rows for a batch of which Delta has refused some, under the same epoch; nothing of it was committed.

        Raises:
            JournalError: they can't be written.
        """
        name = f"good-{batch.epoch:020d}-{uuid.uuid4().hex[:8]}.parquet"
        good = self._written(name, 0, table, {})
        gone = tuple(segment.path.name for segment in batch.segments)
        changed = replace(batch, segments=(good,), replaces=(*batch.replaces, *gone))
        self._write_batch(changed)  # from here on a replay is of these rows
        with self._guard:
            self.unfinished = changed
        with self._failing(self.folder):
            self._remove(gone)
        return changed

    def end(self, batch: Batch) -> None:
        """Forget a batch that is in the table.

        Raises:
            JournalError: it can't be written down; then the batch is replayed, and Delta knows it again.
        """
        with self._guard:
            # Of segments that are not committed yet, too: they are as durable as this file.
            positions, following = dict(self.positions), self._next_segment
        document = _described(batch) | {"positions": positions, "next_segment": following}
        with self._failing(self.folder):
            write_durably(self.folder / _COMMITTED, json.dumps(document).encode())
            self._remove([*document["segments"], *document["replaces"], _batch_name(batch)])
        with self._guard:
            self.unfinished = None

    def _write_batch(self, batch: Batch) -> None:
        with self._guard:
            document = _described(batch) | {"next_segment": self._next_segment}
        with self._failing(self.folder):
            write_durably(self.folder / _batch_name(batch), json.dumps(document).encode())

    # --- errors -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _failing(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._error(path, str(error)) from error

    def _error(self, path: Path, reason: str) -> JournalError:
        return JournalError(dataset=self._dataset, path=str(path), reason=reason)


def _batch_name(batch: Batch) -> str:
    return f"batch-{batch.epoch:020d}.json"


def _epoch_of(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def _described(batch: Batch) -> dict[str, Any]:
    names = [segment.path.name for segment in batch.segments]
    return {"epoch": batch.epoch, "token": batch.token, "segments": names, "replaces": list(batch.replaces)}


def tables(segments: Sequence[Segment]) -> Any:
    """The rows of segments as one Arrow table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pa.concat_tables([pq.read_table(segment.path) for segment in segments])
