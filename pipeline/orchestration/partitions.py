"""Conversion of partition keys to typed slices of a table, and of a commit's counts back to keys.

Here belongs the meaning of a Dagster partition key. The type of the declared column decides which values a key
represents. Keys are converted one by one, because Dagster passes them in no order. A multi-dimensional key is split by
the names of its dimensions, never by position.

For a column of a time type a time key means its window: instants for a timestamp, days for a date. For a string column
a key means its own text, with any characters. The key of any other value is its only spelling: 7, true, 2026-01-31,
2026-01-31 12:00:00 (in UTC). A decimal may have trailing zeros, as 1.50 has. `NULL_KEY` represents NULL.
"""

from __future__ import annotations

import datetime as dt
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import product
from typing import Any, Protocol, TypeVar

from dagster import (
    MultiPartitionsDefinition,
    PartitionsDefinition,
    StaticPartitionsDefinition,
    TimeWindow,
    TimeWindowPartitionsDefinition,
)
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    TimestampNTZType,
    TimestampType,
)

from pipeline.dataset import Dataset
from pipeline.dataset.schema import is_string
from pipeline.delta import sql
from pipeline.delta.sql.constraints import NULL_FOLDER
from pipeline.delta.sql.slices import Box, Interval, Slice, Values, coalesced, partition_value
from pipeline.errors import DeclarationError, PartitionKeyError
from pipeline.errors.spelling import did_you_mean
from pipeline.orchestration.metadata_keys import PARTITION_EXPR
from pipeline.orchestration.partition_keys import decimal_of, parser_of

# The key of a static or dynamic partition with the rows whose value is NULL. Hive gives its folder this name.
NULL_KEY = NULL_FOLDER

Part = Values | Interval
_ONE_DIMENSION = ""
# A cron with minute and hour as one number each has at most one window a day, whatever its other fields.
_ONCE_A_DAY = re.compile(r"\d+ \d+ ")
# At a change of clocks a day can have 25 hours.
_LONGEST_DAY = dt.timedelta(hours=26)


def partition_columns(
    dataset: Dataset, partitions_def: PartitionsDefinition[Any], expr: object | None = None
) -> dict[str, str]:
    """The partition column of each dimension's keys, by dimension. A single dimension has the name ''.

    Args:
        expr: the asset's `partition_expr`: a column, or columns by dimension. It is optional if the table has one
            partition column, or if each dimension has the name of one.

    Raises:
        DeclarationError: the table has no such column, or the column's type can't hold the keys' values.
        PartitionKeyError: two static keys spell one decimal.
    """
    dimensions = dimensions_of(partitions_def)
    problems = []
    columns = {}
    for dimension, inner in dimensions.items():
        column = _column(dataset, dimension, expr)
        if not isinstance(column, str) or column not in dataset.partition_by:
            names = "no column" if column is None else f"the column {column!r}"
            by = f"({', '.join(dataset.partition_by)})" if dataset.partition_by else "no column: declare partition_by"
            near = did_you_mean(str(column), dataset.partition_by) if column is not None else ""
            problems.append(
                f"{_named(dimension)} keys name {names}, its table is partitioned by {by}; "
                f"name the column with {PARTITION_EXPR}. {near}".rstrip()
            )
            continue
        columns[dimension] = column
        data_type = dataset.field(column).dataType
        problem = _type_problem(inner, data_type)
        _refuse_two_spellings(dataset, column, inner, data_type)
        if problem:
            problems.append(f"{_named(dimension)} keys of {type(inner).__name__} for the column {column}: {problem}")
    if len(set(columns.values())) < len(columns):
        problems.append("two dimensions name the same column")
    if problems:
        prefixed = tuple(f"its asset is partitioned in Dagster, but {problem}" for problem in problems)
        raise DeclarationError(dataset=dataset.name, problems=prefixed)
    return columns


def dimensions_of(partitions_def: PartitionsDefinition[Any]) -> dict[str, PartitionsDefinition[Any]]:
    """The definition of each dimension, by its name. A single dimension has the name ''."""
    if isinstance(partitions_def, MultiPartitionsDefinition):
        return {dimension.name: dimension.partitions_def for dimension in partitions_def.partitions_defs}
    return {_ONE_DIMENSION: partitions_def}


def _column(dataset: Dataset, dimension: str, expr: object | None) -> object | None:
    if isinstance(expr, Mapping):
        return expr.get(dimension)
    if expr is not None:
        return expr
    if dimension:
        return dimension
    return dataset.partition_by[0] if len(dataset.partition_by) == 1 else None


def _named(dimension: str) -> str:
    return f"the {dimension}" if dimension else "its"


def _type_problem(partitions_def: PartitionsDefinition[Any], data_type: DataType) -> str | None:
    """Why keys of that kind can't become values of that type. If they can, None."""
    if not isinstance(partitions_def, TimeWindowPartitionsDefinition):
        if parser_of(data_type) is None:
            return f"no key can spell a value of type {data_type.simpleString()}"
        return None
    if isinstance(data_type, DateType) and not _ONCE_A_DAY.match(partitions_def.cron_schedule):
        return f"several keys of the schedule {partitions_def.cron_schedule!r} may fall on one day of a date"
    if isinstance(data_type, TimestampNTZType) and partitions_def.timezone != "UTC":
        return f"hours that the clocks repeat in {partitions_def.timezone} have one value in a timestamp without a zone"
    if isinstance(data_type, IntegralType | DecimalType) and set(partitions_def.fmt) - set("%YmdHMSj"):
        return f"the format {partitions_def.fmt} does not spell a number"
    fits = is_string(data_type) or isinstance(
        data_type, DateType | TimestampType | TimestampNTZType | IntegralType | DecimalType
    )
    return None if fits else f"time keys can't become values of type {data_type.simpleString()}"


def _refuse_two_spellings(
    dataset: Dataset, column: str, partitions_def: PartitionsDefinition[Any], data_type: DataType
) -> None:
    """Refuse static keys with one decimal value, whose runs would overwrite each other's rows."""
    if not isinstance(partitions_def, StaticPartitionsDefinition) or not isinstance(data_type, DecimalType):
        return
    parts: dict[str, Part] = {}
    for key in partitions_def.get_partition_keys():
        with suppress(ValueError):  # a key without a value is refused by the run that uses it
            parts[key] = Values((decimal_of(key, data_type.scale),))
    _refuse_equal(dataset, column, parts)


class _KeyValues:
    """The values that the keys of one dimension represent in one column."""

    def __init__(self, dataset: Dataset, column: str, partitions_def: PartitionsDefinition[Any]) -> None:
        self.field = dataset.field(column)
        self.partitions_def = partitions_def

    def part(self, key: str) -> Part:
        """The values of a key. Raise ValueError, KeyError or TypeError if it has none."""
        data_type = self.field.dataType
        if not isinstance(self.partitions_def, TimeWindowPartitionsDefinition):
            if key == NULL_KEY and self.field.nullable:
                return Values((None,))
            parse = parser_of(data_type)
            assert parse is not None  # noqa: S101  partition_columns refuses such a type
            return self._checked_value(parse(key))
        window = self.partitions_def.time_window_for_partition_key(key)
        if isinstance(data_type, TimestampType):
            return Interval(window.start.astimezone(dt.timezone.utc), window.end.astimezone(dt.timezone.utc))
        if isinstance(data_type, TimestampNTZType):
            return Interval(window.start.replace(tzinfo=None), window.end.replace(tzinfo=None))
        if isinstance(data_type, DateType):
            return _days(window)
        return self._checked_value(key if is_string(data_type) else _number(key, data_type))

    def _checked_value(self, value: Any) -> Values:
        sql.literal(value, self.field.dataType)  # refuses a value that the type can't hold unchanged
        return Values((value,))


def _number(key: str, data_type: DataType) -> int | Decimal:
    return Decimal(key) if isinstance(data_type, DecimalType) else int(key)


def _days(window: TimeWindow) -> Part:
    """The day on which a window begins. If the window is longer than a day, all its days."""
    first = window.start.date()
    return Values((first,)) if window.end - window.start <= _LONGEST_DAY else Interval(first, window.end.date())


def _cells(
    partitions_def: PartitionsDefinition[Any], keys: Iterable[str], free: Collection[str] = ()
) -> dict[str, tuple[str, ...]]:
    """The key of each dimension that is not free, in the order of `dimensions_of`, by the complete key."""
    if not isinstance(partitions_def, MultiPartitionsDefinition):
        return {key: (key,) for key in keys}
    names = [name for name in dimensions_of(partitions_def) if name not in free]
    cells = {}
    for key in keys:
        by_dimension = partitions_def.get_partition_key_from_str(key).keys_by_dimension
        cells[key] = tuple(by_dimension[name] for name in names)
    return cells


def _parts(
    dataset: Dataset,
    partitions_def: PartitionsDefinition[Any],
    cells: Mapping[str, tuple[str, ...]],
    expr: object | None,
    free: Collection[str] = (),
) -> list[tuple[str, dict[str, Part]]]:
    """The column of each dimension that is not free, and the values of each of its keys.

    Raises:
        PartitionKeyError: keys without a value, or two keys with the same value.
    """
    dimensions = dimensions_of(partitions_def)
    by_dimension = []
    columns = partition_columns(dataset, partitions_def, expr)
    restricted = [(dimension, column) for dimension, column in columns.items() if dimension not in free]
    for position, (dimension, column) in enumerate(restricted):
        meaning = _KeyValues(dataset, column, dimensions[dimension])
        parts: dict[str, Part] = {}
        wrong = []
        for key in dict.fromkeys(cell[position] for cell in cells.values()):
            try:
                parts[key] = meaning.part(key)
            except (ValueError, KeyError, TypeError):
                wrong.append(key)
        if wrong:
            problem = f"not a value of {column}, which has type {meaning.field.dataType.simpleString()}"
            raise PartitionKeyError(dataset=dataset.name, keys=tuple(wrong), problem=problem)
        _refuse_equal(dataset, column, parts)
        by_dimension.append((column, parts))
    return by_dimension


def _refuse_equal(dataset: Dataset, column: str, parts: Mapping[str, Part]) -> None:
    by_part: dict[Hashable, list[str]] = defaultdict(list)
    for key, part in parts.items():
        by_part[part].append(key)
    for keys in by_part.values():
        if len(keys) > 1:
            raise PartitionKeyError(
                dataset=dataset.name, keys=tuple(keys), problem=f"they represent the same value of {column}"
            )


def slice_of(
    dataset: Dataset,
    partitions_def: PartitionsDefinition[Any],
    keys: Sequence[str],
    expr: object | None = None,
    *,
    free: Collection[str] = (),
) -> Slice:
    """The slice that these keys address, in few boxes. Without keys it is empty.

    Args:
        free: the dimensions whose columns may have any value, whatever the keys. At least one dimension is not free.

    Raises:
        PartitionKeyError: a key can't become a value of its column.
    """
    cells = _cells(partitions_def, keys, free)
    columns = _parts(dataset, partitions_def, cells, expr, free)
    boxes = []
    for group in _products(list(dict.fromkeys(cells.values()))):
        sides = [
            [(column, part) for part in coalesced(parts[key] for key in side)]
            for (column, parts), side in zip(columns, group, strict=True)
        ]
        boxes += [Box(tuple(sides_of_box)) for sides_of_box in product(*sides)]
    return Slice(tuple(boxes))


def _products(cells: list[tuple[str, ...]]) -> list[tuple[tuple[str, ...], ...]]:
    """The cells as few products of keys: cells that share all keys of the last dimension become one product."""
    if not cells:
        return []
    if len(cells[0]) == 1:
        return [(tuple(cell[0] for cell in cells),)]
    last_of: dict[tuple[str, ...], dict[str, None]] = defaultdict(dict)
    for cell in cells:
        last_of[cell[:-1]][cell[-1]] = None
    sharing: dict[frozenset[str], list[tuple[str, ...]]] = defaultdict(list)
    for prefix, last in last_of.items():
        sharing[frozenset(last)].append(prefix)
    return [(*group, tuple(last_of[prefixes[0]])) for prefixes in sharing.values() for group in _products(prefixes)]


class KeyFinder:
    """Finds the key that represents given partition values of a table.

    Raises:
        PartitionKeyError: a key can't become a value of its column.
    """

    def __init__(
        self,
        dataset: Dataset,
        partitions_def: PartitionsDefinition[Any],
        keys: Iterable[str],
        expr: object | None = None,
    ) -> None:
        cells = _cells(partitions_def, keys)
        self._keys: dict[tuple[str | None, ...], str] = {cell: key for key, cell in cells.items()}
        self._finders = [
            (dataset.partition_by.index(column), dataset.field(column).dataType, _finder(parts))
            for column, parts in _parts(dataset, partitions_def, cells, expr)
        ]

    def of_values(self, values: Sequence[Any]) -> str | None:
        """The key for typed values of the partition columns. If none represents them, None."""
        return self._keys.get(tuple(find(values[position]) for position, _, find in self._finders))

    def of_texts(self, values: Sequence[str | None]) -> str | None:
        """The key for values as the log spells them. If none represents them, None."""
        cell = tuple(find(partition_value(values[position], data_type)) for position, data_type, find in self._finders)
        return self._keys.get(cell)


def rows_by_key(
    dataset: Dataset,
    partitions_def: PartitionsDefinition[Any],
    keys: Sequence[str],
    rows_by_partition: Mapping[tuple[str | None, ...], int],
    expr: object | None = None,
) -> dict[str, int]:
    """The rows by key, from rows by partition values as the log spells them. A key without rows has 0."""
    find = KeyFinder(dataset, partitions_def, keys, expr).of_texts
    return dict.fromkeys(keys, 0) | sum_by_key(rows_by_partition, find)


class Count(Protocol):
    """A value that can be added to another one of its type."""

    def __add__(self, other: Any, /) -> Any: ...


_Count = TypeVar("_Count", bound=Count)


def sum_by_key(
    counts: Mapping[tuple[Any, ...], _Count], find: Callable[[tuple[Any, ...]], str | None]
) -> dict[str, _Count]:
    """The sums of counts by key, from counts by partition values. Values without a key are left out."""
    by_key: dict[str, _Count] = {}
    for values, count in counts.items():
        key = find(values)
        if key is not None:
            by_key[key] = by_key[key] + count if key in by_key else count
    return by_key


def _finder(parts: Mapping[str, Part]) -> Callable[[Any], str | None]:
    """The function that finds the key whose part holds a value. If there is none, it returns None."""
    by_value = {value: key for key, part in parts.items() if isinstance(part, Values) for value in part.values}
    intervals = sorted(
        ((p.start, p.end, key) for key, p in parts.items() if isinstance(p, Interval)), key=lambda i: i[0]
    )
    starts = [start for start, _, _ in intervals]

    def find(value: Any) -> str | None:
        if value in by_value:
            return by_value[value]
        position = bisect_right(starts, value) - 1 if value is not None else -1
        return intervals[position][2] if position >= 0 and value < intervals[position][1] else None

    return find
