"""Two assets whose outcomes are cached, the second made from the first."""

from __future__ import annotations

from dagster import Definitions, definitions
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.dataset import Dataset, RowCount, Unique
from pipeline.orchestration import DeltaSparkResource, build_definitions, dataset_asset
from pipeline.settings import load_settings

SCHEMA = StructType([StructField("id", LongType(), False)])
FIRST = Dataset(
    name="first", schema=SCHEMA, code_version="1", cache=True, expectations=(Unique(("id",), blocking=True),),
    row_count=RowCount(minimum=1, blocking=True),
)  # fmt: skip
SECOND = Dataset(name="second", schema=SCHEMA, reads=("first",), code_version="1", cache=True)


@dataset_asset(FIRST)
def first(spark: DeltaSparkResource) -> DataFrame:
    frame: DataFrame = spark.spark_session.range(1000).toDF("id")
    return frame


@dataset_asset(SECOND)
def second(first: DataFrame) -> DataFrame:
    return first


@definitions
def defs() -> Definitions:
    return build_definitions(load_settings(), datasets=[FIRST, SECOND], assets=[first, second])
