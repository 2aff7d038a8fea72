"""Automatic runs of aviation: for each arriving file of a day, and at the end of each day."""

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

# The files of a day should have arrived by this hour.
HOUR = 4


def daily_sightings(running: Container[str]) -> Any:
    """The schedule that runs the day which has just ended. If `running` names it, it starts switched on."""
    name = "daily_sightings"
    job = define_asset_job(name, selection=["sightings"])
    status = schedule_status(name, running)
    return build_schedule_from_partitioned_job(job, name=name, hour_of_day=HOUR, default_status=status)


def flights_arrived(landing: LandingFolder, running: Container[str]) -> SensorDefinition:
    """The sensor that runs the day of each flights file that arrives or changes."""
    name = "flights_arrived"
    return landing_sensor(
        name,
        folder=landing.flights_folder,
        key_of=lambda file: file.removesuffix(".csv") if file.endswith(".csv") else None,
        has_key=DAILY.has_partition_key,
        selection=AssetSelection.assets("sightings"),
        running=name in running,
    )
