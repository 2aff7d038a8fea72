"""The rows of an export: columns, condition and format, checked before anything is written, and the writing of files.

Here belong the frame, its form in each format, and the count of the rows in written files. Where the files are written
belongs to `target`.

CSV is that of RFC 4180 with a header: NULL is an empty field, an empty text is `""`. JSON has null for NULL, and texts
for decimals. In both, instants are in UTC with microseconds, and binary values are Base64.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from pipeline.dataset import TableRef
from pipeline.delta import sql
from pipeline.delta.export.request import DELTA, ExportRequest
from pipeline.delta.inspect.query import reading_frame
from pipeline.delta.read.version import ReadOptions, read
from pipeline.delta.spark.failures import SPARK_ERRORS, failure_of
from pipeline.delta.sql.exact import INSTANT_FORMAT, LOCAL_TIME_FORMAT, in_csv, in_folder, in_json
from pipeline.delta.storage.access import kept_store_errors
from pipeline.delta.storage.file_system import file_system, side_by_side
from pipeline.errors import ExportRefusedError
from pipeline.errors.spelling import did_you_mean

_VIEW = "pipeline_export"
_CSV = {"header": "true", "quote": '"', "escape": '"', "encoding": "UTF-8"}
# The name of each format in Spark, and the options of its writer.
_WRITERS: Mapping[str, tuple[str, dict[str, str]]] = {
    "delta": ("delta", {}),
    "parquet": ("parquet", {}),
    # Spark would remove the space around a text.
    "csv": ("csv", _CSV | {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}),
    "ndjson": (
        "json",
        {
            "ignoreNullFields": "false", "encoding": "UTF-8",
            "timestampFormat": INSTANT_FORMAT, "timestampNTZFormat": LOCAL_TIME_FORMAT,
        },
    ),
}  # fmt: skip
# Spark would write a marker of its own before the rows are counted.
_NO_MARKER = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


def selected(clone: SparkSession, table: TableRef, version: int, request: ExportRequest) -> DataFrame:
    """The rows of a version that a request asks for. No Spark job.

    Args:
        clone: a private session.

    Raises:
        ExportRefusedError: with every wrong column, or the condition that Spark can't analyse.
        QueryError: the condition runs a program or calls Java.
        PipelineError: the errors of `read`.
    """
    whole = read(clone, table, ReadOptions(version=version)).frame
    refuse(table, request, _column_problems(request.columns, whole.columns))
    rows = whole if request.where is None else _filtered(clone, table, whole, request)
    return rows.selectExpr(*map(sql.identifier, request.columns or whole.columns))


def refuse(table: TableRef, request: ExportRequest, problems: Iterable[str]) -> None:
    """Raise ExportRefusedError with these problems, if there are any."""
    named = tuple(problems)
    if named:
        raise ExportRefusedError(dataset=table.name, format=request.format, problems=named)


def _column_problems(asked: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    for name, count in Counter(asked).items():
        if name not in names:
            yield f"the table has no column {name!r}. {did_you_mean(name, names)}".rstrip()
        elif count > 1:
            yield f"column {name!r} is named {count} times"


def _filtered(clone: SparkSession, table: TableRef, whole: DataFrame, request: ExportRequest) -> DataFrame:
    """The rows that meet the condition. A comment at its end does not hide the bracket after it."""
    condition = f"({request.where}\n)"
    try:
        whole.filter(condition).schema  # noqa: B018  a Connect client analyses the condition for the schema
    except SPARK_ERRORS as error:
        refuse(table, request, [f"the condition {request.where!r}: {failure_of(error).summary}"])
    whole.createOrReplaceTempView(_VIEW)
    return reading_frame(clone, f"SELECT * FROM {_VIEW} WHERE {condition}")  # noqa: S608  it is analysed above


# --- files ------------------------------------------------------------------------------------------------------------


def write_files(frame: DataFrame, format: str, partition_by: Sequence[str], folder: str) -> None:  # noqa: A002
    """Write a frame to files in a folder, those of each partition in a folder of its own. One Spark job.

    A Delta table is created in the folder.
    """
    name, options = _WRITERS[format]
    writer = frame.selectExpr(*_in_format(frame.schema, format, partition_by)).write.format(name).mode("append")
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    writer.options(**options, **({} if format == DELTA else _NO_MARKER)).save(folder)


def _in_format(schema: StructType, format: str, partition_by: Sequence[str]) -> list[str]:  # noqa: A002
    if format == DELTA:
        return [sql.identifier(name) for name in schema.names]
    plain = {"csv": in_csv, "ndjson": in_json}.get(format, _unchanged)
    return [in_folder(f) if f.name in partition_by else plain(f) for f in schema.fields]


def _unchanged(field: StructField) -> str:
    return sql.identifier(field.name)


def rows_by_file(folder: str, paths: Sequence[str]) -> dict[str, int]:
    """The rows of Parquet files below a folder, from their footers. No Spark."""

    def rows(path: str) -> int:
        import pyarrow.parquet as pq

        system, top = file_system(folder)
        with kept_store_errors(), system.open_input_file(f"{top}/{path}") as file:
            return int(pq.ParquetFile(file).metadata.num_rows)

    return dict(zip(paths, side_by_side(rows, paths, folder), strict=True))


def count_rows(clone: SparkSession, format: str, columns: Sequence[str], files: Sequence[str]) -> int:  # noqa: A002
    """The rows of CSV or NDJSON files. One Spark job."""
    paths = [sql.path_pattern(file) for file in files]
    if not paths:
        return 0
    reader: Any = clone.read.option("recursiveFileLookup", "true")
    if format == "csv":
        schema = StructType([StructField(name, StringType()) for name in columns])
        return int(reader.schema(schema).options(**_CSV, multiLine="true").csv(paths).count())
    return int(reader.text(paths).count())
