"""The protocol and metadata of a table at any version, from the log's files. No Spark.

Here belong the values of an observed table, and the protocol and the metadata in force at a version (Delta protocol,
"Action Reconciliation"). `commits` reads single commits; `open_table` has the newest state of a table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.types import StructType

from pipeline.dataset.history import STATE_COLUMN
from pipeline.dataset.schema import schema_fingerprint
from pipeline.delta.log.chain import checksum_in
from pipeline.delta.log.checkpoints import (
    LOG,
    all_files,
    checkpoint_actions,
    checksum_name,
    commit_name,
    files_for,
    first_line,
    newest_files,
    usable_checkpoints,
)
from pipeline.delta.log.commits import commit_info, read_entry
from pipeline.delta.log.entry import Action, damaged_file
from pipeline.delta.storage.access import StoreError
from pipeline.delta.storage.file_system import File, local_folder, read_listed
from pipeline.errors import DamagedTableError

# The key of a mapped column's physical name in the metadata of its field (Delta protocol, "Column Mapping").
PHYSICAL_NAME = "delta.columnMapping.physicalName"
# The domain in which the log keeps the clustering columns (Delta protocol, "Clustered Table").
_CLUSTERING = "delta.clustering"
# The writer version from which on a feature is part of the protocol (Delta protocol, "Valid Feature Names"). From
# `_LISTING_WRITER` on, features are listed by name.
_IMPLIED = {
    "appendOnly": 2,
    "invariants": 2,
    "checkConstraints": 3,
    "changeDataFeed": 4,
    "generatedColumns": 4,
    "columnMapping": 5,
    "identityColumns": 6,
}
_LISTING_WRITER = 7
# The columns of a checkpoint that are not about files.
_OF_TABLE = ("protocol", "metaData", "txn", "domainMetadata")


@dataclass(frozen=True, kw_only=True)
class TableFacts:
    """A table's protocol and metadata at one version. `schema` is the JSON of a struct type.

    It and `partition_by` are without `STATE_COLUMN`. `keeps_state` says whether the table has that column.
    """

    table_id: str
    reader_version: int
    writer_version: int
    properties: Mapping[str, str]
    schema: Mapping[str, Any]
    partition_by: tuple[str, ...]
    features: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    keeps_state: bool = False


@dataclass(frozen=True, kw_only=True)
class TableState:
    """A table as observed at one version. `features` are the protocol's table features.

    `files` and `bytes` are None if they were not requested, since Delta reads its full log for them. `cluster_by` is
    empty if the table is not clustered. `log` are files of the log of a table in a bucket by name, as they were listed;
    of other tables it has none. `keeps_state` is as in `TableFacts`, and the schema is without `STATE_COLUMN` too.
    """

    location: str
    table_id: str
    version: int
    schema: StructType
    partition_by: tuple[str, ...]
    properties: Mapping[str, str]
    features: tuple[str, ...]
    reader_version: int
    writer_version: int
    cluster_by: tuple[str, ...] = ()
    files: int | None = None
    bytes: int | None = None
    keeps_state: bool = False
    log: Mapping[str, File] = field(default_factory=dict, compare=False, repr=False)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the schema on disk."""
        return schema_fingerprint(self.schema, self.partition_by)

    def entry(self, version: int) -> File | None:
        """The file of a commit. If the table is on this machine, or the commit was not listed, None."""
        return self.log.get(commit_name(version))

    @property
    def log_partition_by(self) -> tuple[str, ...]:
        """The names under which the log keeps the values of the partition columns."""
        return tuple(physical_name(self.schema, column) for column in self.partition_by)


def physical_name(schema: StructType, column: str) -> str:
    """The name of a top-level column in files and log. If columns are not mapped, the column's own name."""
    metadata = schema[column].metadata or {}
    return str(metadata.get(PHYSICAL_NAME, column))


def checkpoints(location: str, listed: Iterable[File] | None = None) -> dict[int, tuple[str, ...]]:
    """The names of the files of the newest complete checkpoint at least, by its version. It may have several parts.

    A checkpoint with an empty file does not count: Delta skips it too.

    Args:
        listed: the files of the log. If None, they are listed.
    """
    return usable_checkpoints(newest_files(location) if listed is None else listed)


def table_facts(location: str, version: int, listed: Iterable[File] | None = None) -> TableFacts | None:
    """The protocol and metadata at a version, read from that commit backwards, at most to the checkpoint before it.

    If the files with them are gone, or in a form that this does not read, None.

    Args:
        listed: the files of the log. If None, they are listed.

    Raises:
        DamagedTableError: an entry on the way is damaged; or a checkpoint is, and the entries below it are gone.
    """
    protocol = metadata = clustering = None
    for number, is_checkpoint, actions in _backwards(location, version, listed):
        protocol = protocol or next((a["protocol"] for a in actions if a.get("protocol")), None)
        metadata = metadata or next((a["metaData"] for a in actions if a.get("metaData")), None)
        domains = [a["domainMetadata"] for a in actions if a.get("domainMetadata")]
        clustering = clustering or next((d for d in domains if d["domain"] == _CLUSTERING), None)
        if protocol and metadata:
            try:
                facts = _facts(protocol, metadata, clustering)
            except NotImplementedError:
                return None
            # A clustered table names its columns in this commit or an earlier one.
            if clustering or "clustering" not in facts.features or number == 0 or is_checkpoint:
                return facts
    return None


def facts_in_checksum(location: str, version: int, files: Mapping[str, File]) -> TableFacts | None:
    """As `table_facts`, from the checksum file of the version. If it is not that of the version's entry, None.

    Delta reads the protocol and the metadata from there too. On this machine always None, since entries are read there
    at no cost.

    Args:
        files: files of the log by name.
    """
    entry, checksum = files.get(commit_name(version)), files.get(checksum_name(version))
    if entry is None or checksum is None or local_folder(location) is not None:
        return None
    state = checksum_in(read_listed(f"{location}/{LOG}", checksum))
    commit_id = (commit_info(location, version, entry) or {}).get("txnId")
    if state is None or commit_id is None or state.commit_id != commit_id:
        return None
    try:
        facts = _facts(json.loads(state.protocol), json.loads(state.metadata), None)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return None if "clustering" in facts.features else facts


def transaction_version(location: str, version: int, app_id: str) -> int | None:
    """The newest transaction version that an application has recorded, up to a version of the table. If none, None.

    It is read from that commit backwards, at most to the checkpoint before it (Delta protocol, "Transaction
    Identifiers").

    Raises:
        DamagedTableError: as `table_facts` does.
    """
    for _, _, actions in _backwards(location, version):
        recorded = [a["txn"]["version"] for a in actions if a.get("txn") and a["txn"]["appId"] == app_id]
        if recorded:
            return int(max(recorded))
    return None


def transaction_versions(location: str, version: int, listed: Iterable[File] | None = None) -> dict[str, int]:
    """The newest transaction version of each application, up to a version of the table.

    Args:
        listed: the files of the log, if they are listed already.

    Raises:
        DamagedTableError: as `table_facts` does.
    """
    newest: dict[str, int] = {}
    for _, _, actions in _backwards(location, version, listed):
        for recorded in (action["txn"] for action in actions if action.get("txn")):
            newest.setdefault(recorded["appId"], int(recorded["version"]))
    return newest


def _backwards(
    location: str, version: int, listed: Iterable[File] | None = None
) -> Iterator[tuple[int, bool, list[Action]]]:
    """The entries from a version backwards to a checkpoint: version, whether it is a checkpoint, and actions.

    A checkpoint that can't be read is skipped as long as the entries below it exist.
    """
    files = {file.name: file for file in (files_for(location, version) if listed is None else listed)}
    complete, damaged = usable_checkpoints(files.values()), None
    for number in range(version, -1, -1):
        if number in complete:
            try:
                actions = [
                    action
                    for name in complete[number]
                    for action in checkpoint_actions(location, name, _OF_TABLE, files[name])
                ]
            except StoreError:  # the store refuses, which is no damage
                raise
            except (OSError, ValueError, DamagedTableError) as error:  # pyarrow's own errors are ValueErrors
                reason = error.reason if isinstance(error, DamagedTableError) else first_line(error)
                path = f"{location}/{LOG}/{complete[number][0]}"
                damaged = damaged or damaged_file(path, f"it can't be read ({reason})")
                files |= {other.name: other for other in all_files(location)}
                complete |= usable_checkpoints(files.values())
            else:
                yield number, True, actions
                return
        try:
            file = files.get(commit_name(number))
            yield number, False, read_entry(location, number, few=True, file=file)
        except FileNotFoundError:
            if damaged is not None:
                raise damaged from None
            return


def _facts(
    protocol: Mapping[str, Any], metadata: Mapping[str, Any], clustering: Mapping[str, Any] | None
) -> TableFacts:
    schema = json.loads(metadata["schemaString"])
    partition_by = tuple(metadata.get("partitionColumns") or ())
    return TableFacts(
        table_id=metadata["id"],
        reader_version=protocol["minReaderVersion"],
        writer_version=protocol["minWriterVersion"],
        # A map is a list of pairs in Parquet, and an object in JSON.
        properties=dict(metadata.get("configuration") or {}),
        schema=without_state(schema),
        partition_by=tuple(column for column in partition_by if column != STATE_COLUMN),
        keeps_state=STATE_COLUMN in partition_by,
        features=_features(protocol),
        cluster_by=() if clustering is None or clustering.get("removed") else _cluster_by(clustering, schema),
    )


def without_state(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of a struct type, without `STATE_COLUMN`."""
    return {**schema, "fields": [field for field in schema["fields"] if field["name"] != STATE_COLUMN]}


def _cluster_by(clustering: Mapping[str, Any], schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The clustering columns under their current names. The log has their physical names."""
    fields = schema["fields"]
    names = {(field.get("metadata") or {}).get(PHYSICAL_NAME, field["name"]): field["name"] for field in fields}
    try:
        paths = json.loads(clustering["configuration"]).get("clusteringColumns") or ()
        return tuple(".".join([names.get(path[0], path[0]), *path[1:]]) for path in paths)
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise NotImplementedError(f"clustering columns are written in another form ({error})") from error


def _features(protocol: Mapping[str, Any]) -> tuple[str, ...]:
    """The table features in force: the listed ones, or those that an old writer version implies."""
    listed = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
    implied = {name for name, version in _IMPLIED.items() if version <= protocol["minWriterVersion"] < _LISTING_WRITER}
    return tuple(sorted(listed | implied))
