"""Dagster definitions of a project, built from its settings, datasets and assets.

Here belong the parts that every project has. The shipped project is built in `pipeline.definitions`. Building starts no
JVM and uses no network: Spark starts when a step first needs a session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dagster import (
    AssetKey,
    AssetsDefinition,
    AssetSpec,
    Definitions,
    JobDefinition,
    ScheduleDefinition,
    SensorDefinition,
)

from pipeline.dataset import Dataset, Registry, load_datasets
from pipeline.delta.storage.options import use_accounts
from pipeline.errors import RegistryError, SettingsError
from pipeline.errors.spelling import near
from pipeline.orchestration.automation.foreign import AssetTable, asset_tables
from pipeline.orchestration.automation.maintenance import maintenance_jobs, maintenance_schedules
from pipeline.orchestration.automation.pools import table_pools
from pipeline.orchestration.automation.routine import routine_jobs, routine_schedules
from pipeline.orchestration.automation.sensors import CHANGE_SENSOR, TABLE_SENSOR, change_sensor, table_sensor
from pipeline.orchestration.checks.table_checks import dataset_checks
from pipeline.orchestration.dataset_asset import IO_MANAGER, dataset_spec, with_table_names
from pipeline.orchestration.executor import one_process_executor
from pipeline.orchestration.exports import export_assets
from pipeline.orchestration.io.consumers import refuse_partitions
from pipeline.orchestration.io.io_manager import DeltaIOManager
from pipeline.orchestration.io.memoized import memoized
from pipeline.orchestration.metadata_keys import DATASET
from pipeline.orchestration.resources import DeltaSparkResource
from pipeline.settings import Settings


def build_definitions(
    settings: Settings,
    *,
    datasets: Iterable[Dataset] | None = None,
    assets: Iterable[AssetsDefinition] = (),
    sensors: Iterable[SensorDefinition] = (),
    schedules: Iterable[Any] = (),
    resources: Mapping[str, Any] | None = None,
) -> Definitions:
    """The definitions of a project: its assets with the IO manager, checks, maintenance jobs and the sensor of tables.

    Args:
        datasets: the declared datasets. If None, those that the settings name.
        assets: the assets that write them. A dataset that no asset writes is shown too.
        sensors: further sensors.
        schedules: further schedules, as `Definitions` accepts them.
        resources: further resources, or replacements for the pipeline's own under the same names.

    Raises:
        RegistryError: the datasets contradict each other, or an asset's dataset is declared under another name than the
            asset's key, so that the command line would expect its table elsewhere.
        DeclarationError: a consumer of changes is partitioned.
        SettingsError: neither the call nor the settings name datasets, or the settings switch on a schedule or sensor
            that these definitions don't have.
    """
    use_accounts(settings.spark)
    registry = Registry(load_datasets(settings.datasets) if datasets is None else datasets, catalog=settings.catalog)
    written = [with_table_names(memoized(asset), settings.catalog) for asset in assets]
    _refuse_undeclared(registry, written)
    covered = {key for asset in written for key in asset.keys}
    # The IO manager itself writes the side tables.
    reported = {AssetKey(s.asset_key) for d in registry if AssetKey(d.asset_key) in covered for s in d.side_tables}
    exports = export_assets(registry, settings, written)
    specs: list[AssetSpec] = [dataset_spec(d) for d in registry if AssetKey(d.asset_key) not in covered]
    spark = DeltaSparkResource.from_settings(settings.spark)
    manager = DeltaIOManager(
        root=settings.root, spark=spark, catalog=settings.catalog, local_frame_max_bytes=settings.local_frame_max_bytes
    )
    bound: dict[str, Any] = {"spark": spark, IO_MANAGER: manager}
    bound |= resources or {}
    jobs, maintenance = _maintenance(registry, settings, written, bound["spark"])
    watched = [registry.by_asset_key(spec.key.path) for spec in specs if spec.key not in reported]
    side_tables = [registry.by_asset_key(key.path) for key in reported]
    all_schedules = [*maintenance, *schedules]
    all_sensors = [*sensors, *_sensors(settings, written, exports, watched, side_tables)]
    _refuse_unknown(settings.running, [part.name for part in (*all_schedules, *all_sensors)])
    return Definitions(
        assets=[*written, *exports, *specs],
        asset_checks=dataset_checks(registry),
        resources=bound,
        jobs=jobs,
        schedules=all_schedules,
        sensors=all_sensors,
        executor=one_process_executor,
    )


def _maintenance(
    registry: Registry, settings: Settings, written: list[AssetsDefinition], spark: Any
) -> tuple[list[JobDefinition], list[ScheduleDefinition]]:
    """The jobs that maintain tables, and their schedules."""
    pools = table_pools(registry, written)
    jobs = maintenance_jobs(registry, settings.root, pools, spark)
    routine = routine_jobs(registry, settings.root, pools)
    schedules = maintenance_schedules(
        jobs, settings.root, apply_vacuum=settings.vacuum == "apply", running=settings.running
    )
    return [*jobs, *routine], [*schedules, *routine_schedules(registry, routine, settings.root, settings.running)]


def _sensors(
    settings: Settings,
    written: list[AssetsDefinition],
    exports: list[AssetsDefinition],
    watched: list[Dataset],
    side_tables: list[Dataset],
) -> list[SensorDefinition]:
    sensors: list[SensorDefinition] = []
    shared: list[Dataset | AssetTable] = [*asset_tables(written, IO_MANAGER), *side_tables]
    if watched or shared:
        sensors.append(table_sensor(watched, settings.root, shared=shared, running=TABLE_SENSOR in settings.running))
    if any(spec.automation_condition is not None for asset in (*written, *exports) for spec in asset.specs):
        sensors.append(change_sensor(running=CHANGE_SENSOR in settings.running))
    return sensors


def _refuse_unknown(running: Iterable[str], names: list[str]) -> None:
    """Refuse a name in the setting `running` that no schedule or sensor has. Otherwise the typo would go unnoticed."""
    for name in running:
        if name not in names:
            expected = near(name, names) or names
            problem = f"no schedule or sensor has the name {name!r}"
            raise SettingsError(setting="running", problem=problem, expected=" or ".join(expected))


def _refuse_undeclared(registry: Registry, written: Iterable[AssetsDefinition]) -> None:
    """Refuse assets whose key differs from their dataset's name, and partitioned consumers of changes."""
    problems = []
    for spec in (spec for asset in written for spec in asset.specs):
        name = "/".join(spec.key.path)
        if DATASET in spec.metadata and name not in registry:
            problems.append(f"the asset {name} is written as a dataset, but no dataset of that name is declared")
        elif DATASET in spec.metadata:
            refuse_partitions(registry.get(name), spec.partitions_def)
    if problems:
        raise RegistryError(problems=tuple(problems))
