"""What starts runs by itself: files that arrive, tables that others write, and the condition of a changed source.

Here belong sensors and automation conditions. No JVM is started: folders and logs are listed through the file system of
their URI. A sensor's cursor says what it has seen; what it asks for carries a run key, so that a tick that is repeated
asks for nothing twice.
"""

import json
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import Any

from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetSelection,
    AutomationCondition,
    AutomationConditionSensorDefinition,
    DefaultScheduleStatus,
    DefaultSensorStatus,
    MetadataValue,
    RunRequest,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
    sensor,
)

from pipeline.dataset import Dataset
from pipeline.delta.log import Commit, list_files, note_of, read_commit_file, versions
from pipeline.listing import listed
from pipeline.orchestration.metadata import ROWS_WRITTEN, VERSION, data_version_tag

CHANGE_SENSOR = "changed_sources"
TABLE_SENSOR = "table_versions"
LANDING_SECONDS = 30
LOG_SECONDS = 30
# What one tick asks for at most, so that a year of files does not become 365 runs at once.
RUNS_PER_TICK = 20
COMMITS_PER_TICK = 100


def on_changed_source() -> AutomationCondition[Any]:
    """True when a source has a new version of its table, and at the first look at an asset that was never written.

    `AutomationCondition.eager` would also be true for a run that has committed nothing. At the first look nothing can
    have changed yet; an asset whose sources were written before it was declared would wait for their next commit.
    """
    changed = AutomationCondition.any_deps_match(AutomationCondition.data_version_changed())
    never_written = AutomationCondition.missing() & AutomationCondition.in_latest_time_window()
    has_source = AutomationCondition.any_deps_match(~AutomationCondition.missing())
    return (changed | (AutomationCondition.initial_evaluation() & never_written & has_source)).with_label(
        "source_changed"
    )


def schedule_status(name: str, running: Container[str]) -> DefaultScheduleStatus:
    """How a schedule stands before anybody has switched it on or off."""
    return DefaultScheduleStatus.RUNNING if name in running else DefaultScheduleStatus.STOPPED


def sensor_status(running: bool) -> DefaultSensorStatus:
    """How a sensor stands before anybody has switched it on or off."""
    return DefaultSensorStatus.RUNNING if running else DefaultSensorStatus.STOPPED


def change_sensor(*, running: bool = False) -> AutomationConditionSensorDefinition:
    """Starts the runs that the assets' automation conditions ask for; in place of the one that Dagster would add."""
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
    """A run for the partition of each file that is new or has changed.

    A file is told from its later self by size and time of change. Files whose names begin with `_` or `.` are being
    written and not looked at.

    Args:
        folder: the URI of the folder that is watched.
        key_of: the partition key of a file, from its name; None for a file that is none of ours.
        has_key: whether there is such a partition now.
        running: whether the sensor need not be switched on.
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
        found = {file.name: [file.size, file.changed_nanoseconds] for file in list_files(folder)}
        changed = sorted(file for file, state in found.items() if seen.get(file) != state and file[:1] not in "_.")
        keys = {file: key_of(file) for file in changed}
        # A file may come before its partition exists; it is asked for once it does, so it is not noted as seen.
        ready = [file for file in changed if (key := keys[file]) is not None and has_key(key)][:RUNS_PER_TICK]
        requests = [
            RunRequest(run_key=f"{file}/{found[file][0]}/{found[file][1]}", partition_key=keys[file]) for file in ready
        ]
        unknown = [file for file in changed if keys[file] is not None and file not in ready]
        noted = {file: found[file] for file in changed if file in ready or keys[file] is None}
        cursor = json.dumps({f: state for f, state in (seen | noted).items() if f in found}, sort_keys=True)
        if requests:
            return SensorResult(run_requests=requests, cursor=cursor)
        context.update_cursor(cursor)
        return SkipReason(f"no partition for {listed(unknown)}" if unknown else f"nothing new in {folder}")

    return watch


def table_sensor(
    datasets: Iterable[Dataset],
    root: str,
    *,
    shared: Collection[Dataset] = (),
    name: str = TABLE_SENSOR,
    running: bool = False,
) -> SensorDefinition:
    """The commits of tables that something else than Dagster writes, as materializations of their assets.

    A commit that changes no rows (optimize, vacuum, properties) is passed over. Metadata and data version are those of
    a write by the IO manager, so that what is downstream can't tell the two apart.

    Args:
        shared: tables that assets write too; what a run has committed there, the run has reported.
    """
    watched = [*((dataset, False) for dataset in datasets), *((dataset, True) for dataset in shared)]

    @sensor(
        name=name,
        minimum_interval_seconds=LOG_SECONDS,
        default_status=sensor_status(running),
        description="Reports the commits of tables that are written elsewhere.",
    )
    def watch(context: SensorEvaluationContext) -> SensorResult | SkipReason:
        seen: dict[str, Any] = json.loads(context.cursor) if context.cursor else {}
        events: list[AssetMaterialization] = []
        for dataset, is_shared in watched:
            events += _new_commits(dataset, root, seen, is_shared=is_shared)
        cursor = json.dumps(seen, sort_keys=True)
        if events:
            return SensorResult(asset_events=events, cursor=cursor)
        context.update_cursor(cursor)
        return SkipReason("no table has a new commit that changes rows")

    return watch


def _new_commits(dataset: Dataset, root: str, seen: dict[str, Any], *, is_shared: bool) -> list[AssetMaterialization]:
    """What a table has got since the cursor; moves the cursor. A table that was made anew is read from its start."""
    location = dataset.location(root)
    known = seen.setdefault(dataset.name, {"version": -1, "table_id": None})
    there = versions(location)
    if not there:
        return []
    first = read_commit_file(location, there[0], dataset.partition_by)
    if first.table_id is not None and first.table_id != known["table_id"]:
        known |= {"version": -1, "table_id": first.table_id}
    events = []
    for number in [number for number in there if number > known["version"]][:COMMITS_PER_TICK]:
        commit = read_commit_file(location, number, dataset.partition_by)
        known["version"] = number
        if commit.changes_rows and not (is_shared and (note_of(commit.user_metadata) or {}).get("run_id")):
            events.append(_materialization(dataset, location, known["table_id"], commit))
    return events


def _materialization(dataset: Dataset, location: str, table_id: str | None, commit: Commit) -> AssetMaterialization:
    rows = commit.rows_written
    metadata: Mapping[str, Any] = {
        VERSION: MetadataValue.int(commit.version),
        "delta/operation": commit.operation,
        "delta/files_added": MetadataValue.int(commit.files_added),
        "delta/files_removed": MetadataValue.int(commit.files_removed),
        "delta/bytes_added": MetadataValue.int(commit.bytes_added),
        "delta/timestamp": MetadataValue.timestamp(commit.timestamp),
        "dagster/uri": location,
    }
    counted = {ROWS_WRITTEN: MetadataValue.int(rows)} if rows is not None else {}
    return AssetMaterialization(
        asset_key=AssetKey(dataset.asset_key),
        metadata={**metadata, **counted},
        tags=data_version_tag(table_id or "unknown", commit.version),
    )
