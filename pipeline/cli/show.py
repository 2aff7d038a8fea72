"""`pipeline show`: every table at a glance, or one of them in full."""

from __future__ import annotations

from collections.abc import Iterator

import click

from pipeline.cli.options import WIDE
from pipeline.cli.output import count, instant, print_json, print_pairs, print_table, size
from pipeline.cli.tables import Tables
from pipeline.dataset import TableRef
from pipeline.delta import sql
from pipeline.delta.inspect.describe import TableDescription, describe_all
from pipeline.delta.storage.options import project_settings
from pipeline.delta.table.open_table import TableState
from pipeline.errors.listing import listed


@click.command()
@click.argument("name", metavar="[TABLE]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@WIDE
@click.pass_context
def show(ctx: click.Context, name: str | None, as_json: bool) -> None:
    """Show size, rows, version and state of every table; of a named table also columns, features, properties, health.

    TABLE is the name of a dataset, or a table's path. For tables on this machine no Spark is started. If a table can't
    be read, the exit status is 1; the others are still shown.
    """
    tables = Tables(project_settings())
    if name is not None:
        table = tables.find(name)
        table_name = None if table.declared is None else table.declared.table_name
        description = tables.describe(table)
        if as_json:
            print_json(description.document() | {"table_name": table_name})
        else:
            _print_one(description, table_name)
        return
    root = tables.settings.root

    def describe(table: TableRef) -> TableDescription:
        return tables.describe(tables.of(table.dataset), with_health=as_json)

    described = describe_all(tables.registry, root, describe)
    print_json([table.document() for table in described]) if as_json else _print_all(described)
    others = tables.undeclared()
    if others:
        click.echo(f"Not declared below {root}: {listed(others)}; pipeline show TABLE shows one.", err=True)
    unread = [table.problem for table in described if table.problem is not None]
    for problem in unread:
        click.echo(f"Error: {problem}", err=True)
    if unread:
        ctx.exit(1)


def _print_all(tables: tuple[TableDescription, ...]) -> None:
    numbers = ("rows", "files", "size", "partitions", "version")
    print_table(("dataset", "state", *numbers, "last write (UTC)"), [_row(table) for table in tables], right=numbers)


def _row(description: TableDescription) -> tuple[str, ...]:
    if description.table is None:
        return (description.dataset, description.standing, *["-"] * 6)
    return (
        description.dataset,
        description.standing,
        count(description.rows),
        count(description.table.files),
        size(description.table.bytes),
        count(description.partitions),
        str(description.table.version),
        instant(description.last_write.timestamp if description.last_write is not None else None),
    )


def _print_one(description: TableDescription, table_name: str | None) -> None:
    print_pairs(_pairs(description, table_name))
    if description.table is None:
        return
    for difference in description.differences:
        click.echo(f"differs: {difference}")
    for remark in description.health.remarks if description.health else ():
        click.echo(f"health: {remark}")
    click.echo()
    print_table(
        ("column", "type", "NULL", "partition", "description"),
        [
            (
                field.name,
                sql.type_name(field.dataType),
                "yes" if field.nullable else "no",
                "yes" if field.name in description.table.partition_by else "",
                (field.metadata or {}).get("comment", ""),
            )
            for field in description.table.schema.fields
        ],
    )
    if description.table.properties:
        click.echo()
        print_table(("property", "value"), sorted(description.table.properties.items()))


def _pairs(description: TableDescription, table_name: str | None) -> Iterator[tuple[str, str]]:
    yield "dataset", description.dataset
    yield "state", description.standing
    yield "location", description.location
    if table_name is not None:
        yield "table name", table_name
    if description.table is not None:
        yield from _table_pairs(description, description.table)
    if description.last_write is not None:
        yield "last write", f"{instant(description.last_write.timestamp)} ({description.last_write.operation})"
    if description.health is not None:
        number = description.health.checkpoint_version
        yield "checkpoint", "none" if number is None else f"version {number}"
        yield "optimized", instant(description.health.last_optimize)
        yield "vacuumed", instant(description.health.last_vacuum)


def _table_pairs(description: TableDescription, table: TableState) -> Iterator[tuple[str, str]]:
    yield "version", str(table.version)
    yield "rows", count(description.rows)
    yield "files", count(table.files)
    yield "size", size(table.bytes)
    if table.partition_by:
        yield "partitions", f"{count(description.partitions)} by {', '.join(table.partition_by)}"
    yield "table id", table.table_id
    yield "fingerprint", table.fingerprint
    yield "protocol", f"reader {table.reader_version}, writer {table.writer_version}"
    yield "features", ", ".join(table.features) or "-"
