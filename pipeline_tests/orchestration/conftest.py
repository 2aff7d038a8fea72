"""A small project of this tier's own: one partitioned dataset, one that reads it, and the resources they need."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from dagster import AssetsDefinition, DagsterInstance, ExecuteInProcessResult, materialize
from pyspark.sql import SparkSession
from pyspark.sql.types import DateType, LongType, StructField, StructType

from pipeline.dataset import Dataset
from pipeline.orchestration import DeltaIOManager, DeltaSparkResource
from pipeline.settings import SparkSettings

DAYS = Dataset(
    name="feed/days",
    schema=StructType([StructField("n", LongType(), False), StructField("day", DateType(), False)]),
    partition_by=("day",),
)
TOTAL = Dataset(name="total", schema=StructType([StructField("n", LongType())]), reads=("feed/days",))
RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"


@pytest.fixture(params=["classic", "connect"])
def spark_resource(
    request: pytest.FixtureRequest, spark_settings: SparkSettings, classic: SparkSession
) -> Iterator[DeltaSparkResource]:
    """The session resource, embedded and as a Connect client."""
    resource = DeltaSparkResource.from_settings(spark_settings)
    if request.param == "classic":
        yield resource
        return
    from pipeline_tests.conftest import connect_mode

    url = request.getfixturevalue("remote_url")
    with connect_mode():
        yield DeltaSparkResource.from_settings(replace(spark_settings, remote=url))


@dataclass
class Project:
    """Runs assets against one root and one instance."""

    root: str
    spark: DeltaSparkResource
    instance: DagsterInstance

    def run(self, *assets: AssetsDefinition, **options: Any) -> ExecuteInProcessResult:
        return materialize(assets, resources=self.resources(), instance=self.instance, **options)

    def resources(self) -> dict[str, Any]:
        return {"spark": self.spark, "delta_io_manager": DeltaIOManager(root=self.root, spark=self.spark)}

    def run_range(self, start: str, end: str, *assets: AssetsDefinition, **options: Any) -> ExecuteInProcessResult:
        return self.run(*assets, tags={RANGE_START: start, RANGE_END: end}, **options)

    def rows(self, dataset: Dataset) -> list[tuple[Any, ...]]:
        frame = self.spark.spark_session.read.format("delta").load(dataset.location(self.root))
        return sorted(tuple(row) for row in frame.collect())

    def version(self, dataset: Dataset) -> int:
        from pipeline.delta.table.open_table import latest_version

        newest = latest_version(dataset.location(self.root))
        assert newest is not None
        return newest


@pytest.fixture
def project(root: str, spark_resource: DeltaSparkResource) -> Iterator[Project]:
    with DagsterInstance.ephemeral() as instance:
        yield Project(root=root, spark=spark_resource, instance=instance)


def materializations(result: ExecuteInProcessResult, dataset: Dataset) -> Mapping[str | None, dict[str, Any]]:
    """By partition key, the metadata values of a run's materializations of a dataset."""
    found = {}
    for event in result.all_events:
        if event.is_step_materialization and event.materialization.asset_key.path == list(dataset.asset_key):
            values = {name: entry.value for name, entry in event.materialization.metadata.items()}
            found[event.materialization.partition] = values | {"tags": dict(event.materialization.tags)}
    return found


def day(text: str) -> dt.date:
    return dt.date.fromisoformat(text)


Frames = Callable[..., Any]
