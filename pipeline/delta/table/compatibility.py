"""Which programs can read and write tables with which features.

Here belong the known clients, each at the version that was examined and with the source of its features. A client can
read a table if it knows all of the table's reader features, and can write to it if it knows all of the table's
features (Delta protocol, "Table Features").
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

# Features that a reader must know as well; all others concern writers only (Delta protocol, "Valid Feature Names").
READER_FEATURES = frozenset(
    {
        "columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck",
        "variantShredding", "variantType", "catalogManaged", "geospatial",
    }
)  # fmt: skip

_LEGACY = frozenset({"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"})


@dataclass(frozen=True, kw_only=True)
class Client:
    """A program at one version, with the features that it can read and write; `writes` is None if it never writes."""

    name: str
    reads: frozenset[str]
    writes: frozenset[str] | None

    def can_read(self, features: Collection[str]) -> bool:
        """Whether the client can read a table with these features."""
        return READER_FEATURES & set(features) <= self.reads

    def can_write(self, features: Collection[str]) -> bool:
        """Whether the client can write to a table with these features."""
        return self.writes is not None and set(features) <= self.writes and self.can_read(features)


def _delta(version: str, reads: Iterable[str], writes: Iterable[str]) -> Client:
    return Client(name=f"Delta {version} on Spark", reads=frozenset(reads), writes=_LEGACY | {*reads, *writes})


# Source: Delta's documentation, "How does Delta Lake manage feature compatibility?" (versioning.mdx).
_IN_2_4 = ("columnMapping", "deletionVectors", "timestampNtz")
_IN_3_2 = (*_IN_2_4, "v2Checkpoint", "vacuumProtocolCheck")
_WRITES_3_2 = (
    "domainMetadata",
    "clustering",
    "rowTracking",
    "allowColumnDefaults",
    "icebergCompatV1",
    "icebergCompatV2",
)
_IN_4_0 = (*_IN_3_2, "typeWidening", "variantType")
_WRITES_4_0 = (*_WRITES_3_2, "identityColumns", "inCommitTimestamp", "checkpointProtection")

_WRITES_4_4 = (*_WRITES_4_0, "icebergCompatV3", "materializePartitionColumns")

CLIENTS = (
    _delta("2.4", _IN_2_4, ()),
    _delta("3.2", _IN_3_2, _WRITES_3_2),
    # inCommitTimestamp and identityColumns: release notes of 3.3.0.
    _delta("3.3", _IN_3_2, (*_WRITES_3_2, "identityColumns", "inCommitTimestamp")),
    _delta("4.0", _IN_4_0, _WRITES_4_0),
    # TableFeature.scala of v4.4.0.
    _delta("4.4", (*_IN_4_0, "variantShredding", "geospatial"), _WRITES_4_4),
    # delta-rs, crates/core/src/kernel/transaction/protocol.rs, INSTANCE, built with datafusion as the wheel is.
    Client(
        name="deltalake 1.6",
        reads=frozenset({"timestampNtz", "deletionVectors", "variantType", "v2Checkpoint", "columnMapping"}),
        writes=_LEGACY | {"timestampNtz", "variantType", "v2Checkpoint", "columnMapping", "deletionVectors"},
    ),
    # deltalake/table.py, SUPPORTED_READER_FEATURES: to_pyarrow_dataset and to_pandas have readers of their own.
    Client(name="deltalake 1.6 as pyarrow or pandas", reads=frozenset({"timestampNtz", "variantType"}), writes=None),
    # polars/io/delta/_dataset.py, _SUPPORTED_FEATURES; it writes through deltalake.
    Client(
        name="polars 2.1",
        reads=frozenset({"deletionVectors", "timestampNtz", "variantType"}),
        writes=_LEGACY | {"timestampNtz", "variantType", "deletionVectors"},
    ),
    # delta-kernel-rs, kernel/src/table_features/mod.rs, kernel_support of August 2026.
    Client(
        name="Delta kernel (Rust)",
        reads=READER_FEATURES,
        writes=frozenset(
            {
                "appendOnly",
                "invariants",
                "changeDataFeed",
                "inCommitTimestamp",
                "rowTracking",
                "domainMetadata",
                "icebergCompatV3",
                "clustering",
                "materializePartitionColumns",
                "allowColumnDefaults",
                "columnMapping",
                "deletionVectors",
                "timestampNtz",
                "v2Checkpoint",
                "vacuumProtocolCheck",
                "variantType",
                "variantShredding",
            }
        ),
    ),
    # duckdb-delta, README: built on that kernel; reads deletion vectors, appends only.
    Client(
        name="DuckDB's delta extension",
        reads=READER_FEATURES - {"geospatial"},
        writes=frozenset({"appendOnly", "invariants", "columnMapping", "deletionVectors", "timestampNtz"}),
    ),
    # trino, plugin/trino-delta-lake, DeltaLakeTableFeatures.java.
    Client(
        name="Trino",
        reads=frozenset(
            {
                "columnMapping",
                "timestampNtz",
                "typeWidening",
                "deletionVectors",
                "vacuumProtocolCheck",
                "variantType",
                "v2Checkpoint",
            }
        ),
        writes=frozenset(
            {
                "appendOnly",
                "deletionVectors",
                "invariants",
                "checkConstraints",
                "changeDataFeed",
                "columnMapping",
                "timestampNtz",
                "vacuumProtocolCheck",
            }
        ),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The names of the known clients that a change of the protocol excludes."""

    readers: tuple[str, ...] = ()
    writers: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.readers or self.writers)

    def __str__(self) -> str:
        """The loss in one line; empty if there is none."""
        parts = [("no longer read by", self.readers), ("no longer written by", self.writers)]
        return "; ".join(f"{label} {', '.join(names)}" for label, names in parts if names)


def clients_lost(before: Collection[str], after: Collection[str]) -> Loss:
    """The clients that can use a table with the features `before` and can't use it with the features `after`."""
    return Loss(
        readers=tuple(c.name for c in CLIENTS if c.can_read(before) and not c.can_read(after)),
        writers=tuple(c.name for c in CLIENTS if c.can_write(before) and not c.can_write(after)),
    )
