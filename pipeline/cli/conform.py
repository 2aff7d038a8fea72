"""`pipeline conform`: the plan from the tables to their declarations, and the same list of steps applied."""

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
from pipeline.delta.server.warm import open_project_session
from pipeline.delta.storage.options import project_settings
from pipeline.delta.table.open_table import conform as do_conform
from pipeline.delta.table.open_table import plan_in_log, plan_of
from pipeline.delta.table.plan import Plan
from pipeline.errors import PipelineError, TableNotFoundError
from pipeline.settings import Settings

# The exit status if a table differs from its declaration; 1 is an error, 2 is wrong usage.
DIFFERS = 3

_NAMES = click.argument("names", metavar="[DATASET]...", nargs=-1)
_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@dataclass
class _Results:
    """The results of the datasets, in their order."""

    documents: list[dict[str, Any]] = field(default_factory=list)
    failed: list[PipelineError] = field(default_factory=list)
    differs: bool = False


@click.group()
def conform() -> None:
    """Change tables to match their declarations: all of them, or the named ones.

    A table that was never written is skipped: its first write creates it as declared.
    """


@conform.command("plan")
@_NAMES
@_AS_JSON
@click.pass_context
def plan_command(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Show the steps from each table to its declaration, and who can't use the table after them; changes nothing.

    For a table on this machine, Spark is started only if a step contains SQL to be checked: a check constraint, a
    generated column, a default.

    The exit status is 0 if no table differs, and 3 if one does.
    """
    results = _Results()
    settings = project_settings()
    session = cache(lambda: open_project_session(settings.spark))
    for dataset in _targets(settings, names):
        with _collected(results, dataset):
            table = dataset.at(settings.root)
            plan = plan_in_log(table) or plan_of(session(), table)
            results.differs = results.differs or plan.differs
            results.documents.append(plan.document() | {"table_name": dataset.table_name})
            if not as_json:
                _show(plan, dataset.table_name)
    _end(ctx, results, as_json=as_json)


@conform.command("apply")
@_NAMES
@_AS_JSON
@click.pass_context
def apply_command(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Take the steps that the plan shows, each in a commit of its own.

    The exit status is 0 if every table is as declared afterwards, and 1 if one is not.
    """
    results, changed = _Results(), list[str]()
    settings = project_settings()
    targets = _targets(settings, names)
    session = open_project_session(settings.spark)
    for dataset in targets:
        with _collected(results, dataset):
            done = do_conform(session, dataset.at(settings.root))
            versions = {"before": done.before.version, "after": done.after.version}
            if rows_changed(done.after.location, done.before.version, done.after.version):
                changed.append(dataset.name)
            results.documents.append(
                {
                    "dataset": dataset.name, "applied": list(done.steps), "versions": versions,
                    "registered_as": done.registered_as,
                }
            )  # fmt: skip
            if not as_json:
                made = () if done.registered_as is None else (f"registered as {done.registered_as}",)
                steps = "".join(f"\n  {step}" for step in (*made, *done.steps))
                click.echo(f"{dataset.name} (version {done.after.version}): {steps or 'as declared'}")
    report_changes(settings, changed)
    _end(ctx, results, as_json=as_json)


def _targets(settings: Settings, names: tuple[str, ...]) -> list[Dataset]:
    registry = declared(settings)
    return [registry.get(name) for name in names] or list(registry)


@contextmanager
def _collected(results: _Results, dataset: Dataset) -> Iterator[None]:
    """Collect the error of one dataset, so that the others are still processed."""
    try:
        yield
    except TableNotFoundError:
        click.echo(f"{dataset.name}: no table yet", err=True)
    except PipelineError as error:
        if results.failed:
            click.echo(f"Error: {results.failed[-1]}", err=True)
        results.failed.append(error)


def _end(ctx: click.Context, results: _Results, *, as_json: bool) -> None:
    if as_json:
        print_json(results.documents)
    if results.failed:
        raise results.failed[-1]
    if results.differs:
        ctx.exit(DIFFERS)


def _show(plan: Plan, table_name: str | None) -> None:
    click.echo(f"{plan.dataset} (version {plan.version}): {'' if plan.differs else 'as declared'}".rstrip())
    if table_name is not None:  # the catalog is not asked: that needs Spark
        click.echo(f"  register as {table_name}, if it is not registered yet")
    for step, lost in zip(plan.steps, plan.losses(), strict=True):
        by = " (a write takes this step by itself)" if step.automatic else ""
        click.echo(f"  {step.kind}: {step}{by}")
        if step.gains:
            click.echo(f"    raises the protocol: {', '.join(step.gains)}")
        if lost:
            click.echo(f"    {lost}")
    for problem in plan.problems:
        click.echo(f"  no step solves: {problem}")
