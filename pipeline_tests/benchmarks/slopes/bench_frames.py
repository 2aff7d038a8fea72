"""Frames of pandas, polars and Arrow into a table, against the same rows through `spark.createDataFrame(pandas)`.

Target: four times as fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset
from pipeline.delta.frames.convert import to_spark
from pipeline.delta.frames.staging import STAGING
from pipeline.delta.write.write import write
from pipeline_tests.benchmarks.results import compared
from pipeline_tests.benchmarks.turns import all_in_turns, is_quick
from pipeline_tests.delta.sample import note

ROWS = 100_000 if is_quick() else 1_000_000
SCHEMA = StructType(
    [StructField("id", LongType()), StructField("value", DoubleType()), StructField("text", StringType())]
)


def test_local_frames(classic: SparkSession, root: str, tmp_path: Path) -> None:
    numbers = np.arange(ROWS)
    texts = [f"row {number}" for number in range(ROWS)]
    arrow = pa.table({"id": numbers, "value": np.random.default_rng(1).random(ROWS), "text": texts})
    pandas = arrow.to_pandas()
    frames: dict[str, Any] = {"pandas": pandas, "polars": polars.from_arrow(arrow), "pyarrow": arrow}
    datasets = {kind: Dataset(name=kind, schema=SCHEMA, write=Append()) for kind in frames}

    def ours(kind: str) -> None:
        with to_spark(frames[kind], datasets[kind], lambda: classic, f"{root}/{STAGING}") as frame:
            assert write(frame, table=datasets[kind].at(root), note=note()).rows_written == ROWS

    def bare(_: int) -> None:
        frame = classic.createDataFrame(pandas)
        frame.write.format("delta").mode("append").save(str(tmp_path / "bare"))

    sides: dict[str, Any] = {kind: lambda _, kind=kind: ours(kind) for kind in frames}
    found = all_in_turns(10, sides | {"createDataFrame": bare})
    by_arrow = classic.conf.get("spark.sql.execution.arrow.pyspark.enabled")
    for kind in frames:
        pair = {kind: found[kind], "createDataFrame": found["createDataFrame"]}
        conf = f"spark.sql.execution.arrow.pyspark.enabled is {by_arrow}"
        compared(f"{ROWS} rows of {kind} into a table", pair, 0.25, note=conf)
