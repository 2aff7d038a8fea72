"""Requests to tables, records and commands that can't be answered."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.errors.base import PipelineError, shown


@dataclass(eq=False, kw_only=True)
class QueryError(PipelineError):
    """A statement does more than read, or Spark can't answer it."""

    reason: str
    is_query: bool = True

    sentence = "The statement was not answered: {reason}"

    def remedy(self) -> str:
        """If the statement does more than read, the statements that are allowed."""
        if self.is_query:
            return ""
        return (
            "Only statements that read are run: SELECT, WITH, VALUES, TABLE, SHOW, DESCRIBE, and EXPLAIN of a query; "
            "no TRANSFORM, reflect or java_method."
        )


@dataclass(eq=False, kw_only=True)
class NotParquetError(PipelineError):
    """A query names Parquet files of a Delta table; these also contain deleted rows and old versions."""

    path: str

    sentence = "{path} belongs to a Delta table; as Parquet it would also show rows that were deleted or replaced."
    next_step = "Name the dataset in the query, or delta.`...` with the path of its table."


@dataclass(eq=False, kw_only=True)
class ExportRefusedError(PipelineError):
    """A version can't be exported as requested: its columns, its condition, or its format; nothing was written."""

    dataset: str
    format: str
    problems: tuple[str, ...]

    sentence = "Dataset {dataset!r} can't be exported as {format}; nothing was written:{problems}"
    next_step = (
        "pipeline show {dataset} lists the columns and their types. --columns leaves columns out; parquet and delta "
        "have every type."
    )


@dataclass(eq=False, kw_only=True)
class ExportTargetError(PipelineError):
    """The folder of an export can't be used; nothing in it was changed."""

    dataset: str
    target: str
    reason: str

    sentence = "Dataset {dataset!r} can't be exported to {target}: {reason}. Nothing was changed there."
    next_step = "Choose a folder that is empty or does not exist, outside of the tables."


@dataclass(eq=False, kw_only=True)
class ExportRunningError(PipelineError):
    """Another export writes to the same folder."""

    may_pass = True

    dataset: str
    target: str

    sentence = "Dataset {dataset!r} was not exported to {target}: another export writes there."


@dataclass(eq=False, kw_only=True)
class ExportIncompleteError(PipelineError):
    """The written files of an export don't have the rows of the version. The files were removed."""

    may_pass = True

    dataset: str
    target: str
    version: int
    reason: str

    sentence = "Version {version} of dataset {dataset!r} was not exported to {target}, nothing is left there: {reason}."
    next_step = (
        "Run the export again. If it has a condition, the condition must have the same result each time, unlike one "
        "with random numbers or with the present time."
    )


@dataclass(eq=False, kw_only=True)
class FileAccessError(PipelineError):
    """A file below the root can't be written or read."""

    may_pass = True

    path: str
    reason: str

    sentence = "{path} can't be written or read: {reason}"
    next_step = "Make that path readable and writable where Spark runs, or set PIPELINE_ROOT to another folder."


@dataclass(eq=False, kw_only=True)
class RecordError(PipelineError):
    """A record can't be read, or has a format that this version does not know."""

    path: str
    reason: str

    sentence = "The record {path} can't be used: {reason}"


@dataclass(eq=False, kw_only=True)
class RunNotFoundError(PipelineError):
    """There are no records of the requested run."""

    run: str
    root: str
    near: tuple[str, ...] = ()

    sentence = "There are no records of run {run!r} under {root}."

    def remedy(self) -> str:
        """The near misses. If there are none, the command that lists all."""
        return f"Did you mean {' or '.join(self.near)}?" if self.near else "pipeline manifest list shows all runs."


@dataclass(eq=False, kw_only=True)
class DemoError(PipelineError):
    """The demonstration could not be run to its end."""

    reason: str
    hint: str = ""

    sentence = "{reason}"
    next_step = "{hint}"


@dataclass(eq=False, kw_only=True)
class MaterializeError(PipelineError):
    """Assets were not materialized: the project has no such selection or partition, or the run failed."""

    reason: str
    hint: str = ""

    sentence = "{reason}"
    next_step = "{hint}"


@dataclass(eq=False, kw_only=True)
class RerunRefusedError(PipelineError):
    """A run can't be repeated as it was; nothing was started. `problems` has every reason, with the dataset."""

    run: str
    problems: tuple[str, ...]

    sentence = "Run {run} can't be repeated; nothing was started:{problems}"
    next_step = (
        "Versions that are gone don't come back: `pipeline manifest list` shows the runs, and a newer one reads newer "
        "versions. Anything else above names what the run needs."
    )


@dataclass(eq=False, kw_only=True)
class RerunError(PipelineError):
    """A run was not repeated to its end. No table of the project was changed."""

    reason: str
    hint: str = ""

    sentence = "{reason}"
    next_step = "{hint}"


@dataclass(eq=False, kw_only=True)
class UpError(PipelineError):
    """A part of `pipeline up` can't be started, or it ended unexpectedly; the other parts were stopped."""

    reason: str
    hint: str = ""

    sentence = "pipeline up: {reason}."
    next_step = "{hint}"


@dataclass(eq=False, kw_only=True)
class MigrationRefusedError(PipelineError):
    """A folder can't be migrated as it is; nothing was written. `problems` has all of them, with files and columns."""

    source: str
    location: str
    problems: tuple[str, ...]

    sentence = "The files in {source} can't be migrated to {location}; nothing was written:{problems}"
    next_step = (
        "Move those files away or correct them, or declare other types for the dataset, and run it again. `pipeline "
        "docs migrating` explains what is taken, passed over and refused."
    )


@dataclass(eq=False, kw_only=True)
class SourceChangedError(PipelineError):
    """Files changed or vanished after a migration has taken them, or while it read them.

    `version` is that of a commit that was undone because of it; None if nothing was written.
    """

    source: str
    location: str
    changed: tuple[str, ...]
    vanished: tuple[str, ...]
    version: int | None = None

    def message(self) -> str:
        """The files, and what was written."""
        names = (*(f"{path} changed" for path in self.changed), *(f"{path} is gone" for path in self.vanished))
        done = "nothing was written" if self.version is None else f"version {self.version} was undone"
        return f"Files in {self.source} are not as they were taken for {self.location}; {done}:{shown(names)}"

    next_step = (
        "Bring those files back; or repeat this with --accept-changed, which replaces the partitions of these files by "
        "the rows of the files that are there now."
    )
