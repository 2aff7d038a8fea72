"""The export of a version of a table into an empty folder: planned, written, counted, and only then visible.

Here belong the plan, its execution, and the comparison of the written rows with those of the version. The rows of the
version are those of its log's statistics, or are counted by Spark; the written ones are read back from the files.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from pipeline.dataset import TableRef
from pipeline.dataset.exports import format_problems
from pipeline.dataset.schema import schema_fingerprint
from pipeline.delta.export.delta_copy import copy_files, copy_of, is_absolute
from pipeline.delta.export.folders import Folders
from pipeline.delta.export.manifest import ExportedFile, Manifest
from pipeline.delta.export.request import DELTA, ExportPlan, ExportRequest, ExportResult
from pipeline.delta.export.selection import count_rows, refuse, rows_by_file, selected, write_files
from pipeline.delta.export.target import (
    Listed,
    Workspace,
    data_files,
    leftovers_at,
    refuse_place,
    require_empty,
    resolved,
    target_state,
    workspace,
)
from pipeline.delta.log.commits import commit_identity, partition_values
from pipeline.delta.log.counts import TableFiles, rows_of, table_files
from pipeline.delta.log.entry import of_dataset, vector_file
from pipeline.delta.log.mark import private_session
from pipeline.delta.read.version import ReadOptions, resolve_version
from pipeline.delta.spark.doors import as_ours, door, storage_failure, through_door
from pipeline.delta.spark.failures import SPARK_ERRORS, failure_of
from pipeline.delta.sql.exact import folder, names_folders
from pipeline.delta.sql.slices import rows_by_values
from pipeline.delta.storage.file_system import missing_files
from pipeline.delta.table.open_table import latest_version, require_table
from pipeline.errors import DamagedTableError, ExportIncompleteError, VersionVacuumedError

_NEWEST = ReadOptions()


@door
def plan_export(
    session: SparkSession, table: TableRef, request: ExportRequest, pin: ReadOptions = _NEWEST
) -> ExportPlan:  # fmt: skip
    """The plan of an export of the pinned version, or of the newest. Nothing is written.

    Without a condition no Spark job runs, if the log has the rows of each file.

    Raises:
        TableNotFoundError, VersionNotFoundError: there is no such table or version.
        VersionVacuumedError: files of the version were removed.
        ExportTargetError: the target is not empty, or lies in a table.
        ExportRefusedError: a column, the condition or the format can't be used.
        QueryError: the condition runs a program or calls Java.
    """
    target = resolved(request.target)
    refuse_place(table, target)
    with through_door(table.name, target):
        state = target_state(target)
        require_empty(table.name, target, state)
        has_leftovers = leftovers_at(target, state)
    version = resolve_version(session, table, pin)
    plan = plan_of_version(session, table, replace(request, target=target), version)
    return replace(plan, has_leftovers=has_leftovers)


def plan_of_version(
    session: SparkSession, table: TableRef, request: ExportRequest, version: int, *, counts: bool = True
) -> ExportPlan:
    """The plan for a version that exists, whatever the target has; raises as `plan_export` does.

    Args:
        counts: whether the rows that meet a condition are counted. If not, the plan of a condition has no rows.
    """
    files = table_files(table.location, version)
    refuse_missing(table, version, files)
    with private_session(session, {}) as clone, _source_named(table, version, request.target):
        frame = selected(clone, table, version, request)
        by = _folder_columns(frame, request, files)
        refuse(table, request, format_problems(request.format, frame.schema, by))
        folders = () if request.format == DELTA else by
        rows = {} if request.where is not None else _rows_in_log(frame, folders, files)
        if rows is None or (request.where is not None and counts):
            rows = _counted_rows(frame, folders)
        copy = copy_of(table, version, history=request.history) if request.is_copy else None
        read = [] if files is None else [int(file["size"]) for file in files.files.values()]
        counted = (len(read), sum(read)) if copy is None else (len(copy.files), copy.bytes)
        unknown = files is None and copy is None
        return ExportPlan(
            dataset=table.name, location=table.location, version=version, request=request,
            columns=tuple(frame.columns), partition_by=by, rows_by_folder=rows,
            files=None if unknown else counted[0], bytes=None if unknown else counted[1],
            table_id=require_table(session, table).table_id if files is None else files.table_id,
            entry=commit_identity(table.location, version), fingerprint=schema_fingerprint(frame.schema, by),
            schema=frame.schema,
        )  # fmt: skip


def refuse_missing(table: TableRef, version: int, files: TableFiles | None) -> None:
    """Refuse a version if a file of it does not exist.

    Raises:
        VersionVacuumedError: with the missing files.
        DamagedTableError: it is the newest version, of which a vacuum removes nothing.
    """
    added = () if files is None else files.files.values()
    vectors = (vector_file(file["deletionVector"]) for file in added if file.get("deletionVector"))
    names = [unquote(file["path"]) for file in added if not is_absolute(file["path"])]
    names += [vector for vector in vectors if vector is not None and not is_absolute(vector)]
    missing = missing_files(table.location, names)
    if not missing:
        return
    if latest_version(table.location) == version:
        raise table.error(DamagedTableError, file=f"{table.location}/{missing[0]}", reason="the file is missing")
    raise table.error(VersionVacuumedError, version=version, missing=missing)


# --- rows by folder ---------------------------------------------------------------------------------------------------


def _folder_columns(frame: DataFrame, request: ExportRequest, files: TableFiles | None) -> tuple[str, ...]:
    """The partition columns whose values name folders.

    If the values of one don't, or if only Spark can read the log, none: the columns are in the files.
    """
    if files is None:
        return ()
    columns = tuple(name for name in files.partition_columns if name in frame.columns)
    if request.format == DELTA:
        return columns
    if set(columns) == set(frame.columns) or not all(names_folders(frame.schema[name].dataType) for name in columns):
        return ()
    folders = Folders.of(columns, frame.schema, files)
    try:
        for added in files.files.values():
            folders.values(partition_values(added, files.partition_by))
    except ValueError:  # a date that Python can't hold
        return ()
    return columns


def _rows_in_log(frame: DataFrame, by: tuple[str, ...], files: TableFiles | None) -> dict[str, int] | None:
    """The rows by folder, from the statistics of the files. If a file has none, None."""
    rows = None if files is None else rows_of(files)
    if files is None or rows is None:
        return None
    folders, by_folder = Folders.of(by, frame.schema, files), Counter[str]()
    for texts, number in rows.by_partition.items():
        by_folder[folders.name(texts)] += number
    return _ordered(by_folder)


def _counted_rows(frame: DataFrame, by: tuple[str, ...]) -> dict[str, int]:
    """The rows by folder. One Spark job."""
    if not by:
        return _ordered({folder((), ()): frame.count()})
    fields, by_folder = [frame.schema[name] for name in by], Counter[str]()
    for cells, (number,) in rows_by_values(frame, by, ("TRUE",)).items():
        by_folder[folder(fields, cells)] += number
    return _ordered(by_folder)


def _ordered(rows: Mapping[str, int]) -> dict[str, int]:
    return {name: number for name, number in sorted(rows.items()) if number}


def count_folders(session: SparkSession, table: TableRef, plan: ExportPlan, within: str | None) -> dict[str, int]:
    """The rows by folder that a plan exports. One Spark job.

    Args:
        within: a condition that restricts the rows to some partitions.
    """
    with private_session(session, {}) as clone, _source_named(table, plan.version, plan.request.target):
        frame = selected(clone, table, plan.version, plan.request)
        return _counted_rows(frame if within is None else frame.filter(within), plan.partition_by)


# --- the export -------------------------------------------------------------------------------------------------------


@door
def export(session: SparkSession, table: TableRef, plan: ExportPlan) -> ExportResult:
    """Execute a plan. The target then has the full export, or is as it was.

    Raises:
        ExportTargetError: the target has files by now.
        ExportRunningError: another export writes there.
        VersionVacuumedError: files of the version were removed since.
        ExportIncompleteError: the written files don't have the rows of the plan.
        StorageError: the target can't be written.
    """
    target = plan.request.target
    with through_door(plan.dataset, target), workspace(plan.dataset, target) as space:
        require_empty(plan.dataset, target, target_state(target))
        space.begin(None, None)
        result = written_files(session, table, plan, space)
        space.publish(manifest_of_plan(plan, result.files, result.rows))
        return result


def manifest_of_plan(plan: ExportPlan, files: tuple[ExportedFile, ...], rows: int) -> Manifest:
    """The manifest of a finished export."""
    request = plan.request
    return Manifest(
        dataset=plan.dataset, table_id=plan.table_id, version=plan.version, entry=plan.entry, format=request.format,
        columns=plan.columns, where=request.where, partition_by=plan.partition_by, fingerprint=plan.fingerprint,
        schema=plan.schema.jsonValue(), rows=rows, rows_by_folder=plan.rows_by_folder, files=files,
        history=request.history,
    )  # fmt: skip


def written_files(
    session: SparkSession, table: TableRef, plan: ExportPlan, space: Workspace, within: str | None = None
) -> ExportResult:
    """Write the files of a plan, and compare their rows with the plan's.

    Args:
        within: a condition that restricts the rows to some partitions.
    """
    request = plan.request
    if request.is_copy:
        copy = copy_of(table, plan.version, history=request.history)
        with _source_named(table, plan.version), of_dataset(table.name):
            rows = copy_files(copy, table.location, space.uri)
        if rows != plan.rows:
            raise _incomplete(plan, f"its files have {rows} rows, and the version has {plan.rows}")
        files = tuple(ExportedFile(path=file.path, size=file.size) for file in space.new_files())
        return ExportResult(plan=plan, rows=rows, files=files)
    with private_session(session, {}) as clone:
        frame = selected(clone, table, plan.version, request)
        frame = frame if within is None else frame.filter(within)
        with _source_named(table, plan.version, request.target):
            write_files(frame, request.format, plan.partition_by, space.uri)
        return _counted(clone, plan, space)


@contextmanager
def _source_named(table: TableRef, version: int, target: str = "") -> Iterator[None]:
    """If the block fails since files of the version are missing, report these. Over Connect the cause is not known."""
    try:
        yield
    except SPARK_ERRORS as error:
        refuse_missing(table, version, table_files(table.location, version))
        failure = failure_of(error)
        if failure.is_damage or failure.is_file_gone:
            raise storage_failure(table.name, table.location, failure) from error
        raise as_ours(error, table.name, target) from error
    except FileNotFoundError:
        refuse_missing(table, version, table_files(table.location, version))
        raise


def _counted(clone: SparkSession, plan: ExportPlan, space: Workspace) -> ExportResult:
    """The files that were written, if they have the rows of the plan."""
    all_files, format_name = space.new_files(), plan.request.format
    files = data_files(all_files)
    paths = [file.path for file in files]
    rows: Mapping[str, int] = {}
    if format_name in (DELTA, "parquet"):
        rows = rows_by_file(space.uri, paths)
        total = sum(rows.values())
    else:
        columns = [name for name in plan.columns if name not in plan.partition_by]
        total = count_rows(clone, format_name, columns, [f"{space.uri}/{path}" for path in paths])
    if total != plan.rows:
        raise _incomplete(plan, f"its files have {total} rows, and the version has {plan.rows}")
    if format_name != DELTA:
        _compare_folders(plan, files, rows)
    listed_files = all_files if format_name == DELTA else files
    exported = tuple(ExportedFile(path=f.path, size=f.size, rows=rows.get(f.path)) for f in listed_files)
    return ExportResult(plan=plan, rows=total, files=exported)


def _compare_folders(plan: ExportPlan, files: Sequence[Listed], rows: Mapping[str, int]) -> None:
    """Compare the folders with those of the plan, and their rows if these are known."""
    actual: Counter[str] = Counter()
    for file in files:
        actual[posixpath.dirname(file.path)] += rows.get(file.path, 0)
    planned: Mapping[str, Any] = plan.rows_by_folder
    names = sorted(set(planned) ^ {name for name in actual if name or plan.rows})
    names += sorted(name for name in set(planned) & set(actual) if rows and actual[name] != planned[name])
    if names:
        what = f"folder {names[0]!r} has {actual.get(names[0], 0)} rows, and the version has {planned.get(names[0], 0)}"
        raise _incomplete(plan, what)


def _incomplete(plan: ExportPlan, reason: str) -> ExportIncompleteError:
    return ExportIncompleteError(
        dataset=plan.dataset, target=plan.request.target, version=plan.version, reason=reason
    )  # fmt: skip
