"""The portfolio's frame functions, and its assets on what a sink has written."""

import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pytest
from dagster import DagsterInstance, materialize
from pyspark.sql import DataFrame, SparkSession

from pipeline.assets.aviation.assets import LandingFolder
from pipeline.assets.portfolio.assets import SNAPSHOT_FILE, assets, breaks_of, newest_of, position_updates
from pipeline.assets.portfolio.datasets import (
    POSITION_BREAKS,
    POSITION_UPDATES,
    POSITIONS,
    POSITIONS_FROM_UPDATES,
)
from pipeline.assets.portfolio.updates import PositionStream, newest_positions, position_of, stored_updates, updates
from pipeline.dataset import Dataset
from pipeline.delta.frames.fit import select_list
from pipeline.delta.frames.source_files import stream_json_files
from pipeline.delta.sink.buffer import Item
from pipeline.delta.sink.intake import Intake
from pipeline.delta.sink.sink import DeltaSink, SinkSettings
from pipeline.errors import CheckViolationError, FrameFailedError, NullViolationError, PipelineError, SourceFileError
from pipeline.orchestration import DeltaIOManager, DeltaSparkResource, dataset_spec
from pipeline.orchestration.dataset_asset import IO_MANAGER
from pipeline.settings import Settings
from pipeline_tests.delta.sample import rows_of
from pipeline_tests.orchestration.conftest import materializations
from pipeline_tests.refusals import refused
from pipeline_tests.tiers import first_is_quick

COUNT = 800


def frame(spark: SparkSession, dataset: Dataset, records: list[dict[str, Any]]) -> DataFrame:
    intake = Intake(dataset, allow_nan=False, record_bytes=1 << 20)
    (found,) = intake.take([Item(payload=record, rows=1, size_bytes=0) for record in records]).tables
    return spark.createDataFrame(found)


def test_the_newest_update_of_each_contract_is_its_position_whatever_the_order(classic: SparkSession) -> None:
    stream = list(stored_updates(updates(4, 600, contracts=20)).values())
    random.Random(1).shuffle(stream)
    found = newest_of(frame(classic, POSITION_UPDATES, stream))
    select_list(POSITIONS_FROM_UPDATES, found.schema)  # fits
    rows = {row["conid"]: row.asDict(recursive=True) for row in found.collect()}
    expected = newest_positions(stream)
    assert {conid: row["updated"]["update_id"] for conid, row in rows.items()} == {
        conid: update["update_id"] for conid, update in expected.items()
    }
    assert all(rows[conid]["price"] == update["price"] for conid, update in expected.items())


@pytest.mark.exhaustive
def test_breaks_are_told_by_kind_and_what_agrees_is_not(classic: SparkSession) -> None:
    ours = {
        1: (Decimal(10), 5.0), 2: (Decimal(10), 5.0), 3: (Decimal(10), 5.0), 4: (Decimal(10), 5.0),
        5: (Decimal(10), 5.0), 6: (Decimal(0), 5.0), 7: (Decimal(10), None), 8: (Decimal(10), None),
        9: (Decimal(10), 5.0),
    }  # fmt: skip
    theirs = [
        (1, "IBM", Decimal("10.00005"), 5.004), (2, "IBM", Decimal(11), 5.0), (3, "IBM", Decimal(10), 5.1),
        (4, "IBM", Decimal(-10), 9.0), (7, "IBM", Decimal(10), None), (8, "IBM", Decimal(10), 1.0),
        (9, "IBM", Decimal(10), 5.0), (9, "IBM", Decimal(10), 5.0), (20, "IBM", Decimal(1), 5.0),
        (21, "IBM", Decimal(0), 5.0),
    ]  # fmt: skip
    stamp = {"at": "2026-01-01T00:00:00Z", "update_id": 1}
    positions = frame(
        classic, POSITIONS,
        [{"conid": c, "symbol": "IBM", "quantity": q, "price": p, "updated": stamp} for c, (q, p) in ours.items()],
    )  # fmt: skip
    found = breaks_of(positions, classic.createDataFrame(theirs, SNAPSHOT_FILE))
    select_list(POSITION_BREAKS, found.schema)
    assert sorted((row["conid"], row["kind"]) for row in found.collect()) == [
        (2, "quantity"), (3, "price"), (4, "price"), (4, "quantity"), (5, "extra"), (8, "price"), (9, "twice"),
        (20, "missing"),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def streamed(classic: SparkSession, tmp_path_factory: pytest.TempPathFactory, spark_settings: Any) -> Settings:
    """Both tables as sinks have written them from one stream, and a snapshot that agrees but for one contract."""
    folder = tmp_path_factory.mktemp("portfolio")
    settings = Settings(
        project=folder, root=str(folder / "tables"), landing=str(folder / "landing"), spark=spark_settings
    )
    options = SinkSettings(flush_seconds=600)
    with (
        DeltaSink(POSITION_UPDATES, "b", settings, options) as one,
        DeltaSink(POSITIONS, "b", settings, options) as two,
    ):
        handler = PositionStream(one, two)
        for update in updates(9, COUNT):
            handler.on_update(update)
    lines = ["conid,symbol,quantity,price"]
    for conid, update in newest_positions(updates(9, COUNT)).items():
        quantity = update["quantity"] + (5 if conid == 1_000 else 0)
        lines.append(f"{conid},{update['symbol']},{quantity},{update['price']}")
    file = Path(settings.landing) / "reference" / "broker_positions.csv"
    file.parent.mkdir(parents=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return settings


@pytest.mark.exhaustive
def test_positions_from_the_stored_updates_are_those_of_the_sink_and_the_one_break_is_found(streamed: Settings) -> None:
    spark = DeltaSparkResource.from_settings(streamed.spark)
    resources = {
        "spark": spark,
        IO_MANAGER: DeltaIOManager(root=streamed.root, spark=spark),
        "landing": LandingFolder(uri=streamed.landing),
    }
    result = materialize(
        [dataset_spec(POSITIONS), *assets], selection=["positions_from_updates", "position_breaks"],
        instance=DagsterInstance.ephemeral(), resources=resources,
    )  # fmt: skip
    assert result.success
    assert rows_of(POSITIONS_FROM_UPDATES, streamed.root) == rows_of(POSITIONS, streamed.root)
    expected = [position_of(update) for update in newest_positions(updates(9, COUNT)).values()]
    assert len(rows_of(POSITIONS, streamed.root)) == len(expected)
    (found,) = rows_of(POSITION_BREAKS, streamed.root)
    assert found[:2] == (1_000, "quantity")
    assert found[3] - found[2] == 5


def deliver(landing: LandingFolder, name: str, stream: list[dict[str, Any]]) -> Path:
    path = Path(landing.folder("position_updates")) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(update, default=str) + "\n" for update in stream), encoding="utf-8")
    return path


@pytest.mark.exhaustive
def test_updates_that_come_as_files_and_through_a_sink_are_stored_once_and_taken_up_once(
    classic: SparkSession, settings: Settings
) -> None:
    spark = DeltaSparkResource.from_settings(settings.spark)
    landing = LandingFolder(uri=settings.landing)
    resources = {"spark": spark, IO_MANAGER: DeltaIOManager(root=settings.root, spark=spark), "landing": landing}
    stream = list(updates(5, 300, contracts=20))
    with DagsterInstance.ephemeral() as instance:

        def run() -> dict[str, Any]:
            chosen = ["position_updates", "positions_from_updates"]
            result = materialize(
                [dataset_spec(POSITIONS), *assets], selection=chosen, instance=instance, resources=resources
            )
            return dict(materializations(result, POSITION_UPDATES)[None])

        with DeltaSink(POSITION_UPDATES, "b", settings, SinkSettings(flush_seconds=600)) as sink:
            for update in stream[:150]:
                sink.on_update(update)
        deliver(landing, "first.ndjson", stream[100:250])
        deliver(landing, "_second.ndjson", stream[250:])  # is being written
        new = len(stored_updates(stream[:250])) - len(stored_updates(stream[:150]))
        told = run()
        assert (told["delta/rows_written"], told["delta/committed"]) == (new, True)
        assert [batch["rows"] for batch in told["delta/batches"]] == [new]
        again = run()
        assert (again["delta/rows_written"], again["delta/committed"], again["delta/batches"]) == (0, False, [])
        deliver(landing, "_second.ndjson", stream[250:]).rename(
            Path(landing.folder("position_updates")) / "second.ndjson"
        )
        assert run()["delta/committed"]
    numbers = [row["update_id"] for row in rows_as_dicts(POSITION_UPDATES, settings)]
    assert sorted(numbers) == sorted(stored_updates(stream))
    newest = {row["conid"]: row["updated"]["update_id"] for row in rows_as_dicts(POSITIONS_FROM_UPDATES, settings)}
    assert newest == {conid: update["update_id"] for conid, update in newest_positions(stream).items()}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("old", "new", "error"),
    first_is_quick(
        [
            ('"symbol": "', '"symbol": "X', CheckViolationError),
            ("{", "no json {", FrameFailedError),
            ('"price": ', '"price": "dear", "was": ', FrameFailedError),
            ('"conid"', '"con"', NullViolationError),
        ],
    ),
    ids=["an unknown symbol", "no JSON", "a text for a number", "no contract"],
)
def test_a_file_with_a_bad_line_stores_nothing_and_is_read_again_once_it_is_mended(
    classic: SparkSession, settings: Settings, old: str, new: str, error: type[PipelineError]
) -> None:
    spark = DeltaSparkResource.from_settings(settings.spark)
    landing = LandingFolder(uri=settings.landing)
    resources = {"spark": spark, IO_MANAGER: DeltaIOManager(root=settings.root, spark=spark), "landing": landing}
    file = deliver(landing, "a.ndjson", list(stored_updates(updates(5, 10)).values()))
    good = file.read_text(encoding="utf-8")
    lines = good.splitlines(keepends=True)
    file.write_text("".join([*lines[:3], lines[3].replace(old, new, 1), *lines[4:]]), encoding="utf-8")
    with DagsterInstance.ephemeral() as instance:
        with refused(error) as caught:
            materialize([position_updates], instance=instance, resources=resources)
        assert error is not FrameFailedError or file.name in str(caught.value)
        assert rows_of(POSITION_UPDATES, settings.root) == []
        file.write_text(good, encoding="utf-8")
        assert materialize([position_updates], instance=instance, resources=resources).success
    assert len(rows_of(POSITION_UPDATES, settings.root)) == len(lines)


def test_a_landing_folder_without_updates_is_refused_by_name(spark, tmp_path: Path) -> None:
    with pytest.raises(SourceFileError) as caught:
        stream_json_files(spark, str(tmp_path / "position_updates"), POSITION_UPDATES.schema)
    assert caught.value.path == f"{tmp_path}/position_updates"
    assert caught.value.problem == "the folder does not exist"


def rows_as_dicts(dataset: Dataset, settings: Settings) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = deltalake.DeltaTable(dataset.location(settings.root)).to_pyarrow_table().to_pylist()
    return found
