"""What a sink's commits cost, against bare delta-spark that is given the same rows in the same files.

    python -m pytest pipeline_tests/benchmarks/bench_sink.py -s

Targets: a flush of 500 updates into 200 000 positions within 3 s at the 95th percentile, more than
200 000 rows a second by frames, less than 50 ms from the last file closed to the entry in the log.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from decimal import Decimal
from itertools import islice
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from pipeline.assets.portfolio.datasets import POSITIONS
from pipeline.assets.portfolio.updates import START, position_of, updates
from pipeline.dataset import Dataset
from pipeline.delta.sink.sink import DeltaSink, SinkSettings
from pipeline.settings import Settings
from pipeline_tests.benchmarks.results import compared
from pipeline_tests.benchmarks.turns import in_turns, warm
from pipeline_tests.children.sink import ARRIVALS

PATIENCE = 300.0
BY_HAND = SinkSettings(flush_seconds=600)
FEED_ON = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"


def bare_table(spark: SparkSession, dataset: Dataset, location: Path) -> str:
    columns = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in dataset.schema.fields)
    spark.sql(f"CREATE TABLE delta.`{location}` ({columns}) USING delta {FEED_ON}")
    return f"delta.`{location}`"


def staged(spark: SparkSession, dataset: Dataset, rows: pa.Table, folder: Path, number: int) -> DataFrame:
    """The rows as a file on disk, as a careful user would bring them."""
    folder.mkdir(exist_ok=True)
    pq.write_table(rows, folder / f"{number}.parquet", store_schema=False)
    return spark.read.schema(dataset.schema).parquet(str(folder / f"{number}.parquet"))


def frames(size: int) -> Iterator[pa.Table]:
    """A stream of updates as positions, so many a frame."""
    stream = map(position_of, updates(1, 10**9, contracts=100_000, per_second=500 / 3))
    while True:
        yield pa.Table.from_pylist(list(islice(stream, size)))


@pytest.fixture
def sink(classic: SparkSession, settings: Settings, request: pytest.FixtureRequest) -> Iterator[DeltaSink]:
    with DeltaSink(request.param, "bench", settings, BY_HAND) as opened:
        yield opened


@pytest.mark.parametrize("sink", [POSITIONS], indirect=True)
def test_a_flush_of_500_updates_into_200_000_positions(sink: DeltaSink, classic: SparkSession, tmp_path: Path) -> None:
    table, stream = bare_table(classic, POSITIONS, tmp_path / "bare"), frames(500)
    usual = {"symbol": "IBM", "quantity": Decimal(1), "price": 1.5, "at": START.replace(year=2025)}
    first = pa.Table.from_pylist([position_of(usual | {"conid": n, "update_id": -n}) for n in range(200_000)])
    batches: list[pa.Table] = []
    sink.submit(first)
    sink.flush(PATIENCE)
    staged(classic, POSITIONS, first.cast(batch_schema()), tmp_path / "files", -1).write.format("delta").mode(
        "append"
    ).save(str(tmp_path / "bare"))

    def batch(number: int) -> pa.Table:
        while len(batches) <= number:
            batches.append(next(stream))
        return batches[number]

    def ours(number: int) -> None:
        sink.submit(batch(number))
        sink.flush(PATIENCE)

    def bare(number: int) -> None:
        rows = batch(number).cast(batch_schema())
        changed = staged(classic, POSITIONS, rows, tmp_path / "files", number)
        # One row a contract: what a plain MERGE asks of whoever writes it.
        newest = "SELECT conid, max_by(struct(*), updated) AS row FROM {changed} GROUP BY conid"
        statement = f"""
            MERGE INTO {table} AS target USING (SELECT row.* FROM ({newest})) AS source
            ON target.conid = source.conid
            WHEN MATCHED AND source.updated > target.updated THEN UPDATE SET *
            WHEN NOT MATCHED THEN INSERT *"""
        classic.sql(statement, changed=changed).collect()

    compared("flush of 500 updates into 200 000 positions", in_turns(60, ours, bare))
    print(sink.metrics().line)


def batch_schema() -> pa.Schema:
    """The types of positions, as pyarrow writes them."""
    updated = pa.struct([("at", pa.timestamp("us", "UTC")), ("update_id", pa.int64())])
    return pa.schema(
        [("conid", pa.int64()), ("symbol", pa.string()), ("quantity", pa.decimal128(18, 4)), ("price", pa.float64()),
         ("updated", updated)]
    )  # fmt: skip


@pytest.mark.parametrize("sink", [ARRIVALS], indirect=True)
def test_a_million_rows_by_frames(sink: DeltaSink, classic: SparkSession, tmp_path: Path) -> None:
    count = 1_000_000
    bare_table(classic, ARRIVALS, tmp_path / "bare")

    def rows(number: int) -> pa.Table:
        return pa.table({"arrival": pa.array(range(count), pa.int64()), "update_id": pa.array([number] * count)})

    made = [rows(number) for number in range(10)]

    def ours(number: int) -> None:
        for start in range(0, count, 100_000):
            sink.submit(made[number].slice(start, 100_000))
        sink.flush(PATIENCE)

    def bare(number: int) -> None:
        frame = staged(classic, ARRIVALS, made[number], tmp_path / "files", number)
        frame.write.format("delta").mode("append").save(str(tmp_path / "bare"))

    found = in_turns(10, ours, bare)
    rates = {name: count / median(seconds) for name, seconds in warm(found).items()}
    compared("a million rows by frames", found)
    print(f"rows a second: {', '.join(f'{name} {rate:,.0f}' for name, rate in rates.items())}")


@pytest.mark.parametrize("sink", [ARRIVALS], indirect=True)
def test_from_the_last_file_to_the_log(
    sink: DeltaSink, classic: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    bare_table(classic, ARRIVALS, tmp_path / "bare")
    waits: dict[str, list[float]] = {"ours": [], "bare": []}

    def rows(number: int) -> pa.Table:
        return pa.table({"arrival": pa.array(range(1_000), pa.int64()), "update_id": pa.array([number] * 1_000)})

    def ours(number: int) -> None:
        sink.submit(rows(number))
        sink.flush(PATIENCE)
        waits["ours"].append(wait(Path(ARRIVALS.location(settings.root))))

    def bare(number: int) -> None:
        frame = staged(classic, ARRIVALS, rows(number), tmp_path / "files", number)
        frame.write.format("delta").mode("append").save(str(tmp_path / "bare"))
        waits["bare"].append(wait(tmp_path / "bare"))

    in_turns(60, ours, bare)
    compared("from the last file closed to the entry in the log", waits)


def test_the_backlog_of_a_steady_stream(classic: SparkSession, settings: Settings, soak: int) -> None:
    """500 updates every 3 s into 200 000 positions, in real time: for a minute, or `--soak` minutes."""
    rows, per_second = 200_000, 500 / 3
    usual = {"symbol": "IBM", "quantity": Decimal(1), "price": 1.5, "at": START.replace(year=2025)}
    backlogs = []
    with DeltaSink(POSITIONS, "steady", settings) as sink:
        sink.submit(pa.Table.from_pylist([position_of(usual | {"conid": n, "update_id": -n}) for n in range(rows)]))
        sink.flush(PATIENCE)
        started = time.monotonic()
        stream = updates(1, int(60 * soak * per_second), contracts=rows // 2, per_second=per_second)
        for number, update in enumerate(stream):
            time.sleep(max(0.0, started + number / per_second - time.monotonic()))
            sink.on_update(position_of(update))
            if number % 500 == 499:
                backlogs.append(sink.metrics().backlog_rows)
    print(f"\n{sink.metrics().line} backlog at most {max(backlogs)}")


def wait(table: Path) -> float:
    """Seconds between the newest data file of a table and the newest entry of its log."""
    entry = max((table / "_delta_log").glob("*.json"))
    newest = max(path.stat().st_mtime_ns for path in table.glob("part-*.parquet"))
    return (entry.stat().st_mtime_ns - newest) / 1e9
