"""What is declared against what is there: both as values of one type, and their difference as a list of steps.

Here belong `Shape`, read from a declaration or from a table, and `Plan`, which is shown, stored as JSON and applied
from the same list. Nothing is read and nothing is changed here. What the declaration does not speak of is no
difference: further properties, features, comments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.types import StructType

from pipeline.dataset import Dataset
from pipeline.dataset.features import (
    MAPPING_MODE,
    REMOVABLE,
    SWITCHES,
    brought_by,
    feature_properties,
    features_of,
    unwanted_features,
    wanted_features,
    with_required,
)
from pipeline.dataset.policy import OURS, storage_properties
from pipeline.dataset.schema import schema_fingerprint, walk
from pipeline.delta import sql
from pipeline.delta.log.table_state import TableState
from pipeline.delta.table.compatibility import READER_FEATURES, Loss, clients_lost
from pipeline.delta.table.evolve import SchemaSteps, field_at, schema_steps, with_not_null
from pipeline.delta.table.steps import (
    NOT_NULL_PREFIX,
    AddCheck,
    AddColumn,
    DropCheck,
    DropColumn,
    DropFeature,
    EnableFeature,
    MoveColumn,
    RelaxNotNull,
    RenameColumn,
    SetClustering,
    SetDefault,
    SetNotNull,
    SetProperty,
    Step,
    UnsetProperty,
    WidenColumn,
    not_null_check,
)
from pipeline.spelling import told_apart

CHANGE_FEED = "delta.enableChangeDataFeed"
# What a table gets when it is created, unless the declaration says otherwise; one that lacks it is as good.
# Transaction identifiers are forgotten no later than the log forgets a restore, which makes them new.
DEFAULT_PROPERTIES = {"delta.setTransactionRetentionDuration": "interval 30 days"}
CONSTRAINT_PREFIX = "delta.constraints."
# Where Delta keeps them in the metadata of a field.
GENERATION = "delta.generationExpression"
DEFAULT = "CURRENT_DEFAULT"
RETENTIONS = ("delta.deletedFileRetentionDuration", "delta.logRetentionDuration")
# What a property that is not set means, by its name in lower case.
_UNSET = {switch.property.lower(): switch.off for switch in SWITCHES.values()} | {MAPPING_MODE.lower(): "none"}
_WIDENING = SWITCHES["type_widening"]
# The steps that a comparison of whole columns tells already.
SCHEMA_KINDS = frozenset(
    step.kind for step in (AddColumn, WidenColumn, RelaxNotNull, SetNotNull, RenameColumn, DropColumn, MoveColumn)
)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a table is but for its rows, as declared or as observed.

    NOT NULL that is held by a check counts as the column's own; `held` names those checks. `cluster_by` is None, and a
    property, default or feature left out, where nothing is said of it. `unwanted` are features that must not be there.
    """

    schema: StructType
    partition_by: tuple[str, ...]
    cluster_by: tuple[str, ...] | None
    properties: Mapping[str, str]
    checks: Mapping[str, str]
    generated: Mapping[str, str]
    defaults: Mapping[str, str]
    features: frozenset[str]
    unwanted: tuple[str, ...] = ()
    held: frozenset[str] = frozenset()

    def property(self, name: str) -> str | None:
        """A property's value; names are compared without regard to case, and None means it is not set."""
        return next((value for key, value in self.properties.items() if key.lower() == name.lower()), None)


def plain_properties(dataset: Dataset) -> dict[str, str]:
    """The table properties that the declaration asks for, checks left out."""
    feed = {CHANGE_FEED: "true"} if dataset.change_feed else {}
    asked = storage_properties(dataset.storage) | feature_properties(dataset.features)
    return dict(dataset.properties) | asked | feed


def declared_shape(dataset: Dataset) -> Shape:
    """The shape that the declaration asks for."""
    features = dataset.features
    return Shape(
        schema=dataset.schema,
        partition_by=dataset.partition_by,
        cluster_by=features.cluster_by,
        properties=plain_properties(dataset),
        checks={check.name: check.condition for check in dataset.checks},
        generated=dict(features.generated),
        defaults=dict(features.defaults),
        features=frozenset(wanted_features(features)),
        unwanted=unwanted_features(features),
    )


def observed_shape(state: TableState) -> Shape:
    """The shape that a table has."""
    there = {
        name[len(CONSTRAINT_PREFIX) :]: value
        for name, value in state.properties.items()
        if name.lower().startswith(CONSTRAINT_PREFIX)
    }
    schema, held = state.schema, set()
    may_hold = any(name.startswith(NOT_NULL_PREFIX) for name in there)
    for path, condition in _not_null_paths(schema) if may_hold else ():
        if there.get(check := not_null_check(path)) == condition:
            schema = with_not_null(schema, path)
            held.add(check)
    metadata = {field.name: field.metadata or {} for field in state.schema.fields}
    return Shape(
        schema=schema,
        partition_by=state.partition_by,
        cluster_by=state.cluster_by,
        properties={n: v for n, v in state.properties.items() if not n.lower().startswith(CONSTRAINT_PREFIX)},
        checks={name: value for name, value in there.items() if name not in held},
        generated={name: said[GENERATION] for name, said in metadata.items() if GENERATION in said},
        defaults={name: said[DEFAULT] for name, said in metadata.items() if DEFAULT in said},
        features=frozenset(state.features),
        held=frozenset(held),
    )


def _not_null_paths(schema: StructType) -> Iterator[tuple[tuple[str, ...], str]]:
    """Columns that may be NULL, with what a check that holds NOT NULL says."""
    for dotted, field in walk(schema):
        path = tuple(dotted.split("."))
        if field.nullable and field_at(schema, path) is not None:
            yield path, SetNotNull(path=path).condition


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The difference between a table and its declaration, in the order in which the steps are applied.

    `problems` is what no step settles, in words; `features` are those of the table before the first step.
    """

    dataset: str
    location: str
    version: int
    steps: tuple[Step, ...]
    problems: tuple[str, ...]
    features: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Whether the table is not as declared."""
        return bool(self.steps or self.problems)

    @property
    def is_automatic(self) -> bool:
        """Whether a write may settle all of it that would refuse the write."""
        return not self.problems and all(step.automatic or not step.needed for step in self.steps)

    def losses(self) -> tuple[Loss, ...]:
        """By step, the clients that lose the table by it."""
        found, before = [], set(self.features)
        for step in self.steps:
            after = before | set(step.gains)
            after -= {step.name} if isinstance(step, DropFeature) else set()
            found.append(clients_lost(before, after))
            before = after
        return tuple(found)

    def document(self) -> dict[str, Any]:
        """The plan in JSON's types."""
        steps = [
            step.document(self.location)
            | {
                "raises_protocol": bool(step.gains),
                "loses": {"readers": list(lost.readers), "writers": list(lost.writers)},
            }
            for step, lost in zip(self.steps, self.losses(), strict=True)
        ]
        return {
            "dataset": self.dataset,
            "location": self.location,
            "version": self.version,
            "steps": steps,
            "problems": list(self.problems),
        }


def plan(dataset: Dataset, state: TableState) -> Plan:
    """What leads from the table to its declaration; reads nothing but its arguments."""
    want, have = declared_shape(dataset), _as_renamed(dataset, observed_shape(state))
    by_schema = _by_schema(dataset, want, have)
    problems = [*_layout_problems(want, have), *by_schema.problems, *_mapping_problems(want, have)]
    features = set(have.features)
    steps = []
    for step in _ordered(want, have, by_schema.steps):
        gains = tuple(name for name in _brought(step) if name not in features)
        features |= set(gains)
        steps.append(replace(step, gains=gains))
    return Plan(
        dataset=dataset.name, location=state.location, version=state.version, steps=tuple(steps),
        problems=tuple(problems), features=tuple(state.features),
    )  # fmt: skip


def brings_sql(dataset: Dataset, state: TableState, found: Plan) -> bool:
    """Whether the steps of a plan bring SQL to a table that it does not have, or that speaks of other columns there.

    What the table has as it is declared, over columns of the same names, Delta has taken before.
    """
    want, have = declared_shape(dataset), observed_shape(state)
    if not found.steps or not (want.checks or want.generated or want.defaults):
        return False
    is_new = any(_sql(have.generated.get(column)) != _sql(said) for column, said in want.generated.items())
    return is_new or any(isinstance(step, AddCheck | SetDefault | RenameColumn | DropColumn) for step in found.steps)


def _as_renamed(dataset: Dataset, have: Shape) -> Shape:
    """The shape with the columns of its layout under the names that they are declared to get."""
    to = {old: new for old, new in dataset.schema_policy.renames if new not in have.schema.names}

    def named(columns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(to.get(column, column) for column in columns)

    cluster_by = None if have.cluster_by is None else named(have.cluster_by)
    return replace(have, partition_by=named(have.partition_by), cluster_by=cluster_by)


def _by_schema(dataset: Dataset, want: Shape, have: Shape) -> SchemaSteps:
    asked = want.property(_WIDENING.property)
    is_on = (asked if asked is not None else have.property(_WIDENING.property) or _WIDENING.off) == _WIDENING.on
    return schema_steps(want.schema, have.schema, dataset.schema_policy, widening=is_on, held=have.held)


def _ordered(want: Shape, have: Shape, by_schema: tuple[Step, ...]) -> Iterator[Step]:
    """Every step, each behind what it depends on; what is switched off comes last."""
    changed = [name for name, value in have.checks.items() if want.checks.get(name) != value]
    yield from (DropCheck(name=name, before=have.checks[name]) for name in sorted(changed))
    off = {n for n, v in want.properties.items() if n.lower() in _UNSET and v == _UNSET[n.lower()]}
    properties = list(_properties(want, have))
    yield from (step for step in properties if step.name not in off)
    yield from (EnableFeature(name=name) for name in sorted(want.features - have.features))
    added = [step for step in by_schema if isinstance(step, AddColumn)]
    for name in features_of(step.field for step in added):
        if name not in have.features | want.features:  # whoever lets columns be added lets them have their type
            yield EnableFeature(name=name, automatic=all(step.automatic for step in added))
    yield from (step for step in by_schema if not isinstance(step, SetNotNull))
    for column, expression in want.defaults.items():
        if have.defaults.get(column) != expression:
            yield SetDefault(column=column, expression=expression, before=have.defaults.get(column))
    if want.cluster_by is not None and want.cluster_by != have.cluster_by:
        yield SetClustering(columns=want.cluster_by, before=have.cluster_by or ())
    yield from (step for step in by_schema if isinstance(step, SetNotNull))
    for name, condition in want.checks.items():
        if have.checks.get(name) != condition:
            yield AddCheck(name=name, condition=condition, before=have.checks.get(name))
    yield from (step for step in properties if step.name in off)
    ours = [n for n in have.properties if n.startswith(OURS) and want.property(n) is None]
    yield from (UnsetProperty(name=name, before=have.properties[name]) for name in sorted(ours))
    yield from (DropFeature(name=n) for n in want.unwanted if n in have.features and n in REMOVABLE)


def _properties(want: Shape, have: Shape) -> Iterator[SetProperty]:
    for name, value in want.properties.items():
        before = have.property(name)
        is_there = (before if before is not None else _UNSET.get(name.lower(), "")).lower() == value.lower()
        if not is_there or (before is None and name.lower() not in _UNSET):
            yield SetProperty(name=name, value=value, before=before, along=tuple(_along(name, want, have)))


def _along(name: str, want: Shape, have: Shape) -> Iterator[tuple[str, str]]:
    """The other one of the two retentions: Delta refuses files that are kept for longer than the log."""
    for other in RETENTIONS:
        value = want.property(other) or have.property(other)
        is_pair = name.lower() in {retention.lower() for retention in RETENTIONS} and name.lower() != other.lower()
        if is_pair and value is not None:
            yield other, value


def _brought(step: Step) -> Collection[str]:
    if isinstance(step, SetProperty):
        return brought_by(step.name, step.value)
    if isinstance(step, EnableFeature):
        return with_required((step.name,))
    if isinstance(step, AddCheck | SetNotNull):
        return ("checkConstraints",)
    if isinstance(step, SetClustering):
        return with_required(("clustering",))
    if isinstance(step, DropFeature) and step.name in READER_FEATURES:
        return ("checkpointProtection",)  # older versions still need the feature to be read
    return ()


def _layout_problems(want: Shape, have: Shape) -> Iterator[str]:
    if want.partition_by != have.partition_by:
        yield (f"partition columns: declared {_tuple(want.partition_by)}, the table has {_tuple(have.partition_by)}")
    for column, expression in want.generated.items():
        found = have.generated.get(column)
        if _sql(found) != _sql(expression):
            there = "is not generated" if found is None else f"is generated as {found}"
            yield f"column {column}: declared as generated by {expression}, in the table it {there}"


def _mapping_problems(want: Shape, have: Shape) -> Iterator[str]:
    asked, found = want.property(MAPPING_MODE), have.property(MAPPING_MODE) or "none"
    if asked == "id" and found != "id":
        yield f"property {MAPPING_MODE}: declared 'id', which only a new table can have; the table has {found!r}"
    if asked == "name" and found == "id":
        yield f"property {MAPPING_MODE}: declared 'name', the table has 'id', which it keeps"


def _sql(text: str | None) -> str | None:
    return None if text is None else "".join(text.split()).replace("`", "").lower()


def shape_differences(dataset: Dataset, state: TableState) -> list[str]:
    """Every way in which a table differs from its declaration, in words; empty where it does not."""
    want, have, found = declared_shape(dataset), _as_renamed(dataset, observed_shape(state)), plan(dataset, state)
    known = {problem for problem in found.problems if not problem.startswith("column ")}
    by_schema = _schema_differences(want.schema, have.schema)
    if not by_schema:
        known |= set(found.problems)
    steps = [step for step in found.steps if step.needed and step.kind not in SCHEMA_KINDS]
    others = [step.difference() for step in steps if not (isinstance(step, DropCheck) and step.name in want.checks)]
    return [*(problem for problem in found.problems if problem in known), *by_schema, *others]


def _tuple(columns: tuple[str, ...]) -> str:
    return f"({', '.join(columns)})" if columns else "none"


def _schema_differences(declared: StructType, found: StructType) -> list[str]:
    differences = []
    there = {field.name: field for field in found.fields}
    shown = told_apart((*declared.names, *there))
    for field in declared.fields:
        other = there.get(field.name)
        if other is None:
            differences.append(
                f"column {shown(field.name)}: declared {sql.column_definition(field)}, the table lacks it"
            )
        elif schema_fingerprint(StructType([field]), ()) != schema_fingerprint(StructType([other]), ()):
            differences.append(
                f"column {field.name}: declared {sql.type_name(field.dataType)}{_null(field.nullable)}, "
                f"the table has {sql.type_name(other.dataType)}{_null(other.nullable)}"
            )
    extra = [name for name in there if name not in declared.names]
    differences += [f"column {shown(name)}: the table has it, the declaration does not" for name in extra]
    if not differences and declared.names != found.names:
        differences.append(
            f"column order: declared {_tuple(tuple(declared.names))}, the table has {_tuple(tuple(found.names))}"
        )
    return differences


def _null(nullable: bool) -> str:
    return "" if nullable else " NOT NULL"
