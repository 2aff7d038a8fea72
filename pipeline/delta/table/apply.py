"""Taking the steps of a plan: each one statement and one commit, after everything that may refuse them was looked at.

Here belong the look at declared SQL and at the rows that are there, and the loop over the steps. Which steps there are
is `plan`'s.
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
from pipeline.delta.log.table_state import TableState
from pipeline.delta.spark.doors import look_at_disk, storage_failure
from pipeline.delta.spark.failures import SPARK_ERRORS, failure_of
from pipeline.delta.sql import constraints
from pipeline.delta.table.plan import plan, shape_differences
from pipeline.delta.table.steps import AddCheck, RenameColumn, SetDefault, SetNotNull, Step
from pipeline.errors import (
    CommitConflictError,
    ConformError,
    ExistingRowsError,
    ExpressionError,
    TableMismatchError,
)

# How many of the rows in the way an error shows.
NAMED_ROWS = 3


@dataclass(frozen=True, kw_only=True)
class Applied:
    """A table before and after steps that were taken, by whoever took them; `overwrites` is a write's to settle."""

    before: TableState
    after: TableState
    steps: tuple[str, ...]
    overwrites: bool = False


def apply(
    session: SparkSession,
    dataset: Dataset,
    state: TableState,
    look: Callable[[], TableState],
    *,
    automatic: bool = False,
) -> Applied:
    """Take the steps from `state` to the declaration; those alone that the schema policy allows where `automatic`.

    After a conflict, or a step that somebody else has taken, the table is looked at anew.

    Args:
        look: the table's state at the time of the call.

    Raises:
        TableMismatchError, DeclarationError, ExpressionError, ExistingRowsError: nothing was changed.
        ConformError: Delta refused a step; those before it stand.
        CommitConflictError: other commits came first, at every attempt.
    """
    taken: list[str] = []

    def attempt(number: int) -> TableState:
        now = state if number == 1 else look()
        found = plan(dataset, now)
        if found.problems:
            differences = tuple(shape_differences(dataset, now))
            raise TableMismatchError(
                dataset=dataset.name, location=now.location, version=now.version, differences=differences,
                is_settled_by_steps=False,
            )  # fmt: skip
        steps = [step for step in found.steps if step.automatic or not automatic]
        if not steps:
            return now
        _refuse(session, dataset, now, steps)
        return _take(session, dataset, now, steps, look=look, taken=taken)

    after = with_retries(attempt, RetryPolicy(), dataset.name)
    return Applied(before=state, after=after, steps=tuple(taken))


def _take(
    session: SparkSession,
    dataset: Dataset,
    state: TableState,
    steps: list[Step],
    *,
    look: Callable[[], TableState],
    taken: list[str],
) -> TableState:
    note = CommitNote(mark=Mark(writer=f"{dataset.name}/conform"))
    with private_session(session, write_confs(note, session, dataset.fingerprint)) as clone:
        for step in steps:
            try:
                clone.sql(step.statement(state.location)).collect()
            except SPARK_ERRORS as error:
                failure = failure_of(error)
                left = {str(other) for other in plan(dataset, look()).steps}
                if failure.is_conflict or str(step) not in left:  # another one has changed the table, maybe to this
                    raise CommitConflictError(
                        dataset=dataset.name, location=state.location, condition=failure.condition
                    ) from error
                if failure.is_storage or look_at_disk(state.location):
                    raise storage_failure(dataset.name, state.location, failure) from error
                raise ConformError(
                    dataset=dataset.name, location=state.location, step=str(step), reason=failure.summary
                ) from error
            taken.append(str(step))
    return look()


def _refuse(session: SparkSession, dataset: Dataset, state: TableState, steps: list[Step]) -> None:
    """Refuse before anything is changed: SQL that can't be used, and rows that break what is added."""
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
    """The table's rows under the declared names, types and columns, as they will be once the schema is."""
    rows = session.read.format("delta").option("versionAsOf", state.version).load(state.location)
    for step in steps:
        if isinstance(step, RenameColumn) and len(step.path) == 1:
            rows = rows.withColumnRenamed(step.path[0], step.to)
    empty = _empty(session, dataset)
    if schema_fingerprint(rows.schema, ()) == schema_fingerprint(empty.schema, ()):
        return rows
    return rows.to(empty.schema)


def _empty(session: SparkSession, dataset: Dataset) -> DataFrame:
    """No rows of the declared columns, all of which may be NULL."""
    columns = (f"CAST(NULL AS {sql.bare_type(f.dataType)}) AS {sql.identifier(f.name)}" for f in dataset.schema.fields)
    return session.range(0).selectExpr(*columns)


def refuse_bad_expressions(session: SparkSession, dataset: Dataset) -> None:
    """Look at the SQL of checks, generated columns and defaults; no Spark job.

    Raises:
        DeclarationError: a check does not parse, names no column, or is no condition; all of them at once.
        ExpressionError: a generated column or a default.
    """
    constraints.refuse_unusable_checks(session, dataset)
    parts = (("generated column", dataset.features.generated), ("default of", dataset.features.defaults))
    for part, column, said in ((part, column, said) for part, pairs in parts for column, said in pairs):
        try:
            value = f"CAST(({said}) AS {sql.bare_type(dataset.field(column).dataType)})"
            _empty(session, dataset).selectExpr(value).schema  # noqa: B018  analyses
        except SPARK_ERRORS as error:
            raise ExpressionError(
                dataset=dataset.name, part=f"{part} {column!r}", expression=said, reason=failure_of(error).summary
            ) from error
