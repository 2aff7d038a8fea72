"""The rows of a table that are no rows of its dataset: how a reader leaves them out, and what checks say of them.

Here belongs the SQL over `STATE_COLUMN`. What the rows are is the subject of `pipeline.dataset.history` and of the
write that makes them.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from pipeline.dataset import Dataset
from pipeline.dataset.history import STATE_COLUMN
from pipeline.dataset.schema import is_string
from pipeline.delta.sql.quoting import bare_type, identifier, string

IS_OF_DATASET = f"{identifier(STATE_COLUMN)} IS NULL"


def without_state_rows(frame: DataFrame) -> DataFrame:
    """The rows of the dataset, without `STATE_COLUMN`. A frame without that column is returned as it is."""
    return frame.filter(IS_OF_DATASET).drop(STATE_COLUMN) if STATE_COLUMN in frame.columns else frame


def table_checks(dataset: Dataset) -> dict[str, str]:
    """The conditions of the declared checks by name, as the table has them: true for rows that are no rows of it."""
    before = f"{identifier(STATE_COLUMN)} IS NOT NULL OR " if dataset.keeps_state else ""
    return {c.name: f"{before}({c.condition})" if before else c.condition for c in dataset.checks}


def state_problems(dataset: Dataset, *, keeps_state: bool) -> Iterator[str]:
    """A message if a table has the column without need, or lacks it. It can't be added to a table."""
    if dataset.keeps_state != keeps_state:
        now, then = ("lacks", "needs") if dataset.keeps_state else ("has", "can't have")
        yield (
            f"partition column {STATE_COLUMN}: the table {now} it, and the declared write mode {then} it; "
            "declare the dataset under another name"
        )


def filler(field: StructField) -> str:
    """SQL for the value of a column in a row that has none: NULL, or a value that NOT NULL accepts."""
    return _value(field.dataType) if _needs_value(field) else f"CAST(NULL AS {bare_type(field.dataType)})"


def _needs_value(field: StructField) -> bool:
    """Whether NULL breaks NOT NULL. A NOT NULL field of a NULL struct counts as NULL, as in Delta."""
    nested = field.dataType.fields if isinstance(field.dataType, StructType) else []
    return not field.nullable or any(map(_needs_value, nested))


def _value(data_type: DataType) -> str:
    kind = bare_type(data_type)
    if isinstance(data_type, StructType):
        fields = ", ".join(f"{string(field.name)}, {filler(field)}" for field in data_type.fields)
        return f"CAST(named_struct({fields}) AS {kind})"
    if isinstance(data_type, ArrayType | MapType):
        return f"CAST({'array' if isinstance(data_type, ArrayType) else 'map'}() AS {kind})"
    if isinstance(data_type, VariantType):
        return "parse_json('null')"
    if isinstance(data_type, BooleanType):
        return "FALSE"
    if isinstance(data_type, DateType | TimestampType | TimestampNTZType):
        return f"CAST('1970-01-01' AS {kind})"
    text = "''" if is_string(data_type) else "X''" if isinstance(data_type, BinaryType) else "0"
    return f"CAST({text} AS {kind})"
