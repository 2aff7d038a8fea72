"""The code graph of a small tree: made whole once, then only for the files that have changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance, ExecuteInProcessResult, materialize
from pyspark.sql import SparkSession

from pipeline.assets.codegraph import FILES_PARSED, SourceTree, assets, files_of_tree, modules_of_files
from pipeline.assets.codegraph_datasets import CALLS, EDGES, MODULES, NODES, SOURCE_FILES, datasets
from pipeline.dataset import Dataset
from pipeline.errors import SourceTreeError
from pipeline.orchestration import DeltaIOManager, DeltaSparkResource
from pipeline.settings import SparkSettings
from pipeline_tests.delta.sample import actions_of, rows_of, versions_of
from pipeline_tests.orchestration.conftest import materializations

FILES = {
    "__init__": "from .a import A\n",
    "a": "class A:\n    def run(self):\n        return self.stop()\n    def stop(self): ...\n",
    "b": "from . import a\ndef make():\n    return a.A()\n",
    "c": "import os\nprint(os.getcwd())\n",
    "bad": "def f(:\n",
    "same": "def same():\n    print(1)\n",
}


def put(tree: Path, **files: str) -> None:
    for name, text in files.items():
        (tree / f"{name}.py").write_text(text, encoding="utf-8")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "a tree" / "pkg"
    folder.mkdir(parents=True)
    put(folder, **FILES)
    return folder


@dataclass(frozen=True)
class Graph:
    """The assets over one tree and against one root."""

    root: str
    tree: Path
    spark: DeltaSparkResource
    instance: DagsterInstance

    def run(self, *names: str) -> ExecuteInProcessResult:
        manager = DeltaIOManager(root=self.root, spark=self.spark)
        resources = {"spark": self.spark, "delta_io_manager": manager, "source_tree": SourceTree.at(self.tree)}
        return materialize(assets, resources=resources, instance=self.instance, selection=list(names) or None)

    def versions(self) -> dict[str, int]:
        return {dataset.name: versions_of(dataset, self.root)[-1] for dataset in datasets}

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        return {dataset.name: rows_of(dataset, self.root) for dataset in datasets}

    def of_files(self, dataset: Dataset, version: int) -> set[str]:
        """The files whose rows a commit has changed."""
        changes = [action["cdc"]["path"] for action in actions_of(dataset, self.root, version) if "cdc" in action]
        frame = self.spark.spark_session.read.parquet(*(f"{dataset.location(self.root)}/{path}" for path in changes))
        return {row["path"] for row in frame.select("path").distinct().collect()}


def parsed(result: ExecuteInProcessResult) -> int:
    return int(materializations(result, MODULES)[None][FILES_PARSED])


def test_only_the_files_that_have_changed_are_handled_and_the_graph_is_that_of_a_full_rebuild(
    tree: Path, tmp_path: Path, spark_settings: SparkSettings, classic: SparkSession
) -> None:
    """A file that was changed and is again as it was before anybody looked has not changed."""
    spark = DeltaSparkResource.from_settings(spark_settings)
    with DagsterInstance.ephemeral() as instance:
        graph = Graph(str(tmp_path / "tables"), tree, spark, instance)
        assert parsed(graph.run()) == 6
        first = graph.versions()

        put(tree, a="class A: ...\n", same="x = 1\n")
        graph.run("source_files")
        put(tree, a="class A:\n    def run(self): ...\n")
        with pytest.raises(SourceTreeError) as caught:
            graph.run("modules")
        assert caught.value.paths == ("pkg/a.py: its content has changed",)
        assert graph.versions() == first | {"source_files": first["source_files"] + 1}

        put(tree, same=FILES["same"], b="from .new import *\n", bad="def f(): ...\n", new="from os import path as p\n")
        (tree / "c.py").unlink()
        second = graph.run()
        five = {f"pkg/{name}.py" for name in ("a", "b", "bad", "c", "new")}
        assert parsed(second) == 4
        assert graph.versions() == {name: version + (2 if name == "source_files" else 1) for name, version in first.items()}
        for dataset in (MODULES, NODES):
            assert graph.of_files(dataset, graph.versions()[dataset.name]) == five

        rebuilt = Graph(str(tmp_path / "rebuilt"), tree, spark, instance)
        assert parsed(rebuilt.run()) == 6
        assert graph.rows() == rebuilt.rows()

        before = graph.versions()
        assert parsed(graph.run()) == 0
        assert graph.versions() == before


def test_a_graph_names_what_a_file_defines_imports_and_calls() -> None: ...


def test_files_are_parsed_where_spark_runs_and_only_as_they_were_in_the_snapshot(
    spark: SparkSession, tree: Path
) -> None:
    files = files_of_tree(spark, tree)
    modules, count = modules_of_files(files, tree)
    assert count == 6
    found = {row["module"]: row for row in modules.drop("sha256").collect()}
    assert modules.columns == MODULES.schema.names
    put(tree, a="", b="")
    (tree / "c.py").unlink()
    with pytest.raises(SourceTreeError) as caught:
        modules_of_files(files, tree)
    assert [path.partition(":")[0] for path in caught.value.paths] == ["pkg/a.py", "pkg/b.py", "pkg/c.py"]
