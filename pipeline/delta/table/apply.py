"""Apply the steps of a plan: each is one statement and one commit.

Here belong the loop over the steps, and the checks before it: of declared SQL, and of the rows in the table. Which
steps a table needs belongs to `plan`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from pipeline.dataset import Dataset
from pipeline.dataset.schema import schema_fingerprint
from pipeline.delta import sql
from pipeline.delta.log.mark import CommitNote, Mark, private_session, write_confs
from pipeline.delta.log.retry import RetryPolicy, with_retries
from pipeline.delta.log.snapshot import TableState
from pipeline.delta.spark.doors import disk_problem, storage_failure
from pipeline.delta.spark.failures import SPARK_ERRORS, failure_of
from pipeline.delta.sql import constraints
from pipeline.delta.sql.state import without_state_rows
from pipeline.delta.table.plan import plan, shape_differences
from pipeline.delta.table.steps import AddCheck, RenameColumn, SetDefault, SetNotNull, Step
from pipeline.errors import (
    CommitConflictError,
    ConformError,
    ExistingRowsError,
    ExpressionError,
    TableMismatchError,
)

# How many of the rows that break a new constraint an error shows.
NAMED_ROWS = 3


@dataclass(frozen=True, kw_only=True)
class Applied:
    """A table before and after the steps, which another process may have taken.

    `overwrites` is whether the write must replace the table's schema by its own. `registered_as` is the name under
    which the table was registered in the catalog; None if it has no name, or was registered before.
    """

    before: TableState
    after: TableState
    steps: tuple[str, ...]
    overwrites: bool = False
    registered_as: str | None = None


def apply(
    session: SparkSession,
    dataset: Dataset,
    state: TableState,
    read_state: Callable[[], TableState],
    *,
    automatic: bool = False,
) -> Applied:
    """Take the steps from `state` to the declaration; if `automatic`, only those that the schema policy allows.

    After a conflict, or if another process has taken a step, the table's state is read again.

    Args:
        read_state: reads the current state of the table.

    Raises:
        TableMismatchError, DeclarationError, ExpressionError, ExistingRowsError: nothing was changed.
        ConformError: Delta refused a step; the steps before it are committed.
        CommitConflictError: other commits came first, at every attempt.
    """
    taken_steps: list[str] = []

    def attempt(number: int) -> TableState:
        current = state if number == 1 else read_state()
        current_plan = plan(dataset, current)
        if current_plan.problems:
            differences = tuple(shape_differences(dataset, current))
            raise TableMismatchError(
                dataset=dataset.name, location=current.location, version=current.version, differences=differences,
                is_settled_by_steps=False,
            )  # fmt: skip
        steps = [step for step in current_plan.steps if step.automatic or not automatic]
        if not steps:
            return current
        _refuse(session, dataset, current, steps)
        return _take(session, dataset, current, steps, read_state=read_state, taken_steps=taken_steps)

    after = with_retries(attempt, RetryPolicy(), dataset.name)
    return Applied(before=state, after=after, steps=tuple(taken_steps))


def _take(
    session: SparkSession,
    dataset: Dataset,
    state: TableState,
    steps: list[Step],
    *,
    read_state: Callable[[], TableState],
    taken_steps: list[str],
) -> TableState:
    note = CommitNote(mark=Mark(writer=f"{dataset.name}/conform"))
    with private_session(session, write_confs(note, session, dataset.fingerprint)) as clone:
        for step in steps:
            try:
                clone.sql(step.statement(state.location)).collect()
            except SPARK_ERRORS as error:
                failure = failure_of(error)
                open_steps = {str(other) for other in plan(dataset, read_state()).steps}
                # If the step is not open any more, another process has taken it.
                if failure.is_conflict or str(step) not in open_steps:
                    raise CommitConflictError(
                        dataset=dataset.name, location=state.location, condition=failure.condition
                    ) from error
                if failure.is_storage or disk_problem(state.location):
                    raise storage_failure(dataset.name, state.location, failure) from error
                raise ConformError(
                    dataset=dataset.name, location=state.location, step=str(step), reason=failure.summary
                ) from error
            taken_steps.append(str(step))
    return read_state()


def _refuse(session: SparkSession, dataset: Dataset, state: TableState, steps: list[Step]) -> None:
    """Refuse, before anything is changed, invalid SQL and rows of the table that break an added constraint."""
    added = {step.name: step.condition for step in steps if isinstance(step, AddCheck)}
    added |= {step.check: step.condition for step in steps if isinstance(step, SetNotNull)}
    if added or any(isinstance(step, SetDefault) for step in steps):
        refuse_bad_expressions(session, dataset)
    if not added:
        return
    broken = {name: f"NOT coalesce(({condition}), FALSE)" for name, condition in added.items()}
    try:
        rows = _as_declared(session, dataset, state, steps)
        counted = rows.selectExpr(*(f"count_if({rule}) AS c{at}" for at, rule in enumerate(broken.values()))).collect()[
            0
        ]
        counts = {name: counted[at] for at, name in enumerate(broken) if counted[at]}
        if not counts:
            return
        rule = " OR ".join(f"({broken[name]})" for name in counts)
        examples = rows.filter(rule).limit(NAMED_ROWS).selectExpr("to_json(struct(*)) AS row").collect()
    except SPARK_ERRORS as error:
        raise storage_failure(dataset.name, state.location, failure_of(error)) from error
    raise ExistingRowsError(
        dataset=dataset.name, location=state.location, version=state.version, counts=counts,
        examples=tuple(row["row"] for row in examples),
    )  # fmt: skip


def _as_declared(session: SparkSession, dataset: Dataset, state: TableState, steps: list[Step]) -> DataFrame:
    """The table's rows with the declared names, types and columns, as after the steps that change the schema."""
    rows = without_state_rows(session.read.format("delta").option("versionAsOf", state.version).load(state.location))
    for step in steps:
        if isinstance(step, RenameColumn) and len(step.path) == 1:
            rows = rows.withColumnRenamed(step.path[0], step.to)
    empty = _empty(session, dataset)
    if schema_fingerprint(rows.schema, ()) == schema_fingerprint(empty.schema, ()):
        return rows
    return rows.to(empty.schema)


def _empty(session: SparkSession, dataset: Dataset) -> DataFrame:
    """A frame without rows that has the declared columns; each of them may be NULL."""
    columns = (f"CAST(NULL AS {sql.bare_type(f.dataType)}) AS {sql.identifier(f.name)}" for f in dataset.schema.fields)
    return session.range(0).selectExpr(*columns)


def refuse_bad_expressions(session: SparkSession, dataset: Dataset) -> None:
    """Refuse SQL of checks, generated columns and defaults that Spark can't analyse; no Spark job.

    Raises:
        DeclarationError: with every check that does not parse, names an unknown column, or is not boolean.
        ExpressionError: Spark can't analyse a generated column or a default.
    """
    constraints.refuse_unusable_checks(session, dataset)
    parts = (("generated column", dataset.features.generated), ("default of", dataset.features.defaults))
    for part, column, expression in ((part, column, text) for part, pairs in parts for column, text in pairs):
        try:
            value = f"CAST(({expression}) AS {sql.bare_type(dataset.field(column).dataType)})"
            _empty(session, dataset).selectExpr(value).schema  # noqa: B018  analyses
        except SPARK_ERRORS as error:
            raise ExpressionError(
                dataset=dataset.name, part=f"{part} {column!r}", expression=expression, reason=failure_of(error).summary
            ) from error
