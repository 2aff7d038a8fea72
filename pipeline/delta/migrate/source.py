"""The rows of the files of a plan, as a frame with the declared columns.

Here belongs the reading by Spark. Each group of files is read with its own columns and then selected by the plan's SQL,
so that Spark merges no schemas. The values of folders come from the plan and not from Spark, which would guess types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pipeline.dataset.schema import free_name
from pipeline.delta import sql
from pipeline.delta.frames.arrow_types import arrow_type
from pipeline.delta.log.mark import private_session
from pipeline.delta.migrate.contents import NANOSECONDS, FileColumn
from pipeline.delta.migrate.files import Format
from pipeline.delta.migrate.plan import MigrationPlan, PlannedFile
from pipeline.delta.migrate.schemas import Group
from pipeline.delta.storage.file_system import file_system
from pipeline.errors import MigrationRefusedError

# Spark reads nanoseconds as numbers only; the frame converts them.
_CONFS = {"spark.sql.legacy.parquet.nanosAsLong": "true"}
# With a text for NULL that no file has, an empty field is NULL, and `""` is the empty text.
_NULL = "NULL 6f1c0c1e8d0b4f0a"
_CSV = {
    "mode": "FAILFAST", "enforceSchema": "false", "header": "true", "multiLine": "true", "escape": '"',
    "nullValue": _NULL,
}  # fmt: skip
_NDJSON = {"mode": "FAILFAST"}
# A join by numbers takes a third of the time of one by the names themselves.
_FILE_KEY = "xxhash64(_metadata.file_path)"
_NANOS_IN_MICRO = 1000
_MOST_DIGITS = 38
# Between the names of a path: a character that is in no name.
_SEPARATOR = "\x1f"
_STEP = "['{}']"
# Spark's readers of texts round decimals, make an infinity of a number out of range, and leave out what a type does not
# have: the time of a date, a fraction of a microsecond. Therefore these are read as texts.
_TEXTS = (FractionalType, DateType, TimestampType, TimestampNTZType)
_DAY = "[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
_LOCAL = f"{_DAY}([T ][0-9]{{1,2}}:[0-9]{{1,2}}(:[0-9]{{1,2}}([.][0-9]{{0,6}}0*)?)?"
_PATTERNS: dict[type[DataType], str] = {
    DateType: f"{_DAY}([T ]0?0:0?0(:0?0([.]0*)?)?)?",
    TimestampType: f"{_LOCAL}( ?(Z|UTC|[+-][0-9]{{2}}(:?[0-9]{{2}})?))?)?",
    TimestampNTZType: f"{_LOCAL})?",
}


@contextmanager
def source_session(session: SparkSession) -> Iterator[SparkSession]:
    """A session that reads the source. A frame of `source_frame` can be used inside the block."""
    with private_session(session, _CONFS) as clone:
        yield clone


def source_frame(session: SparkSession, plan: MigrationPlan, files: Sequence[PlannedFile]) -> DataFrame:
    """The rows of these files of the plan, with the declared columns in declared order. Lazy.

    Args:
        session: a session of `source_session`.

    Raises:
        MigrationRefusedError: Spark does not list the planned files.
    """
    by_path = {file.path: file for file in files}
    keys = _file_keys(session, plan, list(by_path)) if plan.folders and files else {}
    frames = []
    for group in plan.groups:
        own = [by_path[path] for path in group.paths if path in by_path]
        if own:
            frames.append(_group_frame(session, plan, group, own, keys))
    if not frames:
        return session.createDataFrame([], StructType([StructField(f.name, f.dataType) for f in _declared(plan)]))
    return reduce(DataFrame.unionAll, frames)


def _declared(plan: MigrationPlan) -> list[StructField]:
    return list(plan.table.dataset.schema.fields)


def _group_frame(
    session: SparkSession, plan: MigrationPlan, group: Group, files: Sequence[PlannedFile], keys: Mapping[str, int]
) -> DataFrame:
    paths = [sql.path_pattern(uri(plan, file.path)) for file in files]
    given = [*(_given(column, plan.format) for column in group.columns), *(_absent(field) for field in group.absent)]
    frame = _read(session, plan, group, paths)
    if plan.folders:
        taken_names = [c.name for c in group.columns] + [c.name for c in plan.folders] + [f.name for f in group.absent]
        key = free_name("_file", taken_names)
        frame = frame.selectExpr(*given, f"{_FILE_KEY} AS {sql.identifier(key)}")
        frame = frame.join(_folder_frame(session, plan, files, keys, key).hint("broadcast"), key, "inner")
    else:
        frame = frame.selectExpr(*given)
    return frame.selectExpr(*(f"{text} AS {sql.identifier(name)}" for name, text in group.expressions.items()))


def _read(session: SparkSession, plan: MigrationPlan, group: Group, paths: list[str]) -> DataFrame:
    """The columns of the files as Spark reads them. Parquet's null type is not read."""
    fields = [
        StructField(c.name, _read_as(c, plan.format)) for c in group.columns if not isinstance(c.data_type, NullType)
    ]
    reader = session.read.schema(StructType(fields))
    if plan.format == "parquet":
        return reader.parquet(*paths)
    is_csv = plan.format == "csv"
    return reader.options(**(_CSV if is_csv else _NDJSON)).format("csv" if is_csv else "json").load(paths)


def _read_as(column: FileColumn, form: Format) -> DataType:
    if form != "parquet" and isinstance(column.data_type, _TEXTS):
        return StringType()
    return LongType() if column.unit == NANOSECONDS else column.data_type


def _given(column: FileColumn, form: Format) -> str:
    """The SQL of a file's column in its type."""
    name = sql.identifier(column.name)
    if form != "parquet" and isinstance(column.data_type, _TEXTS):
        return f"{_parsed(name, column)} AS {name}"
    if isinstance(column.data_type, NullType):
        return f"NULL AS {name}"
    if column.unit != NANOSECONDS:
        return name
    instant = f"timestamp_micros({name} div {_NANOS_IN_MICRO})"
    if isinstance(column.data_type, TimestampNTZType):
        instant = f"CAST({instant} AS TIMESTAMP_NTZ)"
    text = f"a value of {column.name} has a fraction of a microsecond, which a table can't keep"
    refused = f"raise_error({sql.string(text)})"
    return f"CASE WHEN {name} % {_NANOS_IN_MICRO} = 0 OR {name} IS NULL THEN {instant} ELSE {refused} END AS {name}"


def _parsed(name: str, column: FileColumn) -> str:
    """The SQL of the value of a text, which is refused if the type would not have all of it."""
    kind = sql.bare_type(column.data_type)
    value = f"CAST({name} AS {kind})"
    if isinstance(column.data_type, DecimalType):
        # With an exponent the digits do not show it; a type of the most fraction digits does.
        most = DecimalType(_MOST_DIGITS, _MOST_DIGITS - column.data_type.precision + column.data_type.scale)
        plain = rf"[+-]?[0-9]*([.][0-9]{{0,{column.data_type.scale}}}0*)?"
        is_same = f"{_matches(name, '.*[eE].*')} AND {value} = CAST({name} AS {sql.bare_type(most)})"
        is_exact = f"({_matches(name, plain)} OR ({is_same}))"
    elif isinstance(column.data_type, FractionalType):
        is_exact = f"({value} NOT IN ({kind}('Infinity'), {kind}('-Infinity')) OR lower({name}) LIKE '%inf%')"
    else:
        is_exact = _matches(name, _PATTERNS[type(column.data_type)])
    message = f"concat({sql.string(f'column {column.name}: type {kind} can not have the value ')}, {name})"
    return f"CASE WHEN {name} IS NULL OR {is_exact} THEN {value} ELSE raise_error({message}) END"


def _matches(text: str, pattern: str) -> str:
    return f"{text} RLIKE {sql.string(f'^({pattern})$')}"


def _absent(field: StructField) -> str:
    return f"CAST(NULL AS {sql.bare_type(field.dataType)}) AS {sql.identifier(field.name)}"


def uri(plan: MigrationPlan, path: str) -> str:
    """The URI of a file of the source."""
    return f"{plan.source.rstrip('/')}/{path}"


def _file_keys(session: SparkSession, plan: MigrationPlan, paths: Sequence[str]) -> dict[str, int]:
    """By path below the source, the hash of the name that Spark gives the file. No content is read.

    Raises:
        MigrationRefusedError: Spark lists other files, or two names have the same hash.
    """
    patterns = [sql.path_pattern(uri(plan, path)) for path in paths]
    listed = session.read.format("binaryFile").load(patterns).selectExpr("_metadata.file_path", _FILE_KEY)
    _, top = file_system(plan.source)
    keys = {below(str(row[0]), top): int(row[1]) for row in listed.collect()}
    others = sorted(keys.keys() ^ set(paths))
    problems = [f"{path}: this process and Spark do not list the same files" for path in others]
    if not others and len(set(keys.values())) < len(keys):
        problems = ["the names of two files have the same hash; rename one of them"]
    if problems:
        raise MigrationRefusedError(source=plan.source, location=plan.location, problems=tuple(problems))
    return keys


def below(name: str, top: str) -> str:
    """The path of a file below a folder, from Spark's name for the file, which escapes characters."""
    decoded, folder = unquote(name), f"{top.rstrip('/')}/"
    return decoded[decoded.find(folder) + len(folder) :]


def _folder_frame(
    session: SparkSession, plan: MigrationPlan, files: Iterable[PlannedFile], keys: Mapping[str, int], key: str
) -> DataFrame:
    """The typed values of the folders' columns, by the file's key."""
    import pyarrow as pa

    rows = list(files)
    fields = [StructField(key, LongType()), *(StructField(c.name, c.data_type) for c in plan.folders)]
    columns = [
        [keys[file.path] for file in rows],
        *([file.values[i] for file in rows] for i in range(len(plan.folders))),
    ]
    arrays = [pa.array(column, arrow_type(field.dataType)) for column, field in zip(columns, fields, strict=True)]
    return session.createDataFrame(pa.Table.from_arrays(arrays, names=[f.name for f in fields]), StructType(fields))


def rows_by_file(session: SparkSession, plan: MigrationPlan, files: Sequence[PlannedFile]) -> dict[str, int]:
    """The rows of each Parquet file as Spark counts them, from the footers. A file without rows is left out."""
    by_path = {file.path: file for file in files}
    _, top = file_system(plan.source)
    counted: dict[str, int] = {}
    for group in plan.groups:
        paths = [sql.path_pattern(uri(plan, path)) for path in group.paths if path in by_path]
        if paths:
            frame = _read(session, plan, group, paths).select("_metadata.file_path").groupBy("file_path").count()
            counted |= {below(str(row[0]), top): int(row[1]) for row in frame.collect()}
    return counted


def line_problems(session: SparkSession, plan: MigrationPlan, files: Sequence[PlannedFile]) -> tuple[str, ...]:
    """Messages about lines of CSV or NDJSON that Spark would read otherwise without an error. Reads every line."""
    _, top = file_system(plan.source)
    wrong = {"it has a line that is not UTF-8": "NOT is_valid_utf8(value)"}
    if plan.format == "ndjson":
        # A second object in a line, and all but the last value of a name that occurs twice, would be lost.
        wrong["it has a line that is no JSON object"] = (
            "trim(value) <> '' AND NOT (ltrim(value) LIKE '{%' AND json_array_length(concat('[', value, ']')) <=> 1)"
        )
        names = "json_object_keys(value)"
        wrong["it has a line in which a name occurs twice"] = f"size({names}) > size(array_distinct({names}))"
    cases = ", ".join(f"CASE WHEN {condition} THEN {sql.string(text)} END" for text, condition in wrong.items())
    lines = session.read.text([sql.path_pattern(uri(plan, file.path)) for file in files])
    found = lines.selectExpr(
        "_metadata.file_path AS path", f"explode(array_compact(array({cases}))) AS text"
    ).distinct()
    return tuple(sorted(f"{below(str(row['path']), top)}: {row['text']}" for row in found.collect()))


def undeclared_names(session: SparkSession, plan: MigrationPlan, files: Sequence[PlannedFile]) -> tuple[str, ...]:
    """The names in NDJSON lines that no column or field of a struct has: their values would be lost.

    Reads every line. The names in structs of an array or a map are not read.
    """
    columns = [StructField(column.name, column.data_type) for group in plan.groups for column in group.columns]
    known: set[str] = set()  # Spark compares their case too
    found = ["json_object_keys(value)"]
    for path, struct in _structs((), StructType(columns)):
        known |= {_SEPARATOR.join((*path, name)) for name in struct.names}
        if path:
            inside = f"get_json_object(value, {sql.string('$' + ''.join(map(_STEP.format, path)))})"
            before = sql.string(_SEPARATOR.join((*path, "")))
            found.append(f"transform(json_object_keys({inside}), name -> concat({before}, name))")
    names = ", ".join(f"coalesce({text}, array())" for text in found)
    lines = session.read.text([sql.path_pattern(uri(plan, file.path)) for file in files])
    rows = lines.selectExpr(f"explode(concat({names})) AS name").distinct().collect()
    return tuple(sorted(str(row[0]).replace(_SEPARATOR, ".") for row in rows if str(row[0]) not in known))


def _structs(path: tuple[str, ...], struct: StructType) -> Iterator[tuple[tuple[str, ...], StructType]]:
    """A struct and those in its fields, with their paths. A name with a quotation mark can't be in a path."""
    yield path, struct
    for field in struct.fields:
        if isinstance(field.dataType, StructType) and "'" not in field.name:
            yield from _structs((*path, field.name), field.dataType)
