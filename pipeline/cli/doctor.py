"""`pipeline doctor`: what ails the tables, read from their files."""

from __future__ import annotations

from dataclasses import asdict

import click

from pipeline.cli.options import WIDE
from pipeline.cli.output import count, print_json, print_table, size
from pipeline.cli.tables import Tables
from pipeline.delta.inspect.doctor import Diagnosis, examine
from pipeline.delta.maintain.retention import consumers_of
from pipeline.errors import TableNotFoundError
from pipeline.settings import load_settings


@click.command()
@click.argument("names", metavar="[TABLE]...", nargs=-1)
@click.option("--deep", is_flag=True, help="Read every data file, so that each page and its checksum is looked at.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@WIDE
@click.pass_context
def doctor(ctx: click.Context, names: tuple[str, ...], deep: bool, as_json: bool) -> None:
    """Look for damage in log and files, files that are missing and files that no version knows; changes nothing.

    TABLE is the name of a dataset, or a table's path. The exit status is 1 if something serious was found.
    """
    tables = Tables(load_settings())
    found: list[Diagnosis] = []
    for table in [tables.find(name) for name in names] or [tables.of(dataset) for dataset in tables.registry]:
        try:
            consumers = consumers_of(table.name, tables.registry, tables.settings.root)
            found.append(examine(table.name, table.location, consumers=consumers, deep=deep))
        except TableNotFoundError:
            if names:
                raise
            click.echo(f"{table.name}: no table yet", err=True)
    if as_json:
        print_json([asdict(diagnosis) | {"healthy": diagnosis.healthy} for diagnosis in found])
    else:
        _print(found)
    if not all(diagnosis.healthy for diagnosis in found):
        ctx.exit(1)


def _print(found: list[Diagnosis]) -> None:
    rows = [
        (d.dataset, str(d.version), count(d.files), size(d.bytes), "healthy" if d.healthy else "damaged",
         count(len(d.findings)))
        for d in found
    ]  # fmt: skip
    print_table(
        ("dataset", "version", "files", "size", "health", "findings"), rows,
        right=("version", "files", "size", "findings"),
    )  # fmt: skip
    for diagnosis in found:
        for finding in diagnosis.findings:
            click.echo(f"\n{diagnosis.dataset}: {finding.kind}: {finding.path}\n  {finding.detail}")
            click.echo(f"  -> {finding.remedy}")
