"""The changes of a source as a frame: raw, or net by key; the whole of it where changes can't be read.

Here belongs what becomes of a verdict. A change frame is materialized and counted before it is handed out: that a file
of it is gone shows only when it is executed (delta#1365), and then the verdict is turned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pipeline.dataset import Dataset
from pipeline.dataset.schema import free_name
from pipeline.delta import sql
from pipeline.delta.log.mark import Cursor, commit_identity
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
from pipeline.delta.table.open_table import require_table, rows_at
from pipeline.errors import TableMismatchError
from pipeline.listing import bounded

CHANGE_TYPE, COMMIT_VERSION = "_change_type", "_commit_version"
INSERT, UPDATED, DELETE = "insert", "update_postimage", "delete"
# By it Delta refuses changes that are past the retention of files, whether they are there or not (`CDCReaderBase`).
WITHIN_RETENTION = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
# Whether a change brings a row in, rather than takes it out.
_IS_AFTER = f"({CHANGE_TYPE} IN ('{INSERT}', '{UPDATED}'))"
# A statement over more values, or more cells, takes longer to plan than reading the whole table does.
TOUCHED_VALUES, TOUCHED_CELLS = 1_000, 200
# Changes of fewer bytes are read in one task, and nothing made of them is shuffled: that costs more than it spares.
# It is what Spark reckons to open one file with (`spark.sql.files.openCostInBytes`).
ONE_TASK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class SourceTable:
    """A source that is read as changes, and where its table is."""

    dataset: Dataset
    location: str


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What has changed in a source, or all of it.

    The frame has the source's columns and `_change_type`. Of a source with keys, which must be unique in it, it has one
    row a key: `insert` or `update_postimage` with what the row is now, or `delete` with what it was last; a row that is
    as it was before is left out. Of any other source it has the raw rows of the feed, with `_commit_version`. A full
    snapshot has every row as an `insert`, and a source with nothing new none.

    `feed` holds the raw rows of the feed, and `counts` their number by change type; None and empty but for changes.
    """

    source: SourceTable
    verdict: Verdict
    frame: DataFrame
    feed: DataFrame | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    _not_touched: dict[str, None] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_full(self) -> bool:
        """Whether the frame is all of the source."""
        return self.verdict.kind is VerdictKind.FULL

    @property
    def facts(self) -> dict[str, Any]:
        """What was read and why, in JSON's types; counts are those of the raw feed, and there are none of all rows.

        Versions at fault are told as ranges, the first of many. Where `touched` has given up, `whole_because` says why.
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
        """All of the source at the version that the changes lead to."""
        return rows_at(self.frame.sparkSession, self.source.location, self.verdict.version)

    def rows_in(self, within: Slice | None) -> DataFrame:
        """The rows of `whole` that lie in a slice; all of them where it is None."""
        return self.whole if within is None else self.whole.filter(within.predicate(self.source.dataset))

    def touched(self, *columns: str, at_most: int | None = None) -> Slice | None:
        """The slice of what these columns hold in rows that have changed, as they were and as they are.

        None, which is all of the source, of a full snapshot, where there are more than `at_most` values of one column
        (1 000 where nothing is said), or cells of several (200), and where no predicate can name a value: one of a
        nested type, or a date beyond the years 1 to 9999. Of nothing new it is a slice of nothing. One Spark job.
        """
        if self.is_full:
            return None
        if self.feed is None:
            return Slice(())
        bound = at_most if at_most is not None else TOUCHED_VALUES if len(columns) == 1 else TOUCHED_CELLS
        try:
            found = of_rows(self.feed, columns, bound)
            if found is not None:
                found.predicate(self.source.dataset)
        except Unaddressable as error:
            found, reason = None, str(error)
        else:
            reason = f"more than {bound} values of {', '.join(columns)} have changed"
        if found is None:
            self._not_touched[reason] = None
        return found


@dataclass(frozen=True, kw_only=True)
class SourceChanges:
    """The changes of every source of a consumer; if one is a full snapshot, all are."""

    sources: Mapping[str, Changes]

    def __getitem__(self, name: str) -> Changes:
        """The changes of the source of that name."""
        return self.sources[name]

    @property
    def is_full(self) -> bool:
        """Whether the consumer is to be made anew."""
        return any(changes.is_full for changes in self.sources.values())

    @property
    def nothing_new(self) -> bool:
        """Whether no source has changed."""
        return all(changes.verdict.kind is VerdictKind.NOTHING_NEW for changes in self.sources.values())

    @property
    def cursors(self) -> dict[str, Cursor]:
        """The cursors once these were consumed."""
        return {name: changes.verdict.cursor for name, changes in self.sources.items()}

    @property
    def facts(self) -> dict[str, dict[str, Any]]:
        """What was read of each source and why, in JSON's types."""
        return {name: changes.facts for name, changes in self.sources.items()}

    @property
    def versions(self) -> dict[str, int]:
        """The versions that the changes lead to."""
        return {name: changes.verdict.version for name, changes in self.sources.items()}


@contextmanager
def changes_since(
    session: SparkSession, sources: Sequence[SourceTable], cursors: EffectiveCursors, *, full_refresh: bool = False
) -> Iterator[SourceChanges]:
    """What has changed in the sources since the cursors; the change frames are held for as long as the block lasts.

    Args:
        full_refresh: whether full snapshots are read whatever has changed.

    Raises:
        TableNotFoundError: a source was never written.
        TableMismatchError: a source lacks a key by which its changes are to be net.
        SessionConfError: the session's confs would change what is read; one passes over files that are missing.
    """
    for source in sources:
        refuse_misreading(session, source.dataset)
    verdicts = {
        source.dataset.name: verdict_on(
            session, source.dataset, source.location, cursors.sources.get(source.dataset.name), cursors.missing
        )
        for source in sources
    }
    if full_refresh:
        verdicts = {name: needs_snapshot(verdict, Reason.ASKED_FOR) for name, verdict in verdicts.items()}
    held: dict[str, Changes] = {}
    try:
        with _past_retention(session):
            for source in sources:
                name = source.dataset.name
                if any(verdict.kind is VerdictKind.FULL for verdict in verdicts.values()):
                    break
                held[name] = read_changes(session, source, verdicts[name])
                verdicts[name] = held[name].verdict
            if all(verdict.kind is not VerdictKind.FULL for verdict in verdicts.values()):
                yield SourceChanges(sources=MappingProxyType(held))
                return
        yield SourceChanges(sources=MappingProxyType(_snapshots(session, sources, verdicts)))
    finally:
        for changes in held.values():
            release_changes(changes)


@contextmanager
def _past_retention(session: SparkSession) -> Iterator[None]:
    """Let the session read changes for as long as their files are there, which shows as they are read.

    A Connect session asks again whenever a frame is executed, so it is let for as long as the frames are held.
    """
    before = session.conf.get(WITHIN_RETENTION, None)
    if before == "false":  # the caller's, or that of a run in another thread, which takes it back
        yield
        return
    session.conf.set(WITHIN_RETENTION, "false")
    try:
        yield
    finally:
        with suppress(*LOST_OR_REFUSED):
            session.conf.unset(WITHIN_RETENTION) if before is None else session.conf.set(WITHIN_RETENTION, before)


def _snapshots(
    session: SparkSession, sources: Sequence[SourceTable], verdicts: Mapping[str, Verdict]
) -> dict[str, Changes]:
    """Full snapshots of all sources, since one needs one."""
    made = {}
    for source in sources:
        verdict = verdicts[source.dataset.name]
        wanted = verdict if verdict.kind is VerdictKind.FULL else needs_snapshot(verdict, Reason.OTHER_SOURCE)
        made[source.dataset.name] = _snapshot(session, source, wanted)
    return made


@door
def read_changes(session: SparkSession, source: SourceTable, verdict: Verdict) -> Changes:
    """Read what a verdict asks for; changes are held until `release_changes`. Two Spark jobs for changes, else none.

    A verdict that proves wrong as its files are read becomes one of a full snapshot; of the newest version where that
    of the verdict is past the table's retention by now.

    Raises:
        SessionConfError: as in `changes_since`.
        TableMismatchError: the table lacks a key by which its changes are to be net.
    """
    refuse_misreading(session, source.dataset)
    if verdict.window is None:
        return _snapshot(session, source, verdict)
    lacking = [key for key in source.dataset.keys if key not in verdict.schema.names]
    if lacking:
        differences = tuple(f"key column {key}: declared, the change feed lacks it" for key in lacking)
        raise TableMismatchError(
            dataset=source.dataset.name, location=source.location, version=verdict.version, differences=differences
        )
    raw: DataFrame | None = None
    try:
        read = _feed(session, source, verdict.window, verdict.schema.names)
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
    frame = net_changes(raw, source.dataset.keys) if source.dataset.keys else raw
    return Changes(
        source=source, verdict=verdict, frame=frame, feed=raw, counts=MappingProxyType(counts),
    )  # fmt: skip


def release_changes(changes: Changes) -> None:
    """Let go of the rows that are held."""
    if changes.feed is not None:
        with suppress(*LOST_OR_REFUSED):  # must not hide what became of the rows
            changes.feed.unpersist()


def _feed(session: SparkSession, source: SourceTable, window: tuple[int, int], columns: Sequence[str]) -> DataFrame:
    """The raw rows of the feed, both ends of the window included, with the columns of the version that is led to."""
    reader = session.read.format("delta").option("readChangeFeed", "true")
    pinned = reader.option("startingVersion", window[0]).option("endingVersion", window[1])
    return pinned.load(source.location).selectExpr(
        *map(sql.identifier, columns), sql.identifier(CHANGE_TYPE), sql.identifier(COMMIT_VERSION)
    )


def _snapshot(session: SparkSession, source: SourceTable, verdict: Verdict) -> Changes:
    """All rows as inserts; none where the verdict says that nothing is new."""
    if verdict.kind is not VerdictKind.FULL:
        whole = session.createDataFrame([], verdict.schema)
    else:
        try:
            whole = rows_at(session, source.location, verdict.version)
        except SPARK_ERRORS as error:
            newest = require_table(session, source.dataset, source.location)
            if newest.version == verdict.version or not failure_of(error).has(BEYOND_RETENTION | VERSION_GONE):
                raise
            entry = commit_identity(session, source.location, newest.version)
            newer = replace(verdict, version=newest.version, schema=newest.schema, entry=entry)
            return _snapshot(session, source, newer)
    version = [] if source.dataset.keys else [f"{verdict.version}L AS {COMMIT_VERSION}"]
    frame = whole.selectExpr("*", f"'{INSERT}' AS {CHANGE_TYPE}", *version)
    return Changes(source=source, verdict=verdict, frame=frame)


def _reason(failure: Failure) -> Reason | None:
    """Why a feed can't be read; None where the failure says nothing of that."""
    if failure.is_file_gone or failure.has(BEYOND_RETENTION):
        return Reason.CHANGE_FILES_GONE
    found = {FEED_MISSING: Reason.FEED_OFF, FEED_UNREADABLE: Reason.SCHEMA_CHANGED, VERSION_GONE: Reason.LOG_CLEANED}
    return next((reason for conditions, reason in found.items() if failure.has(conditions)), None)


# --- net changes ------------------------------------------------------------------------------------------------------


def net_changes(raw: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Raw rows of a feed as at most one row a key: what it is now, or that it is gone; lazily.

    Within one commit what comes in beats what goes out. A key whose row is as it was before is left out.
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
    """Raw rows of a feed as those that there are more of now, and those that there are fewer of; lazily."""
    columns, value = _columns(raw)
    rank, surplus = _helpers(raw, "row rank", "rows surplus")
    ranked = raw.selectExpr(
        "*",
        f"row_number() OVER (PARTITION BY {value}, {_IS_AFTER} ORDER BY {COMMIT_VERSION}) AS {rank}",
        f"sum(if({_IS_AFTER}, 1, -1)) OVER (PARTITION BY {value}) AS {surplus}",
    )
    kept = ranked.filter(f"{rank} <= abs({surplus}) AND {_IS_AFTER} = ({surplus} > 0)")
    return kept.selectExpr(*columns, f"if({_IS_AFTER}, '{INSERT}', '{DELETE}') AS {CHANGE_TYPE}")


def _helpers(raw: DataFrame, *wanted: str) -> list[str]:
    """Columns of our own beside those of the feed, quoted."""
    return [sql.identifier(free_name(name, raw.columns)) for name in wanted]


def _columns(raw: DataFrame) -> tuple[list[str], str]:
    """The source's columns, and all of them as one value that can be compared."""
    fields = [f for f in raw.schema.fields if f.name not in (CHANGE_TYPE, COMMIT_VERSION)]
    return [sql.identifier(f.name) for f in fields], row_value(fields)
