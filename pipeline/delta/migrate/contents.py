"""What files contain, from the footers of Parquet files and the headers of CSV files. No row is read, and no Spark.

Here belong the columns of a file with the types of Spark's reader. How the columns of several files differ is the
subject of `schemas`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.types import (
    ArrayType,
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
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pipeline.dataset.schema import casefolded
from pipeline.delta.frames.arrow_types import spark_schema
from pipeline.errors import FrameMismatchError

NANOSECONDS = "nanoseconds"
INT96 = "INT96"
_MOST_DIGITS = 38
_SIGNED: Mapping[int, DataType] = {8: ByteType(), 16: ShortType(), 32: IntegerType(), 64: LongType()}
# Spark's types for unsigned integers (`ParquetSchemaConverter.scala`).
_UNSIGNED: Mapping[int, DataType] = {8: ShortType(), 16: IntegerType(), 32: LongType(), 64: DecimalType(20, 0)}
_BY_PHYSICAL: Mapping[str, DataType] = {
    "BOOLEAN": BooleanType(), "INT32": IntegerType(), "INT64": LongType(), "INT96": TimestampType(),
    "FLOAT": FloatType(), "DOUBLE": DoubleType(), "BYTE_ARRAY": BinaryType(), "FIXED_LEN_BYTE_ARRAY": BinaryType(),
}  # fmt: skip
_BY_LOGICAL: Mapping[str, DataType] = {
    "STRING": StringType(), "ENUM": StringType(), "JSON": StringType(), "BSON": BinaryType(), "DATE": DateType(),
    "UNKNOWN": NullType(),
}  # fmt: skip
# The first line of a CSV file must end within so many bytes.
_HEADER_BYTES = 1 << 20


@dataclass(frozen=True)
class FileColumn:
    """A column of a file. `unit` is that of a Parquet timestamp (`INT96` for the old form); empty for other types.

    Parquet's null type, of a column with NULLs only, is Spark's void.
    """

    name: str
    data_type: DataType
    nullable: bool = True
    unit: str = ""


@dataclass(frozen=True)
class Contents:
    """The columns of a file, and its number of rows. If it can be counted only by reading, None.

    `constants` are the values of columns that have one value in all rows, None for NULL, as far as the footer shows it.
    """

    columns: tuple[FileColumn, ...]
    rows: int | None
    constants: Mapping[str, Any] = field(default_factory=dict)


def parquet_contents(system: Any, path: str, of_folders: Collection[str] = ()) -> Contents:
    """The contents of a Parquet file, from its footer.

    Args:
        of_folders: the casefolded names of the columns whose constant is searched.

    Raises:
        OSError: the storage can't be read.
        ValueError: the file is not Parquet, or has a column of a type that no table has.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with system.open_input_file(path) as source:
        metadata = pq.read_metadata(source)
    leaves = [metadata.schema.column(position) for position in range(len(metadata.schema))]
    columns, constants, start = [], {}, 0
    for arrow in metadata.schema.to_arrow_schema():
        own = leaves[start : start + _leaf_count(arrow.type)]
        is_plain = len(own) == 1 and own[0].max_repetition_level == 0 and not pa.types.is_struct(arrow.type)
        columns.append(_plain_column(arrow.name, own[0]) if is_plain else _nested_column(arrow, own))
        values = _values(metadata, start) if is_plain and casefolded(arrow.name) in of_folders else ()
        if len(values) == 1:
            constants[arrow.name] = values[0]
        start += len(own)
    return Contents(tuple(columns), metadata.num_rows, constants)


def _values(metadata: Any, position: int) -> tuple[Any, ...]:
    """The values of a column of a Parquet file whose row groups have one value each. For any other column, none."""
    values: list[Any] = []
    for group in (metadata.row_group(number) for number in range(metadata.num_row_groups)):
        found = group.column(position).statistics
        if found is None or not found.has_null_count:
            return ()
        is_null = found.null_count == group.num_rows
        if not is_null and (found.null_count or not found.has_min_max or found.min != found.max):
            return ()
        value = None if is_null else found.min
        if value not in values:
            values.append(value)
    return tuple(values)


def _leaf_count(data_type: Any) -> int:
    """The number of Parquet columns that an Arrow type is stored in."""
    from pyarrow import types

    if types.is_dictionary(data_type):
        return _leaf_count(data_type.value_type)
    if types.is_nested(data_type) and data_type.num_fields:
        return sum(_leaf_count(data_type.field(position).type) for position in range(data_type.num_fields))
    return 1


def _plain_column(name: str, leaf: Any) -> FileColumn:
    data_type, unit = _type_of(name, leaf)
    return FileColumn(name, data_type, nullable=leaf.max_definition_level > 0, unit=unit)


def _type_of(name: str, leaf: Any) -> tuple[DataType, str]:
    """The type of a Parquet column, and the unit of a timestamp."""
    kind, facts = leaf.logical_type.type, json.loads(leaf.logical_type.to_json())
    if kind == "NONE":
        return _BY_PHYSICAL[leaf.physical_type], INT96 if leaf.physical_type == "INT96" else ""
    if kind == "INT":
        return (_SIGNED if facts["isSigned"] else _UNSIGNED)[facts["bitWidth"]], ""
    if kind == "TIMESTAMP":
        return TimestampType() if facts["isAdjustedToUTC"] else TimestampNTZType(), facts["timeUnit"]
    if kind == "DECIMAL" and leaf.precision <= _MOST_DIGITS:
        return DecimalType(leaf.precision, leaf.scale), ""
    if kind in _BY_LOGICAL:
        return _BY_LOGICAL[kind], ""
    raise ValueError(f"column {name} has Parquet's type {leaf.logical_type}, which no table here can have")


def _nested_column(arrow: Any, leaves: list[Any]) -> FileColumn:
    """A column of arrays, maps or structs."""
    import pyarrow as pa

    for leaf in leaves:
        data_type, unit = _type_of(leaf.path, leaf)
        if unit == NANOSECONDS or isinstance(data_type, NullType):
            raise ValueError(
                f"column {leaf.path} has {unit or 'no'} type inside another column, which Spark can't read"
            )
    try:
        data_type = spark_schema(pa.schema([arrow]), arrow.name)[0].dataType
        return FileColumn(arrow.name, _with_instants(data_type, iter(leaves)), nullable=arrow.nullable)
    except FrameMismatchError as error:
        raise ValueError("; ".join(error.differences)) from error


def _with_instants(data_type: DataType, leaves: Iterator[Any]) -> DataType:
    """A nested type in which a timestamp of the old form has Spark's type for it, and not Arrow's."""
    if isinstance(data_type, ArrayType):
        return ArrayType(_with_instants(data_type.elementType, leaves), data_type.containsNull)
    if isinstance(data_type, MapType):
        key, value = (_with_instants(inner, leaves) for inner in (data_type.keyType, data_type.valueType))
        return MapType(key, value, data_type.valueContainsNull)
    if isinstance(data_type, StructType):
        inner = [(field, _with_instants(field.dataType, leaves)) for field in data_type.fields]
        return StructType([StructField(field.name, kind, field.nullable) for field, kind in inner])
    return TimestampType() if next(leaves).physical_type == INT96 else data_type


def csv_contents(system: Any, path: str, form: StructType) -> Contents:
    """The columns of a CSV file in the order of its header, with their declared types.

    A column that is not declared is a text.

    Raises:
        OSError: the storage can't be read.
        ValueError: the file has no header in UTF-8.
    """
    with system.open_input_stream(path, compression="gzip" if path.endswith(".gz") else None) as stream:
        start = bytes(stream.read(_HEADER_BYTES))
    text = start.removeprefix(b"\xef\xbb\xbf").decode(errors="ignore" if len(start) == _HEADER_BYTES else "strict")
    header = next(csv.reader(io.StringIO(text, newline="")), [])
    if not any(header):
        raise ValueError("its first line is no header")
    types = {casefolded(declared.name): declared.dataType for declared in form.fields}
    return Contents(tuple(FileColumn(name, types.get(casefolded(name), StringType())) for name in header), None)


def ndjson_contents(form: StructType) -> Contents:
    """The declared columns: a line of NDJSON may lack any of them."""
    return Contents(tuple(FileColumn(declared.name, declared.dataType) for declared in form.fields), None)
