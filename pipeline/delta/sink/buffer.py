"""Submissions to a sink that are not durable yet: bounded, in memory, in the order of their arrival.

Here belong the bounds of the buffer, and the decision when waiting items are due. Writing them belongs to `receiver`.

A caller's thread only appends here: it may wait for room, if the sink is set to wait, but never for a disk.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.errors import PipelineError, SinkFullError


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The result of one submission: rows that are on disk and will get into the table, and dead letters."""

    rows: int
    refused: int
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Item:
    """One submission: a record, a local frame or a dead letter.

    `position` is a position in a source up to which everything has been submitted, as (source, position). `source`
    describes the origin of the item, for a dead letter.
    """

    payload: Any
    rows: int
    size_bytes: int
    position: tuple[str, int] | None = None
    source: str | None = None
    receipt: Future[Receipt] = field(default_factory=Future)
    submitted_at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The age of the oldest item, the rows and the bytes at which waiting items are due, and the most that may wait."""

    flush_seconds: float
    flush_rows: int
    flush_bytes: int
    buffer_rows: int
    buffer_bytes: int


class Buffer:
    """A bounded queue."""

    def __init__(self, dataset: str, bounds: Bounds) -> None:
        self._dataset = dataset
        self._bounds = bounds
        self._items: deque[Item] = deque()
        self._rows = self._bytes = 0
        self._changed = threading.Condition()
        self._flushing = False
        self._closed_by: PipelineError | None = None
        self._waiters: list[Callable[[], None]] = []

    @property
    def waiting(self) -> tuple[int, int]:
        """Rows and bytes that are waiting."""
        with self._changed:
            return self._rows, self._bytes

    @property
    def is_closed(self) -> bool:
        """Whether the buffer accepts no more items."""
        with self._changed:
            return self._closed_by is not None

    def put(self, item: Item, *, when_full: Literal["block", "refuse"], timeout: float | None = None) -> None:
        """Append an item. If there is no room, wait for it or refuse.

        Raises:
            SinkFullError: there is no room, and `when_full` is refuse or `timeout` seconds have passed.
            PipelineError: the reason for which the buffer was closed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._try(item):
                left = None if deadline is None else deadline - time.monotonic()
                if when_full == "refuse" or (left is not None and left <= 0):
                    raise SinkFullError(dataset=self._dataset, rows=self._rows, size_bytes=self._bytes)
                self._changed.wait(left)

    def put_or_call(self, item: Item, on_room: Callable[[], None]) -> bool:
        """Append an item. If there is no room, return False, and call `on_room` once when there may be room again.

        Raises:
            PipelineError: the reason for which the buffer was closed.
        """
        with self._changed:
            if self._try(item):
                return True
            self._waiters.append(on_room)
            return False

    def _try(self, item: Item) -> bool:
        if self._closed_by is not None:
            raise copy(self._closed_by)  # one error object would collect the traces of all threads
        bounds = self._bounds
        is_over = self._rows + item.rows > bounds.buffer_rows or self._bytes + item.size_bytes > bounds.buffer_bytes
        if self._items and is_over:  # an item larger than the buffer may fill it alone
            return False
        self._items.append(item)
        self._rows += item.rows
        self._bytes += item.size_bytes
        if len(self._items) == 1 or self._is_large:
            self._changed.notify_all()
        return True

    @property
    def _is_large(self) -> bool:
        # In a buffer smaller than the flush bounds, rows without room would wait for more rows.
        rows = min(self._bounds.flush_rows, self._bounds.buffer_rows)
        size = min(self._bounds.flush_bytes, self._bounds.buffer_bytes)
        return self._rows >= rows or self._bytes >= size

    def take(self) -> list[Item]:
        """All waiting items, once they are due. If the buffer is closed and empty, an empty list."""
        with self._changed:
            while True:
                due = self._due()
                if due is not None and due <= 0:
                    break
                self._changed.wait(due)
            items = list(self._items)
            self._items.clear()
            self._rows = self._bytes = 0
            self._flushing = False
            waiters, self._waiters = self._waiters, []
            self._changed.notify_all()
        for call in waiters:
            call()
        return items

    def _due(self) -> float | None:
        """Seconds until the waiting items are due. If nothing waits, None."""
        if self._closed_by is not None or self._flushing:
            return 0.0
        if not self._items:
            return None
        return 0.0 if self._is_large else self._bounds.flush_seconds - (time.monotonic() - self._items[0].submitted_at)

    def flush(self) -> None:
        """Make all items due that wait now."""
        with self._changed:
            if self._items:
                self._flushing = True
                self._changed.notify_all()

    def close(self, reason: PipelineError) -> None:
        """Accept no more items. The first reason is kept."""
        with self._changed:
            self._closed_by = self._closed_by or reason
            waiters, self._waiters = self._waiters, []
            self._changed.notify_all()
        for call in waiters:
            call()
