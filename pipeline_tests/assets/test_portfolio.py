"""The portfolio's frame functions, and its assets on what a sink has written."""

import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance, materialize
from pyspark.sql import DataFrame, SparkSession

from pipeline.assets.aviation import LandingFolder
from pipeline.assets.portfolio import SNAPSHOT_FILE, assets, breaks_of, newest_of
from pipeline.assets.portfolio_datasets import (
    POSITION_BREAKS,
    POSITION_UPDATES,
    POSITIONS,
    POSITIONS_FROM_UPDATES,
)
from pipeline.assets.portfolio_updates import PositionStream, newest_positions, position_of, stored_updates, updates
from pipeline.dataset import Dataset
from pipeline.delta.buffer import Item
from pipeline.delta.fit import select_list
from pipeline.delta.intake import Intake
from pipeline.delta.sink import DeltaSink, SinkSettings
from pipeline.orchestration import DeltaIOManager, DeltaSparkResource, dataset_spec
from pipeline.orchestration.dataset_asset import IO_MANAGER
from pipeline.settings import Settings
from pipeline_tests.delta.sample import rows_of

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
        for number, update in enumerate(updates(9, COUNT)):
            handler.on_update(update)
            if number == COUNT // 2:
                one.flush()
                two.flush()
    lines = ["conid,symbol,quantity,price"]
    for conid, update in newest_positions(updates(9, COUNT)).items():
        quantity = update["quantity"] + (5 if conid == 1_000 else 0)
        lines.append(f"{conid},{update['symbol']},{quantity},{update['price']}")
    file = Path(settings.landing) / "reference" / "broker_positions.csv"
    file.parent.mkdir(parents=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return settings


def test_positions_from_the_stored_updates_are_those_of_the_sink_and_the_one_break_is_found(streamed: Settings) -> None:
    spark = DeltaSparkResource.from_settings(streamed.spark)
    resources = {
        "spark": spark,
        IO_MANAGER: DeltaIOManager(root=streamed.root, spark=spark),
        "landing": LandingFolder(uri=streamed.landing),
    }
    sources = [dataset_spec(POSITION_UPDATES), dataset_spec(POSITIONS)]
    result = materialize([*sources, *assets], instance=DagsterInstance.ephemeral(), resources=resources)
    assert result.success
    assert rows_of(POSITIONS_FROM_UPDATES, streamed.root) == rows_of(POSITIONS, streamed.root)
    expected = [position_of(update) for update in newest_positions(updates(9, COUNT)).values()]
    assert len(rows_of(POSITIONS, streamed.root)) == len(expected)
    (found,) = rows_of(POSITION_BREAKS, streamed.root)
    assert found[:2] == (1_000, "quantity")
    assert found[3] - found[2] == 5
