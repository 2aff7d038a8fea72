"""What one write did, and how that is told from its commit.

Here belong the value that a write returns and its makers. Making the commit is `write`'s.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from pipeline.dataset import Dataset, InsertNew, Merge
from pipeline.delta.log.commits import Commit, PartitionCounts, PartitionValues
from pipeline.delta.log.mark import BehindCommit, Mark
from pipeline.delta.table.open_table import TableState
from pipeline.delta.write.quarantine import RemovedRows, Violation


@dataclass(frozen=True, kw_only=True)
class WriteResult:
    """What one write did.

    `version` is that of our own commit; of the commit that holds the rows where the write was `skipped`, since it had
    been made before; or the current one where there was nothing to commit.
    `rows_by_partition` counts the rows written by partition values as the log spells them; empty where nothing was
    written, None where Delta kept no statistics or a merge has written untouched rows again. `partitions` are all
    counts of the commit by the same values; None where a stream has made several. `left_out` are the rows of the slice
    that constraints kept out, by typed values. `rows_written` are those inserted and updated. `rows_deleted` is None
    where Delta does not say, `rows_updated` for all but a merge.
    `violations` are what was looked for before the write, with the rows that were left out of it; `quarantined` is the
    commit of those that were set apart, None where none were. `fingerprint_before` is that of the table's schema where
    the schema policy let this write change it, by the steps in `schema_changes`; None where the write left it.
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
    rows_dropped: int = 0
    rows_quarantined: int = 0
    quarantined: WriteResult | None = None
    fingerprint_before: str | None = None
    schema_changes: tuple[str, ...] = ()

    @property
    def changes_rows(self) -> bool:
        """Whether the commit has changed rows: one that only records an identifier has not."""
        return self.committed and bool(self.files_added or self.files_removed)

    def behind(self) -> AbstractContextManager[None]:
        """A block that follows this write: what fails in it is raised with the version that stands, if one does."""
        return BehindCommit(self.dataset, self.location, self.version) if self.committed else nullcontext()


def no_commit(dataset: Dataset, state: TableState, mark: Mark, skipped_at: int | None = None) -> WriteResult:
    """A write that made no commit: there was nothing to write, or it had been made before."""
    return WriteResult(
        dataset=dataset.name, location=state.location, table_id=state.table_id,
        version=state.version if skipped_at is None else skipped_at, committed=False, skipped=skipped_at is not None,
        operation="no commit", rows_written=0, rows_deleted=0, files_added=0, files_removed=0, bytes_added=0,
        rows_by_partition={}, schema_fingerprint=dataset.fingerprint, timestamp=None, mark=mark,
        features=state.features,
    )  # fmt: skip


def commit_result(dataset: Dataset, state: TableState, mark: Mark, commit: Commit) -> WriteResult:
    """What a commit of ours did; `state` is the table as it was opened for it."""
    is_merge = isinstance(dataset.write, Merge | InsertNew)
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
