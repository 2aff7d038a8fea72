"""A run of the project once more, on the versions that it has read, beside the tables: are its rows the same?

The command line runs it as a child process, `python -m pipeline.orchestration.commands.rerun RUN [--apply] [--keep]`,
in the project's folder with `DAGSTER_HOME` set. `rerun_plan` decides what is repeated and whether it can be.

Here belong the folder of the repeated run, the run in an instance that is kept in memory, and the comparison of its
rows. Everything is written below `_reruns/<id>` of the root: no table, no event and no dynamic partition of the project
changes. A write begins with a shallow clone of its table at the version that it found, unless it replaces all rows.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dagster import DagsterError, DagsterInstance, RepositoryDefinition
from pyspark.sql import SparkSession

from pipeline.dataset import table_location
from pipeline.delta.export.clone import folders_of_clones, remove_clones, shallow_clone
from pipeline.delta.inspect.manifest import Manifest, full_manifest
from pipeline.delta.inspect.record import diff
from pipeline.delta.migrate.compare import TableComparison, compare_tables
from pipeline.delta.read.changes import past_retention
from pipeline.delta.read.pinned import newest_of
from pipeline.delta.server.warm import open_project_session
from pipeline.delta.storage.options import project_settings
from pipeline.errors import RerunError, RunNotFoundError
from pipeline.orchestration.commands.materialize import COLLECT_EVERY, repository_of
from pipeline.orchestration.commands.reports import Report, child, failure_of, step_key, step_listener
from pipeline.orchestration.commands.rerun_plan import PlannedTable, RerunPlan, environment_differences, plan_rerun
from pipeline.orchestration.commands.rerun_step import RepeatedStep
from pipeline.orchestration.io.pins import pinned
from pipeline.settings import Settings

FOLDER = "_reruns"
_NO_REASON = "nothing that is recorded differs, so its function depends on something else: the time, chance, or files"


@dataclass(frozen=True)
class Request:
    """What to repeat: a run, by its id or the beginning of it, and whether to do it and to keep what it writes."""

    run: str
    apply: bool = False
    keep: bool = False


def rerun(folder: Path, instance: DagsterInstance, request: Request, report: Report) -> bool:
    """Plan to repeat a run, and with `apply` repeat it in this process. Returns True.

    Reports the plan first. If it has a problem, nothing follows. Then it reports the start and end of each step, a line
    for each table, and the differences of the two manifests.

    Raises:
        RunNotFoundError: no run, or more than one, has such an id.
        MaterializeError: the project names no definitions.
        RerunError: a step has failed, or the run can't be started.
        PipelineError: a table can't be read or cloned.
    """
    return rerun_in(partial(repository_of, folder), project_settings(folder), instance, request, report)


def rerun_in(
    definitions: Callable[[], RepositoryDefinition], settings: Settings, instance: DagsterInstance, request: Request,
    report: Report,
) -> bool:  # fmt: skip
    """As `rerun`, with these settings. The definitions are loaded if there is such a run."""
    manifest = full_manifest(settings.root, request.run, damaged=lambda error: _notice(report, error.message()))
    plan, step = plan_rerun(manifest, settings, definitions(), instance)
    report({"event": "plan", "plan": plan.document()})
    if not request.apply or plan.all_problems:
        return True
    _tell_leftovers(settings.root, report)
    run_id = str(uuid.uuid4())
    with _folder(f"{settings.root.rstrip('/')}/{FOLDER}/{run_id}", report, keep=request.keep) as root:
        _Rerun(plan=plan, step=step, manifest=manifest, settings=settings, root=root, run_id=run_id).all(report)
    return True


def _notice(report: Report, text: str) -> None:
    report({"event": "notice", "text": text})


def _tell_leftovers(root: str, report: Report) -> None:
    for left in folders_of_clones(f"{root.rstrip('/')}/{FOLDER}"):
        _notice(report, f"An earlier rerun has left {left}. Unless it still runs, remove that folder.")


@contextmanager
def _folder(root: str, report: Report, *, keep: bool) -> Iterator[str]:
    """The root of the repeated run, with all that it writes. It is removed after the block."""
    try:
        yield root
    finally:
        if not keep:
            remove_clones(root)
        else:
            _notice(report, f"The tables of the repeated run are in {root}.")


@dataclass(kw_only=True)
class _Rerun:
    """One repetition. `seconds` are the durations of the steps, by dataset."""

    plan: RerunPlan
    step: RepeatedStep
    manifest: Manifest
    settings: Settings
    root: str
    run_id: str
    seconds: dict[str, float] = field(default_factory=dict)

    def all(self, report: Report) -> None:
        """Clone, run, compare and report."""
        session = open_project_session(self.settings.spark)
        for table in self.plan.tables:
            if table.before is not None:
                target = table_location(self.root, table.dataset)
                shallow_clone(session, table.dataset, table.location, table.before, target)
        report({"event": "run", "run_id": self.run_id, "original": self.plan.run_id, "folder": self.root})
        with past_retention(session):
            self._run(report)
        repeated = full_manifest(self.root, self.run_id)
        now = repeated.commits[0].runtime if repeated.commits else {}
        environment = environment_differences(self.manifest.commits[0].runtime, now)
        partitions = {record.name: record.partitions for record in repeated.commits}
        for table in self.plan.tables:
            location = table_location(self.root, table.dataset)
            comparison = self._compared(session, table, location)
            reasons = [
                *table.differences,
                *(f"{name}: {then} then, {now} now" for name, (then, now) in environment.items()),
                *(f"not pinned: {one}" for one in table.unpinned),
            ]
            if partitions.get(table.dataset, table.partitions) != table.partitions:
                reasons.append(f"partitions: {table.partitions} then, {partitions[table.dataset]} now")
            report(_result(table, comparison, reasons, self.seconds.get(table.dataset)))
        names = {table.dataset for table in self.plan.tables}
        both = [[record for record in one.commits if record.name in names] for one in (self.manifest, repeated)]
        report({"event": "manifest", "differences": [asdict(one) for one in diff(*both)]})

    def _run(self, report: Report) -> None:
        job = self.step.subset()
        steps = {step_key(key): "/".join(key.path) for key in job.asset_layer.selected_asset_keys}
        with DagsterInstance.ephemeral() as own, pinned(self.plan.pins(self.root)):
            self.step.copy_dynamic_keys(own)
            own.add_event_listener(self.run_id, step_listener(steps, self.seconds, report))
            try:
                result = job.execute_in_process(
                    instance=own, run_id=self.run_id, run_config=self.step.config(job), tags=self.step.tags,
                    raise_on_error=False,
                )  # fmt: skip
            except DagsterError as error:
                reason = f"Run {self.plan.run_id} can't be started again: {str(error).splitlines()[0]}"
                raise RerunError(reason=reason) from error
            if not result.success:
                raise RerunError(reason=f"Run {self.plan.run_id} failed when it was repeated: {failure_of(result)}")

    def _compared(self, session: SparkSession, table: PlannedTable, location: str) -> TableComparison:
        newest = newest_of(table.dataset, location)
        if newest is None:
            raise RerunError(reason=f"The repeated run has not written {table.dataset}.")
        return compare_tables(session, table.dataset, (table.location, table.version), (location, newest))


def _result(
    table: PlannedTable, comparison: TableComparison, reasons: Sequence[str], seconds: float | None
) -> dict[str, Any]:
    rows = comparison.rows
    examples = () if rows is None else rows.differences
    differences = [
        *comparison.columns,
        *(
            f"{f'partition {one.partition}' if one.partition else 'all rows'}: {', '.join(one.columns)} "
            f"({one.source_rows} rows then, {one.table_rows} now)"
            for one in examples
        ),
    ]
    if rows is not None and rows.differing > len(examples):
        differences.append(f"and {rows.differing - len(examples)} further partitions")
    return {
        "event": "result", "dataset": table.dataset, "version": table.version, "equal": comparison.is_equal,
        "rows": None if rows is None else rows.source_rows, "rows_now": None if rows is None else rows.table_rows,
        "partitions_that_differ": None if rows is None else rows.differing, "differences": differences,
        "not_compared": list(comparison.left_out), "seconds": seconds,
        "reasons": [] if comparison.is_equal else list(reasons) or [_NO_REASON],
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    """Run the child process's work. Returns its exit status."""
    gc.set_threshold(COLLECT_EVERY)
    atexit.register(gc.freeze)
    parser = argparse.ArgumentParser(description=rerun.__doc__)
    parser.add_argument("run")
    parser.add_argument("--apply", action="store_true")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args(arguments)
    request = Request(options.run, apply=options.apply, keep=options.keep)

    def work(report: Report) -> bool:
        try:
            with DagsterInstance.get() as instance:
                return rerun(Path.cwd(), instance, request, report)
        except RunNotFoundError as error:  # of this type in the command's process too
            report({"event": "unknown", "run": error.run, "root": error.root, "near": list(error.near)})
            return True

    return child(work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
