"""A run once more on pinned versions: every write mode begins as it did, and nothing of the project changes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetKey, DagsterInstance, RepositoryDefinition

from pipeline.delta.log.commits import commit_info, commit_note
from pipeline.orchestration import DeltaSparkResource
from pipeline.orchestration.commands.rerun import Request, rerun_in
from pipeline.settings import Settings
from pipeline_tests.orchestration.conftest import RANGE_END, RANGE_START
from pipeline_tests.projects import repeated

FIRST = [(1, "a", 1), (2, "b", 1)]
SECOND = [(1, "a", 2), (3, "c", 2)]
THIRD = [(2, "b", 3), (9, "a", 3)]
ALL = ("delivered", "added", "lab/merged", "followed", "aged")


@dataclass
class Project:
    """The project `repeated` in a folder of its own."""

    settings: Settings
    repository: RepositoryDefinition
    instance: DagsterInstance

    def deliver(self, rows: list[tuple[Any, ...]]) -> None:
        (self.settings.project / "delivery.json").write_text(json.dumps(rows), encoding="utf-8")

    def run(self, *names: str, **options: Any) -> str:
        job = self.repository.get_job("__ASSET_JOB")
        keys = [AssetKey(name.split("/")) for name in names]
        done = job.execute_in_process(instance=self.instance, asset_selection=keys, **options)
        assert done.success
        return done.run_id

    def rerun(self, run_id: str, **options: Any) -> dict[str, list[dict[str, Any]]]:
        """The reports by their event."""
        told: dict[str, list[dict[str, Any]]] = {}
        request = Request(run_id, apply=True, **options)
        assert rerun_in(
            lambda: self.repository, self.settings, self.instance, request,
            lambda line: told.setdefault(line["event"], []).append(line),
        )  # fmt: skip
        return told

    def state(self) -> tuple[Mapping[str, int], int, list[int]]:
        """The files below the root with their times, and how many runs and materializations the instance has."""
        files = {str(path): path.stat().st_mtime_ns for path in Path(self.settings.root).rglob("*") if path.is_file()}
        events = [
            len(self.instance.fetch_materializations(AssetKey(name.split("/")), limit=100).records)
            for name in (*ALL, "parts")
        ]
        return files, len(self.instance.get_runs()), events


@pytest.fixture
def shop(settings: Settings, spark_resource: DeltaSparkResource) -> Iterator[Project]:
    own = replace(settings, spark=spark_resource.to_settings())
    with DagsterInstance.ephemeral() as instance:
        yield Project(own, repeated.project(own).get_repository_def(), instance)


def note_of(shop: Project, name: str) -> tuple[Any, Any]:
    """The code version and the order in the note of a table's first write."""
    info = commit_info(f"{shop.settings.root}/{name}", 1)
    note = commit_note((info or {})["userMetadata"]) or {}
    return note.get("code_version"), note.get("order")


@pytest.mark.exhaustive
def test_every_write_mode_gives_equal_rows_after_later_runs_have_changed_everything(shop: Project) -> None:
    runs = []
    for rows in (FIRST, SECOND, THIRD):
        shop.deliver(rows)
        runs.append(shop.run(*ALL))
    assert [note_of(shop, name) for name in ("delivered", "lab/merged")] == [
        ("1", None), (None, {"keys": ["id"], "order_by": ["n"]}),
    ]  # fmt: skip
    before = shop.state()
    shop.deliver(SECOND)
    told = shop.rerun(runs[1])
    assert told["plan"][0]["plan"]["problems"] == []
    results = {line["dataset"]: line for line in told["result"]}
    assert {name: (line["equal"], line["differences"]) for name, line in results.items()} == {
        name: (True, []) for name in ALL
    }
    assert {name: line["rows_now"] for name, line in results.items()} == {
        "delivered": 2, "added": 4, "lab/merged": 3, "followed": 3, "aged": 3,
    }  # fmt: skip
    (manifest,) = told["manifest"]
    assert {one["dataset"] for one in manifest["differences"]} == set(ALL)
    assert [one["changes"] for one in manifest["differences"] if "rows" in one["changes"]] == []
    assert shop.state() == before
    assert not Path(shop.settings.root, "_reruns").exists()


@pytest.mark.exhaustive
def test_only_the_table_of_the_input_that_has_changed_differs(shop: Project) -> None:
    shop.deliver(FIRST)
    run_id = shop.run("delivered", "added")
    shop.deliver(THIRD)
    results = {line["dataset"]: line for line in shop.rerun(run_id)["result"]}
    assert results["added"]["equal"], "its source was read at the version of the run, and not as it was made again"
    assert not results["delivered"]["equal"]
    assert "not pinned: resource deliveries" in results["delivered"]["reasons"]
    (difference,) = results["delivered"]["differences"]
    assert difference.startswith("all rows: values of column id")
    assert difference.endswith("(2 rows then, 2 now)")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "first", "second", "ends", "rows"),
    [
        pytest.param(
            "parts", [*FIRST, (3, "c", 1)], [(5, "a", 5), (6, "b", 6)], ("a", "b", "c"), 3, id="one dimension",
        ),
        pytest.param(
            "cells", [(1, "a", 1), (2, "b", 1), (3, "b", 2), (4, "c", 3)],
            [(5, "a", 1), (6, "b", 1), (7, "b", 2), (8, "c", 3)], ("1|a", "1|b", "3|c"), 4, id="two dimensions",
        ),
    ],
)  # fmt: skip
def test_a_range_of_partitions_is_replaced_in_a_copy_and_the_other_partitions_count_too(
    shop: Project, name: str, first: list[tuple[Any, ...]], second: list[tuple[Any, ...]], ends: tuple[str, str, str],
    rows: int,
) -> None:  # fmt: skip
    """A run from the first end to the second, between two runs up to the third."""
    runs = []
    for delivery, last in ((first, ends[2]), (second, ends[1]), (THIRD, ends[2])):
        shop.deliver(delivery)
        shop.run("delivered")
        runs.append(shop.run(name, tags={RANGE_START: ends[0], RANGE_END: last}))
    before = shop.state()
    (result,) = shop.rerun(runs[1])["result"]
    assert (result["equal"], result["rows"], result["rows_now"]) == (True, rows, rows)
    assert shop.state() == before


@pytest.mark.exhaustive
def test_one_partition_is_repeated_by_its_key(shop: Project) -> None:
    shop.deliver(FIRST)
    shop.run("delivered")
    run_id = shop.run("parts", partition_key="b")
    (result,) = shop.rerun(run_id)["result"]
    assert (result["equal"], result["rows_now"]) == (True, 1)


@pytest.mark.exhaustive
def test_the_outputs_of_a_multi_asset_are_repeated_as_they_were_selected(shop: Project) -> None:
    runs = []
    for rows, names in ((FIRST, ("twin_a", "twin_b")), (SECOND, ("twin_a", "twin_b")), (THIRD, ("twin_b",))):
        shop.deliver(rows)
        shop.run("delivered")
        runs.append(shop.run(*names))
    before = shop.state()
    both, one = (shop.rerun(run_id)["result"] for run_id in runs[1:])
    assert {line["dataset"]: (line["equal"], line["rows_now"]) for line in both} == {
        "twin_a": (True, 2), "twin_b": (True, 1),
    }  # fmt: skip
    assert [(line["dataset"], line["equal"], line["rows_now"]) for line in one] == [("twin_b", True, 2)]
    assert shop.state() == before


@pytest.mark.exhaustive
def test_a_dynamic_key_that_was_deleted_since_is_repeated_and_does_not_come_back(shop: Project) -> None:
    shop.deliver(FIRST)
    shop.run("delivered")
    shop.instance.add_dynamic_partitions("names", ["a", "b"])
    shop.run("named", partition_key="a")
    run_id = shop.run("named", partition_key="b")
    shop.instance.delete_dynamic_partition("names", "b")
    (result,) = shop.rerun(run_id)["result"]
    assert (result["equal"], result["rows_now"]) == (True, 2)
    assert shop.instance.get_dynamic_partitions("names") == ["a"]


@pytest.mark.exhaustive
def test_a_consumer_reads_the_same_changes_again_whatever_it_has_consumed_since(shop: Project) -> None:
    shop.deliver(FIRST)
    shop.run("delivered", "lab/merged", "followed")
    shop.deliver(SECOND)
    shop.run("delivered", "lab/merged")
    run_id = shop.run("followed")
    shop.deliver(THIRD)
    shop.run("delivered", "lab/merged", "followed")
    told = shop.rerun(run_id)
    (table,) = told["plan"][0]["plan"]["tables"]
    assert [source["changes"]["kind"] for source in table["sources"]] == ["changes"]
    assert [line["equal"] for line in told["result"]] == [True]


@pytest.mark.exhaustive
def test_a_consumer_s_first_run_is_repeated_as_a_full_snapshot(shop: Project) -> None:
    shop.deliver(FIRST)
    run_id = shop.run("delivered", "lab/merged", "followed")
    shop.deliver(THIRD)
    shop.run("delivered", "lab/merged", "followed")
    told = shop.rerun(run_id)
    assert {line["dataset"]: line["equal"] for line in told["result"]} == {
        "delivered": False, "lab/merged": True, "followed": True,
    }  # fmt: skip
