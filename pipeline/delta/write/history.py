"""The history of keys: a frame becomes spans, by one MERGE of the rows that differ from those of the table.

Here belong the statement of a `History`, and the snapshots that it refuses. Reading operation codes belongs to
`changelog`.

What a key went through is a set of points. At the place of a point there is a row, an end, or both. The table keeps all
points of a key: a point is a span if it opens one and has the values of the span, and else a row of its own in a
partition of `STATE_COLUMN`. A write reads the points of the keys that its frame has, adds its own, and derives the
spans again. The union of sets does not depend on an order, so neither do the spans.

A truncation is one row of state for all keys, and so is a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from pipeline.dataset import History, TableRef
from pipeline.dataset.history import BEFORE, CHANGE, DELETION, SNAPSHOT, STATE_COLUMN, TRUNCATION
from pipeline.delta import sql
from pipeline.delta.sql import constraints
from pipeline.delta.sql.slices import Slice
from pipeline.delta.sql.state import IS_OF_DATASET, filler
from pipeline.delta.write.changelog import is_row, is_truncation, kind_of_change, newest_place, truncated_at
from pipeline.delta.write.clauses import SOURCE, TARGET
from pipeline.delta.write.merge import touched_partitions
from pipeline.errors import DeclarationError, SnapshotError, StrayRowsError

_STATE = sql.identifier(STATE_COLUMN)
# A row and its fields; the first one, so that a table of keys alone has a row too.
_ROW = "named_struct('is_row', TRUE{})"


def history_statement(frame: DataFrame, table: TableRef, view: str, within: Slice | None, *, is_snapshot: bool) -> str:
    """The MERGE of a frame that has this view's name. One Spark job reads the frame first; of a snapshot, two or three.

    Args:
        is_snapshot: whether the frame has all rows of the source.

    Raises:
        ChangelogError: rows without a place in the order, or without a known operation.
        DeclarationError: a snapshot for a table with partitions.
        SnapshotError: a snapshot that can't close the keys which it lacks, or another one of a known place.
        StrayRowsError: a truncation in a write that addresses a slice.
    """
    spans = _Spans(frame, table, view, within, is_snapshot=is_snapshot)
    if spans.taken is not None:
        spans.refuse_snapshot(frame)
    return spans.statement()


@dataclass(frozen=True)
class _Wanted:
    """A row that the table may have at the place of a point: its state, when it has it, and its values, all in SQL."""

    state: str
    condition: str
    until: str = "if(FALSE, until, NULL)"
    row: str = "if(FALSE, row, NULL)"


class _Spans:
    """One write of a History: the parts of its statement.

    In it the keys are `k0`, `k1` and so on, and all other columns that a frame has are fields of the struct `row`.
    """

    def __init__(
        self, frame: DataFrame, table: TableRef, view: str, within: Slice | None, *, is_snapshot: bool
    ) -> None:  # fmt: skip
        dataset = table.dataset
        assert isinstance(dataset.write, History)  # noqa: S101
        if is_snapshot and dataset.partition_by:
            problem = "a full frame of a History is a snapshot of all partitions; declare it without partition_by"
            raise DeclarationError(dataset=dataset.name, problems=(problem,))
        self.dataset, self.mode, self.within = dataset, dataset.write, within
        self.changelog = self.mode.changelog
        self.table, self.view = sql.path_table(table.location), sql.identifier(view)
        self.at, self.until = sql.identifier(self.mode.valid_from), sql.identifier(self.mode.valid_to)
        self.place_type = sql.bare_type(dataset.field(self.mode.valid_from).dataType)
        self._read_columns()
        self.truncated = None if self.changelog is None else truncated_at(frame, dataset, self.changelog)
        if self.truncated is not None and within is not None:
            raise StrayRowsError(dataset=dataset.name, counts={"truncations": 1}, slice=str(within), total_rows=1)
        is_ordered = self.changelog is None or is_snapshot
        newest = newest_place(frame, dataset, self.mode.sequence) if is_ordered else None
        self.taken = f"CAST({newest or 'NULL'} AS {self.place_type})" if is_snapshot else None
        touched = touched_partitions(frame, dataset, within)
        self.partitions = "" if touched is None else f" AND ({touched.predicate(dataset)})"
        self.merged_partitions = "" if touched is None else f" AND ({touched.predicate(dataset, of=TARGET)})"

    def _read_columns(self) -> None:
        computed, mode = {*self.dataset.keys, *self.mode.computed}, self.mode
        self.values = [field for field in self.dataset.schema.fields if field.name not in computed]
        names = [sql.identifier(key) for key in self.dataset.keys]
        self.k = ", ".join(f"k{n}" for n in range(len(names)))
        self.keys = ", ".join(f"{name} AS k{n}" for n, name in enumerate(names))
        fields = [f"'c{n}', {sql.identifier(field.name)}" for n, field in enumerate(self.values)]
        self.row = _ROW.format(", ".join(["", *fields]))
        ignored = () if self.changelog is None else self.changelog.ignore_nulls
        self.ignored = [n for n, field in enumerate(self.values) if field.name in ignored]
        untracked = (*mode.except_, mode.sequence)
        self.tracked = [
            n for n, field in enumerate(self.values)
            if (field.name in mode.track if mode.track else field.name not in untracked)
        ]  # fmt: skip

    def value(self, row: str, columns: Sequence[int] | None = None) -> str:
        """SQL for columns of a row as one value that can be compared; all columns if None."""
        chosen = range(len(self.values)) if columns is None else columns
        parts = [constraints.comparable(f"{row}.c{n}", self.values[n].dataType) for n in chosen]
        return f"struct({', '.join(['TRUE AS is_row', *parts])})"

    def same_key(self, left: str, right: str) -> str:
        """SQL that is true if rows of two relations have the same key."""
        return " AND ".join(f"{left}.k{n} <=> {right}.k{n}" for n in range(len(self.dataset.keys)))

    def over(self, *more: str, order: bool = True) -> str:
        """The window of the points of a key, in their order."""
        return f"OVER (PARTITION BY {', '.join([self.k, *more])}{' ORDER BY at' if order else ''})"

    # --- the statement ------------------------------------------------------------------------------------------------

    def statement(self) -> str:
        """The MERGE. A row of the source is a row of the table that changes, or that `is_gone`."""
        on = [f"{TARGET}.{_STATE} <=> {SOURCE}.state", f"{TARGET}.{self.at} = {SOURCE}.at"]
        for number, key in enumerate(self.dataset.keys):
            operator = "<=>" if self.dataset.field(key).nullable else "="
            on.append(f"{sql.column(key, TARGET)} {operator} {SOURCE}.k{number}")
        assigned = self._assigned()
        fixed = {*self.dataset.keys, self.mode.valid_from}
        updates = [f"{sql.column(name, TARGET)} = {v}" for name, v in assigned.items() if name not in fixed]
        inserted = f"({sql.names((*assigned, STATE_COLUMN))}) VALUES ({', '.join(assigned.values())}, {SOURCE}.state)"
        return (
            f"MERGE INTO {self.table} AS {TARGET} USING ({self._source()}) AS {SOURCE} "
            f"ON {' AND '.join(on)}{self.merged_partitions} WHEN MATCHED AND {SOURCE}.is_gone THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {', '.join(updates)} "
            f"WHEN NOT MATCHED AND NOT {SOURCE}.is_gone THEN INSERT {inserted}"
        )

    def _assigned(self) -> dict[str, str]:
        """SQL over the source for each declared column. Rows of state are empty spans with fillers."""
        assigned = {
            self.mode.valid_from: f"{SOURCE}.at",
            self.mode.valid_to: f"if({SOURCE}.state IS NULL, {SOURCE}.until, {SOURCE}.at)",
            self.mode.is_current or "": f"({SOURCE}.state IS NULL AND {SOURCE}.until IS NULL)",
        }
        of_all = f"{SOURCE}.state IN ('{TRUNCATION}', '{SNAPSHOT}')"
        for number, key in enumerate(self.dataset.keys):
            value = f"CASE WHEN {of_all} THEN {filler(self.dataset.field(key))} ELSE {SOURCE}.k{number} END"
            assigned[key] = value
        for number, field in enumerate(self.values):
            value = f"CASE WHEN {SOURCE}.row IS NULL THEN {filler(field)} ELSE {SOURCE}.row.c{number} END"
            assigned[field.name] = value
        return {name: assigned[name] for name in self.dataset.schema.names}

    def _source(self) -> str:
        stages = dict(self._stages())
        rows = [f"SELECT {self.k}, at, state, until, row, is_gone FROM changed"]
        if self.taken is not None:
            at = "CASE WHEN place = known THEN raise_error('another snapshot of this place') ELSE at END AS at"
            rows = [f"SELECT {self.k}, {at}, state, until, row, is_gone FROM changed CROSS JOIN known"]
        nulls = [
            f"CAST(NULL AS {sql.bare_type(self.dataset.field(key).dataType)}) AS k{n}"
            for n, key in enumerate(self.dataset.keys)
        ]
        for state in (TRUNCATION, SNAPSHOT):
            if state in stages:
                values = f"'{state}' AS state, CAST(NULL AS {self.place_type}) AS until, NULL AS row, FALSE AS is_gone"
                rows.append(f"SELECT {', '.join(nulls)}, at, {values} FROM {state}")
        return f"{self._with(stages)} {' UNION ALL '.join(rows)}"

    def _with(self, stages: Mapping[str, str]) -> str:
        return f"WITH {', '.join(f'{name} AS ({query})' for name, query in stages.items())}"

    def _stages(self) -> Iterator[tuple[str, str]]:
        """The queries of the source, each after those that it needs."""
        yield from self._changes()
        if self.truncated is not None:
            known = f"(SELECT {self.at} AS at FROM {self.table} WHERE {_STATE} = '{TRUNCATION}')"
            cuts = f"(SELECT DISTINCT {self.at} AS at FROM {self.view} WHERE {self._is_cut})"
            yield TRUNCATION, f"SELECT c.at FROM {cuts} AS c LEFT ANTI JOIN {known} AS k ON c.at = k.at"
        if self.taken is None:
            yield "given", "SELECT * FROM changes"
        else:
            yield from self._missing(self.taken)
        yield "stored", self._stored()
        yield from self._points()
        yield from self._spans()
        yield "compared", self._compared()
        changed = f"SELECT {self.k}, at, e.state, e.until, e.row, e.is_gone"
        yield "changed", f"{changed} FROM compared LATERAL VIEW explode(changes) AS e"

    @property
    def _is_cut(self) -> str:
        return "FALSE" if self.changelog is None else is_truncation(self.changelog)

    # --- the points ---------------------------------------------------------------------------------------------------

    def _changes(self) -> Iterator[tuple[str, str]]:
        """The changes of the frame without its truncations, each a point."""
        changelog = self.changelog
        kind, alive = ("'row'", "TRUE") if changelog is None else (kind_of_change(changelog), is_row(changelog))
        guarded = ", ".join(constraints.guarded_columns(self.dataset, self.within, [], alive))
        own = sql.identifier(sql.helper_name(self.dataset, "change kind"))
        yield "guarded", f"SELECT {guarded}, {kind} AS {own} FROM {self.view} WHERE NOT ({self._is_cut})"
        # Only if NULL may mean the value before does it matter whether the row was deleted before an update.
        before = BEFORE if self.ignored else DELETION
        state = f"CASE {own} WHEN 'delete' THEN '{DELETION}' WHEN 'before' THEN '{before}' ELSE '{CHANGE}' END"
        row = f"CASE WHEN {own} = 'row' THEN {self.row} END"
        yield "changes", f"SELECT {self.keys}, {self.at} AS at, {state} AS state, {row} AS row FROM guarded"

    def _missing(self, taken: str) -> Iterator[tuple[str, str]]:
        """The points of a snapshot: its rows that differ from the open ones, and a deletion of each key it lacks."""
        known = f"SELECT {taken} AS place, max({self.at}) AS known FROM {self.table} WHERE {_STATE} = '{SNAPSHOT}'"
        yield "known", known
        late = "CASE WHEN place < known THEN raise_error('late snapshot') ELSE place END AS at"
        yield SNAPSHOT, f"SELECT {late} FROM known WHERE place IS NOT NULL AND NOT (place <=> known)"
        yield "open_rows", self._open_rows()
        closed = f"CASE WHEN coalesce(newest >= {taken}, TRUE) THEN raise_error('the key is newer') ELSE {taken} END"
        # The value of a deletion is that of a row of NULLs.
        is_same = f"c.row IS NOT NULL AND o.at <= c.at AND {self.value('c.row')} <=> {self.value('o.row')}"
        query = (
            f"SELECT {self.k}, at, state, row FROM changes AS c LEFT ANTI JOIN open_rows AS o "
            f"ON {self.same_key('c', 'o')} AND {is_same} UNION ALL "
            f"SELECT {self.k}, {closed} AS at, '{DELETION}' AS state, NULL AS row FROM open_rows AS o "
            f"LEFT ANTI JOIN changes AS c ON {self.same_key('c', 'o')}"
        )
        yield "given", query

    def _open_rows(self) -> str:
        """The open spans, each with its place, its row, and the newest place of its key."""
        rows = (
            f"SELECT {self.keys}, {self.at} AS at, {IS_OF_DATASET} AND {self.until} IS NULL AS is_open, "
            f"{self.row} AS row FROM {self.table} "
            f"WHERE coalesce({_STATE}, '') NOT IN ('{TRUNCATION}', '{SNAPSHOT}'){self.partitions}"
        )
        row = "first(CASE WHEN is_open THEN row END, TRUE) AS row"
        places = "max(CASE WHEN is_open THEN at END) AS at, max(at) AS newest"
        return f"SELECT {self.k}, {places}, {row} FROM ({rows}) GROUP BY {self.k} HAVING bool_or(is_open)"

    def _stored(self) -> str:
        """The rows in the table of the keys whose spans may change.

        They are the keys of the frame, and those with a span that a truncation of the frame may close.
        """
        states = f"({IS_OF_DATASET} OR {_STATE} IN ('{CHANGE}', '{DELETION}', '{BEFORE}'))"
        row = f"CASE WHEN {_STATE} IS NULL OR {_STATE} = '{CHANGE}' THEN {self.row} END"
        columns = f"{self.at} AS at, {_STATE} AS state, if({IS_OF_DATASET}, {self.until}, NULL) AS until, {row} AS row"
        rows = f"SELECT {self.keys}, {columns} FROM {self.table} WHERE {states}{self.partitions}"
        touched = f"SELECT {self.k} FROM given"
        if self.truncated is not None:
            closed = f"{IS_OF_DATASET} AND {self.at} <= {self.truncated}"
            touched += f" UNION SELECT {self.keys} FROM {self.table} WHERE {closed}"
        return f"SELECT r.* FROM ({rows}) AS r LEFT SEMI JOIN ({touched}) AS t ON {self.same_key('r', 't')}"

    def _points(self) -> Iterator[tuple[str, str]]:
        """One row for each key and place: its greatest row, whether it is an end, and what the table has there.

        A span is no point if the table has a change at its beginning: then that has the values of the point.
        """
        old = "named_struct('state', state, 'until', until, 'row', row)"
        query = (
            f"SELECT {self.k}, at, state, row, NULL AS old FROM given UNION ALL "
            f"SELECT {self.k}, at, state, row, {old} AS old FROM stored"
        )
        yield "all_points", query
        greatest = f"max_by(row, {self.value('row')}) FILTER (WHERE row IS NOT NULL"
        has_change = f"bool_or(old IS NOT NULL AND state <=> '{CHANGE}')"
        query = (
            f"SELECT {self.k}, at, "
            f"CASE WHEN {has_change} THEN {greatest} AND state IS NOT NULL) ELSE {greatest}) END AS row, "
            f"bool_or(state <=> '{DELETION}') AS is_deletion, bool_or(state <=> '{BEFORE}') AS is_before, "
            f"array_agg(old) FILTER (WHERE old IS NOT NULL) AS olds FROM all_points GROUP BY {self.k}, at"
        )
        yield "points", query

    # --- the spans ----------------------------------------------------------------------------------------------------

    def _spans(self) -> Iterator[tuple[str, str]]:
        """The points with the spans that they open: of an opening point the end and the values of its span."""
        yield "followed", f"SELECT *, lead(at) {self.over()} AS next_at FROM points{self._cuts()}"
        yield "cut", f"SELECT *, {self._cut_at()} AS cut_at, {self._is_cut_here()} AS is_cut FROM followed"
        is_after = f"coalesce(lag(row IS NOT NULL AND cut_at IS NULL) {self.over()}, FALSE)"
        yield "connected", f"SELECT *, {is_after} AS is_after_row FROM cut"
        yield from self._shown()
        value = self.value("shown", self.tracked)
        continues = f"is_after_row AND lag({value}) {self.over()} <=> {value}"
        yield "marked", f"SELECT *, row IS NOT NULL AND NOT ({continues}) AS opens FROM completed"
        is_last = f"coalesce(lead(row IS NULL OR opens) {self.over()}, TRUE)"
        number = f"sum(CAST(opens AS BIGINT)) {self.over()}"
        yield "numbered", f"SELECT *, row IS NOT NULL AND {is_last} AS is_last, {number} AS span FROM marked"
        of_span = self.over("span", order=False)
        query = (
            f"SELECT *, max(CASE WHEN is_last THEN coalesce(cut_at, next_at) END) {of_span} AS until, "
            f"max_by(shown, CASE WHEN row IS NOT NULL THEN at END) {of_span} AS of_span FROM numbered"
        )
        yield "spanned", query

    def _cuts(self) -> str:
        """The join with one row that has the places of all truncations as the array `cuts`.

        Delta does not resolve a table in a subquery of an expression of a MERGE.
        """
        if not self._has_cuts:
            return ""
        cuts = f"SELECT {self.at} AS at FROM {self.table} WHERE {_STATE} = '{TRUNCATION}'"
        if self.truncated is not None:
            cuts += f" UNION ALL SELECT {self.at} AS at FROM {self.view} WHERE {self._is_cut}"
        return f" CROSS JOIN (SELECT array_agg(at) AS cuts FROM ({cuts})) AS c"

    @property
    def _has_cuts(self) -> bool:
        return self.changelog is not None and bool(self.changelog.truncates)

    def _cut_at(self) -> str:
        """SQL for the place of the first truncation after a point and before the next one."""
        if not self._has_cuts:
            return f"CAST(NULL AS {self.place_type})"
        return "array_min(filter(cuts, t -> t > at AND (next_at IS NULL OR t < next_at)))"

    def _is_cut_here(self) -> str:
        return "array_contains(cuts, at)" if self._has_cuts and self.ignored else "FALSE"

    def _shown(self) -> Iterator[tuple[str, str]]:
        """The row of a point as its span shows it: a NULL that means the value before is that value."""
        if not self.ignored:
            yield "completed", "SELECT *, row AS shown FROM connected"
            return
        begins = "(row IS NULL OR is_deletion OR is_cut OR NOT is_after_row)"
        yield "lives", f"SELECT *, sum(CAST({begins} AS BIGINT)) {self.over()} AS life FROM connected"
        so_far = f"OVER (PARTITION BY {self.k}, life ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
        fields = [
            f"'c{n}', " + (f"last(row.c{n}, TRUE) {so_far}" if n in self.ignored else f"row.c{n}")
            for n in range(len(self.values))
        ]
        shown = _ROW.format(", ".join(["", *fields]))
        yield "completed", f"SELECT *, CASE WHEN row IS NOT NULL THEN {shown} END AS shown FROM lives"

    def _compared(self) -> str:
        """The points with the rows that the table lacks there, and those that it should not have."""
        is_own = f"(opens AND {self.value('row')} <=> {self.value('of_span')})"
        # An end at the place of a row matters only to the values that NULL would keep.
        is_end = "is_deletion" if self.ignored else "(is_deletion AND row IS NULL)"
        wanted = (
            _Wanted("NULL", "opens", "until", "of_span"),
            _Wanted(f"'{CHANGE}'", f"(row IS NOT NULL AND NOT {is_own})", row="row"),
            _Wanted(f"'{DELETION}'", is_end),
            _Wanted(f"'{BEFORE}'", "(is_before AND row IS NULL)"),
        )
        entries = ", ".join(
            f"named_struct('wanted', {w.condition}, 'state', CAST({w.state} AS STRING), 'until', {w.until}, "
            f"'row', {w.row})"
            for w in wanted
        )
        same_row = (
            f"if(o.row IS NULL OR e.row IS NULL, o.row IS NULL AND e.row IS NULL, "
            f"{self.value('o.row')} <=> {self.value('e.row')})"
        )
        same = f"o.state <=> e.state AND o.until <=> e.until AND {same_row}"
        olds = "coalesce(olds, array())"
        lacks = f"filter(entries, e -> e.wanted AND NOT exists({olds}, o -> {same}))"
        left = f"filter({olds}, o -> NOT exists(entries, e -> e.wanted AND e.state <=> o.state))"

        def changed(rows: str, is_gone: str) -> str:
            fields = f"'state', e.state, 'until', e.until, 'row', e.row, 'is_gone', {is_gone}"
            return f"transform({rows}, e -> named_struct({fields}))"

        changes = f"concat({changed(lacks, 'FALSE')}, {changed(left, 'TRUE')})"
        return f"SELECT {self.k}, at, {changes} AS changes FROM (SELECT *, array({entries}) AS entries FROM spanned)"

    # --- snapshots that are refused -----------------------------------------------------------------------------------

    def refuse_snapshot(self, frame: DataFrame) -> None:
        """Refuse a snapshot that is older than another, differs from one of its place, or can't close a key it lacks.

        One Spark job, and another for a place that is known. The statement has the same conditions, for snapshots that
        come in between.
        """
        place = f"CAST(place AS STRING) AS text, place > {self.taken} AS is_newer, place = {self.taken} AS is_same"
        known = f"SELECT max({self.at}) AS place FROM {self.table} WHERE {_STATE} = '{SNAPSHOT}'"
        given = f"(SELECT {self.keys} FROM {self.view}) AS c ON {self.same_key('c', 'o')}"
        late = f"({self._open_rows()}) AS o LEFT ANTI JOIN {given} WHERE coalesce(o.newest >= {self.taken}, TRUE)"
        key, keys_other = f"to_json(struct({self.k}))", 0
        counted = f"count(*) AS keys, min_by({key}, {key}, {constraints.EXAMPLES}) AS examples"
        other = f"(SELECT struct({place}) FROM ({known})) AS known, CAST({self.taken} AS STRING) AS taken"
        found = frame.sparkSession.sql(f"SELECT {counted}, {other} FROM {late}").collect()[0]
        examples, newest = found["examples"], found["known"]["text"] if found["known"]["is_newer"] else None
        if found["known"]["is_same"] and not found["keys"]:
            changed = f"{self._with(dict(self._stages()))} SELECT DISTINCT {self.k} FROM changed"
            keys_other, examples = frame.sparkSession.sql(f"SELECT {counted} FROM ({changed})").collect()[0]
        if newest is not None or found["keys"] or keys_other:
            raise SnapshotError(
                dataset=self.dataset.name, order=self.mode.sequence, taken=found["taken"], newest=newest,
                keys_newer=found["keys"], keys_other=keys_other, examples=tuple(examples or ()),
                is_full_read=not self.mode.from_snapshots,
            )  # fmt: skip
