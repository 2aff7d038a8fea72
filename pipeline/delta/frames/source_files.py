"""Delivered files as frames. A CSV file with a wrong header, or a line that can't be parsed, is an error.

Here belongs what is common to all deliveries; the subject knows the meaning of the columns. Only Spark reads the files,
so that they may be on any storage. A CSV file is read as one row first, to number its lines, so it must fit in memory.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own name for it
from pyspark.sql.types import StringType, StructField, StructType

from pipeline.delta import sql
from pipeline.delta.spark.failures import SPARK_ERRORS, failure_of
from pipeline.errors import SourceFileError

Belongs = Callable[[Column, Column], Column]

# Spark's condition for a path without files.
NOT_THERE = frozenset({"PATH_NOT_FOUND"})
MISSING = "NA"
EXCERPT_CHARACTERS = 120
FILES_PER_BATCH = 100
TIMESTAMP_FORMAT = "yyyy-MM-dd'T'HH:mm:ssXXX"
_CORRUPT = "_corrupt_line"


def read_csv_files(
    session: SparkSession, paths: Sequence[str], form: StructType, belongs: Belongs | None = None
) -> DataFrame:
    """The checked rows of these files. One Spark job checks them now; a use of the frame reads them again.

    Fields that are empty or `NA` are NULL. Timestamps must have a zone.

    Args:
        form: the columns in the order of the file, with the names in its header. If a line must have a value, NOT NULL.
        belongs: whether a parsed line belongs to its file, from the line and the file's URI.

    Raises:
        SourceFileError: a file is missing, empty, can't be read or has another header; or a line has too few or too
            many fields, lacks a value, has one of another type or belongs to another file. It has the first such line.
    """
    try:
        lines = _lines(session, paths)
        _check(lines, paths, form, belongs)
    except SPARK_ERRORS as error:
        raise _unreadable(session, error, paths) from error
    # With FAILFAST a file that changes after the check fails the write; PERMISSIVE would read its faults as NULL.
    rows = lines.filter(F.col("number") > 1).select(_parsed(form, "FAILFAST").alias("row"))
    return rows.select(*(F.col("row").getField(name).alias(name) for name in form.names))


def stream_json_files(session: SparkSession, folder: str, form: StructType) -> DataFrame:
    """A stream of the lines of a folder's `*.ndjson`, at most `FILES_PER_BATCH` files a batch.

    Each file must appear in the folder complete. A line that can't be parsed, or has a value of another type, fails the
    query and its batch. A missing field is NULL.

    Raises:
        SourceFileError: the folder does not exist or can't be read.
    """
    options = {"mode": "FAILFAST", "pathGlobFilter": "*.ndjson", "maxFilesPerTrigger": str(FILES_PER_BATCH)}
    try:
        frame = session.readStream.schema(form).options(**options).json(folder)
        frame.columns  # noqa: B018  makes a Connect client call the server
    except SPARK_ERRORS as error:
        failure = failure_of(error)
        is_missing = failure.has(NOT_THERE)
        problem = "the folder does not exist" if is_missing else f"can't be read: {failure.summary}"
        raise SourceFileError(path=folder, problem=problem) from error
    return frame


def _lines(session: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Every line that is not blank, with the file's URI and its number from 1."""
    files = session.read.text([sql.path_pattern(path) for path in paths], wholetext=True)
    return (
        files.select(F.col("_metadata.file_path").alias("path"), F.posexplode(F.split("value", r"\r\n|\n|\r")))
        .select("path", (F.col("pos") + 1).alias("number"), F.col("col").alias("line"))
        .filter(F.trim("line") != "")
    )


def _parsed(form: StructType, mode: str) -> Column:
    fields = [StructField(field.name, field.dataType) for field in form.fields]
    with_corrupt = StructType([*fields, StructField(_CORRUPT, StringType())])
    options = {
        "mode": mode,
        "nullValue": MISSING,
        "timestampFormat": TIMESTAMP_FORMAT,
        "columnNameOfCorruptRecord": _CORRUPT,
    }
    return F.from_csv("line", _ddl(with_corrupt if mode == "PERMISSIVE" else StructType(fields)), options)


def _ddl(form: StructType) -> str:
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in form.fields)


def _check(lines: DataFrame, paths: Sequence[str], form: StructType, belongs: Belongs | None) -> None:
    """Raise for the first wrong line, and for a file without a first line."""
    header = ",".join(form.names)
    is_first = F.col("number") == 1
    required = [F.col("row").getField(field.name).isNull() for field in form.fields if not field.nullable]
    is_unparsed = F.col("row").getField(_CORRUPT).isNotNull()
    if belongs is not None:
        required.append(~F.coalesce(belongs(F.col("row"), F.col("path")), F.lit(False)))
    is_bad = F.when(is_first, F.col("line") != header).otherwise(
        F.greatest(is_unparsed, *required) if required else is_unparsed
    )
    summary = (
        lines.withColumn("row", _parsed(form, "PERMISSIVE"))
        .agg(
            F.min(F.when(is_bad, F.struct("path", "number", "line", "row"))).alias("bad"),
            F.count_if(is_first).alias("files"),
        )
        .collect()[0]
    )
    if summary["bad"] is not None:
        raise _fault(summary["bad"], form)
    if summary["files"] != len(paths):
        with_header = {_name(row["path"]) for row in lines.filter(is_first).select("path").collect()}
        empty = next(path for path in paths if _name(path) not in with_header)
        raise SourceFileError(path=empty, problem=f"it is empty, or its first line is; expected {header}")


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _fault(bad: Row, form: StructType) -> SourceFileError:
    """The error for a wrong line, with the first of its fields that is wrong."""
    if bad["number"] == 1:
        problem = f"the header must be {','.join(form.names)}"
    else:
        problem = _problem(next(csv.reader([bad["line"]])), bad["row"], form)
    excerpt = bad["line"][:EXCERPT_CHARACTERS]
    return SourceFileError(path=bad["path"], line=bad["number"], problem=problem, excerpt=excerpt)


def _problem(values: list[str], parsed: Row, form: StructType) -> str:
    if len(values) != len(form.fields):
        return f"it has {len(values)} fields, expected {len(form.fields)}"
    for field, value in zip(form.fields, values, strict=True):
        is_missing = value in ("", MISSING)
        if is_missing and not field.nullable:
            return f"{field.name} has no value, expected {field.dataType.simpleString()}"
        if not is_missing and parsed[field.name] is None:
            return f"{field.name} is {value!r}, expected {field.dataType.simpleString()}"
    return "it can't be parsed, or belongs to another file"


def _unreadable(session: SparkSession, error: Exception, paths: Sequence[str]) -> SourceFileError:
    failure = failure_of(error)
    if not failure.has(NOT_THERE):
        return SourceFileError(path=", ".join(paths[:1]), problem=f"can't be read: {failure.summary}")
    missing = next((path for path in paths if _is_missing(session, path)), paths[0])
    return SourceFileError(path=missing, problem="the file does not exist")


def _is_missing(session: SparkSession, path: str) -> bool:
    """Whether Spark finds no file at that path. Runs no job."""
    try:
        session.read.text(sql.path_pattern(path)).columns  # noqa: B018  makes a Connect client call the server
    except SPARK_ERRORS as error:
        return failure_of(error).has(NOT_THERE)
    return False
