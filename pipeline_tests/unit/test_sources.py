"""The sources in the box, into a sink while no Spark answers: what they have read is in its journal, once."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pipeline.delta.sink.ndjson import Tail, submit_lines
from pipeline.delta.sink.sink import DeltaSink
from pipeline.errors import SparkUnavailableError
from pipeline_tests.unit.sink_sample import update
from pipeline_tests.unit.test_sink_without_spark import kept, sink_in

PATIENCE = 30.0


@contextmanager
def running(folder: Path, **options: Any) -> Iterator[DeltaSink]:
    """A sink that takes rows; its end tells that there is no Spark."""
    sink = sink_in(folder, **options).start()
    try:
        yield sink
    finally:
        with suppress(SparkUnavailableError):
            sink.stop(PATIENCE)


def line(number: int, **values: Any) -> str:
    return json.dumps(update(number, **values), default=str) + "\n"


@pytest.fixture
def arriving(tmp_path: Path) -> Path:
    folder = tmp_path / "arriving"
    folder.mkdir()
    return folder


def test_a_stream_is_read_to_its_end_and_bad_lines_say_where_they_were(tmp_path: Path) -> None:
    content = f"{line(1)}\n{line(2, price='dear')}not json\n{line(3)}".encode() + b"\xff\n" + line(4).strip().encode()
    with running(tmp_path) as sink:
        assert submit_lines(io.BytesIO(content), sink) == 6
    assert kept(tmp_path) == [1, 3, 4]
    told = [
        json.loads(text)
        for path in sorted((tmp_path / "tables" / "_dead_letters" / "updates" / "test").glob("*.ndjson"))
        for text in path.read_text(encoding="utf-8").splitlines()
    ]
    assert [(letter["source"], letter["reason"].partition(":")[0]) for letter in told] == [
        ("stdin, line 3", "column price"), ("stdin, line 4", "not JSON"), ("stdin, line 6", "not UTF-8 at byte 0"),
    ]  # fmt: skip


def test_a_line_above_the_limit_is_a_dead_letter_and_the_next_one_is_stored(tmp_path: Path) -> None:
    content = f"{line(1, symbol='x' * 2_000)}{line(2)}".encode()
    with running(tmp_path, record_bytes=1_000) as sink:
        submit_lines(io.BytesIO(content), sink)
    assert kept(tmp_path) == [2]


def test_a_folder_is_read_as_it_grows_and_each_line_once_across_restarts(tmp_path: Path, arriving: Path) -> None:
    (arriving / "b.ndjson").write_text(line(3), encoding="utf-8")
    (arriving / "a.ndjson").write_text(line(1) + line(2)[:10], encoding="utf-8")
    (arriving / "c.txt").write_text(line(9), encoding="utf-8")
    with running(tmp_path) as sink:
        tail = Tail(arriving, sink)
        assert (tail.read(), tail.read()) == (2, 0)
        with (arriving / "a.ndjson").open("a", encoding="utf-8") as file:
            file.write(line(2)[10:])
        assert (tail.read(), tail.read()) == (1, 0)
    with (arriving / "b.ndjson").open("a", encoding="utf-8") as file:
        file.write(line(4))
    with running(tmp_path) as sink:
        assert Tail(arriving, sink).read() == 1
    assert kept(tmp_path) == [1, 3, 2, 4]


def test_a_file_that_is_shorter_than_it_was_is_read_anew(tmp_path: Path, arriving: Path) -> None:
    with running(tmp_path) as sink:
        tail = Tail(arriving, sink)
        for content in (line(1) + line(2), line(3), line(3) + line(4)):
            (arriving / "a.ndjson").write_text(content, encoding="utf-8")
            tail.read()
    assert kept(tmp_path) == [1, 2, 3, 4]


def test_following_ends_when_it_is_asked_to(tmp_path: Path, arriving: Path) -> None:
    stop = threading.Event()
    with running(tmp_path) as sink:
        following = threading.Thread(target=Tail(arriving, sink).follow, args=(stop, 0.01))
        following.start()
        (arriving / "a.ndjson").write_text(line(1), encoding="utf-8")
        deadline = time.monotonic() + PATIENCE
        while sink.metrics().rows_acknowledged < 1 and time.monotonic() < deadline:
            time.sleep(0.001)
        stop.set()
        following.join(PATIENCE)
        assert not following.is_alive()
    assert kept(tmp_path) == [1]
