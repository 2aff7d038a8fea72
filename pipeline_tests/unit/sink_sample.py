"""What the tests of a sink's parts share: a dataset of updates, its records, and a receiver in a folder."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql.types import (
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pipeline.dataset import Dataset, InsertNew
from pipeline.delta.sink.metrics import SinkCounters
from pipeline.delta.sink.receiver import Receiver, SinkSettings
from pipeline.errors import SinkStoppedError
from pipeline.settings import Settings, SparkSettings

UPDATES = Dataset(
    name="updates",
    schema=StructType(
        [
            StructField("id", LongType(), False), StructField("symbol", StringType(), False),
            StructField("price", DoubleType()), StructField("lots", IntegerType()),
            StructField("fee", DecimalType(10, 2)), StructField("day", DateType()),
            StructField("at", TimestampType(), False),
        ]
    ),
    keys=("id",),
    partition_by=("symbol",),
    write=InsertNew(),
)  # fmt: skip
AT = dt.datetime(2026, 1, 31, 12, tzinfo=dt.timezone.utc)
WRITER = "test"
NOBODY = "sc://127.0.0.1:1"
STOPPED = SinkStoppedError(dataset="updates", writer=WRITER, reason="it was stopped")


def update(number: int, **values: Any) -> dict[str, Any]:
    """A record that fits."""
    return {"id": number, "symbol": "ABC", "price": 1.5, "at": AT} | values


def settings_in(folder: Path) -> Settings:
    """Settings of a project in a folder, whose Spark does not answer."""
    return Settings(
        project=folder, root=str(folder / "tables"), landing=str(folder), spark=SparkSettings(remote=NOBODY)
    )


def receiver(folder: Path, dataset: Dataset = UPDATES, **settings: Any) -> Receiver:
    """A receiver that keeps its journal and its dead letters in a folder."""
    return Receiver(
        dataset, WRITER, SinkSettings(**settings), journal=folder / "journal", dead_letters=folder / "letters",
        meter=SinkCounters(), on_segment=lambda: None,
    )  # fmt: skip


@contextmanager
def receiving(folder: Path, dataset: Dataset = UPDATES, **settings: Any) -> Iterator[Receiver]:
    """A receiver that runs for as long as the block does."""
    opened = receiver(folder, dataset, **settings)
    opened.start()
    try:
        yield opened
    finally:
        opened.stop(STOPPED)
        opened.journal.close()


def letters_in(folder: Path) -> list[dict[str, Any]]:
    """The dead letters of all files, in the order of their names."""
    files = sorted((folder / "letters").glob("*.ndjson"))
    return [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]
