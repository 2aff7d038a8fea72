"""Consumers of changes in Dagster: what they are given, what they commit, and what becomes of a run that goes wrong.

Sources are written without Dagster, so that a test pays for the runs of its consumers alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetSpec, AssetsDefinition, DagsterEventType, DagsterInstance, ExecuteInProcessResult
from pyspark.sql import DataFrame
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset, Replace
from pipeline.delta.slices import of_values
from pipeline.delta.snapshot import table_facts
from pipeline.errors import ChangeFeedOffError, TouchedSliceError
from pipeline.orchestration import Changes, DeltaIOManager, Touched, dataset_asset, dataset_spec
from pipeline.orchestration.consumers import _HELD, FULL_REFRESH
from pipeline_tests.delta.sample import actions_of, day, put, rows_of, versions_of
from pipeline_tests.orchestration.conftest import Project, materializations

pytestmark = pytest.mark.parametrize("spark_resource", ["classic"], indirect=True)

SEEN = Dataset(
    name="feed/seen",
    schema=StructType([StructField("n", LongType(), False), StructField("day", DateType(), False)]),
    partition_by=("day",),
    keys=("n",),
)
NAMES = Dataset(
    name="names", schema=StructType([StructField("name", StringType(), False)]), write=Replace(), keys=("name",)
)
PER_DAY = Dataset(
    name="per_day",
    schema=StructType(
        [StructField("day", DateType()), StructField("rows", LongType()), StructField("names", LongType())]
    ),
    partition_by=("day",),
    reads=("feed/seen", "names"),
    reads_changes_of=("feed/seen", "names"),
)
LOG = Dataset(
    name="log",
    schema=StructType([StructField("n", LongType()), StructField("kind", StringType())]),
    write=Append(),
    reads=("feed/seen",),
    reads_changes_of=("feed/seen",),
)
SOURCES: list[AssetSpec] = [dataset_spec(SEEN), dataset_spec(NAMES)]


@dataset_asset(PER_DAY)
def per_day(seen: Changes, names: Changes) -> Touched:
    days = seen.touched("day") if names.frame.isEmpty() else None
    counted = seen.rows_in(days).groupBy("day").count().withColumnRenamed("count", "rows")
    return Touched(counted.crossJoin(names.whole.selectExpr("count(*) AS names")), within=days)


@dataset_asset(LOG)
def log(seen: Changes) -> DataFrame:
    return seen.frame.selectExpr("n", "_change_type AS kind")


def run(project: Project, *consumers: AssetsDefinition, **options: Any) -> ExecuteInProcessResult:
    keys = [key for consumer in consumers for key in consumer.keys]
    return project.run(*SOURCES, *consumers, selection=keys, **options)


def told(result: ExecuteInProcessResult, dataset: Dataset) -> dict[str, Any]:
    return materializations(result, dataset)[None]


def data_version(result: ExecuteInProcessResult, dataset: Dataset) -> str:
    return told(result, dataset)["tags"]["dagster/data_version"]


def see(project: Project, number: int, *ns: int) -> None:
    """The rows of a day of January become these."""
    put(
        project.spark.spark_session, SEEN, project.root, [(n, day(number)) for n in ns], of_values("day", [day(number)])
    )


@pytest.fixture
def seen(project: Project) -> Iterator[Project]:
    """A project with sources of two days and one name; nothing is held when the test is over."""
    see(project, 1, 1, 2)
    see(project, 2, 3)
    put(project.spark.spark_session, NAMES, project.root, [("a",)])
    yield project
    assert not _HELD


def test_consumers_are_made_once_and_then_cost_what_has_changed(seen: Project) -> None:
    first = run(seen, per_day, log)
    assert rows_of(PER_DAY, seen.root) == [(day(1), 2, 1), (day(2), 1, 1)]
    metadata = told(first, PER_DAY)
    assert (metadata["delta/verdict"], metadata["delta/sources"]) == ("full snapshot", {"feed/seen": 2, "names": 1})
    assert metadata["delta/changes"]["names"] == {
        "verdict": "full snapshot", "reason": "nothing was consumed before", "at_fault": [], "after": None,
        "version": 1, "window": None, "counts": {},
    }  # fmt: skip

    again = run(seen, per_day, log)
    for dataset in (PER_DAY, LOG):
        assert versions_of(dataset, seen.root) == [0, 1]
        assert data_version(again, dataset) == data_version(first, dataset)
        assert told(again, dataset)["delta/committed"] is False
        assert told(again, dataset)["delta/verdict"] == "nothing new"

    see(seen, 2, 3, 4)
    changed = run(seen, per_day, log)
    assert rows_of(PER_DAY, seen.root) == [(day(1), 2, 1), (day(2), 2, 1)]
    touched = [
        a.get("add") or a.get("remove") for a in actions_of(PER_DAY, seen.root, 2) if "add" in a or "remove" in a
    ]
    assert {file["partitionValues"]["day"] for file in touched} == {"2026-01-02"}
    metadata = told(changed, PER_DAY)
    assert data_version(changed, PER_DAY) != data_version(first, PER_DAY)
    found = metadata["delta/changes"]
    assert (found["names"]["verdict"], found["feed/seen"]["window"]) == ("nothing new", [3, 3])
    assert found["feed/seen"]["counts"] == {"insert": 2, "delete": 1}
    assert rows_of(LOG, seen.root) == [(1, "insert"), (2, "insert"), (3, "insert"), (4, "insert")]

    put(seen.spark.spark_session, NAMES, seen.root, [("a",), ("b",)])
    named = run(seen, per_day, log)
    assert rows_of(PER_DAY, seen.root) == [(day(1), 2, 2), (day(2), 2, 2)]
    assert told(named, LOG)["delta/verdict"] == "nothing new"


def test_a_full_refresh_is_asked_for_by_tag_or_configuration(seen: Project) -> None:
    run(seen, log)
    tagged = run(seen, log, tags={FULL_REFRESH: "true"})
    configured = run(seen, log, run_config={"resources": {"delta_io_manager": {"config": {"full_refresh": True}}}})
    for result, version in ((tagged, 2), (configured, 3)):
        found = told(result, LOG)
        assert (found["delta/version"], found["delta/rows_written"]) == (version, 3)
        assert found["delta/changes"]["feed/seen"]["reason"] == "a full refresh was asked for"
    assert rows_of(LOG, seen.root) == [(1, "insert"), (2, "insert"), (3, "insert")]
    assert told(run(seen, log), LOG)["delta/verdict"] == "nothing new"


def test_a_run_that_fails_leaves_the_cursor_where_it_was_and_holds_nothing(seen: Project) -> None:
    run(seen, log)
    see(seen, 2, 4)

    @dataset_asset(LOG)
    def broken(seen: Changes) -> DataFrame:
        assert len(_HELD) == 1
        raise OSError(seen.counts)

    @dataset_asset(LOG)
    def unfit(seen: Changes) -> DataFrame:
        return seen.frame.selectExpr("n")

    for asset in (broken, unfit):
        assert not run(seen, asset, raise_on_error=False).success
        assert not _HELD
    assert versions_of(LOG, seen.root) == [0, 1]
    assert told(run(seen, log), LOG)["delta/changes"]["feed/seen"]["window"] == [3, 3]
    assert rows_of(LOG, seen.root)[-2:] == [(3, "insert"), (4, "insert")]


def test_two_runs_at_once_both_end_and_every_change_is_written_once(seen: Project) -> None:
    """Both read the same cursors; the one that comes second reads them again and finds that nothing is new."""
    run(seen, log)
    see(seen, 2, 4)
    met, lock, calls = threading.Barrier(2, timeout=120), threading.Lock(), []

    @dataset_asset(LOG)
    def log_at_once(seen: Changes) -> DataFrame:
        with lock:
            calls.append(str(seen.verdict))
        if len(calls) <= 2:
            met.wait()
        return seen.frame.selectExpr("n", "_change_type AS kind")

    results: list[ExecuteInProcessResult] = []

    def one() -> None:
        with DagsterInstance.ephemeral() as instance:
            own = Project(root=seen.root, spark=seen.spark, instance=instance)
            results.append(run(own, log_at_once))

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.success for result in results] == [True, True]
    assert sorted(told(result, LOG)["delta/committed"] for result in results) == [False, True]
    assert sorted(calls) == ["changes", "changes", "nothing new"]
    retried = [e for r in results for e in r.all_events if e.event_type == DagsterEventType.STEP_UP_FOR_RETRY]
    assert len(retried) == 1
    assert "CURSOR_MOVED" in str(retried[0].event_specific_data) or "CONCURRENT" in str(retried[0].event_specific_data)
    assert [row[0] for row in rows_of(LOG, seen.root)] == [1, 2, 3, 3, 4]
    assert versions_of(LOG, seen.root) == [0, 1, 2]
