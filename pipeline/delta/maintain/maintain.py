"""Keeping a table healthy: vacuum, optimize and checkpoint.

Here belongs what changes files and no rows. Vacuum is dry unless asked otherwise, and obeys the table's own retention:
Delta ignores any other number of hours (delta#2129), so none can be given. What consumers of changes have still to read
is kept from both; Delta's own checkpoints, which writers make now and then, clean the log by its retention alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from pyspark.sql import SparkSession

from pipeline.dataset import Dataset
from pipeline.dataset.policy import storage_confs
from pipeline.delta import sql
from pipeline.delta.log.entry import as_count
from pipeline.delta.log.mark import CommitNote, Mark, private_session, write_confs
from pipeline.delta.maintain.checkpoint import CheckpointFailedError, Checkpoints
from pipeline.delta.maintain.retention import Unread, blocked_by, unread_files
from pipeline.delta.read.changes import SourceTable
from pipeline.delta.spark.doors import door, storage_failure
from pipeline.delta.spark.failures import SPARK_ERRORS, failure_of
from pipeline.delta.table.open_table import TableState, require_table
from pipeline.delta.write.transaction import INCARNATION, incarnation
from pipeline.errors import CommitConflictError, ConsumerBehindError, StorageError

_SMALL_FILE = "spark.databricks.delta.optimize.minFileSize"


@dataclass(frozen=True, kw_only=True)
class VacuumResult:
    """What a vacuum would remove or was about to: `files` names them.

    `needed` are the consumers that have still to read some of them, with these.
    """

    dataset: str
    version: int
    applied: bool
    files: tuple[str, ...]
    needed: tuple[Unread, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CheckpointResult:
    """The version that a checkpoint was written of.

    `log_kept_for` are the consumers for which entries of the log were kept that are past the table's retention.
    """

    dataset: str
    version: int
    log_kept_for: tuple[Unread, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OptimizeResult:
    """What an OPTIMIZE joined: the files that came, and those whose rows are in them now; none where all was well."""

    dataset: str
    version: int
    files_added: int
    files_removed: int


@door
def vacuum(
    session: SparkSession, dataset: Dataset, location: str, *,
    consumers: Sequence[SourceTable] = (), apply: bool = False, force: bool = False,
) -> VacuumResult:  # fmt: skip
    """Remove files that no version within the table's retention needs; only list them unless `apply`.

    Refused while one of the files is among those that the next run of a consumer reads, as its cursor and the log stand
    at that moment.

    Args:
        consumers: those that read the changes of this dataset.
        force: remove what they need as well, without a look at their cursors; they read the whole source then.

    Raises:
        TableNotFoundError: it was never written.
        StorageError: files can't be listed or removed.
        ConsumerBehindError: consumers need some of the files that are to be removed.
        CursorUnreadableError: what a consumer needs is not known.
    """
    require_table(session, dataset, location)
    source = SourceTable(dataset=dataset, location=location)
    try:
        listed = [row["path"] for row in session.sql(f"VACUUM {sql.path_table(location)} DRY RUN").collect()]
        needed = () if force else blocked_by(unread_files(session, source, consumers), listed)
        if apply:
            _refuse(session, source, needed)
            note = CommitNote(mark=Mark(writer=f"{dataset.name}/vacuum"))
            with private_session(session, write_confs(note, session, dataset.fingerprint)) as clone:
                clone.sql(f"VACUUM {sql.path_table(location)}").collect()
    except SPARK_ERRORS as error:
        raise storage_failure(dataset.name, location, failure_of(error)) from error
    version = require_table(session, dataset, location).version
    return VacuumResult(dataset=dataset.name, version=version, applied=apply, files=tuple(listed), needed=needed)


def _refuse(session: SparkSession, source: SourceTable, needed: Sequence[Unread]) -> None:
    if needed:
        raise ConsumerBehindError(
            dataset=source.dataset.name,
            location=source.location,
            version=require_table(session, source.dataset, source.location).version,
            behind={consumer.consumer: consumer.version for consumer in needed},
        )


@door
def optimize(
    session: SparkSession, dataset: Dataset, location: str, note: CommitNote, *, below_bytes: int | None = None
) -> OptimizeResult:
    """Join small files into files of the size that the storage policy aims at; clustered where that is declared.

    Rows stay what they are, and consumers of changes see nothing of it.

    Args:
        below_bytes: files from this size on are left alone; Delta's own bound, a gigabyte, where None.

    Raises:
        TableNotFoundError: it was never written.
        StorageError: files can't be read or written.
        DamagedTableError: one is missing or damaged; nothing was committed.
        CommitConflictError: another commit has changed the same files; nothing was committed.
    """
    state = require_table(session, dataset, location)
    confs = write_confs(note, session, dataset.fingerprint) | storage_confs(state.properties)
    confs |= {} if below_bytes is None else {_SMALL_FILE: str(below_bytes)}
    with private_session(session, confs) as clone:
        try:
            row = clone.sql(f"OPTIMIZE {sql.path_table(location)}").select("metrics.*").collect()[0]
        except SPARK_ERRORS as error:
            failure = failure_of(error)
            if failure.is_conflict:
                raise CommitConflictError(
                    dataset=dataset.name, location=location, condition=failure.condition
                ) from error
            raise storage_failure(dataset.name, location, failure, nothing_committed=True) from error
    return OptimizeResult(
        dataset=dataset.name, version=require_table(session, dataset, location).version,
        files_added=row["numFilesAdded"], files_removed=row["numFilesRemoved"],
    )  # fmt: skip


@door
def checkpoint(
    session: SparkSession,
    dataset: Dataset,
    location: str,
    *,
    consumers: Sequence[SourceTable] = (),
    within: Checkpoints | None = None,
) -> CheckpointResult:
    """Write a checkpoint of the newest version, so that opening the table reads one file in place of many.

    Delta then cleans the log of what is past `delta.logRetentionDuration`, unless a consumer still needs such an entry.
    Over Connect it is written by an embedded child process.

    Args:
        consumers: those that read the changes of this dataset.
        within: what writes those of further tables too, by the same process.

    Raises:
        TableNotFoundError: it was never written.
        StorageError: the checkpoint could not be written.
        CursorUnreadableError: what a consumer needs is not known.
    """
    _keep_incarnation(session, dataset, require_table(session, dataset, location))
    needed = unread_files(session, SourceTable(dataset=dataset, location=location), consumers)
    keep = min((consumer.version for consumer in needed), default=None)
    try:
        with nullcontext(within) if within is not None else Checkpoints(session) as checkpoints:
            version, kept = checkpoints.write(location, keep)
    except (*SPARK_ERRORS, CheckpointFailedError) as error:
        reason = str(error) if isinstance(error, CheckpointFailedError) else failure_of(error).summary
        raise StorageError(dataset=dataset.name, location=location, reason=reason) from error
    return CheckpointResult(dataset=dataset.name, version=version, log_kept_for=needed if kept else ())


def _keep_incarnation(session: SparkSession, dataset: Dataset, state: TableState) -> None:
    """Write down the newest restore before the log is cleaned of it, which Delta does when it writes a checkpoint."""
    found = incarnation(session, state)
    if found == (as_count(state.properties.get(INCARNATION)) or 0):
        return
    pair = f"{sql.string(INCARNATION)} = {sql.string(str(found))}"
    note = CommitNote(mark=Mark(writer=f"{dataset.name}/checkpoint"))
    try:
        with private_session(session, write_confs(note, session, dataset.fingerprint)) as clone:
            clone.sql(f"ALTER TABLE {sql.path_table(state.location)} SET TBLPROPERTIES ({pair})").collect()
    except SPARK_ERRORS as error:
        raise storage_failure(dataset.name, state.location, failure_of(error)) from error
