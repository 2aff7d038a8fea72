"""The history of a table: its commits, the newest first, with their metrics and our notes.

Here belong the commits from DESCRIBE HISTORY, and the same from the log's files. `describe` has the current state of a
table.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pipeline.delta import sql
from pipeline.delta.log.commits import (
    File,
    commit_note,
    instant,
    list_files,
    read_entry,
    rows_written,
    version_of_commit,
)
from pipeline.delta.log.entry import as_count, info_of, of_dataset
from pipeline.delta.log.replay import log_files
from pipeline.delta.log.snapshot import local_folder, table_facts
from pipeline.delta.spark.doors import door, storage_failure
from pipeline.delta.spark.failures import NO_TABLE, NOTHING_TO_READ, SPARK_ERRORS, failure_of
from pipeline.errors import TableNotFoundError

_HISTORY_COLUMNS = (
    "version", "unix_micros(timestamp) AS micros", "operation", "operationMetrics", "userMetadata", "engineInfo",
)  # fmt: skip
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
# Whether a table has in-commit timestamps, and since which version (Delta protocol, "In-Commit Timestamps").
_TIMED = "delta.enableInCommitTimestamps"
_TIMED_SINCE = "delta.inCommitTimestampEnablementVersion"
_MILLISECOND = 1_000_000  # in nanoseconds
_UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class HistoryEntry:
    """One commit. `note` is our note in its user metadata. If the commit is not ours, None.

    `timestamp` is in UTC. If Delta's metrics lack the number of rows or files, it is None.
    """

    version: int
    timestamp: dt.datetime
    operation: str
    engine: str | None
    metrics: Mapping[str, str]
    note: Mapping[str, Any] | None

    @property
    def rows_written(self) -> int | None:
        """The number of rows that the commit inserted or updated."""
        return rows_written(self.metrics)

    @property
    def files_added(self) -> int | None:
        """The number of data files that the commit added."""
        return self._metric("numFiles", "numAddedFiles", "numTargetFilesAdded", "numRestoredFiles")

    @property
    def files_removed(self) -> int | None:
        """The number of data files that the commit removed."""
        return self._metric("numRemovedFiles", "numTargetFilesRemoved")

    def _metric(self, *names: str) -> int | None:
        return next((as_count(self.metrics[name]) for name in names if name in self.metrics), None)

    def document(self) -> dict[str, Any]:
        """The entry in JSON's types."""
        counted = {"rows_written": self.rows_written, "files_added": self.files_added}
        return (
            asdict(self) | {"timestamp": self.timestamp.isoformat()} | counted | {"files_removed": self.files_removed}
        )


@door
def history(session: SparkSession, name: str, location: str, limit: int | None = None) -> list[HistoryEntry]:
    """The newest commits, the newest first. If `limit` is None, all that the log still has.

    Args:
        name: the name of the dataset, for the errors.

    Raises:
        TableNotFoundError: the table was never written.
        StorageError: the log can't be read.
    """
    try:
        return entries(session, location, limit)
    except SPARK_ERRORS as error:
        failure = failure_of(error)
        if failure.has(NO_TABLE | NOTHING_TO_READ):
            raise TableNotFoundError(dataset=name, location=location) from error
        raise storage_failure(name, location, failure) from error


def entries(session: SparkSession, location: str, limit: int | None) -> list[HistoryEntry]:
    """As `history`, but raises Spark's own errors."""
    bound = "" if limit is None else f" LIMIT {int(limit)}"
    commits = session.sql(f"DESCRIBE HISTORY {sql.path_table(location)}{bound}").selectExpr(*_HISTORY_COLUMNS)
    return [
        HistoryEntry(
            version=row["version"],
            timestamp=_EPOCH + dt.timedelta(microseconds=row["micros"]),
            operation=row["operation"] or _UNKNOWN,
            engine=row["engineInfo"],
            metrics=dict(row["operationMetrics"] or {}),
            note=commit_note(row["userMetadata"]),
        )
        for row in commits.collect()
    ]


@door
def history_in_log(name: str, location: str, limit: int | None = None) -> list[HistoryEntry] | None:
    """As `history`, from the log's files. If they are not enough or not on this machine, None. No Spark.

    Raises:
        TableNotFoundError: the table was never written.
        DamagedTableError: an entry is not as a commit writes it.
        StorageError: the log can't be read.
    """
    folder = local_folder(location)
    if folder is None:
        return None
    try:
        if log_files(str(folder)).latest is None:
            raise TableNotFoundError(dataset=name, location=location)
        with of_dataset(name):
            return _entries_in_log(folder, limit)
    except (KeyError, NotImplementedError):  # the log is in a form that we don't read
        return None


def _entries_in_log(folder: Path, limit: int | None) -> list[HistoryEntry] | None:
    files = _commit_files(folder)
    facts = table_facts(folder, max(files)) if files else None
    if facts is None:
        return None
    first = min(files) if limit is None else max(max(files) - limit + 1, 0)
    numbers = sorted(number for number in files if number >= first)
    infos = {number: info for number in numbers if (info := _info(folder, number)) is not None}
    times = dict(_times(files, infos, _timed_from(facts.properties, numbers)))
    commits = [
        HistoryEntry(
            version=number,
            timestamp=instant(times[number]),
            operation=info.get("operation") or _UNKNOWN,
            engine=info.get("engineInfo"),
            metrics={n: v if isinstance(v, str) else json.dumps(v) for n, v in _metrics(info).items()},
            note=commit_note(info.get("userMetadata")),
        )
        for number, info in infos.items()
    ]
    return commits[::-1]


def _commit_files(folder: Path) -> dict[int, File]:
    files = list_files(f"{folder}/_delta_log")
    return {number: file for file in files if (number := version_of_commit(file.name)) is not None}


def _info(folder: Path, number: int) -> Mapping[str, Any] | None:
    """The commitInfo of a commit. If the commit was removed from the log since it was listed, None."""
    try:
        return info_of(read_entry(str(folder), number, few=True))
    except FileNotFoundError:
        return None


def _metrics(info: Mapping[str, Any]) -> Mapping[str, Any]:
    return info.get("operationMetrics") or {}


def _timed_from(properties: Mapping[str, str], numbers: Sequence[int]) -> int:
    """The first version with an in-commit timestamp. If there is none, one more than the greatest of these."""
    by_name = {name.lower(): value for name, value in properties.items()}
    if (by_name.get(_TIMED.lower()) or "").lower() != "true":
        return max(numbers) + 1
    return as_count(by_name.get(_TIMED_SINCE.lower())) or 0


def _times(
    files: Mapping[int, File], infos: Mapping[int, Mapping[str, Any]], timed_from: int
) -> Iterator[tuple[int, int]]:
    """The timestamp of each version in milliseconds: the in-commit one, or the modification time of its file.

    Copied files may have modification times out of order. As Delta does, each is made later than the one before it.
    """
    previous = None
    for number, info in infos.items():
        if number >= timed_from and isinstance(info.get("inCommitTimestamp"), int):
            yield number, info["inCommitTimestamp"]
            continue
        changed = files[number].changed_nanoseconds // _MILLISECOND
        previous = changed if previous is None or changed > previous else previous + 1
        yield number, previous
