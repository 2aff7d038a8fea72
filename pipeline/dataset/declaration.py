"""A dataset's declaration: DDL, asset key, location, checks and metadata are derived from it.

Here belong `Dataset` and the parts that no other module has. This module does no input or output, and needs no JVM
and no Dagster. It imports only `pyspark.sql.types` of Spark, which is plain Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pyspark.sql.types import StructField, StructType

from pipeline.dataset.audit import Audit, audit_problems
from pipeline.dataset.expectations import (
    Check,
    Constraint,
    Expectation,
    Freshness,
    NotNull,
    RowCount,
    SchemaCheck,
    constraint_problems,
    expectation_problems,
    sets_apart,
)
from pipeline.dataset.exports import Export, export_problems
from pipeline.dataset.features import Features, feature_problems, feature_properties, property_problems
from pipeline.dataset.history import history_problems, keeps_state, tombstone_problems
from pipeline.dataset.policy import (
    MaintenancePolicy,
    SchemaPolicy,
    StoragePolicy,
    maintenance_problems,
    schema_problems,
    storage_problems,
    storage_properties,
)
from pipeline.dataset.schema import (
    column_problems,
    partition_problems,
    same_names,
    schema_fingerprint,
)
from pipeline.dataset.side_tables import QUARANTINE_SUFFIX, REJECTED_SUFFIX, quarantine_schema, rejected_schema
from pipeline.dataset.side_tables import name_problems as side_table_problems
from pipeline.dataset.table_names import mapped_name, name_parts, name_problems, with_suffix
from pipeline.dataset.write_mode import (
    History,
    Replace,
    WriteMode,
    consumer_problems,
    frame_columns,
    merge_problems,
    mode_problems,
)
from pipeline.errors import DeclarationError, PipelineError
from pipeline.errors.argument_types import type_problems

_PROTOCOL_PROPERTIES = ("delta.feature.", "delta.minreaderversion", "delta.minwriterversion")
_REPLACE = Replace()
_FEATURES, _STORAGE, _SCHEMA_POLICY = Features(), StoragePolicy(), SchemaPolicy()
_SCHEMA_CHECK = SchemaCheck()
_TableError = TypeVar("_TableError", bound=PipelineError)
_NAME_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """One dataset, declared.

    Args:
        name: the asset key and the path under the root, its parts joined by `/`.
        schema: every column in the order of the table, partition columns included. The description of a column is the
            `comment` in the metadata of its field.
        partition_by: partition columns, outermost first.
        write: what a write does to the rows of the table.
        keys: columns that together name a row. NULL is a value like any other. A merge keeps them unique; a History has
            several rows of a key, one for each span; in any other mode the writer has to keep them unique.
        reads: names of the datasets that this one is made from.
        reads_changes_of: those of `reads` of which only the changes since the last write are read. If nothing has
            changed, nothing is written.
        full_without_feed: whether such a source may have no change feed. It is then read whole whenever it has changed;
            otherwise it is refused.
        checks: check constraints, enforced by Delta in every commit.
        not_null: what happens to rows with NULL in a NOT NULL column, if the write is not to fail.
        properties: further Delta table properties, as (name, value).
        change_feed: whether Delta records the change feed.
        features: further table features.
        storage: how files are written, and how long old ones are kept.
        maintenance: when and how the table is maintained. None: by `pipeline maintain all` alone, with the defaults.
        schema_policy: which changes of the table's schema a write makes by itself.
        table_name: the name under which the table is registered in the session's catalog, as `catalog.schema.table`,
            `schema.table` or `table`. Parts that are not letters, digits and `_` are between backquotes. None for the
            name that the setting `catalog` gives it, or for no name.
        description: the asset's description in Dagster.
        group: the asset's group in Dagster.
        owners: the asset's owners in Dagster.
        tags: the asset's tags in Dagster, as (name, value).
        code_version: the version of the code that computes the rows. Another one makes the asset out of date in
            Dagster.
        cache: whether a step is skipped if the table still has the rows that the same code version has made of the same
            versions of the sources, with the same configuration and for the same partitions.
        starts_on_change: whether a run starts by itself when one of `reads` has a new version.
        freshness: how old the newest write may be; None for any age.
        schema_check: the check that the table is as declared.
        row_count: the check of the number of rows; None for any number.
        expectations: what is expected of the table, or of the rows of a write, as a whole.
        audit: `after`: expectations and `row_count` are evaluated after the commit. `before`: they are evaluated on the
            rows before the commit, and if a blocking one fails, nothing is committed.
        exports: folders of files that are kept up to date with the table, each by an asset downstream.

    Raises:
        DeclarationError: with every contradiction found.
    """

    name: str
    schema: StructType
    partition_by: tuple[str, ...] = ()
    write: WriteMode = _REPLACE
    keys: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    reads_changes_of: tuple[str, ...] = ()
    full_without_feed: bool = False
    checks: tuple[Check, ...] = ()
    not_null: tuple[NotNull, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()
    change_feed: bool = True
    features: Features = _FEATURES
    storage: StoragePolicy = _STORAGE
    maintenance: MaintenancePolicy | None = None
    schema_policy: SchemaPolicy = _SCHEMA_POLICY
    table_name: str | None = None
    description: str = ""
    group: str = "default"
    owners: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()
    code_version: str | None = None
    cache: bool = False
    starts_on_change: bool = False
    freshness: Freshness | None = None
    schema_check: SchemaCheck = _SCHEMA_CHECK
    row_count: RowCount | None = None
    expectations: tuple[Expectation, ...] = ()
    audit: Audit = "after"
    exports: tuple[Export, ...] = ()

    def __post_init__(self) -> None:
        # Contradictions can be looked for only among values of the right types.
        problems = tuple(map(str, type_problems(self))) or tuple(_problems(self))
        if problems:
            raise DeclarationError(dataset=str(self.name), problems=problems)

    @property
    def asset_key(self) -> tuple[str, ...]:
        """The parts of the name: the path of the Dagster asset key."""
        return tuple(self.name.split("/"))

    def location(self, root: str) -> str:
        """The table's URI: the root followed by the asset key."""
        return table_location(root, self.name)

    def at(self, root: str) -> TableRef:
        """The dataset's table below a root."""
        return TableRef(self, self.location(root))

    def named(self, catalog: str | None) -> Dataset:
        """The dataset with the table name that the setting `catalog` gives it, unless it has a name of its own.

        Raises:
            SettingsError: `catalog` is neither a catalog nor a catalog and a schema.
        """
        if catalog is None or self.table_name is not None:
            return self
        return replace(self, table_name=mapped_name(catalog, self.name))

    @property
    def table_name_parts(self) -> tuple[str, ...]:
        """The parts of `table_name`, without backquotes; empty without a name."""
        return () if self.table_name is None else name_parts(self.table_name)

    @property
    def fingerprint(self) -> str:
        """The schema fingerprint of a table that matches this declaration."""
        return schema_fingerprint(self.schema, self.partition_by)

    @property
    def frame_columns(self) -> tuple[str, ...]:
        """The columns of a frame that the table lacks: a merge uses them in its conditions and does not store them."""
        return frame_columns(self.write, self.schema.names)

    @property
    def computed(self) -> tuple[str, ...]:
        """The columns that the write computes. A frame lacks them."""
        return self.write.computed if isinstance(self.write, History) else ()

    @property
    def row_keys(self) -> tuple[str, ...]:
        """The columns that are unique in the table: the keys, and in a History also the beginning of the span."""
        return (*self.keys, self.write.valid_from) if isinstance(self.write, History) else self.keys

    @property
    def keeps_state(self) -> bool:
        """Whether the table has rows that are no rows of the dataset, in partitions of `STATE_COLUMN`."""
        return keeps_state(self.write)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """The declared constraints: `not_null`, then `checks`. NOT NULL columns that `not_null` omits are left out."""
        return (*self.not_null, *self.checks)

    @property
    def quarantine(self) -> Dataset | None:
        """The dataset of quarantined rows; None if no constraint has a quarantine. A write replaces its own batch."""
        if not sets_apart(self.constraints):
            return None
        text = f"Rows for {self.name} that break its constraints, with the reasons."
        return self._beside(QUARANTINE_SUFFIX, quarantine_schema(self.schema), text)

    @property
    def rejected(self) -> Dataset | None:
        """The dataset of the writes that an audit refused; None without one. A write replaces its own batch."""
        if self.audit != "before":
            return None
        text = f"Writes to {self.name} that its audit refused; pipeline publish commits one after all."
        return self._beside(REJECTED_SUFFIX, rejected_schema(self.schema, self.frame_columns), text)

    @property
    def side_tables(self) -> tuple[Dataset, ...]:
        """The datasets beside this one, which its own writes write: `quarantine` and `rejected`."""
        return tuple(dataset for dataset in (self.quarantine, self.rejected) if dataset is not None)

    def _beside(self, suffix: str, schema: StructType, description: str) -> Dataset:
        return Dataset(
            name=f"{self.name}{suffix}",
            schema=schema,
            reads=(self.name,),
            change_feed=False,
            # The columns change together with the table's columns.
            features=Features(column_mapping=self.features.column_mapping, type_widening=self.features.type_widening),
            schema_policy=_SCHEMA_POLICY if self.schema_policy.mode == "overwrite" else self.schema_policy,
            table_name=None if self.table_name is None else with_suffix(self.table_name, suffix),
            description=description,
            group=self.group,
            owners=self.owners,
        )

    def field(self, column: str) -> StructField:
        """The declared field of a top-level column."""
        return next(f for f in self.schema.fields if f.name == column)


@dataclass(frozen=True)
class TableRef:
    """A dataset together with the URI of its table."""

    dataset: Dataset
    location: str

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self.dataset.name

    @property
    def root(self) -> str:
        """The URI below which the datasets' tables are. If the table is elsewhere, its own location."""
        return self.location.removesuffix(f"/{self.name}")

    def beside(self, dataset: Dataset) -> TableRef:
        """A side table, whose name is this dataset's with a suffix, at this location with the same suffix."""
        return TableRef(dataset, f"{self.location}{dataset.name.removeprefix(self.name)}")

    def error(self, kind: Callable[..., _TableError], **fields: Any) -> _TableError:
        """An error about this table. `fields` are those of its type, without the dataset and the location."""
        return kind(dataset=self.name, location=self.location, **fields)


def require_dataset(value: object, taker: str) -> None:
    """Raise DeclarationError if `value` is not a Dataset; `taker` is the name of the function that got it."""
    if not isinstance(value, Dataset):
        kind = f"the class {value.__name__}" if isinstance(value, type) else f"{value!r} ({type(value).__name__})"
        raise DeclarationError(dataset=str(value), problems=(f"{taker} takes a Dataset, got {kind}",))


def table_location(root: str, name: str) -> str:
    """The URI of the dataset's table: the root followed by the asset key."""
    return f"{root.rstrip('/')}/{name}"


def _name_problems(dataset: Dataset) -> Iterator[str]:
    for part in dataset.asset_key:
        if not _NAME_PART.fullmatch(part):
            yield f"name part {part!r}: letters, digits, '_', '.' and '-' only, beginning with a letter or digit"
    if dataset.table_name is not None:
        yield from (f"table_name {dataset.table_name!r}: {problem}" for problem in name_problems(dataset.table_name))


def _problems(dataset: Dataset) -> Iterator[str]:
    yield from _name_problems(dataset)
    if not dataset.schema.fields:
        yield "the schema has no columns"
    yield from column_problems(dataset.schema, maps_columns=dataset.features.maps_columns)
    yield from _partition_problems(dataset)
    yield from _key_problems(dataset)
    yield from mode_problems(dataset.write, dataset.schema, dataset.keys)
    yield from merge_problems(
        dataset.write, dataset.schema, dataset.keys, dataset.partition_by, change_feed=dataset.change_feed
    )
    yield from history_problems(dataset)
    yield from tombstone_problems(dataset)
    for group in same_names((*dataset.schema.names, *dataset.frame_columns)):
        if not set(group) <= set(dataset.schema.names):
            yield f"columns {', '.join(group)} of the schema and of the frame differ by case only"
    yield from constraint_problems(dataset.checks, dataset.not_null, dataset.schema, dataset.write)
    yield from side_table_problems(
        (*dataset.schema.names, *dataset.frame_columns),
        quarantines=sets_apart(dataset.constraints), rejects=dataset.audit == "before",
    )  # fmt: skip
    if any(name.lower() == "delta.enablechangedatafeed" for name, _ in dataset.properties):
        yield "delta.enableChangeDataFeed is what change_feed says; remove it from properties"
    for name, _ in dataset.properties:
        if name.lower().startswith(_PROTOCOL_PROPERTIES):
            yield f"{name} asks for a protocol, which Delta doesn't keep as a property; remove it from properties"
    if any(name.lower().startswith("delta.constraints.") for name, _ in dataset.properties):
        yield "delta.constraints.* is what checks says; remove it from properties"
    yield from feature_problems(dataset.features, dataset.schema, dataset.partition_by)
    yield from storage_problems(dataset.storage, dataset.schema)
    yield from maintenance_problems(dataset.maintenance)
    yield from schema_problems(dataset.schema_policy, dataset.schema, maps_columns=dataset.features.maps_columns)
    field_by_property = dict.fromkeys(feature_properties(dataset.features), "features")
    field_by_property |= dict.fromkeys(storage_properties(dataset.storage), "storage")
    yield from property_problems(dataset.properties, field_by_property)
    yield from _asset_problems(dataset)


def _asset_problems(dataset: Dataset) -> Iterator[str]:
    if dataset.code_version is not None and not dataset.code_version.strip():
        yield "code_version is empty; leave it out"
    if dataset.cache and dataset.code_version is None:
        yield "cache compares the code_version, and there is none"
    if dataset.cache and (dataset.reads_changes_of or dataset.name in dataset.reads):
        yield "cache: a dataset that reads changes, or itself, is another one after each write; leave cache out"
    if dataset.starts_on_change and not dataset.reads:
        yield "starts_on_change waits for a source, and reads names none"
    yield from _consumer_problems(dataset)
    yield from export_problems(dataset.exports, dataset.schema, dataset.partition_by)
    yield from expectation_problems(
        dataset.expectations, dataset.schema, dataset.schema_check, dataset.row_count, dataset.freshness
    )
    yield from audit_problems(
        dataset.audit, dataset.write, dataset.expectations, dataset.row_count, change_feed=dataset.change_feed
    )


def _consumer_problems(dataset: Dataset) -> Iterator[str]:
    for source in dataset.reads_changes_of:
        if source not in dataset.reads:
            yield f"reads_changes_of names {source!r}, which reads does not"
    if dataset.reads_changes_of:
        yield from consumer_problems(dataset.write, dataset.partition_by)
    elif dataset.full_without_feed:
        yield "full_without_feed says how changes are read, and reads_changes_of names none"


def _key_problems(dataset: Dataset) -> Iterator[str]:
    names = set(dataset.schema.names)
    yield from (f"key column {key!r} is not in the schema" for key in dataset.keys if key not in names)
    if len(set(dataset.keys)) < len(dataset.keys):
        yield "a key column is named twice"


def _partition_problems(dataset: Dataset) -> Iterator[str]:
    fields = {field.name: field for field in dataset.schema.fields}
    for column in dataset.partition_by:
        if column not in fields:
            yield f"partition column {column!r} is not in the schema"
    yield from partition_problems(dataset.schema, dataset.partition_by)
    if len(set(dataset.partition_by)) < len(dataset.partition_by):
        yield "a partition column is named twice"
    if fields and set(dataset.partition_by) == set(fields):
        yield "every column is a partition column; Delta needs one that is not"
