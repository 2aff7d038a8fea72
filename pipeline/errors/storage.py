"""The storage below the root can't be used, or a file of a table is damaged."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pipeline.errors.base import shown
from pipeline.errors.tables import TableError


@dataclass(eq=False, kw_only=True)
class StorageError(TableError):
    """The storage below the root can't be read or written.

    `found` is the remedy for a problem that this machine's disk shows.
    """

    may_pass = True

    reason: str
    found: str = ""

    sentence = "The storage at {location} of dataset {dataset!r} can't be used: {reason}"

    def remedy(self) -> str:
        """What the disk lacks. If it shows no problem, the setting of the root, or of its account."""
        if self.found or "://" not in self.location or self.location.startswith("file:"):
            return self.found or "Set PIPELINE_ROOT to a folder that exists where Spark runs, and that Spark may write."
        return (
            "Check the bucket, the account and the endpoint: the bucket's table in [tool.pipeline.storage], or the "
            "variables in the environment. `pipeline docs scaling` lists them."
        )


class AccessProblem(Enum):
    """Why an account can't use a bucket, with what helps."""

    WRONG_KEY = "the store does not know the key, or the secret is not the key's"
    EXPIRED = "the credentials have expired"
    CLOCK = "the clock of this machine differs too much from the store's"
    NO_BUCKET = "the bucket does not exist"
    NOT_ALLOWED = "the account may not do this"
    NO_ACCOUNT = "there are no credentials"
    OTHER_REGION = "the bucket is in another region"
    UNREACHABLE = "the endpoint does not answer"
    BUSY = "the store is busy or fails"
    OTHER_STORE = "Spark uses another store than this process"
    UNCONDITIONAL = "the store lets a second writer replace a file that is created with a condition"

    @property
    def remedy(self) -> str:
        """What helps."""
        return _ACCESS_REMEDIES[self]


_ACCOUNT = "the table of the bucket in [tool.pipeline.storage], or the variables or the profile in the environment"
_ACCESS_REMEDIES = {
    AccessProblem.WRONG_KEY: f"Correct the keys: {_ACCOUNT}.",
    AccessProblem.EXPIRED: f"Get new credentials, and start again with them: {_ACCOUNT}.",
    AccessProblem.CLOCK: "Set the clock of this machine, for example with a time service.",
    AccessProblem.NO_BUCKET: "Create the bucket, or correct its name in PIPELINE_ROOT.",
    AccessProblem.NOT_ALLOWED: f"Allow the account to list, read, write and delete there, or use another: {_ACCOUNT}.",
    AccessProblem.NO_ACCOUNT: f"Give the account: {_ACCOUNT}.",
    AccessProblem.OTHER_REGION: "Set `region` in the table of the bucket in [tool.pipeline.storage], or AWS_REGION.",
    AccessProblem.UNREACHABLE: "Check the network, and `endpoint` in the bucket's table in [tool.pipeline.storage].",
    AccessProblem.BUSY: "Run it again later.",
    AccessProblem.OTHER_STORE: f"Give both one account and endpoint: {_ACCOUNT}. A Connect server has its own.",
    AccessProblem.UNCONDITIONAL: (
        "Use a storage that honours If-None-Match. If only one process ever writes, set another log store: "
        "spark.delta.logStore.s3a.impl in [tool.pipeline.spark_conf]."
    ),
}


@dataclass(eq=False, kw_only=True)
class StorageAccessError(StorageError):
    """A bucket can't be used with its account: by this process, or by Spark.

    `side` is the one that failed, `Spark` or `this process`. `problem` is why. Before a write, nothing was written.
    """

    side: str
    problem: AccessProblem

    def message(self) -> str:
        """The problem, with the side that has it and the answer."""
        return (
            f"The storage at {self.location} of dataset {self.dataset!r} can't be used by {self.side}: "
            f"{self.problem.value} ({shown(self.reason)})"
        )

    def remedy(self) -> str:
        """What helps for the problem, and the page about accounts."""
        return f"{self.problem.remedy} `pipeline docs scaling` explains accounts."


@dataclass(eq=False, kw_only=True)
class DamagedTableError(StorageError):
    """A file of the table or its log is not as a commit wrote it: empty, cut off, replaced, changed or missing.

    `file` is its path. If only the engine knows which file it is, `file` is the table's location. `nothing_committed`:
    a write met the damage.
    """

    may_pass = False

    file: str
    nothing_committed: bool = False

    sentence = "The table of dataset {dataset!r} at {location} is damaged, {file}: {reason}"

    def message(self) -> str:
        """The sentence, and that a write committed nothing."""
        return super().message() + ("; nothing was committed" if self.nothing_committed else "")

    def remedy(self) -> str:
        """The command that reports all damage."""
        return (
            f"pipeline doctor {self.dataset} reports all damage and what helps; until then, write nothing to the table."
        )
