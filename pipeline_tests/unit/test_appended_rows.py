"""Which appended files this process reads itself, and which it leaves to Delta's change feed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VarcharType,
)

from pipeline.delta.read.appended_rows import AddedFile, appended_rows
from pipeline.delta.storage.file_system import write_file
from pipeline.delta.storage.options import use_confs
from pipeline_tests.object_stores import Bucket, served_bucket

UTC = dt.timezone.utc
SCHEMA = StructType([StructField("n", LongType()), StructField("at", TimestampType()), StructField("day", DateType())])
ROWS = pa.table(
    {"n": pa.array([1, None], pa.int64()), "at": pa.array([dt.datetime(2024, 1, 1, tzinfo=UTC)] * 2)}
)  # fmt: skip
FILE = AddedFile(version=7, path="part 1.parquet", partition_values={"day": "2024-02-29"}, rows=2)


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with served_bucket() as served:
        use_confs(served.hadoop)
        yield served


def written(bucket: Bucket, rows: pa.Table, **options: Any) -> str:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, **options)
    write_file(f"{bucket.uri}/rows/{FILE.path}", sink.getvalue().to_pybytes())
    bucket.requests.clear()
    return f"{bucket.uri}/rows"


def read(location: str, schema: StructType = SCHEMA, *files: AddedFile) -> Any:
    return appended_rows(location, schema, ("day",), files or (FILE,))


@pytest.mark.parametrize("options", [{}, {"use_deprecated_int96_timestamps": True}], ids=["microseconds", "INT96"])
def test_rows_have_their_partition_values_and_the_columns_of_the_feed(bucket: Bucket, options: dict[str, Any]) -> None:
    location = written(bucket, ROWS, **options)
    rows = read(location)
    whole = {"at": dt.datetime(2024, 1, 1, tzinfo=UTC), "day": dt.date(2024, 2, 29), "_change_type": "insert"}
    assert rows.to_pylist() == [{"n": n, **whole, "_commit_version": 7} for n in (1, None)]
    assert rows.column_names == ["n", "at", "day", "_change_type", "_commit_version"]
    assert bucket.kinds() == {"GET": 1}


def test_a_column_that_a_file_lacks_and_an_empty_partition_value_are_null(bucket: Bucket) -> None:
    location = written(bucket, ROWS.select(["at"]))
    rows = read(location, SCHEMA, replace(FILE, partition_values={"day": ""}))
    assert {(row["n"], row["day"]) for row in rows.to_pylist()} == {(None, None)}


EARLY = {"n": [1, 2], "at": [dt.datetime(1900, 1, 1, tzinfo=UTC)] * 2}
LEFT_TO_DELTA: dict[str, tuple[pa.Table, StructType, AddedFile]] = {
    "another number of rows": (ROWS, SCHEMA, replace(FILE, rows=3)),
    "no statistics": (ROWS, SCHEMA, replace(FILE, rows=None)),
    "a file that is gone": (ROWS, SCHEMA, replace(FILE, path="other.parquet")),
    "no partition value": (ROWS, SCHEMA, replace(FILE, partition_values={})),
    "a partition value that is no date": (ROWS, SCHEMA, replace(FILE, partition_values={"day": "x"})),
    "another type": (ROWS.set_column(0, "n", pa.array([1, 2], pa.int32())), SCHEMA, FILE),
    "another spelling": (ROWS.rename_columns(["N", "at"]), SCHEMA, FILE),
    "a time in an old calendar": (pa.table(EARLY), SCHEMA, FILE),
    "a file in the old calendar": (
        ROWS.replace_schema_metadata({"org.apache.spark.legacyDateTime": ""}), SCHEMA, FILE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT_TO_DELTA)
def test_what_is_not_as_expected_is_left_to_delta(bucket: Bucket, case: str) -> None:
    rows, schema, file = LEFT_TO_DELTA[case]
    assert read(written(bucket, rows), schema, file) is None


@pytest.mark.parametrize("data_type", [ArrayType(LongType()), VarcharType(5), StringType("UTF8_LCASE")])
def test_a_type_that_is_not_plain_is_left_to_delta(bucket: Bucket, data_type: DataType) -> None:
    assert read(written(bucket, ROWS), StructType([*SCHEMA.fields, StructField("x", data_type)])) is None


@pytest.mark.parametrize("key", ["delta.columnMapping.physicalName", "__CHAR_VARCHAR_TYPE_STRING"])
def test_a_column_with_another_name_or_meaning_in_files_is_left_to_delta(bucket: Bucket, key: str) -> None:
    field = StructField("x", StringType(), metadata={key: "x"})
    assert read(written(bucket, ROWS), StructType([*SCHEMA.fields, field])) is None


def test_a_table_on_a_disk_is_left_to_delta(tmp_path: Any) -> None:
    pq.write_table(ROWS, tmp_path / FILE.path)
    assert read(str(tmp_path)) is None


def test_decimals_and_doubles_stay_what_they_are(bucket: Bucket) -> None:
    schema = StructType([StructField("d", DecimalType(20, 5)), StructField("f", DoubleType())])
    rows = pa.table({"d": pa.array([Decimal("1.00001"), None], pa.decimal128(20, 5)), "f": [0.1, float("-inf")]})
    found = read(written(bucket, rows), schema).to_pylist()
    assert [(row["d"], row["f"]) for row in found] == [(Decimal("1.00001"), 0.1), (None, float("-inf"))]
