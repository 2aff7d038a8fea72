"""`pipeline rerun` as a user runs it: the plan, the run beside the tables, and what is named if something differs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import deltalake
import pytest

from pipeline.delta.export.clone import folders_of_clones
from pipeline.delta.storage.file_system import file_system, list_folder
from pipeline.delta.storage.options import use_confs
from pipeline.errors import RerunError, RerunRefusedError
from pipeline.settings import SparkSettings
from pipeline_tests.end_to_end.conftest import BRIEF, REPOSITORY, ProjectFolder, in_folder
from pipeline_tests.object_stores import KEY, SECRET, served_bucket
from pipeline_tests.projects import repeated
from pipeline_tests.remedies import command_refused, follows

NO_SPARK = {"SPARK_REMOTE": "sc://127.0.0.1:1"}
FIRST = [(1, "a", 1), (2, "b", 1)]
SECOND = [(1, "a", 2), (3, "c", 2)]
THIRD = [(9, "a", 9)]


def deliver(project: ProjectFolder, rows: list[tuple[Any, ...]]) -> None:
    (project.folder / "delivery.json").write_text(json.dumps(rows), encoding="utf-8")


def state(project: ProjectFolder) -> tuple[Any, ...]:
    """All that belongs to the project: the files below its root, and the runs and events of its instance."""
    root = project.folder / ".pipeline" / "tables"
    files = {str(path): path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    events = [project.materializations(name) for name in ("delivered", "added")]
    return files, [run.run_id for run in project.runs()], events


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, spark_settings: SparkSettings, remote_url: str) -> ProjectFolder:
    """A project after three runs of two assets. Each has read another delivery."""
    shop = ProjectFolder(tmp_path_factory.mktemp("shop"), spark_settings.cache, {"SPARK_REMOTE": remote_url})
    run_three_times(shop)
    return shop


def run_three_times(shop: ProjectFolder, settings: str = "") -> None:
    """Make the project, with more settings, and run it with one delivery after the other."""
    module = repeated.__name__
    text = f'[tool.dagster]\nmodule_name = "{module}"\n[tool.pipeline]\ndatasets = "{module}:datasets"\n{settings}'
    (shop.folder / "pyproject.toml").write_text(text, encoding="utf-8")
    shutil.copy(REPOSITORY / "dagster.yaml", shop.folder / "dagster.yaml")
    for rows in (FIRST, SECOND, THIRD):
        deliver(shop, rows)
        done = shop.command("pipeline", "materialize", "delivered,added")
        assert done.returncode == 0, done.stderr


def second_run(shop: ProjectFolder) -> str:
    return shop.runs()[-2].run_id


def test_an_old_run_is_repeated_with_equal_rows_and_leaves_the_project_as_it_was(shop: ProjectFolder) -> None:
    """Later runs have replaced its source and appended to its table."""
    before, run_id = state(shop), second_run(shop)
    deliver(shop, SECOND)
    planned = shop.command("pipeline", "rerun", run_id[:8], **NO_SPARK)
    assert planned.returncode == 0, planned.stderr
    assert "delivered@2 (now 3)" in planned.stdout
    assert "delivered: not pinned: resource deliveries" in planned.stdout
    assert f"Nothing was started. To repeat it: pipeline rerun {run_id} --apply" in planned.stdout
    done = shop.command("pipeline", "rerun", run_id, "--apply", "--json")
    assert done.returncode == 0, done.stderr
    repeated_run = json.loads(done.stdout)["rerun"]
    facts = ("dataset", "version", "rows", "rows_now", "equal")
    results = [[one[name] for name in facts] for one in repeated_run["tables"]]
    assert sorted(results) == [["added", 2, 4, 4, True], ["delivered", 2, 2, 2, True]]
    assert {one["dataset"]: one["before"]["rows_written"] for one in repeated_run["manifest_diff"]} == {
        "delivered": 2, "added": 2,
    }  # fmt: skip
    assert state(shop) == before
    assert not (shop.folder / ".pipeline" / "tables" / "_reruns").exists()
    assert shop.command("pipeline", "manifest", "show", repeated_run["run_id"]).returncode == 1


def test_rows_that_differ_are_told_with_the_input_that_is_not_pinned(shop: ProjectFolder) -> None:
    deliver(shop, THIRD)
    done = shop.command("pipeline", "rerun", second_run(shop), "--apply")
    assert done.returncode == 1, done.stdout
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines if "rows are equal" in line] == ["added"]
    assert [line.split()[0] for line in lines if "rows differ" in line] == ["delivered"]
    assert "delivered: may be the reason: not pinned: resource deliveries" in lines
    assert any(line.startswith("delivered: all rows: number of rows, ") for line in lines)


@pytest.mark.exhaustive
def test_a_run_on_the_warm_server_over_tables_in_a_bucket_is_repeated_there(
    tmp_path: Path, spark_settings: SparkSettings
) -> None:
    shop = ProjectFolder(tmp_path, spark_settings.cache, BRIEF | {"PIPELINE_WARM": "auto", "CI": ""})
    with served_bucket() as bucket:
        use_confs(bucket.hadoop)
        account = f'access_key_id = "{KEY}"\nsecret_access_key = "{SECRET}"\nendpoint = "{bucket.endpoint}"\n'
        root = f"{bucket.uri}/tables"
        try:
            run_three_times(shop, f'root = "{root}"\n[tool.pipeline.storage."{bucket.uri}"]\n{account}')
            assert json.loads(shop.command("pipeline", "spark", "status", "--json").stdout)["servers"]
            before = objects(root)
            deliver(shop, SECOND)
            done = shop.command("pipeline", "rerun", second_run(shop), "--apply", "--json")
            assert done.returncode == 0, done.stderr
            facts = ("dataset", "version", "rows", "equal")
            results = [[one[name] for name in facts] for one in json.loads(done.stdout)["rerun"]["tables"]]
            assert sorted(results) == [["added", 2, 4, True], ["delivered", 2, 2, True]]
            assert objects(root) == before
            assert folders_of_clones(f"{root}/_reruns") == ()
        finally:
            shop.command("pipeline", "spark", "stop")


def objects(root: str) -> dict[str, int]:
    """The files below a root in a bucket, and their sizes; without the empty ones that Hadoop writes for folders."""
    system, top = file_system(root)
    return {info.path: info.size for info in list_folder(system, top, recursive=True) if info.size}


@pytest.mark.exhaustive
def test_a_run_of_a_server_is_repeated_on_an_embedded_spark_which_is_named_as_another_one(shop: ProjectFolder) -> None:
    deliver(shop, THIRD)
    before, alone = state(shop), ProjectFolder(shop.folder, shop.cache, BRIEF)
    done = alone.command("pipeline", "rerun", second_run(shop), "--apply", "--json")
    assert done.returncode == 1, done.stderr
    results = {one["dataset"]: one for one in json.loads(done.stdout)["rerun"]["tables"]}
    assert results["added"]["equal"]
    assert "mode: connect then, local[*] now" in results["delivered"]["reasons"]
    assert state(shop) == before


@pytest.mark.exhaustive
def test_the_tables_of_a_kept_rerun_stay_in_their_folder_and_are_no_tables_of_the_project(shop: ProjectFolder) -> None:
    deliver(shop, SECOND)
    done = shop.command("pipeline", "rerun", second_run(shop), "--apply", "--keep")
    assert done.returncode == 0, done.stderr
    root = shop.folder / ".pipeline" / "tables"
    (kept,) = (root / "_reruns").iterdir()
    assert f"The tables of the repeated run are in {kept}." in done.stderr
    assert sorted(path.name for path in kept.iterdir() if not path.name.startswith("_")) == ["added", "delivered"]
    for arguments in (("show", "--json"), ("doctor", "--json"), ("manifest", "list", "--json")):
        listed = shop.command("pipeline", *arguments)
        assert listed.returncode == 0, listed.stderr
        assert "_reruns" not in listed.stdout
    again = shop.command("pipeline", "rerun", second_run(shop), "--apply")
    assert f"An earlier rerun has left {kept}. Unless it still runs, remove that folder." in again.stderr
    shutil.rmtree(root / "_reruns")


@pytest.mark.exhaustive
@follows(RerunError)
def test_a_step_that_fails_is_told_with_its_output_and_the_run_can_be_repeated_again(shop: ProjectFolder) -> None:
    before = state(shop)
    (shop.folder / "delivery.json").unlink()
    arguments = ("rerun", second_run(shop), "--apply")
    with in_folder(shop.folder):
        error = command_refused(RerunError, arguments, shop.variables(), "The full output is in ")
    assert "delivery.json" in error.reason
    log = Path(error.hint.removeprefix("The full output is in ").removesuffix("."))
    assert "delivery.json" in log.read_text(encoding="utf-8")
    assert state(shop)[0] == before[0]
    deliver(shop, SECOND)
    assert shop.command("pipeline", *arguments).returncode == 0


@pytest.mark.exhaustive
@follows(RerunRefusedError)
def test_a_vacuumed_version_is_named_before_anything_starts_and_a_newer_run_can_be_repeated(
    shop: ProjectFolder,
) -> None:
    """The last test of this file: the versions are gone then."""
    delivered = deltalake.DeltaTable(shop.folder / ".pipeline" / "tables" / "delivered")
    delivered.vacuum(0, dry_run=False, enforce_retention_duration=False)
    before, variables = state(shop), shop.variables() | NO_SPARK
    with in_folder(shop.folder):
        error = command_refused(
            RerunRefusedError, ("rerun", second_run(shop), "--apply"), variables, "pipeline manifest list"
        )
        assert [problem.partition(": ")[0] for problem in error.problems] == ["delivered", "added"]
        assert [problem.endswith(" files of version 2 were vacuumed") for problem in error.problems] == [True, True]
        assert error.problems[1].startswith("added: its source delivered: ")
    assert state(shop) == before
    newest, *_ = json.loads(shop.command("pipeline", "manifest", "list", "--json", **NO_SPARK).stdout)
    planned = shop.command("pipeline", "rerun", newest["run_id"], **NO_SPARK)
    assert planned.returncode == 0, planned.stderr


@pytest.mark.exhaustive
def test_an_unknown_run_is_answered_with_near_ones(shop: ProjectFolder) -> None:
    run_id = second_run(shop)
    done = shop.command("pipeline", "rerun", f"{run_id[:-1]}x", **NO_SPARK)
    assert (done.returncode, f"Did you mean {run_id}" in done.stderr) == (1, True), done.stderr
