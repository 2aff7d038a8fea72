"""A consumer's run: the changes of its sources become rows of its table, in one commit with the cursors.

Here belong the two halves of a run, reading and writing, and the retry loop around them. If another run of the consumer
committed first, the run reads its cursors again and computes its frame again. It never repeats the commit alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StringType, StructField, StructType

from pipeline.dataset import Dataset, History, Replace, TableRef
from pipeline.dataset.write_mode import consumer_problems
from pipeline.delta.log.mark import CommitNote
from pipeline.delta.log.retry import NO_RETRY, RetryPolicy, with_retries
from pipeline.delta.read.changes import SourceChanges, changes_since
from pipeline.delta.read.cursors import EffectiveCursors, effective_cursors
from pipeline.delta.read.pinned import PinnedChanges, pinned_verdict, require_same
from pipeline.delta.read.verdict import Verdict
from pipeline.delta.spark.doors import door, door_of_block
from pipeline.delta.sql.slices import Slice
from pipeline.delta.table.open_table import CHANGE_FEED, require_table, table_state
from pipeline.delta.write.result import WriteResult, no_commit
from pipeline.delta.write.write import write
from pipeline.errors import ChangeFeedOffError, DeclarationError, TouchedSliceError
from pipeline.errors.listing import listed


@dataclass(frozen=True)
class Touched:
    """A frame that replaces the rows of a slice. If `within` is None, it replaces all rows.

    A consumer that replaces returns it if only some of its rows follow from the changes. `within` is a slice from
    `Changes.touched`, over columns of the consumer's own table. The frame must have every row that belongs in it.
    """

    frame: Any
    within: Slice | None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a consumer's run has read but not yet written: the cursors in force, and the changes since them."""

    cursors: EffectiveCursors
    changes: SourceChanges

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdicts by source."""
        return {name: changes.verdict for name, changes in self.changes.sources.items()}

    @property
    def is_late(self) -> bool:
        """Whether to advance the cursors although nothing is new, before the log loses their commits."""
        return any(verdict.is_late for verdict in self.verdicts.values())


@dataclass(frozen=True, kw_only=True)
class Consumed:
    """The result of one consumer run: the verdicts by source, and its write, None if there was nothing to commit."""

    verdicts: dict[str, Verdict]
    attempts: int
    written: WriteResult | None = None


def consume(
    session: SparkSession,
    table: TableRef,
    *,
    sources: Sequence[TableRef],
    compute: Callable[[SourceChanges], DataFrame | Touched],
    note: CommitNote,
    full_refresh: bool = False,
    retry: RetryPolicy | None = None,
) -> Consumed:
    """Bring a consumer up to date with its sources, in one commit or none.

    Args:
        compute: makes the rows of the dataset from the changes of its sources. It runs once an attempt, and its
            argument is valid only until the write ends.
        full_refresh: whether to build the table again from full snapshots in any case.

    Raises:
        As `read_sources` and `write_consumed` do, and any error that `compute` raises.
    """

    def attempt(number: int) -> Consumed:
        with read_sources(session, table, sources, full_refresh=full_refresh) as reading:
            if reading.changes.nothing_new and not reading.is_late:
                return Consumed(verdicts=reading.verdicts, attempts=number)
            computed = None if reading.changes.nothing_new else compute(reading.changes)
            frame, within = (computed.frame, computed.within) if isinstance(computed, Touched) else (computed, None)
            mark = changed(note.mark, attempt=note.mark.attempt + number - 1)
            written = write_consumed(
                session,
                frame,
                reading,
                table=table,
                note=changed(note, mark=mark),
                within=within,
            )
            return Consumed(verdicts=reading.verdicts, attempts=number, written=written)

    return with_retries(attempt, retry or RetryPolicy(), table.name)


@door_of_block
@contextmanager
def read_sources(
    session: SparkSession,
    table: TableRef,
    sources: Sequence[TableRef],
    *,
    full_refresh: bool = False,
    pinned: Mapping[str, PinnedChanges] | None = None,
) -> Iterator[Reading]:
    """Read the changes since the consumer's last write. The change frames stay persisted until the block ends.

    Args:
        pinned: an earlier read of each source, to be repeated in place of what is new.

    Raises:
        ChangesUnreadableError: a pinned read can't be repeated.
        DeclarationError: the dataset can't be built again in full: a first load, a Merge of a changelog, or a
            History with partitions.
        ChangeFeedOffError: a source's table has no change feed, and the dataset does not say `full_without_feed`.
        As `changes_since` does.
    """
    problems = tuple(consumer_problems(table.dataset.write, table.dataset.partition_by))
    if problems:
        raise DeclarationError(dataset=table.name, problems=problems)
    cursors = effective_cursors(session, table_state(session, table))
    pins = pinned or {}
    verdicts = {source.name: pinned_verdict(session, source, pins[source.name]) for source in sources if pins}
    with changes_since(session, sources, cursors, full_refresh=full_refresh, verdicts=verdicts) as changes:
        for name, source in changes.sources.items():
            if pins:
                require_same(source.source, pins[name].kind, pins[name].version, source.verdict)
            if not source.verdict.feed_on and not table.dataset.full_without_feed:
                raise ChangeFeedOffError(
                    dataset=name, location=source.source.location, consumer=table.name, setting=CHANGE_FEED
                )
        yield Reading(cursors=cursors, changes=changes)


@door
def write_consumed(
    session: SparkSession,
    frame: DataFrame | None,
    found: Reading,
    *,
    table: TableRef,
    note: CommitNote,
    within: Slice | None = None,
) -> WriteResult:
    """Commit the rows that a consumer computed from its reading, together with the cursors. One attempt.

    After full snapshots the table is built again: it holds what the write would make of an empty table. A History keeps
    its past even then, and takes the frame as a snapshot of the source. Otherwise the
    frame is written in the dataset's mode. The cursors are always committed with the frame, so an empty frame advances
    them too. If nothing is new, the frame is not used, and no commit is made unless the cursors are late.

    Args:
        within: the slice that the frame replaces. If None, the whole table.

    Raises:
        TouchedSliceError: the frame is of a slice, but the dataset does not replace, or all sources were read in full.
        CommitConflictError: another run of the consumer committed first. The sources must be read again.
        As `write` does.
    """
    if found.changes.nothing_new:
        if not found.is_late:
            return no_commit(table.dataset, require_table(session, table), note.mark)
        frame = session.createDataFrame([], _frame_schema(table.dataset))
        within = Slice(())
    elif within is not None:
        _refuse_slice(table.dataset, found, within)
    assert frame is not None  # noqa: S101
    carried = changed(note, sources={**note.sources, **found.changes.versions},
                      cursors=found.cursors.followed_by(found.changes.cursors))  # fmt: skip
    return write(
        frame, table=table, note=carried, within=within, replace_all=found.changes.is_full,
        retry=NO_RETRY,
    )  # fmt: skip


def _frame_schema(dataset: Dataset) -> StructType:
    """The columns of a frame; those that the table lacks as texts, but for the order of a History."""
    types: dict[str, DataType] = dict.fromkeys(dataset.frame_columns, StringType())
    if isinstance(dataset.write, History):
        types[dataset.write.sequence] = dataset.field(dataset.write.valid_from).dataType
    stored = [field for field in dataset.schema.fields if field.name not in dataset.computed]
    return StructType([*stored, *(StructField(name, types[name]) for name in dataset.frame_columns)])


def _refuse_slice(dataset: Dataset, reading: Reading, within: Slice) -> None:
    problem = None
    if reading.changes.is_full:
        problem = "its sources were read in full, and its table is built again"
    elif not isinstance(dataset.write, Replace):
        problem = f"it is written as {type(dataset.write).__name__}"
    unknown = [column for column in within.columns if column not in dataset.schema.names]
    if unknown:
        problem = f"it has no column {listed(unknown)}"
    else:
        try:
            within.predicate(dataset)
        except ValueError as error:
            problem = str(error)
    if problem is not None:
        raise TouchedSliceError(dataset=dataset.name, slice=str(within), problem=problem)
