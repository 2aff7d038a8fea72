"""The back half of a sink: writes batches of the journal to the table, each exactly once under the writer's epoch.

Here belong the order of commits, their retries, the rows that Delta refuses, and the check for another sink of the same
writer. The write of rows belongs to `write`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own name for it
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField

from pipeline.dataset import Dataset, TableRef
from pipeline.delta import sql
from pipeline.delta.frames.arrow import fitting
from pipeline.delta.frames.convert import to_spark
from pipeline.delta.frames.fit import select_list
from pipeline.delta.frames.staging import staged
from pipeline.delta.log.checkpoints import newest_version
from pipeline.delta.log.epochs import epoch_of_another_batch, epochs, last_epoch
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.log.retry import retried_until
from pipeline.delta.maintain.maintain import optimize
from pipeline.delta.sink.dead_letters import DeadLetter, DeadLetters
from pipeline.delta.sink.intake import letter_of
from pipeline.delta.sink.journal import Journal
from pipeline.delta.sink.metrics import SinkCounters
from pipeline.delta.sink.raising import without_raising, without_stored_value
from pipeline.delta.sink.receiver import SinkSettings
from pipeline.delta.sink.segments import Batch
from pipeline.delta.spark.doors import storage_error
from pipeline.delta.spark.failures import SPARK_ERRORS, failure_of
from pipeline.delta.sql import constraints
from pipeline.delta.table.durable import sync_commits
from pipeline.delta.table.open_table import open_or_create, table_state
from pipeline.delta.write import merge
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.transaction import last_recorded_epoch
from pipeline.delta.write.write import write
from pipeline.errors import (
    CheckViolationError,
    DuplicateKeysError,
    ExpressionFailedError,
    FrameFailedError,
    NullViolationError,
    PartitionNameError,
    PartitionValueError,
    PipelineError,
    SinkConflictError,
    StatementError,
    ViolationError,
)

_LOG = logging.getLogger(__name__)
# Errors that rows or declared expressions cause. After one of them, the batch is searched for the rows at fault.
_CAUSED_BY_ROWS = (ViolationError, ExpressionFailedError, FrameFailedError, StatementError)
_REASONS = "pipeline reasons"
_T = TypeVar("_T")


class Committer:
    """Commits the batches of a journal. Only one thread may call it.

    Args:
        staging: the folder through which Spark gets rows of a journal that it can't read itself.
        in_place: the journal's folder as Spark addresses it. If Spark can't read it, None.
        open_session: called on the committing thread, and again after a session was lost.
        stopping: set when the sink must end.
    """

    def __init__(
        self, table: TableRef, *, writer: str, journal: Journal, letters: DeadLetters,
        meter: SinkCounters, staging: str, in_place: str | None, open_session: Callable[[], SparkSession],
        settings: SinkSettings, stopping: threading.Event,
    ) -> None:  # fmt: skip
        self.table, self.writer = table, writer
        self._journal, self._letters, self._meter = journal, letters, meter
        self._staging, self._in_place = staging, in_place
        self._open_session = open_session
        self._session: SparkSession | None = None
        self._settings, self._stopping = settings, stopping
        self._retry = settings.patience
        self._commits = 0
        self._epoch = 0
        self._seen = -1

    def open(self) -> None:
        """Open the table if there is one, find the last epoch, and replay an unfinished batch.

        Raises:
            TableMismatchError: the table is not as declared.
            SinkConflictError: another sink has committed the epoch of the unfinished batch.
        """
        self._epoch, _ = self._with_retries(self._newest_epoch, "it could not be opened")
        if self._journal.unfinished is not None:
            self._commit(self._journal.unfinished, replay=True)

    def _newest_epoch(self) -> int:
        session = self._current_session()
        epoch, self._seen = last_epoch(self.table.location, self.writer)
        state = table_state(session, self.table)
        if state is not None:
            state = open_or_create(session, self.table)
            epoch = max(epoch, last_recorded_epoch(session, state, self.writer))
        return max(epoch, self._journal.last_epoch)

    def commit_next(self) -> bool:
        """Commit the oldest segments. Return False if there are none. After the retries, raise as `write` does."""
        epoch, rows = self._epoch + 1, self._settings.commit_rows
        batch, _ = self._with_retries(lambda: self._journal.begin(epoch, rows), f"epoch {epoch} could not be begun")
        if batch is None:
            return False
        self._epoch = batch.epoch
        self._commit(batch, replay=False)
        self._commits += 1
        if self._settings.compact_after and self._commits % self._settings.compact_after == 0:
            compact(self._current_session(), self.table, self.writer, below_bytes=self._settings.compact_bytes)
        return True

    def _commit(self, batch: Batch, *, replay: bool) -> None:
        started = time.monotonic()
        (result, batch), attempts = self._with_retries(lambda: self._written(batch), f"epoch {batch.epoch} failed")
        synced = None
        if result is not None:
            # After a failure with an unknown outcome the commit may exist already; then this is a replay.
            self._refuse_others(batch, result, replay=replay or attempts > 1)
            synced, _ = self._with_retries(self._synced, "it could not be made durable")
        self._with_retries(lambda: self._journal.end(batch, synced), f"epoch {batch.epoch} could not be ended")
        if result is not None:
            self._meter.committed(batch.rows, time.monotonic() - started, result.version, replay=replay)
            self._seen = max(self._seen, result.version)

    def _synced(self) -> int:
        """Sync the table and return its newest version. Until then the journal keeps the rows.

        Raises:
            StorageError: the storage refused.
        """
        try:
            version = newest_version(self.table.location)
            newest = -1 if version is None else version
            synced = self._journal.synced_version
            after = synced if synced <= newest else -1  # it may be another table by now
            sync_commits(self.table.location, after, newest)
        except OSError as error:
            raise storage_error(error, self.table.name, self.table.location) from error
        return newest

    def _with_retries(self, call: Callable[[], _T], what: str) -> tuple[_T, int]:
        """Repeat a call after errors that may pass. Return its result and the number of calls.

        The batch and its epoch stay the same, so that nothing is written twice. The failure of a frame of the journal's
        own files is not retried. While the sink is stopping there is one more call and no wait: acknowledged rows are
        safe in the journal.
        """

        def wait(error: PipelineError, seconds: float) -> None:
            _LOG.warning("sink %s (%s): %s (%s), again in %.1f s", self.table.name, self.writer, what,
                         error.message(), seconds)  # fmt: skip
            self._session = None
            self._stopping.wait(seconds)

        return retried_until(call, self._retry, passes=_may_pass, is_last=self._stopping.is_set, wait=wait)

    def _written(self, batch: Batch) -> tuple[WriteResult | None, Batch]:
        """The write of a batch, and the batch without its refused rows. If all were refused, None for the write."""
        # An earlier try may have refused rows of `batch`. The journal then has the batch without them.
        current: Batch = self._journal.unfinished or batch
        while True:
            try:
                return self._write(current), current
            except (*_CAUSED_BY_ROWS, *SPARK_ERRORS) as error:
                good = self._without_bad(current, error)
            if good is None:
                return None, current
            current = good

    def _current_session(self) -> SparkSession:
        if self._session is None:
            self._session = self._open_session()
        return self._session

    def _write(self, batch: Batch) -> WriteResult:
        note = CommitNote(mark=Mark(writer=self.writer, epoch=batch.epoch), run_id=batch.token)
        with self._frame(self._current_session(), batch) as frame:
            return write(frame, table=self.table, note=note, source_is_stable=True)

    @contextmanager
    def _frame(self, session: SparkSession, batch: Batch) -> Iterator[DataFrame]:
        """The rows of a batch as Spark sees them: the files of the journal itself, if Spark can read them."""
        if self._in_place is None:
            with to_spark(self._journal.rows_of(batch), self.table.dataset, lambda: session, self._staging) as frame:
                yield frame
            return
        yield _staged(session, self.table.dataset, batch, self._in_place)

    def _refuse_others(self, batch: Batch, result: WriteResult, *, replay: bool) -> None:
        """Stop if another sink commits as this writer. Of the two, the one without the greater epoch stops.

        Raises:
            SinkConflictError: with the other sink's commit.
        """
        version: int | None = None
        if result.skipped:
            # The epoch was in the table before. If its commit is no longer in the log, a replay is assumed to be it.
            commits = [commit for commit in epochs(self.table.location, self.writer) if commit.epoch == batch.epoch]
            if not any(commit.batch == batch.token for commit in commits) and (commits or not replay):
                version = commits[-1].version if commits else result.version
        else:
            other = epoch_of_another_batch(
                self.table.location, self.writer, batch.token, self._seen, result.version - 1
            )
            if other is not None and other.epoch >= batch.epoch:
                version = other.version
        if version is not None:
            raise SinkConflictError(dataset=self.table.name, location=self.table.location, writer=self.writer,
                                    epoch=batch.epoch, version=version)  # fmt: skip

    # --- refused rows -------------------------------------------------------------------------------------------------

    def _without_bad(self, batch: Batch, error: Exception) -> Batch | None:
        """The batch without the rows at fault, which become dead letters. If no row is left, None.

        Raises:
            PipelineError, PySparkException, Py4JError: the given error, if no row can be identified as its cause.
        """
        rows, letters = self._journal.rows_of(batch), list[DeadLetter]()
        if isinstance(error, DuplicateKeysError):
            good, letters = without_repeats(self.table.dataset, rows)
        elif isinstance(error, ViolationError):
            with suppress(*SPARK_ERRORS), self._frame(self._current_session(), batch) as frame:  # a condition may raise
                good, letters = _split(self.table.dataset, frame, error)
        if not letters:
            try:
                good, letters = without_raising(self.table.dataset, rows, self._current_session, self._staging)
                if not letters:
                    session = self._current_session
                    good, letters = without_stored_value(self.table, rows, session, self._staging)
            except SPARK_ERRORS as failure:
                raise error from failure
        if not letters:
            raise error
        # A replay uses the same name, so no row is reported twice.
        self._letters.write(letters, f"epoch-{batch.epoch:020d}-{batch.token[:8]}-{len(batch.replaces)}")
        self._meter.refused(len(letters))
        return self._journal.replace(batch, good) if good.num_rows else None


def _may_pass(error: PipelineError) -> bool:
    return error.may_pass and not isinstance(error, FrameFailedError)


def compact(session: SparkSession, table: TableRef, writer: str, *, below_bytes: int) -> bool:
    """Compact files of less than that size; no row changes. Return whether it succeeded. A failure is only logged."""
    try:
        # With Delta's own bound, all files of a small table would be rewritten.
        optimize(session, table, CommitNote(mark=Mark(writer=writer)), below_bytes=below_bytes)
    except (PipelineError, *SPARK_ERRORS) as error:
        reason = str(error) if isinstance(error, PipelineError) else failure_of(error).summary
        _LOG.warning("sink %s (%s): not compacted (%s)", table.name, writer, reason)
        return False
    return True


def _staged(session: SparkSession, dataset: Dataset, batch: Batch, folder: str) -> DataFrame:
    """The files of a batch in a folder, all with one schema, as a Spark frame."""
    import pyarrow.parquet as pq

    schema = pq.read_schema(batch.segments[0].path)
    extra = [StructField(name, from_arrow_type(schema.field(name).type)) for name in dataset.frame_columns]
    left_out = set(dataset.schema.names) - set(schema.names)
    return staged(session, dataset, [f"{folder}/{segment.path.name}" for segment in batch.segments], extra, left_out)


def _split(dataset: Dataset, frame: DataFrame, error: ViolationError) -> tuple[Any, list[DeadLetter]]:
    """The rows that satisfy the rules which the error names, and the others with the reason. Two Spark jobs."""
    import pyarrow as pa

    conditions = _conditions(dataset, error)
    cases = [
        f"CASE WHEN coalesce({condition}, FALSE) THEN {sql.string(reason)} END"
        for reason, condition in conditions.items()
    ]
    column = sql.helper_name(dataset, _REASONS)
    reasons = sql.identifier(column)
    # For columns that Delta computes, the conditions are evaluated on the values that it would compute.
    selected = select_list(dataset, frame.schema)
    computed = {name: expression for name, expression in selected.items() if name not in frame.columns}
    computed_columns = (f"{expression} AS {sql.identifier(name)}" for name, expression in computed.items())
    complete = frame.selectExpr("*", *computed_columns)
    with_reasons = complete.selectExpr("*", f"array_compact(array({', '.join(cases) or 'NULL'})) AS {reasons}")
    is_stored = F.expr(merge.stored_condition(dataset) or "TRUE")
    with_reasons = with_reasons.withColumn(column, F.when(is_stored, F.col(reasons))).drop(*computed)
    bad = with_reasons.filter(f"size({reasons}) > 0").toArrow().to_pylist()
    letters = [letter_of({n: v for n, v in row.items() if n != column}, "; ".join(row[column])) for row in bad]
    good = with_reasons.filter(f"NOT coalesce(size({reasons}) > 0, FALSE)").drop(column).toArrow()
    fit = fitting(dataset, good.schema)
    return pa.Table.from_batches([fit.batch(batch) for batch in good.to_batches()], fit.schema), letters


def _conditions(dataset: Dataset, error: ViolationError) -> dict[str, str]:
    """SQL that is true for a row that violates a rule of the error's kind, by reason."""
    if isinstance(error, CheckViolationError):
        conditions = constraints.check_conditions(dataset)
        return {f"check {name} is broken": condition for name, condition in conditions.items()}
    if isinstance(error, NullViolationError):
        nulls = constraints.null_conditions(dataset.schema, merge.kept_columns(dataset))
        return {f"column {name}: NULL, declared NOT NULL": condition for name, condition in nulls.items()}
    if isinstance(error, PartitionValueError):
        lost = constraints.lost_partition_conditions(dataset)
        return {f"column {name}: a partition value that is read back as NULL": found for name, found in lost.items()}
    if isinstance(error, PartitionNameError):
        long = constraints.long_partition_conditions(dataset, error.limit)
        return {
            f"column {name}: no name of a folder: too long, or with a NUL character": condition
            for name, condition in long.items()
        }
    return {}


def without_repeats(dataset: Dataset, table: Any) -> tuple[Any, list[DeadLetter]]:
    """The first row of each key and rows equal to it. Later rows of its key that differ become dead letters."""
    first: dict[str, Any] = {}
    is_kept: list[bool] = []
    letters: list[DeadLetter] = []
    for row in table.to_pylist():
        key = repr([row[name] for name in dataset.keys])
        same = first.setdefault(key, row) == row
        is_kept.append(same)
        if not same:
            named = ", ".join(f"{name} = {row[name]}" for name in dataset.keys)
            letters.append(letter_of(row, f"another row of its key ({named}) came before it"))
    return table.filter(is_kept), letters
