"""The same small asset by `dagster asset materialize`, embedded against a warm server, and what the server holds after.

Run by hand: `python -m pipeline_tests.benchmarks.bench_warm_server`. Both sides and the yardsticks take turns, so that
they meet the same load; medians and ratios are printed, with the load that they were measured under.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from pipeline.delta import server as servers
from pipeline.delta.server import Server
from pipeline.settings import load_settings
from pipeline_tests.conftest import free_port
from pipeline_tests.end_to_end.conftest import FILES, REPOSITORY, ProjectFolder

EMBEDDED_SECONDS = 25.0
WARM_SECONDS = 6.5
# What Dagster's own share of a command was on two quiet cores; the yardstick over it says how loaded the machine is.
PLAIN_SECONDS = 3.3
FIRST_COUNTED_RUN = 5
OUTSIDE = """
from dagster import definitions
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Dataset
from pipeline.definitions import build_definitions
from pipeline.orchestration import DeltaSparkResource, dataset_asset
from pipeline.settings import load_settings

COLUMNS = [StructField("id", LongType(), False), StructField("name", StringType())]
SMALL = Dataset(name="small", schema=StructType(COLUMNS))


@dataset_asset(SMALL)
def small(spark: DeltaSparkResource) -> DataFrame:
    return spark.spark_session.range(1000).selectExpr("id", "concat('row ', id) AS name")


@definitions
def defs():
    return build_definitions(load_settings(), datasets=[SMALL], assets=[small])
"""
# What Dagster itself costs.
PLAIN = """
from dagster import asset


@asset
def nothing():
    return None
"""


def materialize(project: ProjectFolder, name: str, **environment: str) -> float:
    """The seconds of one whole command."""
    began = time.monotonic()
    module = {"small": "outside", "nothing": "plain"}[name]
    done = project.command("dagster", "asset", "materialize", "-m", module, "--select", name, **environment)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - began


def dagster_help(project: ProjectFolder) -> float:
    began = time.monotonic()
    assert project.command("dagster", "--help").returncode == 0
    return time.monotonic() - began


def compare(project: ProjectFolder, server: Server, times: int) -> None:
    """Take turns, and print medians, spans and ratios."""
    turns: dict[str, Callable[[], float]] = {
        "dagster --help": lambda: dagster_help(project),
        "an asset without Spark": lambda: materialize(project, "nothing"),
        "warm server": lambda: materialize(project, "small", SPARK_REMOTE=server.remote),
        "embedded": lambda: materialize(project, "small"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(times + 1):
        for name, turn in turns.items():
            taken = turn()
            if number:  # the first turn of each fills the caches and creates the table
                seconds[name].append(taken)
        print(f"turn {number} of {times}, load {os.getloadavg()[0]:.1f}", flush=True)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    for name, taken in seconds.items():
        print(f"{name:28} median {medians[name]:6.2f} s, {min(taken):.2f} to {max(taken):.2f}")
    print(f"embedded / warm: {medians['embedded'] / medians['warm server']:.1f}")
    print(f"warm / without Spark: {medians['warm server'] / medians['an asset without Spark']:.1f}")
    slowness = medians["an asset without Spark"] / PLAIN_SECONDS
    for name, target in (("embedded", EMBEDDED_SECONDS), ("warm server", WARM_SECONDS)):
        met = "met" if medians[name] <= target else "NOT met"
        print(f"{name}: {medians[name]:.2f} s, at most {target} wanted: {met} under this load;")
        print(f"  by the yardstick an estimated {medians[name] / slowness:.1f} s on a quiet machine")


def watch_memory(project: ProjectFolder, server: Server, runs: int) -> None:
    """Many runs against one server, and how its memory grows with them."""
    resident: list[float] = []
    live: dict[int, float] = {}
    for number in range(1, runs + 1):
        taken = materialize(project, "small", SPARK_REMOTE=server.remote)
        resident.append(servers.memory_bytes(server) / 2**20)
        if number in (FIRST_COUNTED_RUN, runs):  # seldom, since it is a collection that the server would not make
            live[number] = live_heap(server)
        print(f"run {number}: {taken:.2f} s, resident {resident[-1]:.0f} MB, load {os.getloadavg()[0]:.1f}", flush=True)
    for first in (FIRST_COUNTED_RUN, runs // 2):  # the heap grows to what it may take before it is flat
        slope = statistics.linear_regression([*range(first, runs + 1)], resident[first - 1 :]).slope
        print(f"resident: {slope:+.2f} MB a run over runs {first} to {runs}")
    print(
        "live heap after a collection: " + ", ".join(f"{mb:.1f} MB after run {number}" for number, mb in live.items())
    )


def live_heap(server: Server) -> float:
    """Megabytes of heap in use after a collection, where the JDK's own tool is there to ask; else not a number."""
    jcmd = shutil.which("jcmd")
    jvms = [p for p in psutil.Process(server.pid).children(recursive=True) if p.name() == "java"]
    if jcmd is None or not jvms:
        return float("nan")
    for command in ("GC.run", "GC.heap_info"):
        done = subprocess.run([jcmd, str(jvms[0].pid), command], capture_output=True, text=True, check=True)
    return sum(int(kilobytes) for kilobytes in re.findall(r"heap.* used (\d+)K", done.stdout)) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5, help="turns of the comparison")
    parser.add_argument("--runs", type=int, default=30, help="runs after which the server's memory is looked at")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in FILES:
            shutil.copy(REPOSITORY / file, folder / file)
        (folder / "outside.py").write_text(OUTSIDE, encoding="utf-8")
        (folder / "plain.py").write_text(PLAIN, encoding="utf-8")
        project = ProjectFolder(folder=folder, cache=load_settings().spark.cache)
        server = servers.start(folder / ".pipeline" / "spark", free_port())
        try:
            if given.times:
                compare(project, server, given.times)
            if given.runs:
                watch_memory(project, server, given.runs)
        finally:
            servers.stop(folder / ".pipeline" / "spark")


if __name__ == "__main__":
    main()
