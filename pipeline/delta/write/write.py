"""The only code that writes rows: append, replace, merge and first load, each with exactly one commit or none.

Here belong the attempts of a write and the result. The rows and statement of a merge belong to `merge`, the rows that
are kept out to `quarantine`, the judgment before the commit to `audit`, and what a refusal means to `refusal`. A
plain append or replace reads the frame once: Delta itself enforces NOT NULL, checks and the slice during the write.
Only after a refusal does a second pass count and name the rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial
from types import MappingProxyType

from pyspark.sql import DataFrame, SparkSession

from pipeline.dataset import Dataset, ErrorIfExists, Ignore, Merge, Replace, TableRef
from pipeline.dataset.policy import storage_confs
from pipeline.dataset.schema import casefolded
from pipeline.dataset.write_mode import changelog_of
from pipeline.delta import sql
from pipeline.delta.frames.fit import select_list
from pipeline.delta.log.commits import Commit
from pipeline.delta.log.mark import (
    AfterCommit,
    CommitNote,
    Mark,
    own_commit,
    private_session,
    write_confs,
)
from pipeline.delta.log.retry import RetryPolicy, with_retries
from pipeline.delta.spark.doors import door, door_of_write
from pipeline.delta.spark.failures import LOST_OR_REFUSED, SPARK_ERRORS
from pipeline.delta.sql.slices import Slice
from pipeline.delta.table.apply import Applied
from pipeline.delta.table.open_table import TableState, conform, open_with_steps, require_table
from pipeline.delta.write import merge, quarantine
from pipeline.delta.write.audit import Audit
from pipeline.delta.write.quarantine import SplitFrame, split_violations
from pipeline.delta.write.refusal import commit_despite, failing_expressions_named, refusals_named, violations_in
from pipeline.delta.write.result import WriteResult, commit_result, no_commit
from pipeline.delta.write.statement import evolution, overwrite, write_statement
from pipeline.delta.write.transaction import (
    Guard,
    Identifier,
    Occupied,
    Unguarded,
    Written,
    cursor_identifier,
    first_load,
    identifier,
    version_holding,
)
from pipeline.errors import AfterCommitError, CommitConflictError, CommitUnknownError, PipelineError, TableExistsError

# The condition of a conflict in which another run has advanced the same cursors.
CURSOR_MOVED = "CURSOR_MOVED"
_NO_PARTS: Mapping[str, Slice] = MappingProxyType({})
# Delta reads the source of a merge twice, and by default first copies any source that is not a Delta table.
_WITHOUT_COPY = {"spark.databricks.delta.merge.materializeSource": "none"}
# Delta shuffles the rows that a merge writes by the partition columns. If `STATE_COLUMN` is the only one, a single task
# would write almost all of them.
_WITHOUT_SHUFFLE = {"spark.databricks.delta.merge.repartitionBeforeWrite.enabled": "false"}


@door
def write(
    frame: DataFrame, *, table: TableRef, note: CommitNote, within: Slice | None = None, replace_all: bool = False,
    source_is_stable: bool = False, is_identified: bool = False, parts: Mapping[str, Slice] = _NO_PARTS,
    proviso: Callable[[], None] | None = None, retry: RetryPolicy | None = None,
) -> WriteResult:  # fmt: skip
    """Write a frame in the dataset's write mode. If there is no table, create it.

    A repeat of a write with an epoch in its mark is skipped if it would double rows. A conflict repeats all of it.

    Args:
        frame: rows of the dataset; columns are matched by name.
        within: the slice that this write addresses. If None, the whole table. A replace replaces exactly it, so an
            empty frame empties it. Rows outside it are refused.
        replace_all: write as if the table were empty, in any mode: its rows are removed. A History keeps its past, and
            takes the frame as a snapshot.
        source_is_stable: every evaluation of the frame gives the same rows, as with files that nobody changes. A merge
            then keeps no copy of them.
        is_identified: let Delta accept one commit of this writer and epoch, even if a repeat would double no rows.
        parts: for an audit, the slices in which the declared number of rows is counted, by name. If there are none, the
            rows are counted as a whole.
        proviso: is called before the statement of each attempt, and raises if the write is not to be made any more.
        retry: when to give up after conflicts with other commits. If None, the default policy.

    Raises:
        FrameMismatchError: the columns don't fit. Nothing is created.
        TableMismatchError, NotADeltaTableError, StorageError: the table can't be opened or created.
        DamagedTableError: a file of the table or its log is missing or damaged. Nothing is committed.
        ViolationError: rows are refused, with counts.
        AuditError: a blocking expectation failed. Nothing is committed, and the rows wait beside the table.
        ChangelogError, SnapshotError: changes or a snapshot that can't be placed in the order of the rows.
        DeclarationError: `replace_all` for a History with partitions.
        ExpressionError: a condition of the write mode can't be used. Nothing is created.
        ExpressionFailedError: declared SQL raises for a row.
        FrameFailedError: the frame can't be computed.
        StatementError, EngineError: Spark refuses, or fails at, what is written otherwise.
        TableExistsError: a first load, and there are rows.
        CommitConflictError: other commits came first, at every attempt.
        SparkUnavailableError: the server was gone before the write began.
        CommitUnknownError: it went while it wrote, and can't be asked what became of it.
        CommitOverwrittenError: the rows were committed, and another writer has replaced the entry of the commit.
        AfterCommitError: the rows are committed, and something that follows the commit failed.
    """
    with (
        door_of_write(table.name, table.location),
        _conformed(frame, table.dataset, note.mark) as conformed,
        failing_expressions_named(conformed, table.dataset),
        split_violations(conformed, table.dataset, within) as split,
        _fixed_frame(split, table.dataset, within) as fixed,
    ):
        if split.is_refused and (violation := violations_in(fixed, table.dataset, within)) is not None:
            raise violation
        apart = _QuarantinedRows(split, table, note)
        whole, mode = split.whole if split.is_held else fixed, table.dataset.write
        audit = Audit(
            table=table, note=note, within=within, parts=parts, replace_all=replace_all, whole=whole, put=write
        )
        # The schema of a table with rows of state is not replaced: it has a column that the dataset lacks.
        replaced = within is None and (replace_all or isinstance(mode, Replace)) and not table.dataset.keeps_state
        # Delta refuses a source that is cached.
        as_it_is = source_is_stable and not _is_fixed(split, table.dataset, within)
        tables: list[Applied] = []
        attempt_write = partial(
            _attempt, replace_all=replace_all, source_is_stable=as_it_is, apart=apart, audit=audit,
            is_identified=is_identified or audit.is_declared, proviso=proviso,
        )  # fmt: skip

        def attempt(number: int) -> WriteResult:
            tables.append(open_with_steps(fixed.sparkSession, table, replaced=replaced))
            mark = changed(note.mark, attempt=note.mark.attempt + number - 1)
            own = changed(note, mark=mark, order=_order(table.dataset))
            return attempt_write(fixed, table, tables[-1], own, within)

        with apart.removed_on_failure():
            result = with_retries(attempt, retry or RetryPolicy(), table.name)
        with result.behind():
            audit.settle(fixed.sparkSession, is_held=result.committed or result.skipped)
            return changed(result, quarantined=apart.result, **split.counts, **evolution(table.dataset, tables))


@contextmanager
def _conformed(frame: DataFrame, dataset: Dataset, mark: Mark) -> Iterator[DataFrame]:
    """The frame with the declared columns under the declared names.

    Columns and checks are computed in a session of ours: in the caller's zone or arithmetic the checks would find other
    rows than those that Delta refuses.
    """
    selected = select_list(dataset, frame.schema)
    columns = [f"{expression} AS {sql.identifier(name)}" for name, expression in selected.items()]
    given_names = {casefolded(name) for name in frame.schema.names}
    computed = (*dataset.features.generated, *dataset.features.defaults)
    if not dataset.checks and all(casefolded(name) in given_names for name, _ in computed):
        yield _checked(frame.selectExpr(*columns), dataset)
        return
    with _temporary_view(frame, mark) as view, private_session(frame.sparkSession, {}) as clone:
        yield _checked(clone.table(view).selectExpr(*columns), dataset)


def _checked(conformed: DataFrame, dataset: Dataset) -> DataFrame:
    merge.refuse_unusable_conditions(conformed, dataset)
    return conformed


def _order(dataset: Dataset) -> dict[str, tuple[str, ...]]:
    """The columns that identify and order the rows of a write, for its note."""
    changelog = changelog_of(dataset.write)
    by = changelog.sequence if changelog is not None else getattr(dataset.write, "order_by", None)
    columns = {"keys": dataset.keys, "order_by": (by,) if by else (), "cluster_by": dataset.features.cluster_by or ()}
    return {name: named for name, named in columns.items() if named}


def _is_fixed(split: SplitFrame, dataset: Dataset, within: Slice | None) -> bool:
    return split.is_held or dataset.audit == "before" or merge.needs_fixed_source(dataset, within)


@contextmanager
def _fixed_frame(split: SplitFrame, dataset: Dataset, within: Slice | None) -> Iterator[DataFrame]:
    """The frame, materialized if it is read more than once, so that every pass sees the same rows."""
    if split.is_held or not _is_fixed(split, dataset, within):
        yield split.frame
        return
    fixed = split.frame.persist()
    try:
        yield fixed
    finally:
        with suppress(*LOST_OR_REFUSED):  # an error here must not hide the result of the write
            fixed.unpersist()


@dataclass
class _QuarantinedRows:
    """The rows of one write that go to quarantine. `result` is their commit once it was made."""

    split: SplitFrame
    table: TableRef
    note: CommitNote
    result: WriteResult | None = None

    @property
    def to(self) -> TableRef | None:
        """The quarantine's table. If no constraint has a quarantine, None."""
        dataset = self.table.dataset.quarantine
        return None if dataset is None else self.table.beside(dataset)

    def commit(self, session: SparkSession) -> None:
        """Replace the batch's quarantined rows, once in all attempts. If nothing changes, make no commit."""
        rows, to = self.split.set_apart, self.to
        if to is None or rows is None or self.result is not None:
            return
        if self.split.rows_quarantined or quarantine.may_hold_batch(session, to, self.note):
            self.result = self._replaced(rows, to) if self.split.rows_quarantined else self._removed(session, to)

    def _replaced(self, rows: DataFrame, to: TableRef) -> WriteResult:
        frame = quarantine.rows_for_quarantine(rows, self.table.dataset, self.note, self.split.rows_quarantined)
        note, within = changed(self.note, cursors=None), quarantine.batch_slice(self.note)
        return write(frame, table=to, note=note, within=within)

    def _removed(self, session: SparkSession, to: TableRef) -> WriteResult:
        commit = quarantine.remove_batch(session, to, self.note)
        state = require_table(session, to)
        mark = self.note.mark
        return no_commit(to.dataset, state, mark) if commit is None else commit_result(to.dataset, state, mark, commit)

    def settle(self, session: SparkSession, *, replace_all: bool) -> None:
        """After the commit of the rows: delete quarantined rows of runs that did not commit."""
        if self.to is not None:
            with suppress(PipelineError, *SPARK_ERRORS):  # the rows are committed, even if this fails
                quarantine.remove_uncommitted(session, self.to, self.note, replace_all=replace_all)

    @contextmanager
    def removed_on_failure(self) -> Iterator[None]:
        """Delete the quarantined rows if the write fails and its other rows are known not to be committed."""
        try:
            yield
        except (AfterCommitError, CommitUnknownError):
            raise
        except (PipelineError, *SPARK_ERRORS):
            rows, to = self.split.set_apart, self.to
            if to is not None and rows is not None and self.result is not None and self.result.committed:
                with suppress(PipelineError, *SPARK_ERRORS):  # an error here must not hide the result of the write
                    self._removed(rows.sparkSession, to)
            raise


def _attempt(
    frame: DataFrame, table: TableRef, opened: Applied, note: CommitNote, within: Slice | None, *, replace_all: bool,
    source_is_stable: bool, apart: _QuarantinedRows, audit: Audit, is_identified: bool,
    proviso: Callable[[], None] | None,
) -> WriteResult:  # fmt: skip
    session, dataset, state = frame.sparkSession, table.dataset, opened.after
    guard = _guard(session, dataset, state, note, is_identified=is_identified)
    if isinstance(guard, Written):
        return no_commit(dataset, state, note.mark, skipped_at=guard.version)
    if isinstance(guard, Occupied):
        return no_commit(dataset, state, note.mark)
    is_looked_up = audit.is_declared or (apart.split.set_apart is not None and note.cursors is None)
    before = version_holding(state, note.mark, guard) if is_looked_up and isinstance(guard, Identifier) else None
    if before is not None and note.cursors is not None:
        raise table.error(CommitConflictError, condition=CURSOR_MOVED)
    if before is not None:  # no row is quarantined or refused a second time
        return no_commit(dataset, state, note.mark, skipped_at=before)
    with _temporary_view(frame, note.mark) as view:
        statement = write_statement(frame, table, view, within, replace_all=replace_all)
        with refusals_named(frame, dataset, within):
            judged = audit.judged(session, view, statement, state)
        apart.commit(session)
        confs = (guard.confs if isinstance(guard, Identifier) else {}) | (_WITHOUT_COPY if source_is_stable else {})
        commit = None
        if proviso is not None:
            proviso()
        if not _changes_nothing(apart.split, dataset, opened, guard, replace_all=replace_all):
            commit = _run(statement.text, frame, table, opened, note=note, within=within, confs=confs, view=view)
    if commit is not None:
        with AfterCommit(table.name, table.location, commit.version):
            if opened.overwrites:
                state = conform(session, table).after
            apart.settle(session, replace_all=replace_all)
            return changed(commit_result(dataset, state, note.mark, commit), judged=judged)
    return changed(_without_commit(session, table, note, guard), judged=judged)


def _without_commit(session: SparkSession, table: TableRef, note: CommitNote, guard: Guard) -> WriteResult:
    """The result of a write for which Delta made no commit: there was nothing to write, or it was written before.

    Raises:
        CommitConflictError: another run has advanced the cursors, or a restore has removed the rows.
    """
    if note.cursors is not None:  # Delta commits an identifier even without rows, unless another run committed first
        raise table.error(CommitConflictError, condition=CURSOR_MOVED)
    state = require_table(session, table)
    again = _guard(session, table.dataset, state, note, is_identified=isinstance(guard, Identifier))
    if isinstance(again, Identifier) and again != guard:  # a restore came between and removed the rows
        raise table.error(CommitConflictError, condition="RESTORE")
    skipped_at = again.version if isinstance(again, Written) else None
    if isinstance(again, Identifier):
        skipped_at = version_holding(state, note.mark, again)
    return no_commit(table.dataset, state, note.mark, skipped_at=skipped_at)


def _changes_nothing(split: SplitFrame, dataset: Dataset, opened: Applied, guard: Guard, *, replace_all: bool) -> bool:
    """Whether Delta would make no commit, because no row is left to write.

    Spark's first task writes a file even without rows, and no commit names it. A statement that removes rows or records
    an identifier has to run: it leaves that file to the next vacuum.
    """
    mode = dataset.write
    removes = replace_all or isinstance(mode, Replace) or (isinstance(mode, Merge) and mode.delete_missing)
    return split.rows == 0 and isinstance(guard, Unguarded) and not removes and not opened.overwrites


def _run(
    statement: str, frame: DataFrame, table: TableRef, opened: Applied, *, note: CommitNote, within: Slice | None,
    confs: Mapping[str, str], view: str,
) -> Commit | None:  # fmt: skip
    """The commit of a statement. If Delta made none because there was nothing to do, None."""
    state, partition_by = opened.after, opened.after.log_partition_by
    marked = write_confs(note, frame.sparkSession, table.dataset.fingerprint) | storage_confs(state.properties)
    if table.dataset.keeps_state and not table.dataset.partition_by:
        marked |= _WITHOUT_SHUFFLE
    with private_session(frame.sparkSession, marked | dict(confs)) as clone:
        try:
            if opened.overwrites:
                partition_by = overwrite(clone, table, opened, view)
            else:
                clone.sql(statement).collect()
        except LOST_OR_REFUSED as error:
            return commit_despite(error, frame, table, state, within=within, mark=note.mark)
        return own_commit(clone, table.name, table.location, note.mark, partition_by)


def _guard(
    session: SparkSession, dataset: Dataset, state: TableState, note: CommitNote, *, is_identified: bool
) -> Guard:  # fmt: skip
    """What keeps a repeat of this write from changing the table again.

    An identifier if Delta is to skip a repeat. A repeated replace or merge by order gives the same table, and needs
    none of the three Spark jobs of Delta's look-up. A merge that deletes needs them: its repeat would restore a row
    that a later batch has deleted.

    Raises:
        TableExistsError: a first load found rows of another write.
    """
    mode, mark = dataset.write, note.mark
    if note.cursors is not None:
        return cursor_identifier(session, state, note.cursors.number)
    if isinstance(mode, ErrorIfExists | Ignore):
        guard = first_load(session, state, mark)
        if isinstance(guard, Occupied) and isinstance(mode, ErrorIfExists):
            raise TableExistsError(dataset=dataset.name, location=state.location, version=state.version)
        return guard
    return identifier(session, state, mark) if is_identified or merge.repeat_matters(mode) else Unguarded()


@contextmanager
def _temporary_view(frame: DataFrame, mark: Mark) -> Iterator[str]:
    """The frame as a temporary view, until the write ends."""
    # Quarantined rows are written during the same write, under the same mark.
    name = f"pipeline_frame_{mark.token}_{uuid.uuid4().hex[:8]}"
    frame.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        # A view that remains has a unique name; an error here must not hide the result of the write.
        with suppress(*LOST_OR_REFUSED):
            frame.sparkSession.catalog.dropTempView(name)
