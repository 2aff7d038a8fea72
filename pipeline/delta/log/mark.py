"""The mark of our own commits in the log: written through a write's private session, and searched after the write.

Here belong the content of `userMetadata`, the session that writes it, and the reading of single commits. What is
written to the rows does not belong here.

The reported version of a write is that of the entry with our mark, never the newest one: another writer may commit
between our write and a read of the log.
"""

from __future__ import annotations

import json
import platform
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pyspark.sql import SparkSession

from pipeline.delta import sql
from pipeline.delta.log.commits import (
    FORMAT,
    Commit,
    PartitionValues,
    commit_file,
    commit_note,
    commit_of,
    commit_token,
    entry_identity,
    entry_identity_at,
    read_commit_file,
)
from pipeline.delta.log.snapshot import local_folder
from pipeline.delta.spark.connect import clone_connect, end_connect
from pipeline.delta.spark.failures import LOST_OR_REFUSED, NOTHING_TO_READ, SPARK_ERRORS, failure_of
from pipeline.delta.spark.meaning import set_session_confs
from pipeline.delta.spark.session import is_connect
from pipeline.errors import AfterCommitError, CommitUnknownError

# The number of newest commits that are searched for a mark, if the session's last commit does not have it.
HISTORY_LIMIT = 100
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
# The last commit of the session to any table, kept until it is unset: exact only in a session with one writer.
_LAST_COMMIT = "spark.databricks.delta.lastCommitVersionInSession"
# Operations of commits that Delta itself makes after ours, in the same session and so with the same user metadata.
_FOLLOW_UPS = frozenset({"OPTIMIZE"})
_COMMIT_SCHEMA = (
    "add STRUCT<path: STRING, partitionValues: MAP<STRING, STRING>, size: BIGINT, dataChange: BOOLEAN, stats: STRING, "
    "deletionVector: STRUCT<cardinality: BIGINT>>, "
    "remove STRUCT<path: STRING, partitionValues: MAP<STRING, STRING>, dataChange: BOOLEAN>, "
    "commitInfo STRUCT<timestamp: BIGINT, inCommitTimestamp: BIGINT, operation: STRING, "
    "operationMetrics: MAP<STRING, STRING>, userMetadata: STRING, readVersion: BIGINT>"
)


@dataclass(frozen=True, kw_only=True)
class Mark:
    """The mark of our own commits in the log: the writer, its epoch, the attempt, and a token unique to the call.

    A repeat of a batch has the same writer and epoch, and a later batch of that writer a greater epoch. A write that is
    never repeated has no epoch.
    """

    writer: str
    epoch: int | None = None
    attempt: int = 1
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def text(self) -> str:
        """The mark in one line."""
        return f"{self.writer}/{self.epoch}/{self.attempt}/{self.token}"


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """The last version of a source that a consumer has read, and the id of its table.

    `entry` is the identity of that version's commit, or None if it is not known. If a table's folder is replaced by an
    older copy, the version's commit is another one or does not exist yet.
    """

    table_id: str
    version: int
    entry: str | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True)
class Cursors:
    """The cursors that a consumer's commit sets, by the names of its sources.

    `number` is one more than that of the previous cursors, and at most the version of the commit. Delta accepts only
    one commit of a number. `read_at` is the consumer's own version at which the previous cursors were read, or -1 if it
    had no table. A restore after that version undoes them.
    """

    number: int
    read_at: int
    sources: Mapping[str, Cursor]

    @classmethod
    def from_note(cls, note: Mapping[str, Any] | None) -> Cursors | None:
        """The cursors in a commit's note. If it sets none, None."""
        cursors = (note or {}).get("cursors")
        if not cursors:
            return None
        sources = {name: Cursor(**cursor) for name, cursor in cursors["sources"].items()}
        return cls(number=cursors["number"], read_at=cursors["read_at"], sources=sources)


@dataclass(frozen=True, kw_only=True)
class StreamBatch:
    """A batch of a stream: the query's checkpoint relative to the table, and the identity of its input."""

    checkpoint: str
    content: str | None


@dataclass(frozen=True, kw_only=True)
class CommitNote:
    """Our note in a commit's user metadata.

    `sources` maps dataset names to the versions read. `partitions` is the addressed slice as text, `partition_columns`
    are the columns that it restricts. `cursors` are those of a consumer of changes, set together with the rows.
    `stream` is the stream's batch whose rows are committed.
    """

    mark: Mark
    run_id: str | None = None
    asset: str | None = None
    partitions: str | None = None
    partition_columns: tuple[str, ...] = ()
    sources: Mapping[str, int] = field(default_factory=dict)
    cursors: Cursors | None = None
    stream: StreamBatch | None = None

    def to_json(self, session: SparkSession, fingerprint: str) -> str:
        """The note as JSON, with the schema's fingerprint and the runtime profile."""
        note = asdict(self) | {"sources": dict(self.sources)}
        for name in ("cursors", "stream", "partition_columns"):
            if not note[name]:
                del note[name]
        profile = runtime_profile(session)
        return json.dumps(
            {"pipeline": FORMAT} | note | {"schema_fingerprint": fingerprint, "runtime": profile}, sort_keys=True
        )


def runtime_profile(session: SparkSession) -> dict[str, str]:
    """The versions of the software that writes, and the mode of Spark."""
    try:
        ours = version("delta-first-pipeline")
    except PackageNotFoundError:
        ours = "unknown"
    mode = "connect" if is_connect(session) else session.conf.get("spark.master", "") or "classic"
    return {
        "spark": session.version,
        "delta": version("delta-spark"),
        "pipeline": ours,
        "python": platform.python_version(),
        "mode": mode,
    }


class AfterCommit:
    """The block after a commit: its errors are raised with the committed version.

    Raises:
        AfterCommitError: from any exception of the block that is not an interrupt.
    """

    def __init__(self, dataset_name: str, location: str, version: int) -> None:
        self._place = (dataset_name, location, version)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, AfterCommitError):
            name, location, version = self._place
            reason = f"{type(error).__name__}: {failure_of(error).summary}"
            raise AfterCommitError(dataset=name, location=location, version=version, reason=reason) from error


@contextmanager
def private_session(session: SparkSession, confs: Mapping[str, str]) -> Iterator[SparkSession]:
    """A clone of the session for one write. It has the caller's temporary views, and its confs are its own.

    The caller's confs don't change the meaning of its statements. An expression of a view was analysed in the session
    that created the view, and keeps the zone of that session.
    """
    clone = clone_session(session)
    try:
        clone.conf.unset(_LAST_COMMIT)
        set_session_confs(clone)
        for name, value in confs.items():
            clone.conf.set(name, value)
        yield clone
    finally:
        release_session(clone)


def clone_session(session: SparkSession) -> SparkSession:
    """A session with copies of the views and confs."""
    if is_connect(session):
        return clone_connect(session)
    return SparkSession(session.sparkContext, session._jsparkSession.cloneSession())


def release_session(clone: SparkSession) -> None:
    """Release a clone's state. A classic clone is garbage-collected; a Connect clone stays on the server otherwise."""
    if is_connect(clone):
        # `stop()` on a clone fails in Spark 4.2.0 before it releases anything.
        end_connect(clone)


def write_confs(note: CommitNote, session: SparkSession, fingerprint: str) -> dict[str, str]:
    """The confs of a private session that put our note, with the mark, into its commits."""
    return {_USER_METADATA: note.to_json(session, fingerprint)}


def own_commit(
    clone: SparkSession, dataset_name: str, location: str, mark: Mark, partition_by: tuple[str, ...]
) -> Commit | None:
    """The commit that this private session made. If Delta had nothing to write and made none, None.

    Raises:
        CommitUnknownError: the session committed, but no entry of the log has the mark.
    """
    try:
        last = clone.conf.get(_LAST_COMMIT, None)
        if last is None:
            return None
        newest = read_commit(clone, location, int(last), partition_by)
        reason = f"version {last} has another mark"
    except LOST_OR_REFUSED as error:
        newest, reason = None, failure_of(error).summary
    if newest is not None and newest.token == mark.token and newest.operation not in _FOLLOW_UPS:
        return newest
    commit = marked_commit(clone, dataset_name, location, mark, partition_by, reason=reason)
    if commit is None:
        raise CommitUnknownError(dataset=dataset_name, location=location, mark=mark.text, reason=reason)
    return commit


def marked_commit(
    session: SparkSession, dataset_name: str, location: str, mark: Mark, partition_by: tuple[str, ...], *, reason: str
) -> Commit | None:
    """The commit with the mark. If the searched history has none, None.

    Args:
        reason: why the mark is searched, for the error.

    Raises:
        CommitUnknownError: the log can't be read.
    """
    try:
        number = find_mark(session, location, mark)
        return None if number is None else read_commit(session, location, number, partition_by)
    except LOST_OR_REFUSED as error:
        raise CommitUnknownError(dataset=dataset_name, location=location, mark=mark.text, reason=reason) from error


def find_mark(session: SparkSession, location: str, mark: Mark) -> int | None:
    """The version whose commit has the mark, among the `HISTORY_LIMIT` newest. If there is none, None."""
    history = session.sql(f"DESCRIBE HISTORY {sql.path_table(location)} LIMIT {HISTORY_LIMIT}")
    for row in history.select("version", "operation", "userMetadata").collect():
        if commit_token(row["userMetadata"]) == mark.token and row["operation"] not in _FOLLOW_UPS:
            return int(row["version"])
    return None


def notes_of_writes(session: SparkSession, location: str, asset: str) -> list[Mapping[str, Any]]:
    """Our notes in the commits that show which partitions the asset writes, newest first, down to its newest replace.

    A write of some partitions shows it, and so does one that has replaced rows. An append to the whole table does not.
    """
    notes: list[Mapping[str, Any]] = []
    history = session.sql(f"DESCRIBE HISTORY {sql.path_table(location)}").filter("userMetadata IS NOT NULL")
    columns = ("userMetadata", "operationParameters['mode'] = 'Overwrite' AS replaces")
    for row in history.orderBy("version", ascending=False).selectExpr(*columns).collect():
        note = commit_note(row["userMetadata"])
        if note is None or note.get("asset") != asset:
            continue
        if row["replaces"] or note.get("partitions") is not None:
            notes.append(note)
        if row["replaces"]:
            break
    return notes


def rows_changed(
    session: SparkSession, location: str, after: int, until: int, *, partition_by: tuple[str, ...] = (),
    is_ours: Callable[[PartitionValues], bool] | None = None,
) -> bool:  # fmt: skip
    """Whether a commit above `after`, up to `until`, changed rows or can't be read. The newest are read first.

    Args:
        partition_by: the names under which the log keeps the values of the partition columns.
        is_ours: whether the rows of a partition count. If None, all rows count.
    """
    if until - after > HISTORY_LIMIT:
        return True
    try:
        commits = (read_commit(session, location, number, partition_by) for number in range(until, after, -1))
        return any(commit.changes_rows and _concerns(commit, is_ours) for commit in commits)
    except LOST_OR_REFUSED:  # the commit can't be read: it may be gone from the log
        return True


def _concerns(commit: Commit, is_ours: Callable[[PartitionValues], bool] | None) -> bool:
    return is_ours is None or commit.partitions is None or any(map(is_ours, commit.partitions))


def commit_lines(session: SparkSession, location: str, number: int) -> list[str]:
    """The lines of a commit's file, read by Spark, for a storage off this machine. One small Spark job."""
    rows = session.read.text(sql.path_pattern(commit_file(location, number))).collect()
    return [row["value"] for row in rows]


def commit_identity(session: SparkSession, location: str, number: int) -> str | None:
    """The identity of a commit. If the log no longer has it, None. No Spark job if the log is on this machine."""
    folder = local_folder(location)
    if folder is not None:
        return entry_identity_at(str(folder), number)
    try:
        return entry_identity(commit_lines(session, location, number))
    except SPARK_ERRORS as error:
        if not failure_of(error).has(NOTHING_TO_READ):
            raise
        return None


def read_commit(session: SparkSession, location: str, number: int, partition_by: tuple[str, ...]) -> Commit:
    """One commit from its file in the log. One small Spark job if the log is not on this machine's disk.

    Raises:
        DamagedTableError: the file is on this machine, and is not as a commit writes it.
    """
    if local_folder(location) is not None:
        with suppress(OSError):  # Spark's error for a missing or unreadable file is the clearer one
            return read_commit_file(location, number, partition_by)
    path = sql.path_pattern(commit_file(location, number))
    frame = session.read.schema(_COMMIT_SCHEMA).json(path)
    # As microseconds, which don't depend on the zone of the session or client.
    rows = frame.selectExpr("*", "unix_micros(_metadata.file_modification_time) AS micros").collect()
    actions = [row.asDict(recursive=True) for row in rows]
    return commit_of(number, actions, partition_by, actions[0]["micros"] // 1000 if actions else 0)
