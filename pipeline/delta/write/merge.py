"""Merges: a frame becomes at most one row a key, and these rows become one MERGE statement.

Here belong the rows of `Merge`, `InsertNew` and a changelog, and the conditions under which they are refused. What
happens to a row in the statement is the subject of `clauses`. Running it and translating its errors is the subject of
`write`.

Columns that we add to a frame have names that no column of the dataset has.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from pipeline.dataset import Dataset, History, InsertNew, Merge, Replace, TableRef, WriteMode
from pipeline.dataset.history import STATE_COLUMN
from pipeline.dataset.write_mode import changelog_of
from pipeline.delta import sql
from pipeline.delta.spark.failures import SPARK_ERRORS, failure_of
from pipeline.delta.sql import constraints
from pipeline.delta.sql.slices import Slice, Unaddressable, of_rows
from pipeline.delta.write import clauses
from pipeline.delta.write.changelog import Helpers, StoredTombstones, is_row, net_change_query, truncated_at
from pipeline.delta.write.clauses import SOURCE, TARGET, MergeQuery, all_of, deletes_missing, newer, same_key
from pipeline.errors import ExpressionError, StrayRowsError

# More partitions than this are not named in the statement: it would take longer to plan than to run.
TOUCHED_PARTITIONS = 200


def addresses_partitions(dataset: Dataset) -> bool:
    """Whether the key determines a row's partition, so that a merge needs to look into no other partition.

    Otherwise a key may have moved to another partition, and the merge would not find its old row.
    """
    return bool(dataset.partition_by) and set(dataset.partition_by) <= set(dataset.keys)


def repeats_differ(mode: Merge) -> bool:
    """Whether a second merge of the same frame, after other merges, may give another table than the first."""
    deletes = mode.delete_when is not None or mode.delete_missing or mode.changelog is not None
    # A condition on the table's row may hold at the second merge although it did not hold at the first.
    return deletes or mode.order_by is None or mode.update_when is not None


def repeat_matters(mode: WriteMode) -> bool:
    """Whether a second write of the same frame may change the table again: double its rows, or undo later writes."""
    if isinstance(mode, History):  # a change that the table has already changes nothing, but a snapshot closes keys
        return mode.from_snapshots
    return repeats_differ(mode) if isinstance(mode, Merge) else not isinstance(mode, Replace | InsertNew)


def needs_fixed_source(dataset: Dataset, within: Slice | None) -> bool:
    """Whether the frame is read before the merge, and so must be materialized."""
    mode = dataset.write
    if isinstance(mode, History) or (isinstance(mode, Merge) and (mode.changelog is not None or mode.delete_missing)):
        return True
    return isinstance(mode, Merge | InsertNew) and within is None and addresses_partitions(dataset)


def merge_plan(frame: DataFrame, table: TableRef, view: str, within: Slice | None) -> clauses.MergePlan:
    """The MERGE of a frame that has this view's name. Up to two Spark jobs read the frame first.

    Raises:
        ChangelogError: rows of a changelog without a known operation or a place in the sequence.
        StrayRowsError: a truncation in a write that addresses a slice, if the table keeps tombstones.
    """
    truncation = _truncation(frame, table.dataset)
    if truncation is not None and within is not None and table.dataset.keeps_state:
        raise StrayRowsError(dataset=table.name, counts={"truncations": 1}, slice=str(within), total_rows=1)
    is_whole = within is None and isinstance(table.dataset.write, Merge) and table.dataset.write.delete_missing
    touched = None if is_whole else touched_partitions(frame, table.dataset, within)
    rows = merge_query(table.dataset, view, within, truncation, stored_tombstones(table, touched))
    if is_whole or (within is not None and deletes_missing(table.dataset, truncation)):
        rows = _with_missing(table, rows, within)
    return clauses.merge_plan(table, rows, within=within, touched=touched, truncated_at=truncation)


def _truncation(frame: DataFrame, dataset: Dataset) -> str | None:
    """A literal of the place of a frame's newest truncation. If there is none, None. For a changelog, one Spark job."""
    changelog = changelog_of(dataset.write)
    return None if changelog is None else truncated_at(frame, dataset, changelog)


def stored_tombstones(table: TableRef, touched: Slice | None = None) -> StoredTombstones | None:
    """The tombstones of a table for a write of today. If it keeps none, None.

    Args:
        touched: the partitions that the keys of the frame can be in. If None, any.
    """
    if not table.dataset.keeps_state:
        return None
    inside = None if touched is None else touched.predicate(table.dataset, of="stored")
    return StoredTombstones(_today(), sql.path_table(table.location), inside)


def _today() -> dt.date:
    return dt.datetime.now(dt.timezone.utc).date()


def touched_partitions(frame: DataFrame, dataset: Dataset, within: Slice | None) -> Slice | None:
    """The partitions that the keys of a frame can be in. If they are many, or can't be named, None.

    One Spark job if the whole table is addressed and keys determine partitions, else none.
    """
    if within is not None:
        return within if within.boxes and set(within.columns) <= set(dataset.keys) else None
    if not addresses_partitions(dataset):
        return None
    try:
        return of_rows(frame, dataset.partition_by, TOUCHED_PARTITIONS)
    except Unaddressable:
        return None


def refuse_unusable_conditions(frame: DataFrame, dataset: Dataset) -> None:
    """Refuse conditions of the write mode that Spark can't analyse over the frame and the table. No Spark job.

    Raises:
        ExpressionError: the condition does not parse, names an unknown column, or is not boolean.
    """
    if not isinstance(dataset.write, Merge):
        return
    source, target = frame.alias(SOURCE), frame.selectExpr(*map(sql.identifier, dataset.schema.names)).alias(TARGET)
    conditions = {"delete_when": dataset.write.delete_when, "update_when": dataset.write.update_when}
    for part, condition in conditions.items():
        if condition is None:
            continue
        try:
            # A Connect client analyses the condition only when it needs the schema.
            used = (
                source.filter(f"({condition})")
                if part == "delete_when"
                else source.join(target, F.expr(f"({condition})"))
            )
            used.schema  # noqa: B018
        except SPARK_ERRORS as error:
            reason = failure_of(error).summary
            raise ExpressionError(dataset=dataset.name, part=part, expression=condition, reason=reason) from error


# --- rows that are refused --------------------------------------------------------------------------------------------


def stored_rows(frame: DataFrame, dataset: Dataset) -> tuple[DataFrame, tuple[str, ...]]:
    """The rows of a frame that will be stored, and the columns in which a NULL may mean the value in the table."""
    stored = stored_condition(dataset)
    return (frame if stored is None else frame.filter(stored)), kept_columns(dataset)


def stored_condition(dataset: Dataset) -> str | None:
    """SQL over the frame that is true for a row that will be stored. If all are, None."""
    changelog = changelog_of(dataset.write)
    if changelog is not None:
        return is_row(changelog)
    deletes = _deletes(dataset.write) if isinstance(dataset.write, Merge) else None
    return None if deletes is None else f"NOT {deletes}"


def kept_columns(dataset: Dataset) -> tuple[str, ...]:
    """The columns in which a NULL may mean the value in the table."""
    changelog = changelog_of(dataset.write)
    return () if changelog is None else changelog.ignore_nulls


def _deletes(mode: Merge) -> str | None:
    """SQL over the frame that is true for a row that deletes its key. If none does, None."""
    return None if mode.delete_when is None else f"coalesce(({mode.delete_when}), FALSE)"


def repeated_keys(frame: DataFrame, dataset: Dataset) -> tuple[dict[str, int], int]:
    """Row counts of keys with several rows, if nothing decides between the rows, and the number of such keys."""
    mode = dataset.write
    if isinstance(mode, InsertNew):
        return constraints.duplicate_keys(frame, dataset.keys, constraints.row_value(dataset.schema.fields))
    if isinstance(mode, Merge) and mode.order_by is None and mode.changelog is None:
        return constraints.duplicate_keys(frame, dataset.keys)
    return {}, 0


# --- the rows of the source -------------------------------------------------------------------------------------------


def merge_query(
    dataset: Dataset, view: str, within: Slice | None, truncated_at: str | None = None,
    tombstones: StoredTombstones | None = None,
) -> MergeQuery:  # fmt: skip
    """The rows to merge from the frame that has this view's name.

    Args:
        truncated_at: for a changelog, a literal of the newest truncation's place in the sequence.
        tombstones: those of the table, if it keeps some.
    """
    mode = dataset.write
    if isinstance(mode, InsertNew):
        return MergeQuery(_distinct(dataset, view, within))
    assert isinstance(mode, Merge)  # noqa: S101
    if mode.changelog is not None:
        query = net_change_query(dataset, mode.changelog, view, within, truncated_at, tombstones=tombstones)
        own = Helpers(dataset)
        columns = (own.at, own.ended, own.alive, *(own.kept(name) for name in mode.changelog.ignore_nulls))
        rows = MergeQuery(query, f"NOT {sql.column(own.alive, SOURCE)}", columns)
        return rows if tombstones is None else replace(rows, state=own.state, states=tombstones.states)
    deletes = _deletes(mode)
    query = _newest(dataset, mode, view, within, deletes)
    flag = _flag(dataset)
    return MergeQuery(query, sql.column(flag, SOURCE), (flag,)) if deletes else MergeQuery(query)


def _flag(dataset: Dataset) -> str:
    """The column that says whether a row of the source deletes its key."""
    return sql.helper_name(dataset, "deletes key")


def _rank(dataset: Dataset) -> str:
    """The column of a row's rank among those of its key, quoted."""
    return sql.identifier(sql.helper_name(dataset, "row rank"))


def _with_missing(table: TableRef, rows: MergeQuery, within: Slice | None) -> MergeQuery:
    """The rows, and one row for each key that they lack but the table, or its slice, has.

    Delta's own clause for such rows rewrites every file of the table, whatever its condition, and conflicts with the
    writers of all other partitions. Delta also rewrites every file that has a matched key. So if the whole table is
    merged, rows that would update nothing are left out.
    """
    missing = sql.helper_name(table.dataset, "is missing")
    same = " AND ".join(same_key(table.dataset, key) for key in table.dataset.keys)
    keys = [sql.column(name, TARGET) if name in table.dataset.keys else "NULL" for name in table.dataset.schema.names]
    missing_row = ", ".join([*keys, *("NULL" for _ in rows.columns), "TRUE"])
    target = f"{sql.path_table(table.location)} AS {TARGET}"
    updates = _updates_when(table.dataset) if within is None else None
    no_updates = f" AS {SOURCE} LEFT ANTI JOIN {target} ON {same} AND NOT coalesce({updates}, FALSE)" if updates else ""
    inside = "" if within is None else f" WHERE {within.predicate(table.dataset, of=TARGET)}"
    query = (
        f"WITH rows AS ({rows.query}) SELECT *, FALSE AS {sql.identifier(missing)} FROM rows{no_updates} "
        f"UNION ALL SELECT {missing_row} FROM {target} LEFT ANTI JOIN rows AS {SOURCE} ON {same}{inside}"
    )
    return replace(rows, query=query, missing=sql.column(missing, SOURCE))


def _updates_when(dataset: Dataset) -> str | None:
    """SQL over both sides that is true if a row updates its match. If every row updates or may delete it, None."""
    mode = dataset.write
    assert isinstance(mode, Merge)  # noqa: S101
    is_newer = newer(dataset, sql.column(mode.order_by, SOURCE)) if mode.order_by else None
    conditions = [condition for condition in (is_newer, mode.update_when) if condition is not None]
    return f"({all_of(conditions)})" if conditions and mode.delete_when is None else None


def first_load_queries(frame: DataFrame, dataset: Dataset, view: str) -> tuple[str, str]:
    """The query of what a merge of the frame makes of an empty table, and that of the dataset's rows among it.

    Raises:
        As `merge_plan` does.
    """
    tombstones = StoredTombstones(_today()) if dataset.keeps_state else None
    rows = merge_query(dataset, view, None, _truncation(frame, dataset), tombstones)
    alive = f" WHERE NOT {rows.deletes}" if rows.deletes else ""
    columns, source = sql.names(dataset.schema.names), f"FROM ({rows.query}) AS {SOURCE}"
    query = f"SELECT {columns} {source}{alive}"
    if rows.state is None:
        return query, query
    state = sql.column(rows.state, SOURCE)
    return f"SELECT {columns}, {state} AS {sql.identifier(STATE_COLUMN)} {source}{alive} OR {state} IS NOT NULL", query


def _distinct(dataset: Dataset, view: str, within: Slice | None) -> str:
    """One row of each group of rows that are equal in every column."""
    row, keys, rank = constraints.row_value(dataset.schema.fields), sql.names(dataset.keys), _rank(dataset)
    guards = [f"WHEN NOT (min({row}) OVER by_key <=> max({row}) OVER by_key) THEN raise_error('duplicate key')"]
    columns = constraints.guarded_columns(dataset, within, guards)
    ranked = f"row_number() OVER (PARTITION BY {keys} ORDER BY {row}) AS {rank}"
    inner = f"SELECT {', '.join(columns)}, {ranked} FROM {sql.identifier(view)} WINDOW by_key AS (PARTITION BY {keys})"
    return f"SELECT {sql.names(dataset.schema.names)} FROM ({inner}) WHERE {rank} = 1"


def _newest(dataset: Dataset, mode: Merge, view: str, within: Slice | None, deletes: str | None) -> str:
    """The row of each key with the greatest order. Without an order column, two rows of a key raise."""
    keys, table = sql.names(dataset.keys), sql.identifier(view)
    flag = [f"{deletes} AS {sql.identifier(_flag(dataset))}"] if deletes else []
    stored = sql.names((*dataset.schema.names, *([_flag(dataset)] if deletes else [])))
    if mode.order_by is None:
        guard = [f"WHEN count(*) OVER (PARTITION BY {keys}) > 1 THEN raise_error('duplicate key')"]
        return f"SELECT {', '.join([*constraints.guarded_columns(dataset, within, guard), *flag])} FROM {table}"
    order = f"{sql.identifier(mode.order_by)} DESC NULLS LAST"
    # At equal order a row that is stored wins over one that deletes, and then the greater row by declared columns.
    ties = [*([f"{deletes} ASC"] if deletes else []), f"{constraints.row_value(dataset.schema.fields)} DESC"]
    rank = f"row_number() OVER (PARTITION BY {keys} ORDER BY {', '.join([order, *ties])}) AS {_rank(dataset)}"
    inner = f"SELECT {', '.join([*constraints.guarded_columns(dataset, within, []), *flag, rank])} FROM {table}"
    return f"SELECT {stored} FROM ({inner}) WHERE {_rank(dataset)} = 1"
