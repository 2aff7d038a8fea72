"""Input that doesn't fit: frames, rows, partition keys, files of a source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.errors.base import PipelineError, shown
from pipeline.errors.tables import TableError


@dataclass(eq=False, kw_only=True)
class FrameMismatchError(PipelineError):
    """A frame's columns don't fit the declaration; `differences` has all of them, and nothing was written.

    `table_declares`: the asset carries no dataset, so the existing table determines the columns.
    """

    dataset: str
    differences: tuple[str, ...]
    table_declares: bool = False

    sentence = "The frame for dataset {dataset!r} does not fit its declaration:{differences}"

    def remedy(self) -> str:
        """How to change the frame. If the table determines the columns, also how to get other columns."""
        text = f"Select and cast to the declared columns of {self.dataset!r}; nothing was written."
        if not self.table_declares:
            return text
        return (
            f"{text} The asset carries no dataset, so its table determines the columns; for other columns, declare "
            "them with dataset_metadata, or write under another asset key."
        )


@dataclass(eq=False, kw_only=True)
class FrameFailedError(PipelineError):
    """A frame can't be computed: one of its functions, casts or sources fails; nothing was written."""

    may_pass = True

    dataset: str
    condition: str
    reason: str

    sentence = "The frame for dataset {dataset!r} can't be computed ({condition}), nothing was written: {reason}"
    next_step = (
        "Correct the function or the source that fails. For values that can't be cast or divided, use try_cast, "
        "try_divide or nullif."
    )


@dataclass(eq=False, kw_only=True)
class ExpressionFailedError(PipelineError):
    """Declared SQL has no value for some row: it raises instead of returning false; nothing was written."""

    dataset: str
    part: str
    expression: str
    condition: str
    reason: str

    sentence = (
        "{part} of dataset {dataset!r} fails for some row ({condition}), nothing was written: {expression}\n  {reason}"
    )
    next_step = "Change the SQL so that it has a value for every row (try_cast, try_divide, nullif)."


@dataclass(eq=False, kw_only=True)
class TextError(PipelineError):
    """A text can't be stored: it contains half of a surrogate pair, which has no form in UTF-8.

    `text` is the part of the text around it.
    """

    dataset: str
    text: str

    sentence = "A text can't be used for dataset {dataset!r}, because it contains half of a surrogate pair: {text!r}"
    next_step = "Decode the text with its real encoding, or replace that character."


@dataclass(eq=False, kw_only=True)
class ViolationError(PipelineError):
    """Rows break the declaration; nothing was written. `counts` maps each broken rule to its number of rows."""

    dataset: str
    counts: Mapping[str, int]


@dataclass(eq=False, kw_only=True)
class RowViolationError(ViolationError):
    """Rows break the declaration one by one; `examples` are some of them, each after the rule that it breaks."""

    examples: tuple[str, ...] = ()

    def message(self) -> str:
        """The sentence, and the examples."""
        examples = f" Examples:{shown(self.examples)}" if self.examples else ""
        return f"{super().message()}{examples}"


@dataclass(eq=False, kw_only=True)
class NullViolationError(RowViolationError):
    """NULL in NOT NULL columns; `counts` is by column path, `checks` by the checks that are broken as well."""

    checks: Mapping[str, int] = field(default_factory=dict)

    sentence = "NULL in NOT NULL columns of dataset {dataset!r} ({counts}); nothing was written."

    def message(self) -> str:
        """The sentence, with the checks that are broken as well."""
        checks = f" Checks are broken as well ({shown(self.checks)})." if self.checks else ""
        return f"{super().message()}{checks}"


@dataclass(eq=False, kw_only=True)
class CheckViolationError(RowViolationError):
    """Rows fail a check constraint; `counts` is by the constraint's name."""

    sentence = "Check constraints of dataset {dataset!r} are broken ({counts}); nothing was written."


@dataclass(eq=False, kw_only=True)
class PartitionValueError(RowViolationError):
    """Texts in partition columns that Delta would read back as NULL: '' or the name of NULL's folder; by column."""

    sentence = (
        "Texts in partition columns of dataset {dataset!r} ({counts}) would be read back as NULL; nothing was written."
    )
    next_step = "Map '' and '__HIVE_DEFAULT_PARTITION__' to NULL or to other values before the write."


@dataclass(eq=False, kw_only=True)
class PartitionNameError(RowViolationError):
    """Values of partition columns whose folder names are too long for a file system; `counts` is by column."""

    limit: int

    sentence = (
        "Values of partition columns of dataset {dataset!r} ({counts}) would need folder names of more than {limit} "
        "bytes, or with a NUL character; nothing was written."
    )
    next_step = "Partition by a shorter value, such as its first characters or its hash."


@dataclass(eq=False, kw_only=True)
class DuplicateKeysError(ViolationError):
    """Several rows of a frame have the same key, and no order is declared; `counts` is by key, most frequent first."""

    total_keys: int

    sentence = (
        "{total_keys} keys of dataset {dataset!r} have several rows in the frame ({counts}); nothing was written."
    )
    next_step = "Keep one row per key, or declare order_by in its Merge: then the newest row wins."


@dataclass(eq=False, kw_only=True)
class ChangelogError(ViolationError):
    """Rows of a changelog without a known operation or without a sequence value; `counts` is by column.

    `examples` are such rows, `codes` the known operations; none if the rows are ordered without a changelog.
    """

    examples: tuple[str, ...]
    codes: tuple[str, ...]

    sentence = "Changes of dataset {dataset!r} can't be applied ({counts}); nothing was written. Examples:{examples}"

    def remedy(self) -> str:
        """The values that every row must have."""
        operations = f", and one of the operations {', '.join(self.codes)}" if self.codes else ""
        return f"Every row needs a sequence value{operations}."


@dataclass(eq=False, kw_only=True)
class SnapshotError(PipelineError):
    """A snapshot for a History can't be placed in the order; nothing was written.

    It is older than another snapshot, the table has a newer row of a key that it lacks, or the table has another
    snapshot of the same value. `taken` is the greatest value of the column `order` in it, None if it has no rows.
    `newest` is that of a newer snapshot, None if there is none. `keys_newer` counts keys that it can't close,
    `keys_other` those that differ from the other snapshot, and `examples` are some of them. `is_full_read` says whether
    it is not declared as a snapshot, but was read in full from the sources of a consumer.
    """

    dataset: str
    order: str
    taken: str | None
    newest: str | None
    keys_newer: int
    keys_other: int
    examples: tuple[str, ...]
    is_full_read: bool

    sentence = (
        "The snapshot for dataset {dataset!r} with greatest {order} {taken} can't be written: the table has a snapshot "
        "of {newest}, {keys_newer} open keys that the snapshot lacks are not older than it, and {keys_other} keys "
        "differ from another snapshot of the same value ({examples}); nothing was written."
    )
    next_step = (
        "Write snapshots in their order, and give all rows of a snapshot one value in {order}: the time at which it "
        "was taken."
    )

    def remedy(self) -> str:
        """How snapshots are ordered, or, of a full read, when the sources can be read again."""
        if not self.is_full_read:
            return super().remedy()
        return (
            f"The sources were read in full. Run again when they have rows with a greater {self.order} than the table. "
            "The versions of a source that was created again begin at 0; to begin a new history at once, declare the "
            "dataset under another name."
        )


@dataclass(eq=False, kw_only=True)
class StrayRowsError(ViolationError):
    """Rows outside the slice of the run; `counts` is by partition value, most frequent first."""

    slice: str
    total_rows: int

    sentence = "{total_rows} rows for dataset {dataset!r} are outside {slice} ({counts}); nothing was written."
    next_step = "Filter the frame to the partitions of the run."


@dataclass(eq=False, kw_only=True)
class TouchedSliceError(PipelineError):
    """A function returned only the rows of a slice, but its dataset can't be written that way; nothing was written."""

    dataset: str
    slice: str
    problem: str

    sentence = "The frame for dataset {dataset!r} should replace {slice}, but {problem}; nothing was written."


@dataclass(eq=False, kw_only=True)
class PartitionKeyError(PipelineError):
    """A partition key can't be turned into a value of the table's partition column."""

    dataset: str
    keys: tuple[str, ...]
    problem: str

    sentence = "Partition keys of dataset {dataset!r}: {problem}{keys}"

    def remedy(self) -> str:
        """If the run names no partition, the command that names one."""
        return "" if self.keys else f"pipeline materialize {self.dataset} --partition KEY"


@dataclass(eq=False, kw_only=True)
class SourceFileError(PipelineError):
    """An input file is missing or has a line that can't be parsed; `line` counts from 1, the header included."""

    path: str
    problem: str
    line: int | None = None
    excerpt: str = ""

    next_step = "Deliver the file again, then run the same command or partition again."

    def message(self) -> str:
        """The file, the line if it is known, and the problem."""
        place = self.path if self.line is None else f"{self.path}, line {self.line}"
        return f"{place}: {self.problem}" + (f": {self.excerpt!r}" if self.excerpt else "")


@dataclass(eq=False, kw_only=True)
class FrameKindError(PipelineError):
    """A parameter's annotation is no frame type that can hold the dataset's columns; `kinds` are those that can."""

    dataset: str
    annotation: str
    kinds: tuple[str, ...]

    sentence = "The rows of dataset {dataset!r} can't be passed as {annotation}; a parameter may be annotated:{kinds}"
    next_step = "Annotate the parameter with one of these."


@dataclass(eq=False, kw_only=True)
class FrameTooLargeError(PipelineError):
    """An input is too large for the memory of this process; `found_bytes` is the size of its files or in Arrow."""

    dataset: str
    kind: str
    found_bytes: int
    limit_bytes: int

    sentence = "The rows of dataset {dataset!r} take {found_bytes} bytes; the limit for {kind} is {limit_bytes} bytes."
    next_step = (
        "Annotate the parameter as pyspark.sql.DataFrame or pyarrow.RecordBatchReader, or raise the setting "
        "local_frame_max_bytes."
    )


@dataclass(eq=False, kw_only=True)
class StagingError(TableError):
    """A local frame can't be written where Spark reads it, or Spark's rows where this process reads them.

    `found` is the remedy for a problem that this machine's disk shows.
    """

    may_pass = True

    reason: str
    found: str = ""

    sentence = "A local frame of dataset {dataset!r} can't be staged under {location}: {reason}"

    def remedy(self) -> str:
        """What the disk lacks. If it shows no problem, the frame type that needs no staging."""
        return self.found or "Return a Spark DataFrame, or annotate the parameter as one."
