"""The comparison of the rows of the source with those of the table, on the executors and in bounded memory.

Here belongs the proof that a migration has changed nothing. Both frames go through one aggregation for each partition
of the table: rows, NULLs, the smallest and the greatest value, and a hash of each column and of the rows that does not
depend on their order. Rows of the source count as +1 and those of the table as -1, so that equal sides add up to 0.

A hash is a sum, not an exclusive or: two equal rows would cancel each other in the latter. It is summed in two halves
of 32 bits, so that no sum overflows below 2 ** 31 rows of a partition.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CharType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StructType,
    VariantType,
)

from pipeline.dataset import Dataset
from pipeline.dataset.schema import is_string
from pipeline.delta import sql

ROWS = "the rows as a whole"
# So many partitions that differ are named.
_NAMED = 20
_LOW = "4294967295L"
# A min or max of texts needs a hash table of objects, which Spark replaces by a sort above so many groups.
_GROUPS = ("spark.sql.objectHashAggregate.sortBased.fallbackThreshold", "100000")


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
    """Compare two frames with the columns of a dataset. Two Spark jobs read both.

    Args:
        session: a session of ours that may be used for this alone, and that has both frames.

    Raises:
        Spark's own errors: a frame can't be computed, or a partition has too many rows for the sums.
    """
    session.conf.set(*_GROUPS)
    fields = list(dataset.schema.fields)
    names, kinds = [field.name for field in fields], [field.dataType for field in fields]
    keys = [f"c{position}" for position, name in enumerate(names) if name in dataset.partition_by]
    view = f"pipeline_compare_{uuid.uuid4().hex}"
    _side(source, dataset, 1).unionAll(_side(table, dataset, -1)).createOrReplaceTempView(view)
    found: dict[str, PartitionDifference] = {}
    for measures, differing in _queries(names, kinds, keys):
        totals, examples = _run(session, view, measures, differing, keys=keys, names=names)
        for example in examples:
            columns = (*(found[example.partition].columns if example.partition in found else ()), *example.columns)
            found[example.partition] = replace(example, columns=tuple(dict.fromkeys(columns)))
    session.catalog.dropTempView(view)
    partitions, source_rows, table_rows, count = totals
    return Comparison(
        partitions=partitions, source_rows=source_rows, table_rows=table_rows, columns=len(fields),
        differences=tuple(list(found.values())[:_NAMED]), differing=max(count, len(found)),
    )  # fmt: skip


def _side(frame: DataFrame, dataset: Dataset, sign: int) -> DataFrame:
    """The columns under generated names, and the sign of the side."""
    columns = [
        f"{_canonical(sql.identifier(field.name), field.dataType)} AS c{position}"
        for position, field in enumerate(dataset.schema.fields)
    ]
    return frame.selectExpr(*columns, f"CAST({sign} AS BIGINT) AS side")


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
        return f"transform({expression}, {name} -> named_struct('n', {name} IS NULL, 'v', {inner}))"
    if isinstance(data_type, MapType):
        key = _canonical(f"{name}.key", data_type.keyType, depth + 1)
        value = _canonical(f"{name}.value", data_type.valueType, depth + 1)
        entry = f"named_struct('k', {key}, 'n', {name}.value IS NULL, 'v', {value})"
        return f"array_sort(transform(map_entries({expression}), {name} -> {entry}))"
    if isinstance(data_type, StructType):
        parts = []
        for position, field in enumerate(data_type.fields):
            inner = f"{expression}.{sql.identifier(field.name)}"
            canonical = _canonical(inner, field.dataType, depth + 1)
            parts.append(f"'n{position}', {inner} IS NULL, 'v{position}', {canonical}")
        return f"CASE WHEN {expression} IS NOT NULL THEN named_struct({', '.join(parts)}) END"
    return expression


def _is_negative_zero(expression: str) -> str:
    """The SQL of whether a number is -0.0, which has the hash of 0.0."""
    return f"({expression} = 0 AND CAST({expression} AS STRING) LIKE '-%')"


def _is_nested(data_type: DataType) -> bool:
    return isinstance(data_type, ArrayType | MapType | StructType)


def _is_text(data_type: DataType) -> bool:
    return is_string(data_type) or isinstance(data_type, BinaryType | VariantType)


def _queries(
    names: Sequence[str], kinds: Sequence[DataType], keys: Sequence[str]
) -> Iterator[tuple[list[str], list[tuple[str, str]]]]:
    """The aggregates of each query, and the condition under which a column differs, with the column's name.

    The smallest and greatest texts have a query of their own: a buffer of fixed width serves all other aggregates,
    which is several times faster.
    """
    measures, differing = _sums(names, kinds, keys)
    texts: list[str] = []
    texts_differ: list[tuple[str, str]] = []
    for position, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        if f"c{position}" in keys or _is_nested(kind):
            continue
        into, conditions = (texts, texts_differ) if _is_text(kind) else (measures, differing)
        into += [
            f"{function}(CASE WHEN side = {sign} THEN c{position} END) AS {function}{label}{position}"
            for function in ("min", "max") for sign, label in ((1, "s"), (-1, "t"))
        ]  # fmt: skip
        equal = [f"{function}s{position} <=> {function}t{position}" for function in ("min", "max")]
        conditions.append((f"NOT ({' AND '.join(equal)})", f"min or max of column {name}"))
    yield measures, differing
    if texts:
        # An aggregate of objects makes Spark use a hash table of objects. Otherwise it would sort all rows.
        yield [*texts, "collect_list(CAST(NULL AS INT)) AS objects"], [*texts_differ, ("size(objects) > 0", "")]


def _sums(
    names: Sequence[str], kinds: Sequence[DataType], keys: Sequence[str]
) -> tuple[list[str], list[tuple[str, str]]]:  # fmt: skip
    """The sums of NULLs and hashes of each column but those of partitions, and of the full rows."""
    hashes = [_hash(f"c{position}", kind) for position, kind in enumerate(kinds)]
    measures, differing = [], [("source_rows <> table_rows", "number of rows")]
    for position, name in enumerate(names):
        column = f"c{position}"
        if column in keys:
            continue
        measures.append(f"sum(CASE WHEN {column} IS NULL THEN side ELSE 0L END) AS nulls{position}")
        differing.append((f"nulls{position} <> 0", f"NULLs of column {name}"))
        measures += _halves(f"CASE WHEN {column} IS NULL THEN 0L ELSE {hashes[position]} END", str(position))
        differing.append((f"low{position} <> 0 OR high{position} <> 0", f"values of column {name}"))
    rows = ", ".join(f"CASE WHEN c{i} IS NULL THEN 0L ELSE {text} END" for i, text in enumerate(hashes))
    measures += _halves(f"xxhash64({rows})", "rows")
    differing.append(("lowrows <> 0 OR highrows <> 0", ROWS))
    return measures, differing


def _hash(column: str, data_type: DataType) -> str:
    sign = f", {_is_negative_zero(column)}" if isinstance(data_type, FloatType | DoubleType) else ""
    return f"xxhash64({column}{sign})"


def _halves(number: str, label: str) -> list[str]:
    return [f"sum(side * ({number} & {_LOW})) AS low{label}", f"sum(side * shiftright({number}, 32)) AS high{label}"]


def _run(
    session: SparkSession, view: str, measures: Sequence[str], differing: Sequence[tuple[str, str]], *,
    keys: Sequence[str], names: Sequence[str],
) -> tuple[tuple[int, int, int, int], list[PartitionDifference]]:  # fmt: skip
    """Aggregate by partition. Return the totals and the first partitions that differ."""
    counts = ["count_if(side > 0) AS source_rows", "count_if(side < 0) AS table_rows"]
    grouping = f" GROUP BY {', '.join(keys)}" if keys else ""
    aggregated = f"SELECT {', '.join((*keys, *counts, *measures))} FROM {view}{grouping}"  # noqa: S608  generated names
    wrong = ", ".join(f"CASE WHEN {condition} THEN {sql.string(text)} END" for condition, text in differing if text)
    guards = "".join(f" AND NOT ({condition})" for condition, text in differing if not text)
    part = f"concat_ws(', ', {', '.join(_shown(key, names) for key in keys)})" if keys else "''"
    judged = (
        f"SELECT source_rows, table_rows, {part} AS part, "  # noqa: S608
        f"filter(array({wrong}), x -> x IS NOT NULL{guards}) AS wrong FROM ({aggregated})"
    )
    example = "named_struct('part', part, 'source', source_rows, 'table', table_rows, 'wrong', wrong)"
    examples = f"slice(array_sort(collect_list(CASE WHEN size(wrong) > 0 THEN {example} END)), 1, {_NAMED})"
    row = session.sql(
        "SELECT count(*) AS partitions, coalesce(sum(source_rows), 0) AS source_rows, "  # noqa: S608
        f"coalesce(sum(table_rows), 0) AS table_rows, count_if(size(wrong) > 0) AS differing, {examples} AS examples "
        f"FROM ({judged})"
    ).collect()[0]
    found = [
        PartitionDifference(
            partition=each["part"], source_rows=each["source"], table_rows=each["table"], columns=tuple(each["wrong"])
        )
        for each in row["examples"]
    ]  # fmt: skip
    return (row["partitions"], row["source_rows"], row["table_rows"], row["differing"]), found


def _shown(key: str, names: Sequence[str]) -> str:
    """The SQL of a partition column's name and value as text."""
    name = names[int(key[1:])]
    return f"concat({sql.string(f'{name}=')}, coalesce(CAST({key} AS STRING), 'NULL'))"
