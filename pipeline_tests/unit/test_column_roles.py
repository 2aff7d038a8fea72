"""What a column is called, and of what type it is, must be of use for what it is declared as."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CharType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    GeometryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimeType,
    VarcharType,
    VariantType,
    YearMonthIntervalType,
)

from pipeline.dataset import Changelog, Dataset, Features, InsertNew, Merge
from pipeline.dataset.schema import case_duplicates, casefolded, free_name
from pipeline.delta import sql
from pipeline.delta.write import changelog
from pipeline.errors import DeclarationError


def declared(data_type: DataType = StringType(), name: str = "c", **fields: Any) -> Dataset:  # noqa: B008
    """A dataset of three columns, the second of them as told."""
    columns = [StructField("k", StringType()), StructField(name, data_type), StructField("n", LongType())]
    return Dataset(**({"name": "d", "schema": StructType(columns)} | fields))


def problems(data_type: DataType = StringType(), name: str = "c", **fields: Any) -> tuple[str, ...]:  # noqa: B008
    """What is wrong with that declaration."""
    with pytest.raises(DeclarationError) as caught:
        declared(data_type, name, **fields)
    return caught.value.problems


@pytest.mark.parametrize(
    "data_type",
    [
        TimeType(), DayTimeIntervalType(), YearMonthIntervalType(), StringType("UTF8_LCASE"), GeometryType(4326),
        ArrayType(TimeType()), StructType([StructField("t", StringType("UNICODE"))]),
    ],
    ids=lambda data_type: str(data_type.simpleString()),
)  # fmt: skip
def test_a_type_that_delta_does_not_store_is_refused_with_those_that_it_does(data_type: DataType) -> None:
    (problem,) = problems(data_type)
    assert problem.startswith("column 'c")
    assert "supported are string (of the default collation), char" in problem


@pytest.mark.parametrize(
    "data_type",
    [
        DecimalType(39, 0), DecimalType(0, 0), DecimalType(5, -1), DecimalType(5, 6), CharType(0), VarcharType(0),
        ArrayType(DecimalType(39, 0)), MapType(StringType(), VarcharType(0)),
    ],
    ids=lambda data_type: str(data_type.simpleString()),
)  # fmt: skip
def test_a_size_that_no_column_has_is_refused(data_type: DataType) -> None:
    (problem,) = problems(data_type)
    assert problem.startswith("column 'c")
    assert "; its " in problem


@pytest.mark.case("M-CHAR")
@pytest.mark.parametrize(
    "data_type",
    [StructType([StructField("a", CharType(3))]), ArrayType(CharType(3)), ArrayType(ArrayType(CharType(3)))],
    ids=lambda data_type: str(data_type.simpleString()),
)
@pytest.mark.parametrize(
    "fields",
    [
        {"write": Merge(), "keys": ("c",)},
        {"write": InsertNew(), "keys": ("c",)},
        {"write": Merge(order_by="c"), "keys": ("k",)},
        {"write": Merge(update_when="source.c <> target.c"), "keys": ("k",)},
        {"write": Merge(changelog=Changelog(operation="op", sequence="c")), "keys": ("k",)},
        {"write": Merge(changelog=Changelog(operation="op", sequence="n", ignore_nulls=("c",))), "keys": ("k",)},
    ],
    ids=str,
)
def test_char_within_a_column_that_a_merge_compares_is_refused(data_type: DataType, fields: dict[str, Any]) -> None:
    assert any("which Spark pads as it reads" in problem for problem in problems(data_type, **fields))


@pytest.mark.case("M-CHAR")
@pytest.mark.parametrize(
    "fields",
    [
        {"keys": ("c",), "write": Merge()},
        {"keys": ("c",), "write": InsertNew()},
        {"keys": ("k",), "write": Merge(order_by="c")},
        {"keys": ("k",), "write": Merge(changelog=Changelog(operation="op", sequence="c"))},
        {"keys": ("k",), "write": Merge(update_when="source.C <> target.c")},
        {"partition_by": ("c",)},
    ],
    ids=["key", "key of new rows", "order", "sequence", "condition", "partition"],
)
def test_a_padded_text_is_refused_where_it_is_compared_and_one_of_bounded_length_is_not(fields: dict[str, Any]) -> None:
    (problem,) = problems(CharType(3), **fields)
    assert "'c'" in problem
    assert "declare string or varchar" in problem
    declared(VarcharType(3), **fields)


def test_a_partition_is_of_values_that_the_log_can_spell() -> None:
    for data_type in (BinaryType(), VariantType(), ArrayType(LongType())):
        (problem,) = problems(data_type, partition_by=("c",))
        assert problem.startswith(f"partition column 'c' has {'the nested ' * (type(data_type) is ArrayType)}type")


@pytest.mark.case("M-ODD-NAMES")
def test_names_that_a_merge_cannot_say_are_refused_only_for_a_merge() -> None:
    merged: dict[str, Any] = {"keys": ("k",), "write": Merge()}
    assert "backtick" in problems(name="a`b", **merged)[0]
    for name in ("a`b", "a.b"):
        assert "a dot or a backtick" in problems(name=name, partition_by=(name,), change_feed=False, **merged)[0]
        declared(name=name, partition_by=(name,))
    declared(name="a.b", **merged)
    declared(name="a`b", change_feed=False, **merged)


# A dotless i, a final sigma, a long s, the micro sign, a dotted I, the signs of Kelvin and Angstrom.
@pytest.mark.case("S-CASE-RULE")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("\u0131", "i"), ("\u03c2", "\u03c3"), ("\u017f", "s"), ("\u00b5", "\u03bc"), ("\u0130", "i"),
        ("\u212a", "k"), ("\u212b", "\u00e5"), ("a", "A"), ("\u0130", "i\u0307"),
    ],
)  # fmt: skip
def test_two_names_that_spark_or_delta_takes_for_one_are_refused(one: str, other: str) -> None:
    names = StructType([StructField(f"x{one}", LongType()), StructField(f"x{other}", LongType())])
    assert case_duplicates(names) == [(f"x{one}", f"x{other}")]
    with pytest.raises(DeclarationError, match="differ by case only"):
        Dataset(name="d", schema=names)


def test_names_that_only_several_characters_make_the_same_are_two() -> None:
    assert casefolded("straße") != casefolded("strasse")
    assert casefolded("ﬁ") != casefolded("fi")
    assert case_duplicates(StructType([StructField(name, LongType()) for name in ("ß", "ss", "ﬁ", "fi")])) == []


def test_a_column_of_the_schema_and_one_of_the_frame_may_not_differ_by_case_only() -> None:
    mode = Merge(changelog=Changelog(operation="N", sequence="at"))
    assert "columns n, N" in problems(keys=("k",), write=mode)[0]


def test_columns_of_our_own_take_names_that_no_column_has() -> None:
    taken = ("row rank", "_ROW RANK", "kept c", "is row")
    mapped = Features(column_mapping="name")
    columns = StructType([StructField(name, StringType()) for name in ("k", "c", *taken)])
    dataset = Dataset(name="d", schema=columns, features=mapped)
    own = changelog.Helpers(dataset)
    names = [own.alive, own.ended, own.at, own.kind, own.rank, own.has_row, own.kept("c"), own.kept("k")]
    assert len({casefolded(name) for name in (*names, *columns.names)}) == len(names) + len(columns.names)
    assert sql.helper_name(dataset, "row rank") == "__row rank"
    assert free_name("free", taken) == "free"
