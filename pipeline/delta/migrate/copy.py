"""The execution of a plan: rows are written through `pipeline.delta.write`, verified, and undone if they differ.

Here belongs the order of the steps, which makes each of them safe to be killed in:

1. The table is created if there is none. A second run finds it.
2. The record of the files is written. Without a commit it counts for nothing.
3. The rows are committed under the record's token, with a transaction identifier that no other migration can use.
4. The commit is verified against the files. If the process is killed before that, the next run verifies it first.
5. The report is written, and the table's properties name the record. From then on a clean-up of the log does no harm.

The rows are verified after the commit, because only the commit has what readers get: values that Delta has converted
and partition values that went through the log. If they differ, a restore removes them; then the next run takes the
files again, since the record is no longer in force.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from pipeline.dataset import Append, Dataset, InsertNew, Merge, Replace, TableRef
from pipeline.delta import sql
from pipeline.delta.log.checkpoints import LOG
from pipeline.delta.log.commits import read_entry
from pipeline.delta.log.counts import table_files
from pipeline.delta.log.mark import MIGRATION_WRITER, AfterCommit, CommitNote, Mark, rows_changed
from pipeline.delta.maintain.restore import plan_restore, restore
from pipeline.delta.migrate.compare import Comparison, compare
from pipeline.delta.migrate.files import list_source
from pipeline.delta.migrate.plan import MigrationPlan, PlannedFile
from pipeline.delta.migrate.report import Migrated, replaced_text, to_json, to_markdown
from pipeline.delta.migrate.source import line_problems, rows_by_file, source_frame, source_session, undeclared_names
from pipeline.delta.migrate.taken import FOLDER, Record, report_path, seal, write_record
from pipeline.delta.read.version import ReadOptions
from pipeline.delta.spark.doors import door, door_of_write
from pipeline.delta.spark.own_classes import forget_log
from pipeline.delta.sql.constraints import duplicate_keys
from pipeline.delta.storage.file_system import file_system
from pipeline.delta.storage.text_files import write_text
from pipeline.delta.table.open_table import latest_version, open_or_create, require_table, rows_at
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline.errors import CommitConflictError, MigrationDifferenceError, MigrationRefusedError, SourceChangedError
from pipeline.errors.listing import listed

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Copied:
    """What one execution of a plan has done: verified commits in their order, and the results of its own writes."""

    done: tuple[Migrated, ...]
    writes: tuple[WriteResult, ...]


@door
def copy(session: SparkSession, plan: MigrationPlan, run_id: str, progress: Progress = lambda _: None) -> Copied:
    """Execute a plan of the mode `copy`.

    Args:
        run_id: the run in the notes of the commits.
        progress: called with a line of text before each step.

    Raises:
        MigrationRefusedError: the plan has problems, or Spark reads other rows than the plan has; nothing was written.
        SourceChangedError: files changed or vanished since they were taken, or while they were read.
        MigrationDifferenceError: the rows in the table are not those of the files; the commit was undone.
        CommitConflictError: another migration of the table committed first; nothing was written.
        AfterCommitError: the rows are committed, and the verification failed to run. The next run verifies them.
        PipelineError: as `write` raises.
    """
    refuse(plan)
    done: list[Migrated] = []
    writes: list[WriteResult] = []
    newest = plan.taken.newest
    if plan.unverified is not None and newest is not None and plan.taken.unverified is not None:
        progress(f"verifying version {plan.taken.unverified}, which an earlier run committed")
        started = time.monotonic()
        with source_session(session) as own:
            earlier = plan.unverified
            done.append(
                verified(own, earlier, newest, version=plan.taken.unverified, files=earlier.files, started=started)
            )
    elif plan.taken.is_unsealed and newest is not None:
        seal(session, plan.table, newest.token, plan.table.dataset.fingerprint)
    for files in plan.batches():
        record = new_record(plan, newest, files)
        progress(f"writing {len(files)} files, {sum(file.size for file in files)} bytes")
        started = time.monotonic()
        with source_session(session) as own:
            frame, result = _write(own, plan, record, files, run_id)
            writes.append(result)
            progress(f"verifying version {result.version}")
            done.append(verified(own, plan, record, version=result.version, files=files, started=started, source=frame))
        newest = record
    return Copied(done=tuple(done), writes=tuple(writes))


def refuse(plan: MigrationPlan) -> None:
    """Raise what refuses a plan.

    Raises:
        MigrationRefusedError: it has problems.
        SourceChangedError: files changed or vanished since they were taken.
    """
    problems = (*plan.problems, *(plan.unverified.problems if plan.unverified is not None else ()))
    if problems:
        raise MigrationRefusedError(source=plan.source, location=plan.location, problems=problems)
    if (plan.changed or plan.vanished) and not plan.replaces:
        raise SourceChangedError(
            source=plan.source, location=plan.location, changed=plan.changed, vanished=plan.vanished
        )  # fmt: skip


def new_record(plan: MigrationPlan, newest: Record | None, files: Sequence[PlannedFile]) -> Record:
    """The record of a commit that takes these files; `newest` is the one before it."""
    return Record(
        token=uuid.uuid4().hex, number=1 if newest is None else newest.number + 1,
        after=None if newest is None else newest.token, source=plan.source, mode=plan.mode,
        files=tuple(file.taken for file in files), replaced=replaced_text(plan) if plan.replaces else None,
        vanished=plan.vanished if plan.replaces else (),
    )  # fmt: skip


def _write(
    own: SparkSession, plan: MigrationPlan, record: Record, files: Sequence[PlannedFile], run_id: str
) -> tuple[DataFrame, WriteResult]:  # fmt: skip
    table = TableRef(_as_written(plan), plan.location)
    note = CommitNote(mark=Mark(writer=MIGRATION_WRITER, epoch=record.number, token=record.token), run_id=run_id)
    with door_of_write(table.name, table.location):
        _refuse_other_rows(own, plan, files)
        frame = source_frame(own, plan, files)
    state = open_or_create(own, table)
    with door_of_write(table.name, table.location):
        _refuse_repeated_keys(own, plan, frame, state.version)
    write_record(table, record)
    result = write(frame, table=table, note=note, within=plan.within, source_is_stable=True, is_identified=True)
    if not result.committed:
        raise table.error(CommitConflictError, condition="MIGRATION")
    return frame, result


def _as_written(plan: MigrationPlan) -> Dataset:
    """The dataset as rows are loaded: all of them or none, whatever its declaration does with rows of later writes."""
    dataset = plan.table.dataset
    return replace(
        dataset, write=Replace() if plan.replaces else Append(), reads_changes_of=(), full_without_feed=False,
        checks=tuple(replace(check, on_violation="fail") for check in dataset.checks),
        not_null=tuple(replace(constraint, on_violation="fail") for constraint in dataset.not_null),
    )  # fmt: skip


def _refuse_other_rows(own: SparkSession, plan: MigrationPlan, files: Sequence[PlannedFile]) -> None:
    """Compare the numbers of rows in the footers with those that Spark reads; of texts, their lines and names.

    Raises:
        MigrationRefusedError: they are not the same.
    """
    problems: list[str] = []
    if plan.format == "parquet":
        counted = rows_by_file(own, plan, files)
        problems += [
            f"{file.path}: its footer has {file.rows} rows, but Spark reads {counted.get(file.path, 0)}"
            for file in files if file.rows != counted.get(file.path, 0)
        ]  # fmt: skip
    elif files:
        problems += line_problems(own, plan, files)
    if plan.format == "ndjson" and files:
        names = undeclared_names(own, plan, files)
        problems += [f"lines have the name {name!r}, which is not declared" for name in names]
    if problems:
        raise MigrationRefusedError(source=plan.source, location=plan.location, problems=tuple(problems))


def _refuse_repeated_keys(own: SparkSession, plan: MigrationPlan, frame: DataFrame, version: int) -> None:
    """Refuse rows that repeat a key of a dataset whose writes keep keys unique: the rows are appended, not merged.

    Raises:
        MigrationRefusedError: with the most frequent keys.
    """
    dataset = plan.table.dataset
    if not isinstance(dataset.write, Merge | InsertNew):
        return
    columns = [sql.identifier(key) for key in dataset.keys]
    rows = frame.selectExpr(*columns)
    if not plan.replaces or plan.within is not None:
        kept = rows_at(own, plan.location, version)
        if plan.within is not None:
            kept = kept.filter(f"NOT coalesce({plan.within.predicate(dataset)}, FALSE)")
        rows = rows.unionAll(kept.selectExpr(*columns))
    counts, total = duplicate_keys(rows, dataset.keys)
    if total:
        named = listed(f"{key} in {count} rows" for key, count in counts.items())
        problem = f"{total} keys ({', '.join(dataset.keys)}) have several rows in the files and the table: {named}"
        raise MigrationRefusedError(source=plan.source, location=plan.location, problems=(problem,))


# --- verification -----------------------------------------------------------------------------------------------------


def verified(
    own: SparkSession, plan: MigrationPlan, record: Record, *, version: int, files: Sequence[PlannedFile],
    started: float, source: DataFrame | None = None,
) -> Migrated:  # fmt: skip
    """Verify a commit, write its report, and let the table's properties name its record.

    Args:
        own: a session of `source_session`.
        source: the frame of the files in that session, if there is one. It is computed again.
        started: the time of the monotonic clock at which the work on the commit began.

    Raises:
        MigrationDifferenceError, SourceChangedError: the commit was undone.
        AfterCommitError: the verification could not be done.
    """
    table = plan.table
    with AfterCommit(table.name, table.location, version):
        changed, vanished = _changed_since(plan, files)
        comparison = None
        if not (changed or vanished):  # a frame has the lengths of the files as they were
            rows = source_frame(own, plan, files) if source is None else source
            comparison = compare(own, rows, _added_rows(own, table, version), table.dataset)
            changed, vanished = _changed_since(plan, files)
    if comparison is None or changed or vanished or comparison.differing:
        undone_at = undo(own, table, record, version)
        if (changed or vanished) and undone_at is not None:
            raise SourceChangedError(
                source=plan.source, location=plan.location, changed=changed, vanished=vanished, version=version
            )  # fmt: skip
        differing = () if comparison is None else _lines(comparison)
        lines = (*differing, *(f"{path} changed or vanished meanwhile" for path in (*changed, *vanished)))
        raise table.error(MigrationDifferenceError, version=version, differences=lines, undone_at=undone_at)
    with AfterCommit(table.name, table.location, version):
        done = Migrated(
            record=record, table_id=require_table(own, table).table_id, version=version, comparison=comparison,
            seconds=time.monotonic() - started,
        )  # fmt: skip
        write_text(report_path(table, record.token, "md"), to_markdown(plan, done))
        write_text(report_path(table, record.token), to_json(plan, done))
        seal(own, table, record.token, table.dataset.fingerprint)
    return done


def _lines(comparison: Comparison) -> tuple[str, ...]:
    """The partitions that differ, as text."""
    more = comparison.differing - len(comparison.differences)
    return (*map(str, comparison.differences), *((f"and {more} more partitions",) if more > 0 else ()))


def _changed_since(plan: MigrationPlan, files: Sequence[PlannedFile]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The files that changed and those that vanished since they were planned."""
    now = {file.path: file for file in list_source(plan.source, plan.format).files}
    vanished = tuple(file.path for file in files if file.path not in now)
    return tuple(f.path for f in files if f.path in now and not f.taken.is_same(now[f.path])), vanished


def _added_rows(own: SparkSession, table: TableRef, version: int) -> DataFrame:
    """The rows of the files that a commit has added. If these are all files of the version, they are not filtered."""
    import pyarrow as pa

    rows = rows_at(own, table.location, version)
    actions = read_entry(table.location, version)
    added = {unquote(action["add"]["path"]) for action in actions if action.get("add")}
    live = table_files(table.location, version)
    if live is not None and len(live.files) == len(added):
        return rows
    folder = f"{file_system(table.location)[1].rstrip('/')}/"
    uris = [uri for uri in rows.inputFiles() if uri[uri.find(folder) + len(folder) :] in added]
    names = own.createDataFrame(pa.table({"file": pa.array(uris, pa.string())}))
    decoded = "url_decode(replace(_metadata.file_path, '+', '%2B')) AS file"
    columns = [sql.identifier(name) for name in table.dataset.schema.names]
    return rows.selectExpr(*columns, decoded).join(names.hint("broadcast"), "file", "left_semi").selectExpr(*columns)


def undo(own: SparkSession, table: TableRef, record: Record, version: int) -> int | None:
    """Undo a commit, unless later commits changed rows. Return the version that the table has then.

    After a conversion in place the log is removed, so that the folder is as it was before. It is left if any commit
    followed: also one that changes no rows, as of an OPTIMIZE, has files that would be taken for files of the source.
    """
    latest = latest_version(table.location)
    if latest is None or rows_changed(table.location, version, latest):
        return None
    if record.mode == "in-place" and latest != version:
        return None
    system, folder = file_system(table.location)
    if record.mode == "in-place":
        system.delete_dir(f"{folder}/{LOG}")
        forget_log(own, table.location)
        undone_at = version
    else:
        note = CommitNote(mark=Mark(writer=f"{table.name}/undone migration"))
        plan = plan_restore(own, table, ReadOptions(version=version - 1))
        undone_at = restore(own, table.dataset, plan, note).version
    with suppress(OSError):  # no commit in force has its token any more
        system.delete_file(f"{folder}/{FOLDER}/{record.token}.json")
    return undone_at
