"""The epochs of a sink's writer as the log of its table has them; no Spark.

Here belongs what the commits say of epochs. What Delta itself records of them is `transaction`'s.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipeline.delta.log.commits import Commit, commit_note, commit_versions, read_commit_file

# How far back the newest epoch of a writer is looked for.
SEARCHED_COMMITS = 1_000


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """A commit that carries an epoch; `batch` is the token of the batch that was written."""

    writer: str
    epoch: int
    version: int
    timestamp: dt.datetime
    operation: str
    rows: int | None
    batch: str | None


def epochs(location: str, writer: str | None = None) -> list[Epoch]:
    """The epochs in the log, oldest commit first, of one writer or of all; empty where there is no table.

    Raises:
        OSError: the storage can't be read.
    """
    return [found for found in _read(location, commit_versions(location)) if writer in (None, found.writer)]


def last_epoch(location: str, writer: str) -> tuple[int, int]:
    """The greatest epoch of a writer among the newest commits, 0 where none has one, and the newest version.

    -1 is the version of no table.

    Raises:
        OSError: the storage can't be read.
    """
    there = commit_versions(location)
    newest = there[-1] if there else -1
    for found in _read(location, reversed(there[-SEARCHED_COMMITS:])):
        if found.writer == writer:  # of one writer a later commit has the greater epoch
            return found.epoch, newest
    return 0, newest


def epoch_of_another_batch(location: str, writer: str, batch: str, after: int, until: int) -> Epoch | None:
    """The commit of the greatest epoch of a writer between two versions that is of another batch; None where none is.

    Raises:
        OSError: the storage can't be read.
    """
    there = (found for found in _read(location, range(after + 1, until + 1)) if found.writer == writer)
    return max((found for found in there if found.batch != batch), key=lambda found: found.epoch, default=None)


def _read(location: str, numbers: Iterable[int]) -> Iterator[Epoch]:
    """The commits of these versions that carry an epoch; one that was cleaned up in the meantime is passed over."""
    for number in numbers:
        try:
            commit = read_commit_file(location, number, ())
        except FileNotFoundError:
            continue
        found = _epoch_of(commit)
        if found is not None:
            yield found


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
