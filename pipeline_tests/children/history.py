"""A history of seeded steps over tables in a store: what each step did, and what the tables hold in the end.

Run as `python -m pipeline_tests.children.history JOB`, a JSON object; it writes a line of JSON for each step and one
for the end to a file. Nothing in them names the store, a time, an id or a file, so that two stores can be compared.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import reduce
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset, Merge, Replace, StoragePolicy
from pipeline.delta.inspect.history import history
from pipeline.delta.inspect.manifest import manifest
from pipeline.delta.inspect.record import verify, write_record
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.maintain.maintain import vacuum
from pipeline.delta.maintain.restore import plan_restore, restore
from pipeline.delta.migrate.copy import copy
from pipeline.delta.migrate.plan import Target, plan_migration
from pipeline.delta.read.changes import SourceChanges
from pipeline.delta.read.cursors import effective_cursors
from pipeline.delta.read.version import ReadOptions, read
from pipeline.delta.sink.receiver import SinkSettings
from pipeline.delta.sink.sink import DeltaSink
from pipeline.delta.spark.session import open_session
from pipeline.delta.sql.slices import of_values
from pipeline.delta.storage.file_system import file_system
from pipeline.delta.table.open_table import latest_version, table_state
from pipeline.delta.write.consume import consume
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline.errors import PipelineError
from pipeline.settings import Settings
from pipeline_tests.children import child_settings

ROWS = StructType(
    [StructField("part", StringType()), StructField("k", LongType(), False), StructField("text", StringType())]
)
# Without a retention, a vacuum removes each file that is not of the newest version.
FORGETFUL = StoragePolicy(deleted_file_retention_hours=0)
APPENDED = Dataset(name="appended", schema=ROWS, partition_by=("part",), write=Append())
MERGED = Dataset(name="deep/merged", schema=ROWS, partition_by=("part",), keys=("k",), write=Merge())
REPLACED = Dataset(name="replaced", schema=ROWS, partition_by=("part",), write=Replace(), storage=FORGETFUL)
SUNK = Dataset(name="sunk", schema=ROWS, write=Append())
MIGRATED = Dataset(name="migrated", schema=ROWS, partition_by=("part",), write=Append())
SOURCES = (APPENDED, MERGED, REPLACED)
CONSUMER = Dataset(
    name="consumer", schema=ROWS, keys=("k",), write=Merge(), reads=tuple(source.name for source in SOURCES),
    reads_changes_of=tuple(source.name for source in SOURCES),
)  # fmt: skip
DATASETS = (APPENDED, MERGED, REPLACED, SUNK, MIGRATED, CONSUMER)
# The datasets to vacuum in turn, and whether the files that the consumer has yet to read are kept.
VACUUMS = ((REPLACED, False), (MERGED, False), (REPLACED, True), (APPENDED, True))
RUN = "history"
PARTS = ("a", "a b", "ü%20#", None)


class History:
    """The steps over one root."""

    def __init__(self, session: SparkSession, settings: Settings, seed: int) -> None:
        self.session, self.settings, self.root = session, settings, settings.root
        self.random = random.Random(seed)
        self.epoch = self.parquet_files = 0
        self.restored, self.vacuumed = cycle((MERGED, CONSUMER, MIGRATED, APPENDED, REPLACED)), cycle(VACUUMS)
        self.verbs: dict[str, tuple[int, Callable[[], Any]]] = {
            "append": (8, self.append), "merge": (8, self.merge), "replace": (5, self.replace),
            "consume": (10, self.consume), "sink": (4, self.sink), "restore": (5, self.restore),
            "vacuum": (5, self.vacuum), "migrate": (5, self.migrate),
        }  # fmt: skip

    def steps(self, count: int) -> Iterator[dict[str, Any]]:
        """Take the steps. The first ones make every table."""
        first = ["append", "merge", "replace", "sink", "migrate", "consume"]
        weights = [weight for weight, _ in self.verbs.values()]
        later = self.random.choices(list(self.verbs), weights, k=count - len(first))
        for verb in [*first, *later]:
            try:
                yield {"step": verb, "result": self.verbs[verb][1]()}
            except PipelineError as error:
                yield {"step": verb, "refused": type(error).__name__}

    # --- steps --------------------------------------------------------------------------------------------------------

    def _rows(self, part: str | None = None, count: int = 5) -> list[tuple[str | None, int, str]]:
        """Rows with different keys, in one partition or any."""
        keys = self.random.sample(range(40), self.random.randint(1, count))
        return [(part or self.random.choice(PARTS), key, f"{self.random.randint(0, 999)}") for key in keys]

    def _frame(self, rows: list[tuple[str | None, int, str]]) -> DataFrame:
        return self.session.createDataFrame(rows, StructType([StructField(f.name, f.dataType) for f in ROWS]))

    def _note(self, epoch: int | None = None) -> CommitNote:
        return CommitNote(mark=Mark(writer=RUN, epoch=epoch))

    def _told(self, dataset: Dataset, result: WriteResult) -> Any:
        """The result of a write, whose record is written."""
        write_record(self.session, dataset, result, root=self.root, run_id=RUN, sources={}, options={})
        counts = None if result.rows_by_partition is None else sorted(map(str, result.rows_by_partition.items()))
        return [
            result.version, result.committed, result.skipped, result.operation, result.rows_written,
            result.rows_deleted, result.files_added, result.files_removed, counts,
        ]  # fmt: skip

    def append(self) -> Any:
        """An append, of which every third repeats the batch before it."""
        self.epoch += self.random.random() > 1 / 3
        result = write(self._frame(self._rows()), table=APPENDED.at(self.root), note=self._note(self.epoch))
        return self._told(APPENDED, result)

    def merge(self) -> Any:
        return self._told(MERGED, write(self._frame(self._rows()), table=MERGED.at(self.root), note=self._note()))

    def replace(self) -> Any:
        part = self.random.choice([part for part in PARTS if part])
        frame, within = self._frame(self._rows(part)), of_values("part", [part])
        result = write(frame, table=REPLACED.at(self.root), note=self._note(), within=within)
        return self._told(REPLACED, result)

    def consume(self) -> Any:
        def compute(changes: SourceChanges) -> DataFrame:
            frames = [changes[source.name].frame.select("part", "k", "text") for source in SOURCES]
            part, text = F.max(F.coalesce("part", F.lit(""))).alias("part"), F.max("text").alias("text")
            return reduce(DataFrame.unionByName, frames).groupBy("k").agg(part, text)

        tables = [source.at(self.root) for source in SOURCES]
        done = consume(self.session, CONSUMER.at(self.root), sources=tables, compute=compute, note=self._note())
        verdicts = {
            name: [verdict.kind.value, verdict.reason and verdict.reason.value, verdict.version, verdict.after]
            for name, verdict in sorted(done.verdicts.items())
        }
        return verdicts, done.written and self._told(CONSUMER, done.written)

    def sink(self) -> Any:
        """A sink that starts, takes rows, and stops."""
        with DeltaSink(SUNK, RUN, self.settings, SinkSettings(on_sigterm=False)) as sink:
            rows = self._rows(count=30)
            for part, key, text in rows:
                sink.submit({"part": part, "k": key, "text": text})
            version = sink.flush(300)
        return len(rows), version

    def restore(self) -> Any:
        dataset = next(self.restored)
        table, now = dataset.at(self.root), latest_version(dataset.location(self.root))
        assert now is not None
        plan = plan_restore(self.session, table, ReadOptions(version=self.random.randint(max(now - 4, 0), now)))
        result = restore(self.session, dataset, plan, self._note())
        changed = result.exchange and asdict(result.exchange)
        return dataset.name, plan.version, plan.target, sorted(plan.flips), result.version, result.latest, changed

    def vacuum(self) -> Any:
        dataset, keeps = next(self.vacuumed)
        consumers = [CONSUMER.at(self.root)] if keeps else []
        done = vacuum(self.session, dataset.at(self.root), consumers=consumers, apply=True)
        # A folder is a file of the listing on some stores.
        return dataset.name, done.version, sum(file.endswith(".parquet") for file in done.files)

    def migrate(self) -> Any:
        """A migration of a folder of Parquet files, which has a new file each time."""
        source = f"{self.root}/incoming"
        part, self.parquet_files = self.random.choice(PARTS), self.parquet_files + 1
        rows = [(key, text) for _, key, text in self._rows(count=9)]
        folder = f"part={quote(part, safe=' ') if part else '__HIVE_DEFAULT_PARTITION__'}"
        system, path = file_system(f"{source}/{folder}")
        if system.type_name == "local":
            system.create_dir(path)
        columns = {"k": pa.array([key for key, _ in rows], pa.int64()), "text": [text for _, text in rows]}
        pq.write_table(pa.table(columns), f"{path}/{self.parquet_files}.parquet", filesystem=system)
        target = Target(name=MIGRATED.name, location=MIGRATED.location(self.root), dataset=MIGRATED, schema=None)
        copied = copy(self.session, plan_migration(source, target), RUN)
        return [
            [len(one.record.files), one.version, one.comparison.source_rows, one.comparison.partitions]
            for one in copied.done
        ]  # fmt: skip

    # --- the end ------------------------------------------------------------------------------------------------------

    def end(self) -> dict[str, Any]:
        """What is left: the rows and commits of each table, the consumer's cursors, and the records."""
        return {
            "tables": {dataset.name: self._table(dataset) for dataset in DATASETS},
            "cursors": self._cursors(),
            "records": sorted(
                [r.name, r.version, r.committed, r.rows_written, list(map(str, r.rows_by_partition or ())),
                 r.fingerprint, dict(r.properties), r.commit["operation"], verdict.problem]
                for verdict in verify(manifest(self.root, RUN)) for r in [verdict.record]
            ),
        }  # fmt: skip

    def _table(self, dataset: Dataset) -> Any:
        rows = read(self.session, dataset.at(self.root)).frame.select(*ROWS.names).collect()
        commits = history(self.session, dataset.name, dataset.location(self.root))
        return {
            "rows": sorted(map(list, rows), key=str),
            "commits": [[c.version, c.operation, c.rows_written, c.files_added, c.files_removed] for c in commits],
        }

    def _cursors(self) -> Any:
        cursors = effective_cursors(self.session, table_state(self.session, CONSUMER.at(self.root)))
        return cursors.number, {name: cursor.version for name, cursor in sorted(cursors.sources.items())}


def main(text: str) -> None:
    job = json.loads(text)
    root, project = job["root"], Path(job["project"])
    spark = child_settings(root, job["cache"], job["conf"].items())
    steps = History(open_session(spark), Settings(project=project, root=root, landing=root, spark=spark), job["seed"])
    with Path(job["told"]).open("w", encoding="utf-8") as told:
        for step in steps.steps(job["count"]):
            print(json.dumps(step, default=str), file=told, flush=True)
        print(json.dumps(steps.end(), default=str), file=told)


if __name__ == "__main__":
    main(sys.argv[1])
