"""The files, rows and partitions that a change from one version to another adds and removes, from the log. No Spark.

Here belongs the comparison of the files of two versions, as for a restore: a file with another deletion vector is
another file. Rows are counted from the files' statistics. If a file has none, its rows are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.delta.log.commits import live_rows, partition_values
from pipeline.delta.log.counts import TableFiles, table_files

_Partition = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, kw_only=True)
class PartitionExchange:
    """One partition that changes, with its values by column as in the log. Without partition columns they are empty.

    `files_back` are added and `files_gone` are removed. If a file of the partition has no statistics, rows are None.
    """

    partition: Mapping[str, str | None]
    rows_now: int | None
    rows_then: int | None
    files_back: int
    files_gone: int


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """The change of a table from one version to another.

    `rows_back` and `rows_gone` are the rows of the added and the removed files. `rows_now` and `rows_then` are the rows
    of the table before and after. If a file has no statistics, they are None. `partitions` are those that change.
    """

    files_back: int
    files_gone: int
    rows_back: int | None
    rows_gone: int | None
    rows_now: int | None
    rows_then: int | None
    partitions: tuple[PartitionExchange, ...]


def exchange(location: str, now: int, then: int) -> Exchange | None:
    """The change from the version `now` to the version `then`. If the log does not have all of it, None."""
    before, after = table_files(location, now), table_files(location, then)
    if before is None or after is None:
        return None
    back = [after.files[file] for file in after.files.keys() - before.files.keys()]
    gone = [before.files[file] for file in before.files.keys() - after.files.keys()]
    files_now, files_then = _by_partition(before, before.files.values()), _by_partition(after, after.files.values())
    added, removed = _by_partition(after, back), _by_partition(before, gone)
    partitions = tuple(
        PartitionExchange(
            partition=dict(values),
            rows_now=_rows(files_now.get(values, ())),
            rows_then=_rows(files_then.get(values, ())),
            files_back=len(added.get(values, ())),
            files_gone=len(removed.get(values, ())),
        )
        for values in sorted(added.keys() | removed.keys(), key=_sort_key)
    )
    return Exchange(
        files_back=len(back), files_gone=len(gone), rows_back=_rows(back), rows_gone=_rows(gone),
        rows_now=_rows(before.files.values()), rows_then=_rows(after.files.values()), partitions=partitions,
    )  # fmt: skip


def _sort_key(partition: _Partition) -> list[tuple[str, str]]:
    return [(name, value or "") for name, value in partition]


def _by_partition(table: TableFiles, files: Iterable[Mapping[str, Any]]) -> dict[_Partition, list[Mapping[str, Any]]]:
    by_partition: dict[_Partition, list[Mapping[str, Any]]] = {}
    for file in files:
        values = partition_values(file, table.partition_by)
        by_partition.setdefault(tuple(zip(table.partition_columns, values, strict=True)), []).append(file)
    return by_partition


def _rows(files: Iterable[Mapping[str, Any]]) -> int | None:
    counts = [live_rows(file) for file in files]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
