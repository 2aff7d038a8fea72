"""`pipeline doctor`: damage in the tables, read from their files."""

from __future__ import annotations

from dataclasses import asdict

import click

from pipeline.cli.options import WIDE, project_settings
from pipeline.cli.output import count, print_json, print_table, size
from pipeline.cli.tables import Tables
from pipeline.delta.inspect.doctor import Diagnosis, examine
from pipeline.delta.maintain.retention import consumers_of
from pipeline.errors import TableNotFoundError


@click.command()
@click.argument("names", metavar="[TABLE]...", nargs=-1)
@click.option("--deep", is_flag=True, help="Read every data file, so that each page and its checksum are verified.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@WIDE
@click.pass_context
def doctor(ctx: click.Context, names: tuple[str, ...], deep: bool, as_json: bool) -> None:
    """Find damage in log and files, missing files and files that no version references; changes nothing.

    TABLE is the name of a dataset, or a table's path. The exit status is 1 if a table is damaged.
    """
    tables = Tables(project_settings())
    diagnoses: list[Diagnosis] = []
    for table in [tables.find(name) for name in names] or [tables.of(dataset) for dataset in tables.registry]:
        try:
            consumers = consumers_of(table.name, tables.registry, tables.settings.root)
            diagnoses.append(examine(table.name, table.location, consumers=consumers, deep=deep))
        except TableNotFoundError:
            if names:
                raise
            click.echo(f"{table.name}: no table yet", err=True)
    if as_json:
        print_json([asdict(diagnosis) | {"healthy": diagnosis.healthy} for diagnosis in diagnoses])
    else:
        _print(diagnoses)
    if not all(diagnosis.healthy for diagnosis in diagnoses):
        ctx.exit(1)


def _print(diagnoses: list[Diagnosis]) -> None:
    rows = [
        (d.dataset, str(d.version), count(d.files), size(d.bytes), "healthy" if d.healthy else "damaged",
         count(len(d.findings)))
        for d in diagnoses
    ]  # fmt: skip
    print_table(
        ("dataset", "version", "files", "size", "health", "findings"), rows,
        right=("version", "files", "size", "findings"),
    )  # fmt: skip
    for diagnosis in diagnoses:
        for finding in diagnosis.findings:
            click.echo(f"\n{diagnosis.dataset}: {finding.kind}: {finding.path}\n  {finding.detail}")
            click.echo(f"  -> {finding.remedy}")
