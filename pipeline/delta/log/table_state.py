"""A table as it was observed at one version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import StructType

from pipeline.dataset.schema import schema_fingerprint

# The key of a mapped column's physical name in the metadata of its field (Delta protocol, "Column Mapping").
PHYSICAL_NAME = "delta.columnMapping.physicalName"


@dataclass(frozen=True, kw_only=True)
class TableState:
    """A table as observed at one version. `features` are the protocol's table features.

    `files` and `bytes` are None if they were not requested, since Delta reads its full log for them. `cluster_by` is
    empty if the table is not clustered.
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

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the schema on disk."""
        return schema_fingerprint(self.schema, self.partition_by)

    @property
    def log_partition_by(self) -> tuple[str, ...]:
        """The names under which the log keeps the values of the partition columns."""
        return tuple(physical_name(self.schema, column) for column in self.partition_by)


def physical_name(schema: StructType, column: str) -> str:
    """The name of a top-level column in files and log. If columns are not mapped, the column's own name."""
    metadata = schema[column].metadata or {}
    return str(metadata.get(PHYSICAL_NAME, column))
