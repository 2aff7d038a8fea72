"""An asset that is written, and one that a row stops."""

from __future__ import annotations

from dagster import Definitions, definitions
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.dataset import Check, Dataset
from pipeline.orchestration import DeltaSparkResource, build_definitions, dataset_asset
from pipeline.settings import load_settings

SCHEMA = StructType([StructField("id", LongType(), False)])
KEPT = Dataset(name="kept", schema=SCHEMA)
REFUSED = Dataset(name="refused", schema=SCHEMA, checks=(Check("is_small", "id < 5"),))
datasets = (KEPT, REFUSED)


@dataset_asset(KEPT)
def kept(spark: DeltaSparkResource) -> DataFrame:
    frame: DataFrame = spark.spark_session.range(10)
    return frame


@dataset_asset(REFUSED)
def refused(spark: DeltaSparkResource) -> DataFrame:
    frame: DataFrame = spark.spark_session.range(10)
    return frame


@definitions
def defs() -> Definitions:
    return build_definitions(load_settings(), datasets=datasets, assets=[kept, refused])
