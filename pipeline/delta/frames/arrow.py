"""Arrow batches in a dataset's declared types: every value stays exactly the same, or its column is refused.

Here belongs the conversion of Arrow types and values. `convert` has the libraries they come from. Columns and struct
fields are matched by name, as in `fit`. A local frame's types are mostly inferred from its values (an int of Python has
64 bits), so numbers are checked by value here: a number may be narrowed if it does not change.

pyarrow is imported in the functions that use it, so that loading definitions does not wait for it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from pipeline.dataset import Dataset
from pipeline.dataset.schema import RESERVED_COLUMNS, casefolded, is_string, same_names
from pipeline.delta import sql
from pipeline.delta.frames.arrow_types import INTEGER_DIGITS, arrow_type, is_list
from pipeline.delta.frames.fit import ignored_feed_columns
from pipeline.errors import FrameMismatchError
from pipeline.errors.listing import listed
from pipeline.errors.spelling import distinguishable

# Spark documents DATE and TIMESTAMP for the years 1 to 9999; their integers have a wider range.
_EPOCH = dt.date(1970, 1, 1)
_FIRST_DAY, _LAST_DAY = (dt.date.min - _EPOCH).days, (dt.date.max - _EPOCH).days
_MICROS_A_DAY = 86_400_000_000
# The key of a text in the metadata of an Arrow schema: what of the frame did not become a column.
LEFT_OUT = b"pipeline.left_out"

Path = tuple[str, ...]


@dataclass(frozen=True)
class Fitting:
    """The conversion of batches of one Arrow schema into batches of a dataset. `schema` is that of the result."""

    dataset: Dataset
    positions: Mapping[str, int]
    schema: Any

    def batch(self, batch: Any) -> Any:
        """The batch in the declared order, under the declared names and types.

        Raises:
            FrameMismatchError: with each column that has values that the declared type can't hold unchanged.
        """
        import pyarrow as pa

        problems: list[str] = []
        arrays = _fit_columns(self.dataset, self.positions, batch.columns, problems)
        if problems:
            raise FrameMismatchError(dataset=self.dataset.name, differences=tuple(problems))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def fitting(dataset: Dataset, schema: Any) -> Fitting:
    """The conversion of batches of that schema. Reads no values.

    If the schema's metadata has `LEFT_OUT`, the error of a missing column repeats it.

    Raises:
        FrameMismatchError: with every missing, extra, ambiguous or reserved column and every type that can't fit.
    """
    import pyarrow as pa

    left_out = ((schema.metadata or {}).get(LEFT_OUT) or b"").decode()
    problems, positions = _matched(dataset, schema.names, left_out)
    arrays = _fit_columns(dataset, positions, [pa.nulls(0, field.type) for field in schema], problems)
    if problems:
        raise FrameMismatchError(dataset=dataset.name, differences=tuple(problems))
    names = [*(name for name in dataset.schema.names if name in positions), *dataset.frame_columns]
    return Fitting(dataset, positions, pa.schema(list(zip(names, (a.type for a in arrays), strict=True))))


def _matched(dataset: Dataset, names: Sequence[str], left_out: str) -> tuple[list[str], dict[str, int]]:
    """The problems of the names, and the position of the frame's column for each declared column."""
    hint = f"; {left_out}" if left_out else ""
    problems = [] if names else ["the frame has no columns"]
    problems += [f"columns {listed(group)}: differ by case only or not at all" for group in same_names(names)]
    problems += [
        f"column {name}: the change feed adds a column of that name itself"
        for name in names
        if casefolded(name) in RESERVED_COLUMNS - ignored_feed_columns(dataset.frame_columns)
    ]
    shown = distinguishable((*dataset.schema.names, *dataset.frame_columns, *names))
    exact = {name: position for position, name in enumerate(names)}
    by_folded = {casefolded(name): position for position, name in enumerate(names)}
    positions, computed = {}, dict((*dataset.features.generated, *dataset.features.defaults))
    for field in dataset.schema.fields:
        position = exact.get(field.name, by_folded.get(casefolded(field.name)))
        if position is not None and field.name in dataset.computed:
            problems.append(f"column {shown(field.name)}: the write computes it; leave it out of the frame")
        elif position is not None:
            positions[field.name] = position
        elif field.name not in (*computed, *dataset.computed):  # Spark computes generated columns and defaults
            problems.append(f"column {shown(field.name)}: missing, declared {sql.type_name(field.dataType)}{hint}")
    for name in dataset.frame_columns:
        position = exact.get(name, by_folded.get(casefolded(name)))
        if position is None:
            problems.append(f"column {shown(name)}: missing; the write needs it{hint}")
        else:
            positions[name] = position
    declared = {casefolded(name) for name in (*dataset.schema.names, *dataset.frame_columns)}
    problems += [
        f"column {shown(name)}: not declared" for name in names if casefolded(name) not in declared | RESERVED_COLUMNS
    ]
    return problems, positions


def _fit_columns(
    dataset: Dataset, positions: Mapping[str, int], columns: Sequence[Any], problems: list[str]
) -> list[Any]:
    """The declared columns that have a position, converted, and after them those that only the frame has."""
    declared = [
        _fit((field.name,), columns[positions[field.name]], field.dataType, problems)
        for field in dataset.schema.fields
        if field.name in positions
    ]
    return declared + [
        _undeclared(name, columns[positions[name]], problems) for name in dataset.frame_columns if name in positions
    ]


def _undeclared(name: str, values: Any, problems: list[str]) -> Any:
    """The values in Spark's type for theirs. If Spark has no such type, a problem is added."""
    import pyarrow as pa

    decoded = _decoded(values)
    try:
        sparks_type = to_arrow_type(from_arrow_type(decoded.type), timezone="UTC")
        if not pa.types.is_null(sparks_type):
            return decoded.cast(sparks_type)
    except (PySparkTypeError, pa.ArrowInvalid) as error:
        problems.append(f"column {name}: has type {decoded.type}, which Spark does not support ({error})")
    else:
        problems.append(f"column {name}: has type void; the write needs it")
    return pa.nulls(len(decoded))


def _fit(path: Path, values: Any, declared: DataType, problems: list[str]) -> Any:
    """The values as an array of the declared type. If that is impossible, NULLs, and a problem is added."""
    import pyarrow as pa

    values = _decoded(values)
    if pa.types.is_null(values.type):  # all values are NULL, so any declared type fits
        return _nulls(values, declared)
    if isinstance(declared, ArrayType):
        fitted = _fit_array(path, values, declared, problems)
    elif isinstance(declared, MapType):
        fitted = _fit_map(path, values, declared, problems)
    elif isinstance(declared, StructType):
        fitted = _fit_struct(path, values, declared, problems)
    else:
        fitted = _fit_leaf(path, values, declared, problems)
    if fitted is None:
        problems.append(_mismatch(path, values, declared, _zone_problem(values.type, declared)))
        return _nulls(values, declared)
    return fitted


def _zone_problem(given: Any, declared: DataType) -> str:
    """The remedy if of a time's given and declared types only one has a zone. For other types, empty."""
    from pyarrow import types

    if not types.is_timestamp(given) or not isinstance(declared, TimestampType | TimestampNTZType):
        return ""
    if given.tz is None:
        return "it has no zone, so its instant is unknown; add a zone (tz_localize, replace_time_zone, tzinfo)"
    return "it has a zone; remove the zone in the frame (tz_localize(None), replace_time_zone(None))"


def _decoded(values: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(values.type):
        return values.dictionary_decode()
    if pa.types.is_run_end_encoded(values.type):
        return pc.run_end_decode(values)
    return values


def _nulls(values: Any, declared: DataType) -> Any:
    import pyarrow as pa

    return pa.nulls(len(values), arrow_type(declared))


def _mismatch(path: Path, values: Any, declared: DataType, reason: str = "") -> str:
    mismatch = f"column {'.'.join(path)}: has type {values.type}, declared {sql.type_name(declared)}"
    return f"{mismatch}: {reason}" if reason else mismatch


def _fit_leaf(path: Path, values: Any, declared: DataType, problems: list[str]) -> Any:
    """As `_fit`, for a type without parts. If values of that type never fit the declared one, None."""
    import pyarrow as pa

    steps = _casts(values.type, declared)
    if steps is None:
        return None
    fitted = values
    try:
        for step in steps:
            fitted = fitted.cast(step)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        problems.append(_mismatch(path, values, declared, str(error)))
        return _nulls(values, declared)
    if not _in_range(fitted, declared):
        problems.append(_mismatch(path, values, declared, "values outside the years 1 to 9999"))
    return fitted


def _casts(given: Any, declared: DataType) -> list[Any] | None:
    """The casts from one type to the other, each of which fails if it would change a value. If none exist, None."""
    import pyarrow as pa

    types = pa.types
    if is_string(declared):
        if types.is_string_view(given):
            return [pa.large_string()]
        return [] if types.is_string(given) or types.is_large_string(given) else None
    if isinstance(declared, BinaryType):
        if types.is_binary_view(given) or types.is_fixed_size_binary(given):
            return [pa.large_binary()]
        return [] if types.is_binary(given) or types.is_large_binary(given) else None
    if isinstance(declared, VariantType):
        return None
    target = arrow_type(declared)
    if isinstance(declared, DecimalType):
        if types.is_integer(given):
            return [pa.decimal128(INTEGER_DIGITS, 0), target]
        return [target] if types.is_decimal(given) else None
    return [target] if _same_kind(given, declared) else None


def _same_kind(given: Any, declared: DataType) -> bool:
    """Whether values of the Arrow type may be values of the declared one, apart from their range."""
    from pyarrow import types

    if isinstance(declared, TimestampType):
        return bool(types.is_timestamp(given)) and given.tz is not None
    if isinstance(declared, TimestampNTZType):
        return bool(types.is_timestamp(given)) and given.tz is None
    if isinstance(declared, DateType):
        return bool(types.is_date(given))
    if isinstance(declared, BooleanType):
        return bool(types.is_boolean(given))
    if isinstance(declared, IntegralType):
        return bool(types.is_integer(given))
    if isinstance(declared, FloatType):
        return bool(types.is_float16(given) or types.is_float32(given) or types.is_integer(given))
    return isinstance(declared, DoubleType) and bool(types.is_floating(given) or types.is_integer(given))


def _in_range(values: Any, declared: DataType) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(declared, DateType):
        integers, first, last = values.view(pa.int32()), _FIRST_DAY, _LAST_DAY
    elif isinstance(declared, TimestampType | TimestampNTZType):
        integers = values.view(pa.int64())
        first, last = _FIRST_DAY * _MICROS_A_DAY, (_LAST_DAY + 1) * _MICROS_A_DAY - 1
    else:
        return True
    limits = pc.min_max(integers).as_py()
    return limits["min"] is None or bool(first <= limits["min"] and limits["max"] <= last)


def _offsets(lists: Any) -> Any:
    """The offset of each list in the flattened values, and their length. NULL lists are empty there."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int64())
    return pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])


def _fit_array(path: Path, values: Any, declared: ArrayType, problems: list[str]) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not is_list(values.type):
        return None
    elements = _fit((*path, "element"), pc.list_flatten(values), declared.elementType, problems)
    return pa.LargeListArray.from_arrays(_offsets(values), elements, mask=values.is_null())


def _fit_map(path: Path, values: Any, declared: MapType, problems: list[str]) -> Any:
    """As `_fit`, for a map, or for lists of (key, value) structs, which libraries without maps have."""
    import pyarrow as pa
    import pyarrow.compute as pc

    given = values.type
    if pa.types.is_map(given):
        values = values.cast(pa.list_(pa.struct([("key", given.key_type), ("value", given.item_type)])))
    elif not is_list(given):
        return None
    entries = pc.list_flatten(values)
    if pa.types.is_null(entries.type) and not len(entries):  # all maps are empty
        entries = pa.nulls(0, pa.struct([("key", pa.null()), ("value", pa.null())]))
    if not pa.types.is_struct(entries.type) or [field.name for field in entries.type] != ["key", "value"]:
        return None
    keys, items = entries.flatten()
    keys = _fit((*path, "key"), keys, declared.keyType, problems)
    items = _fit((*path, "value"), items, declared.valueType, problems)
    if keys.null_count:
        problems.append(f"column {'.'.join(path)}: {keys.null_count} keys are NULL")
        return _nulls(values, declared)
    if not pa.types.is_nested(keys.type):
        distinct = pa.table({"row": pc.list_parent_indices(values), "key": keys}).group_by(["row", "key"]).aggregate([])
        if distinct.num_rows < len(keys):
            problems.append(f"column {'.'.join(path)}: a map has the same key twice")
    return pa.MapArray.from_arrays(_offsets(values).cast(pa.int32()), keys, items, mask=values.is_null())


def _fit_struct(path: Path, values: Any, declared: StructType, problems: list[str]) -> Any:
    import pyarrow as pa

    if not pa.types.is_struct(values.type):
        return None
    column = ".".join(path)
    names = [field.name for field in values.type]
    problems += [f"column {column}: fields differ by case only" for _ in same_names(names)]
    # `flatten` and not `field`: in a NULL struct every field is NULL.
    given = dict(zip(names, values.flatten(), strict=True))
    by_folded = {casefolded(name): name for name in names}
    arrays = []
    for field in declared.fields:
        source = field.name if field.name in given else by_folded.get(casefolded(field.name))
        if source is None:
            problems.append(f"column {column}.{field.name}: missing, declared {sql.type_name(field.dataType)}")
            continue
        arrays.append(_fit((*path, field.name), given.pop(source), field.dataType, problems))
    declared_names = {casefolded(name) for name in declared.names}
    problems += [f"column {column}.{name}: not declared" for name in given if casefolded(name) not in declared_names]
    if len(arrays) < len(declared.fields):
        return _nulls(values, declared)
    fields = [pa.field(name, array.type) for name, array in zip(declared.names, arrays, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=values.is_null())
