"""The raw change feed of a table over a window of its commits, pinned at both ends.

Here belong the ends of the window, the refusal of one that can't be read, and the counts of one commit. Net changes
belong to `changes`, the verdict to `verdict`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from pipeline.dataset import TableRef
from pipeline.delta import sql
from pipeline.delta.log.mark import Cursor
from pipeline.delta.read.changes import CHANGE_TYPE, COMMIT_VERSION, load_feed
from pipeline.delta.read.verdict import Verdict, VerdictKind, verdict_on, window_files
from pipeline.delta.spark.failures import SPARK_ERRORS
from pipeline.delta.sql.slices import Unaddressable, rows_by_values
from pipeline.delta.table.open_table import CHANGE_FEED, require_table
from pipeline.errors import ChangesUnreadableError, VersionNotFoundError
from pipeline.settings import refuse_other_types

COMMIT_TIMESTAMP = "_commit_timestamp"
_WRITTEN = "('insert', 'update_postimage')"
_ADDED = [
    StructField(CHANGE_TYPE, StringType()),
    StructField(COMMIT_VERSION, LongType()),
    StructField(COMMIT_TIMESTAMP, TimestampType()),
]


@dataclass(frozen=True, kw_only=True)
class Window:
    """The commits `first` to `last`, both included. Version 0 creates a table and brings no rows.

    Without `first` the window begins at the first commit from which on all changes can be read. Without `last` it ends
    at the version that the table would be read at.
    """

    first: int | None = None
    last: int | None = None

    def __post_init__(self) -> None:
        refuse_other_types(self)
        if self.first is not None and self.last is not None and self.first > self.last:
            raise ValueError("a window of changes ends before it begins")


@dataclass(frozen=True, kw_only=True)
class WindowRead:
    """The rows of a feed with `_change_type`, `_commit_version` and `_commit_timestamp`.

    `first` and `last` are the ends that were read. `files` is the number of files that hold the changes.
    """

    frame: DataFrame
    first: int
    last: int
    files: int


def read_window(session: SparkSession, table: TableRef, window: Window, version: int) -> WindowRead:
    """Read the changes of a window. Without `last`, it ends at `version`. No Spark job if the log is local.

    Raises:
        TableNotFoundError: the table was never written.
        VersionNotFoundError: the window reaches beyond the newest version.
        ChangesUnreadableError: changes in the window were not recorded, or are gone. Without `first`: no commit of the
            window has readable changes.
    """
    newest = require_table(session, table)
    last = version if window.last is None else window.last
    beyond = max(last, window.first or 0)
    if beyond > newest.version or last < (window.first or 0):
        raise table.error(VersionNotFoundError, asked=f"changes of version {beyond}", available=f"up to {last}")
    cursor = Cursor(table_id=newest.table_id, version=max((window.first or 1) - 1, 0))
    verdict = verdict_on(session, table, cursor, up_to=last)
    while window.first is None and verdict.kind is VerdictKind.FULL and cursor.version < last:
        cursor = replace(cursor, version=max(verdict.at_fault, default=cursor.version + 1))
        refused, verdict = verdict, verdict_on(session, table, cursor, up_to=last)
        if cursor.version == last:
            verdict = refused
    if verdict.reason is not None:
        raise table.error(
            ChangesUnreadableError,
            reason=verdict.reason.value,
            setting=CHANGE_FEED,
            versions=verdict.at_fault or (cursor.version,),
        )
    frame = _frame(session, table.location, verdict)
    files = len(window_files(table.location, verdict))
    return WindowRead(frame=frame, first=cursor.version + 1, last=last, files=files)


def written_rows(session: SparkSession, table: TableRef, version: int) -> DataFrame | None:
    """The rows that a commit inserted or updated, as they are after it. If the dataset has no change feed, None."""
    if not table.dataset.change_feed:
        return None
    rows = load_feed(session, table.location, version, version).filter(f"{CHANGE_TYPE} IN {_WRITTEN}")
    return rows.selectExpr(*(sql.identifier(name) for name in table.dataset.schema.names))


def rows_written(session: SparkSession, table: TableRef, version: int) -> dict[tuple[Any, ...], int] | None:
    """By typed values of the partition columns, the rows that a commit inserted or updated. One Spark job.

    An updated row counts in the partition that it has after the update. If the dataset has no change feed, if the feed
    of that commit can't be read, or if Python can't hold a value, None.
    """
    if not table.dataset.change_feed:
        return None
    try:
        rows = load_feed(session, table.location, version, version)
        counts = rows_by_values(rows.filter(f"{CHANGE_TYPE} IN {_WRITTEN}"), table.dataset.partition_by, ("TRUE",))
    except (Unaddressable, *SPARK_ERRORS):
        return None
    return {values: count for values, (count,) in counts.items()}


def _frame(session: SparkSession, location: str, verdict: Verdict) -> DataFrame:
    if verdict.window is None:
        return session.createDataFrame([], StructType([*verdict.schema.fields, *_ADDED]))
    columns = (*verdict.schema.names, *(field.name for field in _ADDED))
    return load_feed(session, location, *verdict.window).selectExpr(*map(sql.identifier, columns))
