"""The asset checks of a declaration: is the table still as declared, and had the write as many rows as it may?

Here belong what a check looks at and what it tells Dagster. How a table is compared with its declaration is
`pipeline.delta.table`'s; what becomes of constraints and expectations is `quality_checks`'s.

A dataset's checks are one step after the asset's, which reads the newest entries of the log and the counts that the run
has recorded: but for an expectation no row is read again, and where the table lies on this machine no JVM is started.
One result speaks of all partitions of the run; Dagster's own checks by partition are a preview in 1.13, and say nothing
of a run over a range.
"""

# Without `annotations` from `__future__`: Dagster compares the annotation of `context` with types and refuses a text.

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckKey,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSpec,
    AssetKey,
    AssetMaterialization,
    DagsterEventType,
    EventLogEntry,
    MetadataValue,
    PartitionsDefinition,
    multi_asset_check,
)

# Dagster's own name for the run of an event that no run has made; not public.
from dagster._core.instance.utils import RUNLESS_RUN_ID

from pipeline.dataset import Dataset
from pipeline.delta.spark.doors import through_door
from pipeline.delta.table.open_table import TableState, shape_differences, state_from_log, table_state_with_sizes
from pipeline.errors import TableNotFoundError
from pipeline.orchestration.checks import quality_checks, row_counts
from pipeline.orchestration.checks.row_counts import ROW_COUNT
from pipeline.orchestration.dataset_asset import IO_MANAGER
from pipeline.orchestration.failures import told_as_failure
from pipeline.orchestration.io.io_manager import DeltaIOManager
from pipeline.orchestration.metadata import VERSION, at_key, column_schema, plain_value, table_schema
from pipeline.orchestration.partitions import PARTITION_EXPR

SCHEMA = "schema"
_LOSSY = re.compile(r"[.-]|__")


def dataset_checks(datasets: Iterable[Dataset], *, io_manager_key: str = IO_MANAGER) -> list[AssetChecksDefinition]:
    """The checks of each dataset: `schema`, `row_count` where it is declared, and one of each thing said of its rows.

    They run with every materialization of the asset, and by themselves. The IO manager under `io_manager_key` says
    where the tables lie.
    """
    return [_checks(dataset, io_manager_key) for dataset in datasets]


def _checks(dataset: Dataset, io_manager_key: str) -> AssetChecksDefinition:
    declared = quality_checks.quality_checks(dataset)

    @multi_asset_check(
        name=f"{_identifier(dataset)}_checks",
        specs=_specs(dataset),
        can_subset=True,
        required_resource_keys={io_manager_key},
    )
    def check(context: AssetCheckExecutionContext) -> Iterator[AssetCheckResult]:
        manager = getattr(context.resources, io_manager_key)

        def result(key: AssetCheckKey) -> AssetCheckResult:
            if key.name == ROW_COUNT and dataset.row_count is not None:
                table = row_counts.Table(
                    at_key(dataset, key.asset_key), manager, *_partitioning(context, key.asset_key)
                )
                return row_counts.result(key.asset_key, dataset.row_count, _last_write(context, key.asset_key), table)
            if key.name in declared:
                written, moved = _last_write(context, key.asset_key), at_key(dataset, key.asset_key)
                return quality_checks.result(key.asset_key, key.name, dataset=moved, written=written, manager=manager)
            return _schema_result(key.asset_key, dataset, manager)

        for key in sorted(context.selected_asset_check_keys):
            with told_as_failure(), through_door(dataset.name, at_key(dataset, key.asset_key).location(manager.root)):
                found = result(key)
            yield found

    return check


def _identifier(dataset: Dataset) -> str:
    """A name for the step; Dagster's own for a key is one for `a/b`, `a__b` and `a-_b` alike."""
    plain = re.sub(r"[^A-Za-z0-9]", "_", dataset.name.replace("/", "__"))
    digest = hashlib.sha256(dataset.name.encode()).hexdigest()[:8]
    return f"{plain}_{digest}" if _LOSSY.search(dataset.name) else plain


def _specs(dataset: Dataset) -> list[AssetCheckSpec]:
    key = AssetKey(dataset.asset_key)
    specs = [
        AssetCheckSpec(
            SCHEMA,
            asset=key,
            description="The table's columns, partitioning, properties and check constraints are those declared.",
            blocking=dataset.schema_check.blocking,
        )
    ]
    if dataset.row_count is not None:
        text = row_counts.described(dataset, dataset.row_count)
        specs.append(AssetCheckSpec(ROW_COUNT, asset=key, description=text, blocking=dataset.row_count.blocking))
    return [*specs, *quality_checks.specs(dataset)]


def _schema_result(key: AssetKey, dataset: Dataset, manager: DeltaIOManager) -> AssetCheckResult:
    dataset = at_key(dataset, key)
    location = dataset.location(manager.root)
    state = state_from_log(location) or table_state_with_sizes(manager.spark.spark_session, dataset, location)
    expected: dict[str, Any] = {"expected": column_schema(dataset), "delta/declared_fingerprint": dataset.fingerprint}
    if state is None:
        problem = TableNotFoundError(dataset=dataset.name, location=location).message()
        differences, found = [problem], {}
    else:
        differences, found = shape_differences(dataset, state), _found(state)
    return AssetCheckResult(
        asset_key=key,
        check_name=SCHEMA,
        passed=not differences,
        severity=quality_checks.severity(dataset.schema_check.severity),
        description="; ".join(differences) or "The table is as declared.",
        metadata=expected | found | {"differences": MetadataValue.json(differences)},
    )


def _found(state: TableState) -> dict[str, Any]:
    return {
        "found": table_schema(state.schema, state.partition_by),
        "delta/schema_fingerprint": state.fingerprint,
        VERSION: MetadataValue.int(state.version),
    }


def _partitioning(
    context: AssetCheckExecutionContext, key: AssetKey
) -> tuple[PartitionsDefinition[Any] | None, object | None]:
    """How the asset is partitioned, and the columns that its keys stand for."""
    layer = context.job_def.asset_layer
    if not layer.has(key):
        return None, None
    node = layer.get(key)
    return node.partitions_def, plain_value(node.metadata.get(PARTITION_EXPR))


def _last_write(context: AssetCheckExecutionContext, key: AssetKey) -> dict[str | None, Mapping[str, Any]]:
    """By partition key, what this run has recorded of the asset, or else the last that has; empty where none has."""
    found = _recorded(context, context.run.run_id, key)
    if found:
        return found
    newest = context.instance.fetch_materializations(key, limit=1).records
    if not newest:
        return {}
    if newest[0].run_id == RUNLESS_RUN_ID:
        return _by_partition([newest[0].event_log_entry], key)
    return _recorded(context, newest[0].run_id, key)


def _recorded(context: AssetCheckExecutionContext, run_id: str, key: AssetKey) -> dict[str | None, Mapping[str, Any]]:
    records = context.instance.get_records_for_run(run_id, of_type=DagsterEventType.ASSET_MATERIALIZATION).records
    return _by_partition([record.event_log_entry for record in records], key)


def _by_partition(entries: Iterable[EventLogEntry], key: AssetKey) -> dict[str | None, Mapping[str, Any]]:
    found: list[AssetMaterialization | None] = [entry.asset_materialization for entry in entries]
    return {
        one.partition: {name: entry.value for name, entry in one.metadata.items()}
        for one in found
        if one is not None and one.asset_key == key
    }
