"""`pipeline show`: every table at a glance, or one of them in full."""

from __future__ import annotations

from collections.abc import Iterator

import click

from pipeline.cli.options import WIDE
from pipeline.cli.output import count, instant, print_json, print_pairs, print_table, size
from pipeline.cli.tables import Tables
from pipeline.delta import sql
from pipeline.delta.inspect.describe import TableDescription, describe_all
from pipeline.delta.table.open_table import TableState
from pipeline.errors.listing import listed
from pipeline.settings import load_settings


@click.command()
@click.argument("name", metavar="[TABLE]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@WIDE
@click.pass_context
def show(ctx: click.Context, name: str | None, as_json: bool) -> None:
    """Sizes, rows, version and health of every table; with a name also its columns, features and properties.

    TABLE is the name of a dataset, or a table's path. For tables on this machine no Spark is started. Exit status 1
    where a table can't be read; the others are shown all the same.
    """
    tables = Tables(load_settings())
    if name is not None:
        found = tables.describe(tables.find(name))
        print_json(found.document()) if as_json else _print_one(found)
        return
    root = tables.settings.root
    described = describe_all(tables.registry, root, lambda dataset, _: tables.describe(tables.of(dataset)))
    print_json([table.document() for table in described]) if as_json else _print_all(described)
    others = tables.undeclared()
    if others:
        click.echo(f"Below {root} nothing is declared of {listed(others)}; pipeline show TABLE shows one.", err=True)
    unread = [table.problem for table in described if table.problem is not None]
    for problem in unread:
        click.echo(f"Error: {problem}", err=True)
    if unread:
        ctx.exit(1)


def _print_all(tables: tuple[TableDescription, ...]) -> None:
    numbers = ("rows", "files", "size", "partitions", "version")
    print_table(("dataset", "state", *numbers, "last write (UTC)"), [_row(found) for found in tables], right=numbers)


def _row(found: TableDescription) -> tuple[str, ...]:
    if found.table is None:
        return (found.dataset, found.standing, *["-"] * 6)
    return (
        found.dataset,
        found.standing,
        count(found.rows),
        count(found.table.files),
        size(found.table.bytes),
        count(found.partitions),
        str(found.table.version),
        instant(found.last_write.timestamp if found.last_write is not None else None),
    )


def _print_one(found: TableDescription) -> None:
    print_pairs(_pairs(found))
    if found.table is None:
        return
    for difference in found.differences:
        click.echo(f"differs: {difference}")
    for remark in found.health.remarks if found.health else ():
        click.echo(f"health: {remark}")
    click.echo()
    print_table(
        ("column", "type", "NULL", "partition", "description"),
        [
            (
                field.name,
                sql.type_name(field.dataType),
                "yes" if field.nullable else "no",
                "yes" if field.name in found.table.partition_by else "",
                (field.metadata or {}).get("comment", ""),
            )
            for field in found.table.schema.fields
        ],
    )
    if found.table.properties:
        click.echo()
        print_table(("property", "value"), sorted(found.table.properties.items()))


def _pairs(found: TableDescription) -> Iterator[tuple[str, str]]:
    yield "dataset", found.dataset
    yield "state", found.standing
    yield "location", found.location
    if found.table is not None:
        yield from _table_pairs(found, found.table)
    if found.last_write is not None:
        yield "last write", f"{instant(found.last_write.timestamp)} ({found.last_write.operation})"
    if found.health is not None:
        number = found.health.checkpoint_version
        yield "checkpoint", "none" if number is None else f"version {number}"
        yield "optimized", instant(found.health.last_optimize)
        yield "vacuumed", instant(found.health.last_vacuum)


def _table_pairs(found: TableDescription, table: TableState) -> Iterator[tuple[str, str]]:
    yield "version", str(table.version)
    yield "rows", count(found.rows)
    yield "files", count(table.files)
    yield "size", size(table.bytes)
    if table.partition_by:
        yield "partitions", f"{count(found.partitions)} by {', '.join(table.partition_by)}"
    yield "table id", table.table_id
    yield "fingerprint", table.fingerprint
    yield "protocol", f"reader {table.reader_version}, writer {table.writer_version}"
    yield "features", ", ".join(table.features) or "-"
