"""Search for the rows of a batch that can't be stored: those for which an expression fails, and NULLs without a value.

Here belongs the search. The expressions are those that a write evaluates. They are evaluated without the table and
without a commit, so a failure is caused by the rows and not by the storage. The batch stays one batch; the remaining
rows are written by `committer`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import LongType, StructField

from pipeline.dataset import Dataset, Merge, TableRef
from pipeline.delta import sql
from pipeline.delta.frames.fit import select_list
from pipeline.delta.frames.staging import Staging, staged
from pipeline.delta.log.mark import private_session
from pipeline.delta.sink.dead_letters import DeadLetter
from pipeline.delta.sink.intake import letter_of
from pipeline.delta.spark.failures import LOST_OR_REFUSED, SPARK_ERRORS, failure_of
from pipeline.delta.table.open_table import require_table, rows_at
from pipeline.delta.write import merge
from pipeline.delta.write.changelog import Helpers, net_change_query, truncated_at
from pipeline.delta.write.clauses import SOURCE, TARGET, is_ended


def without_raising(
    dataset: Dataset, table: Any, session: Callable[[], SparkSession], staging: str
) -> tuple[Any, list[DeadLetter]]:
    """The rows for which every expression has a value, in their order, and the others as dead letters with the reason.

    A row is at fault if it fails alone, for a reason that concerns values, while an empty set of rows does not fail.

    Raises:
        PySparkException, Py4JError: a failure that no row causes.
        PipelineError: Spark or the staging folder is not available.
    """
    letters, good, pending = list[DeadLetter](), [True] * table.num_rows, [(0, table.num_rows)]
    with _numbered(dataset, table, session, staging) as frame:
        probe = _Probe(dataset, frame)
        probe.run(0, 0)  # a failure without rows is not caused by rows
        while pending:
            start, end = pending.pop()
            reason = probe.reason(start, end)
            if reason is None:
                continue
            if end - start > 1:
                half = (start + end) // 2
                pending += [(half, end), (start, half)]
                continue
            good[start] = False
            letters.append(letter_of(table.slice(start, 1).to_pylist()[0], reason))
    return table.filter(good), letters


def without_stored_value(
    table: TableRef, rows: Any, session: Callable[[], SparkSession], staging: str
) -> tuple[Any, list[DeadLetter]]:
    """The rows, and as dead letters the rows whose NULL refers to a stored value that does not exist.

    They are the rows with NULL in a NOT NULL column of `ignore_nulls`, if no row of their key has a value: neither the
    table's, unless the batch deletes it before them, nor one of the batch after that deletion.
    """
    dataset = table.dataset
    columns = [name for name in merge.kept_columns(dataset) if not dataset.field(name).nullable]
    changelog = dataset.write.changelog if isinstance(dataset.write, Merge) else None
    if not columns or changelog is None:
        return rows, []
    own, reasons = Helpers(dataset), dict[int, str]()
    at, ended = sql.identifier(changelog.sequence), sql.column(own.ended, SOURCE)
    in_batch = [f"batch.{sql.identifier(k)} <=> {sql.column(k, SOURCE)}" for k in dataset.keys]
    in_table = [f"{sql.column(k, TARGET)} <=> {sql.column(k, SOURCE)}" for k in dataset.keys]
    with _numbered(dataset, rows, session, staging) as frame:
        spark, view = frame.sparkSession, f"pipeline_numbered_{uuid.uuid4().hex}"
        frame.createOrReplaceTempView(view)  # of a private session
        truncation = truncated_at(frame, dataset, changelog)
        tombstones = merge.stored_tombstones(table)
        query = net_change_query(dataset, changelog, view, None, truncation, tombstones=tombstones)
        net = spark.sql(query).filter(sql.identifier(own.alive))
        old = rows_at(spark, table.location, require_table(spark, table).version).alias(TARGET)
        stored = frame.filter(merge.stored_condition(dataset) or "TRUE").alias("batch")
        for name in columns:
            without = net.filter(f"{sql.identifier(own.kept(name))}.value IS NULL").alias(SOURCE)
            has_row = " AND ".join([*in_table, f"NOT {is_ended(dataset)}"])
            lost = without.join(old, F.expr(has_row), "left_anti")
            is_after = f"({ended} IS NULL OR batch.{at} >= {ended})"
            nulls = stored.filter(f"batch.{sql.identifier(name)} IS NULL")
            numbers = nulls.join(lost, F.expr(" AND ".join([*in_batch, is_after])), "left_semi")
            found = numbers.select(sql.identifier(_number(dataset))).collect()
            reasons |= {row[0]: f"column {name}: NULL, and no stored value that it could keep" for row in found}
    letters = [letter_of(rows.slice(n, 1).to_pylist()[0], reason) for n, reason in sorted(reasons.items())]
    return rows.filter([n not in reasons for n in range(rows.num_rows)]), letters


def _number(dataset: Dataset) -> str:
    return sql.helper_name(dataset, "number of row")


@contextmanager
def _numbered(dataset: Dataset, table: Any, session: Callable[[], SparkSession], staging: str) -> Iterator[DataFrame]:
    """The rows with their numbers, as a Spark frame in a private session. Reading some of them is cheap."""
    import pyarrow as pa

    numbered = table.append_column(_number(dataset), pa.array(range(table.num_rows), pa.int64()))
    extra = [StructField(name, from_arrow_type(table.schema.field(name).type)) for name in dataset.frame_columns]
    left_out = set(dataset.schema.names) - set(table.column_names)
    with Staging(dataset, staging) as folder:
        folder.write(numbered.to_batches(), numbered.schema, lambda batch: batch)
        extra.append(StructField(_number(dataset), LongType()))
        frame = staged(session(), dataset, [folder.location], extra, left_out)
        view = f"pipeline_probe_{uuid.uuid4().hex}"
        frame.createOrReplaceTempView(view)
        try:
            with private_session(frame.sparkSession, {}) as clone:
                yield clone.table(view)
        finally:
            with suppress(*LOST_OR_REFUSED):  # an error here must not hide the result of the search
                frame.sparkSession.catalog.dropTempView(view)


class _Probe:
    """Evaluates the expressions of a dataset for some of the rows of a numbered frame."""

    def __init__(self, dataset: Dataset, frame: DataFrame) -> None:
        self._dataset, self._frame = dataset, frame

    def reason(self, start: int, end: int) -> str | None:
        """The reason why rows fail. If they don't, None. Several rows may fail for any reason, a single row may not.

        Raises:
            PySparkException, Py4JError: a single row failed for a reason that does not concern values.
        """
        try:
            self.run(start, end)
        except SPARK_ERRORS as error:
            failure = failure_of(error)
            if end - start == 1 and not failure.is_of_rows:
                raise
            return failure.summary
        return None

    def run(self, start: int, end: int) -> None:
        """Evaluate everything. Over Connect, only a collected frame reports the reason of its failure."""
        number = sql.identifier(_number(self._dataset))
        evaluated = self._evaluated(
            self._frame.filter(f"{number} >= {start} AND {number} < {end}").drop(_number(self._dataset))
        )
        if end - start <= 1:
            evaluated.toArrow()
        else:
            evaluated.write.format("noop").mode("overwrite").save()

    def _evaluated(self, frame: DataFrame) -> DataFrame:
        """The columns as they are written, and the other declared expressions that are evaluated for a row."""
        dataset, is_stored = self._dataset, merge.stored_condition(self._dataset) or "TRUE"
        selected = select_list(dataset, frame.schema)
        conditions = [is_stored, *(check.condition for check in dataset.checks)]
        given_columns = set(frame.columns)
        conditions += [
            f"assert_true({sql.identifier(name)} <=> {_cast(dataset, name, expression)}, "
            f"{sql.string(f'column {name}: not what is generated')}) IS NULL"
            for name, expression in dataset.features.generated
            if name in given_columns
        ]
        evaluated = frame.selectExpr(
            *(f"{selection} AS {sql.identifier(name)}" for name, selection in selected.items())
        )
        return evaluated.selectExpr(
            *map(sql.identifier, evaluated.columns),
            *(
                f"CASE WHEN {is_stored} THEN ({condition}) END AS {sql.identifier(sql.helper_name(dataset, f'is {n}'))}"
                for n, condition in enumerate(conditions)
            ),
        )


def _cast(dataset: Dataset, name: str, expression: str) -> str:
    return f"CAST(({expression}) AS {sql.bare_type(dataset.field(name).dataType)})"
