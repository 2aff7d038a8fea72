"""The landing folder's market prices: real ones from 2000 to 2010, one file for each symbol, as from a feed.

Here belongs the extraction of prices from the package `vega_datasets`, which is never imported: it would load pandas.
Reading the folder belongs to `assets`.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from pipeline.assets.landing import csv_content, lay, package_folder
from pipeline.assets.portfolio.datasets import SYMBOLS
from pipeline.errors import DemoError

PACKAGE = "vega_datasets"
HEADER = ["symbol", "date", "price"]


@dataclass(frozen=True, kw_only=True)
class PriceFiles:
    """The price files, in the order of their symbols. `written` are the files that were new or different."""

    files: tuple[Path, ...]
    written: tuple[Path, ...]


def prepare_prices(folder: Path) -> PriceFiles:
    """Write the prices of every symbol to `prices/<symbol>.csv`. Equal files are left unchanged.

    Each file appears atomically, so a reader never sees a part of it.

    Raises:
        DemoError: the package with the real prices is not installed or not as expected, or the folder can't be written.
    """
    source = package_folder(PACKAGE, "prices") / "_data" / "stocks.csv"
    written: list[Path] = []
    try:
        lines = _lines_by_symbol(source)
        files = tuple(folder / "prices" / f"{symbol}.csv" for symbol in SYMBOLS)
        for symbol, path in zip(SYMBOLS, files, strict=True):
            lay(path, csv_content([HEADER, *lines[symbol]]), written)
    except OSError as error:
        raise DemoError(reason=f"The landing folder {folder} could not be prepared: {error}") from error
    return PriceFiles(files=files, written=tuple(written))


def _lines_by_symbol(source: Path) -> dict[str, list[list[str]]]:
    """The lines of each symbol, in their order."""
    lines: dict[str, list[list[str]]] = {}
    with source.open(encoding="utf-8", newline="") as opened:
        rows = csv.reader(opened)
        header = next(rows, [])
        if header != HEADER:
            raise DemoError(reason=f"{source} begins with {','.join(header)}; expected {','.join(HEADER)}.")
        for row in rows:
            lines.setdefault(row[0], []).append(row)
    if set(lines) != set(SYMBOLS):
        raise DemoError(reason=f"{source} has the prices of {', '.join(sorted(lines))}; expected {', '.join(SYMBOLS)}.")
    return lines
