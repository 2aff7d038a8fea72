"""`pipeline maintain`: vacuum and checkpoint by hand, for when no schedule does it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TypeVar

import click
from pyspark.sql import SparkSession

from pipeline.cli.registry import declared
from pipeline.dataset import Dataset
from pipeline.delta.maintain import CheckpointResult, VacuumResult, checkpoint, vacuum
from pipeline.delta.session import open_session
from pipeline.errors import PipelineError, TableNotFoundError
from pipeline.settings import Settings, load_settings

Result = TypeVar("Result", VacuumResult, CheckpointResult)
Verb = Callable[[SparkSession, Dataset, str], Result]

_NAMES = click.argument("names", metavar="[DATASET]...", nargs=-1)
_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group()
def maintain() -> None:
    """Keep the tables healthy: all of them, or the named ones."""


@maintain.command("vacuum")
@_NAMES
@click.option("--apply", is_flag=True, help="Remove the files; without it they are only listed.")
@_AS_JSON
def vacuum_command(names: tuple[str, ...], apply: bool, as_json: bool) -> None:
    """List, or remove, files that no version within a table's retention needs."""

    def verb(session: SparkSession, dataset: Dataset, location: str) -> VacuumResult:
        return vacuum(session, dataset, location, apply=apply)

    def show(result: VacuumResult) -> str:
        counted = f"{len(result.files)} {'removed' if result.applied else 'to remove'}"
        return "\n  ".join([f"{result.dataset} (version {result.version}): {counted}", *result.files])

    _each(load_settings(), names, verb, show, as_json=as_json)
    if not apply and not as_json:
        click.echo("Nothing was removed; --apply removes.")


@maintain.command("checkpoint")
@_NAMES
@_AS_JSON
def checkpoint_command(names: tuple[str, ...], as_json: bool) -> None:
    """Write a checkpoint of every table's newest version, so that opening it reads fewer files."""

    def show(result: CheckpointResult) -> str:
        return f"{result.dataset}: checkpoint of version {result.version}"

    _each(load_settings(), names, checkpoint, show, as_json=as_json)


def _each(
    settings: Settings, names: tuple[str, ...], verb: Verb[Result], show: Callable[[Result], str], *, as_json: bool
) -> None:
    """Run a verb on each dataset and print its results; one that fails does not keep the others from their turn.

    A table that was never written is passed over unless it was named.
    """
    registry = declared(settings)
    targets = [registry.get(name) for name in names] or list(registry)
    session = open_session(settings.spark)
    results: list[Result] = []
    failed: list[PipelineError] = []
    for dataset in targets:
        with _collected(failed, dataset, named=bool(names)):
            result = verb(session, dataset, dataset.location(settings.root))
            results.append(result)
            if not as_json:
                click.echo(show(result))
    if as_json:
        click.echo(json.dumps([asdict(result) for result in results], indent=2))
    if failed:
        raise failed[-1]


@contextmanager
def _collected(failed: list[PipelineError], dataset: Dataset, *, named: bool) -> Iterator[None]:
    try:
        yield
    except PipelineError as error:
        if isinstance(error, TableNotFoundError) and not named:
            click.echo(f"{dataset.name}: no table yet", err=True)
            return
        if failed:
            click.echo(f"Error: {failed[-1]}", err=True)
        failed.append(error)
