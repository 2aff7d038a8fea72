"""The only code that writes rows: append and replace, each exactly one commit or none.

Here belong the statement of a write, the reading of a refusal and the result. The frame is looked at once: Delta itself
enforces NOT NULL, checks and the slice while it writes, and only a refusal is followed by a second pass that counts and
names the rows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from pipeline.dataset import Append, Dataset, Replace
from pipeline.delta import quality, sql
from pipeline.delta.commit import CommitNote, Mark, marked_commit, own_commit, private_session, write_confs
from pipeline.delta.conform import select_list
from pipeline.delta.failures import (
    CHECK_BROKEN,
    LOST_OR_REFUSED,
    NOT_NULL_BROKEN,
    RAISED_BY_US,
    SLICE_BROKEN,
    read_failure,
)
from pipeline.delta.log import Commit
from pipeline.delta.slices import Slice
from pipeline.delta.table import TableState, open_or_create
from pipeline.errors import (
    CheckViolationError,
    CommitConflictError,
    NullViolationError,
    PartitionValueError,
    PipelineError,
    StrayRowsError,
)


@dataclass(frozen=True, kw_only=True)
class WriteResult:
    """What one write did.

    `version` is that of our own commit, or the version that was current where there was nothing to commit.
    `rows_by_partition` counts the rows written by partition values as the log spells them; empty where nothing was
    written, None where Delta kept no statistics. `rows_deleted` is None where Delta does not say.
    """

    dataset: str
    location: str
    table_id: str
    version: int
    committed: bool
    operation: str
    rows_written: int
    rows_deleted: int | None
    files_added: int
    files_removed: int
    bytes_added: int
    rows_by_partition: Mapping[tuple[str | None, ...], int] | None
    schema_fingerprint: str
    timestamp: dt.datetime | None
    mark: Mark
    features: tuple[str, ...]
    metrics: Mapping[str, str] = field(default_factory=dict)


def write(
    frame: DataFrame, *, dataset: Dataset, location: str, note: CommitNote, within: Slice | None = None
) -> WriteResult:
    """Write a frame as the dataset's write mode says, creating the table where there is none.

    Args:
        frame: rows of the dataset; columns are matched by name.
        within: the slice that this write addresses. A replace replaces exactly it, an empty frame empties it; rows
            outside it are refused. The whole table where None.

    Raises:
        FrameMismatchError: the columns don't fit; nothing is created.
        TableMismatchError, NotADeltaTableError, StorageError: the table can't be opened or created.
        NullViolationError, CheckViolationError, StrayRowsError, PartitionValueError: rows are refused, with counts.
        CommitConflictError: another commit came first.
        SparkUnavailableError: the server was gone before the write began.
        CommitUnknownError: it went while it wrote, and can't be asked what became of it.
    """
    session = frame.sparkSession
    selected = select_list(dataset, frame.schema)
    state = open_or_create(session, dataset, location)
    # From here on the frame has the declared columns under the declared names.
    conformed = frame.selectExpr(*(f"{expression} AS {sql.identifier(name)}" for name, expression in selected.items()))
    with _temporary_view(conformed, note.mark) as view:
        confs = write_confs(note, session, dataset.fingerprint)
        with private_session(session, confs) as clone:
            statement = _statement(dataset, location, view, within)
            commit: Commit | None
            try:
                clone.sql(statement).collect()
            except LOST_OR_REFUSED as error:
                commit = _outcome(error, conformed, dataset, location, within=within, mark=note.mark)
            else:
                commit = own_commit(clone, dataset.name, location, note.mark, dataset.partition_by)
    return _result(dataset, state, note.mark, commit)


@contextmanager
def _temporary_view(frame: DataFrame, mark: Mark) -> Iterator[str]:
    """The frame under a name that SQL can say, for as long as the write takes."""
    name = f"pipeline_frame_{mark.token}"
    frame.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        # A view that stays behind has a name of its own; a failure here must not hide what became of the write.
        with suppress(*LOST_OR_REFUSED):
            frame.sparkSession.catalog.dropTempView(name)


def _statement(dataset: Dataset, location: str, view: str, within: Slice | None) -> str:
    target = sql.path_table(location)
    query = f"SELECT {', '.join(_guarded_columns(dataset, within))} FROM {sql.identifier(view)}"  # noqa: S608  all quoted
    # A slice of nothing is replaced by nothing; Delta would take rows for `REPLACE WHERE FALSE`, the guard does not.
    if isinstance(dataset.write, Append) or (within is not None and not within.boxes):
        return f"INSERT INTO {target} BY NAME {query}"
    assert isinstance(dataset.write, Replace)  # noqa: S101  narrows the union for the type checker
    if within is None:
        return f"INSERT OVERWRITE TABLE {target} BY NAME {query}"
    return f"INSERT INTO {target} BY NAME REPLACE WHERE {within.predicate(dataset)} {query}"


def _guarded_columns(dataset: Dataset, within: Slice | None) -> Iterator[str]:
    """The declared columns; a partition column raises inside the write where Delta would not refuse by itself."""
    empty = quality.empty_partition_conditions(dataset)
    # A replace has Delta hold the slice; an append has nobody, so the first column of the slice does.
    is_unheld = within is not None and (isinstance(dataset.write, Append) or not within.boxes)
    guarded_for_slice = (*(within.columns if within else ()), *dataset.schema.names)[:1] if is_unheld else ()
    for name in dataset.schema.names:
        column = sql.identifier(name)
        cases = []
        if name in empty:
            cases.append(f"WHEN {empty[name]} THEN raise_error('empty partition value')")
        if within is not None and name in guarded_for_slice:
            cases.append(f"WHEN {quality.outside(dataset, within)} THEN raise_error('outside the slice')")
        yield f"CASE {' '.join(cases)} ELSE {column} END AS {column}" if cases else column


def _outcome(
    error: Exception, frame: DataFrame, dataset: Dataset, location: str, *, within: Slice | None, mark: Mark
) -> Commit:
    """What became of a write that raised: its commit where it was made all the same, or else the error to raise.

    An answer may be lost on its way, and what Delta does after a commit may fail; so before a failure is told, the log
    is asked for our mark.

    Raises:
        ViolationError: rows were refused.
        CommitConflictError: another commit came first, and the log holds none of ours.
        CommitUnknownError: the log can't be asked.
    """
    failure = read_failure(error)
    refused = CHECK_BROKEN | NOT_NULL_BROKEN | RAISED_BY_US | SLICE_BROKEN
    violation = _violation(frame, dataset, within) if failure.has(refused) else None
    if violation is not None:
        raise violation from error
    commit = marked_commit(
        frame.sparkSession, dataset.name, location, mark, dataset.partition_by, reason=failure.summary
    )
    if commit is not None:
        return commit
    if failure.is_conflict:
        raise CommitConflictError(dataset=dataset.name, location=location, condition=failure.condition) from error
    raise error


def _violation(frame: DataFrame, dataset: Dataset, within: Slice | None) -> PipelineError | None:
    """What the frame's rows break, counted; None where they break nothing that is declared."""
    if within is not None:
        named, total = quality.stray_values(frame, dataset, within)
        if total:
            return StrayRowsError(dataset=dataset.name, counts=named, slice=str(within), total_rows=total)
    empty = quality.count(frame, quality.empty_partition_conditions(dataset))
    if empty:
        return PartitionValueError(dataset=dataset.name, counts=empty)
    nulls = quality.count(frame, quality.null_conditions(dataset.schema))
    if nulls:
        return NullViolationError(dataset=dataset.name, counts=nulls)
    checks = quality.count(frame, quality.check_conditions(dataset))
    return CheckViolationError(dataset=dataset.name, counts=checks) if checks else None


def _result(dataset: Dataset, state: TableState, mark: Mark, commit: Commit | None) -> WriteResult:
    if commit is None:
        return WriteResult(
            dataset=dataset.name, location=state.location, table_id=state.table_id, version=state.version,
            committed=False, operation="no commit", rows_written=0, rows_deleted=0, files_added=0, files_removed=0,
            bytes_added=0, rows_by_partition={}, schema_fingerprint=dataset.fingerprint, timestamp=None, mark=mark,
            features=state.features,
        )  # fmt: skip
    deleted = commit.metrics.get("numDeletedRows")
    return WriteResult(
        dataset=dataset.name,
        location=state.location,
        table_id=state.table_id,
        version=commit.version,
        committed=True,
        operation=commit.operation,
        rows_written=int(commit.metrics.get("numOutputRows", 0)),
        rows_deleted=int(deleted) if deleted is not None else None,
        files_added=commit.files_added,
        files_removed=commit.files_removed,
        bytes_added=commit.bytes_added,
        rows_by_partition=commit.rows_by_partition,
        schema_fingerprint=dataset.fingerprint,
        timestamp=commit.timestamp,
        mark=mark,
        features=state.features,
        metrics=commit.metrics,
    )
