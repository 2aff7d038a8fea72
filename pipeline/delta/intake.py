"""What a sink was handed, as Arrow tables of rows that fit their dataset, and dead letters of those that don't.

Here belongs the sorting of good from bad, a record at a time or a frame at once. What a value may be is `values`' and
`arrow`'s to say; checks in SQL are Delta's, at the commit.

A frame is looked at by columns; only where something is wrong with it are its rows taken one by one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from pyspark.sql.types import DoubleType, FloatType

from pipeline.dataset import Dataset, Merge, is_string
from pipeline.delta.arrow import fitting
from pipeline.delta.arrow_types import arrow_type
from pipeline.delta.buffer import Item, Receipt
from pipeline.delta.dead_letters import DeadLetter, plain
from pipeline.delta.frames import ARROW, PANDAS, POLARS, index_as_columns, kind_of, reader_of
from pipeline.delta.values import Unfit, as_mapping, reader
from pipeline.errors import FrameMismatchError
from pipeline.listing import listed
from pipeline.schema import folded

FRAMES = (PANDAS, POLARS, ARROW)
# How many reasons a receipt names.
NAMED_REASONS = 3


def frame_of(payload: Any) -> Any:
    """The payload as a frame whose size is known, a record batch as a table; None where it is none."""
    # Another thread may be importing it at this moment; then nobody has a batch yet.
    batch = getattr(sys.modules.get("pyarrow"), "RecordBatch", ())
    if isinstance(payload, batch):
        return sys.modules["pyarrow"].Table.from_batches([payload])
    return payload if kind_of(type(payload)) in FRAMES else None


def frame_size(frame: Any) -> tuple[int, int]:
    """Rows and bytes of a frame; text in objects of pandas counts as pointers."""
    kind = kind_of(type(frame))
    if kind == PANDAS:
        return len(frame), int(frame.memory_usage(index=False).sum())
    if kind == POLARS:
        return frame.height, frame.estimated_size()
    return frame.num_rows, frame.nbytes


@dataclass
class Taken:
    """What became of items: tables in their order, each of one schema, dead letters, and by item its receipt."""

    tables: list[Any] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)


class Intake:
    """The rules of one dataset, made ready once.

    Args:
        allow_nan: whether NaN and the infinities are numbers; else a row with one is refused.
        record_bytes: what a record may take.
    """

    def __init__(self, dataset: Dataset, *, allow_nan: bool, record_bytes: int) -> None:
        self.dataset = dataset
        self._record_bytes = record_bytes
        self._allow_nan = allow_nan
        self._readers = {f.name: reader(f.dataType, allow_nan=allow_nan) for f in dataset.schema.fields}
        self._names = (*dataset.schema.names, *dataset.frame_columns)
        self._folded = {folded(name): name for name in self._names}
        # What Delta computes where a frame does not have it.
        self._computed = tuple(dict((*dataset.features.generated, *dataset.features.defaults)))
        told = {*dataset.keys, *dataset.frame_columns} - set(self._computed)
        self._needed = [name for name in self._names if name in told]
        self._empty = [name for name in dataset.partition_by if is_string(dataset.field(name).dataType)]
        self._changelog = dataset.write.changelog if isinstance(dataset.write, Merge) else None
        deletes = isinstance(dataset.write, Merge) and dataset.write.delete_when is not None
        # A row that only deletes may lack what a stored one must have; which does is for the write to say.
        required = [f.name for f in dataset.schema.fields if not f.nullable and f.name not in self._computed]
        self._not_null = [name for name in required if not deletes or name in dataset.keys]
        self._key_not_null = [name for name in self._not_null if name in dataset.keys]
        # The types of columns that are declared nowhere, as they were seen last.
        self._frame_types: dict[str, Any] = {}

    # --- rows ---------------------------------------------------------------------------------------------------------

    def row(self, record: Any) -> dict[str, Any]:
        """The record's values by column, each as Arrow takes it; a column that is absent and may be is None.

        Raises:
            Unfit: with the reason.
        """
        found = as_mapping(record)
        if found is None:
            raise Unfit(f"a {type(record).__module__}.{type(record).__qualname__} is no record")
        found = self._matched(found)
        absent = [name for name in self._needed if name not in found]
        if absent:
            raise Unfit(f"columns {listed(absent)} are missing")
        row: dict[str, Any] = {}
        for name in self._names:
            value = found.get(name)
            try:
                row[name] = value if value is None or name not in self._readers else self._readers[name](value)
            except Unfit as error:
                raise Unfit(f"column {name}: {error}") from error
        for name in self._stored(row):
            if row[name] is None:
                raise Unfit(f"column {name}: NULL, declared NOT NULL")
        for name in self._empty:
            if row[name] == "":
                raise Unfit(f"column {name}: an empty text in a partition column would be read back as NULL")
        return row

    def _matched(self, found: Mapping[str, Any]) -> Mapping[str, Any]:
        """The values under the declared names; names that differ by case only are the same, as everywhere."""
        unknown = [name for name in found if name not in self._readers and name not in self._names]
        if not unknown:
            return found
        renamed = {name: found[name] for name in found if name not in unknown}
        for name in unknown:
            declared = self._folded.get(folded(name)) if isinstance(name, str) else None
            if declared is None or declared in renamed:
                raise Unfit(f"column {name}: {'not declared' if declared is None else 'stands twice'}")
            renamed[declared] = found[name]
        return renamed

    def _stored(self, row: Mapping[str, Any]) -> Sequence[str]:
        """The columns that must not be NULL in this row."""
        log = self._changelog
        if log is None:
            return self._not_null
        code, place = row[log.operation], row[log.sequence]
        lowered = code.lower() if isinstance(code, str) else None
        known = {name.lower(): name for name in log.codes}
        if lowered not in known:
            raise Unfit(f"column {log.operation}: {code!r} is none of {', '.join(log.codes)}")
        if place is None:
            raise Unfit(f"column {log.sequence}: NULL; it orders the changes")
        if known[lowered] in log.writes:
            return self._not_null
        return () if known[lowered] in log.truncates else self._key_not_null

    # --- items --------------------------------------------------------------------------------------------------------

    def take(self, items: Iterable[Item]) -> Taken:
        """Sort items; nothing is written."""
        taken, rows = Taken(), list[dict[str, Any]]()
        for item in items:
            before = len(taken.letters)
            if item.payload is None:  # a barrier
                pass
            elif isinstance(item.payload, DeadLetter):
                taken.letters.append(item.payload)
            elif frame_of(item.payload) is not None:
                self._add(taken, self._tables(rows))
                rows = []
                self._add(taken, self._frame(item, taken))
            else:
                self._record(item, rows, taken)
            taken.receipts.append(_receipt(item, taken.letters[before:]))
        self._add(taken, self._tables(rows))
        return taken

    def _record(self, item: Item, rows: list[dict[str, Any]], taken: Taken) -> None:
        if item.size_bytes > self._record_bytes:
            reason = f"it takes {item.size_bytes} bytes, at most {self._record_bytes} are allowed"
            taken.letters.append(letter_of(item.payload, reason, item.source))
            return
        try:
            rows.append(self._read(item.payload))
        except Unfit as error:
            taken.letters.append(letter_of(item.payload, str(error), item.source))

    def _read(self, record: Any) -> dict[str, Any]:
        """A row of which Arrow takes every value."""
        row = self.row(record)
        if self.dataset.frame_columns:
            self._undeclared([row])
        return row

    def _add(self, taken: Taken, tables: Iterable[Any]) -> None:
        """Tables after those that are there; the last of these takes in what has its schema."""
        import pyarrow as pa

        for table in tables:
            if taken.tables and taken.tables[-1].schema.equals(table.schema):
                taken.tables[-1] = pa.concat_tables([taken.tables[-1], table])
            elif table.num_rows:
                taken.tables.append(table)

    def _tables(self, rows: list[dict[str, Any]]) -> Iterator[Any]:
        """Rows that were read as tables of one schema each: what Delta is to compute is left out."""
        for left_out, group in groupby(rows, lambda row: tuple(n for n in self._computed if row[n] is None)):
            found = list(group)
            try:
                yield self._table(found, left_out)
            except Unfit:
                yield from (self._table([row], left_out) for row in found)

    def _table(self, rows: Sequence[Mapping[str, Any]], left_out: Sequence[str]) -> Any:
        import pyarrow as pa

        fields = [field for field in self.dataset.schema.fields if field.name not in left_out]
        arrays = [pa.array([row[field.name] for row in rows], arrow_type(field.dataType)) for field in fields]
        names = [*(field.name for field in fields), *self.dataset.frame_columns]
        return self._fitted(pa.Table.from_arrays([*arrays, *self._undeclared(rows)], names))

    def _undeclared(self, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        """The columns that only the frame has; `Unfit` where one's values have no one type in Arrow."""
        import pyarrow as pa

        arrays = []
        for name in self.dataset.frame_columns:
            try:
                array = pa.array([row[name] for row in rows])
                if pa.types.is_null(array.type):
                    array = array.cast(self._frame_types.get(name, pa.null()))
            except (pa.ArrowException, OverflowError) as error:
                raise Unfit(f"column {name}: {error}") from error
            if pa.types.is_null(array.type):
                raise Unfit(f"column {name}: NULL, and nothing has said its type yet")
            self._frame_types[name] = array.type
            arrays.append(array)
        return arrays

    def _fitted(self, table: Any) -> Any:
        """FrameMismatchError where it does not fit."""
        import pyarrow as pa

        fit = fitting(self.dataset, table.schema)
        return pa.Table.from_batches([fit.batch(batch) for batch in table.to_batches()], fit.schema)

    # --- frames -------------------------------------------------------------------------------------------------------

    def _frame(self, item: Item, taken: Taken) -> Iterator[Any]:
        import pyarrow.compute as pc

        frame = frame_of(item.payload)
        try:
            table = self._fitted(reader_of(frame, self.dataset.name, self.dataset.schema).read_all())
        except FrameMismatchError:
            yield from self._rows_of_frame(_rows(frame), item.source, taken)
            return
        bad = self._suspects(table)
        if bad is None:
            yield table
            return
        yield table.filter(pc.invert(bad))
        yield from self._rows_of_frame(table.filter(bad).to_pylist(), item.source, taken)

    def _rows_of_frame(self, records: Iterable[Any], source: str | None, taken: Taken) -> Iterator[Any]:
        rows = list[dict[str, Any]]()
        for record in records:
            try:
                rows.append(self._read(record))
            except Unfit as error:
                taken.letters.append(letter_of(record, str(error), source))
        yield from self._tables(rows)

    def _suspects(self, table: Any) -> Any:
        """A mask of rows that something is wrong with; None where nothing is."""
        import pyarrow as pa
        import pyarrow.compute as pc

        masks = [table[name].is_null() for name in self._not_null if table[name].null_count]
        for declared in () if self._allow_nan else self.dataset.schema.fields:
            if isinstance(declared.dataType, DoubleType | FloatType) and declared.name in table.column_names:
                masks.append(pc.fill_null(pc.invert(pc.is_finite(table[declared.name])), False))
        masks += [pc.fill_null(pc.equal(table[name], ""), False) for name in self._empty if name in table.column_names]
        if self._changelog is not None:
            known = pa.array([code.lower() for code in self._changelog.codes], pa.string())
            codes = pc.utf8_lower(table[self._changelog.operation].cast(pa.string()))
            masks += [pc.invert(pc.is_in(codes, value_set=known)), table[self._changelog.sequence].is_null()]
        masks = [mask for mask in masks if pc.any(mask).as_py()]
        if not masks:
            return None
        found = masks[0]
        for mask in masks[1:]:
            found = pc.or_(found, mask)
        return found


def letter_of(record: Any, reason: str, source: str | None = None) -> DeadLetter:
    """A dead letter of a record or of whatever was handed over in its place."""
    found = as_mapping(record)
    return DeadLetter(reason=reason, record=plain(record if found is None else found), source=source)


def _rows(frame: Any) -> list[dict[str, Any]]:
    """The rows of a frame that does not fit, as it has them; what pandas has no value for is None."""
    kind = kind_of(type(frame))
    if kind == PANDAS:
        frame, _ = index_as_columns(frame)
        renamed = frame.set_axis([str(name) for name in frame.columns], axis=1).astype(object)
        return renamed.where(frame.notna().to_numpy(), None).to_dict("records")  # type: ignore[no-any-return]
    return frame.to_dicts() if kind == POLARS else frame.to_pylist()  # type: ignore[no-any-return]


def _receipt(item: Item, letters: Sequence[DeadLetter]) -> Receipt:
    refused = len(letters)
    reasons = tuple(dict.fromkeys(letter.reason for letter in letters))[:NAMED_REASONS]
    return Receipt(rows=item.rows - refused, refused=refused, reasons=reasons)
