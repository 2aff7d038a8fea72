"""A sink while no Spark answers: what it takes is on disk all the same, and its end says what is left."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.delta.sink.journal import Journal
from pipeline.delta.sink.segments import table_of
from pipeline.delta.sink.sink import DeltaSink, SinkSettings, sink_folders
from pipeline.errors import SinkRunningError, SinkStoppedError, SparkUnavailableError
from pipeline_tests.unit.sink_sample import NOBODY, UPDATES, WRITER, settings_in, update

PATIENCE = 30.0


def sink_in(folder: Path, **options: Any) -> DeltaSink:
    return DeltaSink(UPDATES, WRITER, settings_in(folder), SinkSettings(flush_seconds=0.01, **options))


def kept(folder: Path) -> list[int]:
    journal = Journal(sink_folders(UPDATES, WRITER, settings_in(folder), SinkSettings())[0], "updates", WRITER)
    journal.open()
    try:
        return table_of(journal.loose).column("id").to_pylist()  # type: ignore[no-any-return]
    finally:
        journal.close()


def test_what_is_acknowledged_while_spark_is_away_waits_for_the_next_start(tmp_path: Path) -> None:
    sink = sink_in(tmp_path).start()
    for number in range(3):
        assert sink.submit(update(number)).result(PATIENCE).rows == 1
    assert sink.metrics().backlog_rows == 3
    with pytest.raises(TimeoutError):
        sink.flush(0.05)
    with pytest.raises(SinkRunningError):
        sink_in(tmp_path).start()
    with pytest.raises(SparkUnavailableError) as caught:
        sink.stop(PATIENCE)
    assert caught.value.where == NOBODY
    with pytest.raises(SinkStoppedError):
        sink.submit(update(3))
    assert kept(tmp_path) == [0, 1, 2]


def test_a_sink_that_has_waited_for_spark_for_long_enough_stops_and_says_why(tmp_path: Path) -> None:
    sink = sink_in(tmp_path, retry_seconds=0.01).start()
    receipts = []

    def submit_until_it_has_given_up() -> None:
        while True:
            receipts.append(sink.submit(update(len(receipts))))
            time.sleep(0.001)

    with pytest.raises(SinkStoppedError) as caught:
        submit_until_it_has_given_up()
    assert "No Spark session on sc://127.0.0.1:1" in caught.value.reason
    with pytest.raises(SparkUnavailableError):
        sink.stop(PATIENCE)
    done = [receipt for receipt in receipts if receipt.exception(PATIENCE) is None]
    assert kept(tmp_path) == list(range(len(done))) if done else True


def test_what_ends_a_block_is_not_hidden_by_what_ends_the_sink(tmp_path: Path) -> None:
    def fail_in_a_block() -> None:
        with sink_in(tmp_path) as sink:
            sink.on_update(update(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_in_a_block()
    assert kept(tmp_path) == [1]


def test_a_loop_has_the_same(tmp_path: Path) -> None:
    async def run() -> None:
        sink = await sink_in(tmp_path).astart()
        receipts = [await sink.asubmit(update(number)) for number in range(3)]
        assert [(await receipt).rows for receipt in receipts] == [1, 1, 1]
        with pytest.raises(SparkUnavailableError):
            await sink.astop()
        with pytest.raises(SinkStoppedError):
            await sink.asubmit(update(3))

    asyncio.run(run())
    assert kept(tmp_path) == [0, 1, 2]


def test_a_process_that_is_asked_to_end_writes_what_waits_and_ends_by_that_signal(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pipeline_tests.children.ending", str(tmp_path)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == -signal.SIGTERM
        said = process.stderr.read()
    assert "No Spark session" in said
    assert kept(tmp_path) == list(range(10))
