"""An asset whose function returns a streaming frame: all data that its source has now is written, batch by batch.

Here belongs the folder of such a query's checkpoint. It contains the table's id: a table that was created again gets
all data again.
"""

from __future__ import annotations

from typing import Any

from dagster import MetadataValue
from pyspark.sql import DataFrame

from pipeline.dataset import TableRef
from pipeline.delta.log.mark import CommitNote
from pipeline.delta.sql.slices import Slice
from pipeline.delta.stream.query_log import STREAMS
from pipeline.delta.stream.structured_streaming import write_available
from pipeline.delta.table.open_table import open_or_create
from pipeline.delta.write.result import WriteResult, no_commit
from pipeline.errors import DeclarationError
from pipeline.errors.listing import NAMED
from pipeline.orchestration.metadata_keys import BATCHES


def is_stream(obj: object) -> bool:
    """Whether an asset has returned a streaming frame."""
    return isinstance(obj, DataFrame) and obj.isStreaming


def write_stream(
    frame: DataFrame, table: TableRef, note: CommitNote, within: Slice | None, *, root: str
) -> tuple[tuple[WriteResult, ...], dict[str, Any]]:
    """Write the available data of a streaming frame. Returns one result for each batch, and their metadata.

    Without new data there is one result without a commit.

    Raises:
        DeclarationError: the asset is partitioned or reads changes, or the write mode does not support streams.
        PipelineError: the errors of `write_available`. Batches before the one that failed are committed.
    """
    reads_changes = bool(table.dataset.reads_changes_of)
    problems = [
        "it reads changes, but a stream keeps its own record of what it has read" if reads_changes else "",
        "its asset is partitioned, but the rows of a stream belong to no partition key" if within is not None else "",
    ]
    if any(problems):
        raise DeclarationError(dataset=table.name, problems=tuple(filter(None, problems)))
    state = open_or_create(frame.sparkSession, table)
    results = write_available(
        frame,
        table=table,
        checkpoint=f"{root.rstrip('/')}/{STREAMS}/{table.name}/{state.table_id}",
        run_id=note.run_id,
        asset=note.asset,
    )
    batches: list[dict[str, Any]] = [
        {"epoch": result.mark.epoch, "version": result.version, "rows": result.rows_written, "skipped": result.skipped}
        for result in results[-NAMED:]
    ]
    if len(results) > NAMED:
        batches.insert(0, {"earlier": len(results) - NAMED})
    return results or (no_commit(table.dataset, state, note.mark),), {BATCHES: MetadataValue.json(batches)}
