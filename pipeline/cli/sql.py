"""`pipeline sql`: one query over the declared datasets."""

from __future__ import annotations

import datetime as dt

import click

from pipeline.cli.options import WIDE, as_instant
from pipeline.cli.output import print_json, print_table
from pipeline.cli.registry import declared
from pipeline.delta.inspect.query import is_number, query
from pipeline.delta.read.version import ReadOptions
from pipeline.delta.read.window import Window
from pipeline.delta.server.warm import open_project_session
from pipeline.delta.storage.options import project_settings

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


def _windows(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, Window]:  # noqa: ARG001
    windows: dict[str, Window] = {}
    for value in values:
        name, _, text = value.rpartition("=")
        ends = [int(end) if end.isascii() and end.isdigit() else end or None for end in text.split("..")]
        first, last = ends if len(ends) == 2 else ("", "")  # noqa: PLR2004
        if not name or isinstance(first, str) or isinstance(last, str):
            raise click.BadParameter(f"{value!r} is not DATASET=FIRST..LAST")
        if first is not None and last is not None and first > last:
            raise click.BadParameter(f"{value!r} ends before it begins")
        if name in windows:
            raise click.BadParameter(f"{name} is named twice")
        windows[name] = Window(first=first, last=last)
    return windows


@click.command()
@click.argument("statement")
@click.option(
    "--version", "pins", metavar="DATASET=N", multiple=True, callback=_pins, help="Read this dataset at a version."
)
@click.option(
    "--changes", "windows", metavar="DATASET=FIRST..LAST", multiple=True, callback=_windows,
    help="The versions that DATASET__changes holds; either end may be left out.",
)  # fmt: skip
@click.option("--as-of", metavar="TIME", callback=as_instant, help="Read all others as of a time; it needs a zone.")
@click.option(
    "--limit", type=click.IntRange(1), default=DEFAULT_LIMIT, show_default=True, help="At most this many rows."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@WIDE
def sql(
    statement: str, *, pins: dict[str, int], windows: dict[str, Window], as_of: dt.datetime | None, limit: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Run one query. A statement that writes, starts a program or calls Java is refused.

    Every dataset is a view under its name, with `/` written as two underscores, and `.` and `-` as one. NAME__changes
    is its change feed: the rows that each commit inserted, updated or deleted, as far back as it can be read.
    Timestamps are shown in UTC, binary values in hexadecimal, nested values as JSON.
    """
    settings = project_settings()
    registry = declared(settings)
    pinned = {
        registry.get(name).name: ReadOptions(
            version=pins.get(name), timestamp=None if name in pins else as_of, changes=windows.get(name)
        )
        for name in (*pins, *windows)
    }
    answer = query(
        open_project_session(settings.spark),
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
