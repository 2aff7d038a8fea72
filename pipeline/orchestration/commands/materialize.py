"""A selection of the project's assets in one Dagster run, reported step by step.

The command line runs it as a child process, `python -m pipeline.orchestration.commands.materialize SELECTION`, in the
project's folder with `DAGSTER_HOME` set. The run belongs to the project's instance and does the same as
`dagster asset materialize`.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import sys
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagster import (
    AssetKey,
    AssetSelection,
    DagsterEventType,
    DagsterInstance,
    ExecuteInProcessResult,
    JobDefinition,
    PartitionKeyRange,
    PartitionsDefinition,
    RepositoryDefinition,
)
from dagster._core.definitions.asset_selection import DagsterInvalidAssetSelectionError
from dagster._core.definitions.partitions.context import partition_loading_context
from dagster._core.errors import DagsterInvalidSubsetError
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

from pipeline.errors import MaterializeError
from pipeline.errors.listing import listed
from pipeline.errors.spelling import did_you_mean
from pipeline.orchestration.automation.pools import with_dead_released
from pipeline.orchestration.commands.project import repositories
from pipeline.orchestration.commands.reports import Report, child, failure_of, step_key, step_listener
from pipeline.orchestration.metadata import plain_value
from pipeline.orchestration.metadata_keys import CACHED, COMMITTED, FINGERPRINT, NO_CACHE, ROWS_WRITTEN, VERSION
from pipeline.settings import dagster_module

# The allocations between two collections of the youngest generation; Python's default is 700. Dagster creates a million
# objects that live as long as the process: their collection would take a third of the time of a short command.
COLLECT_EVERY = 100_000
RANGE = "..."


@dataclass(frozen=True)
class Request:
    """What to materialize: a selection in Dagster's syntax, and a partition key or both ends of a range.

    With `no_cache`, no step is skipped because its outcome is cached.
    """

    selection: str
    partition: str | None = None
    partition_range: str | None = None
    no_cache: bool = False


def materialize(folder: Path, instance: DagsterInstance, request: Request, report: Report) -> bool:
    """Run the selected assets of the project in this process. Returns whether the run succeeded.

    Reports the run, the start and end of each step, and at the end a line for each asset that was materialized.

    Raises:
        MaterializeError: the project names no definitions, they don't have the selected assets or the partition, or
            the run failed.
    """
    repository = repository_of(folder)
    keys = _selected(repository, request.selection)
    job = repository.get_implicit_job_def_for_assets(keys)
    if job is None:
        raise _different_partitions(request.selection)
    run_id, seconds = str(uuid.uuid4()), dict[str, float]()
    with partition_loading_context(dynamic_partitions_store=instance):
        arguments = _partition_arguments(job, keys, request)
    if request.no_cache:
        arguments["tags"] = arguments.get("tags", {}) | {NO_CACHE: "true"}
    instance.add_event_listener(run_id, step_listener({step_key(key): _name(key) for key in keys}, seconds, report))
    report({"event": "run", "run_id": run_id, "assets": sorted(map(_name, keys))})
    with with_dead_released(instance, _print_error):
        result = job.execute_in_process(
            instance=instance, run_id=run_id, asset_selection=sorted(keys), raise_on_error=False, **arguments
        )
    for line in _results(result, seconds):
        report(line)
    if not result.success:
        raise MaterializeError(reason=f"Run {run_id} failed: {failure_of(result)}")
    return True


def _print_error(text: str) -> None:
    print(text, file=sys.stderr)


def _name(key: AssetKey) -> str:
    return "/".join(key.path)


def repository_of(folder: Path) -> RepositoryDefinition:
    """The definitions of a project.

    Raises:
        MaterializeError: the project names none, or its module has several.
    """
    module = dagster_module(folder)
    if module is None:
        hint = 'In pyproject.toml: [tool.dagster] module_name = "…", the module that has the definitions.'
        raise MaterializeError(reason=f"The project in {folder} names no definitions.", hint=hint)
    candidates = repositories(module, folder)
    if len(candidates) != 1:
        problem = f"The module {module} has {len(candidates)} sets of definitions."
        raise MaterializeError(reason=problem, hint="Expected: one, as `build_definitions` returns it.")
    return candidates[0]


def _selected(repository: RepositoryDefinition, selection: str) -> set[AssetKey]:
    graph = repository.asset_graph
    try:
        keys = AssetSelection.from_coercible(selection.split(",")).resolve(graph)
    except (DagsterInvalidAssetSelectionError, DagsterInvalidSubsetError) as error:
        known = sorted(_name(key) for key in graph.materializable_asset_keys)
        reason = f"The selection {selection!r} can't be used: {str(error).splitlines()[0]}"
        hint = _near(selection, known, "The project's assets are:")
        raise MaterializeError(reason=reason, hint=hint) from error
    runnable = keys & graph.materializable_asset_keys
    if not runnable:
        problem = f"only assets that no run writes: {listed(map(_name, keys))}" if keys else "no asset of the project"
        raise MaterializeError(reason=f"The selection {selection!r} holds {problem}.", hint="pipeline registry")
    return set(runnable)


def _partition_arguments(job: JobDefinition, keys: Iterable[AssetKey], request: Request) -> dict[str, Any]:
    """The arguments of a run for its partitions, all of which exist.

    Raises:
        MaterializeError: no partition is given for a partitioned asset, one is given for assets without partitions, or
            it does not exist.
    """
    all_parts = {key: job.asset_layer.get(key).partitions_def for key in keys}
    partitioned = {_name(key): parts for key, parts in all_parts.items() if parts is not None}
    requested = request.partition or request.partition_range
    if not partitioned:
        if requested is not None:
            problem = f"No asset of {request.selection!r} is partitioned, but the partition {requested!r} was given."
            raise MaterializeError(reason=problem, hint=f"pipeline materialize {request.selection}")
        return {}
    name, parts = next(iter(partitioned.items()))
    if any(other != parts for other in partitioned.values()):
        raise _different_partitions(request.selection)
    if requested is None:
        newest = parts.get_last_partition_key()
        problem = f"Asset {name!r} is partitioned, but no partition was given."
        command = f"pipeline materialize {request.selection} --partition {newest or 'KEY'}"
        raise MaterializeError(reason=problem, hint=f"{command}, or for a range --partition-range A{RANGE}B")
    if request.partition is not None:
        _refuse_unknown(name, parts, request.partition)
        return {"partition_key": request.partition}
    first, dots, last = requested.partition(RANGE)
    if not dots or not first or not last:
        raise MaterializeError(reason=f"The range {requested!r} can't be used.", hint=f"Expected: FIRST{RANGE}LAST.")
    for key in (first, last):
        _refuse_unknown(name, parts, key)
    if not parts.get_partition_keys_in_range(PartitionKeyRange(first, last)):
        raise MaterializeError(
            reason=f"The range {requested!r} holds no partition.", hint=f"--partition-range {last}{RANGE}{first}"
        )
    return {"tags": {ASSET_PARTITION_RANGE_START_TAG: first, ASSET_PARTITION_RANGE_END_TAG: last}}


def _different_partitions(selection: str) -> MaterializeError:
    problem = f"The selection {selection!r} holds assets with different partitions."
    return MaterializeError(reason=problem, hint="Materialize each kind with a command of its own.")


def _refuse_unknown(name: str, parts: PartitionsDefinition[Any], key: str) -> None:
    if parts.has_partition_key(key):
        return
    known = parts.get_partition_keys()
    hint = _near(key, known, "The partitions are")
    raise MaterializeError(reason=f"Asset {name!r} has no partition {key!r}.", hint=hint)


def _near(name: str, known: Sequence[str], all_are: str) -> str:
    """The near misses, or else all names."""
    return did_you_mean(name, known) or f"{all_are} {listed(known)}."


def _results(result: ExecuteInProcessResult, seconds: dict[str, float]) -> list[dict[str, Any]]:
    """A line for each asset: the facts that the run has reported to Dagster about its write and its checks."""
    lines: dict[str, dict[str, Any]] = {}
    for event in result.all_events:
        if event.event_type == DagsterEventType.ASSET_MATERIALIZATION and event.asset_key is not None:
            values = {name: plain_value(value) for name, value in event.materialization.metadata.items()}
            name = _name(event.asset_key)
            line = lines.setdefault(name, _line(name, seconds.get(name)))
            line["partitions"] += event.partition is not None
            rows = values.get(ROWS_WRITTEN)
            if isinstance(rows, int):
                line["rows_written"] = (line["rows_written"] or 0) + rows
            line |= {"version": values.get(VERSION), "committed": values.get(COMMITTED)}
            line["cached"] = CACHED in values and line["cached"] is not False
            line["fingerprint"] = values.get(FINGERPRINT)
        elif event.event_type == DagsterEventType.ASSET_CHECK_EVALUATION:
            check = event.asset_check_evaluation_data
            name = _name(check.asset_key)
            line = lines.setdefault(name, _line(name, seconds.get(name)))
            line["checks_passed" if check.passed else "checks_failed"].append(check.check_name)
    for line in lines.values():
        line["checks_passed"].sort()
        line["checks_failed"].sort()
    return list(lines.values())


def _line(name: str, seconds: float | None) -> dict[str, Any]:
    return {
        "event": "result", "dataset": name, "rows_written": None, "partitions": 0, "version": None, "committed": None,
        "cached": None, "fingerprint": None, "checks_passed": [], "checks_failed": [], "seconds": seconds,
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    """Run the child process's work. Returns its exit status."""
    gc.set_threshold(COLLECT_EVERY)
    atexit.register(gc.freeze)
    parser = argparse.ArgumentParser(description=materialize.__doc__)
    parser.add_argument("selection")
    parser.add_argument("--partition")
    parser.add_argument("--partition-range")
    parser.add_argument("--no-cache", action="store_true")
    options = parser.parse_args(arguments)
    request = Request(options.selection, options.partition, options.partition_range, options.no_cache)

    def work(report: Report) -> bool:
        with DagsterInstance.get() as instance:
            return materialize(Path.cwd(), instance, request, report)

    return child(work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
