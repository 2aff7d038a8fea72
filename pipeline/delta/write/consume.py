"""A consumer's run: what has changed in its sources becomes rows of its table, in one commit with the cursors.

Here belong the two halves of a run, reading and writing, and the loop around them. A run that another run of the
consumer has overtaken reads its cursors and makes its frame again: the commit alone is never repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from pipeline.dataset import Dataset, Replace
from pipeline.dataset.write_mode import consumer_problems
from pipeline.delta.log.mark import CommitNote
from pipeline.delta.log.retry import NO_RETRY, RetryPolicy, with_retries
from pipeline.delta.read.changes import SourceChanges, SourceTable, changes_since
from pipeline.delta.read.cursors import EffectiveCursors, effective_cursors
from pipeline.delta.read.verdict import Verdict
from pipeline.delta.spark.doors import door, door_of_block
from pipeline.delta.sql.slices import Slice
from pipeline.delta.table.open_table import CHANGE_FEED, require_table, table_state
from pipeline.delta.write.result import WriteResult, no_commit
from pipeline.delta.write.write import write
from pipeline.errors import ChangeFeedOffError, DeclarationError, TouchedSliceError
from pipeline.listing import listed


@dataclass(frozen=True)
class Touched:
    """A frame that takes the place of the rows of a slice; of all rows where `within` is None.

    What a consumer that replaces returns where only some of its rows follow from what has changed: `within` is what
    `Changes.touched` says, over columns of the consumer's own table, and the frame has every row that belongs in it.
    """

    frame: Any
    within: Slice | None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a run of a consumer has read and not written yet: the cursors in force, and what has changed since."""

    cursors: EffectiveCursors
    changes: SourceChanges

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdicts by source."""
        return {name: changes.verdict for name, changes in self.changes.sources.items()}

    @property
    def is_late(self) -> bool:
        """Whether the cursors are to be moved although nothing is new, lest the log loses their place."""
        return any(verdict.is_late for verdict in self.verdicts.values())


@dataclass(frozen=True, kw_only=True)
class Consumed:
    """What one run of a consumer did: the verdicts by source, and its write; None where there was nothing to commit."""

    verdicts: dict[str, Verdict]
    attempts: int
    written: WriteResult | None = None


def consume(
    session: SparkSession,
    dataset: Dataset,
    location: str,
    *,
    sources: Sequence[SourceTable],
    compute: Callable[[SourceChanges], DataFrame | Touched],
    note: CommitNote,
    full_refresh: bool = False,
    retry: RetryPolicy | None = None,
) -> Consumed:
    """Bring a consumer up to date with its sources, in one commit or none.

    Args:
        compute: makes the rows of the dataset from the changes of its sources. It runs once an attempt, and what it is
            given holds only until it is written.
        full_refresh: whether the table is made anew whatever has changed.

    Raises:
        As `read_sources` and `write_consumed` do, and whatever `compute` raises.
    """

    def attempt(number: int) -> Consumed:
        with read_sources(session, dataset, location, sources, full_refresh=full_refresh) as found:
            if found.changes.nothing_new and not found.is_late:
                return Consumed(verdicts=found.verdicts, attempts=number)
            made = None if found.changes.nothing_new else compute(found.changes)
            frame, within = (made.frame, made.within) if isinstance(made, Touched) else (made, None)
            mark = changed(note.mark, attempt=note.mark.attempt + number - 1)
            written = write_consumed(
                session, frame, found, dataset=dataset, location=location, note=changed(note, mark=mark), within=within
            )
            return Consumed(verdicts=found.verdicts, attempts=number, written=written)

    return with_retries(attempt, retry or RetryPolicy(), dataset.name)


@door_of_block
@contextmanager
def read_sources(
    session: SparkSession,
    dataset: Dataset,
    location: str,
    sources: Sequence[SourceTable],
    *,
    full_refresh: bool = False,
) -> Iterator[Reading]:
    """What has changed since a consumer was last written; the change frames are held for as long as the block lasts.

    Raises:
        DeclarationError: the dataset is written once, or as a changelog, and can't be made anew.
        ChangeFeedOffError: a source's table has no change feed, and the dataset does not say `full_without_feed`.
        As `changes_since` does.
    """
    problems = tuple(consumer_problems(dataset.write))
    if problems:
        raise DeclarationError(dataset=dataset.name, problems=problems)
    cursors = effective_cursors(session, table_state(session, dataset, location))
    with changes_since(session, sources, cursors, full_refresh=full_refresh) as found:
        for name, source in found.sources.items():
            if not source.verdict.feed_on and not dataset.full_without_feed:
                raise ChangeFeedOffError(
                    dataset=name, location=source.source.location, consumer=dataset.name, setting=CHANGE_FEED
                )
        yield Reading(cursors=cursors, changes=found)


@door
def write_consumed(
    session: SparkSession,
    frame: DataFrame | None,
    found: Reading,
    *,
    dataset: Dataset,
    location: str,
    note: CommitNote,
    within: Slice | None = None,
) -> WriteResult:
    """Commit what a consumer has made of its reading, together with the cursors; one attempt.

    Of full snapshots the table is made anew: it holds what its write would make of an empty table. Otherwise the frame
    is written as the dataset's mode says. Whatever the frame holds, the cursors are committed with it, so that an empty
    one advances them too. Where nothing is new the frame is not asked for, and no commit is made unless it is late.

    Args:
        within: the slice that the frame takes the place of; the whole table where None.

    Raises:
        TouchedSliceError: the dataset does not replace, or the table is to be made anew, and the frame is of a slice.
        CommitConflictError: another run of the consumer was first; what was read must be read again.
        As `write` does.
    """
    if found.changes.nothing_new:
        if not found.is_late:
            return no_commit(dataset, require_table(session, dataset, location), note.mark)
        deciding = [StructField(name, StringType()) for name in dataset.frame_columns]
        frame = session.createDataFrame([], StructType([*dataset.schema.fields, *deciding]))
        within = Slice(())
    elif within is not None:
        _refuse_slice(dataset, found, within)
    assert frame is not None  # noqa: S101
    carried = changed(note, sources={**note.sources, **found.changes.versions},
                      cursors=found.cursors.followed_by(found.changes.cursors))  # fmt: skip
    return write(
        frame, dataset=dataset, location=location, note=carried, within=within, replace_all=found.changes.is_full,
        retry=NO_RETRY,
    )  # fmt: skip


def _refuse_slice(dataset: Dataset, found: Reading, within: Slice) -> None:
    problem = None
    if found.changes.is_full:
        problem = "its sources were read whole, and its table is made anew"
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
