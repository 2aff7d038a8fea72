"""The replay of the log: the files of a version of a table, and the faults of the log. No Spark.

Here belong the listing of the log, the reading of checkpoints and commits, and the resulting set of files (Delta
protocol, "Action Reconciliation"). `doctor` and `restore` decide what follows from a fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from urllib.parse import unquote

from pipeline.delta.log.chain import Chain, Checksum, misfit
from pipeline.delta.log.checkpoints import (
    LOG,
    all_files,
    checkpoint_actions,
    checksum_name,
    commit_name,
    first_line,
    log_files,
)
from pipeline.delta.log.commits import commit_file
from pipeline.delta.log.entry import MANY, Action, actions_of
from pipeline.delta.log.integrity import checksum_of
from pipeline.delta.storage.access import StoreError
from pipeline.delta.storage.file_system import File, read_listed
from pipeline.errors import DamagedTableError

# The actions of which a table has one of each at any version.
_OF_TABLE = ("protocol", "metaData")


class FaultKind(Enum):
    """What is wrong with a part of a log."""

    GAP = "log gap"
    COMMIT = "damaged commit"
    CHECKPOINT = "damaged checkpoint"


@dataclass(frozen=True)
class LogFault:
    """A fault of the log: an entry or a checkpoint that is missing, cut off or changed.

    `hides_files` is true if the files of the newest version can't be known because of it. `checksums` are the checksum
    files that contradict an entry, if that is the fault: the entry or one of them is wrong.
    """

    kind: FaultKind
    version: int
    path: str
    detail: str
    hides_files: bool = True
    checksums: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The replay of a version: its files by decoded path below the table, with the actions that added them.

    `changes` are the files of the change feed that entries in the log name, and `mentioned` are all files that they
    name. `removals` are the `remove` actions of each entry. `faults` are the parts that could not be read; with a fault
    `files` may be wrong.
    """

    version: int
    files: Mapping[str, Action]
    changes: Mapping[str, Action]
    mentioned: frozenset[str]
    removals: Mapping[int, Sequence[Action]] = field(default_factory=dict)
    faults: tuple[LogFault, ...] = ()


@dataclass
class _State:
    files: dict[str, Action] = field(default_factory=dict)
    changes: dict[str, Action] = field(default_factory=dict)
    mentioned: set[str] = field(default_factory=set)

    def mention(self, actions: Iterable[Mapping[str, Any]]) -> None:
        for action in actions:
            for kind in MANY:
                if action.get(kind):
                    self.mentioned.update(_paths(action[kind]))
            if action.get("cdc"):
                self.changes[unquote(action["cdc"]["path"])] = action["cdc"]

    def apply(self, actions: Sequence[Mapping[str, Any]]) -> None:
        self.mention(actions)
        # An entry may add a file with a new deletion vector before it removes the file with the old one.
        for action in actions:
            if action.get("remove"):
                self.files.pop(unquote(action["remove"]["path"]), None)
        for action in actions:
            if action.get("add"):
                self.files[unquote(action["add"]["path"])] = action["add"]


def replay(location: str, version: int | None = None) -> Replay | None:
    """Replay a version from the newest readable checkpoint on. If there is no log, None.

    Args:
        version: if None, the newest version.

    Raises:
        OSError, ValueError: the storage can't be reached.
    """
    log = _Log(location, all_files(location))
    number = log.files.latest if version is None else version
    if number is None:
        return None
    log.read(number)
    if version is None:
        log.find_lost_commits()
    return Replay(
        version=number, files=log.state.files, changes=log.state.changes,
        mentioned=frozenset(log.state.mentioned | set(log.state.files)), removals=log.removals,
        faults=tuple(log.faults),
    )  # fmt: skip


class _Log:
    """One pass over a log, the oldest entry first."""

    def __init__(self, location: str, listed: Sequence[File]) -> None:
        self._location, self.files = location, log_files(location, listed)
        self._listed = {file.name: file for file in listed}
        self._chain = Chain()
        self.state = _State()
        self.removals: dict[int, list[Action]] = {}
        self.faults: list[LogFault] = []

    def read(self, number: int) -> None:
        """Read all entries up to a version. Of those below its checkpoint only the names of files are kept."""
        start = self._from_checkpoint(number)
        commits, described = set(self.files.commits), set[str]()
        for commit in range(min((*commits, start + 1)), number + 1):
            is_below = commit <= start
            if commit not in commits:
                detail = f"it is missing, and the table is at version {number}"
                self._fault(FaultKind.GAP, commit, detail, hides_files=not is_below)
                continue
            actions = self._entry(commit, is_below=is_below)
            self.removals[commit] = [action["remove"] for action in actions if action.get("remove")]
            described |= {kind for action in actions for kind in _OF_TABLE if action.get(kind)}
            if is_below:  # a checkpoint does not have the files of the change feed
                self.state.mention(actions)
            else:
                self.state.apply(actions)
        for commit in self._chain.without_info():
            detail = "it has no commitInfo, but other entries have one; a part of it may be lost"
            self._fault(FaultKind.COMMIT, commit, detail, hides_files=commit > start)
        is_complete = 0 in commits and all(fault.kind is FaultKind.CHECKPOINT for fault in self.faults)
        if is_complete and len(described) < len(_OF_TABLE):
            self._fault(FaultKind.COMMIT, 0, "it lacks the table's protocol or metadata", hides_files=start < 0)

    def find_lost_commits(self) -> None:
        """Add a fault for each commit after the newest entry of which only the checksum file exists."""
        newest = self.files.latest
        for lost in sorted(n for n in self.files.checksums if newest is not None and n > newest):
            self._fault(FaultKind.GAP, lost, "it is missing, but its checksum file exists")

    def _fault(
        self, kind: FaultKind, version: int, detail: str, *, hides_files: bool = True, checksums: tuple[str, ...] = ()
    ) -> None:
        path = commit_file(self._location, version)
        self.faults.append(LogFault(kind, version, path, detail, hides_files, checksums))

    def _from_checkpoint(self, number: int) -> int:
        """Apply the newest readable checkpoint at or before a version, and return its version. If there is none, -1."""
        for version in sorted((v for v in self.files.checkpoints if v <= number), reverse=True):
            names = self.files.checkpoints[version]
            state = _State()
            try:
                parts = [checkpoint_actions(self._location, name, file=self._listed[name]) for name in names]
                state.apply([action for part in parts for action in part])
                problem = self._differs(version, state)
            except StoreError:  # the store refuses, which is no damage
                raise
            except (OSError, ValueError, DamagedTableError) as error:  # pyarrow's own errors are ValueErrors
                problem = error.reason if isinstance(error, DamagedTableError) else first_line(error)
            if problem is None:
                self.state = state
                return version
            path = f"{self._location}/{LOG}/{names[0]}"
            self.faults.append(LogFault(FaultKind.CHECKPOINT, version, path, problem, hides_files=False))
        return -1

    def _differs(self, version: int, state: _State) -> str | None:
        checksum = self._checksum(version)
        if checksum is None or checksum.files == len(state.files):
            return None
        return f"it has {len(state.files)} files, but according to the checksum the table has {checksum.files}"

    def _entry(self, number: int, *, is_below: bool) -> list[Action]:
        """The actions of a commit. If its file is damaged, empty, and a fault is added."""
        content = self._content(commit_name(number))
        try:
            actions = actions_of(commit_file(self._location, number), content)
        except DamagedTableError as error:
            self._fault(FaultKind.COMMIT, number, error.reason, hides_files=not is_below)
            return []
        problem = self._chain.problem(number, actions, content, self._checksum(number))
        names = [checksum_name(n) for n in (number - 1, number)] if self._chain.contradicted else []
        checksums = tuple(f"{self._location}/{LOG}/{name}" for name in names if name in self._listed)
        if problem is None and not is_below and not any(fault.hides_files for fault in self.faults):
            problem = misfit(actions, self.state.files)
        if problem is not None:
            self._fault(FaultKind.COMMIT, number, problem, hides_files=not is_below, checksums=checksums)
        return actions

    def _checksum(self, number: int) -> Checksum | None:
        file = self._listed.get(checksum_name(number))
        return None if file is None else checksum_of(self._location, file)

    def _content(self, name: str) -> bytes:
        """A file of the log. A small one in a bucket is read once in a process, also by other readers of the log."""
        return read_listed(f"{self._location}/{LOG}", self._listed[name])


def _paths(file: Mapping[str, Any]) -> set[str]:
    """The paths that an action names: the file's, and its deletion vector's if that is in a file."""
    vector = file.get("deletionVector")
    # Delta protocol, "Deletion Vectors": `u` is a name from a UUID, which is not decoded here; `p` is a full path.
    return {unquote(file["path"])} | ({vector["pathOrInlineDv"]} if vector and vector["storageType"] == "p" else set())
