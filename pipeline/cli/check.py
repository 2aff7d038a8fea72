"""`pipeline check`: whether the tables match what their declarations expect."""

from __future__ import annotations

import click

from pipeline.cli.options import WIDE
from pipeline.cli.output import count, print_json, print_table
from pipeline.cli.registry import declared
from pipeline.delta.inspect.check import CheckOutcome, check_table
from pipeline.delta.server.warm import open_project_session
from pipeline.delta.storage.options import project_settings
from pipeline.errors import TableNotFoundError

_RESULTS = {True: "passed", False: "failed", None: "not judged"}


@click.command()
@click.argument("names", metavar="[DATASET]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@WIDE
@click.pass_context
def check(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Check the newest version of each table: schema, constraints, expectations, rows, age; changes nothing.

    The exit status is 1 if something failed that is not a warning.
    """
    settings = project_settings()
    registry = declared(settings)
    session = open_project_session(settings.spark)
    outcomes: list[CheckOutcome] = []
    for dataset in [registry.get(name) for name in names] or list(registry):
        try:
            outcomes += check_table(session, dataset, settings.root)
        except TableNotFoundError as error:
            if names:
                raise
            click.echo(error.message(), err=True)
    if as_json:
        print_json([outcome.document() for outcome in outcomes])
    else:
        _print(outcomes)
    if any(outcome.passed is False and outcome.severity == "error" for outcome in outcomes):
        ctx.exit(1)


def _print(outcomes: list[CheckOutcome]) -> None:
    rows = [
        (f.dataset, f.name, _RESULTS[f.passed] if f.passed is not False else f"failed ({f.severity})", str(f.version),
         count(f.rows), f.detail)
        for f in outcomes
    ]  # fmt: skip
    print_table(("dataset", "expected", "result", "version", "rows", "detail"), rows, right=("version", "rows"))
    for outcome in outcomes:
        for text in outcome.examples:
            click.echo(f"{outcome.dataset}: {outcome.name}: {text}")
