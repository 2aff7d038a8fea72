"""What maintenance depends on in a table: its files, the small ones among them, old tombstones, its log. No Spark.

Here belongs which files an OPTIMIZE joins, as Delta chooses them (`OptimizeTableCommand.scala`): in each partition the
small files, from the smallest on, as many as fit together into a file of the target size.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.dataset import TableRef
from pipeline.dataset.history import STATE_COLUMN, tombstone_day
from pipeline.dataset.policy import TARGET_FILE_BYTES
from pipeline.dataset.write_mode import tombstones_of
from pipeline.delta.inspect.describe import SMALL_FILE_BYTES
from pipeline.delta.log.checkpoints import all_files, log_files, usable_checkpoints
from pipeline.delta.log.commits import live_rows, partition_values
from pipeline.delta.log.counts import TableFiles, table_files
from pipeline.delta.log.entry import as_count
from pipeline.delta.read.readable import readable_versions
from pipeline.delta.spark.doors import door
from pipeline.delta.storage.file_system import File
from pipeline.delta.table.open_table import TableState
from pipeline.errors import StorageError

# Delta's default size of a file that OPTIMIZE writes, and the share of deleted rows from which on it rewrites a file.
MAXIMUM_BYTES = 2**30
_DELETED_RATIO = 0.05


@dataclass(frozen=True, kw_only=True)
class TableSizes:
    """The sizes of a table at its newest version.

    `joinable` files are small, and an OPTIMIZE would join them. `log_entries` is the number of entries of the log.
    `oldest_readable` is the oldest version from which on the log and the files of every version exist. If the log does
    not show it, it is None.
    """

    version: int
    files: int
    bytes: int
    joinable: int
    log_entries: int
    commits_since_checkpoint: int
    oldest_readable: int | None

    @property
    def small_file_ratio(self) -> float:
        """The share of joinable files, from 0 to 1."""
        return self.joinable / self.files if self.files else 0.0


def small_file_bytes(properties: Mapping[str, str]) -> int:
    """The size below which a file is small: half of the table's target size, or else 16 MiB."""
    target = as_count(properties.get(TARGET_FILE_BYTES))
    return target // 2 if target else SMALL_FILE_BYTES


@door
def table_sizes(table: TableRef, state: TableState) -> TableSizes:
    """The sizes of a table in an observed state.

    Raises:
        StorageError: the log can't be read, or has a form that only Spark reads.
        DamagedTableError: an entry is damaged.
    """
    listed = all_files(table.location)
    files, readable = _files(table, state, listed), readable_versions(table.location, listed)
    checkpoint = max((number for number in usable_checkpoints(listed) if number <= state.version), default=-1)
    return TableSizes(
        version=state.version, files=len(files.files), bytes=sum(file["size"] for file in files.files.values()),
        joinable=_joinable(files, state.properties), log_entries=len(log_files(table.location, listed).commits),
        commits_since_checkpoint=state.version - checkpoint,
        oldest_readable=None if readable is None else readable.with_files,
    )  # fmt: skip


def joinable_files(state: TableState) -> tuple[int, int] | None:
    """The number of files that an OPTIMIZE of small files joins, and that of all files of a table.

    If the log has a form that only Spark reads, None.
    """
    files = table_files(state.location, state.version, with_state=True)
    return None if files is None else (_joinable(files, state.properties), len(files.files))


def files_to_join(table: TableRef, state: TableState, *, below_bytes: int, target_bytes: int) -> tuple[int, ...]:
    """For each file that an OPTIMIZE would write, the number of the files that it would join.

    Args:
        below_bytes: only smaller files are joined, and those of which many rows are deleted.
        target_bytes: the greatest size of the files that become one.

    Raises:
        As `table_sizes` does.
    """
    return _joined(_files(table, state), below_bytes, target_bytes)


@dataclass(frozen=True)
class ExpiredTombstones:
    """The tombstones of a table that are older than it keeps them: the values of `STATE_COLUMN` that they have.

    `rows` is their number. If a file has no statistics, None.
    """

    states: tuple[str, ...] = ()
    rows: int | None = 0


def expired_tombstones(table: TableRef, state: TableState, now: dt.datetime) -> ExpiredTombstones:
    """The tombstones whose day ended more than `keep_hours` ago. Other rows of state don't expire.

    Raises:
        As `table_sizes` does.
    """
    tombstones = tombstones_of(table.dataset.write)
    if tombstones is None or not state.keeps_state:
        return ExpiredTombstones()
    files, rows = _files(table, state), dict[str, int | None]()
    place = files.partition_columns.index(STATE_COLUMN)
    for added in files.files.values():
        value = partition_values(added, files.partition_by)[place]
        if value is not None and _is_expired(tombstone_day(value), tombstones.keep_hours, now):
            before, count = rows.get(value, 0), live_rows(added)
            rows[value] = None if before is None or count is None else before + count
    counts = [count for count in rows.values() if count is not None]
    return ExpiredTombstones(tuple(sorted(rows)), sum(counts) if len(counts) == len(rows) else None)


def _is_expired(day: dt.date | None, keep_hours: int, now: dt.datetime) -> bool:
    if day is None:
        return False
    begun = dt.datetime.combine(day, dt.time(), dt.timezone.utc)
    return (now - begun).total_seconds() >= (24 + keep_hours) * 3600


def _files(table: TableRef, state: TableState, listed: Sequence[File] | None = None) -> TableFiles:
    files = table_files(table.location, state.version, listed, with_state=True)
    if files is None:
        raise table.error(StorageError, reason="its log has a form that only Spark reads")
    return files


def _joinable(table: TableFiles, properties: Mapping[str, str]) -> int:
    """The number of files that an OPTIMIZE of small files joins."""
    target = as_count(properties.get(TARGET_FILE_BYTES)) or MAXIMUM_BYTES
    return sum(_joined(table, small_file_bytes(properties), target))


def _joined(table: TableFiles, below_bytes: int, target_bytes: int) -> tuple[int, ...]:
    by_partition: dict[tuple[str | None, ...], list[int]] = {}
    for file in table.files.values():
        if file["size"] < below_bytes or _has_many_deleted(file):
            by_partition.setdefault(partition_values(file, table.partition_by), []).append(file["size"])
    packed = [joined for sizes in by_partition.values() for joined in _packed(sizes, target_bytes)]
    return tuple(len(joined) for joined in packed if len(joined) > 1)


def _has_many_deleted(file: Mapping[str, Any]) -> bool:
    vector, rows = file.get("deletionVector"), live_rows(file)
    if not vector:
        return False
    deleted = as_count(vector.get("cardinality")) or 0
    return rows is None or deleted > _DELETED_RATIO * (rows + deleted)


def _packed(sizes: Iterable[int], target: int) -> Sequence[Sequence[int]]:
    """The sizes of the files that become one file, for each new file."""
    packed: list[list[int]] = [[]]
    for size in sorted(sizes):
        if sum(packed[-1]) + size > target:
            packed.append([])
        packed[-1].append(size)
    return packed
