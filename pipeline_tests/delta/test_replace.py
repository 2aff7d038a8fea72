"""Replacing: the slice of the run, or the whole table where it addresses none, becomes exactly the frame."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from functools import reduce

import deltalake
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that everybody knows it by
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset, InsertNew, Merge, Replace, WriteMode
from pipeline.delta.log.mark import clone_session
from pipeline.delta.read.version import read
from pipeline.delta.sql import slices
from pipeline.delta.sql.slices import Box, Interval, Slice, Values
from pipeline.delta.write.write import write
from pipeline.errors import FrameMismatchError, PartitionValueError, StrayRowsError
from pipeline_tests.delta.sample import (
    APPENDED,
    REPLACED,
    actions_of,
    commit_info,
    day,
    files_of,
    frame_of,
    note,
    ordered,
    placed,
    put,
    rows_of,
    versions_of,
)
from pipeline_tests.tiers import first_in_both_modes, first_is_quick

case = pytest.mark.case


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The root of a table with one row on each of nine days, and one without a day.

    The tests of this module replace slices of it one after another: each compares with what it found.
    """
    root = str(tmp_path_factory.mktemp("filled"))
    placed(spark, REPLACED, root, [*((day(n), n, "first") for n in range(1, 10)), (None, 0, "first")])
    return root


def of_days(rows: list[tuple[object, ...]], days: set[dt.date | None]) -> list[tuple[object, ...]]:
    return [row for row in rows if row[0] in days]


def folders(days: set[dt.date | None]) -> set[str]:
    return {f"day={d or '__HIVE_DEFAULT_PARTITION__'}" for d in days}


# By test id: the days that are addressed, and the rows that come.
REPLACEMENTS: dict[str, tuple[set[dt.date | None], list[tuple[dt.date | None, int, str]]]] = {
    "one day": ({day(2)}, [(day(2), 21, "new"), (day(2), 22, "new")]),
    "a range of days": ({day(3), day(4), day(5)}, [(day(3), 31, "new"), (day(5), 51, "new")]),
    "days apart, one of them new": ({day(1), day(6), day(20)}, [(day(6), 61, "new"), (day(20), 201, "new")]),
    "an empty result": ({day(7)}, []),
    "the rows without a day": ({None}, [(None, 1, "new")]),
}


@case("P-EMPTY-RESULT")
@case("P-NULL-REPLACE")
@pytest.mark.parametrize("name", first_in_both_modes(REPLACEMENTS))
def test_a_replace_changes_exactly_the_days_it_addresses_and_no_file_of_another(
    spark: SparkSession, filled: str, name: str
) -> None:
    addressed, rows = REPLACEMENTS[name]
    before, files_before = rows_of(REPLACED, filled), files_of(REPLACED, filled)
    latest = versions_of(REPLACED, filled)[-1]
    gone = of_days(before, addressed)

    result = put(spark, REPLACED, filled, rows, slices.of_values("day", addressed))

    assert rows_of(REPLACED, filled) == ordered([row for row in before if row not in gone] + rows)
    files_after = files_of(REPLACED, filled)
    assert {path.split("/")[0] for path in files_before ^ files_after} <= folders(addressed)
    assert result.committed
    assert result.version == latest + 1
    assert result.rows_written == len(rows)
    # Delta counts deleted rows only where it looked at them.
    assert result.rows_deleted in (None, len(gone))
    assert result.files_removed == len(files_before - files_after)


def test_replacing_with_the_same_rows_twice_gives_the_same_table(spark: SparkSession, filled: str) -> None:
    rows = [(day(15), 1, "same"), (day(15), 2, "same")]
    others = [row for row in rows_of(REPLACED, filled) if row[0] != day(15)]

    results = [put(spark, REPLACED, filled, rows, slices.of_values("day", [day(15)])) for _ in range(2)]

    assert rows_of(REPLACED, filled) == ordered(others + rows)
    assert results[1].version == results[0].version + 1
    assert [result.rows_written for result in results] == [2, 2]
    assert results[1].rows_by_partition == {("2026-01-15",): 2}


@pytest.mark.both_modes
def test_emptying_a_slice_that_is_empty_makes_no_commit(spark: SparkSession, filled: str) -> None:
    versions = versions_of(REPLACED, filled)

    result = put(spark, REPLACED, filled, [], slices.of_values("day", [day(28)]))

    assert (result.committed, result.operation) == (False, "no commit")
    assert result.version == versions[-1]
    assert versions_of(REPLACED, filled) == versions


@pytest.mark.both_modes
@case("P-STRAY-ROWS")
def test_rows_outside_the_slice_are_named_with_their_counts(spark: SparkSession, filled: str) -> None:
    before, versions = rows_of(REPLACED, filled), versions_of(REPLACED, filled)
    rows = [(day(2), 1, "in"), (day(3), 2, "out"), (day(3), 3, "out"), (None, 4, "out")]

    with pytest.raises(StrayRowsError) as caught:
        put(spark, REPLACED, filled, rows, slices.of_values("day", [day(2)]))

    assert caught.value.dataset == "days"
    assert list(caught.value.counts.items()) == [("day = 2026-01-03", 2), ("day = None", 1)]
    assert caught.value.total_rows == 3
    assert caught.value.slice == "day = 2026-01-02"
    assert versions_of(REPLACED, filled) == versions
    assert rows_of(REPLACED, filled) == before


def test_of_many_stray_values_the_most_frequent_are_named_and_all_are_counted(spark: SparkSession, filled: str) -> None:
    frame = spark.range(60).select(
        F.expr("date_add(DATE'2026-02-01', CAST(id % 12 AS INT))").alias("day"), "id", F.lit("x").alias("text")
    )
    more = frame_of(spark, REPLACED, [(day(31), i, "x") for i in range(7)])

    with pytest.raises(StrayRowsError) as caught:
        write(
            frame.unionByName(more), table=REPLACED.at(filled), note=note(),
            within=slices.of_values("day", [day(2)]),
        )  # fmt: skip

    assert caught.value.total_rows == 67
    assert len(caught.value.counts) == 10
    assert next(iter(caught.value.counts.items())) == ("day = 2026-01-31", 7)


def test_a_frame_that_does_not_fit_empties_nothing(spark: SparkSession, filled: str) -> None:
    """The danger of a replace: to delete first and to find out afterwards."""
    versions = versions_of(REPLACED, filled)

    with pytest.raises(FrameMismatchError):
        write(
            spark.sql("SELECT DATE'2026-01-02' AS day, 'x' AS id, 'x' AS text"),
            table=REPLACED.at(filled), note=note(),
            within=slices.of_values("day", [day(2)]),
        )  # fmt: skip

    assert versions_of(REPLACED, filled) == versions


@pytest.mark.both_modes
@case("S-EMPTY-FRAME")
def test_a_replace_of_the_whole_table_leaves_only_the_frame_and_keeps_the_schema(
    spark: SparkSession, root: str
) -> None:
    first = put(spark, REPLACED, root, [(day(1), 1, "a"), (day(2), 2, "b"), (None, 3, None)])
    metadata = [action["metaData"] for action in actions_of(REPLACED, root, 0) if "metaData" in action]

    second = put(spark, REPLACED, root, [(day(2), 9, "z")])
    assert rows_of(REPLACED, root) == [(day(2), 9, "z")]
    assert second.table_id == first.table_id
    assert (second.version, second.rows_written, second.files_removed) == (2, 1, 3)

    third = put(spark, REPLACED, root, [])
    assert rows_of(REPLACED, root) == []
    assert (third.version, third.committed, third.rows_written, third.files_removed) == (3, True, 0, 1)
    assert rows_of(REPLACED, root, version=1) == ordered([(day(1), 1, "a"), (day(2), 2, "b"), (None, 3, None)])
    # No later commit speaks of the schema, so it is the one of version 0.
    assert len(metadata) == 1
    assert not any("metaData" in action for v in (1, 2, 3) for action in actions_of(REPLACED, root, v))
    assert deltalake.DeltaTable(REPLACED.location(root)).schema().fields[1].nullable is False


@pytest.mark.exhaustive
def test_confs_of_the_callers_session_do_not_change_what_a_replace_does(classic: SparkSession, root: str) -> None:
    """Each of these would leave old partitions, take stray rows, or read another text in a literal."""
    dataset = Dataset(
        name="hostile",
        schema=StructType([StructField("value", StringType()), StructField("n", LongType())]),
        partition_by=("value",),
    )
    session = clone_session(classic)
    for name, value in {
        "spark.sql.sources.partitionOverwriteMode": "dynamic",
        "spark.databricks.delta.replaceWhere.constraintCheck.enabled": "false",
        "spark.sql.parser.escapedStringLiterals": "true",
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.caseSensitive": "true",
    }.items():
        session.conf.set(name, value)
    put(session, dataset, root, [("a", 1), ("b", 2)])

    put(session, dataset, root, [("c\\n", 3), ("${d}", 4)])
    assert rows_of(dataset, root) == ordered([("c\\n", 3), ("${d}", 4)])
    for value, n in (("c\\n", 5), ("${d}", 6)):
        put(session, dataset, root, [(value, n)], slices.of_values("value", [value]))
    assert rows_of(dataset, root) == ordered([("c\\n", 5), ("${d}", 6)])
    with pytest.raises(StrayRowsError) as caught:
        put(session, dataset, root, [("a", 1)], slices.of_values("value", ["b"]))
    assert dict(caught.value.counts) == {"value = a": 1}


@pytest.mark.exhaustive
@case("P-COL-POSITION")
def test_partition_columns_that_stand_first_keep_their_values_over_three_replaces(
    classic: SparkSession, root: str
) -> None:
    strings = [StructField(name, StringType()) for name in ("batch", "ds", "producer", "day")]
    dataset = Dataset(
        name="positions",
        schema=StructType([*strings, StructField("n1", LongType()), StructField("n2", LongType())]),
        partition_by=("batch", "ds", "producer", "day"),
    )
    rows = [("b", "d", "p", "1", 1, 2), ("b", "d", None, "1", 3, 4)]
    for turn in range(3):
        # The frame's order is another one each time; values go by name.
        names = dataset.schema.names[turn:] + dataset.schema.names[:turn]
        frame = frame_of(classic, dataset, rows).select(*names)
        result = write(frame, table=dataset.at(root), note=note())
        assert result.version == turn + 1
        assert rows_of(dataset, root) == ordered(rows)


@case("P-PREDICATE-SPACE")
def test_a_partition_whose_values_need_escaping_is_replaced_twice(classic: SparkSession, root: str) -> None:
    dataset = Dataset(
        name="profiles",
        schema=StructType(
            [StructField("profile", StringType()), StructField("ds", StringType()), StructField("n", LongType())]
        ),
        partition_by=("profile", "ds"),
    )
    put(
        classic,
        dataset,
        root,
        [("profile 1", "2026-01-15", 1), ("p2", "2026-01-15", 2), ("profile 1", "2026-01-16", 3)],
    )
    within = Slice((Box((("profile", Values(("profile 1",))), ("ds", Values(("2026-01-15",))))),))

    for n in (10, 11):
        put(classic, dataset, root, [("profile 1", "2026-01-15", n)], within)
        assert rows_of(dataset, root) == [
            ("p2", "2026-01-15", 2),
            ("profile 1", "2026-01-15", n),
            ("profile 1", "2026-01-16", 3),
        ]


SPECIAL = (
    "A/A", "B B", "a%b", "a%2Fb", "a:c", "x=y", "R&D", "ID$", "a+b", "a?b", "a#b", "é", "日本", "a~b", "/lead",
    "trail/", "a\\b", ".", "..", " x ", "a\nb", "a\tb", "a*b", "a\"b", "{a}", "[a]", "a|1", "d'or", "x' OR '1'='1",
    "back\\", "`a`", "a''b", "NULL", "null", "__HIVE_DEFAULT_PARTITION__x", "--", "/*", "%", "ß", "a\u0301", "😀",
)  # fmt: skip
NAMED = Dataset(
    name="named",
    schema=StructType([StructField("value", StringType()), StructField("n", LongType())]),
    partition_by=("value",),
)


@pytest.fixture(scope="module")
def special(classic: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The root of a table with one row per special value, and one for NULL."""
    root = str(tmp_path_factory.mktemp("special"))
    put(classic, NAMED, root, [*((value, n) for n, value in enumerate(SPECIAL)), (None, -1)])
    return root


def one_by_one(classic: SparkSession, root: str, values: tuple[str, ...]) -> list[tuple[str, str, int]]:
    """For each value, the rows that a read of exactly its slice gives."""

    def of(value: str) -> DataFrame:
        found = read(classic, NAMED.at(root), within=slices.of_values("value", [value])).frame
        return found.select(F.lit(value).alias("asked"), "value", "n")

    return [tuple(row) for row in reduce(DataFrame.union, map(of, values)).collect()]


@pytest.mark.parametrize("mode", first_is_quick([Replace(), Append(), Merge(order_by="n"), InsertNew()]), ids=str)
def test_a_text_that_is_spelt_like_the_folder_of_null_is_refused_in_every_mode(
    classic: SparkSession, root: str, mode: WriteMode
) -> None:
    """It would be read back as NULL, and a second write of its slice or key would not find the first."""
    keys = ("value",) if isinstance(mode, Merge | InsertNew) else ()
    dataset = replace(NAMED, write=mode, keys=keys)
    folder = "__HIVE_DEFAULT_PARTITION__"
    with pytest.raises(PartitionValueError) as caught:
        put(classic, dataset, root, [(folder, 1), ("x", 2), ("", 3), (None, 4)])
    assert caught.value.counts == {"value": 2}
    assert rows_of(dataset, root) == []


@case("P-SPECIAL-VALUES")
def test_each_value_is_one_row_for_spark_and_for_another_reader(classic: SparkSession, special: str) -> None:
    numbers = {value: rows[0][1] for value in SPECIAL if (rows := of_days(rows_of(NAMED, special), {value}))}  # type: ignore[arg-type]

    assert {value for value, _ in rows_of(NAMED, special)} == {*SPECIAL, None}
    assert len(rows_of(NAMED, special)) == len(SPECIAL) + 1
    some = SPECIAL[::3]
    assert sorted(one_by_one(classic, special, some)) == sorted((v, v, numbers[v]) for v in some)
    table = deltalake.DeltaTable(NAMED.location(special))
    for value in SPECIAL:
        found = table.to_pyarrow_table(filters=[("value", "=", value)]).to_pylist()
        assert found == [{"value": value, "n": numbers[value]}]


@case("D-QUOTE-INJECTION")
@pytest.mark.parametrize("value", ["d'or", "x' OR '1'='1", "back\\"])
def test_a_value_full_of_quotes_replaces_only_its_own_partition(
    classic: SparkSession, special: str, value: str
) -> None:
    before = rows_of(NAMED, special)
    n = next(number for name, number in before if name == value) + 1000

    put(classic, NAMED, special, [(value, n)], slices.of_values("value", [value]))

    assert rows_of(NAMED, special) == ordered([row for row in before if row[0] != value] + [(value, n)])


@pytest.mark.exhaustive
@case("P-SPECIAL-VALUES")
def test_all_of_them_in_one_slice_leave_the_others_alone(classic: SparkSession, special: str) -> None:
    before = rows_of(NAMED, special)
    chosen = SPECIAL[1::2]
    others = [row for row in before if row[0] not in chosen]

    result = put(classic, NAMED, special, [(value, 7) for value in chosen], slices.of_values("value", chosen))

    assert rows_of(NAMED, special) == ordered(others + [(value, 7) for value in chosen])
    assert result.rows_by_partition == {(value,): 1 for value in chosen}
    assert result.rows_deleted == len(chosen)


@pytest.mark.exhaustive
def test_a_slice_over_two_columns_replaces_its_boxes_only(classic: SparkSession, root: str) -> None:
    dataset = Dataset(
        name="cells",
        schema=StructType(
            [StructField("day", DateType()), StructField("region", StringType()), StructField("n", LongType())]
        ),
        partition_by=("day", "region"),
    )
    seed = [(day(d), region, 0) for d in (1, 2, 3, 4) for region in ("EU", "US")]
    placed(classic, dataset, root, seed)
    within = Slice(
        (
            Box((("day", Interval(day(1), day(3))), ("region", Values(("EU",))))),
            Box((("day", Values((day(4),))), ("region", Values(("US", None))))),
        )
    )
    addressed = {(day(1), "EU"), (day(2), "EU"), (day(4), "US")}
    new = [(day(2), "EU", 5), (day(4), None, 6)]

    put(classic, dataset, root, new, within)
    assert rows_of(dataset, root) == ordered([row for row in seed if row[:2] not in addressed] + new)

    with pytest.raises(StrayRowsError) as caught:
        put(classic, dataset, root, [(day(3), "EU", 1), (day(1), "EU", 1), (day(1), "US", 1)], within)
    assert dict(caught.value.counts) == {"day = 2026-01-03, region = EU": 1, "day = 2026-01-01, region = US": 1}
    assert commit_info(dataset, root, 2)["operation"] == "WRITE"
    assert versions_of(dataset, root) == [0, 1, 2]


@pytest.mark.parametrize("dataset", [REPLACED, APPENDED], ids=["replace", "append"])
def test_a_slice_of_nothing_takes_no_rows_and_deletes_none(spark: SparkSession, filled: str, dataset: Dataset) -> None:
    """A run whose partition keys came to nothing must not end as a write without a slice."""
    before = rows_of(REPLACED, filled)

    assert not put(spark, dataset, filled, [], Slice(())).committed
    with pytest.raises(StrayRowsError) as caught:
        put(spark, dataset, filled, [(day(1), 1, "a")], Slice(()))

    assert caught.value.total_rows == 1
    assert rows_of(REPLACED, filled) == before
