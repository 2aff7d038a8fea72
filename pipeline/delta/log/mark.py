"""Who am I in the log: the mark in a commit, the private session of a write, and finding one's own commit again.

Here belong what is written into `userMetadata`, the session that carries it, and the reading of single commits. What is
written to the rows does not belong here.

The version that is reported is that of the entry which carries our mark, never "the latest": between a write and a look
at the table somebody else may commit.
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
from pipeline.delta.spark.meaning import hold_session_confs
from pipeline.delta.spark.session import is_connect
from pipeline.errors import AfterCommitError, CommitUnknownError

# How far back the history is searched for a mark that the newest own commit does not carry.
HISTORY_LIMIT = 100
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
# Of any table, and kept unless unset: exact only in a session that nobody else writes with.
_LAST_COMMIT = "spark.databricks.delta.lastCommitVersionInSession"
# Commits that Delta makes by itself after ours, in the same session and so with the same user metadata.
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
    """What makes a commit ours: the writer, its epoch, the attempt, and a token that no other call has.

    A repeat of one batch has the same writer and epoch, and a later batch of that writer a greater epoch; None for a
    write that is nobody's repeat.
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
    """How far a consumer has read a source: the last version consumed, of the table of that id.

    `entry` is the identity of that version's commit: a table over which an older copy was put has another commit of
    that number, or will have. None where it is not known.
    """

    table_id: str
    version: int
    entry: str | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True)
class Cursors:
    """The cursors that a commit of a consumer puts in force, by the names of its sources.

    `number` is one more than that of the cursors it follows, never more than the version of the commit, and Delta lets
    only one commit of a number through. `read_at` is the consumer's own version at which those before were read, -1
    where there was no table: a restore in between has undone them.
    """

    number: int
    read_at: int
    sources: Mapping[str, Cursor]

    @classmethod
    def from_note(cls, note: Mapping[str, Any] | None) -> Cursors | None:
        """The cursors in a commit's note; None where it puts none in force."""
        found = (note or {}).get("cursors")
        if not found:
            return None
        sources = {name: Cursor(**cursor) for name, cursor in found["sources"].items()}
        return cls(number=found["number"], read_at=found["read_at"], sources=sources)


@dataclass(frozen=True, kw_only=True)
class StreamBatch:
    """What a batch of a stream was: the query's checkpoint as seen from the table, and the identity of its input."""

    checkpoint: str
    content: str | None


@dataclass(frozen=True, kw_only=True)
class CommitNote:
    """What we write into a commit beside the rows.

    `sources` maps dataset names to the versions read; `partitions` says which slice was addressed, in words; `cursors`
    are those of a consumer of changes, in force once the rows are; `stream` is the batch of a stream that they are.
    """

    mark: Mark
    run_id: str | None = None
    asset: str | None = None
    partitions: str | None = None
    sources: Mapping[str, int] = field(default_factory=dict)
    cursors: Cursors | None = None
    stream: StreamBatch | None = None

    def to_json(self, session: SparkSession, fingerprint: str) -> str:
        """The user metadata of the commit."""
        note = asdict(self) | {"sources": dict(self.sources)}
        for name in ("cursors", "stream"):
            if note[name] is None:
                del note[name]
        profile = runtime_profile(session)
        return json.dumps(
            {"pipeline": FORMAT} | note | {"schema_fingerprint": fingerprint, "runtime": profile}, sort_keys=True
        )


def runtime_profile(session: SparkSession) -> dict[str, str]:
    """What wrote: versions and the mode in which Spark ran."""
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


class BehindCommit:
    """The block after a commit: whatever fails in it is raised with the version that stands.

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
    """A clone for one write: it sees the caller's temporary views, and nobody sees its confs.

    It means the same whatever the caller's session says. An expression of a view was analysed in the session that made
    it, and keeps the zone of that session.
    """
    clone = clone_session(session)
    try:
        clone.conf.unset(_LAST_COMMIT)
        hold_session_confs(clone)
        for name, value in confs.items():
            clone.conf.set(name, value)
        yield clone
    finally:
        release_session(clone)


def clone_session(session: SparkSession) -> SparkSession:
    """A session with the same views and confs, and its own from now on."""
    if is_connect(session):
        return clone_connect(session)
    return SparkSession(session.sparkContext, session._jsparkSession.cloneSession())


def release_session(clone: SparkSession) -> None:
    """Give a clone's state back; a classic clone is garbage, a Connect clone lives on the server until released."""
    if is_connect(clone):
        # `stop()` on a clone fails in Spark 4.2.0 before it releases anything.
        end_connect(clone)


def write_confs(note: CommitNote, session: SparkSession, fingerprint: str) -> dict[str, str]:
    """The confs of a private session that writes: our mark in its commits."""
    return {_USER_METADATA: note.to_json(session, fingerprint)}


def own_commit(
    clone: SparkSession, dataset_name: str, location: str, mark: Mark, partition_by: tuple[str, ...]
) -> Commit | None:
    """The commit that this private session made; None where Delta saw nothing to do and made none.

    Raises:
        CommitUnknownError: the session committed, and no entry of the log carries the mark.
    """
    try:
        last = clone.conf.get(_LAST_COMMIT, None)
        if last is None:
            return None
        newest = read_commit(clone, location, int(last), partition_by)
        reason = f"version {last} carries another mark"
    except LOST_OR_REFUSED as error:
        newest, reason = None, failure_of(error).summary
    if newest is not None and newest.token == mark.token and newest.operation not in _FOLLOW_UPS:
        return newest
    found = marked_commit(clone, dataset_name, location, mark, partition_by, reason=reason)
    if found is None:
        raise CommitUnknownError(dataset=dataset_name, location=location, mark=mark.text, reason=reason)
    return found


def marked_commit(
    session: SparkSession, dataset_name: str, location: str, mark: Mark, partition_by: tuple[str, ...], *, reason: str
) -> Commit | None:
    """The commit that carries the mark; None where the log was read and holds none.

    Args:
        reason: why it is looked for, told where the log can't be read.

    Raises:
        CommitUnknownError: the log can't be read.
    """
    try:
        found = find_mark(session, location, mark)
        return None if found is None else read_commit(session, location, found, partition_by)
    except LOST_OR_REFUSED as error:
        raise CommitUnknownError(dataset=dataset_name, location=location, mark=mark.text, reason=reason) from error


def find_mark(session: SparkSession, location: str, mark: Mark) -> int | None:
    """The version whose entry carries the mark, among the newest of the history."""
    history = session.sql(f"DESCRIBE HISTORY {sql.path_table(location)} LIMIT {HISTORY_LIMIT}")
    for row in history.select("version", "operation", "userMetadata").collect():
        if commit_token(row["userMetadata"]) == mark.token and row["operation"] not in _FOLLOW_UPS:
            return int(row["version"])
    return None


def newest_note(session: SparkSession, location: str, asset: str) -> Mapping[str, Any] | None:
    """What the newest write of that asset said which shows whether it means the whole table; None if the log has none.

    A write of some partitions shows it, and one that has replaced rows. An append to the table does not.
    """
    history = session.sql(f"DESCRIBE HISTORY {sql.path_table(location)}").filter("userMetadata IS NOT NULL")
    columns = ("userMetadata", "operationParameters['mode'] = 'Overwrite' AS replaces")
    for row in history.orderBy("version", ascending=False).selectExpr(*columns).collect():
        note = commit_note(row["userMetadata"])
        if note is not None and note.get("asset") == asset and (row["replaces"] or note.get("partitions") is not None):
            return note
    return None


def rows_changed(
    session: SparkSession, location: str, after: int, until: int, *, partition_by: tuple[str, ...] = (),
    is_ours: Callable[[PartitionValues], bool] | None = None,
) -> bool:  # fmt: skip
    """Whether a commit above `after`, up to `until`, has changed rows, or can't be asked; the newest are read first.

    Args:
        partition_by: the partition columns under the names by which the log keeps their values.
        is_ours: whether the rows of a partition count; all do where None.
    """
    if until - after > HISTORY_LIMIT:
        return True
    try:
        commits = (read_commit(session, location, number, partition_by) for number in range(until, after, -1))
        return any(commit.changes_rows and _concerns(commit, is_ours) for commit in commits)
    except LOST_OR_REFUSED:  # it is gone
        return True


def _concerns(commit: Commit, is_ours: Callable[[PartitionValues], bool] | None) -> bool:
    return is_ours is None or commit.partitions is None or any(map(is_ours, commit.partitions))


def commit_lines(session: SparkSession, location: str, number: int) -> list[str]:
    """The lines of a commit's file on a storage that Spark alone may reach; one small Spark job."""
    rows = session.read.text(sql.path_pattern(commit_file(location, number))).collect()
    return [row["value"] for row in rows]


def commit_identity(session: SparkSession, location: str, number: int) -> str | None:
    """The identity of a commit; None where it is gone from the log. No Spark job if the log lies on this machine."""
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
    """One commit from its file in the log; one small Spark job where the log is not on this machine's disk.

    Raises:
        DamagedTableError: on this machine, where it is not what a commit has written.
    """
    if local_folder(location) is not None:
        with suppress(OSError):  # Spark says better what is wrong with it
            return read_commit_file(location, number, partition_by)
    path = sql.path_pattern(commit_file(location, number))
    read = session.read.schema(_COMMIT_SCHEMA).json(path)
    # As microseconds, so that no session's or client's zone is asked.
    actions = read.selectExpr("*", "unix_micros(_metadata.file_modification_time) AS micros").collect()
    found = [action.asDict(recursive=True) for action in actions]
    return commit_of(number, found, partition_by, found[0]["micros"] // 1000 if found else 0)
