"""The Delta IO manager: it writes an asset's frame to its table, and reads a source's table as a frame.

Here belongs the translation of Dagster's contexts into calls of `pipeline.delta` and of their results into metadata.
The writing of rows, the refusals and the version of a commit belong to `pipeline.delta`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetRecordsFilter,
    ConfigurableIOManager,
    DataVersion,
    InputContext,
    OutputContext,
    StepExecutionContext,
)
from pyspark.sql.types import StructType

from pipeline.dataset import Dataset, table_location
from pipeline.delta.frames.convert import empty_frame, from_spark, to_spark, with_schema
from pipeline.delta.frames.staging import STAGING
from pipeline.delta.inspect.record import write_record
from pipeline.delta.log.commits import commit_identity
from pipeline.delta.log.mark import CommitNote, notes_of_writes
from pipeline.delta.read.changes import Changes
from pipeline.delta.read.version import ReadFacts, ReadOptions, read
from pipeline.delta.spark.doors import through_door
from pipeline.delta.spark.failures import SPARK_ERRORS
from pipeline.delta.sql.slices import Slice
from pipeline.delta.stream.structured_streaming import combined_result
from pipeline.delta.table.open_table import TableState, state_at_location
from pipeline.delta.write.consume import Reading, Touched, write_consumed
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline.errors import FrameKindError, PipelineError, TableNotFoundError
from pipeline.orchestration.derived import dataset_of_table, derived_dataset, mismatch_remedy, refuse_lost_partitions
from pipeline.orchestration.failures import as_dagster_failure
from pipeline.orchestration.io.audits import counted_parts, refusals_evaluated
from pipeline.orchestration.io.cached import (
    CachedRows,
    computation_of,
    deferred_input,
    may_be_skipped,
    report_cached,
)
from pipeline.orchestration.io.consumers import consumer_of, read_changes, sources_of, written_changes
from pipeline.orchestration.io.contexts import (
    code_version_of,
    key_columns,
    metadata_of,
    output_keys,
    partition_expr,
    partitions_of,
    step_of,
)
from pipeline.orchestration.io.identity import mark_of
from pipeline.orchestration.io.inputs import annotated_kind, input_slice, may_be_missing, report_input, shown_annotation
from pipeline.orchestration.io.pins import is_pinned, output_dataset, output_root, version_to_read
from pipeline.orchestration.io.reads import (
    InputRead,
    changes_read,
    lineage_metadata,
    note_read,
    reads_of,
)
from pipeline.orchestration.io.reporting import (
    changed_since,
    commit_line,
    report_of,
    report_output,
    rows_that_replace,
    sample_metadata,
)
from pipeline.orchestration.io.streams import is_stream, write_stream
from pipeline.orchestration.metadata import (
    changes_metadata,
    commit_in,
    data_version,
    data_version_tag,
    declared_dataset,
    foremost_first,
    reported_data_version,
    write_metadata,
)
from pipeline.orchestration.metadata_keys import RECORD, VERDICT, VERSION, WRITE_SECONDS
from pipeline.orchestration.partitions import slice_of
from pipeline.orchestration.resources import DeltaSparkResource
from pipeline.settings import LOCAL_FRAME_MAX_BYTES


class DeltaIOManager(ConfigurableIOManager):
    """Writes each asset to the Delta table of its dataset, and reads its sources from their tables.

    `root` is the URI below which the tables are, each under its asset's key. `catalog` is the catalog, or catalog and
    schema, in which tables without a `table_name` are registered. A run over partition keys replaces or appends exactly
    the slice of those keys in one commit. An input is read at the version that this run has written; if it has written
    none, at the newest version. The version is recorded.

    A plain asset, which has no dataset, is written too: `derived` derives its dataset.

    A parameter for a source in `reads_changes_of` of the asset's dataset gets `pipeline.orchestration.Changes`. The
    cursors of the read are committed with the asset's rows. The run's tag `pipeline/full_refresh`, or `full_refresh` in
    the configuration of the asset's op, makes the asset read everything and replace its table.

    An asset returns a frame of Spark, pandas, polars or pyarrow. A parameter gets the frame that its annotation names;
    without an annotation, a Spark frame. A frame in this process's memory may take `local_frame_max_bytes`.

    If a table is on this machine's disk, the metadata shows at most `sample_rows` rows of each commit. With 0, no rows
    are read for it.
    """

    root: str
    spark: DeltaSparkResource
    catalog: str | None = None
    local_frame_max_bytes: int = LOCAL_FRAME_MAX_BYTES
    sample_rows: int = 5

    def handle_output(self, context: OutputContext, obj: object) -> None:
        """Write the frame in one commit, or a streaming frame batch by batch, and record it.

        Raises:
            PipelineError: the frame, its rows or the table are not as declared; nothing is written.
            AfterCommitError: the rows are committed, but could not be reported.
            Failure: either of them, inside a run.
        """
        step = step_of(context)
        with nullcontext() if step is None else as_dagster_failure(), self._door(context):
            if isinstance(obj, CachedRows):
                report_cached(context, step, obj)
            else:
                self._handle_output(context, step, obj)

    def _door(self, context: OutputContext | InputContext) -> AbstractContextManager[None]:
        name = "/".join(context.asset_key.path)
        return through_door(name, table_location(self.root, name))

    def _handle_output(self, context: OutputContext, step: StepExecutionContext | None, obj: object) -> None:
        keys = output_keys(context)
        dataset, obj, table_declares = self._dataset_of_output(context, obj, partitioned=keys is not None)
        dataset = output_dataset(dataset, self.catalog)
        within = (
            None if keys is None else slice_of(dataset, context.asset_partitions_def, keys, partition_expr(context))
        )
        with written_changes(step, dataset) as reading:
            reads = reads_of(step) | ({} if reading is None else changes_read(reading.changes))
            note = CommitNote(
                mark=mark_of(context.run_id, step, dataset, within),
                run_id=context.run_id,
                asset=context.asset_key.to_user_string(),
                partitions=None if within is None else str(within),
                partition_columns=() if within is None else within.columns,
                sources={name: read.facts.version for name, read in reads.items()},
                code_version=code_version_of(context, step),
                computed_from=computation_of(step),
            )
            started = dt.datetime.now(dt.timezone.utc)
            with mismatch_remedy(table_declares), refusals_evaluated(context, step, dataset):
                results, further_metadata = self._write(
                    obj, dataset, note, within, reading=reading, reads=reads.values(),
                    parts=counted_parts(context, dataset, keys),
                )  # fmt: skip
        result = combined_result(results)
        with result.behind():
            seconds = (dt.datetime.now(dt.timezone.utc) - started).total_seconds()
            further_metadata |= {WRITE_SECONDS: seconds} | sample_metadata(results[-1], self.sample_rows)
            metadata = write_metadata(dataset, result, note.sources) | further_metadata
            metadata |= rows_that_replace(dataset, result) if reading is None else changes_metadata(reading.changes)
            version = self._reported_version(context, step, dataset, result)
            for one in results:
                context.log.info(commit_line(one, note.partitions, seconds))
                metadata |= self._record(context, dataset, one, note, reads=reads.values(), reading=reading)
                self._report_quarantine(context, dataset, one, note)
            partitions = partitions_of(context, keys)
            report = report_of(self.spark.spark_session, dataset, result, metadata, partitions)
            report_output(context, step, report, version)

    def _write(
        self,
        obj: Any,
        dataset: Dataset,
        note: CommitNote,
        within: Slice | None,
        *,
        reading: Reading | None,
        reads: Iterable[InputRead],
        parts: Mapping[str, Slice],
    ) -> tuple[tuple[WriteResult, ...], dict[str, Any]]:
        """The result of the write, or of each batch of a stream, and further metadata: the column lineage."""
        root = output_root(self.root)
        table = dataset.at(root)
        if is_stream(obj):
            return write_stream(obj, table, note, within, root=root)
        if reading is not None and reading.changes.nothing_new:
            session = self.spark.spark_session
            return (write_consumed(session, None, reading, table=table, note=note),), {}
        if reading is not None and isinstance(obj, Touched):
            obj, within = obj.frame, obj.within
        with to_spark(obj, dataset, lambda: self.spark.spark_session, self._staging) as frame:
            if reading is None:
                result = write(frame, table=table, note=note, within=within, parts=parts)
            else:
                result = write_consumed(frame.sparkSession, frame, reading, table=table, note=note, within=within)
            with result.behind():
                return (result,), lineage_metadata(frame, dataset, reads)

    def load_input(self, context: InputContext) -> Any:
        """The source's frame, restricted to the partitions that Dagster maps to this step.

        For a source in `reads_changes_of` of the step's dataset: the changes since the dataset was last written. If no
        partition is mapped, or if the asset reads itself and was never written, an empty frame.

        Raises:
            TableNotFoundError: the source was never materialized, and its rows are needed.
            FrameKindError, FrameTooLargeError: the parameter's annotation names no frame, or one that would not fit.
            Failure: any of them, inside a run.
        """
        step = step_of(context)
        if step is None or is_pinned() or not may_be_skipped(step):
            return self._load(context, step)
        with as_dagster_failure(), self._door(context):
            return deferred_input(context, step, self.root, partial(self._load, context, step))

    def _load(self, context: InputContext, step: StepExecutionContext | None) -> Any:
        with nullcontext() if step is None else as_dagster_failure(), self._door(context):
            return self._load_input(context, step)

    def _load_input(self, context: InputContext, step: StepExecutionContext | None) -> Any:
        dataset = self._dataset_to_read(context, step)
        consumer = consumer_of(step)
        if step is not None and consumer is not None:
            sources = sources_of(step, consumer)
            if context.asset_key in sources.values():
                return self._changes(context, step, consumer, sources.values())
        kind = annotated_kind(context)
        if dataset is None:
            return empty_frame(StructType([]), kind, "/".join(context.asset_key.path), lambda: self.spark.spark_session)
        table, within = dataset.at(self.root), input_slice(context, step, dataset)
        try:
            pin = ReadOptions(version=None if step is None else version_to_read(context, step, self.root))
            result = read(self.spark.spark_session, table, pin, within=within)
        except TableNotFoundError:
            if not may_be_missing(context, step):
                raise
            return empty_frame(dataset.schema, kind, dataset.name, lambda: self.spark.spark_session)
        if step is not None:
            filters = () if within is None else (within.predicate(dataset),)
            facts = ReadFacts(
                name=dataset.name, dataset=dataset.name, kind="table", version=result.version, pushed_filters=filters
            )
            note_read(step, InputRead(facts, table.location))
            report_input(context, {VERSION: result.version})
        with through_door(dataset.name, table.location):
            return from_spark(result.frame, kind, dataset, max_bytes=self.local_frame_max_bytes, staging=self._staging)

    def _changes(
        self, context: InputContext, step: StepExecutionContext, consumer: Dataset, keys: Iterable[AssetKey]
    ) -> Changes:
        """The changes of one source of a step, read together with those of all its other sources."""
        layer = step.job_def.asset_layer
        by_key = {
            key: self._dataset_of_source(key, layer.get(key).metadata if layer.has(key) else {}) for key in keys
        }  # fmt: skip
        dataset = by_key[context.asset_key]
        annotation = context.dagster_type.typing_type
        if annotation not in (Any, Changes):
            raise FrameKindError(
                dataset=dataset.name, annotation=shown_annotation(annotation), kinds=(shown_annotation(Changes),)
            )
        reading = read_changes(
            self.spark.spark_session, step, consumer.at(output_root(self.root)),
            [source.at(self.root) for source in by_key.values()],
        )  # fmt: skip
        changes = reading.changes[dataset.name]
        report_input(context, {VERSION: changes.verdict.version, VERDICT: str(changes.verdict)})
        return changes

    def _dataset_of_output(
        self, context: OutputContext, obj: object, *, partitioned: bool
    ) -> tuple[Dataset, Any, bool]:
        """The dataset of an output, the frame to write, and whether the table on disk is the declaration."""
        key, metadata = context.asset_key, metadata_of(context)
        declared = declared_dataset(key, metadata)
        if declared is not None:
            return declared, obj, False
        state = self._table_at(key, output_root(self.root))
        if state is not None:
            dataset = dataset_of_table(key, metadata, state)
            columns = key_columns(context, dataset) if partitioned else ()
            notes = partial(notes_of_writes, state.location, key.to_user_string())
            if not is_pinned():  # the earlier writes are those of another table
                refuse_lost_partitions(key, dataset, metadata, columns, notes)
            return dataset, obj, True
        frame, schema = with_schema(obj, "/".join(key.path))
        return derived_dataset(key, metadata, schema, partitioned=partitioned), frame, False

    def _dataset_of_source(self, key: AssetKey, metadata: Mapping[str, Any]) -> Dataset:
        declared = declared_dataset(key, metadata)
        if declared is not None:
            return declared
        state = self._table_at(key, self.root)
        if state is None:
            name = "/".join(key.path)
            raise TableNotFoundError(dataset=name, location=table_location(self.root, name))
        return dataset_of_table(key, metadata, state)

    def _dataset_to_read(self, context: InputContext, step: StepExecutionContext | None) -> Dataset | None:
        """The dataset of a source. For a plain asset that has no table yet, so that its columns are unknown, None."""
        try:
            return self._dataset_of_source(context.asset_key, metadata_of(context.upstream_output))
        except TableNotFoundError:
            if not may_be_missing(context, step):
                raise
            return None

    def _table_at(self, key: AssetKey, root: str) -> TableState | None:
        name = "/".join(key.path)
        return state_at_location(self.spark.spark_session, name, table_location(root, name))

    def _reported_version(
        self, context: OutputContext, step: StepExecutionContext | None, dataset: Dataset, result: WriteResult
    ) -> DataVersion:
        """The data version to report. If this write changed no rows, the last reported one.

        If the rows have changed since that report, the new one: a run may have ended between its commit and its report.
        """
        session = self.spark.spark_session
        now = data_version(
            result.table_id, result.version, commit_identity(result.location, result.version)
        )  # fmt: skip
        if step is None or result.changes_rows or result.skipped:
            return now
        partitions = partitions_of(context, output_keys(context))
        records_filter = AssetRecordsFilter(
            asset_key=context.asset_key, asset_partitions=None if partitions is None else partitions.keys
        )
        for record in step.instance.fetch_materializations(records_filter, limit=1).records:
            last = reported_data_version(record.asset_materialization)
            commit = None if last is None else commit_in(last, result.table_id)
            if last is None or commit is None:
                return now
            return now if changed_since(session, dataset, result, commit, partitions) else last
        return now

    def _record(
        self, context: OutputContext, dataset: Dataset, result: WriteResult, note: CommitNote, *,
        reads: Iterable[InputRead] = (), reading: Reading | None = None,
    ) -> dict[str, str]:  # fmt: skip
        """Write the record of the commit beside the tables. A failure is only logged: the commit remains valid."""
        try:
            path = write_record(
                self.spark.spark_session,
                dataset,
                result,
                root=output_root(self.root),
                run_id=context.run_id,
                sources=note.sources,
                reads=[read.facts for read in reads],
                changes={} if reading is None else reading.changes.facts,
                partitions=note.partitions,
                options=dict(self.spark.to_settings().conf),
            )
        except (PipelineError, OSError, *SPARK_ERRORS) as error:
            context.log.warning(f"The rows are committed, but the record of the commit could not be written: {error}")
            return {}
        return {RECORD: path}

    def _report_quarantine(
        self, context: OutputContext, dataset: Dataset, result: WriteResult, note: CommitNote
    ) -> None:
        """Report and record the commit of the quarantined rows. The quarantine is an asset that no step writes."""
        quarantined, quarantine = result.quarantined, dataset.quarantine
        if quarantined is None or quarantine is None or not quarantined.committed:
            return
        context.log.info(commit_line(quarantined, None, None))
        metadata = write_metadata(quarantine, quarantined, {}) | self._record(context, quarantine, quarantined, note)
        entry = commit_identity(quarantined.location, quarantined.version)
        tags = data_version_tag(quarantined.table_id, quarantined.version, entry)
        context.log_event(
            AssetMaterialization(AssetKey(quarantine.asset_key), metadata=foremost_first(metadata), tags=tags)
        )

    @property
    def _staging(self) -> str:
        return f"{output_root(self.root).rstrip('/')}/{STAGING}"
