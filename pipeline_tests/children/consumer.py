"""A run of a consumer in a process of its own, which does not live to its end.

Run as `python -m pipeline_tests.children.consumer JOB`. Without a gate it kills itself behind its commit,
before Dagster is told of it. With one it writes the file of one task and waits in the other until somebody kills it.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dagster import DagsterInstance, OutputContext, materialize
from pyspark.sql import DataFrame

from pipeline.delta.spark.connect import embedded_environment
from pipeline.orchestration import Changes, DeltaIOManager, DeltaSparkResource, dataset_asset, dataset_spec
from pipeline.settings import SparkSettings
from pipeline_tests.orchestration.consumer_datasets import LOG, SEEN


@dataclass(frozen=True, kw_only=True)
class Job:
    """Where the tables are and where Spark is; `gate` is a FIFO that nobody writes to."""

    root: str
    cache: str
    remote: str | None
    gate: str | None
    conf: tuple[tuple[str, str], ...] = ()


class DiesBehindItsCommit(DeltaIOManager):
    """Commits, and is gone."""

    def handle_output(self, context: OutputContext, obj: object) -> None:
        super().handle_output(context, obj)
        os.kill(os.getpid(), signal.SIGKILL)


def start(job: Job) -> subprocess.Popen[bytes]:
    """The child, which with its JVM is a process group."""
    command = [sys.executable, "-m", __name__, json.dumps(asdict(job))]
    return subprocess.Popen(command, env=embedded_environment(), start_new_session=True)


def consumer_of(gate: str | None) -> Any:
    def waits(batches: Iterator[Any]) -> Iterator[Any]:
        assert gate is not None
        with open(gate, encoding="utf-8") as opened:
            opened.read()
        yield from batches

    @dataset_asset(LOG)
    def log(seen: Changes) -> DataFrame:
        rows = seen.frame.selectExpr("n", "_change_type AS kind")
        # Spark makes one task of a union whose sides are partitioned alike.
        return rows if gate is None else rows.repartition(2).unionAll(rows.coalesce(1).mapInArrow(waits, rows.schema))

    return log


def main(job: Job) -> None:
    spark = DeltaSparkResource.from_settings(SparkSettings(master="local[2]", remote=job.remote, cache=Path(job.cache)))
    manager = (DiesBehindItsCommit if job.gate is None else DeltaIOManager)(root=job.root, spark=spark)
    log = consumer_of(job.gate)
    with DagsterInstance.ephemeral() as instance:
        materialize(
            [dataset_spec(SEEN), log], selection=[log], instance=instance,
            resources={"spark": spark, "delta_io_manager": manager},
        )  # fmt: skip


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    main(Job(**given | {"conf": tuple(map(tuple, given["conf"]))}))
