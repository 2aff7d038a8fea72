"""A process that says that it has found no table, and makes it once it is told to.

Run as `python -m pipeline_tests.children.creating ROOT CACHE JAVA_OPTIONS`; it has a JVM of its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pipeline.delta.spark.session import open_session
from pipeline.delta.table import open_table
from pipeline.settings import SparkSettings
from pipeline_tests.delta.sample import APPENDED, day, put


def main(root: str, cache: str, java_options: str) -> None:
    create = open_table._create

    def create_when_told(*arguments: object) -> object:
        print("no table yet", flush=True)
        sys.stdin.readline()
        return create(*arguments)  # type: ignore[arg-type]

    open_table._create = create_when_told  # type: ignore[assignment]
    conf = (("spark.driver.extraJavaOptions", java_options),)
    spark = open_session(SparkSettings(master="local[2]", cache=Path(cache), conf=conf))
    result = put(spark, APPENDED, root, [(day(2), 2, "child")])
    print(json.dumps([result.table_id, result.version]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
