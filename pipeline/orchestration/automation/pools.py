"""One write at a time per table: the pool of a dataset, and the release of the slots of dead runs.

Pools only save retries. Correctness never depends on them: another project, a sink or a person may write without a
slot.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dagster import DagsterInstance, DagsterRun
from dagster._core.instance import InstanceRef
from dagster._core.storage.event_log.sqlite import SqliteEventLogStorage
from psutil import NoSuchProcess, Process

from pipeline.dataset import Dataset

# The clocks of a process's start and of an event may differ by this much.
_CLOCK_SECONDS = 2.0
# A run of a small asset on a warm server takes less time than this, unless it has to wait for a slot.
_POLL_SECONDS = 8.0


def pool(dataset: Dataset) -> str:
    """The pool of a dataset's table. The instance decides how many slots it has."""
    return f"delta/{dataset.name}"


def pool_of_export(name: str) -> str:
    """The pool of the folder of an export, by the name of its asset."""
    return f"export/{name}"


def release_dead(instance: DagsterInstance) -> list[str]:
    """Fail the runs whose process died while it had a slot or waited for one, and free their slots. Return their ids.

    Without a daemon nothing else does this, and the next run would wait forever. It works only on an instance of this
    machine: another machine's processes are unknown here.
    """
    storage = instance.event_log_storage
    if not isinstance(storage, SqliteEventLogStorage):
        return []
    infos = [storage.get_concurrency_info(key) for key in storage.get_concurrency_keys()]
    holders = {slot.run_id for info in infos for slot in info.claimed_slots}
    waiting = {step.run_id for info in infos for step in info.pending_steps}
    released = []
    for run_id in sorted(holders | waiting):
        run = instance.get_run_by_id(run_id)
        if run is not None and not run.is_finished:
            if _is_alive(instance, run):
                continue
            instance.report_run_failed(run, "The process of this run has ended; its slots were freed.")
        storage.free_concurrency_slots_for_run(run_id)
        released.append(run_id)
    return released


def _is_alive(instance: DagsterInstance, run: DagsterRun) -> bool:
    """Whether a process that has reported an event of the run is still running."""
    reported: dict[int, float] = {}
    for entry in instance.all_logs(run.run_id):
        if entry.dagster_event is not None and entry.dagster_event.pid is not None:
            reported[entry.dagster_event.pid] = entry.timestamp
    # A run that no process has begun yet is waiting for the daemon or the UI.
    return not reported or any(_began_before(pid, timestamp) for pid, timestamp in reported.items())


def _began_before(pid: int, timestamp: float) -> bool:
    try:
        return Process(pid).create_time() <= timestamp + _CLOCK_SECONDS
    except NoSuchProcess:
        return False


@contextmanager
def with_dead_released(instance: DagsterInstance, report: Callable[[str], object]) -> Iterator[None]:
    """During the block, free the slots of killed runs. If no daemon runs, nothing else does.

    A block that ends before the first check has not waited for a slot, and costs nothing.

    Args:
        report: called with a sentence for each run whose slots were freed.
    """
    if not instance.is_persistent or not isinstance(instance.event_log_storage, SqliteEventLogStorage):
        yield
        return
    ended = threading.Event()
    watcher = threading.Thread(target=_release_until, args=(ended, instance.get_ref(), report), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _release_until(ended: threading.Event, ref: InstanceRef, report: Callable[[str], object]) -> None:
    if ended.wait(_POLL_SECONDS):
        return
    with DagsterInstance.from_ref(ref) as instance:
        while True:
            for run_id in release_dead(instance):
                report(f"The process of run {run_id} has ended; its slots were freed.")
            if ended.wait(_POLL_SECONDS):
                return
