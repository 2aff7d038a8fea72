"""A sink: writes a continuous stream of records and frames to a Delta table in micro-batches.

Here belongs the life of a sink, from start to stop, for threads and for event loops. One thread, the receiver's, makes
submissions durable. Another, the committer's, commits them; Spark's session is opened on that one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from copy import copy
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from pipeline.dataset import Append, Dataset, History, InsertNew, Merge, require_dataset
from pipeline.delta.frames.staging import STAGING
from pipeline.delta.server.warm import open_project_session
from pipeline.delta.sink.buffer import Receipt
from pipeline.delta.sink.committer import Committer
from pipeline.delta.sink.metrics import SinkCounters, SinkMetrics
from pipeline.delta.sink.receiver import Receiver, SinkSettings
from pipeline.delta.spark.doors import foreign
from pipeline.delta.spark.failures import failure_of
from pipeline.delta.storage.file_system import local_folder
from pipeline.delta.storage.options import use_accounts
from pipeline.errors import DeclarationError, PipelineError, SinkStoppedError
from pipeline.settings import STATE_FOLDER, Settings

_LOG = logging.getLogger(__name__)
SINKS = "sinks"
DEAD_LETTERS = "_dead_letters"
_WRITER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]*")
_DEFAULT = SinkSettings()


class UpdateHandler(Protocol):
    """The method that a streamer calls with each update that it receives."""

    def on_update(self, update: Any) -> None:
        """Receive one update."""


def sink_folders(dataset: Dataset, writer_id: str, settings: Settings, options: SinkSettings) -> tuple[Path, Path]:
    """The folders of a writer's journal and dead letters."""
    subfolder = f"{'+'.join(dataset.asset_key)}/{writer_id}"
    root = local_folder(settings.root)
    letters = (settings.project / STATE_FOLDER if root is None else root) / DEAD_LETTERS
    journals = options.journal or journals_folder(settings)
    return journals / subfolder, (options.dead_letters or letters) / subfolder


def journals_folder(settings: Settings) -> Path:
    """The folder of all journals, unless the options of a sink name another."""
    root = local_folder(settings.root)
    return (settings.project / STATE_FOLDER if root is None else root / STAGING) / SINKS


class DeltaSink:
    """A sink of one dataset. Only one sink with a writer id may run.

    A submission is acknowledged, by its future, when it is on disk. From then on it gets into the table exactly once,
    by this process or by the next one that starts a sink of the same dataset and writer.

    Raises:
        DeclarationError: a sink can't write the dataset in its mode, or the writer id can't name a folder.
    """

    def __init__(self, dataset: Dataset, writer_id: str, settings: Settings, options: SinkSettings = _DEFAULT) -> None:
        require_dataset(dataset, "DeltaSink")
        problems = tuple(_problems(dataset, writer_id))
        if problems:
            raise DeclarationError(dataset=dataset.name, problems=problems)
        use_accounts(settings.spark)
        self.dataset, self.writer_id, self.options = dataset, writer_id, options
        journal, letters = sink_folders(dataset, writer_id, settings, options)
        self._meter = SinkCounters()
        self._progress = threading.Condition()
        self._drained = threading.Event()
        self._receiver = Receiver(
            dataset,
            writer_id,
            options,
            journal=journal,
            dead_letters=letters,
            meter=self._meter,
            on_segment=self._notify,
        )
        staging = f"{settings.root.rstrip('/')}/{STAGING}"
        is_readable = options.journal is None and local_folder(settings.root) is not None  # for Spark
        self._committer = Committer(
            dataset.named(settings.catalog).at(settings.root), writer=writer_id, journal=self._receiver.journal,
            letters=self._receiver.letters, meter=self._meter, staging=staging,
            in_place=f"{staging}/{SINKS}/{journal.parent.name}/{journal.name}" if is_readable else None,
            open_session=partial(open_project_session, settings.spark), settings=options, stopping=self._drained,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._run, name=f"sink-{dataset.name}-commit", daemon=True)
        self._failure: PipelineError | None = None
        self._is_open = False
        self._old_sigterm: Any = None
        self._terminating: threading.Thread | None = None

    # --- threads ------------------------------------------------------------------------------------------------------

    def start(self) -> DeltaSink:
        """Open the journal and start both threads. Rows that an earlier process left are committed first.

        The table is opened on the committing thread. If that fails, the next call raises the error.

        Raises:
            SinkRunningError: a sink of this writer is running on this machine.
            JournalError: the files of the journal can't be trusted.
        """
        self._begin()
        self._take_sigterm()
        return self

    def _begin(self) -> None:
        self._receiver.start()
        self._thread.start()

    def submit(
        self,
        record: Any,
        *,
        position: tuple[str, int] | None = None,
        source: str | None = None,
        timeout: float | None = None,
    ) -> Future[Receipt]:
        """Submit a record (a mapping or dataclass) or a frame (pyarrow, pandas, polars). No I/O on this thread.

        A record that does not fit becomes a dead letter, and its future has the reason. Nested values and the columns
        of a pandas frame must not be changed before the future is done.

        Args:
            position: a source and the position up to which it has been submitted. It is stored with the rows.
            source: a description of the record's origin, for a dead letter.
            timeout: how many seconds to wait for room, if the sink is set to wait.

        Raises:
            SinkFullError: there is no room, and the sink refuses or the time is over.
            SinkStoppedError: the sink is not running.
        """
        return self._receiver.put(self._receiver.item(record, position, source), timeout)

    def on_update(self, update: Any) -> None:
        """Submit one update and ignore its future. If it is refused, it is among the dead letters."""
        self.submit(update)

    def flush(self, timeout: float | None = None) -> int | None:
        """Wait until all earlier submissions are in the table. Return the newest version that the sink has made.

        Raises:
            TimeoutError: it took longer. Nothing is lost.
            PipelineError: the error that stopped the sink.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            self._receiver.barrier().result(timeout)
        except FutureTimeoutError as error:  # in Python 3.10 it is not the built-in TimeoutError
            raise self._late(timeout) from error
        number = self._receiver.journal.newest
        with self._progress:
            while not self._is_open or self._receiver.journal.holds(number):
                if self._failure is not None:
                    raise copy(self._failure)
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise self._late(timeout)
                self._progress.wait(left)
        return self.metrics().last_version

    def stop(self, timeout: float | None = None) -> None:
        """Accept no more submissions, commit everything, and release the journal. A second call waits for the first.

        Raises:
            TimeoutError: it took longer. Acknowledged rows are committed at the next start.
            PipelineError: the error that stopped the sink earlier. Acknowledged rows are committed at the next start.
        """
        self._receiver.stop(self._stopped("it was stopped"))
        self._drained.set()
        self._notify()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        if self._thread.is_alive():
            raise self._late(timeout)
        self._receiver.journal.close()
        self._leave_sigterm()
        failure = self._receiver.failure or self._failure  # a receiver that ends by itself is the reason
        if failure is not None:
            raise copy(failure)

    @property
    def is_running(self) -> bool:
        """Whether both threads are alive. If one has ended by itself, `stop` raises the reason."""
        return self._thread.is_alive() and self._receiver.is_alive

    def metrics(self) -> SinkMetrics:
        """The numbers of the sink since its start, and those of waiting rows."""
        rows, _ = self._receiver.buffer.waiting
        return self._meter.read(buffered_rows=rows, backlog=self._receiver.journal.backlog)

    @property
    def positions(self) -> dict[str, int]:
        """The position up to which each source has been submitted and is on disk."""
        return dict(self._receiver.journal.positions)

    def __enter__(self) -> DeltaSink:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with suppress(*(() if kind is None else (PipelineError,))):  # an error here must not hide the block's error
            self.stop()

    # --- event loops --------------------------------------------------------------------------------------------------

    async def astart(self) -> DeltaSink:
        """As `start`, without blocking the event loop."""
        await asyncio.to_thread(self._begin)
        self._take_sigterm()
        return self

    async def asubmit(
        self, record: Any, *, position: tuple[str, int] | None = None, source: str | None = None
    ) -> asyncio.Future[Receipt]:
        """As `submit`, but waits for room without a thread. The returned future belongs to the event loop."""
        item = self._receiver.item(record, position, source)
        loop = asyncio.get_running_loop()
        if self.options.when_full == "refuse":
            self._receiver.put(item, None)
        else:
            room = asyncio.Event()
            while not self._receiver.put_or_call(item, partial(_wake, loop, room)):
                await room.wait()
                room.clear()
        return asyncio.wrap_future(item.receipt)

    async def aflush(self) -> int | None:
        """As `flush`."""
        return await asyncio.to_thread(self.flush)

    async def astop(self) -> None:
        """As `stop`."""
        await asyncio.to_thread(self.stop)
        self._leave_sigterm()

    async def __aenter__(self) -> DeltaSink:
        return await self.astart()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with suppress(*(() if kind is None else (PipelineError,))):
            await self.astop()

    # --- the committing thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        failure: PipelineError | None = self._stopped("its committing thread has ended")
        try:
            self._commit_all()
            failure = None
        except PipelineError as error:
            failure = error
        except foreign() as error:
            failure = self._stopped(failure_of(error).summary)
        finally:
            self._failure = failure
            if failure is not None:
                self._receiver.buffer.close(self._stopped(failure.message()))
                self._receiver.shrunk()
            self._notify()

    def _commit_all(self) -> None:
        """Commit until the sink is stopped and no rows are left."""
        self._committer.open()
        self._is_open = True
        self._notify()
        while True:
            if self._committer.commit_next():
                self._receiver.shrunk()
                self._notify()
                _LOG.info("sink %s (%s): %s", self.dataset.name, self.writer_id, self.metrics().line)
            elif self._drained.is_set():
                return
            else:
                self._wait_for_segments()

    def _wait_for_segments(self) -> None:
        with self._progress:
            if not self._receiver.journal.loose and not self._drained.is_set():
                self._progress.wait()

    def _notify(self) -> None:
        with self._progress:
            self._progress.notify_all()

    def _late(self, timeout: float | None) -> TimeoutError:
        return TimeoutError(f"{self.dataset.name}: not flushed within {timeout} s")

    def _stopped(self, reason: str) -> SinkStoppedError:
        return SinkStoppedError(dataset=self.dataset.name, writer=self.writer_id, reason=reason)

    # --- SIGTERM ------------------------------------------------------------------------------------------------------

    def _take_sigterm(self) -> None:
        if self.options.on_sigterm and threading.current_thread() is threading.main_thread():
            self._old_sigterm = signal.signal(signal.SIGTERM, self._on_sigterm)

    def _leave_sigterm(self) -> None:
        if self._old_sigterm is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._old_sigterm)
            self._old_sigterm = None

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Stop on another thread, since this one may hold the buffer's lock. Then let the old handler run."""
        if self._terminating is None:
            self._terminating = threading.Thread(target=self._terminate, name="sink-sigterm")
            self._terminating.start()
        elif self._drained.is_set() and not self._thread.is_alive():
            self._leave_sigterm()
            os.kill(os.getpid(), number)

    def _terminate(self) -> None:
        try:
            self.stop()
        except PipelineError as error:
            _LOG.error("sink %s (%s): %s", self.dataset.name, self.writer_id, error.message())
        os.kill(os.getpid(), signal.SIGTERM)


def _wake(loop: asyncio.AbstractEventLoop, room: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop is closed, so nothing waits
        loop.call_soon_threadsafe(room.set)


def _problems(dataset: Dataset, writer_id: str) -> Iterator[str]:
    if dataset.audit == "before":
        yield "a sink has acknowledged its rows, so an audit can't refuse them: declare audit='after'"
    mode = dataset.write
    if not isinstance(mode, Append | InsertNew | Merge | History):
        yield "a sink appends, inserts new rows or merges; declare it with Append, InsertNew, Merge or History"
    elif isinstance(mode, History) and mode.from_snapshots:
        yield "a sink writes batches of arrived rows, and none of them is a snapshot; declare the History without it"
    elif isinstance(mode, Merge) and (mode.delete_missing or (mode.order_by is None and mode.changelog is None)):
        yield "a sink merges batches of arrived rows; declare the Merge with order_by or a changelog"
    if not isinstance(writer_id, str) or not _WRITER.fullmatch(writer_id):
        yield f"writer id {writer_id!r}: letters, digits, '_', '.', '@' and '-' only, beginning with a letter or digit"
