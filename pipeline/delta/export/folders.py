"""The folders of an export's partitions, from partition values as the log writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructField, StructType

from pipeline.delta.log.commits import PartitionValues
from pipeline.delta.log.counts import TableFiles
from pipeline.delta.sql.exact import folder
from pipeline.delta.sql.slices import partition_value


@dataclass(frozen=True)
class Folders:
    """The columns that name folders, and their positions among the table's partition columns."""

    fields: tuple[StructField, ...]
    positions: tuple[int, ...]

    @classmethod
    def of(cls, by: Sequence[str], schema: StructType, files: TableFiles) -> Folders:
        """The folders by these columns of a schema."""
        return cls(tuple(schema[name] for name in by), tuple(map(files.partition_columns.index, by)))

    def values(self, texts: PartitionValues) -> tuple[Any, ...]:
        """The typed values of the columns.

        Raises:
            ValueError: Python can't hold a value.
        """
        fields = zip(self.positions, self.fields, strict=True)
        return tuple(partition_value(texts[position], field.dataType) for position, field in fields)

    def name(self, texts: PartitionValues) -> str:
        """The path of the folder; raises as `values` does."""
        return folder(self.fields, self.values(texts))
