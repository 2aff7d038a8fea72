"""The audit of a write: its expectations are judged on its rows before these are committed.

Here belong the judgment, and the rows of a refused write as they wait in the table beside. The order of the steps is
the subject of `write`, the commit of waiting rows after all that of `pipeline.delta.maintain.publish`.

The frame is materialized, so the rows that are judged are those that are committed or that wait. All rows of the frame
wait, also those that constraints keep out: a publication does what the write would have done.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pipeline.dataset import (
    Dataset,
    Expect,
    Expectation,
    References,
    Replace,
    RowCount,
    Severity,
    TableRef,
    Unique,
    table_location,
)
from pipeline.dataset.expectations import ROW_COUNT, expectation_name
from pipeline.dataset.side_tables import EPOCH, NO_ROWS, REJECTED_FIELDS, RUN_ID, TOKEN, WRITE, WRITER
from pipeline.delta import sql
from pipeline.delta.log.mark import CommitNote, private_session
from pipeline.delta.spark.failures import SPARK_ERRORS
from pipeline.delta.sql import exact, expectations
from pipeline.delta.sql.expectations import Finding
from pipeline.delta.sql.slices import Slice, Unaddressable, rows_by_values
from pipeline.delta.table.open_table import TableState, rows_at, table_state, version_of_other
from pipeline.delta.write import merge, quarantine
from pipeline.delta.write.statement import Statement
from pipeline.errors import AuditError, PipelineError, TableNotFoundError

_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Judgment:
    """What the audit of a write has found of one expectation, or of the declared number of rows."""

    name: str
    finding: Finding
    severity: Severity
    blocking: bool


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The audit of one write. If the dataset declares none, it judges nothing.

    `whole` are all rows of the frame, materialized. `parts` are the slices in which rows are counted, by name; if there
    are none, they are counted as a whole. `put` writes the rows that wait.
    """

    table: TableRef
    note: CommitNote
    within: Slice | None
    parts: Mapping[str, Slice]
    replace_all: bool
    whole: DataFrame
    put: Callable[..., Any]

    @property
    def is_declared(self) -> bool:
        """Whether the dataset declares an audit."""
        return self.table.dataset.audit == "before"

    @property
    def rejected(self) -> TableRef | None:
        """The table in which refused writes wait; None without an audit."""
        dataset = self.table.dataset.rejected
        return None if dataset is None else self.table.beside(dataset)

    def judged(self, session: SparkSession, view: str, statement: Statement, state: TableState) -> tuple[Judgment, ...]:
        """The judgments of the rows of a view, which the statement is to write.

        Raises:
            AuditError: a blocking expectation fails. The rows of the frame wait in `rejected`.
            DeclarationError, ExpressionFailedError: an expectation's SQL can't be used, or fails for a row.
        """
        to = self.rejected
        if to is None:
            return ()
        with private_session(session, {}) as clone:
            expectations.refuse_unusable(clone, self.table.dataset, _aggregates(self.table.dataset))
            judged = self._judge(clone, clone.table(view), statement, state)
        if any(one.blocking and not one.finding.passed for one in judged):
            raise self._reject(to, judged, state)
        return judged

    def settle(self, session: SparkSession, *, is_held: bool) -> None:
        """If the table holds this write, delete rejected rows that it holds too, or that can't be committed any more.

        Once a consumer's cursors have moved, its later rows follow from the changes of its rejected ones too.
        """
        to, note = self.rejected, self.note
        if (
            not is_held
            or to is None
            or (note.mark.epoch is None and note.cursors is None)
            or table_state(session, to) is None
        ):
            return
        with suppress(PipelineError, *SPARK_ERRORS):  # the rows are committed, even if this fails
            if note.cursors is None:
                quarantine.remove_batch(session, to, note)
            else:
                of_consumer = f"{sql.identifier(WRITER)} = {sql.string(quarantine.CURSORS)}"
                quarantine.delete_rows(session, to, note, of_consumer)

    def _judge(
        self, clone: SparkSession, given: DataFrame, statement: Statement, state: TableState
    ) -> tuple[Judgment, ...]:
        dataset, declared = self.table.dataset, self.table.dataset.row_count
        stored = merge.stored_condition(dataset)
        rows = given if stored is None else given.filter(stored)
        after = rows
        if not statement.is_all and _concerns_table(dataset):
            before = f"pipeline_table_{uuid.uuid4().hex}"
            rows_at(clone, self.table.location, state.version).createOrReplaceTempView(before)
            assert statement.rows_after is not None  # noqa: S101  a History has no audit
            after = clone.sql(statement.rows_after(before))
        found, counts = _aggregated(dataset, rows, after, counts_after=declared is not None and not self.parts)
        if declared is not None:
            of_write = expectations.counts_written_rows(dataset)
            total = {"": counts[0 if of_write else 1]}
            count_in = rows if of_write or isinstance(dataset.write, Replace) else after
            found[ROW_COUNT] = expectations.of_counts(declared, self._by_part(count_in) if self.parts else total)
        for one in dataset.expectations:
            if not isinstance(one, Expect):
                found[expectation_name(one)] = self._of_values(clone, one, after)
        return tuple(_judgment(dataset, name, finding) for name, finding in found.items())

    def _by_part(self, frame: DataFrame) -> dict[str, int | None]:
        """By name of a part, its rows. One Spark job."""
        columns = tuple(dict.fromkeys(column for part in self.parts.values() for column in part.columns))
        try:
            by_values = rows_by_values(frame, columns, ("TRUE",))
        except Unaddressable:
            return dict.fromkeys(self.parts)
        counts = dict.fromkeys(self.parts, 0)
        for values, (count,) in by_values.items():
            cell = dict(zip(columns, values, strict=True))
            for name in (name for name, part in self.parts.items() if part.holds(cell)):
                counts[name] += count
        return dict(counts)

    def _of_values(self, clone: SparkSession, one: Expectation, after: DataFrame) -> Finding:
        assert isinstance(one, Unique | References)  # noqa: S101  of the others, one is an aggregate, one of a History
        if isinstance(one, Unique):
            values = expectations.duplicate_values(after, one.columns)
            return expectations.of_rows(expectations.count_violations(values, one.columns))
        location, version = table_location(self.table.root, one.dataset), self.note.sources.get(one.dataset)
        try:
            version = version_of_other(clone, one.dataset, location) if version is None else version
            other = rows_at(clone, location, version)
        except TableNotFoundError as error:
            return Finding(False, error.message())
        values = expectations.unmatched_values(after, one.columns, other, one.target)
        return expectations.of_rows(expectations.count_violations(values, one.columns))

    def _reject(self, to: TableRef, judged: tuple[Judgment, ...], state: TableState) -> AuditError:
        """Put the rows of the frame into the table of rejected writes; the error that tells of it."""
        rows = self.whole.count()
        run_id = self.note.run_id or self.note.mark.token
        failed = {one.name: one.finding.value for one in judged if not one.finding.passed}
        document = {
            "format": _FORMAT, "note": self.note.document(), "replace_all": self.replace_all,
            "within": None if self.within is None else self.within.document(), "rows": rows, "failed": failed,
            "table_id": state.table_id, "version": state.version,
            "frame_schema": StructType([self.whole.schema[n] for n in self.table.dataset.frame_columns]).jsonValue(),
        }  # fmt: skip
        frame = self._waiting(to.dataset, run_id, json.dumps(document, sort_keys=True), rows)
        note = changed(self.note, cursors=None, stream=None)
        self.put(frame, table=to, note=note, within=quarantine.batch_slice(self.note))
        return self.table.error(AuditError, failed=failed, run_id=run_id, rejected=to.name, rows=rows)

    def _waiting(self, rejected: Dataset, run_id: str, document: str, rows: int) -> DataFrame:
        """The rows of the frame as the table of rejected writes stores them. For no rows, one row that says so."""
        writer, epoch = quarantine.batch(self.note)
        values = {
            RUN_ID: sql.string(run_id),
            WRITER: sql.string(writer),
            EPOCH: "CAST(NULL AS BIGINT)" if epoch is None else f"CAST({epoch} AS BIGINT)",
            TOKEN: sql.string(self.note.mark.token),
            "_rejected_at": "current_timestamp()",
            NO_ROWS: "FALSE" if rows else "TRUE",
            WRITE: sql.string(document),
        }
        added = [f"{values[field.name]} AS {sql.identifier(field.name)}" for field in REJECTED_FIELDS]
        if not rows:
            fields = rejected.schema.fields[len(REJECTED_FIELDS) :]
            empty = [f"CAST(NULL AS {sql.type_name(f.dataType)}) AS {sql.identifier(f.name)}" for f in fields]
            return self.whole.sparkSession.range(1).selectExpr(*added, *empty)
        of_frame = [
            f"{exact.as_text(sql.identifier(name), self.whole.schema[name].dataType)} AS {sql.identifier(name)}"
            for name in self.table.dataset.frame_columns
        ]
        columns = [sql.identifier(name) for name in self.table.dataset.schema.names]
        return self.whole.repartition(1 + rows // quarantine.ROWS_OF_FILE).selectExpr(*added, *columns, *of_frame)


def _aggregates(dataset: Dataset) -> list[Expect]:
    return [one for one in dataset.expectations if isinstance(one, Expect)]


def _concerns_table(dataset: Dataset) -> bool:
    """Whether any expectation, or the declared number of rows, is about the rows of the table."""
    of_table = any(not isinstance(one, Expect) or one.over == "table" for one in dataset.expectations)
    return of_table or (dataset.row_count is not None and not expectations.counts_written_rows(dataset))


def _aggregated(
    dataset: Dataset, rows: DataFrame, after: DataFrame, *, counts_after: bool
) -> tuple[dict[str, Finding], tuple[int, int]]:
    """The findings of the declared aggregates, and the numbers of rows of the write and of the table after it.

    One Spark job for each of the two frames that is needed.
    """
    declared = _aggregates(dataset)
    of_write = [one for one in declared if one.over == "write" or after is rows]
    of_table = [one for one in declared if one not in of_write]
    found, count = expectations.aggregated(rows, dataset, of_write)
    if after is rows or not (of_table or (counts_after and not expectations.counts_written_rows(dataset))):
        return found, (count, count)
    found_after, count_after = expectations.aggregated(after, dataset, of_table)
    return found | found_after, (count, count_after)


def _judgment(dataset: Dataset, name: str, finding: Finding) -> Judgment:
    by_name: dict[str, Expectation | RowCount] = {expectation_name(one): one for one in dataset.expectations}
    declared = dataset.row_count if name == ROW_COUNT else by_name[name]
    assert declared is not None  # noqa: S101  only what is declared is judged
    return Judgment(name=name, finding=finding, severity=declared.severity, blocking=declared.blocking)
