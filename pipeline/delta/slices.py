"""A slice: the part of a table that one run addresses, as typed values of its partition columns.

Here belong the value and its SQL. How a partition key becomes a slice is Dagster's business and not known here.
A slice is a union of boxes; a box holds, per column, a set of values or a half-open interval. Its predicate selects
exactly the slice: never wider, never by the order in which keys arrived.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.dataset import Dataset
from pipeline.delta import sql

# Runs of at least this many consecutive days are written as one interval.
SHORTEST_INTERVAL = 3


@dataclass(frozen=True)
class Values:
    """Single values of a column; None stands for NULL."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Interval:
    """Values from `start` up to, and without, `end`; never NULL."""

    start: Any
    end: Any


@dataclass(frozen=True)
class Box:
    """For each column what it may be; columns that are not named may be anything."""

    columns: tuple[tuple[str, Values | Interval], ...]


@dataclass(frozen=True)
class Slice:
    """A union of boxes over partition columns; no boxes select nothing."""

    boxes: tuple[Box, ...]

    def predicate(self, dataset: Dataset) -> str:
        """SQL that is true for exactly the rows of the slice; literals follow the declared column types."""
        if not self.boxes:
            return "FALSE"
        return " OR ".join(f"({_box(box, dataset)})" for box in self.boxes)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the slice speaks of."""
        return tuple(dict.fromkeys(name for box in self.boxes for name, _ in box.columns))

    def __str__(self) -> str:
        return " or ".join(" and ".join(_text(name, part) for name, part in box.columns) for box in self.boxes)


def _text(name: str, part: Values | Interval) -> str:
    if isinstance(part, Interval):
        return f"{name} from {part.start} to before {part.end}"
    return f"{name} = {part.values[0]}" if len(part.values) == 1 else f"{name} in ({', '.join(map(str, part.values))})"


def _box(box: Box, dataset: Dataset) -> str:
    return " AND ".join(_part(name, part, dataset) for name, part in box.columns)


def _part(name: str, part: Values | Interval, dataset: Dataset) -> str:
    column, data_type = sql.identifier(name), dataset.field(name).dataType
    if isinstance(part, Interval):
        start, end = (sql.literal(value, data_type) for value in (part.start, part.end))
        return f"{column} >= {start} AND {column} < {end}"
    present = [sql.literal(value, data_type) for value in part.values if value is not None]
    alternatives = []
    if len(present) == 1:
        alternatives.append(f"{column} = {present[0]}")
    elif present:
        alternatives.append(f"{column} IN ({', '.join(present)})")
    if len(present) < len(part.values):
        alternatives.append(f"{column} IS NULL")
    return alternatives[0] if len(alternatives) == 1 else f"({' OR '.join(alternatives)})"


def of_values(column: str, values: Iterable[Any]) -> Slice:
    """The slice of these values of one column; dates that follow each other become intervals."""
    distinct = tuple(dict.fromkeys(values))
    if distinct and all(type(value) is dt.date for value in distinct):
        return Slice(tuple(Box(((column, part),)) for part in _compressed(sorted(distinct))))
    return Slice((Box(((column, Values(distinct)),)),) if distinct else ())


def _compressed(days: Sequence[dt.date]) -> list[Values | Interval]:
    runs: list[list[dt.date]] = []
    for day in days:
        if runs and (day - runs[-1][-1]).days == 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    long = [run for run in runs if len(run) >= SHORTEST_INTERVAL and run[-1] < dt.date.max]
    single = tuple(day for run in runs if run not in long for day in run)
    parts: list[Values | Interval] = [Interval(run[0], run[-1] + dt.timedelta(days=1)) for run in long]
    return [*parts, Values(single)] if single else parts
