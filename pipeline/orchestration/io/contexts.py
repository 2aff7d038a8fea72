"""The step, partition keys and metadata in Dagster's contexts of inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster import DagsterInvariantViolationError, InputContext, OutputContext, StepExecutionContext

from pipeline.dataset import Dataset
from pipeline.errors import PartitionKeyError
from pipeline.orchestration.io.reporting import Partitions
from pipeline.orchestration.metadata import plain_value
from pipeline.orchestration.metadata_keys import PARTITION_EXPR
from pipeline.orchestration.partitions import partition_columns


def metadata_of(context: OutputContext | None) -> Mapping[str, Any]:
    """The metadata of the output's definition."""
    return (context.definition_metadata if context is not None else None) or {}


def output_keys(context: OutputContext) -> list[str] | None:
    """The partition keys that this run writes. If the asset has no partitions, None.

    Raises:
        PartitionKeyError: the asset has partitions and the run names none. Dagster then reports no partitions at all,
            and the slice would be the whole table.
    """
    if context.has_asset_partitions:
        return list(context.asset_partition_keys)
    step = step_of(context)
    if step is not None and step.has_asset_partitions_for_output(context.name):
        raise PartitionKeyError(
            dataset="/".join(context.asset_key.path),
            keys=(),
            problem="the run names none, and its asset is partitioned; nothing was written",
        )
    return None


def code_version_of(context: OutputContext, step: StepExecutionContext | None) -> str | None:
    """The code version of the asset of an output. Outside a run, and without a version, None."""
    layer = None if step is None else step.job_def.asset_layer
    return layer.get(context.asset_key).code_version if layer is not None and layer.has(context.asset_key) else None


def partitions_of(context: OutputContext, keys: list[str] | None) -> Partitions | None:
    """The run's partitions. If the asset has no partitions, None."""
    if keys is None:
        return None
    return Partitions(partitions_def=context.asset_partitions_def, keys=keys, expr=partition_expr(context))


def partition_expr(context: OutputContext | InputContext) -> object | None:
    """The partition columns that the asset's metadata names."""
    return plain_value((context.definition_metadata or {}).get(PARTITION_EXPR))


def key_columns(context: OutputContext, dataset: Dataset) -> tuple[str, ...]:
    """The partition columns of the asset's keys, in the order of its dimensions.

    Raises:
        DeclarationError: the table has no such column, or the column's type can't hold the keys' values.
    """
    return tuple(partition_columns(dataset, context.asset_partitions_def, partition_expr(context)).values())


def step_of(context: InputContext | OutputContext) -> StepExecutionContext | None:
    """The step of a context. Outside a run, as in `load_asset_value` or in a test's context, None."""
    try:
        return context.step_context
    except DagsterInvariantViolationError:
        return None
