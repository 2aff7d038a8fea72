"""Automatic starts of runs: new files, tables that others write, and the condition of a changed source.

Here belong sensors and automation conditions. No JVM is started: folders and logs are listed through the file system of
their URI. A sensor's cursor records what it has seen. A run request has a run key, so a repeated tick requests nothing
twice.
"""

import json
from collections.abc import Callable, Container, Iterable
from typing import Any

from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetSelection,
    AutomationCondition,
    AutomationConditionSensorDefinition,
    DefaultScheduleStatus,
    DefaultSensorStatus,
    RunRequest,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
    sensor,
)

from pipeline.dataset import Dataset
from pipeline.delta.storage.file_system import list_files
from pipeline.errors import PipelineError
from pipeline.errors.listing import listed
from pipeline.orchestration.automation.foreign import AssetTable, unreported

CHANGE_SENSOR = "changed_sources"
TABLE_SENSOR = "table_versions"
LANDING_SECONDS = 30
LOG_SECONDS = 30
# The most run requests of one tick, so that a year of files does not start 365 runs together.
RUNS_PER_TICK = 20


def on_changed_source() -> AutomationCondition[Any]:
    """True if a source has a new version of its table, and at the first evaluation of an asset that was never written.

    `AutomationCondition.eager` would also be true for a run that has committed nothing. At the first evaluation nothing
    can have changed yet: an asset whose sources were written before it was declared would wait for their next commit.
    """
    changed = AutomationCondition.any_deps_match(AutomationCondition.data_version_changed())
    never_written = AutomationCondition.missing() & AutomationCondition.in_latest_time_window()
    has_source = AutomationCondition.any_deps_match(~AutomationCondition.missing())
    return (changed | (AutomationCondition.initial_evaluation() & never_written & has_source)).with_label(
        "source_changed"
    )


def schedule_status(name: str, running: Container[str]) -> DefaultScheduleStatus:
    """The default status of a schedule, before anybody has switched it on or off."""
    return DefaultScheduleStatus.RUNNING if name in running else DefaultScheduleStatus.STOPPED


def sensor_status(running: bool) -> DefaultSensorStatus:
    """The default status of a sensor, before anybody has switched it on or off."""
    return DefaultSensorStatus.RUNNING if running else DefaultSensorStatus.STOPPED


def change_sensor(*, running: bool = False) -> AutomationConditionSensorDefinition:
    """A sensor that starts the runs of the assets' automation conditions. It replaces the one that Dagster adds."""
    return AutomationConditionSensorDefinition(
        CHANGE_SENSOR,
        target=AssetSelection.all(),
        default_status=sensor_status(running),
        description="Starts each asset whose automation condition holds.",
    )


def landing_sensor(
    name: str,
    *,
    folder: str,
    key_of: Callable[[str], str | None],
    selection: AssetSelection,
    has_key: Callable[[str], bool],
    running: bool = False,
) -> SensorDefinition:
    """A sensor that runs the partition of each new or changed file.

    A changed file is recognised by its size and time of change. Files whose names begin with `_` or `.` are still being
    written and are ignored.

    Args:
        folder: the URI of the watched folder.
        key_of: the partition key of a file, from its name. If the file is not one of this asset's, None.
        has_key: whether that partition exists now.
        running: whether the sensor starts switched on.
    """

    @sensor(
        name=name,
        asset_selection=selection,
        minimum_interval_seconds=LANDING_SECONDS,
        default_status=sensor_status(running),
        description=f"Runs the partition of each file in {folder} that is new or has changed.",
    )
    def watch(context: SensorEvaluationContext) -> SensorResult | SkipReason:
        seen: dict[str, list[int]] = json.loads(context.cursor) if context.cursor else {}
        files = {file.name: [file.size, file.changed_nanoseconds] for file in list_files(folder)}
        changed = sorted(file for file, state in files.items() if seen.get(file) != state and file[:1] not in "_.")
        keys = {file: key_of(file) for file in changed}
        # A file may come before its partition exists. It is requested later, so it is not recorded as seen.
        ready = [file for file in changed if (key := keys[file]) is not None and has_key(key)][:RUNS_PER_TICK]
        requests = [
            RunRequest(run_key=f"{file}/{files[file][0]}/{files[file][1]}", partition_key=keys[file]) for file in ready
        ]
        unknown = [file for file in changed if keys[file] is not None and file not in ready]
        recorded = {file: files[file] for file in changed if file in ready or keys[file] is None}
        cursor = json.dumps({f: state for f, state in (seen | recorded).items() if f in files}, sort_keys=True)
        if requests:
            return SensorResult(run_requests=requests, cursor=cursor)
        context.update_cursor(cursor)
        return SkipReason(f"no partition for {listed(unknown)}" if unknown else f"nothing new in {folder}")

    return watch


def table_sensor(
    datasets: Iterable[Dataset],
    root: str,
    *,
    shared: Iterable[Dataset | AssetTable] = (),
    name: str = TABLE_SENSOR,
    running: bool = False,
) -> SensorDefinition:
    """A sensor that reports commits without a run's report, as materializations of their assets and partitions.

    A commit that changes no rows (optimize, vacuum, properties) is skipped. Metadata and data version are the same as
    for a write by the IO manager, so downstream assets see no difference.

    Args:
        datasets: tables that no asset writes.
        shared: tables that assets write too. The runs report their own commits there.
    """
    fed = [AssetTable(key=AssetKey(dataset.asset_key), dataset=dataset) for dataset in datasets]
    watched = [*fed, *(table if isinstance(table, AssetTable) else _written(table) for table in shared)]

    @sensor(
        name=name,
        minimum_interval_seconds=LOG_SECONDS,
        default_status=sensor_status(running),
        description="Reports the commits of tables that no run has reported.",
    )
    def watch(context: SensorEvaluationContext) -> SensorResult | SkipReason:
        seen: dict[str, Any] = json.loads(context.cursor) if context.cursor else {}
        events: list[AssetMaterialization] = []
        for table in watched:
            cursor_of_table = dict(seen.get(table.name, {}))
            try:
                events += unreported(table, root, cursor_of_table, context.instance)
            except (OSError, ValueError, PipelineError) as error:
                # This table's cursor stays. A table that can't be read does not stop the report of the others.
                context.log.warning(f"The log of {table.name} could not be read: {error}")
            else:
                seen[table.name] = cursor_of_table
        cursor = json.dumps(seen, sort_keys=True)
        if events:
            return SensorResult(asset_events=events, cursor=cursor)
        context.update_cursor(cursor)
        return SkipReason("no table has a new commit that changes rows")

    return watch


def _written(dataset: Dataset) -> AssetTable:
    return AssetTable(key=AssetKey(dataset.asset_key), dataset=dataset, has_runs=True)
