"""Declared exports as assets: in the run of the dataset, by themselves, and over any keys."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pytest
from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    DagsterInstance,
    DailyPartitionsDefinition,
    ExecuteInProcessResult,
)
from pyspark.sql import SparkSession
from pyspark.sql.types import DateType, LongType, StructField, StructType

from pipeline.dataset import Dataset, Export, Registry
from pipeline.orchestration import DeltaSparkResource, dataset_asset
from pipeline.orchestration.exports import export_assets
from pipeline.orchestration.metadata_keys import EXPORT_DROPPED, EXPORT_REASON, EXPORT_VERSION, EXPORT_WRITTEN
from pipeline.settings import Settings, SparkSettings
from pipeline_tests.orchestration.conftest import Project, day

DAILY = DailyPartitionsDefinition("2026-01-01", end_date="2026-02-01")
SCHEMA = StructType([StructField("n", LongType(), False), StructField("day", DateType(), False)])
FIRST, SECOND, THIRD = "2026-01-01", "2026-01-02", "2026-01-03"
Rows = Mapping[str, list[int]]


@pytest.fixture
def project(classic: SparkSession, spark_settings: SparkSettings, root: str):
    with DagsterInstance.ephemeral() as instance:
        yield Project(root=root, spark=DeltaSparkResource.from_settings(spark_settings), instance=instance)


def dataset_in(folder: Path) -> Dataset:
    exports = (Export(str(folder / "out")), Export("lines", format="csv", where="n > 1", name="lines"))
    return Dataset(name="shop/days", schema=SCHEMA, partition_by=("day",), exports=exports)


def assets_of(dataset: Dataset, rows: Rows, settings: Settings) -> list[AssetsDefinition]:
    """The asset of a dataset and those of its exports."""

    @dataset_asset(dataset, partitions_def=DAILY)
    def days(context: AssetExecutionContext) -> pa.Table:
        cells = [(n, day(key)) for key in context.partition_keys for n in rows.get(key, [])]
        return pa.table({"n": pa.array([n for n, _ in cells], pa.int64()), "day": pa.array([d for _, d in cells])})

    return [days, *export_assets(Registry([dataset]), settings, [days])]


def metadata_of(result: ExecuteInProcessResult, name: str) -> dict[str | None, dict[str, Any]]:
    """By partition key, the metadata of an export's materializations."""
    return {
        event.materialization.partition: {k: v.value for k, v in event.materialization.metadata.items()}
        for event in result.all_events
        if event.is_step_materialization and event.materialization.asset_key.path[-1] == name
    }


def test_a_run_exports_the_version_that_it_has_committed(project: Project, settings: Settings, tmp_path: Path) -> None:
    settings = replace(settings, root=project.root)
    dataset = dataset_in(tmp_path)
    result = project.run_range(FIRST, THIRD, *assets_of(dataset, {FIRST: [1], SECOND: [2, 3]}, settings))
    metadata = metadata_of(result, "days__export")
    assert metadata.keys() == {FIRST, SECOND, THIRD}
    assert {one[EXPORT_VERSION] for one in metadata.values()} == {project.version(dataset)}
    assert metadata[FIRST][EXPORT_REASON] == "nothing was exported before"
    assert sorted(pads.dataset(tmp_path / "out", partitioning="hive").to_table()["n"].to_pylist()) == [1, 2, 3]
    lines = "".join(path.read_text(encoding="utf-8") for path in (settings.project / "lines").rglob("*.csv")).split()
    assert sorted(line for line in lines if line != "n") == ["2", "3"]

    result = project.run_range(SECOND, THIRD, *assets_of(dataset, {THIRD: [4]}, settings))
    metadata = metadata_of(result, "days__export")
    assert metadata[SECOND][EXPORT_WRITTEN] == ["day=2026-01-03"]
    assert metadata[SECOND][EXPORT_DROPPED] == ["day=2026-01-02"]
    assert EXPORT_REASON not in metadata[SECOND]
    assert sorted(pads.dataset(tmp_path / "out", partitioning="hive").to_table()["n"].to_pylist()) == [1, 4]


@pytest.mark.exhaustive
def test_an_export_alone_brings_the_newest_version_whatever_its_keys(
    project: Project, settings: Settings, tmp_path: Path
) -> None:
    settings = replace(settings, root=project.root)
    dataset = dataset_in(tmp_path)
    days, export, _ = assets_of(dataset, {FIRST: [1], SECOND: [2]}, settings)
    project.run_range(FIRST, SECOND, days)
    result = project.run(days, export, selection=[export], partition_key=THIRD)
    assert metadata_of(result, "days__export")[THIRD][EXPORT_WRITTEN] == ["day=2026-01-01", "day=2026-01-02"]
    again = project.run(days, export, selection=[export], partition_key=FIRST)
    assert metadata_of(again, "days__export")[FIRST][EXPORT_WRITTEN] == []


@pytest.mark.exhaustive
def test_an_export_that_is_refused_fails_its_step_alone(project: Project, settings: Settings, tmp_path: Path) -> None:
    settings = replace(settings, root=project.root)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "theirs").touch()
    dataset = dataset_in(tmp_path)
    result = project.run_range(FIRST, SECOND, *assets_of(dataset, {FIRST: [1]}, settings), raise_on_error=False)
    assert not result.success
    assert [event.step_key for event in result.get_step_failure_events()] == ["shop__days__export"]
    assert project.version(dataset) > 0
