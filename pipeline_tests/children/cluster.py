"""A driver in a process of its own, on any master, that takes steps over a root.

Run as `python -m pipeline_tests.children.cluster JOB`, a JSON object. It prints one JSON object: the results of the
steps, or the error that opening the session has raised.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType

from pipeline.dataset import TableRef
from pipeline.delta.read.version import read
from pipeline.delta.sink import DeltaSink, SinkSettings
from pipeline.delta.spark.session import open_session
from pipeline.delta.stream.structured_streaming import write_available
from pipeline.errors import PipelineError
from pipeline.settings import Settings, SparkSettings, shown_remote
from pipeline_tests.children.bucket import Steps
from pipeline_tests.children.sink import ARRIVALS
from pipeline_tests.children.stream import source

PATIENCE = 120
MARKER = "marker.txt"


def folder_of(_: object) -> str:
    """The folder in which a function runs."""
    return os.getcwd()


def folders_of(batches: Iterator[Any]) -> Iterator[Any]:
    """The same, of a function of batches in Arrow."""
    import pyarrow as pa

    for batch in batches:
        yield pa.RecordBatch.from_pylist([{"folder": os.getcwd()}] * batch.num_rows)


class ClusterSteps(Steps):
    """Steps that a cluster needs beside those of any table."""

    def __init__(self, session: SparkSession, root: str, settings: SparkSettings) -> None:
        super().__init__(session, {"root": root, "writer": "one", "unusable": []})
        self.settings = settings

    def functions(self) -> Any:
        """The folders that Python functions run in, and the results of one of the package."""
        frame = self.session.range(4, numPartitions=2)
        folders = frame.select(F.udf(folder_of, StringType())("id").alias("folder"))
        batches = frame.mapInArrow(folders_of, "folder string")
        address = F.format_string("sc://h:%d/;token=secret", "id")
        shown = frame.select(F.udf(shown_remote, StringType())(address))
        return (
            sorted({row[0] for row in folders.union(batches).collect()}),
            sorted(row[0] for row in shown.collect()),
        )

    def sink(self) -> Any:
        settings = Settings(
            project=Path(self.root).parent, root=self.root, landing=f"{self.root}/landing", spark=self.settings
        )
        with DeltaSink(ARRIVALS, "sink", settings, SinkSettings(flush_seconds=600)) as sink:
            for number in (1, 2, 3):
                sink.submit({"arrival": number, "update_id": number})
            version = sink.flush(PATIENCE)
        return version, self._arrivals(ARRIVALS.at(self.root))

    def stream(self) -> Any:
        folder, table = Path(self.root).parent / "arriving", TableRef(ARRIVALS, f"{self.root}/streamed")
        folder.mkdir()
        for number in (4, 5):
            line = json.dumps({"arrival": number, "update_id": number})
            (folder / f"{number}.json").write_text(f"{line}\n", encoding="utf-8")
        checkpoint = f"{self.root}/_streams/one"
        results = write_available(source(self.session, str(folder)), table=table, checkpoint=checkpoint)
        again = write_available(source(self.session, str(folder)), table=table, checkpoint=checkpoint)
        return len(results), len(again), self._arrivals(table)

    def jars(self) -> Any:
        """The names of the jars that executors get, and whether the driver's class path has the marker."""
        context: Any = self.session.sparkContext
        listed = context._jsc.sc().listJars()
        names = [listed.apply(number).rpartition("/")[2] for number in range(listed.size())]
        return names, context._jvm.java.lang.ClassLoader.getSystemResource(MARKER) is not None

    def addresses(self) -> Any:
        context: Any = self.session.sparkContext
        conf, manager = context.getConf(), context._jsc.sc().env().blockManager().blockManagerId()
        return conf.get("spark.driver.host"), conf.get("spark.driver.port"), manager.host(), str(manager.port())

    def _arrivals(self, table: TableRef) -> list[int]:
        return sorted(row["arrival"] for row in read(self.session, table).frame.collect())


def main(text: str) -> None:
    job = json.loads(text)
    settings = SparkSettings(
        master=job["master"], driver_memory="512m", cache=Path(job["cache"]), conf=tuple(job["conf"].items())
    )
    try:
        session = open_session(settings)
    except PipelineError as error:
        named = {field.name: getattr(error, field.name) for field in fields(error)}
        print(json.dumps({"error": type(error).__name__, "fields": named}))
        return
    steps = ClusterSteps(session, job["root"], settings)
    results = {}
    for name in job["steps"]:
        step: Callable[[], Any] = getattr(steps, name)
        results[name] = step()
    print(json.dumps({"results": results}))
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1])
