"""What is asked of tables, records and commands can't be answered."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.errors.base import PipelineError


@dataclass(eq=False, kw_only=True)
class QueryError(PipelineError):
    """A statement is not one that only reads, or Spark can't answer it."""

    reason: str
    is_query: bool = True

    sentence = "The statement was not answered: {reason}"

    def remedy(self) -> str:
        """What is run, where something else was given."""
        if self.is_query:
            return ""
        return (
            "Only what reads is run: SELECT, WITH, VALUES, TABLE, SHOW, DESCRIBE, and EXPLAIN of a query; "
            "no TRANSFORM, reflect or java_method."
        )


@dataclass(eq=False, kw_only=True)
class NotParquetError(PipelineError):
    """The Parquet files of a Delta table were to be read as they lie there, deleted rows and old versions included."""

    path: str

    sentence = "{path} lies in a Delta table; as Parquet it would also show rows that were deleted or replaced."
    next_step = "Ask for the dataset by its name, or for delta.`...` with the path of its table."


@dataclass(eq=False, kw_only=True)
class FileAccessError(PipelineError):
    """A file below the root can't be written or read."""

    may_pass = True

    path: str
    reason: str

    sentence = "{path} can't be written or read: {reason}"
    next_step = "Check that PIPELINE_ROOT exists where Spark runs and may be written."


@dataclass(eq=False, kw_only=True)
class RecordError(PipelineError):
    """A record can't be read, or is of a format that this version does not know."""

    path: str
    reason: str

    sentence = "The record {path} can't be used: {reason}"


@dataclass(eq=False, kw_only=True)
class RunNotFoundError(PipelineError):
    """No records are kept of a run by that name."""

    run: str
    root: str
    near: tuple[str, ...] = ()

    sentence = "No records of run {run!r} lie under {root}."

    def remedy(self) -> str:
        """The near misses, or how to see all."""
        return f"Did you mean {' or '.join(self.near)}?" if self.near else "pipeline manifest list"


@dataclass(eq=False, kw_only=True)
class DemoError(PipelineError):
    """The demonstration could not be run to its end."""

    reason: str
    hint: str = ""

    sentence = "{reason}"
    next_step = "{hint}"


@dataclass(eq=False, kw_only=True)
class MaterializeError(PipelineError):
    """Assets were not materialized: the selection or partition is none of the project's, or the run failed."""

    reason: str
    hint: str = ""

    sentence = "{reason}"
    next_step = "{hint}"


@dataclass(eq=False, kw_only=True)
class UpError(PipelineError):
    """A part of `pipeline up` can't be started, or ended by itself; the other parts were stopped."""

    reason: str
    hint: str = ""

    sentence = "pipeline up: {reason}."
    next_step = "{hint}"
