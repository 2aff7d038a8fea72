"""Tries of one step write once, whoever starts them; a run that is meant writes again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from dagster import (
    AssetMaterialization,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    Definitions,
    JobDefinition,
    OutputContext,
    RetryPolicy,
    define_asset_job,
    in_process_executor,
)
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.dataset import Append, Dataset, Merge, WriteMode
from pipeline.orchestration import DeltaIOManager, DeltaSparkResource, dataset_asset
from pipeline.orchestration.io.identity import first_try
from pipeline.settings import SparkSettings
from pipeline_tests.delta.sample import rows_of, versions_of
from pipeline_tests.tiers import first_is_quick

SCHEMA = StructType([StructField("n", LongType())])
AUTOMATIC = {"dagster/retry_number": "1"}


class FailsBehindTheCommit(DeltaIOManager):
    """Writes, and then fails as often as is said, before Dagster is told of anything."""

    failures: int = 0

    def handle_output(self, context: OutputContext, obj: object) -> None:
        super().handle_output(context, obj)
        if FAILURES:
            FAILURES.pop()
            raise OSError("the event log is away")


FAILURES: list[None] = []


@pytest.fixture(autouse=True)
def _no_failures_left() -> Iterator[None]:
    FAILURES.clear()
    yield
    assert not FAILURES


def job_of(dataset: Dataset, root: str, settings: SparkSettings, retries: int = 0) -> JobDefinition:
    spark = DeltaSparkResource.from_settings(settings)

    @dataset_asset(dataset, retry_policy=RetryPolicy(max_retries=retries) if retries else None)
    def counted(spark: DeltaSparkResource) -> DataFrame:
        return spark.spark_session.range(1).selectExpr("id AS n")

    defs = Definitions(
        assets=[counted],
        jobs=[define_asset_job("all_of_it", selection="*")],
        resources={"spark": spark, "delta_io_manager": FailsBehindTheCommit(root=root, spark=spark)},
        executor=in_process_executor,
    )
    return defs.resolve_job_def("all_of_it")


def run(
    job: JobDefinition, instance: DagsterInstance, parent: DagsterRun | None = None, tags: dict[str, str] | None = None
) -> DagsterRun:
    """A run of the job; of a parent, as Dagster starts one again, by itself or for a person."""
    again = (
        {} if parent is None else {"parent_run_id": parent.run_id, "root_run_id": parent.root_run_id or parent.run_id}
    )
    created = instance.create_run_for_job(job_def=job, tags=tags, **again)
    execute_run(InMemoryJob(job), created, instance, raise_on_error=False)
    found = instance.get_run_by_id(created.run_id)
    assert found is not None
    return found


def told(instance: DagsterInstance, run: DagsterRun) -> dict[str, Any]:
    """The metadata that a run has recorded."""
    events = (entry.dagster_event for entry in instance.all_logs(run.run_id))
    (made,) = [
        event.step_materialization_data.materialization for event in events if event and event.is_step_materialization
    ]
    assert isinstance(made, AssetMaterialization)
    return {name: entry.value for name, entry in made.metadata.items()}


@pytest.mark.parametrize("mode", [Append(), Merge()], ids=str)
@pytest.mark.parametrize("tags", first_is_quick([AUTOMATIC, None]), ids=["by Dagster", "by a person"])
def test_a_run_that_failed_behind_its_commit_and_is_started_again_writes_nothing_twice(
    classic: SparkSession, root: str, spark_settings: SparkSettings, mode: WriteMode, tags: dict[str, str] | None
) -> None:
    dataset = Dataset(name="counted", schema=SCHEMA, keys=("n",), write=mode)
    job = job_of(dataset, root, spark_settings)
    with DagsterInstance.ephemeral() as instance:
        FAILURES.append(None)
        failed = run(job, instance)
        assert failed.status == DagsterRunStatus.FAILURE
        again = run(job, instance, failed, tags)
        metadata = told(instance, again)
    assert again.status == DagsterRunStatus.SUCCESS
    assert rows_of(dataset, root) == [(0,)]
    assert versions_of(dataset, root) == [0, 1]
    assert (metadata["delta/skipped"], metadata["delta/committed"], metadata["delta/version"]) == (True, False, 1)


def test_a_step_that_fails_behind_its_commit_and_is_retried_in_its_run_writes_once(
    classic: SparkSession, root: str, spark_settings: SparkSettings
) -> None:
    dataset = Dataset(name="counted", schema=SCHEMA, write=Append())
    job = job_of(dataset, root, spark_settings, retries=1)
    with DagsterInstance.ephemeral() as instance:
        FAILURES.append(None)
        done = run(job, instance)
        metadata = told(instance, done)
    assert done.status == DagsterRunStatus.SUCCESS
    assert rows_of(dataset, root) == [(0,)]
    assert (metadata["delta/skipped"], metadata["delta/attempts"], metadata["delta/version"]) == (True, 2, 1)


def test_a_second_run_and_a_good_run_that_is_started_again_write_again(
    classic: SparkSession, root: str, spark_settings: SparkSettings
) -> None:
    dataset = Dataset(name="counted", schema=SCHEMA, write=Append())
    job = job_of(dataset, root, spark_settings)
    with DagsterInstance.ephemeral() as instance:
        first = run(job, instance)
        run(job, instance)
        again = run(job, instance, first)
        metadata = told(instance, again)
    assert rows_of(dataset, root) == [(0,), (0,), (0,)]
    assert (metadata["delta/skipped"], metadata["delta/version"]) == (False, 3)


def test_the_first_try_is_found_through_a_chain_and_a_lost_parent_begins_one(
    root: str, spark_settings: SparkSettings, classic: SparkSession
) -> None:
    dataset = Dataset(name="counted", schema=SCHEMA, write=Append())
    job = job_of(dataset, root, spark_settings)
    with DagsterInstance.ephemeral() as instance:
        FAILURES.extend([None, None])
        failed = run(job, instance)
        second = run(job, instance, failed, AUTOMATIC)
        third = run(job, instance, second)
        fourth = run(job, instance, third)
        assert [first_try(instance, found, "counted") for found in (failed, second, third, fourth)] == [
            failed.run_id, failed.run_id, failed.run_id, fourth.run_id,
        ]  # fmt: skip
        # Dagster repeats all steps of a run that failed elsewhere, those that had succeeded among them.
        fifth = run(job, instance, fourth, AUTOMATIC)
        assert first_try(instance, fifth, "counted") == fourth.run_id
        instance.delete_run(fourth.run_id)
        assert first_try(instance, fifth, "counted") == fifth.run_id
    assert rows_of(dataset, root) == [(0,), (0,)]
