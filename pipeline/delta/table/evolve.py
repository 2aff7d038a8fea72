"""The differences between a table's schema and the declared one: the steps that resolve them, and the problems left.

Here belong the comparison of schemas at every depth and the rules of the schema policy. A rename or a drop is never
guessed: without a declared rename or drop, it is a problem that the table has a column that is not declared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructField,
    StructType,
)

from pipeline.dataset import SchemaPolicy
from pipeline.dataset.schema import casefolded, is_string, walk_paths, widens
from pipeline.delta import sql
from pipeline.delta.table.steps import (
    AddColumn,
    DropColumn,
    MoveColumn,
    Path,
    RelaxNotNull,
    RenameColumn,
    SetComment,
    SetNotNull,
    Step,
    WidenColumn,
    shown_path,
)

# The kinds of steps that a write takes by itself, by the mode of the schema policy. All others need
# `pipeline conform apply`; with "overwrite" a write that replaces the whole table replaces its schema as well.
ALLOWED: dict[str, frozenset[str]] = {
    "exact": frozenset(),
    "add columns": frozenset({AddColumn.kind}),
    "widen types": frozenset({WidenColumn.kind}),
    "evolve": frozenset({AddColumn.kind, WidenColumn.kind, RelaxNotNull.kind, RenameColumn.kind}),
    "overwrite": frozenset(),
}
# The integer digits that a decimal needs for Delta to widen an integral type to it (`TypeWidening.scala`).
_DECIMAL_DIGITS: dict[type[DataType], int] = {ByteType: 10, ShortType: 10, IntegerType: 10, LongType: 20}

Edit = Callable[[list[StructField], int], list[StructField]]


@dataclass(frozen=True, kw_only=True)
class SchemaSteps:
    """The steps from a table's schema to the declared one; `problems` are messages about what no step resolves."""

    steps: tuple[Step, ...]
    problems: tuple[str, ...]


def schema_steps(
    declared: StructType,
    observed: StructType,
    policy: SchemaPolicy,
    *,
    widening: bool,
    not_null_checks: Mapping[Path, str],
) -> SchemaSteps:
    """Compare schemas at every depth.

    Args:
        widening: whether type widening is enabled in the table.
        not_null_checks: the checks that enforce NOT NULL, by column.
    """
    differ = _Differ(policy=policy, widening=widening, not_null_checks=not_null_checks)
    differ.struct((), declared, differ.renamed_and_dropped(declared, observed))
    allowed = ALLOWED[policy.mode]
    # Drops come last: Delta can't drop the only field of a struct before another one is added.
    ordered = sorted(differ.steps, key=lambda step: isinstance(step, DropColumn))
    steps = tuple(replace(step, automatic=step.kind in allowed) for step in ordered)
    return SchemaSteps(steps=steps, problems=tuple(differ.problems))


@dataclass
class _Differ:
    policy: SchemaPolicy
    widening: bool
    not_null_checks: Mapping[Path, str]
    steps: list[Step] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def renamed_and_dropped(self, declared: StructType, observed: StructType) -> StructType:
        """Add the steps of declared renames and drops; returns the table's schema after them."""
        for old, new in self.policy.renames:
            path = _path_called(old, observed)
            if path is None or field_at(observed, (*path[:-1], new)) is not None:
                continue
            self.steps.append(RenameColumn(path=path, to=new))
            observed = _edited(observed, path, lambda fields, at, to=new: _with(fields, at, name=to))  # type: ignore[misc]
        for dropped in self.policy.drops:
            path = _path_called(dropped, observed)
            if path is not None and field_at(declared, path) is None:
                self.steps.append(DropColumn(path=path))
                observed = _edited(observed, path, lambda fields, at: fields[:at] + fields[at + 1 :])
        return observed

    def struct(self, path: Path, declared: StructType, observed: StructType) -> None:
        by_name = {f.name: f for f in observed.fields}
        by_folded = {casefolded(f.name): f.name for f in observed.fields}
        self.problems += [
            f"column {shown_path((*path, name))}: the table has it, the declaration does not"
            for name in by_name
            if name not in declared.names
        ]
        order, previous = list(observed.names), None
        for item in declared.fields:
            item_path = (*path, item.name)
            if item.name in by_name:
                self.field(item_path, item, by_name[item.name])
            elif casefolded(item.name) in by_folded:
                other = by_folded[casefolded(item.name)]
                self.problems.append(
                    f"column {shown_path(item_path)}: the table has it as {other}, which differs by case only"
                )
            elif _has_not_null_field(item):
                self.problems.append(
                    f"column {shown_path(item_path)}: NOT NULL, and the table's rows have no value for it"
                )
            else:
                type_name = sql.type_name(item.dataType)
                self.steps.append(AddColumn(path=item_path, field=item, type=type_name, after=previous))
                order.insert(0 if previous is None else order.index(previous) + 1, item.name)
            previous = item.name if item.name in order else previous
        self._order(path, [name for name in declared.names if name in order], order)

    def _order(self, path: Path, declared: list[str], order: list[str]) -> None:
        order = [name for name in order if name in declared]
        for position, name in enumerate(declared):
            if order[position] != name:
                after = declared[position - 1] if position else None
                self.steps.append(MoveColumn(path=(*path, name), after=after))
                order.remove(name)
                order.insert(position, name)

    def field(self, path: Path, declared: StructField, observed: StructField) -> None:
        if declared.nullable and not observed.nullable:
            self.steps.append(RelaxNotNull(path=path, check=self.not_null_checks.get(path)))
        if not declared.nullable and observed.nullable:
            self.steps.append(SetNotNull(path=path))
        comment = (declared.metadata or {}).get("comment")
        before = (observed.metadata or {}).get("comment")
        if comment is not None and comment != before:
            self.steps.append(SetComment(path=path, comment=comment, before=before))
        self.type(path, declared.dataType, observed.dataType)

    def type(self, path: Path, declared: DataType, observed: DataType) -> None:
        if isinstance(declared, StructType) and isinstance(observed, StructType):
            self.struct(path, declared, observed)
        elif isinstance(declared, ArrayType) and isinstance(observed, ArrayType):
            self._inside((*path, "element"), declared.containsNull, observed.containsNull)
            self.type((*path, "element"), declared.elementType, observed.elementType)
        elif isinstance(declared, MapType) and isinstance(observed, MapType):
            self._inside((*path, "value"), declared.valueContainsNull, observed.valueContainsNull)
            self.type((*path, "key"), declared.keyType, observed.keyType)
            self.type((*path, "value"), declared.valueType, observed.valueType)
        elif not stored_alike(declared, observed):
            self._atomic(path, declared, observed)

    def _inside(self, path: Path, declared: bool, observed: bool) -> None:
        if declared != observed:
            self.problems.append(f"column {shown_path(path)}: Delta can't change whether it may be NULL")

    def _atomic(self, path: Path, declared: DataType, observed: DataType) -> None:
        to, before = sql.type_name(declared), sql.type_name(observed)
        if not widens(observed, declared, _DECIMAL_DIGITS):
            self.problems.append(f"column {shown_path(path)}: declared {to}, the table has {before}")
        elif not self.widening:
            feature = "features.type_widening"
            self.problems.append(
                f"column {shown_path(path)}: declared {to}, the table has {before}; {feature} would widen it"
            )
        else:
            self.steps.append(WidenColumn(path=path, type=to, before=before))


def stored_alike(given: DataType, declared: DataType) -> bool:
    """Whether Delta stores two types without fields in the same way."""
    if is_string(given) and is_string(declared):
        return True
    return type(given) is type(declared) and given.simpleString() == declared.simpleString()


def _has_not_null_field(item: StructField) -> bool:
    """Whether a field, or a field of a struct inside it, is NOT NULL."""
    if not item.nullable:
        return True
    inner = item.dataType
    while isinstance(inner, ArrayType):
        inner = inner.elementType
    return isinstance(inner, StructType) and any(_has_not_null_field(f) for f in inner.fields)


def _path_called(dotted: str, schema: StructType) -> Path | None:
    """The path of a field by its dotted name; None if there is none. A name may contain a dot itself."""
    return next((path for path, _ in walk_paths(schema) if ".".join(path) == dotted), None)


def field_at(data_type: DataType, path: Path) -> StructField | None:
    """The field at a path; None if there is none."""
    current = StructField("", data_type)
    for part in path:
        children = dict(_children(current.dataType))
        if part not in children:
            return None
        current = children[part]
    return current


def _children(data_type: DataType) -> Iterator[tuple[str, StructField]]:
    if isinstance(data_type, StructType):
        yield from ((f.name, f) for f in data_type.fields)
    elif isinstance(data_type, ArrayType):
        yield "element", StructField("element", data_type.elementType, data_type.containsNull)
    elif isinstance(data_type, MapType):
        yield "key", StructField("key", data_type.keyType, False)
        yield "value", StructField("value", data_type.valueType, data_type.valueContainsNull)


def _with(fields: list[StructField], at: int, *, name: str | None = None, inner: DataType | None = None,
          nullable: bool | None = None) -> list[StructField]:  # fmt: skip
    old = fields[at]
    null = old.nullable if nullable is None else nullable
    new = StructField(name or old.name, old.dataType if inner is None else inner, null, old.metadata)
    return [*fields[:at], new, *fields[at + 1 :]]


def _edited(data_type: StructType, path: Path, edit: Edit) -> StructType:
    fields = list(data_type.fields)
    at = data_type.names.index(path[0])
    if len(path) == 1:
        return StructType(edit(fields, at))
    return StructType(_with(fields, at, inner=_edited_inside(fields[at].dataType, path[1:], edit)))


def _edited_inside(data_type: DataType, path: Path, edit: Edit) -> DataType:
    if isinstance(data_type, ArrayType):
        return ArrayType(_edited_inside(data_type.elementType, path[1:], edit), data_type.containsNull)
    if isinstance(data_type, MapType):
        key, value = data_type.keyType, data_type.valueType
        if path[0] == "key":
            return MapType(_edited_inside(key, path[1:], edit), value, data_type.valueContainsNull)
        return MapType(key, _edited_inside(value, path[1:], edit), data_type.valueContainsNull)
    assert isinstance(data_type, StructType)  # noqa: S101
    return _edited(data_type, path, edit)


def with_not_null(schema: StructType, path: Path) -> StructType:
    """The schema with the column at this path declared NOT NULL."""
    return _edited(schema, path, lambda fields, at: _with(fields, at, nullable=False))
