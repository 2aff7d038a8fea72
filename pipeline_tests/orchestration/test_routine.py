"""The scheduled maintenance of a group's tables as Dagster sees it: jobs, times, pools, observations and records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from dagster import AssetKey, DagsterInstance
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.dataset import Dataset, MaintenancePolicy
from pipeline.errors import RegistryError
from pipeline.orchestration import build_definitions, dataset_asset
from pipeline.settings import Settings
from pipeline_tests.unit.aged_table import AgedTable

COLUMN = StructType([StructField("n", LongType())])
WITHOUT_SPARK = MaintenancePolicy(vacuum=False)


def declared(name: str, group: str = "default", policy: MaintenancePolicy | None = WITHOUT_SPARK) -> Dataset:
    return Dataset(name=name, schema=COLUMN, group=group, maintenance=policy)


def test_each_group_with_a_declared_maintenance_has_a_job_with_a_step_for_each_table_in_its_pool(
    settings: Settings,
) -> None:
    datasets = [
        declared("one"), declared("in/depth"), declared("in__depth"), declared("undeclared", policy=None),
        declared("by_hand", policy=MaintenancePolicy(scheduled=False)), declared("other", group="others"),
    ]  # fmt: skip
    repository = build_definitions(settings, datasets=datasets).get_repository_def()
    jobs = {job.name: job for job in repository.get_all_jobs() if job.name.startswith("maintain_")}
    pools = {name: {node.definition.pool for node in job.graph.nodes} for name, job in jobs.items()}
    assert pools == {
        "maintain_default": {"delta/one", "delta/in/depth", "delta/in__depth"}, "maintain_others": {"delta/other"},
    }  # fmt: skip


def test_a_table_is_maintained_in_the_pool_of_its_asset_so_that_no_run_writes_it_meanwhile(settings: Settings) -> None:
    dataset = declared("one")

    @dataset_asset(dataset)
    def one() -> None:
        """Never run."""

    built = build_definitions(settings, datasets=[dataset], assets=[one])
    (node,) = built.get_job_def("maintain_default").graph.nodes
    assert node.definition.pool == one.op.pool == "delta/one"


def test_a_schedule_runs_at_the_declared_time_and_waits_to_be_switched_on(settings: Settings) -> None:
    hourly = MaintenancePolicy(cron="0 * * * *")
    datasets = [declared("one"), declared("two", group="busy", policy=hourly), declared("three", group="busy")]
    built = build_definitions(replace(settings, running=("maintain_busy",)), datasets=datasets)
    schedules = {one.name: one for one in built.get_repository_def().schedule_defs if one.name.startswith("maintain_")}
    assert {name: (one.cron_schedule, one.execution_timezone) for name, one in schedules.items()} == {
        "maintain_default": ("30 1 * * *", "UTC"), "maintain_busy": ("0 * * * *", "UTC"),
    }  # fmt: skip
    assert {name: one.default_status.value for name, one in schedules.items()} == {
        "maintain_default": "STOPPED", "maintain_busy": "RUNNING",
    }  # fmt: skip


def test_a_group_with_two_times_is_refused(settings: Settings) -> None:
    datasets = [declared(name, policy=MaintenancePolicy(cron=f"{name} * * * *")) for name in ("1", "2")]
    with pytest.raises(RegistryError) as caught:
        build_definitions(settings, datasets=datasets)
    assert caught.value.problems == (
        "the datasets of group default declare different times of maintenance: 1 '1 * * * *', 2 '2 * * * *'",
    )


def test_a_run_cleans_the_tables_and_observes_numbers_that_dagster_can_plot(settings: Settings) -> None:
    """Nothing is due that needs Spark. One table was never written, and the log of one is damaged."""
    root = Path(settings.root)
    table, broken = AgedTable(root, "there"), AgedTable(root, "broken")
    for number in range(5):
        table.append(number, days=3_000)
        broken.append(number, days=3_000)
    table.checkpoint(4, days=3_000)
    (broken.log / f"{2:020d}.json").write_text("cut", encoding="utf-8")
    datasets = [declared(name) for name in ("broken", "there", "never")]
    built = build_definitions(settings, datasets=datasets)
    with DagsterInstance.ephemeral() as instance:
        result = built.get_job_def("maintain_default").execute_in_process(instance=instance, raise_on_error=False)
        (event,) = instance.fetch_observations(AssetKey("there"), limit=10).records
        assert instance.fetch_observations(AssetKey("broken"), limit=10).records == []
    assert not result.success
    assert {step.step_key for step in result.all_events if step.is_step_failure} == {"maintain_broken"}
    observed = {name: value.value for name, value in event.asset_observation.metadata.items()}
    record = observed.pop("delta/record")
    assert observed == {
        "delta/files": 5, "delta/bytes": observed["delta/bytes"], "delta/small_file_ratio": 1.0,
        "delta/log_entries": 1, "delta/files_joined": 0, "delta/tombstones_expired": 0, "delta/files_vacuumed": 0,
        "delta/log_files_removed": 4,
        "delta/bytes_reclaimed": observed["delta/bytes_reclaimed"], "delta/oldest_readable_version": 4,
    }  # fmt: skip
    assert observed["delta/bytes"] == sum(path.stat().st_size for path in (root / "there").glob("*.parquet"))
    kept = json.loads(Path(record).read_text(encoding="utf-8"))
    assert (kept["run_id"], kept["bytes_reclaimed"]) == (result.run_id, observed["delta/bytes_reclaimed"])
    assert table.entries() == [4]
