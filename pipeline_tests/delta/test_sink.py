"""Sinks on real tables: what is acknowledged gets into the table exactly once, and what is bad goes elsewhere."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from statistics import median
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.assets.portfolio.assets import newest_of
from pipeline.assets.portfolio.datasets import POSITION_UPDATES, POSITIONS, POSITIONS_FROM_UPDATES, SYMBOLS
from pipeline.assets.portfolio.updates import newest_positions, position_of, stored_updates, updates
from pipeline.dataset import (
    Append,
    Changelog,
    Check,
    Dataset,
    Features,
    History,
    Merge,
    Replace,
    RowCount,
    TableRef,
    Tombstones,
)
from pipeline.delta.log.commits import commit_versions
from pipeline.delta.log.epochs import epochs
from pipeline.delta.maintain.maintain import optimize
from pipeline.delta.read.changes import SourceChanges
from pipeline.delta.sink.journal import Journal
from pipeline.delta.sink.sink import DeltaSink, SinkSettings, sink_folders
from pipeline.delta.write.consume import consume
from pipeline.errors import (
    CommitConflictError,
    DeclarationError,
    PipelineError,
    SinkConflictError,
    SinkRunningError,
    SinkStoppedError,
    TableMismatchError,
)
from pipeline.settings import Settings
from pipeline_tests.children.sink import ARRIVALS, DATASETS, SOURCE, WRITER, Job, SinkChild, feed, sinks
from pipeline_tests.delta.sample import commit_info, files_of, note, rows_of, versions_of

PATIENCE = 120.0
REPOSITORY = Path(__file__).parents[2]
SCRIPTS = Path(sys.executable).parent
NOON = dt.datetime(2026, 1, 31, 12, tzinfo=dt.timezone.utc)
BY_HAND = SinkSettings(flush_seconds=600)


def update(number: int, minutes: int = 0, **values: Any) -> dict[str, Any]:
    at = NOON + dt.timedelta(minutes=minutes)
    usual = {"conid": 1, "symbol": "IBM", "quantity": Decimal(number), "price": 100.5}
    return {"update_id": number, "at": at} | usual | values


def table(dataset: Dataset, root: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = deltalake.DeltaTable(dataset.location(root)).to_pyarrow_table().to_pylist()
    return found


def letters(sink: DeltaSink, settings: Settings) -> list[dict[str, Any]]:
    _, folder = sink_folders(sink.dataset, sink.writer_id, settings, sink.options)
    lines = [line for path in sorted(folder.glob("*.ndjson")) for line in path.read_text("utf-8").splitlines()]
    return [json.loads(line) for line in lines]


@pytest.mark.exhaustive
def test_of_several_updates_of_a_contract_the_newest_stays_whenever_they_come(
    classic: SparkSession, settings: Settings
) -> None:
    with DeltaSink(POSITIONS, "test", settings, BY_HAND) as sink:
        for number, minutes in ((1, 1), (3, 5), (2, 3)):
            sink.on_update(position_of(update(number, minutes)))
        assert sink.flush(PATIENCE) == 1
        sink.on_update(position_of(update(4, 4)))  # older than what is there
        assert sink.flush(PATIENCE) == 2
        sink.on_update(position_of(update(5, 5)))  # as old, with a greater number
        sink.on_update(position_of(update(6, 0, conid=2, symbol="MSFT")))
    assert [(row["conid"], row["updated"]["update_id"]) for row in table(POSITIONS, settings.root)] in (
        [(1, 5), (2, 6)], [(2, 6), (1, 5)],
    )  # fmt: skip
    metrics = sink.metrics()
    assert (metrics.rows_committed, metrics.flushes, metrics.replays, metrics.dead_letters) == (6, 3, 0, 0)
    assert (metrics.backlog_rows, metrics.buffered_rows, metrics.first_version, metrics.last_version) == (0, 0, 1, 3)
    assert metrics.flush_seconds_p50 is not None
    assert [(e.writer, e.epoch, e.version) for e in epochs(POSITIONS.location(settings.root))] == [
        ("test", 1, 1), ("test", 2, 2), ("test", 3, 3),
    ]  # fmt: skip
    journal, _ = sink_folders(POSITIONS, "test", settings, BY_HAND)
    assert {path.name for path in journal.iterdir()} == {"lock", "committed.json"}
    with pytest.raises(SinkStoppedError):
        sink.submit(position_of(update(7)))


def test_bad_records_are_dead_letters_with_their_reasons_and_the_others_are_stored_once(
    classic: SparkSession, settings: Settings
) -> None:
    with DeltaSink(POSITION_UPDATES, "test", settings, BY_HAND) as sink:
        good, resent = sink.submit(update(1)), sink.submit(update(1))
        bad = {
            "column price: got float nan": sink.submit(update(2, price=math.nan)),
            "column quantity: got str 'many'": sink.submit(update(3, quantity="many")),
            "columns update_id are missing": sink.submit({"conid": 1, "symbol": "IBM", "quantity": 1, "at": NOON}),
        }
        # What Delta alone can say is told at the commit.
        unknown, cheap = sink.submit(update(4, symbol="XYZ")), sink.submit(update(5, symbol="XYZ", price=-1.0))
        other = sink.submit(update(1, price=99.0))
        frame = pa.Table.from_pylist([update(7), update(8, price=math.inf)])
        by_frame = sink.submit(frame.set_column(2, "conid", pa.array([7, 8], pa.int32())))
        sink.flush(PATIENCE)
        sink.submit(update(6))
    assert [receipt.result().refused for receipt in (good, resent, unknown, cheap, other)] == [0] * 5
    for reason, receipt in bad.items():
        assert receipt.result().reasons[0].startswith(reason)
    assert (by_frame.result().rows, by_frame.result().refused) == (1, 1)
    rows = {row["update_id"]: row["price"] for row in table(POSITION_UPDATES, settings.root)}
    assert rows == {1: 100.5, 6: 100.5, 7: 100.5}
    told = {letter["record"].get("update_id"): letter["reason"] for letter in letters(sink, settings)}
    assert told[4] == "check known_symbol is broken"
    assert told[5] == "check known_symbol is broken; check price_is_positive is broken"
    assert told[1] == "another row of its key (symbol = IBM, update_id = 1) came before it"
    assert sorted(map(str, told)) == ["1", "2", "3", "4", "5", "8", "None"]
    assert sink.metrics().dead_letters == 7


def test_a_check_of_a_column_that_delta_computes_tells_the_bad_rows_from_the_good(
    classic: SparkSession, settings: Settings
) -> None:
    computed = Dataset(
        name="computed",
        write=Append(),
        schema=StructType([StructField("n", LongType(), False), StructField("twice", LongType())]),
        features=Features(generated=(("twice", "n * 2"),)),
        checks=(Check("small", "twice < 10"),),
    )
    with DeltaSink(computed, WRITER, settings, BY_HAND) as sink:
        for number in (1, 7, 3):
            sink.submit({"n": number})
        sink.flush(PATIENCE)
        sink.submit({"n": 4})
    assert rows_of(computed, settings.root) == [(1, 2), (3, 6), (4, 8)]
    assert [(letter["record"], letter["reason"]) for letter in letters(sink, settings)] == [
        ({"n": 7}, "check small is broken")
    ]


LOGGED = Dataset(
    name="logged",
    keys=("k",),
    write=Merge(changelog=Changelog(operation="op", sequence="n")),
    schema=StructType([StructField("k", LongType(), False), StructField("v", StringType(), False)]),
)


@pytest.mark.exhaustive
def test_a_changelog_is_applied_batch_by_batch(classic: SparkSession, settings: Settings) -> None:
    async def run() -> DeltaSink:
        async with DeltaSink(LOGGED, "test", settings, BY_HAND) as sink:
            receipt = await sink.asubmit({"k": 1, "v": "a", "op": "c", "n": 1})
            await sink.asubmit({"k": 2, "v": "b", "op": "c", "n": 2})
            await sink.asubmit({"k": 2, "v": None, "op": "z", "n": 3})
            await sink.aflush()
            assert (await receipt).rows == 1
            await sink.asubmit({"k": 1, "v": None, "op": "d", "n": 4})
            await sink.asubmit({"k": 2, "v": "c", "op": "u", "n": 5})
        return sink

    sink = asyncio.run(run())
    assert table(LOGGED, settings.root) == [{"k": 2, "v": "c"}]
    assert [letter["record"]["op"] for letter in letters(sink, settings)] == ["z"]


@pytest.mark.exhaustive
def test_changes_of_a_history_arrive_batch_by_batch_and_late_ones_too(
    classic: SparkSession, settings: Settings
) -> None:
    columns = (StructField("since", LongType(), False), StructField("until", LongType()))
    log = Changelog(operation="op", sequence="n")
    dataset = replace(
        LOGGED, name="spans", schema=StructType([*LOGGED.schema.fields, *columns]),
        write=History(changelog=log, valid_from="since", valid_to="until"),
    )  # fmt: skip
    with DeltaSink(dataset, "test", settings, BY_HAND) as sink:
        sink.submit({"k": 1, "v": "a", "op": "c", "n": 1})
        sink.submit({"k": 1, "v": None, "op": "d", "n": 5})
        refused = sink.submit({"k": 1, "v": "a", "op": "u", "n": 2, "since": 1})
        sink.flush(PATIENCE)
        sink.submit({"k": 1, "v": "b", "op": "u", "n": 3})
    assert refused.result().refused == 1
    spans = [row for row in table(dataset, settings.root) if row["_pipeline_state"] is None]
    assert sorted((row["v"], row["since"], row["until"]) for row in spans) == [("a", 1, 3), ("b", 3, 5)]


@pytest.mark.exhaustive
def test_an_update_may_lack_a_not_null_column_in_which_null_keeps_the_stored_value(
    classic: SparkSession, settings: Settings
) -> None:
    dataset = replace(LOGGED, write=Merge(changelog=Changelog(operation="op", sequence="n", ignore_nulls=("v",))))
    with DeltaSink(dataset, "test", settings, BY_HAND) as sink:
        sink.submit({"k": 1, "v": "a", "op": "c", "n": 1})
        sink.flush(PATIENCE)
        sink.submit({"k": 1, "v": None, "op": "u", "n": 2})
        sink.submit({"k": 2, "v": None, "op": "c", "n": 3})  # nothing is stored that could be kept
        sink.submit({"k": 3, "v": "c", "op": "c", "n": 4})
        sink.flush(PATIENCE)
    assert table(dataset, settings.root) == [{"k": 1, "v": "a"}, {"k": 3, "v": "c"}]
    assert [letter["record"]["k"] for letter in letters(sink, settings)] == [2]


@pytest.mark.exhaustive
def test_an_update_after_the_deletion_of_its_key_in_one_batch_finds_no_value_to_keep(
    classic: SparkSession, settings: Settings
) -> None:
    dataset = replace(LOGGED, write=Merge(changelog=Changelog(operation="op", sequence="n", ignore_nulls=("v",))))
    with DeltaSink(dataset, "test", settings, BY_HAND) as sink:
        for key in (1, 2, 3, 4):
            sink.submit({"k": key, "v": "a", "op": "c", "n": key})
        sink.flush(PATIENCE)
        changes = [
            (1, None, "d"), (1, None, "u"),  # deleted, then nothing is stored that could be kept
            (2, None, "u"), (2, None, "d"),
            (3, None, "d"), (3, None, "u"), (3, "b", "u"),  # the batch has a value after the deletion
            (4, None, "u"),
            (5, "c", "c"), (5, None, "d"), (5, None, "u"),
        ]  # fmt: skip
        for place, (key, value, operation) in enumerate(changes, start=10):
            sink.submit({"k": key, "v": value, "op": operation, "n": place})
        sink.flush(PATIENCE)
    assert table(dataset, settings.root) == [{"k": 3, "v": "b"}, {"k": 4, "v": "a"}]
    assert [(letter["record"]["k"], letter["record"]["n"]) for letter in letters(sink, settings)] == [(1, 11), (5, 20)]


@pytest.mark.exhaustive
def test_a_late_update_of_a_remembered_deletion_is_no_dead_letter_and_a_newer_one_without_a_value_is(
    classic: SparkSession, settings: Settings
) -> None:
    log = Changelog(operation="op", sequence="n", ignore_nulls=("v",), tombstones=Tombstones(keep_hours=24))
    schema = StructType([*LOGGED.schema.fields, StructField("n", LongType())])
    dataset = replace(LOGGED, schema=schema, write=Merge(changelog=log))
    with DeltaSink(dataset, "test", settings, BY_HAND) as sink:
        for key in (1, 2):
            sink.submit({"k": key, "v": "a", "op": "c", "n": 1})
        sink.flush(PATIENCE)
        sink.submit({"k": 1, "v": None, "op": "d", "n": 5})
        sink.flush(PATIENCE)
        sink.submit({"k": 1, "v": None, "op": "u", "n": 3})
        sink.submit({"k": 1, "v": None, "op": "u", "n": 6})
        sink.submit({"k": 2, "v": None, "op": "u", "n": 6})
        sink.flush(PATIENCE)
    rows = [row for row in table(dataset, settings.root) if row["_pipeline_state"] is None]
    assert rows == [{"k": 2, "v": "a", "n": 6, "_pipeline_state": None}]
    assert [(letter["record"]["k"], letter["record"]["n"]) for letter in letters(sink, settings)] == [(1, 6)]


def test_a_batch_that_was_begun_by_a_killed_process_is_written_once_whether_it_was_committed_or_not(
    classic: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    folder, _ = sink_folders(ARRIVALS, WRITER, settings, BY_HAND)
    rows = pa.table({"arrival": pa.array([1, 2]), "update_id": pa.array([1, 2])})
    journal = Journal(folder, "arrivals", WRITER)
    journal.open()
    journal.append(rows)
    begun = journal.begin(1, rows=10)
    assert begun is not None
    journal.append(rows.slice(1))
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    journal.close()
    with DeltaSink(ARRIVALS, WRITER, settings, BY_HAND) as sink:
        sink.flush(PATIENCE)
    assert sink.metrics().replays == 1
    expected = [(1, 1), (2, 2), (2, 2)]
    assert rows_of(ARRIVALS, settings.root) == expected
    # Killed after the first commit and before the journal knew of it.
    for name, content in kept.items():
        (folder / name).write_bytes(content)
    (folder / "committed.json").unlink()
    (_,) = [path.unlink() or path for path in folder.glob("segment-00000000000000000002-*.parquet")]
    with DeltaSink(ARRIVALS, WRITER, settings, BY_HAND) as sink:
        sink.flush(PATIENCE)
        sink.submit({"arrival": 3, "update_id": 3})
    assert rows_of(ARRIVALS, settings.root) == [*expected, (3, 3)]
    assert [e.epoch for e in epochs(ARRIVALS.location(settings.root))] == [1, 2, 3]


def test_of_two_sinks_of_one_writer_that_do_not_see_each_other_one_stops_and_keeps_its_rows(
    classic: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    here, there = (replace(BY_HAND, journal=tmp_path / name) for name in ("here", "there"))
    first = DeltaSink(ARRIVALS, WRITER, settings, here).start()
    with pytest.raises(SinkRunningError):
        DeltaSink(ARRIVALS, WRITER, settings, here).start()
    first.submit({"arrival": 1, "update_id": 1})
    first.flush(PATIENCE)
    with DeltaSink(ARRIVALS, WRITER, settings, there) as second:
        second.submit({"arrival": 2, "update_id": 2})
        second.flush(PATIENCE)
        first.submit({"arrival": 3, "update_id": 3})
        with pytest.raises(SinkConflictError):
            first.flush(PATIENCE)
        second.submit({"arrival": 4, "update_id": 4})
    with pytest.raises(SinkConflictError) as caught:
        first.stop()
    assert (caught.value.writer, caught.value.epoch, caught.value.version) == (WRITER, 2, 2)
    assert rows_of(ARRIVALS, settings.root) == [(1, 1), (2, 2), (4, 4)]
    journal = Journal(sink_folders(ARRIVALS, WRITER, settings, here)[0], "arrivals", WRITER)
    journal.open()
    assert journal.backlog == (1, 1)
    journal.close()


@pytest.mark.exhaustive
def test_small_files_are_written_together_between_flushes_and_neither_readers_nor_the_feed_see_it(
    classic: SparkSession, settings: Settings
) -> None:
    location, flushes = ARRIVALS.location(settings.root), 5
    with DeltaSink(ARRIVALS, WRITER, settings, replace(BY_HAND, compact_after=2)) as sink:
        for number in range(1, flushes + 1):
            sink.submit({"arrival": number, "update_id": number})
            sink.flush(PATIENCE)
            assert len(rows_of(ARRIVALS, settings.root)) == number
    assert len(files_of(ARRIVALS, settings.root)) == 2, "four flushes in one, and the last"
    operations = [commit_info(ARRIVALS, settings.root, v)["operation"] for v in versions_of(ARRIVALS, settings.root)]
    assert operations.count("OPTIMIZE") == 2
    changes = classic.sql(f"SELECT * FROM table_changes_by_path('{location}', 0)").groupBy("_change_type").count()
    assert [tuple(row) for row in changes.collect()] == [("insert", flushes)]
    assert [e.epoch for e in epochs(location)] == list(range(1, flushes + 1))


class Reading(threading.Thread):
    """A reader of its own engine, again and again until the block ends; what it saw that should not be."""

    def __init__(self, root: str, allowed: set[frozenset[int]]) -> None:
        super().__init__(daemon=True)
        self._location, self._allowed, self._over = POSITION_UPDATES.location(root), allowed, threading.Event()
        self.reads, self.wrong = 0, list[str]()

    def run(self) -> None:
        while not self._over.is_set():
            if not commit_versions(self._location):
                continue
            table = deltalake.DeltaTable(self._location)
            numbers = table.to_pyarrow_table(columns=["update_id"])["update_id"].to_pylist()
            if len(set(numbers)) != len(numbers) or frozenset(numbers) not in self._allowed:
                self.wrong.append(f"version {table.version()}: {len(numbers)} rows, {len(set(numbers))} updates")
            self.reads += 1

    def __enter__(self) -> Reading:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join(PATIENCE)


def run_many_flushes(spark: SparkSession, settings: Settings, flushes: int, options: SinkSettings) -> str:
    """So many flushes under the eyes of a reader and of a consumer of the feed; files and seconds in a line."""
    size, root, seconds, files = 25, settings.root, list[float](), list[int]()
    stream = list(updates(8, flushes * size))
    allowed = {frozenset(stored_updates(stream[: n * size])) for n in range(flushes + 1)}
    source = POSITION_UPDATES.at(root)
    read_rows = 0

    def newest(changes: SourceChanges) -> DataFrame:
        nonlocal read_rows
        frame = changes["position_updates"].frame
        read_rows += frame.count()
        return newest_of(frame)

    def follow() -> None:
        consume(spark, POSITIONS_FROM_UPDATES.at(root), sources=[source], compute=newest,
                note=note("consumer"))  # fmt: skip

    with Reading(root, allowed) as reader, DeltaSink(POSITION_UPDATES, WRITER, settings, options) as sink:
        for number in range(flushes):
            for found in stream[number * size : (number + 1) * size]:
                sink.on_update(found)
            started = time.monotonic()
            sink.flush(PATIENCE)
            seconds.append(time.monotonic() - started)
            files.append(len(files_of(POSITION_UPDATES, root)))
            if number % (flushes // 3) == 0:
                follow()
    follow()
    assert reader.wrong == []
    assert reader.reads > 1
    assert read_rows == len(stored_updates(stream)), "what is written together is no change"
    shown = {row["conid"]: row["updated"]["update_id"] for row in table(POSITIONS_FROM_UPDATES, root)}
    assert shown == {conid: u["update_id"] for conid, u in newest_positions(stream).items()}
    history = [commit_info(POSITION_UPDATES, root, v)["operation"] for v in versions_of(POSITION_UPDATES, root)]
    assert history.count("OPTIMIZE") == flushes // options.compact_after
    # Each flush adds at most a file a symbol, and compaction leaves one of each.
    assert max(files) <= (options.compact_after + 1) * len(SYMBOLS), files
    tenths = [median(seconds[n : n + max(1, flushes // 10)]) for n in range(0, flushes, max(1, flushes // 10))]
    return f"{reader.reads} reads; files {files}; seconds by tenths {[round(s, 2) for s in tenths]}"


@pytest.mark.exhaustive
def test_compaction_bounds_the_files_of_a_stream_and_neither_readers_nor_consumers_notice(
    classic: SparkSession, settings: Settings
) -> None:
    print(run_many_flushes(classic, settings, 4, replace(BY_HAND, compact_after=2)))


@pytest.mark.exhaustive
def test_a_compaction_by_schedule_beside_a_live_sink_loses_nothing_and_stops_nobody(
    classic: SparkSession, settings: Settings
) -> None:
    """Of a merge and a compaction of the same files one comes first, and the other must see that."""
    location, stream = POSITIONS.location(settings.root), list(updates(4, 100, contracts=30))
    over, joined, conflicts = threading.Event(), list[int](), list[CommitConflictError]()

    def compact() -> None:
        while not over.is_set():
            try:
                result = optimize(classic.newSession(), TableRef(POSITIONS, location), note("schedule"))
                joined.append(result.files_removed)
            except CommitConflictError as error:
                conflicts.append(error)

    with ThreadPoolExecutor(1) as pool, DeltaSink(POSITIONS, WRITER, settings, BY_HAND) as sink:
        sink.submit(position_of(stream[0]))
        sink.flush(PATIENCE)
        compacting = pool.submit(compact)
        for start in range(0, len(stream), 25):
            for found in stream[start : start + 25]:
                sink.on_update(position_of(found))
            sink.flush(PATIENCE)
        over.set()
        compacting.result(PATIENCE)
    shown = {row["conid"]: row["updated"]["update_id"] for row in table(POSITIONS, settings.root)}
    assert shown == {conid: u["update_id"] for conid, u in newest_positions(stream).items()}
    assert joined
    print(f"{len(joined)} compactions, {sum(joined)} files joined; {len(conflicts)} met a flush")
    assert sink.metrics().flushes == 1 + len(stream) // 25
    assert [e.epoch for e in epochs(location)] == list(range(1, 2 + len(stream) // 25))


@pytest.mark.exhaustive
def test_compaction_bounds_the_files_of_many_flushes(classic: SparkSession, settings: Settings, soak: int) -> None:
    print(run_many_flushes(classic, settings, 60 * soak, BY_HAND))


def test_a_table_that_is_not_as_declared_stops_the_sink_and_what_it_took_is_kept(
    classic: SparkSession, settings: Settings
) -> None:
    other = replace(ARRIVALS, schema=StructType([StructField("arrival", StringType())]))
    with DeltaSink(other, WRITER, settings, BY_HAND) as sink:
        sink.submit({"arrival": "one"})
    sink = DeltaSink(ARRIVALS, WRITER, settings, BY_HAND).start()
    with pytest.raises(PipelineError):
        sink.flush(PATIENCE)
    with pytest.raises(TableMismatchError):
        sink.stop()
    assert versions_of(ARRIVALS, settings.root) == [0, 1]


@pytest.mark.parametrize(
    ("dataset", "writer"),
    [
        (replace(ARRIVALS, write=Replace()), "w"),
        (replace(POSITIONS, write=Merge()), "w"),
        (replace(ARRIVALS, audit="before", row_count=RowCount(minimum=1, blocking=True)), "w"),
        (ARRIVALS, "a/b"),
        (ARRIVALS, ""),
    ],
)
def test_a_sink_that_could_not_keep_its_word_is_refused(settings: Settings, dataset: Dataset, writer: str) -> None:
    with pytest.raises(DeclarationError):
        DeltaSink(dataset, writer, settings)


def test_frames_go_through_to_the_table_whole(classic: SparkSession, settings: Settings) -> None:
    size, count = 5_000, 10
    numbers = pa.array(range(size), pa.int64())
    with DeltaSink(ARRIVALS, "frames", settings, SinkSettings(flush_seconds=0.2)) as sink:
        for number in range(count):
            sink.submit(pa.table({"arrival": numbers, "update_id": pa.array([number] * size)}))
        sink.flush(PATIENCE)
    stored = deltalake.DeltaTable(ARRIVALS.location(settings.root)).to_pyarrow_table(columns=["update_id"])
    by_frame = stored.group_by("update_id").aggregate([("update_id", "count")]).to_pylist()
    assert {row["update_id"]: row["update_id_count"] for row in by_frame} == dict.fromkeys(range(count), size)


# --- killed -----------------------------------------------------------------------------------------------------------


def left_in_journals(settings: Settings) -> set[str]:
    folders = [sink_folders(dataset, WRITER, settings, BY_HAND)[0] for dataset in DATASETS]
    return {path.name for folder in folders for path in folder.iterdir()}


def run_with_kills(settings: Settings, remote_url: str, *, seed: int, kills: int, count: int) -> int:
    """Kill one child after the other, the last one by SIGTERM, and go on in this process to the end of the stream.

    The number of commits that were replayed here.
    """
    rng = random.Random(seed)
    acknowledged: dict[str, int] = {}
    for number in range(kills):
        job = Job(root=settings.root, remote=remote_url, cache=str(settings.spark.cache), seed=seed, count=count)
        child = SinkChild(job)
        try:
            child.wait_for(rng.choice([ARRIVALS, POSITION_UPDATES, POSITIONS]).name, rng.randrange(100, 500))
            time.sleep(rng.uniform(0, 1.5))
            is_last = number == kills - 1
            status = child.end(signal.SIGTERM if is_last else signal.SIGKILL)
            assert status in ((-signal.SIGTERM, 1) if is_last else (-signal.SIGKILL,))
            if is_last:
                assert left_in_journals(settings) == {"lock", "committed.json"}, "SIGTERM flushes"
        finally:
            child.close()
        acknowledged = {name: max(n, acknowledged.get(name, 0)) for name, n in child.acknowledged.items()}
        print(f"seed {seed} kill {number + 1}: acknowledged {acknowledged}")
    with sinks(settings, 0.5) as opened:
        begins = {name: sink.positions.get(SOURCE, 0) for name, sink in opened.items()}
        assert all(begins[name] >= n for name, n in acknowledged.items()), "what was acknowledged is in the journal"
        for _ in feed(opened, seed, count):
            pass
    return sum(sink.metrics().replays for sink in opened.values())


def assert_as_without_kills(root: str, seed: int, count: int) -> None:
    stream = list(updates(seed, count))
    assert [row[0] for row in sorted(rows_of(ARRIVALS, root))] == list(range(1, count + 1))
    stored = {row["update_id"]: row for row in table(POSITION_UPDATES, root)}
    assert len(stored) == len(table(POSITION_UPDATES, root))
    assert stored == stored_updates(stream)
    shown = {
        row["conid"]: (row["updated"]["update_id"], row["quantity"], row["price"]) for row in table(POSITIONS, root)
    }
    newest = newest_positions(stream)
    assert shown == {conid: (u["update_id"], u["quantity"], u["price"]) for conid, u in newest.items()}


def test_sinks_that_are_killed_lose_and_double_nothing_that_they_have_acknowledged(
    classic: SparkSession, remote_url: str, settings: Settings
) -> None:
    run_with_kills(settings, remote_url, seed=5, kills=2, count=2_400)
    assert_as_without_kills(settings.root, 5, 2_400)


@pytest.mark.exhaustive
def test_sinks_that_are_killed_again_and_again_lose_and_double_nothing(
    classic: SparkSession, remote_url: str, settings: Settings, soak: int
) -> None:
    kills = 10 * soak
    replays = run_with_kills(settings, remote_url, seed=30, kills=kills, count=1_000 * kills)
    assert_as_without_kills(settings.root, 30, 1_000 * kills)
    print(f"replays in the last process: {replays}")


# --- the command ------------------------------------------------------------------------------------------------------


class Command:
    """`pipeline sink` in a project of its own."""

    def __init__(self, settings: Settings, remote_url: str) -> None:
        self.folder = settings.project
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIPELINE_", "SPARK_"))}
        self._environment = kept | {
            "PYTHONPATH": str(REPOSITORY), "SPARK_REMOTE": remote_url, "PIPELINE_ROOT": settings.root,
            "PIPELINE_DATASETS": "pipeline_tests.children.sink:DATASETS",
        }  # fmt: skip

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [str(SCRIPTS / "pipeline"), "sink", *arguments], cwd=self.folder, env=self._environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *arguments: str, given: bytes = b"") -> str:
        with self.start(*arguments) as process:
            said, _ = process.communicate(given, timeout=PATIENCE)
        assert process.returncode == 0
        return said.decode("utf-8")


def test_the_command_reads_lines_and_a_folder_that_grows_and_goes_on_where_it_was(
    classic: SparkSession, remote_url: str, settings: Settings, tmp_path: Path
) -> None:
    command, folder = Command(settings, remote_url), tmp_path / "arriving"
    lines = b'{"arrival": 1, "update_id": 1}\n\xff\n{"arrival": 2, "update_id": "x"}\n\n{"arrival": 3, "update_id": 3}'
    said = command.run("run", "arrivals", "--from", "-", given=lines)
    assert "rows=2 acknowledged=2 " in said
    assert " dead_letters=2 versions=1..1" in said
    folder.mkdir()
    (folder / "a.ndjson").write_text('{"arrival": 4, "update_id": 4}\n{"arrival": 5, ', encoding="utf-8")
    assert "rows=1 " in command.run("run", "arrivals", "--from", str(folder), "--writer", "folder", "--once")
    with (folder / "a.ndjson").open("a", encoding="utf-8") as file:
        file.write('"update_id": 5}\n')
    with command.start("run", "arrivals", "--from", str(folder), "--writer", "folder", "--flush-seconds", "0.2") as own:
        wait_for_rows(settings.root, 4)
        (folder / "b.ndjson").write_text('{"arrival": 6, "update_id": 6}\n', encoding="utf-8")
        wait_for_rows(settings.root, 5)
        (folder / "b.ndjson").write_text('{"arrival": 6, "update_id": 6}\n{"arrival": 7, "update_id": 7}\n', "utf-8")
        own.send_signal(signal.SIGTERM)
        assert own.wait(PATIENCE) == 0
    found = [row[0] for row in rows_of(ARRIVALS, settings.root)]
    assert found in ([1, 3, 4, 5, 6], [1, 3, 4, 5, 6, 7]), "each once, and the last line where it was seen in time"
    told = json.loads(command.run("epochs", "arrivals", "--writer", "folder", "--json"))
    assert [epoch["epoch"] for epoch in told] == list(range(1, len(told) + 1))
    assert sum(epoch["rows"] for epoch in told) == len(found) - 2


@pytest.mark.exhaustive
def test_the_command_lets_an_unknown_symbol_be_a_dead_letter_and_goes_on(
    classic: SparkSession, remote_url: str, settings: Settings
) -> None:
    command = Command(settings, remote_url)
    arguments = ("run", "position_updates", "--from", "-", "--flush-seconds", "0.2")

    def line(number: int, **values: Any) -> bytes:
        return json.dumps(update(number, **values), default=str).encode() + b"\n"

    with command.start(*arguments) as own:
        assert own.stdin is not None
        own.stdin.write(line(1, symbol="XYZ") + line(2))
        own.stdin.flush()
        wait_for_rows(settings.root, 1, POSITION_UPDATES)
        # The flush with the unknown one is over.
        said, _ = own.communicate(line(3) + line(4, symbol="ZZZ", price=-1.0), timeout=PATIENCE)
        assert own.returncode == 0
    assert b"rows=2 acknowledged=4 " in said
    assert b" backlog=0 dead_letters=2 " in said
    assert sorted(row["update_id"] for row in table(POSITION_UPDATES, settings.root)) == [2, 3]
    folder = Path(settings.root) / "_dead_letters" / "position_updates" / "cli"
    lines = [line for path in sorted(folder.glob("*.ndjson")) for line in path.read_text("utf-8").splitlines()]
    letters = [json.loads(line) for line in lines]
    assert [(letter["record"]["symbol"], letter["reason"]) for letter in letters] == [
        ("XYZ", "check known_symbol is broken"),
        ("ZZZ", "check known_symbol is broken; check price_is_positive is broken"),
    ]


def wait_for_rows(root: str, count: int, dataset: Dataset = ARRIVALS) -> None:
    deadline = time.monotonic() + PATIENCE
    while not commit_versions(dataset.location(root)) or len(rows_of(dataset, root)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)
