"""Sensors on real folders and real logs, without a JVM; the tables are written by another engine than Spark."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from dagster import AssetSelection, DagsterInstance, DailyPartitionsDefinition, SkipReason, build_sensor_context
from deltalake import CommitProperties, DeltaTable, write_deltalake
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Dataset
from pipeline.definitions import shipped_definitions
from pipeline.delta.log.commits import FORMAT, commit_identity
from pipeline.orchestration.automation.sensors import RUNS_PER_TICK, landing_sensor, table_sensor
from pipeline.settings import Settings

DAILY = DailyPartitionsDefinition("2026-01-01", end_date="2026-03-01")
FED = Dataset(
    name="fed/table",
    schema=StructType([StructField("n", LongType()), StructField("area", StringType())]),
    partition_by=("area",),
)


class Watch:
    """A sensor and its cursor, tick after tick."""

    def __init__(self, sensor) -> None:
        self.sensor = sensor
        self.cursor: str | None = None

    def tick(self):
        with DagsterInstance.ephemeral() as instance:
            context = build_sensor_context(instance=instance, cursor=self.cursor)
            result = self.sensor(context)
            self.cursor = context.cursor if isinstance(result, SkipReason) else result.cursor
        return result

    def keys(self) -> list[str]:
        result = self.tick()
        return [] if isinstance(result, SkipReason) else [request.partition_key for request in result.run_requests]


@pytest.fixture
def landing(tmp_path: Path) -> Watch:
    sensor = landing_sensor(
        "landed",
        folder=str(tmp_path / "landing"),
        key_of=lambda name: name.removesuffix(".csv") if name.endswith(".csv") else None,
        has_key=DAILY.has_partition_key,
        selection=AssetSelection.assets("any"),
    )
    return Watch(sensor)


def deliver(folder: Path, name: str, content: str = "x") -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(content, encoding="utf-8")


def test_a_folder_that_is_not_there_yet_asks_for_nothing(landing: Watch) -> None:
    assert landing.keys() == []


def test_a_new_file_asks_for_its_day_once(landing: Watch, tmp_path: Path) -> None:
    deliver(tmp_path / "landing", "2026-01-05.csv")
    assert landing.keys() == ["2026-01-05"]
    assert landing.keys() == []


def test_a_file_that_is_delivered_again_asks_for_its_day_again_with_another_run_key(
    landing: Watch, tmp_path: Path
) -> None:
    deliver(tmp_path / "landing", "2026-01-05.csv")
    first = landing.tick().run_requests[0]
    deliver(tmp_path / "landing", "2026-01-05.csv", "longer")
    second = landing.tick().run_requests[0]
    assert (first.partition_key, second.partition_key) == ("2026-01-05", "2026-01-05")
    assert first.run_key != second.run_key


def test_a_change_of_content_alone_is_seen_by_the_time_of_change(landing: Watch, tmp_path: Path) -> None:
    deliver(tmp_path / "landing", "2026-01-05.csv", "a")
    landing.tick()
    deliver(tmp_path / "landing", "2026-01-05.csv", "b")
    os.utime(tmp_path / "landing" / "2026-01-05.csv", ns=(0, 1))
    assert landing.keys() == ["2026-01-05"]


def test_files_that_are_being_written_or_are_none_of_ours_ask_for_nothing(landing: Watch, tmp_path: Path) -> None:
    for name in ("_2026-01-05.csv.tmp", ".2026-01-06.csv", "README.txt", "2025-01-01.csv", "notes.csv"):
        deliver(tmp_path / "landing", name)
    result = landing.tick()
    assert isinstance(result, SkipReason)
    assert "2025-01-01.csv" in result.skip_message
    assert landing.keys() == []


def test_many_files_are_asked_for_in_portions_and_none_is_left_out(landing: Watch, tmp_path: Path) -> None:
    days = [f"2026-01-{day:02d}" for day in range(1, 32)]
    for day in days:
        deliver(tmp_path / "landing", f"{day}.csv")
    first, second = landing.keys(), landing.keys()
    assert len(first) == RUNS_PER_TICK
    assert first + second == days
    assert landing.keys() == []


def append(root: str, n: int, area: str, note: Mapping[str, Any] | None = None) -> None:
    table = pyarrow.table({"n": pyarrow.array([n], pyarrow.int64()), "area": [area]})
    said = None if note is None else CommitProperties(custom_metadata={"userMetadata": json.dumps(note)})
    write_deltalake(FED.location(root), table, mode="append", partition_by=["area"], commit_properties=said)


def versions(result) -> list[int]:
    return [event.metadata["delta/version"].value for event in result.asset_events]


def test_each_commit_that_changes_rows_becomes_a_materialization_with_its_data_version(root: str) -> None:
    watch = Watch(table_sensor([FED], root))
    assert isinstance(watch.tick(), SkipReason)
    append(root, 1, "a")
    append(root, 2, "b")
    result = watch.tick()
    assert versions(result) == [0, 1]
    table_id = json.loads(watch.cursor)["fed/table"]["table_id"]
    commit = commit_identity(FED.location(root), 1)
    assert commit is not None
    assert result.asset_events[1].tags == {"dagster/data_version": f"{table_id}/1/{commit[:12]}"}
    assert result.asset_events[1].asset_key.path == ["fed", "table"]
    assert isinstance(watch.tick(), SkipReason)


def test_optimize_vacuum_and_properties_are_passed_over(root: str) -> None:
    watch = Watch(table_sensor([FED], root))
    append(root, 1, "a")
    append(root, 2, "a")
    watch.tick()
    table = DeltaTable(FED.location(root))
    table.optimize.compact()
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 40 days"})
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert isinstance(watch.tick(), SkipReason)
    append(root, 3, "a")
    assert versions(watch.tick()) == [table.version() + 1]


def test_of_a_table_that_an_asset_writes_too_only_what_no_run_has_reported_is_told(root: str) -> None:
    watch = Watch(table_sensor([], root, shared=[FED]))
    append(root, 1, "a")
    for note in ({"run_id": "of a run", "asset": "fed/table"}, {"run_id": None, "mark": {"writer": "of a sink"}}):
        append(root, 2, "a", note={"pipeline": FORMAT} | note)
    assert versions(watch.tick()) == [0, 2]
    assert isinstance(watch.tick(), SkipReason)


def test_a_table_that_is_made_anew_is_read_from_its_start(root: str) -> None:
    watch = Watch(table_sensor([FED], root))
    for n in range(3):
        append(root, n, "a")
    watch.tick()
    shutil.rmtree(FED.location(root))
    append(root, 9, "z")
    assert versions(watch.tick()) == [0]


def test_the_shipped_sensor_watches_the_landing_folder_of_the_settings(settings: Settings) -> None:
    repository = shipped_definitions(settings).get_repository_def()
    sensor = repository.get_sensor_def("flights_arrived")
    flights = Path(settings.landing) / "flights"
    flights.mkdir(parents=True)
    deliver(flights, "2013-01-05.csv")
    with DagsterInstance.ephemeral() as instance:
        data = sensor.evaluate_tick(build_sensor_context(instance=instance, definitions=shipped_definitions(settings)))
    assert [request.partition_key for request in data.run_requests] == ["2013-01-05"]
