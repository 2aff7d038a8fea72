"""The price of the guarantees: the IO manager's writes against bare delta-spark, with the same options and frames.

    python -m pytest pipeline_tests/benchmarks/bench_writes.py -s

Targets for the medians of ours: 1.10 of the bare ones for 2 million rows, 1.3 for 1 000, 1.2 for the merge.
A write of a history: 1.5 of the merge of the same changes. An audit is compared with the same write without it, and
costs at most one pass over the rows: a scan that computes the frame.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from dagster import AssetKey, build_output_context
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Changelog, Dataset, Expect, History, Merge, RowCount
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.write.write import write
from pipeline.orchestration import DeltaIOManager, DeltaSparkResource, dataset_metadata
from pipeline.settings import SparkSettings
from pipeline_tests.benchmarks.results import compared, measured
from pipeline_tests.benchmarks.turns import all_in_turns, in_turns, warm

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


def bare_table(spark: SparkSession, location: str) -> str:
    columns = "part BIGINT NOT NULL, id BIGINT NOT NULL, at BIGINT, text STRING"
    spark.sql(f"CREATE TABLE delta.`{location}` ({columns}) USING delta PARTITIONED BY (part) {FEED_ON}")
    return location


COUNTS = pytest.mark.parametrize(
    ("count", "rounds", "wanted"), [(1_000, 30, 1.3), (2_000_000, 10, 1.1)], ids=["1 000 rows", "2 million rows"]
)


@COUNTS
def test_append(
    classic: SparkSession, spark_settings: SparkSettings, tmp_path: Path, count: int, rounds: int, wanted: float
) -> None:
    location, declared = bare_table(classic, str(tmp_path / "bare")), dataset("ours", write=Append())
    manager = DeltaIOManager(root=str(tmp_path), spark=DeltaSparkResource.from_settings(spark_settings))
    metadata = dataset_metadata(declared)

    def bare(number: int) -> None:
        rows(classic, count, number).write.format("delta").mode("append").save(location)

    def ours(number: int) -> None:
        context = build_output_context(
            asset_key=AssetKey(declared.asset_key), definition_metadata=metadata, run_id=str(number), name="result"
        )
        manager.handle_output(context, rows(classic, count, number))

    compared(f"append of {count} rows by the IO manager, without an identifier", in_turns(rounds, ours, bare), wanted)


@COUNTS
def test_append_exactly_once(classic: SparkSession, tmp_path: Path, count: int, rounds: int, wanted: float) -> None:
    location, declared = bare_table(classic, str(tmp_path / "bare")), dataset("ours", write=Append())

    def bare(number: int) -> None:
        writer = rows(classic, count, number).write.format("delta").mode("append")
        writer.option("txnAppId", "bare").option("txnVersion", number).save(location)

    def ours(number: int) -> None:
        note = CommitNote(mark=Mark(writer="ours", epoch=number))
        frame = rows(classic, count, number)
        assert write(frame, table=declared.at(str(tmp_path)), note=note).committed

    def parquet(number: int) -> None:
        files = str(tmp_path / "parquet")
        rows(classic, count, number).write.partitionBy("part").mode("append").parquet(files)

    found = all_in_turns(rounds, {"ours": ours, "bare": bare, "bare Parquet": parquet})
    compared(f"append of {count} rows under an identifier", found, wanted)


def test_merge(classic: SparkSession, tmp_path: Path) -> None:
    declared = dataset("ours", keys=("part", "id"), write=Merge(order_by="at"))
    locations = {name: bare_table(classic, str(tmp_path / name)) for name in ("ours", "bare")}
    for location in locations.values():
        rows(classic, 200_000).write.format("delta").mode("append").save(location)
    parts = ", ".join(map(str, range(PARTITIONS)))

    def bare(number: int) -> None:
        statement = f"""
            MERGE INTO delta.`{locations["bare"]}` AS target USING {{changed}} AS source
            ON target.part = source.part AND target.id = source.id AND target.part IN ({parts})
            WHEN MATCHED AND source.at > target.at THEN UPDATE SET *
            WHEN NOT MATCHED THEN INSERT *"""
        classic.sql(statement, changed=rows(classic, 500, number + 1)).collect()

    def ours(number: int) -> None:
        note = CommitNote(mark=Mark(writer="ours", epoch=number))
        frame = rows(classic, 500, number + 1)
        assert write(frame, table=declared.at(str(tmp_path)), note=note).rows_updated == 500

    compared("merge of 500 rows into 200 000", in_turns(34, ours, bare), 1.2)


def test_tables_side_by_side(classic: SparkSession, tmp_path: Path) -> None:
    """Seven small tables written by threads of one session, against one after the other."""
    names = [f"t{number}" for number in range(7)]

    def put(name: str, number: int) -> None:
        note = CommitNote(mark=Mark(writer=name, epoch=number))
        assert write(rows(classic, 1_000, number), table=dataset(name).at(str(tmp_path)), note=note).committed

    def threads(number: int) -> None:
        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(lambda name: put(name, 2 * number), names))

    def one_by_one(number: int) -> None:
        for name in names:
            put(name, 2 * number + 1)

    sides = {"threads": threads, "one after the other": one_by_one}
    compared("replace of 1 000 rows in each of seven tables, side by side", all_in_turns(12, sides))


def test_history(classic: SparkSession, tmp_path: Path) -> None:
    """500 changes into 200 000 current rows, as spans and as the newest row of each key."""
    log = Changelog(operation="op", sequence="at")
    span = (StructField("since", LongType(), False), StructField("until", LongType()))
    spans = dataset(
        "ours", keys=("part", "id"), schema=StructType([*SCHEMA.fields, *span]), partition_by=(),
        write=History(changelog=log, track=("text",), valid_from="since", valid_to="until"),
    )  # fmt: skip
    newest = dataset("bare", keys=("part", "id"), partition_by=(), write=Merge(changelog=log))

    def changes(count: int, at: int) -> DataFrame:
        return rows(classic, count, at).selectExpr("part", "id", "at", f"concat(text, ' at {at}') AS text", "'u' AS op")

    def side(declared: Dataset) -> Callable[[int], None]:
        write(changes(200_000, 0), table=declared.at(str(tmp_path)), note=CommitNote(mark=Mark(writer="ours")))

        def written(number: int) -> None:
            note = CommitNote(mark=Mark(writer="ours", epoch=number))
            assert write(changes(500, number + 1), table=declared.at(str(tmp_path)), note=note).rows_updated == 500

        return written

    found = in_turns(20, side(spans), side(newest))
    compared("history of 500 changes into 200 000 rows, against the merge of the same changes", found, 1.5)


def test_audit(classic: SparkSession, tmp_path: Path) -> None:
    """The time that an audit adds, in scans of the frame: it materializes the rows once and aggregates them."""
    count, root = 2_000_000, str(tmp_path)
    expectations = (Expect("ids", "min(id) >= 0 AND max(part) < 5", over="write", blocking=True),)
    plain = dataset("plain", write=Append())
    audited = dataset(
        "audited", write=Append(), audit="before", expectations=expectations, row_count=RowCount(minimum=1)
    )

    def put(declared: Dataset, number: int) -> None:
        note = CommitNote(mark=Mark(writer=declared.name, epoch=number))
        assert write(rows(classic, count, number), table=declared.at(root), note=note).committed

    def scan(number: int) -> None:
        rows(classic, count, number).write.format("noop").mode("overwrite").save()

    sides = {"ours": lambda n: put(audited, n), "bare": lambda n: put(plain, n), "scan": scan}
    found = all_in_turns(10, sides)
    compared(f"append of {count} rows with an audit", found)
    seconds = {name: median(taken) for name, taken in warm(found).items()}
    passes = (seconds["ours"] - seconds["bare"]) / seconds["scan"]
    measured("time that the audit adds, in scans of the frame", [passes], "scans", 1.0)
