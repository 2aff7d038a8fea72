"""The comparison of the rows of two frames, or of two tables, on the executors and in bounded memory.

Here belongs the proof that a migration has changed nothing, and that a repeated run has made the same rows: `source`
are the rows as they were, `table` those that were made of them. Each frame is aggregated once for each partition of the
table: rows, NULLs, and a hash of each column and of the rows that does not depend on their order. The sums of the
source less those of the table are 0 if the sides are equal. Equal hashes have equal smallest and greatest values, so
those are computed for the partitions and columns that differ, to show where the difference is.

A hash is a sum, not an exclusive or: two equal rows would cancel each other in the latter. A sum has 32 bits of each
hash, so that none overflows below 2 ** 31 rows of a partition: the upper ones of a column, and both halves of a row.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StructField,
    StructType,
    VariantType,
)

from pipeline.dataset import Dataset, Features
from pipeline.delta import sql
from pipeline.delta.log.mark import private_session
from pipeline.delta.log.snapshot import table_facts
from pipeline.delta.read.changes import WITHIN_RETENTION
from pipeline.delta.spark.doors import through_door
from pipeline.delta.table.open_table import rows_at

ROWS = "the rows as a whole"
# So many partitions that differ are named.
_NAMED = 20
_LOW = "4294967295L"


@dataclass(frozen=True, kw_only=True)
class PartitionDifference:
    """A partition whose rows differ: its values as text, the numbers of rows, and what differs."""

    partition: str
    source_rows: int
    table_rows: int
    columns: tuple[str, ...]

    def __str__(self) -> str:
        place = f"partition {self.partition}" if self.partition else "the table"
        rows = f"{self.source_rows} rows in the files, {self.table_rows} in the table"
        return f"{place}: {', '.join(self.columns)} ({rows})"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result: the numbers of partitions and rows of both sides, and the partitions that differ, at most 20."""

    partitions: int
    source_rows: int
    table_rows: int
    columns: int
    differences: tuple[PartitionDifference, ...]
    differing: int = 0


def compare(session: SparkSession, source: DataFrame, table: DataFrame, dataset: Dataset) -> Comparison:
    """Compare two frames with the columns of a dataset. One Spark query reads both, and a second one if they differ.

    Args:
        session: a session of ours that may be used for this alone, and that has both frames.

    Raises:
        Spark's own errors: a frame can't be computed, or a partition has too many rows for the sums.
    """
    columns = _Columns.of(dataset)
    views = {sign: f"pipeline_compare_{uuid.uuid4().hex}" for sign in (1, -1)}
    for frame, view in zip((source, table), views.values(), strict=True):
        frame.selectExpr(*columns.canonical).createOrReplaceTempView(view)
    row = session.sql(_judged(columns, views)).collect()[0]
    found = [
        PartitionDifference(
            partition=each["part"], source_rows=each["source"], table_rows=each["table"], columns=tuple(each["wrong"])
        )
        for each in row["examples"]
    ]  # fmt: skip
    if found:
        found = _with_extremes(session, columns, views, found)
    for view in views.values():
        session.catalog.dropTempView(view)
    return Comparison(
        partitions=row["partitions"], source_rows=row["source_rows"], table_rows=row["table_rows"],
        columns=len(dataset.schema.fields), differences=tuple(found), differing=row["differing"],
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TableComparison:
    """The comparison of two tables. `columns` are the differences of their columns, `left_out` those not compared.

    An identity column is left out: Delta numbers the rows of a write in no order. If the tables have no column in
    common, `rows` is None.
    """

    rows: Comparison | None
    columns: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether the tables have the same columns and the same rows, in whatever order."""
        return not self.columns and self.rows is not None and not self.rows.differing


def compare_tables(
    session: SparkSession, name: str, before: tuple[str, int], after: tuple[str, int]
) -> TableComparison:  # fmt: skip
    """Compare two tables, each a location and a version, as `compare` does. `name` is the dataset's, for errors.

    Raises:
        StorageError: a version can't be read.
        DamagedTableError: the log or a file of a table is damaged.
    """
    with through_door(name, after[0]), private_session(session, {WITHIN_RETENTION: "false"}) as clone:
        old, new = (rows_at(clone, location, version) for location, version in (before, after))
        facts = table_facts(*before)
        numbered = () if facts is None else _identity_columns(facts.schema)
        types, others = ({one.name: one.dataType for one in frame.schema.fields} for frame in (old, new))
        differences = (
            *(f"column {column} is missing" for column in types if column not in others),
            *(f"column {column} is new" for column in others if column not in types),
            *(
                f"column {column} was {sql.type_name(kind)} and is {sql.type_name(others[column])}"
                for column, kind in types.items()
                if others.get(column, kind) != kind
            ),
        )
        common = [column for column, kind in types.items() if others.get(column) == kind and column not in numbered]
        if not common:
            return TableComparison(rows=None, columns=differences, left_out=numbered)
        partition_by = () if facts is None else tuple(column for column in facts.partition_by if column in common)
        dataset = Dataset(
            name=name, schema=StructType([StructField(column, types[column]) for column in common]),
            partition_by=partition_by if len(partition_by) < len(common) else (),
            features=Features(column_mapping="name"),  # a table may have columns of any name
        )  # fmt: skip
        return TableComparison(rows=compare(clone, old, new, dataset), columns=differences, left_out=numbered)


def _identity_columns(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns whose values Delta numbers (Delta protocol, "Identity Columns")."""
    return tuple(one["name"] for one in schema["fields"] if "delta.identity.start" in (one.get("metadata") or {}))


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """The columns of the views: `c0`, `c1` and so on, by their positions.

    `keys` are those of the partitions, and `measured` the names and types of the others. `part` is the SQL of a
    partition as text. `signed_keys` are the keys that are floating-point numbers.
    """

    canonical: tuple[str, ...]
    keys: tuple[str, ...]
    signed_keys: tuple[str, ...]
    part: str
    measured: Mapping[str, tuple[str, DataType]]

    @classmethod
    def of(cls, dataset: Dataset) -> _Columns:
        fields = {f"c{position}": field for position, field in enumerate(dataset.schema.fields)}
        keys = tuple(column for column, field in fields.items() if field.name in dataset.partition_by)
        labels = {key: sql.string(f"{fields[key].name}=") for key in keys}
        shown = (f"concat({label}, coalesce(CAST({key} AS STRING), 'NULL'))" for key, label in labels.items())
        values = {column: _canonical(sql.identifier(field.name), field.dataType) for column, field in fields.items()}
        return cls(
            canonical=tuple(f"{value} AS {column}" for column, value in values.items()), keys=keys,
            signed_keys=tuple(key for key in keys if isinstance(fields[key].dataType, FloatType | DoubleType)),
            part=f"concat_ws(', ', {', '.join(shown)})" if keys else "''",
            measured={column: (field.name, field.dataType) for column, field in fields.items() if column not in keys},
        )  # fmt: skip


def _canonical(expression: str, data_type: DataType, depth: int = 0) -> str:
    """The SQL of a value in a form that can be hashed: a NULL inside a value counts, and maps are sorted."""
    name = f"x{depth}"
    if isinstance(data_type, VariantType):
        return f"to_json({expression})"
    if isinstance(data_type, FloatType | DoubleType) and depth:
        return f"named_struct('v', {expression}, 'z', {_is_negative_zero(expression)})"
    if isinstance(data_type, CharType):  # Spark pads it when it reads a table
        return f"rtrim({expression})"
    if isinstance(data_type, ArrayType):
        inner = _canonical(name, data_type.elementType, depth + 1)
        return _sized(expression, f"transform({expression}, {name} -> named_struct('n', {name} IS NULL, 'v', {inner}))")
    if isinstance(data_type, MapType):
        key = _canonical(f"{name}.key", data_type.keyType, depth + 1)
        value = _canonical(f"{name}.value", data_type.valueType, depth + 1)
        entry = f"named_struct('k', {key}, 'n', {name}.value IS NULL, 'v', {value})"
        return _sized(expression, f"array_sort(transform(map_entries({expression}), {name} -> {entry}))")
    if isinstance(data_type, StructType):
        parts = []
        for position, field in enumerate(data_type.fields):
            inner = f"{expression}.{sql.identifier(field.name)}"
            canonical = _canonical(inner, field.dataType, depth + 1)
            parts.append(f"'n{position}', {inner} IS NULL, 'v{position}', {canonical}")
        return f"CASE WHEN {expression} IS NOT NULL THEN named_struct({', '.join(parts)}) END"
    return expression


def _sized(expression: str, values: str) -> str:
    """The SQL of a collection with its size: Spark's hash is that of the values, which shows no end of a collection."""
    return f"CASE WHEN {expression} IS NOT NULL THEN named_struct('s', size({expression}), 'a', {values}) END"


def _is_negative_zero(expression: str) -> str:
    """The SQL of whether a number is -0.0, which has the hash of 0.0."""
    return f"({expression} = 0 AND CAST({expression} AS STRING) LIKE '-%')"


def _hash(column: str, data_type: DataType) -> str:
    """The SQL of the hash of a value. It is 0 for NULL: a struct of NULLs has the hash that Spark gives to NULL."""
    zero = f"WHEN {_is_negative_zero(column)} THEN 1L " if isinstance(data_type, FloatType | DoubleType) else ""
    return f"CASE WHEN {column} IS NULL THEN 0L {zero}ELSE xxhash64({column}) END"


def _sums(columns: _Columns, view: str, sign: int) -> str:
    """The query of one side: a row for each partition, with the sums of its rows."""
    hashes = (f"{_hash(column, kind)} AS hash_{column}" for column, (_, kind) in columns.measured.items())
    rows = f"SELECT {', '.join((*columns.keys, *columns.measured, *hashes))} FROM {view}"  # noqa: S608  generated names
    measures = [f"{sign}L AS side", "count(*) AS n"]
    for column in columns.measured:
        measures += [f"count({column}) AS filled_{column}", f"sum(shiftright(hash_{column}, 32)) AS hash_{column}"]
    signs = (_is_negative_zero(key) for key in columns.signed_keys)  # -0.0 is in the group of 0.0
    row = f"xxhash64({', '.join((*(f'hash_{column}' for column in columns.measured), *signs))})"
    measures += [f"sum({row} & {_LOW}) AS low", f"sum(shiftright({row}, 32)) AS high"]
    return f"SELECT {', '.join((*columns.keys, *measures))} FROM ({rows}){_grouping(columns.keys)}"  # noqa: S608


def _grouping(keys: Sequence[str]) -> str:
    return f" GROUP BY {', '.join(keys)}" if keys else ""


def _judged(columns: _Columns, views: Mapping[int, str]) -> str:
    """The query of one row: the totals, and the first partitions that differ with what differs in each."""
    measures = ["sum(if(side > 0, n, 0L)) AS source_rows", "sum(if(side < 0, n, 0L)) AS table_rows"]
    differing = [("source_rows <> table_rows", "number of rows")]
    for column, (name, _) in columns.measured.items():
        measures.append(f"sum(side * (n - filled_{column})) AS nulls_{column}")
        measures.append(f"sum(side * hash_{column}) AS hash_{column}")
        differing.append((f"nulls_{column} <> 0", f"NULLs of column {name}"))
        differing.append((f"hash_{column} <> 0", _values(name)))
    measures += ["sum(side * low) AS low", "sum(side * high) AS high"]
    differing.append(("low <> 0 OR high <> 0", ROWS))
    sides = " UNION ALL ".join(_sums(columns, view, sign) for sign, view in views.items())
    aggregated = f"SELECT {', '.join((*columns.keys, *measures))} FROM ({sides}){_grouping(columns.keys)}"  # noqa: S608
    judged = (
        f"SELECT source_rows, table_rows, {columns.part} AS part, {_texts(differing)} AS wrong "  # noqa: S608
        f"FROM ({aggregated})"
    )
    example = "named_struct('part', part, 'source', source_rows, 'table', table_rows, 'wrong', wrong)"
    examples = f"slice(array_sort(collect_list(CASE WHEN size(wrong) > 0 THEN {example} END)), 1, {_NAMED})"
    return (
        "SELECT count(*) AS partitions, coalesce(sum(source_rows), 0) AS source_rows, "  # noqa: S608
        f"coalesce(sum(table_rows), 0) AS table_rows, count_if(size(wrong) > 0) AS differing, {examples} AS examples "
        f"FROM ({judged})"
    )


def _texts(conditions: Iterable[tuple[str, str]]) -> str:
    """The SQL of an array with the texts whose conditions are true."""
    cases = ", ".join(f"CASE WHEN {condition} THEN {sql.string(text)} END" for condition, text in conditions)
    return f"filter(array({cases}), x -> x IS NOT NULL)"


def _values(name: str) -> str:
    return f"values of column {name}"


def _with_extremes(
    session: SparkSession, columns: _Columns, views: Mapping[int, str], found: Sequence[PartitionDifference]
) -> list[PartitionDifference]:  # fmt: skip
    """The same partitions, with the columns whose smallest or greatest values differ."""
    wrong = {text for each in found for text in each.columns}
    measures, differing = [], []
    for column, (name, kind) in columns.measured.items():
        if _values(name) not in wrong or isinstance(kind, ArrayType | MapType | StructType | VariantType):
            continue
        measures += [
            f"{each}(CASE WHEN side = {sign} THEN {column} END) AS {each}_{column}_{side}"
            for each in ("min", "max") for side, sign in (("s", 1), ("t", -1))
        ]  # fmt: skip
        equal = " AND ".join(f"{each}_{column}_s <=> {each}_{column}_t" for each in ("min", "max"))
        differing.append((f"NOT ({equal})", f"min or max of column {name}"))
    if not measures:
        return list(found)
    sides = " UNION ALL ".join(f"SELECT *, {sign} AS side FROM {view}" for sign, view in views.items())  # noqa: S608
    parts = ", ".join(sql.string(each.partition) for each in found)
    rows = f"SELECT *, {columns.part} AS part FROM ({sides})"  # noqa: S608
    grouped = f"SELECT part, {', '.join(measures)} FROM ({rows}) WHERE part IN ({parts}) GROUP BY part"  # noqa: S608
    more = {row["part"]: row["wrong"] for row in session.sql(
        f"SELECT part, {_texts(differing)} AS wrong FROM ({grouped})"  # noqa: S608
    ).collect()}  # fmt: skip
    return [replace(each, columns=(*each.columns, *more.get(each.partition, ()))) for each in found]
