"""A process that applies a declaration to a table once it is told to.

Run as `python -m pipeline_tests.children.conforming ROOT CACHE JAVA_OPTIONS REMOTE`; where REMOTE is empty, it has a
JVM of its own. It says that it is ready, waits for a line, and says in the end whether table and declaration differ.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Check, Dataset, Features, TableRef
from pipeline.delta.spark.session import open_session
from pipeline.delta.table.open_table import conform, plan_of, require_table
from pipeline.settings import SparkSettings

RACED = Dataset(
    name="plain",
    schema=StructType(
        [StructField("id", LongType()), StructField("text", StringType()), StructField("more", StringType()),
         StructField("most", LongType())]
    ),
    write=Append(),
    features=Features(deletion_vectors=True, column_mapping="name", cluster_by=("id",)),
    checks=(Check("positive", "id > 0"), Check("small", "id < 100")),
    properties=(("owner.team", "us"),),
)  # fmt: skip


def main(root: str, cache: str, java_options: str, remote: str) -> None:
    conf = (("spark.driver.extraJavaOptions", java_options),)
    spark = open_session(SparkSettings(master="local[2]", cache=Path(cache), conf=conf, remote=remote or None))
    location = RACED.location(root)
    require_table(spark, TableRef(RACED, location))
    spark.read.format("delta").load(location).collect()
    print("ready", flush=True)
    sys.stdin.readline()
    conform(spark, TableRef(RACED, location))
    print(plan_of(spark, TableRef(RACED, location)).differs, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
