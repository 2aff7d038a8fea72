"""The changes of commits that only append, read from their files: in a bucket, one request for each file.

Here belong the reading of a few small files by this process, and the conditions for it. If one is not met, the changes
are read by Delta, which takes four requests for each commit, one after another.

In Delta's change feed a commit that only adds files has an insert for each of their rows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pipeline.delta.frames.arrow_types import arrow_type
from pipeline.delta.storage.file_system import local_folder, read_file, side_by_side

# So many bytes in files are read by this process at most.
MOST_BYTES = 4 * 1024 * 1024
_TYPES = (
    BinaryType, BooleanType, ByteType, DateType, DecimalType, DoubleType, FloatType, IntegerType, LongType, ShortType,
    StringType, TimestampType,
)  # fmt: skip
# How the log writes the values of partition columns (Delta protocol, "Partition Value Serialization").
_PARTITION_VALUES: Mapping[type[DataType], Callable[[str], Any]] = {
    StringType: str, ByteType: int, ShortType: int, IntegerType: int, LongType: int, DateType: dt.date.fromisoformat,
}  # fmt: skip
# Parquet files whose metadata has such a key have dates or times in another calendar.
_OTHER_CALENDAR = b"org.apache.spark.legacy"
# Before these, Spark reads the dates and times of a file by its confs.
_FIRST: Mapping[type[DataType], dt.date] = {
    DateType: dt.date(1583, 1, 1), TimestampType: dt.datetime(1901, 1, 1, tzinfo=dt.timezone.utc),
}  # fmt: skip
# The columns of the change feed (Delta protocol, "Reader Requirements for Change Data Feed").
_ADDED = ("_change_type", "_commit_version")


@dataclass(frozen=True)
class AddedFile:
    """A file that a commit adds, by its decoded path below the table. `rows` is None if it has no statistics."""

    version: int
    path: str
    partition_values: Mapping[str, str | None]
    rows: int | None


def appended_rows(location: str, schema: StructType, partition_by: Sequence[str], files: Sequence[AddedFile]) -> Any:
    """The rows of these files as inserts, in Arrow, with the columns `_change_type` and `_commit_version`. No Spark.

    None if the table is not in a bucket, or if a column or a file is not of the simple form that is read here.
    """
    if local_folder(location) is not None or not all(map(_is_simple, schema.fields)):
        return None
    import pyarrow as pa

    try:
        read = partial(_rows_of, location, schema, frozenset(partition_by))
        return pa.concat_tables(side_by_side(read, files, location))
    except (OSError, ValueError, NotImplementedError, OverflowError):  # pyarrow's own errors are among them
        return None


def _is_simple(field: StructField) -> bool:
    """Whether a column has a plain type, and its own name in the files."""
    is_text = isinstance(field.dataType, StringType)
    return (
        type(field.dataType) in _TYPES
        and (not is_text or field.dataType == StringType())
        and not any(key.startswith(("delta.", "__")) for key in field.metadata or {})
    )


def _rows_of(location: str, schema: StructType, partition_by: frozenset[str], file: AddedFile) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = pa.BufferReader(read_file(f"{location}/{file.path}"))
    parquet = pq.ParquetFile(content, coerce_int96_timestamp_unit="us", page_checksum_verification=True)
    if any(key.startswith(_OTHER_CALENDAR) for key in parquet.metadata.metadata or {}):
        raise ValueError(f"{file.path} has another calendar")
    rows = parquet.read()
    if file.rows is None or rows.num_rows != file.rows:
        raise ValueError(f"{file.path} has {rows.num_rows} rows")
    exact, names = set(rows.column_names), {field.name for field in schema.fields}
    folded = [name.casefold() for name in rows.column_names]
    if any(name not in exact and name.casefold() in folded for name in names) or len(set(folded)) < len(folded):
        raise ValueError(f"{file.path} spells a column differently")
    columns = {
        field.name: _partition_column(field, file, rows.num_rows)
        if field.name in partition_by
        else _column(field, rows, exact)
        for field in schema.fields
    }
    change_types = pa.array(["insert"] * rows.num_rows, pa.string())
    versions = pa.array([file.version] * rows.num_rows, pa.int64())
    return pa.table(columns | dict(zip(_ADDED, (change_types, versions), strict=True)))


def _partition_column(field: StructField, file: AddedFile, count: int) -> Any:
    import pyarrow as pa

    if field.name not in file.partition_values or type(field.dataType) not in _PARTITION_VALUES:
        raise ValueError(f"{file.path} has no simple value of {field.name}")
    text = file.partition_values[field.name]
    value = _PARTITION_VALUES[type(field.dataType)](text) if text else None  # an empty text is NULL
    return pa.array([value] * count, arrow_type(field.dataType))


def _column(field: StructField, rows: Any, exact: set[str]) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    expected = arrow_type(field.dataType)
    if field.name not in exact:
        return pa.nulls(rows.num_rows, expected)
    values = rows[field.name]
    if isinstance(field.dataType, TimestampType) and values.type == pa.timestamp("us"):  # an INT96, which is in UTC
        values = values.cast(pa.int64()).cast(expected)
    if values.type != expected:
        raise ValueError(f"{field.name} is {values.type}")
    first = _FIRST.get(type(field.dataType))
    if first is not None and pc.any(pc.less(values, pa.scalar(first, expected))).as_py():
        raise ValueError(f"{field.name} has an early date")
    return values
