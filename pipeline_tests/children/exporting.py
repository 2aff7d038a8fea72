"""A process that exports one table again and again, until it is killed.

Run as `python -m pipeline_tests.children.exporting LOCATION TARGETS CACHE JAVA_OPTIONS`; it has a JVM of its own. It
names each target before it is written. The last target is one that follows the table.
"""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

from pipeline.dataset import TableRef
from pipeline.delta.export.export import export, plan_export
from pipeline.delta.export.refresh import refresh_export
from pipeline.delta.export.request import FORMATS, ExportFormat, ExportRequest
from pipeline.delta.spark.session import open_session
from pipeline.settings import SparkSettings
from pipeline_tests.delta.sample import APPENDED


def main(location: str, targets: str, cache: str, java_options: str) -> None:
    conf = (("spark.driver.extraJavaOptions", java_options),)
    spark = open_session(SparkSettings(master="local[2]", cache=Path(cache), conf=conf))
    table = TableRef(APPENDED, location)
    names: list[ExportFormat] = list(FORMATS)  # type: ignore[arg-type]
    for number in count():
        name = names[number % len(names)]
        target = f"{targets}/{number}-{name}"
        print(target, flush=True)
        export(spark, table, plan_export(spark, table, ExportRequest(target=target, format=name)))
        kept = ExportRequest(target=f"{targets}/kept", format="parquet", where=f"id <> {number}")
        refresh_export(spark, table, kept)


if __name__ == "__main__":
    main(*sys.argv[1:])
