"""The report of a write to Dagster by its run: metadata, the counts of each partition, the data version, a log line.

Here belongs the content of each materialization of a run. The names of the metadata belong to `metadata_keys`, the
metadata of a commit to `metadata`, and the report of commits that no run has made to `foreign`.

Every partition of a run has its own counts, from the actions of the commit in the log. A merge also copies unchanged
rows into its new files. The log then has the number of written rows only for the commit. If the run has several such
partitions, their numbers come from the change feed of the commit. Without a change feed they can't be split: they are
left out, and are only among the totals of the commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dagster import AssetKey, DataVersion, MetadataValue, OutputContext, PartitionsDefinition, StepExecutionContext

# Not public, but what `add_asset_metadata` uses.
from dagster._core.execution.context.metadata_logging import AssetMetadataHandle, OutputMetadataAccumulator
from pyspark.sql import SparkSession

from pipeline.dataset import Append, Dataset, Replace, TableRef
from pipeline.delta.inspect.sample import sample
from pipeline.delta.log.commits import PartitionCounts, commit_identity
from pipeline.delta.log.counts import TableRows, table_rows
from pipeline.delta.log.mark import rows_changed
from pipeline.delta.read.window import rows_written
from pipeline.delta.storage.file_system import local_folder
from pipeline.delta.table.open_table import require_table
from pipeline.delta.write.quarantine import RemovedRows
from pipeline.delta.write.result import WriteResult
from pipeline.orchestration.metadata import ReportedCommit, foremost_first, sample_table, with_totals_apart
from pipeline.orchestration.metadata_keys import (
    BYTES_ADDED,
    FILES_ADDED,
    FILES_REMOVED,
    PARTITION_ROWS,
    ROWS_DROPPED,
    ROWS_QUARANTINED,
    ROWS_WRITTEN,
    SAMPLE,
    TABLE_ROWS,
)
from pipeline.orchestration.partitions import KeyFinder, sum_by_key


@dataclass(frozen=True, kw_only=True)
class Partitions:
    """The partition keys of a run, and their columns."""

    partitions_def: PartitionsDefinition[Any]
    keys: list[str]
    expr: object | None = None


@dataclass
class Report:
    """The metadata of a run's materializations: the `shared` part, and by key the part of one partition.

    `together` has the counts of all keys, under the names that they have at each key.
    """

    shared: dict[str, Any]
    by_key: dict[str, dict[str, Any]] = field(default_factory=dict)
    together: dict[str, Any] = field(default_factory=dict)


def report_of(
    session: SparkSession,
    dataset: Dataset,
    result: WriteResult,
    metadata: Mapping[str, Any],
    partitions: Partitions | None,
) -> Report:
    """The report of a write. `metadata` is the metadata of its commit."""
    rows = table_rows(result.location, result.version)
    table = {} if rows is None else {TABLE_ROWS: MetadataValue.int(rows.total)}
    if partitions is None:
        return Report(dict(metadata) | table)
    shared, totals = with_totals_apart(metadata)
    find = KeyFinder(dataset, partitions.partitions_def, partitions.keys, partitions.expr)
    own = _counts(session, dataset, result, find, partitions.keys)
    if len(partitions.keys) == 1:
        (key,) = partitions.keys
        own[key] = totals | own[key]
    for key, count in _rows_of_partitions(dataset, result, rows, find, partitions.keys).items():
        own[key][PARTITION_ROWS] = MetadataValue.int(count)
    return Report(shared | table, own, totals)


def rows_that_replace(dataset: Dataset, result: WriteResult) -> dict[str, Any]:
    """The row count of a table that a replace has just written, if its log can't be read without Spark."""
    known = isinstance(dataset.write, Replace) and result.committed and local_folder(result.location) is None
    return {TABLE_ROWS: MetadataValue.int(result.rows_written)} if known else {}


def sample_metadata(result: WriteResult, most: int) -> dict[str, Any]:
    """A few rows of a commit as a table. If it has added none, or they can't be read cheaply, empty."""
    rows = sample(result.location, result.version, most) if result.changes_rows else None
    return {SAMPLE: sample_table(rows)} if rows else {}


def commit_line(result: WriteResult, within: str | None, seconds: float | None) -> str:
    """The log line of a write.

    Args:
        within: the slice that was addressed, in words.
        seconds: the duration of the write, together with others of the same output. None if it is part of another.
    """
    took = "" if seconds is None else f"{seconds:.1f} s"
    if not result.committed:
        done = "already written" if result.skipped else "nothing to commit"
        return ", ".join(filter(None, (f"{result.dataset}: {done}", f"version {result.version}", took)))
    parts = within or ("" if not result.partitions or () in result.partitions else f"{len(result.partitions)} changed")
    rows = f"{result.rows_written} row{'' if result.rows_written == 1 else 's'} written"
    facts = [f"version {result.version} ({result.operation})", rows, f"partitions: {parts}" if parts else "", took]
    return f"{result.dataset}: {', '.join(filter(None, facts))}"


def changed_since(
    session: SparkSession,
    dataset: Dataset,
    result: WriteResult,
    reported: ReportedCommit,
    partitions: Partitions | None,
) -> bool:
    """Whether rows of the table, or of these partitions, have changed between a reported commit and the result's.

    If the log has another commit at the reported version, or none yet, they have: the table was overwritten by a copy.
    """
    version, entry = reported.version, commit_identity(result.location, reported.version)
    if version > result.version or (entry is not None and reported.is_other_than(entry)):
        return True
    if partitions is None:
        return rows_changed(result.location, version, result.version)
    partition_by = require_table(session, TableRef(dataset, result.location)).log_partition_by
    find = KeyFinder(dataset, partitions.partitions_def, partitions.keys, partitions.expr)
    return rows_changed(result.location, version, result.version, partition_by=partition_by,
        is_ours=lambda values: find.of_texts(values) is not None,
    )  # fmt: skip


def report_output(
    context: OutputContext, step: StepExecutionContext | None, report: Report, version: DataVersion
) -> None:
    """Pass a report and the data version to Dagster."""
    if step is None:  # outside a run all keys share one set of metadata
        only = next(iter(report.by_key.values())) if len(report.by_key) == 1 else {}
        context.add_output_metadata(foremost_first(report.shared | report.together | only))
        return
    # Dagster appends the entries of one key to the shared ones. An entry that is also shared keeps its shared position.
    of_all = {name: total for name, total in report.together.items() if all(name in o for o in report.by_key.values())}
    context.add_output_metadata(foremost_first(report.shared | (of_all if report.by_key else {})))
    step.set_data_version(context.asset_key, version)
    _add_by_key(step, context.asset_key, report.by_key)


def _add_by_key(step: StepExecutionContext, asset_key: AssetKey, by_key: Mapping[str, dict[str, Any]]) -> None:
    """As `step.add_asset_metadata` for each partition. That would copy the metadata of all partitions at each call."""
    before = step._metadata_accumulator
    metadata = dict(before.per_output_metadata)
    for key, own in by_key.items():
        handle = AssetMetadataHandle(asset_key=asset_key, partition_key=key)
        metadata[handle] = {**metadata.get(handle, {}), **foremost_first(own)}
    step._metadata_accumulator = OutputMetadataAccumulator(per_output_metadata=metadata)


def _counts(
    session: SparkSession, dataset: Dataset, result: WriteResult, find: KeyFinder, keys: list[str]
) -> dict[str, dict[str, Any]]:
    """By key, the counts of the commit that are known of its partition."""
    if result.partitions is None:
        return {key: {} for key in keys}
    counts = dict.fromkeys(keys, PartitionCounts()) | sum_by_key(result.partitions, find.of_texts)
    unknown = [key for key, one in counts.items() if one.rows is None]
    if len(unknown) == 1:  # what the others don't have
        others = sum(one.rows or 0 for one in counts.values())
        counts[unknown[0]] = replace(counts[unknown[0]], rows=result.rows_written - others)
    elif unknown:
        written = rows_written(session, TableRef(dataset, result.location), result.version)
        if written is not None and sum(written.values()) == result.rows_written:
            rows = sum_by_key(written, find.of_values)
            counts |= {key: replace(counts[key], rows=rows.get(key, 0)) for key in unknown}
    left_out = dict.fromkeys(keys, RemovedRows()) | sum_by_key(result.left_out, find.of_values)
    return {key: _own(one, left_out[key] if result.violations else None) for key, one in counts.items()}


def _own(counts: PartitionCounts, left_out: RemovedRows | None) -> dict[str, Any]:
    own = {FILES_ADDED: counts.files_added, FILES_REMOVED: counts.files_removed, BYTES_ADDED: counts.bytes_added}
    if counts.rows is not None:
        own[ROWS_WRITTEN] = counts.rows
    if left_out is not None:
        own |= {ROWS_QUARANTINED: left_out.quarantined, ROWS_DROPPED: left_out.dropped}
    return {name: MetadataValue.int(count) for name, count in own.items()}


def _rows_of_partitions(
    dataset: Dataset, result: WriteResult, table: TableRows | None, find: KeyFinder, keys: list[str]
) -> dict[str, int]:
    """By key, the rows that its partition holds, or those that an append has added. If they are not known, empty."""
    appends = isinstance(dataset.write, Append)
    counts = result.rows_by_partition if appends or table is None else table.by_partition
    return {} if counts is None else dict.fromkeys(keys, 0) | sum_by_key(counts, find.of_texts)
