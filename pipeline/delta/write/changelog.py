"""A changelog: rows with operation codes become the net change of each key.

Here belong the reading of operation codes, the refusal of rows without a known code or place in the sequence, and the
query that folds the changes of a key into one row, with the tombstones that a table keeps. How that row is merged into
the table is the subject of `merge`.

Columns that we add to a frame have names that no column of the dataset has.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row
from pyspark.sql.types import StructType

from pipeline.dataset import Changelog, Dataset
from pipeline.dataset.history import DELETION, STATE_COLUMN, TRUNCATION, tombstone_state
from pipeline.dataset.schema import is_string
from pipeline.delta import sql
from pipeline.delta.sql import constraints, exact
from pipeline.delta.sql.slices import Slice
from pipeline.delta.sql.state import filler
from pipeline.errors import ChangelogError

_ROW, _DELETE, _BEFORE, _TRUNCATE = "row", "delete", "before", "truncate"


class Helpers:
    """The names of the columns that are added to a dataset's rows while they are folded.

    `alive` says whether the key has a row or is deleted, `ended` holds the place of its last deletion or truncation in
    the sequence, and `at` the place of its row. `state` is the `STATE_COLUMN` of the row.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.alive, self.ended, self.at = (
            sql.helper_name(dataset, name) for name in ("is row", "ended at", "placed at")
        )
        self.kind, self.rank, self.has_row = (
            sql.helper_name(dataset, name) for name in ("change kind", "row rank", "has row")
        )
        self.deleted, self.leaves, self.state = (
            sql.helper_name(dataset, name) for name in ("deleted at", "leaves tombstone", "state of row")
        )

    def kept(self, column: str) -> str:
        """The column with a column's newest value and its place, if NULL in that column means "unchanged"."""
        return sql.helper_name(self._dataset, f"kept {column}")


@dataclass(frozen=True)
class StoredTombstones:
    """The tombstones of a table, and the day (UTC) under which a write adds its own.

    `table` is the table as SQL has it. If it counts as empty, None. `partitions` is SQL over it as `stored`, which is
    true in the partitions that the keys of the frame can be in. If these are not known, None.
    """

    day: dt.date
    table: str | None = None
    partitions: str | None = None

    @property
    def states(self) -> tuple[str, ...]:
        """The values of `STATE_COLUMN` that a write adds or updates."""
        return tuple(tombstone_state(kind, self.day) for kind in (DELETION, TRUNCATION))


def truncated_at(frame: DataFrame, dataset: Dataset, changelog: Changelog) -> str | None:
    """A literal of the newest truncation's place in the sequence. If there is none, None. One Spark job."""
    at = sql.identifier(changelog.sequence)
    kind = kind_of_change(changelog)
    conditions = {changelog.operation: f"{kind} IS NULL", changelog.sequence: f"{at} IS NULL"}
    newest, literal = _greatest(frame, changelog.sequence, is_truncation(changelog))
    counted = [f"count_if({condition}) AS c{i}" for i, condition in enumerate(conditions.values())]
    row = frame.selectExpr(*counted, newest).collect()[0]
    _refuse(frame, dataset, conditions, row, changelog)
    return None if row["newest"] is None else literal(row["newest"])


def newest_place(frame: DataFrame, dataset: Dataset, order_by: str) -> str | None:
    """A literal of the greatest place of rows that are ordered by a column. If there are none, None. One Spark job.

    Raises:
        ChangelogError: rows without a place.
    """
    at = sql.identifier(order_by)
    newest, literal = _greatest(frame, order_by, "TRUE")
    row = frame.selectExpr(f"count_if({at} IS NULL) AS c0", newest).collect()[0]
    _refuse(frame, dataset, {order_by: f"{at} IS NULL"}, row, None)
    return None if row["newest"] is None else literal(row["newest"])


def _greatest(frame: DataFrame, column: str, condition: str) -> tuple[str, Callable[[str], str]]:
    """SQL for a column's greatest value as text, under the name `newest`, and what makes a literal of the text."""
    data_type = frame.schema[column].dataType
    greatest = f"max(CASE WHEN {condition} THEN {sql.identifier(column)} END)"
    return (
        f"{exact.as_text(greatest, data_type)} AS newest",
        lambda text: exact.from_text(sql.string(text), data_type, sql.type_name(data_type)),
    )


def _refuse(
    frame: DataFrame, dataset: Dataset, conditions: Mapping[str, str], counted: Row, changelog: Changelog | None
) -> None:  # fmt: skip
    """Raise if a condition, by column, holds for some rows. Their numbers are `c0`, `c1` and so on of `counted`."""
    counts = {name: counted[f"c{i}"] for i, name in enumerate(conditions) if counted[f"c{i}"]}
    if not counts:
        return
    refused = frame.filter(" OR ".join(f"({condition})" for condition in conditions.values()))
    shown = dict.fromkeys((*conditions, *dataset.keys))
    examples = refused.selectExpr(*map(sql.identifier, shown)).limit(constraints.NAMED_VALUES).collect()
    raise ChangelogError(
        dataset=dataset.name,
        counts=counts,
        examples=tuple(", ".join(f"{k} = {v}" for k, v in example.asDict().items()) for example in examples),
        codes=() if changelog is None else changelog.codes,
    )


def kind_of_change(changelog: Changelog) -> str:
    """SQL for the kind of a changelog row. If its code is not declared, NULL."""
    by_kind = {
        _ROW: changelog.writes, _DELETE: changelog.deletes,
        _BEFORE: changelog.before_updates, _TRUNCATE: changelog.truncates,
    }  # fmt: skip
    branches = [
        f"WHEN lower({sql.identifier(changelog.operation)}) IN ({', '.join(sql.string(c.lower()) for c in codes)}) "
        f"THEN '{kind}'"
        for kind, codes in by_kind.items()
        if codes
    ]
    return f"CASE {' '.join(branches)} END"


def is_row(changelog: Changelog) -> str:
    """SQL that is true for a row with values: an insert or the row after an update."""
    return f"{kind_of_change(changelog)} <=> '{_ROW}'"


def is_truncation(changelog: Changelog) -> str:
    """SQL that is true for a row that truncates the table or the slice."""
    return f"{kind_of_change(changelog)} <=> '{_TRUNCATE}'"


def stands_alone(dataset: Dataset, changelog: Changelog, taken: str) -> str:
    """SQL that is true for a pre-image if the condition `taken` holds for a row of the same key and place.

    That row, its post-image, leaves the write, and the pre-image must leave with it: alone it would delete the key.
    """
    place = sql.names((*dataset.keys, changelog.sequence))
    return f"{kind_of_change(changelog)} <=> '{_BEFORE}' AND max({taken}) OVER (PARTITION BY {place})"


def net_change_query(
    dataset: Dataset, changelog: Changelog, view: str, within: Slice | None, truncated: str | None, *,
    tombstones: StoredTombstones | None = None,
) -> str:  # fmt: skip
    """The net change of each key: its newest row after its last end, or else the end, a deletion or truncation.

    A row at the same place in the sequence as an end comes after it: a change feed may show an update of a key as a
    deletion and an insertion in one commit. With tombstones, the ends that the table keeps count too, and the query
    also has the tombstones that the write adds or updates.
    """
    keys, at = sql.names(dataset.keys), sql.identifier(changelog.sequence)
    own = Helpers(dataset)
    kind, alive, ended = (sql.identifier(name) for name in (own.kind, own.alive, own.ended))
    has_row, rank = sql.identifier(own.has_row), sql.identifier(own.rank)
    deleted = f"max(CASE WHEN {kind} = '{_DELETE}' THEN {at} END) OVER (PARTITION BY {keys})"
    newest_first = f"ORDER BY {alive} DESC, {at} DESC, {constraints.row_value(dataset.schema.fields)} DESC"
    marks_row = f"max({kind} = '{_ROW}') OVER (PARTITION BY {keys}, {at}) AS {has_row}"
    before_is_delete = f"CASE WHEN {kind} = '{_BEFORE}' THEN '{_DELETE}' ELSE {kind} END AS {kind}"
    is_alone = f"{kind} <> '{_BEFORE}' OR NOT {has_row}"
    columns = [
        *constraints.guarded_columns(dataset, within, [], alive), f"{at} AS {sql.identifier(own.at)}", ended, alive,
        *(sql.identifier(own.kept(name)) for name in changelog.ignore_nulls), sql.identifier(own.leaves),
    ]  # fmt: skip
    stages = {
        "changes": f"SELECT *, {kind_of_change(changelog)} AS {kind} FROM {sql.identifier(view)}",
        "of_keys": f"SELECT *, {marks_row} FROM changes WHERE {kind} <> '{_TRUNCATE}'",
        "plain": f"SELECT * EXCEPT ({kind}), {before_is_delete} FROM of_keys WHERE {is_alone}",
        "deleted": f"SELECT *, {deleted} AS {sql.identifier(own.deleted)} FROM plain",
        **dict(_ends(dataset, changelog, view, truncated, tombstones)),
        "marked": f"SELECT *, {kind} = '{_ROW}' AND ({ended} IS NULL OR {at} >= {ended}) AS {alive} FROM ended",
        "ranked": f"SELECT {', '.join(['*', *_kept_values(dataset, changelog)])}, "
        f"row_number() OVER (PARTITION BY {keys} {newest_first}) AS {rank} FROM marked",
        "net": f"SELECT {', '.join(columns)} FROM ranked WHERE {rank} = 1",
    }
    rows = f"SELECT * EXCEPT ({sql.identifier(own.leaves)}) FROM net"
    if tombstones is not None:
        rows = _with_tombstones(dataset, changelog, truncated, tombstones)
    return f"WITH {', '.join(f'{name} AS ({query})' for name, query in stages.items())} {rows}"


def _ends(
    dataset: Dataset, changelog: Changelog, view: str, truncated: str | None, tombstones: StoredTombstones | None
) -> Iterator[tuple[str, str]]:
    """The changes with the last end of their key, and whether it is a deletion of the frame that leaves a tombstone."""
    own, joined = Helpers(dataset), ""
    deleted, at = (sql.identifier(name) for name in (own.deleted, own.at))
    others = [] if truncated is None else [truncated]
    if tombstones is not None and tombstones.table is not None:
        yield from _stored_ends(dataset, changelog, view, tombstones)
        same = " AND ".join(f"{sql.column(key, 'c')} <=> {sql.column(key, 'd')}" for key in dataset.keys)
        joined = f" LEFT JOIN deletions AS d ON {same} CROSS JOIN truncations AS t"
        others += [f"d.{at}", f"t.{at}"]
    ended = f"greatest(c.{deleted}, {', '.join(others)})" if others else f"c.{deleted}"
    other = f"greatest({', '.join(others)})" if len(others) > 1 else (others or ["NULL"])[0]
    leaves = f"c.{deleted} IS NOT NULL AND coalesce(c.{deleted} > {other}, TRUE)"
    columns = f"c.*, {ended} AS {sql.identifier(own.ended)}, {leaves} AS {sql.identifier(own.leaves)}"
    yield "ended", f"SELECT {columns} FROM deleted AS c{joined}"


# --- tombstones -------------------------------------------------------------------------------------------------------


def _stored_ends(
    dataset: Dataset, changelog: Changelog, view: str, tombstones: StoredTombstones
) -> Iterator[tuple[str, str]]:
    """The places that the table keeps: of the last deletion of each key of the frame, and of the last truncation.

    They are relations, since Delta does not resolve a table in a subquery of an expression of a MERGE.
    """
    keys = ", ".join(sql.column(key, "stored") for key in dataset.keys)
    same = " AND ".join(f"{sql.column(key, 'stored')} <=> {sql.column(key, 'given')}" for key in dataset.keys)
    place = f"max({sql.column(changelog.sequence, 'stored')}) AS {sql.identifier(Helpers(dataset).at)}"
    inside = "" if tombstones.partitions is None else f" AND ({tombstones.partitions})"
    is_deletion, is_cut = (
        f"startswith({sql.column(STATE_COLUMN, 'stored')}, {sql.string(tombstone_state(kind))})"
        for kind in (DELETION, TRUNCATION)
    )
    stored = f"{tombstones.table} AS stored"
    of_keys = f"{stored} LEFT SEMI JOIN {sql.identifier(view)} AS given ON {same}"
    yield "deletions", f"SELECT {keys}, {place} FROM {of_keys} WHERE {is_deletion}{inside} GROUP BY {keys}"
    yield "truncations", f"SELECT {place} FROM {stored} WHERE {is_cut}"


def _with_tombstones(
    dataset: Dataset, changelog: Changelog, truncated: str | None, tombstones: StoredTombstones
) -> str:  # fmt: skip
    """The net changes, and a row of state for each deletion of a key and for the truncation that the table lacks.

    The columns are those of the net changes, and `state`. A row of state is not `alive`.
    """
    own = Helpers(dataset)
    state, ended = sql.identifier(own.state), sql.identifier(own.ended)
    deletion, truncation = map(sql.string, tombstones.states)
    is_left = f"{sql.identifier(own.leaves)} AND NOT {sql.identifier(own.alive)} AND NOT ({_is_impossible(dataset)})"
    none = "CAST(NULL AS STRING)"
    states = f"CASE WHEN {is_left} THEN array({none}, {deletion}) ELSE array({none}) END"
    fillers = {name: _filler(dataset, name) for name in dataset.schema.names}
    columns = [
        f"CASE WHEN {state} IS NULL THEN {sql.identifier(name)} ELSE {value} END AS {sql.identifier(name)}"
        if name not in dataset.keys
        else sql.identifier(name)
        for name, value in (fillers | {changelog.sequence: ended}).items()
    ]
    others = (own.at, own.ended, own.alive, *map(own.kept, changelog.ignore_nulls))
    net = f"SELECT *, explode({states}) AS {state} FROM net"
    query = f"SELECT {', '.join(columns)}, {sql.names(others)}, {state} FROM ({net})"
    if truncated is None:
        return query
    values = [*(fillers | {changelog.sequence: truncated}).values(), "NULL", "NULL", "FALSE"]
    values += ["NULL"] * len(changelog.ignore_nulls)
    is_newer = f"coalesce({truncated} > {sql.identifier(own.at)}, TRUE)"
    newer = "" if tombstones.table is None else f" FROM truncations WHERE {is_newer}"
    return f"{query} UNION ALL SELECT {', '.join(values)}, {truncation}{newer}"


def _is_impossible(dataset: Dataset) -> str:
    """SQL that is true for a key that no row of the table can have. Its tombstone could not be stored either."""
    nulls = constraints.null_conditions(StructType([dataset.field(key) for key in dataset.keys]))
    lost = constraints.lost_partition_conditions(dataset)
    conditions = [*nulls.values(), *(condition for column, condition in lost.items() if column in dataset.keys)]
    return " OR ".join(f"coalesce({condition}, FALSE)" for condition in conditions) or "FALSE"


def _filler(dataset: Dataset, column: str) -> str:
    """SQL for the value of a column in a row of state."""
    field = dataset.field(column)
    if column in dataset.partition_by and not field.nullable and is_string(field.dataType):
        return f"CAST('0' AS {sql.bare_type(field.dataType)})"  # an empty text would be read back as NULL
    return filler(field)


# --- NULL as "unchanged" ----------------------------------------------------------------------------------------------


def _kept_values(dataset: Dataset, changelog: Changelog) -> Iterator[str]:
    """For each column in which NULL means "unchanged": the newest value among the key's rows, and its place."""
    keys, at, own = sql.names(dataset.keys), sql.identifier(changelog.sequence), Helpers(dataset)
    row = constraints.row_value(dataset.schema.fields)
    for name in changelog.ignore_nulls:
        value = sql.identifier(name)
        place = f"CASE WHEN {sql.identifier(own.alive)} AND {value} IS NOT NULL THEN struct({at}, {row}) END"
        pair = f"named_struct('at', {at}, 'value', {value})"
        yield f"max_by({pair}, {place}) OVER (PARTITION BY {keys}) AS {sql.identifier(own.kept(name))}"
