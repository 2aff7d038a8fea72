"""The mark of our own commits in the log: written through a write's private session, and searched after the write.

Here belong the content of `userMetadata`, the session that writes it, and the search for it. What is
written to the rows does not belong here.

The reported version of a write is that of the entry with our mark, never the newest one: another writer may commit
between our write and a read of the log.
"""

from __future__ import annotations

import json
import platform
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pyspark.sql import SparkSession

from pipeline.delta.log.checkpoints import LOG, checksum_name
from pipeline.delta.log.commits import (
    FORMAT,
    Commit,
    PartitionValues,
    commit_note,
    commit_token,
    newest_infos,
    read_commit,
)
from pipeline.delta.spark.connect import clone_connect, end_connect
from pipeline.delta.spark.failures import LOST_OR_REFUSED, failure_of
from pipeline.delta.spark.meaning import set_session_confs
from pipeline.delta.spark.own_classes import forget_log
from pipeline.delta.spark.session import is_connect
from pipeline.errors import AfterCommitError, CommitOverwrittenError, CommitUnknownError

# The number of newest commits that are searched for a mark, if the session's last commit does not have it.
HISTORY_LIMIT = 100
# The property that names the record of the newest migration whose rows are verified, by the token of its commit.
MIGRATION = "pipeline.migration"
# The writer of the commits of migrations. It does not depend on the name of the table, so that Delta accepts one commit
# of each number even if two migrations name the table differently.
MIGRATION_WRITER = "migrate/files"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
# The last commit of the session to any table, kept until it is unset: exact only in a session with one writer.
_LAST_COMMIT = "spark.databricks.delta.lastCommitVersionInSession"
# Operations of commits that Delta itself makes after ours, in the same session and so with the same user metadata.
_FOLLOW_UPS = frozenset({"OPTIMIZE"})
# The parts of a note that are left out if they are empty.
_OPTIONAL = ("cursors", "stream", "partition_columns", "code_version", "order", "computed_from")
# The storage of the log, or the server, can't be reached.
_UNREADABLE = (*LOST_OR_REFUSED, OSError)


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
class Computation:
    """What the rows of a write were computed from.

    `parts` are texts by name: the code version, and digests of what is long. `tables` are the versions read, by the
    names of the datasets.
    """

    parts: Mapping[str, str]
    tables: Mapping[str, Cursor]

    @classmethod
    def from_note(cls, note: Mapping[str, Any] | None) -> Computation | None:
        """The computation in a commit's note. If it names none, None."""
        found = (note or {}).get("computed_from")
        if not found:
            return None
        return cls(parts=found["parts"], tables={name: Cursor(**one) for name, one in found["tables"].items()})


@dataclass(frozen=True, kw_only=True)
class CommitNote:
    """Our note in a commit's user metadata.

    `sources` maps dataset names to the versions read. `partitions` is the addressed slice as text, `partition_columns`
    are the columns that it restricts. `cursors` are those of a consumer of changes, set together with the rows.
    `stream` is the stream's batch whose rows are committed. `code_version` is that of the asset. `order` has the
    columns that identify and order the rows: `keys`, `order_by` and `cluster_by`, without empty ones. `computed_from`
    is there if the outcome may be cached.
    """

    mark: Mark
    run_id: str | None = None
    asset: str | None = None
    partitions: str | None = None
    partition_columns: tuple[str, ...] = ()
    sources: Mapping[str, int] = field(default_factory=dict)
    cursors: Cursors | None = None
    stream: StreamBatch | None = None
    code_version: str | None = None
    order: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    computed_from: Computation | None = None

    def document(self) -> dict[str, Any]:
        """The note in JSON's types, for `from_document`."""
        note = asdict(self) | {"sources": dict(self.sources)}
        return {name: value for name, value in note.items() if value or name not in _OPTIONAL}

    @classmethod
    def from_document(cls, note: Mapping[str, Any]) -> CommitNote:
        """The note of a `document`."""
        stream = note.get("stream")
        return cls(
            mark=Mark(**note["mark"]), run_id=note["run_id"], asset=note["asset"], partitions=note["partitions"],
            partition_columns=tuple(note.get("partition_columns", ())), sources=note["sources"],
            cursors=Cursors.from_note(note), stream=None if stream is None else StreamBatch(**stream),
            code_version=note.get("code_version"),
            order={name: tuple(columns) for name, columns in (note.get("order") or {}).items()},
            computed_from=Computation.from_note(note),
        )  # fmt: skip

    def to_json(self, session: SparkSession, fingerprint: str) -> str:
        """The note as JSON, with the schema's fingerprint and the runtime profile."""
        note = self.document()
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
        CommitOverwrittenError: the session committed, and the entry of its version is that of another writer.
        CommitUnknownError: the session committed, but no entry of the log has the mark.
    """
    try:
        last = clone.conf.get(_LAST_COMMIT, None)
        if last is None:
            return None
        newest = read_commit(location, int(last), partition_by)
        reason = f"version {last} has another mark"
    except _UNREADABLE as error:
        newest, reason = None, failure_of(error).summary
    if newest is not None and newest.token == mark.token and newest.operation not in _FOLLOW_UPS:
        return newest
    commit = marked_commit(clone, dataset_name, location, mark, partition_by, reason=reason, ended=True)
    if commit is not None:
        return commit
    # Delta has always put the mark of this session into its entry.
    if newest is not None and newest.token != mark.token:
        forget_log(clone, location)
        raise CommitOverwrittenError(
            dataset=dataset_name, location=location, version=newest.version, mark=mark.text, other=_writer_of(newest),
            checksum=f"{location}/{LOG}/{checksum_name(newest.version)}",
        )  # fmt: skip
    raise CommitUnknownError(dataset=dataset_name, location=location, mark=mark.text, reason=reason)


def _writer_of(commit: Commit) -> str:
    """The writer of a commit for an error: by its mark, or else by its software and operation."""
    mark = (commit_note(commit.user_metadata) or {}).get("mark") or {}
    if mark.get("writer"):
        return f"writer {mark['writer']}"
    return f"a writer without a mark ({commit.operation} by {commit.engine or 'unknown software'})"


def marked_commit(
    session: SparkSession, dataset_name: str, location: str, mark: Mark, partition_by: tuple[str, ...], *, reason: str,
    ended: bool,
) -> Commit | None:  # fmt: skip
    """The commit with the mark. If the searched history has none, None.

    Args:
        session: the session that may have made the commit.
        reason: why the mark is searched, for the error.
        ended: whether the statement is known to have ended, so that the log is conclusive.

    Raises:
        CommitUnknownError: the log can't be read; or it has no such commit, but the session is lost and may make it.
    """
    try:
        number = find_mark(location, mark)
        if number is not None:
            return read_commit(location, number, partition_by)
        if not ended:
            session.sql("SELECT 1").collect()
    except _UNREADABLE as error:
        raise CommitUnknownError(dataset=dataset_name, location=location, mark=mark.text, reason=reason) from error
    return None


def find_mark(location: str, mark: Mark) -> int | None:
    """The version whose commit has the mark, among the `HISTORY_LIMIT` newest. If there is none, None."""
    for number, info in newest_infos(location, HISTORY_LIMIT):
        if commit_token(info.get("userMetadata")) == mark.token and info.get("operation") not in _FOLLOW_UPS:
            return number
    return None


def migration_token(user_metadata: str | None) -> str | None:
    """The token of a commit with which a migration has taken files. Of any other commit, None."""
    mark: Mapping[str, Any] = (commit_note(user_metadata) or {}).get("mark") or {}
    return str(mark["token"]) if mark.get("writer") == MIGRATION_WRITER and mark.get("token") else None


def notes_of_writes(location: str, asset: str) -> list[Mapping[str, Any]]:
    """Our notes in the commits that show which partitions the asset writes, newest first, down to its newest replace.

    A write of some partitions shows it, and so does one that has replaced rows. An append to the whole table does not.
    """
    notes: list[Mapping[str, Any]] = []
    for _, info in newest_infos(location):
        note = commit_note(info.get("userMetadata"))
        if note is None or note.get("asset") != asset:
            continue
        replaces = (info.get("operationParameters") or {}).get("mode") == "Overwrite"
        if replaces or note.get("partitions") is not None:
            notes.append(note)
        if replaces:
            break
    return notes


def rows_changed(
    location: str, after: int, until: int, *, partition_by: tuple[str, ...] = (),
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
        commits = (read_commit(location, number, partition_by) for number in range(until, after, -1))
        return any(commit.changes_rows and _concerns(commit, is_ours) for commit in commits)
    except OSError:  # the commit can't be read: it may be gone from the log
        return True


def _concerns(commit: Commit, is_ours: Callable[[PartitionValues], bool] | None) -> bool:
    return is_ours is None or commit.partitions is None or any(map(is_ours, commit.partitions))
