"""The Delta log as files: commits read without Spark, and the value of a commit, however it was read.

Here belong the list of versions in `_delta_log`, the reading of one commit file through the root's file system, and the
commit's value from its actions. `mark` writes our notes into commits and finds the commit of a write.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pipeline.dataset.history import STATE_COLUMN
from pipeline.delta.log.checkpoints import LOG, all_files, commit_name, log_files, newest_files
from pipeline.delta.log.entry import Action, actions_of, as_count, info_of, note_in, statistics, table_actions_of
from pipeline.delta.storage.file_system import File, file_system, read_file, read_listed, read_timed

FORMAT = 1
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
# How long the first commit of a table may take after its log folder was created.
CREATION_SECONDS = 30.0
# Temporary names of the first commit, from Delta's log store and from Hadoop's local file system.
_UNNAMED = re.compile(r"\.{1,2}\d{20}\.json\.[0-9a-f-]{36}\.tmp(?:\.crc)?")
_STAGED = "_staged_commits"
_KIND_LENGTH = 16  # the characters of a line that contain its action's name
_IDENTITY_LENGTH = 32


@dataclass(frozen=True, kw_only=True)
class PartitionCounts:
    """The changes of a commit in one partition, or in several together.

    `rows` counts the inserted and updated rows. If a file has no statistics, or if the commit also copied unchanged
    rows, None.
    """

    rows: int | None = 0
    files_added: int = 0
    files_removed: int = 0
    bytes_added: int = 0

    def __add__(self, other: PartitionCounts) -> PartitionCounts:
        return PartitionCounts(
            rows=None if self.rows is None or other.rows is None else self.rows + other.rows,
            files_added=self.files_added + other.files_added,
            files_removed=self.files_removed + other.files_removed,
            bytes_added=self.bytes_added + other.bytes_added,
        )


PartitionValues = tuple[str | None, ...]


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One commit as in the log (Delta protocol, "Delta Log Entries").

    `changes_rows` is false for a commit that only rearranges files, sets properties, or has files of rows that are no
    rows of the dataset (`STATE_COLUMN`). The counts by partition are without such files. `rows_by_partition` counts the
    rows of the added files by partition values, in the order of the partition columns. If a file has no statistics, it
    is None. `partitions` has the counts, by partition values, of every partition that the commit changed. If a removed
    file does not name its partition, it is None. `timestamp`, in UTC, is the one that Delta uses for time travel: the
    in-commit timestamp, or else the modification time of the commit's file. `engine` is the software that committed.
    """

    version: int
    timestamp: dt.datetime
    operation: str
    metrics: Mapping[str, str]
    user_metadata: str | None
    changes_rows: bool
    files_added: int
    bytes_added: int
    files_removed: int
    partitions: Mapping[PartitionValues, PartitionCounts] | None
    rows_by_partition: Mapping[PartitionValues, int] | None
    table_id: str | None = None
    engine: str | None = None

    @property
    def token(self) -> str | None:
        """The token of our mark. If the commit is not ours, None."""
        return commit_token(self.user_metadata)

    def metric(self, name: str) -> int | None:
        """One of Delta's operation metrics as a number. If the commit has no metric of that name, None."""
        return as_count(self.metrics.get(name))

    @property
    def rows_written(self) -> int | None:
        """The number of inserted or updated rows. If the commit has no such metric, None."""
        return rows_written(self.metrics)


def rows_written(metrics: Mapping[str, str]) -> int | None:
    """The number of rows that a commit inserted or updated, from its operation metrics. If they lack it, None.

    A merge counts the rows that it only copied among its output rows.
    """
    merged: list[object] = [
        metrics[name] for name in ("numTargetRowsInserted", "numTargetRowsUpdated") if name in metrics
    ]
    parts = [as_count(value) for value in (merged or [metrics.get("numOutputRows")])]
    return None if None in parts else sum(part for part in parts if part is not None)


def commit_note(user_metadata: str | None) -> dict[str, Any] | None:
    """Our note in a commit's user metadata. If the commit is not ours, None."""
    return note_in(user_metadata, FORMAT)


def commit_token(user_metadata: str | None) -> str | None:
    """The token of our mark in a commit's user metadata. If the commit is not ours, None."""
    note = commit_note(user_metadata)
    return None if note is None else note.get("mark", {}).get("token")


def commit_file(location: str, number: int) -> str:
    """The file of a commit in the log."""
    return f"{location}/{LOG}/{commit_name(number)}"


def commit_of(
    number: int, actions: Iterable[Mapping[str, Any]], partition_by: tuple[str, ...], changed_milliseconds: int
) -> Commit:
    """A commit from its actions, each a mapping with one key that is not None, and its file's modification time."""
    rows = list(actions)
    info = info_of(rows)
    metadata: Mapping[str, Any] = next((row["metaData"] for row in rows if row.get("metaData")), {})
    added = [row["add"] for row in rows if row.get("add")]
    removed = [row["remove"] for row in rows if row.get("remove")]
    ours, gone = ([file for file in files if not is_state_file(file)] for files in (added, removed))
    written = rows_written(info.get("operationMetrics") or {})
    milliseconds = info.get("inCommitTimestamp") or changed_milliseconds
    return Commit(
        version=number,
        timestamp=instant(milliseconds, changed_milliseconds),
        operation=info.get("operation") or "",
        metrics=info.get("operationMetrics") or {},
        user_metadata=info.get("userMetadata"),
        changes_rows=any(file.get("dataChange", True) for file in (*ours, *gone)),
        files_added=len(added),
        bytes_added=sum(file["size"] for file in added),
        files_removed=len(removed),
        partitions=_exact(_partitions(ours, gone, partition_by), _without_state(written, added, removed)),
        rows_by_partition=_rows_by_partition(ours, gone, partition_by),
        table_id=metadata.get("id"),
        engine=info.get("engineInfo"),
    )


def instant(*milliseconds: int) -> dt.datetime:
    """The first of these times since the epoch, in milliseconds, that is in the years 1 to 9999. If none, the epoch."""
    for time_since in milliseconds:
        with suppress(OverflowError):
            return _EPOCH + dt.timedelta(milliseconds=time_since)
    return _EPOCH


def live_rows(added: Mapping[str, Any]) -> int | None:
    """The rows of a file without those that its deletion vector deletes. If it has no statistics, None."""
    records = as_count(statistics(added).get("numRecords"))
    if records is None:  # a checkpoint may have statistics as a struct only (Delta protocol, "Checkpoints")
        records = as_count((added.get("stats_parsed") or {}).get("numRecords"))
    vector = added.get("deletionVector")
    deleted = as_count(vector.get("cardinality")) if vector else 0
    return None if records is None or deleted is None else records - deleted


def partition_values(file: Mapping[str, Any], partition_by: tuple[str, ...]) -> PartitionValues:
    """The partition values of a file. In Parquet a map is a list of pairs."""
    values = dict(file.get("partitionValues") or {})
    return tuple(values.get(column) for column in partition_by)


def is_state_file(file: Mapping[str, Any]) -> bool:
    """Whether a file has rows of state (`STATE_COLUMN`). If columns are mapped, its action does not tell it: False."""
    return bool(dict(file.get("partitionValues") or {}).get(STATE_COLUMN))


def _without_state(
    written: int | None, added: list[Mapping[str, Any]], removed: list[Mapping[str, Any]]
) -> int | None:  # fmt: skip
    """The number of written rows without rows of state. If some of these may be copies of old ones, None."""
    counts = [live_rows(file) for file in added if is_state_file(file)]
    if written is None or not counts:
        return written
    if None in counts or any(map(is_state_file, removed)):
        return None
    return written - sum(count for count in counts if count is not None)


def _partitions(
    added: list[Mapping[str, Any]], removed: list[Mapping[str, Any]], partition_by: tuple[str, ...]
) -> dict[PartitionValues, PartitionCounts] | None:
    values_by_path = {file["path"]: partition_values(file, partition_by) for file in added}
    counts: dict[PartitionValues, PartitionCounts] = {}
    for file in removed:
        # The field may be missing (Delta protocol, "Add File and Remove File").
        has_values = file.get("partitionValues") is not None or not partition_by
        if not has_values and file["path"] not in values_by_path:
            return None
        values = partition_values(file, partition_by) if has_values else values_by_path[file["path"]]
        counts[values] = counts.get(values, PartitionCounts()) + PartitionCounts(files_removed=1)
    removed_paths = {file["path"] for file in removed}
    for file in added:
        values, rows = values_by_path[file["path"]], 0 if file["path"] in removed_paths else live_rows(file)
        count = PartitionCounts(rows=rows, files_added=1, bytes_added=file["size"])
        counts[values] = counts.get(values, PartitionCounts()) + count
    return counts


def _exact(
    counts: dict[PartitionValues, PartitionCounts] | None, written: int | None
) -> dict[PartitionValues, PartitionCounts] | None:
    """The counts. If some rows of the new files may be copies of old ones, without the numbers of rows."""
    total = sum((counts or {}).values(), PartitionCounts())
    if counts is None or total.rows == written or (written is None and not total.files_removed):
        return counts
    return {values: replace(count, rows=None) if count.files_added else count for values, count in counts.items()}


def _rows_by_partition(
    added: list[Mapping[str, Any]], removed: list[Mapping[str, Any]], partition_by: tuple[str, ...]
) -> dict[PartitionValues, int] | None:
    removed_paths = {file["path"] for file in removed}
    rows: dict[PartitionValues, int] = {}
    for file in added:
        count = 0 if file["path"] in removed_paths else live_rows(file)
        if count is None:
            return None
        values = partition_values(file, partition_by)
        rows[values] = rows.get(values, 0) + count
    return rows


def commit_versions(location: str, after: int = -1) -> list[int]:
    """The versions above `after` that have a commit file, ascending. If there is no log, empty. No Spark."""
    return list(log_files(location, all_files(location, after + 1)).commits)


def newest_versions(location: str, limit: int) -> list[int]:
    """The versions of the newest commits, ascending. If there is no log, empty. No Spark."""
    versions = list(log_files(location, newest_files(location)).commits)
    if versions and len(versions) < limit and versions[0] > 0:
        versions = commit_versions(location, max(versions[-1] - limit, -1))
    return versions[-limit:]


def read_entry(location: str, number: int, *, few: bool = False, file: File | None = None) -> list[Action]:
    """The actions of one entry of the log. With `few`, without those of files. No Spark.

    Args:
        file: the entry's file as it was listed. If None, it is read in any case.

    Raises:
        OSError: the file is missing, or the storage can't be read.
        DamagedTableError: the file is not as a commit writes it.
    """
    content = _content(location, number, file)
    return (table_actions_of if few else actions_of)(commit_file(location, number), content)


def _content(location: str, number: int, file: File | None) -> bytes:
    return read_file(commit_file(location, number)) if file is None else read_listed(f"{location}/{LOG}", file)


def commit_info(location: str, number: int, file: File | None = None) -> Mapping[str, Any] | None:
    """The commitInfo of a commit, empty if it has none. If the log no longer has the commit, None. No Spark.

    Args:
        file: the commit's file as it was listed. If None, it is read in any case.

    Raises:
        OSError: the storage can't be read.
        DamagedTableError: the file is not as a commit writes it.
    """
    try:
        return info_of(read_entry(location, number, few=True, file=file))
    except FileNotFoundError:
        return None


def newest_infos(location: str, limit: int | None = None) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The versions and commitInfos of the newest commits, the newest first. If `limit` is None, of all. No Spark.

    Raises:
        As `commit_info` does.
    """
    for number in reversed(commit_versions(location) if limit is None else newest_versions(location, limit)):
        info = commit_info(location, number)
        if info is not None:  # cleaned up since it was listed
            yield number, info


def read_commit(location: str, number: int, partition_by: tuple[str, ...]) -> Commit:
    """One commit from its file in the log. No Spark.

    Raises:
        OSError: the file is missing, or the storage can't be read.
        DamagedTableError: the file is not as a commit writes it.
    """
    path = commit_file(location, number)
    content, changed = read_timed(path)
    return commit_of(number, actions_of(path, content), partition_by, changed // 1_000_000)


def is_info(line: str) -> bool:
    """Whether a line of a commit is its commitInfo."""
    return '"commitInfo"' in line[:_KIND_LENGTH]


def entry_identity(lines: Iterable[str]) -> str:
    """The identity of a commit, from its lines. Two commits of one version differ in it, copies of a commit don't."""
    rows = [line.strip() for line in lines if line.strip()]
    identifying = [row for row in rows if is_info(row)] or sorted(rows)
    return hashlib.sha256("\n".join(identifying).encode()).hexdigest()[:_IDENTITY_LENGTH]


def commit_identity(location: str, number: int, file: File | None = None) -> str | None:
    """The identity of a commit from its file. If the log no longer has it, None. No Spark.

    Args:
        file: the commit's file as it was listed. If None, it is read in any case.

    Raises:
        OSError: the storage can't be read.
    """
    try:
        content = _content(location, number, file)
    except FileNotFoundError:
        return None
    return entry_identity(content.decode("utf-8", errors="replace").split("\n"))


def _is_unnamed_commit(entry: os.DirEntry[str]) -> bool:
    """Whether a file is a temporary one of a first commit that no process is writing any more."""
    return bool(_UNNAMED.fullmatch(entry.name)) and time.time() - entry.stat().st_mtime > CREATION_SECONDS


def _remove_unnamed_commits(folder: str) -> None:
    for entry in os.scandir(folder):
        if _is_unnamed_commit(entry):
            os.unlink(entry.path)


def is_empty_log(location: str) -> bool:
    """Whether `remove_empty_log` would remove the log's folder, and it is unchanged for `CREATION_SECONDS`."""
    system, path = file_system(location)
    log = f"{path}/{LOG}"
    if system.type_name != "local" or not os.path.isdir(log) or time.time() - os.stat(log).st_mtime < CREATION_SECONDS:
        return False
    with os.scandir(log) as entries:
        return all(
            entry.name == _STAGED and not os.listdir(entry.path) if entry.is_dir() else _is_unnamed_commit(entry)
            for entry in entries
        )


def remove_empty_log(location: str) -> bool:
    """Remove a log folder without a commit: a process leaves one if it is killed in its first write.

    Does so only on this machine's disk (elsewhere there are no empty folders), and only if the folder has no files but
    temporary ones of a first commit, unchanged for `CREATION_SECONDS`. Returns whether it removed the folder.
    """
    system, path = file_system(location)
    if system.type_name != "local":
        return False
    log = f"{path}/{LOG}"
    if not os.path.isdir(log):
        return False
    try:
        _remove_unnamed_commits(log)
        if os.path.isdir(f"{log}/{_STAGED}"):
            os.rmdir(f"{log}/{_STAGED}")
        os.rmdir(log)
    except OSError:
        return False
    return True


def has_log_folder(location: str) -> bool:
    """Whether there is a log folder, with or without commits.

    Raises:
        OSError, ValueError: as `file_system`.
    """
    from pyarrow import fs

    system, path = file_system(location)
    return bool(system.get_file_info(f"{path}/{LOG}").type == fs.FileType.Directory)
