"""An audit before the commit in Dagster: the run that it stops has the failed checks, and nothing downstream starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from dagster import AssetKey, AssetsDefinition, DagsterEventType, StaticPartitionsDefinition
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset, Expect, RowCount, Unique
from pipeline.delta.maintain.publish import plan_publications, publish, rejected_writes
from pipeline.delta.sql.slices import of_values
from pipeline.orchestration import build_definitions, dataset_asset
from pipeline.settings import Settings
from pipeline_tests.orchestration.conftest import Project, materializations

ROW = StructType([StructField("part", StringType()), StructField("id", LongType())])
ORDERS = Dataset(
    name="orders",
    schema=ROW,
    write=Append(),
    audit="before",
    row_count=RowCount(minimum=1, severity="warn"),
    expectations=(
        Expect("few", "count(*) < 3", over="write", blocking=True), Unique(("id",), severity="warn"),
        Expect("known", "count_if(part = 'z') = 0"),
    ),
)  # fmt: skip
AFTER = Dataset(name="after", schema=ROW, reads=("orders",), change_feed=False)
PARTED = replace(
    ORDERS, name="parted", write=Dataset(name="d", schema=ROW).write, partition_by=("part",), expectations=(),
    row_count=RowCount(minimum=1, blocking=True),
)  # fmt: skip
classic_only = pytest.mark.parametrize("spark_resource", ["classic"], indirect=True)


def assets(ids: list[int], part: str = "a") -> list[AssetsDefinition]:
    @dataset_asset(ORDERS)
    def orders() -> pa.Table:
        return pa.table({"part": [part] * len(ids), "id": pa.array(ids, pa.int64())})

    @dataset_asset(AFTER)
    def after(orders: pa.Table) -> pa.Table:
        return orders

    return [orders, after]


def run(project: Project, settings: Settings, ids: list[int], part: str = "a") -> Any:
    definitions = build_definitions(
        settings, datasets=(ORDERS, AFTER), assets=assets(ids, part), resources=project.resources()
    )
    job = definitions.resolve_implicit_global_asset_job_def()
    selection = [AssetKey("orders"), AssetKey("after")]
    return job.execute_in_process(instance=project.instance, asset_selection=selection, raise_on_error=False)


def evaluations(project: Project, run_id: str, asset: str = "orders") -> dict[str, Any]:
    """The evaluations of a run by the name of the check, as Dagster has stored them."""
    records = project.instance.get_records_for_run(run_id, of_type=DagsterEventType.ASSET_CHECK_EVALUATION).records
    events = [record.event_log_entry.dagster_event for record in records]
    found = [event.asset_check_evaluation_data for event in events if event is not None]
    return {one.check_name: one for one in found if one.asset_key == AssetKey(asset)}


@classic_only
def test_a_refused_run_has_the_failed_checks_and_a_publication_is_its_commit(
    project: Project, settings: Settings
) -> None:
    passed = run(project, settings, [1, 1], "z")
    assert passed.success, "what fails does not block"
    found = evaluations(project, passed.run_id)
    told = {name: (one.passed, one.severity.value, one.description) for name, one in found.items() if name != "schema"}
    assert told == {
        "expect_few": (True, "ERROR", "true over 2 rows"), "unique_id": (False, "WARN", "2 rows break it."),
        "expect_known": (False, "ERROR", "false over 2 rows"), "row_count": (True, "WARN", "as many as declared"),
    }  # fmt: skip
    assert {one.metadata["judged"].value for name, one in found.items() if name != "schema"} == {"before the commit"}
    version = project.version(ORDERS)

    refused = run(project, settings, [2, 3, 4])
    assert not refused.success
    assert "after" not in {event.step_key for event in refused.get_step_success_events()}
    assert (project.version(ORDERS), materializations(refused, ORDERS)) == (version, {})
    failed = evaluations(project, refused.run_id)
    assert {name: (one.passed, one.blocking, one.description) for name, one in failed.items()} == {
        "expect_few": (False, True, "false over 3 rows"), "unique_id": (False, False, "2 rows break it: id = 1"),
        "expect_known": (False, False, "false over 5 rows"),
    }  # fmt: skip
    assert failed["expect_few"].metadata["run_id"].value == refused.run_id

    session, table = project.spark.spark_session, ORDERS.at(project.root)
    (plan,) = plan_publications(session, table, refused.run_id)
    assert publish(session, table, plan.write).committed
    assert project.rows(ORDERS) == [("a", 2), ("a", 3), ("a", 4), ("z", 1), ("z", 1)]
    assert publish(session, table, plan.write).skipped


@classic_only
@pytest.mark.exhaustive
def test_rows_are_counted_by_partition_key_before_the_commit(project: Project) -> None:
    @dataset_asset(PARTED, partitions_def=StaticPartitionsDefinition(["a", "b"]))
    def parted() -> pa.Table:
        return pa.table({"part": ["a"], "id": pa.array([1], pa.int64())})

    done = project.run_range("a", "b", parted, raise_on_error=False)
    assert not done.success
    failed = evaluations(project, done.run_id, "parted")
    assert {name: one.description for name, one in failed.items()} == {"row_count": "b: 0"}
    (kept,) = rejected_writes(project.spark.spark_session, PARTED.at(project.root))
    assert (kept.run_id, kept.within) == (done.run_id, of_values("part", ["a", "b"]))
    assert project.run(parted, partition_key="a").success
