"""The restore of a table to an earlier version.

Here belong the plan of a restore and the restore itself. A restore brings back rows, schema and properties, but keeps
the transaction identifiers. So the declaration is applied again afterwards, and the table's new incarnation is
recorded: if a batch that the restore has undone is replayed, it is written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from pipeline.dataset import Dataset, TableRef
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
from pipeline.delta.log.snapshot import table_facts
from pipeline.delta.maintain.exchange import Exchange, exchange
from pipeline.delta.read.version import ReadOptions, resolve_version
from pipeline.delta.spark.doors import door, storage_failure
from pipeline.delta.spark.failures import LOST_OR_REFUSED, failure_of, has_ended
from pipeline.delta.storage.file_system import missing_files
from pipeline.delta.table.open_table import CONSTRAINT_PREFIX, TableState, declared_properties, require_table
from pipeline.delta.write.result import WriteResult, commit_result
from pipeline.delta.write.transaction import INCARNATION
from pipeline.errors import CommitConflictError, PipelineError, VersionVacuumedError

_FEATURE = "feature "


@dataclass(frozen=True, kw_only=True)
class RestorePlan:
    """The plan of a restore. If the table is already at `target`, it is empty.

    `flips` are the changes of properties and features, by name, as (now, then); None is a value that is not set.
    `reapplied` are the declared properties and checks that the restore removes and that are set again after it.
    `exchange` is the change of files and rows. If only Spark can read the log, it is None.
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
        """Whether the restore makes a commit."""
        return self.target != self.version


@dataclass(frozen=True, kw_only=True)
class RestoreResult:
    """A finished restore: the version of its commit, and the newest one after the declaration was applied again.

    If there was nothing to restore, both are the current version, and `written` is None. `exchange` is the commit's
    change of files and rows. As in the plan, it may be None.
    """

    plan: RestorePlan
    version: int
    latest: int
    written: WriteResult | None = None
    exchange: Exchange | None = None


@door
def plan_restore(session: SparkSession, table: TableRef, pin: ReadOptions) -> RestorePlan:
    """The plan of a restore to the pinned version, or to the newest at or before the pinned time. No commit.

    Raises:
        TableNotFoundError: the table was never written.
        VersionNotFoundError: the log does not have such a version.
        VersionVacuumedError: files of the version were removed.
    """
    state = require_table(session, table)
    target = resolve_version(session, table, pin)
    if target == state.version:
        return RestorePlan(dataset=table.name, location=table.location, version=state.version, target=target)
    then: Mapping[str, str | None] | None = None
    old = replay(table.location, target)
    vacuumed = None if old is None else _vacuumed(table, old)
    if vacuumed is not None:
        raise vacuumed
    facts = table_facts(table.location, target)
    if facts is not None:
        then = dict(facts.properties) | {f"{_FEATURE}{name}": "in force" for name in facts.features}
    now = dict(state.properties) | {f"{_FEATURE}{name}": "in force" for name in state.features}
    flips = {
        name: (now.get(name), old)
        for name, old in sorted({**dict.fromkeys(now), **(now if then is None else then)}.items())
        if now.get(name) != old and (old is not None or not name.startswith(_FEATURE))  # a protocol is never lowered
    }
    return RestorePlan(
        dataset=table.name, location=table.location, version=state.version, target=target, flips=flips,
        reapplied={} if then is None else _missing(table.dataset, then),
        exchange=exchange(table.location, state.version, target),
    )  # fmt: skip


def _vacuumed(table: TableRef, old: Replay) -> VersionVacuumedError | None:
    """The error with the missing files of a version. If none is missing, None."""
    missing = missing_files(table.location, (path for path in old.files if "://" not in path))
    if not missing:
        return None
    return table.error(VersionVacuumedError, version=old.version, missing=missing)


def _missing(dataset: Dataset, properties: Mapping[str, str | None]) -> dict[str, str]:
    """The declared properties and checks that these lack."""
    actual = {name.lower(): value for name, value in properties.items()}
    return {n: v for n, v in declared_properties(dataset).items() if (actual.get(n.lower()) or "").lower() != v.lower()}


@door
def restore(session: SparkSession, dataset: Dataset, plan: RestorePlan, note: CommitNote) -> RestoreResult:
    """Execute the plan: one commit restores, one sets the properties again, and each check is added by its own commit.

    If the process is killed in between, the table is restored, and replayed batches are still written again, since the
    log has the restore.

    Raises:
        CommitConflictError: another commit came first; nothing was restored.
        VersionVacuumedError: files of the version were removed since; nothing was restored.
        StorageError: the restore failed.
        AfterCommitError: the table is restored, but the declaration could not be applied again.
    """
    if not plan.changes:
        return RestoreResult(plan=plan, version=plan.version, latest=plan.version)
    table = TableRef(dataset, plan.location)
    with private_session(session, write_confs(note, session, dataset.fingerprint)) as clone:
        try:
            clone.sql(f"RESTORE TABLE {sql.path_table(table.location)} TO VERSION AS OF {plan.target}").collect()
        except LOST_OR_REFUSED as error:
            commit = marked_commit(
                session, dataset.name, plan.location, note.mark, dataset.partition_by,
                reason=failure_of(error).summary, ended=has_ended(error),
            )  # fmt: skip
            if commit is None:
                raise _translated(error, table, plan.target) from error
        else:
            commit = own_commit(clone, dataset.name, plan.location, note.mark, dataset.partition_by)
    if commit is None:  # another restore to the same version came first, so Delta had nothing to commit
        latest = require_table(session, table).version
        return RestoreResult(plan=plan, version=latest, latest=latest)
    with AfterCommit(dataset.name, plan.location, commit.version):
        state = _apply_declared(session, table, commit.version, note)
        written = commit_result(dataset, state, note.mark, commit)
        return RestoreResult(
            plan=plan, version=commit.version, latest=state.version, written=written,
            exchange=exchange(plan.location, commit.version - 1, commit.version),
        )  # fmt: skip


def _apply_declared(session: SparkSession, table: TableRef, restored: int, note: CommitNote) -> TableState:
    path = sql.path_table(table.location)
    missing = _missing(table.dataset, require_table(session, table).properties)
    checks = {n.removeprefix(CONSTRAINT_PREFIX): v for n, v in missing.items() if n.startswith(CONSTRAINT_PREFIX)}
    properties = {n: v for n, v in missing.items() if not n.startswith(CONSTRAINT_PREFIX)} | {
        INCARNATION: str(restored)
    }
    pairs = ", ".join(f"{sql.string(name)} = {sql.string(value)}" for name, value in properties.items())
    after = CommitNote(mark=Mark(writer=note.mark.writer), run_id=note.run_id)
    with private_session(session, write_confs(after, session, table.dataset.fingerprint)) as clone:
        clone.sql(f"ALTER TABLE {path} SET TBLPROPERTIES ({pairs})").collect()
        for name, condition in checks.items():
            clone.sql(f"ALTER TABLE {path} ADD CONSTRAINT {sql.identifier(name)} CHECK ({condition})").collect()
    return require_table(session, table)


def _translated(error: Exception, table: TableRef, target: int) -> PipelineError:
    failure = failure_of(error)
    if failure.is_conflict:
        return table.error(CommitConflictError, condition=failure.condition)
    # Delta's error does not name the missing files.
    old = replay(table.location, target)
    vacuumed = None if old is None else _vacuumed(table, old)
    if vacuumed is not None:
        return vacuumed
    return storage_failure(table.name, table.location, failure, nothing_committed=True)
