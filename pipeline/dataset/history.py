"""What a table keeps besides the rows of its dataset, and the contradictions of the modes that keep it.

A table of spans alone can't tell where a late change belongs: a deletion of a key that it lacks, or a change whose
values are those of the span around it, shows in no span. A History keeps these as rows of its table, in partitions of
`STATE_COLUMN`, in which the spans are NULL. So they are committed and restored together with the spans, and lie in
files of their own, which readers and counts of spans leave out by their partition. A merge with `Tombstones` keeps
deletions and truncations in the same way, in partitions by the day of their write.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Protocol

from pyspark.sql.types import BooleanType, DataType, StructField, StructType

from pipeline.dataset.expectations import Expectation, Spans
from pipeline.dataset.features import Features
from pipeline.dataset.write_mode import History, Merge, WriteMode, changelog_problems, is_comparable, tombstones_of

# The partition column of rows that are no rows of the dataset. In those of the dataset it is NULL.
STATE_COLUMN = "_pipeline_state"
# Its values in a History: three kinds of points of a key, and two kinds of rows for all keys.
CHANGE, DELETION, BEFORE = "change", "deletion", "before"
TRUNCATION, SNAPSHOT = "truncation", "snapshot"
# Between a kind of tombstone, deletion or truncation, and the day of its write.
_OF_DAY = "-"


class Declared(Protocol):
    """What a `History` must agree with: a dataset, whose module imports this one."""

    @property
    def write(self) -> WriteMode: ...  # noqa: D102
    @property
    def schema(self) -> StructType: ...  # noqa: D102
    @property
    def keys(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def partition_by(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def frame_columns(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def features(self) -> Features: ...  # noqa: D102
    @property
    def expectations(self) -> tuple[Expectation, ...]: ...  # noqa: D102
    def field(self, column: str) -> StructField: ...  # noqa: D102


def keeps_state(mode: WriteMode) -> bool:
    """Whether a table of this mode has the partition column `STATE_COLUMN`."""
    return isinstance(mode, History) or tombstones_of(mode) is not None


def tombstone_state(kind: str, day: dt.date | None = None) -> str:
    """The value of `STATE_COLUMN` of tombstones of a kind that were written in a day (UTC), as `deletion-2026-11-30`.

    Args:
        day: if None, the text with which the values of all days begin.
    """
    return f"{kind}{_OF_DAY}{'' if day is None else day.isoformat()}"


def tombstone_day(state: str) -> dt.date | None:
    """The day (UTC) in which tombstones with this value of `STATE_COLUMN` were written. For other rows, None."""
    kind, _, day = state.partition(_OF_DAY)
    try:
        return dt.date.fromisoformat(day) if kind in (DELETION, TRUNCATION) else None
    except ValueError:
        return None


def tombstone_problems(dataset: Declared) -> Iterator[str]:
    """Messages about contradictions between the tombstones of a merge and its dataset. Without tombstones, none."""
    mode, tombstones = dataset.write, tombstones_of(dataset.write)
    if tombstones is None or not isinstance(mode, Merge) or mode.changelog is None:
        return
    if tombstones.keep_hours <= 0:
        yield f"tombstones: keep_hours is {tombstones.keep_hours}; it is how long a deletion is remembered"
    if mode.changelog.sequence not in dataset.schema.names:
        yield (
            f"tombstones: the changelog's sequence {mode.changelog.sequence!r} is not in the schema; the place of a "
            "deletion is stored in that column"
        )
    yield from _state_problems(dataset, "a merge with tombstones")


def _state_problems(dataset: Declared, of: str) -> Iterator[str]:
    """Messages about what a table with the partition column `STATE_COLUMN` can't have.

    Args:
        of: the write mode, with its article.
    """
    generated, clustered = dataset.features.generated, dataset.features.cluster_by
    if generated:
        yield f"generated column {generated[0][0]!r}: {of} writes each column itself; compute it before"
    if clustered:
        yield f"cluster_by: the table of {of} has partitions, and Delta has no clusters in partitions"
    if STATE_COLUMN in map(str.lower, (*dataset.schema.names, *dataset.frame_columns)):
        yield f"column {STATE_COLUMN!r} has a name that {of} adds"


def history_problems(dataset: Declared) -> Iterator[str]:
    """Messages about contradictions between a `History` and its dataset. For other modes, none."""
    mode = dataset.write
    if not isinstance(mode, History):
        if any(isinstance(expectation, Spans) for expectation in dataset.expectations):
            yield f"expectation spans: the write mode is {type(mode).__name__}; only a History has spans"
        return
    types = {field.name: field.dataType for field in dataset.schema.fields}
    if (mode.changelog is None) == (mode.order_by is None):
        yield "History needs a changelog or order_by, and not both"
    yield from _computed_problems(mode, dataset, types)
    yield from _tracked_problems(mode, dataset, types)
    yield from _order_problems(mode, dataset, types)
    yield from _partition_problems(mode, dataset)
    yield from _state_problems(dataset, "a History")


def _computed_problems(mode: History, dataset: Declared, types: dict[str, DataType]) -> Iterator[str]:
    parts = {"valid_from": mode.valid_from, "valid_to": mode.valid_to, "is_current": mode.is_current}
    named = {part: column for part, column in parts.items() if column is not None}
    for part, column in named.items():
        if column not in types:
            yield f"{part} column {column!r} is not in the schema"
        if column in dataset.keys:
            yield f"{part} column {column!r} is a key; History computes it"
        if column == mode.sequence or column in dict(dataset.features.defaults):
            yield f"{part} column {column!r} is the order of the frame or has a default; History computes it"
    if mode.valid_to in types and not dataset.field(mode.valid_to).nullable:
        yield f"valid_to column {mode.valid_to!r} is NOT NULL; in the open span it is NULL"
    if len(set(named.values())) < len(named):
        yield f"{', '.join(named)} name one column twice"
    yield from _type_problems(mode, types)


def _type_problems(mode: History, types: dict[str, DataType]) -> Iterator[str]:
    first, last = types.get(mode.valid_from), types.get(mode.valid_to)
    if first is not None and last is not None and first != last:
        yield f"valid_from has type {first.simpleString()}, valid_to {last.simpleString()}; both have that of the order"
    if first is not None and not is_comparable(first):
        yield f"valid_from column {mode.valid_from!r} has type {first.simpleString()}, which has no order"
    if mode.is_current in types and types[mode.is_current] != BooleanType():
        yield f"is_current column {mode.is_current!r} has type {types[mode.is_current].simpleString()}, not boolean"


def _tracked_problems(mode: History, dataset: Declared, types: dict[str, DataType]) -> Iterator[str]:
    if mode.track and mode.except_:
        yield "track and except_ say the same thing twice; name one of them"
    ignored = () if mode.changelog is None else mode.changelog.ignore_nulls
    for part, columns in {"track": mode.track, "except_": mode.except_, "ignore_nulls": ignored}.items():
        for column in columns:
            if column not in types:
                yield f"{part} column {column!r} is not in the schema"
            elif column in dataset.keys:
                yield f"{part} column {column!r} is a key, which is the same in all spans"
            elif column in mode.computed:
                yield f"{part} column {column!r} is computed by History"
    for column in ignored:
        if column in types and not dataset.field(column).nullable:
            yield f"ignore_nulls column {column!r} is NOT NULL; a History stores each change as it came"


def _order_problems(mode: History, dataset: Declared, types: dict[str, DataType]) -> Iterator[str]:
    if mode.changelog is not None:
        yield from changelog_problems(mode.changelog, types, dataset.keys)
        if mode.changelog.tombstones is not None:
            yield "tombstones in a History, which keeps every deletion for good; leave them out"
    if mode.order_by is not None and mode.order_by in dataset.keys:
        yield f"order_by column {mode.order_by!r} is a key; it orders nothing within a key"
    if mode.sequence in types and mode.valid_from in types and types[mode.sequence] != types[mode.valid_from]:
        declared, order = types[mode.valid_from].simpleString(), types[mode.sequence].simpleString()
        yield f"valid_from has type {declared}, and the order {mode.sequence!r} {order}; it has that of the order"
    if mode.from_snapshots and mode.changelog is not None:
        yield "from_snapshots beside a changelog: a snapshot has rows and no operations; declare order_by"


def _partition_problems(mode: History, dataset: Declared) -> Iterator[str]:
    for column in dataset.partition_by:
        if column not in dataset.keys:
            yield f"partition column {column!r} is no key of History; the spans of a key must be in one partition"
    if not dataset.partition_by:
        return
    if mode.from_snapshots:
        yield "from_snapshots with partitions: a snapshot is of the whole source, and a run may be of some partitions"
    if mode.changelog is not None and mode.changelog.truncates:
        yield "truncates with partitions: a truncation is of the whole table; declare truncates=()"
