"""The files and log entries of a source that consumers of its changes have yet to read.

Here belongs the reading of the cursors in the logs of all consumers. `maintain` refuses or limits its changes by them.

A consumer needs the files with the changes of every commit that it has not read: the change files, or else the data
files that were added and removed. Of the log it needs the commit of its cursor and all later ones. A consumer without a
run counts as one that has read version 0. A consumer that must read the full source in any case needs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from pipeline.dataset import Dataset, TableRef
from pipeline.delta.log.mark import Cursor
from pipeline.delta.read.cursors import effective_cursors
from pipeline.delta.read.verdict import Reason, VerdictKind, verdict_on, window_files
from pipeline.delta.spark.doors import door
from pipeline.delta.spark.failures import SPARK_ERRORS, failure_of
from pipeline.delta.table.open_table import TableState, require_table, table_state
from pipeline.errors import CursorUnreadableError, PipelineError


@dataclass(frozen=True, kw_only=True)
class Unread:
    """The files of a source that a consumer has yet to read, by path below the table. At the newest version, empty.

    `version` is the last version that it has read. If it has read none, or if that is not known, it is 0.
    """

    consumer: str
    version: int
    files: tuple[str, ...] = ()


def consumers_of(name: str, datasets: Iterable[Dataset], root: str) -> tuple[TableRef, ...]:
    """The datasets that read the changes of the named dataset, with the locations of their tables."""
    consumers = (dataset for dataset in datasets if name in dataset.reads_changes_of)
    return tuple(consumer.at(root) for consumer in consumers)


@door
def unread_files(session: SparkSession | None, source: TableRef, consumers: Sequence[TableRef]) -> tuple[Unread, ...]:
    """The files that each consumer has yet to read. A consumer that needs nothing is left out.

    Args:
        session: if None, only logs are read. If the cursors of a consumer follow from a restore to a time that only
            Spark can read, they are not known then.

    Raises:
        TableNotFoundError: the source was never written.
        CursorUnreadableError: a log can't be read, so the needed files are not known.
    """
    state = require_table(session, source)
    unread = (_unread(session, source, state, consumer) for consumer in consumers)
    return tuple(needed for needed in unread if needed is not None)


def _unread(session: SparkSession | None, source: TableRef, state: TableState, consumer: TableRef) -> Unread | None:
    name = source.name
    try:
        in_force = effective_cursors(session, table_state(session, consumer))
        if in_force.needs_spark:
            return Unread(consumer=consumer.name, version=0)
        cursor = in_force.sources.get(name)
        if cursor is None and in_force.missing is Reason.FIRST_RUN:
            cursor = Cursor(table_id=state.table_id, version=0)
        verdict = verdict_on(session, source, cursor, in_force.missing)
        if cursor is None or verdict.kind is VerdictKind.FULL:
            return None
        files = window_files(source.location, verdict)
    except (OSError, ValueError, PipelineError, *SPARK_ERRORS) as error:
        raise CursorUnreadableError(
            dataset=name, location=source.location, consumer=consumer.name, reason=failure_of(error).summary
        ) from error
    return Unread(consumer=consumer.name, version=cursor.version, files=files)


def blocked_by(needed: Iterable[Unread], listed: Iterable[str]) -> tuple[Unread, ...]:
    """The consumers that need some of the files listed by full path, each with these files."""
    by_name: dict[str, list[str]] = {}
    for path in listed:
        by_name.setdefault(path.rpartition("/")[2], []).append(path)
    blocking = []
    for consumer in needed:
        files = tuple(
            file for file in consumer.files
            if any(path.endswith(f"/{file}") for path in by_name.get(file.rpartition("/")[2], ()))
        )  # fmt: skip
        if files:
            blocking.append(Unread(consumer=consumer.consumer, version=consumer.version, files=files))
    return tuple(blocking)
