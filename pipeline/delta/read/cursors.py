"""How far a consumer has read its sources: the cursors in force, read from its own transaction log.

Here belongs the reading of the consumer's log, without Spark. What must be read of a source after a cursor is the
subject of `verdict`.

Only the consumer's own commits carry the cursors. The newest commit that carries some holds those in force. After a
restore of the consumer, the cursors in force are those that were in force at the restored version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from pipeline.delta.log.checkpoints import all_files, commit_name
from pipeline.delta.log.commits import commit_info, commit_note
from pipeline.delta.log.mark import Cursor, Cursors
from pipeline.delta.read.restores import RESTORE, restored_version
from pipeline.delta.read.verdict import Reason
from pipeline.delta.storage.file_system import File, local_folder
from pipeline.delta.table.open_table import TableState


@dataclass(frozen=True, kw_only=True)
class EffectiveCursors:
    """The cursors in force at a version of the consumer. If there are none, `missing` is the reason.

    `oldest` is the oldest entry of the consumer's log that this follows from. If the log no longer has such an entry,
    it is None. `needs_spark` is true if nothing is known because only Spark can read the time that a restore names.
    """

    number: int
    read_at: int
    sources: Mapping[str, Cursor] = field(default_factory=dict)
    missing: Reason = Reason.FIRST_RUN
    oldest: int | None = field(default=None, compare=False)
    needs_spark: bool = field(default=False, compare=False)

    def followed_by(self, sources: Mapping[str, Cursor]) -> Cursors:
        """The cursors that the next commit puts in force."""
        return Cursors(number=self.number + 1, read_at=self.read_at, sources=sources)


@dataclass(frozen=True)
class _Entry:
    """What a commit says of cursors. `restored` is the version that a restore brings back, None if unknown."""

    is_restore: bool
    restored: int | None
    cursors: Cursors | None


def effective_cursors(session: SparkSession | None, state: TableState | None) -> EffectiveCursors:
    """The cursors in force in the observed table of a consumer. If it was never written, there are none.

    Args:
        session: tells the time zone of a restore to a time without one. If None, such a restore leads to no cursors.
    """
    if state is None:
        return EffectiveCursors(number=0, read_at=-1)
    log = _ConsumerLog(session, state)
    number, was_restored, needs_spark = state.version, False, False
    while number >= 0:
        entry = log.entry(number)
        if entry is None or (entry.is_restore and entry.restored is None):
            needs_spark = entry is not None and session is None
            break
        if entry.is_restore:
            assert entry.restored is not None  # noqa: S101
            number, was_restored = min(entry.restored, number - 1), True
        elif entry.cursors is None:
            number -= 1
        else:
            return _trusted(log, number, entry.cursors, state.version)
    else:
        missing = Reason.CONSUMER_RESTORED if was_restored else Reason.FIRST_RUN
        return EffectiveCursors(number=0, read_at=state.version, missing=missing, oldest=log.oldest)
    # Greater than the number that any commit can have used.
    return EffectiveCursors(
        number=state.version, read_at=state.version, missing=Reason.CURSOR_LOST, needs_spark=needs_spark
    )


def _trusted(log: _ConsumerLog, number: int, cursors: Cursors, latest: int) -> EffectiveCursors:
    """The cursors of a commit. If a restore lies between the version at which it read its cursors and it, none."""
    between = [log.entry(version) for version in range(cursors.read_at + 1, number)]
    if any(entry is None or entry.is_restore for entry in between):
        missing = Reason.CURSOR_LOST if None in between else Reason.CONSUMER_RESTORED
        oldest = None if None in between else log.oldest
        return EffectiveCursors(number=latest, read_at=latest, missing=missing, oldest=oldest)
    return EffectiveCursors(number=cursors.number, read_at=latest, sources=cursors.sources, oldest=log.oldest)


class _ConsumerLog:
    """The entries of a log. An entry is read when it is asked for. `oldest` is the oldest that was read."""

    def __init__(self, session: SparkSession | None, state: TableState) -> None:
        self._session, self._state = session, state
        self._all: dict[str, File] | None = None
        self.oldest = state.version

    def entry(self, number: int) -> _Entry | None:
        """The facts of that commit. If the log no longer has it, None."""
        info = commit_info(self._state.location, number, self._state.entry(number) or self._older(number))
        if info is None:
            return None
        self.oldest = min(number, self.oldest)
        if info.get("operation") == RESTORE:
            parameters = info.get("operationParameters")
            return _Entry(True, restored_version(self._session, self._state.location, number, parameters), None)
        return _Entry(False, None, Cursors.from_note(commit_note(info.get("userMetadata"))))

    def _older(self, number: int) -> File | None:
        """The file of an entry in a bucket that is older than those of the state. If it is not listed, None."""
        if local_folder(self._state.location) is not None:
            return None
        if self._all is None:
            self._all = {file.name: file for file in all_files(self._state.location)}
        return self._all.get(commit_name(number))
