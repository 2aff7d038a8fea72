"""Consumers of changes in Dagster: what they are given, what they commit, and what becomes of a run that goes wrong.

Sources are written without Dagster, so that a test pays for the runs of its consumers alone.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster import (
    AssetKey,
    AssetsDefinition,
    AssetSelection,
    AssetSpec,
    DagsterEventType,
    DagsterInstance,
    DailyPartitionsDefinition,
    Definitions,
    ExecuteInProcessResult,
    asset,
    evaluate_automation_conditions,
)
from pyspark.sql import DataFrame, SparkSession

from pipeline.dataset import Dataset, Registry
from pipeline.delta.inspect.record import DatasetRecord
from pipeline.delta.sql.slices import of_values
from pipeline.errors import ChangeFeedOffError, DeclarationError, FrameKindError, RegistryError, TouchedSliceError
from pipeline.orchestration import (
    Changes,
    DeltaSparkResource,
    Touched,
    build_definitions,
    dataset_asset,
    dataset_metadata,
    dataset_out,
    dataset_spec,
)
from pipeline.orchestration.io.consumers import READINGS, _release_all
from pipeline.orchestration.metadata_keys import FULL_REFRESH
from pipeline.settings import Settings, SparkSettings
from pipeline_tests.children.consumer import Job, start
from pipeline_tests.conftest import brief_conf
from pipeline_tests.delta.sample import actions_of, day, put, rows_of, versions_of
from pipeline_tests.orchestration.conftest import Project, materializations
from pipeline_tests.orchestration.consumer_datasets import LOG, NAMES, PER_DAY, SEEN
from pipeline_tests.refusals import refused

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
def spark_resource(classic: SparkSession, spark_settings: SparkSettings) -> DeltaSparkResource:
    """Embedded: nothing here is different over Connect that the tests of changes don't see in both modes."""
    return DeltaSparkResource.from_settings(spark_settings)


@pytest.fixture(scope="module")
def prepared(
    classic: SparkSession, spark_settings: SparkSettings, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Roots to be copied: sources of two days and one name; the same with a log of the days beside them."""
    folder = tmp_path_factory.mktemp("prepared")
    sources, logged = folder / "sources", folder / "logged"
    with DagsterInstance.ephemeral() as instance:
        project = Project(root=str(sources), spark=DeltaSparkResource.from_settings(spark_settings), instance=instance)
        see(project, 1, 1, 2)
        see(project, 2, 3)
        put(classic, NAMES, project.root, [("a",)])
        shutil.copytree(sources, logged)
        run(replace(project, root=str(logged)), log)
    return sources, logged


def kept_steps() -> list[tuple[str, str]]:
    """The steps whose changes are kept in any session."""
    return [step for readings in READINGS.values() for step in readings.kept]


def abandoned() -> int:
    """The number of readings of steps that no longer exist."""
    return sum(len(readings.abandoned) for readings in READINGS.values())


@pytest.fixture(autouse=True, scope="module")
def nothing_held() -> None:
    """What a run of another file has left, whose error was raised past Dagster's hooks, is let go of."""
    _release_all()


@pytest.fixture
def seen(project: Project, prepared: tuple[Path, Path]) -> Iterator[Project]:
    """A project with the sources; nothing is held when the test is over."""
    shutil.copytree(prepared[0], project.root)
    yield project
    assert not kept_steps()


@pytest.fixture
def logged(project: Project, prepared: tuple[Path, Path]) -> Iterator[Project]:
    """A project with the sources and a log of them, of which its instance knows nothing."""
    shutil.copytree(prepared[1], project.root)
    yield project
    assert not kept_steps()


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
    origins = metadata["dagster/column_lineage"].deps_by_column
    assert {
        column: [(of.asset_key.to_user_string(), of.column_name) for of in origins[column]] for column in origins
    } == {"day": [("feed/seen", "day")]}
    record = DatasetRecord.from_json(Path(metadata["delta/record"]).read_text(encoding="utf-8"), "")
    assert (record.changes, record.sources) == (found, {"feed/seen": 3, "names": 1})
    read = {of["name"]: (of["kind"], of["first"], of["version"], of["files"]) for of in record.reads}
    files = [action for action in actions_of(SEEN, seen.root, 3) if "add" in action or "remove" in action]
    assert read == {"feed/seen": ("changes", 3, 3, len(files)), "names": ("changes", None, 1, 0)}
    assert rows_of(LOG, seen.root) == [(1, "insert"), (2, "insert"), (3, "insert"), (4, "insert")]

    put(seen.spark.spark_session, NAMES, seen.root, [("a",), ("b",)])
    named = run(seen, per_day, log)
    assert rows_of(PER_DAY, seen.root) == [(day(1), 2, 2), (day(2), 2, 2)]
    assert told(named, LOG)["delta/verdict"] == "nothing new"


def test_a_full_refresh_is_asked_for_by_tag_or_configuration(logged: Project) -> None:
    tagged = run(logged, log, tags={FULL_REFRESH: "true"})
    configured = run(logged, log, run_config={"ops": {"log": {"config": {"full_refresh": True}}}})
    for result, version in ((tagged, 2), (configured, 3)):
        found = told(result, LOG)
        assert (found["delta/version"], found["delta/rows_written"]) == (version, 3)
        assert found["delta/changes"]["feed/seen"]["reason"] == "a full refresh was asked for"
    assert rows_of(LOG, logged.root) == [(1, "insert"), (2, "insert"), (3, "insert")]
    assert told(run(logged, log), LOG)["delta/verdict"] == "nothing new"


@pytest.mark.exhaustive
def test_a_run_that_raises_past_its_hooks_holds_nothing_once_its_error_is_dropped(logged: Project) -> None:
    def kept() -> int:
        return int(logged.spark.spark_session._jsparkSession.sharedState().cacheManager().numCachedEntries())

    @dataset_asset(LOG)
    def broken(seen: Changes) -> DataFrame:
        raise OSError(seen.counts)

    before = kept()
    see(logged, 2, 4)
    with pytest.raises(OSError, match="insert"):
        run(logged, broken)
    gc.collect()
    assert (len(kept_steps()), abandoned(), kept()) == (0, 1, before + 1)
    assert told(run(logged, log), LOG)["delta/rows_written"] == 2
    assert (len(kept_steps()), abandoned(), kept()) == (0, 0, before)


def test_a_run_that_fails_leaves_the_cursor_where_it_was_and_holds_nothing(logged: Project) -> None:
    see(logged, 2, 4)

    @dataset_asset(LOG)
    def broken(seen: Changes) -> DataFrame:
        assert len(kept_steps()) == 1
        raise OSError(seen.counts)

    @dataset_asset(LOG)
    def unfit(seen: Changes) -> DataFrame:
        return seen.frame.selectExpr("n")

    for consumer in (broken, unfit):
        assert not run(logged, consumer, raise_on_error=False).success
        assert not kept_steps()
    assert versions_of(LOG, logged.root) == [0, 1]
    assert told(run(logged, log), LOG)["delta/changes"]["feed/seen"]["window"] == [3, 3]
    assert rows_of(LOG, logged.root)[-2:] == [(3, "insert"), (4, "insert")]


@pytest.mark.exhaustive
def test_two_runs_at_once_both_end_and_every_change_is_written_once(logged: Project) -> None:
    """Both read the same cursors; the one that comes second reads them again and finds that nothing is new."""
    see(logged, 2, 4)
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
            own = Project(root=logged.root, spark=logged.spark, instance=instance)
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
    assert [row[0] for row in rows_of(LOG, logged.root)] == [1, 2, 3, 3, 4]
    assert versions_of(LOG, logged.root) == [0, 1, 2]


def data_files(root: str) -> set[Path]:
    """The files below the consumer's table that are written to their ends."""
    found = set()
    for path in Path(LOG.location(root)).glob("*.parquet"):
        with suppress(pa.ArrowInvalid, FileNotFoundError):
            pq.read_metadata(path)
            found.add(path)
    return found


# What the log of changes holds once the second look at `seen` is in it.
LOGGED = [(1, "insert"), (2, "insert"), (3, "delete"), (3, "insert"), (4, "insert")]


@pytest.mark.exhaustive
def test_a_run_that_is_killed_before_its_commit_is_made_good_by_the_next(
    seen: Project, spark_settings: SparkSettings, tmp_path: Path
) -> None:
    run(seen, log)
    see(seen, 2, 4)
    gate, before = tmp_path / "gate", data_files(seen.root)
    os.mkfifo(gate)
    conf = brief_conf(spark_settings)
    job = Job(root=seen.root, cache=str(spark_settings.cache), remote=None, gate=str(gate), conf=conf)
    with start(job) as child:
        try:
            until = time.monotonic() + 300
            while data_files(seen.root) == before and time.monotonic() < until:
                assert child.poll() is None
                time.sleep(0.1)  # between two looks, lest they slow down what is waited for
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    with suppress(OSError):  # lets go the Python worker that the killed JVM has left
        os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
    assert data_files(seen.root) > before
    assert versions_of(LOG, seen.root) == [0, 1]
    assert told(run(seen, log), LOG)["delta/verdict"] == "changes"
    assert rows_of(LOG, seen.root) == LOGGED
    assert versions_of(LOG, seen.root) == [0, 1, 2]


def test_a_run_that_is_killed_behind_its_commit_is_made_good_by_the_next(
    seen: Project, spark_settings: SparkSettings, remote_url: str
) -> None:
    told_first = data_version(run(seen, log), LOG)
    see(seen, 2, 4)
    job = Job(root=seen.root, cache=str(spark_settings.cache), remote=remote_url, gate=None, conf=())
    with start(job) as child:
        assert child.wait(300) == -signal.SIGKILL
    assert versions_of(LOG, seen.root) == [0, 1, 2]

    after = run(seen, log)
    assert told(after, LOG)["delta/verdict"] == "nothing new"
    assert rows_of(LOG, seen.root) == LOGGED
    assert data_version(after, LOG) != told_first
    assert data_version(after, LOG).split("/")[1] == "2"


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_slice_of_a_table_that_is_made_anew_and_one_of_an_append_are_refused(logged: Project) -> None:
    @dataset_asset(PER_DAY)
    def blind(seen: Changes, names: Changes) -> Touched:
        rows = seen.whole.selectExpr("day", "n AS rows", "n AS names")
        return Touched(rows, within=of_values("day", [day(2)]))

    @dataset_asset(LOG)
    def sliced(seen: Changes) -> Touched:
        return Touched(seen.frame.selectExpr("n", "_change_type AS kind"), within=of_values("n", [3]))

    with refused(TouchedSliceError) as caught:
        run(logged, blind)
    assert (caught.value.dataset, caught.value.slice) == ("per_day", "day = 2026-01-02")
    assert not Path(PER_DAY.location(logged.root)).exists()
    see(logged, 2, 4)
    with refused(TouchedSliceError) as caught:
        run(logged, sliced)
    assert "Append" in caught.value.problem
    assert versions_of(LOG, logged.root) == [0, 1]


def test_a_source_without_feed_is_named_with_its_property_or_read_whole_where_that_is_declared(seen: Project) -> None:
    spark = seen.spark.spark_session
    spark.sql(
        f"ALTER TABLE delta.`{SEEN.location(seen.root)}` SET TBLPROPERTIES (delta.enableChangeDataFeed = false)"
    ).collect()
    with refused(ChangeFeedOffError) as caught:
        run(seen, log)
    assert (caught.value.dataset, caught.value.consumer) == ("feed/seen", "log")
    assert "SET TBLPROPERTIES (delta.enableChangeDataFeed = true)" in str(caught.value)

    @dataset_asset(replace(LOG, full_without_feed=True))
    def whole(seen: Changes) -> DataFrame:
        return seen.frame.selectExpr("n", "_change_type AS kind")

    run(seen, whole)
    assert told(run(seen, whole), LOG)["delta/verdict"] == "nothing new"
    spark.sql(f"DELETE FROM delta.`{SEEN.location(seen.root)}` WHERE n = 3").collect()
    assert told(run(seen, whole), LOG)["delta/changes"]["feed/seen"]["reason"] == "the change feed was off"
    assert rows_of(LOG, seen.root) == [(1, "insert"), (2, "insert")]


def test_a_consumer_can_t_take_another_annotation_than_changes(seen: Project) -> None:
    @dataset_asset(LOG)
    def framed(seen: DataFrame) -> DataFrame:
        return seen.selectExpr("n", "'x' AS kind")

    with refused(FrameKindError) as caught:
        run(seen, framed)
    assert caught.value.kinds == ("pipeline.delta.read.changes.Changes",)


def test_a_consumer_that_would_lose_changes_is_refused_as_it_is_loaded(settings: Settings) -> None:
    daily = DailyPartitionsDefinition("2026-01-01")
    with pytest.raises(DeclarationError, match="past the changes of all others"):
        dataset_asset(PER_DAY, partitions_def=daily)

    @asset(key=LOG.name, partitions_def=daily, metadata=dataset_metadata(LOG, "n"), io_manager_key="delta_io_manager")
    def partitioned(seen: Changes) -> None: ...

    with pytest.raises(DeclarationError, match="past the changes of all others"):
        build_definitions(settings, datasets=[SEEN, LOG], assets=[partitioned])
    with pytest.raises(DeclarationError, match="no parameter of its function takes the changes of feed/seen"):
        dataset_asset(LOG)(lambda: None)
    with pytest.raises(DeclarationError, match="further outputs"):
        dataset_out(LOG)


def test_consumers_in_a_circle_and_of_a_source_without_feed_are_refused_as_they_are_loaded() -> None:
    back = replace(SEEN, reads=("log",), reads_changes_of=("log",))
    with pytest.raises(RegistryError) as caught:
        Registry([back, LOG])
    assert "cycle" in caught.value.problems[0]
    silent = replace(SEEN, change_feed=False)
    with pytest.raises(RegistryError) as caught:
        Registry([silent, LOG])
    assert "delta.enableChangeDataFeed" in caught.value.problems[0]
    assert Registry([silent, replace(LOG, full_without_feed=True)]).names == ("feed/seen", "log")


# --- what starts them -------------------------------------------------------------------------------------------------


def test_a_consumer_starts_once_its_source_has_changed_and_is_no_change_itself_where_nothing_is_new(
    seen: Project,
) -> None:
    @dataset_asset(replace(SEEN, reads=()))
    def source(spark: DeltaSparkResource) -> DataFrame:
        return spark.spark_session.createDataFrame([(len(rounds), day(1))], "n BIGINT, day DATE")

    after = Dataset(name="after", schema=LOG.schema, reads=("log",), starts_on_change=True)

    @dataset_asset(after)
    def last(log: DataFrame) -> DataFrame:
        return log

    defs = Definitions(assets=[source, log, last], resources=seen.resources())

    def asked_for() -> set[str]:
        nonlocal cursor
        result = evaluate_automation_conditions(
            defs, seen.instance, asset_selection=AssetSelection.all(), cursor=cursor
        )
        cursor = result.cursor
        return {"/".join(key.path) for key in keys if result.get_num_requested(key)}

    keys, rounds, cursor = (AssetKey("log"), AssetKey("after")), [1], None
    seen.run(source, log, last)
    asked_for()
    assert asked_for() == set()
    rounds.append(2)
    seen.run(source)
    assert asked_for() == {"log"}
    seen.run(source, log, selection=[log])
    assert asked_for() == {"after"}
    seen.run(source, log, last, selection=[last])
    seen.run(source, log, selection=[log])  # nothing new
    assert asked_for() == set()
