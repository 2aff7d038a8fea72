"""What a run tells Dagster of a write, in the values of its metadata.

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

# Dagster's own names for the tag of a data version, and for an object kept beside a definition; neither is public yet.
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

# How much of the identity of a commit stands in a data version.
_TOLD_OF_ENTRY = 12
# What is counted of a commit, and of each partition where a run has several.
_COUNTED = (
    ROWS_WRITTEN, ROWS_UPDATED, ROWS_DELETED, FILES_ADDED, FILES_REMOVED, BYTES_ADDED, ROWS_DROPPED, ROWS_QUARANTINED,
    VIOLATIONS,
)  # fmt: skip
# What a person asks first, in that order; the UI shows metadata in the order in which it was added.
_FOREMOST = (
    ROWS_WRITTEN, PARTITION_ROWS, TABLE_ROWS, ROWS_UPDATED, ROWS_DELETED, ROWS_DROPPED, ROWS_QUARANTINED, VIOLATIONS,
    VERSION, FINGERPRINT, OPERATION, COMMITTED, SKIPPED, VERDICT, TIMESTAMP, WRITE_SECONDS, SAMPLE, SOURCES,
)  # fmt: skip
# Of a value in the table of a sample.
_SAMPLED_CHARACTERS = 40


def declared_dataset(key: AssetKey, metadata: Mapping[str, Any]) -> Dataset | None:
    """The declaration that an asset carries, under the asset's own key, so that a prefix keeps tables apart.

    None for a plain asset.

    Raises:
        DeclarationError: something else is carried in its place.
    """
    if DATASET not in metadata:
        return None
    found = metadata[DATASET]
    found = found.instance if isinstance(found, ObjectMetadataValue) else found
    if not isinstance(found, Dataset):
        problem = f"its asset carries {found!r} as {DATASET!r}; make it with dataset_asset or dataset_metadata"
        raise DeclarationError(dataset=key.to_user_string(), problems=(problem,))
    return at_key(found, key)


def plain_value(value: object) -> object:
    """The value of a metadata entry, which may be wrapped in one of Dagster's types."""
    return value.value if isinstance(value, MetadataValue) else value


def at_key(dataset: Dataset, key: AssetKey) -> Dataset:
    """The declaration under the asset's own key, so that a prefix keeps tables apart."""
    name = "/".join(key.path)
    return dataset if name == dataset.name else replace(dataset, name=name)


def declaration_metadata(dataset: Dataset) -> ObjectMetadataValue:
    """The declaration as a metadata value: the object within the process, its type's name anywhere else."""
    return ObjectMetadataValue(dataset)


def column_schema(dataset: Dataset) -> TableSchema:
    """The declared columns as Dagster shows them."""
    return table_schema(dataset.schema, dataset.partition_by)


def table_schema(schema: StructType, partition_by: tuple[str, ...]) -> TableSchema:
    """Any table's columns as Dagster shows them."""
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
    """The commit of a table that a data version speaks of; `entry` begins its identity, None where that is not told."""

    version: int
    entry: str | None = None

    def is_other_than(self, entry: str) -> bool:
        """Whether the commit of that version in the log, which has this identity, is another one."""
        return self.entry is not None and not entry.startswith(self.entry)


def data_version(table_id: str, version: int, entry: str | None) -> DataVersion:
    """What Dagster compares to know whether a table changed: the table's id, the version of its commit and which it is.

    By id and version alone, a copy of the table that is put back and written to the same version would look unchanged.

    Args:
        entry: the identity of the commit; left out where it is not known, as it was before there was one.
    """
    return DataVersion("/".join([table_id, str(version), *([] if entry is None else [entry[:_TOLD_OF_ENTRY]])]))


def data_version_tag(table_id: str, version: int, entry: str | None) -> dict[str, str]:
    """The data version as Dagster keeps it on an event that no step of its own has made."""
    return {DATA_VERSION_TAG: data_version(table_id, version, entry).value}


def reported_data_version(event: AssetMaterialization | None) -> DataVersion | None:
    """The data version that an event carries; None where it carries none."""
    value = None if event is None or event.tags is None else event.tags.get(DATA_VERSION_TAG)
    return None if value is None else DataVersion(value)


def commit_in(told: DataVersion, table_id: str) -> ReportedCommit | None:
    """The commit of a table that a data version speaks of; None where it speaks of another table."""
    if not told.value.startswith(f"{table_id}/"):
        return None
    number, _, entry = told.value.removeprefix(f"{table_id}/").partition("/")
    return ReportedCommit(int(number), entry or None) if number.isdigit() else None


def changes_metadata(changes: SourceChanges) -> dict[str, Any]:
    """What a consumer has read: the verdict on all sources, and on each with its window and its rows by change type.

    Counts are those of the raw feed; there are none of a full snapshot, whose rows nobody has counted.
    """
    kinds = {source.verdict.kind for source in changes.sources.values()}
    overall = next(kind for kind in (VerdictKind.FULL, VerdictKind.CHANGES, VerdictKind.NOTHING_NEW) if kind in kinds)
    return {VERDICT: overall.value, CHANGES: MetadataValue.json(changes.facts)}


def of_commit(name: str) -> str:
    """The name under which the total of a commit stands in the metadata of one partition: delta/commit_rows_written."""
    return name.replace("delta/", COMMIT_PREFIX, 1)


def with_totals_apart(metadata: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The metadata of a commit with its counts under the names of totals, and those counts under their own names."""
    counts = {name: metadata[name] for name in _COUNTED if name in metadata}
    rest = {name: value for name, value in metadata.items() if name not in counts}
    return rest | {of_commit(name): value for name, value in counts.items()}, counts


def foremost_first(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The same metadata in the order in which a person asks for it; a total of a commit stands where its count does."""
    places = {name: place for place, name in enumerate(_FOREMOST)}
    places |= {of_commit(name): place for name, place in places.items() if name in _COUNTED}
    return dict(sorted(metadata.items(), key=lambda entry: places.get(entry[0], len(places))))


def sample_table(rows: Sequence[Mapping[str, object]]) -> MetadataValue[Any]:
    """Rows as a table in Markdown. Values are shown as code, so that none of them is markup."""
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([_code(row[name]) for name in columns] for row in rows)]
    head, *others = lines
    return MetadataValue.md("\n".join(f"| {' | '.join(line)} |" for line in (list(map(_code, head)), *others)))


def _code(value: object) -> str:
    text = "NULL" if value is None else " ".join(str(value).split())
    cut = text if len(text) <= _SAMPLED_CHARACTERS else f"{text[: _SAMPLED_CHARACTERS - 1]}…"
    return f"`{cut.replace('`', chr(39)).replace('|', chr(92) + '|') or ' '}`"


def write_metadata(dataset: Dataset, result: WriteResult, sources: Mapping[str, int]) -> dict[str, Any]:
    """The metadata of a write; rows, files and bytes are those of its commit."""
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
    return commit | {
        TABLE_NAME: ".".join(dataset.asset_key),
        URI: result.location,
        STORAGE_KIND: "delta",
        COLUMN_SCHEMA: column_schema(dataset),
    }


def _left_out(result: WriteResult) -> dict[str, Any]:
    """The constraints that rows have broken, with counts and examples, and how many rows the write left out.

    Of constraints that were judged and held, nothing is told one by one.
    """
    if not result.violations:
        return {}
    broken = {violation.constraint: asdict(violation) for violation in result.violations if violation.rows}
    apart = result.quarantined
    return (
        ({VIOLATIONS: MetadataValue.json(broken)} if broken else {})
        | {
            ROWS_DROPPED: MetadataValue.int(result.rows_dropped),
            ROWS_QUARANTINED: MetadataValue.int(result.rows_quarantined),
        }
        | ({} if apart is None else {QUARANTINE: apart.dataset, QUARANTINE_VERSION: apart.version})
    )
