"""The files of a version of a table and their rows, from its log. No Spark.

Here belong the actions in force at a version (Delta protocol, "Action Reconciliation"), and the sum over its files: the
rows of each by its statistics, without those that its deletion vector deletes. `commits` counts the changes of a single
commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pipeline.dataset.history import STATE_COLUMN
from pipeline.delta.log.checkpoints import checkpoint_actions, commit_name, files_for, log_files
from pipeline.delta.log.commits import PartitionValues, live_rows, partition_values, read_entry
from pipeline.delta.log.snapshot import PHYSICAL_NAME
from pipeline.delta.storage.access import StoreError
from pipeline.delta.storage.file_system import File, side_by_side
from pipeline.errors import DamagedTableError

# The columns to read of a checkpoint; most of its size are statistics of single columns.
_CHECKPOINT_COLUMNS = [
    "add.path", "add.partitionValues", "add.size", "add.stats", "add.stats_parsed.numRecords", "add.deletionVector",
    "remove.path", "remove.deletionVector", "metaData.id", "metaData.schemaString", "metaData.partitionColumns",
]  # fmt: skip
_ACTIONS = ("add", "remove", "metaData", "protocol", "domainMetadata")
_ENTRIES_AT_ONCE = 100
# Part of the log is damaged, gone, or in a form that this code does not read.
_UNREADABLE = (OSError, ValueError, KeyError, NotImplementedError, DamagedTableError)
# Path and deletion vector identify a file (Delta protocol, "Add File and Remove File").
FileId = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class TableRows:
    """The rows of a table at one version, by partition values as the log writes them.

    The values are in the order of the table's partition columns. A partition without files is missing.
    """

    table_id: str
    version: int
    by_partition: Mapping[PartitionValues, int]

    @cached_property
    def total(self) -> int:
        """The number of rows of the table."""
        return sum(self.by_partition.values())


@dataclass(frozen=True, kw_only=True)
class TableFiles:
    """The files of a version: the actions that added them, by the files' identity.

    `partition_by` are the names under which the log keeps the values of the table's `partition_columns`. Without
    `with_state`, `STATE_COLUMN` and the files of its partitions are left out.
    """

    table_id: str
    version: int
    partition_columns: tuple[str, ...]
    partition_by: tuple[str, ...]
    files: Mapping[FileId, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class TableActions:
    """The actions in force at a version, as the log writes them: in a checkpoint a map is a list of pairs.

    `domains` are those of `domainMetadata` that are not removed. Transaction identifiers are left out.
    """

    version: int
    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]
    domains: tuple[Mapping[str, Any], ...]
    files: tuple[Mapping[str, Any], ...]


@dataclass
class _Files:
    """The live files after the actions so far, and the newest actions of the table."""

    added: dict[FileId, Mapping[str, Any]] = field(default_factory=dict)
    metadata: Mapping[str, Any] | None = None
    protocol: Mapping[str, Any] | None = None
    domains: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def apply(self, actions: Iterable[Mapping[str, Any]]) -> None:
        actions = list(actions)
        # Within a commit the order of actions has no meaning.
        for removed in (action["remove"] for action in actions if action.get("remove")):
            self.added.pop(_identity(removed), None)
        for added in (action["add"] for action in actions if action.get("add")):
            self.added[_identity(added)] = added
        self.metadata = next((a["metaData"] for a in actions if a.get("metaData")), self.metadata)
        self.protocol = next((a["protocol"] for a in actions if a.get("protocol")), self.protocol)
        self.domains |= {a["domainMetadata"]["domain"]: a["domainMetadata"] for a in actions if a.get("domainMetadata")}


def table_files(
    location: str, version: int, listed: Iterable[File] | None = None, *, with_state: bool = False
) -> TableFiles | None:
    """The files of a version with rows of its dataset.

    If part of the log is gone or in a form that we don't read, None.

    Args:
        with_state: whether to return the files of other rows too.
        listed: the files of the log, as `files_for` returns them. If None, they are listed.
    """
    try:
        state = _files_at(location, version, listed)
        if state.metadata is None:
            return None
        columns, partition_by = tuple(state.metadata.get("partitionColumns") or ()), _physical(state.metadata)
    except StoreError:  # Spark would not reach it either
        raise
    except _UNREADABLE:
        return None
    files: Mapping[FileId, Mapping[str, Any]] = state.added
    if STATE_COLUMN in columns and not with_state:
        place = columns.index(STATE_COLUMN)
        files = {i: added for i, added in files.items() if not is_of_state(added, state.metadata)}
        columns, partition_by = (names[:place] + names[place + 1 :] for names in (columns, partition_by))
    return TableFiles(
        table_id=state.metadata["id"], version=version, partition_columns=columns, partition_by=partition_by,
        files=files,
    )  # fmt: skip


def is_of_state(added: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Whether a file has rows that are no rows of the dataset: see `STATE_COLUMN`."""
    columns = tuple(metadata.get("partitionColumns") or ())
    if STATE_COLUMN not in columns:
        return False
    return partition_values(added, _physical(metadata))[columns.index(STATE_COLUMN)] is not None


def table_actions(location: str, version: int) -> TableActions | None:
    """The actions in force at a version, with all their fields. If `table_files` would return None, None."""
    try:
        state = _files_at(location, version, None, _ACTIONS)
    except StoreError:
        raise
    except _UNREADABLE:
        return None
    if state.metadata is None or state.protocol is None:
        return None
    domains = tuple(domain for domain in state.domains.values() if not domain.get("removed"))
    return TableActions(
        version=version, protocol=state.protocol, metadata=state.metadata, domains=domains,
        files=tuple(state.added.values()),
    )  # fmt: skip


def table_rows(location: str, version: int) -> TableRows | None:
    """The rows of a version. If a file has no statistics, or if `table_files` returns None, None."""
    files = table_files(location, version)
    return None if files is None else rows_of(files)


def rows_of(files: TableFiles) -> TableRows | None:
    """The rows of these files. If a file has no statistics, None."""
    rows: dict[PartitionValues, int] = {}
    for added in files.files.values():
        count = live_rows(added)
        if count is None:
            return None
        values = partition_values(added, files.partition_by)
        rows[values] = rows.get(values, 0) + count
    return TableRows(table_id=files.table_id, version=files.version, by_partition=rows)


def _files_at(
    location: str, version: int, listed: Iterable[File] | None, columns: Sequence[str] = _CHECKPOINT_COLUMNS
) -> _Files:
    """The files of a version.

    Args:
        columns: the columns to read of a checkpoint.

    Raises:
        OSError, ValueError, DamagedTableError: part of the log is gone or damaged.
    """
    by_name = {file.name: file for file in (files_for(location, version) if listed is None else listed)}
    checkpoints = log_files(location, by_name.values()).checkpoints
    start = max((number for number in checkpoints if number <= version), default=-1)
    files = _Files()
    for name in checkpoints.get(start, ()):
        files.apply(checkpoint_actions(location, name, columns, by_name[name]))

    def entry(number: int) -> list[dict[str, Any]]:
        return read_entry(location, number, file=by_name.get(commit_name(number)))

    for first in range(start + 1, version + 1, _ENTRIES_AT_ONCE):
        numbers = range(first, min(first + _ENTRIES_AT_ONCE, version + 1))
        for actions in side_by_side(entry, numbers, location):
            files.apply(actions)
    return files


def _identity(file: Mapping[str, Any]) -> FileId:
    vector = file.get("deletionVector")
    if not vector:
        return file["path"], ""
    return file["path"], f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset') or 0}"


def _physical(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """The names under which the log keeps the values of the partition columns."""
    fields = {column["name"]: column.get("metadata") or {} for column in json.loads(metadata["schemaString"])["fields"]}
    return tuple(fields[name].get(PHYSICAL_NAME, name) for name in metadata.get("partitionColumns") or ())
