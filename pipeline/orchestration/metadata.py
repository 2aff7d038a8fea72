"""The values of the metadata that a run reports to Dagster for a write.

Here belong the values and the data version. The names and their meanings belong to `metadata_keys`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dagster import (
    AssetKey,
    AssetMaterialization,
    DataVersion,
    MetadataValue,
    TableColumn,
    TableColumnConstraints,
    TableSchema,
)

# Dagster's own names for the tag of a data version, and for an object in a definition's metadata; not public yet.
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from dagster._core.definitions.metadata.metadata_value import ObjectMetadataValue
from pyspark.sql.types import StructType

from pipeline.dataset import Dataset
from pipeline.delta import sql
from pipeline.delta.read.changes import SourceChanges
from pipeline.delta.read.verdict import VerdictKind
from pipeline.delta.write.result import WriteResult
from pipeline.errors import DeclarationError
from pipeline.orchestration.metadata_keys import (
    ATTEMPTS,
    AUDIT,
    BYTES_ADDED,
    CHANGES,
    COLUMN_SCHEMA,
    COMMIT_PREFIX,
    COMMITTED,
    DATASET,
    FEATURES,
    FILES_ADDED,
    FILES_REMOVED,
    FINGERPRINT,
    FINGERPRINT_BEFORE,
    OPERATION,
    PARTITION_ROWS,
    QUARANTINE,
    QUARANTINE_VERSION,
    ROWS_DELETED,
    ROWS_DROPPED,
    ROWS_QUARANTINED,
    ROWS_UPDATED,
    ROWS_WRITTEN,
    SAMPLE,
    SCHEMA_CHANGES,
    SKIPPED,
    SOURCES,
    STORAGE_KIND,
    TABLE_ID,
    TABLE_NAME,
    TABLE_ROWS,
    TIMESTAMP,
    URI,
    VERDICT,
    VERSION,
    VIOLATIONS,
    WRITE_SECONDS,
)

# How many characters of a commit's identity are part of a data version.
_IDENTITY_CHARACTERS = 12
# The counts of a commit, and of each partition if a run has several.
_COUNTED = (
    ROWS_WRITTEN, ROWS_UPDATED, ROWS_DELETED, FILES_ADDED, FILES_REMOVED, BYTES_ADDED, ROWS_DROPPED, ROWS_QUARANTINED,
    VIOLATIONS,
)  # fmt: skip
# The most important entries, in that order. The UI shows metadata in the order in which it was added.
_FOREMOST = (
    ROWS_WRITTEN, PARTITION_ROWS, TABLE_ROWS, ROWS_UPDATED, ROWS_DELETED, ROWS_DROPPED, ROWS_QUARANTINED, VIOLATIONS,
    VERSION, FINGERPRINT, OPERATION, COMMITTED, SKIPPED, VERDICT, TIMESTAMP, WRITE_SECONDS, SAMPLE, SOURCES,
)  # fmt: skip
# The most characters of a value in the table of a sample.
_SAMPLED_CHARACTERS = 40


def declared_dataset(key: AssetKey, metadata: Mapping[str, Any]) -> Dataset | None:
    """The declaration in an asset's metadata, under the asset's own key, so that a prefix keeps tables apart.

    For a plain asset, None.

    Raises:
        DeclarationError: the metadata has another value in its place.
    """
    if DATASET not in metadata:
        return None
    value = metadata[DATASET]
    value = value.instance if isinstance(value, ObjectMetadataValue) else value
    if not isinstance(value, Dataset):
        problem = f"its asset has {value!r} as {DATASET!r}; make it with dataset_asset or dataset_metadata"
        raise DeclarationError(dataset=key.to_user_string(), problems=(problem,))
    return at_key(value, key)


def plain_value(value: object) -> object:
    """The value of a metadata entry, which may be wrapped in one of Dagster's types."""
    return value.value if isinstance(value, MetadataValue) else value


def at_key(dataset: Dataset, key: AssetKey) -> Dataset:
    """The declaration under the asset's own key, so that a prefix keeps tables apart."""
    name = "/".join(key.path)
    return dataset if name == dataset.name else replace(dataset, name=name)


def declaration_metadata(dataset: Dataset) -> ObjectMetadataValue:
    """The declaration as a metadata value: the object in this process, its type's name in any other."""
    return ObjectMetadataValue(dataset)


def table_name(dataset: Dataset) -> str:
    """The name in the catalog, without backquotes. Without a name, the parts of the asset key, joined by dots."""
    return ".".join(dataset.table_name_parts or dataset.asset_key)


def column_schema(dataset: Dataset) -> TableSchema:
    """The declared columns in Dagster's form."""
    return table_schema(dataset.schema, dataset.partition_by)


def table_schema(schema: StructType, partition_by: tuple[str, ...]) -> TableSchema:
    """A table's columns in Dagster's form."""
    return TableSchema(
        columns=[
            TableColumn(
                name=field.name,
                type=sql.type_name(field.dataType),
                description=(field.metadata or {}).get("comment"),
                constraints=TableColumnConstraints(nullable=field.nullable),
                tags={"partition_column": ""} if field.name in partition_by else {},
            )
            for field in schema.fields
        ]
    )


@dataclass(frozen=True)
class ReportedCommit:
    """The commit that a data version names. `entry` is the beginning of its identity, or None if it is not included."""

    version: int
    entry: str | None = None

    def is_other_than(self, entry: str) -> bool:
        """Whether the commit at that version in the log, which has the identity `entry`, is another one."""
        return self.entry is not None and not entry.startswith(self.entry)


def data_version(table_id: str, version: int, entry: str | None) -> DataVersion:
    """The value by which Dagster detects a changed table: the table's id, the commit's version and its identity.

    With id and version alone, a table that was overwritten by a copy and written to the same version would look
    unchanged.

    Args:
        entry: the identity of the commit. If it is not known, as in older data versions, it is left out.
    """
    return DataVersion("/".join([table_id, str(version), *([] if entry is None else [entry[:_IDENTITY_CHARACTERS]])]))


def data_version_tag(table_id: str, version: int, entry: str | None) -> dict[str, str]:
    """The data version as a tag, for an event that no step of Dagster has made."""
    return {DATA_VERSION_TAG: data_version(table_id, version, entry).value}


def reported_data_version(event: AssetMaterialization | None) -> DataVersion | None:
    """The data version of an event. If it has none, None."""
    value = None if event is None or event.tags is None else event.tags.get(DATA_VERSION_TAG)
    return None if value is None else DataVersion(value)


def commit_in(version: DataVersion, table_id: str) -> ReportedCommit | None:
    """The commit of a table that a data version names. If it names another table's commit, None."""
    if not version.value.startswith(f"{table_id}/"):
        return None
    number, _, entry = version.value.removeprefix(f"{table_id}/").partition("/")
    return ReportedCommit(int(number), entry or None) if number.isdigit() else None


def changes_metadata(changes: SourceChanges) -> dict[str, Any]:
    """A consumer's reads: the verdict on all sources, and for each source its verdict, window and rows by change type.

    Counts are those of the raw feed. A full snapshot has none, because its rows are not counted.
    """
    kinds = {source.verdict.kind for source in changes.sources.values()}
    overall = next(kind for kind in (VerdictKind.FULL, VerdictKind.CHANGES, VerdictKind.NOTHING_NEW) if kind in kinds)
    return {VERDICT: overall.value, CHANGES: MetadataValue.json(changes.facts)}


def of_commit(name: str) -> str:
    """The name of a commit's total in the metadata of one partition, as delta/commit_rows_written."""
    return name.replace("delta/", COMMIT_PREFIX, 1)


def with_totals_apart(metadata: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The metadata of a commit with its counts under the names of totals, and those counts under their own names."""
    counts = {name: metadata[name] for name in _COUNTED if name in metadata}
    rest = {name: value for name, value in metadata.items() if name not in counts}
    return rest | {of_commit(name): value for name, value in counts.items()}, counts


def without_counts(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a commit, in which 0 rows, files and bytes were written. What was found in the rows stays."""
    written = {name for name in _COUNTED if name not in (ROWS_DROPPED, ROWS_QUARANTINED, VIOLATIONS)}
    counts = written | {of_commit(name) for name in written}
    return {name: MetadataValue.int(0) if name in counts else value for name, value in metadata.items()}


def foremost_first(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The same metadata with the most important entries first. A commit's total has the position of its count."""
    positions = {name: position for position, name in enumerate(_FOREMOST)}
    positions |= {of_commit(name): position for name, position in positions.items() if name in _COUNTED}
    return dict(sorted(metadata.items(), key=lambda entry: positions.get(entry[0], len(positions))))


def sample_table(rows: Sequence[Mapping[str, object]]) -> MetadataValue[Any]:
    """Rows as a table in Markdown. Values are shown as code, so that no value is interpreted as markup."""
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([_code(row[name]) for name in columns] for row in rows)]
    head, *others = lines
    return MetadataValue.md("\n".join(f"| {' | '.join(line)} |" for line in (list(map(_code, head)), *others)))


def _code(value: object) -> str:
    text = "NULL" if value is None else " ".join(str(value).split())
    cut = text if len(text) <= _SAMPLED_CHARACTERS else f"{text[: _SAMPLED_CHARACTERS - 1]}…"
    return f"`{cut.replace('`', chr(39)).replace('|', chr(92) + '|') or ' '}`"


def write_metadata(dataset: Dataset, result: WriteResult, sources: Mapping[str, int]) -> dict[str, Any]:
    """The metadata of a write. Rows, files and bytes are those of its commit."""
    commit: dict[str, Any] = {
        VERSION: MetadataValue.int(result.version),
        TABLE_ID: result.table_id,
        FINGERPRINT: result.schema_fingerprint,
        OPERATION: result.operation,
        COMMITTED: MetadataValue.bool(result.committed),
        SKIPPED: MetadataValue.bool(result.skipped),
        ROWS_WRITTEN: MetadataValue.int(result.rows_written),
        FILES_ADDED: MetadataValue.int(result.files_added),
        FILES_REMOVED: MetadataValue.int(result.files_removed),
        BYTES_ADDED: MetadataValue.int(result.bytes_added),
        ATTEMPTS: MetadataValue.int(result.mark.attempt),
        FEATURES: MetadataValue.json(list(result.features)),
        SOURCES: MetadataValue.json(dict(sources)),
    }
    if result.rows_updated is not None:
        commit[ROWS_UPDATED] = MetadataValue.int(result.rows_updated)
    if result.rows_deleted is not None:
        commit[ROWS_DELETED] = MetadataValue.int(result.rows_deleted)
    if result.fingerprint_before is not None:
        commit[FINGERPRINT_BEFORE] = result.fingerprint_before
        commit[SCHEMA_CHANGES] = MetadataValue.json(list(result.schema_changes))
    if result.timestamp is not None:
        commit[TIMESTAMP] = MetadataValue.timestamp(result.timestamp)
    commit |= _left_out(result)
    if result.judged:
        commit[AUDIT] = MetadataValue.json(
            {one.name: asdict(one.finding) | {"blocking": one.blocking} for one in result.judged}
        )
    return commit | {
        TABLE_NAME: table_name(dataset),
        URI: result.location,
        STORAGE_KIND: "delta",
        COLUMN_SCHEMA: column_schema(dataset),
    }


def _left_out(result: WriteResult) -> dict[str, Any]:
    """The constraints that rows have broken, with counts and examples, and how many rows the write left out.

    Constraints that no row has broken are not listed.
    """
    if not result.violations:
        return {}
    broken = {violation.constraint: asdict(violation) for violation in result.violations if violation.rows}
    quarantined = result.quarantined
    return (
        ({VIOLATIONS: MetadataValue.json(broken)} if broken else {})
        | {
            ROWS_DROPPED: MetadataValue.int(result.rows_dropped),
            ROWS_QUARANTINED: MetadataValue.int(result.rows_quarantined),
        }
        | ({} if quarantined is None else {QUARANTINE: quarantined.dataset, QUARANTINE_VERSION: quarantined.version})
    )
