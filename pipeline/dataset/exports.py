"""The exports of a dataset: folders of plain files that follow its table.

Here belongs the declaration and what contradicts it. The files are written by `pipeline.delta`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pyspark.sql.types import StructType

from pipeline.dataset.expectations import QUARANTINE_SUFFIX

FileFormat = Literal["parquet", "csv", "ndjson"]
SEPARATOR = "__"
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


def export_problems(exports: Sequence[Export], schema: StructType) -> Iterator[str]:
    """Messages about contradictions between the exports, or between one and the schema."""
    for export in exports:
        label = f"export {export.name!r}"
        if not _NAME.fullmatch(export.name) or f"{SEPARATOR}{export.name}" == QUARANTINE_SUFFIX:
            yield f"{label}: a name has letters, digits and '_' only, and is not that of the quarantine"
        if export.format not in get_args(FileFormat):
            yield f"{label}: format {export.format!r} is none of {', '.join(get_args(FileFormat))}"
        if not export.uri.strip():
            yield f"{label}: uri is empty"
        for column, count in Counter(export.columns).items():
            if column not in schema.names:
                yield f"{label}: column {column!r} is not in the schema"
            elif count > 1:
                yield f"{label}: column {column!r} is named {count} times"
        if export.where is not None and not export.where.strip():
            yield f"{label}: where is empty; leave it out"
    for what in ("name", "uri"):
        values = Counter(str(getattr(export, what)).rstrip("/") for export in exports)
        yield from (f"two exports have the {what} {value!r}" for value, count in values.items() if count > 1)
