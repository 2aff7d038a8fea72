"""The output of the commands: tables of text for people, one JSON document for programs, and errors of single tables.

Here belong the format of sizes, times and values, and the fitting of a table to a terminal. Columns of text are cut to
a least readable width, and an ellipsis marks the cut. A table that is still too wide is printed as one record for each
row, with every value in full. If the output is not a terminal, or if `--wide` is given, nothing is cut. The content is
made by the commands.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.errors import PipelineError, TableNotFoundError

# The width if nothing is cut or folded.
_WIDTH = 1 << 20
# The cells between two columns, and the least width of a column of text.
_GAP = 3
_LEAST = 12
_WIDE = "pipeline.wide"
# Control characters, which could move the cursor or change the terminal. A line break stays as it is.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != ord("\n")}


def print_json(document: Any) -> None:
    """One JSON document."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def wide(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001
    """The callback of the option that prints values in full."""
    ctx.meta[_WIDE] = value


def terminal_width() -> int | None:
    """The width of the terminal. None if the output is not a terminal, or if `--wide` is given."""
    ctx = click.get_current_context(silent=True)
    if (ctx is not None and ctx.meta.get(_WIDE)) or not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = ()) -> None:
    """Print rows under a head. The columns in `right` are aligned to the right and are never cut."""
    cells, to_the_right = [list(row) for row in rows], set(right)
    most = terminal_width()
    widths = None if most is None else fitted(columns, cells, to_the_right, most)
    if most is not None and widths is None:
        _print_records(columns, cells)
        return
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for position, name in enumerate(columns):
        shown.add_column(
            _text(name), justify="right" if name in to_the_right else "left", no_wrap=True, overflow="ellipsis",
            max_width=None if widths is None else widths[position],
        )  # fmt: skip
    for row in cells:
        shown.add_row(*map(_text, row))
    _print(shown, _WIDTH if most is None else most)


def fitted(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[str], most: int
) -> list[int] | None:  # fmt: skip
    """The width of each column. None if the table can't be made narrow enough and still be readable.

    The widest columns of text are cut first. No column becomes narrower than its head or a readable least width.
    """
    uncut = set(right)
    widths = [
        max(cell_len(name), *(_cells(row[position]) for row in rows), 0) for position, name in enumerate(columns)
    ]  # fmt: skip
    least = [
        width if name in uncut else min(width, max(cell_len(name), _LEAST))
        for name, width in zip(columns, widths, strict=True)
    ]
    room = most - _GAP * (len(columns) - 1)
    if sum(least) > room:
        return None
    widths = [min(width, max(room, at_least)) for width, at_least in zip(widths, least, strict=True)]
    while sum(widths) > room:
        widest = max((i for i in range(len(widths)) if widths[i] > least[i]), key=widths.__getitem__)
        widths[widest] -= 1
    return widths


def _cells(value: str) -> int:
    return max((cell_len(line) for line in value.translate(_CONTROLS).split("\n")), default=0)


def _print_records(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    for position, row in enumerate(rows):
        if position:
            click.echo()
        print_pairs(zip(columns, row, strict=True))


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print one line for each name and its value. On a terminal a longer value is folded."""
    most = terminal_width()
    shown = Table(box=None, pad_edge=False, show_header=False)
    shown.add_column(no_wrap=True)
    shown.add_column(no_wrap=most is None, overflow="fold")
    for name, value in pairs:
        shown.add_row(_text(name), _text(value))
    _print(shown, _WIDTH if most is None else most)


def _text(value: str) -> Text:
    """The value as plain text: markup in it is not interpreted."""
    return Text(value.translate(_CONTROLS))


def _print(shown: Table, width: int) -> None:
    console = Console(width=width, highlight=False, color_system=None)
    with console.capture() as captured:
        console.print(shown)
    click.echo("\n".join(line.rstrip() for line in captured.get().removesuffix("\n").split("\n")))


def count(value: int | None) -> str:
    """A number with commas between its thousands; a dash for None."""
    return "-" if value is None else f"{value:,}"


def size(value: int | None) -> str:
    """A number of bytes in a fitting unit; a dash for None."""
    if value is None:
        return "-"
    amount = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:  # noqa: PLR2004
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def instant(value: dt.datetime | None) -> str:
    """A time in UTC, to the second; a dash for None."""
    return "-" if value is None else f"{value.astimezone(dt.timezone.utc):%Y-%m-%d %H:%M:%SZ}"


@contextmanager
def collected(failed: list[PipelineError], name: str, *, named: bool) -> Iterator[None]:
    """Collect the error of a block about one dataset, so that the others are still processed.

    Of several errors the caller raises the last; those before it are printed. If the table was never written and its
    dataset was not `named`, a line is printed instead.
    """
    try:
        yield
    except PipelineError as error:
        if isinstance(error, TableNotFoundError) and not named:
            click.echo(f"{name}: no table yet", err=True)
            return
        if failed:
            click.echo(f"Error: {failed[-1]}", err=True)
        failed.append(error)
