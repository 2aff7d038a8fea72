"""A commit was refused, was overwritten, has an unknown outcome, or was followed by a failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.errors.base import shown
from pipeline.errors.tables import TableError


@dataclass(eq=False, kw_only=True)
class CommitConflictError(TableError):
    """A concurrent commit came first and Delta refused ours; nothing of ours was committed."""

    retryable = True

    condition: str

    sentence = "The write to dataset {dataset!r} met a concurrent commit ({condition}); nothing was committed."
    next_step = "Run the same command or partition again."


@dataclass(eq=False, kw_only=True)
class CommitUnknownError(TableError):
    """It is unknown whether the write was committed; `mark` identifies its commit in the table's history."""

    may_pass = True

    mark: str
    reason: str

    sentence = "The write to dataset {dataset!r} at {location} has an unknown outcome ({reason}); its mark is {mark}."
    next_step = (
        "The mark ends with the write's token; pipeline history {dataset} --json shows the token of each commit. If a "
        "commit has it, the rows are in the table; if none has it, write them again."
    )


@dataclass(eq=False, kw_only=True)
class CommitOverwrittenError(TableError):
    """Our commit was made as `version`, and another writer has replaced its entry in the log: our rows are lost.

    A writer that does not create its entry conditionally does so. `mark` is that of our commit, `other` names the
    writer whose commit is in the log. `checksum` is the checksum file of the version, which may be that of our commit.
    """

    version: int
    mark: str
    other: str
    checksum: str

    sentence = (
        "Version {version} of dataset {dataset!r} at {location} was committed and then overwritten by {other}; the "
        "rows of the write with mark {mark} are not in the table."
    )
    next_step = (
        "Let only one process write to the table, or let each create its commits conditionally: pipeline docs scaling. "
        "Then delete {checksum}, which may be of the lost commit, end the Spark that wrote, and write the rows again."
    )


@dataclass(eq=False, kw_only=True)
class AuditError(TableError):
    """A blocking expectation of a write failed before the commit; nothing was committed.

    `failed` maps each expectation that failed, also one that does not block, to what was found. The rows of the write
    wait in the table of the dataset `rejected` under `run_id`, which is the write's token if no run wrote.
    """

    failed: Mapping[str, str]
    run_id: str
    rejected: str
    rows: int

    next_step = (
        "pipeline publish {dataset} --run {run_id} shows the rows, which wait in {rejected}. Correct the source and "
        "write again, or commit these rows after all: pipeline publish {dataset} --run {run_id} --apply"
    )

    def message(self) -> str:
        """The number of rows, and each expectation that failed."""
        rows = "1 row" if self.rows == 1 else f"{self.rows} rows"
        failed = shown(tuple(f"{name}: {found}" for name, found in self.failed.items()))
        return f"The audit of dataset {self.dataset!r} refused a write of {rows}; nothing was committed:{failed}"


@dataclass(eq=False, kw_only=True)
class NothingRejectedError(TableError):
    """No rejected write of this run waits; `waiting` are the runs of those that do."""

    run_id: str
    waiting: tuple[str, ...]

    sentence = "No rejected write of run {run_id!r} waits for dataset {dataset!r}."

    def remedy(self) -> str:
        """A run whose write waits, or where the commits are."""
        if self.waiting:
            return f"pipeline publish {self.dataset} lists those that wait, of the runs:{shown(self.waiting)}"
        return f"No write waits. pipeline history {self.dataset} --json shows what was committed, by run."


@dataclass(eq=False, kw_only=True)
class NewerWritesError(TableError):
    """Rows that a rejected write would replace have changed since it was judged at version `judged`.

    `is_consumed`: the write is that of a consumer of changes, whose later commit has the rows of the same changes.
    """

    run_id: str
    judged: int
    version: int
    is_consumed: bool = False

    sentence = (
        "The rejected write of run {run_id!r} was not published. It was judged at version {judged}; since then dataset "
        "{dataset!r} was written again, and is at version {version}."
    )

    def remedy(self) -> str:
        """To leave the newer rows, or to overwrite them."""
        publish = f"pipeline publish {self.dataset} --run {self.run_id}"
        look = f"pipeline history {self.dataset} shows the newer commits."
        if self.is_consumed:
            return f"{look} They follow from the same changes. To remove the rejected rows: {publish} --discard --apply"
        return f"{look} If this write is to win over them nevertheless: {publish} --over-newer --apply"


@dataclass(eq=False, kw_only=True)
class AfterCommitError(TableError):
    """Rows were committed as `version`, and a step after the commit failed; the commit stays.

    The same batch may be passed again: its mark identifies it, and its rows are not written twice.
    """

    may_pass = True

    version: int
    reason: str

    sentence = (
        "Dataset {dataset!r} at {location} was committed as version {version}; a step after the commit failed: {reason}"
    )
    next_step = "The rows are in the table: don't write them again. `pipeline history {dataset}` shows the commit."


@dataclass(eq=False, kw_only=True)
class NewerRowsReplacedError(TableError):
    """A rejected write was published as `version`, and has replaced rows that were committed while it began.

    `first` and `last` are the versions between which they were committed. The rows of the write wait as before.
    """

    run_id: str
    version: int
    first: int
    last: int

    sentence = (
        "The rejected write of run {run_id!r} was published as version {version} of dataset {dataset!r}. It has "
        "replaced rows that another writer committed as it began, between the versions {first} and {last}."
    )
    next_step = (
        "pipeline history {dataset} shows these commits. To bring their rows back: "
        "pipeline restore {dataset} --version {last} --apply"
    )
