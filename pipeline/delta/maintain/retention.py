"""What consumers of changes have still to read of a source, so that nothing takes it away from them.

Here belongs the look at the cursors in the logs of all consumers. What is refused or left alone then is `maintain`'s.

Of every commit that it has not read, a consumer needs the files that its changes are in: the change files, or where
there are none the data files that were added and removed. Of the log it needs the commit of its cursor and all later.
One that never ran counts as having read version 0; one that has to read the whole source anyway needs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from pipeline.dataset import Dataset
from pipeline.delta.log.mark import Cursor
from pipeline.delta.read.changes import SourceTable
from pipeline.delta.read.cursors import effective_cursors
from pipeline.delta.read.verdict import Reason, VerdictKind, verdict_on, window_files
from pipeline.delta.spark.doors import door
from pipeline.delta.spark.failures import SPARK_ERRORS, failure_of
from pipeline.delta.table.open_table import TableState, require_table, table_state
from pipeline.errors import CursorUnreadableError, PipelineError


@dataclass(frozen=True, kw_only=True)
class Unread:
    """What a consumer has still to read of a source: files by their paths below the table, empty at its newest version.

    `version` is the last that it has read, 0 where it has read none.
    """

    consumer: str
    version: int
    files: tuple[str, ...] = ()


def consumers_of(name: str, datasets: Iterable[Dataset], root: str) -> tuple[SourceTable, ...]:
    """Those of the datasets that read the changes of the one of that name, and where their tables are."""
    consumers = (found for found in datasets if name in found.reads_changes_of)
    return tuple(SourceTable(dataset=found, location=found.location(root)) for found in consumers)


@door
def unread_files(session: SparkSession, source: SourceTable, consumers: Sequence[SourceTable]) -> tuple[Unread, ...]:
    """What each consumer has still to read; one that needs nothing is left out.

    Raises:
        TableNotFoundError: the source was never written.
        CursorUnreadableError: a log can't be read, so that nobody knows what is needed.
    """
    state = require_table(session, source.dataset, source.location)
    found = (_unread(session, source, state, consumer) for consumer in consumers)
    return tuple(needed for needed in found if needed is not None)


def _unread(session: SparkSession, source: SourceTable, state: TableState, consumer: SourceTable) -> Unread | None:
    name = source.dataset.name
    try:
        in_force = effective_cursors(session, table_state(session, consumer.dataset, consumer.location))
        cursor = in_force.sources.get(name)
        if cursor is None and in_force.missing is Reason.FIRST_RUN:
            cursor = Cursor(table_id=state.table_id, version=0)
        verdict = verdict_on(session, source.dataset, source.location, cursor, in_force.missing)
        if cursor is None or verdict.kind is VerdictKind.FULL:
            return None
        files = window_files(session, source.location, verdict)
    except (OSError, ValueError, PipelineError, *SPARK_ERRORS) as error:
        raise CursorUnreadableError(
            dataset=name, location=source.location, consumer=consumer.dataset.name, reason=failure_of(error).summary
        ) from error
    return Unread(consumer=consumer.dataset.name, version=cursor.version, files=files)


def blocked_by(needed: Iterable[Unread], listed: Iterable[str]) -> tuple[Unread, ...]:
    """What is needed of files that are listed by their full paths; consumers that need none of them are left out."""
    by_name: dict[str, list[str]] = {}
    for path in listed:
        by_name.setdefault(path.rpartition("/")[2], []).append(path)
    found = []
    for consumer in needed:
        files = tuple(
            file for file in consumer.files
            if any(path.endswith(f"/{file}") for path in by_name.get(file.rpartition("/")[2], ()))
        )  # fmt: skip
        if files:
            found.append(Unread(consumer=consumer.consumer, version=consumer.version, files=files))
    return tuple(found)
