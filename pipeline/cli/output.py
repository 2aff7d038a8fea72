"""How the commands print: tables of text for people, one JSON document for programs.

Here belong the spelling of sizes, times and values. What is printed comes from the commands.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

# Lines are as long as their values: a cut or folded value would not be the value.
_WIDTH = 1 << 20
# Characters that move the cursor or do worse; a line break stays one.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != ord("\n")}


def print_json(document: Any) -> None:
    """One JSON document."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = ()) -> None:
    """Rows under a head, every value in full; the columns in `right` end at the same place."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    to_the_right = set(right)
    for name in columns:
        shown.add_column(_text(name), justify="right" if name in to_the_right else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*map(_text, row))
    _print(shown)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """One line for each name and its value."""
    shown = Table(box=None, pad_edge=False, show_header=False)
    shown.add_column(no_wrap=True)
    shown.add_column(no_wrap=True)
    for name, value in pairs:
        shown.add_row(_text(name), _text(value))
    _print(shown)


def _text(value: str) -> Text:
    """The value as it is: what looks like markup is not."""
    return Text(value.translate(_CONTROLS))


def _print(shown: Table) -> None:
    console = Console(width=_WIDTH, highlight=False, color_system=None)
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
