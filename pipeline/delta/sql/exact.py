"""Columns as SQL for text formats: a reader that knows the types gets every value back.

Here belong the text of a value in CSV and JSON, a text of which SQL makes the value again, and the name of the folder
of a partition value. The session must be in
UTC and in ANSI mode, as a private session is. The writing of files does not belong here.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from pipeline.dataset.schema import is_string
from pipeline.delta.sql.constraints import NULL_FOLDER
from pipeline.delta.sql.quoting import bare_type, identifier, string

# Formats of Spark's writers, whose defaults cut microseconds off.
INSTANT_FORMAT, LOCAL_TIME_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_FOLDER_TIME_FORMAT = "yyyy-MM-dd HH:mm:ss.SSSSSS"
# The types of which every value has one text that names its folder.
_FOLDER_TYPES = (BooleanType, DateType, DecimalType, IntegralType, TimestampNTZType, TimestampType)
# `ExternalCatalogUtils.escapePathName` escapes these characters in the name of a folder.
_ESCAPED = frozenset([*map(chr, range(1, 0x20)), "\x7f", *"\"#%'*/:=?\\{[]^"])


def without_decimals(kind: DataType) -> DataType:
    """The type with strings for decimals, which a reader of JSON would round."""
    if isinstance(kind, DecimalType):
        return StringType()
    if isinstance(kind, ArrayType):
        return ArrayType(without_decimals(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(without_decimals(kind.keyType), without_decimals(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, without_decimals(f.dataType), f.nullable) for f in kind.fields])
    return kind


def in_json(field: StructField) -> str:
    """SQL for a column that Spark's JSON writer writes without loss. Decimals are texts."""
    column, kind = identifier(field.name), without_decimals(field.dataType)
    return column if kind == field.dataType else f"CAST({column} AS {bare_type(kind)}) AS {column}"


def in_csv(field: StructField) -> str:
    """SQL for a column as text. Instants are in UTC, binary values are Base64."""
    column, kind = identifier(field.name), field.dataType
    if is_string(kind):
        return column
    if isinstance(kind, BinaryType):
        return f"base64({column}) AS {column}"
    if isinstance(kind, TimestampType):
        return f"date_format({column}, {string(INSTANT_FORMAT)}) AS {column}"
    if isinstance(kind, TimestampNTZType):
        return f"date_format(CAST({column} AS TIMESTAMP), {string(LOCAL_TIME_FORMAT)}) AS {column}"
    return f"CAST({column} AS STRING) AS {column}"


# --- texts of which SQL makes the values again ------------------------------------------------------------------------

# An instant may be written in another zone than it is read in, and bytes are no text.
_TEXT = ("CAST({} AS STRING)", "CAST({} AS {})")
_JSON = ("CASE WHEN {0} IS NOT NULL THEN to_json(named_struct('value', {0})) END", "from_json({}, {}).value")
_FORMS: dict[type[DataType], tuple[str, str]] = {
    ArrayType: _JSON, MapType: _JSON, StructType: _JSON, VariantType: ("to_json({})", "parse_json({})"),
    BinaryType: ("hex({})", "unhex({})"),
    TimestampType: ("CAST(unix_micros({}) AS STRING)", "timestamp_micros(CAST({} AS BIGINT))"),
}  # fmt: skip


def as_text(expression: str, kind: DataType) -> str:
    """SQL for the text of a value; of NULL it is NULL."""
    return _FORMS.get(type(kind), _TEXT)[0].format(expression)


def from_text(text: str, kind: DataType, type_name: str) -> str:
    """SQL for the value of a text of `as_text`. `type_name` is the type in DDL."""
    form = _FORMS.get(type(kind), _TEXT)
    return form[1].format(text, string(f"value {type_name}") if form is _JSON else type_name)


# --- folders of partitions --------------------------------------------------------------------------------------------


def names_folders(kind: DataType) -> bool:
    """Whether every value of the type has one text that names its folder."""
    return isinstance(kind, _FOLDER_TYPES) or (is_string(kind) and not isinstance(kind, CharType))


def in_folder(field: StructField) -> str:
    """SQL for a partition column as the text that names its folder. Instants are in UTC."""
    column, kind = identifier(field.name), field.dataType
    if is_string(kind):
        return column
    if isinstance(kind, TimestampType | TimestampNTZType):
        return f"date_format(CAST({column} AS TIMESTAMP), {string(_FOLDER_TIME_FORMAT)}) AS {column}"
    return f"CAST({column} AS STRING) AS {column}"


def folder(fields: Sequence[StructField], values: Sequence[Any]) -> str:
    """The path of a partition's folder, as Spark's writers name it for the texts of `in_folder`."""
    return "/".join(
        f"{_escaped(field.name)}={_escaped(_text(value, field.dataType))}"
        for field, value in zip(fields, values, strict=True)
    )


def _text(value: Any, kind: DataType) -> str:
    if value is None or value == "":
        return NULL_FOLDER
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        local = value if value.tzinfo is None else value.astimezone(dt.timezone.utc).replace(tzinfo=None)
        return local.isoformat(sep=" ", timespec="microseconds")
    if isinstance(value, Decimal) and isinstance(kind, DecimalType):
        return f"{value:.{kind.scale}f}"
    return value.isoformat() if isinstance(value, dt.date) else str(value)


def _escaped(text: str) -> str:
    return "".join(f"%{ord(character):02X}" if character in _ESCAPED else character for character in text)
