"""Twenty million rows in and out through a driver of 1 GB, as Spark's frame and as Arrow batches.

Target: every row arrives, once. The rows a second and the memory of this process are shown.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset
from pipeline.delta.frames.convert import ARROW_READER, from_spark, to_spark
from pipeline.delta.frames.staging import STAGING
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.read.version import read
from pipeline.delta.spark.session import open_session
from pipeline.delta.write.write import write
from pipeline.settings import load_settings
from pipeline_tests.benchmarks.results import measured
from pipeline_tests.benchmarks.turns import is_quick

ROWS, BATCH = 500_000 if is_quick() else 20_000_000, 100_000
SCHEMA = StructType(
    [StructField("id", LongType()), StructField("value", DoubleType()), StructField("text", StringType())]
)
ARROW = pa.schema([("id", pa.int64()), ("value", pa.float64()), ("text", pa.string())])
BY_SPARK, BY_ARROW = (Dataset(name=name, schema=SCHEMA, write=Append()) for name in ("by_spark", "by_arrow"))
COLUMNS = ("id", "CAST(id AS DOUBLE) AS value", "concat('row ', id) AS text")
NOTE = CommitNote(mark=Mark(writer="bench"))


class Rates:
    """Times a block of all rows, and reports its rows a second."""

    def __init__(self, title: str) -> None:
        self.title = f"{ROWS} rows, driver of 1 GB: {title}"

    def __enter__(self) -> None:
        self.started = time.perf_counter()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            seconds = time.perf_counter() - self.started
            measured(self.title, [ROWS / seconds / 1e3], "thousand rows/s", note=f"{seconds:.1f} s")


def by_spark(session: SparkSession, root: str) -> None:
    table = BY_SPARK.at(root)
    with Rates("a Spark frame in"):
        write(session.range(ROWS).selectExpr(*COLUMNS), table=table, note=NOTE)
    digest = ("count(*)", "sum(CAST(xxhash64(id, value, text) AS DECIMAL(38, 0)))")
    with Rates("a Spark frame out, to a count and a hash"):
        (found,) = read(session, table).frame.selectExpr(*digest).collect()
    (wanted,) = session.range(ROWS).selectExpr(*COLUMNS).selectExpr(*digest).collect()
    assert (found == wanted, found[0]) == (True, ROWS)


def batches() -> Iterator[Any]:
    for start in range(0, ROWS, BATCH):
        numbers = pa.array(np.arange(start, start + BATCH))
        texts = pc.binary_join_element_wise("row", numbers.cast(pa.string()), " ")
        yield pa.record_batch([numbers, numbers.cast(pa.float64()), texts], schema=ARROW)


def by_arrow(session: SparkSession, root: str) -> None:
    table, staging = BY_ARROW.at(root), f"{root}/{STAGING}"
    with Rates("Arrow batches in"):
        reader = pa.RecordBatchReader.from_batches(ARROW, batches())
        with to_spark(reader, BY_ARROW, lambda: session, staging) as frame:
            write(frame, table=table, note=NOTE)
    count = total = letters = 0
    with Rates("Arrow batches out, to a count and sums"):
        frame = read(session, table).frame
        for batch in from_spark(frame, ARROW_READER, BY_ARROW, max_bytes=1, staging=staging):
            count += batch.num_rows
            total += pc.sum(batch.column(0)).as_py()
            letters += pc.sum(pc.utf8_length(batch.column(2))).as_py()
    wanted = sum(pc.sum(pc.utf8_length(batch.column(2))).as_py() for batch in batches())
    assert (count, total, letters) == (ROWS, ROWS * (ROWS - 1) // 2, wanted)


def main() -> None:
    settings = replace(load_settings().spark, master="local[2]", remote=None, driver_memory="1g")
    with tempfile.TemporaryDirectory() as name:
        session = open_session(settings)
        try:
            heap = session._jvm.java.lang.Runtime.getRuntime().maxMemory() / 2**20
            by_spark(session, f"{Path(name)}/tables")
            by_arrow(session, f"{Path(name)}/tables")
        finally:
            session.stop()
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    title = f"{ROWS} rows, driver of 1 GB: rows lost or doubled"
    measured(title, [0], "rows", 0, note=f"heap {heap:.0f} MB; this process at most {resident:.0f} MB")


if __name__ == "__main__":
    main()
