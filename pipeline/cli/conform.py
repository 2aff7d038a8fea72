"""`pipeline conform`: what is declared against the tables; a plan, and the same list of steps applied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import click

from pipeline.cli.dagster_instance import report_changes
from pipeline.cli.output import print_json
from pipeline.cli.registry import declared
from pipeline.dataset import Dataset
from pipeline.delta.log.mark import rows_changed
from pipeline.delta.spark.session import open_session
from pipeline.delta.table.open_table import conform as do_conform
from pipeline.delta.table.open_table import plan_in_log, plan_of
from pipeline.delta.table.plan import Plan
from pipeline.errors import PipelineError, TableNotFoundError
from pipeline.settings import Settings, load_settings

# The exit status where a table differs from its declaration; 1 is an error, 2 is wrong usage.
DIFFERS = 3

_NAMES = click.argument("names", metavar="[DATASET]...", nargs=-1)
_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@dataclass
class _Told:
    """What the datasets came to, in their order."""

    documents: list[dict[str, Any]] = field(default_factory=list)
    failed: list[PipelineError] = field(default_factory=list)
    differs: bool = False


@click.group()
def conform() -> None:
    """Bring tables to what is declared: all of them, or the named ones.

    A table that was never written is passed over: its first write makes it as declared.
    """


@conform.command("plan")
@_NAMES
@_AS_JSON
@click.pass_context
def plan_command(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Show the steps from each table to its declaration, and who loses the table by them; changes nothing.

    Of a table on this machine Spark is started only to look at SQL that a step brings: a check, a generated column, a
    default.

    The exit status is 0 where no table differs, and 3 where one does.
    """
    told = _Told()
    settings = load_settings()
    opened = cache(lambda: open_session(settings.spark))
    for dataset in _targets(settings, names):
        with _collected(told, dataset):
            location = dataset.location(settings.root)
            found = plan_in_log(dataset, location) or plan_of(opened(), dataset, location)
            told.differs = told.differs or found.differs
            told.documents.append(found.document())
            if not as_json:
                _show(found)
    _end(ctx, told, as_json=as_json)


@conform.command("apply")
@_NAMES
@_AS_JSON
@click.pass_context
def apply_command(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Take the steps that the plan shows, each in a commit of its own.

    The exit status is 0 where every table is as declared afterwards, and 1 where one is not.
    """
    told, changed = _Told(), list[str]()
    settings = load_settings()
    targets = _targets(settings, names)
    session = open_session(settings.spark)
    for dataset in targets:
        with _collected(told, dataset):
            done = do_conform(session, dataset, dataset.location(settings.root))
            versions = {"before": done.before.version, "after": done.after.version}
            if rows_changed(session, done.after.location, done.before.version, done.after.version):
                changed.append(dataset.name)
            told.documents.append({"dataset": dataset.name, "applied": list(done.steps), "versions": versions})
            if not as_json:
                taken = "".join(f"\n  {step}" for step in done.steps)
                click.echo(f"{dataset.name} (version {done.after.version}): {taken or 'as declared'}")
    report_changes(settings, changed)
    _end(ctx, told, as_json=as_json)


def _targets(settings: Settings, names: tuple[str, ...]) -> list[Dataset]:
    registry = declared(settings)
    return [registry.get(name) for name in names] or list(registry)


@contextmanager
def _collected(told: _Told, dataset: Dataset) -> Iterator[None]:
    """One dataset that fails does not keep the others from their turn."""
    try:
        yield
    except TableNotFoundError:
        click.echo(f"{dataset.name}: no table yet", err=True)
    except PipelineError as error:
        if told.failed:
            click.echo(f"Error: {told.failed[-1]}", err=True)
        told.failed.append(error)


def _end(ctx: click.Context, told: _Told, *, as_json: bool) -> None:
    if as_json:
        print_json(told.documents)
    if told.failed:
        raise told.failed[-1]
    if told.differs:
        ctx.exit(DIFFERS)


def _show(found: Plan) -> None:
    click.echo(f"{found.dataset} (version {found.version}): {'' if found.differs else 'as declared'}".rstrip())
    for step, lost in zip(found.steps, found.losses(), strict=True):
        by = " (a write takes it by itself)" if step.automatic else ""
        click.echo(f"  {step.kind}: {step}{by}")
        if step.gains:
            click.echo(f"    raises the protocol: {', '.join(step.gains)}")
        if lost:
            click.echo(f"    {lost}")
    for problem in found.problems:
        click.echo(f"  no step settles: {problem}")
