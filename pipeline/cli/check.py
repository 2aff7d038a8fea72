"""`pipeline check`: whether the tables are as their declarations expect."""

from __future__ import annotations

import click

from pipeline.cli.options import WIDE
from pipeline.cli.output import count, print_json, print_table
from pipeline.cli.registry import declared
from pipeline.delta.inspect.check import CheckOutcome, check_table
from pipeline.delta.spark.session import open_session
from pipeline.errors import TableNotFoundError
from pipeline.settings import load_settings

_JUDGED = {True: "passed", False: "failed", None: "not judged"}


@click.command()
@click.argument("names", metavar="[DATASET]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@WIDE
@click.pass_context
def check(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Check the newest version of each table: schema, constraints, expectations, rows, age; changes nothing.

    The exit status is 1 if something failed that is not a warning.
    """
    settings = load_settings()
    registry = declared(settings)
    session = open_session(settings.spark)
    found: list[CheckOutcome] = []
    for dataset in [registry.get(name) for name in names] or list(registry):
        try:
            found += check_table(session, dataset, settings.root)
        except TableNotFoundError as error:
            if names:
                raise
            click.echo(error.message(), err=True)
    if as_json:
        print_json([finding.document() for finding in found])
    else:
        _print(found)
    if any(finding.passed is False and finding.severity == "error" for finding in found):
        ctx.exit(1)


def _print(found: list[CheckOutcome]) -> None:
    rows = [
        (f.dataset, f.name, _JUDGED[f.passed] if f.passed is not False else f"failed ({f.severity})", str(f.version),
         count(f.rows), f.detail)
        for f in found
    ]  # fmt: skip
    print_table(("dataset", "expected", "result", "version", "rows", "detail"), rows, right=("version", "rows"))
    for finding in found:
        for text in finding.examples:
            click.echo(f"{finding.dataset}: {finding.name}: {text}")
