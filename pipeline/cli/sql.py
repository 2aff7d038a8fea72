"""`pipeline sql`: one query over the declared datasets."""

from __future__ import annotations

import datetime as dt

import click

from pipeline.cli.options import as_instant
from pipeline.cli.output import print_json, print_table
from pipeline.cli.registry import declared
from pipeline.delta.query import is_number, query
from pipeline.delta.read import ReadOptions
from pipeline.delta.session import open_session
from pipeline.settings import load_settings

DEFAULT_LIMIT = 1000
NULL = "NULL"


def _pins(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:  # noqa: ARG001
    pins: dict[str, int] = {}
    for value in values:
        name, _, number = value.rpartition("=")
        if not name or not (number.isascii() and number.isdigit()):
            raise click.BadParameter(f"{value!r} is not DATASET=N")
        if name in pins:
            raise click.BadParameter(f"{name} is named twice")
        pins[name] = int(number)
    return pins


@click.command()
@click.argument("statement")
@click.option(
    "--version", "pins", metavar="DATASET=N", multiple=True, callback=_pins, help="Read this dataset at a version."
)
@click.option("--as-of", metavar="TIME", callback=as_instant, help="Read all others as of a time; it needs a zone.")
@click.option("--limit", type=click.IntRange(1), default=DEFAULT_LIMIT, show_default=True, help="At most so many rows.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def sql(statement: str, pins: dict[str, int], as_of: dt.datetime | None, limit: int, as_json: bool) -> None:
    """Run one query; nothing but a query is run.

    Every dataset is a view under its name, with `/` written as two underscores, and `.` and `-` as one. Timestamps are
    shown in UTC, binary values in hexadecimal, nested values as JSON.
    """
    settings = load_settings()
    registry = declared(settings)
    pinned = {registry.get(name).name: ReadOptions(version=number) for name, number in pins.items()}
    answer = query(
        open_session(settings.spark),
        statement,
        datasets=registry,
        root=settings.root,
        pins=pinned,
        everything=ReadOptions(timestamp=as_of),
        limit=limit,
    )
    if as_json:
        print_json(answer.document())
        return
    numbers = [name for name, kind in zip(answer.columns, answer.types, strict=True) if is_number(kind)]
    print_table(answer.columns, [[NULL if v is None else v for v in row] for row in answer.rows], right=numbers)
    if answer.more:
        click.echo(f"There are more rows than {limit}; --limit shows them.", err=True)
