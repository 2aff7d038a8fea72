"""Submissions to a sink as Arrow tables of rows that fit their dataset, and as dead letters of rows that don't.

Here belongs the separation of good and bad rows, by records or by frames. The values that a type accepts belong to
`records` and `arrow`. Checks in SQL are enforced by Delta, at the commit.

A frame is checked by columns. Only if it has a fault are its rows checked one by one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

from pyspark.sql.types import CharType, DataType, DoubleType, FloatType, StructType, VarcharType

from pipeline.dataset import Dataset, Merge
from pipeline.dataset.schema import casefolded, is_string, walk
from pipeline.dataset.write_mode import changelog_of
from pipeline.delta.frames.arrow import fitting
from pipeline.delta.frames.arrow_types import arrow_type
from pipeline.delta.frames.convert import ARROW, PANDAS, POLARS, arrow_reader, index_as_columns, kind_of
from pipeline.delta.frames.records import MAX_DEPTH, Unfit, as_mapping, coercer, is_deep, shown_name, shown_value
from pipeline.delta.log.checkpoints import first_line
from pipeline.delta.sink.buffer import Item, Receipt
from pipeline.delta.sink.dead_letters import DeadLetter, json_value
from pipeline.delta.sql.constraints import NULL_FOLDER
from pipeline.delta.write import merge
from pipeline.errors import FrameMismatchError
from pipeline.errors.listing import listed

FRAMES = (PANDAS, POLARS, ARROW)
TOO_DEEP = f"lists and objects are nested more than {MAX_DEPTH} deep"
# The depth to which a dead letter keeps a record that is too large or too deep.
_CUT_DEPTH = 4
# The limit of a local file system for a name, and the characters that Spark escapes as %XX in a partition folder.
_FOLDER_BYTES = 255
_ESCAPED = frozenset({*map(chr, range(1, 0x20)), *"\"#%'*/:=?\\\x7f{[]^"})
# The number of reasons that a receipt names.
NAMED_REASONS = 3


def frame_of(payload: Any) -> Any:
    """The payload as a frame with a known size, a record batch as a table. If it is not a frame, None."""
    # Another thread may be importing pyarrow at this moment; then no caller can have a batch yet.
    batch = getattr(sys.modules.get("pyarrow"), "RecordBatch", ())
    if isinstance(payload, batch):
        return sys.modules["pyarrow"].Table.from_batches([payload])
    return payload if kind_of(type(payload)) in FRAMES else None


def frame_size(frame: Any) -> tuple[int, int]:
    """Rows and bytes of a frame. Text in pandas objects counts as pointers."""
    kind = kind_of(type(frame))
    if kind == PANDAS:
        return len(frame), int(frame.memory_usage(index=False).sum())
    if kind == POLARS:
        return frame.height, frame.estimated_size()
    return frame.num_rows, frame.nbytes


@dataclass
class IntakeResult:
    """Sorted items: tables in their order, each with one schema, dead letters, and a receipt for each item."""

    tables: list[Any] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)


@dataclass(frozen=True)
class _Row:
    """A record of an item after conversion. Arrow may still refuse its values."""

    item: int
    record: Any
    values: Mapping[str, Any]


@dataclass
class _Sorting:
    """The state while items are sorted. Each letter has the number of its item."""

    items: list[Item] = field(default_factory=list)
    tables: list[Any] = field(default_factory=list)
    letters: list[tuple[int, DeadLetter]] = field(default_factory=list)

    def add(self, table: Any) -> None:
        """Append a table. If the last table has the same schema, extend that one."""
        import pyarrow as pa

        if self.tables and self.tables[-1].schema.equals(table.schema):
            self.tables[-1] = pa.concat_tables([self.tables[-1], table])
        elif table.num_rows:
            self.tables.append(table)

    def refuse(self, item: int, letter: DeadLetter) -> None:
        """Record a refused row of an item."""
        self.letters.append((item, letter))

    def done(self) -> IntakeResult:
        """The result, with letters in the order of their items."""
        by_item: dict[int, list[DeadLetter]] = {}
        for number, letter in self.letters:
            by_item.setdefault(number, []).append(letter)
        letters = [letter for number in sorted(by_item) for letter in by_item[number]]
        receipts = [_receipt(item, by_item.get(number, [])) for number, item in enumerate(self.items)]
        return IntakeResult(tables=self.tables, letters=letters, receipts=receipts)


class Intake:
    """The rules of one dataset, prepared once.

    Args:
        allow_nan: whether NaN and the infinities are accepted. If not, a row with one is refused.
        record_bytes: the largest size of a record.
    """

    def __init__(self, dataset: Dataset, *, allow_nan: bool, record_bytes: int) -> None:
        self.dataset = dataset
        self._record_bytes = record_bytes
        self._allow_nan = allow_nan
        self._readers = {f.name: coercer(f.dataType, allow_nan=allow_nan) for f in dataset.schema.fields}
        self._names = (*dataset.schema.names, *dataset.frame_columns)
        self._folded = {casefolded(name): name for name in self._names}
        # Columns that Delta computes if a frame lacks them.
        self._computed = (*dict((*dataset.features.generated, *dataset.features.defaults)), *dataset.computed)
        needed = {*dataset.keys, *dataset.frame_columns} - set(self._computed)
        self._needed = [name for name in self._names if name in needed]
        self._folders = [name for name in dataset.partition_by if is_string(dataset.field(name).dataType)]
        self._is_mapped = dataset.features.maps_columns
        self._limited = [f.name for f in dataset.schema.fields if _has_limit(f.dataType)]
        self._changelog = changelog_of(dataset.write)
        deletes = isinstance(dataset.write, Merge) and dataset.write.delete_when is not None
        # A row that only deletes may lack NOT NULL columns, and an update those in which NULL keeps the stored value.
        # Which rows these are is decided by the write.
        optional = {*self._computed, *(set(merge.kept_columns(dataset)) - set(dataset.keys))}
        required = [f.name for f in dataset.schema.fields if not f.nullable and f.name not in optional]
        self._not_null = [name for name in required if not deletes or name in dataset.keys]
        self._key_not_null = [name for name in self._not_null if name in dataset.keys]
        # The newest known types of the columns that only frames have.
        self._frame_types: dict[str, Any] = {}

    # --- rows ---------------------------------------------------------------------------------------------------------

    def row(self, record: Any) -> dict[str, Any]:
        """The record's values by column, each as Arrow accepts it. An optional column that is absent is None.

        Raises:
            Unfit: the record is refused, with the reason.
        """
        values = as_mapping(record)
        if values is None:
            raise Unfit(f"a {type(record).__module__}.{type(record).__qualname__} is not a record")
        if is_deep(values):
            raise Unfit(TOO_DEEP)
        values = self._matched(values)
        absent = [name for name in self._needed if name not in values]
        if absent:
            raise Unfit(f"columns {listed(absent)} are missing")
        row: dict[str, Any] = {}
        for name in self._names:
            value = values.get(name)
            try:
                row[name] = value if value is None or name not in self._readers else self._readers[name](value)
            except Unfit as error:
                raise Unfit(f"column {name}: {error}") from error
        for name in self._stored(row):
            if row[name] is None:
                raise Unfit(f"column {name}: NULL, declared NOT NULL")
        for name in self._folders:
            problem = self._folder_problem(name, row[name]) if row[name] is not None else None
            if problem is not None:
                raise Unfit(f"column {name}: {problem}")
        return row

    def _is_bad_folder(self, name: str, value: str) -> bool:
        return self._folder_problem(name, value) is not None

    def _folder_problem(self, name: str, value: str) -> str | None:
        """Why a text can't be a partition value, whose folder is named after it. If it can, None."""
        if not value or value == NULL_FOLDER:
            return f"{value or 'an empty text'} in a partition column would be read back as NULL"
        if self._is_mapped:  # its folders are not named after the value
            return None
        if "\0" in value:
            return "NUL can't stand in the name of its partition's folder"
        size = len(name) + 1 + sum(3 if sign in _ESCAPED else len(sign.encode("utf-8")) for sign in value)
        if size > _FOLDER_BYTES:
            return f"the name of its partition's folder takes {size} bytes, at most {_FOLDER_BYTES} are possible"
        return None

    def _matched(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """The values under the declared names. Names that differ only by case are the same, as everywhere."""
        unknown = [name for name in values if name not in self._readers and name not in self._names]
        if not unknown:
            return values
        renamed = {name: values[name] for name in values if name in self._readers or name in self._names}
        for name in unknown:
            declared = self._folded.get(casefolded(name)) if isinstance(name, str) else None
            if declared is None or declared in renamed:
                raise Unfit(f"column {shown_name(name)}: {'not declared' if declared is None else 'is given twice'}")
            renamed[declared] = values[name]
        return renamed

    def _stored(self, row: Mapping[str, Any]) -> Sequence[str]:
        """The columns that must not be NULL in this row."""
        log = self._changelog
        if log is None:
            return self._not_null
        code, sequence = row[log.operation], row[log.sequence]
        lowered = code.lower() if isinstance(code, str) else None
        declared_codes = {name.lower(): name for name in log.codes}
        if lowered not in declared_codes:
            raise Unfit(f"column {log.operation}: {shown_value(code)} is none of {', '.join(log.codes)}")
        if sequence is None:
            raise Unfit(f"column {log.sequence}: NULL; it orders the changes")
        if declared_codes[lowered] in log.writes:
            return self._not_null
        return () if declared_codes[lowered] in log.truncates else self._key_not_null

    # --- items --------------------------------------------------------------------------------------------------------

    def take(self, items: Iterable[Item]) -> IntakeResult:
        """Sort items into tables and dead letters. Nothing is written."""
        state, rows = _Sorting(), list[_Row]()
        for number, item in enumerate(items):
            state.items.append(item)
            if item.payload is None:  # a barrier
                pass
            elif isinstance(item.payload, DeadLetter):
                state.refuse(number, item.payload)
            elif frame_of(item.payload) is not None:
                self._add_rows(state, rows)
                rows = []
                self._frame(number, item, state)
            elif item.size_bytes > self._record_bytes:
                reason = f"it takes at least {item.size_bytes} bytes, at most {self._record_bytes} are allowed"
                state.refuse(number, letter_of(item.payload, reason, item.source, depth=_CUT_DEPTH))
            else:
                self._read(number, item.payload, rows, state)
        self._add_rows(state, rows)
        return state.done()

    def _read(self, number: int, record: Any, rows: list[_Row], state: _Sorting) -> None:
        """Convert a record of an item to a row, or to a dead letter."""
        try:
            rows.append(_Row(item=number, record=record, values=self.row(record)))
        except Unfit as error:
            depth = _CUT_DEPTH if str(error) == TOO_DEEP else MAX_DEPTH
            state.refuse(number, letter_of(record, str(error), state.items[number].source, depth=depth))

    def _add_rows(self, state: _Sorting, rows: Sequence[_Row]) -> None:
        """Add rows as tables with one schema each. Columns that Delta will compute are left out."""
        for left_out, group in groupby(rows, lambda row: tuple(n for n in self._computed if row.values[n] is None)):
            self._add_group(state, list(group), left_out)

    def _add_group(self, state: _Sorting, rows: Sequence[_Row], left_out: Sequence[str]) -> None:
        """Add rows as one table. If Arrow refuses them, try halves; a single refused row becomes a dead letter."""
        import pyarrow as pa

        try:
            state.add(self._table([row.values for row in rows], left_out))
        except (Unfit, FrameMismatchError, pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            if len(rows) > 1:
                half = len(rows) // 2
                self._add_group(state, rows[:half], left_out)
                self._add_group(state, rows[half:], left_out)
                return
            (row,) = rows
            state.refuse(row.item, letter_of(row.record, _reason(error), state.items[row.item].source))

    def _table(self, rows: Sequence[Mapping[str, Any]], left_out: Sequence[str]) -> Any:
        import pyarrow as pa

        fields = [field for field in self.dataset.schema.fields if field.name not in left_out]
        arrays = [pa.array([row[field.name] for row in rows], arrow_type(field.dataType)) for field in fields]
        names = [*(field.name for field in fields), *self.dataset.frame_columns]
        return self._fitted(pa.Table.from_arrays([*arrays, *self._undeclared(rows)], names))

    def _undeclared(self, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        """The columns that only the frame has. `Unfit` if the values of one have no common type in Arrow."""
        import pyarrow as pa

        arrays = []
        for name in self.dataset.frame_columns:
            try:
                array = pa.array([row[name] for row in rows])
                if pa.types.is_null(array.type):
                    array = array.cast(self._frame_types.get(name, pa.null()))
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                raise Unfit(f"column {name}: {first_line(error)}") from error
            if pa.types.is_null(array.type):
                raise Unfit(f"column {name}: NULL, and its type is not known yet")
            self._frame_types[name] = array.type
            arrays.append(array)
        return arrays

    def _fitted(self, table: Any) -> Any:
        """The table in the dataset's form. `FrameMismatchError` if it does not fit."""
        import pyarrow as pa

        fit = fitting(self.dataset, table.schema)
        return pa.Table.from_batches([fit.batch(batch) for batch in table.to_batches()], fit.schema)

    # --- frames -------------------------------------------------------------------------------------------------------

    def _frame(self, number: int, item: Item, state: _Sorting) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        frame = frame_of(item.payload)
        try:
            table = self._fitted(arrow_reader(frame, self.dataset.name, self.dataset.schema).read_all())
        except (FrameMismatchError, pa.ArrowException, ValueError, TypeError, OverflowError):
            self._rows_of_frame(number, _rows(frame), state)
            return
        bad = self._bad_rows(table)
        if bad is None:
            state.add(table)
            return
        state.add(table.filter(pc.invert(bad)))
        self._rows_of_frame(number, table.filter(bad).to_pylist(), state)

    def _rows_of_frame(self, number: int, records: Iterable[Any], state: _Sorting) -> None:
        rows = list[_Row]()
        for record in records:
            self._read(number, record, rows, state)
        self._add_rows(state, rows)

    def _bad_rows(self, table: Any) -> Any:
        """A mask of the rows to check one by one. If there are none, None."""
        import pyarrow as pa
        import pyarrow.compute as pc

        masks = [table[name].is_null() for name in self._not_null if table[name].null_count]
        for declared in () if self._allow_nan else self.dataset.schema.fields:
            if isinstance(declared.dataType, DoubleType | FloatType) and declared.name in table.column_names:
                masks.append(pc.fill_null(pc.invert(pc.is_finite(table[declared.name])), False))
        for name in self._folders:
            if name in table.column_names:
                masks.append(_mask_of(table[name], partial(self._is_bad_folder, name)))
        # The length of a text is checked row by row.
        masks += [table[name].is_valid() for name in self._limited if name in table.column_names]
        if self._changelog is not None:
            declared_codes = pa.array([code.lower() for code in self._changelog.codes], pa.string())
            codes = pc.utf8_lower(table[self._changelog.operation].cast(pa.string()))
            masks += [pc.invert(pc.is_in(codes, value_set=declared_codes)), table[self._changelog.sequence].is_null()]
        masks = [mask for mask in masks if pc.any(mask).as_py()]
        if not masks:
            return None
        combined = masks[0]
        for mask in masks[1:]:
            combined = pc.or_(combined, mask)
        return combined


def letter_of(record: Any, reason: str, source: str | None = None, *, depth: int = MAX_DEPTH) -> DeadLetter:
    """A dead letter of a record, or of any other submitted value, down to `depth`."""
    mapping = as_mapping(record)
    return DeadLetter(reason=reason, record=json_value(record if mapping is None else mapping, depth), source=source)


def _reason(error: Exception) -> str:
    return "; ".join(error.differences) if isinstance(error, FrameMismatchError) else first_line(error)


def _mask_of(column: Any, is_bad: Callable[[str], bool]) -> Any:
    """A mask of the values in a column that are bad. Each distinct value is checked once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    bad = [value for value in column.unique().to_pylist() if value is not None and is_bad(value)]
    return pc.is_in(column, value_set=pa.array(bad, column.type))


def _has_limit(declared: DataType) -> bool:
    """Whether a type is a text of bounded length, or contains one."""
    return any(isinstance(f.dataType, CharType | VarcharType) for _, f in walk(StructType().add("value", declared)))


def _rows(frame: Any) -> list[dict[str, Any]]:
    """The rows of a frame that does not fit, unconverted. Missing values of pandas are None."""
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
