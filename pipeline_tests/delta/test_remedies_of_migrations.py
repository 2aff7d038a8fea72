"""The remedies of a migration are followed to their end, by commands."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.dataset import Append, Dataset
from pipeline.delta.migrate import copy as copy_module
from pipeline.delta.migrate.plan import Target, plan_migration
from pipeline.errors import MigrationDifferenceError, MigrationRefusedError, SourceChangedError
from pipeline_tests.delta.operator import Operator
from pipeline_tests.delta.test_migrate import Stopped, change_unnoticed, stop_before
from pipeline_tests.remedies import follows

exhaustive = pytest.mark.exhaustive
NUMBERS = Dataset(name="numbers", schema=StructType([StructField("n", LongType())]), write=Append())


@pytest.fixture
def operator(classic: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Operator:
    operator = Operator.of(classic, tmp_path, monkeypatch)
    operator.declare(NUMBERS)
    return operator


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    folder = tmp_path / "lake"
    folder.mkdir()
    put(folder, "1.parquet", 1)
    return folder


def put(folder: Path, name: str, *numbers: int) -> None:
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), folder / name)


def numbers(operator: Operator) -> list[int]:
    table = deltalake.DeltaTable(NUMBERS.location(operator.root)).to_pyarrow_table()
    return sorted(table.column("n").to_pylist())


@exhaustive
@follows(MigrationRefusedError)
def test_a_folder_is_taken_once_its_strangers_are_moved_away(operator: Operator, lake: Path) -> None:
    (lake / "notes.txt").write_text("hello", encoding="utf-8")
    arguments = ("migrate", str(lake), "--to", "numbers", "--apply")
    error = operator.refused(MigrationRefusedError, arguments, "Move those files away")
    assert error.problems == ("notes.txt: it is not a file of the format parquet",)
    (lake / "notes.txt").rename(operator.folder / "notes.txt")
    assert "Nothing was written; --apply migrates." in operator.run(*arguments[:-1])
    done = operator.run(*arguments)
    assert "1 rows of 1 files, equal in 1 partitions and 1 columns" in done
    assert numbers(operator) == [1]
    assert "There is nothing to take." in operator.run(*arguments[:-1])


@exhaustive
@follows(SourceChangedError)
def test_changed_files_are_taken_again_once_they_are_accepted(operator: Operator, lake: Path) -> None:
    arguments = ("migrate", str(lake), "--to", "numbers", "--apply")
    operator.run(*arguments)
    put(lake, "1.parquet", 5, 6)
    operator.refused(SourceChangedError, arguments, "--accept-changed")
    document = operator.json(*arguments, "--accept-changed")
    assert (document["plan"]["replaces"], document["commits"][0]["rows"]) == ("the whole table", 2)
    assert numbers(operator) == [5, 6]


@exhaustive
@follows(MigrationDifferenceError)
def test_a_commit_that_differs_and_was_followed_by_others_is_undone_by_the_restore_that_is_named(
    operator: Operator, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = NUMBERS.location(operator.root)
    with monkeypatch.context() as patch:
        stop_before(patch, "compare")
        plan = plan_migration(str(lake), Target(name="numbers", location=location, dataset=NUMBERS))
        with pytest.raises(Stopped):
            copy_module.copy(operator.session, plan, "run")
    change_unnoticed(lake / "1.parquet", "n", pa.array([9], pa.int64()))
    operator.put(replace(NUMBERS), "SELECT 5L AS n")
    arguments = ("migrate", str(lake), "--to", "numbers", "--apply")
    error = operator.refused(MigrationDifferenceError, arguments, "pipeline restore numbers --version 0")
    assert numbers(operator) == [1, 5]
    operator.does(error, "restore numbers --version 0", "--apply")
    operator.run(*arguments)
    assert numbers(operator) == [9]
    assert os.path.isdir(location)
