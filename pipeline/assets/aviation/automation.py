"""What starts the runs of aviation: a day's file that arrives, and the end of a day."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from dagster import (
    AssetSelection,
    SensorDefinition,
    build_schedule_from_partitioned_job,
    define_asset_job,
)

from pipeline.assets.aviation.assets import DAILY, LandingFolder
from pipeline.orchestration.automation.sensors import landing_sensor, schedule_status

# The files of a day may be expected by then.
HOUR = 4


def daily_sightings(running: Container[str]) -> Any:
    """The schedule that runs the day which has just ended; it runs by itself if `running` names it."""
    name = "daily_sightings"
    job = define_asset_job(name, selection=["sightings"])
    status = schedule_status(name, running)
    return build_schedule_from_partitioned_job(job, name=name, hour_of_day=HOUR, default_status=status)


def flights_arrived(landing: LandingFolder, running: Container[str]) -> SensorDefinition:
    """The sensor that runs the day of each flights file which arrives or changes."""
    name = "flights_arrived"
    return landing_sensor(
        name,
        folder=landing.flights_folder,
        key_of=lambda file: file.removesuffix(".csv") if file.endswith(".csv") else None,
        has_key=DAILY.has_partition_key,
        selection=AssetSelection.assets("sightings"),
        running=name in running,
    )
