"""Count the rows that break a condition: NOT NULL, check constraints, the slice, partition values.

Here belong the conditions as SQL and the Spark jobs that count them. Delta enforces the conditions in the write
itself. Rows are counted after a refused write, to report which rows and how many, or before a write that leaves rows
out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own name for it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from pipeline.dataset import Dataset
from pipeline.dataset.expectations import null_label
from pipeline.dataset.schema import free_name, is_string
from pipeline.dataset.write_mode import is_comparable
from pipeline.delta import sql
from pipeline.delta.spark.failures import SPARK_ERRORS, failure_of
from pipeline.delta.sql.slices import Slice
from pipeline.errors import DeclarationError

# How many distinct keys or partition values an error names.
NAMED_VALUES = 10
# How many rows that break a constraint are shown, and with how many columns if no keys are declared.
EXAMPLES = 5
_EXAMPLE_COLUMNS = 5
_EXAMPLE_CHARACTERS = 60
# The name of the folder of NULL (`ExternalCatalogUtils`).
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
# The longest name of a file or folder in local file systems and HDFS. Object stores have no such limit.
FOLDER_NAME_BYTES = 255
# Characters that are escaped as three in a folder's name (`ExternalCatalogUtils.escapePathName`).
_ESCAPED = r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]"""
# The length of a mapped column's physical name: `col-` and a UUID.
_MAPPED_NAME_BYTES = 40


_NOT_SHOWN: tuple[type[DataType], ...] = (ArrayType, BinaryType, MapType, StructType, VariantType)


@dataclass(frozen=True)
class BrokenRows:
    """The rows that break a constraint: their number, and a few examples, shown by the columns that identify them."""

    rows: int
    examples: tuple[str, ...] = ()


def null_conditions(schema: StructType, kept: Collection[str] = ()) -> dict[str, str]:
    """By column path, SQL that is true if a NOT NULL column or struct field is NULL; without the columns in `kept`.

    A field of a NULL struct counts as NULL, as in Delta.
    """
    checked = StructType([field for field in schema.fields if field.name not in kept])
    return dict(_null_conditions(checked, "", ""))


def _null_conditions(schema: StructType, path: str, column: str) -> list[tuple[str, str]]:
    conditions = []
    for field in schema.fields:
        inner_path = f"{path}.{field.name}" if path else field.name
        inner_column = f"{column}.{sql.identifier(field.name)}" if column else sql.identifier(field.name)
        if not field.nullable:
            conditions.append((inner_path, f"{inner_column} IS NULL"))
        if isinstance(field.dataType, StructType):
            conditions += _null_conditions(field.dataType, inner_path, inner_column)
    return conditions


def check_conditions(dataset: Dataset) -> dict[str, str]:
    """By the name of the check, SQL that is true if the check is false or NULL."""
    return {check.name: f"NOT coalesce(({check.condition}), FALSE)" for check in dataset.checks}


def lost_partition_conditions(dataset: Dataset) -> dict[str, str]:
    """By partition column, SQL that is true for a text that is read back as NULL: '' (delta#2100) and `NULL_FOLDER`."""
    lost = ", ".join(map(sql.string, ("", NULL_FOLDER)))
    return {
        column: f"{sql.identifier(column)} IN ({lost})"
        for column in dataset.partition_by
        if is_string(dataset.field(column).dataType)
    }


def generated_conditions(dataset: Dataset) -> dict[str, str]:
    """By generated column, SQL that is true if its value differs from that of its expression."""
    return {
        column: f"NOT ({sql.identifier(column)} <=> CAST(({text}) AS {sql.bare_type(dataset.field(column).dataType)}))"
        for column, text in dataset.features.generated
    }


def long_partition_conditions(dataset: Dataset, limit: int = FOLDER_NAME_BYTES) -> dict[str, str]:
    """By partition column, SQL that is true if a text can't name a folder: it is too long, or holds a NUL character."""
    return {
        column: (
            f"octet_length(regexp_replace({sql.identifier(column)}, {sql.string(_ESCAPED)}, '%00')) > "
            f"{limit - _prefix_bytes(dataset, column)} OR instr({sql.identifier(column)}, char(0)) > 0"
        )
        for column in dataset.partition_by
        if is_string(dataset.field(column).dataType)
    }


def _prefix_bytes(dataset: Dataset, column: str) -> int:
    return (_MAPPED_NAME_BYTES if dataset.features.maps_columns else len(column.encode())) + len("=")


def outside_condition(dataset: Dataset, within: Slice) -> str:
    """SQL that is true for rows outside the slice, NULL partition values included."""
    return f"NOT coalesce(({within.predicate(dataset)}), FALSE)"


def count_broken(frame: DataFrame, dataset: Dataset, conditions: Mapping[str, str]) -> dict[str, BrokenRows]:
    """The rows for which each condition is true, without conditions that no row meets; one Spark job."""
    if not conditions:
        return {}
    counted = frame.selectExpr(*count_expressions(dataset, conditions)).collect()[0]
    by_name = {name: broken_in(counted, position) for position, name in enumerate(conditions)}
    return {name: broken for name, broken in by_name.items() if broken.rows}


def count_expressions(dataset: Dataset, conditions: Mapping[str, str]) -> list[str]:
    """SQL aggregates over the rows of each condition, for `broken_in` to read; examples are the first by their text.

    Args:
        conditions: by name of the constraint, SQL that is true for a row that breaks it.
    """
    aggregates = []
    for position, (name, condition) in enumerate(conditions.items()):
        example = _example(dataset, name)
        aggregates.append(f"count_if({condition}) AS c{position}")
        aggregates.append(f"min_by({example}, {example}, {EXAMPLES}) FILTER (WHERE {condition}) AS e{position}")
    return aggregates


def broken_in(counted: Row, position: int) -> BrokenRows:
    """The count and examples of the condition at this position, from the result row of `count_expressions`."""
    return BrokenRows(counted[f"c{position}"], tuple(counted[f"e{position}"] or ()))


def _example(dataset: Dataset, constraint: str) -> str:
    """SQL for a row as text: its keys, or else its partition columns and the first other columns of atomic types.

    The keys are not used if the broken constraint is NULL in one of them.
    """
    plain = [field.name for field in dataset.schema.fields if not isinstance(field.dataType, _NOT_SHOWN)]
    first = [name for name in (*dataset.partition_by, *plain) if name in plain]
    keys = () if constraint in map(null_label, dataset.keys) else dataset.keys
    columns = keys or tuple(dict.fromkeys(first))[:_EXAMPLE_COLUMNS] or (dataset.schema.names[0],)
    return f"concat_ws(', ', {', '.join(_shown(dataset.field(name)) for name in columns)})"


def _shown(field: StructField) -> str:
    column = sql.identifier(field.name)
    if isinstance(field.dataType, BinaryType):
        text = f"hex({column})"
    elif isinstance(field.dataType, _NOT_SHOWN):
        text = f"to_json(struct({column}))"
    else:
        text = f"CAST({column} AS STRING)"
    value = f"CASE WHEN {column} IS NULL THEN 'NULL' ELSE left({text}, {_EXAMPLE_CHARACTERS}) END"
    return f"concat({sql.string(f'{field.name} = ')}, {value})"


def refuse_unusable_checks(session: SparkSession, dataset: Dataset) -> None:
    """Refuse check conditions that Spark can't analyse over the declared columns; reads no table, runs no Spark job.

    Raises:
        DeclarationError: with every condition that does not parse, names an unknown column, or is not boolean.
    """
    if not dataset.checks:
        return
    fields = [StructField(f.name, StringType() if is_string(f.dataType) else f.dataType) for f in dataset.schema.fields]
    empty = session.createDataFrame([], StructType(fields))
    problems = []
    for check in dataset.checks:
        try:
            # A Connect client analyses the condition only when it needs the schema.
            empty.filter(f"({check.condition})").schema  # noqa: B018
        except SPARK_ERRORS as error:
            problems.append(f"check {check.name}: {check.condition!r}: {failure_of(error).summary}")
    if problems:
        raise DeclarationError(dataset=dataset.name, problems=tuple(problems))


def duplicate_keys(frame: DataFrame, keys: Sequence[str], row: str | None = None) -> tuple[dict[str, int], int]:
    """The row counts of keys with several rows, the most frequent first, and the number of such keys; two Spark jobs.

    Args:
        row: SQL for a row as one value; if given, only keys whose rows differ are counted.
    """
    rows, differ = (free_name(name, keys) for name in ("rows of key", "rows differ"))
    counted = frame.groupBy(*(sql.identifier(key) for key in keys)).agg(
        F.count("*").alias(rows), F.expr("TRUE" if row is None else f"NOT min({row}) <=> max({row})").alias(differ)
    )
    several = counted.filter(f"{sql.identifier(rows)} > 1 AND {sql.identifier(differ)}")
    total = several.count()
    if not total:
        return {}, 0
    most = several.orderBy(sql.identifier(rows), ascending=False).limit(NAMED_VALUES).collect()
    return {", ".join(f"{key} = {group[key]}" for key in keys): group[rows] for group in most}, total


def stray_values(frame: DataFrame, dataset: Dataset, within: Slice) -> tuple[dict[str, int], int]:
    """The counts of rows outside the slice by partition value, the most frequent first, and their total.

    Runs two Spark jobs.
    """
    columns = within.columns
    stray = frame.filter(outside_condition(dataset, within))
    total = stray.count()
    if not total or not columns:
        return {}, total
    rows = free_name("rows of values", columns)
    groups = stray.groupBy(*(sql.identifier(column) for column in columns)).agg(F.count("*").alias(rows))
    most = groups.orderBy(sql.identifier(rows), ascending=False).limit(NAMED_VALUES).collect()
    return {", ".join(f"{c} = {row[c]}" for c in columns): row[rows] for row in most}, total


def row_value(fields: Iterable[StructField]) -> str:
    """SQL for columns as one value that can be ordered; a column whose type has no order becomes its JSON."""
    return f"struct({', '.join(comparable(sql.identifier(field.name), field.dataType) for field in fields)})"


def comparable(column: str, data_type: DataType) -> str:
    """SQL for a column as a value that can be ordered; one whose type has no order becomes its JSON."""
    return column if is_comparable(data_type) else f"to_json(struct({column}))"


def guarded_columns(dataset: Dataset, within: Slice | None, guards: Sequence[str], alive: str = "TRUE") -> list[str]:
    """SQL of the declared columns; that of the first key column raises an error for a row that may not be merged.

    Args:
        guards: further branches of a CASE that raise an error.
        alive: SQL that is true for a row that the merge stores; a row that only deletes needs no partition value.
    """
    branches = list(guards)
    if within is not None:
        by_keys = set(within.columns) <= set(dataset.keys)
        stray = outside_condition(dataset, within) if by_keys else f"{alive} AND {outside_condition(dataset, within)}"
        branches.append(f"WHEN {stray} THEN raise_error('outside the slice')")
    for condition in lost_partition_conditions(dataset).values():
        branches.append(f"WHEN {alive} AND {condition} THEN raise_error('empty partition value')")
    first, columns = dataset.keys[0], []
    for name in dataset.schema.names:
        column = sql.identifier(name)
        guarded = f"CASE {' '.join(branches)} ELSE {column} END AS {column}"
        columns.append(guarded if name == first and branches else column)
    return columns
