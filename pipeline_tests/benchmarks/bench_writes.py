"""The price of the guarantees: the IO manager's writes against bare delta-spark, with the same options and frames.

    pip install -e ".[bench]"
    python -m pytest pipeline_tests/benchmarks/bench_writes.py --benchmark-columns=median,iqr,rounds

Each group holds the same write by both; the number in brackets behind a median is its ratio to the lesser one. Targets
for the medians of ours: 1.10 of the bare ones for 2 million rows, 1.3 for 1 000, 1.2 for the merge.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetKey, build_output_context
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset, Merge
from pipeline.delta.commit import CommitNote, Mark
from pipeline.delta.write import write
from pipeline.orchestration import DeltaIOManager, DeltaSparkResource, dataset_metadata
from pipeline.settings import SparkSettings

PARTITIONS = 5
SCHEMA = StructType(
    [
        StructField("part", LongType(), False),
        StructField("id", LongType(), False),
        StructField("at", LongType()),
        StructField("text", StringType()),
    ]
)
FEED_ON = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"


def rows(spark: SparkSession, count: int, at: int = 0) -> DataFrame:
    """Rows over all partitions; `at` tells one batch from another."""
    text = "concat('row ', id, ' of ', part) AS text"
    return spark.range(count).selectExpr(f"id % {PARTITIONS} AS part", "id", f"{at}L AS at").selectExpr("*", text)


def dataset(name: str, **declaration: Any) -> Dataset:
    return Dataset(**({"name": name, "schema": SCHEMA, "partition_by": ("part",)} | declaration))


def measure(benchmark: Any, run: Callable[[int], None], rounds: int) -> None:
    """Each round has a number of its own; the first two warm up."""
    numbers = iter(range(10_000))
    benchmark.pedantic(run, setup=lambda: ((next(numbers),), {}), rounds=rounds, warmup_rounds=2)


def bare_table(spark: SparkSession, location: str) -> str:
    columns = "part BIGINT NOT NULL, id BIGINT NOT NULL, at BIGINT, text STRING"
    spark.sql(f"CREATE TABLE delta.`{location}` ({columns}) USING delta PARTITIONED BY (part) {FEED_ON}")
    return location


@pytest.mark.parametrize("by", ["bare", "io manager"])
@pytest.mark.parametrize(("count", "rounds"), [(1_000, 15), (2_000_000, 5)], ids=["1 000 rows", "2 million rows"])
def test_append(
    benchmark: Any,
    classic: SparkSession,
    spark_settings: SparkSettings,
    tmp_path: Path,
    count: int,
    rounds: int,
    by: str,
) -> None:
    benchmark.group = f"append of {count} rows, without an identifier"
    if by == "bare":
        location = bare_table(classic, str(tmp_path / "bare"))
        measure(
            benchmark, lambda n: rows(classic, count, n).write.format("delta").mode("append").save(location), rounds
        )
        return
    declared = dataset("ours", write=Append())
    manager = DeltaIOManager(root=str(tmp_path), spark=DeltaSparkResource.from_settings(spark_settings))
    metadata = dataset_metadata(declared)

    def run(number: int) -> None:
        context = build_output_context(
            asset_key=AssetKey(declared.asset_key), definition_metadata=metadata, run_id=str(number), name="result"
        )
        manager.handle_output(context, rows(classic, count, number))

    measure(benchmark, run, rounds)


@pytest.mark.parametrize("by", ["bare", "write"])
@pytest.mark.parametrize(("count", "rounds"), [(1_000, 15), (2_000_000, 5)], ids=["1 000 rows", "2 million rows"])
def test_append_exactly_once(
    benchmark: Any, classic: SparkSession, tmp_path: Path, count: int, rounds: int, by: str
) -> None:
    benchmark.group = f"append of {count} rows under an identifier"
    if by == "bare":
        location = bare_table(classic, str(tmp_path / "bare"))

        def bare(number: int) -> None:
            writer = rows(classic, count, number).write.format("delta").mode("append")
            writer.option("txnAppId", "bare").option("txnVersion", number).save(location)

        measure(benchmark, bare, rounds)
        return
    declared = dataset("ours", write=Append())

    def ours(number: int) -> None:
        note = CommitNote(mark=Mark(writer="ours", epoch=number))
        frame = rows(classic, count, number)
        assert write(frame, dataset=declared, location=declared.location(str(tmp_path)), note=note).committed

    measure(benchmark, ours, rounds)


@pytest.mark.parametrize("by", ["bare", "write"])
def test_merge(benchmark: Any, classic: SparkSession, tmp_path: Path, by: str) -> None:
    benchmark.group = "merge of 500 rows into 200 000"
    declared = dataset("table", keys=("part", "id"), write=Merge(order_by="at"))
    location = bare_table(classic, declared.location(str(tmp_path)))
    rows(classic, 200_000).write.format("delta").mode("append").save(location)
    parts = ", ".join(map(str, range(PARTITIONS)))

    def bare(number: int) -> None:
        rows(classic, 500, number + 1).createOrReplaceTempView("changed")
        classic.sql(f"""
            MERGE INTO delta.`{location}` AS target USING changed AS source
            ON target.part = source.part AND target.id = source.id AND target.part IN ({parts})
            WHEN MATCHED AND source.at > target.at THEN UPDATE SET *
            WHEN NOT MATCHED THEN INSERT *""").collect()  # fmt: skip

    def ours(number: int) -> None:
        note = CommitNote(mark=Mark(writer="ours", epoch=number))
        result = write(rows(classic, 500, number + 1), dataset=declared, location=location, note=note)
        assert result.rows_updated == 500

    measure(benchmark, bare if by == "bare" else ours, 9)
