"""The statement of a write, by its write mode, and the rows of the table after it. It refuses what Delta would accept.

Here belong append, replace, and a replace of the whole table with its schema. The latter is the only statement that is
not SQL: Delta replaces a schema and the rows in one commit only through the writer of a DataFrame. That writer makes
every column nullable, so the query here enforces the declared NOT NULL and the checks, and a later commit puts them in
force. The statement of a merge belongs to `merge`, that of a History to `history`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pipeline.dataset import Dataset, History, InsertNew, Merge, Replace, TableRef
from pipeline.delta import sql
from pipeline.delta.log.mark import CommitNote, Mark, private_session, write_confs
from pipeline.delta.sql import constraints
from pipeline.delta.sql.slices import Slice
from pipeline.delta.table.apply import Applied
from pipeline.delta.table.open_table import require_table
from pipeline.delta.table.plan import observed_shape, shape_differences
from pipeline.delta.table.steps import DropCheck
from pipeline.delta.write import merge
from pipeline.delta.write.history import history_statement


@dataclass(frozen=True)
class Statement:
    """The text of a statement, and by the name of a relation with the table's rows, the query of its rows after it.

    `rows_after` is None for a History: its rows are known only after the statement. `is_all`: the rows of the table
    after it are those of the view.
    """

    text: str
    rows_after: Callable[[str], str] | None = None
    is_all: bool = False


def write_statement(
    frame: DataFrame, table: TableRef, view: str, within: Slice | None, *, replace_all: bool
) -> Statement:  # fmt: skip
    """The statement that writes the view `view` of the frame. With `replace_all`, only rows of the frame remain.

    A History keeps its past even then: the frame is a snapshot of the source.
    """
    dataset, target = table.dataset, sql.path_table(table.location)
    # An empty slice is replaced by no rows. Delta would accept rows for `REPLACE WHERE FALSE`, the guard does not.
    holds_nothing = within is not None and not within.boxes
    if isinstance(dataset.write, History) and not holds_nothing:
        is_snapshot = dataset.write.from_snapshots or replace_all
        return Statement(history_statement(frame, table, view, within, is_snapshot=is_snapshot))
    if replace_all and isinstance(dataset.write, Merge | InsertNew):
        query, of_dataset = merge.first_load_queries(frame, dataset, view)
        return Statement(f"INSERT OVERWRITE TABLE {target} BY NAME {query}", lambda _: of_dataset)
    if isinstance(dataset.write, Merge | InsertNew) and not holds_nothing:
        plan = merge.merge_plan(frame, table, view, within)
        return Statement(plan.statement, plan.rows_after)
    query = f"SELECT {', '.join(_guarded_columns(dataset, within))} FROM {sql.identifier(view)}"  # noqa: S608  all quoted
    columns = sql.names(dataset.schema.names)
    rows = f"SELECT {columns} FROM {sql.identifier(view)}"  # noqa: S608  all quoted
    if not (replace_all or isinstance(dataset.write, Replace)) or holds_nothing:
        kept = f"SELECT {columns} FROM {{}}"  # noqa: S608  all quoted
        return Statement(f"INSERT INTO {target} BY NAME {query}", lambda old: f"{kept.format(old)} UNION ALL {rows}")
    if within is None:
        return Statement(f"INSERT OVERWRITE TABLE {target} BY NAME {query}", lambda _: rows, is_all=True)
    outside = constraints.outside_condition(dataset, within)
    # As an option the predicate stays the same text. Spark turns a `REPLACE WHERE` into filters, and Delta turns these
    # into text again (`DeltaSourceUtils.translateFilters`): that fails for a list of decimals, bytes or times without a
    # zone, renders a date in the old calendar, and loses a boolean predicate that lists both values.
    option = f"'replaceWhere' = {sql.string(within.predicate(dataset))}"
    return Statement(
        f"INSERT OVERWRITE TABLE {target} WITH ({option}) BY NAME {query}",
        lambda old: f"SELECT {columns} FROM {old} WHERE {outside} UNION ALL {rows}",  # noqa: S608  all quoted
    )


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


# --- a replace of the whole table with its schema ---------------------------------------------------------------------


def overwrite(clone: SparkSession, table: TableRef, opened: Applied, view: str) -> tuple[str, ...]:
    """Replace the table and its schema by the rows of the view. Return the partition columns by their names in the log.

    Checks that are not declared are dropped first, since they may name columns that the schema loses. Their commits
    have a mark of their own: if the write fails, they must not be mistaken for the commit of the rows.
    """
    dataset = table.dataset
    note = CommitNote(mark=Mark(writer=f"{dataset.name}/conform"))
    for name, condition in observed_shape(opened.after).checks.items():
        if name.lower() not in {check.name.lower() for check in dataset.checks}:
            with private_session(clone, write_confs(note, clone, dataset.fingerprint)) as other:
                other.sql(DropCheck(name=name, before=condition).statement(table.location)).collect()
    rows = clone.sql(f"SELECT {', '.join(_enforced_columns(dataset))} FROM {sql.identifier(view)}")  # noqa: S608  all quoted
    writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    writer.partitionBy(*dataset.partition_by).save(table.location)
    return require_table(clone, table).log_partition_by


def _enforced_columns(dataset: Dataset) -> list[str]:
    broken = {
        **constraints.lost_partition_conditions(dataset),
        **constraints.null_conditions(dataset.schema),
        **{f"check {name}": condition for name, condition in constraints.check_conditions(dataset).items()},
    }
    columns = [sql.identifier(name) for name in dataset.schema.names]
    if broken:
        rule = " OR ".join(f"({condition})" for condition in broken.values())
        columns[0] = f"CASE WHEN {rule} THEN raise_error('broken') ELSE {columns[0]} END AS {columns[0]}"
    return columns


def evolution(dataset: Dataset, tables: Sequence[Applied]) -> dict[str, Any]:
    """The changes that a write's attempts made to the table's schema, as fields of its result. If none, empty."""
    changes = tuple(step for table in tables for step in table.steps)
    if tables[-1].overwrites:
        changes += tuple(shape_differences(dataset, tables[-1].after))
    return {"fingerprint_before": tables[0].before.fingerprint, "schema_changes": changes} if changes else {}
