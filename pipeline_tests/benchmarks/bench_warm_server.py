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

from pipeline.delta.server import process as servers
from pipeline.delta.spark.server_record import TOKEN_VARIABLE, Server, token_of
from pipeline.settings import STATE_FOLDER, load_settings
from pipeline_tests.benchmarks.results import measured
from pipeline_tests.conftest import free_port
from pipeline_tests.end_to_end.conftest import FILES, PROJECTS, REPOSITORY, ProjectFolder

# Where a naive IO manager took 23 and 5.5 seconds, ours may take 25 and 6.5. The speed of a shared machine differs from
# one minute to the next, so the naive one takes its turns too, and the ratio is what counts.
ALLOWED = {"embedded": 25.0 / 23.0, "warm server": 6.5 / 5.5}
FIRST_COUNTED_RUN = 5


def state(folder: Path) -> Path:
    """The state folder of the server of a project."""
    return folder / STATE_FOLDER / "spark"


def materialize(project: ProjectFolder, name: str, **environment: str) -> float:
    """The seconds of one whole command."""
    began = time.monotonic()
    command = {"small": ("dagster",), "rows": ("python", "-m", "dagster")}[name]
    module = {"small": "outside", "rows": "naive"}[name]
    environment |= {"DAGSTER_HOME": str(project.folder)}
    done = project.command(*command, "asset", "materialize", "-m", module, "--select", name, **environment)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - began


def compare(project: ProjectFolder, server: Server, times: int) -> None:
    """Take turns, and print medians, spans and ratios."""
    token = token_of(state(project.folder), server.port) or ""
    # pyspark's own client sends a token without TLS to a server by this name only.
    plain = {"SPARK_REMOTE": f"sc://localhost:{server.port}", TOKEN_VARIABLE: token}
    turns: dict[str, Callable[[], float]] = {
        "warm server, naive": lambda: materialize(project, "rows", **plain),
        "warm server": lambda: materialize(project, "small", SPARK_REMOTE=server.remote),
        "embedded, naive": lambda: materialize(project, "rows"),
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
        measured(f"a small asset, {name}", taken, "s")
    print(f"embedded / warm: {medians['embedded'] / medians['warm server']:.1f}")
    for name, allowed in ALLOWED.items():
        ratio = medians[name] / medians[f"{name}, naive"]
        measured(f"a small asset, {name}, of a naive IO manager", [ratio], "", round(allowed, 2))


def watch_memory(project: ProjectFolder, server: Server, runs: int) -> None:
    """Many runs against one server, and how its memory grows with them."""
    resident: list[float] = []
    live: dict[int, float] = {}
    for number in range(1, runs + 1):
        taken = materialize(project, "small", SPARK_REMOTE=server.remote)
        resident.append(servers.memory_bytes(state(project.folder), server) / 2**20)
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
    return sum(int(kilobytes) for kilobytes in re.findall(r"(?:heap|generation) .*used (\d+)K", done.stdout)) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5, help="turns of the comparison")
    parser.add_argument("--runs", type=int, default=30, help="runs after which the server's memory is looked at")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in FILES:
            shutil.copy(REPOSITORY / file, folder / file)
        shutil.copy(PROJECTS / "small.py", folder / "outside.py")
        shutil.copy(PROJECTS / "naive.py", folder)
        project = ProjectFolder(folder=folder, cache=load_settings().spark.cache)
        server = servers.start(state(folder), free_port())
        try:
            if given.times:
                compare(project, server, given.times)
            if given.runs:
                watch_memory(project, server, given.runs)
        finally:
            servers.stop(state(folder))


if __name__ == "__main__":
    main()
