"""`pipeline materialize`: what is selected runs once, and what can't run is told before anything does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance

from pipeline.errors import MaterializeError
from pipeline.orchestration.commands.materialize import Request, materialize
from pipeline_tests.projects import selections


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    declared = f'[tool.dagster]\nmodule_name = "{selections.__name__}"\n'
    (tmp_path / "pyproject.toml").write_text(declared, encoding="utf-8")
    return tmp_path


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as instance:
        yield instance


def run(folder: Path, instance: DagsterInstance, *request: str | None) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    assert materialize(folder, instance, Request(*request), told.append)
    return told


def test_a_run_is_told_by_its_steps_and_what_each_asset_has_written(folder: Path, instance: DagsterInstance) -> None:
    told = run(folder, instance, "total")
    assert [line["event"] for line in told] == ["run", "step_started", "step_succeeded", "result"]
    assert [run.run_id for run in instance.get_runs()] == [told[0]["run_id"]]
    assert told[-1] | {"seconds": 0} == {
        "event": "result", "dataset": "total", "rows_written": 2, "partitions": 0, "version": 4, "committed": False,
        "cached": False, "fingerprint": None, "checks_passed": [], "checks_failed": ["is_whole"], "seconds": 0,
    }  # fmt: skip


def test_one_partition_and_every_one_of_a_range_are_asked_for_by_key(folder: Path, instance: DagsterInstance) -> None:
    assert run(folder, instance, "days", "2025-01-02")[-1]["partitions"] == 1
    found = instance.fetch_materializations(selections.days.key, limit=1).records
    assert [record.partition_key for record in found] == ["2025-01-02"]


@pytest.mark.parametrize(
    ("request_", "reason", "hint"),
    [
        (("totl",), "The selection 'totl' can't be used", "Did you mean total?"),
        (("total", "a"), "No asset of 'total' is partitioned, but the partition 'a' was given.", "pipeline mat"),
        (("days",), "Asset 'days' is partitioned, but no partition was given.", "--partition 2025-01-10, or"),
        (("days", "2025-01-1"), "Asset 'days' has no partition '2025-01-1'.", "Did you mean 2025-01-10"),
        (("letters", "c"), "Asset 'letters' has no partition 'c'.", "The partitions are a, b."),
        (("days", None, "2025-01-01"), "The range '2025-01-01' can't be used.", "Expected: FIRST...LAST."),
        (("days", None, "2025-01-03...2025-01-01"), "holds no partition", "2025-01-01...2025-01-03"),
        (("days,letters", "a"), "with different partitions", "with a command of its own"),
        (("tag:none=here",), "holds no asset of the project", "pipeline registry"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_what_can_not_run_is_named_with_what_can_before_anything_does(
    folder: Path, instance: DagsterInstance, request_: tuple[str | None, ...], reason: str, hint: str
) -> None:
    with pytest.raises(MaterializeError) as caught:
        run(folder, instance, *request_)
    assert reason in caught.value.reason
    assert hint in caught.value.hint
    assert instance.get_runs() == []


def test_a_run_that_fails_is_told_with_the_first_reason_behind_what_has_succeeded(
    folder: Path, instance: DagsterInstance
) -> None:
    told: list[dict[str, Any]] = []
    with pytest.raises(MaterializeError) as caught:
        materialize(folder, instance, Request("total,lab/broken"), told.append)
    (failed,) = instance.get_runs()
    assert caught.value.reason == f"Run {failed.run_id} failed: ValueError: the source is empty"
    assert [(line["event"], line.get("dataset")) for line in told[1:]] == [
        ("step_started", "total"), ("step_succeeded", "total"), ("step_started", "lab/broken"),
        ("step_failed", "lab/broken"), ("result", "total"),
    ]  # fmt: skip


def test_a_project_that_names_no_definitions_is_told_where_to_name_them(
    tmp_path: Path, instance: DagsterInstance
) -> None:
    with pytest.raises(MaterializeError) as caught:
        run(tmp_path, instance, "total")
    assert caught.value.hint.startswith("In pyproject.toml: [tool.dagster] module_name")
