"""The plan of a migration: what of a folder is taken, passed over and refused, and which columns follow. No Spark."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import (
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pipeline.dataset import Append, Dataset
from pipeline.delta.migrate import plan as planning
from pipeline.delta.migrate.files import list_source
from pipeline.delta.migrate.folders import folder_columns, parsed
from pipeline.delta.migrate.plan import MigrationPlan, Target, plan_migration
from pipeline.errors import FileAccessError, MigrationRefusedError

case = pytest.mark.case
N = StructType([StructField("n", LongType())])
UTC = dt.timezone.utc


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def put(folder: Path, path: str, **columns: Any) -> None:
    """A Parquet file with these columns; one row of n=1 by default."""
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns or {"n": pa.array([1], pa.int64())}), file)


def planned(folder: Path, dataset: Dataset | None = None, **options: Any) -> MigrationPlan:
    location = str(folder.parent / "table")
    target = Target(name="t", location=location, dataset=dataset, schema=options.pop("schema", None))
    return plan_migration(str(folder), target, **options)


def declared(*fields: StructField, **declaration: Any) -> Dataset:
    return Dataset(name="t", schema=StructType(list(fields)), write=Append(), **declaration)


def refused(folder: Path, **options: Any) -> tuple[str, ...]:
    with pytest.raises(MigrationRefusedError) as caught:
        planned(folder, **options)
    return caught.value.problems


# --- files ------------------------------------------------------------------------------------------------------------


@case("G-JUNK-FILES")
def test_junk_is_passed_over_and_an_empty_file_is_refused_by_its_name(lake: Path) -> None:
    put(lake, "good.parquet", n=[1, 2])
    put(lake, "norows.parquet", n=pa.array([], pa.int64()))
    put(lake, "_temporary/x.parquet")
    for name in ("empty.parquet", "_SUCCESS", ".good.parquet.crc"):
        (lake / name).write_bytes(b"" if name == "empty.parquet" else b"junk")
    plan = planned(lake)
    assert [(file.path, file.rows) for file in plan.files] == [("good.parquet", 2), ("norows.parquet", 0)]
    assert plan.passed_over == (".good.parquet.crc", "_SUCCESS", "_temporary/x.parquet")
    assert plan.problems == ("empty.parquet: it is empty (0 bytes)",)
    (lake / "empty.parquet").unlink()
    assert planned(lake).problems == ()


def test_strangers_and_files_that_are_no_parquet_are_refused_by_their_names(lake: Path) -> None:
    put(lake, "a.parquet")
    put(lake, "part-0")
    (lake / "README.txt").write_text("hello", encoding="utf-8")
    (lake / "broken.parquet").write_bytes(b"PAR1 and no footer")
    plan = planned(lake)
    assert [file.path for file in plan.files] == ["a.parquet", "part-0"]
    assert plan.problems[0] == "README.txt: it is not a file of the format parquet"
    assert plan.problems[1].startswith("broken.parquet: ")
    assert len(plan.problems) == 2


def test_a_folder_without_files_and_a_path_that_is_no_folder_are_refused(lake: Path, tmp_path: Path) -> None:
    assert refused(lake)[0] == "there are no files of the format parquet"
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(FileAccessError):
        planned(tmp_path / "file")


@case("P-UNDERSCORE")
def test_a_partition_column_with_an_underscore_is_no_junk_and_a_hidden_folder_with_its_prefix_is(lake: Path) -> None:
    put(lake, "_date=1/a.parquet")
    put(lake, "_dates_backup/keep.parquet")
    plan = planned(lake)
    assert ([file.path for file in plan.files], plan.passed_over) == (
        ["_date=1/a.parquet"],
        ("_dates_backup/keep.parquet",),
    )
    assert plan.files[0].values == (1,)


def test_a_delta_table_is_no_folder_of_parquet_files(lake: Path) -> None:
    put(lake, "a.parquet")
    (lake / "_delta_log").mkdir()
    (lake / "_delta_log" / f"{0:020d}.json").write_text("{}", encoding="utf-8")
    (problem,) = planned(lake).problems
    assert "pipeline adopt" in problem


def test_a_source_that_would_be_mixed_with_the_files_of_a_table_is_refused(lake: Path) -> None:
    def problems(source: Path, location: Path) -> tuple[str, ...]:
        return plan_migration(str(source), Target(name="t", location=str(location))).problems

    put(lake, "a.parquet")
    assert "--mode in-place makes the folder itself a table" in problems(lake, lake)[0]
    link = lake.parent / "link"
    link.symlink_to(lake)
    assert "--mode in-place makes the folder itself a table" in problems(link, lake)[0]
    assert "a vacuum removes files that no commit names" in problems(lake, lake.parent)[0]
    assert "its files among those of the source" in problems(lake, lake / "table")[0]
    put(lake, "_landing/b.parquet")
    assert problems(lake / "_landing", lake) == ()


def test_a_folder_in_a_delta_table_is_refused_since_it_has_removed_rows_too(lake: Path) -> None:
    rows = pa.table({"p": ["1"], "n": [1]})
    for _ in range(2):
        deltalake.write_deltalake(str(lake), rows, partition_by=["p"], mode="overwrite")
    (problem,) = planned(lake / "p=1").problems
    assert problem == f"the folder is in that of the Delta table {lake}, whose rows are not those of its files"


def test_links_that_lead_nowhere_or_to_a_file_that_is_listed_are_refused(lake: Path) -> None:
    put(lake, "a.parquet")
    put(lake.parent / "other", "c.parquet")
    (lake / "b.parquet").symlink_to(lake / "a.parquet")
    (lake / "c.parquet").symlink_to(lake.parent / "other" / "c.parquet")
    (lake / "d.parquet").symlink_to(lake / "nowhere")
    (lake / "_junk").symlink_to(lake / "nowhere")
    assert planned(lake).problems == (
        "d.parquet: it is no file, or a link to a file that does not exist",
        "b.parquet: it is the same file as a.parquet",
    )


def test_a_large_folder_is_taken_in_several_commits(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        put(lake, f"{number}.parquet")
    monkeypatch.setattr(planning, "BATCH_FILES", 2)
    plan = planned(lake)
    assert [[file.path for file in batch] for batch in plan.batches()] == [
        ["0.parquet", "1.parquet"], ["2.parquet", "3.parquet"], ["4.parquet"],
    ]  # fmt: skip
    monkeypatch.setattr(planning, "BATCH_BYTES", 1)
    assert len(list(plan.batches())) == 5


# --- folders ----------------------------------------------------------------------------------------------------------


@case("G-NO-PART-SCHEMA")
def test_folders_of_another_depth_are_refused_with_the_path_and_both_lists_of_columns(lake: Path) -> None:
    put(lake, "a=1/b=2/f.parquet")
    put(lake, "a=1/f.parquet")
    dataset = declared(StructField("n", LongType()), StructField("a", IntegerType()), partition_by=("a",))
    plan = planned(lake, dataset)
    assert "a=1/b=2/f.parquet: its folders have a, b, expected a" in plan.problems
    assert [file.path for file in plan.files] == ["a=1/f.parquet"]


def test_folders_that_are_no_values_are_refused(lake: Path) -> None:
    for path in ("a=1/f.parquet", "plain/f.parquet", "a=/f.parquet", "a=%FF/f.parquet"):
        put(lake, path)
    plan = planned(lake)
    assert sorted(problem.split(":")[0] for problem in plan.problems) == [
        "a=%FF/f.parquet", "a=/f.parquet", "plain/f.parquet",
    ]  # fmt: skip


@case("G-INFER-STRINGS")
@pytest.mark.parametrize(
    ("texts", "data_type", "guess"),
    [
        (["001", "-0", "1.000", "1e3", "2024-13-01", "AA"], StringType(), ""),
        (["001", "002"], StringType(), "BIGINT, but '001' would change"),
        (["1", "1e3"], StringType(), "a number, but '1e3' would change"),
        (["1", "-5", "0"], IntegerType(), ""),
        (["1", "3000000000"], LongType(), ""),
        (["1", "99999999999999999999"], StringType(), ""),
        (["2026-01-31", "2024-02-29"], DateType(), ""),
        (["2026-01-31", "2024-13-01"], StringType(), ""),
        (["true", "false"], StringType(), ""),
        ([], StringType(), ""),
    ],
)
def test_a_type_is_inferred_from_all_values_and_only_if_no_text_changes(
    texts: list[str], data_type: Any, guess: str
) -> None:
    (column,) = folder_columns(["part"], {"part": [*texts, None]}, {}, {})
    assert (column.data_type, column.guess, column.declared) == (data_type, guess, False)
    assert [str(parsed(text, column.data_type)) for text in texts] == texts


@case("G-INFER-STRINGS")
def test_a_declared_string_keeps_the_text_and_a_value_of_another_type_than_declared_is_refused(lake: Path) -> None:
    for text in ("001", "-0", "1.000", "1e3", "2024-13-01", "AA", "__HIVE_DEFAULT_PARTITION__"):
        put(lake, f"part={text}/f.parquet")
    as_text = declared(StructField("n", LongType()), StructField("part", StringType()), partition_by=("part",))
    values = {file.values[0] for file in planned(lake, as_text).files}
    assert values == {"001", "-0", "1.000", "1e3", "2024-13-01", "AA", None}
    as_number = declared(StructField("n", LongType()), StructField("part", IntegerType()), partition_by=("part",))
    plan = planned(lake, as_number)
    assert plan.problems == (
        "partition column part: no values of type int: '1.000', '1e3', '2024-13-01', 'AA'",
    )  # fmt: skip
    assert plan.files == ()


def test_a_column_of_the_files_that_repeats_their_folders_is_left_out_and_has_their_type(lake: Path) -> None:
    values = {
        "007": "007", "8": "8", "%C3%BC b": "ü b", "__HIVE_DEFAULT_PARTITION__": None,
    }  # fmt: skip
    for folder, value in values.items():
        put(lake, f"part={folder}/day=2026-01-31/f.parquet", n=[1, 2], Part=pa.array([value] * 2, pa.string()))
    put(lake, "part=none/day=2026-01-31/f.parquet", n=pa.array([], pa.int64()), Part=pa.array([], pa.string()))
    plan = planned(lake)
    assert plan.problems == ()
    assert [(c.name, c.data_type, c.stored) for c in plan.folders] == [
        ("part", StringType(), True), ("day", DateType(), False),
    ]  # fmt: skip
    assert plan.table.dataset.schema.names == ["n", "part", "day"]
    assert sorted(str(file.values[0]) for file in plan.files) == ["007", "8", "None", "none", "ü b"]


def test_the_type_of_the_files_is_that_of_a_column_of_their_folders_unless_another_is_declared(lake: Path) -> None:
    for number in (1, 2):
        put(lake, f"part={number}/f.parquet", n=[1], part=pa.array([number], pa.int64()))
    assert planned(lake).table.dataset.field("part").dataType == LongType()
    as_text = declared(StructField("n", LongType()), StructField("part", StringType()), partition_by=("part",))
    plan = planned(lake, as_text)
    assert (plan.problems, sorted(file.values for file in plan.files)) == ((), [("1",), ("2",)])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2]), pa.array([2, 2]), pa.array([1, None]), pa.array([None, None], pa.int64()),
        pa.array([[1], [1]]), pa.array([b"1", b"1"]),
    ],
    ids=["two values", "another value", "a NULL", "NULLs", "arrays", "bytes"],
)  # fmt: skip
def test_a_column_of_a_file_that_does_not_repeat_its_folder_is_refused(lake: Path, column: Any) -> None:
    put(lake, "part=1/f.parquet", n=[1, 2], part=column)
    dataset = declared(StructField("n", LongType()), StructField("part", IntegerType()), partition_by=("part",))
    assert any(
        problem.startswith("part=1/f.parquet: column part is in the file and in its folders, and the file's footer")
        for problem in planned(lake, dataset).problems
    )


def test_a_column_whose_values_the_footer_does_not_show_is_refused_and_in_place_refuses_each(lake: Path) -> None:
    dataset = declared(StructField("n", LongType()), StructField("part", LongType()), partition_by=("part",))
    table = pa.table({"n": [1], "part": [1]})
    (lake / "part=1").mkdir(parents=True)
    pq.write_table(table, lake / "part=1" / "f.parquet", write_statistics=False)
    (problem, *_) = planned(lake, dataset).problems
    assert "column part is in the file and in its folders" in problem
    pq.write_table(table, lake / "part=1" / "f.parquet")
    target = Target(name="t", location=str(lake), dataset=dataset, schema=None)
    plan = plan_migration(str(lake), target, mode="in-place")
    assert plan.problems == ("column part is in the files and in their folders; --mode copy takes it",)


@pytest.mark.parametrize(
    ("text", "data_type", "value"),
    [
        ("2026-01-31 10:00:00", TimestampType(), dt.datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("2026-01-31 10:00:00.5", TimestampType(), dt.datetime(2026, 1, 31, 10, 0, 0, 500_000, tzinfo=UTC)),
        ("2026-01-31T10:00:00Z", TimestampType(), dt.datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("2026-01-31 10:00:00", TimestampNTZType(), dt.datetime(2026, 1, 31, 10)),
        ("1.50", DecimalType(5, 2), Decimal("1.50")),
        ("1.5", DoubleType(), 1.5),
        ("-Infinity", DoubleType(), -math.inf),
    ],
)
def test_a_declared_type_parses_the_text_of_a_folder(text: str, data_type: Any, value: Any) -> None:
    assert parsed(text, data_type) == value


@pytest.mark.parametrize(
    ("text", "data_type"),
    [
        ("1.234", DecimalType(5, 2)),
        ("1_0", DecimalType(5, 2)),
        ("٣", DecimalType(5, 2)),
        ("1_0", DoubleType()),
        ("1e400", DoubleType()),
        ("3000000000", IntegerType()),
        ("31.1.2026", DateType()),
        ("", LongType()),
        ("2026-01-31 10:00:00.1234567", TimestampType()),
        ("2026-W05-6", TimestampType()),
        ("2026-01-31 10:00:00Z", TimestampNTZType()),
    ],
)
def test_a_text_that_a_declared_type_would_change_is_refused(text: str, data_type: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  the text is not asserted
        parsed(text, data_type)


def test_escapes_in_the_names_of_folders_are_decoded(lake: Path) -> None:
    put(lake, "c%20d=a%2Fb%C3%A9/f.parquet")
    schema = StructType([StructField("n", LongType()), StructField("c d", StringType())])
    assert "c d" in str(refused(lake))  # a table can't have such a column, unless its columns are mapped
    assert schema.names == ["n", "c d"]
    put(lake.parent / "other", "x=a%2Fb%C3%A9/f.parquet")
    assert planned(lake.parent / "other").files[0].values == ("a/bé",)


# --- columns ----------------------------------------------------------------------------------------------------------


def test_files_with_other_order_width_nullability_units_and_columns_become_one_table(lake: Path) -> None:
    at = dt.datetime(2026, 1, 31, 10)
    put(lake, "1.parquet", n=pa.array([1], pa.int32()), text=["a"], at=pa.array([at], pa.timestamp("ms")))
    put(lake, "2.parquet", text=["b"], n=pa.array([2], pa.int64()), at=pa.array([at], pa.timestamp("us")))
    put(lake, "3.parquet", n=pa.array([None], pa.null()), text=["c"], at=pa.array([at], pa.timestamp("ns")),
        extra=pa.array([1.5], pa.float32()))  # fmt: skip
    schema = pa.schema([pa.field("n", pa.int16(), nullable=False), pa.field("text", pa.string())])
    pq.write_table(
        pa.Table.from_arrays([pa.array([4], pa.int16()), pa.array(["d"])], schema=schema), lake / "4.parquet"
    )
    plan = planned(lake)
    assert plan.problems == ()
    assert [(f.name, f.dataType.simpleString()) for f in plan.table.dataset.schema.fields] == [
        ("n", "bigint"), ("text", "string"), ("at", "timestamp_ntz"), ("extra", "float"),
    ]  # fmt: skip
    assert plan.differences == (
        "column n: int in 1 files, bigint in 1 files, void in 1 files, smallint in 1 files",
        "column n: nullability: NULL in 3 files, NOT NULL in 1 files",
        "column at: unit: milliseconds in 1 files, microseconds in 1 files, nanoseconds in 1 files",
        "column at: missing in 1 of 4 files",
        "column extra: missing in 3 of 4 files",
        "columns are in another order in 1 of 4 files",
    )
    assert [group.paths for group in plan.groups] == [(f"{number}.parquet",) for number in (1, 2, 3, 4)]


def test_types_that_no_type_holds_and_names_that_differ_by_case_are_refused(lake: Path) -> None:
    put(lake, "1.parquet", n=[1], text=["a"], N2=[1])
    put(lake, "2.parquet", n=["x"], text=["a"], n2=[1])
    problems = refused(lake)
    assert problems[0] == "column n: bigint in 1.parquet and string in 2.parquet; no type holds the values of both"
    assert any("differ by case only" in problem for problem in problems[1:])


def test_a_column_of_nulls_without_a_type_needs_a_declaration(lake: Path) -> None:
    put(lake, "1.parquet", n=[1], nothing=pa.array([None]))
    assert any("nothing" in problem and "declare it" in problem for problem in refused(lake))
    dataset = declared(StructField("n", LongType()), StructField("nothing", DateType()))
    assert planned(lake, dataset).problems == ()


def test_columns_that_do_not_fit_the_declaration_are_refused_with_the_file(lake: Path) -> None:
    put(lake, "1.parquet", n=pa.array([1], pa.int32()), other=[1])
    put(lake, "2.parquet", n=["text"])
    dataset = declared(StructField("n", LongType()), StructField("m", LongType(), False))
    assert planned(lake, dataset).problems == (
        "1.parquet: column m is missing and declared NOT NULL",
        "1.parquet: column other: not declared (type bigint)",
        "2.parquet: column m is missing and declared NOT NULL",
        "2.parquet: column n: has type string, declared bigint",
    )


def test_types_that_no_table_has_are_refused_with_the_file(lake: Path) -> None:
    put(lake, "1.parquet", t=pa.array([1], pa.time64("us")))
    put(lake, "2.parquet", s=pa.array([{"at": 1}], pa.struct([("at", pa.timestamp("ns"))])))
    put(lake, "3.parquet", f=pa.array([1], pa.float16()))
    problems = refused(lake)
    for number, text in ((1, "Time"), (2, "nanoseconds"), (3, "Float16")):
        assert any(problem.startswith(f"{number}.parquet: ") and text in problem for problem in problems), problems


def test_nested_and_unsigned_columns_have_the_types_that_spark_reads(lake: Path) -> None:
    put(
        lake, "1.parquet", u=pa.array([1], pa.uint32()), big=pa.array([1], pa.uint64()), list=[[1, 2]],
        map=pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())), struct=[{"a": 1, "b": {"c": "x"}}],
        word=pa.array(["a"]).dictionary_encode(), after=[True],
    )  # fmt: skip
    assert [f.dataType.simpleString() for f in planned(lake).table.dataset.schema.fields] == [
        "bigint", "decimal(20,0)", "array<bigint>", "map<string,int>", "struct<a:bigint,b:struct<c:string>>", "string",
        "boolean",
    ]  # fmt: skip


# --- other formats, other modes ---------------------------------------------------------------------------------------


def test_nested_timestamps_of_the_old_form_are_instants_like_those_that_are_not_nested(lake: Path) -> None:
    lake.mkdir()
    at = pa.timestamp("us", "UTC")
    columns = {
        "a": pa.array([[dt.datetime(2026, 1, 31)]], pa.list_(at)),
        "s": pa.array([{"n": 1, "at": None}], pa.struct([("n", pa.int64()), ("at", at)])),
        "at": pa.array([None], at),
    }
    pq.write_table(pa.table(columns), lake / "f.parquet", use_deprecated_int96_timestamps=True, store_schema=False)
    schema = planned(lake).table.dataset.schema
    assert schema.simpleString() == "struct<a:array<timestamp>,s:struct<n:bigint,at:timestamp>,at:timestamp>"


def test_csv_and_ndjson_need_declared_columns(lake: Path) -> None:
    lake.mkdir()
    (lake / "a.csv").write_text("n,day\n1,2026-01-31\n", encoding="utf-8")
    assert "have no types" in refused(lake)[0]
    schema = StructType([StructField("n", LongType()), StructField("day", DateType())])
    plan = planned(lake, schema=schema)
    assert (plan.format, plan.rows, plan.problems) == ("csv", None, ())
    assert [column.name for column in plan.groups[0].columns] == ["n", "day"]
    (lake / "a.csv").write_text("n,other\n1,2\n", encoding="utf-8")
    assert any("other: not declared" in problem for problem in planned(lake, schema=schema).problems)


def test_the_partition_columns_of_ndjson_are_not_expected_in_its_lines(lake: Path) -> None:
    (lake / "day=2026-01-31").mkdir(parents=True)
    (lake / "day=2026-01-31" / "a.ndjson").write_text('{"n": 1}\n', encoding="utf-8")
    schema = StructType([StructField("n", LongType()), StructField("day", DateType())])
    plan = planned(lake, schema=schema)
    assert (plan.format, plan.problems) == ("ndjson", ())
    assert plan.table.dataset.partition_by == ("day",)
    assert plan.files[0].values == (dt.date(2026, 1, 31),)


def test_a_conversion_in_place_refuses_what_delta_would_read_otherwise(lake: Path) -> None:
    put(lake, "é=1/1.parquet", n=pa.array([1], pa.int32()), at=pa.array([1], pa.timestamp("ns")))
    put(lake, "é=1/2.parquet", n=pa.array([1], pa.int64()), at=pa.array([1], pa.timestamp("us")))
    put(lake, "%C3%A9=1/3.parquet", n=pa.array([1], pa.int64()), at=pa.array([1], pa.timestamp("us")))
    target = Target(name="t", location=str(lake))
    problems = plan_migration(str(lake), target, mode="in-place").problems
    for text in ("nanoseconds", "does not merge bigint and int", "%C3%A9=1/3.parquet: Spark reads other characters"):
        assert any(text in problem for problem in problems), problems
    elsewhere = plan_migration(str(lake), Target(name="t", location="/elsewhere"), mode="in-place").problems
    assert any("name that folder" in problem for problem in elsewhere)


def test_narrow_integers_can_be_converted_in_place(lake: Path) -> None:
    for number, kind in enumerate((pa.int8(), pa.int16(), pa.int32())):
        put(lake, f"{number}.parquet", n=pa.array([1], kind))
    assert plan_migration(str(lake), Target(name="t", location=str(lake)), mode="in-place").problems == ()


def test_five_thousand_files_are_listed_in_the_order_of_their_paths(lake: Path) -> None:
    lake.mkdir()
    for number in range(5_000):
        (lake / f"{number:04d}.csv").write_text("n\n", encoding="utf-8")
    listing = list_source(str(lake))
    assert [file.path for file in listing.files] == [f"{number:04d}.csv" for number in range(5_000)]
