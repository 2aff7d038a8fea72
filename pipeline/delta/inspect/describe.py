"""The description of a table for an operator: its state, its size and its health.

Here belong facts from the log and from one count of the rows; nothing is changed. What a write does about a difference
does not belong here, nor how a fact is printed. `history` lists the commits of the table.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from pipeline.dataset import Dataset, TableRef
from pipeline.delta import sql
from pipeline.delta.inspect.history import HistoryEntry, entries, history_in_log
from pipeline.delta.log.checkpoints import log_files, newest_files, usable_checkpoints
from pipeline.delta.log.commits import live_rows, partition_values
from pipeline.delta.log.counts import table_files
from pipeline.delta.log.entry import as_count, of_dataset
from pipeline.delta.spark.doors import door, storage_error, storage_failure
from pipeline.delta.spark.failures import SPARK_ERRORS, failure_of
from pipeline.delta.storage.access import kept_store_errors
from pipeline.delta.storage.file_system import File, file_system
from pipeline.delta.table.open_table import TableState, observe_at, rows_at, shape_differences, state_from_log
from pipeline.errors import PipelineError

Standing = Literal["never written", "ok", "differs from declaration", "not declared", "unreadable"]

# The numbers of newest commits to search for the last write, before the full history is searched.
FEW_COMMITS, RECENT_COMMITS = 5, 100
# Operations that change no rows.
ROWS_KEPT = frozenset(
    {
        "ADD COLUMNS", "ADD CONSTRAINT", "CHANGE COLUMN", "CHANGE COLUMNS", "CLUSTER BY", "COMPUTE STATS",
        "CREATE TABLE", "DOMAIN METADATA CLEANUP", "DROP COLUMNS", "DROP CONSTRAINT", "DROP FEATURE", "OPTIMIZE",
        "OPTIMIZE CHECKPOINT", "REMOVE COLUMN MAPPING", "RENAME COLUMN", "REORG", "REPLACE COLUMNS",
        "ROW TRACKING BACKFILL", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPDATE SCHEMA", "UPGRADE PROTOCOL",
        "VACUUM END", "VACUUM START",
    }
)  # fmt: skip
# Delta's default of `delta.checkpointInterval`.
CHECKPOINT_INTERVAL = 10
SMALL_FILE_BYTES = 16 * 2**20
MANY_FILES_PER_PARTITION = 8
_MAPPED = "delta.columnMapping."


@dataclass(frozen=True, kw_only=True)
class Health:
    """The health of a table. `remarks` are problems with their remedies; without problems it is empty.

    If there is no checkpoint, `checkpoint_version` is None.
    """

    checkpoint_version: int | None
    commits_since_checkpoint: int
    average_file_bytes: int | None
    last_optimize: dt.datetime | None
    last_vacuum: dt.datetime | None
    remarks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TableDescription:
    """The description of a dataset's table. If there is no readable table, the fields after `location` are None.

    `partitions` is the number of partitions with rows. If the table has no partition columns, it is None. `problem` is
    the message of the error that prevented the read.
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
            left_out = ("location", "schema", "log")
            table = {name: value for name, value in vars(self.table).items() if name not in left_out}
            table |= {"fingerprint": self.table.fingerprint, "schema": _shown(self.table.schema.jsonValue())}
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


def _shown(value: Any) -> Any:
    """A schema in JSON without its columns' physical names and ids, which Spark does not show."""
    if isinstance(value, dict):
        return {name: _shown(part) for name, part in value.items() if not name.startswith(_MAPPED)}
    return [_shown(part) for part in value] if isinstance(value, list) else value


def _iso(value: dt.datetime) -> str:
    return value.isoformat()


@door
def describe(session: SparkSession, table: TableRef) -> TableDescription:
    """The newest version of the dataset's table. One Spark job counts its rows and partitions.

    Raises:
        DamagedTableError: the table is damaged.
        StorageError: the storage can't be read.
    """
    return describe_at(session, table.name, table.location, table.dataset)


@door
def describe_at(session: SparkSession, name: str, location: str, declared: Dataset | None) -> TableDescription:
    """As `describe`, for a table that may have no declaration."""
    state = observe_at(session, name, location)
    if state is None:
        return TableDescription(dataset=name, standing="never written", location=location)
    try:
        rows, partitions = _count(rows_at(session, location, state.version), state)
        checkpoint = max(usable_checkpoints(newest_files(location)), default=None)
        return _described(
            name, declared, state, rows=rows, partitions=partitions, checkpoint=checkpoint,
            history=lambda limit: entries(session, location, limit),
        )  # fmt: skip
    except SPARK_ERRORS as error:
        raise storage_failure(name, location, failure_of(error)) from error


def described_in_log(
    name: str, location: str, declared: Dataset | None, *, with_health: bool = True
) -> TableDescription | None:
    """As `describe_at`, from the files of the table. If they are not enough for it, None. No Spark.

    Rows are counted from statistics. For a file without statistics they are counted from its footer.

    Args:
        with_health: whether to search the newest 100 commits for the facts of the table's health.

    Raises:
        DamagedTableError: the table is damaged.
        StorageError: the storage can't be read.
    """
    try:
        listed = newest_files(location)
        if log_files(location, listed).latest is None:
            return TableDescription(dataset=name, standing="never written", location=location)
        with of_dataset(name):
            state = state_from_log(location, listed)
        counted = None if state is None else _counted_in_log(state, listed)
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise storage_error(error, name, location) from error
    if counted is None or history_in_log(name, location, 1, listed) is None:
        return None
    sized, rows, partitions = counted
    return _described(
        name, declared, sized, rows=rows, partitions=partitions,
        checkpoint=max(usable_checkpoints(listed), default=None),
        history=lambda limit: history_in_log(name, location, limit, listed) or [], with_health=with_health,
    )  # fmt: skip


def _counted_in_log(state: TableState, listed: Sequence[File]) -> tuple[TableState, int, int | None] | None:
    """The state with sizes, and the numbers of rows and of partitions with rows. If the log lacks them, None."""
    table = table_files(state.location, state.version, listed)
    if table is None:
        return None
    rows: dict[tuple[str | None, ...], int] = {}
    for added in table.files.values():
        count = live_rows(added)
        count = _rows_in_footer(state.location, added) if count is None else count
        if count is None:
            return None
        # An empty text in a partition column is NULL.
        values = tuple(value or None for value in partition_values(added, table.partition_by))
        rows[values] = rows.get(values, 0) + count
    sized = replace(state, files=len(table.files), bytes=sum(added["size"] for added in table.files.values()))
    return sized, sum(rows.values()), sum(map(bool, rows.values())) if state.partition_by else None


def _rows_in_footer(location: str, added: Mapping[str, Any]) -> int | None:
    import pyarrow.parquet as pq

    path = unquote(added["path"])
    if "://" in path or path.startswith(("/", "file:")):  # a file of another table
        return None
    deleted = (added.get("deletionVector") or {}).get("cardinality") or 0
    system, folder = file_system(location)
    with kept_store_errors():
        return int(pq.read_metadata(f"{folder}/{path}", filesystem=system).num_rows) - int(deleted)


def _described(
    name: str, declared: Dataset | None, state: TableState, *, rows: int, partitions: int | None,
    checkpoint: int | None, history: Callable[[int | None], list[HistoryEntry]], with_health: bool = True,
) -> TableDescription:  # fmt: skip
    recent: list[HistoryEntry] = []
    last_write = None
    for limit in (RECENT_COMMITS, None) if with_health else (FEW_COMMITS, RECENT_COMMITS, None):
        recent = history(limit)
        last_write = _last_write(recent)
        if last_write is not None or len(recent) != limit:
            break
    differences = () if declared is None else tuple(shape_differences(declared, state))
    standing: Standing = "differs from declaration" if differences else "ok"
    return TableDescription(
        dataset=name,
        standing="not declared" if declared is None else standing,
        location=state.location,
        table=state,
        rows=rows,
        partitions=partitions,
        last_write=last_write,
        health=_health(state, partitions, checkpoint, recent[:RECENT_COMMITS]) if with_health else None,
        differences=differences,
    )


def describe_all(
    datasets: Iterable[Dataset], root: str, describe_table: Callable[[TableRef], TableDescription]
) -> tuple[TableDescription, ...]:
    """The descriptions of all datasets' tables, in the same order. An unreadable table has a description too.

    Args:
        describe_table: describes a table.
    """
    descriptions = []
    for dataset in datasets:
        table = dataset.at(root)
        try:
            descriptions.append(describe_table(table))
        except PipelineError as error:
            descriptions.append(
                TableDescription(
                    dataset=table.name, standing="unreadable", location=table.location, problem=error.message()
                )
            )
    return tuple(descriptions)


def _last_write(commits: Iterable[HistoryEntry]) -> HistoryEntry | None:
    return next((entry for entry in commits if entry.operation not in ROWS_KEPT), None)


def _count(frame: DataFrame, state: TableState) -> tuple[int, int | None]:
    """The number of rows, and of partitions with rows. Without partitions, Delta counts from statistics alone."""
    by_partition = frame.groupBy(*(sql.identifier(column) for column in state.partition_by)).count()
    row = by_partition.selectExpr("coalesce(sum(count), 0) AS n", "count(*) AS parts").collect()[0]
    return row["n"], row["parts"] if state.partition_by else None


def _health(state: TableState, partitions: int | None, checkpoint: int | None, recent: list[HistoryEntry]) -> Health:
    since = state.version - checkpoint if checkpoint is not None else state.version + 1
    files = state.files or 0
    average = (state.bytes or 0) // files if files else None
    remarks = []
    if since > 2 * (as_count(state.properties.get("delta.checkpointInterval")) or CHECKPOINT_INTERVAL):
        remarks.append(
            f"opening the table reads all {since} commits since the last checkpoint: pipeline maintain checkpoint"
        )
    if average is not None and average < SMALL_FILE_BYTES and files > MANY_FILES_PER_PARTITION * (partitions or 1):
        remarks.append(f"{files} files of {average} bytes on average: OPTIMIZE compacts them")

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
