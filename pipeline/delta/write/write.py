"""The only code that writes rows: append, replace, merge and first load, each exactly one commit or none.

Here belong the statement of a write, its attempts, the reading of a refusal and the result; how a merge's rows and
statement are made is `merge`'s, which rows are left out of a write, `quarantine`'s, and what refused rows break,
`refusal`'s. A plain append or replace looks at the frame once: Delta itself enforces NOT NULL, checks and the slice
while it writes, and only a refusal is followed by a second pass that counts and names the rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from pipeline.dataset import Dataset, ErrorIfExists, Ignore, Replace
from pipeline.dataset.expectations import QUARANTINE_SUFFIX
from pipeline.dataset.policy import storage_confs
from pipeline.dataset.schema import casefolded
from pipeline.delta import sql
from pipeline.delta.frames.fit import select_list
from pipeline.delta.log.commits import Commit
from pipeline.delta.log.mark import (
    BehindCommit,
    CommitNote,
    Mark,
    marked_commit,
    own_commit,
    private_session,
    write_confs,
)
from pipeline.delta.log.retry import RetryPolicy, with_retries
from pipeline.delta.log.snapshot import local_folder
from pipeline.delta.spark.doors import door, telling_damage
from pipeline.delta.spark.failures import (
    CAUSE_UNTOLD,
    CHECK_BROKEN,
    LOST_OR_REFUSED,
    NOT_NULL_BROKEN,
    RAISED_BY_US,
    SLICE_BROKEN,
    SPARK_ERRORS,
    failure_of,
)
from pipeline.delta.sql.slices import Slice
from pipeline.delta.table.apply import Applied
from pipeline.delta.table.open_table import TableState, conform, open_with_steps, require_table
from pipeline.delta.write import merge, overwrite, quarantine
from pipeline.delta.write.quarantine import SplitFrame, split_violations
from pipeline.delta.write.refusal import telling_expressions, violations_in
from pipeline.delta.write.result import WriteResult, commit_result, no_commit
from pipeline.delta.write.statement import write_statement
from pipeline.delta.write.transaction import Identifier, cursor_identifier, first_load, identifier, version_holding
from pipeline.errors import AfterCommitError, CommitConflictError, CommitUnknownError, PipelineError, TableExistsError

# What a conflict says of a run whose cursors another run has moved on.
CURSOR_MOVED = "CURSOR_MOVED"
# Delta reads the source of a merge twice, and would copy whatever is no Delta table first.
_AS_IT_IS = {"spark.databricks.delta.merge.materializeSource": "none"}


@door
def write(
    frame: DataFrame,
    *,
    dataset: Dataset,
    location: str,
    note: CommitNote,
    within: Slice | None = None,
    replace_all: bool = False,
    source_is_stable: bool = False,
    retry: RetryPolicy | None = None,
) -> WriteResult:
    """Write a frame as the dataset's write mode says, creating the table where there is none.

    A repeat of a write with an epoch in its mark is skipped if it would double rows. A conflict repeats all of it.

    Args:
        frame: rows of the dataset; columns are matched by name.
        within: the slice that this write addresses. A replace replaces exactly it, an empty frame empties it; rows
            outside it are refused. The whole table where None.
        replace_all: write as if the table were empty, in any mode: its rows go.
        source_is_stable: every evaluation of the frame gives the same rows, as of files that nobody changes; a merge
            then keeps no copy of them.
        retry: when a write that met another commit gives up; the default policy where None.

    Raises:
        FrameMismatchError: the columns don't fit; nothing is created.
        TableMismatchError, NotADeltaTableError, StorageError: the table can't be opened or created.
        DamagedTableError: a file of the table or its log is missing or damaged; nothing is committed.
        ViolationError: rows are refused, with counts.
        ExpressionFailedError: declared SQL raises for a row.
        FrameFailedError: the frame can't be computed.
        StatementError, EngineError: Spark refuses, or fails at, what is written otherwise.
        TableExistsError: a first load, and there are rows.
        CommitConflictError: other commits came first, at every attempt.
        SparkUnavailableError: the server was gone before the write began.
        CommitUnknownError: it went while it wrote, and can't be asked what became of it.
        AfterCommitError: the rows are committed, and something that follows the commit failed.
    """
    with (
        telling_damage(dataset.name, location),
        _conformed(frame, dataset, note.mark) as conformed,
        telling_expressions(conformed, dataset),
        split_violations(conformed, dataset, within) as found,
        _held(found, dataset, within) as held,
    ):
        if found.is_refused and (violation := violations_in(held, dataset, within)) is not None:
            raise violation
        apart = _SetApart(found, dataset, f"{location}{QUARANTINE_SUFFIX}", note)

        replaced = within is None and (replace_all or isinstance(dataset.write, Replace))
        as_it_is = source_is_stable and not _is_held(found, dataset, within)  # Delta refuses a source that is cached
        tables: list[Applied] = []
        attempted = partial(_attempt, replace_all=replace_all, source_is_stable=as_it_is, apart=apart)

        def attempt(number: int) -> WriteResult:
            tables.append(open_with_steps(held.sparkSession, dataset, location, replaced=replaced))
            own = changed(note, mark=changed(note.mark, attempt=note.mark.attempt + number - 1))
            return attempted(held, dataset, tables[-1], own, within)

        with apart.withdrawn_on_failure():
            result = with_retries(attempt, retry or RetryPolicy(), dataset.name)
        with result.behind():
            return changed(
                result, violations=found.violations, rows_dropped=found.rows_dropped, left_out=found.left_out,
                rows_quarantined=found.rows_quarantined, quarantined=apart.result,
                **overwrite.evolution(dataset, tables),
            )  # fmt: skip


@contextmanager
def _conformed(frame: DataFrame, dataset: Dataset, mark: Mark) -> Iterator[DataFrame]:
    """The frame with the declared columns under the declared names.

    What is computed for it, and what its checks make of its rows, is so in a session of ours: by the caller's zone or
    arithmetic other rows would be set apart than those that Delta refuses.
    """
    selected = select_list(dataset, frame.schema)
    columns = [f"{expression} AS {sql.identifier(name)}" for name, expression in selected.items()]
    given = {casefolded(name) for name in frame.schema.names}
    computed = (*dataset.features.generated, *dataset.features.defaults)
    if not dataset.checks and all(casefolded(name) in given for name, _ in computed):
        yield frame.selectExpr(*columns)
        return
    with _temporary_view(frame, mark) as view, private_session(frame.sparkSession, {}) as clone:
        yield clone.table(view).selectExpr(*columns)


def _is_held(found: SplitFrame, dataset: Dataset, within: Slice | None) -> bool:
    return found.is_held or merge.needs_fixed_source(dataset, within)


@contextmanager
def _held(found: SplitFrame, dataset: Dataset, within: Slice | None) -> Iterator[DataFrame]:
    """The frame, materialized where it is looked at more than once, so that every look sees the same rows."""
    if found.is_held or not merge.needs_fixed_source(dataset, within):
        yield found.frame
        return
    held = found.frame.persist()
    try:
        yield held
    finally:
        with suppress(*LOST_OR_REFUSED):  # must not hide what became of the write
            held.unpersist()


@dataclass
class _SetApart:
    """The rows of one write that go to quarantine; `result` is their commit once it was made."""

    found: SplitFrame
    dataset: Dataset
    location: str
    note: CommitNote
    result: WriteResult | None = None

    def commit(self, session: SparkSession) -> None:
        """Replace what is in quarantine of this batch, once in all attempts; makes no commit where nothing differs."""
        rows, to = self.found.set_apart, self.dataset.quarantine
        if to is None or rows is None or self.result is not None:
            return
        if self.found.rows_quarantined or quarantine.may_hold_batch(session, to, self.location, self.note):
            self.result = self._replaced(rows, to) if self.found.rows_quarantined else self._taken_out(session, to)

    def _replaced(self, rows: DataFrame, to: Dataset) -> WriteResult:
        frame = quarantine.rows_for_quarantine(rows, self.dataset, self.note, self.found.rows_quarantined)
        note, within = changed(self.note, cursors=None), quarantine.batch_slice(self.note)
        return write(frame, dataset=to, location=self.location, note=note, within=within)

    def _taken_out(self, session: SparkSession, to: Dataset) -> WriteResult:
        commit = quarantine.remove_batch(session, to, self.location, self.note)
        state = require_table(session, to, self.location)
        return (
            no_commit(to, state, self.note.mark) if commit is None else commit_result(to, state, self.note.mark, commit)
        )

    def settle(self, session: SparkSession, *, replace_all: bool) -> None:
        """Once the rows of the write are committed: leave no row of a run that was overtaken."""
        if self.dataset.quarantine is not None:
            with suppress(PipelineError, *SPARK_ERRORS):  # the rows are committed, whatever is left beside them
                quarantine.remove_uncommitted(
                    session, self.dataset.quarantine, self.location, self.note, replace_all=replace_all
                )

    @contextmanager
    def withdrawn_on_failure(self) -> Iterator[None]:
        """Take the rows back where the rest of the write is known not to be there."""
        try:
            yield
        except (AfterCommitError, CommitUnknownError):
            raise
        except (PipelineError, *SPARK_ERRORS):
            rows, to = self.found.set_apart, self.dataset.quarantine
            if to is not None and rows is not None and self.result is not None and self.result.committed:
                with suppress(PipelineError, *SPARK_ERRORS):  # must not hide what became of the write
                    self._taken_out(rows.sparkSession, to)
            raise


def _attempt(
    frame: DataFrame, dataset: Dataset, table: Applied, note: CommitNote, within: Slice | None, *, replace_all: bool,
    source_is_stable: bool, apart: _SetApart,
) -> WriteResult:  # fmt: skip
    session, state, location = frame.sparkSession, table.after, table.after.location
    known = _identifier(session, dataset, state, note)
    if isinstance(known, int):
        return no_commit(dataset, state, note.mark, skipped_at=known)
    if isinstance(dataset.write, ErrorIfExists | Ignore) and known is None:
        return no_commit(dataset, state, note.mark)
    if apart.found.set_apart is not None and isinstance(known, Identifier) and note.cursors is None:
        before = version_holding(session, state, note.mark, known)
        if before is not None:  # nor is anything set apart a second time
            return no_commit(dataset, state, note.mark, skipped_at=before)
    with _temporary_view(frame, note.mark) as view:
        statement = write_statement(frame, dataset, location, view, within, replace_all=replace_all)
        apart.commit(session)
        confs = (known.confs if known is not None else {}) | (_AS_IT_IS if source_is_stable else {})
        commit = _run(statement, frame, dataset, table, note=note, within=within, confs=confs, view=view)
    if commit is not None:
        with BehindCommit(dataset.name, location, commit.version):
            if table.overwrites:
                state = conform(session, dataset, location).after
            apart.settle(session, replace_all=replace_all)
            return commit_result(dataset, state, note.mark, commit)
    if note.cursors is not None:  # Delta commits an identifier even without rows, unless another run was first
        raise CommitConflictError(dataset=dataset.name, location=location, condition=CURSOR_MOVED)
    # Delta made none: there was nothing to write, or it was written before.
    state = require_table(session, dataset, location)
    again = _identifier(session, dataset, state, note)
    if isinstance(again, Identifier) and again != known:  # a restore came between, and what was written is gone
        raise CommitConflictError(dataset=dataset.name, location=location, condition="RESTORE")
    skipped_at = version_holding(session, state, note.mark, again) if isinstance(again, Identifier) else again
    return no_commit(dataset, state, note.mark, skipped_at=skipped_at)


def _run(
    statement: str, frame: DataFrame, dataset: Dataset, table: Applied, *, note: CommitNote, within: Slice | None,
    confs: Mapping[str, str], view: str,
) -> Commit | None:  # fmt: skip
    """The commit of a statement; None where Delta saw nothing to do and made none."""
    state, partition_by = table.after, table.after.log_partition_by
    marked = write_confs(note, frame.sparkSession, dataset.fingerprint) | storage_confs(state.properties)
    with private_session(frame.sparkSession, marked | dict(confs)) as clone:
        try:
            if table.overwrites:
                partition_by = overwrite.overwrite(clone, dataset, table, view)
            else:
                clone.sql(statement).collect()
        except LOST_OR_REFUSED as error:
            return _outcome(error, frame, dataset, state, within=within, mark=note.mark)
        return own_commit(clone, dataset.name, state.location, note.mark, partition_by)


def _identifier(
    session: SparkSession, dataset: Dataset, state: TableState, note: CommitNote
) -> Identifier | int | None:
    """The identifier under which Delta refuses a repeat; None where one does no harm or, for a first load, rows exist.

    The version that holds the rows where they were written before and Delta would not know it. A replace and a merge by
    order come to the same when they are repeated, and are spared the three Spark jobs that Delta needs to look an
    identifier up; a merge that deletes does not, since a row that a later batch has deleted would come back.

    Raises:
        TableExistsError: a first load that found rows of others.
    """
    mode, mark = dataset.write, note.mark
    if note.cursors is not None:
        return cursor_identifier(session, state, note.cursors.number)
    if isinstance(mode, ErrorIfExists | Ignore):
        found = first_load(session, state, mark)
        if found is None and isinstance(mode, ErrorIfExists):
            raise TableExistsError(dataset=dataset.name, location=state.location, version=state.version)
        return found
    return identifier(session, state, mark) if merge.repeat_matters(mode) else None


@contextmanager
def _temporary_view(frame: DataFrame, mark: Mark) -> Iterator[str]:
    """The frame under a name that SQL can say, for as long as the write takes."""
    # What a write sets apart is written inside of it, under the same mark.
    name = f"pipeline_frame_{mark.token}_{uuid.uuid4().hex[:8]}"
    frame.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        # A view that stays behind has a name of its own; a failure here must not hide what became of the write.
        with suppress(*LOST_OR_REFUSED):
            frame.sparkSession.catalog.dropTempView(name)


def _outcome(
    error: Exception, frame: DataFrame, dataset: Dataset, state: TableState, *, within: Slice | None, mark: Mark
) -> Commit:
    """What became of a write that raised: its commit where it was made all the same, or else the error to raise.

    An answer may be lost on its way, and what Delta does after a commit may fail; so before a failure is told, the log
    is asked for our mark.

    Raises:
        ViolationError: rows were refused.
        CommitConflictError: another commit came first, and the log holds none of ours.
        CommitUnknownError: the log can't be asked.
    """
    failure = failure_of(error)
    refused = CHECK_BROKEN | NOT_NULL_BROKEN | RAISED_BY_US | SLICE_BROKEN
    violation = None
    names_too_long = failure.is_storage and bool(dataset.partition_by)
    if failure.has(refused) or failure.has_only(CAUSE_UNTOLD) or names_too_long:
        with suppress(*SPARK_ERRORS):  # the frame fails by itself; then its own error is the one to tell
            violation = violations_in(frame, dataset, within, names_folders=local_folder(state.location) is not None)
    if violation is not None:
        raise violation from error
    location, partition_by = state.location, state.log_partition_by
    commit = marked_commit(frame.sparkSession, dataset.name, location, mark, partition_by, reason=failure.summary)
    if commit is not None:
        return commit
    if failure.is_conflict:
        raise CommitConflictError(dataset=dataset.name, location=location, condition=failure.condition) from error
    raise error
