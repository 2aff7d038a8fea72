"""Partition keys into typed slices of a table, and counts of a commit back to keys.

Here alone is known what a Dagster partition key means. Literals follow the column's type, which the declaration says,
and keys are taken one by one: Dagster hands them over in no order.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dagster import PartitionsDefinition, TimeWindowPartitionsDefinition
from pyspark.sql.types import DateType

from pipeline.dataset import Dataset
from pipeline.delta.slices import Slice, of_values
from pipeline.errors import DeclarationError, PartitionKeyError

# Dagster's own name for the metadata that says which column the partition key stands for.
PARTITION_EXPR = "partition_expr"


def partition_column(dataset: Dataset, partitions_def: PartitionsDefinition[Any], expr: object | None = None) -> str:
    """The partition column that the keys stand for.

    Args:
        expr: the asset's `partition_expr`; may be left out where the table has one partition column.

    Raises:
        DeclarationError: no such column, or keys of this kind can't become values of its type.
    """
    column = expr if expr is not None else next(iter(dataset.partition_by), None)
    problem = None
    if expr is None and len(dataset.partition_by) != 1:
        problem = (
            f"it has {len(dataset.partition_by)} partition columns; say with {PARTITION_EXPR} which one the keys name"
        )
    elif not isinstance(column, str) or column not in dataset.partition_by:
        problem = f"{PARTITION_EXPR} is {column!r}, which is not one of its partition columns"
    elif not (_is_daily(partitions_def) and isinstance(dataset.field(column).dataType, DateType)):
        problem = (
            f"keys of {type(partitions_def).__name__} can't become values of {column}: "
            "daily keys that begin at midnight and a date column are supported"
        )
    if problem is not None:
        raise DeclarationError(dataset=dataset.name, problems=(f"its asset is partitioned in Dagster, but {problem}",))
    assert isinstance(column, str)  # noqa: S101  narrowed above, where mypy can't follow
    return column


def _is_daily(partitions_def: PartitionsDefinition[Any]) -> bool:
    return isinstance(partitions_def, TimeWindowPartitionsDefinition) and partitions_def.is_basic_daily


def key_values(dataset: Dataset, partitions_def: PartitionsDefinition[Any], keys: Iterable[str]) -> dict[str, dt.date]:
    """By key, the value of the partition column that it stands for.

    Raises:
        PartitionKeyError: with every key that is not one.
    """
    assert isinstance(partitions_def, TimeWindowPartitionsDefinition)  # noqa: S101  partition_column refuses others
    values = {}
    wrong = []
    for key in keys:
        try:
            values[key] = dt.datetime.strptime(key, partitions_def.fmt).date()
        except ValueError:
            wrong.append(key)
    if wrong:
        raise PartitionKeyError(
            dataset=dataset.name, keys=tuple(wrong), problem=f"expected the form {partitions_def.fmt}"
        )
    return values


def slice_of(
    dataset: Dataset, partitions_def: PartitionsDefinition[Any], keys: Sequence[str], expr: object | None = None
) -> Slice:
    """The slice that these keys address; no keys address nothing."""
    column = partition_column(dataset, partitions_def, expr)
    return of_values(column, key_values(dataset, partitions_def, keys).values())


def rows_by_key(
    dataset: Dataset,
    partitions_def: PartitionsDefinition[Any],
    keys: Sequence[str],
    rows_by_partition: Mapping[tuple[str | None, ...], int],
    expr: object | None = None,
) -> dict[str, int]:
    """By key, the rows of a commit; 0 for a key that got none.

    Partition values are spelled as the Delta protocol serializes them ("Partition Value Serialization").
    """
    position = dataset.partition_by.index(partition_column(dataset, partitions_def, expr))
    rows: dict[str | None, int] = {}
    for values, count in rows_by_partition.items():
        rows[values[position]] = rows.get(values[position], 0) + count
    return {key: rows.get(day.isoformat(), 0) for key, day in key_values(dataset, partitions_def, keys).items()}
