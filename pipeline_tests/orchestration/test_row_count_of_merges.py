"""A declared row count is of the table, or of the partition, in every mode but an append."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetKey,
    AssetMaterialization,
    AssetsDefinition,
    AssetSelection,
    DagsterInstance,
    Definitions,
    define_asset_job,
)
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql.types import DateType, LongType, StructField, StructType

from pipeline.dataset import Append, Dataset, Ignore, InsertNew, Merge, RowCount
from pipeline.orchestration import DeltaIOManager, DeltaSparkResource, dataset_asset, dataset_checks
from pipeline.orchestration.dataset_asset import IO_MANAGER
from pipeline.settings import SparkSettings
from pipeline_tests.orchestration.conftest import RANGE_END, RANGE_START, Project
from pipeline_tests.orchestration.test_counts_by_partition import FIRST, SECOND, by_day
from pipeline_tests.tiers import first_is_quick

NUMBERS = StructType([StructField("n", LongType())])
BY_DAY = StructType([StructField("n", LongType()), StructField("day", DateType(), False)])


@pytest.fixture
def project(classic: SparkSession, spark_settings: SparkSettings, root: str):
    with DagsterInstance.ephemeral() as instance:
        yield Project(root=root, spark=DeltaSparkResource.from_settings(spark_settings), instance=instance)


def checked(project: Project, dataset: Dataset, asset: AssetsDefinition, **options: Any) -> AssetCheckEvaluation:
    """The row count's result of one run of the asset."""
    definitions = Definitions(assets=[asset], asset_checks=dataset_checks([dataset]), resources=project.resources())
    result = definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=project.instance, **options
    )
    return next(one for one in result.get_asset_check_evaluations() if one.check_name == "row_count")


def of_numbers(dataset: Dataset, numbers: Iterable[int]) -> AssetsDefinition:
    @dataset_asset(dataset)
    def table() -> pa.Table:
        return pa.table({"n": pa.array(numbers, pa.int64())})

    return table


@pytest.mark.parametrize(
    "write", first_is_quick([InsertNew(), Merge(), Ignore()]), ids=lambda mode: type(mode).__name__
)
def test_a_rerun_with_nothing_new_is_judged_by_the_table(project: Project, write: Any) -> None:
    keys = () if isinstance(write, Ignore) else ("n",)
    dataset = Dataset(
        name="kept", schema=NUMBERS, write=write, keys=keys, row_count=RowCount(minimum=3, maximum=3), change_feed=False
    )
    for numbers in ([1, 2, 3], [1, 2, 3], []):
        evaluation = checked(project, dataset, of_numbers(dataset, numbers))
        assert (evaluation.passed, evaluation.metadata["found"].value) == (True, "3 rows")


@pytest.mark.exhaustive
def test_a_rerun_of_partitions_is_judged_by_what_each_of_them_holds(project: Project) -> None:
    rows = {FIRST: [1, 2], SECOND: [3]}
    dataset = Dataset(
        name="by_day", schema=BY_DAY, partition_by=("day",), write=InsertNew(), keys=("n",),
        row_count=RowCount(minimum=2), change_feed=False,
    )  # fmt: skip
    asset, tags = by_day(dataset, rows), {RANGE_START: FIRST, RANGE_END: SECOND}
    for _ in range(2):
        evaluation = checked(project, dataset, asset, tags=tags)
        assert (evaluation.passed, evaluation.metadata["outside"].value) == (False, {SECOND: 1})
    assert checked(project, dataset, by_day(dataset, {FIRST: []}), partition_key=FIRST).passed


def test_a_write_that_recorded_no_rows_of_the_table_is_judged_by_the_log_at_its_version(root: str) -> None:
    """Two rows are inserted into three, and three deleted afterwards; no session may be asked for."""
    merged = Dataset(
        name="fed", schema=NUMBERS, write=InsertNew(), keys=("n",), row_count=RowCount(minimum=5, maximum=5)
    )
    added = Dataset(name="fed", schema=NUMBERS, write=Append(), row_count=RowCount(minimum=2, maximum=2))
    for numbers in ([1, 2, 3], [4, 5]):
        write_deltalake(merged.location(root), pa.table({"n": pa.array(numbers, pa.int64())}), mode="append")
    DeltaTable(merged.location(root)).delete("n <= 3")
    with DagsterInstance.ephemeral() as instance:
        event = AssetMaterialization("fed", metadata={"delta/rows_written": 2, "delta/version": 1})
        instance.report_runless_asset_event(event)
        spark = DeltaSparkResource()
        for dataset in (merged, added):
            definitions = Definitions(
                asset_checks=dataset_checks([dataset]),
                jobs=[define_asset_job("look", AssetSelection.checks(AssetCheckKey(AssetKey("fed"), "row_count")))],
                resources={"spark": spark, IO_MANAGER: DeltaIOManager(root=root, spark=spark)},
            )
            job = definitions.resolve_job_def("look")
            (evaluation,) = job.execute_in_process(instance=instance).get_asset_check_evaluations()
            assert evaluation.passed, evaluation.description
