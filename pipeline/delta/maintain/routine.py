"""The routine maintenance of a table, each step only if it is due: from a checkpoint to a vacuum.

Here belongs when a step is due, which the log shows without Spark (delta#3106). The steps belong to `maintain` and
`clean_log`. If no step is due that needs Spark, none is started. Nothing is removed that a consumer of the table's
changes still has to read: the step waits for it, and the others are made.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipeline.dataset import MaintenancePolicy, TableRef
from pipeline.delta.inspect.describe import CHECKPOINT_INTERVAL, MANY_FILES_PER_PARTITION, ROWS_KEPT
from pipeline.delta.inspect.maintenance_record import MaintenanceRecord, write_maintenance_record
from pipeline.delta.log.commits import instant
from pipeline.delta.log.entry import as_count
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.log.timestamps import TimedCommit, file_retention, timed_commits
from pipeline.delta.maintain.checkpoint import Checkpoints
from pipeline.delta.maintain.clean_log import CleanLogPlan, clean_log, plan_clean_log
from pipeline.delta.maintain.maintain import (
    checkpoint_at,
    optimize,
    record_incarnation,
    remove_tombstones,
    vacuum,
)
from pipeline.delta.maintain.sizes import TableSizes, expired_tombstones, small_file_bytes, table_sizes
from pipeline.delta.read.restores import RESTORE
from pipeline.delta.spark.doors import door
from pipeline.delta.table.open_table import TableState, require_table
from pipeline.delta.write.transaction import INCARNATION
from pipeline.errors import PipelineError

DEFAULT_POLICY = MaintenancePolicy()
_STEPS = ("checkpoint", "files_joined", "tombstones_expired", "files_vacuumed", "log_files_removed")
_VACUUM, _VACUUM_END = "VACUUM START", "VACUUM END"
# Operations that change no rows and yet leave files behind.
_REWRITES = frozenset({"OPTIMIZE", "REORG", "ROW TRACKING BACKFILL"})


@dataclass(frozen=True, kw_only=True)
class Maintained:
    """The routine maintenance of a table or, unless it is `applied`, its plan. What was not due is 0 or None.

    `checkpoint` is the version of a checkpoint that was written. `files_joined` small files were joined; in the plan of
    a clustered table it is None, since only Delta knows. `tombstones_expired` is the number of tombstones that were
    removed, None if the log does not count them. `files_vacuumed` and `log_files_removed` were removed, and
    `bytes_reclaimed` is their size. `waits` are the reasons why files or entries past their retention are kept. `sizes`
    are those afterwards. `failure` is the error of a step after others that were made.
    """

    dataset: str
    location: str
    applied: bool
    checkpoint: int | None = None
    files_joined: int | None = 0
    tombstones_expired: int | None = 0
    files_vacuumed: int = 0
    log_files_removed: int = 0
    bytes_reclaimed: int = 0
    waits: tuple[str, ...] = ()
    sizes: TableSizes
    failure: PipelineError | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing was due."""
        return not _has_steps({name: getattr(self, name) for name in _STEPS})

    def document(self) -> dict[str, Any]:
        """The maintenance in JSON's types."""
        document = asdict(replace(self, failure=None))
        document["sizes"]["small_file_ratio"] = self.sizes.small_file_ratio
        document["failure"] = None if self.failure is None else self.failure.message()
        return document

    def record(self, run_id: str) -> MaintenanceRecord:
        """The record of a maintenance that is applied."""
        failed = () if self.failure is None else (f"a step failed: {self.failure.message()}",)
        return MaintenanceRecord(
            name=self.dataset, path=self.location, run_id=run_id,
            recorded_at=dt.datetime.now(dt.timezone.utc).isoformat(), version=self.sizes.version,
            checkpoint=self.checkpoint, files_joined=self.files_joined or 0,
            tombstones_expired=self.tombstones_expired or 0, files_vacuumed=self.files_vacuumed,
            log_files_removed=self.log_files_removed, bytes_reclaimed=self.bytes_reclaimed,
            waits=(*self.waits, *failed), files=self.sizes.files, bytes=self.sizes.bytes,
            small_file_ratio=self.sizes.small_file_ratio, log_entries=self.sizes.log_entries,
            oldest_readable_version=self.sizes.oldest_readable,
        )  # fmt: skip


def write_record(done: Maintained, run_id: str, root: str) -> str | None:
    """Write the record of a maintenance that is applied, and return its path. If nothing was due, None.

    Raises:
        PipelineError: the record could not be written. If the maintenance has a failure, that one is raised.
    """
    if done.is_idle:
        return None
    try:
        return write_maintenance_record(done.record(run_id), root=root)
    except PipelineError as error:
        raise done.failure or error from error


@door
def maintain_table(
    table: TableRef, checkpoints: Checkpoints, *,
    consumers: Sequence[TableRef] = (), apply: bool = False, run_id: str, now: dt.datetime | None = None,
) -> Maintained:  # fmt: skip
    """Make each step of a table's maintenance that its policy allows and that is due.

    If a step fails after others were made, the result has its `failure`: the caller records the others and raises it.

    Args:
        checkpoints: gives the session too. It is opened only if a step needs it.
        consumers: the consumers of this dataset's changes.
        apply: make the steps; without it they are only planned.
        run_id: the run, for the marks of commits.
        now: the time by which files and entries are past their retention. If None, the present.

    Raises:
        TableNotFoundError: the table was never written.
        StorageError: a step failed, and none was made.
        CommitConflictError: another commit has changed the files that were joined or removed, and no step was made.
        CursorUnreadableError: what a consumer needs is not known, and no step was made.
        DamagedTableError: the log or a file is damaged, and no step was made.
    """
    return _Routine(table, checkpoints, consumers, now or dt.datetime.now(dt.timezone.utc), run_id).run(apply=apply)


class _Routine:
    """The steps of one table. Each step returns the fields of the result that it sets."""

    def __init__(
        self, table: TableRef, checkpoints: Checkpoints, consumers: Sequence[TableRef], now: dt.datetime, run_id: str
    ) -> None:
        self._table, self._checkpoints, self._consumers = table, checkpoints, consumers
        self._now, self._run_id = now, run_id
        self._policy = table.dataset.maintenance or DEFAULT_POLICY
        self._waits: list[str] = []
        self._reclaimed = 0

    def run(self, *, apply: bool) -> Maintained:
        """The steps in their order."""
        state = require_table(None, self._table)
        sizes = table_sizes(self._table, state)
        fields: dict[str, Any] = {}
        failure: PipelineError | None = None
        try:
            self._make_steps(state, sizes, fields, apply=apply)
        except PipelineError as error:
            if not (apply and _has_steps(fields)):
                raise
            failure = error
        if apply and _has_steps(fields):
            try:
                sizes = table_sizes(self._table, require_table(None, self._table))
            except PipelineError as error:  # the sizes are those from before
                failure = failure or error
        return Maintained(
            dataset=self._table.name, location=self._table.location, applied=apply, sizes=sizes,
            bytes_reclaimed=self._reclaimed, waits=tuple(self._waits), failure=failure, **fields,
        )  # fmt: skip

    def _make_steps(self, state: TableState, sizes: TableSizes, fields: dict[str, Any], *, apply: bool) -> None:
        """Make the steps that are due, and add what each has done to `fields`."""
        cleaning = self._planned_clean_log()
        if self._policy.checkpoint and _lags(sizes, state):
            fields["checkpoint"] = self._write_checkpoint(state, apply=apply)
        # Before any commit: one that completes Delta's interval of checkpoints lets Delta clean the log by itself.
        if isinstance(cleaning, CleanLogPlan):
            fields["log_files_removed"] = self._clean_log(cleaning, apply=apply)
        if self._is_scattered(sizes):
            fields["files_joined"] = self._join(state, sizes, apply=apply)
        fields["tombstones_expired"] = self._expire_tombstones(state, apply=apply)
        if self._policy.vacuum and _vacuum_is_due(self._table.location, state, self._now):
            fields["files_vacuumed"] = self._vacuum(apply=apply)
        if isinstance(cleaning, PipelineError):  # the other steps are made
            raise cleaning

    def _write_checkpoint(self, state: TableState, *, apply: bool) -> int:
        """Write a checkpoint of the newest version. Before it, a restore that no property records is recorded."""
        is_unrecorded = _has_unrecorded_restore(state)
        if not apply:
            return state.version + is_unrecorded
        if is_unrecorded:
            record_incarnation(self._checkpoints.session, self._table)
        version = require_table(None, self._table).version
        checkpoint_at(self._table, version, self._checkpoints)
        return version

    def _is_scattered(self, sizes: TableSizes) -> bool:
        least = self._policy.small_file_ratio
        return least is not None and sizes.joinable >= MANY_FILES_PER_PARTITION and sizes.small_file_ratio >= least

    def _join(self, state: TableState, sizes: TableSizes, *, apply: bool) -> int | None:
        if not apply:
            return None if state.cluster_by else sizes.joinable
        limit = small_file_bytes(state.properties)
        return optimize(self._checkpoints.session, self._table, self._note, below_bytes=limit).files_removed

    @property
    def _note(self) -> CommitNote:
        return CommitNote(mark=Mark(writer=f"{self._table.name}/{self._run_id}"), run_id=self._run_id)

    def _expire_tombstones(self, state: TableState, *, apply: bool) -> int | None:
        expired = expired_tombstones(self._table, state, self._now)
        if apply and expired.states:
            remove_tombstones(self._checkpoints.session, self._table, self._note, expired.states)
        return expired.rows

    def _vacuum(self, *, apply: bool) -> int:
        session = self._checkpoints.session
        result = vacuum(session, self._table, consumers=self._consumers, apply=apply, waits=True)
        self._waits += [
            f"{one.consumer} has read to version {one.version} and needs {len(one.files)} files"
            for one in result.needed
        ]
        if result.needed:
            return 0
        self._reclaimed += result.bytes
        return len(result.files)

    def _planned_clean_log(self) -> CleanLogPlan | PipelineError | None:
        """The plan before any other step, so that it is that of a dry run; or why there is none."""
        if not self._policy.clean_log:
            return None
        try:
            return plan_clean_log(self._table, consumers=self._consumers, now=self._now)
        except PipelineError as error:
            return error

    def _clean_log(self, plan: CleanLogPlan, *, apply: bool) -> int:
        if apply:
            clean_log(plan, lambda version: checkpoint_at(self._table, version, self._checkpoints))
        self._waits += [str(need) for need in plan.needed if need.by not in ("rows", "pointer")]
        self._reclaimed += plan.bytes
        return len(plan.files)


def _has_steps(fields: Mapping[str, int | None]) -> bool:
    """Whether a step was due, by the fields of a result. A checkpoint has a version, and the others count files."""
    counts = [count for name, count in fields.items() if name != "checkpoint"]
    return fields.get("checkpoint") is not None or any(count is None or count > 0 for count in counts)


def _lags(sizes: TableSizes, state: TableState) -> bool:
    """Whether so many commits follow the newest checkpoint that Delta would write one."""
    return sizes.commits_since_checkpoint >= (
        as_count(state.properties.get("delta.checkpointInterval")) or CHECKPOINT_INTERVAL
    )


def _has_unrecorded_restore(state: TableState) -> bool:
    recorded = as_count(state.properties.get(INCARNATION)) or 0
    commits = timed_commits(state.location) or ()
    return any(commit.version > recorded and commit.info.get("operation") == RESTORE for commit in commits)


def _vacuum_is_due(location: str, state: TableState, now: dt.datetime) -> bool:
    """Whether a commit since the newest complete vacuum, or since the start of the log, may have left files to remove.

    A commit that only adds files counts too, since a writer that was killed meanwhile has left files without a commit.
    """
    kept = file_retention(state.properties)
    commits = timed_commits(location) or ()
    begun = _complete_vacuum(commits)
    searched = None if begun is None else instant(begun.milliseconds) - kept
    return any(
        _leaves_files(commit) and instant(commit.milliseconds) <= now - kept
        and (searched is None or instant(commit.milliseconds) > searched)
        for commit in commits
    )  # fmt: skip


def _complete_vacuum(commits: Iterable[TimedCommit]) -> TimedCommit | None:
    """The commit with which the newest vacuum began that has come to its end. If there is none, None."""
    begun = newest = None
    for commit in commits:
        operation, parameters = commit.info.get("operation"), commit.info.get("operationParameters") or {}
        if operation == _VACUUM:
            begun = commit
        elif operation == _VACUUM_END and str(parameters.get("status")).upper() != "FAILED":
            begun, newest = None, begun or newest
    return newest


def _leaves_files(commit: TimedCommit) -> bool:
    operation = commit.info.get("operation")
    return operation not in ROWS_KEPT or operation in _REWRITES
