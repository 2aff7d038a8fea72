"""An asset that reads its own earlier partition, and what a reader gets where no partition is mapped to it."""

import datetime as dt
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from dagster import (
    AllPartitionMapping,
    AssetExecutionContext,
    AssetIn,
    AssetsDefinition,
    DagsterInstance,
    DailyPartitionsDefinition,
    DynamicPartitionsDefinition,
    LastPartitionMapping,
    PartitionsDefinition,
    SpecificPartitionsPartitionMapping,
    StaticPartitionMapping,
    StaticPartitionsDefinition,
    TimeWindowPartitionMapping,
    asset,
)
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from pipeline.dataset import Dataset
from pipeline.errors import TableNotFoundError
from pipeline.orchestration import DeltaSparkResource, dataset_asset
from pipeline.orchestration.dataset_asset import IO_MANAGER
from pipeline.orchestration.metadata_keys import DATASET
from pipeline.settings import SparkSettings
from pipeline_tests.orchestration.conftest import Project
from pipeline_tests.refusals import refused
from pipeline_tests.tiers import first_is_quick

DAILY = DailyPartitionsDefinition("2026-01-01", end_date="2026-01-11")
SUMS = Dataset(
    name="sums",
    schema=StructType([StructField("total", LongType(), False), StructField("day", DateType(), False)]),
    partition_by=("day",),
    change_feed=False,
)
BEFORE = TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
LETTERS = DynamicPartitionsDefinition(name="letters")
LETTERED = Dataset(
    name="lettered",
    schema=StructType([StructField("n", LongType()), StructField("letter", StringType())]),
    partition_by=("letter",),
    change_feed=False,
)


@pytest.fixture
def project(classic: SparkSession, spark_settings: SparkSettings, root: str):
    with DagsterInstance.ephemeral() as instance:
        yield Project(root=root, spark=DeltaSparkResource.from_settings(spark_settings), instance=instance)


def metadata_of(dataset: Dataset) -> dict[str, Any]:
    @dataset_asset(dataset)
    def carried() -> None: ...

    return {DATASET: carried.metadata_by_key[carried.key][DATASET]}


def running_total(kind: Any, total_of: Any) -> AssetsDefinition:
    @asset(
        name="sums", partitions_def=DAILY, ins={"before": AssetIn("sums", partition_mapping=BEFORE)},
        metadata=metadata_of(SUMS), io_manager_key=IO_MANAGER,
    )  # fmt: skip
    def sums(context: AssetExecutionContext, before: kind) -> pa.Table:
        days = [dt.date.fromisoformat(context.partition_key)]
        return pa.table({"total": pa.array([total_of(before) + 1], pa.int64()), "day": pa.array(days, pa.date32())})

    return sums


TOTALS = {
    "spark": (DataFrame, lambda frame: frame.groupBy().sum("total").collect()[0][0] or 0),
    "pandas": (pd.DataFrame, lambda frame: int(frame["total"].sum())),
    "polars": (pl.DataFrame, lambda frame: frame["total"].sum()),
    "arrow": (pa.Table, lambda table: sum(table["total"].to_pylist())),
    "reader": (pa.RecordBatchReader, lambda reader: sum(reader.read_all()["total"].to_pylist())),
}


@pytest.mark.case("D-SELF-FIRST")
@pytest.mark.parametrize(("kind", "total_of"), first_is_quick(TOTALS.values()), ids=TOTALS)
def test_the_first_partition_of_an_asset_that_reads_the_one_before_is_written_and_so_are_those_after_it(
    project: Project, kind: Any, total_of: Any
) -> None:
    sums = running_total(kind, total_of)
    for key in ("2026-01-01", "2026-01-02"):
        assert project.run(sums, partition_key=key).success
    assert project.rows(SUMS) == [(1, dt.date(2026, 1, 1)), (2, dt.date(2026, 1, 2))]


@pytest.mark.exhaustive
def test_a_partition_in_the_middle_can_be_the_first_that_is_written(project: Project) -> None:
    sums = running_total(DataFrame, TOTALS["spark"][1])
    project.run(sums, partition_key="2026-01-05")
    project.run(sums, partition_key="2026-01-01")
    assert project.rows(SUMS) == [(1, dt.date(2026, 1, 1)), (1, dt.date(2026, 1, 5))]


@pytest.mark.exhaustive
def test_a_plain_asset_that_reads_itself_begins_with_a_frame_without_columns(project: Project) -> None:
    @asset(
        partitions_def=DAILY, ins={"before": AssetIn("plain", partition_mapping=BEFORE)},
        metadata={"partition_expr": "day"}, io_manager_key=IO_MANAGER,
    )  # fmt: skip
    def plain(context: AssetExecutionContext, before: pa.Table) -> pa.Table:
        total = sum(before["total"].to_pylist()) if before.column_names else 0
        return pa.table({"total": [total + 1], "day": [dt.date.fromisoformat(context.partition_key)]})

    for key in ("2026-01-01", "2026-01-02"):
        project.run(plain, partition_key=key)
    found = project.spark.spark_session.read.format("delta").load(f"{project.root}/plain")
    assert sorted(row["total"] for row in found.collect()) == [1, 2]


def reader(
    upstream: AssetsDefinition, seen: list[int], mapping: Any = None, partitions_def: PartitionsDefinition | None = None
) -> AssetsDefinition:
    @asset(partitions_def=partitions_def, ins={"given": AssetIn(upstream.key, partition_mapping=mapping)})
    def look(given: pa.Table) -> None:
        seen.extend(sorted(given["n"].to_pylist()))

    return look


def lettered() -> AssetsDefinition:
    @dataset_asset(LETTERED, partitions_def=LETTERS)
    def never_run() -> pa.Table:
        raise AssertionError

    return never_run


def test_where_no_key_is_mapped_a_source_without_a_table_is_empty_and_another_is_still_refused(
    project: Project,
) -> None:
    groups = StaticPartitionsDefinition(["x", "y"])
    letters = StaticPartitionsDefinition(["A"])

    @dataset_asset(LETTERED, partitions_def=letters)
    def source() -> pa.Table:
        raise AssertionError

    seen: list[int] = []
    look = reader(source, seen, StaticPartitionMapping({"A": "x"}), groups)
    assert project.run(source, look, selection=[look], partition_key="y").success
    assert seen == []
    with refused(TableNotFoundError):
        project.run(source, look, selection=[look], partition_key="x")


@pytest.mark.case("D-DELETED-KEY")
@pytest.mark.exhaustive
def test_a_key_that_was_deleted_in_dagster_is_read_alike_by_readers_of_everything(project: Project) -> None:
    """Its rows are in the table all the same; who names other keys does not get them."""
    table = pa.table({"n": pa.array([1, 2, 3, 4], pa.int64()), "letter": ["A", "B", "C", None]})
    write_deltalake(LETTERED.location(project.root), table, partition_by=["letter"])
    project.instance.add_dynamic_partitions("letters", ["A", "B", "C"])
    project.instance.delete_dynamic_partition("letters", "B")
    source, groups = lettered(), StaticPartitionsDefinition(["x"])

    def sees(mapping: Any, partitions_def: PartitionsDefinition | None = None) -> list[int]:
        seen: list[int] = []
        options = {} if partitions_def is None else {"partition_key": "x"}
        look = reader(source, seen, mapping, partitions_def)
        project.run(source, look, selection=[look], **options)
        return seen

    unmapped = sees(None)
    assert unmapped == sees(AllPartitionMapping()) == sees(AllPartitionMapping(), groups) == [1, 2, 3, 4]
    named = SpecificPartitionsPartitionMapping(["A", "C"])
    assert sees(named) == sees(named, groups) == [1, 3]
    assert sees(LastPartitionMapping()) == [3]
