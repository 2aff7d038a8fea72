"""Write modes as declared: what contradicts itself is refused where it is declared, all of it at once."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from pipeline.dataset import (
    Changelog,
    Dataset,
    Features,
    History,
    InsertNew,
    Merge,
    Replace,
    Spans,
    Tombstones,
    WriteMode,
)
from pipeline.dataset.history import DELETION, TRUNCATION, tombstone_day, tombstone_state
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


# --- tombstones -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "fields", "problem"),
    [
        ({"tombstones": Tombstones(keep_hours=0)}, {}, "keep_hours is 0"),
        ({"sequence": "lsn"}, {}, "sequence 'lsn' is not in the schema"),
        ({"operation": "_pipeline_state"}, {}, "has a name that a merge with tombstones adds"),
        (
            {},
            {"features": Features(cluster_by=("id",))},
            "cluster_by: the table of a merge with tombstones has partitions",
        ),
        ({}, {"features": Features(generated=(("text", "CAST(id AS STRING)"),))}, "generated column 'text'"),
    ],
)
def test_tombstones_that_a_table_can_not_keep_are_refused_when_they_are_declared(
    changed: dict[str, Any], fields: dict[str, Any], problem: str
) -> None:
    log = replace(LOG, **({"tombstones": Tombstones(keep_hours=24)} | changed))
    with pytest.raises(DeclarationError) as caught:
        Dataset(name="d", schema=SCHEMA, keys=("id",), write=Merge(changelog=log), **fields)
    (found,) = caught.value.problems
    assert problem in found


def test_only_the_table_of_a_merge_with_tombstones_or_of_a_history_keeps_state() -> None:
    remembering = replace(LOG, tombstones=Tombstones(keep_hours=24))
    assert declare(Merge(changelog=remembering)).keeps_state
    assert declare_history({}).keeps_state
    assert not declare(Merge(changelog=LOG)).keeps_state
    with pytest.raises(DeclarationError, match="tombstones in a History, which keeps every deletion"):
        declare_history({"changelog": remembering})


def test_the_state_of_a_tombstone_tells_its_day() -> None:
    day = dt.date(2026, 11, 30)
    assert tombstone_state(DELETION, day) == "deletion-2026-11-30"
    assert [tombstone_day(tombstone_state(kind, day)) for kind in (DELETION, TRUNCATION)] == [day, day]
    others = ("deletion", "truncation", "change", "deletion-", "deletion-2026-13-01", "before-2026-11-30", "")
    assert [tombstone_day(state) for state in others] == [None] * len(others)


# --- histories --------------------------------------------------------------------------------------------------------

SPANS = StructType(
    [
        StructField("id", LongType()),
        StructField("text", StringType()),
        StructField("by_name", MapType(StringType(), LongType())),
        StructField("since", LongType(), False),
        StructField("until", LongType()),
        StructField("current", BooleanType()),
    ]
)
HISTORY = History(changelog=LOG, valid_from="since", valid_to="until")


def declare_history(changed: dict[str, Any], **fields: Any) -> Dataset:
    return Dataset(**{"name": "d", "schema": SPANS, "keys": ("id",), "write": replace(HISTORY, **changed)} | fields)


@pytest.mark.parametrize(
    ("changed", "fields", "problem"),
    [
        ({}, {"keys": ()}, "History needs keys"),
        ({"order_by": "at"}, {}, "History needs a changelog or order_by, and not both"),
        ({"changelog": None}, {}, "History needs a changelog or order_by, and not both"),
        ({"valid_from": "nope"}, {}, "valid_from column 'nope' is not in the schema"),
        ({"valid_from": "until"}, {}, "valid_from, valid_to name one column twice"),
        ({"valid_from": "id"}, {}, "valid_from column 'id' is a key"),
        ({"valid_to": "since"}, {}, "valid_to column 'since' is NOT NULL"),
        ({"valid_to": "text"}, {}, "valid_from has type bigint, valid_to string"),
        ({"is_current": "text"}, {}, "is_current column 'text' has type string, not boolean"),
        ({"changelog": None, "order_by": "since"}, {}, "valid_from column 'since' is the order of the frame"),
        ({"changelog": None, "order_by": "id"}, {}, "order_by column 'id' is a key"),
        ({"changelog": None, "order_by": "text"}, {}, "valid_from has type bigint, and the order 'text' string"),
        ({"changelog": replace(LOG, sequence="id")}, {}, "the changelog's sequence 'id' is a key"),
        ({"changelog": replace(LOG, deletes=("C",))}, {}, "code 'c' means two operations"),
        ({"changelog": replace(LOG, ignore_nulls=("nope",))}, {}, "ignore_nulls column 'nope' is not in the schema"),
        ({"track": ("text",), "except_": ("text",)}, {}, "track and except_ say the same thing twice"),
        ({"track": ("nope",)}, {}, "track column 'nope' is not in the schema"),
        ({"track": ("id",)}, {}, "track column 'id' is a key"),
        ({"except_": ("until",)}, {}, "except_ column 'until' is computed by History"),
        ({"from_snapshots": True}, {}, "from_snapshots beside a changelog"),
        ({}, {"partition_by": ("text",)}, "partition column 'text' is no key of History"),
        ({}, {"partition_by": ("id",)}, "truncates with partitions"),
        (
            {"changelog": None, "order_by": "at", "from_snapshots": True},
            {"partition_by": ("id",)},
            "from_snapshots with partitions",
        ),
        (
            {"changelog": replace(LOG, truncates=())},
            {"partition_by": ("id",), "reads": ("s",), "reads_changes_of": ("s",)},
            "a History with partitions can't consume changes",
        ),
        ({}, {"features": Features(generated=(("text", "CAST(id AS STRING)"),))}, "generated column 'text'"),
        ({}, {"features": Features(cluster_by=("id",))}, "cluster_by: the table of a History has partitions"),
        ({"changelog": replace(LOG, sequence="_pipeline_state")}, {}, "has a name that a History adds"),
        ({}, {"audit": "before", "expectations": (Spans(blocking=True),)}, "audit='before': the spans that a History"),
    ],
)
def test_contradictions_of_a_history_are_refused_when_it_is_declared(
    changed: dict[str, Any], fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(DeclarationError) as caught:
        declare_history(changed, **fields)
    assert [found for found in caught.value.problems if problem in found]


def test_a_history_computes_columns_that_a_frame_lacks_and_may_consume_changes() -> None:
    dataset = declare_history({"is_current": "current"}, reads=("s",), reads_changes_of=("s",), expectations=(Spans(),))
    assert dataset.computed == ("since", "until", "current")
    assert dataset.frame_columns == ("op", "at")
    assert dataset.row_keys == ("id", "since")
    assert declare(Merge()).row_keys == ("id",)
    assert declare_history({"changelog": None, "order_by": "at"}).frame_columns == ("at",)


def test_only_a_history_has_spans_to_expect() -> None:
    with pytest.raises(DeclarationError, match="only a History has spans"):
        Dataset(name="d", schema=SCHEMA, expectations=(Spans(),))
