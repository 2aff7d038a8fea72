"""A conversion in place: Delta lists the folder and writes a log into it. No file is rewritten or moved.

Here belongs Delta's own statement, and the comparison of the files that it took with those of the plan. The conversion
is verified and undone as the commits of `copy` are.
"""

from __future__ import annotations

import time
from contextlib import suppress
from urllib.parse import unquote

from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, TimestampType

from pipeline.delta import sql
from pipeline.delta.log.commits import read_entry, remove_empty_log
from pipeline.delta.log.mark import MIGRATION_WRITER, CommitNote, Mark, find_mark, private_session, write_confs
from pipeline.delta.migrate.copy import Copied, Progress, copy, new_record, refuse, undo, verified
from pipeline.delta.migrate.plan import MigrationPlan
from pipeline.delta.migrate.source import source_session
from pipeline.delta.migrate.taken import Record, write_record
from pipeline.delta.spark.doors import door
from pipeline.delta.spark.failures import SPARK_ERRORS
from pipeline.errors import CommitConflictError, MigrationDifferenceError, SourceChangedError


@door
def convert(session: SparkSession, plan: MigrationPlan, run_id: str, progress: Progress = lambda _: None) -> Copied:
    """Execute a plan of the mode `in-place`. The table has the columns of the files, all of them nullable.

    If the process is killed before the verification, the next run verifies.

    Raises:
        MigrationRefusedError: the plan has problems; nothing was written.
        SourceChangedError: files appeared, changed or vanished meanwhile; the log was removed.
        MigrationDifferenceError: the table does not have the rows of the files; the log was removed.
        CommitConflictError: another process converts the folder.
        AfterCommitError: the folder is a table, and the verification failed to run.
        PipelineError: Delta refuses the conversion; there is no table.
    """
    refuse(plan)
    if plan.unverified is not None or not plan.files:
        return copy(session, plan, run_id, progress)
    started = time.monotonic()
    record = new_record(plan, None, plan.files)
    write_record(plan.table, record)
    progress(f"converting {len(plan.files)} files, {plan.bytes} bytes")
    version = _converted(session, plan, record, run_id)
    with source_session(session) as own:
        planned = {file.path for file in plan.files}
        added = {unquote(a["add"]["path"]) for a in read_entry(plan.location, version) if a.get("add")}
        unplanned = tuple(sorted(added - planned))
        if unplanned and undo(own, plan.table, record, version) is None:
            lines = tuple(f"{path} is not in the plan" for path in unplanned)
            raise plan.table.error(MigrationDifferenceError, version=version, differences=lines, undone_at=None)
        if unplanned:
            raise SourceChangedError(
                source=plan.source, location=plan.location, changed=unplanned, vanished=(),
                version=version,
            )  # fmt: skip
        progress(f"verifying version {version}")
        done = verified(own, plan, record, version=version, files=plan.files, started=started)
    return Copied(done=(done,), writes=())


def _converted(session: SparkSession, plan: MigrationPlan, record: Record, run_id: str) -> int:
    """Run Delta's conversion, and return its version."""
    mark = Mark(writer=MIGRATION_WRITER, epoch=record.number, token=record.token)
    note = CommitNote(mark=mark, run_id=run_id)
    folders = ", ".join(f"{sql.identifier(c.name)} {_type(c.data_type)}" for c in plan.folders)
    partitioning = f" PARTITIONED BY ({folders})" if folders else ""
    statement = f"CONVERT TO DELTA parquet.{sql.identifier(plan.source.rstrip('/'))}{partitioning}"
    with private_session(session, write_confs(note, session, plan.table.dataset.fingerprint)) as clone:
        try:
            clone.sql(statement).collect()
        except SPARK_ERRORS:
            if find_mark(plan.location, mark) is None:
                with suppress(OSError):
                    remove_empty_log(plan.location)
                raise
    version = find_mark(plan.location, mark)
    if version is None:
        raise plan.table.error(CommitConflictError, condition="CONVERT")
    return version


def _type(data_type: DataType) -> str:
    """The name of a type. Without quotes, TIMESTAMP is a keyword of another clause in Delta's grammar."""
    return "`TIMESTAMP`" if isinstance(data_type, TimestampType) else sql.type_name(data_type)
