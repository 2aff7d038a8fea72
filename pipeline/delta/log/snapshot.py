"""What a table is besides its rows, at any version, from the log's files on this machine; no Spark.

Here belong the protocol and the metadata in force at a version (Delta protocol, "Action Reconciliation") and the list
of checkpoints. Single commits are `commits`'s; the newest state of a table anywhere is `open_table`'s.
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
    """The files of every complete checkpoint by its version; a checkpoint may have parts.

    One with an empty file is none: Delta passes it over as well.
    """
    folder = table / "_delta_log"
    complete = complete_checkpoints(file.name for file in list_files(str(folder)) if file.size)
    return {version: [folder / name for name in names] for version, names in complete.items()}


def table_facts(table: Path, version: int) -> TableFacts | None:
    """What the table was at a version: from that commit backwards, at most to the checkpoint before it.

    None where the files that say it are gone, or are of a kind that this does not read.

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
            # A table that is clustered says by what, in a commit of its own since.
            if clustering or "clustering" not in facts.features or number == 0 or is_checkpoint:
                return facts
    return None


def transaction_version(table: Path, version: int, app_id: str) -> int | None:
    """What an application has recorded as its newest transaction, up to a version of the table; None for nothing.

    From that commit backwards, at most to the checkpoint before it (Delta protocol, "Transaction Identifiers").

    Raises:
        DamagedTableError: as `table_facts` does.
    """
    for _, _, actions in _backwards(table, version):
        recorded = [a["txn"]["version"] for a in actions if a.get("txn") and a["txn"]["appId"] == app_id]
        if recorded:
            return int(max(recorded))
    return None


def _backwards(table: Path, version: int) -> Iterator[tuple[int, bool, list[Action]]]:
    """Entries from a version backwards, the last of them a checkpoint: version, whether it is one, and actions.

    A checkpoint that can't be read is passed over as long as the entries below it are there.
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
    """What an error says, in one line."""
    return next(iter(str(error).splitlines()), type(error).__name__)


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
    fields = schema["fields"]
    present = {(field.get("metadata") or {}).get(PHYSICAL_NAME, field["name"]): field["name"] for field in fields}
    try:
        paths = json.loads(clustering["configuration"]).get("clusteringColumns") or ()
        return tuple(".".join([present.get(path[0], path[0]), *path[1:]]) for path in paths)
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise NotImplementedError(f"clustering columns are written in another form ({error})") from error


def _features(protocol: Mapping[str, Any]) -> tuple[str, ...]:
    """The table features in force: those that are listed, or those that an old writer version implies."""
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
        wanted = [name for name in ("protocol", "metaData", "txn", "domainMetadata") if name in file.schema_arrow.names]
        yield from (row for row in file.read(columns=wanted).to_pylist() if any(row.values()))
