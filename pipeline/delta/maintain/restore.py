"""Bringing a table back to an earlier version.

Here belongs the restore: what it would change, and doing it. A restore brings back rows, schema and properties, and
forgets nothing of the transaction identifiers, so what we declare is applied again afterwards and the incarnation of
the table is written down: a batch that the restore has undone is written again when it is replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from pipeline.dataset import Dataset
from pipeline.delta import sql
from pipeline.delta.log.mark import (
    AfterCommit,
    CommitNote,
    Mark,
    marked_commit,
    own_commit,
    private_session,
    write_confs,
)
from pipeline.delta.log.replay import Replay, replay
from pipeline.delta.log.snapshot import local_folder, table_facts
from pipeline.delta.maintain.exchange import Exchange, exchange
from pipeline.delta.read.version import ReadOptions, resolve_version
from pipeline.delta.spark.doors import door, storage_failure
from pipeline.delta.spark.failures import LOST_OR_REFUSED, failure_of
from pipeline.delta.table.open_table import CONSTRAINT_PREFIX, TableState, declared_properties, require_table
from pipeline.delta.write.result import WriteResult, commit_result
from pipeline.delta.write.transaction import INCARNATION
from pipeline.errors import CommitConflictError, PipelineError, VersionVacuumedError

_FEATURE = "feature "


@dataclass(frozen=True, kw_only=True)
class RestorePlan:
    """What a restore would do; nothing where the table is at `target` already.

    `flips` are properties and features by name, as (now, then), and None for one that is not set. `reapplied` are the
    properties and checks of the declaration that the restore would take away and that are set again after it.
    `exchange` is what comes and goes, None on a storage whose log is only read by Spark.
    """

    dataset: str
    location: str
    version: int
    target: int
    flips: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    reapplied: Mapping[str, str] = field(default_factory=dict)
    exchange: Exchange | None = None

    @property
    def changes(self) -> bool:
        """Whether the restore would make a commit."""
        return self.target != self.version


@dataclass(frozen=True, kw_only=True)
class RestoreResult:
    """A restore that was done: the version of its commit, and the newest one after the declaration was applied again.

    Both are the version that was there where nothing was to be restored; `written` is None then. `exchange` is what
    came and went with the commit; None as in the plan.
    """

    plan: RestorePlan
    version: int
    latest: int
    written: WriteResult | None = None
    exchange: Exchange | None = None


@door
def plan_restore(session: SparkSession, dataset: Dataset, location: str, pin: ReadOptions) -> RestorePlan:
    """What restoring to the pinned version, or to the newest at or before the pinned time, would do. No commit.

    Raises:
        TableNotFoundError: it was never written.
        VersionNotFoundError: the log does not hold such a version.
        VersionVacuumedError: it holds it, but files of it are gone.
    """
    state = require_table(session, dataset, location)
    target = resolve_version(session, dataset, location, pin)
    if target == state.version:
        return RestorePlan(dataset=dataset.name, location=location, version=state.version, target=target)
    then: Mapping[str, str | None] | None = None
    folder = local_folder(location)
    if folder is not None:
        old = replay(location, target)
        vacuumed = None if old is None else _vacuumed(dataset, location, old)
        if vacuumed is not None:
            raise vacuumed
        facts = table_facts(folder, target)
        if facts is not None:
            then = dict(facts.properties) | {f"{_FEATURE}{name}": "in force" for name in facts.features}
    now = dict(state.properties) | {f"{_FEATURE}{name}": "in force" for name in state.features}
    flips = {
        name: (now.get(name), old)
        for name, old in sorted({**dict.fromkeys(now), **(now if then is None else then)}.items())
        if now.get(name) != old and (old is not None or not name.startswith(_FEATURE))  # a protocol is never lowered
    }
    return RestorePlan(
        dataset=dataset.name, location=location, version=state.version, target=target, flips=flips,
        reapplied={} if then is None else _missing(dataset, then), exchange=exchange(location, state.version, target),
    )  # fmt: skip


def _vacuumed(dataset: Dataset, location: str, old: Replay) -> VersionVacuumedError | None:
    """The error that names the files of a version that are gone; None where all are there, or lie elsewhere."""
    folder = local_folder(location)
    missing = tuple(p for p in old.files if folder is not None and "://" not in p and not (folder / p).exists())
    if not missing:
        return None
    return VersionVacuumedError(dataset=dataset.name, location=location, version=old.version, missing=missing)


def _missing(dataset: Dataset, properties: Mapping[str, str | None]) -> dict[str, str]:
    """The declared properties and checks that these lack."""
    there = {name.lower(): value for name, value in properties.items()}
    return {n: v for n, v in declared_properties(dataset).items() if (there.get(n.lower()) or "").lower() != v.lower()}


@door
def restore(session: SparkSession, dataset: Dataset, plan: RestorePlan, note: CommitNote) -> RestoreResult:
    """Do what the plan says: one commit that restores, and one for each thing that is applied again.

    A process that is killed between them leaves a table that is restored; replayed batches are written again all the
    same, since the restore itself stands in the log.

    Raises:
        CommitConflictError: another commit came first; nothing was restored.
        VersionVacuumedError: files of the version are gone by now; nothing was restored.
        StorageError: the restore failed.
        AfterCommitError: the table is restored, and what is declared could not be applied again.
    """
    if not plan.changes:
        return RestoreResult(plan=plan, version=plan.version, latest=plan.version)
    table = sql.path_table(plan.location)
    with private_session(session, write_confs(note, session, dataset.fingerprint)) as clone:
        try:
            clone.sql(f"RESTORE TABLE {table} TO VERSION AS OF {plan.target}").collect()
        except LOST_OR_REFUSED as error:
            reason = failure_of(error).summary
            commit = marked_commit(session, dataset.name, plan.location, note.mark, dataset.partition_by, reason=reason)
            if commit is None:
                raise _translated(error, dataset, plan) from error
        else:
            commit = own_commit(clone, dataset.name, plan.location, note.mark, dataset.partition_by)
    if commit is None:  # another restore to the same version came first, and there is nothing left to do
        latest = require_table(session, dataset, plan.location).version
        return RestoreResult(plan=plan, version=latest, latest=latest)
    with AfterCommit(dataset.name, plan.location, commit.version):
        state = _apply_declared(session, dataset, plan, commit.version, note)
        written = commit_result(dataset, state, note.mark, commit)
        return RestoreResult(
            plan=plan, version=commit.version, latest=state.version, written=written,
            exchange=exchange(plan.location, commit.version - 1, commit.version),
        )  # fmt: skip


def _apply_declared(
    session: SparkSession, dataset: Dataset, plan: RestorePlan, restored: int, note: CommitNote
) -> TableState:
    table = sql.path_table(plan.location)
    missing = _missing(dataset, require_table(session, dataset, plan.location).properties)
    checks = {n.removeprefix(CONSTRAINT_PREFIX): v for n, v in missing.items() if n.startswith(CONSTRAINT_PREFIX)}
    properties = {n: v for n, v in missing.items() if not n.startswith(CONSTRAINT_PREFIX)} | {
        INCARNATION: str(restored)
    }
    pairs = ", ".join(f"{sql.string(name)} = {sql.string(value)}" for name, value in properties.items())
    after = CommitNote(mark=Mark(writer=note.mark.writer), run_id=note.run_id)
    with private_session(session, write_confs(after, session, dataset.fingerprint)) as clone:
        clone.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({pairs})").collect()
        for name, condition in checks.items():
            clone.sql(f"ALTER TABLE {table} ADD CONSTRAINT {sql.identifier(name)} CHECK ({condition})").collect()
    return require_table(session, dataset, plan.location)


def _translated(error: Exception, dataset: Dataset, plan: RestorePlan) -> PipelineError:
    failure = failure_of(error)
    if failure.is_conflict:
        return CommitConflictError(dataset=dataset.name, location=plan.location, condition=failure.condition)
    # Delta names none of the files that it misses.
    old = None if local_folder(plan.location) is None else replay(plan.location, plan.target)
    vacuumed = None if old is None else _vacuumed(dataset, plan.location, old)
    if vacuumed is not None:
        return vacuumed
    return storage_failure(dataset.name, plan.location, failure, nothing_committed=True)
