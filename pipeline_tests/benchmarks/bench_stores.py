"""What tables cost in each store: Spark jobs, requests, seconds, rows a second, and the latency of a commit.

    python -m pipeline_tests.benchmarks.bench_stores [ROUNDS]

The stores take turns in one process: a folder of this machine, and buckets of servers on loopback for S3 (moto), Azure
(azurite) and GCS (fake-gcs-server). A store without a server is left out. Medians, and their ratios to the folder.

Targets on S3: an append of one row by 50 requests and 2 Spark jobs, a consumer with nothing new by 10 requests and no
job, 50 000 rows a second, and a commit within 500 ms of its last file.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset
from pipeline.delta.inspect.describe import described_in_log
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.read.changes import SourceChanges
from pipeline.delta.spark.session import open_session
from pipeline.delta.write.consume import consume
from pipeline.delta.write.write import write
from pipeline.settings import load_settings
from pipeline_tests.benchmarks.results import measured
from pipeline_tests.benchmarks.turns import all_in_turns, warm
from pipeline_tests.object_stores import STORES, AnyStore, served_store

SCHEMA = StructType([StructField("part", StringType()), StructField("k", LongType())])
SOURCE = Dataset(name="source", schema=SCHEMA, write=Append())
CONSUMER = Dataset(name="consumer", schema=SCHEMA, write=Append(), reads=("source",), reads_changes_of=("source",))
BULK = Dataset(name="bulk", schema=SCHEMA, write=Append())
ROUNDS, MANY_ROWS = 20, 1_000_000
# So many rows a second are wanted.
LEAST_RATE = 50_000


@dataclass
class Side:
    """A store, and the jobs and requests of each action in it."""

    store: AnyStore
    jobs: dict[str, list[int]] = field(default_factory=dict)
    requests: dict[str, list[int]] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)

    @property
    def root(self) -> str:
        return f"{self.store.uri}/lake"

    def commit_latency(self, table: Dataset) -> float:
        """Seconds between the newest data file and the newest entry of a table's log."""
        if not self.store.requests:
            folder = Path(table.location(self.root))
            entry = max((folder / "_delta_log").glob("*.json"))
            newest = max(path.stat().st_mtime_ns for path in folder.glob("part-*.parquet"))
            return (entry.stat().st_mtime_ns - newest) / 1e9
        requests = self.store.requests
        puts = [(text, at) for text, at in zip(requests, requests.moments, strict=True) if text[:4] in ("PUT ", "POST")]
        entry_at = max(at for text, at in puts if ".json" in text)
        return entry_at - max(at for text, at in puts if ".parquet" in text and at < entry_at)


@contextmanager
def sides(folder: Path, cache: Path) -> Iterator[dict[str, Side]]:
    """The stores that have a server. The reason why another has none is printed."""
    with ExitStack() as stack:
        served: dict[str, Side] = {}
        for kind in STORES:
            try:
                served[kind] = Side(stack.enter_context(served_store(kind, folder, cache)))
            except pytest.skip.Exception as skipped:
                print(f"{kind}: no server ({skipped.msg})")
        yield served


class Actions:
    """The actions on the tables of one store."""

    def __init__(self, session: SparkSession, side: Side) -> None:
        self.session, self.side = session, side
        self._epochs = count(1)

    def _append(self, dataset: Dataset, rows: int, epoch: int | None = None) -> None:
        frame = self.session.range(rows).selectExpr("'p' AS part", "id AS k").coalesce(1 if rows == 1 else 2)
        note = CommitNote(mark=Mark(writer="bench", epoch=epoch))
        assert write(frame, table=dataset.at(self.side.root), note=note).committed

    def append_of_one_row(self) -> None:
        self._append(SOURCE, 1)
        self.side.latencies.append(self.side.commit_latency(SOURCE))

    def append_exactly_once(self) -> None:
        self._append(SOURCE, 1, next(self._epochs))

    def append_of_many_rows(self) -> None:
        self._append(BULK, MANY_ROWS)

    def consumer(self) -> None:
        def compute(changes: SourceChanges) -> DataFrame:
            return changes["source"].frame.selectExpr("part", "k")

        root = self.side.root
        consume(
            self.session, CONSUMER.at(root), sources=[SOURCE.at(root)], compute=compute,
            note=CommitNote(mark=Mark(writer="bench")),
        )  # fmt: skip

    def show(self) -> None:
        described = described_in_log("source", SOURCE.location(self.side.root), SOURCE, with_health=False)
        assert described is not None
        assert described.rows


def jobs_of(session: Any) -> int:
    return int(session.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


def counted(session: SparkSession, side: Side, title: str, act: Callable[[], None]) -> Callable[[int], None]:
    """The action, whose jobs and requests are noted at its side."""

    def turn(_: int) -> None:
        jobs = jobs_of(session)
        side.store.requests.clear()
        act()
        side.jobs.setdefault(title, []).append(jobs_of(session) - jobs)
        side.requests.setdefault(title, []).append(len(side.store.requests))

    return turn


def measure(session: SparkSession, opened: Mapping[str, Side], rounds: int) -> None:
    """Let the stores take turns at each action, and print what it costs."""
    actions = {kind: Actions(session, side) for kind, side in opened.items()}

    def in_turns(title: str, times: int, act: Callable[[Actions], None], rows: int = 0) -> None:
        turns = {kind: counted(session, opened[kind], title, partial(act, each)) for kind, each in actions.items()}
        show(title, opened, all_in_turns(times, turns), rows)

    in_turns("creation, and append of one row", 1, Actions.append_of_one_row)
    in_turns("first run of a consumer", 1, Actions.consumer)
    in_turns("append of one row", rounds, Actions.append_of_one_row)
    in_turns(f"consumer with {rounds} new commits", 1, Actions.consumer)
    in_turns("append of one row under an identifier", rounds, Actions.append_exactly_once)
    in_turns("consumer with the commits of these", 1, Actions.consumer)
    in_turns("consumer with nothing new", rounds, Actions.consumer)
    in_turns("show, without Spark", rounds, Actions.show)
    in_turns(f"append of {MANY_ROWS} rows", max(rounds // 4, 2), Actions.append_of_many_rows, MANY_ROWS)
    for kind, side in opened.items():
        measured(f"{kind}: from the last data file to the entry in the log", side.latencies, "s", 0.5)


def show(title: str, opened: Mapping[str, Side], seconds: dict[str, list[float]], rows: int) -> None:
    """Print the medians of an action, from the second half of its rounds."""
    print(f"\n{title}")
    medians = {kind: median(taken) for kind, taken in warm(seconds).items()}
    for kind, side in opened.items():
        facts = [f"{medians[kind]:.3f} s", f"{medians[kind] / medians['local']:.2f} of local"]
        facts += [f"{median(side.jobs[title]):.0f} jobs", f"{median(side.requests[title]):.0f} requests"]
        if rows:
            facts.append(f"{rows / medians[kind]:,.0f} rows/s")
        print(f"  {kind:6} {', '.join(facts)}", flush=True)
        measured(f"{kind}: {title}", warm(seconds)[kind], "s", rows / LEAST_RATE if rows else None)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    spark = load_settings().spark
    with tempfile.TemporaryDirectory() as name, sides(Path(name), spark.cache) as opened:
        stores = [side.store for side in opened.values()]
        confs = [conf for store in stores for conf in store.hadoop.items()]
        schemes = tuple(store.uri.partition("://")[0] for store in stores if "://" in store.uri)
        settings = replace(spark, master="local[2]", remote=None, schemes=schemes, conf=(*spark.conf, *confs))
        session = open_session(settings)
        try:
            measure(session, opened, rounds)
        finally:
            session.stop()


if __name__ == "__main__":
    main()
