"""The code graph of a small tree: made whole once, then only for the files that have changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance, ExecuteInProcessResult, materialize
from pyspark.sql import SparkSession

from pipeline.assets.codegraph.assets import (
    FILES_PARSED,
    SourceTree,
    assets,
    by_folder,
    files_of_tree,
    modules_of_files,
)
from pipeline.assets.codegraph.datasets import EDGES, MODULES, NODES, SOURCE_FILES, datasets
from pipeline.assets.codegraph.errors import SourceTreeError
from pipeline.dataset import Dataset
from pipeline.orchestration import DeltaIOManager, DeltaSparkResource
from pipeline.settings import SparkSettings
from pipeline_tests.delta.sample import actions_of, rows_of, versions_of
from pipeline_tests.orchestration.conftest import materializations
from pipeline_tests.refusals import refused

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


def told(result: ExecuteInProcessResult, dataset: Dataset, name: str) -> Any:
    return materializations(result, dataset)[None][name]


def test_only_the_files_that_have_changed_are_handled(
    tree: Path, tmp_path: Path, spark_settings: SparkSettings, classic: SparkSession
) -> None:
    with DagsterInstance.ephemeral() as instance:
        graph = Graph(str(tmp_path / "tables"), tree, DeltaSparkResource.from_settings(spark_settings), instance)
        assert told(graph.run(), MODULES, FILES_PARSED) == 6
        first = graph.versions()
        put(tree, b="from .new import *\n")
        (tree / "c.py").unlink()
        second = graph.run()
        assert told(second, MODULES, FILES_PARSED) == 1
        assert graph.versions() == {name: version + 1 for name, version in first.items()}
        assert graph.of_files(MODULES, first["modules"] + 1) == {"pkg/b.py", "pkg/c.py"}
        assert [row[1:] for row in rows_of(EDGES, graph.root) if row[0] == "pkg/a.py"] == [
            ("calls", 1, "pkg.a.A.run", "pkg.a.A.stop", 3),
            ("contains", 1, "pkg.a", "pkg.a.A", 1),
            ("contains", 2, "pkg.a.A", "pkg.a.A.run", 2),
            ("contains", 3, "pkg.a.A", "pkg.a.A.stop", 4),
        ]


@pytest.mark.exhaustive
def test_files_that_change_again_and_again_leave_the_graph_of_a_full_rebuild(
    tree: Path, tmp_path: Path, spark_settings: SparkSettings, classic: SparkSession
) -> None:
    """A file that was changed and is again as it was before anybody looked has not changed."""
    spark = DeltaSparkResource.from_settings(spark_settings)
    with DagsterInstance.ephemeral() as instance:
        graph = Graph(str(tmp_path / "tables"), tree, spark, instance)
        assert told(graph.run(), MODULES, FILES_PARSED) == 6
        first = graph.versions()
        assert [row[1:] for row in rows_of(EDGES, graph.root) if row[0] == "pkg/a.py"] == [
            ("calls", 1, "pkg.a.A.run", "pkg.a.A.stop", 3),
            ("contains", 1, "pkg.a", "pkg.a.A", 1),
            ("contains", 2, "pkg.a.A", "pkg.a.A.run", 2),
            ("contains", 3, "pkg.a.A", "pkg.a.A.stop", 4),
        ]
        assert [row[1:3] for row in rows_of(NODES, graph.root) if row[0] == "pkg/bad.py"] == [(0, "pkg.bad")]

        put(tree, a="class A: ...\n", same="x = 1\n")
        graph.run("source_files")
        put(tree, a="class A:\n    def run(self): ...\n")
        with refused(SourceTreeError) as caught:
            graph.run("modules")
        assert caught.value.paths == ("pkg/a.py: its content has changed",)
        assert graph.versions() == first | {"source_files": first["source_files"] + 1}

        put(tree, same=FILES["same"], b="from .new import *\n", bad="def f(): ...\n", new="from os import path as p\n")
        (tree / "c.py").unlink()
        second = graph.run()
        assert told(second, MODULES, FILES_PARSED) == 4
        assert told(second, SOURCE_FILES, "delta/rows_deleted") == 1
        after = {name: version + 1 for name, version in first.items()} | {"source_files": first["source_files"] + 2}
        assert graph.versions() == after
        for dataset in (MODULES, NODES):
            assert graph.of_files(dataset, after[dataset.name]) == {
                f"pkg/{n}.py" for n in ("a", "b", "bad", "c", "new")
            }

        rebuilt = Graph(str(tmp_path / "rebuilt"), tree, spark, instance)
        assert told(rebuilt.run(), MODULES, FILES_PARSED) == 6
        assert graph.rows() == rebuilt.rows()

        third = graph.run("source_files", "modules")
        assert (told(third, SOURCE_FILES, "delta/files_added"), told(third, MODULES, FILES_PARSED)) == (0, 0)
        assert told(third, MODULES, "delta/verdict") == "nothing new"


@pytest.mark.parametrize("spark", ["connect"], indirect=True)
def test_files_are_parsed_where_spark_runs_and_only_as_they_were_in_the_snapshot(
    spark: SparkSession, tree: Path
) -> None:
    files = files_of_tree(spark, tree)
    modules, count = modules_of_files(files, tree)
    found = {row["module"]: row["problem"] is None for row in modules.collect()}
    assert (count, modules.columns) == (6, MODULES.schema.names)
    assert found == {f"pkg{name}": name != ".bad" for name in ("", ".a", ".b", ".c", ".bad", ".same")}
    put(tree, a="", b="")
    (tree / "c.py").unlink()
    with pytest.raises(SourceTreeError) as caught:
        modules_of_files(files, tree)
    assert [path.partition(":")[0] for path in caught.value.paths] == ["pkg/a.py", "pkg/b.py", "pkg/c.py"]


def test_the_rows_of_a_folder_are_in_one_file_of_a_table_and_few_files_make_one(classic: SparkSession) -> None:
    paths = [f"pkg/{folder}/{name}.py" for folder in ("a", "a/b", "c", "d") for name in ("one", "two", "three")]
    frame = classic.createDataFrame([(path, n) for n, path in enumerate(paths)], "path STRING, number INT")

    def tasks(files: int) -> list[set[str]]:
        """The folders of each task that has rows."""
        of_tasks = by_folder(frame, files).selectExpr("spark_partition_id() AS task", "path").collect()
        folders: dict[int, set[str]] = {}
        for row in of_tasks:
            folders.setdefault(row["task"], set()).add(row["path"].rpartition("/")[0])
        assert len(of_tasks) == len(paths)
        return list(folders.values())

    assert [len(tasks(files)) for files in (0, 1)] == [1, 1]
    several = tasks(1_000)
    assert sum(map(len, several)) == 4, "a folder is in two tasks"
    assert len(several) > 1
    assert by_folder(frame, 1_000).rdd.getNumPartitions() == 32
