"""Rows that constraints leave out of a write: judged in one pass before it, dropped or set apart with the reasons.

Here belong the pass, the split of the frame, and which rows in quarantine belong to which batch. The commits, and their
order, are `write`'s.

The rows of a batch are set apart before its rows are written, so that none is lost when the writer is killed in
between; whoever repeats the batch replaces what was set apart of it. A batch is a writer's epoch. That of a consumer is
the number of its cursors, which two runs may try for at once: each then has rows of its own, and those of the run that
came second go.

Columns that we add to a frame have names that no column of the dataset has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession

from pipeline.dataset import Dataset, Merge, OnViolation
from pipeline.dataset.expectations import EPOCH, REASONS, TOKEN, WRITER, constraint_name, null_label
from pipeline.delta import sql
from pipeline.delta.log.commits import Commit
from pipeline.delta.log.mark import CommitNote, own_commit, private_session, write_confs
from pipeline.delta.log.retry import RetryPolicy, with_retries
from pipeline.delta.spark.doors import telling_damage
from pipeline.delta.spark.failures import LOST_OR_REFUSED, failure_of
from pipeline.delta.sql import constraints
from pipeline.delta.sql.slices import Box, Slice, Unaddressable, Values, rows_by_values
from pipeline.delta.table.open_table import table_state
from pipeline.delta.write import merge
from pipeline.delta.write.changelog import stands_alone
from pipeline.errors import CommitConflictError

# The writer of what a consumer sets apart: its batches are told by its cursors, whatever run wrote them.
CURSORS = "cursors"
DELETE_ATTEMPTS = 6
ROWS_OF_FILE = 1_000_000
Kind = Literal["check", "not null"]


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One constraint in one write: what became of the rows that break it, their number and a few of them.

    Of a constraint on which the write fails only rows count that no other constraint takes away; a write that was made
    has none of those.
    """

    constraint: str
    kind: Kind
    on_violation: OnViolation
    rows: int
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class RemovedRows:
    """How many rows of one partition were set apart, and how many dropped."""

    quarantined: int = 0
    dropped: int = 0

    def __add__(self, other: RemovedRows) -> RemovedRows:
        return RemovedRows(self.quarantined + other.quarantined, self.dropped + other.dropped)


@dataclass(frozen=True, kw_only=True)
class SplitFrame:
    """A frame that was judged: the rows that go on, those to be set apart, and what was counted.

    `frame` and `set_apart` are materialized where `is_held`. `is_refused` says that rows which go on break what the
    write would fail on. `left_out` are the rows of the slice that don't go on, by the values of the partition columns.
    """

    frame: DataFrame
    is_held: bool = False
    set_apart: DataFrame | None = None
    violations: tuple[Violation, ...] = ()
    rows_quarantined: int = 0
    rows_dropped: int = 0
    left_out: Mapping[tuple[Any, ...], RemovedRows] = field(default_factory=dict)
    is_refused: bool = False


@contextmanager
def split_violations(frame: DataFrame, dataset: Dataset, within: Slice | None) -> Iterator[SplitFrame]:
    """The rows of a conformed frame that go on, held for as long as the block lasts; one Spark job.

    Where every constraint says that the write fails, nothing is looked at: Delta judges while it writes.

    Raises:
        DeclarationError: a check can't be used.
    """
    if all(constraint.on_violation == "fail" for constraint in dataset.constraints):
        yield SplitFrame(frame=frame)
        return
    constraints.refuse_unusable_checks(frame.sparkSession, dataset)
    held = _tagged(frame, dataset).persist()
    try:
        yield _counted(held, dataset, within)
    finally:
        with suppress(*LOST_OR_REFUSED):  # must not hide what became of the write
            held.unpersist()


def _reasons(dataset: Dataset) -> str:
    """The column of the constraints that a row breaks, quoted."""
    return sql.identifier(sql.helper_name(dataset, "broken constraints"))


def _fate(dataset: Dataset) -> str:
    """The column that says what becomes of a row, quoted."""
    return sql.identifier(sql.helper_name(dataset, "fate of row"))


def _constraints(dataset: Dataset) -> dict[str, tuple[Kind, OnViolation, str]]:
    """By its label, the kind of each constraint, what follows, and SQL that is true for a row that breaks it."""
    said: dict[str, OnViolation] = {
        constraint_name(constraint): constraint.on_violation for constraint in dataset.not_null
    }
    nulls = constraints.null_conditions(dataset.schema, merge.kept_columns(dataset))
    found: dict[str, tuple[Kind, OnViolation, str]] = {
        null_label(path): ("not null", said.get(null_label(path), "fail"), condition)
        for path, condition in nulls.items()
    }
    checks = constraints.check_conditions(dataset)
    return found | {
        constraint_name(check): ("check", check.on_violation, checks[check.name]) for check in dataset.checks
    }


def _tagged(frame: DataFrame, dataset: Dataset) -> DataFrame:
    """The frame, with the constraints that each row breaks and what becomes of it; NULL where it goes on."""
    stored = merge.stored_condition(dataset) or "TRUE"
    found = _constraints(dataset)
    labels = [f"CASE WHEN {condition} THEN {sql.string(name)} END" for name, (_, _, condition) in found.items()]
    reasons = f"CASE WHEN {stored} THEN array_compact(array({', '.join(labels)})) ELSE array() END"
    fates = [
        f"WHEN {_any_of(dataset, taken)} THEN '{fate}'"
        for fate in ("quarantine", "drop")
        if (taken := [name for name, (_, follows, _) in found.items() if follows == fate])
    ]
    tagged = frame.selectExpr("*", f"{reasons} AS {_reasons(dataset)}")
    tagged = tagged.selectExpr("*", f"CASE {' '.join(fates)} END AS {_fate(dataset)}")
    changelog = dataset.write.changelog if isinstance(dataset.write, Merge) else None
    if changelog is None or not changelog.before_updates:
        return tagged
    fate = _fate(dataset)
    alone = stands_alone(dataset, changelog, f"{fate} IS NOT NULL")
    return tagged.selectExpr(f"* EXCEPT ({fate})", f"CASE WHEN {alone} THEN 'goes along' ELSE {fate} END AS {fate}")


def _any_of(dataset: Dataset, labels: Sequence[str]) -> str:
    """SQL that is true for a row that breaks one of these constraints."""
    named = ", ".join(map(sql.string, labels))
    return f"arrays_overlap({_reasons(dataset)}, array({named}))"


def _counted(held: DataFrame, dataset: Dataset, within: Slice | None) -> SplitFrame:
    fate, found = _fate(dataset), _constraints(dataset)
    goes_on = f"{fate} IS NULL"
    conditions = {
        name: f"{_any_of(dataset, [name])} AND {goes_on}" if follows == "fail" else _any_of(dataset, [name])
        for name, (_, follows, _) in found.items()
    }
    stored = merge.stored_condition(dataset) or "TRUE"
    refused = [*constraints.empty_partition_conditions(dataset).values()]
    if within is not None:
        refused.append(constraints.outside_condition(dataset, within))
    unfit = " OR ".join(f"({condition})" for condition in refused) or "FALSE"
    row = held.selectExpr(
        *constraints.count_expressions(dataset, conditions),
        f"count_if({fate} = 'quarantine') AS quarantined",
        f"count_if({fate} = 'drop') AS dropped",
        f"count_if({goes_on} AND {stored} AND ({unfit})) AS unfit",
    ).collect()[0]
    broken = {name: constraints.broken_in(row, position) for position, name in enumerate(conditions)}
    violations = tuple(
        Violation(constraint=n, kind=kind, on_violation=follows, rows=broken[n].rows, examples=broken[n].examples)
        for n, (kind, follows, _) in found.items()
    )
    columns = [sql.identifier(name) for name in (*dataset.schema.names, *dataset.frame_columns)]
    return SplitFrame(
        frame=held.filter(goes_on).selectExpr(*columns),
        is_held=True,
        set_apart=None if dataset.quarantine is None else held.filter(f"{fate} = 'quarantine'"),
        violations=violations,
        rows_quarantined=row["quarantined"],
        rows_dropped=row["dropped"],
        left_out=_left_out(held, dataset, within) if row["quarantined"] or row["dropped"] else {},
        is_refused=bool(row["unfit"]) or any(v.rows for v in violations if v.on_violation == "fail"),
    )


def _left_out(held: DataFrame, dataset: Dataset, within: Slice | None) -> dict[tuple[Any, ...], RemovedRows]:
    """By partition, the rows of the slice that are left out; one Spark job over rows that are held."""
    if within is None or not dataset.partition_by:
        return {}
    fate = _fate(dataset)
    rows = held.filter(within.predicate(dataset)).filter(f"{fate} IN ('quarantine', 'drop')")
    try:
        counts = rows_by_values(rows, dataset.partition_by, (f"{fate} = 'quarantine'", f"{fate} = 'drop'"))
    except Unaddressable:  # a value that Python has none for; the totals are told all the same
        return {}
    return {values: RemovedRows(quarantined, dropped) for values, (quarantined, dropped) in counts.items()}


# --- what was set apart, and by whom ----------------------------------------------------------------------------------


def rows_for_quarantine(set_apart: DataFrame, dataset: Dataset, note: CommitNote, rows: int) -> DataFrame:
    """Rows that were set apart as the quarantine's table holds them, with their reasons and the batch they came in.

    Args:
        rows: how many there are, at least one.
    """
    writer, epoch = _batch(note)
    told = {
        REASONS: _reasons(dataset),
        WRITER: sql.string(writer),
        EPOCH: "CAST(NULL AS BIGINT)" if epoch is None else f"CAST({epoch} AS BIGINT)",
        TOKEN: sql.string(note.mark.token),
        "_run_id": "CAST(NULL AS STRING)" if note.run_id is None else sql.string(note.run_id),
        "_set_apart_at": "current_timestamp()",
    }
    columns = [sql.identifier(name) for name in dataset.schema.names]
    # A task without rows may write a file all the same, which no commit names.
    return set_apart.repartition(1 + rows // ROWS_OF_FILE).selectExpr(
        *columns, *(f"{value} AS {sql.identifier(name)}" for name, value in told.items())
    )


def batch_slice(note: CommitNote) -> Slice:
    """The rows of the quarantine that are of this batch, and that this write may replace."""
    writer, epoch = _batch(note)
    values: list[tuple[str, Any]] = [(WRITER, writer)]
    if epoch is not None:
        values.append((EPOCH, epoch))
    if epoch is None or note.cursors is not None:
        values.append((TOKEN, note.mark.token))
    return Slice((Box(tuple((column, Values((value,))) for column, value in values)),))


def _batch(note: CommitNote) -> tuple[str, int | None]:
    return (note.mark.writer, note.mark.epoch) if note.cursors is None else (CURSORS, note.cursors.number)


def may_hold_batch(session: SparkSession, quarantine: Dataset, location: str, note: CommitNote) -> bool:
    """Whether an earlier try of this batch may have set rows apart; those of a consumer's try have its own token."""
    is_repeatable = note.cursors is None and note.mark.epoch is not None
    return is_repeatable and table_state(session, quarantine, location) is not None


def remove_uncommitted(
    session: SparkSession, quarantine: Dataset, location: str, note: CommitNote, *, replace_all: bool
) -> None:
    """Delete what other runs of a consumer have set apart without committing its cursors, which ours has.

    Where the table was made anew, so is its quarantine. No commit is made where there is nothing to delete.
    """
    if note.cursors is None or table_state(session, quarantine, location) is None:
        return
    epochs = "" if replace_all else f" AND {sql.identifier(EPOCH)} >= {note.cursors.number}"
    others = f"{sql.identifier(WRITER)} = {sql.string(CURSORS)} AND {sql.identifier(TOKEN)} <> "
    _delete(session, quarantine, location, note, f"{others}{sql.string(note.mark.token)}{epochs}")


def remove_batch(session: SparkSession, quarantine: Dataset, location: str, note: CommitNote) -> Commit | None:
    """Delete what is in quarantine of this batch; None where there was nothing, and no commit was made.

    A replace by no rows comes to the same, and leaves a file that no commit names also where there was nothing.

    Raises:
        CommitConflictError: other commits came first, at every attempt.
        DamagedTableError: a file of the quarantine is missing or damaged.
    """
    return _delete(session, quarantine, location, note, batch_slice(note).predicate(quarantine))


def _delete(
    session: SparkSession, quarantine: Dataset, location: str, note: CommitNote, condition: str
) -> Commit | None:
    def attempt(_: int) -> Commit | None:
        with private_session(session, write_confs(note, session, quarantine.fingerprint)) as clone:
            try:
                clone.sql(f"DELETE FROM {sql.path_table(location)} WHERE {condition}").collect()  # noqa: S608  quoted
            except LOST_OR_REFUSED as error:
                failure = failure_of(error)
                if not failure.is_conflict:
                    raise
                raise CommitConflictError(
                    dataset=quarantine.name, location=location, condition=failure.condition
                ) from error
            return own_commit(clone, quarantine.name, location, note.mark, ())

    with telling_damage(quarantine.name, location):
        return with_retries(attempt, RetryPolicy(attempts=DELETE_ATTEMPTS), quarantine.name)
