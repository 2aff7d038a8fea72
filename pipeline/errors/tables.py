"""A table is missing, damaged or not as declared, or a version or a change of it can't be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.errors.base import PipelineError, shown


@dataclass(eq=False, kw_only=True)
class TableError(PipelineError):
    """An error about one table; `location` is its URI."""

    dataset: str
    location: str


@dataclass(eq=False, kw_only=True)
class TableNotFoundError(TableError):
    """A table that is to be read was never written."""

    sentence = "Dataset {dataset!r} has no table yet at {location}."
    next_step = "pipeline materialize {dataset}"


@dataclass(eq=False, kw_only=True)
class NotADeltaTableError(TableError):
    """The location holds files but no Delta log; a table that is created there would adopt or hide them."""

    sentence = "{location} of dataset {dataset!r} holds files but no Delta log; nothing was created there."
    next_step = "Move those files away, or choose another PIPELINE_ROOT."


@dataclass(eq=False, kw_only=True)
class TableNameTakenError(TableError):
    """The catalog has another entry under the dataset's table name; no row was written, and the entry is unchanged.

    `found` is the kind of the entry, `registered_location` its location; empty if it has none, as a view. `is_delta`:
    it is a Delta table.
    """

    table_name: str
    found: str
    registered_location: str = ""
    is_delta: bool = False

    def message(self) -> str:
        """The name, and the entry that has it."""
        place = f" at {self.registered_location}" if self.registered_location else ""
        return (
            f"The table of dataset {self.dataset!r} at {self.location} can't be registered as {self.table_name}, which "
            f"is the name of a {self.found}{place}; no row was written."
        )

    def remedy(self) -> str:
        """Another name; for an entry of a Delta table, also the statement that points it to this table."""
        other = f"Declare another table_name for {self.dataset!r}, or rename or drop that {self.found}."
        if not self.is_delta:
            return other
        moved = f"ALTER TABLE {self.table_name} SET LOCATION '{self.location}'"
        return f"{other} If this table was there before: {moved}"


@dataclass(eq=False, kw_only=True)
class CatalogError(TableError):
    """The session's catalog can't be asked for the table's name, or refuses it; no row was written.

    `version` is that of the table, which exists; None if the catalog was asked before the table was opened.
    """

    may_pass = True

    table_name: str
    reason: str
    version: int | None = None

    def message(self) -> str:
        """The name and the reason, and what was not written."""
        state = "nothing" if self.version is None else f"the table exists at version {self.version}, no row"
        return (
            f"The table of dataset {self.dataset!r} at {self.location} can't be registered as {self.table_name}; "
            f"{state} was written: {self.reason}"
        )

    next_step = (
        "Check that the catalog exists and is reached with the confs in [tool.pipeline.spark_conf], and that it allows "
        "the name; or change table_name of {dataset!r}, or the setting catalog. `pipeline docs scaling` has the confs."
    )


@dataclass(eq=False, kw_only=True)
class StatementError(TableError):
    """Spark or Delta doesn't support a statement on a table, whatever its rows: a type, a feature, a name.

    `condition` is Spark's error condition.
    """

    condition: str
    reason: str

    sentence = "Spark refuses the statement on dataset {dataset!r} at {location} ({condition}): {reason}"


@dataclass(eq=False, kw_only=True)
class EngineError(TableError):
    """Spark failed in a statement on a table, and names neither the storage nor the rows as the reason."""

    may_pass = True

    condition: str
    reason: str

    sentence = "Spark failed in a statement on dataset {dataset!r} at {location} ({condition}): {reason}"


@dataclass(eq=False, kw_only=True)
class TableMismatchError(TableError):
    """The table differs from the declaration in ways that the schema policy does not allow; `differences` has all.

    `is_settled_by_steps`: there is a plan of steps that makes the table as declared.
    """

    version: int
    differences: tuple[str, ...]
    is_settled_by_steps: bool = True

    sentence = (
        "The table of dataset {dataset!r} at {location} (version {version}) differs from its declaration:{differences}"
    )

    def remedy(self) -> str:
        """The commands of the plan. If there is no plan, the possible changes of the declaration."""
        if self.is_settled_by_steps:
            return (
                f"pipeline conform plan {self.dataset} shows the steps that make the table as declared, pipeline "
                f"conform apply {self.dataset} executes them; or change the declaration to match the table."
            )
        return (
            "No step settles these differences. Change the declaration to match the table, or give the dataset another "
            "name. If its write mode replaces the whole table, schema_policy=SchemaPolicy(mode='overwrite') lets the "
            "next write create the table again."
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
    """Existing rows of the table break a declared constraint; nothing was changed.

    `counts` is by the constraint's name, `examples` are such rows as JSON.
    """

    version: int
    counts: Mapping[str, int]
    examples: tuple[str, ...]

    sentence = (
        "Rows in the table of dataset {dataset!r} at {location} (version {version}) break its constraints ({counts}); "
        "nothing was changed. Examples:{examples}"
    )
    next_step = "Correct those rows, or the declaration of {dataset!r}."


@dataclass(eq=False, kw_only=True)
class ConformError(TableError):
    """Delta refused a step towards the declaration; the steps before it are committed."""

    step: str
    reason: str

    sentence = "A step on the table of dataset {dataset!r} at {location} was refused ({step}): {reason}"
    next_step = "pipeline conform plan {dataset} shows the remaining steps."


@dataclass(eq=False, kw_only=True)
class TableExistsError(TableError):
    """The write mode loads a table once, and it has rows already; nothing was written."""

    version: int

    sentence = (
        "The table of dataset {dataset!r} at {location} holds rows at version {version}; its write mode loads it once."
    )
    next_step = "Declare another write mode for {dataset!r}, or choose another PIPELINE_ROOT."


@dataclass(eq=False, kw_only=True)
class ChangeFeedOffError(TableError):
    """A consumer reads the changes of a table whose change feed is off."""

    consumer: str
    setting: str

    sentence = "{consumer!r} reads the changes of {dataset!r}, and {setting} is off in its table at {location}."
    next_step = (
        "ALTER TABLE delta.`{location}` SET TBLPROPERTIES ({setting} = true), or declare full_without_feed for "
        "{consumer!r}: it then reads all of {dataset!r} after every change."
    )


@dataclass(eq=False, kw_only=True)
class VersionNotFoundError(TableError):
    """A version or time is requested that the log does not hold."""

    asked: str
    available: str

    sentence = "Dataset {dataset!r} has no {asked}; available: {available}."
    next_step = "pipeline history {dataset} lists the commits."


@dataclass(eq=False, kw_only=True)
class VersionVacuumedError(TableError):
    """The log holds a version, but a vacuum has removed some of its files, or may have removed them.

    `missing` are their paths below the table; empty if all that is known is that the version is too old.
    """

    version: int
    missing: tuple[str, ...] = ()

    def message(self) -> str:
        """The version, and the first of its missing files."""
        if not self.missing:
            kept = "delta.deletedFileRetentionDuration"
            return f"Version {self.version} of dataset {self.dataset!r} is older than {kept}: its files may be gone."
        files = f"{len(self.missing)} files of version {self.version} of dataset {self.dataset!r}"
        return f"{files} were vacuumed:{shown(self.missing)}"

    next_step = "Choose a later version: pipeline history {dataset}."


@dataclass(eq=False, kw_only=True)
class PlanOutdatedError(TableError):
    """The table is no longer that of a plan, which was made at `version`; nothing was changed."""

    version: int
    reason: str

    sentence = (
        "The plan for dataset {dataset!r} at {location} was made at version {version} and does not fit any more "
        "({reason}); nothing was changed."
    )
    next_step = "Make the plan again: pipeline maintain clean-log {dataset}"


@dataclass(eq=False, kw_only=True)
class ConsumerBehindError(TableError):
    """A removal includes files that consumers of the dataset's changes have not read yet; nothing was removed.

    `behind` maps each of these consumers to the last version that it has read, or to 0 if it has read none.
    """

    version: int
    behind: Mapping[str, int]

    def message(self) -> str:
        """Each consumer, and the last version that it has read."""
        read = shown(tuple(f"{consumer!r} has read to version {number}" for consumer, number in self.behind.items()))
        return (
            f"Consumers have not read all changes of dataset {self.dataset!r} (version {self.version}); nothing was "
            f"removed:{read}"
        )

    def remedy(self) -> str:
        """The command that runs the consumers, or the option that makes them read the whole table."""
        consumers = ",".join(self.behind)
        return f"pipeline materialize {consumers}; or repeat this with --force: they then read the whole table."


@dataclass(eq=False, kw_only=True)
class ChangesUnreadableError(TableError):
    """The requested changes can't be read; `versions` are those at fault, `setting` is the change feed's property."""

    reason: str
    versions: tuple[int, ...]
    setting: str

    sentence = "Changes of dataset {dataset!r} can't be read, {reason}, at versions:{versions}"
    next_step = (
        "Request a later window, or compare two versions: pipeline diff {dataset}. If {setting} is off, ALTER TABLE "
        "delta.`{location}` SET TBLPROPERTIES ({setting} = true) records later changes."
    )


@dataclass(eq=False, kw_only=True)
class CursorUnreadableError(TableError):
    """A log can't be read, so a consumer's progress in a dataset is unknown; nothing was removed."""

    consumer: str
    reason: str

    sentence = "The progress of {consumer!r} in dataset {dataset!r} is unknown; nothing was removed: {reason}"
    next_step = "pipeline doctor reports the damage; pipeline maintain vacuum --force removes regardless of consumers."


@dataclass(eq=False, kw_only=True)
class FilesNotFoundError(TableError):
    """A file list names files that this version of the table does not hold."""

    version: int
    missing: tuple[str, ...]

    sentence = "Version {version} of dataset {dataset!r} does not hold these files:{missing}"


@dataclass(eq=False, kw_only=True)
class MigrationDifferenceError(TableError):
    """The rows that a migration has committed are not those of its files; `differences` has partitions and columns.

    `version` is that of the commit. It was undone by the commit `undone_at`; None if other commits followed it, so that
    it was left.
    """

    version: int
    differences: tuple[str, ...]
    undone_at: int | None = None

    def message(self) -> str:
        """The differences, and the state of the table."""
        state = "it was left, since other commits followed it" if self.undone_at is None else "it was undone"
        return (
            f"Version {self.version} of dataset {self.dataset!r} at {self.location} does not have the rows of the "
            f"files; {state}:{shown(self.differences)}"
        )

    def remedy(self) -> str:
        """If the commit was left, what undoes it."""
        if self.undone_at is not None:
            return ""
        if not self.version:
            return f"Remove {self.location}/_delta_log and the files that the later commits have added there."
        return f"pipeline restore {self.dataset} --version {self.version - 1} undoes it and the commits after it."
