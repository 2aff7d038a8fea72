"""The table features of a dataset, and the properties that Delta knows.

Here belong `Features`, the property that enables each feature, and the contradictions in them. What a feature costs a
reader, and how one is enabled in a table, belongs to `pipeline.delta`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from pyspark.sql.types import DataType, StructField, StructType, TimestampNTZType, VariantType

from pipeline.dataset.schema import walk
from pipeline.errors.spelling import did_you_mean

ColumnMapping = Literal["none", "name", "id"]


@dataclass(frozen=True, kw_only=True)
class Features:
    """Which table features a dataset's table has, besides the change feed; None leaves a feature as it is.

    False switches a feature off, and drops it from the protocol if Delta can, so that clients without it can use the
    table again.

    Args:
        row_tracking: an identity and a version for every row. It makes each append slower.
        deletion_vectors: a deleted row is marked, and its file stays. Fewer bytes are written; a merge was not faster.
        in_commit_timestamps: the time of a version is in its commit, and so survives a copy of the folder.
        column_mapping: columns have internal names or numbers, so that they can be renamed and dropped. The folders of
            partitions then have random names.
        type_widening: a column's type may be widened without writing its files again.
        v2_checkpoints: checkpoints with sidecar files.
        cluster_by: the columns by which OPTIMIZE arranges the rows; not together with partition columns.
        generated: columns that are computed from others, as (column, SQL). A frame may leave them out.
        defaults: the value of a column that a frame leaves out, as (column, SQL).
        others: further features, by the protocol's names.
    """

    row_tracking: bool | None = None
    deletion_vectors: bool | None = None
    in_commit_timestamps: bool | None = None
    column_mapping: ColumnMapping | None = None
    type_widening: bool | None = None
    v2_checkpoints: bool | None = None
    cluster_by: tuple[str, ...] | None = None
    generated: tuple[tuple[str, str], ...] = ()
    defaults: tuple[tuple[str, str], ...] = ()
    others: tuple[str, ...] = ()

    @property
    def maps_columns(self) -> bool:
        """Whether column mapping is on, so that a column may have any name."""
        return self.column_mapping in ("name", "id")


@dataclass(frozen=True, kw_only=True)
class Switch:
    """The property that enables a feature, with its values for on and off."""

    feature: str
    property: str
    on: str = "true"
    off: str = "false"


# By the field of `Features`.
SWITCHES: Mapping[str, Switch] = {
    "row_tracking": Switch(feature="rowTracking", property="delta.enableRowTracking"),
    "deletion_vectors": Switch(feature="deletionVectors", property="delta.enableDeletionVectors"),
    "in_commit_timestamps": Switch(feature="inCommitTimestamp", property="delta.enableInCommitTimestamps"),
    "type_widening": Switch(feature="typeWidening", property="delta.enableTypeWidening"),
    "v2_checkpoints": Switch(feature="v2Checkpoint", property="delta.checkpointPolicy", on="v2", off="classic"),
}
MAPPING_MODE = "delta.columnMapping.mode"
SUPPORTED = "delta.feature."
COLUMN_MAPPING = "columnMapping"
DEFAULTS = "allowColumnDefaults"
# The features that Delta 4.4.0 can drop from a protocol (`TableFeature.scala`, `RemovableFeature`).
REMOVABLE = frozenset(
    {
        "checkConstraints", "checkpointProtection", "columnMapping", "deletionVectors", "domainMetadata",
        "inCommitTimestamp", "rowTracking", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck",
    }
)  # fmt: skip
# The features that Delta 4.4.0 writes (`TableFeature.scala`), without previews.
KNOWN_FEATURES = REMOVABLE | {
    "allowColumnDefaults", "appendOnly", "changeDataFeed", "clustering", "generatedColumns", "geospatial",
    "icebergCompatV1", "icebergCompatV2", "icebergCompatV3", "identityColumns", "invariants",
    "materializePartitionColumns", "timestampNtz", "variantShredding", "variantType",
}  # fmt: skip
# The types that a table has only where its protocol names them.
_OF_TYPES: Mapping[type[DataType], str] = {TimestampNTZType: "timestampNtz", VariantType: "variantType"}
# What a feature brings along (`TableFeature.scala`, `requiredFeatures`).
REQUIRED: Mapping[str, tuple[str, ...]] = {"rowTracking": ("domainMetadata",), "clustering": ("domainMetadata",)}
# The properties of Delta 4.4.0 (`DeltaConfig.scala`). Delta refuses others that begin with `delta.`, except `_OPEN`.
KNOWN_PROPERTIES = frozenset(
    f"delta.{name}"
    for name in (
        "appendOnly", "autoOptimize", "autoOptimize.autoCompact", "autoOptimize.optimizeWrite",
        "checkpoint.writeStatsAsJson", "checkpoint.writeStatsAsStruct", "checkpointInterval", "checkpointPolicy",
        "checkpointRetentionDuration", "columnMapping.maxColumnId", "columnMapping.mode",
        "compatibility.symlinkFormatManifest.enabled",
        "dataSkippingNumIndexedCols", "dataSkippingStatsColumns", "dataSkippingStringPrefixLength",
        "deletedFileRetentionDuration", "dropFeatureTruncateHistory.retentionDuration", "enableChangeDataFeed",
        "enableDeletionVectors", "enableExpiredLogCleanup", "enableFullRetentionRollback", "enableIcebergCompatV1",
        "enableIcebergCompatV2", "enableIcebergCompatV3", "enableInCommitTimestamps", "enableRowTracking",
        "enableTypeWidening", "enableVariantShredding", "inCommitTimestampEnablementTimestamp",
        "inCommitTimestampEnablementVersion", "isolationLevel", "logRetentionDuration", "parquet.format.version",
        "randomPrefixLength", "randomizeFilePrefixes", "rowTrackingSuspended", "sampleRetentionDuration",
        "setTransactionRetentionDuration", "universalFormat.enabledFormats",
    )
)  # fmt: skip
_OPEN = (
    "delta.constraints.", "delta.feature.", "delta.universalformat.", "delta.minreaderversion",
    "delta.minwriterversion",
)  # fmt: skip


def feature_properties(features: Features) -> dict[str, str]:
    """The table properties that declare the features."""
    properties = {
        switch.property: switch.on if getattr(features, field) else switch.off
        for field, switch in SWITCHES.items()
        if getattr(features, field) is not None
    }
    if features.column_mapping is not None:
        properties[MAPPING_MODE] = features.column_mapping
    return properties


def wanted_features(features: Features) -> tuple[str, ...]:
    """The features that have no property of their own and are enabled by name."""
    defaults = (DEFAULTS,) if features.defaults else ()
    return (*defaults, *features.others)


def features_of(fields: Iterable[StructField]) -> tuple[str, ...]:
    """The features that columns need for their types, at every depth; Delta gives them to a new table alone."""
    kinds = {type(found.dataType) for _, found in walk(StructType(list(fields)))}
    return tuple(feature for kind, feature in _OF_TYPES.items() if kind in kinds)


def unwanted_features(features: Features) -> tuple[str, ...]:
    """The features that the declaration disables, which Delta can drop from the protocol."""
    off = [switch.feature for field, switch in SWITCHES.items() if getattr(features, field) is False]
    return (*off, *((COLUMN_MAPPING,) if features.column_mapping == "none" else ()))


def brought_by(name: str, value: str) -> tuple[str, ...]:
    """The features that a property enables if it has this value."""
    folded = name.lower()
    if folded == MAPPING_MODE.lower():
        return () if value.lower() == "none" else (COLUMN_MAPPING,)
    if folded.startswith(SUPPORTED):
        return with_required((name[len(SUPPORTED) :],))
    if folded == "delta.enablechangedatafeed" and value.lower() == "true":
        return ("changeDataFeed",)
    if folded == "delta.appendonly" and value.lower() == "true":
        return ("appendOnly",)
    for switch in SWITCHES.values():
        if folded == switch.property.lower() and value.lower() == switch.on:
            return with_required((switch.feature,))
    return ()


def with_required(features: Iterable[str]) -> tuple[str, ...]:
    """The features, and those that they require."""
    return tuple(dict.fromkeys(name for feature in features for name in (feature, *REQUIRED.get(feature, ()))))


def feature_problems(features: Features, schema: StructType, partition_by: tuple[str, ...]) -> Iterator[str]:
    """Messages about contradictions in the features, or between them and the schema."""
    if features.column_mapping is not None and features.column_mapping not in get_args(ColumnMapping):
        yield f"features: column_mapping {features.column_mapping!r} is none of {', '.join(get_args(ColumnMapping))}"
    for name in features.others:
        if name not in KNOWN_FEATURES:
            yield f"features: Delta 4.4.0 has no table feature {name!r}{_meant(name, KNOWN_FEATURES)}"
    if features.cluster_by and partition_by:
        yield "features: cluster_by beside partition_by; a table is clustered or partitioned"
    named = {
        "cluster_by": features.cluster_by or (),
        "generated": [column for column, _ in features.generated],
        "defaults": [column for column, _ in features.defaults],
    }
    for part, columns in named.items():
        yield from (
            f"features: {part} names {c!r}, which is not in the schema" for c in columns if c not in schema.names
        )
        if len(set(columns)) < len(columns):
            yield f"features: {part} names a column twice"
    for column in sorted(set(named["generated"]) & set(named["defaults"])):
        yield f"features: column {column!r} is generated and has a default"


def property_problems(properties: Iterable[tuple[str, str]], said: Mapping[str, str]) -> Iterator[str]:
    """Messages about declared properties that Delta doesn't know, or that another field controls.

    `said` maps such a property to the name of the field.
    """
    properties = list(properties)
    for low, count in Counter(name.lower() for name, _ in properties).items():
        if count > 1:
            same = ", ".join(name for name, _ in properties if name.lower() == low)
            yield f"properties {same} are one property for Delta, which compares names without regard to case"
    field_by_property = {name.lower(): field for name, field in said.items()}
    delta_properties = {name.lower() for name in KNOWN_PROPERTIES}
    for name, _ in properties:
        low = name.lower()
        if low in field_by_property:
            yield f"{name} is what {field_by_property[low]} says; remove it from properties"
        if low.startswith("delta.") and low not in delta_properties and not low.startswith(_OPEN):
            yield f"Delta 4.4.0 has no table property {name}{_meant(name, KNOWN_PROPERTIES)}"


def _meant(name: str, known: Iterable[str]) -> str:
    """A clause that names the near misses; empty where there are none."""
    question = did_you_mean(name, sorted(known), most=2)
    return f"; d{question[1:]}" if question else ""
