"""The timestamps of commits, as Delta uses them for time travel, and how long commits are kept. No Spark.

Here belong the choice between the in-commit timestamp and the modification time of a commit's file, and the reading of
the properties that are intervals of time.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.delta.log.checkpoints import all_files, newest_files, version_of_commit
from pipeline.delta.log.commits import commit_info
from pipeline.delta.log.entry import as_count
from pipeline.delta.log.snapshot import table_facts
from pipeline.delta.storage.file_system import File, side_by_side

# Whether a table has in-commit timestamps, and since which version (Delta protocol, "In-Commit Timestamps").
_TIMED = "delta.enableInCommitTimestamps"
_TIMED_SINCE = "delta.inCommitTimestampEnablementVersion"
_MILLISECOND = 1_000_000  # in nanoseconds
LOG_RETENTION = "delta.logRetentionDuration"
FILE_RETENTION = "delta.deletedFileRetentionDuration"
TRANSACTION_RETENTION = "delta.setTransactionRetentionDuration"
_DEFAULT_LOG_RETENTION = dt.timedelta(days=30)
_DEFAULT_FILE_RETENTION = dt.timedelta(days=7)
_UNITS = {
    "week": dt.timedelta(weeks=1), "day": dt.timedelta(days=1), "hour": dt.timedelta(hours=1),
    "minute": dt.timedelta(minutes=1), "second": dt.timedelta(seconds=1),
}  # fmt: skip
_FOR_EVER_SECONDS = 1_000 * 365 * 86_400
_INTERVAL_PART = re.compile(rf"(\d+) +({'|'.join(_UNITS)})s?\b")


def interval(properties: Mapping[str, str], name: str) -> dt.timedelta | None:
    """The interval of time in a table property, as Delta reads it. If it is not set or can't be parsed, None.

    One of more than a thousand years is shortened to that, so that a time that lies so far back has a date.
    """
    value = next((value for key, value in properties.items() if key.lower() == name.lower()), "")
    parts = _INTERVAL_PART.findall(value.lower())
    if not parts:
        return None
    seconds = sum(int(count) * int(_UNITS[unit].total_seconds()) for count, unit in parts)
    return dt.timedelta(seconds=min(seconds, _FOR_EVER_SECONDS))


def log_retention(properties: Mapping[str, str]) -> dt.timedelta:
    """How long the entries of the log are kept. If the property is not set or can't be parsed, Delta's default."""
    retention = interval(properties, LOG_RETENTION)
    return _DEFAULT_LOG_RETENTION if retention is None else retention


def file_retention(properties: Mapping[str, str]) -> dt.timedelta:
    """How long removed files are kept. If the property is not set or can't be parsed, Delta's default."""
    retention = interval(properties, FILE_RETENTION)
    return _DEFAULT_FILE_RETENTION if retention is None else retention


@dataclass(frozen=True)
class TimedCommit:
    """A commit's commitInfo, and its timestamp in milliseconds since the epoch."""

    version: int
    info: Mapping[str, Any]
    milliseconds: int


def timed_commits(
    location: str, limit: int | None = None, listed: Iterable[File] | None = None
) -> list[TimedCommit] | None:
    """The newest commits, the oldest first. If `limit` is None, all that the log still has.

    If the log has no commit, or the metadata at the newest version is gone or in a form that this does not read, None.

    Args:
        listed: the files of the log, as `newest_files` returns them. If None, they are listed.

    Raises:
        OSError, ValueError: the storage can't be read.
        DamagedTableError: an entry is not as a commit writes it.
    """
    newest = list(newest_files(location) if listed is None else listed)
    files = _commits(newest)
    facts = table_facts(location, max(files), newest) if files else None
    if facts is None:
        return None
    first = 0 if limit is None else max(max(files) - limit + 1, 0)
    if min(files) > first:
        files = _commits(all_files(location, first)) or files
    numbers = sorted(number for number in files if number >= first)

    def info(number: int) -> Mapping[str, Any] | None:
        return commit_info(location, number, files[number])

    read = zip(numbers, side_by_side(info, numbers, location), strict=True)
    infos = {number: info for number, info in read if info is not None}  # the others were cleaned up since
    times = _times(files, infos, _timed_from(facts.properties, numbers))
    return [TimedCommit(number, infos[number], milliseconds) for number, milliseconds in times]


def _commits(listed: Iterable[File]) -> dict[int, File]:
    return {number: file for file in listed if (number := version_of_commit(file.name)) is not None}


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
