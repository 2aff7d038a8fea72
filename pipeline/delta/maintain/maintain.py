"""Vacuum, optimize, checkpoint and the expiry of tombstones.

Here belong changes of files that change no rows of the dataset. A vacuum is a dry run by default. It uses the table's
own retention: Delta ignores any other number of hours (delta#2129), so there is no parameter for it. Vacuum and
checkpoint keep the files and log entries that consumers of changes have yet to read. Delta's own checkpoints, which
some writes make, clean up the log by its retention alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from pyspark.sql import SparkSession

from pipeline.dataset import TableRef
from pipeline.dataset.history import STATE_COLUMN
from pipeline.dataset.policy import storage_confs
from pipeline.delta import sql
from pipeline.delta.log.entry import as_count
from pipeline.delta.log.mark import CommitNote, Mark, private_session, write_confs
from pipeline.delta.maintain.checkpoint import CheckpointFailedError, Checkpoints
from pipeline.delta.maintain.retention import Unread, blocked_by, unread_files
from pipeline.delta.maintain.sizes import MAXIMUM_BYTES, files_to_join
from pipeline.delta.spark.doors import door, storage_failure
from pipeline.delta.spark.failures import SPARK_ERRORS, failure_of
from pipeline.delta.storage.file_system import total_bytes
from pipeline.delta.table.open_table import TableState, require_table
from pipeline.delta.write.transaction import INCARNATION, incarnation
from pipeline.errors import CommitConflictError, ConsumerBehindError, StorageError

_SMALL_FILE = "spark.databricks.delta.optimize.minFileSize"
_JOINED_FILE = "spark.databricks.delta.optimize.maxFileSize"


@dataclass(frozen=True, kw_only=True)
class VacuumResult:
    """The result of a vacuum. `files` are the paths of the files that it lists for removal, `bytes` is their size.

    `needed` are the consumers that have yet to read some of these files, with these files.
    """

    dataset: str
    version: int
    applied: bool
    files: tuple[str, ...]
    bytes: int = 0
    needed: tuple[Unread, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CheckpointResult:
    """The version of a checkpoint that was written.

    `log_kept_for` are the consumers for which the log keeps entries that are older than the table's retention.
    """

    dataset: str
    version: int
    log_kept_for: tuple[Unread, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OptimizeResult:
    """The numbers of files that an OPTIMIZE added, and of those that it compacted into them. Both may be 0.

    If it is not `applied`, they are the numbers that it would have. For a clustered table, only Delta knows them; then
    both are None.
    """

    dataset: str
    version: int
    applied: bool
    files_added: int | None
    files_removed: int | None


@door
def vacuum(
    session: SparkSession, table: TableRef, *,
    consumers: Sequence[TableRef] = (), apply: bool = False, force: bool = False, waits: bool = False,
) -> VacuumResult:  # fmt: skip
    """List the files that no version within the table's retention needs. With `apply`, remove them.

    The removal is refused if the next run of a consumer, from its current cursor and the current log, reads one of the
    files. If there is nothing to remove, no commit is made.

    Args:
        consumers: the consumers of this dataset's changes.
        force: remove files that consumers need too, without reading their cursors. They then read the full source.
        waits: instead of a refusal, remove nothing and return a result that is not applied.

    Raises:
        TableNotFoundError: the table was never written.
        StorageError: files can't be listed or removed.
        ConsumerBehindError: consumers need some of the files to remove.
        CursorUnreadableError: the files that a consumer needs are not known.
    """
    require_table(session, table)
    try:
        listed = [row["path"] for row in session.sql(f"VACUUM {sql.path_table(table.location)} DRY RUN").collect()]
        needed = () if force else blocked_by(unread_files(session, table, consumers), listed)
        removed_bytes = total_bytes(listed)
        apply = apply and not (needed and waits)
        if apply:
            _refuse(session, table, needed)
        if apply and listed:
            note = CommitNote(mark=Mark(writer=f"{table.name}/vacuum"))
            with private_session(session, write_confs(note, session, table.dataset.fingerprint)) as clone:
                clone.sql(f"VACUUM {sql.path_table(table.location)}").collect()
    except SPARK_ERRORS as error:
        raise storage_failure(table.name, table.location, failure_of(error)) from error
    version = require_table(session, table).version
    return VacuumResult(
        dataset=table.name, version=version, applied=apply, files=tuple(listed), bytes=removed_bytes, needed=needed
    )


def _refuse(session: SparkSession, table: TableRef, needed: Sequence[Unread]) -> None:
    if needed:
        behind = {consumer.consumer: consumer.version for consumer in needed}
        raise table.error(ConsumerBehindError, version=require_table(session, table).version, behind=behind)


@door
def optimize(
    session: SparkSession, table: TableRef, note: CommitNote, *, below_bytes: int | None = None
) -> OptimizeResult:
    """Compact small files into files of the storage policy's target size. If clustering is declared, cluster the rows.

    The rows do not change, and consumers of changes read nothing new.

    Args:
        below_bytes: only files smaller than this are compacted. If None, Delta's default, a gigabyte.

    Raises:
        TableNotFoundError: the table was never written.
        StorageError: files can't be read or written.
        DamagedTableError: a file is missing or damaged; nothing was committed.
        CommitConflictError: another commit has changed the same files; nothing was committed.
    """
    state = require_table(session, table)
    confs = write_confs(note, session, table.dataset.fingerprint) | _optimize_confs(state, below_bytes)
    with private_session(session, confs) as clone:
        try:
            row = clone.sql(f"OPTIMIZE {sql.path_table(table.location)}").select("metrics.*").collect()[0]
        except SPARK_ERRORS as error:
            failure = failure_of(error)
            if failure.is_conflict:
                raise table.error(CommitConflictError, condition=failure.condition) from error
            raise storage_failure(table.name, table.location, failure, nothing_committed=True) from error
    return OptimizeResult(
        dataset=table.name, version=require_table(session, table).version, applied=True,
        files_added=row["numFilesAdded"], files_removed=row["numFilesRemoved"],
    )  # fmt: skip


@door
def plan_optimize(session: SparkSession, table: TableRef, *, below_bytes: int | None = None) -> OptimizeResult:
    """What `optimize` would do with these arguments. No commit and no Spark job.

    Raises:
        TableNotFoundError: the table was never written.
        StorageError: the log can't be read, or has a form that only Spark reads.
        DamagedTableError: the log is damaged.
    """
    state = require_table(session, table)
    added = removed = None
    if not state.cluster_by:
        confs = _optimize_confs(state, below_bytes)
        below, target = (
            int(confs.get(name) or session.conf.get(name, str(MAXIMUM_BYTES)) or 0)
            for name in (_SMALL_FILE, _JOINED_FILE)
        )
        joined = files_to_join(table, state, below_bytes=below, target_bytes=target)
        added, removed = len(joined), sum(joined)
    return OptimizeResult(
        dataset=table.name, version=state.version, applied=False, files_added=added, files_removed=removed
    )


def _optimize_confs(state: TableState, below_bytes: int | None) -> dict[str, str]:
    return storage_confs(state.properties) | ({} if below_bytes is None else {_SMALL_FILE: str(below_bytes)})


@door
def remove_tombstones(session: SparkSession, table: TableRef, note: CommitNote, states: Sequence[str]) -> None:
    """Remove the tombstones with these values of `STATE_COLUMN`: whole partitions, so that no file is rewritten.

    The rows of the dataset do not change, and consumers of changes read nothing new.

    Raises:
        TableNotFoundError: the table was never written.
        StorageError: the commit failed.
        CommitConflictError: another commit has changed the same partitions; nothing was committed.
    """
    require_table(session, table)
    column, values = sql.identifier(STATE_COLUMN), ", ".join(map(sql.string, states))
    with private_session(session, write_confs(note, session, table.dataset.fingerprint)) as clone:
        try:
            clone.sql(f"DELETE FROM {sql.path_table(table.location)} WHERE {column} IN ({values})").collect()  # noqa: S608  quoted
        except SPARK_ERRORS as error:
            failure = failure_of(error)
            if failure.is_conflict:
                raise table.error(CommitConflictError, condition=failure.condition) from error
            raise storage_failure(table.name, table.location, failure, nothing_committed=True) from error


@door
def checkpoint(
    session: SparkSession,
    table: TableRef,
    *,
    consumers: Sequence[TableRef] = (),
    within: Checkpoints | None = None,
) -> CheckpointResult:
    """Write a checkpoint of the newest version, so that opening the table reads one file in place of many.

    Delta then removes entries older than `delta.logRetentionDuration` from the log, unless a consumer still needs one.
    Over Connect an embedded child process writes the checkpoint.

    Args:
        consumers: the consumers of this dataset's changes.
        within: an open `Checkpoints`, to write the checkpoints of several tables with one child process.

    Raises:
        TableNotFoundError: the table was never written.
        StorageError: the checkpoint could not be written.
        CursorUnreadableError: the entries that a consumer needs are not known.
    """
    record_incarnation(session, table)
    needed = unread_files(session, table, consumers)
    keep = min((consumer.version for consumer in needed), default=None)
    try:
        with nullcontext(within) if within is not None else Checkpoints(session) as checkpoints:
            version, kept = checkpoints.write(table.location, keep)
    except (*SPARK_ERRORS, CheckpointFailedError) as error:
        raise table.error(StorageError, reason=_reason(error)) from error
    return CheckpointResult(dataset=table.name, version=version, log_kept_for=needed if kept else ())


@door
def checkpoint_at(table: TableRef, version: int, within: Checkpoints) -> None:
    """Write a checkpoint of one version. The log is not cleaned.

    Raises:
        StorageError: the checkpoint could not be written.
    """
    try:
        within.write(table.location, None, version)
    except (*SPARK_ERRORS, CheckpointFailedError) as error:
        raise table.error(StorageError, reason=_reason(error)) from error


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, CheckpointFailedError) else failure_of(error).summary


@door
def record_incarnation(session: SparkSession, table: TableRef) -> None:
    """Record the newest restore as a table property, before a clean-up may remove it from the log.

    Raises:
        TableNotFoundError: the table was never written.
        StorageError: the property can't be set.
    """
    dataset, state = table.dataset, require_table(session, table)
    current = incarnation(session, state)
    if current == (as_count(state.properties.get(INCARNATION)) or 0):
        return
    pair = f"{sql.string(INCARNATION)} = {sql.string(str(current))}"
    note = CommitNote(mark=Mark(writer=f"{dataset.name}/checkpoint"))
    try:
        with private_session(session, write_confs(note, session, dataset.fingerprint)) as clone:
            clone.sql(f"ALTER TABLE {sql.path_table(state.location)} SET TBLPROPERTIES ({pair})").collect()
    except SPARK_ERRORS as error:
        raise storage_failure(table.name, table.location, failure_of(error)) from error
