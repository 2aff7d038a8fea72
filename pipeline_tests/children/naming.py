"""A process with a Hive catalog in a Derby folder: it writes a row, or reads a table by its name.

Run as `python -m pipeline_tests.children.naming FOLDER CACHE JAVA_OPTIONS write|read`; it has a JVM of its own. It
prints the rows of the table that `spark.table` finds, as JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from pipeline.delta.spark.session import open_session
from pipeline.settings import SparkSettings
from pipeline_tests.delta.sample import APPENDED, day, put, versions_of

NAME = "silver.days"
DATASET = replace(APPENDED, table_name=NAME)


def hive_confs(folder: Path) -> tuple[tuple[str, str], ...]:
    """The confs of a Hive catalog that lies in a folder."""
    return (
        ("spark.sql.catalogImplementation", "hive"),
        ("spark.hadoop.javax.jdo.option.ConnectionURL", f"jdbc:derby:;databaseName={folder}/metastore;create=true"),
        ("spark.sql.warehouse.dir", str(folder / "warehouse")),
    )


def main(folder: str, cache: str, java_options: str, verb: str) -> None:
    options = ("spark.driver.extraJavaOptions", f"{java_options} -Dderby.system.home={folder}")
    conf = (*hive_confs(Path(folder)), options)
    spark = open_session(SparkSettings(master="local[2]", cache=Path(cache), conf=conf))
    root = str(Path(folder) / "tables")
    if verb == "write":
        number = len(versions_of(DATASET, root)) + 1
        put(spark, DATASET, root, [(day(number), number, verb)])
    rows = sorted([str(row.day), row.id, row.text] for row in spark.table(NAME).collect())
    print(json.dumps({"rows": rows, "versions": versions_of(DATASET, root)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
