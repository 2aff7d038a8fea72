"""The history of a table: its commits, the newest first, with their metrics and our notes.

Here belong the commits from DESCRIBE HISTORY, and the same from the log's files. `describe` has the current state of a
table.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import SparkSession

from pipeline.delta import sql
from pipeline.delta.log.checkpoints import log_files, newest_files
from pipeline.delta.log.commits import commit_note, instant, rows_written
from pipeline.delta.log.entry import as_count, of_dataset
from pipeline.delta.log.timestamps import timed_commits
from pipeline.delta.spark.doors import door, storage_failure
from pipeline.delta.spark.failures import NO_TABLE, NOTHING_TO_READ, SPARK_ERRORS, failure_of
from pipeline.delta.storage.file_system import File
from pipeline.errors import TableNotFoundError

_HISTORY_COLUMNS = (
    "version", "unix_micros(timestamp) AS micros", "operation", "operationMetrics", "userMetadata", "engineInfo",
)  # fmt: skip
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
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
def history_in_log(
    name: str, location: str, limit: int | None = None, listed: Sequence[File] | None = None
) -> list[HistoryEntry] | None:
    """As `history`, from the log's files. If they are not enough, None. No Spark.

    Args:
        listed: the files of the log, as `newest_files` returns them. If None, they are listed.

    Raises:
        TableNotFoundError: the table was never written.
        DamagedTableError: an entry is not as a commit writes it.
        StorageError: the log can't be read.
    """
    try:
        files = newest_files(location) if listed is None else listed
        if log_files(location, files).latest is None:
            raise TableNotFoundError(dataset=name, location=location)
        with of_dataset(name):
            return _entries_in_log(location, limit, files)
    except (KeyError, NotImplementedError):  # the log is in a form that we don't read
        return None


def _entries_in_log(location: str, limit: int | None, listed: Sequence[File]) -> list[HistoryEntry] | None:
    commits = timed_commits(location, limit, listed)
    if commits is None:
        return None
    entries = [
        HistoryEntry(
            version=commit.version,
            timestamp=instant(commit.milliseconds),
            operation=commit.info.get("operation") or _UNKNOWN,
            engine=commit.info.get("engineInfo"),
            metrics={n: v if isinstance(v, str) else json.dumps(v) for n, v in _metrics(commit.info).items()},
            note=commit_note(commit.info.get("userMetadata")),
        )
        for commit in commits
    ]
    return entries[::-1]


def _metrics(info: Mapping[str, Any]) -> Mapping[str, Any]:
    return info.get("operationMetrics") or {}
