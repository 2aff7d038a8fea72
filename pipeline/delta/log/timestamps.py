"""The timestamps of commits, as Delta uses them for time travel. No Spark.

Here belongs the choice between the in-commit timestamp and the modification time of a commit's file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.delta.log.commits import commit_info, version_of_commit
from pipeline.delta.log.entry import as_count
from pipeline.delta.log.snapshot import table_facts
from pipeline.delta.storage.file_system import File, list_files

# Whether a table has in-commit timestamps, and since which version (Delta protocol, "In-Commit Timestamps").
_TIMED = "delta.enableInCommitTimestamps"
_TIMED_SINCE = "delta.inCommitTimestampEnablementVersion"
_MILLISECOND = 1_000_000  # in nanoseconds


@dataclass(frozen=True)
class TimedCommit:
    """A commit's commitInfo, and its timestamp in milliseconds since the epoch."""

    version: int
    info: Mapping[str, Any]
    milliseconds: int


def timed_commits(location: str, limit: int | None = None) -> list[TimedCommit] | None:
    """The newest commits, the oldest first. If `limit` is None, all that the log still has.

    If the log has no commit, or the metadata at the newest version is gone or in a form that this does not read, None.

    Raises:
        OSError, ValueError: the storage can't be read.
        DamagedTableError: an entry is not as a commit writes it.
    """
    listed = list_files(f"{location}/_delta_log")
    files = {number: file for file in listed if (number := version_of_commit(file.name)) is not None}
    facts = table_facts(location, max(files), listed) if files else None
    if facts is None:
        return None
    first = min(files) if limit is None else max(max(files) - limit + 1, 0)
    numbers = sorted(number for number in files if number >= first)
    # An entry may be cleaned up since it was listed.
    infos = {number: info for number in numbers if (info := commit_info(location, number)) is not None}
    times = _times(files, infos, _timed_from(facts.properties, numbers))
    return [TimedCommit(number, infos[number], milliseconds) for number, milliseconds in times]


def _timed_from(properties: Mapping[str, str], numbers: Sequence[int]) -> int:
    """The first version with an in-commit timestamp. If there is none, one more than the greatest of these."""
    by_name = {name.lower(): value for name, value in properties.items()}
    if (by_name.get(_TIMED.lower()) or "").lower() != "true":
        return max(numbers) + 1
    return as_count(by_name.get(_TIMED_SINCE.lower())) or 0


def _times(
    files: Mapping[int, File], infos: Mapping[int, Mapping[str, Any]], timed_from: int
) -> Iterator[tuple[int, int]]:
    """The timestamp of each version in milliseconds: the in-commit one, or the modification time of its file.

    Copied files may have modification times out of order. As Delta does, each is made later than the one before it.
    """
    previous = None
    for number, info in infos.items():
        if number >= timed_from and isinstance(info.get("inCommitTimestamp"), int):
            yield number, info["inCommitTimestamp"]
            continue
        changed = files[number].changed_nanoseconds // _MILLISECOND
        previous = changed if previous is None or changed > previous else previous + 1
        yield number, previous
