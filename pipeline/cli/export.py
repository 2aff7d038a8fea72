"""`pipeline export`: a version of a table as files elsewhere. It shows a plan, unless `--apply` is given."""

from __future__ import annotations

import datetime as dt
from typing import Any, cast

import click

from pipeline.cli.options import WIDE, as_instant
from pipeline.cli.output import count, print_json, print_pairs, size
from pipeline.cli.tables import Tables
from pipeline.delta.export.export import export as do_export
from pipeline.delta.export.export import plan_export
from pipeline.delta.export.request import DELTA, FORMATS, ExportFormat, ExportPlan, ExportRequest, ExportResult
from pipeline.delta.export.target import refuse_elsewhere
from pipeline.delta.read.version import ReadOptions
from pipeline.delta.storage.options import project_settings


@click.command()
@click.argument("name", metavar="TABLE")
@click.option("--to", "target", metavar="URI", required=True, help="Into this folder, which must be empty or missing.")
@click.option(
    "--format", "format_name", type=click.Choice(FORMATS), metavar="FORMAT", required=True,
    help="delta, parquet, csv or ndjson.",
)  # fmt: skip
@click.option("--version", type=click.IntRange(0), help="This version; without it the newest.")
@click.option(
    "--as-of",
    "timestamp",
    metavar="TIME",
    callback=as_instant,
    help="The newest version at or before a time; it needs a zone.",
)
@click.option("--where", metavar="SQL", help="Only rows for which this condition is true.")
@click.option("--columns", metavar="NAMES", help="Only these columns, separated by commas, in this order.")
@click.option("--history", is_flag=True, help="For delta without --where and --columns: also the earlier versions.")
@click.option("--apply", is_flag=True, help="Export; without it only the plan is shown.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@WIDE
def export(
    name: str,
    *,
    target: str,
    format_name: str,
    version: int | None,
    timestamp: dt.datetime | None,
    where: str | None,
    columns: str | None,
    history: bool,
    apply: bool,
    as_json: bool,
) -> None:
    """Write a version of a table to a folder as Delta, Parquet, CSV or NDJSON: completely or not at all.

    TABLE is the name of a dataset, or a table's path. The rows are counted in the written files and compared with those
    of the version. The file _SUCCESS in the folder is written last: it names the version, the schema and the files.
    """
    if version is not None and timestamp is not None:
        raise click.UsageError("Give one of --version and --as-of.")
    if history and (format_name != DELTA or where is not None or columns is not None):
        raise click.UsageError("--history is for --format delta, without --where and --columns.")
    tables = Tables(project_settings())
    table = tables.ref(tables.find(name))
    request = ExportRequest(
        target=target, format=cast("ExportFormat", format_name), columns=_names(columns), where=where, history=history
    )
    if not request.is_copy:
        refuse_elsewhere(table.name, target, tables.settings.spark)
    plan = plan_export(tables.session, table, request, ReadOptions(version=version, timestamp=timestamp))
    result = do_export(tables.session, table, plan) if apply else None
    if as_json:
        print_json({"plan": plan.document(), "applied": None if result is None else _document(result)})
        return
    print_pairs(_pairs(plan))
    if result is None:
        click.echo("Nothing was written; --apply exports.")
    else:
        done = f"{count(result.rows)} rows in {count(len(result.files))} files ({size(result.bytes)})"
        click.echo(f"Exported version {plan.version} to {plan.request.target}: {done}.")


def _names(columns: str | None) -> tuple[str, ...]:
    return () if columns is None else tuple(name.strip() for name in columns.split(","))


def _document(result: ExportResult) -> dict[str, Any]:
    files = [{"path": file.path, "bytes": file.size, "rows": file.rows} for file in result.files]
    return {"rows": result.rows, "bytes": result.bytes, "files": files}


def _pairs(plan: ExportPlan) -> list[tuple[str, str]]:
    request = plan.request
    pairs = [
        ("dataset", plan.dataset),
        ("version", str(plan.version)),
        ("to", request.target),
        ("format", f"{request.format}, with history" if request.history else request.format),
        ("columns", ", ".join(plan.columns)),
    ]
    if request.where is not None:
        pairs.append(("where", request.where))
    if plan.partition_by:
        number = f"{count(len(plan.rows_by_folder))} by " if "" not in plan.rows_by_folder else "by "
        pairs.append(("partitions", number + ", ".join(plan.partition_by)))
    pairs += [
        ("rows", count(plan.rows)),
        ("files of the version", count(plan.files)),
        ("their size", size(plan.bytes)),
    ]
    if plan.has_leftovers:
        pairs.append(("leftovers", "the files of a killed export are removed"))
    return pairs
