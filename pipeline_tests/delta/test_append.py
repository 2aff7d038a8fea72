"""Appending: rows are added, matched by name, widened where no value changes, and refused all together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that everybody knows it by
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from pipeline.dataset import Append, Check, Dataset
from pipeline.delta.log.mark import clone_session, release_session
from pipeline.delta.read.version import read
from pipeline.delta.sql import slices
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline.errors import (
    CheckViolationError,
    FrameFailedError,
    FrameMismatchError,
    NullViolationError,
    PartitionValueError,
    PipelineError,
    StrayRowsError,
)
from pipeline_tests.delta.sample import (
    APPENDED,
    actions_of,
    day,
    files_of,
    frame_of,
    note,
    ordered,
    put,
    rows_of,
    versions_of,
)
from pipeline_tests.tiers import first_in_both_modes

case = pytest.mark.case

POINT = StructType([StructField("lat", DoubleType()), StructField("lon", DoubleType())])
# Every way in which a value can nest, and what Delta is asked to hold.
TRIPS = Dataset(
    name="trips",
    schema=StructType(
        [
            StructField("region", StringType()),
            StructField("id", LongType(), False),
            StructField("amount", IntegerType()),
            StructField("place", POINT),
            StructField("stops", ArrayType(POINT)),
            StructField("by_name", MapType(StringType(), POINT)),
            StructField("note", StringType()),
        ]
    ),
    partition_by=("region",),
    write=Append(),
)
STRICT = Dataset(
    name="strict",
    schema=StructType(
        [
            StructField("region", StringType()),
            StructField("id", LongType(), False),
            StructField("origin", StructType([StructField("code", StringType(), False)]), False),
            StructField("amount", IntegerType()),
        ]
    ),
    partition_by=("region",),
    write=Append(),
    checks=(Check("amount_not_negative", "amount >= 0"), Check("id_small", "id < 100")),
)
# A frame that fits STRICT.
STRICT_ROW = "SELECT 'EU' AS region, 1L AS id, named_struct('code', 'x') AS origin, 1 AS amount"


def append(spark: SparkSession, dataset: Dataset, root: str, query: str, **arguments: Any) -> WriteResult:
    return write(spark.sql(query), table=dataset.at(root), note=note(), **arguments)


@pytest.mark.both_modes
def test_an_append_adds_rows_and_touches_none_that_are_there(spark: SparkSession, root: str) -> None:
    first = put(spark, APPENDED, root, [(day(1), 1, "a"), (None, 2, None)])
    files = files_of(APPENDED, root)
    second = put(spark, APPENDED, root, [(day(1), 3, "c"), (day(2), 4, "d"), (day(2), 5, "e")])

    assert rows_of(APPENDED, root) == ordered(
        [(None, 2, None), (day(1), 1, "a"), (day(1), 3, "c"), (day(2), 4, "d"), (day(2), 5, "e")]
    )
    assert files < files_of(APPENDED, root)
    assert (first.version, second.version) == (1, 2)
    assert first.rows_by_partition == {("2026-01-01",): 1, (None,): 1}
    assert (second.committed, second.operation, second.rows_written) == (True, "WRITE", 3)
    assert second.rows_by_partition == {("2026-01-01",): 1, ("2026-01-02",): 2}
    added = [action["add"] for action in actions_of(APPENDED, root, 2) if "add" in action]
    assert (second.files_added, second.files_removed) == (len(added), 0)
    assert second.bytes_added == sum(file["size"] for file in added)
    assert second.schema_fingerprint == APPENDED.fingerprint


@case("S-STRUCT-ORDER")
@case("S-INT-WIDEN")
@case("S-ALL-NULL")
def test_columns_and_struct_fields_are_matched_by_name_at_every_depth(spark: SparkSession, root: str) -> None:
    """By position lat and lon would swap without an error; S-INT-WIDEN and S-ALL-NULL ride on the same two commits."""
    point = "named_struct('lon', 2D, 'lat', 1D)"
    append(
        spark,
        TRIPS,
        root,
        f"""
        SELECT map('m', {point}) AS by_name, array({point}, NULL) AS stops, {point} AS PLACE, NULL AS note,
               CAST(7 AS TINYINT) AS amount, 2147483647 AS Id, 'EU' AS region
        """,
    )
    append(
        spark,
        TRIPS,
        root,
        """
        SELECT 'EU' AS region, 9223372036854775807L AS id, -2147483648 AS amount, 'text' AS note,
               CAST(NULL AS STRUCT<lon: DOUBLE, lat: DOUBLE>) AS place,
               array(CAST(NULL AS STRUCT<lon: FLOAT, lat: FLOAT>), named_struct('lon', 0.5F, 'lat', 0.25F)) AS stops,
               map('n', CAST(NULL AS STRUCT<lon: DOUBLE, lat: DOUBLE>)) AS by_name
        """,
    )

    first, last = rows_of(TRIPS, root)
    where = {"lat": 1.0, "lon": 2.0}
    assert first == ("EU", 2**31 - 1, 7, where, [where, None], [("m", where)], None)
    assert last == ("EU", 2**63 - 1, -(2**31), None, [None, {"lat": 0.25, "lon": 0.5}], [("n", None)], "text")
    seen = read(spark, TRIPS.at(root)).frame
    assert seen.filter("place IS NULL").count() == 1
    assert seen.filter("place.lat = 1 AND stops[0].lon = 2 AND by_name['m'].lat = 1").count() == 1


# By test id: what the frame selects, and the differences that must be reported.
MISFITS = {
    "missing": (
        "SELECT 'EU' AS region, named_struct('code', 'x') AS origin",
        ("column id: missing, declared bigint", "column amount: missing, declared int"),
    ),
    "extra": (STRICT_ROW + ", 1 AS more", ("column more: not declared (type int)",)),
    "long into int": (
        STRICT_ROW.replace("1 AS amount", "2147483648L AS amount"),
        ("column amount: has type bigint, declared int",),
    ),
    "string into int": (
        STRICT_ROW.replace("1 AS amount", "'7' AS amount"),
        ("column amount: has type string, declared int",),
    ),
    "double into int": (
        STRICT_ROW.replace("1 AS amount", "1.5D AS amount"),
        ("column amount: has type double, declared int",),
    ),
    "int into string": (STRICT_ROW.replace("'EU'", "1"), ("column region: has type int, declared string",)),
    "struct for scalar": (
        STRICT_ROW.replace("1 AS amount", "named_struct('a', 1) AS amount"),
        ("column amount: has type STRUCT<`a`: int NOT NULL>, declared int",),
    ),
    "nested missing and extra": (
        STRICT_ROW.replace("named_struct('code', 'x')", "named_struct('kode', 'x')"),
        ("column origin.code: missing, declared string", "column origin.kode: not declared"),
    ),
    "reserved": (
        STRICT_ROW + ", 'x' AS _Change_Type, 1 AS _commit_version",
        (
            "column _Change_Type: the change feed adds a column of that name itself",
            "column _commit_version: the change feed adds a column of that name itself",
        ),
    ),
}


@case("S-INT-WIDEN")
@case("C-RESERVED-NAMES")
@case("S-ALL-NULL")
@pytest.mark.parametrize("name", first_in_both_modes(MISFITS))
def test_a_frame_that_does_not_fit_is_refused_with_every_difference_and_nothing_is_created(
    spark: SparkSession, root: str, name: str
) -> None:
    query, differences = MISFITS[name]

    with pytest.raises(FrameMismatchError) as caught:
        append(spark, STRICT, root, query)

    assert caught.value.dataset == "strict"
    assert caught.value.differences == differences
    assert not Path(root).exists()


@case("M-CASE-DUP")
def test_columns_that_differ_by_case_only_are_refused_by_name(spark: SparkSession, root: str) -> None:
    with pytest.raises(FrameMismatchError) as caught:
        append(spark, STRICT, root, STRICT_ROW + ", 2 AS Amount")

    assert "columns amount, Amount: differ by case only" in caught.value.differences
    assert not Path(root).exists()


@case("S-ALL-NULL")
def test_void_inside_a_struct_an_array_or_a_map_is_null_of_the_declared_type(spark: SparkSession, root: str) -> None:
    row = """
        SELECT 'EU' AS region, {}L AS id, 1 AS amount, named_struct('lon', NULL, 'lat', NULL) AS place,
               {} AS stops, {} AS by_name, NULL AS note
    """
    append(spark, TRIPS, root, row.format(1, "array(NULL)", "map('a', NULL)"))
    append(spark, TRIPS, root, row.format(2, "array()", "map()"))

    table = deltalake.DeltaTable(TRIPS.location(root)).to_pyarrow_table().sort_by("id")
    assert table["stops"].to_pylist() == [[None], []]
    assert table["by_name"].to_pylist() == [[("a", None)], []]


@case("S-EMPTY-FRAME")
def test_a_frame_without_columns_is_refused_and_no_folder_is_made(spark: SparkSession, root: str) -> None:
    frame = spark.createDataFrame([], StructType([]))

    with pytest.raises(FrameMismatchError) as caught:
        write(frame, table=STRICT.at(root), note=note())

    assert "the frame has no columns" in caught.value.differences
    assert not Path(root).exists()


@case("S-EMPTY-FRAME")
def test_a_first_write_of_no_rows_makes_the_table_and_no_further_commit(spark: SparkSession, root: str) -> None:
    result = put(spark, TRIPS, root, [])

    assert (result.committed, result.version, result.operation) == (False, 0, "no commit")
    assert (result.rows_written, result.files_added, result.rows_by_partition) == (0, 0, {})
    assert result.timestamp is None
    assert versions_of(TRIPS, root) == [0]
    frame = read(spark, TRIPS.at(root)).frame
    assert frame.columns == TRIPS.schema.names
    assert frame.count() == 0


@pytest.fixture(scope="module")
def strict(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The root of a STRICT table with one good row, which no test may change."""
    root = str(tmp_path_factory.mktemp("strict"))
    append(spark, STRICT, root, STRICT_ROW)
    yield root
    assert versions_of(STRICT, root) == [0, 1]
    assert rows_of(STRICT, root) == [("EU", 1, {"code": "x"}, 1)]


def refused(spark: SparkSession, root: str, query: str, expected: type[Exception], **arguments: Any) -> Any:
    """The error of a write that commits nothing and leaves no rows behind."""
    files = files_of(STRICT, root)
    with pytest.raises(expected) as caught:
        append(spark, STRICT, root, query, **arguments)
    assert versions_of(STRICT, root) == [0, 1]
    assert files_of(STRICT, root) == files
    if isinstance(caught.value, PipelineError):
        assert caught.value.dataset == "strict"  # type: ignore[attr-defined]
    return caught.value


@pytest.mark.both_modes
def test_nulls_in_not_null_columns_are_refused_with_their_counts(spark: SparkSession, strict: str) -> None:
    error = refused(
        spark,
        strict,
        """
        SELECT 'EU' AS region, IF(n < 3, NULL, n) AS id, 1 AS amount,
               named_struct('code', IF(n = 5, NULL, 'x')) AS origin
        FROM VALUES (1L), (2L), (3L), (4L), (5L) AS t(n)
        """,
        NullViolationError,
    )
    assert dict(error.counts) == {"id": 2, "origin.code": 1}


def test_a_null_struct_counts_against_itself_and_its_not_null_fields(spark: SparkSession, strict: str) -> None:
    query = STRICT_ROW.replace("named_struct('code', 'x')", "CAST(NULL AS STRUCT<code: STRING>)")

    error = refused(spark, strict, query, NullViolationError)

    assert dict(error.counts) == {"origin": 1, "origin.code": 1}


@pytest.mark.both_modes
def test_broken_checks_are_refused_with_the_number_of_rows_of_each(spark: SparkSession, strict: str) -> None:
    """NULL breaks a check too: Delta lets a row in only where the condition is true."""
    error = refused(
        spark,
        strict,
        """
        SELECT 'EU' AS region, id, named_struct('code', 'x') AS origin, amount
        FROM VALUES (1L, -1), (2L, CAST(NULL AS INT)), (200L, -3), (4L, 4) AS t(id, amount)
        """,
        CheckViolationError,
    )
    assert dict(error.counts) == {"amount_not_negative": 3, "id_small": 1}


@pytest.mark.both_modes
@case("P-EMPTY-STR")
def test_an_empty_string_in_a_partition_column_is_refused_with_its_count(spark: SparkSession, strict: str) -> None:
    """Delta stores '' and NULL in the same folder, so the row would come back as another one."""
    error = refused(
        spark,
        strict,
        """
        SELECT region, 1L AS id, named_struct('code', 'x') AS origin, 1 AS amount
        FROM VALUES ('abc'), (''), (CAST(NULL AS STRING)), ('') AS t(region)
        """,
        PartitionValueError,
    )
    assert dict(error.counts) == {"region": 2}


@pytest.mark.both_modes
@case("P-STRAY-ROWS")
def test_an_append_refuses_rows_outside_its_slice_null_included(spark: SparkSession, strict: str) -> None:
    error = refused(
        spark,
        strict,
        """
        SELECT region, 1L AS id, named_struct('code', 'x') AS origin, 1 AS amount
        FROM VALUES ('EU'), ('US'), (CAST(NULL AS STRING)), ('US') AS t(region)
        """,
        StrayRowsError,
        within=slices.of_values("region", ["EU"]),
    )
    assert dict(error.counts) == {"region = US": 2, "region = None": 1}
    assert error.total_rows == 3
    assert error.slice == "region = EU"


@pytest.mark.both_modes
def test_a_users_own_division_by_zero_is_told_as_an_error_of_the_frame(spark: SparkSession, strict: str) -> None:
    query = STRICT_ROW.replace("1 AS amount", "CAST(1 DIV (id - id) AS INT) AS amount").replace("1L AS id", "id")
    query += " FROM RANGE(3)"

    error = refused(spark, strict, query, FrameFailedError)

    assert (error.dataset, error.condition) == (STRICT.name, "DIVIDE_BY_ZERO")


def test_an_error_that_the_users_frame_raises_is_told_as_one_of_the_frame(spark: SparkSession, strict: str) -> None:
    """It has the condition of our own guards, and must not be taken for one of them."""
    query = STRICT_ROW.replace("1 AS amount", "CAST(raise_error('mine') AS INT) AS amount")

    error = refused(spark, strict, query, FrameFailedError)

    assert error.condition == "USER_RAISED_EXCEPTION"
    assert "mine" in error.reason


@pytest.mark.both_modes
@pytest.mark.exhaustive
def test_an_error_inside_a_users_function_is_told_by_its_last_line(spark: SparkSession, strict: str) -> None:
    def fails(value):  # no hints: Spark would infer a kind of function from them
        raise LookupError(f"no entry for {value}")

    frame = spark.sql(STRICT_ROW).withColumn("amount", F.udf(fails, IntegerType())("id"))

    with pytest.raises(FrameFailedError) as caught:
        write(frame, table=STRICT.at(strict), note=note())

    assert caught.value.reason == "LookupError: no entry for 1"
    assert versions_of(STRICT, strict) == [0, 1]


@pytest.mark.both_modes
def test_a_frame_of_another_session_is_written_with_that_sessions_views(spark: SparkSession, root: str) -> None:
    other = clone_session(spark)
    other.sql(f"CREATE TEMPORARY VIEW only_there AS {STRICT_ROW}")
    try:
        result = append(other, STRICT, root, "SELECT * FROM only_there")
        assert result.version == 1
        assert [row.name for row in other.catalog.listTables()] == ["only_there"]
    finally:
        release_session(other)

    assert rows_of(STRICT, root) == [("EU", 1, {"code": "x"}, 1)]
    assert spark.catalog.listTables() == []


@pytest.mark.exhaustive
@case("S-INF-NAN")
def test_infinities_and_nan_are_kept_and_filters_find_exactly_their_rows(classic: SparkSession, root: str) -> None:
    """Statistics can't hold them, and a reader that trusts such statistics skips the file."""
    dataset = Dataset(
        name="numbers",
        schema=StructType([StructField("x", DoubleType()), StructField("y", FloatType())]),
        write=Append(),
    )
    values = [math.inf, -math.inf, math.nan, -0.0, 1.0, 1.7e308]
    put(classic, dataset, root, [(value, min(value, 1.0)) for value in values])

    def found(condition: str) -> list[float]:
        frame = read(classic, dataset.at(root)).frame.filter(condition)
        return sorted(row.x for row in frame.collect())

    assert found("x > 1e308 AND NOT isnan(x)") == [1.7e308, math.inf]
    assert len(found("isnan(x)")) == 1
    assert found("x < -1e308") == [-math.inf]
    (zero,) = found("x = 0")
    assert math.copysign(1, zero) == -1
    assert len(rows_of(dataset, root)) == len(values)


def test_a_decimal_is_widened_only_where_every_value_fits(classic: SparkSession, root: str) -> None:
    dataset = Dataset(name="prices", schema=StructType([StructField("price", DecimalType(12, 4))]), write=Append())

    append(classic, dataset, root, "SELECT CAST(99999999.99 AS DECIMAL(10, 2)) AS price")
    for narrowed in ("DECIMAL(12, 2)", "DECIMAL(12, 5)", "INT", "DOUBLE"):
        with pytest.raises(FrameMismatchError):
            append(classic, dataset, root, f"SELECT CAST(1 AS {narrowed}) AS price")
    append(classic, dataset, root, "SELECT CAST(-32768 AS SMALLINT) AS price")

    assert [str(price) for (price,) in rows_of(dataset, root)] == ["-32768.0000", "99999999.9900"]
    assert versions_of(dataset, root) == [0, 1, 2]


@case("S-BAD-CHARS")
def test_names_that_parquet_takes_are_written_and_read_back_as_they_are(classic: SparkSession, root: str) -> None:
    """What the declaration lets through must not fail later; what Parquet refuses fails where it is declared."""
    names = ("a.b", "x%20y", "tick`s", "_hidden", "größe", "select", "a-b", "a/b", "a'b", "a:b")
    dataset = Dataset(
        name="names",
        schema=StructType([StructField(name, LongType()) for name in names]),
        partition_by=("x%20y", "_hidden"),
        write=Append(),
    )

    put(classic, dataset, root, [tuple(range(len(names)))])

    assert rows_of(dataset, root) == [tuple(range(len(names)))]
    frame = read(classic, dataset.at(root), within=slices.of_values("x%20y", [1])).frame
    assert [tuple(row) for row in frame.collect()] == [tuple(range(len(names)))]


def test_a_nullable_frame_is_judged_by_its_values(classic: SparkSession, root: str) -> None:
    """Spark calls almost every column nullable; only a NULL that is there counts."""
    frame = frame_of(classic, STRICT, [("EU", 5, {"code": "c"}, 1)])
    assert all(field.nullable for field in frame.schema.fields)

    result = write(frame, table=STRICT.at(root), note=note())

    assert result.rows_written == 1
    assert rows_of(STRICT, root) == [("EU", 5, {"code": "c"}, 1)]
    assert replace(STRICT, name="x").fingerprint == result.schema_fingerprint
