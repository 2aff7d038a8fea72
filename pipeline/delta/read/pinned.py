"""What an earlier run has read, to be read again: whether a version is still there, and the same changes of a source.

Here belong the reasons why a version can't be read any more, found without Spark and before anything starts, and the
verdict on a source that repeats an earlier one. The reading itself belongs to `version` and `changes`.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from pyspark.sql import SparkSession

from pipeline.dataset import TableRef
from pipeline.delta.log.checkpoints import all_files, log_files, newest_version
from pipeline.delta.log.commits import commit_info, instant
from pipeline.delta.log.counts import table_files
from pipeline.delta.log.entry import as_count
from pipeline.delta.log.mark import Cursor
from pipeline.delta.log.snapshot import table_facts
from pipeline.delta.read.readable import paths_of, readable_versions
from pipeline.delta.read.verdict import Reason, Verdict, VerdictKind, needs_snapshot, verdict_on
from pipeline.delta.spark.doors import door
from pipeline.delta.storage.file_system import missing_files
from pipeline.delta.table.open_table import CHANGE_FEED, require_table
from pipeline.errors import ChangesUnreadableError

# By how much the clocks of two machines may differ that write tables of one root.
_CLOCKS_DIFFER = dt.timedelta(minutes=1)


@dataclass(frozen=True, kw_only=True)
class PinnedChanges:
    """A consumer's earlier read of a source: how, up to `version`, and the last version consumed before it.

    If nothing was consumed before, `after` is None.
    """

    kind: VerdictKind
    version: int
    after: int | None


@dataclass(frozen=True, kw_only=True)
class Observed:
    """A version of a table that an earlier run has read or written, and a time at which it existed.

    If the id of the table at that time is not known, `table_id` is None.
    """

    version: int
    at: dt.datetime
    table_id: str | None = None


@door
def newest_of(name: str, location: str) -> int | None:  # noqa: ARG001  for errors
    """The newest version of a table. If there is none, None. No Spark.

    Raises:
        StorageError: the storage can't be read.
    """
    return newest_version(location)


@door
def problem_of_version(name: str, location: str, observed: Observed) -> str | None:  # noqa: ARG001  for errors
    """Why the version can't be read any more, or is that of another table; None if it can be read. No Spark.

    Raises:
        StorageError: the storage can't be read.
        DamagedTableError: an entry of the log is damaged.
    """
    version = observed.version
    listed = all_files(location)
    newest = log_files(location, listed).latest
    if newest is None:
        return "there is no table any more"
    if version > newest:
        return f"version {version} does not exist: the newest version is {newest}, so the table was made again"
    readable = readable_versions(location, listed)
    if readable is None or version < readable.in_log:
        kept = "no version" if readable is None else f"the versions from {readable.in_log} on"
        return f"version {version} was cleaned from the log, which has the state of {kept}"
    if _is_made_again(location, observed):
        return f"version {version} is that of another table: the table was made again since"
    return _missing(location, version) if version < readable.with_files else None


def _is_made_again(location: str, observed: Observed) -> bool:
    """Whether the table has another id than at that time, or its version was committed later by its writer's clock."""
    facts = table_facts(location, observed.version)
    if observed.table_id is not None and facts is not None and facts.table_id != observed.table_id:
        return True
    committed = as_count((commit_info(location, observed.version) or {}).get("timestamp"))
    return committed is not None and instant(committed) > observed.at + _CLOCKS_DIFFER


def _missing(location: str, version: int) -> str | None:
    """The files of a version that do not exist any more, as a reason."""
    state = table_files(location, version, with_state=True)
    if state is None:
        return f"the files of version {version} are not known: part of the log is gone"
    paths = [path for added in state.files.values() for path in paths_of(added)]
    missing = missing_files(location, paths)
    return f"{len(missing)} of {len(paths)} files of version {version} were vacuumed" if missing else None


@door
def pinned_verdict(session: SparkSession | None, table: TableRef, pin: PinnedChanges) -> Verdict:
    """The verdict that leads to the same read of a source as an earlier one.

    Args:
        session: if None, only the log is read.

    Raises:
        TableNotFoundError: there is no table any more.
        ChangesUnreadableError: the changes were read as changes, and can't be any more.
    """
    cursor = None
    if pin.after is not None:
        cursor = Cursor(table_id=require_table(session, table).table_id, version=pin.after)
    verdict = verdict_on(session, table, cursor, up_to=pin.version)
    if pin.kind is VerdictKind.FULL:
        return needs_snapshot(verdict, Reason.ASKED_FOR)
    require_same(table, pin.kind, pin.version, verdict)
    return verdict


def require_same(table: TableRef, kind: VerdictKind, version: int, verdict: Verdict) -> None:
    """Require a verdict of this kind up to this version.

    Raises:
        ChangesUnreadableError: the source must be read in another way.
    """
    if (verdict.kind, verdict.version) != (kind, version):
        reason = "a repeated read would be another one" if verdict.reason is None else verdict.reason.value
        raise table.error(
            ChangesUnreadableError, reason=reason, versions=verdict.at_fault or (version,), setting=CHANGE_FEED
        )
