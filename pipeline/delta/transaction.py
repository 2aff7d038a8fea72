"""Exactly once: the identifier under which Delta knows a write again, and what the log says of it.

Here belong the transaction identifier of a mark, the incarnation of a table, and the look-up of a write that Delta
has skipped. Which write modes need an identifier is `write`'s to say.

Delta skips a write whose application has recorded this version or a later one, and a restore undoes the rows of a
write but not what was recorded of it (RestoreTableCommand commits no transaction identifiers). So the identifier holds
the incarnation of the table, which every restore makes a new one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from pipeline.delta import sql
from pipeline.delta.commit import HISTORY_LIMIT, Mark
from pipeline.delta.log import commit_file, note_of, versions
from pipeline.delta.snapshot import local_folder, transaction_version
from pipeline.delta.table import TableState

INCARNATION = "pipeline.incarnation"
_APP_ID = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"
_RESTORE = "RESTORE"
_CHANGES_ROWS = ("WRITE", "MERGE", "UPDATE", "DELETE", "TRUNCATE", _RESTORE, "STREAMING UPDATE", "COPY INTO")
# By location and table id: up to which version the log was searched, and the newest restore in it.
_SEARCHED: dict[tuple[str, str], tuple[int, int]] = {}


@dataclass(frozen=True)
class Identifier:
    """Delta's transaction identifier: an application and the version that it has reached."""

    app_id: str
    version: int

    @property
    def confs(self) -> dict[str, str]:
        """The confs of a private session that writes under this identifier, whatever the statement."""
        return {_APP_ID: self.app_id, _VERSION: str(self.version)}


def identifier(session: SparkSession, state: TableState, mark: Mark) -> Identifier | None:
    """The identifier of a mark in the table as it is now; None for a mark without an epoch."""
    if mark.epoch is None:
        return None
    return Identifier(f"pipeline/{incarnation(session, state)}/{mark.writer}", mark.epoch)


def cursor_identifier(session: SparkSession, state: TableState, number: int) -> Identifier:
    """The identifier that all runs of a consumer share: of those with cursors of one number Delta lets one through."""
    return Identifier(f"pipeline/{incarnation(session, state)}/cursors", number)


def incarnation(session: SparkSession, state: TableState) -> int:
    """The version of the newest restore of the table, 0 where there was none.

    The log decides, since a restore brings old properties back; the property outlives the log's clean-up.
    """
    kept = next((value for name, value in state.properties.items() if name.lower() == INCARNATION), "0")
    key = (state.location, state.table_id)
    searched, newest = _SEARCHED.get(key, (-1, 0))
    if state.version > searched:
        found = _newest_restore(session, state, searched)
        newest = max(newest, found if found is not None else 0)
        _SEARCHED[key] = (state.version, newest)
    return max(int(kept) if kept.isdigit() else 0, newest)


def _newest_restore(session: SparkSession, state: TableState, after: int) -> int | None:
    folder = local_folder(state.location)
    if folder is not None:
        numbers = (number for number in reversed(versions(str(folder), after)) if number <= state.version)
        return next((number for number in numbers if _is_restore(folder, number)), None)
    history = session.sql(f"DESCRIBE HISTORY {sql.path_table(state.location)} LIMIT {state.version - after}")
    rows = history.filter(f"operation = {sql.string(_RESTORE)}").selectExpr("max(version) AS newest").collect()
    return None if rows[0]["newest"] is None else int(rows[0]["newest"])


def _is_restore(folder: Path, number: int) -> bool:
    try:
        text = Path(commit_file(str(folder), number)).read_text(encoding="utf-8")
    except FileNotFoundError:  # cleaned up in the meantime; then a property says it
        return False
    return f'"operation":"{_RESTORE}"' in text.replace(" ", "")


def first_load(session: SparkSession, state: TableState, mark: Mark) -> Identifier | int | None:
    """The identifier that all first loads of a table share while it is empty, so that one of them can win.

    None where the table holds rows; the version of their commit where it was made under this very mark's epoch.
    """
    table = sql.path_table(state.location)
    if session.sql(f"SELECT 1 AS one FROM {table} LIMIT 1").collect():  # noqa: S608  quoted
        return None if mark.epoch is None else _version_of_epoch(session, state.location, mark)
    # A table that was emptied may be loaded again: the commit that emptied it begins another time.
    operations = ", ".join(map(sql.string, _CHANGES_ROWS))
    history = session.sql(f"DESCRIBE HISTORY {table} LIMIT {HISTORY_LIMIT}").filter(f"operation IN ({operations})")
    newest = history.selectExpr("coalesce(max(version), 0) AS newest").collect()[0]["newest"]
    return Identifier(f"pipeline/{incarnation(session, state)}/first load after {newest}", 0)


def holder(session: SparkSession, state: TableState, mark: Mark, known: Identifier) -> int | None:
    """The version that holds what a write under this mark has written before; None where none was recorded.

    Where the commit itself is no longer in the log, the current version stands for it.
    """
    folder = local_folder(state.location)
    there = versions(str(folder)) if folder is not None else []
    recorded = transaction_version(folder, there[-1], known.app_id) if folder is not None and there else None
    if folder is not None and (recorded is None or recorded < known.version):
        return None
    found = _version_of_epoch(session, state.location, mark)
    return state.version if found is None and recorded is not None else found


def _version_of_epoch(session: SparkSession, location: str, mark: Mark) -> int | None:
    """The newest commit of this writer's epoch; the newest of a later epoch where that one is gone."""
    history = session.sql(f"DESCRIBE HISTORY {sql.path_table(location)} LIMIT {HISTORY_LIMIT}")
    later: int | None = None
    for row in history.select("version", "userMetadata").collect():
        theirs = (note_of(row["userMetadata"]) or {}).get("mark") or {}
        if theirs.get("writer") != mark.writer or theirs.get("epoch") is None:
            continue
        if theirs["epoch"] == mark.epoch:
            return int(row["version"])
        if theirs["epoch"] > (mark.epoch or 0) and later is None:
            later = int(row["version"])
    return later
