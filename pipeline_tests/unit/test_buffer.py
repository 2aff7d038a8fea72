"""A sink's buffer: when what waits is due, and what happens where there is no room."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from pipeline.delta.sink.buffer import Bounds, Buffer, Item
from pipeline.errors import SinkFullError, SinkStoppedError

BOUNDS = Bounds(flush_seconds=600, flush_rows=1_000, flush_bytes=1 << 20, buffer_rows=10, buffer_bytes=100)
PATIENCE = 20.0


def item(rows: int = 1, size_bytes: int = 1) -> Item:
    return Item(payload={}, rows=rows, size_bytes=size_bytes)


def filled(*items: Item, bounds: Bounds = BOUNDS) -> Buffer:
    buffer = Buffer("updates", bounds)
    for one in items:
        buffer.put(one, when_full="refuse")
    return buffer


@pytest.mark.parametrize(
    ("there", "further"),
    [(item(rows=9), item(rows=2)), (item(size_bytes=60), item(size_bytes=41))],
    ids=["rows", "bytes"],
)
def test_a_full_buffer_refuses_and_says_how_much_waits(there: Item, further: Item) -> None:
    buffer = filled(there)
    with pytest.raises(SinkFullError) as caught:
        buffer.put(further, when_full="refuse")
    assert (caught.value.rows, caught.value.size_bytes) == (there.rows, there.size_bytes)
    assert caught.value.retryable
    assert buffer.waiting == (there.rows, there.size_bytes)


def test_a_full_buffer_blocks_until_what_waits_was_taken() -> None:
    first, second = item(rows=10), item()
    buffer = filled(first)
    with ThreadPoolExecutor(1) as pool:
        putting = pool.submit(buffer.put, second, when_full="block")
        with pytest.raises(SinkFullError):  # whatever the other thread has reached by now, there is no room
            buffer.put(item(), when_full="block", timeout=0.05)
        assert not putting.done()
        assert buffer.take() == [first]
        putting.result(PATIENCE)
    assert buffer.waiting == (1, 1)


def test_what_is_larger_than_the_buffer_has_it_for_itself() -> None:
    buffer = filled(item(rows=50, size_bytes=500))
    with pytest.raises(SinkFullError):
        buffer.put(item(), when_full="refuse")
    assert [one.rows for one in buffer.take()] == [50]


@pytest.mark.parametrize(
    ("bounds", "items"),
    [
        (replace(BOUNDS, flush_rows=3), [item() for _ in range(3)]),
        (replace(BOUNDS, flush_bytes=30), [item(size_bytes=15), item(size_bytes=15)]),
        (replace(BOUNDS, flush_seconds=0.05), [item()]),
        (BOUNDS, [item(rows=10)]),  # nothing further would have room
    ],
    ids=["rows", "bytes", "age", "full"],
)
def test_what_waits_is_due_by_rows_bytes_age_and_when_the_buffer_is_full(bounds: Bounds, items: list[Item]) -> None:
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(Buffer.take, buffer := Buffer("updates", bounds))
        for one in items:
            buffer.put(one, when_full="block")
        assert taking.result(PATIENCE) == items


def test_what_waits_is_not_taken_before_it_is_due_and_at_once_when_it_is_asked_for() -> None:
    buffer = filled(one := item())
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(buffer.take)
        while not buffer._changed._waiters:  # type: ignore[attr-defined]  until it waits
            time.sleep(0.001)
        assert not taking.done()
        buffer.flush()
        assert taking.result(PATIENCE) == [one]


def test_a_closed_buffer_gives_out_what_it_holds_and_takes_nothing() -> None:
    reason = SinkStoppedError(dataset="updates", writer="test", reason="first")
    buffer = filled(one := item())
    called = threading.Event()
    assert not filled(item(rows=10)).put_or_call(item(), called.set)
    buffer.close(reason)
    buffer.close(SinkStoppedError(dataset="updates", writer="test", reason="second"))
    assert buffer.is_closed
    for put in (lambda: buffer.put(item(), when_full="block"), lambda: buffer.put_or_call(item(), called.set)):
        with pytest.raises(SinkStoppedError) as caught:
            put()
        assert caught.value.reason == "first"
        assert caught.value is not reason
    assert buffer.take() == [one]
    assert buffer.take() == []
    assert not called.is_set()


def test_who_found_no_room_is_called_once_there_is_some() -> None:
    buffer, called = filled(item(rows=10)), threading.Event()
    assert not buffer.put_or_call(item(), called.set)
    assert not called.is_set()
    buffer.take()
    assert called.is_set()
    assert buffer.put_or_call(item(), called.set)


def test_a_blocked_writer_is_woken_by_the_end_of_the_buffer() -> None:
    buffer = filled(item(rows=10))
    with ThreadPoolExecutor(1) as pool:
        putting = pool.submit(buffer.put, item(), when_full="block")
        buffer.close(SinkStoppedError(dataset="updates", writer="test", reason="over"))
        with pytest.raises(SinkStoppedError):
            putting.result(PATIENCE)
