"""What a consumer of changes may read of a source: the verdict on its change feed after a cursor.

Here belongs the reading of the source's log. It needs no Spark if the log is on this machine. Cursors belong to
`cursors`, frames to `changes`.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any
from urllib.parse import unquote

from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from pipeline.dataset import TableRef
from pipeline.dataset.history import STATE_COLUMN
from pipeline.delta.log.checkpoints import all_files, commit_name
from pipeline.delta.log.commits import commit_identity, is_state_file, read_commit, read_entry
from pipeline.delta.log.entry import as_count, info_of, of_dataset, statistics
from pipeline.delta.log.integrity import files_beside, require_sound_entries
from pipeline.delta.log.mark import Cursor
from pipeline.delta.log.snapshot import PHYSICAL_NAME, facts_in_checksum, table_facts, without_state
from pipeline.delta.log.timestamps import log_retention
from pipeline.delta.read.appended_rows import AddedFile
from pipeline.delta.read.restores import RESTORE, contradictory_commits
from pipeline.delta.storage.file_system import File, missing_files, side_by_side
from pipeline.delta.table.open_table import CHANGE_FEED, TableState, require_table
from pipeline.errors.listing import listed


class VerdictKind(Enum):
    """How a source must be read."""

    NOTHING_NEW = "nothing new"
    CHANGES = "changes"
    FULL = "full snapshot"


class Reason(Enum):
    """Why changes can't be read and a full snapshot is needed."""

    FIRST_RUN = "nothing was consumed before"
    CONSUMER_RESTORED = "the consumer was restored to before its first run, or while it ran"
    CURSOR_LOST = "the consumer's log no longer holds its cursor"
    RECREATED = "the table was made anew"
    PUT_BACK = "another copy of the table was put in its place"
    CURSOR_AHEAD = "the cursor is beyond the newest version"
    LOG_CLEANED = "commits are gone from the log"
    SCHEMA_CHANGED = "the schema has changed in a way that the feed can't carry"
    FEED_OFF = "the change feed was off"
    CHANGE_FILES_GONE = "change files vacuumed"
    FILES_UNKNOWN = "a commit removes files that the table does not have"
    OTHER_SOURCE = "another source needs a full snapshot"
    ASKED_FOR = "a full refresh was asked for"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What must be read of a source to get from a cursor to a version.

    `version` is the newest version of the table with that id when the verdict was made, `schema` the schema at that
    version, and `after` the last version consumed, None if unknown. `window` holds the first and the last commit
    between them that change rows, both inclusive; None unless the verdict is changes. `at_fault` are the versions for
    which `reason` holds, if it holds for single versions. The window's changes are read from `files` files of `bytes`
    in all. `feed_on` says whether the table now records its feed. `is_late` says that nothing has been new for so long
    that the log may soon lose the cursor's commit. `entry` is the identity of the version's commit. If every commit of
    the window only adds files, `appended` are these files; else None. `partition_by` are the table's partition columns.
    """

    kind: VerdictKind
    table_id: str
    version: int
    schema: StructType = field(compare=False, repr=False)
    after: int | None = None
    window: tuple[int, int] | None = None
    reason: Reason | None = None
    at_fault: tuple[int, ...] = ()
    files: int = field(default=0, compare=False)
    bytes: int = field(default=0, compare=False)
    feed_on: bool = field(default=True, compare=False, repr=False)
    entry: str | None = field(default=None, compare=False, repr=False)
    is_late: bool = field(default=False, compare=False, repr=False)
    appended: tuple[AddedFile, ...] | None = field(default=None, compare=False, repr=False)
    partition_by: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __str__(self) -> str:
        """The verdict in one line."""
        if self.reason is None:
            return self.kind.value
        shown = f" (versions {listed(self.at_fault)})" if self.at_fault else ""
        return f"{self.kind.value}: {self.reason.value}{shown}"

    @property
    def cursor(self) -> Cursor:
        """The cursor that is in force once this verdict was consumed."""
        return Cursor(table_id=self.table_id, version=self.version, entry=self.entry)


# --- the verdict on a source ------------------------------------------------------------------------------------------


def verdict_on(
    session: SparkSession | None, table: TableRef, cursor: Cursor | None,
    missing: Reason = Reason.FIRST_RUN, *, up_to: int | None = None,
) -> Verdict:  # fmt: skip
    """What must be read of a source to get from the cursor to its newest version, or to the version `up_to`.

    Args:
        session: if None, only logs are read.

    Raises:
        TableNotFoundError: the source was never written.
        DamagedTableError: a needed entry of its log is damaged.
    """
    state = require_table(session, table)
    latest = state.version if up_to is None else up_to
    described = None if latest == state.version else _facts(state, latest)
    verdict = Verdict(
        kind=VerdictKind.NOTHING_NEW, table_id=state.table_id, version=latest,
        schema=state.schema if described is None else described.schema, feed_on=_is_on(state.properties),
        entry=commit_identity(table.location, latest, state.entry(latest)),
        partition_by=state.partition_by if described is None else described.partition_by,
    )  # fmt: skip
    if cursor is None:
        return needs_snapshot(verdict, missing)
    verdict = replace(verdict, after=cursor.version)
    if cursor.table_id != state.table_id:
        return needs_snapshot(verdict, Reason.RECREATED)
    if cursor.version > latest:
        return needs_snapshot(verdict, Reason.CURSOR_AHEAD)
    if cursor.entry is not None:
        entry = verdict.entry
        if cursor.version != latest:
            entry = commit_identity(table.location, cursor.version, state.entry(cursor.version))
        if entry != cursor.entry:
            return needs_snapshot(verdict, Reason.LOG_CLEANED if entry is None else Reason.PUT_BACK, [cursor.version])
    if cursor.version == latest:
        return verdict
    with of_dataset(table.name):
        return _judge_window(state, verdict, range(cursor.version + 1, latest + 1))


def _judge_window(state: TableState, verdict: Verdict, numbers: range) -> Verdict:
    files = state.log
    if state.entry(numbers.start - 1) is None:
        files = {file.name: file for file in files_beside(state.location, numbers)}
    missing = [number for number in numbers if commit_name(number) not in files]
    before = None if missing else _facts(state, numbers.start - 1, files)
    if before is None:
        return needs_snapshot(verdict, Reason.LOG_CLEANED, missing)
    require_sound_entries(state.location, numbers, files.values())
    commits = side_by_side(partial(_commit, state.location, files), numbers, state.location)
    described = {commit.number: commit.metadata for commit in commits if commit.metadata is not None}
    shapes = [before, *described.values()]
    misfits = [number for older, number in zip(shapes, described, strict=False) if not _carries(older, shapes[-1])]
    if misfits:
        return needs_snapshot(verdict, Reason.SCHEMA_CHANGED, [misfits[-1]])
    changing = [commit.number for commit in commits if commit.changes_rows]
    if not changing:
        return replace(verdict, is_late=_is_late(state, numbers.start))
    without_feed = list(_without_feed([commit for commit in commits if commit.number <= changing[-1]], before.feed_on))
    if without_feed:
        return needs_snapshot(verdict, Reason.FEED_OFF, without_feed)
    gone = {*missing_files(state.location, (path for commit in commits for path in commit.files if "://" not in path))}
    if vacuumed := [commit.number for commit in commits if not gone.isdisjoint(commit.files)]:
        return needs_snapshot(verdict, Reason.CHANGE_FILES_GONE, vacuumed)
    if faulty := contradictory_commits(state.location, {commit.number for commit in commits if commit.is_doubtful}):
        return needs_snapshot(verdict, Reason.FILES_UNKNOWN, faulty)
    return replace(
        verdict, kind=VerdictKind.CHANGES, window=(changing[0], changing[-1]),
        files=sum(len(commit.files) for commit in commits), bytes=sum(commit.bytes for commit in commits),
        appended=_appended(commits),
    )  # fmt: skip


def _appended(commits: Sequence[_Commit]) -> tuple[AddedFile, ...] | None:
    if any(commit.changes_rows and commit.added is None for commit in commits):
        return None
    return tuple(file for commit in commits for file in commit.added or ())


def _is_late(state: TableState, number: int) -> bool:
    """Whether a commit is older than half the time for which the log is kept."""
    committed = read_commit(state.location, number, state.partition_by).timestamp
    return dt.datetime.now(dt.timezone.utc) - committed > log_retention(state.properties) / 2


def needs_snapshot(verdict: Verdict, reason: Reason, at_fault: Sequence[int] = ()) -> Verdict:
    """The same verdict, but with a full snapshot needed."""
    return replace(verdict, kind=VerdictKind.FULL, window=None, reason=reason, at_fault=tuple(at_fault))


@dataclass(frozen=True)
class _Described:
    """The part of a metadata action that the feed depends on."""

    schema: StructType
    partition_by: tuple[str, ...]
    feed_on: bool


@dataclass(frozen=True)
class _Commit:
    """A commit of the source. `files` are the files that its changes are read from, `bytes` their size.

    Files of rows that are no rows of the dataset are left out. `is_doubtful` says that its files must be compared with
    those of the table. If the commit only adds files, `added` are these files; else None.
    """

    number: int
    changes_rows: bool
    metadata: _Described | None
    files: tuple[str, ...]
    bytes: int
    is_doubtful: bool
    added: tuple[AddedFile, ...] | None


def _facts(state: TableState, number: int, files: Mapping[str, File] | None = None) -> _Described | None:
    facts = (files and facts_in_checksum(state.location, number, files)) or table_facts(state.location, number)
    if facts is None:
        return None
    return _Described(StructType.fromJson(dict(facts.schema)), facts.partition_by, _is_on(facts.properties))


def _is_on(properties: Mapping[str, str]) -> bool:
    values = (value for name, value in properties.items() if name.lower() == CHANGE_FEED.lower())
    return next(values, "false").lower() == "true"


def _commit(location: str, files: Mapping[str, File], number: int) -> _Commit:
    actions = read_entry(location, number, file=files.get(commit_name(number)))
    described = next((action["metaData"] for action in actions if action.get("metaData")), None)
    changes = [action["cdc"] for action in actions if action.get("cdc")]
    data = [file for a in actions for file in [a.get("add") or a.get("remove")] if file and file.get("dataChange")]
    metadata = None
    if described is not None:
        schema = StructType.fromJson(without_state(json.loads(described["schemaString"])))
        by = tuple(column for column in described.get("partitionColumns") or () if column != STATE_COLUMN)
        metadata = _Described(schema, by, _is_on(described.get("configuration") or {}))
    # Protocol, "Change Data Files": if a commit has some, its changes are in them alone.
    read = [file for file in changes or data if not is_state_file(file)]
    size = sum(file.get("size") or 0 for file in read)
    paths = tuple(unquote(file["path"]) for file in read)
    is_doubtful = bool(data) and _is_doubtful(actions)
    added = [file for action in actions if (file := action.get("add")) and file.get("dataChange")]
    added = [file for file in added if not is_state_file(file)]
    return _Commit(number, bool(read), metadata, paths, size, is_doubtful, _added(number, added, read))


def _added(
    number: int, added: Sequence[Mapping[str, Any]], read: Sequence[Mapping[str, Any]]
) -> tuple[AddedFile, ...] | None:
    """The files of a commit whose changes are in new files alone. For any other commit, None."""
    if list(added) != list(read) or any(file.get("deletionVector") or "://" in file["path"] for file in added):
        return None
    return tuple(
        AddedFile(
            number, unquote(file["path"]), file.get("partitionValues") or {},
            as_count(statistics(file).get("numRecords")),
        )
        for file in added
    )  # fmt: skip


def _is_doubtful(actions: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a commit may name files differently from Spark: a restore, or another engine's commit with removals."""
    info = info_of(actions)
    is_spark = "Spark" in (info.get("engineInfo") or "Spark")
    return info.get("operation") == RESTORE or (not is_spark and any(action.get("remove") for action in actions))


def _without_feed(commits: Sequence[_Commit], feed_on: bool) -> Iterator[int]:
    """The commits that change rows while the feed is off, and those after a change that switch the feed off."""
    begun = False
    for commit in commits:
        feed_on = feed_on if commit.metadata is None else commit.metadata.feed_on
        begun = begun or commit.changes_rows
        if begun and not feed_on and (commit.changes_rows or commit.metadata is not None):
            yield commit.number


def window_files(location: str, verdict: Verdict) -> tuple[str, ...]:
    """The files that the changes in a verdict's window are read from, by their paths below the table."""
    if verdict.window is None:
        return ()
    first, last = verdict.window
    files = {file.name: file for file in all_files(location, first)}
    commits = side_by_side(partial(_commit, location, files), range(first, last + 1), location)
    return tuple(dict.fromkeys(path for commit in commits for path in commit.files))


def _carries(older: _Described, newest: _Described) -> bool:
    """Whether rows that were written under an older description are read correctly under the newest one."""
    return older.partition_by == newest.partition_by and _extends(older.schema, newest.schema)


def _own_name(field: StructField) -> str:
    """A column's name in the files. A column that was dropped and added again has another one."""
    return str((field.metadata or {}).get(PHYSICAL_NAME, field.name))


def _extends(older: DataType, newest: DataType) -> bool:
    """Whether a type equals the older one, or adds only fields to it."""
    if isinstance(older, StructType) and isinstance(newest, StructType):
        newest_fields = {f.name: f for f in newest.fields}
        return all(
            f.name in newest_fields
            and _own_name(f) == _own_name(newest_fields[f.name])
            and _extends(f.dataType, newest_fields[f.name].dataType)
            for f in older.fields
        )
    if isinstance(older, ArrayType) and isinstance(newest, ArrayType):
        return _extends(older.elementType, newest.elementType)
    if isinstance(older, MapType) and isinstance(newest, MapType):
        return _extends(older.keyType, newest.keyType) and _extends(older.valueType, newest.valueType)
    return older.simpleString() == newest.simpleString()
