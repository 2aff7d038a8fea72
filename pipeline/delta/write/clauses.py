"""The clauses of a MERGE: as the text of the statement, and as the query of the table's rows after it.

Here belongs what happens to a row of the source and to a row of the table. The rows of the source belong to `merge`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pipeline.dataset import Dataset, InsertNew, Merge, TableRef
from pipeline.dataset.history import STATE_COLUMN
from pipeline.delta import sql
from pipeline.delta.sql.slices import Slice
from pipeline.delta.write.changelog import Helpers

SOURCE, TARGET = "source", "target"
_ORDER = ("MATCHED", "NOT MATCHED", "NOT MATCHED BY SOURCE")


@dataclass(frozen=True)
class MergeQuery:
    """The rows of a merge: the query that makes them from the frame, at most one a key.

    `deletes` is SQL over `query` that is true for a row that only deletes; None if no row does. `columns` are the
    query's columns besides the declared ones. `missing` is SQL that is true for a row that represents a row of the
    table which the frame lacks; None if the query has no such rows.
    `state` is the column that has the `STATE_COLUMN` of a row: NULL in a row of the dataset, and one of `states` in a
    row of state, of which there is at most one a key and value. If the table has no rows of state, None.
    """

    query: str
    deletes: str | None = None
    columns: tuple[str, ...] = ()
    missing: str | None = None
    state: str | None = None
    states: tuple[str, ...] = ()


def order_column(dataset: Dataset) -> str | None:
    """The stored column that orders the rows of a key."""
    assert isinstance(dataset.write, Merge)  # noqa: S101
    changelog = dataset.write.changelog
    if changelog is None:
        return dataset.write.order_by
    return changelog.sequence if changelog.sequence in dataset.schema.names else None


# --- the statement ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clause:
    """What happens to rows: of the first clause whose condition holds. `values` are SQL by column."""

    match: Literal["MATCHED", "NOT MATCHED", "NOT MATCHED BY SOURCE"]
    condition: str
    action: Literal["DELETE", "UPDATE", "INSERT"]
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The clause in a MERGE."""
        action = "DELETE"
        if self.action == "UPDATE":
            assigned = (f"{sql.column(name, TARGET)} = {value}" for name, value in self.values.items())
            action = f"UPDATE SET {', '.join(assigned)}"
        elif self.action == "INSERT":
            action = f"INSERT ({sql.names(self.values)}) VALUES ({', '.join(self.values.values())})"
        return f"WHEN {self.match} AND {self.condition} THEN {action}"


@dataclass(frozen=True)
class MergePlan:
    """The MERGE of `rows` into the table: the condition under which rows match, and the clauses."""

    table: TableRef
    rows: MergeQuery
    on: str
    clauses: tuple[Clause, ...]

    @property
    def statement(self) -> str:
        """The text of the MERGE."""
        into = f"MERGE INTO {sql.path_table(self.table.location)} AS {TARGET} USING ({self.rows.query}) AS {SOURCE}"
        return f"{into} ON {self.on} {' '.join(clause.text for clause in self.clauses)}"

    def rows_after(self, relation: str) -> str:
        """The query of the dataset's rows after the MERGE, if those before it are the rows of the named relation."""
        dataset, state = self.table.dataset, self.rows.state
        held, given, number = (sql.helper_name(dataset, name) for name in ("is held", "is given", "clause"))
        is_held, is_given = (f"{sql.column(*pair)} IS NOT NULL" for pair in ((held, TARGET), (given, SOURCE)))
        where = {
            "MATCHED": f"{is_held} AND {is_given}", "NOT MATCHED": f"NOT {is_held} AND {is_given}",
            "NOT MATCHED BY SOURCE": f"{is_held} AND NOT {is_given}",
        }  # fmt: skip
        cases = (f"WHEN {where[c.match]} AND {c.condition} THEN {n}" for n, c in enumerate(self.clauses))
        of_dataset, given_only = "", ""
        if state is not None:
            of_dataset = f", CAST(NULL AS STRING) AS {sql.identifier(STATE_COLUMN)}"
            given_only = f" WHERE {sql.identifier(state)} IS NULL"
        sides = (
            f"(SELECT *, TRUE AS {sql.identifier(held)}{of_dataset} FROM {relation}) AS {TARGET} FULL OUTER JOIN "
            f"(SELECT *, TRUE AS {sql.identifier(given)} FROM ({self.rows.query}){given_only}) AS {SOURCE} ON {self.on}"
        )
        joined = f"SELECT struct({TARGET}.*) AS {TARGET}, struct({SOURCE}.*) AS {SOURCE} FROM {sides}"
        decided = f"SELECT *, CASE {' '.join(cases)} ELSE -1 END AS {sql.identifier(number)} FROM ({joined})"
        deleted = ", ".join(str(n) for n, c in enumerate(self.clauses) if c.action == "DELETE") or "-2"
        inserted = ", ".join(str(n) for n, c in enumerate(self.clauses) if c.action == "INSERT") or "-2"
        chosen = sql.identifier(number)
        kept = f"{chosen} NOT IN ({deleted}) AND ({is_held} OR {chosen} IN ({inserted}))"
        columns = (self._value(name, chosen) for name in dataset.schema.names)
        return f"SELECT {', '.join(columns)} FROM ({decided}) WHERE {kept}"

    def _value(self, name: str, number: str) -> str:
        set_by = {n: clause.values[name] for n, clause in enumerate(self.clauses) if name in clause.values}
        cases = " ".join(f"WHEN {number} = {n} THEN {value}" for n, value in set_by.items())
        return f"CASE {cases} ELSE {sql.column(name, TARGET)} END AS {sql.identifier(name)}"


def merge_plan(
    table: TableRef, rows: MergeQuery, *, within: Slice | None, touched: Slice | None,
    truncated_at: str | None = None,
) -> MergePlan:  # fmt: skip
    """The MERGE of the rows into the table.

    Args:
        within: the slice of the run. Outside it only rows that the frame names are deleted.
        touched: the partitions that the rows can match, if the key determines them. They are repeated as literals, so
            that writers of other partitions don't conflict.
        truncated_at: as in `merge_query`.
    """
    on = [same_key(table.dataset, key) for key in table.dataset.keys]
    if touched is not None:
        on.append(f"({touched.predicate(table.dataset, of=TARGET)})")
    on += _same_state(rows)
    clauses = [*_clauses(table.dataset, rows), *_by_source(table.dataset, rows, within, truncated_at)]
    if rows.missing is not None:
        is_deleted = all_of([rows.missing, _older(table.dataset, truncated_at)])
        clauses.insert(0, Clause("MATCHED", is_deleted, "DELETE"))
    # Spark's grammar wants the clauses of matches first. Of these, those of state decide before the others.
    clauses = sorted([*_of_state(table.dataset, rows), *clauses], key=lambda clause: _ORDER.index(clause.match))
    return MergePlan(table, rows, " AND ".join(on), tuple(clauses))


def _same_state(rows: MergeQuery) -> Iterator[str]:
    """SQL over both sides: a row of the dataset matches one of the dataset, and a row of state one of the same state.

    The states are named, so that Delta looks into no other partition of them.
    """
    if rows.state is not None:
        target, named = sql.column(STATE_COLUMN, TARGET), ", ".join(map(sql.string, rows.states))
        yield f"{target} <=> {sql.column(rows.state, SOURCE)}"
        yield f"({target} IS NULL OR {target} IN ({named}))"


def _of_state(dataset: Dataset, rows: MergeQuery) -> Iterator[Clause]:
    """What happens to rows of state: one that is there gets the place of the newer one."""
    if rows.state is None:
        return
    is_state, order = f"{sql.column(rows.state, SOURCE)} IS NOT NULL", order_column(dataset)
    assert order is not None  # noqa: S101  the declaration of tombstones needs it
    inserted = {name: sql.column(name, SOURCE) for name in dataset.schema.names}
    yield Clause("MATCHED", is_state, "UPDATE", {order: inserted[order]})
    yield Clause("NOT MATCHED", is_state, "INSERT", inserted | {STATE_COLUMN: sql.column(rows.state, SOURCE)})


def deletes_missing(dataset: Dataset, truncated_at: str | None) -> bool:
    """Whether rows of the table that the frame lacks are deleted."""
    return isinstance(dataset.write, Merge) and (dataset.write.delete_missing or truncated_at is not None)


def same_key(dataset: Dataset, key: str) -> str:
    """SQL over both sides that is true if they have the same value in a key column."""
    # Only if NULL can occur: a plain equation can be pushed down and joined by hash.
    operator = "<=>" if dataset.field(key).nullable else "="
    return f"{sql.column(key, TARGET)} {operator} {sql.column(key, SOURCE)}"


def _clauses(dataset: Dataset, rows: MergeQuery) -> Iterator[Clause]:
    mode, names = dataset.write, dataset.schema.names
    inserted = dict(zip(names, (sql.column(name, SOURCE) for name in names), strict=True))
    if isinstance(mode, InsertNew):
        yield Clause("NOT MATCHED", "TRUE", "INSERT", inserted)
        return
    assert isinstance(mode, Merge)  # noqa: S101
    deletes = all_of([rows.deletes, None if rows.missing is None else f"NOT {rows.missing}"]) if rows.deletes else None
    alive = all_of([None if flag is None else f"NOT {flag}" for flag in (rows.missing, rows.deletes)])
    if mode.changelog is None:
        is_newer = newer(dataset, f"{SOURCE}.{sql.identifier(mode.order_by)}") if mode.order_by else "TRUE"
        if deletes:
            yield Clause("MATCHED", f"{deletes} AND {is_newer}", "DELETE")
        yield _update(mode, [alive, is_newer], {name: inserted[name] for name in _updated(dataset, mode)})
    else:
        own = Helpers(dataset)
        at = sql.column(own.at, SOURCE)
        unchanged_if_null = {name: sql.column(own.kept(name), SOURCE) for name in mode.changelog.ignore_nulls}
        is_past, is_newer = is_ended(dataset), newer(dataset, at)
        inserted |= {name: f"{pair}.value" for name, pair in unchanged_if_null.items()}
        partly = {name: inserted[name] for name in _updated(dataset, mode)} | {
            name: f"CASE WHEN {newer(dataset, f'{pair}.at')} "
            f"THEN coalesce({inserted[name]}, {sql.column(name, TARGET)}) ELSE {sql.column(name, TARGET)} END"
            for name, pair in unchanged_if_null.items()
            if name in _updated(dataset, mode)
        }
        yield Clause("MATCHED", f"{deletes} AND {is_past}", "DELETE")
        # A row after the end of the table's row is a new row: it keeps no value of the old one.
        yield Clause("MATCHED", f"{alive} AND {is_past}", "UPDATE", inserted)
        yield _update(mode, [alive, is_newer], partly)
    yield Clause("NOT MATCHED", alive, "INSERT", inserted)


def all_of(conditions: Iterable[str | None]) -> str:
    """SQL that is true if all conditions are."""
    return " AND ".join(f"({condition})" for condition in conditions if condition is not None) or "TRUE"


def newer(dataset: Dataset, place: str) -> str:
    """SQL that is true if a place in the order is after the table's row, which wins a tie. NULL is the least."""
    column = order_column(dataset)
    if column is None:
        return "TRUE"
    stored = sql.column(column, TARGET)
    return f"coalesce({place} > {stored}, {place} IS NOT NULL AND {stored} IS NULL)"


def is_ended(dataset: Dataset) -> str:
    """SQL over both sides that is true if the net change of a changelog ends the table's row before its own row."""
    ended = sql.column(Helpers(dataset).ended, SOURCE)
    return f"({ended} IS NOT NULL AND {newer(dataset, ended)})"


def _updated(dataset: Dataset, mode: Merge) -> list[str]:
    """The columns that an update sets. The order column is always one, or late data would win the next time."""
    listed = set(mode.update_columns) or set(dataset.schema.names) - set(mode.keep_columns)
    return [name for name in dataset.schema.names if name in listed | {order_column(dataset)}]


def _update(mode: Merge, conditions: list[str], values: dict[str, str]) -> Clause:
    every = [*conditions, *([f"({mode.update_when})"] if mode.update_when is not None else [])]
    return Clause("MATCHED", " AND ".join(every), "UPDATE", values)


def _older(dataset: Dataset, truncated_at: str | None) -> str | None:
    """Whether the table's row is older than the truncation. If there is no truncation or no order column, None."""
    return None if truncated_at is None or order_column(dataset) is None else newer(dataset, truncated_at)


def _by_source(
    dataset: Dataset, rows: MergeQuery, within: Slice | None, truncated_at: str | None
) -> Iterator[Clause]:  # fmt: skip
    """What happens to rows of the table that the frame lacks, if the run addresses the whole table."""
    if within is None and rows.missing is None and deletes_missing(dataset, truncated_at):
        of_dataset = None if rows.state is None else f"{sql.column(STATE_COLUMN, TARGET)} IS NULL"
        yield Clause("NOT MATCHED BY SOURCE", all_of([of_dataset, _older(dataset, truncated_at)]), "DELETE")
