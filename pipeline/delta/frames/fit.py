"""A frame against the declaration: whether it fits, and the SQL that selects its columns.

Here belongs what follows from schemas alone; `constraints` checks values. Columns and struct fields are matched by name
at every depth, never by position. A type is widened only if no value can change, and never narrowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pipeline.dataset import Dataset, History
from pipeline.dataset.schema import RESERVED_COLUMNS, case_duplicates, casefolded, is_string, widens
from pipeline.delta import sql
from pipeline.errors import FrameMismatchError
from pipeline.errors.listing import listed
from pipeline.errors.spelling import distinguishable


@dataclass(frozen=True)
class _Fit:
    """The conversion of a value from one type to another: its SQL, and the problems that prevent it."""

    expression: str
    problems: tuple[str, ...] = ()


def select_list(dataset: Dataset, schema: StructType) -> dict[str, str]:
    """The SQL that selects each declared column, in declared order, from a frame of that schema.

    If the frame lacks a column that is declared as generated or with a default, its SQL computes it. The columns that
    the write mode reads but the table does not have follow unchanged.

    Raises:
        FrameMismatchError: with every missing, extra, narrowed, reserved or ambiguous column.
    """
    problems = list(_frame_problems(schema, dataset.frame_columns))
    shown = distinguishable((*dataset.schema.names, *dataset.frame_columns, *schema.names))
    by_name = {name: name for name in schema.names}
    by_folded = {casefolded(name): name for name in schema.names}
    selected: dict[str, str] = {}
    computed = dict((*dataset.features.generated, *dataset.features.defaults))
    used = set()
    for field in dataset.schema.fields:
        source = by_name.get(field.name) or by_folded.get(casefolded(field.name))
        if field.name in dataset.computed:
            fit = _of_history(dataset, field, schema, source)
            used.add(source or field.name)
            problems += fit.problems
            selected[field.name] = fit.expression
            continue
        if source is None and field.name in computed:
            selected[field.name] = f"CAST(({computed[field.name]}) AS {sql.bare_type(field.dataType)})"
            continue
        if source is None:
            problems.append(f"column {shown(field.name)}: missing, declared {sql.type_name(field.dataType)}")
            continue
        used.add(source)
        fit = _fit(field.name, sql.identifier(source), schema[source].dataType, field.dataType)
        problems += fit.problems
        selected[field.name] = fit.expression
    for name in dataset.frame_columns:
        source = by_name.get(name) or by_folded.get(casefolded(name))
        used.add(source or name)
        problem = _absence(schema, source)
        problems += [] if problem is None else [f"column {shown(name)}: {problem}; the write needs it"]
        selected[name] = sql.identifier(source or name)
    problems += [
        f"column {shown(name)}: not declared (type {sql.type_name(schema[name].dataType)})"
        for name in schema.names
        if name not in used and casefolded(name) not in RESERVED_COLUMNS
    ]
    if problems:
        raise FrameMismatchError(dataset=dataset.name, differences=tuple(dict.fromkeys(problems)))
    return selected


def _absence(schema: StructType, source: str | None) -> str | None:
    """Why a column of the frame has no values. If it has some, None."""
    if source is None:
        return "missing"
    return "has type void" if isinstance(schema[source].dataType, NullType) else None


def _of_history(dataset: Dataset, field: StructField, schema: StructType, source: str | None) -> _Fit:
    """A column that the write of a `History` computes, as it is before: a change is valid from its own place."""
    mode = dataset.write
    assert isinstance(mode, History)  # noqa: S101  no other mode computes columns
    if source is not None:
        return _Fit("NULL", (f"column {source}: the write computes it; leave it out of the frame",))
    if field.name == mode.is_current:
        return _Fit("TRUE")
    folded = {casefolded(name): name for name in schema.names}
    order = mode.sequence if mode.sequence in schema.names else folded.get(casefolded(mode.sequence))
    if field.name == mode.valid_to or order is None:
        return _Fit(f"CAST(NULL AS {sql.bare_type(field.dataType)})")
    return _fit(mode.sequence, sql.identifier(order), schema[order].dataType, field.dataType)


def ignored_feed_columns(frame_columns: Iterable[str]) -> frozenset[str]:
    """The change feed's own columns that a frame may have: all if its write reads one of them, else none of them."""
    is_feed = any(casefolded(name) in RESERVED_COLUMNS for name in frame_columns)
    return RESERVED_COLUMNS if is_feed else frozenset()


def _frame_problems(schema: StructType, frame_columns: Iterable[str]) -> Iterator[str]:
    refused = RESERVED_COLUMNS - ignored_feed_columns(frame_columns)
    if not schema.fields:
        yield "the frame has no columns"
    for group in case_duplicates(schema):
        yield f"columns {listed(group)}: differ by case only"
    for name in schema.names:
        if casefolded(name) in refused:
            yield f"column {name}: the change feed adds a column of that name itself"


def _fit(path: str, expression: str, given: DataType, declared: DataType) -> _Fit:
    if isinstance(given, NullType):  # all values are NULL, so any declared type fits
        return _Fit(f"CAST({expression} AS {sql.bare_type(declared)})")
    if isinstance(given, StructType) and isinstance(declared, StructType):
        return _fit_struct(path, expression, given, declared)
    if isinstance(given, ArrayType) and isinstance(declared, ArrayType):
        inner = _fit(f"{path}.element", "e", given.elementType, declared.elementType)
        changed = inner.expression != "e"
        return _Fit(f"transform({expression}, e -> {inner.expression})" if changed else expression, inner.problems)
    if isinstance(given, MapType) and isinstance(declared, MapType):
        return _fit_map(path, expression, given, declared)
    if is_string(declared) and _is_collated(given):
        return _Fit(f"CAST({expression} AS {sql.bare_type(declared)})")
    if _same(given, declared):
        return _Fit(expression)
    if widens(given, declared):
        return _Fit(f"CAST({expression} AS {sql.bare_type(declared)})")
    problem = f"column {path}: has type {sql.type_name(given)}, declared {sql.type_name(declared)}"
    return _Fit(expression, (problem + _zone_problem(given, declared),))


def _zone_problem(given: DataType, declared: DataType) -> str:
    """The remedy if of a time's given and declared types only one has a zone. For other types, empty."""
    if isinstance(given, TimestampNTZType) and isinstance(declared, TimestampType):
        return "; it has no zone, so its instant is unknown: convert it with to_timestamp_ltz or convert_timezone"
    if isinstance(given, TimestampType) and isinstance(declared, TimestampNTZType):
        return "; it is an instant: convert it into a zone's local time with convert_timezone or to_timestamp_ntz"
    return ""


def _is_collated(given: DataType) -> bool:
    """Whether a text compares otherwise than by its bytes: rows of different keys would count as rows of one."""
    return isinstance(given, StringType) and given.collation != StringType().collation


def _same(given: DataType, declared: DataType) -> bool:
    if is_string(given) and is_string(declared):
        return True
    return type(given) is type(declared) and given.simpleString() == declared.simpleString()


def _fit_struct(path: str, expression: str, given: StructType, declared: StructType) -> _Fit:
    problems = [f"column {path}: fields {listed(group)} differ by case only" for group in case_duplicates(given)]
    by_folded = {casefolded(name): name for name in given.names}
    parts = []
    is_unchanged = given.names == declared.names
    for field in declared.fields:
        source = field.name if field.name in given.names else by_folded.pop(casefolded(field.name), None)
        if source is None:
            problems.append(f"column {path}.{field.name}: missing, declared {sql.type_name(field.dataType)}")
            continue
        by_folded.pop(casefolded(source), None)
        inner = f"{expression}.{sql.identifier(source)}"
        fit = _fit(f"{path}.{field.name}", inner, given[source].dataType, field.dataType)
        is_unchanged = is_unchanged and fit.expression == inner
        problems += fit.problems
        parts.append(f"{sql.string(field.name)}, {fit.expression}")
    problems += [f"column {path}.{name}: not declared" for name in by_folded.values()]
    if is_unchanged:
        return _Fit(expression, tuple(problems))
    # A NULL struct stays NULL and does not become a struct of NULLs.
    rebuilt = f"CASE WHEN {expression} IS NOT NULL THEN named_struct({', '.join(parts)}) END"
    return _Fit(rebuilt, tuple(problems))


def _fit_map(path: str, expression: str, given: MapType, declared: MapType) -> _Fit:
    key = _fit(f"{path}.key", "k", given.keyType, declared.keyType)
    value = _fit(f"{path}.value", "v", given.valueType, declared.valueType)
    if value.expression != "v":
        expression = f"transform_values({expression}, (k, v) -> {value.expression})"
    if key.expression != "k":
        expression = f"transform_keys({expression}, (k, v) -> {key.expression})"
    return _Fit(expression, key.problems + value.problems)
