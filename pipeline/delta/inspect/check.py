"""Checks of the expectations on a full table, at one version, after the write.

Here belong the expectations as functions from frames to frames, and the outcomes for one version of a table. The write
itself enforces `constraints`. The caller decides what follows from an outcome.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own name for it

from pipeline.dataset import (
    Append,
    Dataset,
    Expectation,
    FreshWithin,
    History,
    References,
    RowCount,
    Severity,
    Spans,
    TableRef,
    Unique,
    table_location,
)
from pipeline.dataset.expectations import constraint_name, expectation_name, null_label
from pipeline.dataset.schema import free_name
from pipeline.delta import sql
from pipeline.delta.inspect.describe import TableDescription, describe
from pipeline.delta.log.commits import PartitionValues, read_commit
from pipeline.delta.log.counts import table_rows
from pipeline.delta.log.mark import private_session
from pipeline.delta.spark.doors import door
from pipeline.delta.sql import constraints
from pipeline.delta.sql.constraints import EXAMPLES, BrokenRows
from pipeline.delta.sql.slices import partition_value, rows_by_values
from pipeline.delta.table.open_table import rows_at, state_at_location
from pipeline.errors import TableNotFoundError
from pipeline.errors.listing import listed

_ROWS = "rows of values"
# Of a value in an example.
_SHOWN_CHARACTERS = 60


def duplicate_values(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The values that several rows share in these columns, with the number of these rows. NULLs are equal values."""
    counted = frame.groupBy(*(sql.identifier(name) for name in columns)).agg(F.count("*").alias(_rows(columns)))
    return counted.filter(f"{sql.identifier(_rows(columns))} > 1")


def unmatched_values(frame: DataFrame, columns: Sequence[str], other: DataFrame, to: Sequence[str]) -> DataFrame:
    """The values that no row of `other` has in `to`, with the number of their rows. Values with a NULL are left out."""
    aliases = [f"v{position}" for position in range(len(columns))]
    is_present = " AND ".join(f"{sql.identifier(name)} IS NOT NULL" for name in columns)
    renamed = zip(columns, aliases, strict=True)
    values = frame.filter(is_present).selectExpr(*(f"{sql.identifier(name)} AS {alias}" for name, alias in renamed))
    targets = other.selectExpr(*(f"{sql.identifier(name)} AS {alias}" for name, alias in zip(to, aliases, strict=True)))
    counted = values.groupBy(*aliases).agg(F.count("*").alias(_rows(columns)))
    missing = counted.join(targets.distinct(), on=aliases, how="left_anti")
    restored = zip(aliases, columns, strict=True)
    return missing.selectExpr(
        *(f"{alias} AS {sql.identifier(name)}" for alias, name in restored), sql.identifier(_rows(columns))
    )


def _rows(columns: Sequence[str]) -> str:
    """A name, different from these, for the column with the number of rows."""
    return free_name(_ROWS, columns)


def _broken_spans(frame: DataFrame, dataset: Dataset) -> DataFrame:
    """The keys and beginnings of spans that are wrong, with the number of their rows: see `Spans`."""
    mode = dataset.write
    assert isinstance(mode, History)  # noqa: S101  the declaration of `Spans` refuses other modes
    begin, end = sql.identifier(mode.valid_from), sql.identifier(mode.valid_to)
    columns = (*dataset.keys, mode.valid_from)
    is_open, latest, rank = (
        sql.identifier(sql.helper_name(dataset, name)) for name in ("is after open", "latest end", "rank of span")
    )
    order = f"PARTITION BY {sql.names(dataset.keys)} ORDER BY {begin}, {end} NULLS LAST"
    before = f"OVER ({order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    wrong = [f"{begin} IS NULL", f"{end} <= {begin}", f"coalesce({is_open}, FALSE)", f"{latest} > {begin}"]
    if mode.is_current is not None:
        wrong.append(f"NOT ({sql.identifier(mode.is_current)} <=> ({end} IS NULL))")
    judged = frame.selectExpr(
        "*", f"bool_or({end} IS NULL) {before} AS {is_open}", f"max({end}) {before} AS {latest}", f"1 AS {rank}"
    )
    return judged.filter(" OR ".join(f"({condition})" for condition in wrong)).selectExpr(
        *map(sql.identifier, columns), f"{rank} AS {sql.identifier(_rows(columns))}"
    )


def count_violations(values: DataFrame, columns: Sequence[str]) -> BrokenRows:
    """The number of rows that break an expectation, and some of their values. One Spark query."""
    rows = sql.identifier(_rows(columns))
    shown = {name: f"left(CAST({sql.identifier(name)} AS STRING), {_SHOWN_CHARACTERS})" for name in columns}
    texts = ", ".join(f"concat({sql.string(f'{name} = ')}, coalesce({value}, 'NULL'))" for name, value in shown.items())
    text = f"concat_ws(', ', {texts})"
    summary = values.selectExpr(f"sum({rows}) AS c0", f"min_by({text}, {text}, {EXAMPLES}) AS e0").collect()[0]
    return BrokenRows(int(summary["c0"] or 0), tuple(summary["e0"] or ()))


def violations_at(
    session: SparkSession, table: TableRef, version: int, expectation: Expectation, *, root: str,
    other_version: int | None = None,
) -> tuple[BrokenRows, int | None]:  # fmt: skip
    """The rows that break an expectation at a version of the table, and the version of the other table, if it has one.

    Args:
        other_version: the version of the other table. If None, its newest.

    Raises:
        TableNotFoundError: the other table was never written.
    """
    with private_session(session, {}) as clone:
        return _broken_by(clone, table, version, expectation, root=root, other_version=other_version)


def _broken_by(
    session: SparkSession, table: TableRef, version: int, expectation: Expectation, *, root: str,
    other_version: int | None = None,
) -> tuple[BrokenRows, int | None]:  # fmt: skip
    frame = rows_at(session, table.location, version)
    if isinstance(expectation, Spans):
        columns = (*table.dataset.keys, *table.dataset.computed[:1])
        return count_violations(_broken_spans(frame, table.dataset), columns), None
    if isinstance(expectation, Unique):
        return count_violations(duplicate_values(frame, expectation.columns), expectation.columns), None
    other_location = table_location(root, expectation.dataset)
    if other_version is None:
        state = state_at_location(session, expectation.dataset, other_location)
        if state is None:
            raise TableNotFoundError(dataset=expectation.dataset, location=other_location)
        other_version = state.version
    other = rows_at(session, other_location, other_version)
    values = unmatched_values(frame, expectation.columns, other, expectation.target)
    return count_violations(values, expectation.columns), other_version


# --- all checks of a table --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CheckOutcome:
    """Whether one part of the declaration is true at a version of the table. If it was not checked, `passed` is None.

    `rows` is the number of rows that break it. If it is not about rows, None.
    """

    dataset: str
    name: str
    passed: bool | None
    severity: Severity
    version: int
    detail: str
    rows: int | None = None
    examples: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The outcome in JSON's types."""
        return asdict(self)


@door
def check_table(
    session: SparkSession, dataset: Dataset, root: str, *, now: dt.datetime | None = None
) -> list[CheckOutcome]:
    """Check the full declaration of a table against its newest version.

    One Spark job counts the rows that break constraints. Each expectation runs its own query.

    Raises:
        TableNotFoundError: the table was never written.
        StorageError: the table can't be read.
    """
    with private_session(session, {}) as clone:
        return _outcomes(clone, dataset, root, now or dt.datetime.now(dt.timezone.utc))


def _outcomes(session: SparkSession, dataset: Dataset, root: str, now: dt.datetime) -> list[CheckOutcome]:
    table = dataset.at(root)
    description = describe(session, table)
    if description.table is None:
        raise table.error(TableNotFoundError)
    version = description.table.version
    differences = description.differences
    return [
        _outcome(
            dataset, version, "schema", not differences, "; ".join(differences) or "as declared",
            severity=dataset.schema_check.severity,
        ),
        *_of_constraints(session, table, version),
        *_of_expectations(session, table, version, root),
        *_of_rows(session, table, description),
        *_of_age(dataset, description, now),
    ]  # fmt: skip


def _outcome(
    dataset: Dataset, version: int, name: str, passed: bool | None, detail: str, *, severity: Severity = "error",
    broken: BrokenRows | None = None,
) -> CheckOutcome:  # fmt: skip
    return CheckOutcome(
        dataset=dataset.name, name=name, passed=passed, severity=severity, version=version, detail=detail,
        rows=None if broken is None else broken.rows, examples=() if broken is None else broken.examples,
    )  # fmt: skip


def _of_constraints(session: SparkSession, table: TableRef, version: int) -> Iterator[CheckOutcome]:
    conditions = {null_label(path): text for path, text in constraints.null_conditions(table.dataset.schema).items()}
    conditions |= constraints.check_conditions(table.dataset)
    severities = {constraint_name(constraint): constraint.severity for constraint in table.dataset.constraints}
    broken_rows = constraints.count_broken(rows_at(session, table.location, version), table.dataset, conditions)
    for name in conditions:
        broken = broken_rows.get(name, BrokenRows(0))
        yield _outcome(
            table.dataset, version, name, not broken.rows, "no row breaks it" if not broken.rows else "rows break it",
            severity=severities.get(name, "error"), broken=broken,
        )  # fmt: skip


def _of_expectations(session: SparkSession, table: TableRef, version: int, root: str) -> Iterator[CheckOutcome]:
    for expectation in table.dataset.expectations:
        name, severity = expectation_name(expectation), expectation.severity
        try:
            broken, other = _broken_by(session, table, version, expectation, root=root)
        except TableNotFoundError as error:
            yield _outcome(table.dataset, version, name, False, error.message(), severity=severity)
            continue
        detail = "no row breaks it" if not broken.rows else "rows break it"
        if isinstance(expectation, References):
            detail += f", compared with {expectation.dataset} at version {other}"
        yield _outcome(table.dataset, version, name, not broken.rows, detail, severity=severity, broken=broken)


def _of_rows(session: SparkSession, table: TableRef, description: TableDescription) -> Iterator[CheckOutcome]:
    """Check the rows of the newest write, or of the table after it, by partition if the write addressed partitions."""
    declared, newest = table.dataset.row_count, description.last_write
    if declared is None or newest is None:
        return
    rows: dict[str, int | None] = {"": newest.rows_written}
    addressed = newest.note is not None and newest.note.get("partitions") is not None
    if addressed or not counts_written_rows(table.dataset):
        by_partition = _counted(session, table, newest.version)
        rows = {"": sum(by_partition.values())}
        if addressed:
            rows = {"/".join(str(value) for value in values): count for values, count in by_partition.items()}
    outside = {name: count for name, count in rows.items() if not is_within(declared, count)}
    detail = listed((f"{name or 'in all'}: {count}" for name, count in outside.items()), EXAMPLES)
    yield _outcome(
        table.dataset, newest.version, "row_count", not outside and bool(rows), detail or "as many as declared",
        severity=declared.severity,
    )  # fmt: skip


def _counted(session: SparkSession, table: TableRef, version: int) -> Mapping[tuple[Any, ...], int]:
    """By partition, the rows that a commit added, or the rows after it in each partition that it changed."""
    state = state_at_location(session, table.name, table.location)
    if state is None:
        raise table.error(TableNotFoundError)
    commit = read_commit(table.location, version, state.log_partition_by)
    if counts_written_rows(table.dataset):
        return commit.rows_by_partition or {}
    rows = rows_per_partition(lambda: session, table, version)
    changed = [typed_values(table.dataset, values) for values in commit.partitions or {}]
    return {values: rows.get(values, 0) for values in changed} if commit.partitions is not None else rows


def counts_written_rows(dataset: Dataset) -> bool:
    """Whether a declared row count is about the rows of a write, and not of the table after it: only for an append.

    The number of rows that a merge, or an insert of new rows, writes does not determine the number in the table.
    """
    return isinstance(dataset.write, Append)


@door
def rows_per_partition(
    session: Callable[[], SparkSession], table: TableRef, version: int
) -> Mapping[tuple[Any, ...], int]:
    """The number of rows of a version by typed partition values. A partition without rows may be missing.

    The numbers come from the log, if it has them. Otherwise a Spark job counts the rows; it reads no row of a file with
    statistics.
    """
    rows = table_rows(table.location, version)
    if rows is not None:
        return {typed_values(table.dataset, values): count for values, count in rows.by_partition.items()}
    counts = rows_by_values(rows_at(session(), table.location, version), table.dataset.partition_by, ("TRUE",))
    return {values: count for values, (count,) in counts.items()}


def typed_values(dataset: Dataset, values: PartitionValues) -> tuple[Any, ...]:
    """Partition values of the log as values of their columns' types."""
    columns = zip(dataset.partition_by, values, strict=True)
    return tuple(partition_value(text, dataset.field(column).dataType) for column, text in columns)


def is_within(declared: RowCount, rows: int | None) -> bool:
    """Whether a number of rows is as declared. If the rows were not counted, False."""
    if rows is None:
        return False
    return declared.minimum <= rows and (declared.maximum is None or rows <= declared.maximum)


def _of_age(dataset: Dataset, description: TableDescription, now: dt.datetime) -> Iterator[CheckOutcome]:
    declared, newest = dataset.freshness, description.last_write
    if declared is None or description.table is None:
        return
    version = description.table.version
    if newest is None:
        yield _outcome(dataset, version, "freshness", False, "the log has no write")
    elif isinstance(declared, FreshWithin):
        age = now - newest.timestamp
        late = declared.warn_after is not None and age > declared.warn_after
        yield _outcome(
            dataset, version, "freshness", age <= declared.fail_after and not late,
            f"the newest write is {age.total_seconds():.0f} s old",
            severity="error" if age > declared.fail_after else "warn",
        )  # fmt: skip
    else:
        detail = "by cron, which Dagster checks"
        yield _outcome(dataset, version, "freshness", None, detail, severity="warn")
