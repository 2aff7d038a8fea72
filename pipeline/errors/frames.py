"""What comes in does not fit: frames, rows, partition keys, files of a source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.errors.base import PipelineError, shown
from pipeline.errors.tables import TableError


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
class FrameFailedError(PipelineError):
    """A frame can't be computed: a function, a cast or a source of it fails; nothing was written."""

    may_pass = True

    dataset: str
    condition: str
    reason: str

    sentence = "The frame for dataset {dataset!r} can't be computed ({condition}), nothing was written: {reason}"
    next_step = "Correct what computes the frame, or the values it computes with (try_cast, try_divide, nullif)."


@dataclass(eq=False, kw_only=True)
class ExpressionFailedError(PipelineError):
    """Declared SQL has no value for some row: it raises in place of being false; nothing was written."""

    dataset: str
    part: str
    expression: str
    condition: str
    reason: str

    sentence = (
        "{part} of dataset {dataset!r} fails for some row ({condition}), nothing was written: {expression}\n  {reason}"
    )
    next_step = "Write it so that it has a value for every row (try_cast, try_divide, nullif)."


@dataclass(eq=False, kw_only=True)
class TextError(PipelineError):
    """A text is none that can be stored: it holds half of a surrogate pair, which has no form in UTF-8.

    `text` is that part of it.
    """

    dataset: str
    text: str

    sentence = "A text can't be used for dataset {dataset!r}, half of a surrogate pair stands alone in it: {text!r}"
    next_step = "Decode the text as what it is, or replace that character."


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
        among = f" Among them:{shown(self.examples)}" if self.examples else ""
        return f"{super().message()}{among}"


@dataclass(eq=False, kw_only=True)
class NullViolationError(RowViolationError):
    """NULL where the declaration says NOT NULL; `counts` is by column path, `checks` by the checks broken besides."""

    checks: Mapping[str, int] = field(default_factory=dict)

    sentence = "NULL in NOT NULL columns of dataset {dataset!r} ({counts}); nothing was written."

    def message(self) -> str:
        """The sentence, with the checks that are broken besides."""
        besides = f" Broken besides are checks ({shown(self.checks)})." if self.checks else ""
        return f"{super().message()}{besides}"


@dataclass(eq=False, kw_only=True)
class CheckViolationError(RowViolationError):
    """Rows fail a check constraint; `counts` is by the constraint's name."""

    sentence = "Check constraints of dataset {dataset!r} are broken ({counts}); nothing was written."


@dataclass(eq=False, kw_only=True)
class PartitionValueError(RowViolationError):
    """A text in a partition column that Delta would give back as NULL: '' or the name of NULL's folder; by column."""

    sentence = (
        "Texts in partition columns of dataset {dataset!r} ({counts}) would be read back as NULL; nothing was written."
    )
    next_step = "Map '' and '__HIVE_DEFAULT_PARTITION__' to NULL or to values of their own before the write."


@dataclass(eq=False, kw_only=True)
class PartitionNameError(RowViolationError):
    """Values of partition columns whose folder would have a longer name than a file system takes; by column."""

    limit: int

    sentence = (
        "Values of partition columns of dataset {dataset!r} ({counts}) would need folders with names of more than "
        "{limit} bytes; nothing was written."
    )
    next_step = "Partition by a shorter value, such as the first characters of it or a hash."


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

    def remedy(self) -> str:
        """The command that names a partition, where a run has named none."""
        return "" if self.keys else f"pipeline materialize {self.dataset} --partition KEY"


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
    """A local frame can't be put where Spark reads it, or Spark's rows not where this process reads them.

    `found` is what a look at this machine's disk shows.
    """

    may_pass = True

    reason: str
    found: str = ""

    sentence = "A local frame of dataset {dataset!r} can't be staged under {location}: {reason}"

    def remedy(self) -> str:
        """What the disk lacks, or the way that needs no staging."""
        return self.found or "Return a Spark DataFrame, or annotate the parameter as one."
