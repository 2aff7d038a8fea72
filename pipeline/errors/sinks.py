"""A sink or a stream does not run: its buffer, its journal, its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.errors.base import PipelineError
from pipeline.errors.tables import TableError


@dataclass(eq=False, kw_only=True)
class SinkRunningError(PipelineError):
    """Another live sink on this machine has this dataset and writer; `folder` holds its lock."""

    dataset: str
    writer: str
    folder: str

    sentence = "A sink of writer {writer!r} runs already for dataset {dataset!r}; it holds the lock in {folder}."
    next_step = "Stop that one first, or give this one a writer id of its own."


@dataclass(eq=False, kw_only=True)
class SinkConflictError(TableError):
    """The log holds an epoch of this writer that another sink has committed; this one has stopped.

    Rows that were acknowledged and not committed stay in its journal.
    """

    writer: str
    epoch: int
    version: int

    sentence = (
        "Version {version} of dataset {dataset!r} holds epoch {epoch} of writer {writer!r} from another sink; this one "
        "has stopped, and what it has acknowledged stays in its journal."
    )
    next_step = "Let one sink have the writer id; start the other one again under one of its own."


@dataclass(eq=False, kw_only=True)
class SinkFullError(PipelineError):
    """The buffer of a sink that refuses, or has waited for long enough, has no room; nothing was taken."""

    retryable = True

    dataset: str
    rows: int
    size_bytes: int

    sentence = "The sink of dataset {dataset!r} is full ({rows} rows, {size_bytes} bytes wait); nothing was taken."
    next_step = "Submit the same again later, or give the sink more room (buffer_rows, buffer_bytes)."


@dataclass(eq=False, kw_only=True)
class SinkStoppedError(PipelineError):
    """Something was asked of a sink that does not run; rows without an acknowledgement are not in its journal."""

    dataset: str
    writer: str
    reason: str

    sentence = "The sink of writer {writer!r} for dataset {dataset!r} does not run: {reason}"
    next_step = "Start it again: what it has acknowledged is committed first."


@dataclass(eq=False, kw_only=True)
class JournalError(PipelineError):
    """A write-ahead copy of a sink can't be written, read or trusted."""

    dataset: str
    path: str
    reason: str

    sentence = "The journal of dataset {dataset!r} can't be used, {path}: {reason}"
    next_step = (
        "Make room there, or put a whole copy of the file back under its name; move nothing else in or out. With "
        "'.given-up' added to the name of a segment its rows are given up, and the sink goes on without them."
    )


@dataclass(eq=False, kw_only=True)
class JournalWriteError(JournalError):
    """The storage refuses to take what is to be kept; what is there already is as it was."""

    may_pass = True

    next_step = "Make room there, or let the folder be written: a sink that runs waits for it, and goes on by itself."


@dataclass(eq=False, kw_only=True)
class StreamError(PipelineError):
    """A streaming query into a dataset can't run; what it has written stays, and its checkpoint says how far it is."""

    dataset: str
    checkpoint: str
    reason: str

    sentence = "The stream into dataset {dataset!r} (checkpoint {checkpoint}) does not run: {reason}"


@dataclass(eq=False, kw_only=True)
class StreamBatchError(TableError):
    """A batch of a stream was to be written whose checkpoint has other input under a number that the table holds.

    `epoch` is that number and `version` the commit of it that counts; nothing was written.
    """

    checkpoint: str
    epoch: int
    version: int
    before: int

    sentence = (
        "The checkpoint {checkpoint} has other input under batch {epoch} than version {version} of dataset {dataset!r} "
        "was written from: it was set back or changed; nothing was written."
    )
    next_step = (
        "Put the newest checkpoint back. Or bring the table back to where this one stands, and its batches are written "
        "again: pipeline restore {dataset} --version {before} --apply."
    )


@dataclass(eq=False, kw_only=True)
class StreamCheckpointError(TableError):
    """A stream would begin anew into a table that holds its batches, since its checkpoint is lost or another one.

    `epoch` and `version` are those of the newest batch that counts; nothing was written.
    """

    checkpoint: str
    epoch: int
    version: int
    before: int

    sentence = (
        "The checkpoint {checkpoint} of a stream into dataset {dataset!r} is lost or new, and the table holds its "
        "batches up to {epoch} (version {version}): they would be written again; nothing was written."
    )
    next_step = (
        "Put the checkpoint back from a copy. To have everything read again, bring the table back to before its first "
        "batch: pipeline restore {dataset} --version {before} --apply."
    )
