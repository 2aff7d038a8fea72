"""The entries of a log that are needed although they are older than the log's retention. No Spark.

Here belongs what each reader of old entries needs of them. Which files are removed is decided in `clean_log`.

A repeat of a write is recognised by a transaction identifier, which a checkpoint keeps. A restore makes the identifiers
of earlier writes count as of the restored version alone. So its entry and the restored version are needed for as long
as identifiers are remembered: `delta.setTransactionRetentionDuration`, or for ever.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pipeline.dataset import TableRef
from pipeline.delta.inspect.describe import ROWS_KEPT
from pipeline.delta.log.commits import commit_note, instant
from pipeline.delta.log.entry import as_count
from pipeline.delta.log.mark import MIGRATION, migration_token
from pipeline.delta.log.snapshot import transaction_versions
from pipeline.delta.log.timestamps import TRANSACTION_RETENTION, TimedCommit, interval
from pipeline.delta.maintain.retention import unread_files
from pipeline.delta.read.cursors import effective_cursors
from pipeline.delta.read.restores import RESTORE, commits_in_force, restored_version
from pipeline.delta.table.open_table import TableState
from pipeline.delta.write.transaction import CHANGES_ROWS, INCARNATION, OUR_IDENTIFIERS

By = Literal["consumer", "cursors", "restore", "stream", "migration", "rows", "pointer", "property", "feature"]

# The features with which a log may be cleaned. With any other one it is left: the feature may be one with which a
# catalog, and not the log's folder, has the newest commits, as `catalogManaged`.
_CLEANED = frozenset(
    {
        "allowColumnDefaults", "appendOnly", "changeDataFeed", "checkConstraints", "checkpointProtection", "clustering",
        "collations", "columnMapping", "deletionVectors", "domainMetadata", "generatedColumns", "geospatial",
        "icebergCompatV1", "icebergCompatV2", "icebergCompatV3", "icebergWriterCompatV1", "icebergWriterCompatV3",
        "identityColumns", "inCommitTimestamp", "invariants", "materializePartitionColumns", "rowTracking",
        "timestampNtz", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck", "variantShredding", "variantType",
    }
)  # fmt: skip
CLEANUP = "delta.enableExpiredLogCleanup"


@dataclass(frozen=True, kw_only=True)
class LogNeed:
    """The need of the entry of `version` and of all later ones.

    `by` and `name` say what needs them: a `consumer` of the table's changes, by name; the `cursors` of the table itself
    in its sources; a `restore`, by its version; a `stream`, by the folder of its checkpoint; a `migration`, by the
    token of its commit; the newest change of `rows`; the `pointer` to the newest checkpoint; a `property` or a
    `feature` of the table, which keep every entry.
    """

    by: By
    name: str
    version: int

    def __str__(self) -> str:
        """The need as a sentence without its end."""
        return {
            "consumer": f"{self.name} has read to version {self.version} and needs the changes since",
            "cursors": f"its own cursors follow from the entries since version {self.version}",
            "restore": f"since the restore in version {self.name}, repeated writes are recognised by version "
            f"{self.version}",
            "stream": f"version {self.version} is the newest batch of the stream {self.name}",
            "migration": f"the rows of the migration in version {self.version} are not verified yet",
            "rows": f"version {self.version} is the newest change of rows",
            "pointer": f"{self.name} names the checkpoint of version {self.version}",
            "property": f"{self.name} is false",
            "feature": f"the table has the feature {self.name}",
        }[self.by]


def log_needs(
    table: TableRef, state: TableState, commits: Sequence[TimedCommit], consumers: Sequence[TableRef], *,
    expired: int, now: dt.datetime, force: bool,
) -> tuple[LogNeed, ...]:  # fmt: skip
    """The needs of old entries of a table's log.

    Args:
        commits: all commits of the log, the oldest first.
        expired: the newest version that is past the retention. It and all later ones can be restored.
        consumers: the consumers of the table's changes.
        force: leave out the consumers of the table's changes, and its own cursors.

    Raises:
        CursorUnreadableError: the entries that a consumer needs are not known.
        DamagedTableError: an entry is damaged.
    """
    needs = [*_of_table(state), *_of_restores(state, commits, now), *_of_streams(state, commits, now)]
    needs += [*_of_migration(state, commits), *_of_rows(commits)]
    if not force:
        unread = unread_files(None, table, consumers)
        needs += [LogNeed(by="consumer", name=consumer.consumer, version=consumer.version) for consumer in unread]
        needs += _of_cursors(table, state, expired)
    return tuple(needs)


def _of_table(state: TableState) -> Iterator[LogNeed]:
    for feature in state.features:
        if feature.removesuffix("-preview") not in _CLEANED:
            yield LogNeed(by="feature", name=feature, version=0)
    for name, value in state.properties.items():
        if name.lower() == CLEANUP.lower() and value.lower() == "false":
            yield LogNeed(by="property", name=CLEANUP, version=0)


def _of_cursors(table: TableRef, state: TableState, expired: int) -> Iterator[LogNeed]:
    """The need of the table's own cursors, and of those of the versions to which it can be restored.

    A table that is no consumer has none.
    """
    in_force = effective_cursors(None, state)
    if not in_force.sources and not table.dataset.reads_changes_of:
        return
    if in_force.needs_spark:
        yield LogNeed(by="cursors", name=table.name, version=0)
        return
    earlier = effective_cursors(None, replace(state, version=expired))
    oldest = (in_force.oldest, earlier.oldest if earlier.sources else None)
    needed = min((version for version in oldest if version is not None), default=None)
    if needed is not None:
        yield LogNeed(by="cursors", name=table.name, version=needed)


def _of_restores(state: TableState, commits: Sequence[TimedCommit], now: dt.datetime) -> Iterator[LogNeed]:
    """The needs of restores: of each that no property records, and of what it restored if identifiers were recorded."""
    restores = [commit for commit in commits if commit.info.get("operation") == RESTORE]
    if not restores:
        return
    has_identifiers = any(
        app.startswith(OUR_IDENTIFIERS) for app in transaction_versions(state.location, state.version)
    )
    recorded = as_count({name.lower(): value for name, value in state.properties.items()}.get(INCARNATION)) or 0
    first = commits[0].version
    for commit in restores:
        parameters = commit.info.get("operationParameters")
        target = restored_version(None, state.location, commit.version, parameters)
        if not has_identifiers or _is_forgotten(state, commit, now) or (target is not None and target < first):
            # There is nothing to recognise in the restored version, or its entries are gone. But later identifiers
            # contain the table's incarnation, which is the version of the restore.
            needed = commit.version if commit.version > recorded else None
        else:
            needed = 0 if target is None else target
        if needed is not None:
            yield LogNeed(by="restore", name=str(commit.version), version=needed)


def _is_forgotten(state: TableState, commit: TimedCommit, now: dt.datetime) -> bool:
    """Whether a commit is so old that the identifiers of writes before it are no longer remembered."""
    retention = interval(state.properties, TRANSACTION_RETENTION)
    return retention is not None and now - instant(commit.milliseconds) > retention


def _of_streams(state: TableState, commits: Sequence[TimedCommit], now: dt.datetime) -> Iterator[LogNeed]:
    """The need of each stream's newest batch, by which a lost or changed checkpoint of the stream is recognised."""
    newest: dict[str, int] = {}
    for commit in commits:
        checkpoint = _stream_of(commit.info.get("userMetadata"))
        if checkpoint is not None and not _is_forgotten(state, commit, now):
            newest[checkpoint] = commit.version
    in_force: dict[str, int] = {}
    for version, info in commits_in_force(None, state.location) if newest else ():
        checkpoint = _stream_of(info.get("userMetadata"))
        if checkpoint is not None:
            in_force.setdefault(checkpoint, version)
    for checkpoint, version in newest.items():
        yield LogNeed(by="stream", name=checkpoint, version=in_force.get(checkpoint, version))


def _stream_of(user_metadata: str | None) -> str | None:
    """The checkpoint of the stream whose batch a commit is. If it is of no stream, None."""
    stream = (commit_note(user_metadata) or {}).get("stream")
    return None if stream is None else str(stream["checkpoint"])


def _of_migration(state: TableState, commits: Sequence[TimedCommit]) -> Iterator[LogNeed]:
    """The need of the newest migration until a property of the table names its record.

    Until then only the commit shows that its files were taken.
    """
    sealed = state.properties.get(MIGRATION)
    if all(migration_token(commit.info.get("userMetadata")) in (None, sealed) for commit in commits):
        return
    for version, info in commits_in_force(None, state.location):
        token = migration_token(info.get("userMetadata"))
        if token is not None:
            if token != sealed:
                yield LogNeed(by="migration", name=token, version=version)
            return


def _of_rows(commits: Sequence[TimedCommit]) -> Iterator[LogNeed]:
    """The needs of the newest commit that may change rows, and of the one by which a first load is identified."""
    operations = [(commit.version, str(commit.info.get("operation") or "")) for commit in reversed(commits)]
    newest = next((one for one in operations if one[1] not in ROWS_KEPT), None)
    identifying = next((one for one in operations if one[1] in CHANGES_ROWS), None)
    for version, operation in {one for one in (newest, identifying) if one is not None}:
        yield LogNeed(by="rows", name=operation, version=version)
