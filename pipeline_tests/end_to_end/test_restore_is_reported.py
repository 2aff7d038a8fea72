"""`pipeline restore` in a project with an instance of its own: Dagster is told at once, by a child process."""

import datetime as dt
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from dagster import AssetKey, AssetMaterialization
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from pipeline.delta.log.commits import commit_identity
from pipeline.settings import SparkSettings
from pipeline_tests.end_to_end.conftest import REPOSITORY, ProjectFolder

MODULE = """
import dagster as dg
from pyspark.sql.types import DateType, LongType, StructField, StructType
from pipeline.dataset import Dataset
from pipeline.orchestration import build_definitions
from pipeline.orchestration import dataset_asset
from pipeline.settings import load_settings

DAYS = Dataset(
    name="feed/days", schema=StructType([StructField("n", LongType()), StructField("day", DateType())]),
    partition_by=("day",), change_feed=False,
)
datasets = (DAYS,)

@dataset_asset(DAYS, partitions_def=dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-11"))
def days() -> None: ...

@dg.definitions
def defs():
    return build_definitions(load_settings(), assets=[days])
"""
PROJECT = '[tool.dagster]\nmodule_name = "restored_days"\n[tool.pipeline]\ndatasets = "restored_days:datasets"\n'
FIRST, SECOND = "2026-01-02", "2026-01-03"


@pytest.fixture
def project(tmp_path: Path, spark_settings: SparkSettings) -> ProjectFolder:
    (tmp_path / "restored_days.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    shutil.copy(REPOSITORY / "dagster.yaml", tmp_path / "dagster.yaml")
    return ProjectFolder(tmp_path, spark_settings.cache, {"PYTHONPATH": f"{REPOSITORY}:{tmp_path}"})


@pytest.mark.exhaustive
def test_a_partition_that_a_restore_takes_away_has_no_rows_and_a_new_data_version(
    project: ProjectFolder, classic: SparkSession
) -> None:
    location = str(project.folder / ".pipeline" / "tables" / "feed" / "days")
    for number, key in enumerate((FIRST, SECOND)):
        rows = pa.table({"n": [number], "day": pa.array([dt.date.fromisoformat(key)], pa.date32())})
        write_deltalake(location, rows, mode="append", partition_by=["day"])
    table_id = DeltaTable(location).metadata().id
    with project.instance() as instance:
        for number, key in enumerate((FIRST, SECOND)):
            tags = {"dagster/data_version": f"{table_id}/{number}"}
            instance.report_runless_asset_event(AssetMaterialization(["feed", "days"], partition=key, tags=tags))
    planned = project.invoke("restore", "feed/days", "--version", "0")
    assert planned.returncode == 0, planned.stderr
    done = project.invoke("restore", "feed/days", "--version", "0", "--apply")
    assert (done.returncode, done.stderr) == (0, "")
    with project.instance() as instance:
        newest = {
            key: instance.get_latest_data_version_record(AssetKey(["feed", "days"]), partition_key=key)
            for key in (FIRST, SECOND)
        }
    versions = {key: record.asset_materialization.tags["dagster/data_version"] for key, record in newest.items()}
    restored = commit_identity(location, 2)
    assert restored is not None
    assert versions == {FIRST: f"{table_id}/0", SECOND: f"{table_id}/2/{restored[:12]}"}
    metadata = newest[SECOND].asset_materialization.metadata
    assert metadata["dagster/partition_row_count"].value == 0
    assert metadata["delta/operation"].value == "RESTORE"


@pytest.mark.exhaustive
def test_a_report_that_fails_undoes_no_restore_and_says_who_reports_it(
    project: ProjectFolder, classic: SparkSession
) -> None:
    location = str(project.folder / ".pipeline" / "tables" / "feed" / "days")
    for _ in range(2):
        rows = pa.table({"n": [1], "day": pa.array([dt.date(2026, 1, 2)], pa.date32())})
        write_deltalake(location, rows, mode="append", partition_by=["day"])
    (project.folder / "dagster.yaml").write_text("storage: [", encoding="utf-8")
    done = project.invoke("restore", "feed/days", "--version", "0", "--apply")
    assert done.returncode == 0
    assert "Restored in version 2" in done.stdout
    assert "The sensor table_versions reports it" in done.stderr
