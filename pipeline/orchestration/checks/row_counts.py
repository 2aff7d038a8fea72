"""The asset check of a declared row count: whether the write, or the table after it, has an allowed number of rows.

Here belongs the choice of the rows that are counted. After an append they are the appended rows. After any other write
they are the rows of the table or the partition: the number of rows that a merge writes differs from it. The run has
recorded both numbers. If it has not, the log is read, and Spark is used if the log has no counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dagster import AssetCheckResult, AssetKey, MetadataValue, PartitionsDefinition

from pipeline.dataset import Append, Dataset, Replace, RowCount, TableRef
from pipeline.dataset.expectations import ROW_COUNT
from pipeline.delta.inspect.check import rows_per_partition, typed_values
from pipeline.delta.log.commits import read_commit
from pipeline.delta.sql.expectations import counts_written_rows, is_within
from pipeline.delta.table.open_table import state_from_log, table_state_with_sizes
from pipeline.orchestration import check_results
from pipeline.orchestration.checks import quality_checks
from pipeline.orchestration.io.io_manager import DeltaIOManager
from pipeline.orchestration.metadata_keys import COMMITTED, PARTITION_ROWS, ROWS_WRITTEN, SKIPPED, TABLE_ROWS, VERSION
from pipeline.orchestration.partitions import KeyFinder, sum_by_key

# The most partitions out of range that a result names. A year of hours has more.
NAMED_PARTITIONS = 100


@dataclass(frozen=True)
class Table:
    """A table that is checked, and the partitioning of its asset."""

    dataset: Dataset
    manager: DeltaIOManager
    partitions_def: PartitionsDefinition[Any] | None = None
    expr: object | None = None

    @property
    def ref(self) -> TableRef:
        """The dataset and its table's location."""
        return self.dataset.at(self.manager.root)


def described(dataset: Dataset, declared: RowCount) -> str:
    """The description of the check."""
    of = "The write has" if isinstance(dataset.write, Append | Replace) else "After the write there are"
    return f"{of} {_range(declared)}, for each partition key if the run has some."


def result(
    key: AssetKey, declared: RowCount, written: Mapping[str | None, Mapping[str, Any]], table: Table
) -> AssetCheckResult:
    """The result of the check, from the metadata that was recorded for the last write."""
    audited = quality_checks.recorded_by_audit(ROW_COUNT, written)
    if audited is not None:
        found, facts = audited
        return AssetCheckResult(
            asset_key=key, check_name=ROW_COUNT, passed=found.passed,
            severity=check_results.severity(declared.severity), description=check_results.described(found),
            metadata={"expected": _range(declared), **facts, **check_results.finding_metadata(found)},
        )  # fmt: skip
    rows = {partition: _rows(partition, metadata, len(written), table) for partition, metadata in written.items()}
    outside = {partition: count for partition, count in rows.items() if not is_within(declared, count)}
    named = dict(sorted((str(partition), count) for partition, count in outside.items() if partition is not None))
    versions = {metadata[VERSION] for metadata in written.values() if VERSION in metadata}
    summary = _summary(rows)
    metadata: dict[str, Any] = {
        "expected": _range(declared),
        "found": summary,
        "partitions": len(rows) - (None in rows),
    }
    if named:
        metadata["outside"] = MetadataValue.json(dict(list(named.items())[:NAMED_PARTITIONS]))
    if versions:
        metadata[VERSION] = MetadataValue.int(max(versions))
    return AssetCheckResult(
        asset_key=key,
        check_name=ROW_COUNT,
        passed=bool(rows) and not outside,
        severity=check_results.severity(declared.severity),
        description=f"Expected {_range(declared)}, found {summary}.",
        metadata=metadata,
    )


def _rows(partition: str | None, metadata: Mapping[str, Any], written: int, table: Table) -> int | None:
    """The rows to check. If several partitions share one count that can't be split, None."""
    mode = table.dataset.write
    if counts_written_rows(table.dataset):
        if metadata.get(SKIPPED):  # an earlier attempt has written them
            return _rows_of_commit(partition, metadata[VERSION], table)
        names = [PARTITION_ROWS, ROWS_WRITTEN] if partition is not None else [ROWS_WRITTEN]
        names = names if partition is None or written == 1 else [PARTITION_ROWS]
    else:
        names = [TABLE_ROWS] if partition is None else [PARTITION_ROWS]
        if isinstance(mode, Replace) and metadata.get(COMMITTED, True) and (partition is None or written == 1):
            names.append(ROWS_WRITTEN)
    recorded = next((int(metadata[name]) for name in names if name in metadata), None)
    if recorded is not None or counts_written_rows(table.dataset) or VERSION not in metadata:
        return recorded
    return _rows_held(partition, metadata[VERSION], table)


def _rows_held(partition: str | None, version: int, table: Table) -> int | None:
    """The rows of the table, or of one partition, at the version of a write whose row counts were not recorded."""
    rows = rows_per_partition(lambda: table.manager.spark.spark_session, table.ref, version)
    return _at(partition, rows, table)


def _rows_of_commit(partition: str | None, version: int, table: Table) -> int | None:
    """The rows that a commit has added, to one partition or in total. If its entry has no counts, None."""
    state = state_from_log(table.ref.location) or table_state_with_sizes(table.manager.spark.spark_session, table.ref)
    if state is None:
        return None
    commit = read_commit(table.ref.location, version, state.log_partition_by)
    if commit.rows_by_partition is None:
        return None
    return _at(partition, {typed_values(table.dataset, v): n for v, n in commit.rows_by_partition.items()}, table)


def _at(partition: str | None, rows: Mapping[tuple[Any, ...], int], table: Table) -> int | None:
    if partition is None:
        return sum(rows.values())
    if table.partitions_def is None:
        return None
    find = KeyFinder(table.dataset, table.partitions_def, [partition], table.expr)
    return sum_by_key(rows, find.of_values).get(partition, 0)


def _range(declared: RowCount) -> str:
    if declared.maximum is None:
        return f"at least {_counted(declared.minimum)}"
    return f"{declared.minimum} to {_counted(declared.maximum)}"


def _summary(rows: Mapping[str | None, int | None]) -> str:
    counts = [count for count in rows.values() if count is not None]
    if not rows:
        return "no write that was recorded"
    if len(counts) < len(rows):
        return "a write whose rows were not counted"
    fewest, most = min(counts), max(counts)
    return _counted(most) if fewest == most else f"{fewest} to {_counted(most)}"


def _counted(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows} rows"
