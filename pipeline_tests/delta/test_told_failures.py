"""What Spark, Delta and a disk refuse is told as what it is: of the storage, the rows, the declaration or the table."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampNTZType

from pipeline.dataset import Append, Check, Dataset, Features, Merge, Replace, SchemaPolicy, TableRef
from pipeline.delta.frames.convert import to_spark
from pipeline.delta.inspect.describe import describe
from pipeline.delta.read.version import ReadOptions, read
from pipeline.delta.sink.sink import DeltaSink
from pipeline.delta.sql.slices import of_values
from pipeline.delta.table.open_table import conform, plan_of, table_state
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline.errors import (
    CheckViolationError,
    ExpressionFailedError,
    PartitionNameError,
    PipelineError,
    StagingError,
    StatementError,
    StorageError,
    TableMismatchError,
    TextError,
    VersionNotFoundError,
)
from pipeline.settings import Settings
from pipeline_tests.delta.sample import note, rows_of, versions_of
from pipeline_tests.delta.test_sink import BY_HAND, PATIENCE

NUMBERS = Dataset(name="numbers", schema=StructType([StructField("n", LongType())]), write=Append())
PARTED = Dataset(
    name="parted",
    schema=StructType([StructField("p", StringType()), StructField("n", LongType())]),
    partition_by=("p",),
    write=Append(),
)
RATIO = "1 / n > 0"


def put(spark: SparkSession, dataset: Dataset, root: str, query: str) -> WriteResult:
    return write(spark.sql(query), table=dataset.at(root), note=note())


def refused(spark: SparkSession, dataset: Dataset, root: str, query: str, kind: type[PipelineError]) -> Any:
    with pytest.raises(kind) as caught:
        put(spark, dataset, root, query)
    assert type(caught.value) is kind
    return caught.value


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte; skipped where this user may not mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    done = subprocess.run(mount, check=False, capture_output=True)
    if done.returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    handle = os.open(folder / "filler", os.O_CREAT | os.O_WRONLY)
    try:
        while True:
            os.write(handle, b"x" * 4096)
    except OSError:
        pass
    finally:
        os.close(handle)


@pytest.mark.exhaustive
def test_a_full_disk_is_told_and_once_there_is_room_the_same_write_is_made(
    spark: SparkSession, small_disk: Path
) -> None:
    root = str(small_disk)
    put(spark, NUMBERS, root, "SELECT 1L AS n")
    fill(small_disk)
    error = refused(spark, NUMBERS, root, "SELECT 2L AS n", StorageError)
    assert (error.may_pass, "is full" in error.remedy()) == (True, True)
    assert "is full" in refused(spark, replace(NUMBERS, name="new"), root, "SELECT 2L AS n", StorageError).remedy()
    with (
        pytest.raises(StagingError, match="is full"),
        to_spark(pa.table({"n": [1]}), NUMBERS, lambda: spark, f"{root}/_staging"),
    ):
        pass
    (small_disk / "filler").unlink()
    put(spark, NUMBERS, root, "SELECT 2L AS n")
    assert rows_of(NUMBERS, root) == [(1,), (2,)]


@pytest.mark.exhaustive
def test_a_sink_waits_for_room_and_goes_on_by_itself(
    classic: SparkSession, settings: Settings, small_disk: Path
) -> None:
    """Its journal lies on the same disk, so that neither half of it can do anything."""
    with DeltaSink(NUMBERS, "test", replace(settings, root=str(small_disk)), BY_HAND) as sink:
        sink.submit({"n": 1})
        sink.flush(PATIENCE)
        fill(small_disk)
        waiting = sink.submit({"n": 2})
        with pytest.raises(TimeoutError):
            sink.flush(2)
        assert (sink.is_running, waiting.done()) == (True, False)
        (small_disk / "filler").unlink()
        sink.flush(PATIENCE)
        assert waiting.result(PATIENCE).rows == 1
    assert rows_of(NUMBERS, str(small_disk)) == [(1,), (2,)]


@pytest.mark.exhaustive
def test_a_root_that_is_read_only_is_told_by_every_write_and_still_read(spark: SparkSession, small_disk: Path) -> None:
    root = str(small_disk)
    put(spark, NUMBERS, root, "SELECT 1L AS n")
    subprocess.run(["mount", "-o", "remount,ro", root], check=True)
    for dataset in (NUMBERS, replace(NUMBERS, name="new")):
        assert "mounted read-only" in refused(spark, dataset, root, "SELECT 2L AS n", StorageError).remedy()
    with pytest.raises(StorageError, match="mounted read-only"):
        conform(spark, TableRef(replace(NUMBERS, checks=(Check("small", "n < 5"),)), NUMBERS.location(root)))
    assert read(spark, NUMBERS.at(root)).frame.count() == 1


def test_a_root_below_a_file_is_told_as_such(classic: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    error = refused(classic, NUMBERS, f"{tmp_path}/file/tables", "SELECT 1L AS n", StorageError)
    assert error.remedy().startswith(f"{tmp_path}/file is a file")


@pytest.mark.parametrize("value", ["x" * 300, "ä" * 150, "/" * 90, r"a\u0000b"])
def test_a_value_whose_folder_would_have_too_long_a_name_is_told_with_its_rows(
    classic: SparkSession, root: str, value: str
) -> None:
    query = f"SELECT * FROM VALUES ('a', 1L), ('{value}', 2L) AS t(p, n)"
    error = refused(classic, PARTED, root, query, PartitionNameError)
    assert (dict(error.counts), error.limit, len(error.examples)) == ({"p": 1}, 255, 1)
    assert versions_of(PARTED, root) == [0]


def test_a_value_whose_folder_just_fits_is_written(classic: SparkSession, root: str) -> None:
    fits = "x" * (255 - len("p="))
    put(classic, PARTED, root, f"SELECT '{fits}' AS p, 1L AS n")
    assert rows_of(PARTED, root) == [(fits, 1)]


TWO = StructType([StructField("n", LongType()), StructField("m", LongType())])
DOUBLED = Dataset(name="doubled", schema=TWO, write=Append(), features=Features(generated=(("m", "n * 2"),)))


def test_a_wrong_value_of_a_generated_column_is_counted_as_what_is_broken(classic: SparkSession, root: str) -> None:
    query = "SELECT * FROM VALUES (1L, 2L), (2L, 5L), (3L, NULL) AS t(n, m)"
    error = refused(classic, DOUBLED, root, query, CheckViolationError)
    assert dict(error.counts) == {"generated column m": 2}
    put(classic, DOUBLED, root, "SELECT 4L AS n")
    assert rows_of(DOUBLED, root) == [(4, 8)]


@pytest.mark.parametrize("follows", ["fail", "quarantine", "drop"])
def test_a_check_that_has_no_value_for_a_row_is_named_whatever_it_says_of_rows(
    spark: SparkSession, root: str, follows: Any
) -> None:
    dataset = replace(NUMBERS, checks=(Check("positive", "n >= 0"), Check("ratio", RATIO, on_violation=follows)))
    error = refused(spark, dataset, root, "SELECT id AS n FROM range(3)", ExpressionFailedError)
    assert (error.part, error.expression, error.condition) == ("check 'ratio'", RATIO, "DIVIDE_BY_ZERO")
    put(spark, replace(dataset, checks=(Check("ratio", "try_divide(1, n) > 0", on_violation="drop"),)), root + "2",
        "SELECT id AS n FROM range(3)")  # fmt: skip
    assert rows_of(dataset, root + "2") == [(1,), (2,)]


@pytest.mark.exhaustive
def test_a_condition_of_the_write_mode_and_a_computed_column_are_named_likewise(spark: SparkSession, root: str) -> None:
    merged = replace(NUMBERS, keys=("n",), write=Merge(delete_when="1 / n > 5"))
    assert refused(spark, merged, root, "SELECT id AS n FROM range(3)", ExpressionFailedError).part == "delete_when"
    computed = replace(DOUBLED, name="computed", features=Features(generated=(("m", "CAST(10 / n AS BIGINT)"),)))
    error = refused(spark, computed, root, "SELECT id AS n FROM range(3)", ExpressionFailedError)
    assert (error.part, error.expression) == ("column 'm'", "CAST(10 / n AS BIGINT)")


@pytest.mark.exhaustive
def test_a_column_that_delta_numbers_itself_is_told_as_what_spark_refuses(spark: SparkSession, root: str) -> None:
    numbered = Dataset(name="numbered", schema=TWO, write=Append(), change_feed=False)
    table = f"delta.`{numbered.location(root)}`"
    spark.sql(f"CREATE TABLE {table} (n BIGINT, m BIGINT GENERATED ALWAYS AS IDENTITY) USING delta").collect()
    error = refused(spark, numbered, root, "SELECT 1L AS n, 1L AS m", StatementError)
    assert "IDENTITY" in error.condition


@pytest.mark.parametrize("kind", ["hologram", pytest.param("geometry(4326)", marks=pytest.mark.exhaustive)])
def test_a_type_in_the_log_that_spark_has_not_is_told_and_no_frame_is_blamed(
    classic: SparkSession, root: str, kind: str
) -> None:
    put(classic, NUMBERS, root, "SELECT 1L AS n")
    log = Path(NUMBERS.location(root)) / "_delta_log"
    first = log / f"{0:020d}.json"
    text = first.read_text(encoding="utf-8")
    first.write_text(text.replace('\\"type\\":\\"long\\"', f'\\"type\\":{json.dumps(json.dumps(kind))[1:-1]}'))
    for file in (*log.glob("*.crc"), *log.glob(".*.crc")):
        file.unlink(missing_ok=True)
    location = NUMBERS.location(root)
    for act in (
        lambda: read(classic, TableRef(NUMBERS, location)),
        lambda: put(classic, NUMBERS, root, "SELECT 2L AS n"),
        lambda: describe(classic, TableRef(NUMBERS, location)),
    ):
        with pytest.raises(StatementError, match=kind.partition("(")[0]):
            act()


def test_half_of_a_surrogate_pair_is_told_as_a_text_and_not_as_a_lost_connection(
    classic: SparkSession, root: str
) -> None:
    within = of_values("p", ["a\ud800"])
    with pytest.raises(TextError) as caught:
        write(
            classic.sql("SELECT 'a' AS p, 1L AS n"),
            table=TableRef(replace(PARTED, write=Replace()), PARTED.location(root)), note=note(), within=within,
        )  # fmt: skip
    assert "\ud800" in caught.value.text
    assert classic.sql("SELECT 1 AS one").collect()[0].one == 1


# --- remedies that lead somewhere -------------------------------------------------------------------------------------


def test_another_partition_layout_has_no_step_and_its_remedy_leads_to_a_table_of_that_layout(
    classic: SparkSession, root: str
) -> None:
    put(classic, PARTED, root, "SELECT 'a' AS p, 1L AS n")
    flat = replace(PARTED, partition_by=())
    error = refused(classic, flat, root, "SELECT 'b' AS p, 2L AS n", TableMismatchError)
    assert (error.is_settled_by_steps, plan_of(classic, flat.at(root)).steps) == (False, ())
    assert "conform" not in error.remedy()
    replace_all = replace(flat, write=Replace(), schema_policy=SchemaPolicy(mode="overwrite"))
    put(classic, replace_all, root, "SELECT 'b' AS p, 2L AS n")
    state = table_state(classic, replace_all.at(root))
    assert (rows_of(replace_all, root), state.partition_by if state else None) == ([("b", 2)], ())


WITH_TIME = StructType([*NUMBERS.schema.fields, StructField("at", TimestampNTZType())])


@pytest.mark.parametrize("automatic", [True, False], ids=["by policy", "by conform"])
def test_a_time_without_a_zone_is_added_to_a_table_together_with_its_feature(
    classic: SparkSession, root: str, automatic: bool
) -> None:
    put(classic, NUMBERS, root, "SELECT 1L AS n")
    wider = replace(NUMBERS, schema=WITH_TIME)
    query = "SELECT 2L AS n, TIMESTAMP_NTZ'2026-01-31 12:00:00' AS at"
    if automatic:
        put(classic, replace(wider, schema_policy=SchemaPolicy(mode="add columns")), root, query)
    else:
        assert refused(classic, wider, root, query, TableMismatchError).is_settled_by_steps
        assert [str(step) for step in plan_of(classic, wider.at(root)).steps] == [
            "feature timestampNtz: enabled", "column at: added as timestamp_ntz",
        ]  # fmt: skip
        conform(classic, wider.at(root))
        put(classic, wider, root, query)
    assert [row[0] for row in rows_of(NUMBERS, root)] == [1, 2]


def test_the_versions_that_are_said_to_be_there_can_be_read(classic: SparkSession, root: str) -> None:
    for number in range(12):  # a checkpoint is written at ten
        put(classic, NUMBERS, root, f"SELECT {number}L AS n")
    location = NUMBERS.location(root)
    log = Path(location) / "_delta_log"
    for number in range(4):
        (log / f"{number:020d}.json").unlink()
    with pytest.raises(VersionNotFoundError) as caught:
        read(classic, TableRef(NUMBERS, location), ReadOptions(version=5)).frame.collect()
    assert (caught.value.asked, caught.value.available) == ("version 5", "10 to 12")
    assert read(classic, TableRef(NUMBERS, location), ReadOptions(version=10)).frame.count() == 10
