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
    MultiPartitionMapping,
    MultiPartitionsDefinition,
    MultiToSingleDimensionPartitionMapping,
    PartitionMapping,
    PartitionsDefinition,
    StaticPartitionsDefinition,
    StepExecutionContext,
)

# Dagster's own way to the partitions of an input; not public yet.
from dagster._core.definitions.partitions.context import partition_loading_context
from dagster._core.definitions.partitions.utils import infer_partition_mapping

from pipeline.dataset import Dataset
from pipeline.delta.frames.convert import KINDS, SPARK, kind_of
from pipeline.delta.sql.slices import Slice
from pipeline.errors import FrameKindError
from pipeline.orchestration.metadata import plain_value
from pipeline.orchestration.metadata_keys import PARTITION_EXPR
from pipeline.orchestration.partitions import dimensions_of, slice_of


def input_slice(context: InputContext, step: StepExecutionContext | None, dataset: Dataset) -> Slice | None:
    """The slice of the mapped partitions. If the source has no partitions, or all rows are requested, None."""
    if not context.has_asset_partitions:
        return None
    upstream, keys, free = context.asset_partitions_def, None, frozenset[str]()
    if step is not None:
        reader = None if step.assets_def is None else step.assets_def.partitions_def
        given = None if step.assets_def is None else step.assets_def.get_partition_mapping_for_dep(context.asset_key)
        mapping = infer_partition_mapping(given, reader, upstream)
        unrestricted = _unrestricted_dimensions(mapping, reader, upstream)
        free = unrestricted & _dynamic_dimensions(upstream)
        if unrestricted == dimensions_of(upstream).keys() and (reader is None or free):
            return None
        if free:
            keys = _mapped_keys(step, mapping, _with_one_key(upstream, free))
    output = context.upstream_output
    expr = None if output is None else plain_value((output.definition_metadata or {}).get(PARTITION_EXPR))
    return slice_of(dataset, upstream, context.asset_partition_keys if keys is None else keys, expr, free=free)


def _unrestricted_dimensions(
    mapping: PartitionMapping, reader: PartitionsDefinition[Any] | None, upstream: PartitionsDefinition[Any]
) -> frozenset[str]:
    """The dimensions of a source of which the reader depends on every partition."""
    dimensions = frozenset(dimensions_of(upstream))
    if isinstance(mapping, AllPartitionMapping):
        return dimensions
    if not isinstance(mapping, MultiPartitionMapping | MultiToSingleDimensionPartitionMapping) or reader is None:
        return frozenset()
    dependencies = mapping.get_dimension_dependencies(upstream, reader)
    return dimensions - {
        dependency.upstream_dimension_name or ""
        for dependency in dependencies
        if not isinstance(dependency.partition_mapping, AllPartitionMapping)
    }


def _dynamic_dimensions(upstream: PartitionsDefinition[Any]) -> frozenset[str]:
    """The dimensions with dynamic keys. Such a key can be deleted in Dagster while its rows stay in the table.

    So if a step depends on every partition of a dynamic dimension, it reads the rows of every value.
    """
    return frozenset(
        name for name, inner in dimensions_of(upstream).items() if isinstance(inner, DynamicPartitionsDefinition)
    )


def _with_one_key(upstream: PartitionsDefinition[Any], free: frozenset[str]) -> MultiPartitionsDefinition:
    """A definition of several dimensions in which each free one has one key, even if all its own keys are deleted."""
    one = StaticPartitionsDefinition(["any"])
    dimensions = dimensions_of(upstream).items()
    return MultiPartitionsDefinition({name: one if name in free else inner for name, inner in dimensions})


def _mapped_keys(
    step: StepExecutionContext, mapping: PartitionMapping, upstream: PartitionsDefinition[Any]
) -> list[str]:
    """The keys of `upstream` that are mapped to the partitions of the step."""
    assert step.assets_def is not None  # noqa: S101  a step without an asset has no partitions to map
    reader = step.assets_def.partitions_def
    assert reader is not None  # noqa: S101  it then depends on every partition
    with partition_loading_context(dynamic_partitions_store=step.instance):
        subset = reader.empty_subset().with_partition_key_range(reader, step.partition_key_range)
        result = mapping.get_upstream_mapped_partitions_result_for_partitions(subset, reader, upstream)
        return list(result.partitions_subset.get_partition_keys())


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
