"""The front half of a sink: submissions become dead letters and segments of the journal, on a thread of its own.

Here belong the settings of a sink, the thread that sorts and syncs, and acknowledgement. Nothing here uses Spark. The
commit of segments to the table belongs to `committer`.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pipeline.dataset import Dataset
from pipeline.delta.frames.records import as_mapping, size_of
from pipeline.delta.log.retry import RetryPolicy, retried_until
from pipeline.delta.sink.buffer import Bounds, Buffer, Item, Receipt
from pipeline.delta.sink.dead_letters import DeadLetter, DeadLetters
from pipeline.delta.sink.intake import Intake, frame_of, frame_size
from pipeline.delta.sink.journal import Journal
from pipeline.delta.sink.metrics import SinkCounters
from pipeline.errors import JournalError, PipelineError, SettingsError, SinkStoppedError
from pipeline.settings import refuse_other_types

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
# The wait of the receiving thread for the backlog to shrink, before it checks whether the sink is stopping.
_POLL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class SinkSettings:
    """The buffering and flushing of a sink.

    Args:
        flush_seconds: a flush is due when the oldest row has waited this long.
        flush_rows: a flush is due when this many rows wait.
        flush_bytes: a flush is due when rows of this size wait.
        buffer_rows: how many rows may wait in memory.
        buffer_bytes: the size of the rows that may wait in memory.
        backlog_rows: how many rows may be on disk and not committed. Beyond it the sink takes nothing from the buffer.
        commit_rows: the most rows of one commit, but at least one segment of the journal.
        when_full: whether `submit` waits for room or refuses.
        record_bytes: the largest size of one record.
        allow_nan: whether NaN and the infinities are accepted.
        retry_seconds: how long a call with a temporary failure is retried, such as a commit while the server is down
            or a sync while the disk is full.
        compact_after: after how many commits small files are compacted, between two flushes; 0 for never.
        compact_bytes: the size below which a file is small.
        journal: the folder of the write-ahead copies. If None, they are in the staging folder of the root, or in the
            state folder of the project if the root is not on this machine.
        dead_letters: the folder of the dead letters. If None, it is under the root, or in the state folder of the
            project if the root is not on this machine.
        on_sigterm: whether SIGTERM flushes before the process ends, if the sink is started in the main thread.
    """

    flush_seconds: float = 3.0
    flush_rows: int = 100_000
    flush_bytes: int = 64 << 20
    buffer_rows: int = 500_000
    buffer_bytes: int = 256 << 20
    backlog_rows: int = 5_000_000
    commit_rows: int = 2_000_000
    when_full: Literal["block", "refuse"] = "block"
    record_bytes: int = 1 << 20
    allow_nan: bool = False
    retry_seconds: float = 600.0
    compact_after: int = 100
    compact_bytes: int = 32 << 20
    journal: Path | None = None
    dead_letters: Path | None = None
    on_sigterm: bool = True

    def __post_init__(self) -> None:
        refuse_other_types(self)
        sizes = ("flush_rows", "flush_bytes", "buffer_rows", "buffer_bytes", "backlog_rows", "commit_rows")
        for name in (*sizes, "record_bytes", "compact_bytes", "flush_seconds"):
            if getattr(self, name) <= 0:
                raise self._refused(name, "above 0")
        for name in ("retry_seconds", "compact_after"):
            if getattr(self, name) < 0:
                raise self._refused(name, "0 or above")
        if self.when_full not in ("block", "refuse"):
            raise self._refused("when_full", "block or refuse")

    def _refused(self, name: str, expected: str) -> SettingsError:
        setting = f"{type(self).__name__}.{name}"
        return SettingsError(setting=setting, problem=f"got {getattr(self, name)!r}", expected=expected)

    @property
    def patience(self) -> RetryPolicy:
        """The number and the duration of the retries after a temporary failure."""
        return RetryPolicy(first_wait_seconds=0.5, longest_wait_seconds=30, total_seconds=self.retry_seconds)

    @property
    def bounds(self) -> Bounds:
        """The bounds of the buffer."""
        return Bounds(
            flush_seconds=self.flush_seconds, flush_rows=self.flush_rows, flush_bytes=self.flush_bytes,
            buffer_rows=self.buffer_rows, buffer_bytes=self.buffer_bytes,
        )  # fmt: skip


class Receiver:
    """Receives records and frames, and acknowledges them when they are on disk.

    Args:
        on_segment: called after new segments were written.
    """

    def __init__(
        self, dataset: Dataset, writer: str, settings: SinkSettings, *, journal: Path, dead_letters: Path,
        meter: SinkCounters, on_segment: Callable[[], None],
    ) -> None:  # fmt: skip
        self.dataset, self.writer, self.settings = dataset, writer, settings
        self.journal = Journal(journal, dataset.name, writer)
        self.letters = DeadLetters(dead_letters, dataset.name, writer)
        self.buffer = Buffer(dataset.name, settings.bounds)
        self._intake = Intake(dataset, allow_nan=settings.allow_nan, record_bytes=settings.record_bytes)
        self._meter = meter
        self._on_segment = on_segment
        self._shrunk = threading.Event()
        self._retry = settings.patience
        self.failure: PipelineError | None = None
        self._thread = threading.Thread(target=self._run, name=f"sink-{dataset.name}-receive", daemon=True)

    def start(self) -> None:
        """Open the journal's folder and begin to receive.

        Raises:
            SinkRunningError: another sink has the folder open.
            JournalError: the folder can't be read.
        """
        self.journal.open()
        self.letters.sweep()
        self._thread.start()

    def item(self, payload: Any, position: tuple[str, int] | None = None, source: str | None = None) -> Item:
        """A submission as a buffer item. A record's fields are copied; no value is checked."""
        frame = frame_of(payload)
        if frame is not None:
            rows, size = frame_size(frame)
            return Item(payload=frame, rows=rows, size_bytes=size, position=position, source=source)
        if payload is None:
            payload = DeadLetter(reason="nothing (None) is not a record", record=None, source=source)
        mapping = None if isinstance(payload, DeadLetter) else as_mapping(payload)
        if mapping is not None:
            payload = dict(mapping)
        return Item(
            payload=payload,
            rows=1,
            size_bytes=size_of(payload, self.settings.record_bytes),
            position=position,
            source=source,
        )

    def put(self, item: Item, timeout: float | None) -> Future[Receipt]:
        """Submit an item, as `Buffer.put`."""
        self.buffer.put(item, when_full=self.settings.when_full, timeout=timeout)
        self._meter.submitted(item.rows)
        return item.receipt

    def put_or_call(self, item: Item, on_room: Callable[[], None]) -> bool:
        """Submit an item or register a call, as `Buffer.put_or_call`."""
        is_accepted = self.buffer.put_or_call(item, on_room)
        if is_accepted:
            self._meter.submitted(item.rows)
        return is_accepted

    def barrier(self) -> Future[Receipt]:
        """Make all waiting items due. The future is done when all earlier submissions are on disk."""
        item = Item(payload=None, rows=0, size_bytes=0)
        self.buffer.put(item, when_full="block")
        self.buffer.flush()
        return item.receipt

    def shrunk(self) -> None:
        """Signal that the backlog has shrunk."""
        self._shrunk.set()

    def stop(self, reason: PipelineError) -> None:
        """Accept nothing more, write all waiting items, and end the thread. The journal stays open."""
        self.buffer.close(reason)
        self._shrunk.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether the receiving thread is alive."""
        return self._thread.is_alive()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        items: list[Item] = []
        failure: PipelineError | None = self._stopped("its receiving thread has ended")
        try:
            while True:
                self._wait_for_backlog()
                items = self.buffer.take()
                if not items:
                    failure = None
                    return
                self._keep(items)
                items = []
        except JournalError as error:
            failure = error
        finally:
            self._end(items, failure)

    def _stopped(self, reason: str) -> SinkStoppedError:
        return SinkStoppedError(dataset=self.dataset.name, writer=self.writer, reason=reason)

    def _end(self, items: list[Item], failure: PipelineError | None) -> None:
        """Fail `items` and the waiting items. If the thread ended normally, there are none."""
        self.failure = failure
        stopped = self._stopped("it was stopped" if failure is None else failure.message())
        self.buffer.close(stopped)
        for item in (*items, *self.buffer.take()):
            if not item.receipt.done() and item.receipt.set_running_or_notify_cancel():
                item.receipt.set_exception(copy(stopped))

    def _wait_for_backlog(self) -> None:
        """Wait until the backlog has room or the sink is stopping. In the second case everything is written."""
        while self.journal.backlog[0] > self.settings.backlog_rows and not self.buffer.is_closed:
            self._shrunk.clear()
            if self.journal.backlog[0] > self.settings.backlog_rows:
                self._shrunk.wait(_POLL_SECONDS)

    def _keep(self, items: list[Item]) -> None:
        """Write dead letters first and then rows, so that an item is completely on disk when it is acknowledged."""
        result = self._intake.take(items)
        if result.letters:
            name = f"{min(letter.at for letter in result.letters):%Y%m%dT%H%M%S}-{_token()}"
            self._with_retries(lambda: self.letters.write(result.letters, name))
            self._meter.refused(len(result.letters))
        if result.tables:
            for segment in self._with_retries(lambda: self.journal.append_all(result.tables, _positions(items))):
                self._meter.acknowledged(segment.rows, segment.size_bytes)
            self._on_segment()
        for item, receipt in zip(items, result.receipts, strict=True):
            if item.receipt.set_running_or_notify_cancel():
                item.receipt.set_result(receipt)

    def _with_retries(self, act: Callable[[], _T]) -> _T:
        """The result of a call, repeated while the storage fails. When the sink is stopping there is one more call.

        Raises:
            JournalError: the storage fails for too long, or the journal can't be trusted.
        """

        def wait(error: PipelineError, seconds: float) -> None:
            _LOG.warning("sink %s (%s): %s, again in %.1f s", self.dataset.name, self.writer, error.message(), seconds)
            self._shrunk.clear()
            self._shrunk.wait(seconds)  # also set when the sink is stopping

        result, _ = retried_until(
            act, self._retry, passes=lambda error: error.may_pass, is_last=lambda: self.buffer.is_closed, wait=wait
        )
        return result


def _positions(items: list[Item]) -> Mapping[str, int]:
    return dict(item.position for item in items if item.position is not None)


def _token() -> str:
    return uuid.uuid4().hex[:8]
