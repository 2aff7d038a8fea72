"""Every dry run of a command equals its apply: it changes no file, and shows what the same command with --apply does.

The clean-up of logs is compared in `unit/test_cli_tables.py`, the export in `test_export.py`.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pipeline.cli.conform import DIFFERS
from pipeline.dataset import Append, Features, MaintenancePolicy, Replace, StoragePolicy
from pipeline_tests.delta.operator import Operator
from pipeline_tests.delta.sample import APPENDED, actions_of, day, days, files_of, placed, put, rows_of, versions_of

exhaustive = pytest.mark.exhaustive
LARGEST = "spark.databricks.delta.optimize.maxFileSize"
DAYS_40 = 40 * 86_400
FORGETFUL = days(Replace(), properties=(("delta.deletedFileRetentionDuration", "interval 0 hours"),))


@pytest.fixture
def operator(classic: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Operator:
    operator = Operator.of(classic, tmp_path, monkeypatch)
    operator.declare(APPENDED)
    return operator


def files(operator: Operator) -> dict[str, int]:
    """The files of the project with their times; those of Python and of Hadoop's checksums are left out."""
    paths = (path for path in operator.folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(operator.folder)): path.stat().st_mtime_ns for path in paths}


def dry_and_applied(operator: Operator, *command: str, dry: tuple[str, ...], apply: tuple[str, ...]) -> tuple[Any, Any]:
    """The documents of a command, without and with its effect. The dry run is made twice."""
    before = files(operator)
    planned = operator.json(*command, *dry)
    assert operator.json(*command, *dry) == planned
    assert files(operator) == before
    return planned, operator.json(*command, *apply)


def data_files(operator: Operator) -> list[Path]:
    return list(Path(APPENDED.location(operator.root)).glob("day=*/*.parquet"))


def joined(root: str, version: int) -> tuple[int, int]:
    """The numbers of files that a commit adds and removes."""
    actions = actions_of(APPENDED, root, version)
    return sum("add" in action for action in actions), sum("remove" in action for action in actions)


def small_files(operator: Operator, *counts: int) -> None:
    """A table with so many files of one row each for each day."""
    for number in range(max(counts)):
        rows = [(day(at), number, "x") for at, count in enumerate(counts, start=1) if number < count]
        placed(operator.session, APPENDED, operator.root, rows)


@exhaustive
def test_an_optimize_joins_the_files_that_its_dry_run_counts(operator: Operator) -> None:
    small_files(operator, 3, 2, 1)
    rows = rows_of(APPENDED, operator.root)
    shown = operator.run("maintain", "optimize", "--dry-run").splitlines()
    assert shown == [
        "days (version 3): 5 files would be joined into 2",
        "Nothing was changed; without --dry-run the files are joined.",
    ]
    (dry,), (done,) = dry_and_applied(operator, "maintain", "optimize", dry=("--dry-run",), apply=())
    assert (dry["files_added"], dry["files_removed"]) == (2, 5)
    assert done == dry | {"applied": True, "version": 4}
    assert joined(operator.root, 4) == (2, 5)
    assert (rows_of(APPENDED, operator.root), len(files_of(APPENDED, operator.root))) == (rows, 3)
    (again,), (nothing,) = dry_and_applied(operator, "maintain", "optimize", dry=("--dry-run",), apply=())
    assert (again["files_removed"], nothing) == (0, again | {"applied": True})


@exhaustive
@pytest.mark.parametrize("by_conf", [False, True], ids=["declared", "conf"])
def test_an_optimize_counts_by_the_size_that_is_declared_or_set(operator: Operator, by_conf: bool) -> None:
    """Two of the three files are as large together as a file may become."""
    small_files(operator, 3)
    size = 2 * max(path.stat().st_size for path in data_files(operator)) + 2
    if by_conf:
        operator.session.conf.set(LARGEST, str(size))
    else:
        operator.declare(replace(APPENDED, storage=StoragePolicy(target_file_bytes=size)))
        operator.run("conform", "apply")
    try:
        (dry,), (done,) = dry_and_applied(operator, "maintain", "optimize", dry=("--dry-run",), apply=())
    finally:
        operator.session.conf.unset(LARGEST)
    assert (dry["files_added"], dry["files_removed"]) == (done["files_added"], done["files_removed"]) == (1, 2)


@exhaustive
def test_an_optimize_counts_files_with_many_deleted_rows(operator: Operator) -> None:
    """None is smaller than half of the declared size."""
    deleting = replace(APPENDED, features=Features(deletion_vectors=True))
    for start in (0, 100):
        put(operator.session, deleting, operator.root, [(day(1), start + number, "x") for number in range(8)])
    operator.sql(f"DELETE FROM delta.`{APPENDED.location(operator.root)}` WHERE id % 2 = 0")
    size = 2 * min(path.stat().st_size for path in data_files(operator))
    operator.declare(replace(deleting, storage=StoragePolicy(target_file_bytes=size + 200)))
    operator.run("conform", "apply")
    (dry,), (done,) = dry_and_applied(operator, "maintain", "optimize", dry=("--dry-run",), apply=())
    assert (dry["files_added"], dry["files_removed"]) == (done["files_added"], done["files_removed"])
    assert done["files_removed"] > 1


@exhaustive
def test_a_dry_optimize_of_a_clustered_table_says_that_only_delta_knows(operator: Operator) -> None:
    clustered = replace(APPENDED, partition_by=(), features=Features(cluster_by=("id",)))
    operator.declare(clustered)
    put(operator.session, clustered, operator.root, [(day(1), 1, "x")])
    assert operator.run("maintain", "optimize", "--dry-run").splitlines()[0] == (
        "days (version 1): it is clustered, and only Delta knows which files it joins"
    )
    (dry,) = operator.json("maintain", "optimize", "--dry-run")
    assert (dry["files_added"], dry["files_removed"], dry["applied"]) == (None, None, False)


@exhaustive
def test_a_vacuum_removes_the_files_that_its_dry_run_lists(operator: Operator) -> None:
    operator.declare(FORGETFUL)
    for text in ("old", "new"):
        put(operator.session, FORGETFUL, operator.root, [(day(1), 1, text)])
    before = {path for path in operator.folder.rglob("*.parquet") if "_delta_log" not in path.parts}
    (dry,), (done,) = dry_and_applied(operator, "maintain", "vacuum", dry=(), apply=("--apply",))
    assert done == dry | {"applied": True, "version": versions_of(FORGETFUL, operator.root)[-1]}
    removed = {path for path in before if not path.exists()}
    assert {str(path) for path in removed} == {file.removeprefix("file:") for file in dry["files"]}
    assert len(removed) == 1


@exhaustive
def test_all_steps_of_maintenance_are_made_as_the_dry_run_shows_them(operator: Operator) -> None:
    dataset = days(Append(), maintenance=MaintenancePolicy())
    operator.declare(dataset)
    for number in range(9):
        placed(operator.session, dataset, operator.root, [(day(1), number, "x")])
    for path in (Path(dataset.location(operator.root)) / "_delta_log").glob("*.json"):
        os.utime(path, (time.time() - DAYS_40,) * 2)
    (dry,), (done,) = dry_and_applied(operator, "maintain", "all", dry=(), apply=("--apply",))
    assert (dry["checkpoint"], dry["files_joined"], dry["log_files_removed"]) == (9, 9, 9)
    sizes = {"applied": True, "sizes": done["sizes"]}
    assert done == dry | sizes
    # After its checkpoint of version 10, Delta itself removes the last old entry.
    assert (done["sizes"]["version"], done["sizes"]["files"], done["sizes"]["log_entries"]) == (10, 1, 1)


@exhaustive
def test_a_restore_exchanges_the_files_and_rows_of_its_dry_run(operator: Operator) -> None:
    small_files(operator, 2, 1)
    rows = rows_of(APPENDED, operator.root, version=1)
    dry, done = dry_and_applied(operator, "restore", "days", "--version", "1", dry=(), apply=("--apply",))
    assert (done["plan"], dry["applied"]) == (dry["plan"], None)
    exchanged = {name: done["applied"][name] for name in ("files_back", "files_gone", "rows_back", "rows_gone")}
    assert exchanged == {name: dry["plan"][name] for name in exchanged}
    assert exchanged == {"files_back": 0, "files_gone": 1, "rows_back": 0, "rows_gone": 1}
    assert rows_of(APPENDED, operator.root) == rows


@exhaustive
def test_conform_takes_the_steps_of_its_plan_in_their_order(operator: Operator) -> None:
    small_files(operator, 1)
    storage, features = StoragePolicy(codec="zstd"), Features(deletion_vectors=True, type_widening=True)
    operator.declare(replace(APPENDED, storage=storage, features=features))
    before = files(operator)
    (plan,) = json.loads(operator.run("conform", "plan", "--json", status=DIFFERS))
    assert files(operator) == before
    (done,) = operator.json("conform", "apply")
    assert done["applied"] == [step["description"] for step in plan["steps"]]
    assert done["versions"] == {"before": plan["version"], "after": plan["version"] + len(plan["steps"])}
    assert len(plan["steps"]) == 3
    assert operator.json("conform", "plan")[0]["steps"] == []


@exhaustive
@pytest.mark.parametrize("mode", ["copy", "in-place"])
def test_a_migration_takes_the_files_rows_and_columns_of_its_dry_run(operator: Operator, mode: str) -> None:
    lake = operator.folder / "lake"
    for number in (1, 2):
        folder = lake / f"day=2026-01-0{number}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": pa.array([number, 10 + number], pa.int64())}), folder / "part.parquet")
    (lake / "_SUCCESS").touch()
    target = str(lake if mode == "in-place" else operator.folder / "table")
    command = ("migrate", str(lake), "--to", target, "--mode", mode)
    dry, done = dry_and_applied(operator, *command, dry=(), apply=("--apply",))
    assert (done["plan"], dry["commits"]) == (dry["plan"], [])
    (commit,) = done["commits"]
    assert {name: commit[name] for name in ("files", "rows", "bytes")} == {
        name: dry["plan"][name] for name in ("files", "rows", "bytes")
    }
    assert (commit["files"], commit["rows"], commit["columns_compared"]) == (2, 4, len(dry["plan"]["schema"]))
