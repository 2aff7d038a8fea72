"""A table as an operator looks at it: what it is, how it stands, and what happened to it.

Here belong facts from the log and from one count of the rows; nothing is changed. What a write may do about a
difference does not belong here, nor how a fact is printed.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession

from pipeline.dataset import Dataset
from pipeline.delta import sql
from pipeline.delta.log.commits import commit_note, rows_written
from pipeline.delta.log.snapshot import checkpoints, local_folder
from pipeline.delta.spark.doors import door, storage_failure
from pipeline.delta.spark.failures import NO_TABLE, NOTHING_TO_READ, SPARK_ERRORS, failure_of
from pipeline.delta.table.open_table import TableState, rows_at, shape_differences, table_state_with_sizes
from pipeline.errors import PipelineError, TableNotFoundError

Standing = Literal["never written", "ok", "differs from declaration", "unreadable"]

# How much of the history is looked through before all of it is.
RECENT_COMMITS = 100
# Operations that write no rows of anybody's.
ROWS_KEPT = frozenset(
    {
        "ADD COLUMNS", "ADD CONSTRAINT", "CHANGE COLUMN", "CHANGE COLUMNS", "CLUSTER BY", "COMPUTE STATS",
        "CREATE TABLE", "DOMAIN METADATA CLEANUP", "DROP COLUMNS", "DROP CONSTRAINT", "DROP FEATURE", "OPTIMIZE",
        "OPTIMIZE CHECKPOINT", "REMOVE COLUMN MAPPING", "RENAME COLUMN", "REORG", "REPLACE COLUMNS",
        "ROW TRACKING BACKFILL", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPDATE SCHEMA", "UPGRADE PROTOCOL",
        "VACUUM END", "VACUUM START",
    }
)  # fmt: skip
# Delta's own default of `delta.checkpointInterval`.
CHECKPOINT_INTERVAL = 10
SMALL_FILE_BYTES = 16 * 2**20
MANY_FILES_PER_PARTITION = 8
_HISTORY_COLUMNS = (
    "version", "unix_micros(timestamp) AS micros", "operation", "operationMetrics", "userMetadata", "engineInfo",
)  # fmt: skip
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


@dataclass(frozen=True, kw_only=True)
class HistoryEntry:
    """One commit; `note` is what we wrote into it, None in a commit that carries no mark of ours.

    `timestamp` is in UTC. Rows and files are None where Delta does not say.
    """

    version: int
    timestamp: dt.datetime
    operation: str
    engine: str | None
    metrics: Mapping[str, str]
    note: Mapping[str, Any] | None

    @property
    def rows_written(self) -> int | None:
        """Rows that are new in this version."""
        return rows_written(self.metrics)

    @property
    def files_added(self) -> int | None:
        """Data files that came."""
        return self._metric("numFiles", "numAddedFiles", "numTargetFilesAdded", "numRestoredFiles")

    @property
    def files_removed(self) -> int | None:
        """Data files that went."""
        return self._metric("numRemovedFiles", "numTargetFilesRemoved")

    def _metric(self, *names: str) -> int | None:
        return next((int(self.metrics[name]) for name in names if name in self.metrics), None)

    def document(self) -> dict[str, Any]:
        """The entry in JSON's types."""
        counted = {"rows_written": self.rows_written, "files_added": self.files_added}
        return (
            asdict(self) | {"timestamp": self.timestamp.isoformat()} | counted | {"files_removed": self.files_removed}
        )


@dataclass(frozen=True, kw_only=True)
class Health:
    """How a table stands; `remarks` say what to do, empty where nothing needs doing.

    `checkpoint_version` is None where there is no checkpoint.
    """

    checkpoint_version: int | None
    commits_since_checkpoint: int
    average_file_bytes: int | None
    last_optimize: dt.datetime | None
    last_vacuum: dt.datetime | None
    remarks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TableDescription:
    """A dataset's table, described; the fields after `location` are None where there is no table that can be read.

    `partitions` counts those that hold rows, None where the table has no partition columns. `problem` is the message of
    the error that kept the table from being read.
    """

    dataset: str
    standing: Standing
    location: str
    table: TableState | None = None
    rows: int | None = None
    partitions: int | None = None
    last_write: HistoryEntry | None = None
    health: Health | None = None
    differences: tuple[str, ...] = ()
    problem: str | None = None

    def document(self) -> dict[str, Any]:
        """The description in JSON's types."""
        table = None
        if self.table is not None:
            table = {name: value for name, value in vars(self.table).items() if name not in ("location", "schema")}
            table |= {"fingerprint": self.table.fingerprint, "schema": self.table.schema.jsonValue()}
        return {
            "dataset": self.dataset,
            "standing": self.standing,
            "location": self.location,
            "rows": self.rows,
            "partitions": self.partitions,
            "last_write": None if self.last_write is None else self.last_write.document(),
            "differences": list(self.differences),
            "health": None if self.health is None else json.loads(json.dumps(asdict(self.health), default=_iso)),
            "table": table,
            "problem": self.problem,
        }


def _iso(value: dt.datetime) -> str:
    return value.isoformat()


@door
def describe(session: SparkSession, dataset: Dataset, location: str) -> TableDescription:
    """The dataset's table as it is now; one Spark job counts its rows and partitions.

    Raises:
        DamagedTableError: what is there is damaged.
        StorageError: the storage can't be read.
    """
    state = table_state_with_sizes(session, dataset, location)
    if state is None:
        return TableDescription(dataset=dataset.name, standing="never written", location=location)
    try:
        rows, partitions = _count(rows_at(session, location, state.version), state)
        recent = _entries(session, location, RECENT_COMMITS)
        last_write = _last_write(recent)
        if last_write is None and len(recent) == RECENT_COMMITS:
            last_write = _last_write(_entries(session, location, None))
        checkpoint = _checkpoint_version(session, location)
    except SPARK_ERRORS as error:
        raise storage_failure(dataset.name, location, failure_of(error)) from error
    differences = tuple(shape_differences(dataset, state))
    return TableDescription(
        dataset=dataset.name,
        standing="differs from declaration" if differences else "ok",
        location=location,
        table=state,
        rows=rows,
        partitions=partitions,
        last_write=last_write,
        health=_health(state, partitions, checkpoint, recent),
        differences=differences,
    )


def describe_all(session: SparkSession, datasets: Iterable[Dataset], root: str) -> tuple[TableDescription, ...]:
    """Every dataset's table in the order given; one that can't be read does not keep the others from being shown."""
    found = []
    for dataset in datasets:
        location = dataset.location(root)
        try:
            found.append(describe(session, dataset, location))
        except PipelineError as error:
            found.append(
                TableDescription(
                    dataset=dataset.name, standing="unreadable", location=location, problem=error.message()
                )
            )
    return tuple(found)


@door
def history(session: SparkSession, dataset: Dataset, location: str, limit: int | None = None) -> list[HistoryEntry]:
    """The newest commits, newest first; all that the log still holds where `limit` is None.

    Raises:
        TableNotFoundError: it was never written.
        StorageError: the log can't be read.
    """
    try:
        return _entries(session, location, limit)
    except SPARK_ERRORS as error:
        failure = failure_of(error)
        if failure.has(NO_TABLE | NOTHING_TO_READ):
            raise TableNotFoundError(dataset=dataset.name, location=location) from error
        raise storage_failure(dataset.name, location, failure) from error


def _entries(session: SparkSession, location: str, limit: int | None) -> list[HistoryEntry]:
    bound = "" if limit is None else f" LIMIT {int(limit)}"
    commits = session.sql(f"DESCRIBE HISTORY {sql.path_table(location)}{bound}").selectExpr(*_HISTORY_COLUMNS)
    return [
        HistoryEntry(
            version=row["version"],
            timestamp=_EPOCH + dt.timedelta(microseconds=row["micros"]),
            operation=row["operation"],
            engine=row["engineInfo"],
            metrics=dict(row["operationMetrics"] or {}),
            note=commit_note(row["userMetadata"]),
        )
        for row in commits.collect()
    ]


def _last_write(entries: list[HistoryEntry]) -> HistoryEntry | None:
    return next((entry for entry in entries if entry.operation not in ROWS_KEPT), None)


def _count(frame: DataFrame, state: TableState) -> tuple[int, int | None]:
    """Rows, and partitions that hold any; unpartitioned, Delta answers from the statistics alone."""
    by_partition = frame.groupBy(*(sql.identifier(column) for column in state.partition_by)).count()
    row = by_partition.selectExpr("coalesce(sum(count), 0) AS n", "count(*) AS parts").collect()[0]
    return row["n"], row["parts"] if state.partition_by else None


def _checkpoint_version(session: SparkSession, location: str) -> int | None:
    folder = local_folder(location)
    if folder is not None:
        return max(checkpoints(folder), default=None)
    listing = session.read.format("binaryFile").option("pathGlobFilter", "*.checkpoint*")
    names = (
        listing.load(sql.path_pattern(f"{location}/_delta_log"))
        .selectExpr("element_at(split(path, '/'), -1) AS name")
        .collect()
    )
    return max((int(row["name"].partition(".")[0]) for row in names), default=None)


def _health(state: TableState, partitions: int | None, checkpoint: int | None, recent: list[HistoryEntry]) -> Health:
    since = state.version - checkpoint if checkpoint is not None else state.version + 1
    files = state.files or 0
    average = (state.bytes or 0) // files if files else None
    remarks = []
    if since > 2 * int(state.properties.get("delta.checkpointInterval", CHECKPOINT_INTERVAL)):
        remarks.append(
            f"{since} commits since the last checkpoint, and opening the table reads them all: "
            "pipeline maintain checkpoint"
        )
    if average is not None and average < SMALL_FILE_BYTES and files > MANY_FILES_PER_PARTITION * (partitions or 1):
        remarks.append(f"{files} files of {average} bytes on average: OPTIMIZE makes them fewer")

    def last(operation: str) -> dt.datetime | None:
        return next((entry.timestamp for entry in recent if entry.operation == operation), None)

    return Health(
        checkpoint_version=checkpoint,
        commits_since_checkpoint=since,
        average_file_bytes=average,
        last_optimize=last("OPTIMIZE"),
        last_vacuum=last("VACUUM END"),
        remarks=tuple(remarks),
    )
