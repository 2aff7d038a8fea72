"""The SQL statement of a write, by its write mode. It refuses rows that Delta itself would accept.

Here belong append and replace. The statement of a merge belongs to `merge`.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import DataFrame

from pipeline.dataset import Dataset, History, InsertNew, Merge, Replace, TableRef
from pipeline.delta import sql
from pipeline.delta.sql import constraints
from pipeline.delta.sql.slices import Slice
from pipeline.delta.write import merge
from pipeline.delta.write.history import history_statement


def write_statement(frame: DataFrame, table: TableRef, view: str, within: Slice | None, *, replace_all: bool) -> str:
    """The statement that writes the view `view` of the frame. With `replace_all`, only rows of the frame remain.

    A History keeps its past even then: the frame is a snapshot of the source.
    """
    # An empty slice is replaced by no rows. Delta would accept rows for `REPLACE WHERE FALSE`, the guard does not.
    holds_nothing = within is not None and not within.boxes
    if isinstance(table.dataset.write, History) and not holds_nothing:
        is_snapshot = table.dataset.write.from_snapshots or replace_all
        return history_statement(frame, table, view, within, is_snapshot=is_snapshot)
    if replace_all and isinstance(table.dataset.write, Merge | InsertNew):
        rows = merge.first_load_query(table.dataset, view)
        return f"INSERT OVERWRITE TABLE {sql.path_table(table.location)} BY NAME {rows}"
    if isinstance(table.dataset.write, Merge | InsertNew) and not holds_nothing:
        return merge.merge_statement(frame, table, view, within)
    target = sql.path_table(table.location)
    query = f"SELECT {', '.join(_guarded_columns(table.dataset, within))} FROM {sql.identifier(view)}"  # noqa: S608  all quoted
    if not (replace_all or isinstance(table.dataset.write, Replace)) or holds_nothing:
        return f"INSERT INTO {target} BY NAME {query}"
    if within is None:
        return f"INSERT OVERWRITE TABLE {target} BY NAME {query}"
    # As an option the predicate stays the same text. Spark turns a `REPLACE WHERE` into filters, and Delta turns these
    # into text again (`DeltaSourceUtils.translateFilters`): that fails for a list of decimals, bytes or times without a
    # zone, renders a date in the old calendar, and loses a boolean predicate that lists both values.
    option = f"'replaceWhere' = {sql.string(within.predicate(table.dataset))}"
    return f"INSERT OVERWRITE TABLE {target} WITH ({option}) BY NAME {query}"


def _guarded_columns(dataset: Dataset, within: Slice | None) -> Iterator[str]:
    """The declared columns. A partition column raises during the write if Delta would not refuse its value."""
    empty = constraints.lost_partition_conditions(dataset)
    # For a replace Delta enforces the slice. For an append nobody does, so the first column of the slice does it.
    is_unenforced = within is not None and (not isinstance(dataset.write, Replace) or not within.boxes)
    guarded_for_slice = (*(within.columns if within else ()), *dataset.schema.names)[:1] if is_unenforced else ()
    for name in dataset.schema.names:
        column = sql.identifier(name)
        cases = []
        if name in empty:
            cases.append(f"WHEN {empty[name]} THEN raise_error('empty partition value')")
        if within is not None and name in guarded_for_slice:
            cases.append(f"WHEN {constraints.outside_condition(dataset, within)} THEN raise_error('outside the slice')")
        yield f"CASE {' '.join(cases)} ELSE {column} END AS {column}" if cases else column
