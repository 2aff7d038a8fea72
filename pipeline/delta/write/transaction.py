"""Exactly once: the transaction identifier by which Delta recognises a repeated write, and its record in the log.

Here belong the transaction identifier of a mark, the incarnation of a table, and the look-up of a write that Delta has
skipped. Which write modes need an identifier is decided in `write`.

Delta skips a write if its application has recorded this version or a later one. A restore undoes the rows of a write
but not its recorded identifier (RestoreTableCommand commits no transaction identifiers). So the identifier contains the
incarnation of the table, and every restore begins a new incarnation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from pipeline.delta import sql
from pipeline.delta.log.checkpoints import log_files, newest_version
from pipeline.delta.log.commits import commit_identity, commit_info, commit_note, commit_versions, newest_infos
from pipeline.delta.log.entry import as_count
from pipeline.delta.log.mark import HISTORY_LIMIT, Mark
from pipeline.delta.log.snapshot import table_facts, transaction_version
from pipeline.delta.read.restores import RESTORE, restored_version
from pipeline.delta.table.open_table import TableState

INCARNATION = "pipeline.incarnation"
# The beginning of the application of each of our transaction identifiers.
OUR_IDENTIFIERS = "pipeline/"
_APP_ID = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"
# The operations by the newest of which a first load is identified.
CHANGES_ROWS = ("WRITE", "MERGE", "UPDATE", "DELETE", "TRUNCATE", RESTORE, "STREAMING UPDATE", "COPY INTO")
# How far each session has searched each log, by location and table id. The oldest searches are dropped.
_SEARCHED: WeakKeyDictionary[SparkSession, dict[tuple[str, str], _Searched]] = WeakKeyDictionary()
_SEARCHED_LOGS = 1_000


@dataclass(frozen=True)
class _Searched:
    """A log that was searched up to a version. `entry` is the identity of that commit, None if it is not known.

    `restores` maps each restore in it to the version that it restored, None if the log does not show it.
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
        """The confs of a private session that writes under this identifier, for any statement."""
        return {_APP_ID: self.app_id, _VERSION: str(self.version)}


@dataclass(frozen=True)
class Written:
    """The rows of this write are in the table already; `version` holds them."""

    version: int


@dataclass(frozen=True)
class Unguarded:
    """Delta need not look for an earlier write of the same rows: there is none, or a repeat changes nothing."""


@dataclass(frozen=True)
class Occupied:
    """The table has rows of other writes, and a first load does not add to them."""


Guard = Identifier | Written | Unguarded | Occupied


def identifier(session: SparkSession, state: TableState, mark: Mark) -> Identifier | Written | Unguarded:
    """The transaction identifier of a mark in the table's present incarnation. A mark without an epoch has none.

    `Written` if the rows are in the table already, from before a restore that has kept them: under the identifier of
    the new incarnation they would be written again.
    """
    if mark.epoch is None:
        return Unguarded()
    number = incarnation(session, state)
    if number and _is_kept(session, state, number, mark):
        version = _version_of_epoch(state.location, mark)
        return Written(state.version if version is None else version)
    return Identifier(_application(number, mark.writer), mark.epoch)


def _application(incarnation: int, writer: str) -> str:
    return f"{OUR_IDENTIFIERS}{incarnation}/{writer}"


def last_recorded_epoch(session: SparkSession, state: TableState, writer: str) -> int:
    """The greatest epoch that Delta has recorded of a writer. If there is none, 0."""
    return transaction_version(state.location, state.version, _application(incarnation(session, state), writer)) or 0


def cursor_identifier(session: SparkSession, state: TableState, number: int) -> Identifier:
    """The identifier that all runs of a consumer share: Delta accepts one commit for each number of the cursors."""
    return Identifier(_application(incarnation(session, state), "cursors"), number)


def incarnation(session: SparkSession, state: TableState) -> int:
    """The version of the newest restore of the table. If there was none, 0.

    The log is asked too, since a restore also restores old properties. The property outlives the log's clean-up.
    """
    return max((_property(state.properties), *_restores(session, state)))


def _property(properties: Mapping[str, str]) -> int:
    recorded = next((value for name, value in properties.items() if name.lower() == INCARNATION), "0")
    return as_count(recorded) or 0


def _restores(session: SparkSession, state: TableState) -> Mapping[int, int | None]:
    """The restores in the log, each with the version that it restored."""
    location, key = state.location, (state.location, state.table_id)
    searches = _SEARCHED.setdefault(session, {})
    searched = searches.get(key, _Searched())
    identity = partial(_identity, state)
    if searched.until >= 0 and identity(searched.until) != searched.entry:
        searched = _Searched()  # an older copy of the table was put back since
    if state.version <= searched.until:
        return searched.restores
    numbers = _versions(state, searched.until)
    newest = max(numbers, default=searched.until)
    restored = {
        number: restored_version(session, location, number, parameters)
        for number, parameters in _restores_among(state, numbers).items()
    }
    found = searches[key] = _Searched(newest, identity(newest), {**searched.restores, **restored})
    for oldest in list(searches)[:-_SEARCHED_LOGS]:
        searches.pop(oldest, None)
    return found.restores


def _identity(state: TableState, number: int) -> str | None:
    return commit_identity(state.location, number, state.entry(number))


def _versions(state: TableState, after: int) -> list[int]:
    """The versions of the commits above `after`. They are listed if the state does not know them all."""
    listed = log_files(state.location, state.log.values()).commits
    if listed and listed[0] <= after + 1:
        return [number for number in listed if number > after]
    return commit_versions(state.location, after)


def _restores_among(state: TableState, numbers: Iterable[int]) -> dict[int, Mapping[str, Any]]:
    """The parameters of the restores among these commits. If one was cleaned up, a property records it."""
    infos = {number: commit_info(state.location, number, state.entry(number)) or {} for number in numbers}
    return {n: info.get("operationParameters") or {} for n, info in infos.items() if info.get("operation") == RESTORE}


def _is_kept(session: SparkSession, state: TableState, number: int, mark: Mark) -> bool:
    """Whether rows of this mark's epoch are in the table: written before the restore `number` and kept, or after it.

    The version that was restored may follow earlier restores, and the rows that these have kept count as well.
    """
    restores, until = _restores(session, state), state.version
    while True:
        reached = transaction_version(state.location, until, _application(number, mark.writer))
        if until == state.version:
            # A write that had not seen the restore recorded its epoch under the old incarnation; its mark shows it.
            marked = _marked_epoch(state.location, mark, number)
            reached = max((epoch for epoch in (reached, marked) if epoch is not None), default=None)
        if reached is not None and mark.epoch is not None and reached >= mark.epoch:
            return True
        target = restores.get(number)
        if target is None:
            return False
        facts = table_facts(state.location, target)
        recorded = _property(facts.properties) if facts is not None else 0
        number, until = max((recorded, *(n for n in restores if n <= target))), target


def _marked_epoch(location: str, mark: Mark, after: int) -> int | None:
    """The greatest epoch of the mark's writer in the newest commits, of those above `after`."""
    marks = (_mark_of(info) for number, info in newest_infos(location, HISTORY_LIMIT) if number > after)
    epochs = [found["epoch"] for found in marks if found.get("writer") == mark.writer]
    return max((epoch for epoch in epochs if epoch is not None), default=None)


def _mark_of(info: Mapping[str, Any]) -> Mapping[str, Any]:
    return (commit_note(info.get("userMetadata")) or {}).get("mark") or {}


def first_load(session: SparkSession, state: TableState, mark: Mark) -> Identifier | Written | Occupied:
    """The identifier that all first loads of a table share while it is empty, so that only one of them can commit.

    If the table has rows, `Written` if their commit was made under this mark's epoch, and otherwise `Occupied`.
    """
    table = sql.path_table(state.location)
    if session.sql(f"SELECT 1 AS one FROM {table} LIMIT 1").collect():  # noqa: S608  quoted
        version = None if mark.epoch is None else _version_of_epoch(state.location, mark)
        return Occupied() if version is None else Written(version)
    # A table that was emptied may be loaded again: the commit that emptied it changes the identifier.
    changes = (number for number, info in newest_infos(state.location) if info.get("operation") in CHANGES_ROWS)
    return Identifier(_application(incarnation(session, state), f"first load after {next(changes, 0)}"), 0)


def version_holding(state: TableState, mark: Mark, known: Identifier) -> int | None:
    """The version that holds what an earlier write under this mark has written. If none was recorded, None.

    If the log no longer has that commit, the current version.
    """
    newest = newest_version(state.location)
    if newest is None:
        return None
    recorded = transaction_version(state.location, newest, known.app_id)
    if recorded is None or recorded < known.version:
        return None
    version = _version_of_epoch(state.location, mark)
    return newest if version is None else version


def _version_of_epoch(location: str, mark: Mark) -> int | None:
    """The newest commit of this writer's epoch. If that is gone, the newest commit of a later epoch."""
    later: int | None = None
    for number, info in newest_infos(location, HISTORY_LIMIT):
        theirs = _mark_of(info)
        if theirs.get("writer") != mark.writer or theirs.get("epoch") is None:
            continue
        if theirs["epoch"] == mark.epoch:
            return number
        if theirs["epoch"] > (mark.epoch or 0) and later is None:
            later = number
    return later
