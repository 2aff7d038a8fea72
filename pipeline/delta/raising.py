"""Rows of a batch for which an expression of their dataset fails, found by halves.

Here belongs the search. The expressions are those that a write evaluates, and they are evaluated without the table and
without a commit: what fails so is the rows' and not the storage's. The batch stays one batch; what becomes of the rows
that are left is the committer's.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pipeline.dataset import Dataset
from pipeline.delta import merge, sql
from pipeline.delta.commit import private_session
from pipeline.delta.dead_letters import DeadLetter
from pipeline.delta.failures import SPARK_ERRORS, read_failure
from pipeline.delta.fit import select_list
from pipeline.delta.frames import to_spark
from pipeline.delta.intake import letter_of

# Classes of SQL states that are said of values: data exceptions, routines that failed, limits, what SQL itself raises.
_OF_VALUES = ("22", "38", "39", "54", "P0")


def without_raising(
    dataset: Dataset, table: Any, session: Callable[[], SparkSession], staging: str
) -> tuple[Any, list[DeadLetter]]:
    """The rows of which every expression has a value, in their order, and the others as dead letters with the reason.

    A row is at fault if it fails alone, for a reason that is said of values, while no row at all does not fail.

    Raises:
        PySparkException, Py4JError: a failure that is of no row.
        PipelineError: Spark or the staging folder is gone.
    """
    import pyarrow as pa

    probe = _Probe(dataset, session, staging)
    probe.run(table.slice(0, 0), is_read=True)  # what fails without rows is not theirs
    letters, good, pending = list[DeadLetter](), [table.slice(0, 0)], [table]
    while pending:
        part = pending.pop()
        reason = probe.reason(part)
        if reason is None:
            good.append(part)
        elif part.num_rows > 1:
            half = part.num_rows // 2
            pending += [part.slice(half), part.slice(0, half)]
        else:
            letters.append(letter_of(part.to_pylist()[0], reason))
    return pa.concat_tables(good), letters


class _Probe:
    """Evaluates the expressions of a dataset for rows of it."""

    def __init__(self, dataset: Dataset, session: Callable[[], SparkSession], staging: str) -> None:
        self._dataset, self._session, self._staging = dataset, session, staging

    def reason(self, part: Any) -> str | None:
        """Why rows fail, None where they don't; of a single row the failure is read, of several any is enough.

        Raises:
            PySparkException, Py4JError: a single row failed for a reason that is not said of values.
        """
        try:
            self.run(part, is_read=part.num_rows == 1)
        except SPARK_ERRORS as error:
            failure = read_failure(error)
            if part.num_rows == 1 and not any(state.startswith(_OF_VALUES) for state in failure.sql_states):
                raise
            return failure.summary
        return None

    def run(self, part: Any, *, is_read: bool) -> None:
        """Evaluate everything; over Connect only a frame that is read says why it fails."""
        with to_spark(part, self._dataset, self._session, self._staging) as frame:
            view = f"pipeline_probe_{uuid.uuid4().hex}"
            frame.createOrReplaceTempView(view)
            try:
                with private_session(frame.sparkSession, {}) as clone:
                    judged = self._judged(clone.table(view))
                    if is_read:
                        judged.toArrow()
                    else:
                        judged.write.format("noop").mode("overwrite").save()
            finally:
                frame.sparkSession.catalog.dropTempView(view)

    def _judged(self, frame: DataFrame) -> DataFrame:
        """The columns as they are written, and beside them whatever else of the declaration is evaluated for a row."""
        dataset, is_stored = self._dataset, merge.is_stored(self._dataset) or "TRUE"
        selected = select_list(dataset, frame.schema)
        conditions = [is_stored, *(check.condition for check in dataset.checks)]
        given = set(frame.columns)
        conditions += [
            f"assert_true({sql.identifier(name)} <=> {_cast(dataset, name, expression)}, "
            f"{sql.string(f'column {name}: not what is generated')}) IS NULL"
            for name, expression in dataset.features.generated
            if name in given
        ]
        judged = frame.selectExpr(*(f"{taken} AS {sql.identifier(name)}" for name, taken in selected.items()))
        return judged.selectExpr(
            *map(sql.identifier, judged.columns),
            *(
                f"CASE WHEN {is_stored} THEN ({condition}) END AS {sql.identifier(sql.helper_name(dataset, f'is {n}'))}"
                for n, condition in enumerate(conditions)
            ),
        )


def _cast(dataset: Dataset, name: str, expression: str) -> str:
    return f"CAST(({expression}) AS {sql.bare_type(dataset.field(name).dataType)})"
