"""Data quality in a declaration: what is expected of rows and tables, and what happens if it is violated.

Here belong constraints on rows, expectations of whole tables, freshness, and the contradictions in them. How they are
counted and enforced belongs to `pipeline.delta`; how they are reported to Dagster, to `pipeline.orchestration`.

A constraint is evaluated for each row before the write, and Delta enforces it in the write. Rows that are dropped or
quarantined never reach the write. An expectation is evaluated at a version of the table, after the write, or before the
commit by an audit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pyspark.sql.types import DataType, StructType

from pipeline.dataset.write_mode import Merge, WriteMode, changelog_of, is_comparable

Severity = Literal["warn", "error"]
OnViolation = Literal["fail", "drop", "quarantine"]
Over = Literal["write", "table"]
# The name of the check of the number of rows.
ROW_COUNT = "row_count"

# The least and greatest value of each field of a cron expression, and the names of its values from the least on.
_CRON_RANGES = (
    (0, 59, ""), (0, 23, ""), (1, 31, ""),
    (1, 12, "jan feb mar apr may jun jul aug sep oct nov dec"), (0, 7, "sun mon tue wed thu fri sat"),
)  # fmt: skip
_CRON_ITEM = re.compile(r"(?:\*|l|(\w+)(?:-(\w+))?)(?:#[1-5])?(?:/(\d+))?")
# Dagster evaluates freshness no more often than this.
_SHORTEST = timedelta(minutes=1)


# --- constraints: on rows, before the write ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """A check constraint: a row breaks it if `condition` is false or NULL.

    Args:
        name: the name of the constraint.
        condition: SQL over the columns.
        on_violation: what happens to such rows. `fail` refuses the whole write, `drop` leaves the rows out and counts
            them, `quarantine` puts them into the table `<dataset>__quarantine` with the reasons.
        severity: the severity of the asset check if there were any.
        blocking: whether downstream assets then don't start in the same run.
    """

    name: str
    condition: str
    on_violation: OnViolation = field(default="fail", kw_only=True)
    severity: Severity = field(default="error", kw_only=True)
    blocking: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class NotNull:
    """What happens to rows with NULL in a column that the schema declares NOT NULL; without it the write fails.

    Args:
        column: the dotted path of the column.
        on_violation: as in `Check`.
        severity: as in `Check`.
        blocking: as in `Check`.
    """

    column: str
    on_violation: OnViolation = field(default="fail", kw_only=True)
    severity: Severity = field(default="error", kw_only=True)
    blocking: bool = field(default=False, kw_only=True)


Constraint = Check | NotNull


def constraint_name(constraint: Constraint) -> str:
    """The name of a constraint in counts and reasons: the name of the check, or `<column> IS NULL`."""
    return constraint.name if isinstance(constraint, Check) else null_label(constraint.column)


def null_label(column: str) -> str:
    """The name under which NULLs in a NOT NULL column are counted."""
    return f"{column} IS NULL"


def sets_apart(constraints: Iterable[Constraint]) -> bool:
    """Whether any of the constraints sends its rows to quarantine."""
    return any(constraint.on_violation == "quarantine" for constraint in constraints)


# --- expectations: on tables and writes as a whole --------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SchemaCheck:
    """The asset check that the table's schema is as declared.

    Args:
        severity: the severity if there is a difference.
        blocking: whether downstream assets then don't start in the same run.
    """

    severity: Severity = "error"
    blocking: bool = False


@dataclass(frozen=True, kw_only=True)
class RowCount:
    """The asset check of the number of rows: of each partition of a run, or of the table.

    After an append, the rows that were added are counted.

    Args:
        minimum: the smallest number allowed.
        maximum: the largest number allowed; None for any.
        severity: as in `SchemaCheck`.
        blocking: as in `SchemaCheck`.
    """

    minimum: int = 0
    maximum: int | None = None
    severity: Severity = "error"
    blocking: bool = False


@dataclass(frozen=True)
class Unique:
    """No two rows of the table are equal in these columns. NULL is a value like any other.

    Args:
        columns: the names of the columns.
        severity: as in `SchemaCheck`.
        blocking: as in `SchemaCheck`.
    """

    columns: tuple[str, ...]
    severity: Severity = field(default="error", kw_only=True)
    blocking: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class References:
    """The values of these columns are together those of a row of another dataset. A row with NULL in one is ignored.

    Args:
        columns: the names of the columns.
        dataset: the other dataset's name. If this dataset reads it, the version that was read is compared.
        to: the columns of the other dataset, in the same order; the same names if empty.
        severity: as in `SchemaCheck`.
        blocking: as in `SchemaCheck`.
    """

    columns: tuple[str, ...]
    dataset: str
    to: tuple[str, ...] = ()
    severity: Severity = field(default="error", kw_only=True)
    blocking: bool = field(default=False, kw_only=True)

    @property
    def target(self) -> tuple[str, ...]:
        """The columns of the other dataset."""
        return self.to or self.columns


@dataclass(frozen=True, kw_only=True)
class Spans:
    """The spans of a key don't overlap, begin before they end, agree with `is_current`, and at most one is open.

    It is for a dataset with `History`. The fields are those of `SchemaCheck`.
    """

    severity: Severity = "error"
    blocking: bool = False


@dataclass(frozen=True)
class Expect:
    """A boolean aggregate is true, such as `sum(amount) >= 0 AND count(*) > 0`. It fails if it is false or NULL.

    The rows of a write are those that it stores: of a merge, those that it adds or updates. Before the commit they are
    the rows of the frame, without those that only delete.

    Args:
        name: the name of the expectation.
        sql: a boolean SQL expression of aggregates over the columns.
        over: `write` for the rows of the write, `table` for all rows of the table after it.
        severity: as in `SchemaCheck`.
        blocking: as in `SchemaCheck`.
    """

    name: str
    sql: str
    over: Over = field(default="table", kw_only=True)
    severity: Severity = field(default="error", kw_only=True)
    blocking: bool = field(default=False, kw_only=True)


Expectation = Unique | References | Spans | Expect


def expectation_name(expectation: Expectation) -> str:
    """The name of an expectation, which is unique within a dataset."""
    if isinstance(expectation, Spans):
        return "spans"
    if isinstance(expectation, Expect):
        return f"expect_{expectation.name}"
    columns = "_".join(expectation.columns)
    return f"unique_{columns}" if isinstance(expectation, Unique) else f"{columns}_in_{expectation.dataset}"


@dataclass(frozen=True, kw_only=True)
class FreshWithin:
    """The newest write is no older than `fail_after`; if it is older than `warn_after`, Dagster warns."""

    fail_after: timedelta
    warn_after: timedelta | None = None


@dataclass(frozen=True, kw_only=True)
class FreshByCron:
    """At each tick of `cron` the newest write is no older than `window`, at most the time between two ticks."""

    cron: str
    window: timedelta
    timezone: str = "UTC"


Freshness = FreshWithin | FreshByCron
Consequence = SchemaCheck | RowCount | Check | NotNull | Unique | References | Spans | Expect


# --- contradictions ---------------------------------------------------------------------------------------------------


def constraint_problems(
    checks: Sequence[Check], not_null: Sequence[NotNull], schema: StructType, mode: WriteMode
) -> Iterator[str]:
    """Messages about contradictions in the constraints, or between them and the schema and write mode."""
    if len({check.name.lower() for check in checks}) < len(checks):
        yield "two checks have the same name"
    paths = dict(_not_null_paths(schema, ""))
    constraints: tuple[Constraint, ...] = (*checks, *not_null)
    for constraint in constraints:
        name = f"check {constraint.name}" if isinstance(constraint, Check) else f"not_null {constraint.column}"
        yield from _consequence_problems(name, constraint)
        if constraint.on_violation not in get_args(OnViolation):
            yield f"{name}: on_violation {constraint.on_violation!r} is none of {', '.join(get_args(OnViolation))}"
        problem = _alone_problem(constraint, paths)
        if problem is not None:
            yield f"{name}: {problem}"
        if constraint.on_violation != "fail" and not _is_judged_alone(constraint, mode):
            yield f"{name}: a changelog with ignore_nulls completes rows only in the merge; declare fail"
        if constraint.on_violation != "fail" and isinstance(mode, Merge) and mode.delete_missing:
            yield f"{name}: delete_missing would also delete the table's row of a row that is left out; declare fail"
    for column, count in Counter(constraint.column for constraint in not_null).items():
        if count > 1:
            yield f"not_null names {column} twice"


def _alone_problem(constraint: Constraint, paths: Container[str]) -> str | None:
    if isinstance(constraint, NotNull):
        return None if constraint.column in paths else "no column of that name is declared NOT NULL"
    return None if constraint.name.strip() and constraint.condition.strip() else "its name or its condition is empty"


def _is_judged_alone(constraint: Constraint, mode: WriteMode) -> bool:
    """Whether a row of the frame alone decides if the constraint is broken."""
    changelog = changelog_of(mode)
    if changelog is None or not changelog.ignore_nulls:
        return True
    return isinstance(constraint, NotNull) and constraint.column.partition(".")[0] not in changelog.ignore_nulls


def _not_null_paths(schema: StructType, path: str) -> Iterator[tuple[str, None]]:
    for column in schema.fields:
        inner = f"{path}.{column.name}" if path else column.name
        if not column.nullable:
            yield inner, None
        if isinstance(column.dataType, StructType):
            yield from _not_null_paths(column.dataType, inner)


def expectation_problems(
    expectations: Sequence[Expectation], schema: StructType, schema_check: SchemaCheck, row_count: RowCount | None,
    freshness: Freshness | None,
) -> Iterator[str]:  # fmt: skip
    """Messages about contradictions in the expectations, or between them and the schema."""
    yield from _consequence_problems("schema_check", schema_check)
    if row_count is not None:
        yield from _consequence_problems("row_count", row_count)
        yield from _row_count_problems(row_count)
    types = {column.name: column.dataType for column in schema.fields}
    for expectation in expectations:
        name = f"expectation {expectation_name(expectation)}"
        yield from _consequence_problems(name, expectation)
        yield from (f"{name}: {problem}" for problem in _expectation_problems(expectation, types))
    names = Counter(expectation_name(expectation) for expectation in expectations)
    yield from (f"expectation {name} is declared twice" for name, count in names.items() if count > 1)
    if isinstance(freshness, FreshWithin):
        yield from _within_problems(freshness)
    elif freshness is not None:
        if not is_cron(freshness.cron):
            yield f"freshness: {freshness.cron!r} is no cron expression of five fields"
        if not _is_zone(freshness.timezone):
            yield f"freshness: {freshness.timezone!r} is not the name of a time zone, such as Europe/Amsterdam"
        if freshness.window < _SHORTEST:
            yield "freshness: window is shorter than a minute"


def is_cron(text: str) -> bool:
    """Whether a text has five fields, each with values in its range; Dagster's further forms `L` and `#` included."""
    parts = text.lower().split()
    return len(parts) == len(_CRON_RANGES) and all(
        _is_cron_item(item, *limits)
        for part, limits in zip(parts, _CRON_RANGES, strict=True)
        for item in part.split(",")
    )


def _is_cron_item(item: str, least: int, most: int, names: str) -> bool:
    match = _CRON_ITEM.fullmatch(item)
    if match is None:
        return False
    ends = [names.split().index(end) + least if end in names.split() else end for end in match.group(1, 2) if end]
    numbers = [int(end) for end in ends if str(end).isdigit()]
    step = match.group(3)
    return len(numbers) == len(ends) and all(least <= n <= most for n in numbers) and (step is None or int(step) > 0)


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _expectation_problems(expectation: Expectation, types: dict[str, DataType]) -> Iterator[str]:
    if isinstance(expectation, Spans):
        return
    yield from (
        _expect_problems(expectation) if isinstance(expectation, Expect) else _column_problems(expectation, types)
    )


def _expect_problems(expectation: Expect) -> Iterator[str]:
    if not expectation.name.strip() or not expectation.sql.strip():
        yield "its name or its SQL is empty"
    if expectation.over not in get_args(Over):
        yield f"over {expectation.over!r} is neither write nor table"


def _column_problems(expectation: Unique | References, types: dict[str, DataType]) -> Iterator[str]:
    if not expectation.columns:
        yield "names no columns"
    for column in expectation.columns:
        if column not in types:
            yield f"column {column!r} is not in the schema"
        elif not is_comparable(types[column]):
            yield f"column {column!r} has type {types[column].simpleString()}, whose values can't be compared"
    if isinstance(expectation, References) and len(expectation.target) != len(expectation.columns):
        yield f"{len(expectation.columns)} columns can't be those of {len(expectation.target)}"


def _consequence_problems(name: str, check: Consequence) -> Iterator[str]:
    if check.severity not in get_args(Severity):
        yield f"{name}: severity {check.severity!r} is neither warn nor error"
    elif check.blocking and check.severity == "warn":
        yield f"{name}: a warning blocks nothing; declare severity error, or not blocking"


def _row_count_problems(rows: RowCount) -> Iterator[str]:
    if rows.minimum < 0:
        yield "row_count: minimum is negative"
    elif rows.maximum is None and rows.minimum == 0:
        yield "row_count allows any number of rows; leave it out"
    if rows.maximum is not None and rows.maximum < rows.minimum:
        yield "row_count: maximum is less than minimum"


def _within_problems(freshness: FreshWithin) -> Iterator[str]:
    if any(time is not None and time < _SHORTEST for time in (freshness.warn_after, freshness.fail_after)):
        yield "freshness: a time shorter than a minute"
    if freshness.warn_after is not None and freshness.warn_after >= freshness.fail_after:
        yield "freshness: warn_after is not before fail_after"
