"""Rows that constraints keep out of a write: found in one pass before it, then dropped or quarantined with reasons.

Here belong the pass, the split of the frame, and the rule which quarantined rows belong to which batch. The commits and
their order are the subject of `write`.

The refused rows of a batch are quarantined before its other rows are written, so that none is lost if the writer is
killed in between. A repeat of the batch replaces its quarantined rows. A batch is a writer's epoch. A consumer's batch
is the number of its cursors. Two runs may try for the same number: each has rows of its own, and those of the run that
commits second are deleted.

Columns that we add to a frame have names that no column of the dataset has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession

from pipeline.dataset import Dataset, OnViolation, TableRef
from pipeline.dataset.expectations import constraint_name, null_label
from pipeline.dataset.side_tables import EPOCH, REASONS, RUN_ID, TOKEN, WRITER
from pipeline.dataset.write_mode import changelog_of
from pipeline.delta import sql
from pipeline.delta.log.commits import Commit
from pipeline.delta.log.mark import CommitNote, own_commit, private_session, write_confs
from pipeline.delta.log.retry import RetryPolicy, with_retries
from pipeline.delta.spark.doors import door_of_write
from pipeline.delta.spark.failures import LOST_OR_REFUSED, failure_of
from pipeline.delta.sql import constraints
from pipeline.delta.sql.slices import Box, Slice, Unaddressable, Values, rows_by_values
from pipeline.delta.table.open_table import table_state
from pipeline.delta.write import merge
from pipeline.delta.write.changelog import stands_alone
from pipeline.errors import CommitConflictError

# The writer of a consumer's quarantined rows: its cursors identify its batches, whichever run wrote them.
CURSORS = "cursors"
DELETE_ATTEMPTS = 6
ROWS_OF_FILE = 1_000_000
Kind = Literal["check", "not null"]


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One constraint in one write: what is done with the rows that violate it, their number, and examples.

    For a constraint that fails the write, only rows that no other constraint removes count. A write that succeeded has
    none of those.
    """

    constraint: str
    kind: Kind
    on_violation: OnViolation
    rows: int
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class RemovedRows:
    """The number of rows of one partition that were quarantined, and the number that were dropped."""

    quarantined: int = 0
    dropped: int = 0

    def __add__(self, other: RemovedRows) -> RemovedRows:
        return RemovedRows(self.quarantined + other.quarantined, self.dropped + other.dropped)


@dataclass(frozen=True, kw_only=True)
class SplitFrame:
    """A frame split by its violations: the rows that are written, the rows to quarantine, and the counts.

    `frame`, `set_apart`, and `whole` with all rows, are materialized if `is_held`. `is_refused` says that some
    remaining rows violate a rule that fails the write. `left_out` counts the rows of the slice that are kept out, by
    partition values. `rows` is the number of rows of `frame`, None if they were not counted.
    """

    frame: DataFrame
    whole: DataFrame
    rows: int | None = None
    is_held: bool = False
    set_apart: DataFrame | None = None
    violations: tuple[Violation, ...] = ()
    rows_quarantined: int = 0
    rows_dropped: int = 0
    left_out: Mapping[tuple[Any, ...], RemovedRows] = field(default_factory=dict)
    is_refused: bool = False

    @property
    def counts(self) -> dict[str, Any]:
        """The counts under the names of their fields, which a result of a write has too."""
        names = ("violations", "rows_dropped", "rows_quarantined", "left_out")
        return {name: getattr(self, name) for name in names}


@contextmanager
def split_violations(frame: DataFrame, dataset: Dataset, within: Slice | None) -> Iterator[SplitFrame]:
    """Split off the rows of a conformed frame that constraints keep out. One Spark job; persisted until the block ends.

    If every constraint fails the write, no row is read here: Delta enforces them during the write.

    Raises:
        DeclarationError: a check can't be used.
    """
    if all(constraint.on_violation == "fail" for constraint in dataset.constraints):
        yield SplitFrame(frame=frame, whole=frame)
        return
    constraints.refuse_unusable_checks(frame.sparkSession, dataset)
    tagged = _tagged(frame, dataset).persist()
    try:
        yield _counted(tagged, dataset, within)
    finally:
        with suppress(*LOST_OR_REFUSED):  # an error here must not hide the result of the write
            tagged.unpersist()


def _reasons(dataset: Dataset) -> str:
    """The column of the constraints that a row violates, quoted."""
    return sql.identifier(sql.helper_name(dataset, "broken constraints"))


def _destination(dataset: Dataset) -> str:
    """The column that says where a row goes, quoted."""
    return sql.identifier(sql.helper_name(dataset, "fate of row"))


def _constraints(dataset: Dataset) -> dict[str, tuple[Kind, OnViolation, str]]:
    """Each constraint by its label: its kind, what a violation does, and SQL that is true for a violating row."""
    declared: dict[str, OnViolation] = {
        constraint_name(constraint): constraint.on_violation for constraint in dataset.not_null
    }
    nulls = constraints.null_conditions(dataset.schema, merge.kept_columns(dataset))
    not_null: dict[str, tuple[Kind, OnViolation, str]] = {
        null_label(path): ("not null", declared.get(null_label(path), "fail"), condition)
        for path, condition in nulls.items()
    }
    checks = constraints.check_conditions(dataset)
    return not_null | {
        constraint_name(check): ("check", check.on_violation, checks[check.name]) for check in dataset.checks
    }


def _tagged(frame: DataFrame, dataset: Dataset) -> DataFrame:
    """The frame with the constraints that each row violates, and where it goes. NULL if the write keeps it."""
    stored = merge.stored_condition(dataset) or "TRUE"
    by_label = _constraints(dataset)
    labels = [f"CASE WHEN {condition} THEN {sql.string(name)} END" for name, (_, _, condition) in by_label.items()]
    reasons = f"CASE WHEN {stored} THEN array_compact(array({', '.join(labels)})) ELSE array() END"
    fates = [
        f"WHEN {_any_of(dataset, violated)} THEN '{fate}'"
        for fate in ("quarantine", "drop")
        if (violated := [name for name, (_, follows, _) in by_label.items() if follows == fate])
    ]
    tagged = frame.selectExpr("*", f"{reasons} AS {_reasons(dataset)}")
    tagged = tagged.selectExpr("*", f"CASE {' '.join(fates)} END AS {_destination(dataset)}")
    changelog = changelog_of(dataset.write)
    if changelog is None or not changelog.before_updates:
        return tagged
    fate = _destination(dataset)
    alone = stands_alone(dataset, changelog, f"{fate} IS NOT NULL")
    return tagged.selectExpr(f"* EXCEPT ({fate})", f"CASE WHEN {alone} THEN 'goes along' ELSE {fate} END AS {fate}")


def _any_of(dataset: Dataset, labels: Sequence[str]) -> str:
    """SQL that is true for a row that violates one of these constraints."""
    named = ", ".join(map(sql.string, labels))
    return f"arrays_overlap({_reasons(dataset)}, array({named}))"


def _counted(tagged: DataFrame, dataset: Dataset, within: Slice | None) -> SplitFrame:
    fate, by_label = _destination(dataset), _constraints(dataset)
    goes_on = f"{fate} IS NULL"
    conditions = {
        name: f"{_any_of(dataset, [name])} AND {goes_on}" if follows == "fail" else _any_of(dataset, [name])
        for name, (_, follows, _) in by_label.items()
    }
    stored = merge.stored_condition(dataset) or "TRUE"
    refused = [*constraints.lost_partition_conditions(dataset).values()]
    if within is not None:
        refused.append(constraints.outside_condition(dataset, within))
    unfit = " OR ".join(f"({condition})" for condition in refused) or "FALSE"
    row = tagged.selectExpr(
        *constraints.count_expressions(dataset, conditions),
        f"count_if({goes_on}) AS remaining",
        f"count_if({fate} = 'quarantine') AS quarantined",
        f"count_if({fate} = 'drop') AS dropped",
        f"count_if({goes_on} AND {stored} AND ({unfit})) AS unfit",
    ).collect()[0]
    broken = {name: constraints.broken_in(row, position) for position, name in enumerate(conditions)}
    violations = tuple(
        Violation(constraint=n, kind=kind, on_violation=follows, rows=broken[n].rows, examples=broken[n].examples)
        for n, (kind, follows, _) in by_label.items()
    )
    columns = [sql.identifier(name) for name in (*dataset.schema.names, *dataset.frame_columns)]
    return SplitFrame(
        frame=tagged.filter(goes_on).selectExpr(*columns),
        whole=tagged.selectExpr(*columns),
        rows=row["remaining"],
        is_held=True,
        set_apart=None if dataset.quarantine is None else tagged.filter(f"{fate} = 'quarantine'"),
        violations=violations,
        rows_quarantined=row["quarantined"],
        rows_dropped=row["dropped"],
        left_out=_left_out(tagged, dataset, within) if row["quarantined"] or row["dropped"] else {},
        is_refused=bool(row["unfit"]) or any(v.rows for v in violations if v.on_violation == "fail"),
    )


def _left_out(tagged: DataFrame, dataset: Dataset, within: Slice | None) -> dict[tuple[Any, ...], RemovedRows]:
    """The rows of the slice that are kept out, by partition. One Spark job over persisted rows."""
    if within is None or not dataset.partition_by:
        return {}
    fate = _destination(dataset)
    rows = tagged.filter(within.predicate(dataset)).filter(f"{fate} IN ('quarantine', 'drop')")
    try:
        counts = rows_by_values(rows, dataset.partition_by, (f"{fate} = 'quarantine'", f"{fate} = 'drop'"))
    except Unaddressable:  # a value that Python can't hold; the totals are reported anyway
        return {}
    return {values: RemovedRows(quarantined, dropped) for values, (quarantined, dropped) in counts.items()}


# --- quarantined rows by batch ----------------------------------------------------------------------------------------


def rows_for_quarantine(set_apart: DataFrame, dataset: Dataset, note: CommitNote, rows: int) -> DataFrame:
    """The rows to quarantine as the quarantine table stores them, with their reasons and their batch.

    Args:
        rows: the number of rows, at least one.
    """
    writer, epoch = batch(note)
    batch_columns = {
        REASONS: _reasons(dataset),
        WRITER: sql.string(writer),
        EPOCH: "CAST(NULL AS BIGINT)" if epoch is None else f"CAST({epoch} AS BIGINT)",
        TOKEN: sql.string(note.mark.token),
        RUN_ID: "CAST(NULL AS STRING)" if note.run_id is None else sql.string(note.run_id),
        "_set_apart_at": "current_timestamp()",
    }
    columns = [sql.identifier(name) for name in dataset.schema.names]
    # A task without rows may still write a file, which no commit names.
    return set_apart.repartition(1 + rows // ROWS_OF_FILE).selectExpr(
        *columns, *(f"{value} AS {sql.identifier(name)}" for name, value in batch_columns.items())
    )


def batch_slice(note: CommitNote) -> Slice:
    """The quarantined rows of this batch that this write may replace."""
    writer, epoch = batch(note)
    values: list[tuple[str, Any]] = [(WRITER, writer)]
    if epoch is not None:
        values.append((EPOCH, epoch))
    if epoch is None or note.cursors is not None:
        values.append((TOKEN, note.mark.token))
    return Slice((Box(tuple((column, Values((value,))) for column, value in values)),))


def batch(note: CommitNote) -> tuple[str, int | None]:
    """The writer and the epoch that identify the batch of a write."""
    return (note.mark.writer, note.mark.epoch) if note.cursors is None else (CURSORS, note.cursors.number)


def may_hold_batch(session: SparkSession, quarantine: TableRef, note: CommitNote) -> bool:
    """Whether an earlier attempt may have quarantined rows of this batch. A consumer's attempt has its own token."""
    is_repeatable = note.cursors is None and note.mark.epoch is not None
    return is_repeatable and table_state(session, quarantine) is not None


def remove_uncommitted(session: SparkSession, quarantine: TableRef, note: CommitNote, *, replace_all: bool) -> None:
    """Delete rows that a consumer's other runs have quarantined without committing the cursors that this run committed.

    If the table was built again, so is its quarantine. If there is nothing to delete, no commit is made.
    """
    if note.cursors is None or table_state(session, quarantine) is None:
        return
    epochs = "" if replace_all else f" AND {sql.identifier(EPOCH)} >= {note.cursors.number}"
    others = f"{sql.identifier(WRITER)} = {sql.string(CURSORS)} AND {sql.identifier(TOKEN)} <> "
    delete_rows(session, quarantine, note, f"{others}{sql.string(note.mark.token)}{epochs}")


def remove_batch(session: SparkSession, quarantine: TableRef, note: CommitNote) -> Commit | None:
    """Delete the quarantined rows of this batch. If there were none, no commit is made and None is returned.

    A replace by no rows has the same effect, but leaves a file that no commit names even if there were no such rows.

    Raises:
        CommitConflictError: at every attempt another commit came first.
        DamagedTableError: a file of the quarantine is missing or damaged.
    """
    return delete_rows(session, quarantine, note, batch_slice(note).predicate(quarantine.dataset))


def delete_rows(session: SparkSession, quarantine: TableRef, note: CommitNote, condition: str) -> Commit | None:
    """Delete the rows of a side table for which a condition is true. If there were none, None; raises as above."""

    def attempt(_: int) -> Commit | None:
        with private_session(session, write_confs(note, session, quarantine.dataset.fingerprint)) as clone:
            try:
                clone.sql(f"DELETE FROM {sql.path_table(quarantine.location)} WHERE {condition}").collect()  # noqa: S608  quoted
            except LOST_OR_REFUSED as error:
                failure = failure_of(error)
                if not failure.is_conflict:
                    raise
                raise quarantine.error(CommitConflictError, condition=failure.condition) from error
            return own_commit(clone, quarantine.name, quarantine.location, note.mark, ())

    with door_of_write(quarantine.name, quarantine.location):
        return with_retries(attempt, RetryPolicy(attempts=DELETE_ATTEMPTS), quarantine.name)
