"""The changes of a source as a frame: raw, or net by key. If changes can't be read, all rows of the source.

Here belongs the reading that a verdict asks for. A change frame is materialized and counted before it is returned: a
missing file shows only when the frame is executed (delta#1365). The verdict then becomes one of a full snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import TableRef
from pipeline.dataset.schema import free_name
from pipeline.delta import sql
from pipeline.delta.log.commits import commit_identity
from pipeline.delta.log.mark import Cursor
from pipeline.delta.read.appended_rows import MOST_BYTES, appended_rows
from pipeline.delta.read.cursors import EffectiveCursors
from pipeline.delta.read.verdict import Reason, Verdict, VerdictKind, needs_snapshot, verdict_on
from pipeline.delta.spark.doors import door
from pipeline.delta.spark.failures import (
    BEYOND_RETENTION,
    FEED_MISSING,
    FEED_UNREADABLE,
    LOST_OR_REFUSED,
    SPARK_ERRORS,
    VERSION_GONE,
    Failure,
    failure_of,
)
from pipeline.delta.spark.meaning import refuse_misreading
from pipeline.delta.sql.constraints import row_value
from pipeline.delta.sql.slices import Slice, Unaddressable, of_rows
from pipeline.delta.sql.state import without_state_rows
from pipeline.delta.table.open_table import require_table, rows_at
from pipeline.errors import TableMismatchError
from pipeline.errors.listing import bounded

CHANGE_TYPE, COMMIT_VERSION = "_change_type", "_commit_version"
INSERT, UPDATED, DELETE = "insert", "update_postimage", "delete"
# If true, Delta refuses changes beyond the retention of files, even if the files still exist (`CDCReaderBase`).
WITHIN_RETENTION = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
# Whether a change row is the row after the change, and not the row before it.
_IS_AFTER = f"({CHANGE_TYPE} IN ('{INSERT}', '{UPDATED}'))"
# A predicate over more values, or more cells, takes longer to plan than a read of the whole table.
TOUCHED_VALUES, TOUCHED_CELLS = 1_000, 200
# Changes of fewer bytes are read in one task, and what is computed from them isn't shuffled: a shuffle costs more than
# it saves. The number is Spark's estimate for opening one file (`spark.sql.files.openCostInBytes`).
ONE_TASK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The rows that have changed in a source, or all of its rows.

    The frame has the source's columns and `_change_type`. If the source has keys, which must be unique in it, the frame
    has at most one row a key, and of a History at most one a span, a key and its `valid_from`: `insert` or
    `update_postimage` with the present row, or `delete` with the last row before the deletion. A row that is the same
    as before is left out. If the source has no keys, the frame has the raw rows of the feed, with `_commit_version`. In
    a full snapshot every row is an `insert`. If nothing is new, there are no rows.

    `feed` holds the raw rows of the feed, and `counts` their number by change type. Unless the verdict is changes, they
    are None and empty.
    """

    source: TableRef
    verdict: Verdict
    frame: DataFrame
    feed: DataFrame | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    _not_touched: dict[str, None] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_full(self) -> bool:
        """Whether the frame has all rows of the source."""
        return self.verdict.kind is VerdictKind.FULL

    @property
    def facts(self) -> dict[str, Any]:
        """The verdict and its facts, in JSON's types. `counts` are those of the raw feed; empty for a full snapshot.

        `at_fault` has ranges of versions, only the first if there are many. If `touched` returned None because of the
        changed values, `whole_because` has the reasons.
        """
        verdict = self.verdict
        given_up = {"whole_because": list(self._not_touched)} if self._not_touched else {}
        return given_up | {
            "verdict": verdict.kind.value,
            "reason": None if verdict.reason is None else verdict.reason.value,
            "at_fault": bounded(verdict.at_fault),
            "after": verdict.after,
            "version": verdict.version,
            "window": None if verdict.window is None else list(verdict.window),
            "counts": dict(self.counts),
        }

    @property
    def whole(self) -> DataFrame:
        """All rows of the source at the version that the changes lead to."""
        return rows_at(self.frame.sparkSession, self.source.location, self.verdict.version)

    def rows_in(self, within: Slice | None) -> DataFrame:
        """The rows of `whole` that lie in a slice. If the slice is None, all rows."""
        return self.whole if within is None else self.whole.filter(within.predicate(self.source.dataset))

    def touched(self, *columns: str, at_most: int | None = None) -> Slice | None:
        """The slice of all values that these columns have in changed rows, before and after the change. One Spark job.

        None means all of the source. It is returned for a full snapshot, for more than `at_most` values of one column
        (default 1 000) or cells of several columns (default 200), and if no predicate can name a value: one of a nested
        type, or a date outside the years 1 to 9999. If nothing is new, the slice is empty.
        """
        if self.is_full:
            return None
        if self.feed is None:
            return Slice(())
        bound = at_most if at_most is not None else TOUCHED_VALUES if len(columns) == 1 else TOUCHED_CELLS
        try:
            changed = of_rows(self.feed, columns, bound)
            if changed is not None:
                changed.predicate(self.source.dataset)
        except Unaddressable as error:
            changed, reason = None, str(error)
        else:
            reason = f"more than {bound} values of {', '.join(columns)} have changed"
        if changed is None:
            self._not_touched[reason] = None
        return changed


@dataclass(frozen=True, kw_only=True)
class SourceChanges:
    """The changes of every source of a consumer; if one is a full snapshot, all are."""

    sources: Mapping[str, Changes]

    def __getitem__(self, name: str) -> Changes:
        """The changes of the source of that name."""
        return self.sources[name]

    @property
    def is_full(self) -> bool:
        """Whether the consumer must be built again from full snapshots."""
        return any(changes.is_full for changes in self.sources.values())

    @property
    def nothing_new(self) -> bool:
        """Whether no source has changed."""
        return all(changes.verdict.kind is VerdictKind.NOTHING_NEW for changes in self.sources.values())

    @property
    def cursors(self) -> dict[str, Cursor]:
        """The cursors that are in force once these changes were consumed."""
        return {name: changes.verdict.cursor for name, changes in self.sources.items()}

    @property
    def facts(self) -> dict[str, dict[str, Any]]:
        """The facts of each source's changes, in JSON's types."""
        return {name: changes.facts for name, changes in self.sources.items()}

    @property
    def versions(self) -> dict[str, int]:
        """The versions that the changes lead to."""
        return {name: changes.verdict.version for name, changes in self.sources.items()}


@contextmanager
def changes_since(
    session: SparkSession, sources: Sequence[TableRef], cursors: EffectiveCursors, *, full_refresh: bool = False,
    verdicts: Mapping[str, Verdict] | None = None,
) -> Iterator[SourceChanges]:  # fmt: skip
    """Read the changes of the sources since the cursors. The change frames stay persisted until the block ends.

    Args:
        full_refresh: whether to read full snapshots in any case.
        verdicts: what to read of each source, in place of what follows from the cursors.

    Raises:
        TableNotFoundError: a source was never written.
        TableMismatchError: a source lacks a key that its net changes need.
        SessionConfError: the session's confs would change the rows that are read. One of them ignores missing files.
    """
    for source in sources:
        refuse_misreading(session, source.dataset)
    verdicts = dict(verdicts or {}) or {
        source.name: verdict_on(session, source, cursors.sources.get(source.name), cursors.missing)
        for source in sources
    }
    if full_refresh:
        verdicts = {name: needs_snapshot(verdict, Reason.ASKED_FOR) for name, verdict in verdicts.items()}
    read: dict[str, Changes] = {}
    try:
        with past_retention(session):
            for source in sources:
                name = source.name
                if any(verdict.kind is VerdictKind.FULL for verdict in verdicts.values()):
                    break
                read[name] = read_changes(session, source, verdicts[name])
                verdicts[name] = read[name].verdict
            if all(verdict.kind is not VerdictKind.FULL for verdict in verdicts.values()):
                yield SourceChanges(sources=MappingProxyType(read))
                return
        yield SourceChanges(sources=MappingProxyType(_snapshots(session, sources, verdicts)))
    finally:
        for changes in read.values():
            release_changes(changes)


@contextmanager
def past_retention(session: SparkSession) -> Iterator[None]:
    """Let the session read versions and changes beyond the retention of files. If a file is missing, the read fails.

    A Connect session checks again at every execution of a frame, so the conf stays set as long as the frames are used.
    """
    before = session.conf.get(WITHIN_RETENTION, None)
    if before == "false":  # set by the caller, or by a run in another thread, which resets it
        yield
        return
    session.conf.set(WITHIN_RETENTION, "false")
    try:
        yield
    finally:
        with suppress(*LOST_OR_REFUSED):
            session.conf.unset(WITHIN_RETENTION) if before is None else session.conf.set(WITHIN_RETENTION, before)


def _snapshots(
    session: SparkSession, sources: Sequence[TableRef], verdicts: Mapping[str, Verdict]
) -> dict[str, Changes]:
    """Full snapshots of all sources. If one source needs one, all are read as one."""
    snapshots = {}
    for source in sources:
        verdict = verdicts[source.name]
        full_verdict = verdict if verdict.kind is VerdictKind.FULL else needs_snapshot(verdict, Reason.OTHER_SOURCE)
        snapshots[source.name] = _snapshot(session, source, full_verdict)
    return snapshots


@door
def read_changes(session: SparkSession, source: TableRef, verdict: Verdict) -> Changes:
    """Read the source as the verdict says. Two Spark jobs for changes, else none.

    The rows of changes stay persisted until `release_changes`. If the files show that changes can't be read, the result
    is a full snapshot. If the table no longer keeps the verdict's version, it is a snapshot of the newest version.

    Raises:
        SessionConfError: as in `changes_since`.
        TableMismatchError: the table lacks a key that its net changes need.
    """
    refuse_misreading(session, source.dataset)
    if verdict.window is None:
        return _snapshot(session, source, verdict)
    missing_keys = [key for key in source.dataset.row_keys if key not in verdict.schema.names]
    if missing_keys:
        differences = tuple(f"key column {key}: declared, the change feed lacks it" for key in missing_keys)
        raise TableMismatchError(
            dataset=source.name, location=source.location, version=verdict.version, differences=differences
        )
    raw: DataFrame | None = None
    try:
        appended = small_feed(session, source, verdict)
        read = _feed(session, source, verdict.window, verdict.schema.names) if appended is None else appended
        raw = (read.coalesce(1) if verdict.bytes <= ONE_TASK_BYTES else read).persist()
        counts = {row[CHANGE_TYPE]: row["count"] for row in raw.groupBy(CHANGE_TYPE).count().collect()}
    except SPARK_ERRORS as error:
        if raw is not None:
            with suppress(*LOST_OR_REFUSED):
                raw.unpersist()
        reason = _reason(failure_of(error))
        if reason is None:
            raise
        return _snapshot(session, source, needs_snapshot(verdict, reason))
    frame = net_changes(raw, source.dataset.row_keys) if source.dataset.row_keys else raw
    return Changes(
        source=source, verdict=verdict, frame=frame, feed=raw, counts=MappingProxyType(counts),
    )  # fmt: skip


def release_changes(changes: Changes) -> None:
    """Unpersist the rows of the feed."""
    if changes.feed is not None:
        with suppress(*LOST_OR_REFUSED):  # an error here must not hide the result of the consumer
            changes.feed.unpersist()


def small_feed(session: SparkSession, source: TableRef, verdict: Verdict) -> DataFrame | None:
    """The rows of a small feed of appended files in a bucket, read by this process. For any other feed, None."""
    if verdict.appended is None or verdict.bytes > MOST_BYTES:
        return None
    rows = appended_rows(source.location, verdict.schema, verdict.partition_by, verdict.appended)
    added = (StructField(CHANGE_TYPE, StringType()), StructField(COMMIT_VERSION, LongType()))
    return None if rows is None else session.createDataFrame(rows, StructType([*verdict.schema.fields, *added]))


def _feed(session: SparkSession, source: TableRef, window: tuple[int, int], columns: Sequence[str]) -> DataFrame:
    """The raw rows of the feed from the first to the last commit of the window, with the given columns."""
    return load_feed(session, source.location, *window).selectExpr(
        *map(sql.identifier, columns), sql.identifier(CHANGE_TYPE), sql.identifier(COMMIT_VERSION)
    )


def load_feed(session: SparkSession, location: str, first: int, last: int) -> DataFrame:
    """The change feed of the commits from `first` to `last`, with all its columns but `STATE_COLUMN`. Lazy."""
    reader = session.read.format("delta").option("readChangeFeed", "true")
    return without_state_rows(reader.option("startingVersion", first).option("endingVersion", last).load(location))


def _snapshot(session: SparkSession, source: TableRef, verdict: Verdict) -> Changes:
    """All rows as inserts. If the verdict is "nothing new", no rows."""
    if verdict.kind is not VerdictKind.FULL:
        whole = session.createDataFrame([], verdict.schema)
    else:
        try:
            whole = rows_at(session, source.location, verdict.version)
        except SPARK_ERRORS as error:
            newest = require_table(session, source)
            if newest.version == verdict.version or not failure_of(error).has(BEYOND_RETENTION | VERSION_GONE):
                raise
            entry = commit_identity(source.location, newest.version)
            newer = replace(verdict, version=newest.version, schema=newest.schema, entry=entry)
            return _snapshot(session, source, newer)
    version = [] if source.dataset.row_keys else [f"{verdict.version}L AS {COMMIT_VERSION}"]
    frame = whole.selectExpr("*", f"'{INSERT}' AS {CHANGE_TYPE}", *version)
    return Changes(source=source, verdict=verdict, frame=frame)


def _reason(failure: Failure) -> Reason | None:
    """The reason why a feed can't be read. If the failure has another cause, None."""
    if failure.is_file_gone or failure.has(BEYOND_RETENTION):
        return Reason.CHANGE_FILES_GONE
    reasons = {FEED_MISSING: Reason.FEED_OFF, FEED_UNREADABLE: Reason.SCHEMA_CHANGED, VERSION_GONE: Reason.LOG_CLEANED}
    return next((reason for conditions, reason in reasons.items() if failure.has(conditions)), None)


# --- net changes ------------------------------------------------------------------------------------------------------


def net_changes(raw: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The raw rows of a feed as at most one row a key: the present row, or its deletion. Lazy.

    Within one commit the row after a change wins over the row before it. A key with the same row as before is left out.
    """
    columns, value = _columns(raw)
    of_key, place = f"PARTITION BY {sql.names(keys)}", f"struct({COMMIT_VERSION}, {_IS_AFTER})"
    rank, before = _helpers(raw, "row rank", "row before")
    ranked = raw.selectExpr(
        "*",
        f"row_number() OVER ({of_key} ORDER BY {COMMIT_VERSION} DESC, {_IS_AFTER} DESC) AS {rank}",
        f"min_by(named_struct('was', NOT {_IS_AFTER}, 'row', {value}), {place}) OVER ({of_key}) AS {before}",
    )
    changed = f"CASE WHEN {_IS_AFTER} THEN NOT ({before}.was AND {before}.row <=> {value}) ELSE {before}.was END"
    kind = f"CASE WHEN NOT {_IS_AFTER} THEN '{DELETE}' WHEN {before}.was THEN '{UPDATED}' ELSE '{INSERT}' END"
    return ranked.filter(f"{rank} = 1 AND {changed}").selectExpr(*columns, f"{kind} AS {CHANGE_TYPE}")


def net_rows(raw: DataFrame) -> DataFrame:
    """The raw rows of a feed as the rows that were added more often than removed, and the reverse. Lazy."""
    columns, value = _columns(raw)
    rank, surplus = _helpers(raw, "row rank", "rows surplus")
    ranked = raw.selectExpr(
        "*",
        f"row_number() OVER (PARTITION BY {value}, {_IS_AFTER} ORDER BY {COMMIT_VERSION}) AS {rank}",
        f"sum(if({_IS_AFTER}, 1, -1)) OVER (PARTITION BY {value}) AS {surplus}",
    )
    surplus_rows = ranked.filter(f"{rank} <= abs({surplus}) AND {_IS_AFTER} = ({surplus} > 0)")
    return surplus_rows.selectExpr(*columns, f"if({_IS_AFTER}, '{INSERT}', '{DELETE}') AS {CHANGE_TYPE}")


def _helpers(raw: DataFrame, *names: str) -> list[str]:
    """Names of helper columns that the feed doesn't have, quoted."""
    return [sql.identifier(free_name(name, raw.columns)) for name in names]


def _columns(raw: DataFrame) -> tuple[list[str], str]:
    """The source's columns, and one SQL value of them all that can be compared."""
    fields = [f for f in raw.schema.fields if f.name not in (CHANGE_TYPE, COMMIT_VERSION)]
    return [sql.identifier(f.name) for f in fields], row_value(fields)
