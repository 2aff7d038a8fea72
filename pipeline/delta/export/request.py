"""The request of an export, its plan and its result.

Here belong the values that the verb takes and returns. Making and executing a plan belong to `export`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pyspark.sql.types import StructType

from pipeline.delta.export.manifest import ExportedFile

ExportFormat = Literal["delta", "parquet", "csv", "ndjson"]
FORMATS: tuple[str, ...] = get_args(ExportFormat)
DELTA: ExportFormat = "delta"


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """What to export, where to, and how.

    Args:
        target: the URI of a folder that is empty or does not exist.
        columns: these columns in this order. If empty, all.
        where: a SQL condition over the columns of the table. If None, all rows.
        history: for a copy of the full table as `delta`: whether its earlier versions are copied too.
    """

    target: str
    format: ExportFormat
    columns: tuple[str, ...] = ()
    where: str | None = None
    history: bool = False

    @property
    def is_copy(self) -> bool:
        """Whether the files of the table are copied as they are."""
        return self.format == DELTA and not self.columns and self.where is None


@dataclass(frozen=True, kw_only=True)
class ExportPlan:
    """What an export would do. A dry run returns it, and the export does exactly this.

    `rows_by_folder` are the rows by the folder of their partition; without partition columns there is one folder, with
    an empty name. A folder without rows is left out. `files` and `bytes` are those of the version, or of all that is
    copied with the history; None if only Spark can read the log. `has_leftovers`: there are files of a killed export,
    which are removed.
    """

    dataset: str
    location: str
    version: int
    request: ExportRequest
    columns: tuple[str, ...]
    partition_by: tuple[str, ...]
    rows_by_folder: Mapping[str, int]
    files: int | None
    bytes: int | None
    table_id: str
    entry: str | None
    fingerprint: str
    has_leftovers: bool = False
    schema: StructType = field(compare=False, repr=False)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(self.rows_by_folder.values())

    def document(self) -> dict[str, Any]:
        """The plan in JSON's types."""
        request = self.request
        return {
            "dataset": self.dataset, "location": self.location, "version": self.version, "to": request.target,
            "format": request.format, "history": request.history, "where": request.where,
            "columns": list(self.columns), "partition_by": list(self.partition_by), "rows": self.rows,
            "rows_by_folder": dict(self.rows_by_folder), "source_files": self.files, "source_bytes": self.bytes,
            "fingerprint": self.fingerprint, "removes_leftovers": self.has_leftovers,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """A finished export: the rows that were read back from its files, and the files."""

    plan: ExportPlan
    rows: int
    files: tuple[ExportedFile, ...]

    @property
    def bytes(self) -> int:
        """The size of the files together."""
        return sum(file.size for file in self.files)
