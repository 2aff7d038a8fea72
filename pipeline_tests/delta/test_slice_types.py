"""A slice names values of every type that a column can be grouped by, odd ones and NULL, and selects exactly those."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pipeline.dataset import Dataset, Replace, TableRef
from pipeline.delta import sql
from pipeline.delta.sql.slices import Box, Slice, Unaddressable, Values, of_rows, of_values
from pipeline.delta.write.write import write
from pipeline_tests.delta.sample import note

UTC = dt.timezone.utc
NINES = Decimal("9" * 38)
NEGATIVE = NINES.copy_negate()  # `-` would round to 28 digits
# By column: its type, and its values as Spark's SQL spells them and as Python has them.
ODD: dict[str, tuple[DataType, list[tuple[str, Any]]]] = {
    "flag": (BooleanType(), [("true", True), ("false", False)]),
    "raw": (BinaryType(), [("X''", b""), ("X'00FF'", b"\x00\xff"), ("X'27'", b"'")]),
    "big": (DecimalType(38, 0), [("9" * 38 + "BD", NINES), ("-" + "9" * 38 + "BD", NEGATIVE), ("0BD", Decimal(0))]),
    "fine": (DecimalType(38, 18), [("1.5BD", Decimal("1.50")), ("0.000000000000000001BD", Decimal("1E-18"))]),
    "day": (
        DateType(),
        [("date'1582-10-04'", dt.date(1582, 10, 4)), ("date'1500-02-28'", dt.date(1500, 2, 28)),
         ("date'0001-01-01'", dt.date.min), ("date'9999-12-31'", dt.date.max)],
    ),
    "local": (
        TimestampNTZType(),
        [("timestamp_ntz'1582-10-14 23:59:59.000001'", dt.datetime(1582, 10, 14, 23, 59, 59, 1)),
         ("timestamp_ntz'2026-03-29 02:30:00'", dt.datetime(2026, 3, 29, 2, 30))],
    ),
    "at": (
        TimestampType(),
        [("timestamp'1582-10-04 00:00:00Z'", dt.datetime(1582, 10, 4, tzinfo=UTC)),
         ("timestamp'2026-01-01 00:00:00.5Z'", dt.datetime(2026, 1, 1, microsecond=500000, tzinfo=UTC))],
    ),
    "double": (DoubleType(), [("double('nan')", math.nan), ("double('-infinity')", -math.inf), ("0.1D", 0.1)]),
    "single": (FloatType(), [("0.1F", 0.10000000149011612), ("float('nan')", math.nan)]),
    "tiny": (ByteType(), [("-128Y", -128), ("127Y", 127)]),
    "small": (ShortType(), [("-32768S", -32768)]),
    "whole": (IntegerType(), [("-2147483648", -(2**31))]),
    "long": (LongType(), [("9223372036854775807L", 2**63 - 1)]),
    "text": (StringType(), [("''", ""), ("'a '", "a "), ("concat('$', '{x}')", "${x}"), ("'it''s'", "it's")]),
}  # fmt: skip
SCHEMA = StructType(
    [StructField("i", LongType()), StructField("n", LongType()), *(StructField(c, t) for c, (t, _) in ODD.items())]
)
DATASET = Dataset(name="odd", schema=SCHEMA, write=Replace())
ROWS = 10
# In each column row i has value number i modulo their count, NULL being the last.
VALUES = {column: [*values, ("NULL", None)] for column, (_, values) in ODD.items()}


def rows_with(column: str, chosen: set[int]) -> set[int]:
    """The rows that have one of these values of a column."""
    return {i for i in range(ROWS) if i % len(VALUES[column]) in chosen}


def odd_rows(session: SparkSession, n: int = 1) -> DataFrame:
    """The rows, each value made by Spark."""
    lines = (
        ", ".join([f"{i}L", f"{n}L", *(VALUES[c][i % len(VALUES[c])][0] for c in ODD)]) for i in range(ROWS)
    )  # fmt: skip
    union = " UNION ALL ".join(f"SELECT {line}" for line in lines)
    plain = session.sql(union).toDF(*SCHEMA.names)
    return plain.selectExpr("i", "n", *(f"CAST(`{c}` AS {t.simpleString()}) AS `{c}`" for c, (t, _) in ODD.items()))


CHOICES = st.sampled_from(sorted(ODD)).flatmap(
    lambda column: st.tuples(st.just(column), st.sets(st.integers(0, len(VALUES[column]) - 1), min_size=1))
)


@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(chosen=st.lists(CHOICES, min_size=30, max_size=50))
def test_a_predicate_selects_the_rows_of_its_values_and_no_others(
    classic: SparkSession, chosen: list[tuple[str, set[int]]]
) -> None:
    slices = [of_values(column, (VALUES[column][k][1] for k in numbers)) for column, numbers in chosen]
    selected = [f"collect_set(CASE WHEN {s.predicate(DATASET)} THEN i END) AS s{k}" for k, s in enumerate(slices)]
    found = odd_rows(classic).selectExpr(*selected).collect()[0]
    for k, (column, numbers) in enumerate(chosen):
        assert set(found[f"s{k}"]) == rows_with(column, numbers), (column, numbers)


def spelled(value: Any, data_type: DataType) -> str:
    """A value's literal; decimals that differ in their zeros alone are one."""
    return sql.literal(value.normalize(Context(prec=38)) if isinstance(value, Decimal) else value, data_type)


def test_the_slice_of_a_frames_rows_has_its_values_and_a_replace_of_it_leaves_the_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = odd_rows(spark).persist()
    boxes = []
    for column, (data_type, values) in ODD.items():
        within = of_rows(rows.filter("i < 5"), [column], 10)
        assert within is not None
        ((name, part),) = within.boxes[0].columns
        assert (name, type(part)) == (column, Values)
        assert {spelled(value, data_type) for value in part.values} == {
            spelled(value, data_type) for _, value in VALUES[column][:5]
        }
        boxes += of_values(column, [values[0][1], None]).boxes
    replaced = set().union(
        *(rows_with(c, {0, len(VALUES[c]) - 1}) & rows_with("flag", {0, 2}) for c in ODD if c != "flag")
    )
    location = DATASET.location(tmp_path.as_uri())
    write(rows, table=TableRef(DATASET, location), note=note())
    flagged = of_values("flag", [True, None]).boxes[0].columns
    within = Slice(tuple(Box((*flagged, *box.columns)) for box in boxes if box.columns != flagged))
    again = odd_rows(spark, n=2).filter(f"i IN ({', '.join(map(str, replaced))})")
    write(again, table=TableRef(DATASET, location), note=note(), within=within)
    after = spark.read.format("delta").load(location).select("i", "n").collect()
    assert sorted((row["i"], row["n"]) for row in after) == [(i, 2 if i in replaced else 1) for i in range(ROWS)]
    rows.unpersist()


def test_a_value_that_no_predicate_can_name_is_told(classic: SparkSession) -> None:
    frame = classic.sql("SELECT date_add(date'9999-12-31', 1) AS late, struct(1 AS a) AS nested")
    with pytest.raises(Unaddressable, match="late is not in the years 1 to 9999"):
        of_rows(frame, ["late"], 10)
    with pytest.raises(Unaddressable, match="nested has type struct<a:int>"):
        of_rows(frame, ["nested"], 10)
