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
class Tombstones:
    """Deletions and truncations are kept with their places, so that an older change does not bring a row back.

    Args:
        keep_hours: how long at least they are kept, counted from the end of the UTC day in which they were written. The
            maintenance of the table removes older ones.
    """

    keep_hours: int


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
        tombstones: whether and how long a `Merge` remembers deletions. If None, a change that is older than the
            deletion of its key, and is written later, brings the row back. A `History` remembers all of them.
    """

    operation: str
    sequence: str
    writes: tuple[str, ...] = ("c", "r", "u", "insert", "update", "update_after", "update_postimage")
    deletes: tuple[str, ...] = ("d", "delete")
    before_updates: tuple[str, ...] = ("update_before", "update_preimage")
    truncates: tuple[str, ...] = ("t", "truncate")
    ignore_nulls: tuple[str, ...] = ()
    tombstones: Tombstones | None = None

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


@dataclass(frozen=True, kw_only=True)
class History:
    """The rows of a key over time (SCD type 2): one row for each key and span, `valid_from` included, `valid_to` not.

    Late changes and changes out of order split and close spans: the table depends on the set of changes alone, and not
    on their order or on the frames that they came in. Of two rows of one key and place the greater one by the declared
    order of columns counts. NULL is a key like any other.

    Args:
        changelog: what makes the frame one of changes. A deletion closes the span of its key, a truncation all spans.
        order_by: in place of a changelog, the column that orders the rows of a key, never NULL. The dataset may have
            it. Then it is not tracked unless `track` names it.
        track: the columns that open a new span if they change; all but the keys if empty.
        except_: the columns that open no span, in place of `track`. In a span they have the values of its newest
            change.
        valid_from: the column with the place from which a row is valid. It has the type of the order.
        valid_to: the column with the place from which it is not valid any more; NULL in the open span.
        is_current: a boolean column that is true in the open span. None for no such column.
        from_snapshots: whether a frame is the whole source at one point in time. Keys that it lacks are closed at its
            greatest place.
    """

    changelog: Changelog | None = None
    order_by: str | None = None
    track: tuple[str, ...] = ()
    except_: tuple[str, ...] = ()
    valid_from: str
    valid_to: str
    is_current: str | None = None
    from_snapshots: bool = False

    @property
    def sequence(self) -> str:
        """The column of the frame that orders the rows of a key."""
        return self.changelog.sequence if self.changelog is not None else self.order_by or ""

    @property
    def computed(self) -> tuple[str, ...]:
        """The columns that the write computes and a frame lacks."""
        return (self.valid_from, self.valid_to, *(() if self.is_current is None else (self.is_current,)))


WriteMode = Append | Replace | Merge | InsertNew | ErrorIfExists | Ignore | History


def changelog_of(mode: WriteMode) -> Changelog | None:
    """The changelog of a mode. If its frames are not of changes, None."""
    return mode.changelog if isinstance(mode, Merge | History) else None


def tombstones_of(mode: WriteMode) -> Tombstones | None:
    """The tombstones of a merge. If deleted keys are not remembered by them, None."""
    return mode.changelog.tombstones if isinstance(mode, Merge) and mode.changelog is not None else None


def frame_columns(mode: WriteMode, names: Iterable[str]) -> tuple[str, ...]:
    """The columns of a frame that the table lacks; `names` are the table's columns."""
    if not isinstance(mode, Merge | History):
        return ()
    changelog = () if mode.changelog is None else (mode.changelog.operation, mode.changelog.sequence)
    others = mode.frame_columns if isinstance(mode, Merge) else (mode.sequence,)
    stored = set(names)
    return tuple(dict.fromkeys(name for name in (*changelog, *others) if name not in stored))


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
    if not isinstance(mode, Merge | InsertNew | History):
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


def consumer_problems(mode: WriteMode, partition_by: Sequence[str]) -> Iterator[str]:
    """A message if a dataset of this mode can't consume changes: it must be possible to write it again in full."""
    if isinstance(mode, History) and partition_by:
        yield (
            "a History with partitions can't consume changes: a full read is a snapshot of all partitions; declare it "
            "without partition_by"
        )
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
    yield from changelog_problems(changelog, types, keys)


def changelog_problems(changelog: Changelog, types: dict[str, DataType], keys: tuple[str, ...]) -> Iterator[str]:
    """Messages about contradictions between a changelog and the columns of its dataset."""
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
    if not isinstance(mode, Merge | InsertNew | History):
        return
    name = type(mode).__name__
    yield from _char_problems(mode, schema, keys)
    for column in schema.names:
        if "`" in column and change_feed:
            yield f"column {column!r}: {name} with a change feed can't have a backtick in the name of a column"
        elif {"`", "."} & set(column) and column in partition_by:
            yield f"partition column {column!r}: {name} can't have a dot or a backtick in the name of one"


def _char_problems(mode: Merge | InsertNew | History, schema: StructType, keys: Sequence[str]) -> Iterator[str]:
    columns_by_part: dict[str, Sequence[str]] = {"key": keys}
    condition = ""
    if isinstance(mode, Merge | History):
        order_by = () if mode.order_by is None else (mode.order_by,)
        sequence = () if mode.changelog is None else (mode.changelog.sequence,)
        ignored = () if mode.changelog is None else mode.changelog.ignore_nulls
        columns_by_part |= {"order_by": order_by, "changelog's sequence": sequence, "ignore_nulls": ignored}
    if isinstance(mode, Merge):
        condition = mode.update_when or ""
    if isinstance(mode, History):
        computed = set(mode.computed)
        columns_by_part |= {"": [name for name in schema.names if name not in computed]}
    types: dict[str, DataType] = {field.name: field.dataType for field in schema.fields}
    for part, columns in columns_by_part.items():
        for column in columns:
            if column in types and _holds_char(types[column]):
                named = f"{part} column".strip()
                yield f"{named} {column!r} of {type(mode).__name__} {_padded(types[column])}"
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
