"""The Delta log as files: commits read without Spark, and what a commit says in either way.

Here belong the list of versions in `_delta_log`, the reading of one commit file through the root's file system, and the
value that a commit's actions make. Which commit is ours, and what is written into one, belongs to `mark`.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from pipeline.delta.log.entry import Action, actions_of, as_count, info_of, note_in, statistics, table_actions_of

FORMAT = 1
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
# How often a folder is looked at that comes or goes at that moment, before its error is raised.
_LOOKS = 5
# How long the first commit of a table may take once its log folder is there.
CREATION_SECONDS = 30.0
# The first commit before it is given its name, as Delta's log store and Hadoop's file system of this machine call it.
_UNNAMED = re.compile(r"\.{1,2}\d{20}\.json\.[0-9a-f-]{36}\.tmp(?:\.crc)?")
_COMMIT_NAME = re.compile(r"(\d{20})\.json")
_KIND_LENGTH = 16  # of the name of an action at the head of its line
_ENTRY_LENGTH = 32


@dataclass(frozen=True, kw_only=True)
class PartitionCounts:
    """What a commit did to one partition, or to several together.

    `rows` are those that were inserted or updated; None where a file carries no statistics, or where the commit has
    also written rows again that it left as they were.
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
_CHECKPOINT_NAME = re.compile(r"(\d{20})\.checkpoint(?:\.[\w-]+)?(?:\.\d{10}\.(\d{10}))?\.(?:parquet|json)")


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One commit as it stands in the log (Delta protocol, "Delta Log Entries").

    `changes_rows` is false for a commit that only rearranges files or sets properties. `rows_by_partition` counts the
    rows of the added files by partition values in the order of the partition columns; None where a file carries no
    statistics. `partitions` are the counts by partition values of every partition that the commit has changed; None
    where a removed file does not name its partition. `timestamp` is the one by which Delta finds a version: that in the
    commit where the table keeps such, or else the time of change of the commit's file; in UTC.
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

    @property
    def token(self) -> str | None:
        """The token of our mark; None in a commit that is not ours."""
        return commit_token(self.user_metadata)

    def metric(self, name: str) -> int | None:
        """One of Delta's operation metrics as a number; None where the commit has none of that name."""
        return as_count(self.metrics.get(name))

    @property
    def rows_written(self) -> int | None:
        """The rows that were inserted or updated; None where the commit does not say."""
        return rows_written(self.metrics)


def rows_written(metrics: Mapping[str, str]) -> int | None:
    """The rows that a commit inserted or updated, from its operation metrics; None where they don't say.

    A merge counts the rows that it only copied among its output rows.
    """
    merged: list[object] = [
        metrics[name] for name in ("numTargetRowsInserted", "numTargetRowsUpdated") if name in metrics
    ]
    parts = [as_count(value) for value in (merged or [metrics.get("numOutputRows")])]
    return None if None in parts else sum(part for part in parts if part is not None)


def commit_note(user_metadata: str | None) -> dict[str, Any] | None:
    """What we wrote into a commit beside the rows; None where somebody else wrote it."""
    return note_in(user_metadata, FORMAT)


def commit_token(user_metadata: str | None) -> str | None:
    """The token in a commit's user metadata; None where somebody else wrote it."""
    note = commit_note(user_metadata)
    return None if note is None else note.get("mark", {}).get("token")


def commit_file(location: str, number: int) -> str:
    """Where the log keeps a commit."""
    return f"{location}/_delta_log/{number:020d}.json"


def commit_of(
    number: int, actions: Iterable[Mapping[str, Any]], partition_by: tuple[str, ...], changed_milliseconds: int
) -> Commit:
    """A commit from its actions, each a mapping with one key that holds something, and its file's time of change."""
    rows = list(actions)
    info = info_of(rows)
    metadata: Mapping[str, Any] = next((row["metaData"] for row in rows if row.get("metaData")), {})
    added = [row["add"] for row in rows if row.get("add")]
    removed = [row["remove"] for row in rows if row.get("remove")]
    milliseconds = info.get("inCommitTimestamp") or changed_milliseconds
    return Commit(
        version=number,
        timestamp=instant(milliseconds, changed_milliseconds),
        operation=info.get("operation") or "",
        metrics=info.get("operationMetrics") or {},
        user_metadata=info.get("userMetadata"),
        changes_rows=any(file.get("dataChange", True) for file in (*added, *removed)),
        files_added=len(added),
        bytes_added=sum(file["size"] for file in added),
        files_removed=len(removed),
        partitions=_exact(_partitions(added, removed, partition_by), rows_written(info.get("operationMetrics") or {})),
        rows_by_partition=_rows_by_partition(added, removed, partition_by),
        table_id=metadata.get("id"),
    )


def instant(*milliseconds: int) -> dt.datetime:
    """The first of these times since the epoch, in milliseconds, that is in the years 1 to 9999; else the epoch."""
    for time_since in milliseconds:
        with suppress(OverflowError):
            return _EPOCH + dt.timedelta(milliseconds=time_since)
    return _EPOCH


def live_rows(added: Mapping[str, Any]) -> int | None:
    """The rows of a file that its deletion vector leaves, from its statistics; None where it carries none."""
    records = as_count(statistics(added).get("numRecords"))
    if records is None:  # a checkpoint may keep them apart from the text, or only so (Delta protocol, "Checkpoints")
        records = as_count((added.get("stats_parsed") or {}).get("numRecords"))
    vector = added.get("deletionVector")
    deleted = as_count(vector.get("cardinality")) if vector else 0
    return None if records is None or deleted is None else records - deleted


def partition_values(file: Mapping[str, Any], partition_by: tuple[str, ...]) -> PartitionValues:
    """The partition values of a file; in Parquet a map comes as a list of pairs."""
    values = dict(file.get("partitionValues") or {})
    return tuple(values.get(column) for column in partition_by)


def _partitions(
    added: list[Mapping[str, Any]], removed: list[Mapping[str, Any]], partition_by: tuple[str, ...]
) -> dict[PartitionValues, PartitionCounts] | None:
    known = {file["path"]: partition_values(file, partition_by) for file in added}
    counts: dict[PartitionValues, PartitionCounts] = {}
    for file in removed:
        # The field may be missing (Delta protocol, "Add File and Remove File").
        if file.get("partitionValues") is None and partition_by and file["path"] not in known:
            return None
        named = file.get("partitionValues") is not None
        values = partition_values(file, partition_by) if named or not partition_by else known[file["path"]]
        counts[values] = counts.get(values, PartitionCounts()) + PartitionCounts(files_removed=1)
    before = {file["path"] for file in removed}
    for file in added:
        values, rows = known[file["path"]], 0 if file["path"] in before else live_rows(file)
        one = PartitionCounts(rows=rows, files_added=1, bytes_added=file["size"])
        counts[values] = counts.get(values, PartitionCounts()) + one
    return counts


def _exact(
    counts: dict[PartitionValues, PartitionCounts] | None, written: int | None
) -> dict[PartitionValues, PartitionCounts] | None:
    """The counts without rows where those of the new files may not all have been written, but copied."""
    together = sum((counts or {}).values(), PartitionCounts())
    if counts is None or together.rows == written or (written is None and not together.files_removed):
        return counts
    return {values: replace(one, rows=None) if one.files_added else one for values, one in counts.items()}


def _rows_by_partition(
    added: list[Mapping[str, Any]], removed: list[Mapping[str, Any]], partition_by: tuple[str, ...]
) -> dict[PartitionValues, int] | None:
    before = {file["path"] for file in removed}
    rows: dict[PartitionValues, int] = {}
    for file in added:
        count = 0 if file["path"] in before else live_rows(file)
        if count is None:
            return None
        values = partition_values(file, partition_by)
        rows[values] = rows.get(values, 0) + count
    return rows


@dataclass(frozen=True)
class File:
    """A file in a folder; the time of change is in nanoseconds since the epoch."""

    name: str
    size: int
    changed_nanoseconds: int


def list_files(folder: str) -> list[File]:
    """The files right below a folder, of any URI; empty where there is no such folder. No Spark."""
    from pyarrow import fs

    system, path = file_system(folder)
    found = list_folder(system, path)
    return [File(info.base_name, info.size, info.mtime_ns or 0) for info in found if info.type == fs.FileType.File]


def list_folder(system: Any, path: str, *, recursive: bool = False) -> list[Any]:
    """What lies below a folder of a filesystem; nothing where there is no such folder."""
    from pyarrow import fs

    selector = fs.FileSelector(path, recursive=recursive, allow_not_found=True)
    for _ in range(_LOOKS):
        # pyarrow raises all the same where the folder comes or goes while it looks.
        with suppress(FileNotFoundError):
            return list(system.get_file_info(selector))
    return list(system.get_file_info(selector))


def version_of_commit(name: str) -> int | None:
    """The version that a file of the log is the entry of; None of any other file."""
    found = _COMMIT_NAME.fullmatch(name)
    return int(found[1]) if found else None


def commit_versions(location: str, after: int = -1) -> list[int]:
    """Versions above `after` whose commit files are there, ascending; empty where there is no log. No Spark."""
    numbers = (version_of_commit(file.name) for file in list_files(f"{location}/_delta_log"))
    return sorted(number for number in numbers if number is not None and number > after)


def complete_checkpoints(names: Iterable[str]) -> dict[int, tuple[str, ...]]:
    """By version the files of its checkpoints among these; one of several parts counts when all are there."""
    parts: dict[int, list[tuple[str, int]]] = {}
    for name in names:
        found = _CHECKPOINT_NAME.fullmatch(name)
        if found:
            parts.setdefault(int(found[1]), []).append((name, int(found[2] or 1)))
    return {v: tuple(sorted(n for n, _ in of)) for v, of in parts.items() if len(of) >= max(total for _, total in of)}


def read_entry(location: str, number: int, *, few: bool = False) -> list[Action]:
    """The actions of one entry of the log, all or those that say something about the table; no Spark.

    Raises:
        OSError: the file is not there, or the storage can't be read.
        DamagedTableError: it is not what a commit has written.
    """
    system, path = file_system(location)
    with system.open_input_stream(commit_file(path, number)) as stream:
        content: bytes = stream.read()
    return (table_actions_of if few else actions_of)(commit_file(location, number), content)


def read_commit_file(location: str, number: int, partition_by: tuple[str, ...]) -> Commit:
    """One commit from its file in the log; no Spark.

    Raises:
        OSError: the file is not there, or the storage can't be read.
        DamagedTableError: it is not what a commit has written.
    """
    actions = read_entry(location, number)
    system, path = file_system(location)
    changed = system.get_file_info(commit_file(path, number)).mtime_ns or 0
    return commit_of(number, actions, partition_by, changed // 1_000_000)


def is_info(line: str) -> bool:
    """Whether a line of a commit is what it says of itself."""
    return '"commitInfo"' in line[:_KIND_LENGTH]


def entry_identity(lines: Iterable[str]) -> str:
    """The identity of a commit, from its lines: two commits of one number differ in it, copies of one do not."""
    rows = [line.strip() for line in lines if line.strip()]
    told = [row for row in rows if is_info(row)] or sorted(rows)
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:_ENTRY_LENGTH]


def entry_identity_at(location: str, number: int) -> str | None:
    """The identity of a commit from its file; None where it is gone from the log. No Spark.

    Raises:
        OSError: the storage can't be read.
    """
    system, path = file_system(location)
    try:
        with system.open_input_stream(commit_file(path, number)) as stream:
            content: bytes = stream.read()
    except FileNotFoundError:
        return None
    return entry_identity(content.decode("utf-8", errors="replace").split("\n"))


def _remove_unnamed_commits(folder: str) -> None:
    for entry in os.scandir(folder):
        if _UNNAMED.fullmatch(entry.name) and time.time() - entry.stat().st_mtime > CREATION_SECONDS:
            os.unlink(entry.path)


def remove_empty_log(location: str) -> bool:
    """Remove the log folder without a commit that a process leaves if it is killed in its first write.

    Only on a disk of this machine (elsewhere there are no empty folders), and only if nothing is in it but a commit
    that was never given its name, and that nobody has touched for `CREATION_SECONDS`. Whether there was such a folder.
    """
    system, path = file_system(location)
    if system.type_name != "local":
        return False
    log = f"{path}/_delta_log"
    if not os.path.isdir(log):
        return False
    try:
        _remove_unnamed_commits(log)
        if os.path.isdir(f"{log}/_staged_commits"):
            os.rmdir(f"{log}/_staged_commits")
        os.rmdir(log)
    except OSError:
        return False
    return True


def has_log_folder(location: str) -> bool:
    """Whether there is a log folder, with commits or without.

    Raises:
        OSError, ValueError: as `file_system`.
    """
    from pyarrow import fs

    system, path = file_system(location)
    return bool(system.get_file_info(f"{path}/_delta_log").type == fs.FileType.Directory)


def file_system(location: str) -> tuple[Any, str]:
    """The file system of a URI and the path in it, as pyarrow has them; a plain path is one of this machine.

    Raises:
        OSError, ValueError: no such file system is known, or it can't be reached.
    """
    from pyarrow import fs

    scheme = urlsplit(location).scheme
    if scheme in ("", "file"):
        # Hadoop takes a path as it is; pyarrow would decode a percent sign in a URI.
        return fs.LocalFileSystem(), location.removeprefix("file://").removeprefix("file:")
    known = {"s3a": "s3", "s3n": "s3"}.get(scheme, scheme)
    return fs.FileSystem.from_uri(f"{known}{location[len(scheme) :]}")  # type: ignore[no-any-return]
