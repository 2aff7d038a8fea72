"""A Structured Streaming query into a dataset: each of its batches through the one write path, exactly once.

Here belong the query and what its batches are called; the sources are Spark's own. A query that was stopped anywhere
is gone on with from its checkpoint, where Spark repeats the batch that it does not know the end of: under the query's
id as the writer and the batch's number as the epoch, so that no row is written twice.

In a classic session a batch is written by this process. Over Spark Connect the server hands it to a Python worker of
its own, which has this package too and the same session: what became of a batch comes back as a setting of it.
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

from pipeline.dataset import Append, Dataset, InsertNew, Merge
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
    dataset: Dataset,
    location: str,
    checkpoint: str,
    run_id: str | None = None,
    asset: str | None = None,
) -> tuple[WriteResult, ...]:
    """Write what a streaming frame has at this moment, batch by batch; what each batch's write did.

    Args:
        frame: of any streaming source; its columns are the dataset's, by name.
        checkpoint: the folder in which Spark keeps how far the query is; of this query alone.
        run_id: with `asset`, what is noted in each commit.

    Raises:
        DeclarationError: the dataset's write mode would let a batch undo those before it.
        StreamError: the frame is none, or the source, the checkpoint or the server's worker fails.
        StreamCheckpointError: the checkpoint is lost, and the table holds what was written from it.
        StreamBatchError: the checkpoint was set back, and has other input under a number that the table knows.
        PipelineError: as of `write`; the next call begins with the batch that failed.
    """
    if not frame.isStreaming:
        raise StreamError(dataset=dataset.name, checkpoint=checkpoint, reason="the frame is not a streaming one")
    _refuse_mode(dataset)
    if repeat_matters(dataset.write):
        with suppress(OSError, ValueError):  # not seen from here; each batch is looked at where it is written
            if query_id(checkpoint) is None:
                name = name_beside(checkpoint, location)
                refuse_lost_checkpoint(frame.sparkSession, dataset, location, checkpoint, name)
    put = _Put(dataset=dataset, location=location, checkpoint=checkpoint, run_id=run_id, asset=asset)
    told = _TellByConf(put, f"pipeline.stream.{uuid.uuid4().hex}") if is_connect(frame.sparkSession) else _Tell(put)
    try:
        to_table = frame.writeStream.foreachBatch(told.function).option("checkpointLocation", checkpoint)
        to_table.trigger(availableNow=True).start().awaitTermination()
    except SPARK_ERRORS as error:
        for failed in told.outcomes(frame.sparkSession):
            if isinstance(failed, PipelineError):
                raise failed from error
        reason = f"{failure_of(error).summary}{'' if told.is_here else _NEEDED}"
        raise StreamError(dataset=dataset.name, checkpoint=checkpoint, reason=reason) from error
    return tuple(found for found in told.outcomes(frame.sparkSession) if isinstance(found, WriteResult))


def combined_result(results: Sequence[WriteResult]) -> WriteResult:
    """What several batches did, told as one write: the newest of their commits, with the sums of all; at least one."""
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
    """By constraint, with the rows of all batches and the examples of the first that broke it."""
    found: dict[str, Violation] = {}
    for violation in (violation for result in results for violation in result.violations):
        known = found.get(violation.constraint)
        rows = violation.rows + (known.rows if known else 0)
        examples = (known.examples if known else ()) or violation.examples
        found[violation.constraint] = replace(violation, rows=rows, examples=examples)
    return tuple(found.values())


def _refuse_mode(dataset: Dataset) -> None:
    mode = dataset.write
    if not isinstance(mode, Append | InsertNew | Merge) or (isinstance(mode, Merge) and mode.delete_missing):
        problem = "a stream appends, inserts new rows or merges, batch by batch; no batch may undo those before it"
        raise DeclarationError(dataset=dataset.name, problems=(problem,))


@dataclass(frozen=True, kw_only=True)
class _Put:
    """The write of one batch."""

    dataset: Dataset
    location: str
    checkpoint: str
    run_id: str | None
    asset: str | None

    def __call__(self, rows: DataFrame, batch: int) -> WriteResult:
        mark = Mark(writer=f"{WRITER}{query_id(self.checkpoint)}", epoch=batch)
        content = batch_content(self.checkpoint, batch)
        stream = StreamBatch(checkpoint=name_beside(self.checkpoint, self.location), content=content)
        note = CommitNote(mark=mark, run_id=self.run_id, asset=self.asset, stream=stream)
        if repeat_matters(self.dataset.write):
            refuse_other_input(
                rows.sparkSession, self.dataset, self.location, self.checkpoint, writer=mark.writer, epoch=batch,
                batch=stream,
            )  # fmt: skip
        return write(rows, dataset=self.dataset, location=self.location, note=note)


class _Tell:
    """What became of the batches, where this process writes them: of an error Spark would hand on only its text."""

    is_here = True

    def __init__(self, put: _Put) -> None:
        self._found: list[Outcome] = []

        def function(rows: DataFrame, batch: int) -> None:
            try:
                self._found.append(put(rows, batch))
            except PipelineError as error:
                self._found.append(error)
                raise

        self.function: Callable[[DataFrame, int], None] = function

    def outcomes(self, session: SparkSession) -> list[Outcome]:  # noqa: ARG002  of the other's form
        return self._found


class _TellByConf:
    """What became of the batches, where a worker of the server writes them: a setting of the session for each."""

    is_here = False

    def __init__(self, put: _Put, prefix: str) -> None:
        self._put, self._prefix = put, prefix
        self.function: Callable[[DataFrame, int], None] = _PutInWorker(put, prefix)

    def outcomes(self, session: SparkSession) -> list[Outcome]:
        """In the order of the batches; the settings are taken back."""
        found: Any = session.conf.getAll
        told = {name: text for name, text in found.items() if name.startswith(f"{self._prefix}.")}
        for name in told:
            session.conf.unset(name)
        try:
            return [read_outcome(told[name]) for name in sorted(told, key=_batch_in)]
        except pickle.UnpicklingError as error:
            reason = f"the answer of the server can't be read ({error})"
            raise StreamError(dataset=self._put.dataset.name, checkpoint=self._put.checkpoint, reason=reason) from error


class _Reader(pickle.Unpickler):
    """Reads outcomes, and nothing else: what a server sends must not be able to run anything here."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if found is rebuilt or found in _VALUES or (isinstance(found, type) and _is_told(found)):
            return found
        raise pickle.UnpicklingError(f"{module}.{name} is no part of an outcome")


def outcome_text(outcome: Outcome) -> str:
    """An outcome as text, for `read_outcome`."""
    return base64.b64encode(pickle.dumps(outcome)).decode("ascii")


def read_outcome(text: str) -> Outcome:
    """What `outcome_text` was given.

    Raises:
        UnpicklingError: it is something else.
    """
    found: Outcome = _Reader(io.BytesIO(base64.b64decode(text))).load()
    return found


def _is_told(kind: type) -> bool:
    return kind.__module__.startswith(_OURS) and (is_dataclass(kind) or issubclass(kind, PipelineError))


@dataclass(frozen=True)
class _PutInWorker:
    put: _Put
    prefix: str

    def __call__(self, rows: DataFrame, batch: int) -> None:
        try:
            self._tell(rows, batch, self.put(rows, batch))
        except PipelineError as error:
            self._tell(rows, batch, error)
            raise

    def _tell(self, rows: DataFrame, batch: int, outcome: Outcome) -> None:
        rows.sparkSession.conf.set(f"{self.prefix}.{batch}", outcome_text(outcome))


def _batch_in(name: str) -> int:
    return int(name.rpartition(".")[2])
