"""Who am I in the log: the mark in a commit, the private session of a write, and finding one's own commit again.

Here belong what is written into `userMetadata`, the session that carries it, and the reading of single commits. What is
written to the rows does not belong here.

The version that is reported is that of the entry which carries our mark, never "the latest": between a write and a look
at the table somebody else may commit.
"""

from __future__ import annotations

import datetime as dt
import json
import platform
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pyspark.sql import SparkSession

from pipeline.delta import sql
from pipeline.delta.failures import SPARK_ERRORS, read_failure
from pipeline.delta.session import bounded, end_connect, is_connect
from pipeline.errors import CommitUnknownError

FORMAT = 1
# How far back the history is searched for a mark that the newest own commit does not carry.
HISTORY_LIMIT = 100
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
# Of any table, and kept unless unset: exact only in a session that nobody else writes with.
_LAST_COMMIT = "spark.databricks.delta.lastCommitVersionInSession"
# Commits that Delta makes by itself after ours, in the same session and so with the same user metadata.
_FOLLOW_UPS = frozenset({"OPTIMIZE"})
_COMMIT_SCHEMA = (
    "add STRUCT<path: STRING, partitionValues: MAP<STRING, STRING>, size: BIGINT, dataChange: BOOLEAN, stats: STRING>, "
    "remove STRUCT<path: STRING, dataChange: BOOLEAN>, "
    "commitInfo STRUCT<timestamp: BIGINT, inCommitTimestamp: BIGINT, operation: STRING, "
    "operationMetrics: MAP<STRING, STRING>, userMetadata: STRING, readVersion: BIGINT>"
)


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What makes a commit ours: the writer, its epoch, the attempt, and a token that no other call has."""

    writer: str
    epoch: int = 0
    attempt: int = 1
    token: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True, kw_only=True)
class CommitNote:
    """What we write into a commit beside the rows.

    `sources` maps dataset names to the versions read; `partitions` says which slice was addressed, in words.
    """

    mark: Mark
    run_id: str | None = None
    asset: str | None = None
    partitions: str | None = None
    sources: Mapping[str, int] = field(default_factory=dict)

    def to_json(self, session: SparkSession, fingerprint: str) -> str:
        """The user metadata of the commit."""
        note = asdict(self) | {"sources": dict(self.sources)}
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


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One commit as it stands in the log.

    `rows_by_partition` counts the rows of the added files by partition values in the order of the partition columns;
    None where a file carries no statistics. `timestamp` is in UTC.
    """

    version: int
    timestamp: dt.datetime
    operation: str
    metrics: Mapping[str, str]
    user_metadata: str | None
    files_added: int
    bytes_added: int
    files_removed: int
    rows_by_partition: Mapping[tuple[str | None, ...], int] | None

    @property
    def token(self) -> str | None:
        """The token of our mark; None in a commit that is not ours."""
        return token_of(self.user_metadata)


def token_of(user_metadata: str | None) -> str | None:
    """The token in a commit's user metadata; None where somebody else wrote it."""
    if not user_metadata:
        return None
    try:
        note = json.loads(user_metadata)
    except ValueError:
        return None
    mark = note.get("mark") if isinstance(note, dict) and note.get("pipeline") == FORMAT else None
    token = mark.get("token") if isinstance(mark, dict) else None
    return token if isinstance(token, str) else None


@contextmanager
def private_session(session: SparkSession, confs: Mapping[str, str]) -> Iterator[SparkSession]:
    """A clone for one write: it sees the caller's temporary views, and nobody sees its confs."""
    clone = clone_session(session)
    try:
        clone.conf.unset(_LAST_COMMIT)
        for name, value in confs.items():
            clone.conf.set(name, value)
        yield clone
    finally:
        release_session(clone)


def clone_session(session: SparkSession) -> SparkSession:
    """A session with the same views and confs, and its own from now on."""
    if is_connect(session):
        return bounded(session.cloneSession())  # type: ignore[attr-defined]
    return SparkSession(session.sparkContext, session._jsparkSession.cloneSession())


def release_session(clone: SparkSession) -> None:
    """Give a clone's state back; a classic clone is garbage, a Connect clone lives on the server until released."""
    if is_connect(clone):
        # `stop()` on a clone fails in Spark 4.2.0 before it releases anything.
        end_connect(clone)


def marking_confs(note: CommitNote, session: SparkSession, fingerprint: str) -> dict[str, str]:
    """The confs that make the commits of a private session carry our mark."""
    return {_USER_METADATA: note.to_json(session, fingerprint)}


def own_commit(
    clone: SparkSession, dataset_name: str, location: str, mark: Mark, partition_by: tuple[str, ...]
) -> Commit | None:
    """The commit that this private session made; None where Delta saw nothing to do and made none.

    Raises:
        CommitUnknownError: the session committed, and no entry of the log carries the mark.
    """
    last = clone.conf.get(_LAST_COMMIT, None)
    if last is None:
        return None
    newest = read_commit(clone, location, int(last), partition_by)
    if newest.token == mark.token and newest.operation not in _FOLLOW_UPS:
        return newest
    found = find_mark(clone, location, mark)
    if found is None:
        raise CommitUnknownError(
            dataset=dataset_name, location=location, mark=f"{mark.writer}/{mark.epoch}/{mark.token}",
            reason=f"version {last} carries another mark",
        )  # fmt: skip
    return read_commit(clone, location, found, partition_by)


def find_mark(session: SparkSession, location: str, mark: Mark) -> int | None:
    """The version whose entry carries the mark, among the newest of the history."""
    history = session.sql(f"DESCRIBE HISTORY {sql.path_table(location)} LIMIT {HISTORY_LIMIT}")
    for row in history.select("version", "operation", "userMetadata").collect():
        if token_of(row["userMetadata"]) == mark.token and row["operation"] not in _FOLLOW_UPS:
            return int(row["version"])
    return None


def read_commit(session: SparkSession, location: str, number: int, partition_by: tuple[str, ...]) -> Commit:
    """One commit from its file in the log (Delta protocol, "Delta Log Entries"); one small Spark job."""
    path = f"{location}/_delta_log/{number:020d}.json"
    actions = session.read.schema(_COMMIT_SCHEMA).json(path).collect()
    info: Any = next((row["commitInfo"] for row in actions if row["commitInfo"] is not None), None)
    added = [row["add"] for row in actions if row["add"] is not None]
    milliseconds = (info["inCommitTimestamp"] or info["timestamp"]) if info else 0
    return Commit(
        version=number,
        timestamp=dt.datetime.fromtimestamp(milliseconds / 1000, tz=dt.timezone.utc),
        operation=info["operation"] if info else "",
        metrics=(info["operationMetrics"] or {}) if info else {},
        user_metadata=info["userMetadata"] if info else None,
        files_added=len(added),
        bytes_added=sum(file["size"] for file in added),
        files_removed=sum(row["remove"] is not None for row in actions),
        rows_by_partition=_rows_by_partition(added, partition_by),
    )


def _rows_by_partition(added: list[Any], partition_by: tuple[str, ...]) -> dict[tuple[str | None, ...], int] | None:
    rows: dict[tuple[str | None, ...], int] = {}
    for file in added:
        count = json.loads(file["stats"]).get("numRecords") if file["stats"] else None
        if count is None:
            return None
        values = file["partitionValues"] or {}
        key = tuple(values.get(column) for column in partition_by)
        rows[key] = rows.get(key, 0) + count
    return rows


def is_retryable(error: BaseException) -> bool:
    """Whether a caught foreign error says that another commit came first."""
    return isinstance(error, SPARK_ERRORS) and read_failure(error).is_conflict
