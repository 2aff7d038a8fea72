"""A streaming query in a process of its own, to be killed: the files of a folder into the table of arrivals.

Run as `python -m pipeline_tests.children.stream JOB`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from pipeline.delta.spark.connect import embedded_environment
from pipeline.delta.spark.session import open_session
from pipeline.delta.stream.structured_streaming import write_available
from pipeline.settings import SparkSettings
from pipeline_tests.children.sink import ARRIVALS


@dataclass(frozen=True, kw_only=True)
class Job:
    """`remote` is None for an embedded driver with these confs."""

    root: str
    folder: str
    checkpoint: str
    cache: str
    remote: str | None = None
    conf: tuple[tuple[str, str], ...] = ()


def source(spark: SparkSession, folder: str) -> DataFrame:
    """The files of a folder as arrivals, a batch each."""
    return spark.readStream.schema(ARRIVALS.schema).option("maxFilesPerTrigger", 1).json(folder)


def main(job: Job) -> None:
    spark = open_session(
        SparkSettings(
            remote=job.remote,
            cache=Path(job.cache),
            master="local[2]",
            conf=tuple((name, value) for name, value in job.conf),
        )
    )
    write_available(source(spark, job.folder), table=ARRIVALS.at(job.root), checkpoint=job.checkpoint)


class StreamChild:
    """The process."""

    def __init__(self, job: Job) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(asdict(job))], env=embedded_environment(),
            start_new_session=True,
        )  # fmt: skip

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill it and what it has started."""
        if self.is_running:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(60)


if __name__ == "__main__":
    main(Job(**json.loads(sys.argv[1])))
