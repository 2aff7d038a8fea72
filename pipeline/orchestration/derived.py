"""The dataset of an asset without one: from its key, its metadata, and a frame's schema or the table on disk.

Here belong the metadata keys of a plain asset and what follows from them. Before the first write the frame's schema is
the declaration, with every column nullable except those of `KEYS`. After it the table is the declaration, so a changed
frame is refused and no table changes by accident. Assets with a `Dataset` don't belong here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from dagster import AssetKey
from pyspark.sql.types import StructField, StructType

from pipeline.dataset import Append, Dataset, InsertNew, Merge, Replace, WriteMode
from pipeline.delta.frames.arrow_types import storage_type
from pipeline.delta.log.snapshot import TableState
from pipeline.delta.table.undeclared import dataset_of
from pipeline.errors import DeclarationError, FrameMismatchError
from pipeline.orchestration.metadata import plain_value
from pipeline.orchestration.metadata_keys import DECLARED_WRITE_MODE, KEYS, ORDER_BY, PARTITION_EXPR

# The write modes that a plain asset may name.
_WRITE_MODES: Mapping[str, WriteMode] = {
    "append": Append(),
    "replace": Replace(),
    "merge": Merge(),
    "insert_new": InsertNew(),
}


def derived_dataset(
    key: AssetKey, metadata: Mapping[str, Any], schema: StructType, *, partitioned: bool = False
) -> Dataset:
    """The dataset of a plain asset without a table, from a frame with that schema.

    `partition_expr` names the partition columns: one, or one for each dimension, in the order of the table.

    Raises:
        DeclarationError: the columns can't be stored in a table as they are, or the metadata can't be used.
    """
    keys, partition_by = _names(key, metadata, KEYS), _names(key, metadata, PARTITION_EXPR)
    if partitioned and not partition_by:
        raise _refusal(key, f"it is partitioned: name the column of its keys as {PARTITION_EXPR!r}")
    return Dataset(
        name="/".join(key.path),
        schema=StructType([StructField(f.name, storage_type(f.dataType), f.name not in keys) for f in schema.fields]),
        partition_by=partition_by,
        write=_write_mode(key, metadata),
        keys=keys,
    )


def dataset_of_table(key: AssetKey, metadata: Mapping[str, Any], state: TableState) -> Dataset:
    """The dataset of a plain asset with a table: the shape of the table, with the write mode of the metadata.

    Raises:
        DeclarationError: the table can't be declared, or the metadata can't be used.
    """
    columns = _names(key, metadata, PARTITION_EXPR)
    if not set(columns) <= set(state.partition_by):
        actual = f"its table is partitioned by ({', '.join(state.partition_by)})"
        raise _refusal(key, f"{PARTITION_EXPR} names {', '.join(columns)}, but {actual}")
    return dataset_of(
        "/".join(key.path), state, write=_write_mode(key, metadata), keys=_names(key, metadata, KEYS)
    )  # fmt: skip


def refuse_lost_partitions(
    key: AssetKey,
    dataset: Dataset,
    metadata: Mapping[str, Any],
    columns: Collection[str],
    notes: Callable[[], Sequence[Mapping[str, Any]]],
) -> None:
    """Refuse a plain asset whose write would replace more partitions of its table than its earlier writes addressed.

    Args:
        columns: the partition columns of the asset's keys. If it has no partitions, empty.
        notes: reads the notes in the asset's commits since its newest replace, newest first.

    Raises:
        DeclarationError: an earlier write was restricted by a further partition column, or the asset has no partitions
            and nothing states that it replaces the whole table.
    """
    if not isinstance(dataset.write, Replace) or set(columns) >= set(dataset.partition_by):
        return
    written = [note for note in notes() if note.get("partitions") is not None]
    if columns:
        lost = set(dataset.partition_by) - set(columns)
        written = [note for note in written if not lost.isdisjoint(note.get("partition_columns", ()))]
        if not written:
            return
    elif not written and _names(key, metadata, PARTITION_EXPR):
        return
    partitions = f"partitions only by ({', '.join(columns)})" if columns else "no partitions_def"
    of = f"an earlier write was of {written[0]['partitions']}" if written else "nothing states that it replaces all"
    replaced = f"every partition with the same {' and '.join(columns)}" if columns else "the whole table"
    raise _refusal(
        key,
        f"it has {partitions}, while its table is partitioned by ({', '.join(dataset.partition_by)}) and {of}: the "
        f"write would replace {replaced}. Give the asset its partitions_def again; to replace {replaced}, declare the "
        f"dataset with dataset_metadata; to keep the other rows, set {DECLARED_WRITE_MODE!r} to 'append' or 'merge'",
    )


@contextmanager
def mismatch_remedy(table_declares: bool) -> Iterator[None]:
    """If the table is the declaration, the error for a frame that does not match it names a further remedy."""
    try:
        yield
    except FrameMismatchError as error:
        if not table_declares:
            raise
        raise replace(error, table_declares=True) from error


def _write_mode(key: AssetKey, metadata: Mapping[str, Any]) -> WriteMode:
    value = plain_value(metadata.get(DECLARED_WRITE_MODE, "replace"))
    mode = _WRITE_MODES.get(value) if isinstance(value, str) else None
    if mode is None:
        raise _refusal(key, f"{DECLARED_WRITE_MODE} is {value!r}; expected {' or '.join(map(repr, _WRITE_MODES))}")
    order_by = _names(key, metadata, ORDER_BY)
    if not order_by:
        return mode
    if not isinstance(mode, Merge) or len(order_by) > 1:
        raise _refusal(key, f"{ORDER_BY} is {order_by}; expected one column, and only for a merge")
    return Merge(order_by=order_by[0])


def _names(key: AssetKey, metadata: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The columns that the metadata names: one, several, or one for each dimension. If it names none, empty."""
    value = plain_value(metadata.get(name))
    if value is None:
        return ()
    if isinstance(value, Mapping):
        value = list(value.values())
    columns = [value] if isinstance(value, str) else value
    if not isinstance(columns, Sequence) or not all(isinstance(column, str) for column in columns):
        raise _refusal(key, f"{name} is {value!r}; expected the name of a column, or several")
    return tuple(columns)


def _refusal(key: AssetKey, problem: str) -> DeclarationError:
    return DeclarationError(dataset=key.to_user_string(), problems=(f"its asset has no Dataset, and {problem}",))
