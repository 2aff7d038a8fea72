"""The remedies of sinks that need no Spark are followed to their end."""

from __future__ import annotations

import logging
import resource
import shutil
from collections.abc import Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError  # in Python 3.10 it is not the built-in one
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pipeline.delta.sink.sink import DeltaSink
from pipeline.errors import (
    JournalError,
    JournalWriteError,
    SinkFullError,
    SinkRunningError,
    SinkStoppedError,
    SparkUnavailableError,
)
from pipeline_tests.remedies import follows, refused
from pipeline_tests.unit.sink_sample import UPDATES, WRITER, receiver, receiving, settings_in, update
from pipeline_tests.unit.test_journal import ids, opened, rows
from pipeline_tests.unit.test_receiver import PATIENCE, Disk, kept
from pipeline_tests.unit.test_sink_without_spark import sink_in


@contextmanager
def no_room() -> Iterator[None]:
    """The files of this process can't grow inside this block, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def stop(sink: DeltaSink) -> None:
    with suppress(SparkUnavailableError):
        sink.stop(PATIENCE)


@follows(SinkRunningError)
def test_a_second_sink_starts_under_another_writer_id_or_once_the_first_one_is_stopped(tmp_path: Path) -> None:
    first, again = sink_in(tmp_path).start(), sink_in(tmp_path)
    refused(SinkRunningError, again.start, "Stop that sink first", "another writer id")
    other = DeltaSink(UPDATES, "other", settings_in(tmp_path)).start()
    assert other.is_running
    stop(other)
    stop(first)
    assert again.start().is_running
    stop(again)


@follows(SinkFullError)
def test_the_same_rows_are_accepted_later_or_by_a_larger_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    with receiving(tmp_path / "small", flush_rows=1, buffer_rows=2, when_full="refuse") as small:
        small.put(small.item(update(0)), None)
        assert disk.asked.wait(PATIENCE)
        for number in (1, 2):
            small.put(small.item(update(number)), None)
        refused(SinkFullError, lambda: small.put(small.item(update(3)), None), "again later", "buffer_rows")
        disk.may_sync.set()
        small.barrier().result(PATIENCE)
        small.put(small.item(update(3)), None)
    assert kept(tmp_path / "small") == [0, 1, 2, 3]
    disk = Disk(monkeypatch)
    with receiving(tmp_path / "large", flush_rows=1, buffer_rows=3, when_full="refuse") as large:
        large.put(large.item(update(0)), None)
        assert disk.asked.wait(PATIENCE)
        for number in (1, 2, 3):
            large.put(large.item(update(number)), None)
        disk.may_sync.set()
    assert kept(tmp_path / "large") == [0, 1, 2, 3]


@follows(SinkStoppedError)
def test_a_sink_that_was_stopped_takes_rows_again_once_it_is_started(tmp_path: Path) -> None:
    sink = sink_in(tmp_path).start()
    stop(sink)
    refused(SinkStoppedError, lambda: sink.submit(update(1)), "Start it again")
    again = sink_in(tmp_path).start()
    assert again.submit(update(1)).result(PATIENCE).rows == 1
    stop(again)


@follows(JournalError)
def test_a_journal_opens_with_a_copy_of_the_damaged_file_or_without_the_rows_that_are_given_up(tmp_path: Path) -> None:
    with opened(tmp_path / "journal") as journal:
        first, second = (journal.append(rows(number)).path for number in (1, 2))
    shutil.copy(first, tmp_path / "copy")
    first.write_bytes(first.read_bytes()[:50])
    start = receiver(tmp_path).start
    error = refused(
        JournalError, start, "undamaged copy of the file back under its name", "add '.given-up' to its name"
    )
    assert error.path == str(first)
    shutil.copy(tmp_path / "copy", error.path)
    with opened(tmp_path / "journal") as journal:
        assert ids(journal.loose) == [1, 2]
    first.write_bytes(b"")
    Path(error.path).rename(f"{error.path}.given-up")
    with opened(tmp_path / "journal") as journal:
        assert [segment.path for segment in journal.loose] == [second]


@follows(JournalError)
def test_a_journal_opens_once_its_folder_is_one_that_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("", encoding="utf-8")
    refused(JournalError, receiver(tmp_path).start, "Make the folder writable")
    (tmp_path / "journal").unlink()
    with opened(tmp_path / "journal") as journal:
        assert journal.append(rows(1)).number == 1


@follows(JournalWriteError)
def test_a_journal_is_written_once_there_is_room_and_a_running_sink_waits_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path / "one") as journal:
        with no_room():
            refused(JournalWriteError, lambda: journal.append(rows(1)), "Make room there", "continues by itself")
        assert ids((journal.append(rows(1)),)) == [1]
    with caplog.at_level(logging.WARNING), receiving(tmp_path, flush_rows=1) as running:
        with no_room():
            receipt = running.put(running.item(update(1)), None)
            with pytest.raises(FutureTimeoutError):
                receipt.result(0.2)
        assert receipt.result(PATIENCE).rows == 1
    assert f"sink updates ({WRITER}): " in caplog.text
    assert kept(tmp_path) == [1]
