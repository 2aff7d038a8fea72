"""SQL over the declared datasets: each is a view with a SQL name, at a pinned version.

Here belong the views, the check that a statement only reads, and exact values as text. `read` does every read of rows.
The caller's session does not change: views and confs are in a clone.

Spark's parser decides what a text is, not this module. A text is only run inside a statement of ours in which Spark's
grammar allows no write. A query runs as `SELECT * FROM (WITH … AS (text))`. SHOW or DESCRIBE runs with that keyword
first. EXPLAIN is only run for queries, because Spark's analysis already runs EXECUTE IMMEDIATE. A query can still call
Java or start a program; its plan shows that before any part of it is evaluated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import unquote

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    NumericType,
    StructType,
    TimestampType,
    VariantType,
)

from pipeline.dataset import Dataset, table_location
from pipeline.delta import sql
from pipeline.delta.inspect.lineage import plain_location, scans
from pipeline.delta.log.mark import private_session
from pipeline.delta.read.changes import WITHIN_RETENTION
from pipeline.delta.read.version import ReadFacts, ReadOptions, read, refuse_table_as_parquet
from pipeline.delta.read.window import Window
from pipeline.delta.spark.doors import door
from pipeline.delta.spark.failures import SPARK_ERRORS, failure_of
from pipeline.delta.spark.own_classes import executed_scans
from pipeline.delta.sql.exact import without_decimals
from pipeline.errors import PipelineError, QueryError, RegistryError, UnknownDatasetError
from pipeline.errors.spelling import near

_QUERY = "SELECT * FROM (WITH pipeline_query AS (\n{}\n) SELECT * FROM pipeline_query)"
# EXPLAIN of a command does not optimize its query. That matters because the optimizer evaluates functions.
_ANALYSIS = "EXPLAIN EXTENDED CREATE OR REPLACE TEMPORARY VIEW pipeline_query AS {}"
_ANALYZED = "== Analyzed Logical Plan ==\nCreateViewCommand "
# Expressions with effects beyond the rows of a query, by their names in a plan, whatever their names in the text.
_ACTS = re.compile(r"\b(ScriptTransformation|(?:try_)?reflect\(|java_method\()", re.IGNORECASE)
_WORD = re.compile(r"\w+")
_METADATA_KEYWORDS = ("show", "describe", "desc", "explain")
_EXPLAINED = ("extended", "codegen", "cost", "formatted")
_COMMENT = re.compile(r"\s+|--[^\n]*(?:\n|$)|/\*.*?\*/", re.DOTALL)
# Positions in Spark's messages count from the start of our statement, not of the user's.
_POSITION = re.compile(r"\s*(?:SQLSTATE: \w+)?\s*\(line \d+, pos \d+\)|\s*SQLSTATE: \w+.*$")
_UNKNOWN = "TABLE_OR_VIEW_NOT_FOUND"
_JSON_OPTIONS = "map('ignoreNullFields', 'false', 'timestampFormat', 'yyyy-MM-dd HH:mm:ss.SSSSSS\\'Z\\'')"
# A table by the path of its Parquet files: SQL reads them as Parquet even if the folder is a Delta table.
_PARQUET_PATH = re.compile(r"\bparquet`?\s*\.\s*`((?:[^`]|``)+)`", re.IGNORECASE)
CHANGES_SUFFIX = "__changes"
_CONFS = {
    "spark.sql.scripting.enabled": "false",
    # The text of a plan must be complete, since the check for calls reads it.
    "spark.sql.debug.maxToStringFields": str(2**31 - 1),
    "spark.sql.maxPlanStringLength": str(2**31 - 16),
}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The rows of a query as exact text; None is NULL.

    Timestamps are in UTC and end in Z, binary values are hexadecimal, and nested values are JSON in which decimals are
    strings. `versions` are those of the datasets that the statement could read, and `reads` are its reads of them.
    `more` is true if rows were left out.
    """

    columns: tuple[str, ...]
    types: tuple[DataType, ...]
    rows: tuple[tuple[str | None, ...], ...]
    versions: Mapping[str, int]
    more: bool
    reads: tuple[ReadFacts, ...] = ()

    def document(self) -> dict[str, Any]:
        """The answer in JSON's types. Decimals, and numbers that JSON does not have, stay text."""
        columns = [
            {"name": name, "type": kind.simpleString()} for name, kind in zip(self.columns, self.types, strict=True)
        ]
        rows = [[_plain(v, kind) for v, kind in zip(row, self.types, strict=True)] for row in self.rows]
        reads = [asdict(read) for read in self.reads]
        return {"columns": columns, "rows": rows, "more": self.more, "versions": dict(self.versions), "reads": reads}


def _plain(value: str | None, kind: DataType) -> Any:
    if value is None:
        return None
    if isinstance(kind, BooleanType):
        return value == "true"
    if isinstance(kind, IntegralType):
        return int(value)
    if isinstance(kind, FloatType | DoubleType):
        return float(value) if math.isfinite(float(value)) else value
    return value


def changes_name(dataset: Dataset) -> str:
    """The name of the view of the dataset's change feed."""
    return f"{view_name(dataset)}{CHANGES_SUFFIX}"


def view_name(dataset: Dataset) -> str:
    """The name of the dataset's view: `/` becomes two underscores, `.` and `-` one."""
    return re.sub("[.-]", "_", dataset.name.replace("/", "__"))


@door
def query(
    session: SparkSession,
    statement: str,
    *,
    datasets: Iterable[Dataset],
    root: str,
    pins: Mapping[str, ReadOptions],
    everything: ReadOptions,
    limit: int,
) -> Answer:
    """Run one query over the datasets.

    Args:
        pins: how to read each named dataset, and with `changes` its change feed.
        everything: how to read all other datasets.
        limit: the greatest number of rows.

    Raises:
        QueryError: the statement does not only read, or Spark can't run it.
        UnknownDatasetError: the statement names a table that is not a dataset. The error has similar names.
        TableNotFoundError, VersionNotFoundError, StorageError, ChangesUnreadableError: a dataset that the statement
            names, or that is pinned, can't be read.
        RegistryError: two datasets would be the same view.
        NotParquetError: the statement names the folder of a Delta table as Parquet.
    """
    views = _names(datasets)
    for path in _PARQUET_PATH.findall(statement):
        refuse_table_as_parquet(path.replace("``", "`"))
    with _quiet(), query_session(session) as clone:
        reads: list[ReadFacts] = []
        missing: dict[str, PipelineError] = {}
        for name, dataset, options in _visible(statement, views, pins, everything):
            try:
                reads.append(_register(clone, name, dataset, root, options))
            except PipelineError as error:
                if dataset.name in pins:
                    raise
                missing[name] = error
        try:
            return answer_of(
                _frame(clone, statement), {view.dataset or "": view.version for view in reads}, limit, reads, root
            )
        except SPARK_ERRORS as error:
            raise _translated(error, views, missing) from error


def _register(clone: SparkSession, name: str, dataset: Dataset, root: str, options: ReadOptions) -> ReadFacts:
    if options.changes is not None:
        # Delta would refuse a change feed for its age alone. The window's verdict reports files that are gone.
        clone.conf.set(WITHIN_RETENTION, "false")
    rows = read(clone, dataset.at(root), options)
    rows.frame.createOrReplaceTempView(sql.identifier(name))
    if options.changes is None:
        return ReadFacts(name=name, dataset=dataset.name, kind="view", version=rows.version)
    return ReadFacts(
        name=name, dataset=dataset.name, kind="changes", version=rows.version, first=rows.first,
        files=rows.files_in_version,
    )  # fmt: skip


def answer_of(
    frame: DataFrame, versions: Mapping[str, int], limit: int, views: Iterable[ReadFacts] | None = None, root: str = ""
) -> Answer:
    """At most `limit` rows of a frame of a `query_session`, as text. If `views` are given, with the reads."""
    types = tuple(field.dataType for field in frame.schema.fields)
    shown = _exact(frame, types).limit(limit + 1)
    rows = shown.collect()
    return Answer(
        columns=tuple(frame.columns), types=types, rows=tuple(tuple(row) for row in rows[:limit]), versions=versions,
        more=len(rows) > limit, reads=() if views is None else tuple(_as_read(shown, tuple(views), root)),
    )  # fmt: skip


def _as_read(shown: DataFrame, views: Sequence[ReadFacts], root: str) -> Iterator[ReadFacts]:
    """The views, and tables by their paths, with the numbers of files and the pushed filters of the frame's plan."""
    places = {view.name: plain_location(table_location(root, view.dataset or "")) for view in views}
    known = {(places[view.name], view.version) for view in views}
    by_path = {
        (scan.location, scan.version): ReadFacts(name=scan.location, dataset=None, kind="table", version=scan.version)
        for scan in scans(shown)
        if scan.version is not None and (scan.location, scan.version) not in known
    }
    if not views and not by_path:
        return
    files = [_path(uri) for uri in shown.inputFiles()]
    executed = executed_scans(shown)
    filters = None if executed is None else list(_pushed(executed))
    for facts in (*views, *by_path.values()):
        if facts.kind == "changes":
            yield facts
            continue
        folder = f"{_path(places.get(facts.name, facts.name))}/"
        pushed = None if filters is None else tuple(text for path, text in filters if f"{path}/" == folder)
        yield replace(facts, files=sum(path.startswith(folder) for path in files), pushed_filters=pushed)


def _path(uri: str) -> str:
    """A URI of files in normal form: decoded, and without the scheme of this machine's disk."""
    return plain_location(unquote(uri))


def _pushed(scans: Iterable[Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """The folder of each scan, with each list of filters that is pushed into it."""
    for scan in scans:
        folder = _path(scan["Location"].partition("[")[2].rstrip("]"))
        texts = (scan.get(name, "[]") for name in ("PartitionFilters", "PushedFilters"))
        yield from ((folder, text) for text in texts if text != "[]")


@contextmanager
def query_session(session: SparkSession) -> Iterator[SparkSession]:
    """A clone of the session in UTC and without its variables, for rows to show."""
    with private_session(session, _CONFS) as clone:
        yield clone


@contextmanager
def _quiet() -> Iterator[None]:
    """Stop pyspark from printing every refused statement as JSON; the caller gets an error of ours."""
    # A logger of another class under this name would fail in every later error.
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def _names(datasets: Iterable[Dataset]) -> dict[str, Dataset]:
    """The datasets by the names of their two views: of the rows and of the changes."""
    views: dict[str, Dataset] = {}
    for dataset in datasets:
        for name in (view_name(dataset), changes_name(dataset)):
            other = next((d for known, d in views.items() if known.lower() == name.lower()), None)
            if other is not None:
                raise RegistryError(problems=(f"{other.name} and {dataset.name} would both be the SQL view {name}",))
            views[name] = dataset
    return views


def _visible(
    statement: str, views: Mapping[str, Dataset], pins: Mapping[str, ReadOptions], everything: ReadOptions
) -> Iterator[tuple[str, Dataset, ReadOptions]]:
    """The views that a statement may name, those of changes last.

    Only these are opened, since that takes time. A statement contains the names of its views.
    """
    text = statement.lower()
    for name, dataset in sorted(views.items(), key=lambda pair: pair[0] == changes_name(pair[1])):
        options = pins.get(dataset.name, everything)
        if name == changes_name(dataset):
            if name.lower() in text or ("identifier" in text and CHANGES_SUFFIX in text):
                yield name, dataset, replace(options, changes=options.changes or Window())
        elif _is_metadata_statement(statement) or name.lower() in text or dataset.name in pins or "identifier" in text:
            yield name, dataset, replace(options, changes=None)


def _is_metadata_statement(statement: str) -> bool:
    """Whether the first word is SHOW, DESCRIBE or EXPLAIN."""
    return _first_word(statement)[0] in _METADATA_KEYWORDS


def _first_word(text: str) -> tuple[str, str]:
    """The first word after the comments, in lower case, and the text after it."""
    start = 0
    while (skipped := _COMMENT.match(text, start)) is not None:
        start = skipped.end()
    word = _WORD.match(text, start)
    return (word[0].lower(), text[word.end() :]) if word is not None else ("", text)


def _frame(clone: SparkSession, statement: str) -> DataFrame:
    """The frame of a statement. No part of it is evaluated before it is known to read only."""
    word, rest = _first_word(statement)
    if word not in _METADATA_KEYWORDS:
        return _reading(clone, _as_query(statement))
    if word != "explain":
        return clone.sql(f"{word} {rest}")
    mode, query_text = _first_word(rest)
    if mode not in _EXPLAINED:
        mode, query_text = "", rest
    wrapped = _as_query(query_text)
    _reading(clone, wrapped)
    return clone.sql(f"EXPLAIN {mode} {wrapped}")


def reading_frame(clone: SparkSession, text: str) -> DataFrame:
    """The frame of a query, of which nothing is evaluated yet.

    Args:
        clone: a private session.

    Raises:
        QueryError: the query runs a program or calls Java.
    """
    return _reading(clone, _as_query(text))


def _as_query(text: str) -> str:
    return _QUERY.format(text.rstrip("; \t\r\n"))


def _reading(clone: SparkSession, wrapped: str) -> DataFrame:
    """The frame of a query, after its analysis alone. If its plan has a call with effects, raises QueryError."""
    frame = clone.sql(wrapped)
    ((explained,),) = clone.sql(_ANALYSIS.format(wrapped)).collect()
    plan = explained.replace(wrapped, "")
    if _ANALYZED not in plan:
        raise QueryError(reason="its plan is unknown", is_query=False)
    acts = _ACTS.search(plan)
    if acts is not None:
        name = "TRANSFORM" if acts[1].startswith("Script") else acts[1].rstrip("(")
        raise QueryError(reason=f"{name} runs a program or calls Java", is_query=False)
    return frame


def _exact(frame: DataFrame, types: tuple[DataType, ...]) -> DataFrame:
    """The columns by position, since two may have the same name, with every value as text."""
    names = [f"c{position}" for position in range(len(types))]
    return frame.toDF(*names).selectExpr(*(_text(name, kind) for name, kind in zip(names, types, strict=True)))


def _text(column: str, kind: DataType) -> str:
    if isinstance(kind, BinaryType):
        return f"hex({column})"
    if isinstance(kind, TimestampType):
        return f"CAST({column} AS STRING) || 'Z'"
    if isinstance(kind, StructType | ArrayType | MapType):
        return f"to_json(CAST({column} AS {sql.type_name(without_decimals(kind))}), {_JSON_OPTIONS})"
    if isinstance(kind, VariantType):
        return f"to_json({column})"
    return f"CAST({column} AS STRING)"


def _translated(error: Exception, views: Mapping[str, Dataset], missing: Mapping[str, PipelineError]) -> PipelineError:
    failure = failure_of(error)
    if failure.has(frozenset({_UNKNOWN})):
        asked = _relation(error)
        known = {name.lower(): name for name in views}
        unread = missing.get(known.get(asked.lower(), ""))
        if unread is not None:
            return unread
        # Each dataset has two views with similar names. If the unknown name is of changes, only those are similar.
        stem, of_changes, _ = asked.lower().partition(CHANGES_SUFFIX[:-1])
        candidates = {
            low.removesuffix(CHANGES_SUFFIX): name
            for low, name in known.items()
            if low.endswith(CHANGES_SUFFIX) == bool(of_changes)
        }
        similar = tuple(candidates[name] for name in near(stem, candidates))
        return UnknownDatasetError(name=asked, near=similar, known=tuple(candidates.values()))
    is_query = not failure.has(frozenset({"PARSE_SYNTAX_ERROR", "UNSUPPORTED_FEATURE.SQL_SCRIPTING"}))
    return QueryError(reason=_POSITION.sub("", failure.summary), is_query=is_query)


def _relation(error: Exception) -> str:
    parameters = error.getMessageParameters() if isinstance(error, PySparkException) else None
    return (parameters or {}).get("relationName", "").replace("`", "")


def is_number(kind: DataType) -> bool:
    """Whether values of the type are numbers."""
    return isinstance(kind, NumericType)
