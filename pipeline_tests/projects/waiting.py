"""Two assets that say that they have come so far by a file `here`, and wait while a file `armed` lies beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from dagster import Definitions, definitions
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.dataset import Dataset
from pipeline.orchestration import DeltaSparkResource, build_definitions, dataset_asset
from pipeline.settings import load_settings

HERE = Path(__file__).parent
NUMBERS = StructType([StructField("n", LongType())])
FIRST = Dataset(name="first", schema=NUMBERS)
SECOND = Dataset(name="second", schema=NUMBERS, reads=("first",))


def wait_here(folder: Path) -> None:
    while (folder / "armed").exists():
        (folder / "here").touch()
        time.sleep(0.1)


@dataset_asset(FIRST)
def first(spark: DeltaSparkResource) -> DataFrame:
    folder, wait = HERE, wait_here
    wait.__module__ = "__main__"  # so that it travels to Spark by value

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wait(folder)
        yield from batches

    frame: DataFrame = spark.spark_session.range(3).selectExpr("id AS n").mapInArrow(rows, "n BIGINT")
    return frame


@dataset_asset(SECOND)
def second(first: DataFrame) -> DataFrame:
    wait_here(HERE)
    return first


@definitions
def defs() -> Definitions:
    return build_definitions(load_settings(), datasets=[FIRST, SECOND], assets=[first, second])
