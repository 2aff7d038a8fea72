"""A Structured Streaming query into a dataset: each of its batches is written exactly once, through `write`.

Here belong the query and the names of its batches. The sources are Spark's own. A query that was stopped at any point
continues from its checkpoint: Spark repeats a batch whose end is not recorded. The writer is the query's id and the
epoch is the batch's number, so no row is written twice.

In a classic session this process writes a batch. Over Spark Connect the server passes it to a Python worker of its own,
which has this package too and the same session. The worker returns the outcome of the batch as a conf of that session.
"""

from __future__ import annotations

import base64
import datetime as dt
import io
import pickle
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, is_dataclass, replace
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pipeline.dataset import Append, Dataset, History, InsertNew, Merge, TableRef
from pipeline.delta.log.mark import CommitNote, Mark, StreamBatch
from pipeline.delta.spark.doors import door
from pipeline.delta.spark.failures import SPARK_ERRORS, failure_of
from pipeline.delta.spark.session import is_connect
from pipeline.delta.stream.batches import refuse_lost_checkpoint, refuse_other_input
from pipeline.delta.stream.query_log import batch_content, name_beside, query_id
from pipeline.delta.write.merge import repeat_matters
from pipeline.delta.write.quarantine import Violation
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline.errors import DeclarationError, PipelineError, StreamError, rebuilt

WRITER = "stream/"
_NEEDED = " (over Spark Connect the server's own Python writes the batches, and needs this package)"
Outcome = WriteResult | PipelineError
_OURS = f"{__name__.partition('.')[0]}."
_VALUES = (dt.datetime, dt.timezone, dt.timedelta, dt.date, Decimal)


@door
def write_available(
    frame: DataFrame,
    *,
    table: TableRef,
    checkpoint: str,
    run_id: str | None = None,
    asset: str | None = None,
) -> tuple[WriteResult, ...]:
    """Write all rows that a streaming frame has now, batch by batch. Return the result of each batch's write.

    Args:
        frame: from any streaming source. Its columns are those of the dataset, matched by name.
        checkpoint: the folder in which Spark records the query's progress. No other query may use it.
        run_id: recorded in each commit, together with `asset`.

    Raises:
        DeclarationError: the dataset's write mode would let a batch undo earlier batches, or it has an audit.
        StreamError: the frame is not a streaming one, or the source, the checkpoint or the server's worker fails.
        StreamCheckpointError: the checkpoint is lost, and the table has rows that were written from it.
        StreamBatchError: the checkpoint was set back: a batch number that the table has now has other input.
        PipelineError: the errors of `write`. The next call begins with the failed batch.
    """
    if not frame.isStreaming:
        raise StreamError(dataset=table.name, checkpoint=checkpoint, reason="the frame is not a streaming one")
    _refuse_dataset(table.dataset)
    if repeat_matters(table.dataset.write):
        with suppress(OSError, ValueError):  # not readable here; each batch is checked when it is written
            if query_id(checkpoint) is None:
                name = name_beside(checkpoint, table.location)
                refuse_lost_checkpoint(frame.sparkSession, table, checkpoint, name)
    write_batch = _BatchWriter(table=table, checkpoint=checkpoint, run_id=run_id, asset=asset)
    prefix = f"pipeline.stream.{uuid.uuid4().hex}"
    collector = _ConfOutcomes(write_batch, prefix) if is_connect(frame.sparkSession) else _LocalOutcomes(write_batch)
    try:
        to_table = frame.writeStream.foreachBatch(collector.function).option("checkpointLocation", checkpoint)
        to_table.trigger(availableNow=True).start().awaitTermination()
    except SPARK_ERRORS as error:
        for failed in collector.outcomes(frame.sparkSession):
            if isinstance(failed, PipelineError):
                raise failed from error
        reason = f"{failure_of(error).summary}{'' if collector.is_here else _NEEDED}"
        raise StreamError(dataset=table.name, checkpoint=checkpoint, reason=reason) from error
    return tuple(outcome for outcome in collector.outcomes(frame.sparkSession) if isinstance(outcome, WriteResult))


def combined_result(results: Sequence[WriteResult]) -> WriteResult:
    """The results of several batches as one: the newest commit, with the sums of all. At least one is needed."""
    if len(results) == 1:
        return results[0]
    newest = max(results, key=lambda result: (result.version, result.committed))
    updated = [result.rows_updated for result in results if result.rows_updated is not None]
    deleted = [result.rows_deleted for result in results if result.rows_deleted is not None]
    evolved = [result for result in results if result.fingerprint_before is not None]
    return replace(
        newest,
        committed=any(result.committed for result in results),
        skipped=all(result.skipped for result in results),
        rows_written=sum(result.rows_written for result in results),
        rows_updated=sum(updated) if updated else None,
        rows_deleted=sum(deleted) if deleted else None,
        files_added=sum(result.files_added for result in results),
        files_removed=sum(result.files_removed for result in results),
        bytes_added=sum(result.bytes_added for result in results),
        rows_by_partition=None,
        partitions=None,
        violations=_violations(results),
        rows_dropped=sum(result.rows_dropped for result in results),
        rows_quarantined=sum(result.rows_quarantined for result in results),
        quarantined=next((r.quarantined for r in reversed(results) if r.quarantined is not None), None),
        fingerprint_before=evolved[0].fingerprint_before if evolved else None,
        schema_changes=tuple(change for result in evolved for change in result.schema_changes),
    )


def _violations(results: Sequence[WriteResult]) -> tuple[Violation, ...]:
    """The violations by constraint: the rows of all batches, the examples of the first batch that has some."""
    by_constraint: dict[str, Violation] = {}
    for violation in (violation for result in results for violation in result.violations):
        earlier = by_constraint.get(violation.constraint)
        rows = violation.rows + (earlier.rows if earlier else 0)
        examples = (earlier.examples if earlier else ()) or violation.examples
        by_constraint[violation.constraint] = replace(violation, rows=rows, examples=examples)
    return tuple(by_constraint.values())


def _refuse_dataset(dataset: Dataset) -> None:
    mode, problems = dataset.write, list[str]()
    undoes = mode.delete_missing if isinstance(mode, Merge) else isinstance(mode, History) and mode.from_snapshots
    if not isinstance(mode, Append | InsertNew | Merge | History) or undoes:
        problems.append("a stream appends, inserts new rows or merges; no batch may undo those before it")
    if dataset.audit == "before":
        problems.append("a batch that an audit refuses would stop the stream: declare audit='after'")
    if problems:
        raise DeclarationError(dataset=dataset.name, problems=tuple(problems))


@dataclass(frozen=True, kw_only=True)
class _BatchWriter:
    """The write of one batch."""

    table: TableRef
    checkpoint: str
    run_id: str | None
    asset: str | None

    def __call__(self, rows: DataFrame, batch: int) -> WriteResult:
        mark = Mark(writer=f"{WRITER}{query_id(self.checkpoint)}", epoch=batch)
        content = batch_content(self.checkpoint, batch)
        stream = StreamBatch(checkpoint=name_beside(self.checkpoint, self.table.location), content=content)
        note = CommitNote(mark=mark, run_id=self.run_id, asset=self.asset, stream=stream)
        if repeat_matters(self.table.dataset.write):
            refuse_other_input(
                rows.sparkSession, self.table, self.checkpoint, writer=mark.writer, epoch=batch, batch=stream
            )
        return write(rows, table=self.table, note=note)


class _LocalOutcomes:
    """The outcomes of batches that this process writes. Spark would report only the text of an error."""

    is_here = True

    def __init__(self, put: _BatchWriter) -> None:
        self._outcomes: list[Outcome] = []

        def function(rows: DataFrame, batch: int) -> None:
            try:
                self._outcomes.append(put(rows, batch))
            except PipelineError as error:
                self._outcomes.append(error)
                raise

        self.function: Callable[[DataFrame, int], None] = function

    def outcomes(self, session: SparkSession) -> list[Outcome]:  # noqa: ARG002  same signature as the other class
        return self._outcomes


class _ConfOutcomes:
    """The outcomes of batches that a worker of the server writes: a conf of the session for each batch."""

    is_here = False

    def __init__(self, put: _BatchWriter, prefix: str) -> None:
        self._put, self._prefix = put, prefix
        self.function: Callable[[DataFrame, int], None] = _WorkerWriter(put, prefix)

    def outcomes(self, session: SparkSession) -> list[Outcome]:
        """The outcomes in the order of the batches. Their confs are unset."""
        confs: Any = session.conf.getAll
        texts = {name: text for name, text in confs.items() if name.startswith(f"{self._prefix}.")}
        for name in texts:
            session.conf.unset(name)
        try:
            return [read_outcome(texts[name]) for name in sorted(texts, key=_batch_in)]
        except pickle.UnpicklingError as error:
            reason = f"the answer of the server can't be read ({error})"
            raise StreamError(dataset=self._put.table.name, checkpoint=self._put.checkpoint, reason=reason) from error


class _Reader(pickle.Unpickler):
    """Unpickle outcomes and nothing else: data from a server must not be able to run code here."""

    def find_class(self, module: str, name: str) -> Any:
        loaded = super().find_class(module, name)
        if loaded is rebuilt or loaded in _VALUES or (isinstance(loaded, type) and _is_part_of_outcome(loaded)):
            return loaded
        raise pickle.UnpicklingError(f"{module}.{name} is no part of an outcome")


def outcome_text(outcome: Outcome) -> str:
    """An outcome as text for `read_outcome`."""
    return base64.b64encode(pickle.dumps(outcome)).decode("ascii")


def read_outcome(text: str) -> Outcome:
    """The outcome that `outcome_text` has encoded.

    Raises:
        UnpicklingError: the text is not an outcome.
    """
    outcome: Outcome = _Reader(io.BytesIO(base64.b64decode(text))).load()
    return outcome


def _is_part_of_outcome(kind: type) -> bool:
    return kind.__module__.startswith(_OURS) and (is_dataclass(kind) or issubclass(kind, PipelineError))


@dataclass(frozen=True)
class _WorkerWriter:
    put: _BatchWriter
    prefix: str

    def __call__(self, rows: DataFrame, batch: int) -> None:
        try:
            self._send(rows, batch, self.put(rows, batch))
        except PipelineError as error:
            self._send(rows, batch, error)
            raise

    def _send(self, rows: DataFrame, batch: int, outcome: Outcome) -> None:
        rows.sparkSession.conf.set(f"{self.prefix}.{batch}", outcome_text(outcome))


def _batch_in(name: str) -> int:
    return int(name.rpartition(".")[2])
