"""What a sink has been handed and not yet made durable: bounded, in memory, in the order in which it came.

Here belong room and its lack, and when what waits is due. What becomes of it is the receiver's.

A caller's thread only ever appends here: it waits for room, where it is to wait at all, and never for a disk.
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
    """What became of one submission: rows that are on disk and will be in the table, and rows that are dead letters."""

    rows: int
    refused: int
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Item:
    """One submission: a record, a local frame or a dead letter.

    `position` names a place in a source up to which everything has been submitted, as (source, place); `source` says in
    words where this came from, for a dead letter.
    """

    payload: Any
    rows: int
    size_bytes: int
    position: tuple[str, int] | None = None
    source: str | None = None
    receipt: Future[Receipt] = field(default_factory=Future)
    came: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """When what waits is due, by age of the oldest, rows or bytes, and how much may wait at all."""

    flush_seconds: float
    flush_rows: int
    flush_bytes: int
    buffer_rows: int
    buffer_bytes: int


class Buffer:
    """A queue of items with an end to its room."""

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
    def held(self) -> tuple[int, int]:
        """Rows and bytes that wait."""
        with self._changed:
            return self._rows, self._bytes

    @property
    def is_closed(self) -> bool:
        """Whether nothing is taken any more."""
        with self._changed:
            return self._closed_by is not None

    def put(self, item: Item, *, when_full: Literal["block", "refuse"], timeout: float | None = None) -> None:
        """Append an item; without room wait for it, or refuse.

        Raises:
            SinkFullError: there is no room, and it is to be refused or has waited for `timeout` seconds.
            PipelineError: what the buffer was closed by.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._try(item):
                left = None if deadline is None else deadline - time.monotonic()
                if when_full == "refuse" or (left is not None and left <= 0):
                    raise SinkFullError(dataset=self._dataset, rows=self._rows, size_bytes=self._bytes)
                self._changed.wait(left)

    def put_or_call(self, item: Item, on_room: Callable[[], None]) -> bool:
        """Append an item; without room say so, and call once when there may be some.

        Raises:
            PipelineError: what the buffer was closed by.
        """
        with self._changed:
            if self._try(item):
                return True
            self._waiters.append(on_room)
            return False

    def _try(self, item: Item) -> bool:
        if self._closed_by is not None:
            raise copy(self._closed_by)  # one error must not gather the traces of all threads
        bounds = self._bounds
        is_over = self._rows + item.rows > bounds.buffer_rows or self._bytes + item.size_bytes > bounds.buffer_bytes
        if self._items and is_over:  # what is larger than the buffer has it for itself
            return False
        self._items.append(item)
        self._rows += item.rows
        self._bytes += item.size_bytes
        if len(self._items) == 1 or self._is_large:
            self._changed.notify_all()
        return True

    @property
    def _is_large(self) -> bool:
        # A buffer that is smaller than what is due would wait for rows that have no room.
        rows = min(self._bounds.flush_rows, self._bounds.buffer_rows)
        size = min(self._bounds.flush_bytes, self._bounds.buffer_bytes)
        return self._rows >= rows or self._bytes >= size

    def take(self) -> list[Item]:
        """Everything that waits, once it is due; empty when the buffer is closed and nothing waits."""
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
        """Seconds until what waits is due; None where nothing waits."""
        if self._closed_by is not None or self._flushing:
            return 0.0
        if not self._items:
            return None
        return 0.0 if self._is_large else self._bounds.flush_seconds - (time.monotonic() - self._items[0].came)

    def flush(self) -> None:
        """Make due what waits now."""
        with self._changed:
            if self._items:
                self._flushing = True
                self._changed.notify_all()

    def close(self, reason: PipelineError) -> None:
        """Take nothing any more; the first reason stays."""
        with self._changed:
            self._closed_by = self._closed_by or reason
            waiters, self._waiters = self._waiters, []
            self._changed.notify_all()
        for call in waiters:
            call()
