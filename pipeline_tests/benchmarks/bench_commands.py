"""How long the commands take that answer from the log of a local table: from the start of a process to its end.

    python -m pipeline_tests.benchmarks.bench_commands [COMMITS] [TIMES]

A table of so many commits is written by delta-rs, without a checkpoint, which is what takes longest. Java is not there
to be found. Each command runs so many times.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import deltalake
import pyarrow as pa

from pipeline_tests.benchmarks.results import measured
from pipeline_tests.projects import conform_datasets

COMMANDS = (
    ("show",), ("show", "plain"), ("history", "plain"), ("conform", "plan"), ("manifest", "list"), ("registry",),
    ("doctor", "plain"),
)  # fmt: skip
EXPECTED = (0, 3)
# How many commits, and how many runs of each command.
DEFAULTS = ("100", "5")


def write(location: Path, commits: int) -> None:
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "text": ["a", "b", None]})
    for _ in range(commits):
        deltalake.write_deltalake(
            location, rows, mode="append",
            post_commithook_properties=deltalake.PostCommitHookProperties(create_checkpoint=False),
        )  # fmt: skip


def seconds(arguments: tuple[str, ...], environment: dict[str, str], folder: Path) -> float:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", "from pipeline.cli import main; main()", *arguments], cwd=folder, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode not in EXPECTED:
        raise SystemExit(done.stderr)
    return time.monotonic() - began


def main() -> None:
    commits, times = map(int, [*sys.argv[1:], *DEFAULTS[len(sys.argv) - 1 :]])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "tables" / "plain", commits)
        environment = os.environ | {
            "PIPELINE_ROOT": str(folder / "tables"), "PIPELINE_DATASETS": f"{conform_datasets.__name__}:datasets",
            "PYTHONPATH": os.pathsep.join(sys.path), "JAVA_HOME": "/nowhere", "SPARK_REMOTE": "sc://127.0.0.1:1",
            "PATH": "/nowhere",
        }  # fmt: skip
        for arguments in COMMANDS:
            took = [seconds(arguments, environment, folder) for _ in range(times)]
            measured(f"pipeline {' '.join(arguments)}, {commits} commits", took, "s")


if __name__ == "__main__":
    main()
