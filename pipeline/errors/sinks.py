"""A sink or a stream does not run: its buffer, its journal or its checkpoint is the reason."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.errors.base import PipelineError
from pipeline.errors.tables import TableError


@dataclass(eq=False, kw_only=True)
class SinkRunningError(PipelineError):
    """Another running sink on this machine has this dataset and writer; `folder` holds its lock."""

    dataset: str
    writer: str
    folder: str

    sentence = "A sink of writer {writer!r} already runs for dataset {dataset!r}; it holds the lock in {folder}."
    next_step = "Stop that sink first, or give this sink another writer id."


@dataclass(eq=False, kw_only=True)
class SinkConflictError(TableError):
    """The log holds an epoch of this writer from another sink; this sink has stopped.

    Its acknowledged rows that are not committed stay in its journal.
    """

    writer: str
    epoch: int
    version: int

    sentence = (
        "Version {version} of dataset {dataset!r} holds epoch {epoch} of writer {writer!r} from another sink; this "
        "sink has stopped, and its acknowledged rows stay in its journal."
    )
    next_step = (
        "Start this sink under a writer id of its own; to commit its acknowledged rows, first rename the folder of its "
        "journal from {writer!r} to that id."
    )


@dataclass(eq=False, kw_only=True)
class SinkFullError(PipelineError):
    """The buffer of a sink has no room, and the sink refuses or has waited long enough; nothing was accepted."""

    retryable = True

    dataset: str
    rows: int
    size_bytes: int

    sentence = "The sink of dataset {dataset!r} is full ({rows} rows, {size_bytes} bytes wait); nothing was accepted."
    next_step = "Submit the same rows again later, or give the sink more room (buffer_rows, buffer_bytes)."


@dataclass(eq=False, kw_only=True)
class SinkStoppedError(PipelineError):
    """A call to a sink that does not run; rows without an acknowledgement are not in its journal."""

    dataset: str
    writer: str
    reason: str

    sentence = "The sink of writer {writer!r} for dataset {dataset!r} does not run: {reason}"
    next_step = "Start it again: it first commits the rows that it has acknowledged."


@dataclass(eq=False, kw_only=True)
class JournalError(PipelineError):
    """A write-ahead copy of a sink's rows can't be written, read or trusted."""

    dataset: str
    path: str
    reason: str

    sentence = "The journal of dataset {dataset!r} can't be used, {path}: {reason}"
    next_step = (
        "Make the folder writable, or put an undamaged copy of the file back under its name; move no other file in or "
        "out. To give up the rows of a segment instead, add '.given-up' to its name: the sink continues without them."
    )


@dataclass(eq=False, kw_only=True)
class JournalWriteError(JournalError):
    """The storage refuses a write of the journal; the files that are there are unchanged."""

    may_pass = True

    next_step = "Make room there, or make the folder writable: a running sink waits for it and continues by itself."


@dataclass(eq=False, kw_only=True)
class StreamError(PipelineError):
    """A streaming query into a dataset can't run; its commits stay, and its checkpoint holds its progress."""

    dataset: str
    checkpoint: str
    reason: str

    sentence = "The stream into dataset {dataset!r} (checkpoint {checkpoint}) does not run: {reason}"


@dataclass(eq=False, kw_only=True)
class StreamBatchError(TableError):
    """A stream's checkpoint has other input for a batch number than the table has; nothing was written.

    `epoch` is that number, and `version` is the commit of it that counts.
    """

    checkpoint: str
    epoch: int
    version: int
    before: int

    sentence = (
        "The checkpoint {checkpoint} was set back or changed: its input of batch {epoch} is not that of version "
        "{version} of dataset {dataset!r}; nothing was written."
    )
    next_step = (
        "Put the newest checkpoint back. Or restore the table to the progress of this checkpoint, so that the later "
        "batches are written again: pipeline restore {dataset} --version {before} --apply."
    )


@dataclass(eq=False, kw_only=True)
class StreamCheckpointError(TableError):
    """A stream would start again on a table that holds its batches: its checkpoint is lost or replaced.

    `epoch` and `version` are those of the newest batch that counts; nothing was written.
    """

    checkpoint: str
    epoch: int
    version: int
    before: int

    sentence = (
        "The checkpoint {checkpoint} of a stream into dataset {dataset!r} is lost or new, but the table holds the "
        "stream's batches up to {epoch} (version {version}), which would be written twice; nothing was written."
    )
    next_step = (
        "Put a copy of the checkpoint back. To read all input again, restore the table to the version before the first "
        "batch: pipeline restore {dataset} --version {before} --apply."
    )
