"""Commits that no run has reported, as materializations: what sinks, commands and foreign writers did to a table.

Here belongs what a commit in the log means to Dagster: which partitions it has changed, and whether their newest
materialization speaks of it or of a later one already. Who asks, and how far it has read, is `automation`'s.

A partition that a commit has emptied is told as one of no rows: Dagster's own storage can't take a materialization of
one partition back (`wipe_asset_partitions` is not implemented in 1.13), and what is downstream of it looks for a newer
data version, which a missing one would not be.
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
    commit_note,
    commit_versions,
    entry_identity_at,
    read_commit_file,
)
from pipeline.delta.log.counts import TableRows, table_rows
from pipeline.delta.table.open_table import state_from_log
from pipeline.errors import PartitionKeyError
from pipeline.orchestration.derived import dataset_of_table
from pipeline.orchestration.metadata import (
    BYTES_ADDED,
    FILES_ADDED,
    FILES_REMOVED,
    OPERATION,
    PARTITION_ROWS,
    ROWS_WRITTEN,
    TABLE_ROWS,
    TIMESTAMP,
    VERSION,
    commit_in,
    data_version_tag,
    declared_dataset,
    foremost_first,
    of_commit,
    plain_value,
    reported_data_version,
)
from pipeline.orchestration.partitions import PARTITION_EXPR, KeyFinder, sum_by_key

# What one look at a table reads and reports at most; a commit is reported whole.
COMMITS_AT_ONCE = 100
EVENTS_AT_ONCE = 1000
# Of so many of the newest commits the rows of the table are counted; each count replays the log from its checkpoint.
COUNTED_AT_ONCE = 10
_UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class AssetTable:
    """A table and its asset; `dataset` is None of a plain asset, which is written as its table and `metadata` say.

    `has_runs` says that runs of the asset write the table, so that they report what they have committed.
    """

    key: AssetKey
    dataset: Dataset | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    partitions_def: PartitionsDefinition[Any] | None = None
    expr: object | None = None
    has_runs: bool = False

    @property
    def name(self) -> str:
        """The name under which it is known to a cursor."""
        return "/".join(self.key.path)


def asset_tables(assets: Iterable[AssetsDefinition], io_manager_key: str) -> list[AssetTable]:
    """The tables of these assets: those of a dataset, and of each plain asset that is written under that IO manager."""
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
    """As `unreported`, of the newest commits alone, for one who has kept no cursor."""
    location = table_location(root, table.name)
    numbers = commit_versions(location)
    if not numbers:
        return []
    first = read_commit_file(location, numbers[0], ())
    known = {"version": numbers[-1] - COMMITS_AT_ONCE, "table_id": first.table_id}
    return unreported(table, root, known, instance)


def unreported(
    table: AssetTable, root: str, known: dict[str, Any], instance: DagsterInstance
) -> list[AssetMaterialization]:
    """What a table has got since the cursor `known`, which is moved; a table that was made anew is read from its start.

    A commit that changes no rows (optimize, vacuum, properties) is passed over, and so is what a run of the asset has
    reported or still may: a commit of a run that has not ended waits in the cursor. Of a table over which a copy was
    put nobody can say what the commits that are lost had changed: all of it is told, as of its newest commit.
    """
    location = table_location(root, table.name)
    numbers = commit_versions(location)
    known.setdefault("version", -1)
    known.setdefault("table_id", None)
    if not numbers:
        return []
    first = read_commit_file(location, numbers[0], ())
    if first.table_id is not None and first.table_id != known["table_id"]:
        known |= {"version": -1, "table_id": first.table_id, "entry": None, "waiting": []}
    if _was_put_back(location, numbers, known):
        known |= {"version": numbers[-1], "entry": entry_identity_at(location, numbers[-1])}
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
    known["entry"] = entry_identity_at(location, known["version"])
    return events


def _was_put_back(location: str, numbers: Sequence[int], known: dict[str, Any]) -> bool:
    """Whether a copy of the table was put over it since the cursor: the commit that it has read to is another one.

    A cursor that has no identity of its commit gets that of the commit in the log, and goes by the number until then.
    """
    if known["version"] > numbers[-1]:
        return True
    there = entry_identity_at(location, known["version"]) if known["version"] >= numbers[0] else None
    if there is None:  # nothing was read yet, or the log was cleaned of it
        return False
    if known.get("entry") is None:
        known["entry"] = there
    return bool(known["entry"] != there)


class _Reader:
    """One look at a table's log with what Dagster knows of its asset."""

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
        """A commit from its file."""
        return read_commit_file(self.location, number, self.partition_by)

    def may_still_be_reported(self, commit: Commit) -> bool:
        """Whether a run of the asset has made the commit and is not at its end yet."""
        run_id = self._run_of(commit)
        run = None if run_id is None else self.instance.get_run_by_id(run_id)
        return run is not None and not run.is_finished

    def _run_of(self, commit: Commit) -> str | None:
        note = commit_note(commit.user_metadata) or {}
        return note.get("run_id") if self.table.has_runs and note.get("asset") else None

    def events(self, commit: Commit, table_id: str | None, *, has_rows: bool) -> Iterator[AssetMaterialization]:
        """The materializations of a commit, of each partition that it has changed; none of what was reported.

        Args:
            has_rows: whether they say how many rows the table and the partition have since.
        """
        run_id = self._run_of(commit)
        if not commit.changes_rows or (run_id is not None and self.instance.get_run_by_id(run_id) is None):
            return  # the run is one of another instance, or was deleted in this one
        # As the IO manager names it; a table that was replaced in place may have got another id since its first commit.
        table_id = self.table_id or table_id or _UNKNOWN
        changed = self._changed(commit)
        unknown = [key for key in changed if key not in self._reported]
        if unknown:
            self._look_up(unknown)
        new = {key: counts for key, counts in changed.items() if not self._is_known(key, table_id, commit.version)}
        if new:
            rows = table_rows(self.location, commit.version) if has_rows else None
            yield from self._told(commit, table_id, new, rows)

    def events_of_all(self, number: int, table_id: str | None) -> Iterator[AssetMaterialization]:
        """The materializations of all that was ever reported of the table, and of all that it holds, at one commit."""
        commit, rows = self.commit(number), table_rows(self.location, number)
        yield from self._told(commit, self.table_id or table_id or _UNKNOWN, self._all(rows), rows)

    def _told(
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
        """By key, what the commit has done to its partition; None stands for the whole of a table without keys.

        Where a removed file does not name its partition, every partition may have changed that was ever reported.
        """
        if self.table.partitions_def is None:
            whole = PartitionCounts(
                rows=commit.rows_written, files_added=commit.files_added, files_removed=commit.files_removed,
                bytes_added=commit.bytes_added,
            )  # fmt: skip
            return {None: whole}
        if self.dataset is None:
            return {}
        if commit.partitions is None:
            return self._all(None)
        return dict(sum_by_key(commit.partitions, self._finder().of_texts).items())

    def _all(self, rows: TableRows | None) -> Mapping[str | None, PartitionCounts]:
        """Every partition that was ever reported or is among these rows, with nothing known of what came to it."""
        if self.table.partitions_def is None:
            return {None: PartitionCounts(rows=None)}
        if self.dataset is None:
            return {}
        there = self.instance.get_materialized_partitions(self.table.key)
        if rows is not None:
            there = there | set(sum_by_key(rows.by_partition, self._finder().of_texts))
        return {key: PartitionCounts(rows=None) for key in self._partition_keys() if key in there}

    def _entry(self, number: int) -> str | None:
        """The identity of a commit, looked up once."""
        if number not in self._entries:
            self._entries[number] = entry_identity_at(self.location, number)
        return self._entries[number]

    def _partition_keys(self) -> list[str]:
        if self._keys is None:
            assert self.table.partitions_def is not None  # noqa: S101  asked of a partitioned asset alone
            keys = self.table.partitions_def.get_partition_keys(dynamic_partitions_store=self.instance)
            self._keys = list(keys)
        return self._keys

    def _finder(self) -> KeyFinder:
        """From values to keys; keys that no value of the table can have are passed over."""
        table, keys = self.table, self._partition_keys()
        assert self.dataset is not None and table.partitions_def is not None  # noqa: S101, PT018
        while self._find is None:
            try:
                self._find = KeyFinder(self.dataset, table.partitions_def, keys, table.expr)
            except PartitionKeyError as error:
                keys = [key for key in keys if key not in error.keys]
        return self._find

    def _look_up(self, keys: Iterable[str | None]) -> None:
        """Note the data versions of the newest materializations that Dagster has of these keys."""
        wanted = {key for key in keys if key is not None}
        asked = AssetRecordsFilter(asset_key=self.table.key)
        limit = 1
        if wanted:
            kind = DagsterEventType.ASSET_MATERIALIZATION
            ids = self.instance.get_latest_storage_id_by_partition(self.table.key, kind, wanted)
            asked, limit = AssetRecordsFilter(self.table.key, storage_ids=list(ids.values())), len(ids)
        for record in self.instance.fetch_materializations(asked, limit=limit).records if limit else ():
            event = record.asset_materialization
            told = reported_data_version(event)
            if event is not None and told is not None:
                self._reported[event.partition] = told.value

    def _is_known(self, key: str | None, table_id: str, version: int) -> bool:
        told = self._reported.get(key)
        reported = None if told is None else commit_in(DataVersion(told), table_id)
        if reported is None or reported.version < version:
            return False
        entry = self._entry(reported.version)
        return reported.entry is None or (entry is not None and not reported.is_other_than(entry))

    def _rows_by_key(self, table: TableRows | None, new: Mapping[str | None, PartitionCounts]) -> Mapping[str, int]:
        """By key, what is told as the rows of its partition: of an append those that came, as of one by a run."""
        keys = [key for key in new if key is not None]
        if not keys:
            return {}
        appends = self.dataset is not None and isinstance(self.dataset.write, Append)
        came = {key: counts.rows for key, counts in new.items() if key is not None and counts.rows is not None}
        if table is None:
            return came if appends else {}
        held = dict.fromkeys(keys, 0) | sum_by_key(table.by_partition, self._finder().of_texts)
        return held | came if appends else held


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
    said = {
        VERSION: MetadataValue.int(commit.version),
        OPERATION: commit.operation,
        TIMESTAMP: MetadataValue.timestamp(commit.timestamp),
        "dagster/uri": location,
    }
    return foremost_first(said | {name: MetadataValue.int(count) for name, count in counted.items()})


def _dimensions(key: str | None) -> dict[str, str]:
    """The tags of a key of several dimensions, as Dagster's own runs set them."""
    if not isinstance(key, MultiPartitionKey):
        return {}
    return {f"{MULTIDIMENSIONAL_PARTITION_PREFIX}{name}": part for name, part in key.keys_by_dimension.items()}
