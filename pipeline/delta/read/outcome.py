"""Whether the rows of a table are still those that an equal computation has committed. It is read from the log alone.

Here belongs which commit counts, and what makes it another one. What a computation consists of belongs to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from pipeline.delta.log.commits import (
    Commit,
    PartitionValues,
    commit_identity,
    commit_note,
    partition_values,
    read_commit,
    read_entry,
)
from pipeline.delta.log.entry import is_below_table
from pipeline.delta.log.mark import HISTORY_LIMIT, Computation, Cursor
from pipeline.delta.log.snapshot import TableState
from pipeline.delta.storage.file_system import missing_files
from pipeline.errors import DamagedTableError

# Operations that neither change rows nor the shape of the table, if their commit says that it changes no data.
_MAINTENANCE = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END"})
_SHOWN = 40


@dataclass(frozen=True, kw_only=True)
class Part:
    """The rows of a table that count: all, or those of some partitions.

    `partition_by` are the names of the partition columns in the log. `has` says whether rows with such partition values
    count. If it is None, all do.
    """

    state: TableState
    has: Callable[[PartitionValues], bool] | None = None

    @property
    def version(self) -> int:
        """The newest version."""
        return self.state.version

    def concerns(self, commit: Commit) -> bool:
        """Whether a commit may have changed these rows, or the shape of the table."""
        if commit.operation in _MAINTENANCE and not commit.changes_rows:
            return False
        if self.has is None or commit.table_id is not None or not commit.changes_rows or commit.partitions is None:
            return True
        return any(map(self.has, commit.partitions))

    def newest_change(self, after: int, until: int) -> Commit | None:
        """The newest commit above `after`, up to `until`, that concerns these rows. If there is none, None.

        Raises:
            OSError: a commit on the way is gone from the log.
            DamagedTableError: one is damaged.
        """
        for number in range(until, after, -1):
            commit = read_commit(self.state.location, number, self.state.log_partition_by)
            if self.concerns(commit):
                return commit
        return None

    def removed_since(self, version: int) -> list[str]:
        """The paths of these rows' files that commits above a version have removed, relative to the table."""
        paths = []
        for number in range(version + 1, self.version + 1):
            for action in read_entry(self.state.location, number):
                removed = action.get("remove")
                if removed and (self.has is None or self.has(partition_values(removed, self.state.log_partition_by))):
                    paths.append(unquote(removed["path"]))
        return paths


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The commit that holds the rows of an equal computation. `entry` is its identity. If there is none, the reason."""

    version: int | None = None
    entry: str | None = None
    reason: str = ""


def cursor_of(state: TableState, version: int | None = None) -> Cursor:
    """A version of a table with the identity of its commit; the newest version without one."""
    number = state.version if version is None else version
    return Cursor(table_id=state.table_id, version=number, entry=commit_identity(state.location, number))


def equal_outcome(rows: Part, now: Computation, sources: Mapping[str, Part]) -> Outcome:
    """The newest commit that concerns these rows, if it was computed from the same as `now`.

    A log that can't be read has none.

    Args:
        sources: the rows of the tables of `now` that the computation reads.
    """
    try:
        commit = rows.newest_change(max(-1, rows.version - HISTORY_LIMIT), rows.version)
        if commit is None:
            return Outcome(reason=f"none of the newest {HISTORY_LIMIT} commits has written these rows")
        before = Computation.from_note(commit_note(commit.user_metadata))
        if before is None:
            return Outcome(reason=f"version {commit.version} ({commit.operation}) is no cached outcome")
        reason = _other_part(before, now) or _other_table(before, now, sources)
        if reason is None and _is_vacuumed(rows, commit.version):
            reason = f"files of version {commit.version} are vacuumed"
    except (OSError, DamagedTableError) as error:
        return Outcome(reason=f"the log can't be read ({str(error).splitlines()[0]})")
    if reason is not None:
        return Outcome(reason=reason)
    return Outcome(version=commit.version, entry=commit_identity(rows.state.location, commit.version))


def _other_part(before: Computation, now: Computation) -> str | None:
    for name in sorted({*before.parts, *now.parts}):
        was, is_now = before.parts.get(name), now.parts.get(name)
        if was != is_now:
            texts = f": {was[:_SHOWN]!r}, now {is_now[:_SHOWN]!r}" if was is not None and is_now is not None else ""
            return f"{name} has changed{texts}"
    return None


def _other_table(before: Computation, now: Computation, sources: Mapping[str, Part]) -> str | None:
    if set(before.tables) != set(now.tables):
        names = ", ".join(sorted(set(before.tables) ^ set(now.tables)))
        return f"not the same tables were read: {names}"
    for name, was in before.tables.items():
        reason = _changed(sources[name], was, now.tables[name])
        if reason is not None:
            return f"{name}: {reason}"
    return None


def _changed(source: Part, was: Cursor, now: Cursor) -> str | None:
    """Why the rows of a source differ between two versions. If they don't, None."""
    if was.table_id != now.table_id:
        return "it is another table"
    if was.entry is None or commit_identity(source.state.location, was.version) != was.entry:
        return f"its version {was.version} is another commit, or has left the log"
    if was.version > now.version or now.version - was.version > HISTORY_LIMIT:
        return f"it was read at version {was.version}, now {now.version}"
    commit = source.newest_change(was.version, now.version)
    if commit is None:
        return None
    return f"version {commit.version} ({commit.operation}) came after version {was.version}"


def _is_vacuumed(rows: Part, version: int) -> bool:
    """Whether a file of these rows at a version is gone from the storage."""
    paths = rows.removed_since(version)
    if not all(map(is_below_table, paths)):  # of another table, which may vacuum it
        return True
    return bool(missing_files(rows.state.location, paths))
