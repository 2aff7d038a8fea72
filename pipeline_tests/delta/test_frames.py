"""Frames of every kind, out and in: the same values, or a refusal that names the column; nothing left in staging."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

import deltalake
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
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
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    VariantType,
)

from pipeline.dataset import Append, Dataset, Replace
from pipeline.delta.frames import convert
from pipeline.delta.frames.arrow_types import arrow_type
from pipeline.delta.frames.convert import FrameKindError, FrameTooLargeError, from_spark, kind_of, to_spark
from pipeline.delta.frames.staging import ROW_GROUP_ROWS, STAGING, StagingError
from pipeline.delta.read.version import read
from pipeline.delta.write.write import write
from pipeline.errors import FrameMismatchError, NullViolationError, UnknownSchemeError
from pipeline_tests.children import loading
from pipeline_tests.delta.sample import note
from pipeline_tests.tiers import first_in_both_modes

case = pytest.mark.case
UTC = dt.timezone.utc
PARIS = dt.timezone(dt.timedelta(hours=1))
GIB = 1 << 30

INNER = StructType([StructField("q", IntegerType()), StructField("when", TimestampType())])
EVERY_TYPE = StructType(
    [
        StructField("id", LongType(), False),
        StructField("text", StringType()),
        StructField("short_text", VarcharType(9)),
        StructField("yes", BooleanType()),
        StructField("int8", ByteType()),
        StructField("int16", ShortType()),
        StructField("int32", IntegerType()),
        StructField("float32", FloatType()),
        StructField("float64", DoubleType()),
        StructField("money", DecimalType(38, 10)),
        StructField("raw", BinaryType()),
        StructField("day", DateType()),
        StructField("instant", TimestampType()),
        StructField("wall_clock", TimestampNTZType()),
        StructField("list", ArrayType(INNER)),
        StructField("map", MapType(StringType(), INNER)),
        StructField("struct", StructType([*INNER.fields, StructField("deep", ArrayType(DecimalType(5, 2)))])),
    ]
)
EVERYTHING = Dataset(name="everything", schema=EVERY_TYPE)
_inner = {"q": -1, "when": dt.datetime(1, 1, 1, tzinfo=UTC)}
_last = {"q": 2**31 - 1, "when": dt.datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)}
ROWS = [
    (
        2**63 - 1, "naïve \x00 ✓", "neun", True, -128, -(2**15), -(2**31), 1.5, float("nan"),
        Decimal("9999999999999999999999999999.0123456789"), b"\x00\xff", dt.date(1, 1, 1), _inner["when"],
        dt.datetime(1, 1, 1), [_inner, None, _last], [("k", _inner), ("none", None)],
        _inner | {"deep": [Decimal("1.20"), None]},
    ),
    (
        -(2**53) - 1, "", "", False, 127, 2**15 - 1, 2**31 - 1, float("-inf"), -0.0, Decimal("-0.0000000001"), b"",
        dt.date(9999, 12, 31), _last["when"], dt.datetime(9999, 12, 31, 23, 59, 59, 999999), [], [],
        {"q": None, "when": None, "deep": None},
    ),
    (0, *[None] * 16),
]  # fmt: skip


def arrow_of(dataset: Dataset, rows: list[tuple[Any, ...]]) -> pa.Table:
    schema = pa.schema(list(arrow_type(dataset.schema)))
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.Table.from_arrays(
        [pa.array(list(c), f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )


def column(data_type: DataType, name: str = "v") -> Dataset:
    return Dataset(name="one", schema=StructType([StructField("id", LongType()), StructField(name, data_type)]))


class Seen(Exception):  # noqa: N818  no fault
    """Carries what was staged to the test, in place of a session."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table


def staged(obj: Any, dataset: Dataset, root: Path) -> pa.Table:
    """What Spark would be given of the frame; needs no Spark."""

    def look() -> NoReturn:
        (file,) = (root / STAGING).glob("*/*.parquet")
        raise Seen(pq.read_table(file))

    with pytest.raises(Seen) as caught, to_spark(obj, dataset, look, f"{root}/{STAGING}"):
        pass
    assert list((root / STAGING).iterdir()) == []
    return caught.value.table


def refused(obj: Any, dataset: Dataset, root: Path) -> tuple[str, ...]:
    """The differences for which a frame is refused, before a session is asked for."""
    with (
        pytest.raises(FrameMismatchError) as caught,
        to_spark(obj, dataset, lambda: pytest.fail("asked"), f"{root}/{STAGING}"),
    ):
        pass
    assert caught.value.dataset == dataset.name
    assert not list((root / STAGING).glob("*"))
    return caught.value.differences


def put_frame(spark: SparkSession, obj: Any, dataset: Dataset, root: str) -> None:
    with to_spark(obj, dataset, lambda: spark, f"{root}/{STAGING}") as frame:
        write(frame, table=dataset.at(root), note=note())


def got(spark: SparkSession, dataset: Dataset, root: str, kind: str, max_bytes: int = GIB) -> Any:
    frame = read(spark, dataset.at(root)).frame
    return from_spark(frame, kind, dataset, max_bytes=max_bytes, staging=f"{root}/{STAGING}")


def as_arrow(frame: Any) -> pa.Table:
    """The frame as its own library sees it in Arrow."""
    kind = kind_of(type(frame))
    if kind == convert.ARROW_READER:
        return frame.read_all()
    if kind == convert.PANDAS:
        return pa.Table.from_arrays([pa.array(frame[name]) for name in frame.columns], names=list(frame.columns))
    if kind in (convert.POLARS, convert.POLARS_LAZY):
        return frame.lazy().collect().to_arrow()
    return frame


# --- round trips ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def everything(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The root of a table with every type, in a folder whose name a pattern or a URI would change."""
    root = str(tmp_path_factory.mktemp("roots") / "a [b] %20*")
    put_frame(spark, arrow_of(EVERYTHING, ROWS), EVERYTHING, root)
    return root


@case("S-INF-NAN")
@case("S-PANDAS-RANGE")
@pytest.mark.parametrize("kind", first_in_both_modes(convert.KINDS))
def test_every_type_comes_through_every_kind_of_frame_and_back_equal(
    spark: SparkSession, everything: str, kind: str
) -> None:
    """What the library itself holds is equal, and so is what comes back from it; NaN is compared by its spelling."""
    expected = arrow_of(EVERYTHING, ROWS).sort_by("id")
    frame = got(spark, EVERYTHING, everything, kind)
    assert kind_of(type(frame)) == kind
    if kind == convert.ARROW_READER:
        frame = frame.read_all()
    if kind != convert.SPARK:
        # A map in Arrow is a list of pairs or of structs, as the library likes; it is compared below.
        held = as_arrow(frame).sort_by("id").drop_columns("map")
        assert repr(held.to_pylist()) == repr(expected.drop_columns("map").to_pylist())
    with to_spark(frame, EVERYTHING, lambda: spark, f"{everything}/{STAGING}") as back:
        assert repr(back.toArrow().sort_by("id").to_pylist()) == repr(expected.to_pylist())
    assert list((Path(everything) / STAGING).iterdir()) == []


def test_integers_decimals_and_instants_keep_their_types_in_pandas_and_polars(
    classic: SparkSession, everything: str
) -> None:
    pandas = got(classic, EVERYTHING, everything, convert.PANDAS)
    assert pandas.sort_values("id")["id"].tolist() == [-(2**53) - 1, 0, 2**63 - 1]
    assert pandas["int32"].isna().sum() == 1
    assert pandas["instant"].dtype == pd.ArrowDtype(pa.timestamp("us", "UTC"))
    schema = got(classic, EVERYTHING, everything, convert.POLARS_LAZY).collect_schema()
    assert (schema["instant"], schema["money"]) == (pl.Datetime("us", "UTC"), pl.Decimal(38, 10))


@case("I-DELETION-VECTOR")
@case("I-EMPTY-PARTITIONED")
@case("I-NANO-INT96")
@pytest.mark.exhaustive
def test_deleted_rows_stay_away_no_files_keep_their_columns_and_int96_is_the_same_instant(
    classic: SparkSession, root: str
) -> None:
    """The instant is one microsecond past the hour; Spark has written INT96 here, as it does untold."""
    schema = StructType(
        [StructField("id", LongType()), StructField("t", TimestampType()), StructField("p", LongType())]
    )
    vectors = Dataset(
        name="vectors", schema=schema, write=Append(), properties=(("delta.enableDeletionVectors", "true"),)
    )
    empty = Dataset(name="empty", schema=schema, partition_by=("p",))
    instant = dt.datetime(2026, 1, 1, 0, 0, 0, 1, UTC)
    put_frame(classic, arrow_of(vectors, [(n, instant, n) for n in range(5)]), vectors, root)
    classic.sql(f"DELETE FROM delta.`{vectors.location(root)}` WHERE id IN (1, 3)").collect()
    put_frame(classic, arrow_of(empty, []), empty, root)
    for kind in (convert.PANDAS, convert.POLARS, convert.ARROW_READER):
        found = as_arrow(got(classic, vectors, root, kind)).sort_by("id")
        assert found.column("id").to_pylist() == [0, 2, 4]
        assert (found.schema.field("t").type, found.column("t").to_pylist()) == (
            pa.timestamp("us", "UTC"),
            [instant] * 3,
        )
    for kind in (convert.POLARS, convert.ARROW_READER):
        nothing = as_arrow(got(classic, empty, root, kind))
        assert (nothing.num_rows, nothing.column_names) == (0, ["id", "t", "p"])
        assert nothing.schema.types == [pa.int64(), pa.timestamp("us", "UTC"), pa.int64()]


@case("S-EMPTY-FRAME")
def test_a_typed_frame_without_rows_makes_the_table_and_empties_one_that_is_there(
    classic: SparkSession, root: str
) -> None:
    dataset = Dataset(name="t", schema=StructType([StructField("n", IntegerType())]), write=Replace())
    for frame, rows in (
        (pl.DataFrame(schema={"n": pl.Int32}), 0),
        (pd.DataFrame({"n": [1, 2, 3]}), 3),
        (pd.DataFrame({"n": []}), 0),
    ):
        put_frame(classic, frame, dataset, root)
        table = deltalake.DeltaTable(dataset.location(root)).to_pyarrow_table()
        assert (table.num_rows, table.schema.types) == (rows, [pa.int32()])


# --- out: what is refused, and what is not ----------------------------------------------------------------------------


def test_columns_are_matched_by_name_and_every_difference_is_told_at_once(tmp_path: Path) -> None:
    schema = StructType([StructField("a", LongType()), StructField("b", LongType()), StructField("c", INNER)])
    frame = pa.table({"B": ["x"], "c": [{"q": "1", "extra": 2}], "d": [1], "_change_type": ["u"]})
    differences = refused(frame, Dataset(name="one", schema=schema), tmp_path)
    assert set(differences) == {
        "column _change_type: the change feed adds a column of that name itself",
        "column a: missing, declared bigint",
        "column d: not declared",
        "column b: has type string, declared bigint",
        "column c.q: has type string, declared int",
        "column c.when: missing, declared timestamp",
        "column c.extra: not declared",
    }


@case("S-STRUCT-ORDER")
def test_fields_of_structs_are_matched_by_name_at_every_depth(tmp_path: Path) -> None:
    point = StructType([StructField("lat", DoubleType()), StructField("lon", DoubleType())])
    dataset = column(MapType(StringType(), ArrayType(point)))
    value = [("k", [{"lon": 2.0, "lat": 1.0}])]
    given = pa.array([value], pa.map_(pa.string(), pa.list_(pa.struct([("lon", pa.float64()), ("lat", pa.float64())]))))
    table = staged(pa.table({"v": given, "id": [1]}), dataset, tmp_path)
    assert table.column("v").to_pylist() == [[("k", [{"lat": 1.0, "lon": 2.0}])]]


@case("S-EMPTY-FRAME")
@pytest.mark.parametrize("frame", [pd.DataFrame(), pl.DataFrame(), pa.table({})], ids=lambda f: type(f).__module__)
def test_a_frame_without_columns_is_refused_and_no_folder_is_made(frame: Any, tmp_path: Path) -> None:
    assert "the frame has no columns" in refused(frame, column(LongType()), tmp_path)
    assert list(tmp_path.iterdir()) == []


@case("S-ALL-NULL")
def test_nothing_but_nulls_takes_the_declared_type_at_every_depth(tmp_path: Path) -> None:
    dataset = column(DateType())
    for frame in (
        pd.DataFrame({"id": [1, 2], "v": [None, None]}),
        pd.DataFrame({"id": [1, 2], "v": [float("nan")] * 2}),
        pl.DataFrame({"id": [1, 2], "v": [None, None]}),
        pa.table({"id": [1, 2], "v": pa.nulls(2)}),
    ):
        assert staged(frame, dataset, tmp_path).column("v").type == pa.date32()
    nested = staged(pa.table({"id": [1], "v": [[None]]}), column(ArrayType(LongType())), tmp_path)
    assert nested.column("v").to_pylist() == [[None]]


def series(values: Any, **options: Any) -> pd.DataFrame:
    return pd.DataFrame({"id": range(len(values)), "v": pd.Series(values, **options)})


def arrow(values: Any, data_type: pa.DataType | None = None) -> pa.Table:
    return pa.table({"id": range(len(values)), "v": pa.array(values, data_type)})


def polars(values: Any, data_type: Any) -> pl.DataFrame:
    return pl.DataFrame({"id": range(len(values)), "v": pl.Series(values, dtype=data_type)})


LOSSES: tuple[tuple[str, DataType, Callable[[], Any], str], ...] = (
    ("long in int", IntegerType(), lambda: arrow([2**31]), "has type int64, declared int"),
    ("text in int", IntegerType(), lambda: series(["7"]), "has type string, declared int"),
    ("int in text", StringType(), lambda: pl.DataFrame({"id": [1], "v": [7]}), "has type int64, declared string"),
    ("unsigned", LongType(), lambda: arrow([2**63], pa.uint64()), "uint64"),
    ("float", LongType(), lambda: arrow([1.0]), "has type double, declared bigint"),
    ("half", LongType(), lambda: series([1.5, float("nan")]), "has type double, declared bigint"),
    ("above 2^53", LongType(), lambda: series([float(2**53), float("nan")]), "has type double, declared bigint"),
    ("double in float", FloatType(), lambda: series([0.1]), "has type double, declared float"),
    ("long in double", DoubleType(), lambda: series([2**53 + 1]), "has type int64, declared double"),
    ("scale", DecimalType(5, 1), lambda: series([Decimal("1.15")]), "decimal128(3, 2), declared decimal(5,1)"),
    ("precision", DecimalType(3, 1), lambda: series([100]), "has type int64, declared decimal(3,1)"),
    ("nanoseconds", TimestampNTZType(), lambda: series([1001], dtype="datetime64[ns]"), "would lose data"),
    ("hidden nanoseconds", TimestampNTZType(), lambda: series([pd.Timestamp(1)], dtype=object), "nanoseconds"),
    ("no zone", TimestampType(), lambda: series([dt.datetime(2026, 1, 1)]), "declared timestamp"),
    ("a zone", TimestampNTZType(), lambda: series([dt.datetime(2026, 1, 1, tzinfo=UTC)]), "declared timestamp_ntz"),
    (
        "both",
        TimestampType(),
        lambda: series([dt.datetime(2026, 1, 1, tzinfo=UTC), dt.datetime(2026, 1, 1)], dtype=object),
        "mixed",
    ),
    ("a time in dates", DateType(), lambda: series([dt.date(2026, 1, 1), dt.datetime(2026, 1, 1, 5)]), "mixed"),
    ("a time for a date", DateType(), lambda: series(pd.to_datetime(["2026-01-01"])), "has type timestamp[ns]"),
    ("year 10000", DateType(), lambda: arrow([2932897], pa.date32()), "1 to 9999"),
    ("far future", TimestampNTZType(), lambda: arrow([2**60], pa.timestamp("s")), "out of bounds"),
    ("too long", LongType(), lambda: series([2**63], dtype=object), "column v"),
    ("mixed objects", StringType(), lambda: series(["a", 1]), "column v"),
    ("any object", StringType(), lambda: series([object()]), "column v"),
    ("addresses", BinaryType(), lambda: polars([object()], pl.Object), "Object"),
    ("int128", LongType(), lambda: polars([1], pl.Int128), "i128"),
    ("time of day", TimestampType(), lambda: series([dt.time(1)]), "has type time64[us]"),
    ("category", LongType(), lambda: series(["a"], dtype="category"), "has type string, declared bigint"),
    (
        "key twice",
        MapType(StringType(), LongType()),
        lambda: arrow([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64())),
        "the same key twice",
    ),
    ("struct for map", MapType(StringType(), LongType()), lambda: arrow([{"a": 1}]), "declared MAP"),
    ("list for text", StringType(), lambda: series([["a"]]), "has type list"),
    ("variant", VariantType(), lambda: arrow(["{}"]), "declared variant"),
)


@case("S-INT-WIDEN")
@case("S-PANDAS-RANGE")
@pytest.mark.parametrize(
    ("data_type", "frame", "said"), [loss[1:] for loss in LOSSES], ids=[loss[0] for loss in LOSSES]
)
def test_what_would_change_a_value_is_refused_by_column_and_types(
    data_type: DataType, frame: Callable[[], Any], said: str, tmp_path: Path
) -> None:
    (difference,) = refused(frame(), column(data_type), tmp_path)
    assert said in difference


KEPT: tuple[tuple[str, DataType, Callable[[], Any], list[Any]], ...] = (
    ("nullable integers", LongType(), lambda: series([2**63 - 1, None], dtype="Int64"), [2**63 - 1, None]),
    ("integers turned float", IntegerType(), lambda: series([1, None]), [1, None]),
    ("narrowed", ByteType(), lambda: series([-128, 127]), [-128, 127]),
    ("integers as decimals", DecimalType(4, 1), lambda: series([100]), [Decimal("100.0")]),
    (
        "decimals of all scales",
        DecimalType(9, 3),
        lambda: series([Decimal("1.5"), Decimal(7), None]),
        [Decimal("1.500"), Decimal("7.000"), None],
    ),
    ("NaN of NumPy", DoubleType(), lambda: series([1.0, float("nan")]), [1.0, None]),
    ("categories", StringType(), lambda: series(["a", None, "a"], dtype="category"), ["a", None, "a"]),
    (
        "zones",
        TimestampType(),
        lambda: series(pd.to_datetime(["2026-01-01 01:00"]).tz_localize("Europe/Paris")),
        [dt.datetime(2026, 1, 1, tzinfo=UTC)],
    ),
    (
        "zones of objects",
        TimestampType(),
        lambda: series([dt.datetime(1, 1, 1, 1, tzinfo=PARIS)], dtype=object),
        [dt.datetime(1, 1, 1, tzinfo=UTC)],
    ),
    (
        "whole microseconds",
        TimestampNTZType(),
        lambda: series([1000], dtype="datetime64[ns]"),
        [dt.datetime(1970, 1, 1, 0, 0, 0, 1)],
    ),
    (
        "seconds of NumPy",
        TimestampNTZType(),
        lambda: series(np.array(["9999-12-31T23:59:59"], "datetime64[s]")),
        [dt.datetime(9999, 12, 31, 23, 59, 59)],
    ),
    (
        "dates past 2262",
        DateType(),
        lambda: series([dt.date(2262, 4, 12), pd.NaT, dt.date(1, 1, 1)]),
        [dt.date(2262, 4, 12), None, dt.date(1, 1, 1)],
    ),
    ("dicts as maps", MapType(StringType(), LongType()), lambda: series([{"a": 1}, None, {}]), [[("a", 1)], None, []]),
    (
        "entries as maps",
        MapType(StringType(), LongType()),
        lambda: arrow([[{"key": "a", "value": 1}], None]),
        [[("a", 1)], None],
    ),
    ("fixed lists", ArrayType(ShortType()), lambda: polars([[1, 2], None], pl.Array(pl.Int64, 2)), [[1, 2], None]),
    ("slices", ArrayType(LongType()), lambda: arrow([[1], None, [2, 3]]).slice(1), [None, [2, 3]]),
    ("unsigned", LongType(), lambda: polars([7], pl.UInt32), [7]),
    (
        "views",
        StringType(),
        lambda: pa.table({"id": [1, 2], "v": pa.array(["a", None], pa.string_view())}),
        ["a", None],
    ),
    ("lazy", LongType(), lambda: pl.LazyFrame({"id": [1], "v": [1]}).with_columns(pl.col("v") + 1), [2]),
)


@case("S-PANDAS-RANGE")
@pytest.mark.parametrize(("data_type", "frame", "values"), [kept[1:] for kept in KEPT], ids=[kept[0] for kept in KEPT])
def test_what_the_declared_type_holds_is_taken_as_it_is(
    data_type: DataType, frame: Callable[[], Any], values: list[Any], tmp_path: Path
) -> None:
    assert staged(frame(), column(data_type), tmp_path).column("v").to_pylist() == values


def test_what_is_no_frame_is_refused_by_its_type(tmp_path: Path) -> None:
    for obj, said in ((None, "nothing (None)"), ({"a": 1}, "builtins.dict"), (pd.Series([1]), "Series")):
        (difference,) = refused(obj, column(LongType()), tmp_path)
        assert said in difference
        assert convert.POLARS in difference


def test_names_of_pandas_that_are_no_text_and_names_that_stand_twice_are_refused(tmp_path: Path) -> None:
    assert "column 0: its name is not text" in refused(pd.DataFrame({0: [1]}), column(LongType()), tmp_path)
    twice = pd.DataFrame([[1, 2, 3]], columns=["id", "v", "v"])
    assert "columns v, v: differ by case only or not at all" in refused(twice, column(LongType()), tmp_path)


def test_a_reader_is_streamed_to_disk_and_never_held(tmp_path: Path) -> None:
    """By the time the last batch is made, the first row groups have reached the file."""
    sizes = []

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, 8 * ROW_GROUP_ROWS, ROW_GROUP_ROWS):
            sizes.extend(file.stat().st_size for file in (tmp_path / STAGING).glob("*/*.parquet"))
            ids = pa.array(range(start, start + ROW_GROUP_ROWS))
            yield pa.RecordBatch.from_arrays([ids, ids], names=["id", "v"])

    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    table = staged(pa.RecordBatchReader.from_batches(schema, batches()), column(LongType()), tmp_path)
    assert table.column("id").to_pylist() == list(range(8 * ROW_GROUP_ROWS))
    assert sizes[-1] > 4 * ROW_GROUP_ROWS


def test_a_stream_that_fails_half_way_fails_as_itself_and_leaves_nothing(tmp_path: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from pa.table({"id": [1], "v": [1]}).to_batches()
        raise RuntimeError("the source is gone")

    reader = pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64()), ("v", pa.int64())]), batches())
    with (
        pytest.raises(RuntimeError, match="the source is gone"),
        to_spark(reader, column(LongType()), lambda: pytest.fail("asked"), f"{tmp_path}/{STAGING}"),
    ):
        pass
    assert list((tmp_path / STAGING).iterdir()) == []


def test_a_refused_write_leaves_nothing_staged(classic: SparkSession, root: str) -> None:
    dataset = Dataset(name="strict", schema=StructType([StructField("n", LongType(), False)]))
    with pytest.raises(NullViolationError) as caught:
        put_frame(classic, pl.DataFrame({"n": [1, None]}), dataset, root)
    assert caught.value.counts == {"n": 1}
    assert list((Path(root) / STAGING).iterdir()) == []


def test_a_root_that_this_process_can_not_write_is_a_named_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    rows, staging = pa.table({"id": [1], "v": [1]}), f"{blocked}/_staging"
    with (
        pytest.raises(StagingError) as caught,
        to_spark(rows, column(LongType()), lambda: pytest.fail("asked"), staging),
    ):
        pass
    assert caught.value.location.startswith(staging)
    assert f"{blocked} is a file" in caught.value.remedy()
    with (
        pytest.raises(UnknownSchemeError, match="wasb"),
        to_spark(rows, column(LongType()), lambda: pytest.fail("asked"), "wasb://container@account/lake/_staging"),
    ):
        pass


# --- in: limits -------------------------------------------------------------------------------------------------------


def test_a_local_frame_above_the_limit_is_refused_with_its_size_and_a_reader_is_not(
    spark: SparkSession, everything: str
) -> None:
    for kind in (convert.PANDAS, convert.POLARS_LAZY):
        with pytest.raises(FrameTooLargeError) as caught:
            got(spark, EVERYTHING, everything, kind, max_bytes=10)
        assert (caught.value.kind, caught.value.limit_bytes) == (kind, 10)
        assert caught.value.found_bytes > 10
    assert got(spark, EVERYTHING, everything, convert.ARROW_READER, max_bytes=10).read_all().num_rows == 3


@pytest.mark.exhaustive
def test_rows_that_are_small_on_disk_only_are_measured_in_memory(classic: SparkSession, root: str) -> None:
    dataset = column(StringType())
    rows = 50_000
    put_frame(classic, pa.table({"id": [1] * rows, "v": ["x" * 20] * rows}), dataset, root)
    on_disk = sum(file.stat().st_size for file in Path(dataset.location(root)).glob("*.parquet"))
    assert on_disk < 100_000
    with pytest.raises(FrameTooLargeError) as caught:
        got(classic, dataset, root, convert.ARROW, max_bytes=100_000)
    assert caught.value.found_bytes > rows * 28


def test_a_variant_is_given_to_spark_only(classic: SparkSession) -> None:
    frame = classic.sql("SELECT parse_json('1') AS v")
    for kind in convert.LOCAL_KINDS:
        with pytest.raises(FrameKindError) as caught:
            from_spark(frame, kind, column(VariantType()), max_bytes=GIB, staging="/nowhere")
        assert caught.value.kinds == (convert.SPARK,)
    assert from_spark(frame, convert.SPARK, column(VariantType()), max_bytes=GIB, staging="/nowhere") is frame


def test_loading_the_package_imports_no_library_of_frames_and_works_without_polars() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", loading.__name__, "frames"], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == {"loaded": [], "kinds": [None, None]}
