"""The scheduled maintenance of tables: one job for each group of datasets that declare it, one step for each table.

Here belong the jobs, their schedules, and what Dagster shows of a maintenance. When a step of it is due is decided in
`pipeline.delta.maintain`. Each table is maintained in its own pool, so that no run of a project's writes it meanwhile.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from typing import Any

from dagster import (
    AssetKey,
    AssetObservation,
    GraphDefinition,
    JobDefinition,
    OpDefinition,
    OpExecutionContext,
    ScheduleDefinition,
    op,
)

from pipeline.dataset import Dataset, Registry
from pipeline.delta.maintain.checkpoint import Checkpoints
from pipeline.delta.maintain.retention import consumers_of
from pipeline.delta.maintain.routine import Maintained, maintain_table, write_record
from pipeline.errors import PipelineError, RegistryError, TableNotFoundError
from pipeline.orchestration.automation.steps import schedule_of, step_names
from pipeline.orchestration.failures import failure_of
from pipeline.orchestration.metadata_keys import (
    BYTES,
    BYTES_RECLAIMED,
    CHECKPOINT_WRITTEN,
    FILES,
    FILES_JOINED,
    FILES_VACUUMED,
    KEPT_BECAUSE,
    LOG_ENTRIES,
    LOG_FILES_REMOVED,
    OLDEST_READABLE,
    RECORD,
    SMALL_FILE_RATIO,
    TOMBSTONES_EXPIRED,
)
from pipeline.orchestration.resources import DeltaSparkResource

ROUTINE_CRON = "30 1 * * *"


def routine_name(group: str) -> str:
    """The name of a group's job and of its schedule."""
    return f"maintain_{group}"


def routine_jobs(registry: Registry, root: str, pools: Mapping[str, str]) -> list[JobDefinition]:
    """A job for each group that has a dataset with a scheduled `maintenance`. It maintains these datasets' tables.

    If the maintenance of one table fails, the other tables are still maintained, and the run fails at its end.

    Args:
        pools: the pool of each table, by the name of its dataset.
    """
    jobs = []
    for group, datasets in _scheduled(registry).items():
        ops = [
            _maintenance(dataset, name, pools[dataset.name], registry, root)
            for dataset, name in zip(datasets, step_names("maintain", datasets), strict=True)
        ]
        graph = GraphDefinition(
            name=routine_name(group), node_defs=ops, description=f"Maintains the tables of the group {group}."
        )
        jobs.append(graph.to_job())
    return jobs


def routine_schedules(
    registry: Registry, jobs: Iterable[JobDefinition], root: str, running: Container[str] = ()
) -> list[ScheduleDefinition]:
    """The schedules of these jobs, at the times that the datasets declare, in UTC. They start as the settings say.

    Raises:
        RegistryError: datasets of a group declare different times.
    """
    by_name = {job.name: job for job in jobs}
    return [
        schedule_of(
            routine_name(group),
            by_name[routine_name(group)],
            _cron(group, datasets),
            root=root,
            running=running,
            timezone="UTC",
        )
        for group, datasets in _scheduled(registry).items()
    ]


def _scheduled(registry: Registry) -> dict[str, list[Dataset]]:
    by_group: dict[str, list[Dataset]] = defaultdict(list)
    for dataset in registry:
        if dataset.maintenance is not None and dataset.maintenance.scheduled:
            by_group[dataset.group].append(dataset)
    return by_group


def _cron(group: str, datasets: Iterable[Dataset]) -> str:
    declared = {d.name: d.maintenance.cron for d in datasets if d.maintenance is not None and d.maintenance.cron}
    crons = set(declared.values())
    if len(crons) > 1:
        times = ", ".join(f"{name} {cron!r}" for name, cron in declared.items())
        problem = f"the datasets of group {group} declare different times of maintenance: {times}"
        raise RegistryError(problems=(problem,))
    return crons.pop() if crons else ROUTINE_CRON


def _maintenance(dataset: Dataset, name: str, pool: str, registry: Registry, root: str) -> OpDefinition:
    """The step that maintains one table. A table that was never written is skipped."""

    @op(name=name, pool=pool, description=f"Maintains the table of {dataset.name}.")
    def maintain(context: OpExecutionContext, spark: DeltaSparkResource) -> None:
        consumers = consumers_of(dataset.name, registry, root)
        try:
            with Checkpoints(lambda: spark.spark_session) as checkpoints:
                done = maintain_table(
                    dataset.at(root), checkpoints, consumers=consumers, apply=True, run_id=context.run_id
                )
            record = write_record(done, context.run_id, root)
        except TableNotFoundError:
            context.log.info(f"{dataset.name}: no table yet")
            return
        except PipelineError as error:
            raise failure_of(error) from error
        metadata = _metadata(done) | ({} if record is None else {RECORD: record})
        context.log.info(f"{dataset.name}: {metadata}")
        context.log_event(AssetObservation(asset_key=AssetKey(dataset.asset_key), metadata=metadata))
        if done.failure is not None:
            raise failure_of(done.failure) from done.failure

    return maintain


def _metadata(done: Maintained) -> dict[str, Any]:
    """The numbers of a maintenance, which Dagster's UI plots over time."""
    sizes = done.sizes
    numbers: dict[str, Any] = {
        FILES: sizes.files, BYTES: sizes.bytes, SMALL_FILE_RATIO: sizes.small_file_ratio,
        LOG_ENTRIES: sizes.log_entries, FILES_JOINED: done.files_joined or 0,
        TOMBSTONES_EXPIRED: done.tombstones_expired or 0, FILES_VACUUMED: done.files_vacuumed,
        LOG_FILES_REMOVED: done.log_files_removed, BYTES_RECLAIMED: done.bytes_reclaimed,
    }  # fmt: skip
    known = {CHECKPOINT_WRITTEN: done.checkpoint, OLDEST_READABLE: sizes.oldest_readable}
    numbers |= {name: number for name, number in known.items() if number is not None}
    return numbers | ({KEPT_BECAUSE: list(done.waits)} if done.waits else {})
