"""Jobs and schedules that maintain all tables, each in its pool. The work belongs to `pipeline.delta.maintain`."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

from dagster import (
    AssetKey,
    AssetObservation,
    Config,
    ConfigMapping,
    Field,
    GraphDefinition,
    InitResourceContext,
    JobDefinition,
    OpDefinition,
    OpExecutionContext,
    ScheduleDefinition,
    op,
    resource,
)

from pipeline.dataset import Dataset, Registry
from pipeline.delta.maintain.checkpoint import Checkpoints
from pipeline.delta.maintain.maintain import checkpoint, vacuum
from pipeline.delta.maintain.retention import Unread, consumers_of
from pipeline.errors import PipelineError, TableNotFoundError
from pipeline.orchestration.automation.steps import schedule_of, step_names
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
_CHECKPOINTS = "checkpoints"


class VacuumConfig(Config):
    """Whether files are removed or only listed."""

    apply: bool = False


def maintenance_jobs(registry: Registry, root: str, pools: Mapping[str, str], spark: Any) -> list[JobDefinition]:
    """A job that vacuums every table of the registry, and one that checkpoints them: one step for each table.

    A table that was never written is skipped. A vacuum fails if it would remove files that a consumer of the table's
    changes has not read yet. If one table fails, the others are still processed, and the run fails at its end.

    Args:
        pools: the pool of each table, by the name of its dataset.
        spark: the resource of the session.
    """
    datasets = list(registry)
    vacuums = dict(zip(step_names("vacuum", datasets), datasets, strict=True))
    checkpoints = dict(zip(step_names("checkpoint", datasets), datasets, strict=True))
    vacuum_tables = GraphDefinition(
        name="vacuum_tables",
        node_defs=[_vacuum(name, dataset, registry, root, pools) for name, dataset in vacuums.items()],
        config=ConfigMapping(
            config_schema={"apply": Field(bool, default_value=False, description=str(VacuumConfig.__doc__))},
            config_fn=lambda config: {name: {"config": {"apply": config["apply"]}} for name in vacuums},
        ),
    )
    checkpoint_tables = GraphDefinition(
        name="checkpoint_tables",
        node_defs=[_checkpoint(name, dataset, registry, root, pools) for name, dataset in checkpoints.items()],
    )
    vacuum_job = GraphDefinition(
        name="vacuum", node_defs=[vacuum_tables],
        description="Removes files that no version within a table's retention needs.",
    ).to_job()  # fmt: skip
    checkpoint_job = GraphDefinition(
        name="checkpoint", node_defs=[checkpoint_tables],
        description="Writes a checkpoint of every table's newest version.",
    ).to_job(resource_defs={"spark": spark, _CHECKPOINTS: _checkpoints})  # fmt: skip
    return [vacuum_job, checkpoint_job]


def _vacuum(name: str, dataset: Dataset, registry: Registry, root: str, pools: Mapping[str, str]) -> OpDefinition:
    @op(name=name, pool=pools[dataset.name], description=f"Vacuums the table of {dataset.name}.")
    def vacuum_table(context: OpExecutionContext, config: VacuumConfig, spark: DeltaSparkResource) -> None:
        def run() -> dict[str, Any]:
            consumers = consumers_of(dataset.name, registry, root)
            result = vacuum(spark.spark_session, dataset.at(root), consumers=consumers, apply=config.apply)
            metadata = {VACUUM_FILES: len(result.files), VACUUM_APPLIED: result.applied}
            return metadata | _needed(VACUUM_NEEDED_BY, result.needed)

        _observe(context, dataset, run)

    return vacuum_table


@resource(required_resource_keys={"spark"})
def _checkpoints(context: InitResourceContext) -> Iterator[Checkpoints]:
    """One for all steps of a run: over Spark Connect it starts a process, which costs more than the checkpoints."""
    spark: DeltaSparkResource = context.resources.spark
    with Checkpoints(lambda: spark.spark_session) as checkpoints:
        yield checkpoints


def _checkpoint(name: str, dataset: Dataset, registry: Registry, root: str, pools: Mapping[str, str]) -> OpDefinition:
    @op(
        name=name, pool=pools[dataset.name], required_resource_keys={_CHECKPOINTS},
        description=f"Writes a checkpoint of the table of {dataset.name}.",
    )  # fmt: skip
    def checkpoint_table(context: OpExecutionContext) -> None:
        def run() -> dict[str, Any]:
            within: Checkpoints = getattr(context.resources, _CHECKPOINTS)
            consumers = consumers_of(dataset.name, registry, root)
            result = checkpoint(within.session, dataset.at(root), consumers=consumers, within=within)
            return {CHECKPOINT_VERSION: result.version} | _needed(LOG_KEPT_FOR, result.log_kept_for)

        _observe(context, dataset, run)

    return checkpoint_table


def _needed(key: str, consumers: Iterable[Unread]) -> dict[str, Any]:
    """The last version that each of these consumers has read. If there are none, empty."""
    versions = {consumer.consumer: consumer.version for consumer in consumers}
    return {key: versions} if versions else {}


def _observe(context: OpExecutionContext, dataset: Dataset, run: Callable[[], dict[str, Any]]) -> None:
    """Run a step, and report its metadata as an observation of the dataset's asset."""
    try:
        metadata = run()
    except TableNotFoundError:
        context.log.info(f"{dataset.name}: no table yet")
        return
    except PipelineError as error:
        raise failure_of(error) from error
    context.log.info(f"{dataset.name}: {metadata}")
    context.log_event(AssetObservation(asset_key=AssetKey(dataset.asset_key), metadata=metadata))


def maintenance_schedules(
    jobs: list[JobDefinition], root: str, *, apply_vacuum: bool, running: Container[str] = ()
) -> list[ScheduleDefinition]:
    """Vacuum weekly, dry unless `apply_vacuum`; checkpoint daily. Schedules not in `running` start switched off."""
    by_name = {job.name: job for job in jobs}
    applied = {"ops": {"vacuum_tables": {"config": {"apply": apply_vacuum}}}}
    return [
        schedule_of("vacuum_weekly", by_name["vacuum"], VACUUM_CRON, root=root, running=running, run_config=applied),
        schedule_of("checkpoint_daily", by_name["checkpoint"], CHECKPOINT_CRON, root=root, running=running),
    ]
