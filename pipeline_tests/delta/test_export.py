"""Exports of a version: every format holds what the version holds, or nothing is there; the plan is what happens."""

from __future__ import annotations

import csv
import datetime as dt
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow.dataset as pads
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pipeline.dataset import Append, ColumnMapping, Dataset, Features, TableRef
from pipeline.delta.export import export as export_module
from pipeline.delta.export.export import export, plan_export
from pipeline.delta.export.manifest import SUCCESS, parse_manifest
from pipeline.delta.export.refresh import refresh_export
from pipeline.delta.export.request import FORMATS, ExportFormat, ExportPlan, ExportRequest, ExportResult
from pipeline.delta.inspect.doctor import examine
from pipeline.delta.log.mark import private_session
from pipeline.delta.read.version import ReadOptions
from pipeline.delta.sql.slices import of_values
from pipeline.errors import (
    DamagedTableError,
    ExportIncompleteError,
    ExportRefusedError,
    ExportTargetError,
    QueryError,
    TableNotFoundError,
    VersionNotFoundError,
    VersionVacuumedError,
)
from pipeline.settings import SparkSettings
from pipeline_tests.children import exporting
from pipeline_tests.conftest import brief_conf
from pipeline_tests.delta.operator import Operator
from pipeline_tests.delta.sample import APPENDED, REPLACED, day, days, ordered, placed, put
from pipeline_tests.remedies import follows, refused
from pipeline_tests.tiers import first_is_quick, some_are_quick

UTC = dt.timezone.utc
# Columns whose values Python can't hold, or compare, as they are.
CAST = ("local", "day", "exact")
ALL = StructType(
    [
        StructField("text", StringType()),
        StructField("number", LongType()),
        StructField("exact", DecimalType(38, 18)),
        StructField("real", DoubleType()),
        StructField("flag", BooleanType()),
        StructField("day", DateType()),
        StructField("at", TimestampType()),
        StructField("local", TimestampNTZType()),
        StructField("raw", BinaryType()),
    ]
)
EVERY_TYPE = Dataset(name="every_type", schema=ALL, write=Append())
ROWS: list[tuple[Any, ...]] = [
    (
        ' a "quoted", text\r\nof two lines\t ', -(2**63), Decimal("12345678901234567890.123456789012345678"), 0.1, True,
        dt.date(1582, 10, 4), dt.datetime(2026, 1, 1, 12, 30, 0, 1, tzinfo=UTC), dt.datetime(1, 1, 1), b"\x00\xff",
    ),
    ("", 0, Decimal("0E-18"), math.inf, False, dt.date(9999, 12, 31), dt.datetime(1900, 1, 1, tzinfo=UTC),
     dt.datetime(2026, 1, 1, 0, 0, 0, 999999), b""),
    ("NULL", 1, Decimal("0.000000000000000001"), -1e-300, None, None, None, None, None),
    ("\\N,\\", None, None, None, None, None, None, None, None),
    (None, None, None, None, None, None, None, None, None),
    ("\r", 7, None, 5e-324, None, None, None, None, None),
]  # fmt: skip


def request(tmp_path: Path, format_name: str, **fields: Any) -> ExportRequest:
    format_of: dict[str, ExportFormat] = {name: name for name in FORMATS}  # type: ignore[misc]
    return ExportRequest(target=str(tmp_path / "exports" / format_name), format=format_of[format_name], **fields)


def exported(
    spark: SparkSession, table: TableRef, asked: ExportRequest, pin: ReadOptions | None = None
) -> tuple[ExportPlan, ExportResult]:
    """A plan, which has written nothing, and the export of exactly it."""
    folder = Path(asked.target).parent
    before = sorted(folder.glob("**/*"))
    plan = plan_export(spark, table, asked, pin or ReadOptions())
    assert sorted(folder.glob("**/*")) == before
    return plan, export(spark, table, plan)


def data_in(target: str) -> list[Path]:
    return sorted(path for path in Path(target).rglob("part-*") if path.is_file())


def every_type(spark: SparkSession, root: str) -> TableRef:
    put(spark, EVERY_TYPE, root, ROWS)
    return EVERY_TYPE.at(root)


# --- what the formats hold --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_name", first_is_quick(["csv", "ndjson", "parquet"]))
def test_a_reader_that_knows_the_types_gets_every_value_back(
    spark: SparkSession, root: str, tmp_path: Path, format_name: str
) -> None:
    table = every_type(spark, root)
    _, result = exported(spark, table, request(tmp_path, format_name))
    assert result.rows == len(ROWS)
    is_csv = format_name == "csv"
    # CSV has no binary values.
    form = StructType([StructField(f.name, StringType()) if is_csv and f.name == "raw" else f for f in ALL.fields])
    shown = ["text", "number", "real", "flag", "unix_micros(at)", *(f"CAST({name} AS STRING)" for name in CAST)]
    with private_session(spark, {}) as clone:
        reader = clone.read.schema(form).format({"ndjson": "json"}.get(format_name, format_name))
        # An empty field is NULL, which by Spark's default an empty text is too.
        options = {"header": "true", "multiLine": "true", "escape": '"', "nullValue": "\x01"}
        reader = reader.options(**options) if is_csv else reader
        read = reader.load([str(path) for path in data_in(str(tmp_path / "exports" / format_name))])
        actual = read.selectExpr(*shown, "hex(unbase64(raw))" if is_csv else "hex(raw)").collect()
        expected = clone.read.format("delta").load(table.location).selectExpr(*shown, "hex(raw)").collect()
    assert ordered(map(tuple, actual)) == ordered(map(tuple, expected))


@pytest.mark.exhaustive
def test_csv_is_what_other_readers_take_for_csv(classic: SparkSession, root: str, tmp_path: Path) -> None:
    exported(classic, every_type(classic, root), request(tmp_path, "csv"))
    texts, lines = [], []
    for path in data_in(str(tmp_path / "exports" / "csv")):
        content = path.read_bytes().decode()
        lines += content.split("\n")[1:]
        with path.open(encoding="utf-8", newline="") as file:
            texts += [row["text"] for row in csv.DictReader(file)]
    assert sorted(texts) == sorted(row[0] or "" for row in ROWS)
    # NULL is an empty field, and an empty text is quoted.
    assert ",".join([""] * 9) in lines
    assert [line for line in lines if line.startswith('"",0,')] != []
    frames = [pl.read_csv(path, infer_schema=False) for path in data_in(str(tmp_path / "exports" / "csv"))]
    assert sum(frame.height for frame in frames) == len(ROWS)


@pytest.mark.exhaustive
def test_ndjson_has_null_and_exact_decimals_at_every_depth(classic: SparkSession, root: str, tmp_path: Path) -> None:
    schema = StructType(
        [
            StructField("id", LongType()),
            StructField("list", ArrayType(DecimalType(30, 2))),
            StructField("by_name", MapType(StringType(), TimestampType())),
            StructField(
                "part", StructType([StructField("a b", DecimalType(30, 2)), StructField("none", StringType())])
            ),
        ]
    )
    nested = Dataset(name="nested", schema=schema, features=Features(column_mapping="name"))
    at = dt.datetime(2026, 1, 1, 0, 0, 0, 5, tzinfo=UTC)
    rows = [(1, [Decimal("1.10"), None], [("k", at)], {"a b": Decimal("2.00"), "none": None}), (2, None, None, None)]
    put(classic, nested, root, rows)
    exported(classic, nested.at(root), request(tmp_path, "ndjson"))
    lines = [
        json.loads(line)
        for path in data_in(str(tmp_path / "exports" / "ndjson"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    assert sorted(lines, key=lambda line: int(line["id"])) == [
        {
            "id": 1, "list": ["1.10", None], "by_name": {"k": "2026-01-01T00:00:00.000005Z"},
            "part": {"a b": "2.00", "none": None},
        },
        {"id": 2, "list": None, "by_name": None, "part": None},
    ]  # fmt: skip


def test_partitions_are_folders_that_other_readers_know(classic: SparkSession, root: str, tmp_path: Path) -> None:
    schema = StructType([StructField("part", StringType()), StructField("at", TimestampType()), *APPENDED.schema[1:]])
    by_text = days(Append(), name="by_text", schema=schema, partition_by=("part", "at"))
    at = dt.datetime(2026, 1, 1, 0, 0, 0, 5, tzinfo=UTC)
    rows = [("a/b c", at, 1, "x"), ("ä:%20", None, 2, ""), (None, at, 3, None)]
    put(classic, by_text, root, rows)
    plan, result = exported(classic, by_text.at(root), request(tmp_path, "parquet"))
    assert plan.rows_by_folder == {
        "part=__HIVE_DEFAULT_PARTITION__/at=2026-01-01 00%3A00%3A00.000005": 1,
        "part=a%2Fb c/at=2026-01-01 00%3A00%3A00.000005": 1,
        "part=ä%3A%2520/at=__HIVE_DEFAULT_PARTITION__": 1,
    }
    assert {file.path.rpartition("/")[0] for file in result.files} == set(plan.rows_by_folder)
    table = pads.dataset(plan.request.target, partitioning="hive").to_table().to_pylist()
    assert sorted((row["id"], row["part"], row["text"]) for row in table) == [
        (1, "a/b c", "x"), (2, "ä:%20", ""), (3, None, None),
    ]  # fmt: skip


@pytest.mark.parametrize("format_name", some_are_quick(FORMATS, "delta", "parquet"))
def test_the_plan_is_what_the_export_does(classic: SparkSession, root: str, tmp_path: Path, format_name: str) -> None:
    put(classic, APPENDED, root, [(day(1), 1, "a"), (day(2), 2, None)])
    put(classic, APPENDED, root, [(day(2), 3, "")])
    plan, result = exported(classic, APPENDED.at(root), request(tmp_path, format_name))
    assert (plan.version, plan.rows, plan.files) == (2, 3, 3)
    assert (result.plan, result.rows) == (plan, 3)
    manifest = parse_manifest((Path(plan.request.target) / SUCCESS).read_bytes())
    assert manifest is not None
    assert (manifest.dataset, manifest.version, manifest.rows, manifest.format) == ("days", 2, 3, format_name)
    assert (manifest.fingerprint, manifest.entry, manifest.table_id) == (plan.fingerprint, plan.entry, plan.table_id)
    assert manifest.files == result.files
    assert {file.path: file.size for file in manifest.files} == {
        str(path.relative_to(plan.request.target)): path.stat().st_size
        for path in Path(plan.request.target).rglob("*")
        if path.is_file() and path.name != SUCCESS
    }
    if format_name != "delta":
        assert plan.rows_by_folder == {"day=2026-01-01": 1, "day=2026-01-02": 2}
        assert {file.path.rpartition("/")[0] for file in result.files} == set(plan.rows_by_folder)
    with pytest.raises(ExportTargetError):
        plan_export(classic, APPENDED.at(root), plan.request)


def test_a_condition_columns_and_an_earlier_version_select_what_is_exported(
    classic: SparkSession, root: str, tmp_path: Path
) -> None:
    put(classic, APPENDED, root, [(day(1), n, "a") for n in range(5)])
    put(classic, APPENDED, root, [(day(2), 9, "b")])
    asked = request(tmp_path, "parquet", columns=("id", "day"), where="id > 2 OR text = 'b' -- not all")
    plan, _ = exported(classic, APPENDED.at(root), asked, ReadOptions(version=1))
    assert (plan.rows, plan.columns, plan.rows_by_folder) == (2, ("id", "day"), {"day=2026-01-01": 2})
    assert pads.dataset(asked.target, partitioning="hive").to_table().column_names == ["id", "day"]
    flat = replace(asked, target=f"{asked.target}-flat", columns=("id",))
    plan, _ = exported(classic, APPENDED.at(root), flat)
    assert (plan.partition_by, plan.rows_by_folder) == ((), {"": 3})
    table = replace(asked, target=f"{asked.target}-delta", format="delta")
    exported(classic, APPENDED.at(root), table)
    copy = deltalake.DeltaTable(table.target)
    assert (copy.metadata().partition_columns, copy.to_pyarrow_table().num_rows) == (["day"], 3)


@pytest.mark.exhaustive
def test_no_rows_are_an_export_too(classic: SparkSession, root: str, tmp_path: Path) -> None:
    placed(classic, APPENDED, root, [(day(1), 1, "a")])
    for format_name in FORMATS:
        asked = request(tmp_path, format_name, where="id > 1")
        plan, result = exported(classic, APPENDED.at(root), asked)
        assert (plan.rows, result.rows, (Path(asked.target) / SUCCESS).is_file()) == (0, 0, True)


# --- copies as delta --------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["name", None])
def test_a_copy_has_deleted_rows_mapped_columns_and_every_feature(
    classic: SparkSession, root: str, tmp_path: Path, mode: ColumnMapping | None
) -> None:
    features = Features(deletion_vectors=True, column_mapping=mode, row_tracking=True)
    dataset = replace(REPLACED, features=features)
    put(classic, dataset, root, [(day(1), n, "a") for n in range(4)] + [(None, 9, "b")])
    location = dataset.location(root)
    classic.sql(f"DELETE FROM delta.`{location}` WHERE id = 2").collect()
    plan, result = exported(classic, dataset.at(root), request(tmp_path, "delta"))
    assert (plan.rows, result.rows) == (4, 4)
    copy = plan.request.target
    shutil.rmtree(location)
    rows = classic.read.format("delta").load(copy).collect()
    assert ordered((row["day"], row["id"], row["text"]) for row in rows) == ordered(
        [(day(1), 0, "a"), (day(1), 1, "a"), (day(1), 3, "a"), (None, 9, "b")]
    )
    opened = deltalake.DeltaTable(copy)
    assert opened.version() == 0
    assert {"deletionVectors", "rowTracking"} <= set(opened.protocol().writer_features or ())
    assert examine("copy", copy).findings == ()
    classic.sql(f"INSERT INTO delta.`{copy}` VALUES (DATE'2026-01-01', 10, 'c')").collect()
    classic.sql(f"UPDATE delta.`{copy}` SET text = 'd' WHERE id = 3").collect()
    assert classic.read.format("delta").load(copy).count() == 5


@pytest.mark.exhaustive
def test_a_copy_of_a_shallow_clone_needs_its_source_no_more(classic: SparkSession, root: str, tmp_path: Path) -> None:
    source = replace(REPLACED, name="source", features=Features(deletion_vectors=True))
    put(classic, source, root, [(day(1), n, "a") for n in range(3)])
    classic.sql(f"DELETE FROM delta.`{source.location(root)}` WHERE id = 1").collect()
    clone = replace(source, name="clone")
    classic.sql(f"CREATE TABLE delta.`{clone.location(root)}` SHALLOW CLONE delta.`{source.location(root)}`").collect()
    plan, _ = exported(classic, clone.at(root), request(tmp_path, "delta"))
    shutil.rmtree(source.location(root))
    rows = classic.read.format("delta").load(plan.request.target).collect()
    assert sorted(row["id"] for row in rows) == [0, 2]
    log = next((Path(plan.request.target) / "_delta_log").glob("*.json")).read_text(encoding="utf-8")
    assert str(tmp_path) not in log


@pytest.mark.exhaustive
def test_a_copy_with_history_restores_and_reads_changes_as_the_table_does(
    classic: SparkSession, root: str, tmp_path: Path
) -> None:
    put(classic, REPLACED, root, [(day(1), 1, "a")])
    put(classic, REPLACED, root, [(day(1), 2, "b")], of_values("day", [day(1)]))
    put(classic, REPLACED, root, [(day(2), 3, "c")], of_values("day", [day(2)]))
    plan, result = exported(
        classic, REPLACED.at(root), request(tmp_path, "delta", history=True), ReadOptions(version=2)
    )
    assert (plan.rows, result.rows) == (1, 1)
    copy = plan.request.target
    versions = [classic.read.format("delta").option("versionAsOf", n).load(copy).count() for n in range(3)]
    assert versions == [0, 1, 1]
    feed = classic.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1).load(copy)
    assert sorted((row["_change_type"], row["id"]) for row in feed.collect()) == [
        ("delete", 1), ("insert", 1), ("insert", 2),
    ]  # fmt: skip


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"columns": ("idd",)}, "the table has no column 'idd'. Did you mean id?"),
        ({"columns": ("id", "id")}, "column 'id' is named 2 times"),
        ({"where": "id >"}, "the condition 'id >'"),
        ({"where": "idd > 1"}, "the condition 'idd > 1'"),
        ({"where": "id"}, "the condition 'id'"),
        ({"where": "id > 1) OR (id < 1"}, None),
        ({"where": "1 = 1) UNION ALL SELECT * FROM x WHERE (1 = 1"}, "the condition '1 = 1) UNION"),
    ],
)
def test_a_column_or_condition_that_can_not_be_used_is_named_before_anything_is_written(
    classic: SparkSession, root: str, tmp_path: Path, fields: dict[str, Any], problem: str | None
) -> None:
    placed(classic, APPENDED, root, [(day(1), 1, "a")])
    asked = request(tmp_path, "parquet", **fields)
    if problem is None:
        assert plan_export(classic, APPENDED.at(root), asked).rows == 0
        return
    with pytest.raises(ExportRefusedError) as caught:
        plan_export(classic, APPENDED.at(root), asked)
    assert (caught.value.dataset, caught.value.format, len(caught.value.problems)) == ("days", "parquet", 1)
    assert problem in caught.value.problems[0]
    assert not Path(asked.target).parent.exists()


def test_a_condition_that_calls_java_is_not_run(classic: SparkSession, root: str, tmp_path: Path) -> None:
    placed(classic, APPENDED, root, [(day(1), 1, "a")])
    where = "java_method('java.lang.System', 'setProperty', 'export', 'ran') IS NULL"
    with pytest.raises(QueryError):
        plan_export(classic, APPENDED.at(root), request(tmp_path, "csv", where=where))
    jvm: Any = classic.sparkContext._jvm
    assert jvm.java.lang.System.getProperty("export") is None


@pytest.mark.exhaustive
def test_versions_that_are_not_there_are_named_and_nothing_is_written(
    classic: SparkSession, root: str, tmp_path: Path
) -> None:
    asked = request(tmp_path, "parquet")
    with pytest.raises(TableNotFoundError):
        plan_export(classic, APPENDED.at(root), asked)
    placed(classic, APPENDED, root, [(day(1), 1, "a")])
    with pytest.raises(VersionNotFoundError):
        plan_export(classic, APPENDED.at(root), asked, ReadOptions(version=9))
    assert not Path(asked.target).parent.exists()


@pytest.mark.parametrize("format_name", first_is_quick(["parquet", "delta", "csv", "ndjson"]))
def test_a_version_that_is_vacuumed_meanwhile_is_complete_or_a_named_error(
    classic: SparkSession, root: str, tmp_path: Path, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(classic, REPLACED, root, [(day(1), 1, "old"), (day(2), 2, "kept")])
    (stale,) = (Path(REPLACED.location(root)) / "day=2026-01-01").glob("*.parquet")
    put(classic, REPLACED, root, [(day(1), 1, "new")], of_values("day", [day(1)]))
    table, asked = REPLACED.at(root), request(tmp_path, format_name)
    plan = plan_export(classic, table, asked, ReadOptions(version=1))
    act_first(monkeypatch, stale.unlink)  # what a vacuum does once the retention is over
    with pytest.raises(VersionVacuumedError) as caught:
        export(classic, table, plan)
    assert (caught.value.version, len(caught.value.missing)) == (1, 1)
    assert list(Path(asked.target).parent.iterdir()) == []
    with pytest.raises(VersionVacuumedError):
        plan_export(classic, table, asked, ReadOptions(version=1))
    _, result = exported(classic, table, asked)
    assert result.rows == 2


def act_first(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Act after an export has begun, and before its first file is written."""
    for name in ("write_files", "copy_files"):
        real = getattr(export_module, name)

        def acting(*arguments: Any, real: Any = real) -> Any:
            act()
            monkeypatch.undo()
            return real(*arguments)

        monkeypatch.setattr(export_module, name, acting)


@pytest.mark.exhaustive
def test_a_missing_file_of_the_newest_version_is_damage(classic: SparkSession, root: str, tmp_path: Path) -> None:
    placed(classic, APPENDED, root, [(day(1), 1, "a")])
    next(Path(APPENDED.location(root)).glob("day=*/*.parquet")).unlink()
    with pytest.raises(DamagedTableError):
        plan_export(classic, APPENDED.at(root), request(tmp_path, "csv"))


# --- the command, and what the errors advise --------------------------------------------------------------------------


@pytest.fixture
def operator(classic: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Operator:
    return Operator.of(classic, tmp_path, monkeypatch)


def test_the_command_shows_the_plan_and_exports_only_when_asked(operator: Operator) -> None:
    operator.declare(APPENDED)
    placed(operator.session, APPENDED, operator.root, [(day(1), 1, "a"), (day(2), 2, "b")])
    arguments = ("export", "days", "--to", "out/days", "--format", "parquet", "--where", "id < 2")
    assert operator.run(*arguments).splitlines()[-1] == "Nothing was written; --apply exports."
    assert not (operator.folder / "out").exists()
    planned = operator.json(*arguments)
    assert (planned["plan"]["rows"], planned["applied"]) == (1, None)
    assert planned["plan"]["to"] == str(operator.folder / "out" / "days")
    done = operator.json(*arguments, "--apply")
    assert done["plan"] == planned["plan"]
    assert (done["applied"]["rows"], [file["rows"] for file in done["applied"]["files"]]) == (1, [1])
    usage = operator.run("export", "days", "--to", "x", "--format", "csv", "--history", status=2)
    assert usage == ""


@pytest.mark.exhaustive
@follows(ExportTargetError)
def test_an_export_arrives_in_another_folder(operator: Operator) -> None:
    operator.declare(APPENDED)
    placed(operator.session, APPENDED, operator.root, [(day(1), 1, "a")])
    (operator.folder / "out").mkdir()
    (operator.folder / "out" / "theirs").touch()
    command = ("export", "days", "--format", "csv", "--apply", "--to")
    operator.refused(ExportTargetError, (*command, "out"), "Choose a folder that is empty or does not exist")
    inside = f"{APPENDED.location(operator.root)}/out"
    operator.refused(ExportTargetError, (*command, inside), "outside of the tables")
    operator.run(*command, "out/days")
    assert (operator.folder / "out" / "days" / SUCCESS).is_file()


@pytest.mark.exhaustive
@follows(ExportRefusedError)
def test_an_export_succeeds_without_the_columns_that_its_format_lacks_or_in_another_format(operator: Operator) -> None:
    schema = StructType([*APPENDED.schema.fields, StructField("list", ArrayType(LongType()))])
    nested = days(Append(), name="nested", schema=schema)
    operator.declare(nested)
    put(operator.session, nested, operator.root, [(day(1), 1, "a", [1, 2])])
    command = ("export", "nested", "--apply", "--to", "out", "--format")
    error = operator.refused(
        ExportRefusedError, (*command, "csv"), "--columns leaves columns out", "parquet and delta have every type"
    )
    assert error.problems == ("column 'list' has type array<bigint>, which CSV can't hold",)
    assert "list" in operator.does(error, "show nested")
    operator.run(*command, "csv", "--columns", "id, text")
    shutil.rmtree(operator.folder / "out")
    operator.run(*command, "parquet")


@pytest.mark.exhaustive
@follows(ExportIncompleteError)
def test_an_export_with_a_condition_that_is_the_same_each_time_is_complete(
    classic: SparkSession, root: str, tmp_path: Path
) -> None:
    put(classic, APPENDED, root, [(day(1), n, "a") for n in range(400)])
    plan = plan_export(classic, APPENDED.at(root), request(tmp_path, "csv", where="rand() < 0.5"))
    error = refused(
        ExportIncompleteError, lambda: export(classic, APPENDED.at(root), replace(plan, rows_by_folder={"": 401})),
        "Run the export again", "the same result each time",
    )  # fmt: skip
    assert error.reason.endswith("rows, and the version has 401")
    assert list((tmp_path / "exports").iterdir()) == []
    _, result = exported(classic, APPENDED.at(root), request(tmp_path, "csv", where="id < 100"))
    assert result.rows == 100


@pytest.mark.exhaustive
def test_confs_of_the_session_do_not_change_what_is_exported(
    classic: SparkSession, root: str, tmp_path: Path
) -> None:  # fmt: skip
    table = every_type(classic, root)
    hostile = {"spark.sql.session.timeZone": "Asia/Tokyo", "spark.sql.legacy.timeParserPolicy": "LEGACY"}
    before = {name: classic.conf.get(name, None) for name in hostile}
    try:
        for name, value in hostile.items():
            classic.conf.set(name, value)
        exported(classic, table, request(tmp_path, "csv"))
    finally:
        for name, value in before.items():
            classic.conf.unset(name) if value is None else classic.conf.set(name, value)
    (path,) = [path for path in data_in(str(tmp_path / "exports" / "csv")) if b"12:30" in path.read_bytes()]
    assert b"2026-01-01T12:30:00.000001Z" in path.read_bytes()


@pytest.mark.exhaustive
@pytest.mark.soaked(2)
def test_an_export_that_is_killed_at_any_moment_is_complete_or_not_there(
    classic: SparkSession, spark_settings: SparkSettings, root: str, tmp_path: Path, soak_seed: int
) -> None:
    rng = random.Random(soak_seed)
    rows = [(day(n % 28 + 1), n, "a") for n in range(2_000)]
    put(classic, APPENDED, root, rows)
    table, targets = APPENDED.at(root), tmp_path / "targets"
    options = dict(brief_conf(spark_settings))["spark.driver.extraJavaOptions"]
    child = subprocess.Popen(
        [sys.executable, "-m", exporting.__name__, table.location, str(targets), str(spark_settings.cache), options],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None
    for _ in range(rng.randrange(2, 7)):
        last = Path(child.stdout.readline().strip())
    deadline = time.monotonic() + rng.uniform(0, 1.5)
    while time.monotonic() < deadline and not (last / SUCCESS).exists():
        pass
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    for target in (path for path in targets.iterdir() if path.name[0] in "0123456789"):
        name = target.name.partition("-")[2]
        manifest = parse_manifest((target / SUCCESS).read_bytes())
        assert manifest is not None
        assert (manifest.rows, manifest.format) == (len(rows), name)
        sizes = {str(p.relative_to(target)): p.stat().st_size for p in target.rglob("*") if p.is_file()}
        assert all(sizes[file.path] == file.size for file in manifest.files)
    for leftover in [path for path in targets.iterdir() if path.name[0] == "." and "kept" not in path.name]:
        target = targets / leftover.name[1:].removesuffix(".exporting")
        assert not target.exists()
        plan, _ = exported(classic, table, ExportRequest(target=str(target), format="parquet"))
        assert (plan.rows, plan.has_leftovers) == (len(rows), True)
    refreshed = refresh_export(classic, table, ExportRequest(target=str(targets / "kept"), format="parquet"))
    assert refreshed.rows == len(rows) == pads.dataset(targets / "kept", partitioning="hive").to_table().num_rows
    assert [path.name for path in targets.iterdir() if path.name.startswith(".")] == []
