"""The rows of `small` through an IO manager that guarantees nothing: no mark, no own version, no record, no check."""

from __future__ import annotations

import os

from dagster import Definitions, InputContext, IOManager, OutputContext, asset, in_process_executor
from pyspark.sql import DataFrame, SparkSession

from pipeline.delta.spark.confs import DELTA_CATALOG, DELTA_EXTENSION
from pipeline.delta.spark.jars import delta_jars
from pipeline.settings import load_settings


def session() -> SparkSession:
    if os.environ.get("SPARK_REMOTE"):
        return SparkSession.builder.remote(os.environ["SPARK_REMOTE"]).getOrCreate()
    settings = load_settings().spark
    jars = ":".join(map(str, delta_jars(settings)))
    return (
        SparkSession.builder.master("local[*]")
        .config("spark.driver.extraClassPath", jars)
        .config("spark.sql.extensions", DELTA_EXTENSION)
        .config("spark.sql.catalog.spark_catalog", DELTA_CATALOG)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )


class Naive(IOManager):
    """Overwrites a table."""

    def handle_output(self, context: OutputContext, obj: DataFrame) -> None:
        """Write."""
        obj.write.format("delta").mode("overwrite").save(os.path.abspath(".pipeline/naive"))

    def load_input(self, context: InputContext) -> None:
        """Nothing reads it."""


@asset(io_manager_key="naive")
def rows() -> DataFrame:
    return session().range(1000).selectExpr("id", "concat('row ', id) AS name")


defs = Definitions(assets=[rows], resources={"naive": Naive()}, executor=in_process_executor)
