"""The composition root: settings, datasets and assets put together as Dagster definitions.

Here belongs what binds the parts to each other. Loading starts no JVM and asks no network: settings are read when
Dagster calls `defs`, and Spark starts when a step first asks for a session.
"""

from __future__ import annotations

import difflib
from collections.abc import Container, Iterable, Mapping
from typing import Any

from dagster import (
    AssetKey,
    AssetsDefinition,
    AssetSelection,
    AssetSpec,
    Definitions,
    JobDefinition,
    ScheduleDefinition,
    SensorDefinition,
    build_schedule_from_partitioned_job,
    define_asset_job,
    definitions,
    in_process_executor,
)

from pipeline.assets import aviation, codegraph, portfolio
from pipeline.dataset import Dataset
from pipeline.errors import RegistryError, SettingsError
from pipeline.orchestration import DeltaIOManager, DeltaSparkResource, dataset_checks, dataset_spec
from pipeline.orchestration.automation import (
    CHANGE_SENSOR,
    TABLE_SENSOR,
    change_sensor,
    landing_sensor,
    schedule_status,
    table_sensor,
)
from pipeline.orchestration.consumers import refuse_partitions
from pipeline.orchestration.dataset_asset import IO_MANAGER
from pipeline.orchestration.foreign import AssetTable, asset_tables
from pipeline.orchestration.maintenance import maintenance_jobs, maintenance_schedules
from pipeline.orchestration.metadata import DATASET
from pipeline.registry import Registry, load_datasets
from pipeline.settings import DEFAULT_DATASETS, Settings, load_settings


def build_definitions(
    settings: Settings,
    *,
    datasets: Iterable[Dataset] | None = None,
    assets: Iterable[AssetsDefinition] | None = None,
    resources: Mapping[str, Any] | None = None,
) -> Definitions:
    """The definitions for these settings.

    Args:
        datasets: the declared datasets; those that the settings name where None.
        assets: the assets that write them. Where both are None and the settings name no collection: the shipped ones.
            A dataset that no asset writes is shown all the same.
        resources: further resources, or others under the names of ours.

    Raises:
        RegistryError: the datasets can't stand together, or an asset's dataset is declared under another name than the
            asset's key, so that the command line would look for its table elsewhere.
        DeclarationError: a consumer of changes is partitioned.
        SettingsError: a schedule or sensor is to run that these definitions don't have.
    """
    shipped = datasets is None and assets is None and settings.datasets is None
    registry = Registry(load_datasets(settings.datasets or DEFAULT_DATASETS) if datasets is None else datasets)
    written = [*aviation.assets, *codegraph.assets, *portfolio.assets] if shipped else list(assets or ())
    _refuse_undeclared(registry, written)
    covered = {key for asset in written for key in asset.keys}
    # The IO manager itself reports what it sets apart.
    reported = {AssetKey(q.asset_key) for d in registry if AssetKey(d.asset_key) in covered and (q := d.quarantine)}
    specs: list[AssetSpec] = [dataset_spec(d) for d in registry if AssetKey(d.asset_key) not in covered]
    spark = DeltaSparkResource.from_settings(settings.spark)
    manager = DeltaIOManager(root=settings.root, spark=spark, local_frame_max_bytes=settings.local_frame_max_bytes)
    bound: dict[str, Any] = {
        "spark": spark,
        IO_MANAGER: manager,
        "landing": aviation.LandingFolder(uri=settings.landing),
        "source_tree": codegraph.SourceTree.at(settings.source_tree),
    }
    jobs = maintenance_jobs(registry, settings.root)
    schedules = _schedules(settings, jobs, shipped)
    watched = [registry.by_asset_key(spec.key.path) for spec in specs if spec.key not in reported]
    quarantines = [registry.by_asset_key(key.path) for key in reported]
    sensors = _sensors(settings, written, watched, quarantines, shipped=shipped)
    _refuse_unknown(settings.running, [part.name for part in (*schedules, *sensors)])
    return Definitions(
        assets=[*written, *specs],
        asset_checks=dataset_checks(registry),
        resources=bound | dict(resources or {}),
        jobs=jobs,
        schedules=schedules,
        sensors=sensors,
        # One JVM a run: the default executor gives each step a process, and each process would start its own
        # (10 s and 2 GB a step). Spark brings the parallelism inside a step; runs are processes of their own.
        executor=in_process_executor,
    )


def _schedules(settings: Settings, jobs: list[JobDefinition], shipped: bool) -> list[Any]:
    kept = maintenance_schedules(jobs, apply_vacuum=settings.vacuum == "apply", running=settings.running)
    return [*kept, _daily_schedule(settings.running)] if shipped else [*kept]


def _sensors(
    settings: Settings,
    written: list[AssetsDefinition],
    watched: list[Dataset],
    quarantines: list[Dataset],
    *,
    shipped: bool,
) -> list[SensorDefinition]:
    sensors = [_arrivals(settings)] if shipped else []
    shared: list[Dataset | AssetTable] = [*asset_tables(written, IO_MANAGER), *quarantines]
    if watched or shared:
        sensors.append(table_sensor(watched, settings.root, shared=shared, running=TABLE_SENSOR in settings.running))
    if any(spec.automation_condition is not None for asset in written for spec in asset.specs):
        sensors.append(change_sensor(running=CHANGE_SENSOR in settings.running))
    return sensors


def _refuse_unknown(running: Iterable[str], known: list[str]) -> None:
    """Refuse a name that stands for nothing, which would pass for something that runs."""
    for name in running:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3) or known
            problem = f"no schedule or sensor has the name {name!r}"
            raise SettingsError(setting="running", problem=problem, expected=" or ".join(near))


def _refuse_undeclared(registry: Registry, written: Iterable[AssetsDefinition]) -> None:
    """Refuse assets that were given another key than their dataset's name, and consumers that are partitioned."""
    problems = []
    for spec in (spec for asset in written for spec in asset.specs):
        name = "/".join(spec.key.path)
        if DATASET in spec.metadata and name not in registry:
            problems.append(f"the asset {name} is written as a dataset, and none is declared under that name")
        elif DATASET in spec.metadata:
            refuse_partitions(registry.get(name), spec.partitions_def)
    if problems:
        raise RegistryError(problems=tuple(problems))


def _daily_schedule(running: Container[str]) -> ScheduleDefinition | Any:
    """The day that has just ended, once its file may be expected."""
    name = "daily_sightings"
    arrivals = define_asset_job(name, selection=["sightings"], executor_def=in_process_executor)
    status = schedule_status(name, running)
    return build_schedule_from_partitioned_job(arrivals, name=name, hour_of_day=4, default_status=status)


def _arrivals(settings: Settings) -> SensorDefinition:
    """A run for the day of each flights file that arrives or changes."""
    name = "flights_arrived"
    return landing_sensor(
        name,
        folder=aviation.LandingFolder(uri=settings.landing).flights_folder,
        key_of=lambda file: file.removesuffix(".csv") if file.endswith(".csv") else None,
        has_key=aviation.DAILY.has_partition_key,
        selection=AssetSelection.assets("sightings"),
        running=name in settings.running,
    )


@definitions
def defs() -> Definitions:
    """What `dagster` and `dg` load."""
    return build_definitions(load_settings())
