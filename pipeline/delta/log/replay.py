"""The log replayed: which files a version of a table is made of, and what in the log can't be read. No Spark.

Here belong the listing of the log, the reading of checkpoints and commits, and the set of files that they leave (Delta
protocol, "Action Reconciliation"). What follows from a fault is `doctor`'s and `restore`'s to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from pipeline.delta.log.chain import Chain, misfit
from pipeline.delta.log.commits import commit_file, complete_checkpoints, file_system, list_files, version_of_commit
from pipeline.delta.log.entry import MANY, Action, actions_of
from pipeline.delta.log.integrity import Checksum, checksum_in, checksum_version
from pipeline.delta.log.snapshot import first_line
from pipeline.errors import DamagedTableError


@dataclass(frozen=True)
class LogFault:
    """Something in the log that is not as it was written: an entry or a checkpoint that is missing, cut off or changed.

    `hides_files` where it is not known for that which files the newest version is made of.
    """

    kind: str
    version: int
    path: str
    detail: str
    hides_files: bool = True


@dataclass(frozen=True, kw_only=True)
class LogFiles:
    """What lies in a log: versions of commits, and by version the files of each complete checkpoint.

    `checksums` are the versions of which there is a checksum file.
    """

    commits: tuple[int, ...]
    checkpoints: Mapping[int, tuple[str, ...]]
    checksums: frozenset[int] = frozenset()

    @property
    def latest(self) -> int | None:
        """The newest version; None for an empty log."""
        return max((*self.commits, *self.checkpoints), default=None)


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A version replayed: its files by decoded path below the table, with the actions that have added them.

    `changes` are the files of the change feed that entries in the log speak of, `mentioned` all files that they do;
    `faults` what could not be read, without which `files` may be wrong.
    """

    version: int
    files: Mapping[str, Action]
    changes: Mapping[str, Action]
    mentioned: frozenset[str]
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
        # An entry may add a file with other rows deleted before it removes what the file was.
        for action in actions:
            if action.get("remove"):
                self.files.pop(unquote(action["remove"]["path"]), None)
        for action in actions:
            if action.get("add"):
                self.files[unquote(action["add"]["path"])] = action["add"]


def log_files(location: str) -> LogFiles:
    """The commits and checkpoints of a table's log; a checkpoint of several parts counts when it is complete."""
    names = [file.name for file in list_files(f"{location}/_delta_log")]
    commits = sorted(number for name in names if (number := version_of_commit(name)) is not None)
    checksums = frozenset(number for name in names if (number := checksum_version(name)) is not None)
    return LogFiles(commits=tuple(commits), checkpoints=complete_checkpoints(names), checksums=checksums)


def replay(location: str, version: int | None = None) -> Replay | None:
    """A version, the newest where None, from the newest checkpoint that can be read; None where there is no log.

    Raises:
        OSError, ValueError: the storage can't be reached.
    """
    there = log_files(location)
    number = there.latest if version is None else version
    if number is None:
        return None
    log = _Log(location, there)
    log.read(number)
    if version is None:
        log.look_for_lost()
    return Replay(
        version=number, files=log.state.files, changes=log.state.changes,
        mentioned=frozenset(log.state.mentioned | set(log.state.files)), faults=tuple(log.faults),
    )  # fmt: skip


class _Log:
    """One look at a log, the oldest entry first."""

    def __init__(self, location: str, there: LogFiles) -> None:
        self._location, self._there = location, there
        self._chain = Chain()
        self.state = _State()
        self.faults: list[LogFault] = []

    def read(self, number: int) -> None:
        """All entries up to a version: those below its checkpoint for what they mention, the others for their files."""
        start = self._from_checkpoint(number)
        commits = set(self._there.commits)
        for commit in range(min((*commits, start + 1)), number + 1):
            is_below = commit <= start
            if commit not in commits:
                detail = f"there is no commit {commit}, and the table is at {number}"
                self._fault("log gap", commit, detail, hides_files=not is_below)
                continue
            actions = self._entry(commit, is_below=is_below)
            if is_below:  # files of the change feed are in no checkpoint
                self.state.mention(actions)
            else:
                self.state.apply(actions)
        for commit in self._chain.without_info():
            detail = "it does not say what its commit was (commitInfo), and other entries do; a part of it may be lost"
            self._fault("damaged commit", commit, detail, hides_files=commit > start)

    def look_for_lost(self) -> None:
        """Commits after the newest entry of which only the checksum is left."""
        newest = self._there.latest
        for lost in sorted(n for n in self._there.checksums if newest is not None and n > newest):
            self._fault("log gap", lost, "it is gone, and its checksum file is there")

    def _fault(self, kind: str, version: int, detail: str, *, hides_files: bool = True) -> None:
        self.faults.append(LogFault(kind, version, commit_file(self._location, version), detail, hides_files))

    def _from_checkpoint(self, number: int) -> int:
        """Apply the newest checkpoint at or before a version that can be read; its version, -1 where there is none."""
        for version in sorted((v for v in self._there.checkpoints if v <= number), reverse=True):
            names = self._there.checkpoints[version]
            state = _State()
            try:
                state.apply([action for name in names for action in checkpoint_actions(self._location, name)])
                problem = self._differs(version, state)
            except (OSError, ValueError, DamagedTableError) as error:  # pyarrow's own errors are ValueErrors
                problem = error.reason if isinstance(error, DamagedTableError) else first_line(error)
            if problem is None:
                self.state = state
                return version
            path = f"{self._location}/_delta_log/{names[0]}"
            self.faults.append(LogFault("damaged checkpoint", version, path, problem, hides_files=False))
        return -1

    def _differs(self, version: int, state: _State) -> str | None:
        checksum = self._checksum(version)
        if checksum is None or checksum.files == len(state.files):
            return None
        return f"it holds {len(state.files)} files, and the table has {checksum.files}, as its checksum says"

    def _entry(self, number: int, *, is_below: bool) -> list[Action]:
        """The actions of a commit; none, and a fault, where its file is damaged."""
        content = _content(self._location, f"{number:020d}.json")
        try:
            actions = actions_of(commit_file(self._location, number), content)
        except DamagedTableError as error:
            self._fault("damaged commit", number, error.reason, hides_files=not is_below)
            return []
        problem = self._chain.problem(number, actions, content, self._checksum(number))
        if problem is None and not is_below and not any(fault.hides_files for fault in self.faults):
            problem = misfit(actions, self.state.files)
        if problem is not None:
            self._fault("damaged commit", number, problem, hides_files=not is_below)
        return actions

    def _checksum(self, number: int) -> Checksum | None:
        if number not in self._there.checksums:
            return None
        return checksum_in(_content(self._location, f"{number:020d}.crc"))


def _content(location: str, name: str) -> bytes:
    system, path = file_system(location)
    with system.open_input_stream(f"{path}/_delta_log/{name}") as stream:
        content: bytes = stream.read()
    return content


def checkpoint_actions(location: str, name: str, columns: Sequence[str] = ("add", "remove")) -> list[dict[str, Any]]:
    """The actions in one file of a checkpoint, and in its sidecars (Delta protocol, "V2 Spec").

    Args:
        columns: what is read of them where they are Parquet; a column that is not there is passed over.

    Raises:
        OSError, ValueError: it can't be read.
        DamagedTableError: it is JSON, and not what was written.
    """
    system, path = file_system(location)
    folder = f"{path}/_delta_log"
    if name.endswith(".json"):
        content = _content(location, name)
        actions = actions_of(f"{folder}/{name}", content)
    else:
        actions = _rows(system, f"{folder}/{name}", (*columns, "sidecar"))
    for sidecar in [action["sidecar"]["path"] for action in actions if action.get("sidecar")]:
        actions += _rows(system, f"{folder}/_sidecars/{sidecar}", columns)
    return actions


def _rows(system: Any, path: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path, filesystem=system, page_checksum_verification=True)
    rows: list[dict[str, Any]] = file.read(columns=list(columns)).to_pylist()
    return rows


def _paths(file: Mapping[str, Any]) -> set[str]:
    """The paths that an action speaks of: the file's, and that of its deletion vector where it lies in a file."""
    vector = file.get("deletionVector")
    # Protocol, "Deletion Vectors": `u` is a name made of a UUID, which doctor does not spell out; `p` is a full path.
    return {unquote(file["path"])} | ({vector["pathOrInlineDv"]} if vector and vector["storageType"] == "p" else set())
