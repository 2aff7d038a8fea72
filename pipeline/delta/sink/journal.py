"""The write-ahead journal of a sink: acknowledged rows that are not yet in the table, on this machine's disk.

Here belong the folder of one writer, its lock and the set of its files. A single file belongs to `segments`. The
receiver and the sink decide when rows are appended and committed. No Spark.

Files of the folder:
  lock                              locked by the kernel for the process that has the folder open
  segment-<number>-<digest>.parquet acknowledged rows; the numbers have no gap
  together.json                     segments of one append that are not yet renamed: all of them exist or none does
  batch-<epoch>.json                the segments of an epoch's commit, fixed before it begins, so that a replay of the
                                    epoch has the same rows
  good-<epoch>-….parquet            the rows of a batch without its refused rows; it replaces the segments
  committed.json                    the batch that was committed last; some of its segments may still exist
Every file is written under a temporary name, synced and renamed, so a file with a final name is complete. A missing
segment is reported by name, unless the operator has given its rows up: then its name ends in `.given-up`.
"""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.delta.sink.segments import (
    BATCH,
    GIVEN_UP,
    GOOD,
    SEGMENT,
    Batch,
    Segment,
    UntrustedFileError,
    batch_document,
    batch_name,
    epoch_of,
    irregular_problem,
    numbers_of,
    open_lock,
    read_document,
    read_segment,
    segment_of,
    table_of,
    write_segment,
)
from pipeline.delta.storage.local_files import TEMPORARY, sync_folder, write_durably
from pipeline.errors import JournalError, JournalWriteError, SinkRunningError
from pipeline.errors.listing import listed

_COMMITTED = "committed.json"
_TOGETHER = "together.json"
_NOTHING: dict[str, Any] = {
    "epoch": 0, "segments": [], "replaces": [], "positions": {}, "next_segment": 1, "version": -1,
}  # fmt: skip


class Journal:
    """The folder of one writer. One process at a time may open it.

    One thread may append while another begins and ends batches.
    """

    def __init__(self, folder: Path, dataset: str, writer: str) -> None:
        self.folder = folder
        self._dataset, self._writer = dataset, writer
        self._lock: int | None = None
        self._guard = threading.Lock()
        self._next_segment = 1
        self._loose: list[Segment] = []
        self.last_epoch = 0
        self.unfinished: Batch | None = None
        self.positions: dict[str, int] = {}
        self.synced_version = -1

    # --- the folder ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Lock the folder and read its files.

        Rows that were never acknowledged are removed. Then `unfinished` is the batch whose commit had begun, `loose`
        are the segments without a batch, `last_epoch` is the newest epoch in the folder, `positions` are the positions
        up to which its sources were submitted, and `synced_version` is the version up to which the table was made
        durable, -1 if unknown.

        Raises:
            SinkRunningError: another process has the folder open.
            JournalError: the folder can't be read, or an acknowledged file is damaged or missing.
        """
        with self._as_journal_error(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = self._lock_folder()
        try:
            with self._as_journal_error(self.folder):
                self._read()
        except JournalError:
            self.close()
            raise

    def close(self) -> None:
        """Unlock the folder. Its files stay."""
        if self._lock is not None:
            os.close(self._lock)  # this also releases the kernel's lock
            self._lock = None

    def _lock_folder(self) -> int:
        import fcntl

        path = self.folder / "lock"
        try:
            with self._as_journal_error(path):
                lock = open_lock(path)
        except UntrustedFileError as error:
            raise self._error(path, str(error)) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise SinkRunningError(dataset=self._dataset, writer=self._writer, folder=str(self.folder)) from error
        return lock

    def _read(self) -> None:
        for path in irregular_problem(self.folder):
            raise self._error(path, "it is not a regular file")
        self._finish_together()
        self._remove(name for name in os.listdir(self.folder) if name.endswith(TEMPORARY))
        path = self.folder / _COMMITTED
        committed = self._document(path) if path.exists() else _NOTHING
        self.last_epoch, self._next_segment = committed["epoch"], committed["next_segment"]
        self.positions, self.synced_version = dict(committed["positions"]), committed["version"]
        done = [*committed["segments"], *committed["replaces"]]
        self._remove(done)
        self.unfinished = self._unfinished_batch()
        if self.unfinished is not None:
            done += [*(segment.path.name for segment in self.unfinished.segments), *self.unfinished.replaces]
        names = sorted(os.listdir(self.folder))
        rest = [name for name in names if name not in done]
        self._remove(name for name in rest if GOOD.fullmatch(name))
        given_up = numbers_of([name for name in rest if name.endswith(GIVEN_UP)])
        self._loose = [self._segment(self.folder / name) for name in rest if SEGMENT.fullmatch(name)]
        self._refuse_gaps(after=max(numbers_of(done), default=0), given_up=given_up)
        if self.unfinished is not None and not self.unfinished.segments:
            self.end(self.unfinished)  # all its rows were given up

    def _refuse_gaps(self, *, after: int, given_up: Sequence[int]) -> None:
        """Refuse missing segments. Their numbers follow each other from the last one that a batch holds."""
        numbers = [segment.number for segment in self._loose]
        for number in {number for number in numbers if numbers.count(number) > 1}:
            raise self._error(self.folder, f"segment {number} exists twice")
        self._next_segment = max(self._next_segment, *(number + 1 for number in (*numbers, *given_up)), after + 1)
        missing = set(range(after + 1, self._next_segment)) - {*numbers, *given_up}
        if missing:
            raise self._error(self.folder, f"segments {listed(missing)} are missing")

    def _finish_together(self) -> None:
        """Finish an append of several segments: rename those that still have temporary names."""
        path = self.folder / _TOGETHER
        if not path.exists():
            return
        names = self._document(path)["segments"]
        for name in names:
            if not (self.folder / name).exists() and not (self.folder / f"{name}{TEMPORARY}").exists():
                raise self._error(self.folder / name, "it is missing")
        self._name_together(names)

    def _name_together(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):  # it is renamed already
                os.replace(self.folder / f"{name}{TEMPORARY}", self.folder / name)
        sync_folder(self.folder)
        self._remove([_TOGETHER])

    def _remove(self, names: Iterable[str]) -> None:
        for name in list(names):
            (self.folder / name).unlink(missing_ok=True)

    def _segment(self, path: Path) -> Segment:
        """A segment that an earlier process wrote. If it can't be trusted, raise: no acknowledged row may be lost."""
        try:
            segment, positions = read_segment(path)
        except UntrustedFileError as error:
            raise self._error(path, str(error)) from error
        self.positions.update(positions)
        return segment

    def _unfinished_batch(self) -> Batch | None:
        """The unfinished batch. Files of finished batches are removed."""
        batches = [path for path in sorted(self.folder.iterdir()) if BATCH.fullmatch(path.name)]
        unfinished = [path for path in batches if epoch_of(path) > self.last_epoch]
        self._remove(path.name for path in batches if path not in unfinished)
        if len(unfinished) > 1:
            raise self._error(self.folder, f"{len(unfinished)} batches are unfinished")
        return self._batch(unfinished[0]) if unfinished else None

    def _batch(self, path: Path) -> Batch:
        """An unfinished batch without the rows given up. Its epoch covers the rest, or was already committed."""
        document = self._document(path)
        if document["epoch"] != epoch_of(path):
            raise self._error(path, f"it contains epoch {document['epoch']}")
        present, missing, given_up = [], [], []
        for name in document["segments"]:
            if (self.folder / name).exists():
                present.append(self.folder / name)
            elif (self.folder / f"{name}{GIVEN_UP}").exists():
                given_up.append(name)
            else:
                missing.append(name)
        if missing:
            raise self._error(path, f"of its files {', '.join(missing)} are missing")
        self._remove(document["replaces"])
        self.last_epoch, self._next_segment = document["epoch"], max(self._next_segment, document["next_segment"])
        segments = tuple(self._segment(path) for path in present)
        replaces = (*document["replaces"], *given_up)
        return Batch(epoch=document["epoch"], token=document["token"], segments=segments, replaces=replaces)

    def _document(self, path: Path) -> dict[str, Any]:
        try:
            return read_document(path)
        except UntrustedFileError as error:
            raise self._error(path, str(error)) from error

    # --- segments -----------------------------------------------------------------------------------------------------

    @property
    def loose(self) -> tuple[Segment, ...]:
        """Segments that belong to no batch, in the order in which they were acknowledged."""
        with self._guard:
            return tuple(self._loose)

    @property
    def backlog(self) -> tuple[int, int]:
        """Rows and segments that are acknowledged but not committed."""
        with self._guard:
            segments = [*self._loose, *(self.unfinished.segments if self.unfinished else ())]
        return sum(segment.rows for segment in segments), len(segments)

    @property
    def newest(self) -> int:
        """The number of the newest segment. If there never was one, 0."""
        with self._guard:
            return self._next_segment - 1

    def holds(self, number: int) -> bool:
        """Whether a segment up to this number is not committed yet."""
        with self._guard:
            segments = [*self._loose, *(self.unfinished.segments if self.unfinished else ())]
        return any(segment.number <= number for segment in segments)

    def append(self, table: Any, positions: Mapping[str, int] | None = None) -> Segment:
        """As `append_all`, for one table."""
        (segment,) = self.append_all([table], positions)
        return segment

    def append_all(self, tables: Sequence[Any], positions: Mapping[str, int] | None = None) -> list[Segment]:
        """Write each Arrow table as a segment. All of them are on disk when this returns.

        If the process is killed at any point, the next one finds all of these segments or none.

        Args:
            positions: the position up to which each source has been submitted with these rows.

        Raises:
            JournalWriteError: they can't be written. Earlier files are unchanged.
            JournalError: they are written but can't be renamed. The next sink finds all of them.
        """
        first = self._next_segment
        numbers = range(first, first + len(tables))
        with self._as_journal_error(self.folder, JournalWriteError):
            names: list[str] = []
            try:
                for number, table in zip(numbers, tables, strict=True):
                    segment_positions = positions or {} if number == numbers[-1] else {}
                    temporary = write_segment(self.folder, f"segment-{number:020d}", number, table, segment_positions)
                    names.append(temporary.name.removesuffix(TEMPORARY))
                if len(names) > 1:
                    self._write(_TOGETHER, {"segments": names})
            except OSError:
                self._remove(f"{name}{TEMPORARY}" for name in names)
                raise
        with self._as_journal_error(self.folder):
            self._name_together(names)
            segments = [segment_of(self.folder / name, n) for name, n in zip(names, numbers, strict=True)]
        with self._guard:
            self._next_segment = numbers.stop
            self._loose += segments
            self.positions.update(positions or {})
        return segments

    # --- batches ------------------------------------------------------------------------------------------------------

    def begin(self, epoch: int, rows: int) -> Batch | None:
        """Fix the batch of an epoch: the oldest segments with one shape. If there are no segments, None.

        Args:
            rows: the most rows of a batch. It always has at least one segment.

        Raises:
            JournalWriteError: the batch can't be recorded.
            JournalError: the previous batch has not ended.
        """
        if self.unfinished is not None:
            raise self._error(self.folder, f"epoch {self.unfinished.epoch} has not ended")
        chosen: list[Segment] = []
        for segment in self.loose:
            is_over = chosen and sum(earlier.rows for earlier in chosen) + segment.rows > rows
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
        """Replace the rows of a batch, some of which Delta refused, under the same epoch. None of it was committed.

        Raises:
            JournalWriteError: they can't be written.
        """
        with self._as_journal_error(self.folder, JournalWriteError):
            stem = f"good-{batch.epoch:020d}-{uuid.uuid4().hex[:8]}"
            temporary = write_segment(self.folder, stem, 0, table, {})
            path = temporary.with_name(temporary.name.removesuffix(TEMPORARY))
            os.replace(temporary, path)
            sync_folder(self.folder)
            good = segment_of(path, 0)
        replaced = tuple(segment.path.name for segment in batch.segments)
        changed = replace(batch, segments=(good,), replaces=(*batch.replaces, *replaced))
        self._write_batch(changed)  # from here on a replay has these rows
        with self._guard:
            self.unfinished = changed
        with self._as_journal_error(self.folder):
            self._remove(replaced)
        return changed

    def rows_of(self, batch: Batch) -> Any:
        """The rows of a batch as one Arrow table.

        Raises:
            JournalError: they can't be read.
        """
        try:
            return table_of(batch.segments)
        except UntrustedFileError as error:
            raise self._error(self.folder, str(error)) from error

    def end(self, batch: Batch, synced_version: int | None = None) -> None:
        """Remove a batch that is in the table.

        Args:
            synced_version: the version up to which the table was made durable. If it is unchanged, None.

        Raises:
            JournalWriteError: the end can't be recorded. The batch is then replayed, and Delta recognises its epoch.
        """
        with self._guard:
            # They include segments that are not committed yet, which are as durable as this file.
            positions, next_segment = dict(self.positions), self._next_segment
        self.synced_version = self.synced_version if synced_version is None else synced_version
        document = batch_document(batch) | {
            "positions": positions, "next_segment": next_segment, "version": self.synced_version,
        }  # fmt: skip
        with self._as_journal_error(self.folder, JournalWriteError):
            self._write(_COMMITTED, document)
            self._remove([*document["segments"], *document["replaces"], batch_name(batch)])
        with self._guard:
            self.unfinished = None

    def _write_batch(self, batch: Batch) -> None:
        with self._guard:
            document = batch_document(batch) | {"next_segment": self._next_segment}
        with self._as_journal_error(self.folder, JournalWriteError):
            self._write(batch_name(batch), document)

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        write_durably(self.folder / name, json.dumps(document).encode())

    # --- errors -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _as_journal_error(self, path: Path, kind: type[JournalError] = JournalError) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise kind(dataset=self._dataset, path=str(path), reason=str(error)) from error

    def _error(self, path: Path, reason: str) -> JournalError:
        return JournalError(dataset=self._dataset, path=str(path), reason=reason)
