"""The input of a step: the slice of the partitions that Dagster maps to it, as the kind of frame that it requests.

Here belong the slice, the kind of frame, and the source that has nothing to read yet. The conversion of partition keys
to a slice belongs to `partitions`, the record of reads to `reads`.
"""

from __future__ import annotations

from typing import Any

from dagster import (
    AllPartitionMapping,
    DynamicPartitionsDefinition,
    InputContext,
    MultiPartitionsDefinition,
    PartitionsDefinition,
    StepExecutionContext,
)

from pipeline.dataset import Dataset
from pipeline.delta.frames.convert import KINDS, SPARK, kind_of
from pipeline.delta.sql.slices import Slice
from pipeline.errors import FrameKindError
from pipeline.orchestration.metadata import plain_value
from pipeline.orchestration.metadata_keys import PARTITION_EXPR
from pipeline.orchestration.partitions import slice_of


def input_slice(context: InputContext, step: StepExecutionContext | None, dataset: Dataset) -> Slice | None:
    """The slice of the mapped partitions. If the source has no partitions, or all rows are requested, None."""
    if not context.has_asset_partitions or (step is not None and _takes_all(context, step)):
        return None
    upstream = context.upstream_output
    expr = None if upstream is None else plain_value((upstream.definition_metadata or {}).get(PARTITION_EXPR))
    return slice_of(dataset, context.asset_partitions_def, context.asset_partition_keys, expr)


def _takes_all(context: InputContext, step: StepExecutionContext) -> bool:
    """Whether the step depends on every partition, whatever keys Dagster has at the moment.

    A key of a dynamic definition can be deleted in Dagster while its rows stay in the table. All partitions then mean
    all rows, for a reader with or without partitions of its own.
    """
    reader = None if step.assets_def is None else step.assets_def.partitions_def
    mapping = None if step.assets_def is None else step.assets_def.get_partition_mapping_for_dep(context.asset_key)
    if mapping is None and reader is not None:
        return False  # Dagster then maps each key to the key of the same name
    takes_all = mapping is None or isinstance(mapping, AllPartitionMapping)
    return takes_all and (reader is None or _has_dynamic_keys(context.asset_partitions_def))


def _has_dynamic_keys(partitions_def: PartitionsDefinition[Any]) -> bool:
    if isinstance(partitions_def, MultiPartitionsDefinition):
        return any(_has_dynamic_keys(dimension.partitions_def) for dimension in partitions_def.partitions_defs)
    return isinstance(partitions_def, DynamicPartitionsDefinition)


def may_be_missing(context: InputContext, step: StepExecutionContext | None) -> bool:
    """Whether a source may have no table yet, so that there is nothing to read.

    It may if no keys are mapped to the step, or if the step writes the source itself: its first partition reads the
    earlier partitions, of which there are none.
    """
    if context.has_asset_partitions and not context.asset_partition_keys:
        return True
    return step is not None and step.assets_def is not None and context.asset_key in step.assets_def.keys


def annotated_kind(context: InputContext) -> str:
    """The kind of frame that the parameter's annotation names. Without an annotation, a Spark frame.

    Raises:
        FrameKindError: the annotation names no frame.
    """
    annotation = context.dagster_type.typing_type
    kind = SPARK if annotation is Any else kind_of(annotation)
    if kind is None:
        raise FrameKindError(
            dataset="/".join(context.asset_key.path), annotation=shown_annotation(annotation), kinds=KINDS
        )
    return kind


def shown_annotation(annotation: object) -> str:
    """The text of an annotation in an error."""
    return f"{annotation.__module__}.{annotation.__qualname__}" if isinstance(annotation, type) else str(annotation)


def report_input(context: InputContext, metadata: dict[str, Any]) -> None:
    """Pass metadata of a read to Dagster, unless the input has partitions: Dagster accepts at most one partition."""
    if not context.has_asset_partitions:
        context.add_input_metadata(metadata)
