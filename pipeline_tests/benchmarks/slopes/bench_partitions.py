"""Tables and runs of many partitions against those of few.

Targets: the replace of one of 3 650 partitions within 1.3 times that of one of ten, with the same rows in each; a run
over 3 650 partition keys plans, commits and reports within 1.5 times a run over 36, with the same rows together. The
time of Dagster itself, above all for an event of each partition, is shown apart, and so is a bare write of the same
rows to the same partitions.
"""

import datetime as dt
import time
from pathlib import Path
from statistics import median
from typing import Any

from dagster import AssetExecutionContext, AssetsDefinition, DagsterInstance, DailyPartitionsDefinition, materialize
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from pipeline.dataset import Dataset
from pipeline.delta.sql.slices import of_values
from pipeline.delta.write.write import write
from pipeline.orchestration import DeltaIOManager, DeltaSparkResource, dataset_asset
from pipeline.settings import SparkSettings
from pipeline_tests.benchmarks.results import compared, measured
from pipeline_tests.benchmarks.turns import all_in_turns, is_quick, warm
from pipeline_tests.delta.sample import note
from pipeline_tests.orchestration.conftest import RANGE_END, RANGE_START

FIRST = dt.date(2016, 1, 1)
SCHEMA = StructType(
    [StructField("day", DateType(), False), StructField("id", LongType(), False), StructField("text", StringType())]
)
MANY, FEW, ROWS_EACH = 365 if is_quick() else 3_650, 10, 100
KEYS, FEW_KEYS = MANY, MANY // 100
COLUMNS = f"date_add(DATE'{FIRST}', CAST(id % {{days}} AS INT)) AS day", "id", "concat('row ', id) AS text"


def rows(spark: SparkSession, count: int, days: int) -> DataFrame:
    """So many rows, evenly over so many days."""
    return spark.range(count).selectExpr(*(column.format(days=days) for column in COLUMNS))


def test_a_replace_of_one_of_many_partitions(classic: SparkSession, root: str) -> None:
    tables = {days: Dataset(name=f"of{days}", schema=SCHEMA, partition_by=("day",)) for days in (MANY, FEW)}
    for days, dataset in tables.items():
        frame = rows(classic, days * ROWS_EACH, days).repartition(2, "day")
        write(frame, table=dataset.at(root), note=note())

    def replace(days: int, number: int) -> None:
        day = FIRST + dt.timedelta(days=number % FEW)
        columns = f"DATE'{day}' AS day", "id", f"'round {number}' AS text"
        frame = classic.range(ROWS_EACH).selectExpr(*columns).coalesce(1)
        result = write(frame, table=tables[days].at(root), note=note(), within=of_values("day", [day]))
        assert (result.rows_written, result.rows_deleted) == (ROWS_EACH, ROWS_EACH)

    sides = {f"one of {days}": lambda number, days=days: replace(days, number) for days in tables}
    compared("replace of one partition", all_in_turns(24, sides), 1.3)


class TimedManager(DeltaIOManager):
    """The IO manager, and how long each of its writes has taken, with all that it does for its report."""

    def handle_output(self, context: Any, obj: object) -> None:
        started = time.perf_counter()
        super().handle_output(context, obj)
        SECONDS.append(time.perf_counter() - started)


# Of each write of a TimedManager; Dagster makes further instances of it.
SECONDS: list[float] = []


def asset_over(days: int, spark: SparkSession) -> AssetsDefinition:
    """An asset of the same number of rows, over so many daily partitions."""
    dataset = Dataset(name=f"days{days}", schema=SCHEMA, partition_by=("day",))
    end = FIRST + dt.timedelta(days=days)
    partitions = DailyPartitionsDefinition(FIRST.isoformat(), end_date=end.isoformat())

    def made(context: AssetExecutionContext) -> DataFrame:
        assert len(context.partition_keys) == days
        return rows(spark, KEYS * ROWS_EACH, days).repartition(2, "day")

    made.__name__ = dataset.name
    return dataset_asset(dataset, partitions_def=partitions)(made)


def test_a_single_run_over_many_partitions(
    classic: SparkSession, spark_settings: SparkSettings, root: str, tmp_path: Path
) -> None:
    assets = {days: asset_over(days, classic) for days in (KEYS, FEW_KEYS)}
    resource = DeltaSparkResource.from_settings(spark_settings)
    resources = {"spark": resource, "delta_io_manager": TimedManager(root=root, spark=resource)}
    own: dict[str, list[float]] = {name(days): [] for days in assets}
    (tmp_path / "instance").mkdir()
    quiet = {"telemetry": {"enabled": False}}
    with DagsterInstance.local_temp(str(tmp_path / "instance"), overrides=quiet) as instance:

        def run(days: int) -> None:
            last = FIRST + dt.timedelta(days=days - 1)
            tags = {RANGE_START: FIRST.isoformat(), RANGE_END: last.isoformat()}
            SECONDS.clear()
            assert materialize([assets[days]], resources=resources, instance=instance, tags=tags).success
            own[name(days)] += SECONDS

        def bare(days: int) -> None:
            writer = rows(classic, KEYS * ROWS_EACH, days).repartition(2, "day").write.format("delta")
            last = FIRST + dt.timedelta(days=days - 1)
            where = f"day >= DATE'{FIRST}' AND day <= DATE'{last}'"
            location = str(tmp_path / f"bare{days}")
            writer.partitionBy("day").mode("overwrite").option("replaceWhere", where).save(location)

        sides: dict[str, Any] = {name(days): lambda _, days=days: run(days) for days in assets}
        sides |= {f"bare, {days} partitions": lambda _, days=days: bare(days) for days in assets}
        found = all_in_turns(3, sides)
    report(found, own)


def name(days: int) -> str:
    return f"{days} keys"


def report(found: dict[str, list[float]], own: dict[str, list[float]]) -> None:
    """The ratio of what is ours, and the parts of it and beside it."""
    bare = {name(days): found[f"bare, {days} partitions"] for days in (KEYS, FEW_KEYS)}
    beyond = {side: [one - other for one, other in zip(own[side], bare[side], strict=True)] for side in own}
    dagster = {side: [one - other for one, other in zip(found[side], own[side], strict=True)] for side in own}
    compared("single run over partitions: plan, commit and report", own, 1.5, left_out=1)
    compared("single run over partitions: the same rows by bare delta-spark", bare, left_out=1)
    for side in own:
        many = f"single run over {side}"
        measured(f"{many}: beyond the bare write", warm(beyond, 1)[side], "s")
        measured(f"{many}: Dagster itself", warm(dagster, 1)[side], "s", note=f"in all {median(found[side]):.1f} s")
