"""Sinks in a process of their own, to be killed: three tables fed from one replayable stream.

Run as `python -m pipeline_tests.children.sink JOB`. A child goes on from where its journals say that the stream was
submitted, and tells of every arrival that is acknowledged.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql.types import LongType, StructField, StructType

from pipeline.assets.portfolio.datasets import POSITION_UPDATES, POSITIONS
from pipeline.assets.portfolio.updates import position_of, updates
from pipeline.dataset import Append, Dataset
from pipeline.delta.sink.buffer import Receipt
from pipeline.delta.sink.receiver import SinkSettings
from pipeline.delta.sink.sink import DeltaSink
from pipeline.delta.spark.connect import embedded_environment
from pipeline.settings import Settings, SparkSettings

WRITER = "stream"
SOURCE = "updates"
# Every arrival, whether it was sent before or not: here a batch that is written twice is seen at once.
ARRIVALS = Dataset(
    name="arrivals",
    write=Append(),
    schema=StructType([StructField("arrival", LongType(), False), StructField("update_id", LongType(), False)]),
)
DATASETS = (ARRIVALS, POSITION_UPDATES, POSITIONS)


@dataclass(frozen=True, kw_only=True)
class Job:
    root: str
    remote: str
    cache: str
    seed: int
    count: int
    per_second: float = 500.0
    flush_seconds: float = 0.5


def record_of(dataset: Dataset, arrival: int, update: Mapping[str, Any]) -> Mapping[str, Any]:
    """What an arrival is in each table."""
    if dataset is ARRIVALS:
        return {"arrival": arrival, "update_id": update["update_id"]}
    return update if dataset is POSITION_UPDATES else position_of(update)


@contextmanager
def sinks(settings: Settings, flush_seconds: float) -> Iterator[dict[str, DeltaSink]]:
    """A sink for each table."""
    with ExitStack() as stack:
        options = SinkSettings(flush_seconds=flush_seconds)
        yield {d.name: stack.enter_context(DeltaSink(d, WRITER, settings, options)) for d in DATASETS}


def feed(
    opened: Mapping[str, DeltaSink], seed: int, count: int, *, per_second: float | None = None
) -> Iterator[tuple[str, int, Future[Receipt]]]:
    """Submit what of a stream each sink has not been submitted yet; each submission as it is made."""
    begins = {name: sink.positions.get(SOURCE, 0) for name, sink in opened.items()}
    started, first = time.monotonic(), min(begins.values())
    for arrival, update in enumerate(updates(seed, count), start=1):
        if per_second is not None and arrival > first:
            time.sleep(max(0.0, started + (arrival - first) / per_second - time.monotonic()))
        for name, sink in opened.items():
            if arrival > begins[name]:
                record = record_of(sink.dataset, arrival, update)
                yield name, arrival, sink.submit(record, position=(SOURCE, arrival))


def main(job: Job) -> None:
    spark = SparkSettings(remote=job.remote, cache=Path(job.cache))
    settings = Settings(project=Path(job.root).parent, root=job.root, landing=job.root, spark=spark)
    guard = threading.Lock()

    def tell(name: str, arrival: int, receipt: Future[Receipt]) -> None:
        if receipt.exception() is None:
            with guard:
                print(f"{name} {arrival}", flush=True)

    with sinks(settings, job.flush_seconds) as opened:
        print("ready", flush=True)
        for name, arrival, receipt in feed(opened, job.seed, job.count, per_second=job.per_second):
            receipt.add_done_callback(partial(tell, name, arrival))
    print("stopped", flush=True)


class SinkChild:
    """The process, and the newest arrival of each table that it has told as acknowledged."""

    def __init__(self, job: Job) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(asdict(job))], stdout=subprocess.PIPE, text=True,
            start_new_session=True, env=embedded_environment(),
        )  # fmt: skip
        self.acknowledged: dict[str, int] = {}
        assert self.process.stdout is not None
        self._lines = iter(self.process.stdout)
        assert next(self._lines) == "ready\n"

    def wait_for(self, name: str, further: int) -> None:
        """Read until so many more arrivals of a table are acknowledged."""
        seen = 0
        while seen < further:
            line = next(self._lines)
            assert line != "stopped\n", "the stream was too short"
            seen += self._take(line) == name

    def _take(self, line: str) -> str | None:
        name, _, arrival = line.rstrip("\n").partition(" ")
        if not line.endswith("\n") or not arrival:
            return None
        self.acknowledged[name] = int(arrival)
        return name

    def end(self, number: int) -> int:
        """Send a signal and read what it had still told; the exit status."""
        os.kill(self.process.pid, number)
        for line in self._lines:
            self._take(line)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait(120)

    def close(self) -> None:
        if self.process.poll() is None:
            self.end(signal.SIGKILL)


if __name__ == "__main__":
    main(Job(**json.loads(sys.argv[1])))
