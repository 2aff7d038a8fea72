"""Exactly once: the identifier under which Delta knows a write again, and what the log says of it.

Here belong the transaction identifier of a mark, the incarnation of a table, and the look-up of a write that Delta
has skipped. Which write modes need an identifier is `write`'s to say.

Delta skips a write whose application has recorded this version or a later one, and a restore undoes the rows of a
write but not what was recorded of it (RestoreTableCommand commits no transaction identifiers). So the identifier holds
the incarnation of the table, which every restore makes a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pipeline.delta import sql
from pipeline.delta.log.commits import commit_note, commit_versions, read_entry
from pipeline.delta.log.entry import info_of
from pipeline.delta.log.mark import HISTORY_LIMIT, Mark, commit_identity
from pipeline.delta.log.snapshot import local_folder, table_facts, transaction_version
from pipeline.delta.read.restores import RESTORE, restored_version
from pipeline.delta.table.open_table import TableState, latest_version

INCARNATION = "pipeline.incarnation"
_APP_ID = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"
_CHANGES_ROWS = ("WRITE", "MERGE", "UPDATE", "DELETE", "TRUNCATE", RESTORE, "STREAMING UPDATE", "COPY INTO")
# By location and table id: how far the log was searched.
_SEARCHED: dict[tuple[str, str], _Searched] = {}


@dataclass(frozen=True)
class _Searched:
    """A log that was searched up to a version; `entry` is the identity of that commit, None where it is not known.

    `restores` maps those in it to the version that each brought back, None where the log does not tell.
    """

    until: int = -1
    entry: str | None = None
    restores: Mapping[int, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Identifier:
    """Delta's transaction identifier: an application and the version that it has reached."""

    app_id: str
    version: int

    @property
    def confs(self) -> dict[str, str]:
        """The confs of a private session that writes under this identifier, whatever the statement."""
        return {_APP_ID: self.app_id, _VERSION: str(self.version)}


def identifier(session: SparkSession, state: TableState, mark: Mark) -> Identifier | int | None:
    """The identifier of a mark in the table as it is now; None for a mark without an epoch.

    The version that holds the rows where they are from before a restore that has kept them: under the identifier of
    the incarnation that it began they would be written again.
    """
    if mark.epoch is None:
        return None
    number = incarnation(session, state)
    if number and _is_kept(session, state, number, mark):
        found = _version_of_epoch(session, state.location, mark)
        return state.version if found is None else found
    return Identifier(_application(number, mark.writer), mark.epoch)


def _application(incarnation: int, writer: str) -> str:
    return f"pipeline/{incarnation}/{writer}"


def last_recorded_epoch(session: SparkSession, state: TableState, writer: str) -> int:
    """The greatest epoch that Delta has recorded of a writer, 0 where it knows none or the log lies elsewhere."""
    folder = local_folder(state.location)
    if folder is None:
        return 0
    return transaction_version(folder, state.version, _application(incarnation(session, state), writer)) or 0


def cursor_identifier(session: SparkSession, state: TableState, number: int) -> Identifier:
    """The identifier that all runs of a consumer share: of those with cursors of one number Delta lets one through."""
    return Identifier(f"pipeline/{incarnation(session, state)}/cursors", number)


def incarnation(session: SparkSession, state: TableState) -> int:
    """The version of the newest restore of the table, 0 where there was none.

    The log decides, since a restore brings old properties back; the property outlives the log's clean-up.
    """
    return max((_property(state.properties), *_restores(session, state)))


def _property(properties: Mapping[str, str]) -> int:
    kept = next((value for name, value in properties.items() if name.lower() == INCARNATION), "0")
    return int(kept) if kept.isdigit() else 0


def _restores(session: SparkSession, state: TableState) -> Mapping[int, int | None]:
    """The restores that stand in the log, each with the version that it brought back."""
    key, folder = (state.location, state.table_id), local_folder(state.location)
    searched = _SEARCHED.get(key, _Searched())
    if searched.until >= 0 and (
        state.version < searched.until
        if folder is None
        else commit_identity(session, state.location, searched.until) != searched.entry
    ):
        searched = _Searched()  # an older copy of the table was put back since
    if state.version <= searched.until:
        return searched.restores
    if folder is None:
        newest, found = _restores_in_history(session, state, searched.until)
    else:
        numbers = commit_versions(str(folder), searched.until)
        newest, found = max(numbers, default=searched.until), _restores_among(folder, numbers)
    known = {n: restored_version(session, state.location, n, parameters) for n, parameters in found.items()}
    entry = None if folder is None else commit_identity(session, state.location, newest)
    _SEARCHED[key] = _Searched(newest, entry, {**searched.restores, **known})
    return _SEARCHED[key].restores


def _info(folder: Path, number: int) -> Mapping[str, Any]:
    """What a commit says of itself; nothing where it is gone."""
    try:
        return info_of(read_entry(str(folder), number, few=True))
    except FileNotFoundError:  # cleaned up in the meantime; of a restore a property says it then
        return {}


def _restores_among(folder: Path, numbers: Iterable[int]) -> dict[int, Mapping[str, Any]]:
    """The parameters of those of these commits that are restores."""
    infos = {number: _info(folder, number) for number in numbers}
    return {n: info.get("operationParameters") or {} for n, info in infos.items() if info.get("operation") == RESTORE}


def _restores_in_history(
    session: SparkSession, state: TableState, after: int
) -> tuple[int, Mapping[int, Mapping[str, Any]]]:
    limit = state.version - after
    while True:
        history = session.sql(f"DESCRIBE HISTORY {sql.path_table(state.location)} LIMIT {limit}")
        rows = history.select("version", "operation", "operationParameters").collect()
        # The limit counts from the newest commit, and others commit while we look.
        if len(rows) < limit or rows[-1]["version"] <= after + 1:
            break
        limit *= 2
    found = {int(row["version"]): row["operationParameters"] or {} for row in rows if row["operation"] == RESTORE}
    return max((int(row["version"]) for row in rows), default=after), found


def _is_kept(session: SparkSession, state: TableState, number: int, mark: Mark) -> bool:
    """Whether rows of this mark's epoch are in the table: written before the restore `number` and kept by it, or after.

    The version that it brought back may stand on earlier restores, and what they brought back counts as well.
    """
    restores, folder, until = _restores(session, state), local_folder(state.location), state.version
    while True:
        reached = None
        if folder is not None:
            reached = transaction_version(folder, until, _application(number, mark.writer))
        if folder is None or until == state.version:
            # A write that had not seen the restore yet has recorded its epoch elsewhere; its mark says it.
            marked = _epoch_in_history(session, state, mark, number, until)
            reached = max((epoch for epoch in (reached, marked) if epoch is not None), default=None)
        if reached is not None and mark.epoch is not None and reached >= mark.epoch:
            return True
        target = restores.get(number)
        if target is None:
            return False
        facts = table_facts(folder, target) if folder is not None else None
        kept = _property(facts.properties) if facts is not None else 0
        number, until = max((kept, *(n for n in restores if n <= target))), target


def _epoch_in_history(session: SparkSession, state: TableState, mark: Mark, after: int, until: int) -> int | None:
    """The greatest epoch of the mark's writer among the commits above `after`, as far as the history is searched."""
    limit = state.version - until + HISTORY_LIMIT
    history = session.sql(f"DESCRIBE HISTORY {sql.path_table(state.location)} LIMIT {limit}")
    rows = history.filter(f"version > {after} AND version <= {until}").select("userMetadata").collect()
    marks = [(commit_note(row["userMetadata"]) or {}).get("mark") or {} for row in rows]
    epochs = [found["epoch"] for found in marks if found.get("writer") == mark.writer]
    return max((epoch for epoch in epochs if epoch is not None), default=None)


def first_load(session: SparkSession, state: TableState, mark: Mark) -> Identifier | int | None:
    """The identifier that all first loads of a table share while it is empty, so that one of them can win.

    None where the table holds rows; the version of their commit where it was made under this very mark's epoch.
    """
    table = sql.path_table(state.location)
    if session.sql(f"SELECT 1 AS one FROM {table} LIMIT 1").collect():  # noqa: S608  quoted
        return None if mark.epoch is None else _version_of_epoch(session, state.location, mark)
    # A table that was emptied may be loaded again: the commit that emptied it begins another time.
    newest = _newest_change(session, table, f" LIMIT {HISTORY_LIMIT}")
    if newest is None:
        newest = _newest_change(session, table, "") or 0
    return Identifier(f"pipeline/{incarnation(session, state)}/first load after {newest}", 0)


def _newest_change(session: SparkSession, table: str, limit: str) -> int | None:
    operations = ", ".join(map(sql.string, _CHANGES_ROWS))
    history = session.sql(f"DESCRIBE HISTORY {table}{limit}").filter(f"operation IN ({operations})")
    newest = history.selectExpr("max(version) AS newest").collect()[0]["newest"]
    return None if newest is None else int(newest)


def version_holding(session: SparkSession, state: TableState, mark: Mark, known: Identifier) -> int | None:
    """The version that holds what a write under this mark has written before; None where none was recorded.

    Where the commit itself is no longer in the log, the current version stands for it.
    """
    folder = local_folder(state.location)
    there = commit_versions(str(folder)) if folder is not None else []
    recorded = transaction_version(folder, there[-1], known.app_id) if folder is not None and there else None
    if folder is not None and (recorded is None or recorded < known.version):
        return None
    found = _version_of_epoch(session, state.location, mark)
    return latest_version(session, state.location) if found is None and recorded is not None else found


def _version_of_epoch(session: SparkSession, location: str, mark: Mark) -> int | None:
    """The newest commit of this writer's epoch; the newest of a later epoch where that one is gone."""
    history = session.sql(f"DESCRIBE HISTORY {sql.path_table(location)} LIMIT {HISTORY_LIMIT}")
    later: int | None = None
    for row in history.select("version", "userMetadata").collect():
        theirs = (commit_note(row["userMetadata"]) or {}).get("mark") or {}
        if theirs.get("writer") != mark.writer or theirs.get("epoch") is None:
            continue
        if theirs["epoch"] == mark.epoch:
            return int(row["version"])
        if theirs["epoch"] > (mark.epoch or 0) and later is None:
            later = int(row["version"])
    return later
