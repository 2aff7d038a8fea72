"""What an operator's verbs cost: migration in place, its verification, a dry run of vacuum, and doctor.

    python -m pipeline_tests.benchmarks operator

Targets: 1 000 files become a table within 30 s; the verification of 2 000 000 rows of 10 columns takes at most 3 times
as long as a plain scan of the files; a dry run of a vacuum lists 1 000 files within 10 s; doctor examines 10 tables of
1 000 versions within 5 s.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from pipeline.cli import main
from pipeline.delta.maintain.maintain import vacuum
from pipeline.delta.migrate.compare import compare
from pipeline.delta.migrate.convert import convert
from pipeline.delta.migrate.copy import copy
from pipeline.delta.migrate.plan import Target, plan_migration
from pipeline.delta.migrate.source import source_frame, source_session
from pipeline_tests.benchmarks.results import compared, measured
from pipeline_tests.benchmarks.turns import in_turns
from pipeline_tests.delta.sample import APPENDED, day, put

FILES, ROWS, TABLES, VERSIONS = 1_000, 2_000_000, 10, 1_000


def test_a_folder_of_a_thousand_files_becomes_a_table(classic: SparkSession, tmp_path: Path) -> None:
    seconds = []
    for attempt in range(3):
        folder = tmp_path / f"lake{attempt}"
        folder.mkdir()
        for number in range(FILES):
            pq.write_table(pa.table({"n": [number], "s": [str(number)]}), folder / f"{number}.parquet")
        started = time.perf_counter()
        plan = plan_migration(str(folder), Target(name="lake", location=str(folder)), mode="in-place")
        convert(classic, plan, "bench")
        seconds.append(time.perf_counter() - started)
    measured(f"migration of {FILES} files in place", seconds, "s", 30)


def table_of(rows: int, rng: np.random.Generator) -> pa.Table:
    columns = {f"i{number}": rng.integers(0, 10**9, rows) for number in range(4)}
    columns |= {f"f{number}": rng.random(rows) for number in range(3)}
    texts = {f"s{number}": rng.integers(0, 1000**number, rows).astype(str) for number in (1, 2)}
    times = pa.array(rng.integers(0, 10**15, rows), pa.timestamp("us", "UTC"))
    return pa.table({**columns, **texts, "t": times})


def test_a_verification_against_a_scan(classic: SparkSession, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for number in range(8):
        file = tmp_path / "lake" / f"p={number}" / "f.parquet"
        file.parent.mkdir(parents=True)
        pq.write_table(table_of(ROWS // 8, rng), file)
    plan = plan_migration(str(tmp_path / "lake"), Target(name="table", location=str(tmp_path / "table")))
    copy(classic, plan, "bench")
    (files,) = plan.batches()
    with source_session(classic) as own:
        source = source_frame(own, plan, files)  # the write has it already

        def ours(_: int) -> None:
            table = own.read.format("delta").load(plan.location)
            assert not compare(own, source, table, plan.table.dataset).differences

        def bare(_: int) -> None:
            own.read.parquet(str(tmp_path / "lake")).write.format("noop").mode("overwrite").save()

        compared(f"verification of {ROWS} rows, against a scan", in_turns(24, ours, bare), 3)


def test_a_dry_run_of_a_vacuum_of_a_thousand_files(classic: SparkSession, root: str) -> None:
    put(classic, APPENDED, root, [(day(1), 1, "a")])
    for number in range(FILES):
        file = Path(APPENDED.location(root)) / f"part-{number:05d}-of-nobody.parquet"
        file.write_bytes(b"PAR1")
        os.utime(file, (time.time() - 40 * 86_400,) * 2)
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        done = vacuum(classic, APPENDED.at(root))
        seconds.append(time.perf_counter() - started)
        assert len(done.files) == FILES
    measured(f"dry run of a vacuum of {FILES} files", seconds, "s", 10)


def test_doctor_of_ten_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tmp_path / "tables" / "t0"
    for number in range(VERSIONS):
        deltalake.write_deltalake(str(first), pa.table({"n": [number]}), mode="append")
        if number % 100 == 99:
            deltalake.DeltaTable(str(first)).create_checkpoint()
    for number in range(1, TABLES):
        shutil.copytree(first, first.with_name(f"t{number}"))
    (tmp_path / "bench_tables.py").write_text(
        "from pipeline.dataset import Append, Dataset\n"
        "from pyspark.sql.types import LongType, StructField, StructType\n"
        "SCHEMA = StructType([StructField('n', LongType())])\n"
        f"datasets = [Dataset(name=f't{{n}}', schema=SCHEMA, write=Append()) for n in range({TABLES})]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    environment = {"PIPELINE_ROOT": str(first.parent), "PIPELINE_DATASETS": "bench_tables:datasets"}
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        result = CliRunner().invoke(main, ["doctor"], env=environment, catch_exceptions=False)
        seconds.append(time.perf_counter() - started)
        assert result.output.count("healthy") == TABLES, result.output
    measured(f"doctor of {TABLES} tables of {VERSIONS} versions", seconds, "s", 5)
