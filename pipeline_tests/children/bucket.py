"""A process with a JVM of its own that uses tables in a store, step by step.

Run as `python -m pipeline_tests.children.bucket JOB`, a JSON object; it prints a JSON object for each step, with the
number of its Spark jobs, after which it waits for a line: the parent counts the requests of the step.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset, Merge, Replace
from pipeline.delta.export.export import export, plan_export
from pipeline.delta.export.refresh import refresh_export
from pipeline.delta.export.request import FORMATS, ExportRequest
from pipeline.delta.export.selection import rows_by_file
from pipeline.delta.export.target import data_files, files_below, target_state
from pipeline.delta.frames.convert import to_spark
from pipeline.delta.inspect.describe import describe, described_in_log
from pipeline.delta.inspect.manifest import manifest
from pipeline.delta.inspect.record import verify, write_record
from pipeline.delta.log.mark import CommitNote, Cursor, Mark
from pipeline.delta.maintain.maintain import checkpoint, optimize, vacuum
from pipeline.delta.maintain.restore import plan_restore, restore
from pipeline.delta.read.changes import SourceChanges, load_feed, small_feed
from pipeline.delta.read.verdict import verdict_on
from pipeline.delta.read.version import ReadOptions, read
from pipeline.delta.spark.session import open_session
from pipeline.delta.sql.slices import of_values
from pipeline.delta.storage.file_system import read_file
from pipeline.delta.storage.options import use_confs
from pipeline.delta.table.open_table import require_table
from pipeline.delta.write.consume import consume
from pipeline.delta.write.write import write
from pipeline.errors import PipelineError, StorageAccessError
from pipeline_tests.children import child_settings

ROWS = StructType([StructField("part", StringType()), StructField("k", LongType(), False)])
APPENDED = Dataset(name="appended", schema=ROWS, partition_by=("part",), write=Append())
MERGED = Dataset(name="deep/merged", schema=ROWS, partition_by=("part",), keys=("k",), write=Merge())
REPLACED = Dataset(name="replaced", schema=ROWS, partition_by=("part",), write=Replace())
CONSUMER = Dataset(
    name="consumer", schema=ROWS, write=Append(), reads=("appended",), reads_changes_of=("appended",)
)  # fmt: skip

_ATTEMPTS = 3
_MOST_SECONDS = 32.0


class Steps:
    """The steps over one root."""

    def __init__(self, session: SparkSession, job: dict[str, Any]) -> None:
        self.session, self.root, self.writer = session, str(job["root"]), str(job["writer"])
        self.unusable: list[tuple[str, dict[str, str]]] = job["unusable"]
        self._epoch = 0

    def _frame(self, *rows: tuple[str | None, int]) -> DataFrame:
        return self.session.createDataFrame(list(rows), StructType([StructField(f.name, f.dataType) for f in ROWS]))

    def _note(self, epoch: int | None = None) -> CommitNote:
        return CommitNote(mark=Mark(writer=self.writer, epoch=epoch))

    def _rows(self, dataset: Dataset) -> list[list[Any]]:
        frame = read(self.session, dataset.at(self.root)).frame.selectExpr("part", "k")
        return sorted(
            ([row["part"], row["k"]] for row in frame.collect()), key=lambda row: (row[0] is None, str(row[0]), row[1])
        )

    def append(self) -> Any:
        results = [
            write(self._frame(("a b", n), (None, n)), table=APPENDED.at(self.root), note=self._note(n))
            for n in (1, 2, 2)
        ]
        return [[result.version, result.committed, result.skipped] for result in results], self._rows(APPENDED)

    def append_of_one_row(self) -> Any:
        return write(self._frame(("a b", 3)), table=APPENDED.at(self.root), note=self._note()).version

    def append_under_an_identifier(self) -> Any:
        """The next epoch, whose row has its number. A failure is reported by its type, and the epoch is repeated."""
        epoch = self._epoch = self._epoch + 1
        failures: list[str] = []
        while True:
            try:
                result = write(self._frame(("e", epoch)), table=APPENDED.at(self.root), note=self._note(epoch))
            except PipelineError as error:
                failures.append(type(error).__name__)
                if len(failures) == _ATTEMPTS:
                    raise
            else:
                return [failures, result.version, self._rows(APPENDED)]

    def first_writes(self) -> Any:
        """A write into each bucket that can't be used: the side and the problem, and whether it took 30 s at most."""
        return [self._first_write(root, confs) for root, confs in self.unusable]

    def _first_write(self, root: str, confs: dict[str, str]) -> Any:
        use_confs(confs)
        started = time.monotonic()
        try:
            write(self._frame(("e", 1)), table=APPENDED.at(root), note=self._note())
        except StorageAccessError as error:
            return [error.side, error.problem.name, time.monotonic() - started < _MOST_SECONDS]
        return None

    def race(self) -> Any:
        """Appends and merges by turns, from the creation of both tables on."""
        versions = []
        for epoch in range(1, 11):
            for dataset in (APPENDED, MERGED):
                row = (self.writer, epoch + (100 if self.writer == "two" else 0))
                result = write(self._frame(row), table=dataset.at(self.root), note=self._note(epoch))
                versions.append([dataset.name, result.version])
        return versions

    def collide(self) -> Any:
        """Two threads write one entry of a log with the log store of the scheme: how each ends, and the entry."""
        jvm: Any = self.session._jvm
        hadoop = self.session.sparkContext._jsc.hadoopConfiguration()
        name = self.session.conf.get(f"spark.delta.logStore.{self.root.partition('://')[0]}.impl")
        assert name is not None
        log_store = reduce(getattr, name.split("."), jvm)(hadoop)
        path = jvm.org.apache.hadoop.fs.Path(f"{self.root}/collided/_delta_log/{0:020}.json")
        path.getFileSystem(hadoop).mkdirs(path.getParent())

        def written(line: str) -> str:
            try:
                log_store.write(path, jvm.java.util.List.of(line).iterator(), False, hadoop)
            except Py4JJavaError as error:
                return str(error.java_exception.getClass().getName())
            return line

        with ThreadPoolExecutor(2) as pool:
            ends = list(pool.map(written, ["one", "two"]))
        return ends, read_file(path.toString()).decode()

    def merge(self) -> Any:
        versions = [
            write(self._frame(*rows), table=MERGED.at(self.root), note=self._note()).version
            for rows in ([("x", 1), ("x", 2)], [("x", 2), ("y", 3)])
        ]
        return versions, self._rows(MERGED)

    def replace(self) -> Any:
        table = REPLACED.at(self.root)
        write(self._frame(("x", 1), ("y", 1)), table=table, note=self._note())
        within = of_values("part", ["y"])
        result = write(self._frame(("y", 2)), table=table, note=self._note(), within=within)
        return result.version, self._rows(REPLACED)

    def pandas(self) -> Any:
        import pandas as pd

        rows = pd.DataFrame({"part": ["p"], "k": [9]})
        with to_spark(rows, REPLACED, lambda: self.session, f"{self.root}/_staging") as frame:
            result = write(frame, table=REPLACED.at(self.root), note=self._note(), within=of_values("part", ["p"]))
        return result.version, self._rows(REPLACED)

    def consume(self) -> Any:
        def compute(changes: SourceChanges) -> DataFrame:
            return changes["appended"].frame.selectExpr("part", "k")

        done = consume(
            self.session, CONSUMER.at(self.root), sources=[APPENDED.at(self.root)], compute=compute, note=self._note()
        )
        return str(done.verdicts["appended"].kind.value), done.written and done.written.rows_written

    consume_nothing = consume

    def feed(self) -> Any:
        """The rows of appends to a table of many types, read by this process, against Delta's own feed of them.

        None if Delta reads the feed.
        """
        values = (
            "NULLIF(id, 3) % 2 AS part", "DATE'2024-02-29' + CAST(id AS INT) AS day",
            "IF(id % 3 = 0, NULL, CONCAT('ä ', id)) AS text", "TIMESTAMP'9999-12-31 23:59:59.999999Z' AS late",
            "TIMESTAMP'1970-01-01 00:00:00.000001Z' - MAKE_DT_INTERVAL(CAST(id AS INT)) AS at",
            "CAST(id / 7 AS DECIMAL(20, 5)) AS d", "IF(id = 2, CAST('NaN' AS DOUBLE), id / 3) AS f",
            "CAST(id / 3 AS FLOAT) AS g", "CAST(CONCAT('ä ', id) AS BINARY) AS b", "CAST(id AS TINYINT) AS i1",
            "CAST(id AS SMALLINT) AS i2", "CAST(id AS INT) AS i4", "id % 2 = 0 AS flag",
        )  # fmt: skip
        simple = self.session.range(8).selectExpr("id", *values).schema
        dataset = Dataset(name="typed", schema=simple, partition_by=("part", "day"), write=Append())
        for first in (0, 4, 8):
            rows = self.session.range(first, first + 4).selectExpr("id", *values)
            write(rows, table=dataset.at(self.root), note=self._note())
        table = dataset.at(self.root)
        state = require_table(self.session, table)
        cursor = Cursor(table_id=state.table_id, version=1)
        verdict = verdict_on(self.session, table, cursor)
        ours = small_feed(self.session, table, verdict)
        if ours is None:
            return None
        theirs = load_feed(self.session, table.location, 2, 3).select(*ours.columns)
        differences = [ours.exceptAll(theirs).count(), theirs.exceptAll(ours).count()]
        return ours.count(), differences, ours.schema == theirs.schema

    def maintain(self) -> Any:
        table = APPENDED.at(self.root)
        optimized = optimize(self.session, table, self._note())
        written = checkpoint(self.session, table).version
        listed = vacuum(self.session, table).files
        return optimized.files_removed, written, len(listed), self._rows(APPENDED)

    def restore(self) -> Any:
        table = APPENDED.at(self.root)
        plan = plan_restore(self.session, table, ReadOptions(version=2))
        result = restore(self.session, APPENDED, plan, self._note())
        again = write(self._frame(("a b", 2)), table=table, note=self._note(2))
        return plan.target, result.version, again.skipped, self._rows(APPENDED)

    def export(self) -> Any:
        """An export in each format: its rows, and whether it is complete. Then the folders of one that is kept."""
        table, results = APPENDED.at(self.root), []
        for name in FORMATS:
            asked = ExportRequest(target=f"{self.root}-exports/{name}", format=name)  # type: ignore[arg-type]
            result = export(self.session, table, plan_export(self.session, table, asked))
            state = target_state(asked.target)
            results.append([result.rows, state.manifest is not None, state.begun is None])
        kept = ExportRequest(target=f"{self.root}-exports/kept", format="parquet")
        first = refresh_export(self.session, table, kept)
        self.append_of_one_row()
        second = refresh_export(self.session, table, kept)
        files = [file.path for file in data_files(files_below(kept.target))]
        rows = sum(rows_by_file(kept.target, files).values())
        copy = self.session.read.format("delta").load(f"{self.root}-exports/delta").count()
        return results, first.written, second.written, rows, copy

    def record(self) -> Any:
        written = write(self._frame(("r", 7)), table=REPLACED.at(self.root), note=self._note())
        write_record(self.session, REPLACED, written, root=self.root, run_id="run", sources={}, options={})
        verdicts = verify(manifest(self.root, "run"))
        return [[verdict.problem, verdict.record.storage["creates_checked"]] for verdict in verdicts]

    def describe(self) -> Any:
        table = REPLACED.at(self.root)
        by_spark, by_files = describe(self.session, table), described_in_log(table.name, table.location, REPLACED)
        assert by_files is not None
        return [[each.rows, each.partitions, each.standing] for each in (by_spark, by_files)]


def jobs(session: Any) -> int:
    """The number of Spark jobs that the process has run."""
    return int(session.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


def main(text: str) -> None:
    job = json.loads(text)
    steps = Steps(open_session(child_settings(job["root"], job["cache"], job["conf"].items())), job)
    for name in job["steps"]:
        print(json.dumps({"step": name}), flush=True)
        sys.stdin.readline()
        step: Callable[[], Any] = getattr(steps, name)
        before = jobs(steps.session)
        result = step()
        print(json.dumps({"result": result, "jobs": jobs(steps.session) - before}), flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1])
