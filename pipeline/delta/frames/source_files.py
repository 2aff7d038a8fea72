"""Delivered files as frames: of CSV whole files with the right header and no line that can't be parsed, or an error.

Here belongs what is true of any delivery; what the columns mean belongs to the subject. Files are read by Spark only,
so that they may lie on any storage. One of CSV is taken as one row first: that gives every line its number, and asks
that a file fits in memory.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own name for it
from pyspark.sql.types import StringType, StructField, StructType

from pipeline.delta.spark.failures import SPARK_ERRORS, failure_of
from pipeline.delta.sql.quoting import path_pattern
from pipeline.errors import SourceFileError

Belongs = Callable[[Column, Column], Column]

# Spark's condition for a path under which there is nothing.
NOT_THERE = frozenset({"PATH_NOT_FOUND"})
MISSING = "NA"
EXCERPT_CHARACTERS = 120
FILES_PER_BATCH = 100
TIMESTAMP_FORMAT = "yyyy-MM-dd'T'HH:mm:ssXXX"
_CORRUPT = "_corrupt_line"


def read_csv_files(
    session: SparkSession, paths: Sequence[str], form: StructType, belongs: Belongs | None = None
) -> DataFrame:
    """The rows of these files, checked: one Spark job now, and a second look at the files when the frame is used.

    Fields that are empty or `NA` are NULL. Timestamps carry a zone.

    Args:
        form: the columns in the order of the file, under the names in its header; NOT NULL where a line must have one.
        belongs: of a parsed line and the URI of its file, whether the one may stand in the other.

    Raises:
        SourceFileError: a file is missing, empty, can't be read or has another header, or a line has too few or too
            many fields, a value of another type, lacks one or belongs to another file. The first such line is named.
    """
    try:
        lines = _lines(session, paths)
        _check(lines, paths, form, belongs)
    except SPARK_ERRORS as error:
        raise _unreadable(session, error, paths) from error
    # A file that changes after the check fails the write, where the lenient mode would turn its faults into NULL.
    rows = lines.filter(F.col("number") > 1).select(_parsed(form, "FAILFAST").alias("row"))
    return rows.select(*(F.col("row").getField(name).alias(name) for name in form.names))


def stream_json_files(session: SparkSession, folder: str, form: StructType) -> DataFrame:
    """A stream of the lines of a folder's `*.ndjson`, each a file that comes whole; so many files a batch at most.

    A line that can't be parsed, or has a value of another type, fails the query and its batch; a field that is missing
    is NULL.

    Raises:
        SourceFileError: the folder is not there, or can't be read.
    """
    options = {"mode": "FAILFAST", "pathGlobFilter": "*.ndjson", "maxFilesPerTrigger": str(FILES_PER_BATCH)}
    try:
        frame = session.readStream.schema(form).options(**options).json(folder)
        frame.columns  # noqa: B018  makes a Connect client ask the server
    except SPARK_ERRORS as error:
        failure = failure_of(error)
        is_there = not failure.has(NOT_THERE)
        problem = f"can't be read: {failure.summary}" if is_there else "the folder is not there"
        raise SourceFileError(path=folder, problem=problem) from error
    return frame


def _lines(session: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Every line that is not blank, with the file's URI and its number from 1."""
    files = session.read.text([path_pattern(path) for path in paths], wholetext=True)
    return (
        files.select(F.col("_metadata.file_path").alias("path"), F.posexplode(F.split("value", r"\r\n|\n|\r")))
        .select("path", (F.col("pos") + 1).alias("number"), F.col("col").alias("line"))
        .filter(F.trim("line") != "")
    )


def _parsed(form: StructType, mode: str) -> Column:
    fields = [StructField(field.name, field.dataType) for field in form.fields]
    kept = StructType([*fields, StructField(_CORRUPT, StringType())])
    options = {
        "mode": mode,
        "nullValue": MISSING,
        "timestampFormat": TIMESTAMP_FORMAT,
        "columnNameOfCorruptRecord": _CORRUPT,
    }
    return F.from_csv("line", _ddl(kept if mode == "PERMISSIVE" else StructType(fields)), options)


def _ddl(form: StructType) -> str:
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in form.fields)


def _check(lines: DataFrame, paths: Sequence[str], form: StructType, belongs: Belongs | None) -> None:
    """Raise for the first line that is not as it must be, and for a file without any."""
    header = ",".join(form.names)
    is_first = F.col("number") == 1
    required = [F.col("row").getField(field.name).isNull() for field in form.fields if not field.nullable]
    is_unparsed = F.col("row").getField(_CORRUPT).isNotNull()
    if belongs is not None:
        required.append(~F.coalesce(belongs(F.col("row"), F.col("path")), F.lit(False)))
    is_bad = F.when(is_first, F.col("line") != header).otherwise(
        F.greatest(is_unparsed, *required) if required else is_unparsed
    )
    found = (
        lines.withColumn("row", _parsed(form, "PERMISSIVE"))
        .agg(
            F.min(F.when(is_bad, F.struct("path", "number", "line", "row"))).alias("bad"),
            F.count_if(is_first).alias("files"),
        )
        .collect()[0]
    )
    if found["bad"] is not None:
        raise _fault(found["bad"], form)
    if found["files"] != len(paths):
        there = {_name(row["path"]) for row in lines.filter(is_first).select("path").collect()}
        empty = next(path for path in paths if _name(path) not in there)
        raise SourceFileError(path=empty, problem=f"it is empty, or its first line is; expected {header}")


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _fault(bad: Row, form: StructType) -> SourceFileError:
    """What is wrong with a line: asked of what could be parsed of it, field by field."""
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
    return "it can't be parsed, or belongs into another file"


def _unreadable(session: SparkSession, error: Exception, paths: Sequence[str]) -> SourceFileError:
    failure = failure_of(error)
    if not failure.has(NOT_THERE):
        return SourceFileError(path=", ".join(paths[:1]), problem=f"can't be read: {failure.summary}")
    missing = next((path for path in paths if _is_missing(session, path)), paths[0])
    return SourceFileError(path=missing, problem="the file is not there")


def _is_missing(session: SparkSession, path: str) -> bool:
    """Whether Spark finds no file under that path; no job runs."""
    try:
        session.read.text(path_pattern(path)).columns  # noqa: B018  makes a Connect client ask the server
    except SPARK_ERRORS as error:
        return failure_of(error).has(NOT_THERE)
    return False
