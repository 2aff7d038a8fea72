"""The comparison of two frames: equal rows in any order are equal, and any other row, value or NULL is named."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from pipeline.dataset import Append, Dataset
from pipeline.delta.log.mark import private_session
from pipeline.delta.migrate.compare import ROWS, Comparison, compare
from pipeline_tests.delta.sample import APPENDED, frame_of

NESTED = Dataset(
    name="nested",
    schema=StructType(
        [
            StructField("list", ArrayType(LongType())),
            StructField("map", MapType(StringType(), LongType())),
            StructField("struct", StructType([StructField("a", LongType()), StructField("b", LongType())])),
            StructField("number", DoubleType()),
        ]
    ),
    write=Append(),
)
DAY, OTHER = dt.date(2026, 1, 1), dt.date(2026, 1, 2)
ROWS_OF_DAYS = [(DAY, 1, "a"), (DAY, 2, None), (OTHER, 3, "b"), (None, 4, "c")]
NESTED_ROW = ([1, None], {"a": 1, "b": None}, {"a": None, "b": 1}, math.nan)


def compared(spark: SparkSession, dataset: Dataset, source: list[Any], table: list[Any]) -> Comparison:
    with private_session(spark, {}) as own:
        return compare(own, frame_of(own, dataset, source), frame_of(own, dataset, table), dataset)


def differing(spark: SparkSession, dataset: Dataset, source: list[Any], table: list[Any]) -> dict[str, set[str]]:
    """By partition, what differs."""
    return {each.partition: set(each.columns) for each in compared(spark, dataset, source, table).differences}


@pytest.mark.exhaustive
def test_rows_in_another_order_are_equal(spark: SparkSession) -> None:
    found = compared(spark, APPENDED, ROWS_OF_DAYS, ROWS_OF_DAYS[::-1])
    assert found == Comparison(partitions=3, source_rows=4, table_rows=4, columns=3, differences=())
    assert compared(spark, APPENDED, [], []).partitions == 0


def test_one_other_value_is_named_with_its_partition_and_column(spark: SparkSession) -> None:
    other = [(DAY, 1, "a"), (DAY, 2, None), (OTHER, 3, "B"), (None, 4, "c")]
    assert differing(spark, APPENDED, ROWS_OF_DAYS, other) == {
        "day=2026-01-02": {"values of column text", ROWS, "min or max of column text"}
    }


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (ROWS_OF_DAYS[1:], {"number of rows", "values of column id", "values of column text", ROWS,
                            "min or max of column id", "min or max of column text"}),
        ([(DAY, 1, None), (DAY, 2, "a"), *ROWS_OF_DAYS[2:]], {ROWS}),
        ([(DAY, 1, "a"), (DAY, 2, "x"), *ROWS_OF_DAYS[2:]],
         {"NULLs of column text", "values of column text", ROWS, "min or max of column text"}),
        ([*ROWS_OF_DAYS, (DAY, 1, "a"), (DAY, 1, "a")],
         {"number of rows", "values of column id", "values of column text", ROWS}),
    ],
    ids=["a missing row", "two values exchanged", "a value for a NULL", "a row three times"],
)  # fmt: skip
def test_rows_that_differ_are_found(classic: SparkSession, table: list[Any], expected: set[str]) -> None:
    assert differing(classic, APPENDED, ROWS_OF_DAYS, table) == {"day=2026-01-01": expected}


@pytest.mark.exhaustive
def test_equal_rows_do_not_cancel_each_other(classic: SparkSession) -> None:
    source, table = [(DAY, 5, "a")] * 2, [(DAY, 7, "a")] * 2
    assert "values of column id" in differing(classic, APPENDED, source, table)["day=2026-01-01"]


@pytest.mark.exhaustive
def test_a_row_in_another_partition_differs_in_both(classic: SparkSession) -> None:
    moved = [(DAY, 1, "a"), (DAY, 2, None), (None, 3, "b"), (None, 4, "c")]
    found = compared(classic, APPENDED, ROWS_OF_DAYS, moved)
    assert [(d.partition, d.source_rows, d.table_rows) for d in found.differences] == [
        ("day=2026-01-02", 1, 0), ("day=NULL", 1, 2),
    ]  # fmt: skip
    assert str(found.differences[0]).startswith("partition day=2026-01-02: number of rows, ")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("place", "value", "column"),
    [
        (0, [None, 1], "list"),
        (0, [1], "list"),
        (0, None, "list"),
        (1, {"a": None, "b": 1}, "map"),
        (2, {"a": 1, "b": None}, "struct"),
        (3, 1.0, "number"),
    ],
)
def test_a_null_inside_a_value_counts(classic: SparkSession, place: int, value: Any, column: str) -> None:
    other = tuple(value if position == place else kept for position, kept in enumerate(NESTED_ROW))
    (columns,) = differing(classic, NESTED, [NESTED_ROW], [other]).values()
    assert f"values of column {column}" in columns
    assert ROWS in columns


@pytest.mark.exhaustive
def test_a_map_has_no_order_and_nan_equals_itself(classic: SparkSession) -> None:
    other = (*NESTED_ROW[:1], {"b": None, "a": 1}, *NESTED_ROW[2:])
    assert differing(classic, NESTED, [NESTED_ROW], [other]) == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [DoubleType(), FloatType(), ArrayType(DoubleType())], ids=lambda kind: kind.typeName())
def test_the_sign_of_zero_counts(classic: SparkSession, kind: DataType) -> None:
    dataset = Dataset(name="zeros", schema=StructType([StructField("x", kind)]), write=Append())
    one, other = ([(value,)] if not isinstance(kind, ArrayType) else [([value],)] for value in (-0.0, 0.0))
    assert differing(classic, dataset, one, other) == {"": {"values of column x", ROWS}}
    assert differing(classic, dataset, one, one) == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (ArrayType(ArrayType(LongType())), [[0], []], [[], [0]]),
        (ArrayType(ArrayType(LongType())), [[None]], [[], None]),
        (MapType(StringType(), ArrayType(LongType())), {"a": [0], "b": []}, {"a": [], "b": [0]}),
    ],
    ids=["lists", "a NULL in a list", "lists in a map"],
)
def test_the_end_of_a_list_in_a_list_counts(classic: SparkSession, kind: DataType, one: Any, other: Any) -> None:
    dataset = Dataset(name="lists", schema=StructType([StructField("x", kind)]), write=Append())
    assert differing(classic, dataset, [(one,)], [(other,)]) == {"": {"values of column x", ROWS}}
    assert differing(classic, dataset, [(one,)], [(one,)]) == {}


@pytest.mark.exhaustive
def test_the_sign_of_a_zero_that_is_a_partition_counts(classic: SparkSession) -> None:
    schema = StructType([StructField("p", DoubleType()), StructField("x", LongType())])
    dataset = Dataset(name="signs", schema=schema, partition_by=("p",), write=Append())
    assert differing(classic, dataset, [(-0.0, 1), (0.0, 2)], [(-0.0, 1), (0.0, 2)]) == {}
    (columns,) = differing(classic, dataset, [(-0.0, 1), (0.0, 2)], [(0.0, 1), (0.0, 2)]).values()
    assert columns == {ROWS}
