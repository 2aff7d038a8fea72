"""Merging: one row a key, the newest wins, nothing outside the slice is touched, and no row is left behind doubled."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from pipeline.dataset import Check, Dataset, InsertNew, Merge, WriteMode
from pipeline.delta.sql.slices import of_values
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline.errors import (
    CheckViolationError,
    DuplicateKeysError,
    ExpressionError,
    FrameMismatchError,
    NullViolationError,
    PartitionValueError,
    StrayRowsError,
)
from pipeline_tests.delta.sample import day, files_of, frame_in, jobs, note, ordered, placed, put, rows_of, versions_of
from pipeline_tests.tiers import first_in_both_modes, first_is_quick

case = pytest.mark.case

ROW = StructType([StructField("k", LongType()), StructField("at", LongType()), StructField("v", StringType())])
DAY_ROW = StructType([StructField("day", DateType()), *ROW.fields])


def merged(write: WriteMode, **declaration: Any) -> Dataset:
    return Dataset(**({"name": "merged", "schema": ROW, "keys": ("k",), "write": write} | declaration))


def daily(write: WriteMode, keys: tuple[str, ...] = ("k",)) -> Dataset:
    return Dataset(name="daily", schema=DAY_ROW, partition_by=("day",), keys=keys, write=write)


NEWEST = merged(Merge(order_by="at"))
PLAIN = merged(Merge())


def merge_query(spark: SparkSession, dataset: Dataset, root: str, query: str, **arguments: Any) -> WriteResult:
    return write(spark.sql(query), table=dataset.at(root), note=note(), **arguments)


def copies(classic: SparkSession, since: int) -> int:
    """The jobs after so many by which Delta has copied the source of a merge."""
    context: Any = classic.sparkContext
    driver = context._jsc.sc()
    driver.listenerBus().waitUntilEmpty()
    found = driver.statusStore().jobsList(None)
    told = [found.apply(n) for n in range(found.size()) if found.apply(n).jobId() >= since]
    return sum("materialize source" in job.description().toString() for job in told)


@pytest.mark.exhaustive
def test_a_merge_of_files_that_nobody_changes_copies_none_of_them_first(
    classic: SparkSession, root: str, tmp_path: Path
) -> None:
    frame_in(classic, ROW, [(1, 2, "A"), (1, 3, "AA"), (2, 4, "old"), (3, 1, "c")]).write.parquet(str(tmp_path / "in"))
    made = {}
    for source_is_stable in (False, True):
        dataset = replace(NEWEST, name=f"merged_{source_is_stable}")
        put(classic, dataset, root, [(1, 1, "a"), (2, 5, "b")])
        rows = classic.read.schema(ROW).parquet(str(tmp_path / "in"))
        before = jobs(classic)
        write(rows, table=dataset.at(root), note=note(), source_is_stable=source_is_stable)
        made[source_is_stable] = copies(classic, before)
        assert rows_of(dataset, root) == [(1, 3, "AA"), (2, 5, "b"), (3, 1, "c")]
    assert made[False] > 0
    assert made[True] == 0


@pytest.mark.parametrize(
    "dataset",
    first_is_quick(
        [
            merged(Merge(order_by="at")),
            merged(Merge(delete_missing=True)),
            merged(InsertNew(), keys=("k", "at"), partition_by=("at",)),
            merged(Merge(order_by="v"), keys=("k", "at"), partition_by=("at",)),
            merged(Merge(order_by="at"), checks=(Check("some", "k > 0", on_violation="drop"),)),
        ],
        count=1,
    ),
)
@pytest.mark.exhaustive
def test_files_that_nobody_changes_are_merged_also_where_their_rows_are_looked_at_first(
    classic: SparkSession, root: str, tmp_path: Path, dataset: Dataset
) -> None:
    """Delta refuses a source that is cached and not copied."""
    frame_in(classic, ROW, [(1, 2, "a"), (2, 3, "b")]).write.parquet(str(tmp_path / "in"))
    for _ in range(2):
        rows = classic.read.schema(ROW).parquet(str(tmp_path / "in"))
        write(rows, table=dataset.at(root), note=note(), source_is_stable=True)
    assert rows_of(dataset, root) == [(1, 2, "a"), (2, 3, "b")]


@pytest.mark.both_modes
def test_a_merge_updates_rows_that_are_there_and_adds_those_that_are_not(spark: SparkSession, root: str) -> None:
    placed(spark, PLAIN, root, [(1, 1, "a"), (2, 1, "b")])
    result = put(spark, PLAIN, root, [(2, 2, "B"), (3, 2, "C")])
    assert rows_of(PLAIN, root) == [(1, 1, "a"), (2, 2, "B"), (3, 2, "C")]
    assert (result.version, result.operation) == (2, "MERGE")
    assert (result.rows_written, result.rows_updated, result.rows_deleted) == (2, 1, 0)
    assert result.rows_by_partition is None


@case("M-DUP-SOURCE")
@case("M-DUP-INSERT")
@pytest.mark.parametrize(
    "before", first_in_both_modes([[(1, 0, "a")], []]), ids=["a row of the key", "no row of the key"]
)
def test_without_an_order_two_rows_of_a_key_are_refused_with_keys_and_counts(
    spark: SparkSession, root: str, before: list[tuple[Any, ...]]
) -> None:
    placed(spark, PLAIN, root, before)
    versions = versions_of(PLAIN, root)
    with pytest.raises(DuplicateKeysError) as caught:
        put(spark, PLAIN, root, [(1, 1, "b"), (1, 2, "c"), (None, 1, "x"), (None, 1, "x"), (None, 1, "x"), (4, 1, "d")])
    assert (caught.value.counts, caught.value.total_keys) == ({"k = None": 3, "k = 1": 2}, 2)
    assert (rows_of(PLAIN, root), versions_of(PLAIN, root)) == (before, versions)


@case("T-LAST-WRITE-WINS")
def test_the_newest_row_of_a_key_wins_within_a_frame_and_against_the_table_however_they_come(
    classic: SparkSession, root: str
) -> None:
    """NULL is the least order; of equal order the greater row by columns wins in a frame, and the table's stays."""
    rows = [(1, 1, "a"), (1, 3, "c"), (1, 2, "b"), (2, None, "x"), (2, 1, "y"), (3, 5, "p"), (3, 5, "q")]
    for seed in range(20):
        dataset = merged(Merge(order_by="at"), name=f"seed{seed}")
        random.Random(seed).shuffle(rows)
        if seed in (0, 1):  # twice through the table; the order of rows is the frame's affair
            put(classic, dataset, root, rows)
            put(classic, dataset, root, [(1, 2, "late"), (2, None, "late"), (3, 5, "z"), (4, None, "n")])
            expected = [(1, 3, "c"), (2, 1, "y"), (3, 5, "q"), (4, None, "n")]
            assert rows_of(dataset, root) == expected
            put(classic, dataset, root, [(4, 0, "dated"), (4, None, "undated")])
            assert rows_of(dataset, root) == [*expected[:-1], (4, 0, "dated")]
    halves = merged(Merge(order_by="at"), name="halves")
    put(classic, halves, root, [(1, 3, "c"), (1, 1, "a")])
    put(classic, halves, root, [(1, 2, "b")])
    assert rows_of(halves, root) == [(1, 3, "c")]


@case("M-NULL-KEY")
def test_null_is_a_key_like_any_other(classic: SparkSession, root: str) -> None:
    dataset = merged(Merge(), keys=("k", "v"))
    placed(classic, dataset, root, [(1, 0, None)])
    for at in (1, 2, 3):
        put(classic, dataset, root, [(1, at, None)])
    assert rows_of(dataset, root) == [(1, 3, None)]


@case("M-SILENT-CAST")
@pytest.mark.parametrize("mode", [Merge(), Merge(order_by="at"), InsertNew()], ids=str)
def test_a_frame_whose_type_would_be_cut_is_refused_before_the_merge(
    classic: SparkSession, root: str, mode: WriteMode
) -> None:
    dataset = Dataset(
        name="cut", schema=StructType([StructField("c1", IntegerType()), StructField("at", IntegerType())]),
        keys=("c1",), write=mode,
    )  # fmt: skip
    with pytest.raises(FrameMismatchError) as caught:
        merge_query(classic, dataset, root, "SELECT 1 AS c1, 1.4D AS at UNION ALL SELECT 2, 3.5D")
    assert caught.value.differences == ("column at: has type double, declared int",)


@case("M-CASE-DUP")
@pytest.mark.parametrize("mode", [Merge(), InsertNew()], ids=str)
def test_columns_that_differ_by_case_only_are_named(classic: SparkSession, root: str, mode: WriteMode) -> None:
    with pytest.raises(FrameMismatchError) as caught:
        merge_query(classic, merged(mode), root, "SELECT 1L AS k, 1L AS at, 'a' AS v, 'b' AS V")
    assert "columns v, V: differ by case only" in caught.value.differences


@pytest.mark.parametrize("replace_all", first_is_quick([True, False]), ids=["of an empty table", "into a table"])
def test_keys_of_a_frame_that_compares_texts_by_another_rule_are_told_apart_by_their_bytes(
    classic: SparkSession, root: str, replace_all: bool
) -> None:
    schema = StructType([StructField("k", StringType()), StructField("n", LongType())])
    dataset = Dataset(name="texts", schema=schema, keys=("k",), write=Merge(order_by="n"))
    query = "SELECT collate(k, 'UTF8_LCASE') AS k, n FROM VALUES ('a', 1L), ('A', 2L), ('b', 3L) AS v(k, n)"
    result = merge_query(classic, dataset, root, query, replace_all=replace_all)
    assert (result.rows_written, rows_of(dataset, root)) == (3, [("A", 2), ("a", 1), ("b", 3)])


@pytest.mark.exhaustive
@case("M-CASE-KEY")
def test_a_key_matches_whatever_its_case_in_the_frame_and_keeps_its_own(classic: SparkSession, root: str) -> None:
    schema = StructType([StructField("UserCode", StringType()), StructField("n", LongType())])
    dataset = Dataset(name="users", schema=schema, keys=("UserCode",), write=Merge())
    merge_query(classic, dataset, root, "SELECT 'u1' AS UserCode, 1L AS n")
    merge_query(classic, dataset, root, "SELECT 'u1' AS usercode, 2L AS N")
    assert rows_of(dataset, root) == [("u1", 2)]


@case("M-SELF-SOURCE")
def test_a_frame_made_from_the_table_itself_deletes_its_rows_and_leaves_all_others(
    spark: SparkSession, root: str
) -> None:
    dataset = merged(Merge(delete_when="flag", frame_columns=("flag",)))
    schema = StructType([*ROW.fields, StructField("flag", BooleanType())])
    rows = frame_in(spark, schema, [(n, n, f"v{n}", False) for n in (1, 2, 3)])
    write(rows, table=dataset.at(root), note=note())
    same = spark.read.format("delta").load(dataset.location(root)).filter("k = 1").selectExpr("*", "TRUE AS flag")
    result = write(same, table=dataset.at(root), note=note())
    assert rows_of(dataset, root) == [(2, 2, "v2"), (3, 3, "v3")]
    assert (result.rows_deleted, result.rows_written) == (1, 0)


def test_a_row_that_deletes_and_has_no_match_is_not_added_and_a_late_one_deletes_nothing(
    classic: SparkSession, root: str
) -> None:
    dataset = merged(Merge(order_by="at", delete_when="v = 'gone'"))
    put(classic, dataset, root, [(1, 5, "a"), (2, 5, "b"), (9, 1, "gone")])
    put(classic, dataset, root, [(1, 4, "gone"), (2, 6, "gone"), (3, 1, "gone"), (3, 1, "stays")])
    assert rows_of(dataset, root) == [(1, 5, "a"), (3, 1, "stays")]


def test_an_update_sets_the_named_columns_and_the_order_only(classic: SparkSession, root: str) -> None:
    schema = StructType([*ROW.fields, StructField("w", StringType())])
    for name, mode in (
        ("named", Merge(order_by="at", update_columns=("v",))),
        ("kept", Merge(order_by="at", keep_columns=("w",))),
    ):
        dataset = merged(mode, schema=schema, name=name)
        put(classic, dataset, root, [(1, 1, "a", "first")])
        put(classic, dataset, root, [(1, 3, "c", "third"), (2, 1, "n", "new")])
        put(classic, dataset, root, [(1, 2, "late", "late")])
        assert rows_of(dataset, root) == [(1, 3, "c", "first"), (2, 1, "n", "new")]


def test_an_update_happens_only_where_its_condition_holds(classic: SparkSession, root: str) -> None:
    dataset = merged(Merge(update_when="source.v > target.v"))
    placed(classic, dataset, root, [(1, 1, "m"), (2, 1, "m")])
    put(classic, dataset, root, [(1, 2, "z"), (2, 2, "a")])
    assert rows_of(dataset, root) == [(1, 2, "z"), (2, 1, "m")]


@case("M-BY-SOURCE-SCOPE")
def test_rows_that_the_frame_lacks_are_deleted_inside_the_slice_of_the_run_only(
    classic: SparkSession, root: str
) -> None:
    dataset = daily(Merge(order_by="at", delete_missing=True), keys=("day", "k"))
    placed(classic, dataset, root, [(day(1), 1, 1, "a"), (day(1), 2, 1, "b"), (day(1), 3, 1, "c"), (day(2), 4, 1, "d")])
    untouched = {file for file in files_of(dataset, root) if "2026-01-02" in file}
    put(classic, dataset, root, [(day(1), 1, 2, "A")], of_values("day", [day(1)]))
    assert rows_of(dataset, root) == [(day(1), 1, 2, "A"), (day(2), 4, 1, "d")]
    assert untouched <= files_of(dataset, root)
    put(classic, dataset, root, [], of_values("day", [day(1)]))
    assert rows_of(dataset, root) == [(day(2), 4, 1, "d")]


@pytest.mark.both_modes
def test_a_condition_that_spark_can_t_analyse_is_refused_by_its_name_before_anything_is_created(
    spark: SparkSession, root: str
) -> None:
    for condition in (" ", ";", "--", "source.v > ", "source.v > 'a' -- x", "source.missing > 1", "concat(source.v)"):
        for part in ("update_when", "delete_when"):
            text = condition.replace("source.", "") if part == "delete_when" else condition
            dataset = merged(Merge(order_by="at", **{part: text}))  # type: ignore[arg-type]
            with pytest.raises(ExpressionError) as caught:
                put(spark, dataset, root, [(1, 1, "a")])
            assert (caught.value.part, caught.value.expression) == (part, text)
    assert not Path(NEWEST.location(root)).exists()


def test_rows_outside_the_slice_stay_if_the_key_does_not_determine_the_partition(
    classic: SparkSession, root: str
) -> None:
    dataset = daily(Merge(order_by="at", delete_missing=True))
    placed(classic, dataset, root, [(day(1), 1, 1, "a"), (day(1), 2, 1, "b"), (day(2), 3, 1, "c"), (None, 4, 1, "d")])
    put(classic, dataset, root, [(day(1), 1, 2, "A")], of_values("day", [day(1)]))
    assert rows_of(dataset, root) == ordered([(day(1), 1, 2, "A"), (day(2), 3, 1, "c"), (None, 4, 1, "d")])


@pytest.mark.exhaustive
def test_a_whole_snapshot_writes_only_the_files_in_which_something_differs(classic: SparkSession, root: str) -> None:
    dataset = daily(Merge(update_when="source.v <> target.v", delete_missing=True), keys=("day", "k"))
    same = [(day(1), 1, 1, "a"), (None, 2, 1, "b")]
    placed(classic, dataset, root, [*same, (day(2), 3, 1, "c"), (day(2), 4, 1, "d"), (day(3), 5, 1, "e")])
    untouched = {file for file in files_of(dataset, root) if "2026-01-02" not in file and "2026-01-03" not in file}
    done = put(classic, dataset, root, [*same, (day(2), 3, 2, "C"), (day(4), 6, 1, "f")])
    assert (done.rows_written, done.rows_updated, done.rows_deleted) == (2, 1, 2)
    assert rows_of(dataset, root) == ordered([*same, (day(2), 3, 2, "C"), (day(4), 6, 1, "f")])
    assert untouched <= files_of(dataset, root)
    before = files_of(dataset, root)
    assert not put(classic, dataset, root, [*same, (day(2), 3, 2, "C"), (day(4), 6, 1, "f")]).changes_rows
    assert files_of(dataset, root) == before
    put(classic, dataset, root, [])
    assert rows_of(dataset, root) == []


def test_a_key_that_moves_to_another_partition_leaves_no_second_row(classic: SparkSession, root: str) -> None:
    dataset = daily(Merge(order_by="at"))
    placed(classic, dataset, root, [(day(1), 1, 1, "a"), (None, 2, 1, "b")])
    put(classic, dataset, root, [(day(2), 1, 2, "moved"), (day(2), 2, 2, "dated")], of_values("day", [day(2)]))
    assert rows_of(dataset, root) == [(day(2), 1, 2, "moved"), (day(2), 2, 2, "dated")]


@pytest.mark.exhaustive
def test_null_partitions_are_met_when_the_partition_is_part_of_the_key(spark: SparkSession, root: str) -> None:
    dataset = daily(Merge(order_by="at"), keys=("day", "k"))
    placed(spark, dataset, root, [(day(1), 1, 1, "a"), (None, 1, 1, "b"), (day(3), 1, 1, "c")])
    others = {file for file in files_of(dataset, root) if "2026-01-03" in file}
    put(spark, dataset, root, [(day(1), 1, 2, "A"), (None, 1, 2, "B")])
    assert rows_of(dataset, root) == ordered([(None, 1, 2, "B"), (day(1), 1, 2, "A"), (day(3), 1, 1, "c")])
    assert others <= files_of(dataset, root)


def test_rows_outside_the_slice_are_refused_and_named(classic: SparkSession, root: str) -> None:
    dataset = daily(Merge(order_by="at"))
    put(classic, dataset, root, [(day(1), 1, 1, "a")])
    with pytest.raises(StrayRowsError) as caught:
        put(
            classic,
            dataset,
            root,
            [(day(1), 1, 2, "b"), (day(2), 2, 2, "c"), (None, 3, 2, "d")],
            of_values("day", [day(1)]),
        )
    assert (caught.value.total_rows, caught.value.counts) == (2, {"day = 2026-01-02": 1, "day = None": 1})
    assert rows_of(dataset, root) == [(day(1), 1, 1, "a")]


@pytest.mark.parametrize("mode", first_is_quick([Merge(), InsertNew()]), ids=str)
def test_rows_that_break_the_declaration_are_counted_and_nothing_is_merged(
    classic: SparkSession, root: str, mode: WriteMode
) -> None:
    schema = StructType(
        [StructField("k", LongType(), False), StructField("part", StringType()), StructField("n", LongType())]
    )
    dataset = Dataset(
        name="strict",
        schema=schema,
        partition_by=("part",),
        keys=("k",),
        write=mode,
        checks=(Check("small", "n < 10"),),
    )
    placed(classic, dataset, root, [(1, "a", 1)])
    with pytest.raises(NullViolationError) as nulls:
        put(classic, dataset, root, [(None, "a", 1), (2, "a", 2)])
    with pytest.raises(CheckViolationError) as checks:
        put(classic, dataset, root, [(2, "a", 10), (3, "a", 11)])
    with pytest.raises(PartitionValueError) as empty:
        put(classic, dataset, root, [(2, "", 1)])
    assert (nulls.value.counts, checks.value.counts, empty.value.counts) == ({"k": 1}, {"small": 2}, {"part": 1})
    assert rows_of(dataset, root) == [(1, "a", 1)]


@pytest.mark.both_modes
def test_insert_new_adds_what_is_not_there_and_touches_nothing_that_is(spark: SparkSession, root: str) -> None:
    dataset = merged(InsertNew())
    placed(spark, dataset, root, [(1, 1, "a"), (None, 1, "n")])
    files = files_of(dataset, root)
    result = put(spark, dataset, root, [(1, 9, "other"), (2, 1, "b"), (2, 1, "b"), (None, 9, "other")])
    assert rows_of(dataset, root) == ordered([(1, 1, "a"), (2, 1, "b"), (None, 1, "n")])
    assert files < files_of(dataset, root)
    assert (result.rows_written, result.rows_updated or 0) == (1, 0)
    with pytest.raises(DuplicateKeysError) as caught:
        put(spark, dataset, root, [(7, 1, "a"), (7, 1, "b"), (8, 1, "a"), (8, 1, "a")])
    assert caught.value.counts == {"k = 7": 2}


def test_an_insert_that_finds_every_key_there_commits_nothing(classic: SparkSession, root: str) -> None:
    dataset = merged(InsertNew())
    placed(classic, dataset, root, [(1, 1, "a")])
    result = put(classic, dataset, root, [(1, 2, "b")])
    assert (result.changes_rows, result.rows_written, rows_of(dataset, root)) == (False, 0, [(1, 1, "a")])


@pytest.mark.exhaustive
@case("M-NULL-STRUCT")
def test_a_null_struct_stays_null_through_a_merge(classic: SparkSession, root: str) -> None:
    """The columns are declared; adding one to a table is another change (schema evolution)."""
    inner = StructType([StructField("a", LongType()), StructField("b", LongType()), StructField("c", LongType())])
    schema = StructType([StructField("k", LongType()), StructField("s", inner), StructField("x", StringType())])
    dataset = Dataset(name="structs", schema=schema, keys=("k",), write=Merge())
    merge_query(classic, dataset, root, """
        SELECT 1L AS k, named_struct('b', 2L, 'a', 1L, 'c', CAST(NULL AS BIGINT)) AS s, CAST(NULL AS STRING) AS x
        UNION ALL SELECT 2L, NULL, NULL""")  # fmt: skip
    merge_query(classic, dataset, root, """
        SELECT 2L AS k, CAST(NULL AS STRUCT<c: BIGINT, b: BIGINT, a: BIGINT>) AS s, 'x' AS x
        UNION ALL SELECT 3L, NULL, 'y'""")  # fmt: skip
    found = (
        classic.read.format("delta")
        .load(dataset.location(root))
        .selectExpr("k", "s IS NULL AS gone", "s.a", "s.b", "x")
    )
    assert sorted(map(tuple, found.collect())) == [
        (1, False, 1, 2, None),
        (2, True, None, None, "x"),
        (3, True, None, None, "y"),
    ]


@case("M-MAP-STRUCT")
def test_structs_inside_maps_and_arrays_are_matched_by_name(classic: SparkSession, root: str) -> None:
    inner = StructType([StructField("id", LongType()), StructField("comment", StringType())])
    schema = StructType(
        [
            StructField("k", LongType()),
            StructField("m", MapType(StringType(), inner)),
            StructField("a", ArrayType(inner)),
        ]
    )
    dataset = Dataset(name="nested", schema=schema, keys=("k",), write=Merge())
    swapped = "named_struct('comment', 'c', 'id', 7L)"
    merge_query(classic, dataset, root, f"SELECT 1L AS k, map('x', {swapped}) AS m, array({swapped}) AS a")
    assert rows_of(dataset, root) == [(1, [("x", {"id": 7, "comment": "c"})], [{"id": 7, "comment": "c"}])]
    renamed = "named_struct('id', 7L, 'remark', 'c')"
    with pytest.raises(FrameMismatchError) as caught:
        merge_query(classic, dataset, root, f"SELECT 1L AS k, map('x', {renamed}) AS m, array({renamed}) AS a")
    assert "column m.value.comment: missing, declared string" in caught.value.differences
    assert "column a.element.remark: not declared" in caught.value.differences


def test_a_column_that_the_merge_decides_by_must_be_in_the_frame_and_have_a_type(
    classic: SparkSession, root: str
) -> None:
    dataset = merged(Merge(delete_when="flag", frame_columns=("flag",)))
    with pytest.raises(FrameMismatchError) as missing:
        merge_query(classic, dataset, root, "SELECT 1L AS k, 1L AS at, 'a' AS v")
    with pytest.raises(FrameMismatchError) as void:
        merge_query(classic, dataset, root, "SELECT 1L AS k, 1L AS at, 'a' AS v, NULL AS flag")
    assert missing.value.differences == ("column flag: missing; the write needs it",)
    assert void.value.differences == ("column flag: has type void; the write needs it",)
