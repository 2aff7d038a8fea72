"""Declarations of the aviation datasets: flights from New York and what is computed from them.

Here belong declarations only. Reading and computing rows belongs to `assets`. Dagster is not imported, since the
command line reads this module too.

Nullability follows the source: a column is NOT NULL if no row of the year lacks it. Local clock times keep the numbers
of the source, hours times 100 plus minutes, because they carry no zone. 2400 is midnight at the end of the day.
"""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql.types import (
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pipeline.dataset import Check, Dataset, FreshWithin, Replace, RowCount

GROUP = "aviation"
# Reference files are delivered four times a year.
QUARTERLY = FreshWithin(warn_after=timedelta(days=100), fail_after=timedelta(days=200))


def _column(name: str, data_type: DataType, comment: str, *, nullable: bool = False) -> StructField:
    return StructField(name, data_type, nullable, {"comment": comment})


AIRPORTS = Dataset(
    name="airports",
    group=GROUP,
    description="Airports of the United States, one row each.",
    keys=("airport",),
    write=Replace(),
    code_version="1",
    freshness=QUARTERLY,
    # Without enough airports the traffic would be written with missing names, and no check would fail.
    row_count=RowCount(minimum=1_000, blocking=True),
    schema=StructType(
        [
            _column("airport", StringType(), "FAA code"),
            _column("name", StringType(), "usual name"),
            _column("latitude_degrees", DoubleType(), "north is positive"),
            _column("longitude_degrees", DoubleType(), "east is positive"),
            _column("altitude_feet", IntegerType(), "above sea level"),
            _column("utc_offset_hours", IntegerType(), "standard time minus UTC"),
            _column("daylight_saving", StringType(), "A: as the United States, N: none, U: unknown"),
            _column("time_zone", StringType(), "IANA name; NULL where the source knows none", nullable=True),
        ]
    ),
    checks=(Check("on_the_globe", "abs(latitude_degrees) <= 90 AND abs(longitude_degrees) <= 180"),),
)

PLANES = Dataset(
    name="planes",
    group=GROUP,
    description="Planes by tail number, from the FAA registry.",
    keys=("tail_number",),
    write=Replace(),
    code_version="1",
    freshness=QUARTERLY,
    row_count=RowCount(minimum=1_000),
    schema=StructType(
        [
            _column("tail_number", StringType(), "registration, as in sightings; not every sighted plane is here"),
            _column("built_year", IntegerType(), "year of manufacture; NULL where unknown", nullable=True),
            _column("type", StringType(), "as in: Fixed wing multi engine"),
            _column("manufacturer", StringType(), "name in the registry"),
            _column("model", StringType(), "the manufacturer's"),
            _column("engines", IntegerType(), "number of engines"),
            _column("seats", IntegerType(), "number of seats"),
            _column("cruising_speed_mph", IntegerType(), "average; NULL for nearly all", nullable=True),
            _column("engine", StringType(), "kind of engine, as in: Turbo-fan"),
        ]
    ),
)

SIGHTINGS = Dataset(
    name="sightings",
    group=GROUP,
    description="Scheduled flights that were to leave New York, one row each, cancelled ones included.",
    keys=("seen_date", "carrier", "flight_number", "origin"),
    partition_by=("seen_date",),
    write=Replace(),
    code_version="1",
    # Thanksgiving had 634, the busiest day 1 014. A day of snow may have fewer.
    row_count=RowCount(minimum=500, maximum=1_200, severity="warn"),
    schema=StructType(
        [
            _column("seen_date", DateType(), "local date of the scheduled departure"),
            _column("carrier", StringType(), "two-letter code of the airline"),
            _column("flight_number", IntegerType(), "the airline's; unique per day, carrier and origin"),
            _column("tail_number", StringType(), "registration; NULL for some cancelled flights", nullable=True),
            _column("origin", StringType(), "FAA code of the airport of departure"),
            _column("destination", StringType(), "FAA code; not every one is in airports"),
            _column("scheduled_departure", TimestampType(), "scheduled departure in UTC, to the minute"),
            _column("scheduled_departure_hhmm", IntegerType(), "the same as local clock time"),
            _column("departure_hhmm", IntegerType(), "local clock time; NULL where it was cancelled", nullable=True),
            _column("departure_delay_minutes", IntegerType(), "negative: left early", nullable=True),
            _column("scheduled_arrival_hhmm", IntegerType(), "local clock time at the destination"),
            _column("arrival_hhmm", IntegerType(), "local clock time; NULL where it never arrived", nullable=True),
            _column(
                "arrival_delay_minutes",
                IntegerType(),
                "negative: came early; NULL also for a diverted flight that arrived",
                nullable=True,
            ),
            _column("air_time_minutes", IntegerType(), "NULL where the arrival delay is", nullable=True),
            _column("distance_miles", IntegerType(), "between the two airports"),
        ]
    ),
    checks=(Check("distance_is_positive", "distance_miles > 0"),),
)

AIRPORT_TRAFFIC = Dataset(
    name="airport_traffic",
    group=GROUP,
    description="Departures and arrivals of the sighted flights by date and airport.",
    keys=("seen_date", "airport"),
    partition_by=("seen_date",),
    reads=("sightings", "airports"),
    reads_changes_of=("sightings", "airports"),
    write=Replace(),
    code_version="1",
    starts_on_change=True,
    schema=StructType(
        [
            _column("seen_date", DateType(), "local date of the flights' scheduled departure, for arrivals too"),
            _column("airport", StringType(), "FAA code"),
            _column("airport_name", StringType(), "NULL where the airport is not in airports", nullable=True),
            _column("departures", LongType(), "flights that left here"),
            _column("arrivals", LongType(), "flights that came here, diverted ones that came in the end included"),
            _column("cancelled_departures", LongType(), "flights that were to leave here and did not"),
            _column("mean_departure_delay_minutes", DoubleType(), "NULL where nothing left here", nullable=True),
            _column("mean_arrival_delay_minutes", DoubleType(), "NULL where no arrival has a delay", nullable=True),
        ]
    ),
)

datasets = (AIRPORTS, PLANES, SIGHTINGS, AIRPORT_TRAFFIC)
