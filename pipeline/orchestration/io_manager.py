"""The Delta IO manager: an asset's frame goes into its table, a source's table comes out as a frame.

Here belongs the translation of Dagster's contexts into calls of `pipeline.delta` and of their results into metadata.
How rows are written, what is refused and which version is ours is decided there.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from dagster import ConfigurableIOManager, DagsterEventType, InputContext, OutputContext
from pydantic import PrivateAttr
from pyspark.sql import DataFrame

from pipeline.dataset import Dataset
from pipeline.delta.commit import CommitNote, Mark
from pipeline.delta.frames import SPARK, STAGING, FrameKindError, from_spark, kind_of, to_spark
from pipeline.delta.read import ReadOptions, read
from pipeline.delta.slices import Slice
from pipeline.delta.write import WriteResult, write
from pipeline.errors import FrameMismatchError
from pipeline.orchestration.metadata import VERSION, data_version, declared_dataset, write_metadata
from pipeline.orchestration.partitions import PARTITION_EXPR, rows_by_key, slice_of
from pipeline.orchestration.resources import DeltaSparkResource


class DeltaIOManager(ConfigurableIOManager):
    """Writes each asset into the Delta table of its dataset, and reads its sources from theirs.

    `root` is the URI under which the tables lie. Outputs and inputs are Spark frames. A run over partition keys
    replaces or appends exactly the slice of those keys in one commit. An input is read at the version that this run has
    written, where it has, else at the newest; the version is recorded.
    """

    root: str
    spark: DeltaSparkResource
    # What `load_input` learned waits here for `handle_output`: by run and step, the version read of each source.
    _sources: dict[tuple[str, str], dict[str, int]] = PrivateAttr(default_factory=dict)

    def handle_output(self, context: OutputContext, obj: object) -> None:
        """Write the frame in one commit and record it.

        Raises:
            PipelineError: the frame, its rows or the table are not as declared; nothing is written.
        """
        dataset = declared_dataset(context)
        frame = _spark_frame(dataset, obj)
        keys = list(context.asset_partition_keys) if context.has_asset_partitions else None
        within = None if keys is None else slice_of(dataset, context.asset_partitions_def, keys, _expr(context))
        step = context.step_context
        sources = self._sources.pop((step.run_id, step.step.key), {})
        note = CommitNote(
            mark=Mark(
                writer=_writer(dataset, step.run_id, step.step.key, within), attempt=step.previous_attempt_count + 1
            ),
            run_id=step.run_id,
            asset=context.asset_key.to_user_string(),
            partitions=None if within is None else str(within),
            sources=sources,
        )
        started = dt.datetime.now(dt.timezone.utc)
        result = write(frame, dataset=dataset, location=dataset.location(self.root), note=note, within=within)
        seconds = (dt.datetime.now(dt.timezone.utc) - started).total_seconds()
        _record(
            context, dataset, result, keys, write_metadata(dataset, result, sources) | {"delta/write_seconds": seconds}
        )

    def load_input(self, context: InputContext) -> DataFrame:
        """The source's frame, restricted to the partitions that Dagster maps to this step.

        Raises:
            TableNotFoundError: the source was never materialized.
        """
        dataset = declared_dataset(context.upstream_output)
        step = context.step_context
        version = _version_written_in_run(context)
        found = read(
            self.spark.spark_session,
            dataset,
            dataset.location(self.root),
            ReadOptions(version=version),
            within=_input_slice(context, dataset),
        )
        self._sources.setdefault((step.run_id, step.step.key), {})[dataset.name] = found.version
        if not context.has_asset_partitions:  # Dagster can't say it of several partitions at once
            context.add_input_metadata({VERSION: found.version})
        return found.frame


def _spark_frame(dataset: Dataset, obj: object) -> DataFrame:
    if isinstance(obj, DataFrame):
        return obj
    what = "nothing (None)" if obj is None else f"a {type(obj).__name__}"
    raise FrameMismatchError(
        dataset=dataset.name,
        differences=(
            f"the asset returned {what}; expected a Spark DataFrame, or the annotation `-> None` where it stores its "
            "rows itself",
        ),
    )


def _expr(context: OutputContext | InputContext) -> object | None:
    return (context.definition_metadata or {}).get(PARTITION_EXPR)


def _writer(dataset: Dataset, run_id: str, step_key: str, within: Slice | None) -> str:
    return "/".join((dataset.name, step_key, run_id, "" if within is None else str(within)))


def _record(
    context: OutputContext, dataset: Dataset, result: WriteResult, keys: list[str] | None, metadata: dict[str, Any]
) -> None:
    """Hand metadata, per-partition counts and the data version to Dagster."""
    step = context.step_context
    context.add_output_metadata(metadata)
    step.set_data_version(context.asset_key, data_version(result.table_id, result.version))
    if keys is None:
        context.add_output_metadata({"dagster/row_count": result.rows_written})
    elif result.rows_by_partition is not None:
        counts = rows_by_key(dataset, context.asset_partitions_def, keys, result.rows_by_partition, _expr(context))
        for key, rows in counts.items():
            step.add_asset_metadata({"dagster/partition_row_count": rows}, context.asset_key, key)


def _version_written_in_run(context: InputContext) -> int | None:
    """The version that this run has committed of the source; None where it has not written it."""
    step = context.step_context
    records = step.instance.get_records_for_run(
        step.run_id, of_type=DagsterEventType.ASSET_MATERIALIZATION, ascending=False
    ).records
    for record in records:
        materialization = record.event_log_entry.asset_materialization
        if materialization is not None and materialization.asset_key == context.asset_key:
            value = materialization.metadata.get(VERSION)
            return int(str(value.value)) if value is not None else None
    return None


def _input_slice(context: InputContext, dataset: Dataset) -> Slice | None:
    """The slice of the mapped partitions; None where all are mapped, or the source is not partitioned."""
    if not context.has_asset_partitions:
        return None
    keys = context.asset_partition_keys
    partitions_def = context.asset_partitions_def
    if set(keys) == set(partitions_def.get_partition_keys(dynamic_partitions_store=context.step_context.instance)):
        return None
    upstream = context.upstream_output
    return slice_of(dataset, partitions_def, keys, _expr(upstream) if upstream is not None else None)
