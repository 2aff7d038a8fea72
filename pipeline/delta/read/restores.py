"""The restores in a log, and the version that each of them restored.

Here belong the reading of a restore's commit, and the search for its version if the commit names only a time. What
follows for cursors is the subject of `cursors`, and for transaction identifiers that of `transaction`.

A restore to a time names the time and not the version (`DeltaOperations.Restore`; delta-rs writes milliseconds, Spark
the text of the statement, which may lack a zone). The files decide: the restored version has exactly the files of the
restore's own version. If several versions have these files, the time decides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql import SparkSession

from pipeline.delta import sql
from pipeline.delta.log.checkpoints import checkpoint_actions, files_for, log_files, newest_version
from pipeline.delta.log.commits import commit_info, read_commit, read_entry
from pipeline.delta.log.entry import as_count
from pipeline.delta.spark.failures import SPARK_ERRORS
from pipeline.delta.storage.access import StoreError

RESTORE = "RESTORE"
_File = tuple[str, str]


def version_named_by(parameters: Mapping[str, Any] | None) -> int | None:
    """The version that the parameters of a restore name. If they name a time, None."""
    return as_count((parameters or {}).get("version"))


def restored_version(
    session: SparkSession | None, location: str, number: int, parameters: Mapping[str, Any] | None
) -> int | None:
    """The version that the restore in commit `number` restored. If the log no longer shows it, None.

    Without a session, None also for a restore to a time if only Spark knows its zone.

    If several earlier versions have the same files, and the time fits none of them, the oldest: nothing that was
    written after it is left in the table.
    """
    by_number = version_named_by(parameters)
    if by_number is not None:
        return by_number if by_number < number else None
    parameters_or_empty = parameters or {}
    try:
        same_files = _with_the_files_of(location, number)
    except StoreError:  # the store refuses, which is no answer
        raise
    except (OSError, ValueError):  # a commit is missing or truncated
        return None
    if len(same_files) == 1:
        return same_files[0]
    milliseconds = _milliseconds(session, parameters_or_empty)
    by_time = None if milliseconds is None else _version_at(location, number, milliseconds)
    return same_files[0] if same_files and by_time not in same_files else by_time


# --- by files ---------------------------------------------------------------------------------------------------------


def _with_the_files_of(location: str, number: int) -> list[int]:
    """The versions before `number` with the same files, in ascending order, as far back as the log goes.

    Raises:
        OSError, ValueError: the log can't be read.
    """
    log = log_files(location)
    commits = set(log.commits)
    first = number
    while first in commits:
        first -= 1
    files: set[_File] = set()
    sums: dict[int, int] = {}
    if first >= 0:
        # The commits begin here. What was before them is in a checkpoint.
        start = min((v for v in log.checkpoints if first <= v < number), default=None)
        if start is None:
            return []
        _apply(files, (a for name in log.checkpoints[start] for a in checkpoint_actions(location, name)))
        first = start
    total = sums[first] = sum(map(hash, files))
    for version in range(first + 1, number + 1):
        total += _apply(files, read_entry(location, version))
        sums[version] = total
    return [version for version in sums if 0 <= version < number and sums[version] == total]


def contradictory_commits(location: str, numbers: Collection[int]) -> list[int]:
    """The commits among these that remove files which the table did not have, or add files that it already had.

    Spark reads their change feed from just these files, so it shows rows that did not change. delta-rs may spell the
    path of a file differently from Spark, and Spark then sees another file. Empty if the log no longer shows it.
    """
    if not numbers:
        return []
    log = log_files(location, files_for(location, max(min(numbers) - 1, 0)))
    start = max((version for version in log.checkpoints if version < min(numbers)), default=-1)
    files: set[_File] = set()
    contradictory = []
    try:
        if start >= 0:
            _apply(files, (a for name in log.checkpoints[start] for a in checkpoint_actions(location, name)))
        for version in range(start + 1, max(numbers) + 1):
            actions = read_entry(location, version)
            if version in numbers and not _is_true(files, [action for action in actions if _changes(action)]):
                contradictory.append(version)
            _apply(files, actions)
    except StoreError:  # the store refuses, which is no answer
        raise
    except (OSError, ValueError):  # a commit is missing or truncated
        return []
    return contradictory


def _is_true(files: set[_File], actions: list[dict[str, Any]]) -> bool:
    removed = {_key(action["remove"]) for action in actions if action.get("remove")}
    added = {_key(action["add"]) for action in actions if action.get("add")}
    return removed <= files and added.isdisjoint(files - removed)


def _changes(action: Mapping[str, Any]) -> bool:
    file = action.get("add") or action.get("remove") or {}
    return bool(file.get("dataChange"))


def _apply(files: set[_File], actions: Iterable[Mapping[str, Any]]) -> int:
    """Apply the actions of one version to a set of files. Return how much the sum of the files' hashes has grown."""
    rows = list(actions)
    removed = {_key(row["remove"]) for row in rows if row.get("remove")} & files
    added = {_key(row["add"]) for row in rows if row.get("add")}
    files -= removed
    grown = sum(map(hash, added - files)) - sum(map(hash, removed))
    files |= added
    return grown


def _key(file: Mapping[str, Any]) -> _File:
    """The identity of a file in the log: its path and deletion vector (Delta protocol, "Action Reconciliation")."""
    vector = file.get("deletionVector") or {}
    return file["path"], "".join(str(vector.get(part) or "") for part in ("storageType", "pathOrInlineDv", "offset"))


# --- by time ----------------------------------------------------------------------------------------------------------


def _milliseconds(session: SparkSession | None, parameters: Mapping[str, Any]) -> int | None:
    """The time that a restore names, None if it names none. A text without a zone is in the session's zone."""
    named = as_count(parameters.get("datetime"))
    if named is not None:
        return named
    if session is None:
        return None
    stamp = str(parameters.get("timestamp") or "")
    try:
        row = session.range(1).selectExpr(f"unix_millis(try_cast({sql.string(stamp)} AS TIMESTAMP)) AS at").collect()[0]
    except SPARK_ERRORS:
        return None
    milliseconds = row["at"]
    return None if milliseconds is None else int(milliseconds)


def _version_at(location: str, number: int, milliseconds: int) -> int | None:
    """The newest version before `number` that was committed at or before that time."""
    for version in range(number - 1, -1, -1):
        try:
            commit = read_commit(location, version, ())
        except FileNotFoundError:
            return None
        if int(commit.timestamp.timestamp() * 1000) <= milliseconds:
            return version
    return None


# --- the commits that count -------------------------------------------------------------------------------------------


def commits_in_force(session: SparkSession | None, location: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The commit information of the commits that no restore has undone, newest first, as far back as the log goes.

    If there is no table, nothing.
    """
    newest = newest_version(location)
    number = -1 if newest is None else newest
    while number >= 0:
        info = commit_info(location, number)
        if info is None:
            return
        if info.get("operation") != RESTORE:
            yield number, info
            number -= 1
            continue
        target = restored_version(session, location, number, info.get("operationParameters"))
        if target is None:
            return
        number = target
