"""Expectations of many rows: from frames to what was found, by aggregates that Spark computes.

Here belong the queries and the findings. Which rows are judged, and what follows, is decided by the callers: the audit
of a write judges rows before their commit, a check the rows of a version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own name for it
from pyspark.sql.types import BooleanType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset, Expect, History, RowCount
from pipeline.dataset.expectations import expectation_name
from pipeline.dataset.schema import free_name, is_string
from pipeline.delta import sql
from pipeline.delta.spark.failures import SPARK_ERRORS, failure_of
from pipeline.delta.sql.constraints import EXAMPLES, BrokenRows
from pipeline.errors import DeclarationError, ExpressionFailedError
from pipeline.errors.listing import listed

_ROWS = "rows of values"
# Of a value in an example.
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class Finding:
    """What was found of an expectation: whether it is met, the value in words, and the rows that break it.

    `rows` is None if the expectation is not broken by single rows.
    """

    passed: bool
    value: str
    rows: int | None = None
    examples: tuple[str, ...] = ()


def of_rows(broken: BrokenRows) -> Finding:
    """The finding of an expectation that rows break."""
    if not broken.rows:
        return Finding(True, "no row breaks it", 0)
    count = "1 row breaks it" if broken.rows == 1 else f"{broken.rows} rows break it"
    return Finding(False, f"{count}: {'; '.join(broken.examples)}", broken.rows, broken.examples)


# --- values that rows share, or that no other row has -----------------------------------------------------------------


def duplicate_values(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The values that several rows share in these columns, with the number of these rows. NULLs are equal values."""
    counted = frame.groupBy(*(sql.identifier(name) for name in columns)).agg(F.count("*").alias(_rows(columns)))
    return counted.filter(f"{sql.identifier(_rows(columns))} > 1")


def unmatched_values(frame: DataFrame, columns: Sequence[str], other: DataFrame, to: Sequence[str]) -> DataFrame:
    """The values that no row of `other` has in `to`, with the number of their rows. Values with a NULL are left out."""
    aliases = [f"v{position}" for position in range(len(columns))]
    is_present = " AND ".join(f"{sql.identifier(name)} IS NOT NULL" for name in columns)
    renamed = zip(columns, aliases, strict=True)
    values = frame.filter(is_present).selectExpr(*(f"{sql.identifier(name)} AS {alias}" for name, alias in renamed))
    targets = other.selectExpr(*(f"{sql.identifier(name)} AS {alias}" for name, alias in zip(to, aliases, strict=True)))
    counted = values.groupBy(*aliases).agg(F.count("*").alias(_rows(columns)))
    missing = counted.join(targets.distinct(), on=aliases, how="left_anti")
    restored = zip(aliases, columns, strict=True)
    return missing.selectExpr(
        *(f"{alias} AS {sql.identifier(name)}" for alias, name in restored), sql.identifier(_rows(columns))
    )


def _rows(columns: Sequence[str]) -> str:
    """A name, different from these, for the column with the number of rows."""
    return free_name(_ROWS, columns)


def broken_spans(frame: DataFrame, dataset: Dataset) -> DataFrame:
    """The keys and beginnings of spans that are wrong, with the number of their rows: see `Spans`."""
    mode = dataset.write
    assert isinstance(mode, History)  # noqa: S101  the declaration of `Spans` refuses other modes
    begin, end = sql.identifier(mode.valid_from), sql.identifier(mode.valid_to)
    columns = (*dataset.keys, mode.valid_from)
    is_open, latest, rank = (
        sql.identifier(sql.helper_name(dataset, name)) for name in ("is after open", "latest end", "rank of span")
    )
    order = f"PARTITION BY {sql.names(dataset.keys)} ORDER BY {begin}, {end} NULLS LAST"
    before = f"OVER ({order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    wrong = [f"{begin} IS NULL", f"{end} <= {begin}", f"coalesce({is_open}, FALSE)", f"{latest} > {begin}"]
    if mode.is_current is not None:
        wrong.append(f"NOT ({sql.identifier(mode.is_current)} <=> ({end} IS NULL))")
    judged = frame.selectExpr(
        "*", f"bool_or({end} IS NULL) {before} AS {is_open}", f"max({end}) {before} AS {latest}", f"1 AS {rank}"
    )
    return judged.filter(" OR ".join(f"({condition})" for condition in wrong)).selectExpr(
        *map(sql.identifier, columns), f"{rank} AS {sql.identifier(_rows(columns))}"
    )


def count_violations(values: DataFrame, columns: Sequence[str]) -> BrokenRows:
    """The number of rows that break an expectation, and some of their values. One Spark query."""
    rows = sql.identifier(_rows(columns))
    shown = {name: f"left(CAST({sql.identifier(name)} AS STRING), {_SHOWN_CHARACTERS})" for name in columns}
    texts = ", ".join(f"concat({sql.string(f'{name} = ')}, coalesce({value}, 'NULL'))" for name, value in shown.items())
    text = f"concat_ws(', ', {texts})"
    summary = values.selectExpr(f"sum({rows}) AS c0", f"min_by({text}, {text}, {EXAMPLES}) AS e0").collect()[0]
    return BrokenRows(int(summary["c0"] or 0), tuple(summary["e0"] or ()))


# --- aggregates -------------------------------------------------------------------------------------------------------


def aggregated(
    frame: DataFrame, dataset: Dataset, expectations: Sequence[Expect]
) -> tuple[dict[str, Finding], int]:  # fmt: skip
    """The findings of boolean aggregates over a frame, by name, and the number of its rows. One Spark query.

    Raises:
        ExpressionFailedError: the SQL raises for a row.
    """
    texts = [F.expr(f"CAST(({one.sql}) AS STRING)").alias(f"e{number}") for number, one in enumerate(expectations)]
    try:
        found = frame.agg(F.count("*").alias("rows"), *texts).collect()[0]
    except SPARK_ERRORS as error:
        if expectations and failure_of(error).is_of_rows:
            _refuse_failing(frame, dataset, expectations)
        raise
    rows = found["rows"]
    values = {expectation_name(one): found[f"e{number}"] or "NULL" for number, one in enumerate(expectations)}
    of = "1 row" if rows == 1 else f"{rows} rows"
    return {name: Finding(value == "true", f"{value} over {of}") for name, value in values.items()}, rows


def _refuse_failing(frame: DataFrame, dataset: Dataset, expectations: Sequence[Expect]) -> None:
    """Evaluate each aggregate alone, until one fails. If the frame itself fails, that error is raised."""
    frame.agg(F.count("*")).collect()
    for one in expectations:
        try:
            frame.agg(F.expr(one.sql)).collect()
        except SPARK_ERRORS as error:
            failure = failure_of(error)
            raise ExpressionFailedError(
                dataset=dataset.name, part=f"expectation {one.name!r}", expression=one.sql,
                condition=failure.condition, reason=failure.summary,
            ) from error  # fmt: skip


def refuse_unusable(session: SparkSession, dataset: Dataset, declared: Sequence[Expect]) -> None:
    """Refuse SQL of expectations that is no boolean aggregate of the dataset's columns. No Spark job.

    Raises:
        DeclarationError: with every expectation that can't be used.
    """
    if not declared:
        return
    fields = [StructField(f.name, StringType() if is_string(f.dataType) else f.dataType) for f in dataset.schema.fields]
    empty, problems = session.createDataFrame([], StructType(fields)), []
    for one in declared:
        try:
            found = empty.agg(F.expr(f"({one.sql})").alias("met")).schema["met"].dataType
            problem = None if isinstance(found, BooleanType) else f"its type is {found.simpleString()}, not boolean"
        except SPARK_ERRORS as error:
            problem = failure_of(error).summary
        if problem is not None:
            problems.append(f"expectation {expectation_name(one)}: {one.sql!r}: {problem}")
    if problems:
        raise DeclarationError(dataset=dataset.name, problems=tuple(problems))


# --- numbers of rows --------------------------------------------------------------------------------------------------


def counts_written_rows(dataset: Dataset) -> bool:
    """Whether a declared row count is about the rows of a write, and not of the table after it: only for an append.

    The number of rows that a merge, or an insert of new rows, writes does not determine the number in the table.
    """
    return isinstance(dataset.write, Append)


def is_within(declared: RowCount, rows: int | None) -> bool:
    """Whether a number of rows is as declared. If the rows were not counted, False."""
    if rows is None:
        return False
    return declared.minimum <= rows and (declared.maximum is None or rows <= declared.maximum)


def of_counts(declared: RowCount, rows: Mapping[str, int | None]) -> Finding:
    """The finding of a declared number of rows, by the name of the part. The whole has the name ''."""
    outside = {name: count for name, count in rows.items() if not is_within(declared, count)}
    shown: Iterable[str] = (f"{name or 'in all'}: {count}" for name, count in outside.items())
    return Finding(not outside and bool(rows), listed(shown, EXAMPLES) or "as many as declared")
