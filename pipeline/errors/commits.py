"""A commit was refused, was overwritten, has an unknown outcome, or was followed by a failure."""

from __future__ import annotations

from dataclasses import dataclass

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
