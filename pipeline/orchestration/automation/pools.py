"""One write at a time per table: the pool of a table, and the end of runs whose process was killed.

Pools only save retries. Correctness never depends on them: another project, a sink or a person may write without a
slot.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from dagster import AssetKey, AssetsDefinition, DagsterInstance, DagsterRun, OpDefinition, RunsFilter
from dagster._core.instance import InstanceRef

# The statuses of runs that have not ended; not public.
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES
from dagster._core.storage.event_log.sqlite import SqliteEventLogStorage
from psutil import NoSuchProcess, Process

from pipeline.dataset import Dataset, Registry

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


def table_pools(registry: Registry, written: Iterable[AssetsDefinition] = ()) -> dict[str, str]:
    """The pool of each table, by the name of its dataset: that in which its rows are written.

    An asset that declares a pool of its own writes its tables in it. The rows of a side table are written by the step
    of its dataset.
    """
    own = {key: found for asset in written for key in asset.keys if (found := _pool_of_output(asset, key)) is not None}
    pools: dict[str, str] = {}
    for dataset in registry:  # a side table follows its dataset
        pools.setdefault(dataset.name, own.get(AssetKey(dataset.asset_key), pool(dataset)))
        for beside in dataset.side_tables:
            pools[beside.name] = pools[dataset.name]
    return pools


def _pool_of_output(asset: AssetsDefinition, key: AssetKey) -> str | None:
    """The pool of the op whose output is an asset. If it has none, None."""
    if not asset.is_executable:
        return None
    node, output = asset.node_def, asset.get_output_name_for_asset_key(key)
    op = node if isinstance(node, OpDefinition) else node.resolve_output_to_origin_op_def(output)
    return op.pool


def unfinished_run(instance: DagsterInstance, job: str, tags: Mapping[str, str]) -> str | None:
    """The id of a run of a job that has these tags and has not ended. If there is none, None.

    A run whose process was killed is failed, and its slots are freed, as in `release_dead`.
    """
    requested = RunsFilter(job_name=job, statuses=NOT_FINISHED_STATUSES, tags=tags)
    for run in instance.get_runs(requested):
        if not _failed_as_dead(instance, run):
            return run.run_id
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    return None


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
        if run is not None and not run.is_finished and not _failed_as_dead(instance, run):
            continue
        storage.free_concurrency_slots_for_run(run_id)
        released.append(run_id)
    return released


def _failed_as_dead(instance: DagsterInstance, run: DagsterRun) -> bool:
    """Fail an unfinished run whose process has ended. Return whether it has. Another machine's runs count as alive."""
    if not isinstance(instance.event_log_storage, SqliteEventLogStorage) or _is_alive(instance, run):
        return False
    instance.report_run_failed(run, "The process of this run has ended; its slots were freed.")
    return True


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
