"""What comes and what goes between two versions of a table: files, rows and partitions, from its log; no Spark.

Here belongs the comparison of the files of two versions, as a restore makes it: a file with other rows deleted is
another file. Rows are those of the files' statistics; of a file without any nobody knows them here.
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
    """One partition that changes: its values by column as the log spells them, none in a table without partitions.

    Rows are None where a file of the partition carries no statistics.
    """

    partition: Mapping[str, str | None]
    rows_now: int | None
    rows_then: int | None
    files_back: int
    files_gone: int


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What becomes of a table that goes from one version to another.

    `rows_back` and `rows_gone` are the rows of the files that come back and go, `rows_now` and `rows_then` those of the
    table before and after; None where a file carries no statistics. `partitions` are those that change.
    """

    files_back: int
    files_gone: int
    rows_back: int | None
    rows_gone: int | None
    rows_now: int | None
    rows_then: int | None
    partitions: tuple[PartitionExchange, ...]


def exchange(location: str, now: int, then: int) -> Exchange | None:
    """What comes and goes from the version `now` to the version `then`; None where the log does not say."""
    before, after = table_files(location, now), table_files(location, then)
    if before is None or after is None:
        return None
    back = [after.files[one] for one in after.files.keys() - before.files.keys()]
    gone = [before.files[one] for one in before.files.keys() - after.files.keys()]
    held, held_then = _by_partition(before, before.files.values()), _by_partition(after, after.files.values())
    came, went = _by_partition(after, back), _by_partition(before, gone)
    partitions = tuple(
        PartitionExchange(
            partition=dict(one),
            rows_now=_rows(held.get(one, ())),
            rows_then=_rows(held_then.get(one, ())),
            files_back=len(came.get(one, ())),
            files_gone=len(went.get(one, ())),
        )
        for one in sorted(came.keys() | went.keys(), key=lambda one: [(name, value or "") for name, value in one])
    )
    return Exchange(
        files_back=len(back), files_gone=len(gone), rows_back=_rows(back), rows_gone=_rows(gone),
        rows_now=_rows(before.files.values()), rows_then=_rows(after.files.values()), partitions=partitions,
    )  # fmt: skip


def _by_partition(table: TableFiles, files: Iterable[Mapping[str, Any]]) -> dict[_Partition, list[Mapping[str, Any]]]:
    found: dict[_Partition, list[Mapping[str, Any]]] = {}
    for file in files:
        values = partition_values(file, table.partition_by)
        found.setdefault(tuple(zip(table.partition_columns, values, strict=True)), []).append(file)
    return found


def _rows(files: Iterable[Mapping[str, Any]]) -> int | None:
    counts = [live_rows(file) for file in files]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
