"""A Structured Streaming query into a dataset: each of its batches through the one write path, exactly once.

Here belong the query and what its batches are called; the sources are Spark's own. A query that was stopped anywhere
is gone on with from its checkpoint, where Spark repeats the batch that it does not know the end of: under the query's
id as the writer and the batch's number as the epoch, so that no row is written twice.
"""

from __future__ import annotations

import json

from pyspark.sql import DataFrame

from pipeline.dataset import Dataset
from pipeline.delta.commit import CommitNote, Mark
from pipeline.delta.failures import SPARK_ERRORS, read_failure
from pipeline.delta.log import file_system
from pipeline.delta.session import is_connect
from pipeline.delta.write import WriteResult, write
from pipeline.errors import PipelineError, StreamError


def write_available(frame: DataFrame, *, dataset: Dataset, location: str, checkpoint: str) -> tuple[WriteResult, ...]:
    """Write what a streaming frame has at this moment, batch by batch; what each batch's write did.

    Args:
        frame: of any streaming source; its columns are the dataset's, by name.
        checkpoint: the folder in which Spark keeps how far the query is; of this query alone.

    Raises:
        StreamError: the frame is none, the session is a Connect client's, or the source or the checkpoint fails.
        PipelineError: as of `write`; the next call begins with the batch that failed.
    """
    if not frame.isStreaming:
        raise StreamError(dataset=dataset.name, checkpoint=checkpoint, reason="the frame is not a streaming one")
    if is_connect(frame.sparkSession):
        reason = "over Spark Connect its batches would be written by another process"
        raise StreamError(dataset=dataset.name, checkpoint=checkpoint, reason=reason)
    results: list[WriteResult] = []
    failed: list[PipelineError] = []

    def put(rows: DataFrame, batch: int) -> None:
        mark = Mark(writer=f"stream/{_query_id(checkpoint)}", epoch=batch)
        try:
            results.append(write(rows, dataset=dataset, location=location, note=CommitNote(mark=mark)))
        except PipelineError as error:
            failed.append(error)  # Spark would hand on no more of it than its text
            raise

    try:
        to_table = frame.writeStream.foreachBatch(put).option("checkpointLocation", checkpoint)
        to_table.trigger(availableNow=True).start().awaitTermination()
    except SPARK_ERRORS as error:
        if failed:
            raise failed[0] from error
        reason = read_failure(error).summary
        raise StreamError(dataset=dataset.name, checkpoint=checkpoint, reason=reason) from error
    return tuple(results)


def _query_id(checkpoint: str) -> str:
    """The id that Spark has given the query at its first start, from its checkpoint."""
    system, path = file_system(checkpoint)
    with system.open_input_stream(f"{path}/metadata") as stream:
        return str(json.loads(stream.read())["id"])
