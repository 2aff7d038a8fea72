"""The epochs of a sink's writer in the log of its table. No Spark.

Here belong the epochs in our notes of commits. `transaction` has Delta's own record of them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipeline.delta.log.commits import Commit, commit_note, commit_versions, newest_versions, read_commit

# The number of newest commits that are searched for a writer's newest epoch.
SEARCHED_COMMITS = 1_000


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """A commit with an epoch. `batch` is the token of the written batch."""

    writer: str
    epoch: int
    version: int
    timestamp: dt.datetime
    operation: str
    rows: int | None
    batch: str | None


def epochs(location: str, writer: str | None = None) -> list[Epoch]:
    """The epochs in the log, of one writer or of all, the oldest commit first. If there is no table, empty.

    Raises:
        OSError: the storage can't be read.
    """
    return [epoch for epoch in _read(location, commit_versions(location)) if writer in (None, epoch.writer)]


def last_epoch(location: str, writer: str) -> tuple[int, int]:
    """The greatest epoch of a writer among the newest commits, and the newest version.

    If no commit has an epoch of the writer, the epoch is 0. If there is no table, the version is -1.

    Raises:
        OSError: the storage can't be read.
    """
    versions = newest_versions(location, SEARCHED_COMMITS)
    newest = versions[-1] if versions else -1
    for epoch in _read(location, reversed(versions)):
        if epoch.writer == writer:  # of one writer a later commit has the greater epoch
            return epoch.epoch, newest
    return 0, newest


def epoch_of_another_batch(location: str, writer: str, batch: str, after: int, until: int) -> Epoch | None:
    """The commit of another batch with a writer's greatest epoch, above `after` and up to `until`. If none, None.

    Raises:
        OSError: the storage can't be read.
    """
    of_writer = (epoch for epoch in _read(location, range(after + 1, until + 1)) if epoch.writer == writer)
    return max((epoch for epoch in of_writer if epoch.batch != batch), key=lambda epoch: epoch.epoch, default=None)


def _read(location: str, numbers: Iterable[int]) -> Iterator[Epoch]:
    """The commits of these versions that have an epoch. A commit that was cleaned up meanwhile is skipped."""
    for number in numbers:
        try:
            commit = read_commit(location, number, ())
        except FileNotFoundError:
            continue
        epoch = _epoch_of(commit)
        if epoch is not None:
            yield epoch


def _epoch_of(commit: Commit) -> Epoch | None:
    note = commit_note(commit.user_metadata) or {}
    mark = note.get("mark") or {}
    if mark.get("epoch") is None:
        return None
    return Epoch(
        writer=mark["writer"],
        epoch=mark["epoch"],
        version=commit.version,
        timestamp=commit.timestamp,
        operation=commit.operation,
        rows=commit.rows_written,
        batch=note.get("run_id"),
    )
