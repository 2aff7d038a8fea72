"""The result of one write, and how it is derived from the commit.

Here belong the value that a write returns and the functions that make it. Making the commit is the subject of `write`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from pipeline.dataset import Dataset, History, InsertNew, Merge
from pipeline.delta.log.commits import Commit, PartitionCounts, PartitionValues
from pipeline.delta.log.mark import AfterCommit, Mark
from pipeline.delta.table.open_table import TableState
from pipeline.delta.write.audit import Judgment
from pipeline.delta.write.quarantine import RemovedRows, Violation


@dataclass(frozen=True, kw_only=True)
class WriteResult:
    """The result of one write.

    `version` is the version of this write's commit. If the write was `skipped`, because it had been made before, it is
    the version that holds the rows. If there was nothing to commit, it is the current version.
    `rows_by_partition` counts the rows written by partition values as the log spells them. It is empty if nothing was
    written, and None if Delta kept no statistics or a merge has copied untouched rows. `partitions` are all
    counts of the commit by the same values; None if a stream has made several commits. `left_out` are the rows of the
    slice that constraints kept out, by typed values. `rows_written` counts inserted and updated rows. `rows_deleted` is
    None if Delta does not report it, `rows_updated` for all writes but a merge.
    `violations` are the constraints that were checked before the write, `judged` is what its audit has found.
    `quarantined` is the commit of the quarantined rows, None if there were none. If the schema policy let this write
    change the schema, `fingerprint_before` is the old schema's fingerprint and `schema_changes` are the steps;
    otherwise the fingerprint is None.
    """

    dataset: str
    location: str
    table_id: str
    version: int
    committed: bool
    skipped: bool = False
    operation: str
    rows_written: int
    rows_updated: int | None = None
    rows_deleted: int | None
    files_added: int
    files_removed: int
    bytes_added: int
    rows_by_partition: Mapping[PartitionValues, int] | None
    partitions: Mapping[PartitionValues, PartitionCounts] | None = field(default_factory=dict)
    left_out: Mapping[tuple[Any, ...], RemovedRows] = field(default_factory=dict)
    schema_fingerprint: str
    timestamp: dt.datetime | None
    mark: Mark
    features: tuple[str, ...]
    metrics: Mapping[str, str] = field(default_factory=dict)
    violations: tuple[Violation, ...] = ()
    judged: tuple[Judgment, ...] = ()
    rows_dropped: int = 0
    rows_quarantined: int = 0
    quarantined: WriteResult | None = None
    fingerprint_before: str | None = None
    schema_changes: tuple[str, ...] = ()

    @property
    def changes_rows(self) -> bool:
        """Whether the commit has changed rows. A commit that only records a transaction identifier has not."""
        return self.committed and bool(self.files_added or self.files_removed)

    def behind(self) -> AbstractContextManager[None]:
        """A block that follows this write. If it fails, the error carries the committed version, if there is one."""
        return AfterCommit(self.dataset, self.location, self.version) if self.committed else nullcontext()


def no_commit(dataset: Dataset, state: TableState, mark: Mark, skipped_at: int | None = None) -> WriteResult:
    """The result of a write without a commit: there was nothing to write, or it had been made before."""
    return WriteResult(
        dataset=dataset.name, location=state.location, table_id=state.table_id,
        version=state.version if skipped_at is None else skipped_at, committed=False, skipped=skipped_at is not None,
        operation="no commit", rows_written=0, rows_deleted=0, files_added=0, files_removed=0, bytes_added=0,
        rows_by_partition={}, schema_fingerprint=dataset.fingerprint, timestamp=None, mark=mark,
        features=state.features,
    )  # fmt: skip


def commit_result(dataset: Dataset, state: TableState, mark: Mark, commit: Commit) -> WriteResult:
    """The result of one of our commits. `state` is the state of the table when it was opened for the write."""
    is_merge = isinstance(dataset.write, Merge | InsertNew | History)
    return WriteResult(
        dataset=dataset.name,
        location=state.location,
        table_id=state.table_id,
        version=commit.version,
        committed=True,
        operation=commit.operation,
        rows_written=commit.rows_written or 0,
        rows_updated=commit.metric("numTargetRowsUpdated"),
        rows_deleted=commit.metric("numTargetRowsDeleted") if is_merge else commit.metric("numDeletedRows"),
        files_added=commit.files_added,
        files_removed=commit.files_removed,
        bytes_added=commit.bytes_added,
        rows_by_partition=None if is_merge else commit.rows_by_partition,
        partitions=commit.partitions,
        schema_fingerprint=dataset.fingerprint,
        timestamp=commit.timestamp,
        mark=mark,
        features=state.features,
        metrics=commit.metrics,
    )
