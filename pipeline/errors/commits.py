"""What became of a commit that was not plainly made."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.errors.tables import TableError


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

    may_pass = True

    mark: str
    reason: str

    sentence = "The write to dataset {dataset!r} at {location} has an unknown outcome ({reason}); its mark is {mark}."
    next_step = "Look for that mark in the table's history before writing the same rows again."


@dataclass(eq=False, kw_only=True)
class AfterCommitError(TableError):
    """Rows were committed as `version`, and something that follows the commit failed; the commit stands.

    The same batch may be given again: it is known by its mark, and not written twice.
    """

    may_pass = True

    version: int
    reason: str

    sentence = (
        "Dataset {dataset!r} at {location} was committed as version {version}; what follows the commit failed: {reason}"
    )
    next_step = "The rows are there, so don't write them again: `pipeline history {dataset}` shows the commit."
