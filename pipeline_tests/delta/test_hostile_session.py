"""What a write means does not follow the confs of the session that it is called in."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import DateType, LongType, StructField, StructType, TimestampType

from pipeline.dataset import Append, Dataset, Replace
from pipeline.delta import slices
from pipeline.delta.commit import clone_session, release_session
from pipeline_tests.delta.sample import put, rows_of

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


def test_a_day_that_only_one_calendar_has_is_replaced_alone(classic: SparkSession, root: str) -> None:
    schema = StructType([StructField("key", DateType()), StructField("n", LongType())])
    dataset = Dataset(name="days", schema=schema, write=Replace())
    rows = [(dt.date(1582, 10, 10), 1), (dt.date(1582, 10, 15), 2), (dt.date(1582, 10, 20), 3)]
    put(classic, dataset, root, rows)

    put(classic, dataset, root, [], slices.of_values("key", [dt.date(1582, 10, 10)]))

    assert rows_of(dataset, root) == rows[1:]


def test_instants_of_the_first_and_last_years_are_read_by_polars(classic: SparkSession, root: str) -> None:
    schema = StructType([StructField("key", TimestampType()), StructField("n", LongType())])
    dataset = Dataset(name="instants", schema=schema, write=Replace())
    instants = [dt.datetime(year, 1, 2, tzinfo=UTC) for year in (1, 1600, 9999)]
    put(classic, dataset, root, [(instant, n) for n, instant in enumerate(instants)])

    files = sorted(Path(dataset.location(root)).glob("*.parquet"))
    assert pl.read_parquet(files).sort("n")["key"].dt.year().to_list() == [1, 1600, 9999]
