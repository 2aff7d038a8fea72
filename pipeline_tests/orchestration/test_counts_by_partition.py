"""What each partition's materialization says of itself, what it says of the commit, and the rows of the table."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from dagster import AssetExecutionContext, AssetsDefinition, DagsterInstance, DailyPartitionsDefinition
from pyspark.sql import SparkSession
from pyspark.sql.types import DateType, LongType, StructField, StructType

from pipeline.dataset import Append, Check, Dataset, InsertNew, Merge, Replace
from pipeline.orchestration import DeltaSparkResource, dataset_asset
from pipeline.settings import SparkSettings
from pipeline_tests.orchestration.conftest import Project, day, materializations
from pipeline_tests.tiers import first_is_quick

DAILY = DailyPartitionsDefinition("2026-01-01", end_date="2026-02-01")
SCHEMA = StructType([StructField("n", LongType()), StructField("day", DateType(), False)])
Rows = Mapping[str, list[int]]
FIRST, SECOND, THIRD = "2026-01-02", "2026-01-03", "2026-01-04"


@pytest.fixture
def project(classic: SparkSession, spark_settings: SparkSettings, root: str):
    with DagsterInstance.ephemeral() as instance:
        yield Project(root=root, spark=DeltaSparkResource.from_settings(spark_settings), instance=instance)


def declared(name: str, **options: Any) -> Dataset:
    return Dataset(name=name, schema=SCHEMA, partition_by=("day",), **{"change_feed": False} | options)


def frame(rows: Rows) -> pa.Table:
    cells = [(n, dt.date.fromisoformat(key)) for key, numbers in rows.items() for n in numbers]
    return pa.table({"n": pa.array([n for n, _ in cells], pa.int64()), "day": pa.array([d for _, d in cells])})


def by_day(dataset: Dataset, rows: Rows) -> AssetsDefinition:
    @dataset_asset(dataset, partitions_def=DAILY)
    def days(context: AssetExecutionContext) -> pa.Table:
        return frame({key: rows.get(key, []) for key in context.partition_keys})

    return days


def ranged(project: Project, dataset: Dataset, rows: Rows) -> Mapping[str | None, dict[str, Any]]:
    return materializations(project.run_range(FIRST, THIRD, by_day(dataset, rows)), dataset)


def told(found: Mapping[str | None, dict[str, Any]], name: str) -> dict[str | None, Any]:
    return {key: metadata.get(name) for key, metadata in found.items()}


def test_each_partition_of_a_range_has_counts_of_its_own_and_the_totals_under_other_names(project: Project) -> None:
    positive = Check("positive", "n > 0", on_violation="quarantine")
    small = Check("small", "n < 100", on_violation="drop")
    dataset = declared("apart", checks=(positive, small))
    found = ranged(project, dataset, {FIRST: [1, 2, -1], SECOND: [3, -2, -3, 100]})
    assert told(found, "delta/rows_written") == {FIRST: 2, SECOND: 1, THIRD: 0}
    assert told(found, "dagster/partition_row_count") == {FIRST: 2, SECOND: 1, THIRD: 0}
    assert told(found, "delta/rows_quarantined") == {FIRST: 1, SECOND: 2, THIRD: 0}
    assert told(found, "delta/rows_dropped") == {FIRST: 0, SECOND: 1, THIRD: 0}
    files = told(found, "delta/files_added")
    assert min(files[FIRST], files[SECOND]) >= 1
    assert files[THIRD] == 0
    for name in ("files_added", "bytes_added", "rows_written", "rows_quarantined", "rows_dropped"):
        totals = set(told(found, f"delta/commit_{name}").values())
        assert totals == {sum(told(found, f"delta/{name}").values())}, name
    assert told(found, "dagster/row_count") == dict.fromkeys((FIRST, SECOND, THIRD), 3)
    assert {metadata["delta/commit_violations"]["positive"]["rows"] for metadata in found.values()} == {3}


@pytest.mark.exhaustive
def test_one_partition_alone_has_the_counts_of_its_commit_under_both_names(project: Project) -> None:
    dataset = declared("alone")
    project.run(by_day(dataset, {FIRST: [1, 2]}), partition_key=FIRST)
    metadata = materializations(project.run(by_day(dataset, {FIRST: [3]}), partition_key=FIRST), dataset)[FIRST]
    for name in ("rows_written", "files_added", "files_removed", "bytes_added"):
        assert metadata[f"delta/{name}"] == metadata[f"delta/commit_{name}"] > 0
    assert metadata["delta/rows_written"] == metadata["dagster/row_count"] == 1


@pytest.mark.parametrize(
    ("write", "change_feed", "rows_written", "partition_rows"),
    first_is_quick(
        [
            (Append(), False, {FIRST: 1, SECOND: 2, THIRD: 0}, {FIRST: 1, SECOND: 2, THIRD: 0}),
            (Merge(), True, {FIRST: 1, SECOND: 2, THIRD: 0}, {FIRST: 2, SECOND: 3, THIRD: 1}),
            (Merge(), False, {FIRST: None, SECOND: None, THIRD: 0}, {FIRST: 2, SECOND: 3, THIRD: 1}),
            (Replace(), False, {FIRST: 1, SECOND: 2, THIRD: 0}, {FIRST: 1, SECOND: 2, THIRD: 0}),
            (InsertNew(), False, {FIRST: 0, SECOND: 1, THIRD: 0}, {FIRST: 2, SECOND: 3, THIRD: 1}),
        ],
        count=2,
    ),
    ids=lambda value: type(value).__name__ if not isinstance(value, dict | bool) else "feed" if value is True else "",
)
def test_the_rows_of_the_table_are_told_in_every_mode(
    project: Project,
    write: Any,
    change_feed: bool,
    rows_written: dict[str, int | None],
    partition_rows: dict[str, int],
) -> None:
    """A merge without a change feed counts the rows that it has written only for the commit."""
    keys = ("n", "day") if isinstance(write, Merge | InsertNew) else ()
    dataset = declared("moded", write=write, keys=keys, change_feed=change_feed)
    first = ranged(project, dataset, {FIRST: [1, 2], SECOND: [3, 4], THIRD: [5]})
    assert told(first, "dagster/row_count") == dict.fromkeys((FIRST, SECOND, THIRD), 5)
    again = ranged(project, dataset, {FIRST: [1], SECOND: [3, 6]})
    assert set(told(again, "dagster/row_count").values()) == {len(project.rows(dataset))}
    assert told(again, "dagster/partition_row_count") == partition_rows
    assert {metadata["delta/commit_rows_written"] for metadata in again.values()} == {1 if write == InsertNew() else 3}
    assert told(again, "delta/rows_written") == rows_written


@pytest.mark.exhaustive
def test_deleted_rows_of_a_file_are_not_counted_and_a_file_without_statistics_leaves_the_count_out(
    project: Project,
) -> None:
    dataset = declared("vectors", write=Append())
    location = dataset.location(project.root)
    project.run(by_day(dataset, {FIRST: list(range(100))}), partition_key=FIRST)
    session = project.spark.spark_session
    session.sql(f"ALTER TABLE delta.`{location}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    session.sql(f"DELETE FROM delta.`{location}` WHERE n = 7").collect()
    second = materializations(project.run(by_day(dataset, {SECOND: [1]}), partition_key=SECOND), dataset)[SECOND]
    assert second["dagster/row_count"] == len(project.rows(dataset)) == 100
    session.conf.set("spark.databricks.delta.stats.collect", "false")
    try:
        frame_ = session.createDataFrame([(1, day(THIRD))], "n BIGINT, day DATE NOT NULL")
        frame_.write.format("delta").mode("append").save(location)
    finally:
        session.conf.unset("spark.databricks.delta.stats.collect")
    third = materializations(project.run(by_day(dataset, {SECOND: [2]}), partition_key=SECOND), dataset)[SECOND]
    assert "dagster/row_count" not in third
    assert third["delta/rows_written"] == 1
