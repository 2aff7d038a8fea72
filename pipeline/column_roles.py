"""What the type and the name of a column must allow for its part in a table: a partition, a key, an order, a merge.

Here belongs what Delta or Spark can't do with a column that a table may well have. What no column may be is `schema`'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pyspark.sql.types import ArrayType, BinaryType, CharType, DataType, MapType, StructType, VariantType

from pipeline.schema import folded
from pipeline.write_mode import InsertNew, Merge, WriteMode

_NESTED = (StructType, ArrayType, MapType)


def partition_problems(schema: StructType, partition_by: Sequence[str]) -> Iterator[str]:
    """Partition columns whose values Delta can't keep as text in its log, in words."""
    for field in schema.fields:
        if field.name not in partition_by:
            continue
        kind = field.dataType.simpleString()
        if isinstance(field.dataType, _NESTED):
            yield f"partition column {field.name!r} has the nested type {kind}"
        elif isinstance(field.dataType, VariantType):
            yield f"partition column {field.name!r} has type {kind}, which no table is partitioned by"
        elif isinstance(field.dataType, BinaryType):
            yield f"partition column {field.name!r} has type {kind}; Delta keeps such values as text"
        elif isinstance(field.dataType, CharType):
            yield f"partition column {field.name!r} {_padded(field.dataType)}"


def merge_problems(
    mode: WriteMode, schema: StructType, keys: Sequence[str], partition_by: Sequence[str], *, change_feed: bool
) -> Iterator[str]:
    """Columns that a mode which looks for keys can't be used with, in words."""
    if not isinstance(mode, Merge | InsertNew):
        return
    name = type(mode).__name__
    yield from _char_problems(mode, schema, keys)
    for column in schema.names:
        if "`" in column and change_feed:
            yield f"column {column!r}: {name} with a change feed can't have a backtick in the name of a column"
        elif {"`", "."} & set(column) and column in partition_by:
            yield f"partition column {column!r}: {name} can't have a dot or a backtick in the name of one"


def _char_problems(mode: Merge | InsertNew, schema: StructType, keys: Sequence[str]) -> Iterator[str]:
    parts: dict[str, Sequence[str]] = {"key": keys}
    condition = ""
    if isinstance(mode, Merge):
        sequence = () if mode.changelog is None else (mode.changelog.sequence,)
        parts |= {"order_by": () if mode.order_by is None else (mode.order_by,), "changelog's sequence": sequence}
        condition = mode.update_when or ""
    types: dict[str, DataType] = {field.name: field.dataType for field in schema.fields}
    for part, columns in parts.items():
        for column in columns:
            if isinstance(types.get(column), CharType):
                yield f"{part} column {column!r} of {type(mode).__name__} {_padded(types[column])}"
    for column, data_type in types.items():
        if isinstance(data_type, CharType) and _names(condition, column):
            yield f"update_when names column {column!r}, which {_padded(data_type)}"


def _padded(data_type: DataType) -> str:
    return f"has type {data_type.simpleString()}, which Spark pads as it reads; declare string or varchar"


def _names(condition: str, column: str) -> bool:
    """Whether a condition has the name of a column in it."""
    return re.search(rf"(?<!\w){re.escape(folded(column))}(?!\w)", folded(condition)) is not None
