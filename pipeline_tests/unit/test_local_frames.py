"""Local frames on their way to Arrow, without Spark: nothing of a frame is lost without a word."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pipeline.dataset import Append, Dataset
from pipeline.delta.frames.arrow import fitting
from pipeline.delta.frames.convert import _to_polars, arrow_reader, with_schema
from pipeline.delta.sink.buffer import Item
from pipeline.delta.sink.intake import Intake
from pipeline.errors import FrameMismatchError

UTC = dt.timezone.utc
NOON = dt.datetime(2026, 1, 1, 12)
NANOS = pd.Timestamp("2026-01-01T12:00:00.000000001")
DAYS = Dataset(name="days", schema=StructType([StructField("day", StringType()), StructField("n", LongType())]))


def column(data_type: DataType) -> Dataset:
    return Dataset(name="one", schema=StructType([StructField("v", data_type)]), write=Append())


def fitted(frame: Any, dataset: Dataset) -> list[dict[str, Any]]:
    reader = arrow_reader(frame, dataset.name, dataset.schema)
    fit = fitting(dataset, reader.schema)
    return pa.Table.from_batches(map(fit.batch, reader), fit.schema).to_pylist()


def refused(frame: Any, dataset: Dataset) -> str:
    with pytest.raises(FrameMismatchError) as caught:
        fitted(frame, dataset)
    return "\n".join(caught.value.differences)


def values(given: list[Any], data_type: DataType) -> list[Any]:
    return [row["v"] for row in fitted(pd.DataFrame({"v": pd.Series(given, dtype=object)}), column(data_type))]


# --- the index of pandas ----------------------------------------------------------------------------------------------


def test_the_named_index_that_a_group_by_makes_is_a_column() -> None:
    frame = pd.DataFrame({"day": ["a", "a", "b"], "n": [1, 2, 3]}).groupby("day").sum()
    assert fitted(frame, DAYS) == [{"day": "a", "n": 3}, {"day": "b", "n": 3}]
    reader, schema = with_schema(frame, "plain")
    assert schema.names == ["day", "n"]
    assert reader.read_all().num_rows == 2


def test_all_named_levels_of_an_index_are_columns_and_a_level_that_is_a_column_already_is_one() -> None:
    frame = pd.DataFrame({"day": ["a", "b"], "hour": [1, 2], "n": [1, 2]}).set_index(["day", "hour"])
    assert with_schema(frame, "plain")[1].names == ["day", "hour", "n"]
    kept = pd.DataFrame({"day": ["a", "b"], "n": [1, 2]}).set_index("day", drop=False)
    assert fitted(kept, DAYS) == [{"day": "a", "n": 1}, {"day": "b", "n": 2}]


def test_an_index_that_can_t_be_a_column_is_refused_by_name() -> None:
    frame = pd.DataFrame({"n": [1, 2]}, index=pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["day", None]))
    assert "level 1 of the frame's index has no name" in refused(frame, DAYS)
    other = pd.DataFrame({"day": ["x", "y"], "n": [1, 2]}, index=pd.Index(["a", "b"], name="day"))
    assert refused(other, DAYS) == "column day: the frame's index has a level of that name with other values"
    assert "column hour: not declared" in refused(pd.DataFrame({"day": ["a"], "n": [1]}).set_index(
        pd.Index([1], name="hour")), DAYS)  # fmt: skip


def test_an_index_without_a_name_only_numbers_rows_and_is_named_with_a_column_that_is_missing() -> None:
    frame = pd.DataFrame({"day": ["a", "b"], "n": [1, 2]}, index=[7, 3])
    assert fitted(frame, DAYS) == [{"day": "a", "n": 1}, {"day": "b", "n": 2}]
    missing = refused(pd.DataFrame({"n": [1]}, index=["a"]), DAYS)
    assert missing.startswith("column day: missing, declared string; the frame's index has no name")
    assert refused(pd.DataFrame({"n": [1]}), DAYS) == "column day: missing, declared string"


def test_a_sink_takes_the_index_of_a_frame_whose_rows_it_takes_one_by_one() -> None:
    frame = pd.DataFrame({"day": ["a", "b"], "n": [1, "x"]}).set_index("day")
    intake = Intake(DAYS, allow_nan=False, record_bytes=1 << 20)
    taken = intake.take([Item(payload=frame, rows=2, size_bytes=2)])
    assert [row for table in taken.tables for row in table.to_pylist()] == [{"day": "a", "n": 1}]
    assert [letter.record["day"] for letter in taken.letters] == ["b"]


# --- below the top level of objects -----------------------------------------------------------------------------------

WRAPPED = {
    "alone": (lambda t: t, lambda v: v),
    "in a list": (ArrayType, lambda v: [v]),
    "in a list of lists": (lambda t: ArrayType(ArrayType(t)), lambda v: [[], [v]]),
    "in a struct": (lambda t: StructType([StructField("a", t)]), lambda v: {"a": v}),
    "as the value of a map": (lambda t: MapType(StringType(), t), lambda v: {"k": v}),
    "as the key of a map": (lambda t: MapType(t, LongType()), lambda v: {v: 1}),
    "in a map in a list": (lambda t: ArrayType(MapType(StringType(), t)), lambda v: [{"k": v}]),
    "in an array of NumPy": (ArrayType, lambda v: np.array([v, None], dtype=object)),
    "in a set": (ArrayType, lambda v: {v}),
    "among the values of a dict": (ArrayType, lambda v: {"k": v}.values()),
    "among the keys of a dict": (ArrayType, lambda v: {v: 1}.keys()),
}


@pytest.mark.case("W-NESTED-OBJECTS")
@pytest.mark.parametrize("place", WRAPPED)
def test_a_time_that_the_inferred_type_would_change_is_refused_at_every_depth(place: str) -> None:
    of_type, wrapped = WRAPPED[place]
    for data_type, given, reason in (
        (TimestampNTZType(), [NANOS], "nanoseconds would be lost"),
        (TimestampType(), [NOON, NOON.replace(tzinfo=UTC)], "datetimes with and without a zone are mixed"),
        (TimestampNTZType(), [NOON, NOON.replace(tzinfo=UTC)], "datetimes with and without a zone are mixed"),
        (DateType(), [dt.date(2026, 1, 2), NOON], "dates and datetimes are mixed"),
        (DateType(), [NOON], ""),
        (TimestampType(), [NOON], ""),
    ):
        frame = pd.DataFrame({"v": pd.Series([wrapped(value) for value in given], dtype=object)})
        problem = refused(frame, column(of_type(data_type)))
        assert problem.startswith("column v")
        assert reason in problem


@pytest.mark.parametrize("place", [place for place in WRAPPED if "NumPy" not in place])
def test_a_time_that_is_kept_whole_is_taken_at_every_depth(place: str) -> None:
    of_type, wrapped = WRAPPED[place]
    plain = pa.table({"v": pa.array([NOON], pa.timestamp("us"))}).to_pylist()[0]["v"]
    (found,) = values([wrapped(pd.Timestamp(NOON))], of_type(TimestampNTZType()))
    assert str(plain) in str(found) or repr(plain) in repr(found)
    (found,) = values([wrapped(dt.date(2026, 1, 2))], of_type(DateType()))
    assert repr(dt.date(2026, 1, 2)) in repr(found)


def test_whole_numbers_of_objects_keep_their_digits_beside_floats_and_missing_values() -> None:
    whole = 2**53 + 1
    assert values([whole, None], LongType()) == [whole, None]
    assert values([np.int64(whole), np.nan], LongType()) == [whole, None]
    for given in ([whole, 2.5], [whole, np.float64(2.5)], [np.int64(whole), 2.5]):
        problem = refused(pd.DataFrame({"v": pd.Series(given, dtype=object)}), column(DoubleType()))
        assert str(whole) in problem


def test_nothing_that_pandas_has_for_a_missing_value_is_taken_for_a_time() -> None:
    assert values([[pd.NaT, None], None], ArrayType(TimestampNTZType())) == [[None, None], None]


# --- nothing but NULL below the top -----------------------------------------------------------------------------------


@pytest.mark.case("S-EMPTY-NESTED")
@pytest.mark.parametrize(
    ("given", "data_type", "expected"),
    [
        ([[]], ArrayType(LongType()), [[]]),
        ([[None], None], ArrayType(LongType()), [[None], None]),
        ([[[]], []], ArrayType(ArrayType(LongType())), [[[]], []]),
        ([{}], MapType(LongType(), DoubleType()), [[]]),
        ([{}, None], MapType(StringType(), ArrayType(LongType())), [[], None]),
        ([{"k": None}], MapType(StringType(), LongType()), [[("k", None)]]),
        ([[{}]], ArrayType(MapType(StringType(), LongType())), [[[]]]),
        ([{"a": None}], StructType([StructField("a", LongType())]), [{"a": None}]),
        ([{}, None], StructType([StructField("a", LongType())]), [{"a": None}, None]),
        ([[{}]], ArrayType(StructType([StructField("a", LongType())])), [[{"a": None}]]),
        ([np.array([])], ArrayType(StringType()), [[]]),
        ([[np.array([], dtype="int32")]], ArrayType(ArrayType(StringType())), [[[]]]),
        ([{"a": []}], StructType([StructField("a", ArrayType(DateType()))]), [{"a": []}]),
        ([[{"a": None}]], ArrayType(StructType([StructField("a", TimestampType())])), [[{"a": None}]]),
    ],
    ids=str,
)  # fmt: skip
def test_empty_and_null_below_the_top_take_the_declared_type(
    given: list[Any], data_type: DataType, expected: list[Any]
) -> None:
    assert values(given, data_type) == expected


@pytest.mark.case("S-EMPTY-NESTED")
def test_empty_lists_and_maps_of_other_libraries_take_the_declared_type() -> None:
    lists = column(ArrayType(LongType()))
    assert fitted(pl.DataFrame({"v": [[], [None]]}), lists) == [{"v": []}, {"v": [None]}]
    assert fitted(pa.table({"v": pa.array([[]])}), lists) == [{"v": []}]
    maps = column(MapType(StringType(), LongType()))
    assert fitted(pa.table({"v": pa.array([[]], pa.map_(pa.string(), pa.null()))}), maps) == [{"v": []}]
    assert fitted(pa.table({"v": pa.array([[], None], pa.list_(pa.null()))}), maps) == [{"v": []}, {"v": None}]


def test_null_as_a_key_or_in_place_of_an_entry_is_refused_in_a_map_of_nothing_else() -> None:
    maps = column(MapType(StringType(), LongType()))
    assert "1 keys are NULL" in refused(pd.DataFrame({"v": [{None: None}]}), maps)
    assert refused(pa.table({"v": pa.array([[None]])}), maps).startswith("column v: has type list")


# --- maps for polars --------------------------------------------------------------------------------------------------


@pytest.mark.case("I-MAP-NULL")
@pytest.mark.parametrize("has_maps", [True, False], ids=["with maps", "without maps"])
def test_a_null_map_is_null_at_every_depth_in_each_version_of_polars(
    monkeypatch: pytest.MonkeyPatch, has_maps: bool
) -> None:
    """Some versions without the type Map take a NULL one for an empty one."""
    if not has_maps:
        monkeypatch.delattr(pl, "Map", raising=False)
    given: list[Any] = [[], None, [("k", [[], None, [(1, None)]])]]
    kind = pa.map_(pa.string(), pa.list_(pa.map_(pa.int64(), pa.int64())))
    rows = [{"m": value, "s": {"m": value}} for value in given]
    table = pa.Table.from_pylist(rows, pa.schema([("m", kind), ("s", pa.struct([("m", kind)]))]))
    frame = _to_polars(table)
    assert ("Map" in str(frame.schema)) == (has_maps and hasattr(pl, "Map"))
    data_type = MapType(StringType(), ArrayType(MapType(LongType(), LongType())))
    schema = StructType(
        [StructField("m", data_type), StructField("s", StructType([StructField("m", data_type)]))]
    )  # fmt: skip
    assert fitted(frame, Dataset(name="maps", schema=schema, write=Append())) == rows
