"""An asset of a thousand rows."""

from __future__ import annotations

from dagster import Definitions, definitions
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Dataset
from pipeline.orchestration import DeltaSparkResource, build_definitions, dataset_asset
from pipeline.settings import load_settings

COLUMNS = [StructField("id", LongType(), False), StructField("name", StringType())]
SMALL = Dataset(name="small", schema=StructType(COLUMNS))


@dataset_asset(SMALL)
def small(spark: DeltaSparkResource) -> DataFrame:
    frame: DataFrame = spark.spark_session.range(1000).selectExpr("id", "concat('row ', id) AS name")
    return frame


@definitions
def defs() -> Definitions:
    return build_definitions(load_settings(), datasets=[SMALL], assets=[small])
