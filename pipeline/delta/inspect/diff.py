"""The differences between two versions of a table: from its change feed if that is readable, else by comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from pipeline.dataset import TableRef
from pipeline.dataset.write_mode import is_comparable
from pipeline.delta import sql
from pipeline.delta.inspect.query import Answer, answer_of, query_session
from pipeline.delta.log.mark import Cursor
from pipeline.delta.read.changes import (
    CHANGE_TYPE,
    COMMIT_VERSION,
    DELETE,
    INSERT,
    net_changes,
    net_rows,
    read_changes,
    release_changes,
)
from pipeline.delta.read.verdict import Verdict, verdict_on
from pipeline.delta.read.version import ReadOptions, resolve_version
from pipeline.delta.spark.doors import door
from pipeline.delta.table.open_table import require_table, rows_at
from pipeline.errors import VersionNotFoundError


@dataclass(frozen=True, kw_only=True)
class Diff:
    """The net changes from one version to another.

    A dataset with keys has one change a key, and a History one a span, a key and its `valid_from`: an `insert`, a
    `delete`, or the new row of an update as `update_postimage`. Any other dataset has an `insert` or a `delete` for
    each additional or missing row. `counts` has the number of all changes by type, including those that `answer` leaves
    out. `verdict` shows whether the feed was read.
    """

    dataset: str
    first: int
    last: int
    verdict: Verdict
    counts: Mapping[str, int]
    answer: Answer


@door
def diff(session: SparkSession, table: TableRef, *, first: int, last: int, limit: int) -> Diff:
    """The net changes from the version `first` to the version `last`, which is not before it.

    Raises:
        TableNotFoundError: the table was never written.
        VersionNotFoundError, VersionVacuumedError: a version is gone, and the feed alone is not enough.
    """
    with query_session(session) as clone:
        state = require_table(clone, table)
        if last > state.version:
            raise table.error(VersionNotFoundError, asked=f"version {last}", available=f"up to {state.version}")
        verdict = verdict_on(clone, table, Cursor(table_id=state.table_id, version=first), up_to=last)
        with _net(clone, table, verdict, first) as (read, frame):
            counts = {row[CHANGE_TYPE]: row["count"] for row in frame.groupBy(CHANGE_TYPE).count().collect()}
            by = table.dataset.row_keys or tuple(f.name for f in frame.schema.fields if is_comparable(f.dataType))
            names = [name for name in frame.columns if name != CHANGE_TYPE]
            ordered = frame.orderBy(*map(sql.identifier, by)).selectExpr(CHANGE_TYPE, *map(sql.identifier, names))
            answer = answer_of(ordered, {table.name: last}, limit)
    return Diff(dataset=table.name, first=first, last=last, verdict=read, counts=counts, answer=answer)


@contextmanager
def _net(clone: SparkSession, table: TableRef, verdict: Verdict, first: int) -> Iterator[tuple[Verdict, DataFrame]]:
    """The net changes, and the final verdict on the feed."""
    if verdict.reason is None:
        changes = read_changes(clone, table, verdict)
        try:
            if not changes.is_full:
                rows = changes.frame if table.dataset.row_keys or changes.feed is None else net_rows(changes.feed)
                yield changes.verdict, rows.drop(COMMIT_VERSION)
                return
            verdict = changes.verdict
        finally:
            release_changes(changes)
    raw = _at(clone, table, first, DELETE).unionByName(
        _at(clone, table, verdict.version, INSERT), allowMissingColumns=True
    )
    yield verdict, net_changes(raw, table.dataset.row_keys) if table.dataset.row_keys else net_rows(raw)


def _at(clone: SparkSession, table: TableRef, version: int, change: str) -> DataFrame:
    """The rows of a version as changes of that type by its commit."""
    number = resolve_version(clone, table, ReadOptions(version=version))
    rows = rows_at(clone, table.location, number)
    return rows.selectExpr("*", f"'{change}' AS {CHANGE_TYPE}", f"{number}L AS {COMMIT_VERSION}")
