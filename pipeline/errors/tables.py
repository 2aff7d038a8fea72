"""A table is not there, not whole, or not as it is declared; a version or a change of it can't be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.errors.base import PipelineError, shown


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
    """The storage under the root refused to be written or read; `found` is what a look at this machine's disk shows."""

    may_pass = True

    reason: str
    found: str = ""

    sentence = "The storage at {location} of dataset {dataset!r} can't be used: {reason}"

    def remedy(self) -> str:
        """What the disk lacks, or where to look."""
        return self.found or "Check that PIPELINE_ROOT exists where Spark runs and may be written."


@dataclass(eq=False, kw_only=True)
class DamagedTableError(StorageError):
    """A file of the table or its log is not what a commit has made: empty, cut off, replaced, changed or gone.

    `file` is its path; the table's own location where only the engine knows which file it is. `nothing_committed` says
    that a statement has met it that was to write the table.
    """

    may_pass = False

    file: str
    nothing_committed: bool = False

    sentence = "The table of dataset {dataset!r} at {location} is damaged, {file}: {reason}"

    def message(self) -> str:
        """The sentence, and whether something was to be written."""
        return super().message() + ("; nothing was committed" if self.nothing_committed else "")

    def remedy(self) -> str:
        """What tells of all the damage."""
        return (
            f"pipeline doctor {self.dataset} tells all that is damaged and what helps; until then write nothing to it."
        )


@dataclass(eq=False, kw_only=True)
class StatementError(TableError):
    """Spark or Delta doesn't do what was asked of a table, whatever the rows: a type, a feature, a name.

    `condition` is Spark's name of the reason.
    """

    condition: str
    reason: str

    sentence = "Spark refuses what was asked of dataset {dataset!r} at {location} ({condition}): {reason}"


@dataclass(eq=False, kw_only=True)
class EngineError(TableError):
    """Spark failed at what was asked of a table, and does not say that the storage or the rows are the reason."""

    may_pass = True

    condition: str
    reason: str

    sentence = "Spark failed at what was asked of dataset {dataset!r} at {location} ({condition}): {reason}"
    next_step = "Run it again; the lines above from Spark may say more."


@dataclass(eq=False, kw_only=True)
class TableMismatchError(TableError):
    """The table differs from the declaration in a way that the declaration does not allow; all differences at once.

    `is_settled_by_steps` says whether there is a plan that leads from the one to the other.
    """

    version: int
    differences: tuple[str, ...]
    is_settled_by_steps: bool = True

    sentence = (
        "The table of dataset {dataset!r} at {location} (version {version}) differs from its declaration:{differences}"
    )

    def remedy(self) -> str:
        """The plan, or what there is without one."""
        if self.is_settled_by_steps:
            return (
                f"pipeline conform plan {self.dataset} shows the steps that settle it, pipeline conform apply "
                f"{self.dataset} takes them; or change the declaration to match the table."
            )
        return (
            "No step settles that. Change the declaration to match the table, or give the dataset another name; where "
            "it is replaced as a whole, schema_policy=SchemaPolicy(mode='overwrite') has its next write make it anew."
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
    next_step = "pipeline history {dataset} lists the commits."


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
        return f"{files} were vacuumed:{shown(self.missing)}"

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
        read = shown(tuple(f"{consumer!r} has read to version {number}" for consumer, number in self.behind.items()))
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
