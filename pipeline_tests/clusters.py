"""A Spark standalone cluster on loopback, from pyspark's own distribution: a master, and workers on request."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pyspark

from pipeline.delta.spark.java import find_java
from pipeline_tests.conftest import BRIEF_JVM, TESTS, free_port

HOST = "127.0.0.1"
PATIENCE = 120
# Confs of a driver on such a cluster: everything stays on loopback, and is small.
CONF = {
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.executor.memory": "512m",
    "spark.pipeline.executors.seconds": "240",
    "spark.executor.extraJavaOptions": BRIEF_JVM,
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
}


class Cluster:
    """The master's process, and those of its workers."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self._folder, self._processes = folder, list[subprocess.Popen[bytes]]()
        home = Path(str(pyspark.__file__)).parent
        self._program = home / "bin" / "spark-class"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        (folder / "conf").mkdir(parents=True)
        self._environment = kept | {
            "JAVA_HOME": str(find_java(os.environ, cache).home),
            "PYTHONPATH": str(TESTS.parent),
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(folder / "conf"),
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": BRIEF_JVM,
        }
        port, self._page = free_port(), free_port()
        self.master = f"spark://{HOST}:{port}"
        self._start("master.Master", "--port", str(port), "--webui-port", str(self._page))
        self._until(lambda: self.state() is not None)

    def add_worker(self) -> None:
        """Start a worker with a core and a gigabyte, and wait until the master has it."""
        before = self.workers()
        work = self._folder / f"work{len(self._processes)}"
        sizes = ["--cores", "1", "--memory", "1g", "--work-dir", str(work)]
        self._start("worker.Worker", *sizes, "--webui-port", str(free_port()), self.master)
        self._until(lambda: self.workers() > before)

    def workers(self) -> int:
        """How many workers the master has."""
        state = self.state() or {}
        return sum(worker["state"] == "ALIVE" for worker in state.get("workers", []))

    def applications(self) -> int:
        """How many drivers the master has."""
        return len((self.state() or {})["activeapps"])

    def state(self) -> dict[str, Any] | None:
        """What the master says of itself. If it does not answer, None."""
        with suppress(OSError), urllib.request.urlopen(f"http://{HOST}:{self._page}/json/", timeout=10) as answer:
            answered: dict[str, Any] = json.load(answer)
            return answered
        return None

    def end(self) -> None:
        """End the processes and what they have started."""
        family = []
        for process in reversed(self._processes):
            with suppress(psutil.NoSuchProcess):
                started = psutil.Process(process.pid)
                family += [started, *started.children(recursive=True)]
            process.terminate()
        _, alive = psutil.wait_procs(family, timeout=30)
        for survivor in alive:
            with suppress(psutil.NoSuchProcess):
                survivor.kill()
        for process in self._processes:
            process.wait(30)

    def _start(self, name: str, *arguments: str) -> None:
        command = [str(self._program), f"org.apache.spark.deploy.{name}", "--host", HOST, *arguments]
        with (self._folder / f"log{len(self._processes)}").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    command, env=self._environment, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            )

    def _until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert self._processes[-1].poll() is None, self._log()
            assert time.monotonic() < end, self._log()
            time.sleep(0.1)

    def _log(self) -> str:
        log: Path = self._folder / f"log{len(self._processes) - 1}"
        return log.read_text(encoding="utf-8", errors="replace")


@contextmanager
def standalone(folder: Path, cache: Path, workers: int) -> Iterator[Cluster]:
    """A cluster for the time of the block."""
    cluster = Cluster(folder, cache)
    try:
        for _ in range(workers):
            cluster.add_worker()
        yield cluster
    finally:
        cluster.end()
