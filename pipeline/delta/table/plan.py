"""The difference between a declaration and a table: both as values of one type, and the list of steps between them.

Here belong `Shape`, made from a declaration or from a table, and `Plan`, whose list of steps is shown, stored as JSON
and applied. This module reads and changes no table. Properties, features and comments that are not declared are no
difference.
"""

from __future__ import annotations

import dataclasses
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
from pipeline.dataset.schema import schema_fingerprint, walk_paths
from pipeline.delta import sql
from pipeline.delta.log.snapshot import TableState
from pipeline.delta.sql.state import state_problems, table_checks
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
)
from pipeline.errors.spelling import distinguishable

CHANGE_FEED = "delta.enableChangeDataFeed"
# Properties of a new table, unless the declaration sets them; a table without them is no difference.
# Transaction identifiers expire no later than the log entry of a restore, after which writes use new identifiers.
DEFAULT_PROPERTIES = {"delta.setTransactionRetentionDuration": "interval 30 days"}
CONSTRAINT_PREFIX = "delta.constraints."
# The keys in the metadata of a field under which Delta keeps its generation expression and its default.
GENERATION = "delta.generationExpression"
DEFAULT = "CURRENT_DEFAULT"
RETENTIONS = ("delta.deletedFileRetentionDuration", "delta.logRetentionDuration")
# The effective value of a property that is not set, by its name in lower case.
_UNSET = {switch.property.lower(): switch.off for switch in SWITCHES.values()} | {MAPPING_MODE.lower(): "none"}
_WIDENING = SWITCHES["type_widening"]
# The kinds of steps that `_schema_differences` reports already.
SCHEMA_KINDS = frozenset(
    step.kind for step in (AddColumn, WidenColumn, RelaxNotNull, SetNotNull, RenameColumn, DropColumn, MoveColumn)
)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The definition of a table, without its rows, as declared or as observed.

    NOT NULL that a check enforces counts as the column's own; `not_null_checks` has those checks by column. If the
    declaration does not define clustering, `cluster_by` is None; properties, defaults and features that it does not
    define are left out. `unwanted` are features that the table must not have.
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
    not_null_checks: Mapping[tuple[str, ...], str] = dataclasses.field(default_factory=dict)

    def property(self, name: str) -> str | None:
        """A property's value, None if it is not set; names are compared without regard to case."""
        return next((value for key, value in self.properties.items() if key.lower() == name.lower()), None)


def plain_properties(dataset: Dataset) -> dict[str, str]:
    """The declared table properties, without those of checks."""
    feed = {CHANGE_FEED: "true"} if dataset.change_feed else {}
    derived = storage_properties(dataset.storage) | feature_properties(dataset.features)
    return dict(dataset.properties) | derived | feed


def declared_shape(dataset: Dataset) -> Shape:
    """The shape of the declaration."""
    features = dataset.features
    return Shape(
        schema=dataset.schema,
        partition_by=dataset.partition_by,
        cluster_by=features.cluster_by,
        properties=plain_properties(dataset),
        checks=table_checks(dataset),
        generated=dict(features.generated),
        defaults=dict(features.defaults),
        features=frozenset(wanted_features(features)),
        unwanted=unwanted_features(features),
    )


def observed_shape(state: TableState) -> Shape:
    """The shape of a table."""
    constraints = {
        name[len(CONSTRAINT_PREFIX) :]: value
        for name, value in state.properties.items()
        if name.lower().startswith(CONSTRAINT_PREFIX)
    }
    # By condition: Delta stores the name of a check in lower case, and its form has changed.
    not_null = {sql.tokens(text): name for name, text in constraints.items() if name.startswith(NOT_NULL_PREFIX)}
    schema, not_null_checks = state.schema, dict[tuple[str, ...], str]()
    for path, condition in _nullable_paths(schema) if not_null else ():
        check = not_null.get(sql.tokens(condition))
        if check is not None:
            schema = with_not_null(schema, path)
            not_null_checks[path] = check
    metadata = {column.name: column.metadata or {} for column in state.schema.fields}
    return Shape(
        schema=schema,
        partition_by=state.partition_by,
        cluster_by=state.cluster_by,
        properties={n: v for n, v in state.properties.items() if not n.lower().startswith(CONSTRAINT_PREFIX)},
        checks={name: value for name, value in constraints.items() if name not in not_null_checks.values()},
        generated={name: entries[GENERATION] for name, entries in metadata.items() if GENERATION in entries},
        defaults={name: entries[DEFAULT] for name, entries in metadata.items() if DEFAULT in entries},
        features=frozenset(state.features),
        not_null_checks=not_null_checks,
    )


def _nullable_paths(schema: StructType) -> Iterator[tuple[tuple[str, ...], str]]:
    """The columns that may be NULL, each with the condition of a check that would enforce NOT NULL."""
    for path, column in walk_paths(schema):
        if column.nullable and field_at(schema, path) is not None:
            yield path, SetNotNull(path=path).condition


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The difference between a table and its declaration; the steps are in the order in which they are applied.

    `problems` are messages about what no step resolves, `column_problems` those of them that are about columns;
    `features` are those of the table before the first step.
    """

    dataset: str
    location: str
    version: int
    steps: tuple[Step, ...]
    problems: tuple[str, ...]
    column_problems: tuple[str, ...]
    features: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Whether the table differs from the declaration."""
        return bool(self.steps or self.problems)

    @property
    def is_automatic(self) -> bool:
        """Whether a write may resolve every difference that would otherwise refuse it."""
        return not self.problems and all(step.automatic or not step.needed for step in self.steps)

    def losses(self) -> tuple[Loss, ...]:
        """For each step, the clients that it excludes from the table."""
        losses, before = [], set(self.features)
        for step in self.steps:
            after = before | set(step.gains)
            after -= {step.name} if isinstance(step, DropFeature) else set()
            losses.append(clients_lost(before, after))
            before = after
        return tuple(losses)

    def document(self) -> dict[str, Any]:
        """The plan as JSON types."""
        steps = [
            step.document(self.location)
            | {
                "raises_protocol": bool(step.gains),
                "loses": {"readers": list(loss.readers), "writers": list(loss.writers)},
            }
            for step, loss in zip(self.steps, self.losses(), strict=True)
        ]
        return {
            "dataset": self.dataset,
            "location": self.location,
            "version": self.version,
            "steps": steps,
            "problems": list(self.problems),
        }


def plan(dataset: Dataset, state: TableState) -> Plan:
    """The plan that leads from the table to its declaration; it depends on the arguments alone."""
    want, have = declared_shape(dataset), _as_declared(dataset, observed_shape(state))
    by_schema = _by_schema(dataset, want, have)
    of_columns = (*_generation_problems(want, have), *by_schema.problems)
    of_state = state_problems(dataset, keeps_state=state.keeps_state)
    problems = (*_partition_problems(want, have), *of_state, *of_columns, *_mapping_problems(want, have))
    features, steps = set(have.features), list[Step]()
    for step in _ordered(want, have, by_schema.steps):
        gains = tuple(name for name in _brought(step) if name not in features)
        features |= set(gains)
        steps.append(replace(step, gains=gains))
    return Plan(
        dataset=dataset.name, location=state.location, version=state.version, steps=tuple(steps),
        problems=problems, column_problems=of_columns, features=tuple(state.features),
    )  # fmt: skip


def brings_sql(dataset: Dataset, state: TableState, table_plan: Plan) -> bool:
    """Whether the steps of a plan add SQL that the table does not have, or change columns that its SQL may name.

    Delta has already accepted declared SQL that the table has, over columns of the same names.
    """
    want, have = declared_shape(dataset), observed_shape(state)
    if not table_plan.steps or not (want.checks or want.generated or want.defaults):
        return False
    is_new = any(_sql(have.generated.get(column)) != _sql(expression) for column, expression in want.generated.items())
    sql_steps = (AddCheck, SetDefault, RenameColumn, DropColumn)
    return is_new or any(isinstance(step, sql_steps) for step in table_plan.steps)


def _as_declared(dataset: Dataset, have: Shape) -> Shape:
    """The shape with declared renames applied to its partition and clustering columns, and with checks as declared.

    Delta stores the name of a check in lower case, and its condition with one space between two tokens.
    """
    declared = {name.lower(): (name, condition) for name, condition in table_checks(dataset).items()}
    checks = {}
    for name, condition in have.checks.items():
        own_name, own = declared.get(name.lower(), (name, condition))
        checks[own_name] = own if sql.tokens(own) == sql.tokens(condition) else condition
    new_names = {old: new for old, new in dataset.schema_policy.renames if new not in have.schema.names}

    def renamed(columns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(new_names.get(column, column) for column in columns)

    cluster_by = None if have.cluster_by is None else renamed(have.cluster_by)
    return replace(have, partition_by=renamed(have.partition_by), cluster_by=cluster_by, checks=checks)


def _by_schema(dataset: Dataset, want: Shape, have: Shape) -> SchemaSteps:
    declared = want.property(_WIDENING.property)
    is_on = (declared if declared is not None else have.property(_WIDENING.property) or _WIDENING.off) == _WIDENING.on
    return schema_steps(
        want.schema, have.schema, dataset.schema_policy, widening=is_on, not_null_checks=have.not_null_checks
    )


def _ordered(want: Shape, have: Shape, by_schema: tuple[Step, ...]) -> Iterator[Step]:
    """Every step, each after those that it depends on; steps that disable something come last."""
    changed = [name for name, value in have.checks.items() if want.checks.get(name) != value]
    yield from (DropCheck(name=name, before=have.checks[name]) for name in sorted(changed))
    off = {n for n, v in want.properties.items() if n.lower() in _UNSET and v == _UNSET[n.lower()]}
    properties = list(_properties(want, have))
    yield from (step for step in properties if step.name not in off)
    yield from (EnableFeature(name=name) for name in sorted(want.features - have.features))
    added = [step for step in by_schema if isinstance(step, AddColumn)]
    for name in features_of(step.field for step in added):
        if name not in have.features | want.features:  # a policy that adds columns adds the features of their types
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
        present = before if before is not None else _UNSET.get(name.lower(), "")
        # The values of Delta's own properties are switches, numbers and names without regard to case.
        is_delta = name.lower().startswith("delta.")
        is_equal = present.lower() == value.lower() if is_delta else present == value
        if not is_equal or (before is None and name.lower() not in _UNSET):
            yield SetProperty(name=name, value=value, before=before, along=tuple(_along(name, want, have)))


def _along(name: str, want: Shape, have: Shape) -> Iterator[tuple[str, str]]:
    """If `name` is one of the two retentions, the other one: Delta refuses to keep files for longer than the log."""
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
        return ("checkpointProtection",)  # to read older versions still needs the feature
    return ()


def _partition_problems(want: Shape, have: Shape) -> Iterator[str]:
    if want.partition_by != have.partition_by:
        yield (f"partition columns: declared {_tuple(want.partition_by)}, the table has {_tuple(have.partition_by)}")


def _generation_problems(want: Shape, have: Shape) -> Iterator[str]:
    for column, expression in want.generated.items():
        actual = have.generated.get(column)
        if _sql(actual) != _sql(expression):
            state = "is not generated" if actual is None else f"is generated as {actual}"
            yield f"column {column}: declared as generated by {expression}, in the table it {state}"


def _mapping_problems(want: Shape, have: Shape) -> Iterator[str]:
    declared, actual = want.property(MAPPING_MODE), have.property(MAPPING_MODE) or "none"
    if declared == "id" and actual != "id":
        yield f"property {MAPPING_MODE}: declared 'id', which only a new table can have; the table has {actual!r}"
    if declared == "name" and actual == "id":
        yield f"property {MAPPING_MODE}: declared 'name', the table has 'id', which it keeps"


def _sql(text: str | None) -> str | None:
    return None if text is None else "".join(text.split()).replace("`", "").lower()


def shape_differences(dataset: Dataset, state: TableState) -> list[str]:
    """Messages about every difference between a table and its declaration; empty if there is none."""
    want, have, difference = declared_shape(dataset), _as_declared(dataset, observed_shape(state)), plan(dataset, state)
    reported = set(difference.problems) - set(difference.column_problems)
    by_schema = _schema_differences(want.schema, have.schema)
    if not by_schema:
        reported |= set(difference.problems)
    steps = [step for step in difference.steps if step.needed and step.kind not in SCHEMA_KINDS]
    others = [step.difference() for step in steps if not (isinstance(step, DropCheck) and step.name in want.checks)]
    return [*(problem for problem in difference.problems if problem in reported), *by_schema, *others]


def _tuple(columns: tuple[str, ...]) -> str:
    return f"({', '.join(columns)})" if columns else "none"


def _schema_differences(declared: StructType, observed: StructType) -> list[str]:
    differences = []
    by_name = {field.name: field for field in observed.fields}
    shown = distinguishable((*declared.names, *by_name))
    for field in declared.fields:
        other = by_name.get(field.name)
        if other is None:
            differences.append(
                f"column {shown(field.name)}: declared {sql.column_definition(field)}, the table lacks it"
            )
        elif schema_fingerprint(StructType([field]), ()) != schema_fingerprint(StructType([other]), ()):
            differences.append(
                f"column {field.name}: declared {sql.type_name(field.dataType)}{_null(field.nullable)}, "
                f"the table has {sql.type_name(other.dataType)}{_null(other.nullable)}"
            )
    extra = [name for name in by_name if name not in declared.names]
    differences += [f"column {shown(name)}: the table has it, the declaration does not" for name in extra]
    if not differences and declared.names != observed.names:
        differences.append(
            f"column order: declared {_tuple(tuple(declared.names))}, the table has {_tuple(tuple(observed.names))}"
        )
    return differences


def _null(nullable: bool) -> str:
    return "" if nullable else " NOT NULL"
