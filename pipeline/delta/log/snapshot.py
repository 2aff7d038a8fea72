"""The protocol and metadata of a table at any version, from the log's files on this machine. No Spark.

Here belong the protocol and the metadata in force at a version (Delta protocol, "Action Reconciliation") and the list
of checkpoints. `commits` reads single commits; `open_table` reads the newest state of a table on any storage.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.delta.log.commits import complete_checkpoints, list_files, read_entry
from pipeline.delta.log.entry import Action, damaged_file
from pipeline.delta.log.table_state import PHYSICAL_NAME

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


@dataclass(frozen=True, kw_only=True)
class TableFacts:
    """A table's protocol and metadata at one version. `schema` is the JSON of a struct type."""

    table_id: str
    reader_version: int
    writer_version: int
    properties: Mapping[str, str]
    schema: Mapping[str, Any]
    partition_by: tuple[str, ...]
    features: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()


def local_folder(uri: str) -> Path | None:
    """The folder that a plain path or a `file:` URI names. For any other storage, None."""
    if uri.startswith("file:"):
        return Path("/" + uri.removeprefix("file:").lstrip("/"))
    return None if "://" in uri else Path(uri)


def checkpoints(table: Path) -> dict[int, list[Path]]:
    """The files of every complete checkpoint, by its version. A checkpoint may have several parts.

    A checkpoint with an empty file does not count: Delta skips it too.
    """
    folder = table / "_delta_log"
    complete = complete_checkpoints(file.name for file in list_files(str(folder)) if file.size)
    return {version: [folder / name for name in names] for version, names in complete.items()}


def table_facts(table: Path, version: int) -> TableFacts | None:
    """The protocol and metadata at a version, read from that commit backwards, at most to the checkpoint before it.

    If the files with them are gone, or in a form that this does not read, None.

    Raises:
        DamagedTableError: an entry on the way is damaged; or a checkpoint is, and the entries below it are gone.
    """
    protocol = metadata = clustering = None
    for number, is_checkpoint, actions in _backwards(table, version):
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


def transaction_version(table: Path, version: int, app_id: str) -> int | None:
    """The newest transaction version that an application has recorded, up to a version of the table. If none, None.

    It is read from that commit backwards, at most to the checkpoint before it (Delta protocol, "Transaction
    Identifiers").

    Raises:
        DamagedTableError: as `table_facts` does.
    """
    for _, _, actions in _backwards(table, version):
        recorded = [a["txn"]["version"] for a in actions if a.get("txn") and a["txn"]["appId"] == app_id]
        if recorded:
            return int(max(recorded))
    return None


def _backwards(table: Path, version: int) -> Iterator[tuple[int, bool, list[Action]]]:
    """The entries from a version backwards to a checkpoint: version, whether it is a checkpoint, and actions.

    A checkpoint that can't be read is skipped as long as the entries below it exist.
    """
    complete, damaged = checkpoints(table), None
    for number in range(version, -1, -1):
        if number in complete:
            try:
                actions = list(_checkpoint_actions(complete[number]))
            except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
                damaged = damaged or damaged_file(str(complete[number][0]), f"it can't be read ({first_line(error)})")
            else:
                yield number, True, actions
                return
        try:
            yield number, False, read_entry(str(table), number, few=True)
        except FileNotFoundError:
            if damaged is not None:
                raise damaged from None
            return


def first_line(error: Exception) -> str:
    """The first line of an error's message. If it has none, the name of its type."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _facts(
    protocol: Mapping[str, Any], metadata: Mapping[str, Any], clustering: Mapping[str, Any] | None
) -> TableFacts:
    schema = json.loads(metadata["schemaString"])
    return TableFacts(
        table_id=metadata["id"],
        reader_version=protocol["minReaderVersion"],
        writer_version=protocol["minWriterVersion"],
        # A map is a list of pairs in Parquet, and an object in JSON.
        properties=dict(metadata.get("configuration") or {}),
        schema=schema,
        partition_by=tuple(metadata.get("partitionColumns") or ()),
        features=_features(protocol),
        cluster_by=() if clustering is None or clustering.get("removed") else _cluster_by(clustering, schema),
    )


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


def _checkpoint_actions(parts: list[Path]) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet

    for part in parts:
        if part.suffix == ".json":  # Delta protocol, "V2 Spec"
            lines = part.read_text(encoding="utf-8").split("\n")
            yield from (json.loads(line) for line in lines if line.strip())
            continue
        file = pyarrow.parquet.ParquetFile(part)
        columns = [n for n in ("protocol", "metaData", "txn", "domainMetadata") if n in file.schema_arrow.names]
        yield from (row for row in file.read(columns=columns).to_pylist() if any(row.values()))
