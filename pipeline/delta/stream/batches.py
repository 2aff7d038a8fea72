"""Whether a stream's checkpoint and its table agree. A batch that shares only its number with an old one is refused.

Here belong the comparison and the refusal. Reading a checkpoint belongs to `query_log`, the query to
`structured_streaming`.

Spark repeats only the newest batch of a checkpoint, with the same input. Anything else means that the checkpoint was
set back, lost or changed: a batch whose number the table has would be skipped, although it has other rows, and a query
that starts from the beginning would write old rows again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import SparkSession

from pipeline.dataset import TableRef
from pipeline.delta.log.commits import commit_note
from pipeline.delta.log.mark import StreamBatch
from pipeline.delta.log.replay import replay
from pipeline.delta.read.restores import commits_in_force
from pipeline.delta.stream.query_log import batch_content
from pipeline.errors import StreamBatchError, StreamCheckpointError


@dataclass(frozen=True, kw_only=True)
class _Written:
    """A batch of a stream in a commit that no restore has undone. `content` is None if it was not recorded."""

    version: int
    writer: str
    epoch: int
    checkpoint: str | None
    content: str | None


def refuse_other_input(
    session: SparkSession, table: TableRef, checkpoint: str, *, writer: str, epoch: int,
    batch: StreamBatch,
) -> None:  # fmt: skip
    """Refuse a batch that does not follow the batches in the table, by the commits that no restore has undone.

    Raises:
        StreamBatchError: the table has this number, or the one before it, with other input.
        StreamCheckpointError: another query wrote the table from this checkpoint's folder.
    """
    later: _Written | None = None
    others: list[_Written] = []
    for written in _written(session, table.location):
        if written.writer != writer:
            others += [written] if written.checkpoint == batch.checkpoint else []
            continue
        if written.epoch > epoch:
            later = written
            continue
        content = batch.content if written.epoch == epoch else batch_content(checkpoint, written.epoch)
        is_known = None not in (content, written.content)
        if is_known and content != written.content:
            raise _other_input(table, checkpoint, written)
        if is_known and written.epoch == epoch:
            return
        if later is not None:
            raise _other_input(table, checkpoint, later)
        return
    if later is not None:
        raise _other_input(table, checkpoint, later)
    _refuse_others(table, checkpoint, others)


def refuse_lost_checkpoint(session: SparkSession, table: TableRef, checkpoint: str, name: str) -> None:
    """Refuse to start from the beginning if a query has already written the table from this checkpoint folder.

    Args:
        name: the folder's name in commits.

    Raises:
        StreamCheckpointError: no restore has undone its batches, and the table has rows.
    """
    others = [written for written in _written(session, table.location) if written.checkpoint == name]
    _refuse_others(table, checkpoint, others)


def _refuse_others(table: TableRef, checkpoint: str, others: list[_Written]) -> None:
    """Refuse if another query of the folder wrote these batches, the newest first, and the table has rows."""
    if not others or not _holds_rows(table.location):
        return
    raise table.error(
        StreamCheckpointError,
        checkpoint=checkpoint,
        epoch=others[0].epoch,
        version=others[0].version,
        before=others[-1].version - 1,
    )


def _holds_rows(location: str) -> bool:
    snapshot = replay(location)
    return snapshot is not None and bool(snapshot.files)


def _other_input(table: TableRef, checkpoint: str, written: _Written) -> StreamBatchError:
    return table.error(
        StreamBatchError,
        checkpoint=checkpoint,
        epoch=written.epoch,
        version=written.version,
        before=written.version - 1,
    )


def _written(session: SparkSession, location: str) -> Iterator[_Written]:
    """The batches in the commits that no restore has undone, the newest first."""
    for version, info in commits_in_force(session, location):
        note = commit_note(info.get("userMetadata")) or {}
        mark, stream = note.get("mark") or {}, note.get("stream") or {}
        if mark.get("epoch") is not None:
            yield _Written(
                version=version, writer=mark["writer"], epoch=mark["epoch"], checkpoint=stream.get("checkpoint"),
                content=stream.get("content"),
            )  # fmt: skip
