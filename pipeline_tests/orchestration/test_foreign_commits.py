"""Commits that no run has made: what Dagster is told of them, by partition, and what starts because of it. No JVM.

Tables are written by another engine; a run's own commit carries the run in its note, as the IO manager's do.
"""

import datetime as dt
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetsDefinition,
    DagsterInstance,
    DagsterRunStatus,
    DailyPartitionsDefinition,
    DataVersion,
    Definitions,
    DynamicPartitionsDefinition,
    MaterializeResult,
    MultiPartitionsDefinition,
    SkipReason,
    StaticPartitionsDefinition,
    asset,
    build_sensor_context,
    evaluate_automation_conditions,
    materialize,
)
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.loader import LoadingContextForTest
from dagster._core.test_utils import create_run_for_test
from deltalake import CommitProperties, DeltaTable, write_deltalake
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset
from pipeline.delta.log.commits import FORMAT, commit_file, commit_identity
from pipeline.orchestration import build_definitions, dataset_asset
from pipeline.orchestration.automation.foreign import AssetTable
from pipeline.orchestration.automation.sensors import on_changed_source, table_sensor
from pipeline.orchestration.commands.table_report import report
from pipeline.orchestration.dataset_asset import IO_MANAGER
from pipeline.settings import Settings

DAYS = DailyPartitionsDefinition("2026-01-01", end_date="2026-01-11")
BY_DAY = Dataset(
    name="feed/days",
    schema=StructType([StructField("n", LongType()), StructField("day", DateType())]),
    partition_by=("day",),
)
FIRST, SECOND, THIRD = "2026-01-02", "2026-01-03", "2026-01-04"
KEY = AssetKey(["feed", "days"])
TABLE = AssetTable(key=KEY, dataset=BY_DAY, partitions_def=DAYS, has_runs=True)


@pytest.fixture
def instance():
    with DagsterInstance.ephemeral() as instance:
        yield instance


class Watch:
    """The sensor over one root and instance, tick after tick; what it tells is kept by the instance."""

    def __init__(self, root: str, instance: DagsterInstance, *tables: AssetTable) -> None:
        self.sensor = table_sensor([], root, shared=tables)
        self.instance = instance
        self.cursor: str | None = None

    def tick(self) -> list[AssetMaterialization]:
        context = build_sensor_context(instance=self.instance, cursor=self.cursor)
        result: Any = self.sensor(context)
        if isinstance(result, SkipReason):
            self.cursor = context.cursor
            return []
        self.cursor = result.cursor
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)
        return list(result.asset_events)


def told(events: Iterable[AssetMaterialization]) -> dict[str | None, tuple[int, Any]]:
    """By partition, the version and the rows that it holds by the last of these events."""
    found = {}
    for event in events:
        rows = event.metadata.get("dagster/partition_row_count")
        found[event.partition] = (event.metadata["delta/version"].value, None if rows is None else rows.value)
    return found


def put(location: str, rows: Mapping[str, list[int]], note: Mapping[str, Any] | None = None, **options: Any) -> None:
    cells = [(n, dt.date.fromisoformat(key)) for key, numbers in rows.items() for n in numbers]
    table = pa.table(
        {"n": pa.array([n for n, _ in cells], pa.int64()), "day": pa.array([d for _, d in cells], pa.date32())}
    )
    text = None if note is None else CommitProperties(custom_metadata={"userMetadata": json.dumps(note)})
    write_deltalake(location, table, partition_by=["day"], commit_properties=text, **({"mode": "append"} | options))


def written_by(run_id: str) -> dict[str, Any]:
    return {"pipeline": FORMAT, "run_id": run_id, "asset": "feed/days"}


def days_asset(location: str, rows: Mapping[str, list[int]]) -> AssetsDefinition:
    """An asset that writes its partition as the IO manager does, and says so."""

    @asset(key=KEY, partitions_def=DAYS)
    def days(context: AssetExecutionContext) -> MaterializeResult:
        put(location, {context.partition_key: rows[context.partition_key]}, written_by(context.run.run_id))
        table = DeltaTable(location)
        return MaterializeResult(data_version=DataVersion(f"{table.metadata().id}/{table.version()}"))

    return days


@asset(deps=[KEY], partitions_def=DAYS, automation_condition=on_changed_source())
def copied() -> None: ...


@asset(deps=[KEY], automation_condition=on_changed_source())
def total() -> None: ...


@pytest.mark.case("D-RESTORE-TOLD")
@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")  # of Dagster's own tester of conditions
def test_after_a_restore_partitions_have_the_rows_of_the_table_and_what_reads_them_is_stale_and_starts(
    root: str, instance: DagsterInstance
) -> None:
    location = BY_DAY.location(root)
    days, watch = days_asset(location, {FIRST: [1], SECOND: [2, 3]}), Watch(root, instance, TABLE)
    definitions = Definitions(assets=[days, copied, total])
    for key in (FIRST, SECOND):
        materialize([days, copied], instance=instance, partition_key=key)
    materialize([total, days], instance=instance, selection=[total])
    assert watch.tick() == []
    before = evaluate_automation_conditions(definitions, instance)
    table = DeltaTable(location)
    table.restore(0)
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 40 days"})

    events = watch.tick()
    assert told(events) == {SECOND: (2, 0)}
    assert events[0].metadata["delta/operation"].value == "RESTORE"
    assert events[0].metadata["dagster/row_count"].value == 1
    assert events[0].tags["dagster/data_version"].split("/")[1] == "2"
    graph = definitions.resolve_asset_graph()
    status = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance)).get_status
    # Of `total` Dagster never says it: it leaves out time partitions that are all mapped.
    assert {key: status(copied.key, key).value for key in (FIRST, SECOND)} == {FIRST: "FRESH", SECOND: "STALE"}
    after = evaluate_automation_conditions(definitions, instance, cursor=before.cursor)
    assert after.get_requested_partitions(copied.key) == {SECOND}
    assert after.get_requested_partitions(total.key) == {None}
    assert watch.tick() == []


def test_a_foreign_update_and_a_delete_are_told_of_the_partitions_that_they_change_and_of_no_other(
    root: str, instance: DagsterInstance
) -> None:
    location, watch = BY_DAY.location(root), Watch(root, instance, TABLE)
    put(location, {FIRST: [1], SECOND: [2, 3], THIRD: [4], "2027-01-01": [5]})
    assert told(watch.tick()) == {FIRST: (0, 1), SECOND: (0, 2), THIRD: (0, 1)}
    DeltaTable(location).update({"n": "n + 1"}, predicate="n = 2")
    DeltaTable(location).delete("n = 4")
    DeltaTable(location).delete("n = 5")
    assert told(watch.tick()) == {SECOND: (1, 2), THIRD: (2, 0)}
    put(location, {FIRST: [6, 7]})
    (event,) = watch.tick()
    assert (event.partition, event.metadata["delta/rows_written"].value) == (FIRST, 2)
    assert event.metadata["dagster/partition_row_count"].value == 3
    DeltaTable(location).optimize.compact()
    assert watch.tick() == []


def test_of_an_append_the_rows_that_came_are_told_as_a_run_tells_them(root: str, instance: DagsterInstance) -> None:
    appended = Dataset(name="feed/days", schema=BY_DAY.schema, partition_by=("day",), write=Append())
    watch = Watch(root, instance, AssetTable(key=KEY, dataset=appended, partitions_def=DAYS, has_runs=True))
    put(appended.location(root), {FIRST: [1, 2]})
    put(appended.location(root), {FIRST: [3]})
    assert told(watch.tick()) == {FIRST: (1, 1)}
    DeltaTable(appended.location(root)).delete("n = 1")
    assert told(watch.tick()) == {FIRST: (2, 2)}


def test_what_a_run_has_reported_is_not_told_again_and_a_late_look_sets_no_version_back(
    root: str, instance: DagsterInstance
) -> None:
    """The foreign commits come between two runs; the sensor looks after both."""
    location, watch = BY_DAY.location(root), Watch(root, instance, TABLE)
    days = days_asset(location, {FIRST: [1], SECOND: [2]})
    materialize([days], instance=instance, partition_key=FIRST)
    put(location, {FIRST: [10]})
    put(location, {THIRD: [11]})
    materialize([days], instance=instance, partition_key=FIRST)
    assert told(watch.tick()) == {THIRD: (2, 1)}
    newest = instance.get_latest_data_version_record(KEY, partition_key=FIRST)
    assert newest.asset_materialization.tags["dagster/data_version"].endswith("/3")


def test_a_commit_of_a_run_waits_for_the_run_and_is_told_where_the_run_has_not(
    root: str, instance: DagsterInstance
) -> None:
    location, watch = BY_DAY.location(root), Watch(root, instance, TABLE)
    run = create_run_for_test(instance, status=DagsterRunStatus.STARTED)
    put(location, {FIRST: [1]}, written_by(run.run_id))
    put(location, {SECOND: [2]})
    assert told(watch.tick()) == {SECOND: (1, 1)}
    assert watch.tick() == []
    instance.report_run_failed(run)
    assert told(watch.tick()) == {FIRST: (0, 1)}
    assert watch.tick() == []


def put_back(location: str, copy: Path) -> None:
    shutil.rmtree(location)
    shutil.copytree(copy, location)


def test_a_copy_that_is_put_back_and_written_to_the_same_version_is_told_of_all_that_was_reported(
    root: str, instance: DagsterInstance, tmp_path: Path
) -> None:
    location, watch = BY_DAY.location(root), Watch(root, instance, TABLE)
    put(location, {FIRST: [1], SECOND: [2]})
    copy = Path(shutil.copytree(location, tmp_path / "copy"))
    put(location, {SECOND: [3]})
    put(location, {THIRD: [4]})
    before = watch.tick()
    assert told(before) == {FIRST: (0, 1), SECOND: (1, 2), THIRD: (2, 1)}
    put_back(location, copy)
    put(location, {FIRST: [5]})
    put(location, {"2026-01-05": [6]})

    events = watch.tick()

    assert told(events) == {FIRST: (2, 2), SECOND: (2, 1), THIRD: (2, 0), "2026-01-05": (2, 1)}
    versions = {event.tags["dagster/data_version"] for event in events}
    assert len(versions) == 1
    assert {version.split("/")[1] for version in versions} == {"2"}
    assert versions.isdisjoint(event.tags["dagster/data_version"] for event in before)
    assert watch.tick() == []
    put(location, {FIRST: [7]})
    assert told(watch.tick()) == {FIRST: (3, 3)}


def test_a_copy_that_is_put_back_is_told_before_anybody_writes_to_it(
    root: str, instance: DagsterInstance, tmp_path: Path
) -> None:
    by_name = AssetTable(key=KEY, dataset=BY_DAY)
    location, watch = BY_DAY.location(root), Watch(root, instance, by_name)
    put(location, {FIRST: [1]})
    copy = Path(shutil.copytree(location, tmp_path / "copy"))
    put(location, {FIRST: [2]})
    watch.tick()
    put_back(location, copy)
    (event,) = watch.tick()
    assert (event.metadata["delta/version"].value, event.metadata["dagster/row_count"].value) == (0, 1)
    assert watch.tick() == []


def test_a_cursor_without_the_identity_of_its_commit_goes_by_the_number_and_takes_it_from_the_log(
    root: str, instance: DagsterInstance, tmp_path: Path
) -> None:
    location, watch = BY_DAY.location(root), Watch(root, instance, TABLE)
    put(location, {FIRST: [1]})
    copy = Path(shutil.copytree(location, tmp_path / "copy"))
    put(location, {SECOND: [2]})
    watch.tick()
    assert watch.cursor is not None
    cursor = json.loads(watch.cursor)
    assert cursor["feed/days"].pop("entry") == commit_identity(location, 1)
    watch.cursor = json.dumps(cursor)
    assert watch.tick() == []
    assert json.loads(watch.cursor)["feed/days"]["entry"] == commit_identity(location, 1)
    put_back(location, copy)
    put(location, {FIRST: [3]})
    assert told(watch.tick()) == {FIRST: (1, 2), SECOND: (1, 0)}


def test_a_restore_by_our_own_command_is_told_though_its_note_names_a_run(root: str, instance: DagsterInstance) -> None:
    location, watch = BY_DAY.location(root), Watch(root, instance, TABLE)
    put(location, {FIRST: [1]})
    watch.tick()
    put(location, {SECOND: [1]}, {"pipeline": FORMAT, "run_id": "restore-1", "asset": None})
    assert told(watch.tick()) == {SECOND: (1, 1)}


def test_keys_of_several_dimensions_and_dynamic_ones_are_found_and_a_value_without_a_key_is_passed_over(
    root: str, instance: DagsterInstance
) -> None:
    letters = DynamicPartitionsDefinition(name="letters")
    partitions_def = MultiPartitionsDefinition({"day": DAYS, "letter": letters})
    types = {"letter": StringType(), "day": DateType(), "n": LongType()}
    schema = StructType([StructField(name, data_type) for name, data_type in types.items()])
    cells = Dataset(name="cells", schema=schema, partition_by=("letter", "day"))
    instance.add_dynamic_partitions("letters", ["A", "B"])
    days = pa.array([dt.date(2026, 1, 2), dt.date(2026, 1, 3), dt.date(2026, 1, 3)], pa.date32())
    table = pa.table({"letter": ["A", "B", "unknown"], "day": days, "n": [1, 2, 3]})
    write_deltalake(cells.location(root), table, partition_by=["letter", "day"])
    watch = Watch(root, instance, AssetTable(key=AssetKey("cells"), dataset=cells, partitions_def=partitions_def))
    events = watch.tick()
    assert told(events) == {f"{FIRST}|A": (0, 1), f"{SECOND}|B": (0, 1)}
    assert events[0].tags["dagster/partition/letter"] in ("A", "B")
    assert instance.get_materialized_partitions(AssetKey("cells")) == {f"{FIRST}|A", f"{SECOND}|B"}


def test_where_a_removed_file_does_not_name_its_partition_every_reported_partition_is_told(
    root: str, instance: DagsterInstance
) -> None:
    location, watch = BY_DAY.location(root), Watch(root, instance, TABLE)
    put(location, {FIRST: [1], SECOND: [2]})
    watch.tick()
    DeltaTable(location).delete("n = 2")
    path = Path(commit_file(location, 1))
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        line.get("remove", {}).pop("partitionValues", None)
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert told(watch.tick()) == {FIRST: (1, 1), SECOND: (1, 0)}


def test_a_table_that_can_not_be_read_keeps_no_other_from_being_told(root: str, instance: DagsterInstance) -> None:
    broken = Dataset(name="broken", schema=BY_DAY.schema)
    put(broken.location(root), {FIRST: [1]})
    put(BY_DAY.location(root), {FIRST: [1]})
    path = Path(commit_file(broken.location(root), 0))
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole[: len(whole) // 2], encoding="utf-8")
    watch = Watch(root, instance, AssetTable(key=AssetKey("broken"), dataset=broken), TABLE)
    assert told(watch.tick()) == {FIRST: (0, 1)}
    path.write_text(whole, encoding="utf-8")
    assert [event.asset_key.to_user_string() for event in watch.tick()] == ["broken"]


def test_the_definitions_watch_every_table_that_an_asset_writes_also_that_of_a_plain_one(
    settings: Settings, instance: DagsterInstance
) -> None:
    @dataset_asset(BY_DAY, partitions_def=DAYS)
    def days() -> None: ...

    parts = StaticPartitionsDefinition(["a"])

    @asset(partitions_def=parts, metadata={"partition_expr": "part"}, io_manager_key=IO_MANAGER)
    def plain() -> None: ...

    @asset
    def elsewhere() -> None: ...

    definitions = build_definitions(settings, datasets=[BY_DAY], assets=[days, plain, elsewhere])
    sensor = definitions.resolve_sensor_def("table_versions")
    put(BY_DAY.location(settings.root), {SECOND: [1]})
    write_deltalake(f"{settings.root}/plain", pa.table({"part": ["a", "b"], "n": [1, 2]}), partition_by=["part"])
    data = sensor.evaluate_tick(build_sensor_context(instance=instance, definitions=definitions))
    assert {(e.asset_key.to_user_string(), e.partition) for e in data.asset_events} == {
        ("feed/days", SECOND), ("plain", "a"),
    }  # fmt: skip


MODULE = """
import dagster as dg
from pyspark.sql.types import DateType, LongType, StructField, StructType
from pipeline.dataset import Dataset
from pipeline.orchestration import build_definitions
from pipeline.orchestration import dataset_asset
from pipeline.settings import load_settings

DAYS = Dataset(
    name="feed/days", schema=StructType([StructField("n", LongType()), StructField("day", DateType())]),
    partition_by=("day",),
)

@dataset_asset(DAYS, partitions_def=dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-11"))
def days() -> None: ...

@dg.definitions
def defs():
    return build_definitions(load_settings(), datasets=[DAYS], assets=[days])
"""


def test_what_a_command_has_done_is_reported_at_once_and_by_the_sensor_not_again(
    tmp_path: Path, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = str(tmp_path / "tables")
    monkeypatch.setenv("PIPELINE_ROOT", root)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reported_days.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text('[tool.dagster]\nmodule_name = "reported_days"\n', encoding="utf-8")
    location = BY_DAY.location(root)
    for numbers in ([1], [2]):
        put(location, {FIRST: numbers, SECOND: numbers}, {"pipeline": FORMAT, "run_id": "gone", "asset": "feed/days"})
    DeltaTable(location).restore(0)
    assert report(["feed/days"], tmp_path, instance) == 2
    assert report(["feed/days"], tmp_path, instance) == report(["other"], tmp_path, instance) == 0
    assert instance.get_materialized_partitions(KEY) == {FIRST, SECOND}
    assert Watch(root, instance, TABLE).tick() == []
