"""The front half of a sink: an acknowledgement means a file on disk, and no caller ever waits for one."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError  # in Python 3.10 it is not the built-in one
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.delta.sink.buffer import Receipt
from pipeline.delta.sink.journal import Journal
from pipeline.delta.sink.segments import table_of
from pipeline.errors import JournalError, SettingsError, SinkFullError, SinkRunningError, SinkStoppedError
from pipeline_tests.unit.sink_sample import STOPPED, letters_in, receiver, receiving, update

PATIENCE = 20.0


def kept(folder: Path) -> list[int]:
    """The ids in the journal, in their order."""
    journal = Journal(folder / "journal", "updates", "test")
    journal.open()
    try:
        return table_of(journal.loose).column("id").to_pylist() if journal.loose else []  # type: ignore[no-any-return]
    finally:
        journal.close()


def of_99_in_100(seconds: list[float]) -> float:
    """What 99 in 100 of the durations keep to."""
    return sorted(seconds)[len(seconds) * 99 // 100]


class Disk:
    """The real `fsync`, which waits until it may begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_sync, self.asked = threading.Event(), threading.Event()
        real = os.fsync

        def fsync(handle: int) -> None:
            self.asked.set()
            assert self.may_sync.wait(PATIENCE)
            real(handle)

        monkeypatch.setattr(os, "fsync", fsync)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_a_future_is_done_when_the_file_is_synced_and_not_before(tmp_path: Path, disk: Disk) -> None:
    seen: list[set[str]] = []

    def look(_: Future[Receipt]) -> None:
        seen.append({path.name for path in (tmp_path / "journal").iterdir()} - {"lock"})

    with receiving(tmp_path, flush_rows=1) as opened:
        item = opened.item(update(1))
        item.receipt.add_done_callback(look)
        opened.put(item, None)
        assert disk.asked.wait(PATIENCE)
        assert not item.receipt.done()
        disk.may_sync.set()
        assert item.receipt.result(PATIENCE) == Receipt(rows=1, refused=0)
    ((name,),) = seen
    assert name.startswith("segment-00000000000000000001-")
    assert name.endswith(".parquet")
    assert kept(tmp_path) == [1]


def test_a_dead_letter_is_on_disk_when_its_future_is_done(tmp_path: Path) -> None:
    with receiving(tmp_path, flush_rows=1) as opened:
        receipt = opened.put(opened.item(update(1, price="dear")), None).result(PATIENCE)
        assert receipt.refused == 1
        (letter,) = letters_in(tmp_path)
    assert (letter["dataset"], letter["writer"], letter["reason"]) == ("updates", "test", receipt.reasons[0])
    assert letter["record"]["price"] == "dear"
    assert kept(tmp_path) == []


def test_submitting_takes_less_than_a_millisecond_while_a_flush_hangs(tmp_path: Path, disk: Disk) -> None:
    with receiving(tmp_path, flush_rows=1) as opened:
        opened.put(opened.item(update(0)), None)
        assert disk.asked.wait(PATIENCE)
        waits, works = [], []
        for number in range(1, 2_001):
            started, began = time.perf_counter(), time.thread_time()
            opened.put(opened.item(update(number)), None)
            waits.append(time.perf_counter() - started)
            works.append(time.thread_time() - began)
        assert of_99_in_100(works) < 0.001
        # Another process may have the cores for a while, and not in all ten parts.
        assert min(of_99_in_100(waits[first : first + 200]) for first in range(0, 2_000, 200)) < 0.001
        assert not list((tmp_path / "journal").glob("segment-*.parquet")), "it still hangs"
        disk.may_sync.set()
    assert kept(tmp_path) == list(range(2_001))


def test_a_loop_goes_on_while_a_flush_hangs_and_waits_for_room_without_a_thread(tmp_path: Path, disk: Disk) -> None:
    async def put(opened: Any, number: int) -> None:
        item, room = opened.item(update(number)), asyncio.Event()
        loop = asyncio.get_running_loop()
        while not opened.put_or_call(item, lambda: loop.call_soon_threadsafe(room.set)):
            await room.wait()
            room.clear()
        await asyncio.wrap_future(item.receipt)

    async def run(opened: Any) -> int:
        puts = [asyncio.create_task(put(opened, number)) for number in range(20)]
        turns = 0
        while not disk.asked.is_set() or turns < 100:
            await asyncio.sleep(0)
            turns += 1
        assert not any(task.done() for task in puts)
        disk.may_sync.set()
        await asyncio.wait_for(asyncio.gather(*puts), PATIENCE)
        return turns

    with receiving(tmp_path, flush_rows=1, buffer_rows=2) as opened:
        assert asyncio.run(run(opened)) >= 100
    assert sorted(kept(tmp_path)) == list(range(20))


def test_a_sink_that_refuses_takes_again_what_it_refused_once_there_is_room(tmp_path: Path, disk: Disk) -> None:
    with receiving(tmp_path, flush_rows=1, buffer_rows=2, when_full="refuse") as opened:
        opened.put(opened.item(update(0)), None)
        assert disk.asked.wait(PATIENCE)
        for number in (1, 2):  # beside the one that is being written
            opened.put(opened.item(update(number)), None)
        with pytest.raises(SinkFullError):
            opened.put(opened.item(update(3)), None)
        disk.may_sync.set()
        opened.barrier().result(PATIENCE)
        opened.put(opened.item(update(3)), None)
    assert kept(tmp_path) == [0, 1, 2, 3]


def test_a_backlog_that_is_not_committed_holds_back_the_buffer_and_a_stop_writes_all_of_it(tmp_path: Path) -> None:
    opened = receiver(tmp_path, flush_rows=1, buffer_rows=1, backlog_rows=1)
    opened.start()
    for number in (1, 2):
        opened.put(opened.item(update(number)), None).result(PATIENCE)
    waiting = opened.put(opened.item(update(3)), None)
    with pytest.raises(SinkFullError):
        opened.put(opened.item(update(4)), 0.05)
    assert not waiting.done()
    batch = opened.journal.begin(1, rows=1)
    assert batch is not None
    opened.journal.end(batch)
    opened.shrunk()
    assert waiting.result(PATIENCE).rows == 1
    last = opened.put(opened.item(update(4)), None)
    opened.stop(STOPPED)
    assert last.result(PATIENCE).rows == 1
    opened.journal.close()
    assert kept(tmp_path) == [2, 3, 4]


def test_stopping_writes_what_waits_and_takes_nothing_more(tmp_path: Path) -> None:
    with receiving(tmp_path, flush_seconds=600) as opened:
        receipts = [opened.put(opened.item(update(number)), None) for number in range(3)]
        opened.stop(STOPPED)
        assert [receipt.result(0).rows for receipt in receipts] == [1, 1, 1]
        with pytest.raises(SinkStoppedError):
            opened.put(opened.item(update(3)), None)
        with pytest.raises(SinkStoppedError):
            opened.barrier()
    assert kept(tmp_path) == [0, 1, 2]


def test_a_caller_may_change_its_record_and_forget_its_future(tmp_path: Path) -> None:
    record = update(1)
    with receiving(tmp_path, flush_seconds=600) as opened:
        assert opened.put(opened.item(record), None).cancel()
        record["id"] = 2
        opened.put(opened.item(record), None)
        record.clear()
    assert kept(tmp_path) == [1, 2]


def test_a_disk_that_fails_is_waited_for_and_what_came_meanwhile_is_kept_once(tmp_path: Path) -> None:
    with receiving(tmp_path, flush_rows=1) as opened:
        (tmp_path / "letters").write_text("a file where the folder is to be")
        refused = opened.put(opened.item(update(2, price="dear")), None)
        with pytest.raises(FutureTimeoutError):
            refused.result(1)
        assert opened.is_alive
        (tmp_path / "letters").unlink()
        assert refused.exception(PATIENCE) is None
        assert opened.put(opened.item(update(3)), None).result(PATIENCE).rows == 1
    assert [letter["record"]["id"] for letter in letters_in(tmp_path)] == [2]
    assert kept(tmp_path) == [3]


def test_a_disk_that_fails_for_too_long_fails_what_was_not_acknowledged_and_stops_the_sink(tmp_path: Path) -> None:
    with receiving(tmp_path, flush_rows=1, retry_seconds=0.0) as opened:
        assert opened.put(opened.item(update(1)), None).result(PATIENCE).rows == 1
        (tmp_path / "letters").write_text("a file where the folder is to be")
        receipt = opened.put(opened.item(update(2, price="dear")), None)
        with pytest.raises(SinkStoppedError, match="letters") as caught:
            receipt.result(PATIENCE)
        with pytest.raises(SinkStoppedError) as later:  # closed before the future was told
            opened.put(opened.item(update(3)), None)
        assert later.value.reason == caught.value.reason
    assert kept(tmp_path) == [1]


def test_frames_and_records_are_counted_and_positions_are_those_of_the_rows(tmp_path: Path) -> None:
    with receiving(tmp_path, flush_seconds=600) as opened:
        opened.put(opened.item(update(1), ("file", 10)), None)
        opened.put(opened.item(pa.Table.from_pylist([update(2, lots=1, fee=None, day=None)]), ("file", 30)), None)
        opened.put(opened.item(update(3, price="dear"), ("other", 5)), None)
        opened.barrier().result(PATIENCE)
        metrics = opened._meter.read(buffered_rows=opened.buffer.waiting[0], backlog=opened.journal.backlog)
        assert (metrics.rows_submitted, metrics.rows_acknowledged, metrics.dead_letters) == (3, 2, 1)
        assert (metrics.buffered_rows, metrics.backlog_rows, metrics.backlog_segments) == (0, 2, 1)
        assert metrics.bytes_acknowledged > 0
        assert opened.journal.positions == {"file": 30, "other": 5}
    assert kept(tmp_path) == [1, 2]


def test_a_second_receiver_of_the_same_folder_is_refused_in_the_same_process_too(tmp_path: Path) -> None:
    with receiving(tmp_path), pytest.raises(SinkRunningError):
        receiver(tmp_path).start()


@pytest.mark.parametrize("wrong", [{"flush_seconds": 0}, {"buffer_rows": -1}, {"when_full": "drop"}])
def test_settings_that_can_not_hold_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        receiver(tmp_path, **wrong)


def test_a_damaged_journal_keeps_a_receiver_from_starting(tmp_path: Path) -> None:
    with receiving(tmp_path, flush_rows=1) as opened:
        opened.put(opened.item(update(1)), None).result(PATIENCE)
    (path,) = (tmp_path / "journal").glob("segment-*")
    path.write_bytes(b"PAR1")
    with pytest.raises(JournalError):
        receiver(tmp_path).start()
