"""What a write means does not follow the confs of the session that it is called in."""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pipeline.dataset import Append, Changelog, Check, Dataset, Features, Merge, Replace, TableRef, Unique
from pipeline.delta.frames.convert import ARROW_READER, from_spark
from pipeline.delta.inspect.check import check_table
from pipeline.delta.log.mark import clone_session, release_session
from pipeline.delta.read.version import ReadOptions, read
from pipeline.delta.read.window import Window
from pipeline.delta.sql import slices
from pipeline.delta.write.consume import consume
from pipeline.delta.write.write import write
from pipeline.errors import DamagedTableError, SessionConfError
from pipeline_tests.delta.sample import actions_of, frame_in, note, put, rows_of, versions_of
from pipeline_tests.tiers import first_is_quick

UTC = dt.timezone.utc
HOSTILE = {
    "spark.sql.session.timeZone": "Europe/Amsterdam",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.storeAssignmentPolicy": "LEGACY",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.outputTimestampType": "INT96",
}


def at(hour: int, minute: int) -> dt.datetime:
    """An instant of the night in which Amsterdam's summer time ends."""
    return dt.datetime(2026, 10, 25, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize(
    "partition_by",
    [pytest.param(()), pytest.param(("key",), marks=pytest.mark.both_modes)],
    ids=["data column", "partition column"],
)
def test_a_replaced_hour_at_the_end_of_summer_time_takes_no_row_of_the_hour_before(
    spark: SparkSession, root: str, partition_by: tuple[str, ...]
) -> None:
    schema = StructType([StructField("key", TimestampType()), StructField("n", LongType())])
    added = Dataset(name="hours", schema=schema, partition_by=partition_by, write=Append())
    replaced = Dataset(name="hours", schema=schema, partition_by=partition_by, write=Replace())
    session = clone_session(spark)
    try:
        for name, value in HOSTILE.items():
            session.conf.set(name, value)
        put(session, added, root, [(at(0, 30), 1), (at(1, 30), 2)])
        assert rows_of(added, root) == [(at(0, 30), 1), (at(1, 30), 2)]
        hour = slices.of_parts("key", [slices.Interval(at(1, 0), at(2, 0))])
        put(session, replaced, root, [], hour)
        assert rows_of(added, root) == [(at(0, 30), 1)]
        assert session.conf.get("spark.sql.session.timeZone") == "Europe/Amsterdam"
    finally:
        release_session(session)


@pytest.fixture
def hostile(spark: SparkSession) -> Iterator[SparkSession]:
    """A session of the caller's whose confs are all others than ours."""
    session = clone_session(spark)
    try:
        for name, value in HOSTILE.items():
            session.conf.set(name, value)
        yield session
    finally:
        release_session(session)


@pytest.mark.both_modes
def test_a_table_is_made_as_declared_whatever_the_session_would_make_of_it(hostile: SparkSession, root: str) -> None:
    hostile.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    hostile.conf.set("spark.databricks.delta.properties.defaults.appendOnly", "true")
    hostile.conf.set("spark.databricks.delta.write.utcTimestampPartitionValues", "false")
    schema = StructType([StructField("key", TimestampType()), StructField("n", LongType())])
    dataset = Dataset(name="made", schema=schema, partition_by=("key",))

    put(hostile, dataset, root, [(at(0, 30), 1), (at(1, 30), 2)])

    table = deltalake.DeltaTable(dataset.location(root))
    assert "delta.appendOnly" not in table.metadata().configuration
    assert rows_of(dataset, root) == [(at(0, 30), 1), (at(1, 30), 2)]
    written = [action["add"]["partitionValues"]["key"] for action in actions_of(dataset, root, 1) if "add" in action]
    assert sorted(written) == ["2026-10-25T00:30:00.000000Z", "2026-10-25T01:30:00.000000Z"]


def test_what_is_expected_of_a_table_is_judged_alike_in_any_session(hostile: SparkSession, root: str) -> None:
    schema = StructType([StructField("key", TimestampType()), StructField("n", LongType())])
    check = Check("before_two", "date_format(key, 'HH') < '02'")
    dataset = Dataset(name="judged", schema=schema, checks=(check,), expectations=(Unique(("n",)),))
    put(hostile, dataset, root, [(at(1, 30), 1)])

    found = check_table(hostile, dataset, root)

    assert {finding.name: finding.passed for finding in found if finding.passed is not None} == {
        "schema": True, "before_two": True, "unique_n": True,
    }  # fmt: skip


@pytest.mark.both_modes
def test_a_check_sets_the_rows_apart_that_break_it_in_utc_and_by_its_own_arithmetic(
    hostile: SparkSession, root: str
) -> None:
    schema = StructType([StructField("key", TimestampType()), StructField("n", LongType())])
    early = Check("early", "date_format(key, 'HH') < '01'", on_violation="quarantine")
    dataset = Dataset(name="apart", schema=schema, checks=(early,))

    result = put(hostile, dataset, root, [(at(0, 30), 1), (at(1, 30), 2)])

    assert (result.rows_quarantined, rows_of(dataset, root)) == (1, [(at(0, 30), 1)])


@pytest.mark.parametrize(
    ("name", "value"),
    first_is_quick(
        [
            ("spark.sql.files.ignoreMissingFiles", "true"),
            ("spark.sql.files.ignoreCorruptFiles", "TRUE"),
            ("spark.sql.parquet.datetimeRebaseModeInRead", "legacy"),
            ("spark.sql.parquet.int96RebaseModeInRead", "LEGACY"),
            ("spark.sql.parser.escapedStringLiterals", "true"),
            ("spark.sql.parser.quotedRegexColumnNames", "true"),
        ]
    ),
)
def test_a_session_that_would_misread_a_dataset_is_refused_by_the_name_of_the_conf(
    hostile: SparkSession, root: str, name: str, value: str
) -> None:
    dataset = Dataset(name="read", schema=StructType([StructField("n", LongType())]))
    location = dataset.location(root)
    put(hostile, dataset, root, [(1,)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # over Connect Spark says of some that they will go
        hostile.conf.unset(name)
        assert read(hostile, TableRef(dataset, location)).frame.count() == 1
        hostile.conf.set(name, value)
    for options in (ReadOptions(), ReadOptions(changes=Window())):
        with pytest.raises(SessionConfError) as caught:
            read(hostile, TableRef(dataset, location), options)
        assert caught.value.problems == (f"{name} is {value}",)


@pytest.mark.both_modes
def test_a_consumer_is_refused_at_its_first_run_in_a_session_that_passes_over_missing_files(
    hostile: SparkSession, root: str
) -> None:
    schema = StructType([StructField("n", LongType())])
    source = Dataset(name="source", schema=schema)
    consumer = Dataset(name="consumer", schema=schema, write=Replace())
    put(hostile, source, root, [(1,)])
    hostile.conf.set("spark.sql.files.ignoreMissingFiles", "true")

    for full_refresh in (False, True):
        with pytest.raises(SessionConfError) as caught:
            consume(
                hostile, consumer.at(root),
                sources=[source.at(root)],
                compute=lambda changes: changes["source"].whole, note=note(), full_refresh=full_refresh,
            )  # fmt: skip
        assert caught.value.dataset == "source"
        assert caught.value.problems == ("spark.sql.files.ignoreMissingFiles is true",)
    assert not Path(consumer.location(root)).exists()


def test_a_deletion_in_a_session_that_passes_over_missing_files_fails_rather_than_lose_their_rows(
    classic: SparkSession, root: str
) -> None:
    schema = StructType([StructField("k", LongType()), StructField("n", LongType())])
    dataset = Dataset(name="merged", schema=schema, keys=("k",), write=Merge())
    put(classic, dataset, root, [(1, 1), (2, 1)])
    (file,) = Path(dataset.location(root)).glob("*.parquet")
    file.unlink()
    hostile = clone_session(classic)
    hostile.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    with pytest.raises(DamagedTableError, match="does not exist"):
        put(hostile, dataset, root, [(1, 2)])
    assert versions_of(dataset, root) == [0, 1]


@pytest.mark.case("P-GEN-DATE-TZ")
@pytest.mark.both_modes
def test_a_day_that_is_computed_is_the_one_of_utc_and_a_read_in_another_zone_is_refused(
    hostile: SparkSession, root: str
) -> None:
    """Delta would leave out the day in which a row lies, which Amsterdam has another date for."""
    schema = StructType([StructField("key", TimestampType()), StructField("day", DateType())])
    computed = Features(generated=(("day", "CAST(key AS DATE)"),))
    dataset = Dataset(name="computed", schema=schema, partition_by=("day",), features=computed)
    instant = dt.datetime(2026, 10, 24, 22, 30, tzinfo=UTC)
    frame = frame_in(hostile, StructType(schema.fields[:1]), [(instant,)])

    write(frame, table=dataset.at(root), note=note())

    assert rows_of(dataset, root) == [(instant, dt.date(2026, 10, 24))]
    with pytest.raises(SessionConfError) as caught:
        read(hostile, dataset.at(root))
    assert "spark.sql.session.timeZone is Europe/Amsterdam" in caught.value.problems[0]
    hostile.conf.set("spark.databricks.delta.generatedColumn.partitionFilterOptimization.enabled", "false")
    found = read(hostile, dataset.at(root)).frame
    assert found.filter("key >= TIMESTAMP'2026-10-24 22:30:00Z'").count() == 1


@pytest.mark.case("S-OLD-DATES")
def test_a_day_that_only_one_calendar_has_is_replaced_alone(classic: SparkSession, root: str) -> None:
    schema = StructType([StructField("key", DateType()), StructField("n", LongType())])
    dataset = Dataset(name="days", schema=schema, write=Replace())
    rows = [(dt.date(1582, 10, 10), 1), (dt.date(1582, 10, 15), 2), (dt.date(1582, 10, 20), 3)]
    put(classic, dataset, root, rows)

    put(classic, dataset, root, [], slices.of_values("key", [dt.date(1582, 10, 10)]))

    assert rows_of(dataset, root) == rows[1:]


@pytest.mark.case("S-OLD-DATES")
@pytest.mark.both_modes
def test_instants_of_the_first_and_last_years_are_read_by_every_reader_at_every_depth(
    hostile: SparkSession, root: str
) -> None:
    schema = StructType(
        [
            StructField("n", LongType()), StructField("plain", TimestampType()),
            StructField("many", ArrayType(TimestampType())),
            StructField("one", StructType([StructField("at", TimestampType())])),
            StructField("named", MapType(StringType(), TimestampType())),
        ]
    )  # fmt: skip
    dataset = Dataset(name="instants", schema=schema, write=Replace())
    instants = [dt.datetime(year, 1, 2, 3, 4, 5, 6, tzinfo=UTC) for year in (1, 1582, 1600, 2262, 9999)]
    put(hostile, dataset, root, [(n, i, [i, None], {"at": i}, [("a", i)]) for n, i in enumerate(instants)])
    expected = [
        {"n": n, "plain": i, "many": [i, None], "one": {"at": i}, "named": [("a", i)]} for n, i in enumerate(instants)
    ]

    table = deltalake.DeltaTable(dataset.location(root))
    by_sql = deltalake.QueryBuilder().register("t", table).execute("SELECT * FROM t ORDER BY n").read_all()
    files = sorted(Path(dataset.location(root)).glob("*.parquet"))
    by_polars = pl.read_parquet(files).sort("n").drop("named").to_dicts()  # maps are lists or dicts by its version

    assert table.to_pyarrow_table().sort_by("n").to_pylist() == expected
    assert pa.table(by_sql).to_pylist() == expected
    assert by_polars == [{name: value for name, value in row.items() if name != "named"} for row in expected]


KEYED = StructType([StructField("k", LongType()), StructField("n", LongType())])


@pytest.mark.both_modes
def test_an_identifier_of_the_callers_session_makes_no_write_a_repeat(hostile: SparkSession, root: str) -> None:
    hostile.conf.set("spark.databricks.delta.write.txnAppId", "theirs")
    hostile.conf.set("spark.databricks.delta.write.txnVersion", "1")
    replaced = Dataset(name="replaced", schema=KEYED, write=Replace())
    appended = Dataset(name="appended", schema=KEYED, write=Append())
    for n in (1, 2):
        assert put(hostile, replaced, root, [(n, n)]).committed
        assert put(hostile, appended, root, [(n, n)]).committed
    assert (rows_of(replaced, root), rows_of(appended, root)) == ([(2, 2)], [(1, 1), (2, 2)])


def test_a_replaced_slice_is_in_the_feed_with_its_new_rows_and_counted_whatever_the_session_leaves_out(
    hostile: SparkSession, root: str
) -> None:
    for name in ("replaceWhere.dataColumnsWithCDF.enabled", "history.metricsEnabled", "stats.collect"):
        hostile.conf.set(f"spark.databricks.delta.{name}", "false")
    source = Dataset(name="source", schema=KEYED, keys=("k",), write=Replace())
    put(hostile, source, root, [(1, 1), (2, 2)])
    result = put(hostile, source, root, [(1, 5)], slices.of_values("k", [1, 2]))
    assert (result.rows_written, result.rows_deleted) == (1, 2)
    feed = read(hostile, source.at(root), ReadOptions(changes=Window(first=result.version))).frame
    found = feed.select("k", "n", "_change_type").collect()
    assert sorted(map(tuple, found)) == [(1, 1, "delete"), (1, 5, "insert"), (2, 2, "delete")]


@pytest.mark.parametrize("data_type", first_is_quick([DateType(), TimestampType()]), ids=str)
def test_days_that_only_one_calendar_has_are_read_in_a_session_with_the_old_dates(
    hostile: SparkSession, root: str, data_type: DataType
) -> None:
    hostile.conf.set("spark.sql.datetime.java8API.enabled", "false")
    schema = StructType([StructField("key", data_type), StructField("n", LongType())])
    dataset = Dataset(name="days", schema=schema, write=Replace())

    def key(month: int, day: int) -> Any:
        instant = dt.datetime(1582, month, day, tzinfo=UTC)
        return instant if isinstance(data_type, TimestampType) else instant.date()

    put(hostile, dataset, root, [(key(10, 4), 1), (key(10, 10), 2), (key(10, 15), 3), (None, 4)])

    def numbers(within: slices.Slice) -> list[int]:
        found = read(hostile, dataset.at(root), within=within).frame
        return sorted(row["n"] for row in found.select("n").collect())

    assert numbers(slices.of_values("key", [key(10, 10), None])) == [2, 4]
    assert numbers(slices.of_values("key", [key(10, 15)])) == [3]
    assert numbers(slices.of_parts("key", [slices.Interval(key(10, 5), key(10, 15))])) == [2]
    assert numbers(slices.of_parts("key", [slices.Interval(key(9, 1), key(11, 1))])) == [1, 2, 3]


@pytest.mark.parametrize(
    ("data_type", "places"),
    first_is_quick(
        [
            (TimestampType(), [at(0, 30), at(1, 0), at(1, 30)]),
            (BinaryType(), [b"\x00\xfe", b"\x00\xff", b"\x01\x00"]),
        ]
    ),
    ids=["instants", "bytes"],
)
def test_a_truncation_takes_the_rows_before_it_and_none_after_it_in_any_zone(
    hostile: SparkSession, root: str, data_type: DataType, places: list[Any]
) -> None:
    schema = StructType([StructField("k", LongType()), StructField("place", data_type)])
    mode = Merge(changelog=Changelog(operation="op", sequence="place"))
    dataset = Dataset(name="logged", schema=schema, keys=("k",), write=mode)
    log = StructType([StructField("op", StringType()), *schema.fields])
    before, truncated, after = places
    for changes in ([("c", 1, before), ("c", 2, after)], [("t", None, truncated)]):
        write(frame_in(hostile, log, changes), table=dataset.at(root), note=note())
    assert [row[0] for row in rows_of(dataset, root)] == [2]


def test_a_stream_of_batches_has_the_days_of_the_table_whatever_calendar_the_session_writes(
    hostile: SparkSession, root: str
) -> None:
    hostile.conf.set("spark.sql.parquet.int96RebaseModeInWrite", "LEGACY")
    schema = StructType([StructField("day", DateType()), StructField("at", TimestampType())])
    dataset = Dataset(name="old", schema=schema)
    rows = [(dt.date(year, 1, 1), dt.datetime(year, 1, 1, 12, tzinfo=UTC)) for year in (1, 1000, 1850)]
    put(hostile, dataset, root, rows)
    frame = read(hostile, dataset.at(root)).frame
    reader = from_spark(frame, ARROW_READER, dataset, max_bytes=0, staging=f"{root}/_staging")
    assert sorted(tuple(row.values()) for row in reader.read_all().to_pylist()) == rows
