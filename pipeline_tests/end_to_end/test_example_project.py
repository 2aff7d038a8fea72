"""A project outside the package: the README's module and settings as they stand there, and what goes wrong in one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pipeline.settings import SparkSettings
from pipeline_tests.documents import README, blocks, documents
from pipeline_tests.end_to_end.conftest import REPOSITORY, ProjectFolder


def block(language: str) -> str:
    (found,) = blocks(documents()[README].partition("## Your own dataset")[2], language)
    return found


def project(folder: Path, cache: Path, remote_url: str, module: str = "readings") -> ProjectFolder:
    """A folder with what the README names and nothing else, but that its commands may load another module."""
    (folder / "readings.py").write_text(block("python"), encoding="utf-8")
    (folder / "pyproject.toml").write_text(block("toml").replace("readings", module), encoding="utf-8")
    shutil.copy(REPOSITORY / "dagster.yaml", folder / "dagster.yaml")
    return ProjectFolder(folder, cache, {"SPARK_REMOTE": remote_url})


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory, spark_settings: SparkSettings, remote_url: str) -> ProjectFolder:
    """The project with three days and their mean, from two commands."""
    example = project(
        tmp_path_factory.mktemp("example"), spark_settings.cache, remote_url, "pipeline_tests.projects.laboratory"
    )
    for selected in (
        ("readings", "--partition-range", "2025-01-01...2025-01-03"),
        ("lab/mean",),
    ):
        done = example.command("pipeline", "materialize", *selected)
        assert done.returncode == 0, done.stderr
    return example


def test_the_module_of_the_readme_is_a_project_as_it_stands_there(
    tmp_path: Path, spark_settings: SparkSettings, remote_url: str
) -> None:
    alone = project(tmp_path, spark_settings.cache, remote_url)
    done = alone.command("pipeline", "materialize", "readings", "--partition", "2025-01-01")
    assert done.returncode == 0, done.stderr
    assert alone.table("readings").to_pyarrow_table().column("value").to_pylist() == [20.5]


@pytest.mark.exhaustive
def test_an_asset_with_a_prefix_is_known_under_its_full_key_to_every_command(example: ProjectFolder) -> None:
    def answer(*arguments: str) -> object:
        done = example.invoke(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    registry = {entry["name"]: entry for entry in answer("registry")}
    assert registry["lab/mean"]["asset_key"] == ["lab", "mean"]
    assert registry["lab/mean"]["reads"] == ["readings"]
    shown = answer("show", "lab/mean")
    assert (shown["standing"], shown["rows"]) == ("ok", 1)
    assert shown["location"] == f"{example.folder}/.pipeline/tables/lab/mean"
    newest, *_ = answer("history", "lab/mean")
    assert newest["note"]["sources"] == {"readings": 1}
    assert answer("sql", "select days from lab__mean")["rows"] == [[3]]
    runs = answer("manifest", "list")
    assert [run["datasets"] for run in runs] == [["lab/mean"], ["readings"]]
    (record,) = answer("manifest", "show", runs[0]["run_id"])
    assert (record["name"], record["version"]) == ("lab/mean", 1)
    missing = example.invoke("show", "mean")
    assert (missing.returncode, "Did you mean 'lab/mean'?" in missing.stderr) == (1, True)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("selected", "said"),
    [
        (("readings", "--partition", "nonsense"), "Asset 'readings' has no partition 'nonsense'."),
        (("lab/wrong", "--partition", "2025-01-01"), "column day: missing, declared date"),
        (("lab/nothing",), "the frame has no columns"),
    ],
    ids=["a key that is none", "a frame without the partition column", "a frame without columns"],
)
def test_what_is_wrong_fails_the_command_by_name_and_writes_nothing(
    example: ProjectFolder, selected: tuple[str, ...], said: str
) -> None:
    tables = example.folder / ".pipeline" / "tables"
    before = (sorted(path.name for path in (tables / "lab").iterdir()), example.table("readings").version())
    done = example.command("pipeline", "materialize", *selected)
    assert done.returncode == 1
    assert said in done.stderr
    assert (sorted(path.name for path in (tables / "lab").iterdir()), example.table("readings").version()) == before
