"""An export that is kept up to date: after each commit only the partitions that changed are written again.

Here belongs the comparison of the last complete export, by its manifest, with the version to export. The commits in
between name the partitions that changed. A partition that became empty is dropped. If the log no longer has the
commits, or if the table was restored or created again, everything is exported. The folder belongs to the export: other
data files in a changed partition are removed.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from pipeline.dataset import TableRef
from pipeline.delta.export.export import count_folders, manifest_of_plan, plan_of_version, written_files
from pipeline.delta.export.folders import Folders
from pipeline.delta.export.manifest import SUCCESS, Begun, ExportedFile, Manifest
from pipeline.delta.export.request import DELTA, ExportPlan, ExportRequest
from pipeline.delta.export.selection import refuse
from pipeline.delta.export.target import (
    TargetState,
    Workspace,
    data_files,
    refuse_place,
    require_empty,
    resolved,
    target_state,
    workspace,
)
from pipeline.delta.log.commits import commit_identity, partition_values, read_commit
from pipeline.delta.log.counts import TableFiles, table_files
from pipeline.delta.read.restores import RESTORE
from pipeline.delta.read.version import ReadOptions, resolve_version
from pipeline.delta.spark.doors import door, through_door
from pipeline.delta.sql.slices import Box, Slice, Values, of_values
from pipeline.delta.storage.file_system import side_by_side, write_file

_NEWEST = ReadOptions()


class FullReason(Enum):
    """Why everything was exported."""

    FIRST = "nothing was exported before"
    RECREATED = "the table was dropped and created again"
    PUT_BACK = "the table was replaced by another copy"
    RESTORED = "the table was restored"
    LOG_CLEANED = "commits are gone from the log"
    SELECTION_CHANGED = "the columns, the condition or the format changed"
    UNFINISHED = "an earlier export of everything was interrupted"
    FILES_UNKNOWN = "the log does not show which partitions changed"


@dataclass(frozen=True, kw_only=True)
class Refreshed:
    """The result of bringing an export up to date.

    `previous` is the version of the export before, None for the first. `reason` is why everything was exported, None if
    only changed partitions were. `written` and `dropped` are the folders of these partitions; without partition columns
    the folder has an empty name. `rows` are those of the whole export, `rows_written`, `files` and `bytes` only those
    that were written.
    """

    dataset: str
    target: str
    version: int
    previous: int | None
    reason: FullReason | None
    written: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    rows: int
    rows_written: int = 0
    files: int = 0
    bytes: int = 0


@door
def refresh_export(
    session: SparkSession, table: TableRef, request: ExportRequest, pin: ReadOptions = _NEWEST
) -> Refreshed:  # fmt: skip
    """Bring the export in a target to the pinned version, or to the newest. The first call exports everything.

    A repeat writes nothing. If an earlier call was killed, the partitions that it was changing are written again. If
    the target already has a newer version, nothing is done.

    Raises:
        ExportTargetError: the target has files, but no manifest of an export.
        PipelineError: the errors of `plan_export` and `export`. The target has no `_SUCCESS` if it was being changed.
    """
    target = resolved(request.target)
    refuse_place(table, target)
    if request.format == DELTA:
        refuse(table, request, ["only files without a log can be kept up to date: parquet, csv or ndjson"])
    version = resolve_version(session, table, pin)
    with through_door(table.name, target), workspace(table.name, target) as space:
        state = target_state(target)
        begun = state.begun if state.manifest is None else None
        previous = state.manifest or (begun.previous if begun is not None else None)
        if previous is None:
            require_empty(table.name, target, state)
        elif _is_ahead(table, previous, version) and begun is None:
            return _nothing(table, target, previous, previous.version)
        asked, has_condition = replace(request, target=target), request.where is not None
        plan = plan_of_version(session, table, asked, version, counts=not has_condition)
        refresh = _Refresh(session, table, plan, previous)
        reason, folders = refresh.changed(() if begun is None else begun.folders)
        if reason is None and folders is not None:
            folders |= refresh.damaged(state) if has_condition else refresh.damaged(state) | refresh.unequal()
        if previous is not None and folders is not None and not folders:
            if begun is None and previous.version != version:
                same = replace(previous, version=version, entry=plan.entry)
                write_file(f"{target}/{SUCCESS}", same.content)
            if begun is None:
                return _nothing(table, target, previous, version)
        if has_condition:
            refresh = replace(refresh, plan=replace(plan, rows_by_folder=refresh.counted(folders)))
        return refresh.write(space, state, reason, folders)


def _is_ahead(table: TableRef, previous: Manifest, version: int) -> bool:
    """Whether the exported version is the asked one or a later one of the same table."""
    return previous.version > version and commit_identity(table.location, previous.version) == previous.entry


def _nothing(table: TableRef, target: str, previous: Manifest, version: int) -> Refreshed:
    return Refreshed(
        dataset=table.name, target=target, version=version, previous=previous.version, reason=None, rows=previous.rows
    )


@dataclass(frozen=True)
class _Refresh:
    """A version to export, and the manifest of the export before it."""

    session: SparkSession
    table: TableRef
    plan: ExportPlan
    previous: Manifest | None

    def changed(self, begun: Collection[str] | None) -> tuple[FullReason | None, set[str] | None]:
        """The folders whose partitions changed since the previous export, or None and why they are not known.

        Args:
            begun: the folders that a killed export was changing; None for all.
        """
        previous, plan, location = self.previous, self.plan, self.table.location
        if previous is None:
            return FullReason.FIRST, None
        if previous.table_id != plan.table_id:
            return FullReason.RECREATED, None
        if not previous.has_selection_of(manifest_of_plan(plan, (), 0)):
            return FullReason.SELECTION_CHANGED, None
        identity = commit_identity(location, previous.version)
        if identity != previous.entry or previous.version > plan.version:
            return (FullReason.LOG_CLEANED if identity is None else FullReason.PUT_BACK), None
        if begun is None:
            return FullReason.UNFINISHED, None
        files = table_files(location, plan.version)
        numbers = range(previous.version + 1, plan.version + 1)
        reason, folders = (FullReason.FILES_UNKNOWN, None) if files is None else self._in_commits(files, numbers)
        return reason, None if folders is None else folders | set(begun)

    def _in_commits(self, files: TableFiles, numbers: range) -> tuple[FullReason | None, set[str] | None]:
        location, folders = self.table.location, set[str]()
        by_folder = Folders.of(self.plan.partition_by, self.plan.schema, files)
        try:
            read = partial(read_commit, location, partition_by=files.partition_by)
            for commit in side_by_side(read, numbers, location):
                if commit.operation == RESTORE:
                    return FullReason.RESTORED, None
                if not commit.changes_rows:
                    continue
                if commit.partitions is None:
                    return FullReason.FILES_UNKNOWN, None
                folders |= set(map(by_folder.name, commit.partitions))
        except FileNotFoundError:
            return FullReason.LOG_CLEANED, None
        except ValueError:  # a partition value that Python can't hold
            return FullReason.FILES_UNKNOWN, None
        return None, folders

    def damaged(self, state: TargetState) -> set[str]:
        """The folders of which a file is not that of the manifest, is missing, or is not in it.

        In a bucket, an export that another one has taken over may still write a file.
        """
        files = () if self.previous is None else self.previous.files
        expected = {file.path: file.size for file in files}
        sizes = {
            file.path: file.size for file in data_files(state.files) if self._is_ours(posixpath.dirname(file.path))
        }
        paths = expected.keys() | sizes.keys()
        return {posixpath.dirname(path) for path in paths if sizes.get(path) != expected.get(path)}

    def _is_ours(self, folder: str) -> bool:
        """Whether a folder is that of a partition, also of one without rows."""
        exported = {} if self.previous is None else self.previous.rows_by_folder
        columns = tuple(part.partition("=")[0] for part in folder.split("/")) if folder else ()
        return folder in exported or columns == self.plan.partition_by

    def unequal(self) -> set[str]:
        """The folders that had other rows in the previous export than in the version."""
        exported = {} if self.previous is None else self.previous.rows_by_folder
        planned = self.plan.rows_by_folder
        return {name for name in {*exported, *planned} if exported.get(name) != planned.get(name)}

    def counted(self, folders: Collection[str] | None) -> dict[str, int]:
        """The rows by folder that meet the condition. Only those of the changed folders are counted, by Spark."""
        if folders is None or self.previous is None:
            return count_folders(self.session, self.table, self.plan, None)
        within = self._condition(folders) if self.plan.partition_by else None
        rows = {n: number for n, number in self.previous.rows_by_folder.items() if n not in folders}
        return dict(sorted((rows | count_folders(self.session, self.table, self.plan, within)).items()))

    def write(
        self, space: Workspace, state: TargetState, reason: FullReason | None, folders: set[str] | None
    ) -> Refreshed:
        """Write the changed partitions and publish them. If `folders` is None, all."""
        plan, previous = self.plan, self.previous
        planned = {n: rows for n, rows in plan.rows_by_folder.items() if folders is None or n in folders}
        within = None if folders is None or not plan.partition_by else self._condition(planned)
        begun = Begun(
            token=uuid.uuid4().hex, previous=previous, folders=None if folders is None else tuple(sorted(folders))
        )
        space.begin(previous, begun.folders)
        new: tuple[ExportedFile, ...] = ()
        if planned or folders is None:
            part = replace(plan, rows_by_folder=planned)
            new = written_files(self.session, self.table, part, space, within).files
        old = () if previous is None else previous.files
        kept = () if folders is None else tuple(f for f in old if posixpath.dirname(f.path) not in folders)
        manifest = manifest_of_plan(plan, (*kept, *new), plan.rows)
        space.publish_changes(manifest, begun, state) if previous is not None else space.publish(manifest)
        before = {} if previous is None else previous.rows_by_folder
        gone = (n for n in before if n not in planned and (folders is None or n in folders))
        return Refreshed(
            dataset=plan.dataset, target=plan.request.target, version=plan.version, reason=reason,
            previous=None if previous is None else previous.version, written=tuple(planned),
            dropped=tuple(sorted(gone)), rows=plan.rows, rows_written=sum(planned.values()), files=len(new),
            bytes=sum(file.size for file in new),
        )  # fmt: skip

    def _condition(self, folders: Collection[str]) -> str:
        """SQL that is true for the rows of these folders."""
        files = table_files(self.table.location, self.plan.version)
        assert files is not None  # noqa: S101  the changed folders are known from it
        by_folder = Folders.of(self.plan.partition_by, self.plan.schema, files)
        texts = {partition_values(added, files.partition_by) for added in files.files.values()}
        cells = [by_folder.values(one) for one in texts if by_folder.name(one) in folders]
        return _slice(self.plan.partition_by, cells).predicate(self.table.dataset)


def _slice(columns: tuple[str, ...], cells: Iterable[tuple[Any, ...]]) -> Slice:
    ordered = sorted(set(cells), key=lambda cell: [(value is None, str(value)) for value in cell])
    if len(columns) == 1:
        return of_values(columns[0], (cell[0] for cell in ordered))
    return Slice(tuple(Box(tuple((c, Values((v,))) for c, v in zip(columns, cell, strict=True))) for cell in ordered))
