"""Data files that are missing or cut: a statement that meets one as it writes the table says so and commits nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Check, Dataset, ErrorIfExists, Merge, Replace, SchemaPolicy, TableRef, WriteMode
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.maintain.maintain import optimize
from pipeline.delta.maintain.restore import plan_restore, restore
from pipeline.delta.read.version import ReadOptions
from pipeline.delta.sql.slices import of_values
from pipeline.delta.write.quarantine import remove_batch
from pipeline.delta.write.write import write
from pipeline.errors import DamagedTableError, FrameFailedError, VersionVacuumedError
from pipeline_tests.delta.sample import frame_of, note, put, versions_of

SCHEMA = StructType([StructField("k", LongType()), StructField("n", LongType())])


def table(write: WriteMode, **declaration: object) -> Dataset:
    return Dataset(**({"name": "numbers", "schema": SCHEMA, "write": write} | declaration))


MERGED = table(Merge(), keys=("k",))
REPLACED = table(Replace())
APPENDED = table(Append())


def file_of(dataset: Dataset, root: str) -> Path:
    (file,) = Path(dataset.location(root)).glob("*.parquet")
    return file


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-40])


def refusal(dataset: Dataset, root: str, file: Path, attempt: Callable[[], object]) -> None:
    """An attempt names the file, and leaves the log as it was."""
    before = versions_of(dataset, root)
    with pytest.raises(DamagedTableError) as caught:
        attempt()
    error = caught.value
    assert (error.dataset, error.file.rpartition("/")[2], error.nothing_committed) == (dataset.name, file.name, True)
    assert "nothing was committed" in error.message()
    assert versions_of(dataset, root) == before


@pytest.mark.both_modes
@pytest.mark.parametrize(
    "damage", [Path.unlink, pytest.param(cut, marks=pytest.mark.exhaustive)], ids=["missing", "cut"]
)
def test_a_merge_that_meets_a_damaged_file_names_it_and_commits_nothing(
    spark: SparkSession, root: str, damage: Callable[[Path], None]
) -> None:
    put(spark, MERGED, root, [(1, 1), (2, 1)])
    file = file_of(MERGED, root)
    damage(file)
    refusal(MERGED, root, file, lambda: put(spark, MERGED, root, [(1, 2)]))


@pytest.mark.exhaustive
@pytest.mark.parametrize("damage", [Path.unlink, cut], ids=["missing", "cut"])
def test_a_replace_and_a_first_load_that_meet_a_damaged_file_name_it(
    classic: SparkSession, root: str, damage: Callable[[Path], None]
) -> None:
    put(classic, APPENDED, root, [(1, 1)])
    file = file_of(APPENDED, root)
    damage(file)
    refusal(REPLACED, root, file, lambda: put(classic, REPLACED, root, [(1, 2)], of_values("k", [1])))
    refusal(REPLACED, root, file, lambda: put(classic, table(ErrorIfExists()), root, [(3, 3)]))


@pytest.mark.exhaustive
def test_an_optimize_that_meets_a_missing_file_names_it(classic: SparkSession, root: str) -> None:
    put(classic, APPENDED, root, [(1, 1)])
    file = file_of(APPENDED, root)
    put(classic, APPENDED, root, [(2, 2)])
    file.unlink()
    location = APPENDED.location(root)
    refusal(APPENDED, root, file, lambda: optimize(classic, TableRef(APPENDED, location), note()))


@pytest.mark.exhaustive
def test_rows_that_can_not_be_taken_out_of_a_damaged_quarantine_are_told_with_its_file(
    classic: SparkSession, root: str
) -> None:
    judged = table(Append(), checks=(Check("small", "n < 5", on_violation="quarantine"),))
    apart = judged.quarantine
    assert apart is not None
    batch = CommitNote(mark=Mark(writer="w", epoch=1))
    write(frame_of(classic, judged, [(7, 7)]), table=judged.at(root), note=batch)
    file = file_of(apart, root)
    file.unlink()
    refusal(apart, root, file, lambda: remove_batch(classic, apart.at(root), batch))


@pytest.mark.exhaustive
def test_a_restore_whose_file_goes_in_the_meantime_commits_nothing(classic: SparkSession, root: str) -> None:
    put(classic, REPLACED, root, [(1, 1)])
    file = file_of(REPLACED, root)
    put(classic, REPLACED, root, [(2, 2)])
    plan = plan_restore(classic, REPLACED.at(root), ReadOptions(version=1))
    file.unlink()
    before = versions_of(REPLACED, root)
    with pytest.raises(VersionVacuumedError) as caught:
        restore(classic, REPLACED, plan, note())
    assert (caught.value.version, caught.value.missing) == (1, (file.name,))
    assert versions_of(REPLACED, root) == before


@pytest.mark.exhaustive
def test_an_overwrite_that_fails_behind_the_end_of_an_old_check_is_told_as_a_failure(
    classic: SparkSession, root: str
) -> None:
    checked = table(Replace(), checks=(Check("small", "n < 5"),))
    put(classic, checked, root, [(1, 1)])
    file = file_of(checked, root)
    texts = StructType([SCHEMA["k"], StructField("n", StringType())])
    replaced = table(Replace(), schema=texts, schema_policy=SchemaPolicy(mode="overwrite"))
    location = replaced.location(root)
    frame = classic.read.format("delta").load(location).selectExpr("k", "CAST(n AS STRING) AS n")
    file.unlink()
    with pytest.raises(DamagedTableError) as caught:
        write(frame, table=TableRef(replaced, location), note=note())
    assert caught.value.file.rpartition("/")[2] == file.name


@pytest.mark.exhaustive
def test_a_damaged_file_of_another_table_that_the_frame_reads_is_not_told_as_damage_of_the_one_written(
    classic: SparkSession, root: str
) -> None:
    read = Dataset(name="read", schema=SCHEMA)
    put(classic, read, root, [(1, 1)])
    file_of(read, root).unlink()
    frame = classic.read.format("delta").load(read.location(root))
    with pytest.raises(FrameFailedError):
        write(frame, table=APPENDED.at(root), note=note())
    assert versions_of(APPENDED, root) == [0]
