"""Assets whose function returns a streaming frame: each run takes what has come since the last, exactly once."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetsDefinition, StaticPartitionsDefinition
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Check, Dataset, Replace
from pipeline.errors import CheckViolationError, DeclarationError
from pipeline.orchestration import DeltaSparkResource, dataset_asset
from pipeline_tests.delta.sample import commit_info, versions_of
from pipeline_tests.orchestration.conftest import Project, materializations
from pipeline_tests.refusals import refused

ARRIVED = Dataset(
    name="feed/arrived",
    schema=StructType([StructField("n", LongType(), False), StructField("kind", StringType())]),
    write=Append(),
    checks=(Check("small", "n < 100"),),
)


def arrive(folder: Path, name: str, *numbers: int) -> None:
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"n": number, "kind": "x"}) for number in numbers]
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def asset_of(dataset: Dataset, folder: Path, **options: Any) -> AssetsDefinition:
    def arrived(spark: DeltaSparkResource) -> DataFrame:
        files = spark.spark_session.readStream.schema(dataset.schema).option("maxFilesPerTrigger", 1)
        return files.json(str(folder))

    return dataset_asset(dataset, **options)(arrived)


def numbers(project: Project) -> list[int]:
    return [row[0] for row in project.rows(ARRIVED)]


def checkpoint(root: str) -> Path:
    (found,) = (Path(root) / "_streams" / "feed" / "arrived").iterdir()
    return found


def test_a_run_writes_what_is_there_and_the_next_one_only_what_has_come_since(project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    asset = asset_of(ARRIVED, folder)
    arrive(folder, "a.json", 1, 2)
    arrive(folder, "b.json", 3)
    told = materializations(project.run(asset), ARRIVED)[None]
    assert (told["delta/version"], told["delta/rows_written"], told["delta/committed"]) == (2, 3, True)
    assert told["delta/batches"] == [
        {"epoch": 0, "version": 1, "rows": 2, "skipped": False},
        {"epoch": 1, "version": 2, "rows": 1, "skipped": False},
    ]
    assert told["delta/files_added"] == 2
    records = sorted(Path(project.root).glob("_records/*/feed/*.json"))
    assert [json.loads(path.read_text("utf-8"))["version"] for path in records] == [1, 2]
    again = materializations(project.run(asset), ARRIVED)[None]
    assert (again["delta/version"], again["delta/rows_written"], again["delta/committed"]) == (2, 0, False)
    assert again["delta/batches"] == []
    assert again["tags"]["dagster/data_version"] == told["tags"]["dagster/data_version"]
    assert versions_of(ARRIVED, project.root) == [0, 1, 2]
    arrive(folder, "c.json", 4)
    assert materializations(project.run(asset), ARRIVED)[None]["delta/batches"] == [
        {"epoch": 2, "version": 3, "rows": 1, "skipped": False}
    ]
    assert numbers(project) == [1, 2, 3, 4]


def test_a_run_that_failed_or_was_killed_is_gone_on_with_and_nothing_is_doubled(
    project: Project, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    asset = asset_of(ARRIVED, folder)
    arrive(folder, "a.json", 1)
    arrive(folder, "b.json", 2, 100)
    with refused(CheckViolationError) as caught:
        project.run(asset)
    assert caught.value.counts == {"small": 1}
    assert numbers(project) == [1]
    arrive(folder, "b.json", 2)
    assert materializations(project.run(asset), ARRIVED)[None]["delta/rows_written"] == 1
    # As a process leaves it that is killed after the commit and before Spark has noted it.
    for path in (checkpoint(project.root) / "commits").glob("*1*"):
        path.unlink()
    told = materializations(project.run(asset), ARRIVED)[None]
    assert told["delta/batches"] == [{"epoch": 1, "version": 2, "rows": 0, "skipped": True}]
    assert (told["delta/skipped"], told["delta/version"]) == (True, 2)
    assert numbers(project) == [1, 2]


def test_each_commit_names_the_query_the_run_and_the_asset(project: Project, tmp_path: Path) -> None:
    arrive(tmp_path / "in", "a.json", 1)
    result = project.run(asset_of(ARRIVED, tmp_path / "in"))
    note = json.loads(commit_info(ARRIVED, project.root, 1)["userMetadata"])
    assert (note["run_id"], note["asset"], note["mark"]["epoch"]) == (result.run_id, "feed/arrived", 0)
    query = json.loads((checkpoint(project.root) / "metadata").read_text("utf-8"))["id"]
    assert note["mark"]["writer"] == f"stream/{query}"


@pytest.mark.exhaustive
def test_a_table_that_was_made_anew_gets_everything_again(project: Project, tmp_path: Path) -> None:
    arrive(tmp_path / "in", "a.json", 1)
    asset = asset_of(ARRIVED, tmp_path / "in")
    project.run(asset)
    shutil.rmtree(ARRIVED.location(project.root))
    arrive(tmp_path / "in", "b.json", 2)
    project.run(asset)
    assert numbers(project) == [1, 2]


@pytest.mark.parametrize("kind", ["replaces", "partitioned"])
def test_a_stream_that_can_not_be_told_batch_by_batch_is_refused(project: Project, tmp_path: Path, kind: str) -> None:
    arrive(tmp_path / "in", "a.json", 1)
    dataset, options, run = replace(ARRIVED, write=Replace()), {}, {}
    if kind == "partitioned":
        dataset = replace(ARRIVED, partition_by=("kind",))
        options, run = {"partitions_def": StaticPartitionsDefinition(["x"])}, {"partition_key": "x"}
    with refused(DeclarationError) as caught:
        project.run(asset_of(dataset, tmp_path / "in", **options), **run)
    assert ("no batch may undo" if kind == "replaces" else "is partitioned") in str(caught.value)
