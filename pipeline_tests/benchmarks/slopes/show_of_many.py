"""`pipeline show` of a hundred tables of twenty versions, a process from its start to its end, without Java.

Target: 3 s.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import deltalake
import pyarrow as pa

from pipeline_tests.benchmarks.results import measured
from pipeline_tests.benchmarks.turns import is_quick

TABLES, VERSIONS, AT_MOST = 100, 20, 3.0
DECLARED = f"""
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.dataset import Append, Dataset

SCHEMA = StructType([StructField("n", LongType())])
datasets = [Dataset(name=f"t{{number}}", schema=SCHEMA, write=Append()) for number in range({TABLES})]
"""


def processor_seconds() -> float:
    """What the child processes that have ended have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "declared.py").write_text(DECLARED, encoding="utf-8")
        first = folder / "tables" / "t0"
        for number in range(VERSIONS):
            deltalake.write_deltalake(str(first), pa.table({"n": [number]}), mode="append")
        deltalake.DeltaTable(str(first)).create_checkpoint()
        for number in range(1, TABLES):
            shutil.copytree(first, first.with_name(f"t{number}"))
        environment = os.environ | {
            "PIPELINE_ROOT": str(first.parent), "PIPELINE_DATASETS": "declared:datasets", "JAVA_HOME": "/nowhere",
            "PYTHONPATH": os.pathsep.join([name, *sys.path]), "PATH": "/nowhere",
        }  # fmt: skip
        seconds: list[float] = []
        before = processor_seconds()
        for _ in range(2 if is_quick() else 9):
            began = time.perf_counter()
            command = [sys.executable, "-c", "from pipeline.cli import main; main()", "show"]
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            seconds.append(time.perf_counter() - began)
            assert done.returncode in (0, 3), done.stderr
            assert sum(f"t{number} " in done.stdout for number in range(TABLES)) == TABLES, done.stdout
        spent = (processor_seconds() - before) / len(seconds)
        title, note = f"pipeline show of {TABLES} tables of {VERSIONS} versions", f"processor time {spent:.2f} s"
        measured(title, seconds, "s", AT_MOST, note=note)


if __name__ == "__main__":
    main()
