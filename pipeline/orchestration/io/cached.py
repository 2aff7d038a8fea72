"""Cached outcomes: a step is skipped if its table still has the rows that the same step made of the same inputs.

Here belong what a step's rows are computed from, the inputs that wait until that is decided, and the report of a
skipped step. Which commit counts belongs to `pipeline.delta.read.outcome`, the function that is skipped to `memoized`.

No Spark session is needed for the decision if the logs of the tables can be read without Spark.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from dagster import (
    AssetKey,
    AssetRecordsFilter,
    InputContext,
    MetadataValue,
    OutputContext,
    StepExecutionContext,
)

# The version of an asset's data in an event; not public yet.
from dagster._core.definitions.data_version import extract_data_version_from_entry

from pipeline.dataset import Dataset, table_location
from pipeline.delta.log.mark import Computation, Cursor
from pipeline.delta.read.outcome import Part, cursor_of, equal_outcome
from pipeline.delta.table.open_table import TableState, state_at_location
from pipeline.errors import SettingsError, StorageError
from pipeline.orchestration.derived import dataset_of_table
from pipeline.orchestration.io.contexts import metadata_of, output_keys, partition_expr, partitions_of
from pipeline.orchestration.io.inputs import input_slice, report_input
from pipeline.orchestration.io.reads import version_written_in_run
from pipeline.orchestration.io.reporting import Report, report_output
from pipeline.orchestration.metadata import data_version, declared_dataset, plain_value, without_counts
from pipeline.orchestration.metadata_keys import (
    CACHE,
    CACHED,
    COMMITTED,
    DECLARED_WRITE_MODE,
    KEYS,
    NO_CACHE,
    ORDER_BY,
    PARTITION_EXPR,
    SKIPPED,
    TABLE_ID,
    VERSION,
)
from pipeline.orchestration.partitions import KeyFinder, slice_of

_DIGITS = 16
_WHOLE = "the whole table"
# What of a declaration has no effect on rows or on the table.
_OF_DAGSTER: Mapping[str, Any] = {
    "description": "", "group": "default", "owners": (), "tags": (), "starts_on_change": False, "freshness": None,
    "maintenance": None, "exports": (),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CachedRows:
    """What a skipped step passes on in place of its rows: the commit that holds them."""

    table_id: str
    version: int
    entry: str | None


@dataclass(frozen=True)
class Deferred:
    """An input that is loaded only if its step is not skipped."""

    load: Callable[[], Any]


@dataclass
class _Inputs:
    """The tables of a step's inputs, by the names of their datasets, and the reasons why the step can't be skipped."""

    parts: dict[str, Part] = field(default_factory=dict)
    tables: dict[str, Cursor] = field(default_factory=dict)
    loaded: set[AssetKey] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def note(self, name: str, part: Part, version: int | None) -> None:
        """Keep the rows of a table and the version that is read; None for the newest one."""
        self.parts[name], self.tables[name] = part, cursor_of(part.state, version)


_INPUTS: WeakKeyDictionary[StepExecutionContext, _Inputs] = WeakKeyDictionary()
_COMPUTATIONS: WeakKeyDictionary[StepExecutionContext, Computation] = WeakKeyDictionary()


def is_cached(key: AssetKey, metadata: Mapping[str, Any]) -> bool:
    """Whether an asset's declaration, or the metadata of a plain asset, caches its outcome."""
    dataset = declared_dataset(key, metadata)
    return plain_value(metadata.get(CACHE)) is True if dataset is None else dataset.cache


def may_be_skipped(step: StepExecutionContext | None) -> bool:
    """Whether a step is that of an asset whose outcome is cached."""
    assets_def = None if step is None else step.assets_def
    return assets_def is not None and any(is_cached(spec.key, spec.metadata) for spec in assets_def.specs)


# --- the inputs -------------------------------------------------------------------------------------------------------


def deferred_input(
    context: InputContext, step: StepExecutionContext, root: str, load: Callable[[], Any]
) -> Deferred:  # fmt: skip
    """The input for later. The version that it is going to read is decided now."""
    inputs = _INPUTS.setdefault(step, _Inputs())
    key, metadata = context.asset_key, metadata_of(context.upstream_output)
    inputs.loaded.add(key)
    state, problem = _state(key, root)
    if state is None:
        inputs.problems.append(problem)
        return Deferred(load)
    dataset = declared_dataset(key, metadata) or dataset_of_table(key, metadata, state)
    find = None
    if context.has_asset_partitions and input_slice(context, step, dataset) is not None:
        expr = plain_value(metadata.get(PARTITION_EXPR))
        find = KeyFinder(dataset, context.asset_partitions_def, context.asset_partition_keys, expr)
    inputs.note(dataset.name, _part(state, find), version_written_in_run(step, key))
    # Dagster takes what is reported of an input only until this function ends.
    report_input(context, {VERSION: inputs.tables[dataset.name].version})
    return Deferred(load)


def _part(state: TableState, find: KeyFinder | None) -> Part:
    return Part(state=state, has=None if find is None else lambda values: find.of_texts(values) is not None)


def _state(key: AssetKey, root: str) -> tuple[TableState | None, str]:
    """The state of a table by its log, or why it has none."""
    name = "/".join(key.path)
    try:
        return state_at_location(None, name, table_location(root, name)), f"{name} has no table"
    except StorageError as error:
        return None, error.message()


def decided_version(step: StepExecutionContext, source: AssetKey) -> int | None:
    """The version of a source with which it was decided that a step runs. If there was no decision, None."""
    decided = _INPUTS[step].tables.get("/".join(source.path)) if step in _INPUTS else None
    return None if decided is None else decided.version


def _other_sources(inputs: _Inputs, step: StepExecutionContext, root: str) -> Iterator[tuple[str, str]]:
    """Note the tables of the sources that are no parameters. Of all other sources, the data version by name."""
    assert step.assets_def is not None  # noqa: S101  `may_be_skipped` has found it
    for key in sorted({*step.assets_def.dependency_keys} - inputs.loaded):
        name, (state, problem) = "/".join(key.path), _state(key, root)
        found = None if state is not None else _data_version(step, key)
        if state is not None:
            inputs.note(name, _part(state, None), version_written_in_run(step, key))
        elif found is not None:
            yield f"data version of {name}", found
        else:
            inputs.problems.append(f"{problem}, and no data version")


def _data_version(step: StepExecutionContext, key: AssetKey) -> str | None:
    """The newest data version of an asset that has no table. If none was reported, None."""
    wanted, instance = AssetRecordsFilter(asset_key=key), step.instance
    for fetch in (instance.fetch_materializations, instance.fetch_observations):
        for record in fetch(wanted, limit=1).records:
            version = extract_data_version_from_entry(record.event_log_entry)
            if version is not None:
                return version.value
    return None


# --- the decision -----------------------------------------------------------------------------------------------------


def cached_rows(step: StepExecutionContext, context: OutputContext, root: str) -> CachedRows | None:
    """The rows that a step would compute again. If it has to run, None, and the log of the run has the reason."""
    inputs = _INPUTS.setdefault(step, _Inputs())
    key, metadata = context.asset_key, metadata_of(context)
    (state, problem), declared = _state(key, root), declared_dataset(key, metadata)
    dataset = declared or (None if state is None else dataset_of_table(key, metadata, state))
    parts = dict((*_parts(step, context, declared), *_other_sources(inputs, step, root)))
    now = Computation(parts=parts, tables=inputs.tables)
    if not inputs.problems:
        _COMPUTATIONS[step] = now
    reason = next(iter((*_not_wanted(step), *inputs.problems)), problem)
    if state is not None and dataset is not None and reason is problem:
        partitions = partitions_of(context, output_keys(context))
        find = None
        if partitions is not None:
            find = KeyFinder(dataset, partitions.partitions_def, partitions.keys, partitions.expr)
        outcome = equal_outcome(_part(state, find), now, inputs.parts)
        if outcome.version is not None:
            return CachedRows(table_id=state.table_id, version=outcome.version, entry=outcome.entry)
        reason = outcome.reason
    context.log.info(f"{'/'.join(key.path)}: not cached: {reason}")
    return None


def _not_wanted(step: StepExecutionContext) -> Iterator[str]:
    """A reason if the run does not accept a cached outcome.

    Raises:
        SettingsError: the tag is neither true nor false.
    """
    tag = step.dagster_run.tags.get(NO_CACHE, "false")
    if tag not in ("true", "false"):
        raise SettingsError(setting=f"run tag {NO_CACHE}", problem=f"got {tag!r}", expected="true or false")
    if tag == "true":
        yield f"the run has the tag {NO_CACHE}"


def _parts(
    step: StepExecutionContext, context: OutputContext, declared: Dataset | None
) -> Iterator[tuple[str, str]]:  # fmt: skip
    node, keys = step.job_def.asset_layer.get(context.asset_key), output_keys(context)
    yield "code_version", str(node.code_version)
    yield "declaration", _digest(_declaration(declared, metadata_of(context)))
    resources = step.dagster_run.run_config.get("resources")
    yield "config", _digest(json.dumps([step.op_config, resources], sort_keys=True, default=repr))
    if keys is None:
        yield "slice", _WHOLE
    elif declared is None:  # a plain asset has no slice before its first write
        yield "slice", _digest(repr(sorted(keys)))
    else:
        yield "slice", _digest(slice_of(declared, context.asset_partitions_def, keys, partition_expr(context)).identity)


def _declaration(declared: Dataset | None, metadata: Mapping[str, Any]) -> str:
    if declared is not None:
        return repr((declared.schema.json(), replace(declared, **_OF_DAGSTER)))
    return repr([plain_value(metadata.get(name)) for name in (DECLARED_WRITE_MODE, KEYS, ORDER_BY, PARTITION_EXPR)])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def computation_of(step: StepExecutionContext | None) -> Computation | None:
    """What a step's rows are computed from. If its outcome can't be cached, None."""
    return None if step is None else _COMPUTATIONS.get(step)


# --- the report -------------------------------------------------------------------------------------------------------


def report_cached(context: OutputContext, step: StepExecutionContext | None, rows: CachedRows) -> None:
    """Report a skipped step: as the write of its rows was reported, without the counts of what it wrote."""
    assert step is not None  # noqa: S101  only a step is skipped
    keys = output_keys(context)
    shared = {
        VERSION: MetadataValue.int(rows.version), TABLE_ID: rows.table_id, CACHED: MetadataValue.bool(True),
        COMMITTED: MetadataValue.bool(False), SKIPPED: MetadataValue.bool(False),
    }  # fmt: skip
    report = Report(shared if keys is not None else _reported(context, step, rows, None) | shared)
    for key in keys or ():
        own = _reported(context, step, rows, key)
        report.by_key[key] = {name: value for name, value in own.items() if name not in shared}
    context.log.info(f"{'/'.join(context.asset_key.path)}: cached, version {rows.version} has the rows")
    report_output(context, step, report, data_version(rows.table_id, rows.version, rows.entry))


def _reported(context: OutputContext, step: StepExecutionContext, rows: CachedRows, key: str | None) -> dict[str, Any]:
    """The metadata of the newest report of these rows. If the newest report is of other rows, empty."""
    wanted = AssetRecordsFilter(asset_key=context.asset_key, asset_partitions=None if key is None else [key])
    for record in step.instance.fetch_materializations(wanted, limit=1).records:
        found = record.asset_materialization
        if found is not None and plain_value(found.metadata.get(VERSION)) == rows.version:
            return without_counts(found.metadata)
    return {}
