"""Names and values as SQL text: every type at its boundaries, and quoting that nothing gets out of."""

from __future__ import annotations

import datetime as dt
import math
import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from pipeline.dataset import Dataset, TableRef
from pipeline.delta import sql

UTC = dt.timezone.utc
TOKYO = dt.timezone(dt.timedelta(hours=9))


def unquoted(text: str) -> str:
    """What Spark's parser makes of a string literal; fails where the literal ends before the text does."""
    match = re.fullmatch(r"'((?:[^'\\]|\\.)*)'", text, flags=re.DOTALL)
    assert match is not None, text
    special = {"n": "\n", "r": "\r"}
    return re.sub(
        r"\\(?:u([0-9a-f]{4})|(.))",
        lambda m: chr(int(m[1], 16)) if m[1] else special.get(m[2], m[2]),
        match[1],
        flags=re.DOTALL,
    )


def test_nothing_in_a_literal_looks_like_a_variable() -> None:
    assert "$" not in sql.string("${spark.app.name}")


@given(st.text())
@example("")
@example("'")
@example("\\")
@example("\\'")
@example("\\n")
@example("a\nb\r")
@example("x' OR '1'='1")
@example("%_")
def test_a_string_literal_is_closed_by_nothing_in_the_value(value: str) -> None:
    literal = sql.string(value)
    assert unquoted(literal) == value
    assert "\n" not in literal
    assert "\r" not in literal


@given(st.text())
@example("`")
@example("a``b")
@example("x` OR `y")
def test_an_identifier_is_closed_by_nothing_in_the_name(name: str) -> None:
    quoted = sql.identifier(name)
    assert quoted[0] == quoted[-1] == "`"
    inner = quoted[1:-1]
    assert re.fullmatch(r"(?:[^`]|``)*", inner, flags=re.DOTALL)
    assert inner.replace("``", "`") == name


def test_names_and_tables_are_quoted() -> None:
    assert sql.names(["a", "b`c"]) == "`a`, `b``c`"
    assert sql.path_table("/lake/a`b") == "delta.`/lake/a``b`"


# Values and their literals, boundaries included.
LITERALS: list[tuple[Any, DataType, str]] = [
    ("a", StringType(), "'a'"),
    ("it's", VarcharType(9), "'it\\'s'"),
    ("abc", CharType(3), "'abc'"),
    ("", StringType(), "''"),
    ("2026-01-01", StringType(), "'2026-01-01'"),
    (2**7 - 1, ByteType(), "127Y"),
    (-(2**7), ByteType(), "-128Y"),
    (2**15 - 1, ShortType(), "32767S"),
    (-(2**15), ShortType(), "-32768S"),
    (2**31 - 1, IntegerType(), "2147483647"),
    (-(2**31), IntegerType(), "-2147483648"),
    (2**63 - 1, LongType(), "9223372036854775807L"),
    (-(2**63), LongType(), "-9223372036854775808L"),
    (True, BooleanType(), "TRUE"),
    (False, BooleanType(), "FALSE"),
    (dt.date(1, 1, 1), DateType(), "DATE'0001-01-01'"),
    (dt.date(9999, 12, 31), DateType(), "DATE'9999-12-31'"),
    (dt.datetime(2026, 1, 2, 3, 4, 5, 6, UTC), TimestampType(), "TIMESTAMP'2026-01-02 03:04:05.000006Z'"),
    (dt.datetime(2026, 1, 2, 3, tzinfo=TOKYO), TimestampType(), "TIMESTAMP'2026-01-01 18:00:00.000000Z'"),
    (dt.datetime(1, 1, 1, tzinfo=UTC), TimestampType(), "TIMESTAMP'0001-01-01 00:00:00.000000Z'"),
    (dt.datetime(2026, 1, 2), TimestampNTZType(), "TIMESTAMP_NTZ'2026-01-02 00:00:00.000000'"),
    (Decimal("99.99"), DecimalType(4, 2), "CAST('99.99' AS decimal(4,2))"),
    (Decimal("-99.9"), DecimalType(4, 2), "CAST('-99.9' AS decimal(4,2))"),
    (Decimal("1E+1"), DecimalType(4, 2), "CAST('10' AS decimal(4,2))"),
    (0.1, DoubleType(), "CAST('0.1' AS double)"),
    (-0.0, DoubleType(), "CAST('-0.0' AS double)"),
    (math.inf, DoubleType(), "CAST('Infinity' AS double)"),
    (-math.inf, FloatType(), "CAST('-Infinity' AS float)"),
    (math.nan, DoubleType(), "CAST('NaN' AS double)"),
    (1e300, DoubleType(), "CAST('1e+300' AS double)"),
]


@pytest.mark.parametrize(("value", "data_type", "literal"), LITERALS, ids=lambda part: str(part)[:30])
def test_a_value_becomes_a_literal_of_exactly_its_columns_type(value: Any, data_type: DataType, literal: str) -> None:
    assert sql.literal(value, data_type) == literal


@pytest.mark.parametrize("data_type", [LongType(), StringType(), DateType(), DecimalType(5, 2)], ids=str)
def test_none_is_a_null_of_the_type(data_type: DataType) -> None:
    assert sql.literal(None, data_type) == f"CAST(NULL AS {data_type.simpleString()})"


@pytest.mark.parametrize(
    ("value", "data_type"),
    [
        (2**7, ByteType()),
        (-(2**15) - 1, ShortType()),
        (2**31, IntegerType()),
        (2**63, LongType()),
        (True, IntegerType()),
        (1, BooleanType()),
        (1, StringType()),
        (1.0, LongType()),
        ("1", LongType()),
        ("2026-01-01", DateType()),
        (dt.datetime(2026, 1, 1), DateType()),
        (dt.date(2026, 1, 1), TimestampType()),
        (dt.datetime(2026, 1, 1), TimestampType()),
        (dt.datetime(2026, 1, 1, tzinfo=UTC), TimestampNTZType()),
        (Decimal("0.001"), DecimalType(4, 2)),
        (Decimal(100), DecimalType(4, 2)),
        (Decimal("NaN"), DecimalType(4, 2)),
        (Decimal("Infinity"), DecimalType(4, 2)),
        (1.5, DecimalType(4, 2)),
        (1, DoubleType()),
        ("x", BinaryType()),
        ([1], ArrayType(LongType())),
    ],
    ids=lambda part: str(part)[:30],
)
def test_a_value_that_the_type_cannot_hold_is_refused(value: Any, data_type: DataType) -> None:
    with pytest.raises(ValueError, match=r"does not fit|is not a value of type"):
        sql.literal(value, data_type)


@given(st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_every_long_is_written_in_full(value: int) -> None:
    assert int(sql.literal(value, LongType()).removesuffix("L")) == value


@given(st.datetimes(timezones=st.timezones()))
def test_an_instant_is_the_same_whatever_zone_it_came_in(instant: dt.datetime) -> None:
    try:
        there = instant.astimezone(UTC)
    except OverflowError:  # the first or last hours that Python knows
        return
    text = sql.literal(instant, TimestampType())
    assert text == sql.literal(there, TimestampType())
    assert dt.datetime.fromisoformat(text[len("TIMESTAMP'") : -2]).replace(tzinfo=UTC) == there


def test_nested_types_keep_names_nullability_and_comments() -> None:
    fields = [StructField("a b", LongType(), False), StructField("c`d", StringType(), True, {"comment": "x'y"})]
    inner = StructType(fields)
    assert sql.type_name(ArrayType(inner)) == "ARRAY<STRUCT<`a b`: bigint NOT NULL, `c``d`: string COMMENT 'x\\'y'>>"
    assert sql.type_name(MapType(StringType(), inner)).startswith("MAP<string, STRUCT<")
    field = StructField("it", inner, False, {"comment": "all"})
    assert sql.column_definition(field) == f"`it` {sql.type_name(inner)} NOT NULL COMMENT 'all'"


def test_a_table_is_created_by_one_statement_that_says_everything() -> None:
    dataset = Dataset(
        name="a/b",
        schema=StructType([StructField("d", DateType()), StructField("n", LongType(), False)]),
        partition_by=("d",),
        description="it's",
    )
    statement = sql.create_table(TableRef(dataset, "/lake/a/b"), {"k'1": "v", "a": "b"})
    assert statement.split("\n") == [
        "CREATE TABLE delta.`/lake/a/b` (",
        "  `d` date,",
        "  `n` bigint NOT NULL",
        ")",
        "USING delta",
        "PARTITIONED BY (`d`)",
        "COMMENT 'it\\'s'",
        "TBLPROPERTIES ('a' = 'b', 'k\\'1' = 'v')",
    ]
    plain = Dataset(name="a", schema=dataset.schema)
    assert sql.create_table(TableRef(plain, "x"), {}).endswith(")\nUSING delta")
