"""One history of seeded steps gives the same tables, cursors, records and verdicts in each kind of store."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.settings import SparkSettings
from pipeline_tests.conftest import brief_conf
from pipeline_tests.object_stores import AnyStore, served_store

SEED, STEPS = 247, 50


def history_in(store: AnyStore, project: Path, settings: SparkSettings) -> list[dict[str, Any]]:
    """What each step did, and what is left in the end."""
    told = project / "told.jsonl"
    job = {
        "cache": str(settings.cache), "conf": dict(brief_conf(settings)) | dict(store.hadoop),
        "root": f"{store.uri}/lake", "project": str(project), "seed": SEED, "count": STEPS,
        "told": str(told),
    }  # fmt: skip
    subprocess.run([sys.executable, "-m", "pipeline_tests.children.history", json.dumps(job)], check=True)
    return [json.loads(line) for line in told.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def on_disk(spark_settings: SparkSettings, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The history on this machine's disk."""
    folder = tmp_path_factory.mktemp("local")
    with served_store("local", folder, spark_settings.cache) as store:
        return history_in(store, folder, spark_settings)


@pytest.mark.exhaustive
def test_the_history_takes_every_step_and_most_of_them_are_not_refused(on_disk: list[dict[str, Any]]) -> None:
    *steps, end = on_disk
    taken = [step["step"] for step in steps]
    assert (len(taken), set(taken)) == (
        STEPS, {"append", "merge", "replace", "consume", "sink", "restore", "vacuum", "migrate"},
    )  # fmt: skip
    assert sum("refused" in step for step in steps) < STEPS / 5
    kinds = {verdict[0] for step in steps if step["step"] == "consume" for verdict in step["result"][0].values()}
    assert kinds == {"nothing new", "changes", "full snapshot"}
    assert all(table["rows"] for table in end["tables"].values())
    assert {record[-1] for record in end["records"]} == {None}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["azure", "gcs", "s3"])
def test_a_history_is_the_same_as_on_a_disk(
    kind: str, on_disk: list[dict[str, Any]], spark_settings: SparkSettings, tmp_path: Path
) -> None:
    with served_store(kind, tmp_path, spark_settings.cache) as store:
        there = history_in(store, tmp_path, spark_settings)
    for number, (here, other) in enumerate(zip(on_disk, there, strict=True)):
        assert here == other, f"step {number}"
