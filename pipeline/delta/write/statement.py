"""How a write is said to Delta: one statement by the write mode, which refuses what Delta itself would take.

Here belong an append and a replace; how a merge is said is `merge`'s.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import DataFrame

from pipeline.dataset import Dataset, InsertNew, Merge, Replace
from pipeline.delta import sql
from pipeline.delta.sql import constraints
from pipeline.delta.sql.slices import Slice
from pipeline.delta.write import merge


def write_statement(
    frame: DataFrame, dataset: Dataset, location: str, view: str, within: Slice | None, *, replace_all: bool
) -> str:
    """The statement that writes the view `view` of the frame; with `replace_all` only the rows of the frame remain."""
    # A slice of nothing is replaced by nothing; Delta would take rows for `REPLACE WHERE FALSE`, the guard does not.
    holds_nothing = within is not None and not within.boxes
    if replace_all and isinstance(dataset.write, Merge | InsertNew):
        return f"INSERT OVERWRITE TABLE {sql.path_table(location)} BY NAME {merge.first_load_query(dataset, view)}"
    if isinstance(dataset.write, Merge | InsertNew) and not holds_nothing:
        return merge.merge_statement(frame, dataset, location, view, within)
    target = sql.path_table(location)
    query = f"SELECT {', '.join(_guarded_columns(dataset, within))} FROM {sql.identifier(view)}"  # noqa: S608  all quoted
    if not (replace_all or isinstance(dataset.write, Replace)) or holds_nothing:
        return f"INSERT INTO {target} BY NAME {query}"
    if within is None:
        return f"INSERT OVERWRITE TABLE {target} BY NAME {query}"
    # As an option the predicate stays the text that it is. Of `REPLACE WHERE` Spark makes filters first, and Delta text
    # of those again (`DeltaSourceUtils.translateFilters`): it fails at a list of decimals, bytes or times without a
    # zone, renders a date by the old calendar, and is told of no boolean where both values are listed.
    option = f"'replaceWhere' = {sql.string(within.predicate(dataset))}"
    return f"INSERT OVERWRITE TABLE {target} WITH ({option}) BY NAME {query}"


def _guarded_columns(dataset: Dataset, within: Slice | None) -> Iterator[str]:
    """The declared columns; a partition column raises inside the write where Delta would not refuse by itself."""
    empty = constraints.empty_partition_conditions(dataset)
    # A replace has Delta hold the slice; an append has nobody, so the first column of the slice does.
    is_unheld = within is not None and (not isinstance(dataset.write, Replace) or not within.boxes)
    guarded_for_slice = (*(within.columns if within else ()), *dataset.schema.names)[:1] if is_unheld else ()
    for name in dataset.schema.names:
        column = sql.identifier(name)
        cases = []
        if name in empty:
            cases.append(f"WHEN {empty[name]} THEN raise_error('empty partition value')")
        if within is not None and name in guarded_for_slice:
            cases.append(f"WHEN {constraints.outside_condition(dataset, within)} THEN raise_error('outside the slice')")
        yield f"CASE {' '.join(cases)} ELSE {column} END AS {column}" if cases else column
