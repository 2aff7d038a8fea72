"""Checks of the expectations on a full table, at one version, after the write.

Here belong the expectations as functions from frames to frames, and the outcomes for one version of a table. The write
itself enforces `constraints`. The caller decides what follows from an outcome.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import SparkSession

from pipeline.dataset import (
    Dataset,
    Expect,
    Expectation,
    FreshWithin,
    References,
    Severity,
    Spans,
    TableRef,
    Unique,
    table_location,
)
from pipeline.dataset.expectations import ROW_COUNT, constraint_name, expectation_name, null_label
from pipeline.delta.inspect.describe import TableDescription, describe
from pipeline.delta.log.commits import PartitionValues, read_commit
from pipeline.delta.log.counts import table_rows
from pipeline.delta.log.mark import private_session
from pipeline.delta.read.window import written_rows
from pipeline.delta.spark.doors import door
from pipeline.delta.sql import constraints
from pipeline.delta.sql.constraints import BrokenRows
from pipeline.delta.sql.expectations import (
    Finding,
    aggregated,
    broken_spans,
    count_violations,
    counts_written_rows,
    duplicate_values,
    of_counts,
    of_rows,
    refuse_unusable,
    unmatched_values,
)
from pipeline.delta.sql.slices import partition_value, rows_by_values
from pipeline.delta.table.open_table import rows_at, state_at_location, version_of_other
from pipeline.errors import TableNotFoundError


def finding_at(
    session: SparkSession, table: TableRef, version: int, expectation: Expectation, *, other_version: int | None = None
) -> tuple[Finding, int | None]:
    """The finding of an expectation at a version of the table, and the version of the other table, if it has one.

    Args:
        other_version: the version of the other table. If None, its newest.

    Raises:
        TableNotFoundError: the other table was never written.
        DeclarationError: the expectation's SQL can't be used.
    """
    with private_session(session, {}) as clone:
        return _finding(clone, table, version, expectation, other_version=other_version)


def _finding(
    session: SparkSession, table: TableRef, version: int, expectation: Expectation, *, other_version: int | None = None
) -> tuple[Finding, int | None]:
    if isinstance(expectation, Expect):
        refuse_unusable(session, table.dataset, (expectation,))
        frame = rows_at(session, table.location, version)
        if expectation.over == "write":
            found = written_rows(session, table, version)
            if found is None:
                return Finding(False, "the rows of the write can't be found: the commit has no change feed"), None
            frame = found
        findings, _ = aggregated(frame, table.dataset, (expectation,))
        return findings[expectation_name(expectation)], None
    frame = rows_at(session, table.location, version)
    if isinstance(expectation, Spans):
        columns = (*table.dataset.keys, *table.dataset.computed[:1])
        return of_rows(count_violations(broken_spans(frame, table.dataset), columns)), None
    if isinstance(expectation, Unique):
        return of_rows(count_violations(duplicate_values(frame, expectation.columns), expectation.columns)), None
    other_location = table_location(table.root, expectation.dataset)
    if other_version is None:
        other_version = version_of_other(session, expectation.dataset, other_location)
    other = rows_at(session, other_location, other_version)
    values = unmatched_values(frame, expectation.columns, other, expectation.target)
    return of_rows(count_violations(values, expectation.columns)), other_version


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
        *_of_expectations(session, table, description),
        *_of_rows(session, table, description),
        *_of_age(dataset, description, now),
    ]  # fmt: skip


def _outcome(
    dataset: Dataset, version: int, name: str, passed: bool | None, detail: str, *, severity: Severity = "error",
    broken: BrokenRows | Finding | None = None,
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


def _of_expectations(
    session: SparkSession, table: TableRef, description: TableDescription
) -> Iterator[CheckOutcome]:  # fmt: skip
    """Check each expectation at the newest version; one of the rows of a write at the version of the newest write."""
    assert description.table is not None  # noqa: S101  the caller has looked
    newest = description.last_write
    for expectation in table.dataset.expectations:
        name, severity, version = expectation_name(expectation), expectation.severity, description.table.version
        if isinstance(expectation, Expect) and expectation.over == "write":
            if newest is None:
                yield _outcome(table.dataset, version, name, None, "the log has no write", severity=severity)
                continue
            version = newest.version
        try:
            found, other = _finding(session, table, version, expectation)
        except TableNotFoundError as error:
            yield _outcome(table.dataset, version, name, False, error.message(), severity=severity)
            continue
        detail = found.value if found.rows is None else "rows break it" if found.rows else "no row breaks it"
        if isinstance(expectation, References):
            detail += f", compared with {expectation.dataset} at version {other}"
        yield _outcome(table.dataset, version, name, found.passed, detail, severity=severity, broken=found)


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
    found = of_counts(declared, rows)
    yield _outcome(
        table.dataset, newest.version, ROW_COUNT, found.passed, found.value, severity=declared.severity
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
