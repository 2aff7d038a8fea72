"""What a write does to the rows of the table: one frozen type per mode, so that no invalid combination can be declared.

Here belong the modes, their parts, and what they require of a schema. `pipeline.delta` turns a mode into a statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql.types import ArrayType, CharType, DataType, MapType, StructType, VariantType


@dataclass(frozen=True)
class Append:
    """Rows are added; no row of the table is changed."""


@dataclass(frozen=True)
class Replace:
    """The partitions of the run become exactly the frame; the whole table does if the run has no partitions."""


@dataclass(frozen=True)
class ErrorIfExists:
    """The first load of a table: rows are added, once. The write is refused if the table holds rows."""


@dataclass(frozen=True)
class Ignore:
    """The first load of a table: rows are added, once. Nothing is written if the table holds rows."""


@dataclass(frozen=True)
class InsertNew:
    """A row is added if the table has no row of its key; the rows of the table stay as they are.

    Rows of a frame that are equal in every column count as one. Different rows of one key in a frame are refused.
    """


@dataclass(frozen=True, kw_only=True)
class Changelog:
    """Each row of the frame is a change of one key: its operation, its sequence value and the values of its columns.

    Codes are compared without regard to case. The defaults are those of Debezium, plain words, and Delta's own feed. A
    row from before an update deletes its key unless a row from after it has the same key. Of a truncation only the
    sequence counts.

    Args:
        operation: the column of the frame that holds the code. It is not stored.
        sequence: the column of the frame that orders the changes, never NULL. If the dataset has a column of that name,
            it is stored, and a change that is older than the row in the table never wins.
        writes: the codes of rows that are inserted or updated.
        deletes: the codes of rows that are deleted.
        before_updates: the codes of rows as they were before an update.
        truncates: the codes that delete all rows.
        ignore_nulls: columns in which a NULL of an update keeps the stored value.
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
        """All operation codes."""
        return (*self.writes, *self.deletes, *self.before_updates, *self.truncates)


@dataclass(frozen=True, kw_only=True)
class Merge:
    """A row replaces the one of its key, or is added if there is none. NULL is a key like any other.

    With an order column the row of the greatest order wins, within the frame and against the table, so late data never
    wins; NULL is the least order. If the order is equal, the row in the table stays, and within a frame the greater row
    by the declared order of columns wins. Without an order column, two rows of a key in one frame are refused.

    Args:
        order_by: the column of the dataset that orders the rows of a key.
        update_when: a further SQL condition over `source` and `target` for a row to be updated.
        delete_when: SQL over the columns of the frame. If it holds for a row, the row of its key is deleted.
        update_columns: the columns that an update sets, besides the order column; all if empty.
        keep_columns: the columns that an update leaves as they are.
        delete_missing: whether keys that the frame lacks are deleted: in the partitions of the run, or in the whole
            table if the run has none.
        frame_columns: columns of the frame that the conditions use and that are not stored.
        changelog: what makes the frame one of changes, in place of `order_by`.
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
    """The columns of a frame that the table lacks; `names` are the table's columns."""
    if not isinstance(mode, Merge):
        return ()
    changelog = () if mode.changelog is None else (mode.changelog.operation, mode.changelog.sequence)
    stored = set(names)
    return tuple(dict.fromkeys(name for name in (*changelog, *mode.frame_columns) if name not in stored))


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
    """Messages about contradictions in a mode, or between it and the dataset's schema and keys."""
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
    """A message if a dataset of this mode can't consume changes: it must be possible to write it again in full."""
    if isinstance(mode, ErrorIfExists | Ignore) or (isinstance(mode, Merge) and mode.changelog is not None):
        yield "a consumer of changes is appended to, replaced or merged by rows"


def _merge_problems(mode: Merge, types: dict[str, DataType], keys: tuple[str, ...]) -> Iterator[str]:
    columns_by_part = {
        "order_by": (mode.order_by,) if mode.order_by is not None else (),
        "update_columns": mode.update_columns,
        "keep_columns": mode.keep_columns,
        "ignore_nulls": mode.changelog.ignore_nulls if mode.changelog is not None else (),
    }
    for part, columns in columns_by_part.items():
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
    excluded = {
        "order_by": mode.order_by,
        "delete_when": mode.delete_when,
        "delete_missing": mode.delete_missing or None,
    }
    for part, value in excluded.items():
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
    """Messages about columns that a mode with keys can't write: those of MERGE."""
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
    columns_by_part: dict[str, Sequence[str]] = {"key": keys}
    condition = ""
    if isinstance(mode, Merge):
        order_by = () if mode.order_by is None else (mode.order_by,)
        sequence = () if mode.changelog is None else (mode.changelog.sequence,)
        ignored = () if mode.changelog is None else mode.changelog.ignore_nulls
        columns_by_part |= {"order_by": order_by, "changelog's sequence": sequence, "ignore_nulls": ignored}
        condition = mode.update_when or ""
    types: dict[str, DataType] = {field.name: field.dataType for field in schema.fields}
    for part, columns in columns_by_part.items():
        for column in columns:
            if column in types and _holds_char(types[column]):
                yield f"{part} column {column!r} of {type(mode).__name__} {_padded(types[column])}"
    for column, data_type in types.items():
        if _holds_char(data_type) and _names(condition, column):
            yield f"update_when names column {column!r}, which {_padded(data_type)}"


def _holds_char(data_type: DataType) -> bool:
    """Whether a type is char, or holds one at any depth."""
    if isinstance(data_type, ArrayType):
        return _holds_char(data_type.elementType)
    if isinstance(data_type, MapType):
        return _holds_char(data_type.keyType) or _holds_char(data_type.valueType)
    if isinstance(data_type, StructType):
        return any(_holds_char(field.dataType) for field in data_type.fields)
    return isinstance(data_type, CharType)


def _names(condition: str, column: str) -> bool:
    """Whether the text of a condition contains the name of a column."""
    return re.search(rf"(?<!\w){re.escape(column)}(?!\w)", condition, re.IGNORECASE) is not None


def _padded(data_type: DataType) -> str:
    return f"has type {data_type.simpleString()}, which Spark pads as it reads; declare string or varchar"
