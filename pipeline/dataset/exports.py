"""The exports of a dataset: folders of plain files that follow its table.

Here belongs the declaration and what contradicts it. The files are written by `pipeline.delta`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pyspark.sql.types import ArrayType, MapType, StringType, StructType, VariantType

from pipeline.dataset.schema import walk
from pipeline.dataset.side_tables import QUARANTINE_SUFFIX, REJECTED_SUFFIX

FileFormat = Literal["parquet", "csv", "ndjson"]
SEPARATOR = "__"
_NESTED = (ArrayType, MapType, StructType, VariantType)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Export:
    """A folder of plain files that is kept up to date with the table, by an asset downstream of the dataset.

    After each commit the partitions that changed are written again, and a partition that became empty is dropped. The
    folder belongs to the export alone.

    Args:
        uri: the folder. A relative path is below the folder of the project.
        format: the format of the files.
        columns: these columns in this order. If empty, all.
        where: a SQL condition over the columns of the table. If None, all rows.
        name: the asset is named like the dataset, with two underscores and this name at the end.
    """

    uri: str
    format: FileFormat = "parquet"
    columns: tuple[str, ...] = ()
    where: str | None = None
    name: str = "export"


def export_asset_name(dataset: str, export: Export) -> str:
    """The name of the asset of an export."""
    return f"{dataset}{SEPARATOR}{export.name}"


def export_problems(
    exports: Sequence[Export], schema: StructType, partition_by: tuple[str, ...]
) -> Iterator[str]:  # fmt: skip
    """Messages about contradictions between the exports, or between one and the schema."""
    for export in exports:
        for problem in _problems(export, schema, partition_by):
            yield f"export {export.name!r}: {problem}"
    for what in ("name", "uri"):
        values = Counter(str(getattr(export, what)).rstrip("/") for export in exports)
        yield from (f"two exports have the {what} {value!r}" for value, count in values.items() if count > 1)


def _problems(export: Export, schema: StructType, partition_by: tuple[str, ...]) -> Iterator[str]:
    if not _NAME.fullmatch(export.name) or f"{SEPARATOR}{export.name}" in (QUARANTINE_SUFFIX, REJECTED_SUFFIX):
        yield "a name has letters, digits and '_' only, and is not that of the quarantine or of rejected writes"
    if export.format not in get_args(FileFormat):
        yield f"format {export.format!r} is none of {', '.join(get_args(FileFormat))}"
    if not export.uri.strip():
        yield "uri is empty"
    for column, count in Counter(export.columns).items():
        if column not in schema.names:
            yield f"column {column!r} is not in the schema"
        elif count > 1:
            yield f"column {column!r} is named {count} times"
    if export.where is not None and not export.where.strip():
        yield "where is empty; leave it out"
    fields = [field for field in schema.fields if not export.columns or field.name in export.columns]
    yield from format_problems(export.format, StructType(fields), partition_by)


def format_problems(format: str, schema: StructType, partition_by: Sequence[str]) -> Iterator[str]:  # noqa: A002
    """The columns of a schema that a format can't hold. Partition columns are in the names of folders."""
    fields = [field for field in schema.fields if field.name not in partition_by]
    if format == "csv":
        for field in fields:
            if isinstance(field.dataType, _NESTED):
                yield f"column {field.name!r} has type {field.dataType.simpleString()}, which CSV can't hold"
        if len(fields) == 1 and fields[0].nullable:
            yield f"column {fields[0].name!r} is alone in a line: its NULL would be an empty line, which readers skip"
    if format == "ndjson":
        for path, field in walk(schema):
            if isinstance(field.dataType, MapType) and not isinstance(field.dataType.keyType, StringType):
                keys = field.dataType.keyType.simpleString()
                yield f"{path!r} is a map with keys of type {keys}; the keys in JSON are texts"
