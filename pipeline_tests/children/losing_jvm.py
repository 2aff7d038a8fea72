"""A process whose JVM dies before it reads a table; it prints the error and its remedy.

Run as `python -m pipeline_tests.children.losing_jvm LOCATION CACHE JAVA_OPTIONS`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.dataset import Append, Dataset, TableRef
from pipeline.delta.read.version import read
from pipeline.delta.spark.session import open_session
from pipeline.errors import PipelineError
from pipeline.settings import SparkSettings

NUMBERS = Dataset(name="numbers", schema=StructType([StructField("n", LongType())]), write=Append())


def main(location: str, cache: str, java_options: str) -> None:
    conf = (("spark.driver.extraJavaOptions", java_options),)
    session = open_session(SparkSettings(master="local[1]", cache=Path(cache), conf=conf))
    gateway: Any = SparkContext._gateway
    gateway.proc.kill()
    gateway.proc.wait()
    try:
        read(session, TableRef(NUMBERS, location))
    except PipelineError as error:
        print(f"{type(error).__name__}\n{error.remedy()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
