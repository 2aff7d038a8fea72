"""Which versions of a table can be read: those whose state the log has, and whose files exist. No Spark.

Here belongs the search for the oldest of them. The reading of a version belongs to `version`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote

from pipeline.delta.log.checkpoints import all_files, commit_name, log_files, usable_checkpoints
from pipeline.delta.log.commits import read_entry
from pipeline.delta.log.entry import is_below_table, vector_file
from pipeline.delta.storage.file_system import File, missing_files, side_by_side

_ENTRIES_AT_ONCE = 100


@dataclass(frozen=True, kw_only=True)
class ReadableVersions:
    """The versions of a table that can be read, from the oldest to `newest`.

    From `in_log` on, the log has the state of every version. From `with_files` on, the files of every version exist
    too, as far as the log shows it: files that the newest version has are not searched.
    """

    in_log: int
    with_files: int
    newest: int


def readable_versions(
    location: str,
    listed: Sequence[File] | None = None,
    removals: Mapping[int, Sequence[Mapping[str, Any]]] | None = None,
) -> ReadableVersions | None:
    """The readable versions of a table. If the log does not have the state of its newest version, None.

    Args:
        listed: all files of the log. If None, they are listed.
        removals: the `remove` actions of entries that were read already. The others are read.

    Raises:
        OSError, ValueError: the storage can't be read.
        DamagedTableError: an entry is not as a commit writes it.
    """
    files = all_files(location) if listed is None else listed
    first = oldest_in_log(files)
    newest = log_files(location, files).latest
    if first is None or newest is None:
        return None
    by_name = {file.name: file for file in files}
    removed = _removed_files(location, by_name, range(first + 1, newest + 1), removals or {})
    missing = {*missing_files(location, dict.fromkeys(path for paths in removed.values() for path in paths))}
    lost = (version for version, paths in removed.items() if not missing.isdisjoint(paths))
    return ReadableVersions(in_log=first, with_files=max(lost, default=first), newest=newest)


def oldest_in_log(listed: Iterable[File]) -> int | None:
    """The oldest version from which on the log has the state of every version. If it lacks the newest one's, None.

    Args:
        listed: all files of the log.
    """
    files = list(listed)
    commits = set(log_files("", files).commits)
    checkpoints = usable_checkpoints(files)
    newest = max((*commits, *checkpoints), default=None)
    if newest is None:
        return None
    first = newest
    while first - 1 in commits:
        first -= 1
    # A checkpoint has the state of its version, with or without the entry.
    starts = [version for version in checkpoints if version >= first - 1]
    return 0 if first == 0 and 0 in commits else min(starts, default=None)


def _removed_files(
    location: str, files: Mapping[str, File], versions: range, known: Mapping[int, Sequence[Mapping[str, Any]]]
) -> dict[int, list[str]]:
    """The files that each of these commits removes and that are below the table, with their deletion vectors."""
    removed = {
        number: [path for one in known[number] for path in paths_of(one)] for number in versions if number in known
    }
    entry = partial(_entry, location, files)
    for start in range(versions.start, versions.stop, _ENTRIES_AT_ONCE):
        portion = range(start, min(start + _ENTRIES_AT_ONCE, versions.stop))
        numbers = [number for number in portion if number not in known and commit_name(number) in files]
        for number, actions in zip(numbers, side_by_side(entry, numbers, location), strict=True):
            removed[number] = [path for action in actions for path in paths_of(action.get("remove"))]
    return removed


def _entry(location: str, files: Mapping[str, File], number: int) -> list[dict[str, Any]]:
    return read_entry(location, number, file=files.get(commit_name(number)))


def paths_of(removed: Mapping[str, Any] | None) -> Iterator[str]:
    """The file of an `add` or `remove` action and its deletion vector, as far as they are below the table."""
    if not removed:
        return
    vector = removed.get("deletionVector")
    for path in (unquote(removed["path"]), vector_file(vector) if vector else None):
        if path is not None and is_below_table(path):
            yield path
