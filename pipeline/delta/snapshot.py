"""What a table is besides its rows, at any version, from the log's files on this machine; no Spark.

Here belong the protocol and the metadata in force at a version (Delta protocol, "Action Reconciliation") and the list
of checkpoints. Single commits are `log`'s; the newest state of a table anywhere is `table`'s.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.delta.log import commit_file
from pipeline.delta.state import PHYSICAL_NAME

# Actions that can be many in one commit and say nothing about the table; their lines are passed over unparsed.
_MANY = ('"add"', '"remove"', '"cdc"')
_KIND_LENGTH = 16
# The domain in which the log keeps the clustering columns (Delta protocol, "Clustered Table").
_CLUSTERING = "delta.clustering"
# Since which writer version a feature is part of the protocol (Delta protocol, "Valid Feature Names"); from the last
# version on, features are listed by name.
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
    """A table at one version; `schema` is the JSON of a struct type."""

    table_id: str
    reader_version: int
    writer_version: int
    properties: Mapping[str, str]
    schema: Mapping[str, Any]
    partition_by: tuple[str, ...]
    features: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()


def local_folder(uri: str) -> Path | None:
    """The folder that a plain path or a `file:` URI names; None for any other storage."""
    if uri.startswith("file:"):
        return Path("/" + uri.removeprefix("file:").lstrip("/"))
    return None if "://" in uri else Path(uri)


def checkpoints(table: Path) -> dict[int, list[Path]]:
    """The files of every checkpoint by its version; a checkpoint may have parts."""
    found: dict[int, list[Path]] = {}
    for path in sorted((table / "_delta_log").glob("*.checkpoint*")):
        number = path.name.partition(".")[0]
        if number.isdigit() and path.suffix in (".parquet", ".json"):
            found.setdefault(int(number), []).append(path)
    return found


def table_facts(table: Path, version: int) -> TableFacts | None:
    """What the table was at a version: from that commit backwards, at most to the checkpoint before it.

    None where the files that say it are gone, or are of a kind that this does not read.
    """
    complete = checkpoints(table)
    protocol = metadata = clustering = None
    for number in range(version, -1, -1):
        parts = complete.get(number)
        actions = _commit_actions(table, number) if parts is None else list(_checkpoint_actions(parts))
        if actions is None:
            return None
        protocol = protocol or next((a["protocol"] for a in actions if a.get("protocol")), None)
        metadata = metadata or next((a["metaData"] for a in actions if a.get("metaData")), None)
        domains = [a["domainMetadata"] for a in actions if a.get("domainMetadata")]
        clustering = clustering or next((d for d in domains if d["domain"] == _CLUSTERING), None)
        if protocol and metadata:
            facts = _facts(protocol, metadata, clustering)
            # A table that is clustered says by what, in a commit of its own since.
            if clustering or "clustering" not in facts.features or number == 0 or parts is not None:
                return facts
        if parts is not None:
            return None
    return None


def transaction_version(table: Path, version: int, app_id: str) -> int | None:
    """What an application has recorded as its newest transaction, up to a version of the table; None for nothing.

    From that commit backwards, at most to the checkpoint before it (Delta protocol, "Transaction Identifiers").
    """
    complete = checkpoints(table)
    for number in range(version, -1, -1):
        parts = complete.get(number)
        actions = _commit_actions(table, number) if parts is None else list(_checkpoint_actions(parts))
        recorded = [a["txn"]["version"] for a in actions or () if a.get("txn") and a["txn"]["appId"] == app_id]
        if recorded:
            return int(max(recorded))
        if parts is not None or actions is None:
            return None
    return None


def _facts(
    protocol: Mapping[str, Any], metadata: Mapping[str, Any], clustering: Mapping[str, Any] | None
) -> TableFacts:
    schema = json.loads(metadata["schemaString"])
    return TableFacts(
        table_id=metadata["id"],
        reader_version=protocol["minReaderVersion"],
        writer_version=protocol["minWriterVersion"],
        # A map in Parquet comes as a list of pairs, in JSON as an object.
        properties=dict(metadata.get("configuration") or {}),
        schema=schema,
        partition_by=tuple(metadata.get("partitionColumns") or ()),
        features=_features(protocol),
        cluster_by=() if clustering is None or clustering.get("removed") else _cluster_by(clustering, schema),
    )


def _cluster_by(clustering: Mapping[str, Any], schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns under their present names; the log has them under those of the files."""
    present = {field["metadata"].get(PHYSICAL_NAME, field["name"]): field["name"] for field in schema["fields"]}
    paths = json.loads(clustering["configuration"]).get("clusteringColumns") or ()
    return tuple(".".join([present.get(path[0], path[0]), *path[1:]]) for path in paths)


def _features(protocol: Mapping[str, Any]) -> tuple[str, ...]:
    """The table features in force: those that are listed, or those that an old writer version implies."""
    listed = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
    implied = {name for name, version in _IMPLIED.items() if version <= protocol["minWriterVersion"] < _LISTING_WRITER}
    return tuple(sorted(listed | implied))


def _commit_actions(table: Path, number: int) -> list[dict[str, Any]] | None:
    """The actions of a commit but those of `_MANY`; None where its file is gone."""
    try:
        with Path(commit_file(str(table), number)).open(encoding="utf-8") as file:
            few = [line for line in file if not any(kind in line[:_KIND_LENGTH] for kind in _MANY)]
    except FileNotFoundError:
        return None
    return [json.loads(line) for line in few if line.strip()]


def _checkpoint_actions(parts: list[Path]) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet

    for part in parts:
        if part.suffix == ".json":  # Delta protocol, "V2 Spec"
            lines = part.read_text(encoding="utf-8").split("\n")
            yield from (json.loads(line) for line in lines if line.strip())
            continue
        file = pyarrow.parquet.ParquetFile(part)
        wanted = [name for name in ("protocol", "metaData", "txn", "domainMetadata") if name in file.schema_arrow.names]
        yield from (row for row in file.read(columns=wanted).to_pylist() if any(row.values()))
