"""`pipeline maintain`: vacuum, optimize, checkpoint and the clean-up of logs by hand, if no schedule does it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import click
from pyspark.sql import SparkSession

from pipeline.cli.options import WIDE
from pipeline.cli.output import collected, count, print_table, size
from pipeline.cli.registry import declared
from pipeline.dataset import Dataset, Registry, TableRef
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.maintain.checkpoint import Checkpoints
from pipeline.delta.maintain.clean_log import CleanLogResult, clean_log, plan_clean_log
from pipeline.delta.maintain.maintain import (
    CheckpointResult,
    OptimizeResult,
    VacuumResult,
    checkpoint,
    checkpoint_at,
    optimize,
    plan_optimize,
    vacuum,
)
from pipeline.delta.maintain.retention import Unread, consumers_of
from pipeline.delta.maintain.routine import Maintained, maintain_table, write_record
from pipeline.delta.server.warm import open_project_session
from pipeline.delta.storage.options import project_settings
from pipeline.errors import PipelineError
from pipeline.settings import Settings

Result = TypeVar("Result", VacuumResult, OptimizeResult, CheckpointResult, CleanLogResult, Maintained)
Verb = Callable[[TableRef, tuple[TableRef, ...]], Result]

_NAMES = click.argument("names", metavar="[DATASET]...", nargs=-1)
_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group()
def maintain() -> None:
    """Keep the tables healthy: all of them, or the named ones."""


@maintain.command("vacuum")
@_NAMES
@click.option("--apply", is_flag=True, help="Remove the files; without it they are only listed.")
@click.option(
    "--force", is_flag=True, help="Also files that consumers of changes need; they then read the whole source."
)
@_AS_JSON
def vacuum_command(names: tuple[str, ...], apply: bool, force: bool, as_json: bool) -> None:
    """List or remove the files that no version within a table's retention needs.

    No file of a table is removed while a consumer of its changes still has to read some of these files.
    """

    def verb(table: TableRef, consumers: tuple[TableRef, ...]) -> VacuumResult:
        return vacuum(session, table, consumers=consumers, apply=apply, force=force)

    def show(result: VacuumResult) -> str:
        counted = f"{len(result.files)} {'removed' if result.applied else 'to remove'}"
        needed = (f"{_needed(c)}: {len(c.files)} of these files" for c in result.needed)
        return "\n  ".join([f"{result.dataset} (version {result.version}): {counted}", *needed, *result.files])

    targets = _chosen(names)
    session = targets.open_session()
    _each(targets, verb, show, as_json=as_json)
    if not apply and not as_json:
        click.echo("Nothing was removed; --apply removes.")


@maintain.command("optimize")
@_NAMES
@click.option("--dry-run", is_flag=True, help="Show how many files would be joined; nothing is changed.")
@_AS_JSON
def optimize_command(names: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Join small files into larger ones, according to the storage policy of each dataset."""
    run = f"optimize-{uuid.uuid4()}"

    def verb(table: TableRef, consumers: tuple[TableRef, ...]) -> OptimizeResult:  # noqa: ARG001
        if dry_run:
            return plan_optimize(session, table)
        note = CommitNote(mark=Mark(writer=f"{table.name}/{run}"), run_id=run)
        return optimize(session, table, note)

    targets = _chosen(names)
    session = targets.open_session()
    _each(targets, verb, _shown_optimize, as_json=as_json)
    if dry_run and not as_json:
        click.echo("Nothing was changed; without --dry-run the files are joined.")


def _shown_optimize(result: OptimizeResult) -> str:
    joined = f"{result.files_removed} files {'' if result.applied else 'would be '}joined into {result.files_added}"
    if result.files_removed is None:
        joined = "it is clustered, and only Delta knows which files it joins"
    elif not result.files_removed:
        joined = "nothing to join"
    return f"{result.dataset} (version {result.version}): {joined}"


@maintain.command("checkpoint")
@_NAMES
@_AS_JSON
def checkpoint_command(names: tuple[str, ...], as_json: bool) -> None:
    """Write a checkpoint of every table's newest version, so that opening it reads fewer files."""
    targets = _chosen(names)
    session = targets.open_session()
    with Checkpoints(session) as checkpoints:

        def verb(table: TableRef, consumers: tuple[TableRef, ...]) -> CheckpointResult:
            return checkpoint(session, table, consumers=consumers, within=checkpoints)

        _each(targets, verb, _shown, as_json=as_json)


@maintain.command("clean-log")
@_NAMES
@click.option("--apply", is_flag=True, help="Remove the files; without it they are only listed.")
@click.option(
    "--force", is_flag=True, help="Keep no entries for consumers of changes; they then read the whole source."
)
@_AS_JSON
def clean_log_command(names: tuple[str, ...], apply: bool, force: bool, as_json: bool) -> None:
    """List or remove the entries of each log that are past its retention and that nothing needs.

    What is left begins with a checkpoint. Spark is started only if that checkpoint must be written.
    """
    targets = _chosen(names)
    with Checkpoints(targets.open_session) as checkpoints:

        def verb(table: TableRef, consumers: tuple[TableRef, ...]) -> CleanLogResult:
            plan = plan_clean_log(table, consumers=consumers, force=force)
            if not apply:
                return CleanLogResult(plan=plan, applied=False)
            return clean_log(plan, lambda version: checkpoint_at(table, version, checkpoints))

        _each(targets, verb, _shown_log, as_json=as_json, document=lambda result: result.document())
    if not apply and not as_json:
        click.echo("Nothing was removed; --apply removes.")


@maintain.command("all")
@_NAMES
@click.option("--apply", is_flag=True, help="Make the steps; without it they are only shown.")
@_AS_JSON
@WIDE
def all_command(names: tuple[str, ...], apply: bool, as_json: bool) -> None:
    """Make every step of maintenance that is due: checkpoint, clean-log, optimize, old tombstones and vacuum.

    A step is left out if the log shows that it has nothing to do, or if the dataset's `maintenance` excludes it. Files
    and entries that a consumer of changes still has to read are kept. Each table with a step gets a record, which
    `pipeline manifest show` shows.
    """
    run, targets = f"maintain-{uuid.uuid4()}", _chosen(names)
    results: list[Maintained] = []
    with Checkpoints(targets.open_session) as checkpoints:

        def verb(table: TableRef, consumers: tuple[TableRef, ...]) -> Maintained:
            done = maintain_table(table, checkpoints, consumers=consumers, apply=apply, run_id=run)
            results.append(done)
            if apply:
                write_record(done, run, targets.settings.root)
            return done

        try:
            _each(targets, verb, None, as_json=as_json, document=lambda result: result.document())
        finally:
            if results and not as_json:
                _print_maintained(results, run if apply else None)


def _print_maintained(results: list[Maintained], run: str | None) -> None:
    print_table(
        ("dataset", "version", "checkpoint", "joined", "tombstones", "vacuumed", "log files", "reclaimed", "files",
         "small", "log entries", "oldest readable"),
        [
            (result.dataset, str(result.sizes.version), count(result.checkpoint), count(result.files_joined),
             count(result.tombstones_expired), count(result.files_vacuumed), count(result.log_files_removed),
             size(result.bytes_reclaimed), count(result.sizes.files), f"{result.sizes.small_file_ratio:.0%}",
             count(result.sizes.log_entries), count(result.sizes.oldest_readable))
            for result in results
        ],
        right=("version", "checkpoint", "joined", "tombstones", "vacuumed", "log files", "reclaimed", "files", "small",
               "log entries", "oldest readable"),
    )  # fmt: skip
    for result in results:
        for reason in result.waits:
            click.echo(f"{result.dataset}: kept: {reason}")
    if run is None:
        click.echo("Nothing was changed; --apply makes these steps.")
    elif not all(result.is_idle for result in results):
        click.echo(f"The records: pipeline manifest show {run}")


def _shown_log(result: CleanLogResult) -> str:
    plan = result.plan
    counted = f"{count(len(plan.files))} {'removed' if result.applied else 'to remove'} ({size(plan.bytes)})"
    left = f"versions {plan.readable_from} to {plan.version} can be read{'' if result.applied else ' afterwards'}"
    first = [] if plan.checkpoint is None else [f"a checkpoint of version {plan.checkpoint} is written first"]
    needed = (f"entries are kept: {need}" for need in plan.needed)
    return "\n  ".join([f"{plan.dataset} (version {plan.version}): {counted}; {left}", *first, *needed, *plan.files])


def _shown(result: CheckpointResult) -> str:
    needed = (f"{_needed(c)}: the log was not cleaned" for c in result.log_kept_for)
    return "\n  ".join([f"{result.dataset}: checkpoint of version {result.version}", *needed])


def _needed(consumer: Unread) -> str:
    return f"{consumer.consumer} has read to version {consumer.version} and needs the changes since"


@dataclass(frozen=True, kw_only=True)
class _Targets:
    """The datasets that a command works on: the `named` ones, or else all that are declared."""

    settings: Settings
    registry: Registry
    datasets: tuple[Dataset, ...]
    named: bool

    def open_session(self) -> SparkSession:
        """The session. It is opened after every name was resolved to a dataset."""
        return open_project_session(self.settings.spark)


def _chosen(names: tuple[str, ...]) -> _Targets:
    settings = project_settings()
    registry = declared(settings)
    datasets = tuple(registry.get(name) for name in names) or tuple(registry)
    return _Targets(settings=settings, registry=registry, datasets=datasets, named=bool(names))


def _each(
    targets: _Targets, verb: Verb[Result], show: Callable[[Result], str] | None, *, as_json: bool,
    document: Callable[[Result], dict[str, Any]] = asdict,
) -> None:  # fmt: skip
    """Run a verb on each dataset and print its results. If one dataset fails, the others are still processed.

    A table that was never written is skipped, unless it was named.

    Args:
        show: the lines that are printed after each dataset. If None, the caller prints.
    """
    root = targets.settings.root
    results: list[Result] = []
    failed: list[PipelineError] = []
    for dataset in targets.datasets:
        with collected(failed, dataset.name, named=targets.named):
            table = dataset.at(root)
            result = verb(table, consumers_of(dataset.name, targets.registry, root))
            results.append(result)
            if show is not None and not as_json:
                click.echo(show(result))
            if isinstance(result, Maintained) and result.failure is not None:
                raise result.failure
    if as_json:
        click.echo(json.dumps([document(result) for result in results], indent=2))
    if failed:
        raise failed[-1]
