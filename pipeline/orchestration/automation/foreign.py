"""Commits that no run has reported, as materializations: commits of sinks, commands and other writers.

Here belongs the meaning of a commit in the log for Dagster: which partitions it has changed, and whether their newest
materialization already reports it or a later one. The callers and the cursor belong to `sensors`.

A partition that a commit has emptied is reported with no rows. Dagster's own storage can't remove a materialization of
one partition (`wipe_asset_partitions` is not implemented in 1.13), and downstream assets react to a newer data version,
not to a missing one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetRecordsFilter,
    AssetsDefinition,
    DagsterEventType,
    DagsterInstance,
    DataVersion,
    MetadataValue,
    MultiPartitionKey,
    PartitionsDefinition,
)

# Dagster's own name for the tags of a key of several dimensions; not public.
from dagster._core.storage.tags import MULTIDIMENSIONAL_PARTITION_PREFIX

from pipeline.dataset import Append, Dataset, table_location
from pipeline.delta.log.commits import (
    Commit,
    PartitionCounts,
    commit_identity,
    commit_note,
    commit_versions,
    read_commit,
)
from pipeline.delta.log.counts import TableRows, table_rows
from pipeline.delta.table.open_table import state_from_log
from pipeline.errors import PartitionKeyError
from pipeline.orchestration.derived import dataset_of_table
from pipeline.orchestration.metadata import (
    commit_in,
    data_version_tag,
    declared_dataset,
    foremost_first,
    of_commit,
    plain_value,
    reported_data_version,
)
from pipeline.orchestration.metadata_keys import (
    BYTES_ADDED,
    FILES_ADDED,
    FILES_REMOVED,
    OPERATION,
    PARTITION_EXPR,
    PARTITION_ROWS,
    ROWS_WRITTEN,
    TABLE_ROWS,
    TIMESTAMP,
    URI,
    VERSION,
)
from pipeline.orchestration.partitions import KeyFinder, sum_by_key

# The most that one evaluation of a table reads and reports. A commit is never reported in parts.
COMMITS_AT_ONCE = 100
EVENTS_AT_ONCE = 1000
# The table's rows are counted for so many of the newest commits. Each count replays the log from its checkpoint.
COUNTED_AT_ONCE = 10
_UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class AssetTable:
    """A table and its asset. For a plain asset `dataset` is None, and the table and `metadata` describe the write.

    If `has_runs`, runs of the asset write the table and report their own commits.
    """

    key: AssetKey
    dataset: Dataset | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    partitions_def: PartitionsDefinition[Any] | None = None
    expr: object | None = None
    has_runs: bool = False

    @property
    def name(self) -> str:
        """The table's name in a sensor's cursor."""
        return "/".join(self.key.path)


def asset_tables(assets: Iterable[AssetsDefinition], io_manager_key: str) -> list[AssetTable]:
    """The tables of these assets: those of datasets, and those of plain assets that use that IO manager."""
    tables = []
    for asset in assets:
        for spec in asset.specs:
            dataset = declared_dataset(spec.key, spec.metadata)
            plain_table = asset.is_executable and asset.get_io_manager_key_for_asset_key(spec.key) == io_manager_key
            if dataset is None and not plain_table:
                continue
            table = AssetTable(
                key=spec.key, dataset=dataset, metadata=spec.metadata, partitions_def=spec.partitions_def,
                expr=plain_value(spec.metadata.get(PARTITION_EXPR)), has_runs=asset.is_executable,
            )  # fmt: skip
            tables.append(table)
    return tables


def newest_unreported(table: AssetTable, root: str, instance: DagsterInstance) -> list[AssetMaterialization]:
    """As `unreported`, but only for the newest commits, for a caller without a cursor."""
    location = table_location(root, table.name)
    numbers = commit_versions(location)
    if not numbers:
        return []
    first = read_commit(location, numbers[0], ())
    cursor = {"version": numbers[-1] - COMMITS_AT_ONCE, "table_id": first.table_id}
    return unreported(table, root, cursor, instance)


def unreported(
    table: AssetTable, root: str, known: dict[str, Any], instance: DagsterInstance
) -> list[AssetMaterialization]:
    """The unreported commits since the cursor `known`, which is advanced. A new table is read from the start.

    A commit that changes no rows (optimize, vacuum, properties) is skipped. So is a commit that a run of the asset has
    reported or may still report: while the run has not ended, the commit waits in the cursor. If the table was
    overwritten by a copy, the changes of the lost commits are unknown: the table is reported completely, as of its
    newest commit.
    """
    location = table_location(root, table.name)
    numbers = commit_versions(location)
    known.setdefault("version", -1)
    known.setdefault("table_id", None)
    if not numbers:
        return []
    first = read_commit(location, numbers[0], ())
    if first.table_id is not None and first.table_id != known["table_id"]:
        known |= {"version": -1, "table_id": first.table_id, "entry": None, "waiting": []}
    if _was_overwritten(location, numbers, known):
        known |= {"version": numbers[-1], "entry": commit_identity(location, numbers[-1])}
        known.pop("waiting", None)
        return list(_Reader(table, location, instance).events_of_all(numbers[-1], known["table_id"]))
    waiting = [number for number in known.pop("waiting", []) if number in numbers]
    ahead = [number for number in numbers if number > known["version"]][:COMMITS_AT_ONCE]
    if not waiting and not ahead:
        return []
    reader = _Reader(table, location, instance)
    events: list[AssetMaterialization] = []
    still_waiting = []
    commits = [reader.commit(number) for number in (*waiting, *ahead)]
    counted = [commit.version for commit in commits if commit.changes_rows][-COUNTED_AT_ONCE:]
    for commit in commits:
        if len(events) >= EVENTS_AT_ONCE and commit.version in ahead:
            break
        known["version"] = max(commit.version, known["version"])
        if reader.may_still_be_reported(commit):
            still_waiting.append(commit.version)
        else:
            events += reader.events(commit, known["table_id"], has_rows=commit.version in counted)
    if still_waiting:
        known["waiting"] = still_waiting
    known["entry"] = commit_identity(location, known["version"])
    return events


def _was_overwritten(location: str, numbers: Sequence[int], cursor: dict[str, Any]) -> bool:
    """Whether the table was overwritten by a copy since the cursor: the cursor's commit is now another one.

    A cursor without the identity of its commit gets that of the commit in the log. Until then its number decides.
    """
    if cursor["version"] > numbers[-1]:
        return True
    identity = commit_identity(location, cursor["version"]) if cursor["version"] >= numbers[0] else None
    if identity is None:  # nothing was read yet, or the log no longer has the commit
        return False
    if cursor.get("entry") is None:
        cursor["entry"] = identity
    return bool(cursor["entry"] != identity)


class _Reader:
    """One evaluation of a table's log and of Dagster's records of its asset."""

    def __init__(self, table: AssetTable, location: str, instance: DagsterInstance) -> None:
        self.table, self.location, self.instance = table, location, instance
        state = state_from_log(location)
        self.table_id = None if state is None else state.table_id
        self.dataset = table.dataset
        if self.dataset is None and state is not None:
            self.dataset = dataset_of_table(table.key, table.metadata, state)
        named = () if self.dataset is None else self.dataset.partition_by
        self.partition_by = named if state is None else state.log_partition_by
        self._keys: list[str] | None = None
        self._find: KeyFinder | None = None
        self._reported: dict[str | None, str] = {}
        self._entries: dict[int, str | None] = {}

    def commit(self, number: int) -> Commit:
        """A commit, read from its file."""
        return read_commit(self.location, number, self.partition_by)

    def may_still_be_reported(self, commit: Commit) -> bool:
        """Whether a run of the asset made the commit and has not ended yet."""
        run_id = self._run_of(commit)
        run = None if run_id is None else self.instance.get_run_by_id(run_id)
        return run is not None and not run.is_finished

    def _run_of(self, commit: Commit) -> str | None:
        note = commit_note(commit.user_metadata) or {}
        return note.get("run_id") if self.table.has_runs and note.get("asset") else None

    def events(self, commit: Commit, table_id: str | None, *, has_rows: bool) -> Iterator[AssetMaterialization]:
        """The materializations of a commit: one for each partition that it has changed and that is not reported yet.

        Args:
            has_rows: whether they have the row counts of the table and the partition after the commit.
        """
        run_id = self._run_of(commit)
        if not commit.changes_rows or (run_id is not None and self.instance.get_run_by_id(run_id) is None):
            return  # the run belongs to another instance, or was deleted
        # The same id as the IO manager uses. A table replaced in place may have another id than its first commit.
        table_id = self.table_id or table_id or _UNKNOWN
        changed = self._changed(commit)
        unknown = [key for key in changed if key not in self._reported]
        if unknown:
            self._load_reported(unknown)
        new = {key: counts for key, counts in changed.items() if not self._is_reported(key, table_id, commit.version)}
        if new:
            rows = table_rows(self.location, commit.version) if has_rows else None
            yield from self._materializations(commit, table_id, new, rows)

    def events_of_all(self, number: int, table_id: str | None) -> Iterator[AssetMaterialization]:
        """The materializations, at one commit, of every partition that was ever reported or has rows."""
        commit, rows = self.commit(number), table_rows(self.location, number)
        yield from self._materializations(commit, self.table_id or table_id or _UNKNOWN, self._all(rows), rows)

    def _materializations(
        self, commit: Commit, table_id: str, new: Mapping[str | None, PartitionCounts], rows: TableRows | None
    ) -> Iterator[AssetMaterialization]:
        by_key = self._rows_by_key(rows, new)
        tags = data_version_tag(table_id, commit.version, self._entry(commit.version))
        for key, counts in new.items():
            self._reported[key] = next(iter(tags.values()))
            yield AssetMaterialization(
                asset_key=self.table.key,
                partition=key,
                metadata=_metadata(self.location, commit, key, counts, table=rows, rows_by_key=by_key),
                tags=tags | _dimensions(key),
            )

    def _changed(self, commit: Commit) -> Mapping[str | None, PartitionCounts]:
        """The changes of each partition by key. In a table without keys, the key None is the table.

        If a removed file does not name its partition, every partition that was ever reported may have changed.
        """
        if self.table.partitions_def is None:
            total = PartitionCounts(
                rows=commit.rows_written, files_added=commit.files_added, files_removed=commit.files_removed,
                bytes_added=commit.bytes_added,
            )  # fmt: skip
            return {None: total}
        if self.dataset is None:
            return {}
        if commit.partitions is None:
            return self._all(None)
        return dict(sum_by_key(commit.partitions, self._finder().of_texts).items())

    def _all(self, rows: TableRows | None) -> Mapping[str | None, PartitionCounts]:
        """Every partition that was ever reported or has some of these rows, without counts."""
        if self.table.partitions_def is None:
            return {None: PartitionCounts(rows=None)}
        if self.dataset is None:
            return {}
        keys = self.instance.get_materialized_partitions(self.table.key)
        if rows is not None:
            keys = keys | set(sum_by_key(rows.by_partition, self._finder().of_texts))
        return {key: PartitionCounts(rows=None) for key in self._partition_keys() if key in keys}

    def _entry(self, number: int) -> str | None:
        """The identity of a commit, read only once."""
        if number not in self._entries:
            self._entries[number] = commit_identity(self.location, number)
        return self._entries[number]

    def _partition_keys(self) -> list[str]:
        if self._keys is None:
            assert self.table.partitions_def is not None  # noqa: S101  only called for a partitioned asset
            keys = self.table.partitions_def.get_partition_keys(dynamic_partitions_store=self.instance)
            self._keys = list(keys)
        return self._keys

    def _finder(self) -> KeyFinder:
        """The finder of keys by values. Keys that no value of the table can have are skipped."""
        table, keys = self.table, self._partition_keys()
        assert self.dataset is not None and table.partitions_def is not None  # noqa: S101, PT018
        while self._find is None:
            try:
                self._find = KeyFinder(self.dataset, table.partitions_def, keys, table.expr)
            except PartitionKeyError as error:
                keys = [key for key in keys if key not in error.keys]
        return self._find

    def _load_reported(self, keys: Iterable[str | None]) -> None:
        """Store the data versions of the newest materializations that Dagster has of these keys."""
        partition_keys = {key for key in keys if key is not None}
        records_filter = AssetRecordsFilter(asset_key=self.table.key)
        limit = 1
        if partition_keys:
            kind = DagsterEventType.ASSET_MATERIALIZATION
            ids = self.instance.get_latest_storage_id_by_partition(self.table.key, kind, partition_keys)
            records_filter, limit = AssetRecordsFilter(self.table.key, storage_ids=list(ids.values())), len(ids)
        for record in self.instance.fetch_materializations(records_filter, limit=limit).records if limit else ():
            event = record.asset_materialization
            data_version = reported_data_version(event)
            if event is not None and data_version is not None:
                self._reported[event.partition] = data_version.value

    def _is_reported(self, key: str | None, table_id: str, version: int) -> bool:
        data_version = self._reported.get(key)
        reported = None if data_version is None else commit_in(DataVersion(data_version), table_id)
        if reported is None or reported.version < version:
            return False
        entry = self._entry(reported.version)
        return reported.entry is None or (entry is not None and not reported.is_other_than(entry))

    def _rows_by_key(self, table: TableRows | None, new: Mapping[str | None, PartitionCounts]) -> Mapping[str, int]:
        """The row count to report by key: after an append the rows that it added, as for a write by a run."""
        keys = [key for key in new if key is not None]
        if not keys:
            return {}
        appends = self.dataset is not None and isinstance(self.dataset.write, Append)
        added = {key: counts.rows for key, counts in new.items() if key is not None and counts.rows is not None}
        if table is None:
            return added if appends else {}
        present = dict.fromkeys(keys, 0) | sum_by_key(table.by_partition, self._finder().of_texts)
        return present | added if appends else present


def _metadata(
    location: str, commit: Commit, key: str | None, counts: PartitionCounts, *, table: TableRows | None,
    rows_by_key: Mapping[str, int],
) -> dict[str, Any]:  # fmt: skip
    own = {FILES_ADDED: counts.files_added, FILES_REMOVED: counts.files_removed, BYTES_ADDED: counts.bytes_added}
    rows = {ROWS_WRITTEN: counts.rows, TABLE_ROWS: None if table is None else table.total}
    if key is not None:
        own |= {
            of_commit(FILES_ADDED): commit.files_added, of_commit(FILES_REMOVED): commit.files_removed,
            of_commit(BYTES_ADDED): commit.bytes_added,
        }  # fmt: skip
        rows |= {of_commit(ROWS_WRITTEN): commit.rows_written, PARTITION_ROWS: rows_by_key.get(key)}
    counted = own | {name: count for name, count in rows.items() if count is not None}
    commit_facts = {
        VERSION: MetadataValue.int(commit.version),
        OPERATION: commit.operation,
        TIMESTAMP: MetadataValue.timestamp(commit.timestamp),
        URI: location,
    }
    return foremost_first(commit_facts | {name: MetadataValue.int(count) for name, count in counted.items()})


def _dimensions(key: str | None) -> dict[str, str]:
    """The tags of a multi-dimensional key, as Dagster's own runs set them."""
    if not isinstance(key, MultiPartitionKey):
        return {}
    return {f"{MULTIDIMENSIONAL_PARTITION_PREFIX}{name}": part for name, part in key.keys_by_dimension.items()}
