"""Restores to a time, and copies of a table that are put back over it: what was written counts if it is there."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset
from pipeline.delta.log.commits import commit_file
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.read.changes import SourceChanges
from pipeline.delta.read.verdict import Reason, VerdictKind
from pipeline.delta.write import transaction
from pipeline.delta.write.consume import Consumed, consume
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline_tests.delta.sample import frame_in, note, rows_of, versions_of
from pipeline_tests.tiers import first_is_quick

ROWS = StructType([StructField("id", LongType()), StructField("text", StringType())])
START = dt.datetime.now(dt.timezone.utc).replace(microsecond=0) - dt.timedelta(days=3)
SOURCE = Dataset(name="source", schema=ROWS, write=Append())
CONSUMER = Dataset(name="consumer", schema=ROWS, write=Append(), reads=("source",), reads_changes_of=("source",))


def settle(dataset: Dataset, root: str) -> None:
    """Version n was committed n hours after the start."""
    for number in versions_of(dataset, root):
        os.utime(commit_file(dataset.location(root), number), (START.timestamp() + 3600 * number,) * 2)


def by_spark(spark: SparkSession, dataset: Dataset, root: str, hours: float) -> None:
    at = (START + dt.timedelta(hours=hours)).strftime("%Y-%m-%d %H:%M:%S")
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        spark.sql(f"RESTORE TABLE delta.`{dataset.location(root)}` TO TIMESTAMP AS OF '{at}'").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")


def by_delta_rs(_: SparkSession, dataset: Dataset, root: str, hours: float) -> None:
    deltalake.DeltaTable(dataset.location(root)).restore(START + dt.timedelta(hours=hours))


def deliver(spark: SparkSession, dataset: Dataset, root: str, epoch: int) -> WriteResult:
    frame = frame_in(spark, ROWS, [(epoch, "x")])
    carried = CommitNote(mark=Mark(writer="w", epoch=epoch))
    result = write(frame, table=dataset.at(root), note=carried)
    settle(dataset, root)
    return result


@pytest.mark.parametrize("restore", first_is_quick([by_delta_rs, by_spark]), ids=["by delta-rs", "by Spark"])
def test_a_batch_that_a_restore_to_a_time_has_kept_is_skipped_and_one_that_it_undid_is_written_again(
    classic: SparkSession, root: str, restore: object
) -> None:
    assert callable(restore)
    first = deliver(classic, SOURCE, root, 1)
    deliver(classic, SOURCE, root, 2)
    restore(classic, SOURCE, root, first.version + 0.5)
    settle(SOURCE, root)
    restored = versions_of(SOURCE, root)[-1]
    transaction._SEARCHED.clear()  # as in another process
    replays = [deliver(classic, SOURCE, root, epoch) for epoch in (1, 2, 2)]
    assert [(replay.skipped, replay.version) for replay in replays] == [
        (True, first.version), (False, restored + 1), (True, restored + 1),
    ]  # fmt: skip
    assert rows_of(SOURCE, root) == [(1, "x"), (2, "x")]


# --- copies -----------------------------------------------------------------------------------------------------------


def add(root: str, *ids: int) -> None:
    """Rows of the source, by delta-rs."""
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    rows = pa.Table.from_pylist([{"id": number, "text": "x"} for number in ids], schema)
    deltalake.write_deltalake(
        SOURCE.location(root), rows, mode="append", configuration={"delta.enableChangeDataFeed": "true"}
    )


def run(spark: SparkSession, root: str) -> Consumed:
    def rows(changes: SourceChanges) -> DataFrame:
        return changes["source"].frame.select("id", "text")

    found = SOURCE.at(root)
    return consume(spark, CONSUMER.at(root), sources=[found], compute=rows, note=note("consumer"))


@pytest.mark.parametrize(
    "since", first_is_quick([2, 1, 3]), ids=["at the cursor", "behind the cursor", "beyond the cursor"]
)
def test_a_copy_that_is_put_back_over_a_source_is_seen_however_far_it_has_come_since(
    classic: SparkSession, root: str, tmp_path: Path, since: int
) -> None:
    """Its table has the same id, and numbers that the consumer has seen stand for other commits."""
    location = Path(SOURCE.location(root))
    add(root, 1)
    shutil.copytree(location, tmp_path / "copy")
    add(root, 2)
    add(root, 3)
    run(classic, root)
    shutil.rmtree(location)
    shutil.copytree(tmp_path / "copy", location)
    for number in range(since):
        add(root, 10 + number)
    found = run(classic, root).verdicts["source"]
    reason = Reason.CURSOR_AHEAD if since == 1 else Reason.PUT_BACK
    assert (found.kind, found.reason) == (VerdictKind.FULL, reason)
    assert rows_of(CONSUMER, root) == rows_of(SOURCE, root)
    add(root, 20)
    assert run(classic, root).verdicts["source"].kind is VerdictKind.CHANGES
    assert rows_of(CONSUMER, root) == rows_of(SOURCE, root)


@pytest.mark.exhaustive
def test_a_restore_in_a_copy_that_was_put_back_is_known_to_a_process_that_has_seen_the_log_before(
    classic: SparkSession, root: str, tmp_path: Path
) -> None:
    location = Path(SOURCE.location(root))
    deliver(classic, SOURCE, root, 1)
    deliver(classic, SOURCE, root, 2)
    shutil.copytree(location, tmp_path / "copy")
    for epoch in (3, 4):
        deliver(classic, SOURCE, root, epoch)
    shutil.rmtree(location)
    shutil.copytree(tmp_path / "copy", location)
    deltalake.DeltaTable(str(location)).restore(1)
    for epoch in (2, 2):
        deliver(classic, SOURCE, root, epoch)
    assert rows_of(SOURCE, root) == [(1, "x"), (2, "x")]


@pytest.mark.exhaustive
def test_a_consumer_that_was_restored_to_a_time_goes_on_from_its_cursors_then(classic: SparkSession, root: str) -> None:
    add(root, 1)
    run(classic, root)
    kept = versions_of(CONSUMER, root)[-1]
    add(root, 2)
    run(classic, root)
    settle(CONSUMER, root)
    by_delta_rs(classic, CONSUMER, root, kept + 0.5)
    assert rows_of(CONSUMER, root) == [(1, "x")]
    assert run(classic, root).verdicts["source"].kind is VerdictKind.CHANGES
    assert rows_of(CONSUMER, root) == [(1, "x"), (2, "x")]
