"""The asset checks of a declaration: whether the table is as declared, and the write has an allowed number of rows.

Here belong what a check reads and what it reports to Dagster. Comparing a table with its declaration belongs to
`pipeline.delta.table`, the checks of constraints and expectations to `quality_checks`.

A dataset's checks are one step after the asset's step. It reads the newest entries of the log and the counts that the
run has recorded. Only an expectation reads rows again. If the table is on this machine, no JVM is started for the rest.
One result covers all partitions of the run: Dagster's own checks by partition are a preview in 1.13, and do not cover a
run over a range.
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

# Dagster's own run id for an event that no run has made; not public.
from dagster._core.instance.utils import RUNLESS_RUN_ID

from pipeline.dataset import Dataset
from pipeline.dataset.expectations import ROW_COUNT
from pipeline.delta.spark.doors import through_door
from pipeline.delta.table.open_table import TableState, shape_differences, state_from_log, table_state_with_sizes
from pipeline.errors import TableNotFoundError
from pipeline.orchestration import check_results
from pipeline.orchestration.checks import quality_checks, row_counts
from pipeline.orchestration.dataset_asset import IO_MANAGER
from pipeline.orchestration.failures import as_dagster_failure
from pipeline.orchestration.io.io_manager import DeltaIOManager
from pipeline.orchestration.metadata import at_key, column_schema, plain_value, table_schema
from pipeline.orchestration.metadata_keys import DECLARED_FINGERPRINT, FINGERPRINT, PARTITION_EXPR, VERSION

SCHEMA = "schema"
_LOSSY = re.compile(r"[.-]|__")


def dataset_checks(datasets: Iterable[Dataset], *, io_manager_key: str = IO_MANAGER) -> list[AssetChecksDefinition]:
    """The checks of each dataset: `schema`, `row_count` if it is declared, and one for each constraint and expectation.

    They run with every materialization of the asset, and can run alone. The IO manager under `io_manager_key` knows the
    tables' locations.
    """
    return [_checks(dataset, io_manager_key) for dataset in datasets]


def _checks(dataset: Dataset, io_manager_key: str) -> AssetChecksDefinition:
    declared = check_results.quality_checks(dataset)

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
                before = quality_checks.evaluated_before(context.instance, key, declared[key.name], written)
                if before is not None:
                    return before
                return quality_checks.result(key.asset_key, key.name, dataset=moved, written=written, manager=manager)
            return _schema_result(key.asset_key, dataset, manager)

        for key in sorted(context.selected_asset_check_keys):
            with (
                as_dagster_failure(),
                through_door(dataset.name, at_key(dataset, key.asset_key).location(manager.root)),
            ):
                check_result = result(key)
            yield check_result

    return check


def _identifier(dataset: Dataset) -> str:
    """A name for the step. Dagster's own name for a key is the same for `a/b`, `a__b` and `a-_b`."""
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
    table = dataset.at(manager.root)
    state = state_from_log(table.location) or table_state_with_sizes(manager.spark.spark_session, table)
    expected: dict[str, Any] = {"expected": column_schema(dataset), DECLARED_FINGERPRINT: dataset.fingerprint}
    if state is None:
        problem = table.error(TableNotFoundError).message()
        differences, observed = [problem], {}
    else:
        differences, observed = shape_differences(dataset, state), _observed(state)
    return AssetCheckResult(
        asset_key=key,
        check_name=SCHEMA,
        passed=not differences,
        severity=check_results.severity(dataset.schema_check.severity),
        description="; ".join(differences) or "The table is as declared.",
        metadata=expected | observed | {"differences": MetadataValue.json(differences)},
    )


def _observed(state: TableState) -> dict[str, Any]:
    return {
        "found": table_schema(state.schema, state.partition_by),
        FINGERPRINT: state.fingerprint,
        VERSION: MetadataValue.int(state.version),
    }


def _partitioning(
    context: AssetCheckExecutionContext, key: AssetKey
) -> tuple[PartitionsDefinition[Any] | None, object | None]:
    """The partitioning of the asset, and the columns of its partition keys."""
    layer = context.job_def.asset_layer
    if not layer.has(key):
        return None, None
    node = layer.get(key)
    return node.partitions_def, plain_value(node.metadata.get(PARTITION_EXPR))


def _last_write(context: AssetCheckExecutionContext, key: AssetKey) -> dict[str | None, Mapping[str, Any]]:
    """The recorded metadata by partition key: of this run, or of the last run with some. If none has any, empty."""
    metadata_by_partition = _recorded(context, context.run.run_id, key)
    if metadata_by_partition:
        return metadata_by_partition
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
    materializations: list[AssetMaterialization | None] = [entry.asset_materialization for entry in entries]
    return {
        one.partition: {name: entry.value for name, entry in one.metadata.items()}
        for one in materializations
        if one is not None and one.asset_key == key
    }
