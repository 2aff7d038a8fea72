"""An asset whose function returns a streaming frame: what its source has now is written, batch by batch.

Here belongs where such a query keeps how far it is. The folder is one of the table as it was made: a table that was
made anew gets everything again.
"""

from __future__ import annotations

from typing import Any

from dagster import MetadataValue
from pyspark.sql import DataFrame

from pipeline.dataset import Dataset
from pipeline.delta.log.mark import CommitNote
from pipeline.delta.sql.slices import Slice
from pipeline.delta.stream.structured_streaming import write_available
from pipeline.delta.table.open_table import open_or_create
from pipeline.delta.write.result import WriteResult, no_commit
from pipeline.errors import DeclarationError
from pipeline.errors.listing import NAMED
from pipeline.orchestration.metadata_keys import BATCHES

STREAMS = "_streams"


def is_stream(obj: object) -> bool:
    """Whether an asset has returned a streaming frame."""
    return isinstance(obj, DataFrame) and obj.isStreaming


def write_stream(
    frame: DataFrame, dataset: Dataset, note: CommitNote, within: Slice | None, *, root: str
) -> tuple[tuple[WriteResult, ...], dict[str, Any]]:
    """Write what a streaming frame has; one result for each batch, or one that nothing was there, and their metadata.

    Raises:
        DeclarationError: the asset is partitioned or reads changes, or the write mode is none for a stream.
        PipelineError: as of `write_available`. Batches before the one that failed are committed.
    """
    problems = [
        "it reads changes, and a stream keeps its own account of what it has read" if dataset.reads_changes_of else "",
        "its asset is partitioned, and what a stream has now belongs to no partition" if within is not None else "",
    ]
    if any(problems):
        raise DeclarationError(dataset=dataset.name, problems=tuple(filter(None, problems)))
    location = dataset.location(root)
    state = open_or_create(frame.sparkSession, dataset, location)
    found = write_available(
        frame,
        dataset=dataset,
        location=location,
        checkpoint=f"{root.rstrip('/')}/{STREAMS}/{dataset.name}/{state.table_id}",
        run_id=note.run_id,
        asset=note.asset,
    )
    batches: list[dict[str, Any]] = [
        {"epoch": result.mark.epoch, "version": result.version, "rows": result.rows_written, "skipped": result.skipped}
        for result in found[-NAMED:]
    ]
    if len(found) > NAMED:
        batches.insert(0, {"earlier": len(found) - NAMED})
    return found or (no_commit(dataset, state, note.mark),), {BATCHES: MetadataValue.json(batches)}
