"""The clean-up of a log: the removal of entries and checkpoints that are past their retention and that nothing needs.

Here belong the plan of a clean-up and its execution. `log_needs` has the readers of old entries. The plan follows the
protocol ("Metadata Cleanup"): it cuts at midnight (UTC), keeps the newest version that is older than the cut, and
begins what is left with a checkpoint and the entry of its version.

Delta cleans up too, with each checkpoint that it writes, by the retention alone.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import unquote

from pipeline.dataset import TableRef
from pipeline.delta.log.checkpoints import (
    LOG,
    POINTER,
    SIDECARS,
    all_files,
    first_compacted,
    incomplete_parts,
    is_checkpoint_file,
    last_checkpoint,
    log_files,
    usable_checkpoints,
    version_in_name,
    version_of_commit,
)
from pipeline.delta.log.commits import commit_file, commit_info
from pipeline.delta.log.counts import TableFiles, table_files
from pipeline.delta.log.entry import as_count, damaged_file, of_dataset
from pipeline.delta.log.integrity import require_sound, require_sound_entries, sidecars_of
from pipeline.delta.log.snapshot import table_facts
from pipeline.delta.log.timestamps import FILE_RETENTION, TimedCommit, interval, log_retention, timed_commits
from pipeline.delta.maintain.log_needs import LogNeed, log_needs
from pipeline.delta.read.readable import readable_versions
from pipeline.delta.read.restores import RESTORE
from pipeline.delta.spark.doors import door
from pipeline.delta.storage.file_system import File, list_files, remove_file
from pipeline.delta.table.open_table import TableState, require_table
from pipeline.errors import PlanOutdatedError, StorageError

# Delta's default of `delta.checkpointInterval`.
_CHECKPOINT_INTERVAL = 10
_MILLISECOND = 1_000_000  # in nanoseconds
_PROTECTION = "checkpointProtection"
_PROTECTED_BEFORE = "delta.requireCheckpointProtectionBeforeVersion"
# The order of removal within a version: an entry goes before the checkpoint that has its state.
_KINDS = (".json", ".crc", ".checkpoint")


@dataclass(frozen=True, kw_only=True)
class CleanLogPlan:
    """The plan of a clean-up. If there is nothing to remove, `files` is empty.

    `cut` is the time in UTC up to which entries are past the retention. The log has the state of every version from
    `oldest` to `version`, and afterwards from `kept_from` on. From `readable_from` on, the data files of every version
    exist too. `checkpoint` is the version of a checkpoint that must be written first; None if the log has one. `files`
    are names below the log's folder in the order of their removal, `bytes` is their size. `needed` are the needs that
    keep entries past the retention.
    """

    dataset: str
    location: str
    table_id: str
    version: int
    cut: dt.datetime
    oldest: int
    kept_from: int
    readable_from: int
    checkpoint: int | None = None
    files: tuple[str, ...] = ()
    bytes: int = 0
    needed: tuple[LogNeed, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CleanLogResult:
    """A clean-up, or, unless it is `applied`, its plan alone."""

    plan: CleanLogPlan
    applied: bool

    def document(self) -> dict[str, Any]:
        """The result in JSON's types."""
        return asdict(self.plan) | {"cut": self.plan.cut.isoformat(), "applied": self.applied}


@door
def plan_clean_log(
    table: TableRef, *, consumers: Sequence[TableRef] = (), force: bool = False, now: dt.datetime | None = None
) -> CleanLogPlan:
    """The plan of a clean-up of a table's log. Nothing is changed.

    Entries are needed by consumers of the table's changes, by the table's own cursors and streams, and to recognise
    repeated writes after a restore. A table with the feature `checkpointProtection` is cleaned up to the protected
    version in one step, or not at all.

    Args:
        consumers: the consumers of this dataset's changes.
        force: keep no entries for consumers or for the table's own cursors. They then read their sources whole.
        now: the time by which entries are past the retention. If None, the present.

    Raises:
        TableNotFoundError: the table was never written.
        StorageError: the log can't be listed, or has a form that only Spark reads.
        DamagedTableError: the log is damaged.
        CursorUnreadableError: the entries that a consumer needs are not known.
    """
    state, time = require_table(None, table), now or dt.datetime.now(dt.timezone.utc)
    with of_dataset(table.name):
        listed = all_files(table.location)
        commits, readable = timed_commits(table.location, listed=listed), readable_versions(table.location, listed)
        if not commits or readable is None:
            raise table.error(StorageError, reason="its log has no complete checkpoint and lacks its first entries")
        cut = _cut(state.properties, time)
        plan = CleanLogPlan(
            dataset=table.name, location=table.location, table_id=state.table_id, version=state.version, cut=cut,
            oldest=readable.in_log, kept_from=readable.in_log, readable_from=readable.with_files,
        )  # fmt: skip
        expired = _newest_expired(commits, listed, cut)
        if expired is None or expired <= commits[0].version:
            return plan
        needs = log_needs(table, state, commits, consumers, expired=expired, now=time, force=force)
        return _Log(state, listed, plan).planned(expired, needs)


def _cut(properties: Mapping[str, str], now: dt.datetime) -> dt.datetime:
    """The time up to which entries are past the retention. Files are declared to be kept no longer than entries."""
    retention = max(log_retention(properties), interval(properties, FILE_RETENTION) or dt.timedelta())
    return (now - retention).astimezone(dt.timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)


def _newest_expired(commits: Sequence[TimedCommit], listed: Iterable[File], cut: dt.datetime) -> int | None:
    """The newest of the oldest commits that are past the retention, by both of their times. If there is none, None.

    A copied table keeps its in-commit timestamps, and its files have new modification times, or none, which is 1970.
    """
    limit = cut.timestamp() * 1000
    changed = {version_of_commit(file.name): file.changed_nanoseconds // _MILLISECOND for file in listed}
    newest = None
    for commit in commits:
        modified = changed.get(commit.version, 0)
        if not modified or max(commit.milliseconds, modified) > limit:
            break
        newest = commit.version
    return newest


class _Log:
    """The files of a log, and the choice of those to remove."""

    def __init__(self, state: TableState, listed: Sequence[File], plan: CleanLogPlan) -> None:
        self._state, self._listed, self._plan = state, listed, plan
        self._commits = sorted(n for file in listed if (n := version_of_commit(file.name)) is not None)
        self._checkpoints = usable_checkpoints(listed)

    def planned(self, expired: int, needs: Sequence[LogNeed]) -> CleanLogPlan:
        """The plan without the files that are needed."""
        needs = [*needs, *self._of_pointer()]
        limit = min((expired, *(need.version for need in needs)))
        start, written = self._start(limit)
        if start is not None and start < self._protected_before:
            start, written = (limit, limit) if limit >= self._protected_before else (None, None)
            if start is None:
                needs.append(LogNeed(by="feature", name=_PROTECTION, version=0))
        needed = sorted((need for need in needs if need.version < expired), key=lambda need: need.version)
        plan = replace(self._plan, needed=tuple(needed))
        if start is None or start <= self._commits[0]:
            return plan
        self._refuse_damage(start)
        removed = [*self._before(start), *self._unused_sidecars(start)]
        return replace(
            plan, kept_from=start, readable_from=max(plan.readable_from, start), checkpoint=written,
            files=tuple(file.name for file in removed), bytes=sum(file.size for file in removed),
        )  # fmt: skip

    def _of_pointer(self) -> Iterator[LogNeed]:
        """The need of the checkpoint that `_last_checkpoint` names: some readers open no other."""
        named = last_checkpoint(self._state.location)
        if named is not None and named in self._checkpoints:
            yield LogNeed(by="pointer", name=POINTER, version=named)

    def _start(self, limit: int) -> tuple[int | None, int | None]:
        """The version of the checkpoint that is to be the first, and the same version if it must be written.

        A checkpoint is written if otherwise more entries were left than Delta itself leaves between two checkpoints.
        """
        newest = max((number for number in self._checkpoints if self._commits[0] <= number <= limit), default=None)
        interval_ = as_count(self._state.properties.get("delta.checkpointInterval")) or _CHECKPOINT_INTERVAL
        if newest is None or limit - newest >= interval_:
            return (limit, limit) if limit > self._commits[0] else (None, None)
        return newest, None

    @property
    def _protected_before(self) -> int:
        """The version before which the history may only be removed completely. Without the feature, 0."""
        if _PROTECTION not in self._state.features:
            return 0
        return as_count(self._state.properties.get(_PROTECTED_BEFORE)) or 0

    def _refuse_damage(self, start: int) -> None:
        """Refuse to remove anything if what would be left can't be read.

        Raises:
            DamagedTableError: an entry is missing or damaged, or the checkpoint is.
        """
        location, kept = self._state.location, range(start, self._state.version + 1)
        missing = sorted({*kept} - {*self._commits})
        if missing:
            raise damaged_file(commit_file(location, missing[0]), "it is missing, and the clean-up would keep it")
        require_sound(location, start, self._listed)
        require_sound_entries(location, kept, self._listed)
        if start in self._checkpoints:
            _refuse_other_files(location, start, self._listed)

    def _before(self, start: int) -> Iterator[File]:
        """The files of the versions before a checkpoint, the oldest version first."""
        by_version: dict[int, list[File]] = {}
        for file in self._listed:
            version, compacted = version_in_name(file.name), first_compacted(file.name)
            if version is not None and version < start:
                by_version.setdefault(version, []).append(file)
            elif compacted is not None and compacted <= start and _is_old(file, self._plan.cut):
                by_version.setdefault(compacted, []).append(file)
        for version in sorted(by_version):
            yield from sorted(by_version[version], key=_order)

    def _unused_sidecars(self, start: int) -> Iterator[File]:
        """The old sidecar files that no checkpoint names which is left (Delta protocol, "Metadata Cleanup")."""
        location = self._state.location
        sidecars = [file for file in list_files(f"{location}/{LOG}/{SIDECARS}") if _is_old(file, self._plan.cut)]
        if not sidecars:
            return
        used = _used_sidecars(location, start, self._listed)
        for file in sidecars:
            if _visible(file.name) not in used:
                yield File(f"{SIDECARS}/{file.name}", file.size, file.changed_nanoseconds)


def _used_sidecars(location: str, start: int, listed: Iterable[File]) -> set[str]:
    """The sidecar files that checkpoints from a version on name. One version may have several checkpoints."""
    files = {file.name: file for file in listed if file.size}
    parts = {name for names in incomplete_parts(files).values() for name in names}
    return {
        sidecar
        for name, file in files.items()
        if is_checkpoint_file(name) and name not in parts and (version_in_name(name) or 0) >= start
        for sidecar in sidecars_of(location, file)
    }


def _order(file: File) -> tuple[int, bool, str]:
    """The place of a file in the removal of its version. Hadoop's hidden checksum of a file follows the file."""
    visible = _visible(file.name)
    kind = next((place for place, kind in enumerate(_KINDS) if visible[20:].startswith(kind)), len(_KINDS))
    return kind, visible != file.name, visible


def _visible(name: str) -> str:
    """The name of the file that a hidden checksum of Hadoop is about. For any other file, its own."""
    return name[1:].removesuffix(".crc") if name.startswith(".") and name.endswith(".crc") else name


def _is_old(file: File, cut: dt.datetime) -> bool:
    return file.changed_nanoseconds // _MILLISECOND <= cut.timestamp() * 1000


@door
def clean_log(plan: CleanLogPlan, write_checkpoint: Callable[[int], object]) -> CleanLogResult:
    """Remove the files of the plan, the oldest first. If it is stopped, the log is readable from the next version on.

    Args:
        write_checkpoint: writes a checkpoint of a version of the table. It is called if the plan needs one.

    Raises:
        PlanOutdatedError: the log is no longer that of the plan; nothing was removed.
        StorageError: a file can't be removed; the files before it were.
    """
    if not plan.files:
        return CleanLogResult(plan=plan, applied=True)
    with of_dataset(plan.dataset):
        _refuse_outdated(plan)
        if plan.checkpoint is not None and plan.checkpoint not in usable_checkpoints(all_files(plan.location)):
            write_checkpoint(plan.checkpoint)
        listed = all_files(plan.location)
        if plan.kept_from not in usable_checkpoints(listed):
            raise _outdated(plan, f"the log has no complete checkpoint of version {plan.kept_from}")
        require_sound(plan.location, plan.kept_from, listed)
        if plan.checkpoint is not None:
            _refuse_other_files(plan.location, plan.checkpoint, listed)
        used = {f"{SIDECARS}/{name}" for name in _used_sidecars(plan.location, plan.kept_from, listed)}
        if not used.isdisjoint(plan.files):
            raise _outdated(plan, "a checkpoint names a sidecar file that was to be removed")
    for name in plan.files:
        remove_file(f"{plan.location}/{LOG}/{name}")
    return CleanLogResult(plan=plan, applied=True)


def _refuse_other_files(location: str, start: int, listed: Sequence[File]) -> None:
    """Refuse a checkpoint that has other files than the entries before it: without them nothing could correct it.

    Raises:
        DamagedTableError: it can't be read, or has other files.
    """
    names = usable_checkpoints(listed)[start]
    own = table_files(location, start, listed, with_state=True)
    entries = [file for file in listed if file.name not in names]
    replayed = table_files(location, start, entries, with_state=True)
    if own is None or (replayed is not None and _names_of(replayed) != _names_of(own)):
        raise damaged_file(f"{location}/{LOG}/{names[0]}", "it does not have the files of the entries before it")


def _names_of(table: TableFiles) -> Counter[tuple[str, str]]:
    """The names of a version's files with their deletion vectors. A checkpoint may spell their folders differently."""
    return Counter((unquote(path).rpartition("/")[2], vector) for path, vector in table.files)


def _refuse_outdated(plan: CleanLogPlan) -> None:
    """Refuse a plan of another table, or of a table that was replaced by an older copy or restored since.

    By the versions that a restore brings back, repeated writes are recognised and cursors are known.
    """
    listed = all_files(plan.location)
    newest = log_files(plan.location, listed).latest
    facts = None if newest is None else table_facts(plan.location, newest, listed)
    if newest is None or facts is None or facts.table_id != plan.table_id:
        raise _outdated(plan, "another table is in its place")
    if newest < plan.version:
        raise _outdated(plan, f"the newest version is {newest}")
    for number in range(plan.version + 1, newest + 1):
        if (commit_info(plan.location, number) or {}).get("operation") == RESTORE:
            raise _outdated(plan, f"version {number} is a restore")


def _outdated(plan: CleanLogPlan, reason: str) -> PlanOutdatedError:
    return PlanOutdatedError(dataset=plan.dataset, location=plan.location, version=plan.version, reason=reason)
