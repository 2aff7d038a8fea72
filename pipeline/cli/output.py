"""How the commands print: tables of text for people, one JSON document for programs.

Here belong the spelling of sizes, times and values, and how a table fits a terminal: columns of text are cut, marked by
an ellipsis, as far as they can still be read, and a table that is too wide even so is printed as a record a row, with
every value in full. Where the output is no terminal, or `--wide` is given, every line is as long as its values. What is
printed comes from the commands.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

# Lines are as long as their values: a cut or folded value would not be the value.
_WIDTH = 1 << 20
# Between two columns, and what a column of text keeps at least of its values.
_GAP = 3
_LEAST = 12
_WIDE = "pipeline.wide"
# Characters that move the cursor or do worse; a line break stays one.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != ord("\n")}


def print_json(document: Any) -> None:
    """One JSON document."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def wide(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001
    """The callback of the option that has values printed in full."""
    ctx.meta[_WIDE] = value


def terminal_width() -> int | None:
    """How wide the terminal is that is printed to; None where it is none, or is not to be minded."""
    ctx = click.get_current_context(silent=True)
    if (ctx is not None and ctx.meta.get(_WIDE)) or not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = ()) -> None:
    """Rows under a head; the columns in `right` end at the same place, and are never cut."""
    given, to_the_right = [list(row) for row in rows], set(right)
    most = terminal_width()
    widths = None if most is None else fitted(columns, given, to_the_right, most)
    if most is not None and widths is None:
        _print_records(columns, given)
        return
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for place, name in enumerate(columns):
        shown.add_column(
            _text(name), justify="right" if name in to_the_right else "left", no_wrap=True, overflow="ellipsis",
            max_width=None if widths is None else widths[place],
        )  # fmt: skip
    for row in given:
        shown.add_row(*map(_text, row))
    _print(shown, _WIDTH if most is None else most)


def fitted(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[str], most: int
) -> list[int] | None:  # fmt: skip
    """How wide each column may be; None where the table can't be as narrow as that and still be read.

    The widest columns of text are cut first, none to less than its head or what can be told apart.
    """
    kept = set(right)
    widths = [
        max(cell_len(name), *(_cells(row[place]) for row in rows), 0) for place, name in enumerate(columns)
    ]  # fmt: skip
    least = [
        width if name in kept else min(width, max(cell_len(name), _LEAST))
        for name, width in zip(columns, widths, strict=True)
    ]
    room = most - _GAP * (len(columns) - 1)
    if sum(least) > room:
        return None
    widths = [min(width, max(room, at_least)) for width, at_least in zip(widths, least, strict=True)]
    while sum(widths) > room:
        widest = max((place for place in range(len(widths)) if widths[place] > least[place]), key=widths.__getitem__)
        widths[widest] -= 1
    return widths


def _cells(value: str) -> int:
    return max((cell_len(line) for line in value.translate(_CONTROLS).split("\n")), default=0)


def _print_records(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    for place, row in enumerate(rows):
        if place:
            click.echo()
        print_pairs(zip(columns, row, strict=True))


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """One line for each name and its value; on a terminal a longer value goes on below itself."""
    most = terminal_width()
    shown = Table(box=None, pad_edge=False, show_header=False)
    shown.add_column(no_wrap=True)
    shown.add_column(no_wrap=most is None, overflow="fold")
    for name, value in pairs:
        shown.add_row(_text(name), _text(value))
    _print(shown, _WIDTH if most is None else most)


def _text(value: str) -> Text:
    """The value as it is: what looks like markup is not."""
    return Text(value.translate(_CONTROLS))


def _print(shown: Table, width: int) -> None:
    console = Console(width=width, highlight=False, color_system=None)
    with console.capture() as captured:
        console.print(shown)
    click.echo("\n".join(line.rstrip() for line in captured.get().removesuffix("\n").split("\n")))


def count(value: int | None) -> str:
    """A number with its thousands apart; a dash for None."""
    return "-" if value is None else f"{value:,}"


def size(value: int | None) -> str:
    """A number of bytes in the unit that suits it; a dash for None."""
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
