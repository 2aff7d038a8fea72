"""What rows break, counted: NOT NULL, check constraints, the slice, partition values.

Here belong the conditions as SQL and the pass that counts them. Delta enforces them in the write itself; the counting
pass runs only after a refusal, to say which rows and how many.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from pipeline.dataset import Dataset, is_string
from pipeline.delta import sql
from pipeline.delta.slices import Slice

# How many distinct stray values an error names.
NAMED_VALUES = 10


def null_conditions(schema: StructType) -> dict[str, str]:
    """By column path, SQL that is true where a NOT NULL column or struct field is NULL.

    A field of a NULL struct counts as NULL, as it does for Delta.
    """
    return dict(_null_conditions(schema, "", ""))


def _null_conditions(schema: StructType, path: str, column: str) -> list[tuple[str, str]]:
    found = []
    for field in schema.fields:
        inner_path = f"{path}.{field.name}" if path else field.name
        inner_column = f"{column}.{sql.identifier(field.name)}" if column else sql.identifier(field.name)
        if not field.nullable:
            found.append((inner_path, f"{inner_column} IS NULL"))
        if isinstance(field.dataType, StructType):
            found += _null_conditions(field.dataType, inner_path, inner_column)
    return found


def check_conditions(dataset: Dataset) -> dict[str, str]:
    """By the constraint's name, SQL that is true where a check is false or NULL."""
    return {check.name: f"NOT coalesce(({check.condition}), FALSE)" for check in dataset.checks}


def empty_partition_conditions(dataset: Dataset) -> dict[str, str]:
    """By partition column, SQL that is true where a string is empty: Delta stores '' and NULL alike (delta#2100)."""
    return {
        column: f"{sql.identifier(column)} = ''"
        for column in dataset.partition_by
        if is_string(dataset.field(column).dataType)
    }


def outside(dataset: Dataset, within: Slice) -> str:
    """SQL that is true for rows outside the slice, NULL partition values included."""
    return f"NOT coalesce(({within.predicate(dataset)}), FALSE)"


def count(frame: DataFrame, conditions: Mapping[str, str]) -> dict[str, int]:
    """Rows per condition, those that hold nowhere left out; one Spark job."""
    if not conditions:
        return {}
    counted = frame.selectExpr(
        *(f"count_if({condition}) AS c{position}" for position, condition in enumerate(conditions.values()))
    ).collect()[0]
    return {name: counted[position] for position, name in enumerate(conditions) if counted[position]}


def stray_values(frame: DataFrame, dataset: Dataset, within: Slice) -> tuple[dict[str, int], int]:
    """Rows outside the slice by partition value, the most frequent first, and their number; two Spark jobs."""
    columns = within.columns
    stray = frame.filter(outside(dataset, within))
    total = stray.count()
    if not total or not columns:
        return {}, total
    groups = stray.groupBy(*(sql.identifier(column) for column in columns)).count()
    most = groups.orderBy("count", ascending=False).limit(NAMED_VALUES).collect()
    return {", ".join(f"{c} = {row[c]}" for c in columns): row["count"] for row in most}, total
