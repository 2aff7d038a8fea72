"""Jobs and schedules that maintain the tables. The work itself belongs to `pipeline.delta.maintain`."""

from collections.abc import Callable, Container, Iterable
from typing import Any

from dagster import (
    AssetKey,
    AssetObservation,
    Config,
    JobDefinition,
    OpExecutionContext,
    ScheduleDefinition,
    job,
    op,
)

from pipeline.dataset import Dataset, Registry
from pipeline.delta.maintain.checkpoint import Checkpoints
from pipeline.delta.maintain.maintain import checkpoint, vacuum
from pipeline.delta.maintain.retention import Unread, consumers_of
from pipeline.errors import PipelineError, TableNotFoundError
from pipeline.orchestration.automation.sensors import schedule_status
from pipeline.orchestration.failures import failure_of
from pipeline.orchestration.metadata_keys import (
    CHECKPOINT_VERSION,
    LOG_KEPT_FOR,
    VACUUM_APPLIED,
    VACUUM_FILES,
    VACUUM_NEEDED_BY,
)
from pipeline.orchestration.resources import DeltaSparkResource

VACUUM_CRON = "0 3 * * 0"
CHECKPOINT_CRON = "30 2 * * *"


class VacuumConfig(Config):
    """Whether files are removed or only listed."""

    apply: bool = False


def maintenance_jobs(registry: Registry, root: str) -> list[JobDefinition]:
    """A job that vacuums every table of the registry, and one that checkpoints them.

    A table that was never written is skipped. A vacuum fails if it would remove files that a consumer of the table's
    changes has not read yet. If one table fails, the others are still processed, and the step fails at the end.
    """

    @op(name="vacuum_tables")
    def vacuum_tables(context: OpExecutionContext, config: VacuumConfig, spark: DeltaSparkResource) -> None:
        session = spark.spark_session

        def one(dataset: Dataset) -> dict[str, Any]:
            consumers = consumers_of(dataset.name, registry, root)
            result = vacuum(session, dataset.at(root), consumers=consumers, apply=config.apply)
            metadata = {VACUUM_FILES: len(result.files), VACUUM_APPLIED: result.applied}
            return metadata | _needed(VACUUM_NEEDED_BY, result.needed)

        _each(context, registry, one)

    @op(name="checkpoint_tables")
    def checkpoint_tables(context: OpExecutionContext, spark: DeltaSparkResource) -> None:
        session = spark.spark_session

        with Checkpoints(session) as checkpoints:

            def one(dataset: Dataset) -> dict[str, Any]:
                consumers = consumers_of(dataset.name, registry, root)
                result = checkpoint(session, dataset.at(root), consumers=consumers, within=checkpoints)
                return {CHECKPOINT_VERSION: result.version} | _needed(LOG_KEPT_FOR, result.log_kept_for)

            _each(context, registry, one)

    @job(name="vacuum", description="Removes files that no version within a table's retention needs.")
    def vacuum_job() -> None:
        vacuum_tables()

    @job(name="checkpoint", description="Writes a checkpoint of every table's newest version.")
    def checkpoint_job() -> None:
        checkpoint_tables()

    return [vacuum_job, checkpoint_job]


def _needed(key: str, consumers: Iterable[Unread]) -> dict[str, Any]:
    """The last version that each of these consumers has read. If there are none, empty."""
    versions = {consumer.consumer: consumer.version for consumer in consumers}
    return {key: versions} if versions else {}


def _each(context: OpExecutionContext, registry: Registry, one: Callable[[Dataset], dict[str, Any]]) -> None:
    failed: list[PipelineError] = []
    for dataset in registry:
        try:
            metadata = one(dataset)
        except TableNotFoundError:
            context.log.info(f"{dataset.name}: no table yet")
        except PipelineError as error:
            context.log.error(f"{dataset.name}: {error}")
            failed.append(error)
        else:
            context.log.info(f"{dataset.name}: {metadata}")
            context.log_event(AssetObservation(asset_key=AssetKey(dataset.asset_key), metadata=metadata))
    if failed:
        raise failure_of(failed[0]) from failed[0]


def maintenance_schedules(
    jobs: list[JobDefinition], *, apply_vacuum: bool, running: Container[str] = ()
) -> list[ScheduleDefinition]:
    """Vacuum weekly, dry unless `apply_vacuum`; checkpoint daily. Schedules not in `running` start switched off."""
    by_name = {job.name: job for job in jobs}
    return [
        ScheduleDefinition(
            name="vacuum_weekly",
            job=by_name["vacuum"],
            cron_schedule=VACUUM_CRON,
            run_config={"ops": {"vacuum_tables": {"config": {"apply": apply_vacuum}}}},
            default_status=schedule_status("vacuum_weekly", running),
        ),
        ScheduleDefinition(
            name="checkpoint_daily",
            job=by_name["checkpoint"],
            cron_schedule=CHECKPOINT_CRON,
            default_status=schedule_status("checkpoint_daily", running),
        ),
    ]
