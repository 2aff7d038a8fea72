"""The plan of a repeated run: what each of its writes read and wrote, and whether all of it can be read again.

Here belong the plan and every reason against it, found without Spark and before anything starts: from the records of
the run, from the logs of its tables, from the Dagster instance that ran it and from the project's definitions. `rerun`
follows the plan.
"""

from __future__ import annotations

import datetime as dt
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version as installed
from typing import Any

from dagster import AssetKey, DagsterEventType, DagsterInstance, DagsterRun, RepositoryDefinition

from pipeline.dataset import Dataset, TableRef, table_location
from pipeline.dataset.side_tables import QUARANTINE_SUFFIX, REJECTED_SUFFIX
from pipeline.delta.inspect.manifest import Manifest
from pipeline.delta.inspect.record import DatasetRecord
from pipeline.delta.log.commits import commit_note
from pipeline.delta.read.pinned import Observed, PinnedChanges, newest_of, pinned_verdict, problem_of_version
from pipeline.delta.read.verdict import VerdictKind
from pipeline.delta.table.open_table import state_at_location
from pipeline.delta.table.undeclared import dataset_of
from pipeline.errors import PipelineError
from pipeline.errors.listing import listed
from pipeline.orchestration.commands.reports import step_key
from pipeline.orchestration.commands.rerun_step import RepeatedStep
from pipeline.orchestration.io.pins import Pins
from pipeline.settings import Settings

_SIDE = (QUARANTINE_SUFFIX, REJECTED_SUFFIX)


@dataclass(frozen=True, kw_only=True)
class PlannedSource:
    """A source that a write read at `version`, and reads again. `newest` is the newest version of its table now.

    If it was read as changes, `changes` is that read. `problem` is the reason why it can't be read again.
    """

    dataset: str
    version: int
    newest: int | None
    changes: PinnedChanges | None = None
    problem: str | None = None

    def document(self) -> dict[str, Any]:
        """The source in JSON's types."""
        changes = None if self.changes is None else asdict(self.changes) | {"kind": self.changes.kind.value}
        return {
            "dataset": self.dataset, "version": self.version, "newest": self.newest, "changes": changes,
            "problem": self.problem,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PlannedTable:
    """A table that the run has written, up to `version`.

    The repeated write begins with the rows of `before`. If that is None, it begins without rows. `differences` are
    those of the code and the declaration, `unpinned` the inputs that are no tables, of which no version is known.
    """

    dataset: str
    location: str
    partitions: str | None
    operation: str
    version: int
    before: int | None
    sources: tuple[PlannedSource, ...]
    code_version: str | None
    code_version_now: str | None
    differences: tuple[str, ...] = ()
    unpinned: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def all_problems(self) -> tuple[str, ...]:
        """All reasons why the write can't be repeated, with the dataset."""
        own = (f"{self.dataset}: {problem}" for problem in self.problems)
        of_sources = (
            f"{self.dataset}: its source {source.dataset}: {source.problem}"
            for source in self.sources
            if source.problem is not None
        )
        return (*own, *of_sources)

    def document(self) -> dict[str, Any]:
        """The table in JSON's types."""
        values = {name: value for name, value in vars(self).items() if name not in ("location", "sources")}
        lists = {name: list(value) for name, value in values.items() if isinstance(value, tuple)}
        return values | lists | {"sources": [source.document() for source in self.sources]}


@dataclass(frozen=True, kw_only=True)
class RerunPlan:
    """What is repeated, and every reason against it. With a problem nothing is started.

    `environment` has the software that differs, by name: the version then and now. `left_out` are the assets of the run
    that are not repeated, since they are no tables of this root.
    """

    run_id: str
    tables: tuple[PlannedTable, ...]
    environment: Mapping[str, tuple[str, str]]
    left_out: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def all_problems(self) -> tuple[str, ...]:
        """All reasons why the run can't be repeated."""
        return (*self.problems, *(problem for table in self.tables for problem in table.all_problems))

    def pins(self, root: str) -> Pins:
        """The pins of the repeated run, which writes below `root`."""
        return Pins(
            root=root,
            versions={table.dataset: {one.dataset: one.version for one in table.sources} for table in self.tables},
            changes={
                table.dataset: {one.dataset: one.changes for one in table.sources if one.changes is not None}
                for table in self.tables
            },
        )

    def document(self) -> dict[str, Any]:
        """The plan in JSON's types."""
        return {
            "run_id": self.run_id,
            "tables": [table.document() for table in self.tables],
            "environment": {name: {"then": then, "now": now} for name, (then, now) in self.environment.items()},
            "not_repeated": list(self.left_out),
            "problems": list(self.all_problems),
        }


def plan_rerun(
    manifest: Manifest, settings: Settings, repository: RepositoryDefinition, instance: DagsterInstance
) -> tuple[RerunPlan, RepeatedStep]:
    """The plan that repeats the writes in a manifest that is not empty, and the assets that it repeats.

    Nothing is started and nothing is changed.

    Raises:
        StorageError: the storage can't be read.
    """
    run_id = manifest.commits[0].run_id if manifest.commits else manifest.maintenance[0].run_id
    run = instance.get_run_by_id(run_id)
    by_name: dict[str, list[DatasetRecord]] = {}
    for record in manifest.commits:
        by_name.setdefault(record.name, []).append(record)
    names = [name for name in by_name if not any(name.removesuffix(s) in {*by_name} - {name} for s in _SIDE)]
    materialized = set() if run is None else _materialized(instance, run)
    failed = frozenset() if run is None else _failed(instance, run) - {step_key(_key(name)) for name in materialized}
    step = RepeatedStep(repository=repository, instance=instance, run=run, names=frozenset(names), failed=failed)
    tables = tuple(_planned(by_name[name], settings.root, step) for name in names)
    plan = RerunPlan(
        run_id=run_id,
        tables=tables,
        environment=_environment(manifest.commits[0].runtime, settings) if manifest.commits else {},
        left_out=tuple(sorted(materialized - by_name.keys())),
        problems=tuple(_problems_of_run(run_id, run, names)),
    )
    return plan, step


def _problems_of_run(run_id: str, run: DagsterRun | None, names: Sequence[str]) -> Iterator[str]:
    if not names:
        yield "it has no record of a write, and so nothing to repeat"
    elif run is None:
        yield (
            f"the Dagster instance has no run {run_id}, so its configuration, tags and partitions are not known. Set "
            "DAGSTER_HOME to the folder of the instance that ran it. A run that was deleted there, and a write that "
            "was no run of Dagster, can't be repeated"
        )
    elif not run.is_finished:
        yield f"it has not ended: its status is {run.status.value}"


def _materialized(instance: DagsterInstance, run: DagsterRun) -> set[str]:
    """The names of the assets that the run has materialized."""
    records = instance.get_records_for_run(run.run_id, of_type=DagsterEventType.ASSET_MATERIALIZATION).records
    events = (record.event_log_entry.asset_materialization for record in records)
    return {"/".join(event.asset_key.path) for event in events if event is not None}


def _failed(instance: DagsterInstance, run: DagsterRun) -> frozenset[str]:
    """The keys of the steps that have failed in the run."""
    records = instance.get_records_for_run(run.run_id, of_type=DagsterEventType.STEP_FAILURE).records
    return frozenset(record.event_log_entry.step_key or "" for record in records)


def _planned(records: Sequence[DatasetRecord], root: str, step: RepeatedStep) -> PlannedTable:
    """The plan of one table. Of several records of a run, all but one are of attempts without a commit."""
    writing = [record for record in records if _is_own_commit(record)]
    record = (writing or list(records))[-1]
    problems = list(_problems_of_record(record, len({one.version for one in writing})))
    before, location = _version_before(record), table_location(root, record.name)
    if not problems:
        problems += _problems_of_table(record, location, before)
        problems += step.problems(record)
    return PlannedTable(
        dataset=record.name,
        location=location,
        partitions=record.partitions,
        operation=record.commit["operation"] if _is_own_commit(record) else "no commit",
        version=record.version,
        before=before,
        sources=tuple(_source(name, version, record, root, step) for name, version in record.sources.items()),
        code_version=record.code_version,
        code_version_now=step.code_version(record.name),
        differences=tuple(_differences(record, step)),
        unpinned=step.unpinned(record),
        problems=tuple(problems),
    )


def _is_own_commit(record: DatasetRecord) -> bool:
    """Whether the record's version is a commit of its write: made by it, or by an attempt that could not report it."""
    if record.committed:
        return True
    mark = (commit_note(record.commit.get("user_metadata")) or {}).get("mark") or {}
    own = (record.mark.get("writer"), record.mark.get("epoch"))
    return own[1] is not None and (mark.get("writer"), mark.get("epoch")) == own


def _version_before(record: DatasetRecord) -> int | None:
    """The version whose rows the write found. If they don't matter, or if there was none, None."""
    if not _is_own_commit(record):
        return record.version
    replaces_all = record.write_policy.get("mode") == "replace" and record.partitions is None and not record.changes
    return None if replaces_all or record.version == 0 else record.version - 1


def _problems_of_record(record: DatasetRecord, commits: int) -> Iterator[str]:
    note = commit_note(record.commit.get("user_metadata")) or {}
    if commits > 1:
        yield f"the run has committed to it {commits} times, and a repeated run would begin with another state"
    if _is_own_commit(record) and note.get("stream"):
        yield "a stream has written it, and what its source had is not pinned"
    elif note.get("asset") is None and _is_own_commit(record):
        yield "no asset has written it"


def _problems_of_table(record: DatasetRecord, location: str, before: int | None) -> Iterator[str]:
    """The versions of the written table that are needed and gone."""
    for version in sorted({record.version if before is None else before, record.version}):
        problem = _problem(record.name, location, version, record, record.table_id)
        if problem is not None:
            yield problem


def _problem(name: str, location: str, version: int, record: DatasetRecord, table_id: str | None) -> str | None:
    at = dt.datetime.fromisoformat(record.recorded_at)
    try:
        return problem_of_version(name, location, Observed(version=version, at=at, table_id=table_id))
    except PipelineError as error:
        return error.message()


def _source(name: str, version: int, record: DatasetRecord, root: str, step: RepeatedStep) -> PlannedSource:
    location = table_location(root, name)
    facts = record.changes.get(name)
    pin = None if facts is None else _pinned_changes(facts)
    problem = _problem(name, location, version, record, _consumed_table(name, record))
    if problem is None and pin is not None and pin.kind is not VerdictKind.FULL:
        problem = _problem_of_changes(name, location, pin, step)
    return PlannedSource(
        dataset=name, version=version, newest=newest_of(name, location), changes=pin, problem=problem
    )  # fmt: skip


def _consumed_table(name: str, record: DatasetRecord) -> str | None:
    """The id of the table that a consumer's cursors name. For a source that was read whole, None."""
    cursors = (commit_note(record.commit.get("user_metadata")) or {}).get("cursors") or {}
    cursor = (cursors.get("sources") or {}).get(name) or {}
    return str(cursor["table_id"]) if _is_own_commit(record) and "table_id" in cursor else None


def _pinned_changes(facts: Mapping[str, Any]) -> PinnedChanges:
    return PinnedChanges(kind=VerdictKind(facts["verdict"]), version=facts["version"], after=facts["after"])


def _problem_of_changes(name: str, location: str, pin: PinnedChanges, step: RepeatedStep) -> str | None:
    """Why the changes can't be read again as they were."""
    try:
        dataset = step.declared(name) or _dataset_at(name, location)
        if dataset is not None:
            pinned_verdict(None, TableRef(dataset, location), pin)
    except PipelineError as error:
        return error.message()
    return None


def _dataset_at(name: str, location: str) -> Dataset | None:
    state = state_at_location(None, name, location)
    return None if state is None else dataset_of(name, state)


def _differences(record: DatasetRecord, step: RepeatedStep) -> Iterator[str]:
    """The differences of code and declaration between the run and now."""
    now = step.code_version(record.name)
    if now != record.code_version:
        yield f"code version: {record.code_version or 'none'} then, {now or 'none'} now"
    declared = step.declared(record.name)
    if declared is not None and declared.fingerprint != record.fingerprint:
        yield f"schema: {record.fingerprint[:12]} then, {declared.fingerprint[:12]} now"
    mode = None if declared is None else type(declared.write).__name__.lower()
    if mode is not None and mode != record.write_policy.get("mode"):
        yield f"write mode: {record.write_policy.get('mode')} then, {mode} now"
    unread = sorted(record.sources.keys() - step.inputs(record.name).keys())
    if unread:
        yield f"sources that are not read any more: {listed(unread)}"


def _environment(then: Mapping[str, str], settings: Settings) -> dict[str, tuple[str, str]]:
    """The software of the run and of now where they differ. Where Spark runs is compared if the settings say it."""
    now = {
        "spark": installed("pyspark"), "delta": installed("delta-spark"), "python": platform.python_version(),
        "pipeline": installed("delta-first-pipeline"),
    }  # fmt: skip
    if settings.spark.remote:
        now["mode"] = "connect"
    return environment_differences(then, now)


def environment_differences(then: Mapping[str, str], now: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The entries of two runtime profiles that differ, among those that both have."""
    return {name: (then[name], now[name]) for name in now if name in then and then[name] != now[name]}


def _key(name: str) -> AssetKey:
    return AssetKey(name.split("/"))
