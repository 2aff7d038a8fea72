"""Write modes as declared: what contradicts itself is refused where it is declared, all of it at once."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructField, StructType, VariantType

from pipeline.dataset import Changelog, Dataset, InsertNew, Merge, Replace, WriteMode
from pipeline.dataset.write_mode import is_comparable
from pipeline.errors import DeclarationError

SCHEMA = StructType(
    [
        StructField("id", LongType()),
        StructField("at", LongType()),
        StructField("text", StringType()),
        StructField("by_name", MapType(StringType(), LongType())),
    ]
)
LOG = Changelog(operation="op", sequence="at")


def declare(write: WriteMode, keys: tuple[str, ...] = ("id",)) -> Dataset:
    return Dataset(name="d", schema=SCHEMA, keys=keys, write=write)


@pytest.mark.parametrize(
    ("write", "keys", "problem"),
    [
        (Merge(), (), "Merge needs keys"),
        (InsertNew(), (), "InsertNew needs keys"),
        (Merge(), ("nope",), "key column 'nope' is not in the schema"),
        (Merge(), ("by_name",), "key column 'by_name' of Merge has type map<string,bigint>"),
        (InsertNew(), ("by_name",), "key column 'by_name' of InsertNew has type map<string,bigint>"),
        (Merge(order_by="nope"), ("id",), "order_by column 'nope' is not in the schema"),
        (
            Merge(order_by="by_name"),
            ("id",),
            "order_by column 'by_name' has type map<string,bigint>, which has no order",
        ),
        (Merge(order_by="id"), ("id",), "order_by column 'id' is a key"),
        (Merge(update_columns=("nope",)), ("id",), "update_columns column 'nope' is not in the schema"),
        (Merge(keep_columns=("nope",)), ("id",), "keep_columns column 'nope' is not in the schema"),
        (Merge(update_columns=("text",), keep_columns=("at",)), ("id",), "say the same thing twice"),
        (Merge(frame_columns=("text",)), ("id",), "frame_columns name 'text', which is a column of the schema"),
        (Merge(changelog=Changelog(operation="text", sequence="at")), ("id",), "operation 'text' is a column"),
        (Merge(changelog=Changelog(operation="op", sequence="id")), ("id",), "sequence 'id' is a key"),
        (Merge(changelog=Changelog(operation="op", sequence="by_name")), ("id",), "which has no order"),
        (
            Merge(changelog=Changelog(operation="op", sequence="at", ignore_nulls=("x",))),
            ("id",),
            "ignore_nulls column",
        ),
        (Merge(changelog=Changelog(operation="op", sequence="at", deletes=("C",))), ("id",), "code 'c' means two"),
        (Merge(changelog=LOG, order_by="at"), ("id",), "order_by beside a changelog"),
        (Merge(changelog=LOG, delete_when="TRUE"), ("id",), "delete_when beside a changelog"),
        (Merge(changelog=LOG, delete_missing=True), ("id",), "delete_missing beside a changelog"),
    ],
)
def test_a_mode_that_contradicts_itself_or_the_schema_is_refused(
    write: WriteMode, keys: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(DeclarationError) as caught:
        declare(write, keys)
    assert any(problem in line for line in caught.value.problems), caught.value.problems


def test_every_contradiction_is_told_at_once() -> None:
    with pytest.raises(DeclarationError) as caught:
        declare(Merge(order_by="nope", update_columns=("x",), keep_columns=("y",)), ())
    assert len(caught.value.problems) == 5


@pytest.mark.parametrize(
    ("write", "columns"),
    [
        (Replace(), ()),
        (Merge(order_by="at"), ()),
        (Merge(delete_when="gone", frame_columns=("gone",)), ("gone",)),
        (Merge(changelog=LOG), ("op",)),
        (Merge(changelog=Changelog(operation="op", sequence="lsn")), ("op", "lsn")),
        (Merge(changelog=LOG, update_when="source.why = 'x'", frame_columns=("why",)), ("op", "why")),
    ],
)
def test_columns_that_only_the_frame_has_follow_from_the_mode(write: WriteMode, columns: tuple[str, ...]) -> None:
    assert declare(write).frame_columns == columns


def test_a_key_may_be_null() -> None:
    assert declare(Merge(), ("id", "text")).keys == ("id", "text")


@pytest.mark.parametrize(
    ("data_type", "comparable"),
    [
        (LongType(), True),
        (ArrayType(LongType()), True),
        (StructType([StructField("a", ArrayType(StringType()))]), True),
        (MapType(StringType(), LongType()), False),
        (ArrayType(MapType(StringType(), LongType())), False),
        (StructType([StructField("a", VariantType())]), False),
    ],
)
def test_types_that_hold_a_map_or_a_variant_have_no_order(data_type: Any, comparable: bool) -> None:
    assert is_comparable(data_type) is comparable
