"""Names and values as SQL text; no other module turns them into SQL.

Here belong quoting, typed literals and column definitions. The module that runs a statement builds it, from these
parts only.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterable
from decimal import Decimal
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
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pipeline.dataset import Dataset, Features, TableRef
from pipeline.dataset.history import STATE_COLUMN
from pipeline.dataset.schema import free_name, is_string

_INTEGERS: tuple[tuple[type[DataType], int, str], ...] = (
    (ByteType, 8, "Y"),
    (ShortType, 16, "S"),
    (IntegerType, 32, ""),
    (LongType, 64, "L"),
)


# A quoted name or text, a word or number, or another character that is not space.
_TOKEN = re.compile(r"""`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\w+|[^\w\s]""", re.DOTALL)


def sendable(text: str) -> str:
    """The text unchanged. py4j would report a text that can't be encoded in UTF-8 as a failed connection.

    Raises:
        UnicodeEncodeError: the text has half of a surrogate pair.
    """
    text.encode()
    return text


def identifier(name: str) -> str:
    """A column, field or table name, quoted."""
    return "`" + sendable(name).replace("`", "``") + "`"


def column(name: str, of: str = "") -> str:
    """A column, quoted; with the name of its relation if a statement has several relations."""
    return f"{of}.{identifier(name)}" if of else identifier(name)


def helper_name(dataset: Dataset, wanted: str) -> str:
    """A name for a column that a statement adds to a dataset's rows; no column of the frame has it."""
    return free_name(wanted, (*dataset.schema.names, *dataset.frame_columns, STATE_COLUMN))


def path_table(location: str) -> str:
    """A Delta table, identified by its location."""
    return f"delta.{identifier(location)}"


def string(value: str) -> str:
    """A string literal, under Spark's default escaping; a `$` is escaped so that Spark substitutes no variable."""
    escaped = sendable(value).replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return "'" + escaped.replace("$", "\\u0024") + "'"


def tokens(expression: str) -> tuple[str, ...]:
    """The tokens of an SQL expression: two texts that differ only in the space between tokens have the same."""
    return tuple(_TOKEN.findall(expression))


def path_pattern(path: str) -> str:
    """A path as a reader's glob pattern that matches only this path."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


def literal(value: Any, data_type: DataType) -> str:
    """A literal of exactly this type; None is a typed NULL.

    Raises:
        ValueError: the type can't store the value unchanged.
    """
    if value is None:
        return f"CAST(NULL AS {type_name(data_type)})"
    if is_string(data_type) and isinstance(value, str):
        return string(value)
    for cls, bits, suffix in _INTEGERS:
        if isinstance(data_type, cls) and isinstance(value, int) and not isinstance(value, bool):
            if not -(1 << bits - 1) <= value < 1 << bits - 1:
                break
            return f"{value}{suffix}"
    if isinstance(data_type, BooleanType) and isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    return _literal_of_other(value, data_type)


def _literal_of_other(value: Any, data_type: DataType) -> str:
    if isinstance(data_type, DateType) and isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return f"DATE'{value.isoformat()}'"
    if isinstance(data_type, TimestampType) and isinstance(value, dt.datetime) and value.tzinfo is not None:
        return f"TIMESTAMP'{value.astimezone(dt.timezone.utc).strftime('%Y-%m-%d %H:%M:%S.%f').zfill(26)}Z'"
    if isinstance(data_type, TimestampNTZType) and isinstance(value, dt.datetime) and value.tzinfo is None:
        return f"TIMESTAMP_NTZ'{value.isoformat(sep=' ', timespec='microseconds')}'"
    if isinstance(data_type, DecimalType) and isinstance(value, Decimal) and value.is_finite():
        if not _fits(value, data_type):
            raise ValueError(f"{value} does not fit {data_type.simpleString()}")
        return f"CAST('{value:f}' AS {type_name(data_type)})"
    if isinstance(data_type, FloatType | DoubleType) and isinstance(value, float):
        text = (
            "NaN"
            if math.isnan(value)
            else ("Infinity" if value > 0 else "-Infinity")
            if math.isinf(value)
            else repr(value)
        )
        return f"CAST('{text}' AS {type_name(data_type)})"
    if isinstance(data_type, BinaryType) and isinstance(value, bytes | bytearray):
        return f"X'{value.hex()}'"
    raise ValueError(f"{value!r} is not a value of type {data_type.simpleString()}")


def _fits(value: Decimal, data_type: DecimalType) -> bool:
    """Whether a type stores a decimal unchanged; it compares digits, since arithmetic rounds to the context's 28."""
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)  # noqa: S101  it is finite
    text = "".join(map(str, digits)).lstrip("0")
    if not text:
        return True
    places = -exponent - (len(text) - len(text.rstrip("0")))
    return places <= data_type.scale and len(text) + exponent <= data_type.precision - data_type.scale


def type_name(data_type: DataType) -> str:
    """The type in SQL, nested names quoted."""
    if isinstance(data_type, StructType):
        return f"STRUCT<{', '.join(_nested_field(f) for f in data_type.fields)}>"
    if isinstance(data_type, ArrayType):
        return f"ARRAY<{type_name(data_type.elementType)}>"
    if isinstance(data_type, MapType):
        return f"MAP<{type_name(data_type.keyType)}, {type_name(data_type.valueType)}>"
    return data_type.simpleString()


def bare_type(data_type: DataType) -> str:
    """The type in SQL without NOT NULL and comments, which CAST does not accept."""
    if isinstance(data_type, StructType):
        fields = (f"{identifier(field.name)}: {bare_type(field.dataType)}" for field in data_type.fields)
        return f"STRUCT<{', '.join(fields)}>"
    if isinstance(data_type, ArrayType):
        return f"ARRAY<{bare_type(data_type.elementType)}>"
    if isinstance(data_type, MapType):
        return f"MAP<{bare_type(data_type.keyType)}, {bare_type(data_type.valueType)}>"
    return "STRING" if is_string(data_type) else type_name(data_type)


def _nested_field(field: StructField) -> str:
    return f"{identifier(field.name)}: {type_name(field.dataType)}{_suffix(field)}"


def _suffix(field: StructField) -> str:
    return ("" if field.nullable else " NOT NULL") + comment(field)


def comment(field: StructField) -> str:
    """A field's COMMENT clause, with a space before it; empty if the field has no comment."""
    text = (field.metadata or {}).get("comment")
    return f" COMMENT {string(text)}" if text else ""


def column_definition(field: StructField, features: Features | None = None) -> str:
    """The definition of one column in CREATE TABLE."""
    computed = ""
    if features is not None:
        generated, defaults = dict(features.generated), dict(features.defaults)
        if field.name in generated:
            computed = f" GENERATED ALWAYS AS ({generated[field.name]})"
        if field.name in defaults:
            computed = f" DEFAULT {defaults[field.name]}"
    return f"{identifier(field.name)} {type_name(field.dataType)}{computed}{_suffix(field)}"


def names(columns: Iterable[str]) -> str:
    """Column names, quoted and joined."""
    return ", ".join(identifier(column) for column in columns)


def names_path(path: Iterable[str]) -> str:
    """A column or nested field by its path, quoted."""
    return ".".join(identifier(part) for part in path)


def create_table(table: TableRef, properties: dict[str, str]) -> str:
    """CREATE TABLE with the full declaration, in one statement and so in one commit."""
    state = (StructField(STATE_COLUMN, StringType()),) if table.dataset.keeps_state else ()
    fields = (*table.dataset.schema.fields, *state)
    columns = ",\n  ".join(column_definition(field, table.dataset.features) for field in fields)
    clustering = (
        f"\nCLUSTER BY ({names(table.dataset.features.cluster_by)})" if table.dataset.features.cluster_by else ""
    )
    partition_by = (*table.dataset.partition_by, *(field.name for field in state))
    partitioning = f"\nPARTITIONED BY ({names(partition_by)})" if partition_by else ""
    description = f"\nCOMMENT {string(table.dataset.description)}" if table.dataset.description else ""
    pairs = ", ".join(f"{string(name)} = {string(value)}" for name, value in sorted(properties.items()))
    options = f"\nTBLPROPERTIES ({pairs})" if pairs else ""
    layout = f"USING delta{partitioning}{clustering}"
    return f"CREATE TABLE {path_table(table.location)} (\n  {columns}\n)\n{layout}{description}{options}"
