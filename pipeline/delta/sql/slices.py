"""A slice: the part of a table that one run addresses, as typed values of its columns.

Here belong the value, its SQL, and the slice of a frame's rows. How a Dagster partition key becomes a slice does not
belong here. A slice is a union of boxes; a box holds, per column, a set of values or a half-open interval. Its
predicate selects exactly the slice, never more, and does not depend on the order of the keys.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    IntegralType,
    TimestampNTZType,
    TimestampType,
)

from pipeline.dataset import Dataset
from pipeline.dataset.schema import is_string
from pipeline.delta import sql
from pipeline.errors.listing import listed

# At least this many consecutive days become one interval.
SHORTEST_INTERVAL = 3
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
# The days that Java's old calendar lacks, and one at both ends, for instants. Unless a session has the new dates
# (`spark.sql.datetime.java8API.enabled`), Spark hands a filter with one of them to a reader of files as the day after
_LACKING = (dt.date(1582, 10, 4), dt.date(1582, 10, 16))


class Unaddressable(ValueError):  # noqa: N818  never leaves this package: the caller then uses the whole table
    """A value that no predicate can select."""


@dataclass(frozen=True)
class Values:
    """Single values of a column; None stands for NULL."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Interval:
    """The values from `start` up to, but excluding, `end`; never NULL."""

    start: Any
    end: Any


@dataclass(frozen=True)
class Box:
    """The allowed values of each column; other columns may have any value."""

    columns: tuple[tuple[str, Values | Interval], ...]


@dataclass(frozen=True)
class Slice:
    """A union of boxes over partition columns or other columns; without boxes it selects nothing."""

    boxes: tuple[Box, ...]

    def predicate(self, dataset: Dataset, of: str = "") -> str:
        """SQL that is true for exactly the rows of the slice; literals have the declared column types.

        Args:
            of: the name of the relation that has the columns, if a statement has several relations.

        Raises:
            ValueError: a column can't store a value, or a column has type char, whose values Delta does not find.
        """
        if not self.boxes:
            return "FALSE"
        return " OR ".join(f"({_box(box, dataset, of)})" for box in self.boxes)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the slice restricts."""
        return tuple(dict.fromkeys(name for box in self.boxes for name, _ in box.columns))

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether a row with these values of the slice's columns is in it."""
        return any(all(_holds(part, values[name]) for name, part in box.columns) for box in self.boxes)

    def document(self) -> list[Any]:
        """The slice in JSON's types, with every value, for `slice_of_document`."""
        return [[[name, _part_document(part)] for name, part in box.columns] for box in self.boxes]

    @property
    def identity(self) -> str:
        """The slice as text with every value, however many there are: the texts of two slices always differ."""
        return self._text(", ".join, " or ".join)

    def __str__(self) -> str:
        """The slice as text; of many values only the first are named."""
        return self._text(listed, partial(listed, separator=" or "))

    def _text(self, values: Callable[[Iterable[str]], str], boxes: Callable[[Iterable[str]], str]) -> str:
        if not self.boxes:
            return "a slice of nothing"
        return boxes(" and ".join(_text(name, part, values) for name, part in box.columns) for box in self.boxes)


def _holds(part: Values | Interval, value: Any) -> bool:
    if isinstance(part, Interval):
        return value is not None and bool(part.start <= value < part.end)
    return value in part.values


_TO_TEXT: Sequence[tuple[type, str, Callable[[Any], str]]] = (
    (bool, "boolean", str), (int, "integer", str), (float, "float", repr), (Decimal, "decimal", str),
    (dt.datetime, "time", dt.datetime.isoformat), (dt.date, "date", dt.date.isoformat), (bytes, "bytes", bytes.hex),
    (str, "text", str),
)  # fmt: skip
_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "boolean": "True".__eq__, "integer": int, "float": float, "decimal": Decimal, "bytes": bytes.fromhex, "text": str,
    "date": dt.date.fromisoformat, "time": dt.datetime.fromisoformat,
}  # fmt: skip


def _part_document(part: Values | Interval) -> dict[str, Any]:
    if isinstance(part, Interval):
        return {"from": _value_document(part.start), "before": _value_document(part.end)}
    return {"values": [_value_document(value) for value in part.values]}


def _value_document(value: Any) -> list[str] | None:
    if value is None:
        return None
    return next([name, text(value)] for kind, name, text in _TO_TEXT if isinstance(value, kind))


def slice_of_document(document: Iterable[Any]) -> Slice:
    """The slice of a `Slice.document`."""

    def value(given: Sequence[str] | None) -> Any:
        return None if given is None else _FROM_TEXT[given[0]](given[1])

    def part(given: Mapping[str, Any]) -> Values | Interval:
        if "values" in given:
            return Values(tuple(map(value, given["values"])))
        return Interval(value(given["from"]), value(given["before"]))

    return Slice(tuple(Box(tuple((name, part(given)) for name, given in box)) for box in document))


def _text(name: str, part: Values | Interval, values: Callable[[Iterable[str]], str]) -> str:
    if isinstance(part, Interval):
        return f"{name} from {part.start} to before {part.end}"
    named = values(map(str, part.values))
    return f"{name} = {named}" if len(part.values) == 1 else f"{name} in ({named})"


def _box(box: Box, dataset: Dataset, of: str) -> str:
    return " AND ".join(_part(name, part, dataset, of) for name, part in box.columns)


def _part(name: str, part: Values | Interval, dataset: Dataset, of: str) -> str:
    column, data_type = sql.column(name, of), dataset.field(name).dataType
    if isinstance(data_type, CharType):
        raise Unaddressable(f"values of {name} have type {data_type.simpleString()}, which Spark pads as it reads")
    values = (part.start, part.end) if isinstance(part, Interval) else part.values
    if any(_is_lacking(value) for value in values):
        column, literals = _counted(column, data_type, values)
    else:
        literals = [None if value is None else sql.literal(value, data_type) for value in values]
    if isinstance(part, Interval):
        return f"{column} >= {literals[0]} AND {column} < {literals[1]}"
    present = [literal for literal in literals if literal is not None]
    alternatives = []
    if len(present) == 1:
        alternatives.append(f"{column} = {present[0]}")
    elif present:
        alternatives.append(f"{column} IN ({', '.join(present)})")
    if len(present) < len(part.values):
        alternatives.append(f"{column} IS NULL")
    return alternatives[0] if len(alternatives) == 1 else f"({' OR '.join(alternatives)})"


def _is_lacking(value: Any) -> bool:
    """Whether a day or an instant is one that Java's old calendar lacks."""
    if isinstance(value, dt.datetime):
        return value.tzinfo is not None and _LACKING[0] <= value.astimezone(dt.timezone.utc).date() < _LACKING[1]
    return isinstance(value, dt.date) and _LACKING[0] <= value < _LACKING[1]


def _counted(column: str, data_type: DataType, values: Iterable[Any]) -> tuple[str, list[str | None]]:
    """A column of days or instants as their number since 1970, with values alike; no reader is handed such a filter.

    Raises:
        ValueError: the type can't store a value.
    """
    function = "unix_date" if isinstance(data_type, DateType) else "unix_micros"
    literals = [None if value is None else f"{function}({sql.literal(value, data_type)})" for value in values]
    return f"{function}({column})", literals


def of_values(column: str, values: Iterable[Any]) -> Slice:
    """The slice with these values of one column."""
    return of_parts(column, [Values(tuple(bytes(v) if isinstance(v, bytearray) else v for v in values))])


def of_parts(column: str, parts: Iterable[Values | Interval]) -> Slice:
    """The slice with the union of these parts of one column."""
    return Slice(tuple(Box(((column, part),)) for part in coalesced(parts)))


def united(*slices: Slice | None) -> Slice | None:
    """The union of slices; None, the whole table, if one of them is None."""
    parts = [within for within in slices if within is not None]
    if len(parts) < len(slices):
        return None
    return Slice(tuple(dict.fromkeys(box for within in parts for box in within.boxes)))


def of_rows(frame: DataFrame, columns: Sequence[str], at_most: int) -> Slice | None:
    """The slice of the distinct values of these columns in a frame; None if there are more than `at_most`.

    Several columns count by combinations of their values. Runs one Spark job.

    Raises:
        Unaddressable: a value has no literal: it has a nested type, or is a date outside Python's range.
    """
    rows = frame.selectExpr(*_shown(frame, columns)).distinct().limit(at_most + 1).collect()
    if len(rows) > at_most:
        return None
    cells = [_cell(row, frame, columns) for row in rows]
    if len(columns) == 1:
        return of_values(columns[0], (cell[0] for cell in cells))
    return Slice(tuple(Box(tuple((c, Values((v,))) for c, v in zip(columns, cell, strict=True))) for cell in cells))


def rows_by_values(
    frame: DataFrame, columns: Sequence[str], conditions: Sequence[str]
) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """By the values of these columns in a frame, the number of rows that meet each condition. One Spark job."""
    met = [f"CAST({condition} AS INT) AS met{position}" for position, condition in enumerate(conditions)]
    names = [f"met{position}" for position in range(len(conditions))]
    values = frame.selectExpr(*_shown(frame, columns), *met)
    rows = values.groupBy(*(f"value{position}" for position in range(len(columns)))).sum(*names).collect()
    return {_cell(row, frame, columns): tuple(row[f"sum({name})"] or 0 for name in names) for row in rows}


def _shown(frame: DataFrame, columns: Sequence[str]) -> list[str]:
    """SQL of these columns under generated names, so that a column may have any name."""
    types = [(column, frame.schema[column].dataType) for column in columns]
    return [f"{_plain(column, data_type)} AS value{number}" for number, (column, data_type) in enumerate(types)]


def _cell(row: Row, frame: DataFrame, columns: Sequence[str]) -> tuple[Any, ...]:
    types = [(column, frame.schema[column].dataType) for column in columns]
    return tuple(_read(row[f"value{number}"], column, kind) for number, (column, kind) in enumerate(types))


def _plain(name: str, data_type: DataType) -> str:
    """SQL for a column in a form that does not depend on a time zone, calendar or client."""
    column = sql.identifier(name)
    if isinstance(data_type, TimestampType):
        return f"unix_micros({column})"
    if isinstance(data_type, DateType):
        return f"unix_date({column})"
    if isinstance(data_type, TimestampNTZType | DecimalType):
        return f"CAST({column} AS STRING)"
    if isinstance(data_type, BinaryType):
        return f"hex({column})"
    if is_string(data_type) or isinstance(data_type, BooleanType | IntegralType | FractionalType):
        return column
    raise Unaddressable(f"a value of {name} has type {data_type.simpleString()}, which has no literal")


def _read(value: Any, name: str, data_type: DataType) -> Any:
    """The value of a column from the form that `_plain` selects."""
    if value is None:
        return None
    try:
        if isinstance(data_type, TimestampType):
            return _EPOCH + dt.timedelta(microseconds=value)
        if isinstance(data_type, DateType):
            return _EPOCH.date() + dt.timedelta(days=value)
        if isinstance(data_type, TimestampNTZType):
            return _datetime(value)
    except (ValueError, OverflowError) as error:  # beyond the years 1 to 9999
        raise Unaddressable(f"a {data_type.simpleString()} of {name} is not in the years 1 to 9999") from error
    if isinstance(data_type, DecimalType):
        return Decimal(value)
    return bytes.fromhex(value) if isinstance(data_type, BinaryType) else value


def coalesced(parts: Iterable[Values | Interval]) -> list[Values | Interval]:
    """The same values in fewer parts: adjacent intervals become one, and so do consecutive dates."""
    values: dict[Any, None] = {}
    intervals: list[Interval] = []
    for part in parts:
        if isinstance(part, Values):
            values |= dict.fromkeys(part.values)
        else:
            intervals.append(part)
    days = sorted(value for value in values if type(value) is dt.date)
    runs = [run for run in _runs(days) if len(run) >= SHORTEST_INTERVAL and run[-1] < dt.date.max]
    intervals += [Interval(run[0], run[-1] + dt.timedelta(days=1)) for run in runs]
    within_runs = {day for run in runs for day in run}
    # Sorted, so that the same keys make the same predicate in whatever order they come.
    single = sorted((v for v in values if v not in within_runs), key=_order)
    return [*_joined(intervals), *([Values(tuple(single))] if single else [])]


def _order(value: Any) -> tuple[bool, bool, Any]:
    """The sort key of a value: NaN, which numbers don't order, comes after them, and NULL comes last."""
    return value is None, isinstance(value, float) and math.isnan(value), value


def _runs(days: Sequence[dt.date]) -> list[list[dt.date]]:
    runs: list[list[dt.date]] = []
    for day in days:
        if runs and (day - runs[-1][-1]).days == 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    return runs


def _joined(intervals: list[Interval]) -> list[Interval]:
    joined: list[Interval] = []
    for interval in sorted(intervals, key=lambda interval: interval.start):
        if joined and interval.start <= joined[-1].end:
            joined[-1] = Interval(joined[-1].start, max(joined[-1].end, interval.end))
        else:
            joined.append(interval)
    return joined


def partition_value(text: str | None, data_type: DataType) -> Any:
    """The value of a partition column from its text in the log (Delta protocol, "Partition Value Serialization").

    None for NULL. Timestamps are in UTC; the value has a time zone if the column's type has one.
    """
    if text is None:
        return None
    if isinstance(data_type, IntegralType):
        return int(text)
    if isinstance(data_type, DecimalType):
        return Decimal(text)
    if isinstance(data_type, DateType):
        return dt.date.fromisoformat(text)
    if isinstance(data_type, TimestampType):
        instant = _datetime(text)
        return instant if instant.tzinfo else instant.replace(tzinfo=dt.timezone.utc)
    if isinstance(data_type, TimestampNTZType):
        return _datetime(text)
    if isinstance(data_type, BooleanType):
        return text == "true"
    return text


def _datetime(text: str) -> dt.datetime:
    """Parse an ISO timestamp: Python 3.10 reads neither a final Z nor a fraction of other than three or six digits."""
    whole, _, rest = text.removesuffix("Z").partition(".")
    parsed = dt.datetime.fromisoformat(f"{whole}.{rest[:6].ljust(6, '0')}" if rest else whole)
    return parsed.replace(tzinfo=dt.timezone.utc) if text.endswith("Z") else parsed
