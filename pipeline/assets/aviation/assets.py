"""Aviation: flights of the landing folder become daily sightings, and sightings become the traffic of each airport.

Plain functions from frame to frame come first, thin assets after them. The declarations belong to `datasets`, reading
and refusing files to `source_files`.
"""

# Without `annotations` from `__future__`: Dagster compares the annotation of `context` with types and refuses a text.

from collections.abc import Iterable

from dagster import AssetExecutionContext, ConfigurableResource, DailyPartitionsDefinition
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own name for it
from pyspark.sql.types import DoubleType, IntegerType, StringType, StructType, TimestampType

from pipeline.assets.aviation.datasets import AIRPORT_TRAFFIC, AIRPORTS, PLANES, SIGHTINGS, datasets
from pipeline.delta.frames.source_files import read_csv_files
from pipeline.orchestration import Changes, DeltaSparkResource, Touched, dataset_asset

__all__ = ["DAILY", "LandingFolder", "assets", "datasets"]

DAILY = DailyPartitionsDefinition(start_date="2013-01-01")

FLIGHTS_FILE = (
    StructType()
    .add("year", IntegerType(), False)
    .add("month", IntegerType(), False)
    .add("day", IntegerType(), False)
    .add("dep_time", IntegerType())
    .add("sched_dep_time", IntegerType(), False)
    .add("dep_delay", IntegerType())
    .add("arr_time", IntegerType())
    .add("sched_arr_time", IntegerType(), False)
    .add("arr_delay", IntegerType())
    .add("carrier", StringType(), False)
    .add("flight", IntegerType(), False)
    .add("tailnum", StringType())
    .add("origin", StringType(), False)
    .add("dest", StringType(), False)
    .add("air_time", IntegerType())
    .add("distance", IntegerType(), False)
    .add("hour", IntegerType(), False)
    .add("minute", IntegerType(), False)
    .add("time_hour", TimestampType(), False)
)
AIRPORTS_FILE = (
    StructType()
    .add("faa", StringType(), False)
    .add("name", StringType(), False)
    .add("lat", DoubleType(), False)
    .add("lon", DoubleType(), False)
    .add("alt", IntegerType(), False)
    .add("tz", IntegerType(), False)
    .add("dst", StringType(), False)
    .add("tzone", StringType())
)
PLANES_FILE = (
    StructType()
    .add("tailnum", StringType(), False)
    .add("year", IntegerType())
    .add("type", StringType(), False)
    .add("manufacturer", StringType(), False)
    .add("model", StringType(), False)
    .add("engines", IntegerType(), False)
    .add("seats", IntegerType(), False)
    .add("speed", IntegerType())
    .add("engine", StringType(), False)
)


def belongs_to_its_day(flight: Column, path: Column) -> Column:
    """Whether a flight is of the day in its file's name. In a run over many days, only this detects a wrong day."""
    day = F.format_string("/%04d-%02d-%02d.csv", *(flight.getField(name) for name in ("year", "month", "day")))
    return F.endswith(path, day)


def sightings_from_flights(flights: DataFrame) -> DataFrame:
    """Flights of the source as sightings, one row each.

    The source's `hour` and `minute` are the two parts of `sched_dep_time`, so they are not stored a second time. Its
    `time_hour` is the same instant in UTC without the minutes.
    """
    return flights.select(
        F.try_to_date(F.format_string("%d-%d-%d", "year", "month", "day"), "y-M-d").alias("seen_date"),
        "carrier",
        F.col("flight").alias("flight_number"),
        F.col("tailnum").alias("tail_number"),
        "origin",
        F.col("dest").alias("destination"),
        F.timestamp_add("MINUTE", F.col("minute"), F.col("time_hour")).alias("scheduled_departure"),
        F.col("sched_dep_time").alias("scheduled_departure_hhmm"),
        F.col("dep_time").alias("departure_hhmm"),
        F.col("dep_delay").alias("departure_delay_minutes"),
        F.col("sched_arr_time").alias("scheduled_arrival_hhmm"),
        F.col("arr_time").alias("arrival_hhmm"),
        F.col("arr_delay").alias("arrival_delay_minutes"),
        F.col("air_time").alias("air_time_minutes"),
        F.col("distance").alias("distance_miles"),
    )


def airports_from_file(airports: DataFrame) -> DataFrame:
    """Airports under the declared names; one row each."""
    return airports.select(
        F.col("faa").alias("airport"),
        "name",
        F.col("lat").alias("latitude_degrees"),
        F.col("lon").alias("longitude_degrees"),
        F.col("alt").alias("altitude_feet"),
        F.col("tz").alias("utc_offset_hours"),
        F.col("dst").alias("daylight_saving"),
        F.col("tzone").alias("time_zone"),
    )


def planes_from_file(planes: DataFrame) -> DataFrame:
    """Planes under the declared names; one row each."""
    return planes.select(
        F.col("tailnum").alias("tail_number"),
        F.col("year").alias("built_year"),
        "type",
        "manufacturer",
        "model",
        "engines",
        "seats",
        F.col("speed").alias("cruising_speed_mph"),
        "engine",
    )


def traffic_by_airport(sightings: DataFrame, airports: DataFrame) -> DataFrame:
    """One row per date and airport with a scheduled departure or an arrival. Airports without a name are kept."""
    has_left = F.col("departure_hhmm").isNotNull()
    has_arrived = F.col("arrival_hhmm").isNotNull()
    leaving = sightings.select(
        "seen_date",
        F.col("origin").alias("airport"),
        has_left.alias("has_left"),
        (~has_left).alias("is_cancelled"),
        "departure_delay_minutes",
    )
    arriving = sightings.filter(has_arrived).select(
        "seen_date", F.col("destination").alias("airport"), has_arrived.alias("has_arrived"), "arrival_delay_minutes"
    )
    counted = (
        leaving.unionByName(arriving, allowMissingColumns=True)
        .groupBy("seen_date", "airport")
        .agg(
            F.count_if("has_left").alias("departures"),
            F.count_if("has_arrived").alias("arrivals"),
            F.count_if("is_cancelled").alias("cancelled_departures"),
            F.avg("departure_delay_minutes").alias("mean_departure_delay_minutes"),
            F.avg("arrival_delay_minutes").alias("mean_arrival_delay_minutes"),
        )
    )
    names = airports.select("airport", F.col("name").alias("airport_name"))
    return counted.join(names, on="airport", how="left").select(
        "seen_date",
        "airport",
        "airport_name",
        "departures",
        "arrivals",
        "cancelled_departures",
        "mean_departure_delay_minutes",
        "mean_arrival_delay_minutes",
    )


class LandingFolder(ConfigurableResource):  # type: ignore[type-arg]
    """The folder of delivered files: `<kind>/<partition key>.csv`, `reference/<name>.csv`, under a URI for Spark."""

    uri: str

    def folder(self, kind: str) -> str:
        """The folder in which the files of a kind arrive."""
        return f"{self.uri.rstrip('/')}/{kind}"

    @property
    def flights_folder(self) -> str:
        """The folder in which the files of flights arrive."""
        return self.folder("flights")

    def flights(self, days: Iterable[str]) -> list[str]:
        """The files of these days, in ascending order."""
        return [f"{self.flights_folder}/{day}.csv" for day in sorted(days)]

    def reference(self, name: str) -> list[str]:
        """The file of reference data with that name."""
        return [f"{self.folder('reference')}/{name}.csv"]


@dataset_asset(SIGHTINGS, partitions_def=DAILY)
def sightings(context: AssetExecutionContext, spark: DeltaSparkResource, landing: LandingFolder) -> DataFrame:
    """Sightings of the run's days, from one file for each day."""
    paths = landing.flights(context.partition_keys)
    return sightings_from_flights(read_csv_files(spark.spark_session, paths, FLIGHTS_FILE, belongs_to_its_day))


@dataset_asset(AIRPORTS)
def airports(spark: DeltaSparkResource, landing: LandingFolder) -> DataFrame:
    """All airports, from one file."""
    return airports_from_file(read_csv_files(spark.spark_session, landing.reference("airports"), AIRPORTS_FILE))


@dataset_asset(PLANES)
def planes(spark: DeltaSparkResource, landing: LandingFolder) -> DataFrame:
    """All planes, from one file."""
    return planes_from_file(read_csv_files(spark.spark_session, landing.reference("planes"), PLANES_FILE))


@dataset_asset(AIRPORT_TRAFFIC)
def airport_traffic(sightings: Changes, airports: Changes) -> Touched:
    """The traffic of the dates with changed sightings. If airports have changed, of every date."""
    dates = sightings.touched("seen_date") if airports.frame.isEmpty() else None
    return Touched(traffic_by_airport(sightings.rows_in(dates), airports.whole), within=dates)


assets = [airports, planes, sightings, airport_traffic]
