"""The tables beside a dataset's own, in which rows are kept that its writes leave out: quarantine and rejected writes.

Here belong their names, their columns, and the names that a dataset's columns can't have for that reason. Which rows go
there belongs to `pipeline.delta`.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

QUARANTINE_SUFFIX, REJECTED_SUFFIX = "__quarantine", "__rejected"
REASONS, WRITER, EPOCH, TOKEN = "_reasons", "_writer", "_epoch", "_token"
RUN_ID, WRITE, NO_ROWS = "_run_id", "_write", "_no_rows"
# The columns of a quarantined row before the declared ones: the broken constraints, and the write that quarantined it.
QUARANTINE_FIELDS = (
    StructField(REASONS, ArrayType(StringType(), True), True, {"comment": "The constraints that the row breaks."}),
    StructField(WRITER, StringType(), True, {"comment": "The writer of the batch that the row came in."}),
    StructField(EPOCH, LongType(), True, {"comment": "The batch's epoch; of a consumer, the number of its cursors."}),
    StructField(TOKEN, StringType(), True, {"comment": "The token that the commits of that write carry."}),
    StructField(RUN_ID, StringType(), True, {"comment": "The run that wrote it."}),
    StructField("_set_apart_at", TimestampType(), True, {"comment": "When it was written here."}),
)
# The columns of a rejected row before those of the frame: the write that it belongs to, and how to commit it.
REJECTED_FIELDS = (
    StructField(RUN_ID, StringType(), True, {"comment": "The run of the write; without a run, the write's token."}),
    StructField(WRITER, StringType(), True, {"comment": "The writer of the batch that the row came in."}),
    StructField(EPOCH, LongType(), True, {"comment": "The batch's epoch; of a consumer, the number of its cursors."}),
    StructField(TOKEN, StringType(), True, {"comment": "The token of that write."}),
    StructField("_rejected_at", TimestampType(), True, {"comment": "When it was written here."}),
    StructField(NO_ROWS, BooleanType(), True, {"comment": "True in the one row of a write that has no rows."}),
    StructField(WRITE, StringType(), True, {"comment": "How the write is committed after all, as JSON."}),
)


def quarantine_schema(schema: StructType) -> StructType:
    """The schema of a quarantine: `QUARANTINE_FIELDS`, then the declared columns; each of them may be NULL.

    In this order Delta keeps statistics of the columns that identify a batch, however many columns are declared.
    """
    return StructType([*QUARANTINE_FIELDS, *(_relaxed(column) for column in schema.fields)])


def _relaxed(column: StructField) -> StructField:
    comment = (column.metadata or {}).get("comment")
    metadata = {"comment": comment} if comment is not None else {}
    return StructField(column.name, _nullable(column.dataType), True, metadata)


def _nullable(data_type: DataType) -> DataType:
    if isinstance(data_type, StructType):
        return StructType([_relaxed(inner) for inner in data_type.fields])
    if isinstance(data_type, ArrayType):
        return ArrayType(_nullable(data_type.elementType), True)
    if isinstance(data_type, MapType):
        return MapType(_nullable(data_type.keyType), _nullable(data_type.valueType), True)
    return data_type


def rejected_schema(schema: StructType, frame_columns: tuple[str, ...]) -> StructType:
    """The schema of rejected writes: `REJECTED_FIELDS`, the declared columns, then those that only the frame has.

    Each may be NULL. The declaration has no types for the columns of the frame: they are kept as texts.
    """
    of_frame = [StructField(name, StringType(), True, {"comment": "As text."}) for name in frame_columns]
    return StructType([*REJECTED_FIELDS, *(_relaxed(column) for column in schema.fields), *of_frame])


def name_problems(names: tuple[str, ...], *, quarantines: bool, rejects: bool) -> Iterator[str]:
    """Messages about columns with the name of a column that a side table adds."""
    for adds, fields, what in (
        (quarantines, QUARANTINE_FIELDS, "quarantine"), (rejects, REJECTED_FIELDS, "the table of rejected writes"),
    ):  # fmt: skip
        added = {column.name for column in fields} if adds else set()
        yield from (f"column {name!r} has a name that {what} adds" for name in names if name.lower() in added)
