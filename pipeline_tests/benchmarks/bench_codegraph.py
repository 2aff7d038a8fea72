"""The code graph of installed packages: what a run costs after five files have changed, against the first run.

    python -m pytest pipeline_tests/benchmarks/bench_codegraph.py -s

Once of `dagster` alone and once of everything that is installed beside it. In one process and one JVM: the first run,
three runs that each follow a change of three files, the loss of one and the coming of one, and a full rebuild under
another root, which the tables must equal. Target for everything: a fifth of the first run. In a small tree the fixed
costs of seven commits are the greatest part of both.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from statistics import median

import dagster
import deltalake
import pyarrow as pa
import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from pipeline.assets.codegraph.assets import FILES_PARSED
from pipeline.assets.codegraph.datasets import MODULES, NODES, datasets
from pipeline.assets.codegraph.tree import base_of, snapshot
from pipeline.dataset import Dataset
from pipeline.orchestration import DeltaSparkResource
from pipeline.settings import SparkSettings
from pipeline_tests.assets.test_codegraph import Graph, told
from pipeline_tests.benchmarks.results import measured
from pipeline_tests.delta.sample import versions_of
from pipeline_tests.end_to_end.conftest import FILES, REPOSITORY, ProjectFolder

ROUNDS, AT_MOST = 3, 0.2
PACKAGE = Path(dagster.__file__).parent


def change(tree: Path, number: int) -> set[str]:
    """Change three files, take one away and add one; their paths as the graph names them."""
    files = sorted(tree.rglob("*.py"))[number * 50 :]
    touched = files[3:24:7]
    for path in touched:
        path.write_text(f"{path.read_text(encoding='utf-8')}\n\ndef added_{number}(): ...\n", encoding="utf-8")
    files[30].unlink()
    new = tree / f"added_{number}.py"
    new.write_text("from os import path\n\nprint(path.join('a'))\n", encoding="utf-8")
    return {path.relative_to(base_of(tree)).as_posix() for path in (*touched, files[30], new)}


def copied(source: Path, tree: Path) -> int:
    """Copy the Python files that the graph would read; their number."""
    for file in snapshot(source):
        path = tree / (base_of(source) / file.path).relative_to(source)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(base_of(source) / file.path, path)
    return len(list(tree.rglob("*.py")))


def in_order(dataset: Dataset, root: str) -> pa.Table:
    """The rows on disk by key, as delta-rs sees them."""
    table = deltalake.DeltaTable(dataset.location(root)).to_pyarrow_table()
    return table.sort_by([(name, "ascending") for name in dataset.keys])


@pytest.mark.parametrize("source", [PACKAGE, PACKAGE.parent], ids=["dagster", "everything"])
def test_a_run_after_five_files_have_changed(
    classic: SparkSession, spark_settings: SparkSettings, tmp_path: Path, source: Path
) -> None:
    tree = tmp_path / "tree"
    count = copied(source, tree)
    spark = DeltaSparkResource.from_settings(spark_settings)
    with DagsterInstance.ephemeral() as instance:
        graph = Graph(str(tmp_path / "tables"), tree, spark, instance)
        started = time.perf_counter()
        parsed = told(graph.run(), MODULES, FILES_PARSED)
        first, seconds = time.perf_counter() - started, []
        assert parsed == count
        for number in range(ROUNDS):
            changed = change(tree, number)
            started = time.perf_counter()
            assert told(graph.run(), MODULES, FILES_PARSED) == len(changed) - 1
            seconds.append(time.perf_counter() - started)
            for dataset in (MODULES, NODES):
                assert graph.of_files(dataset, versions_of(dataset, graph.root)[-1]) == changed
        rebuilt = Graph(str(tmp_path / "rebuilt"), tree, spark, instance)
        started = time.perf_counter()
        rebuilt.run()
        full = time.perf_counter() - started
        for dataset in datasets:
            assert in_order(dataset, graph.root).equals(in_order(dataset, rebuilt.root)), dataset.name
    measured(f"{parsed} files: first run", [first], "s")
    measured(f"{parsed} files: full rebuild in the same JVM", [full], "s")
    title = f"{parsed} files: run after five files have changed"
    measured(title, seconds, "s")
    measured(f"{title}, of the first run", [median(seconds) / first], "", None if source == PACKAGE else AT_MOST)


def test_commands_after_five_files_have_changed(spark_settings: SparkSettings, tmp_path: Path) -> None:
    """A whole command that rebuilds the graph and starts its own Spark, against one that shares the warm server."""
    tree = tmp_path / "tree"
    count = copied(PACKAGE.parent, tree)
    folder = tmp_path / "project"
    folder.mkdir()
    for file in FILES:
        shutil.copy(REPOSITORY / file, folder / file)
    cold = {"CODEGRAPH_SOURCE_TREE": str(tree), "PIPELINE_WARM": "never"}
    shared = cold | {"PIPELINE_WARM": "auto", "CI": ""}
    projects = {
        name: ProjectFolder(folder, spark_settings.cache, of) for name, of in (("cold", cold), ("warm", shared))
    }

    def seconds(project: ProjectFolder, **environment: str) -> float:
        started = time.perf_counter()
        done = project.command("pipeline", "materialize", "group:codegraph", **environment)
        assert done.returncode == 0, done.stderr
        return time.perf_counter() - started

    rebuilds, runs = [], []
    try:
        seconds(projects["warm"])
        for number in range(ROUNDS):
            change(tree, number)
            runs.append(seconds(projects["warm"]))
            rebuilds.append(seconds(projects["cold"], PIPELINE_ROOT=str(tmp_path / f"rebuilt {number}")))
    finally:
        projects["warm"].command("pipeline", "spark", "stop")
    measured(f"{count} files: command that rebuilds, cold", rebuilds, "s")
    measured(f"{count} files: command after five files have changed, warm", runs, "s")
    ratio = median(runs) / median(rebuilds)
    measured(f"{count} files: command after five files have changed, of one that rebuilds", [ratio], "", AT_MOST)
