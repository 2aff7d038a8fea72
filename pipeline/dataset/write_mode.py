"""What a write does to the rows that are there: one frozen type per mode, so that a wrong combination can't be said.

Here belong the modes, their parts, and what they ask of a schema. How a mode becomes a statement is `pipeline.delta`'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql.types import ArrayType, CharType, DataType, MapType, StructType, VariantType


@dataclass(frozen=True)
class Append:
    """Rows are added; nothing that is there is touched."""


@dataclass(frozen=True)
class Replace:
    """The slice that the run addresses, or the whole table where it addresses none, becomes exactly the frame."""


@dataclass(frozen=True)
class ErrorIfExists:
    """The first load of a table: rows are added, once; refused where the table holds rows."""


@dataclass(frozen=True)
class Ignore:
    """The first load of a table: rows are added, once; nothing is written where the table holds rows."""


@dataclass(frozen=True)
class InsertNew:
    """A row is added where no row of its key is there; what is there stays as it is.

    Rows of a frame that are equal in every column count as one; rows of one key that are not are refused.
    """


@dataclass(frozen=True, kw_only=True)
class Changelog:
    """Each row of the frame is a change of one key: its operation, its place in the sequence, its values.

    Codes are compared without regard to case. The defaults are those of Debezium, of plain words, and of Delta's own
    feed. A row from before an update deletes its key unless a row from after it has the same key. In a truncation only
    the sequence counts.

    Args:
        operation: the column of the frame that holds the code; it is not stored.
        sequence: the column of the frame that orders the changes, never NULL. Where the dataset has a column of that
            name it is stored, and a change that is older than the row in the table never wins.
        ignore_nulls: columns in which a NULL of an update keeps the value that is there.
    """

    operation: str
    sequence: str
    writes: tuple[str, ...] = ("c", "r", "u", "insert", "update", "update_after", "update_postimage")
    deletes: tuple[str, ...] = ("d", "delete")
    before_updates: tuple[str, ...] = ("update_before", "update_preimage")
    truncates: tuple[str, ...] = ("t", "truncate")
    ignore_nulls: tuple[str, ...] = ()

    @property
    def codes(self) -> tuple[str, ...]:
        """Every code that is known."""
        return (*self.writes, *self.deletes, *self.before_updates, *self.truncates)


@dataclass(frozen=True, kw_only=True)
class Merge:
    """A row replaces the one of its key, or is added where there is none; NULL is a key like any other.

    With an order column the row of the greatest order wins, within the frame and against the table, so that late data
    never does; NULL is the least order. Of equal order the row in the table stays, and within a frame the greater row
    by the declared order of columns wins. Without one, two rows of a key in one frame are refused.

    Args:
        order_by: the column of the dataset that orders the rows of a key.
        update_when: SQL over `source` and `target` that must hold, besides, for a row to be updated.
        delete_when: SQL over the frame's columns; a row for which it holds deletes the one of its key.
        update_columns: the columns that an update sets, besides the order column; all where empty.
        keep_columns: the columns that an update leaves as they are.
        delete_missing: whether rows of the run's slice, or of the table where the run addresses none, are deleted that
            the frame has no row of.
        frame_columns: columns of the frame that the conditions speak of and that are not stored.
        changelog: what makes the frame one of changes; takes the place of `order_by`.
    """

    order_by: str | None = None
    update_when: str | None = None
    delete_when: str | None = None
    update_columns: tuple[str, ...] = ()
    keep_columns: tuple[str, ...] = ()
    delete_missing: bool = False
    frame_columns: tuple[str, ...] = ()
    changelog: Changelog | None = None


WriteMode = Append | Replace | Merge | InsertNew | ErrorIfExists | Ignore


def frame_columns(mode: WriteMode, names: Iterable[str]) -> tuple[str, ...]:
    """The columns that a frame brings beside those of the table; `names` are the table's."""
    if not isinstance(mode, Merge):
        return ()
    decides = () if mode.changelog is None else (mode.changelog.operation, mode.changelog.sequence)
    stored = set(names)
    return tuple(dict.fromkeys(name for name in (*decides, *mode.frame_columns) if name not in stored))


def is_comparable(data_type: DataType) -> bool:
    """Whether Spark can order values of the type: no map and no variant, at any depth."""
    if isinstance(data_type, MapType | VariantType):
        return False
    if isinstance(data_type, ArrayType):
        return is_comparable(data_type.elementType)
    if isinstance(data_type, StructType):
        return all(is_comparable(field.dataType) for field in data_type.fields)
    return True


def mode_problems(mode: WriteMode, schema: StructType, keys: tuple[str, ...]) -> Iterator[str]:
    """What contradicts itself in a mode, or between it and the dataset's schema and keys, in words."""
    if not isinstance(mode, Merge | InsertNew):
        return
    name = type(mode).__name__
    if not keys:
        yield f"{name} needs keys, the columns that name a row"
    types = {field.name: field.dataType for field in schema.fields}
    for key in keys:
        if key in types and not is_comparable(types[key]):
            yield f"key column {key!r} of {name} has type {types[key].simpleString()}, whose values can't be compared"
    if isinstance(mode, Merge):
        yield from _merge_problems(mode, types, keys)


def consumer_problems(mode: WriteMode) -> Iterator[str]:
    """What keeps a dataset of this mode from being made of changes, in words: it must be possible to make it anew."""
    if isinstance(mode, ErrorIfExists | Ignore) or (isinstance(mode, Merge) and mode.changelog is not None):
        yield "a consumer of changes is appended to, replaced or merged by rows"


def _merge_problems(mode: Merge, types: dict[str, DataType], keys: tuple[str, ...]) -> Iterator[str]:
    named = {
        "order_by": (mode.order_by,) if mode.order_by is not None else (),
        "update_columns": mode.update_columns,
        "keep_columns": mode.keep_columns,
        "ignore_nulls": mode.changelog.ignore_nulls if mode.changelog is not None else (),
    }
    for part, columns in named.items():
        yield from (f"{part} column {column!r} is not in the schema" for column in columns if column not in types)
    if mode.order_by in types and not is_comparable(types[mode.order_by]):
        yield f"order_by column {mode.order_by!r} has type {types[mode.order_by].simpleString()}, which has no order"
    if mode.order_by in keys:
        yield f"order_by column {mode.order_by!r} is a key; it orders nothing within a key"
    if mode.update_columns and mode.keep_columns:
        yield "update_columns and keep_columns say the same thing twice; name one of them"
    for column in mode.frame_columns:
        if column in types:
            yield f"frame_columns name {column!r}, which is a column of the schema"
    if mode.changelog is not None:
        yield from _changelog_problems(mode, mode.changelog, types, keys)


def _changelog_problems(
    mode: Merge, changelog: Changelog, types: dict[str, DataType], keys: tuple[str, ...]
) -> Iterator[str]:
    beside = {"order_by": mode.order_by, "delete_when": mode.delete_when, "delete_missing": mode.delete_missing or None}
    for part, value in beside.items():
        if value is not None:
            yield f"{part} beside a changelog, which says itself what is ordered and deleted"
    if changelog.operation in types:
        yield f"the changelog's operation {changelog.operation!r} is a column of the schema; it is not stored"
    if changelog.sequence in keys:
        yield f"the changelog's sequence {changelog.sequence!r} is a key; it orders nothing within a key"
    if changelog.sequence in types and not is_comparable(types[changelog.sequence]):
        kind = types[changelog.sequence].simpleString()
        yield f"the changelog's sequence {changelog.sequence!r} has type {kind}, which has no order"
    folded = [code.lower() for code in changelog.codes]
    for code in sorted({code for code in folded if folded.count(code) > 1}):
        yield f"the changelog's code {code!r} means two operations"


def merge_problems(
    mode: WriteMode, schema: StructType, keys: Sequence[str], partition_by: Sequence[str], *, change_feed: bool
) -> Iterator[str]:
    """Columns that a mode which looks for keys can't be used with, in words."""
    if not isinstance(mode, Merge | InsertNew):
        return
    name = type(mode).__name__
    yield from _char_problems(mode, schema, keys)
    for column in schema.names:
        if "`" in column and change_feed:
            yield f"column {column!r}: {name} with a change feed can't have a backtick in the name of a column"
        elif {"`", "."} & set(column) and column in partition_by:
            yield f"partition column {column!r}: {name} can't have a dot or a backtick in the name of one"


def _char_problems(mode: Merge | InsertNew, schema: StructType, keys: Sequence[str]) -> Iterator[str]:
    parts: dict[str, Sequence[str]] = {"key": keys}
    condition = ""
    if isinstance(mode, Merge):
        sequence = () if mode.changelog is None else (mode.changelog.sequence,)
        parts |= {"order_by": () if mode.order_by is None else (mode.order_by,), "changelog's sequence": sequence}
        condition = mode.update_when or ""
    types: dict[str, DataType] = {field.name: field.dataType for field in schema.fields}
    for part, columns in parts.items():
        for column in columns:
            if isinstance(types.get(column), CharType):
                yield f"{part} column {column!r} of {type(mode).__name__} {_padded(types[column])}"
    for column, data_type in types.items():
        if isinstance(data_type, CharType) and _names(condition, column):
            yield f"update_when names column {column!r}, which {_padded(data_type)}"


def _names(condition: str, column: str) -> bool:
    """Whether a condition has the name of a column in it."""
    return re.search(rf"(?<!\w){re.escape(column)}(?!\w)", condition, re.IGNORECASE) is not None


def _padded(data_type: DataType) -> str:
    return f"has type {data_type.simpleString()}, which Spark pads as it reads; declare string or varchar"
