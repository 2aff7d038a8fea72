"""A consumer's run: what has changed in its sources becomes rows of its table, in one commit with the cursors.

Here belongs the loop around reading changes and writing. A run that another run of the consumer has overtaken reads its
cursors and makes its frame again: the commit alone is never repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed

from pyspark.sql import DataFrame, SparkSession

from pipeline.dataset import Dataset, ErrorIfExists, Ignore, Merge
from pipeline.delta.changes import Source, SourceChanges, changes_since
from pipeline.delta.commit import CommitNote
from pipeline.delta.feed import Verdict, cursors_in_force
from pipeline.delta.retry import NO_RETRY, RetryPolicy, retried
from pipeline.delta.table import look
from pipeline.delta.write import WriteResult, write
from pipeline.errors import DeclarationError


@dataclass(frozen=True, kw_only=True)
class Consumed:
    """What one run of a consumer did: the verdicts by source, and its write; None where nothing was new."""

    verdicts: dict[str, Verdict]
    attempts: int
    written: WriteResult | None = None


def consume(
    session: SparkSession,
    dataset: Dataset,
    location: str,
    *,
    sources: Sequence[Source],
    compute: Callable[[SourceChanges], DataFrame],
    note: CommitNote,
    retry: RetryPolicy | None = None,
) -> Consumed:
    """Bring a consumer up to date with its sources, in one commit or none.

    Of full snapshots the table is made anew: it holds what its write would make of an empty table. Otherwise the frame
    is written as the dataset's mode says. Whatever `compute` returns, the cursors are committed with it, so that an
    empty frame advances them too.

    Args:
        compute: makes the rows of the dataset from the changes of its sources. It runs once an attempt, and what it is
            given holds only until it is written.

    Raises:
        DeclarationError: the dataset is written once, or as a changelog, and can't be made anew.
        TableNotFoundError: a source was never written.
        Whatever `write` raises, and `compute`.
    """
    once = isinstance(dataset.write, ErrorIfExists | Ignore)
    if once or (isinstance(dataset.write, Merge) and dataset.write.changelog is not None):
        problem = "a consumer of changes is appended to, replaced or merged by rows"
        raise DeclarationError(dataset=dataset.name, problems=(problem,))

    def attempt(number: int) -> Consumed:
        cursors = cursors_in_force(session, look(session, dataset, location))
        with changes_since(session, sources, cursors) as found:
            verdicts = {name: changes.verdict for name, changes in found.sources.items()}
            if found.nothing_new:
                return Consumed(verdicts=verdicts, attempts=number)
            mark = changed(note.mark, attempt=note.mark.attempt + number - 1)
            carried = changed(
                note, mark=mark, sources=found.versions, cursors=cursors.followed_by(found.cursors)
            )  # fmt: skip
            written = write(
                compute(found), dataset=dataset, location=location, note=carried, anew=found.is_full, retry=NO_RETRY
            )
            return Consumed(verdicts=verdicts, attempts=number, written=written)

    return retried(attempt, retry or RetryPolicy(), dataset.name)
