"""The log replayed: which files a version of a table is made of, and what in the log can't be read. No Spark.

Here belong the listing of the log, the reading of checkpoints and commits, and the set of files that they leave (Delta
protocol, "Action Reconciliation"). What follows from a fault is `doctor`'s and `recover`'s to say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from pipeline.delta.log import commit_file, file_system, list_files

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.[\w-]+)?(?:\.\d{10}\.(\d{10}))?\.(?:parquet|json)")


@dataclass(frozen=True)
class LogFault:
    """Something in the log that can't be used: a commit that is missing or cut off, a checkpoint that can't be read."""

    kind: str
    version: int
    path: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class LogFiles:
    """What lies in a log: versions of commits, and by version the files of each complete checkpoint."""

    commits: tuple[int, ...]
    checkpoints: Mapping[int, tuple[str, ...]]

    @property
    def latest(self) -> int | None:
        """The newest version; None for an empty log."""
        return max((*self.commits, *self.checkpoints), default=None)


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A version replayed: its files by decoded path below the table, with sizes.

    `mentioned` are all files that any commit still in the log speaks of, those of the change feed included; `faults`
    what could not be read, without which `files` may be wrong.
    """

    version: int
    files: Mapping[str, int]
    mentioned: frozenset[str]
    faults: tuple[LogFault, ...] = ()


@dataclass
class _State:
    files: dict[str, int] = field(default_factory=dict)
    mentioned: set[str] = field(default_factory=set)

    def apply(self, actions: Iterable[Mapping[str, Any]]) -> None:
        for action in actions:
            added, removed, changes = action.get("add"), action.get("remove"), action.get("cdc")
            for file in (added, removed, changes):
                if file:
                    self.mentioned.update(_paths(file))
            if removed:
                self.files.pop(_decoded(removed["path"]), None)
            if added:
                self.files[_decoded(added["path"])] = added.get("size") or 0


def log_files(location: str) -> LogFiles:
    """The commits and checkpoints of a table's log; a checkpoint of several parts counts when it is complete."""
    names = [file.name for file in list_files(f"{location}/_delta_log")]
    parts: dict[int, list[tuple[str, int]]] = {}
    for name in names:
        found = _CHECKPOINT.fullmatch(name)
        if found:
            parts.setdefault(int(found[1]), []).append((name, int(found[2] or 1)))
    complete = {
        v: tuple(sorted(n for n, _ in of)) for v, of in parts.items() if len(of) >= max(total for _, total in of)
    }
    commits = (_COMMIT.fullmatch(name) for name in names)
    return LogFiles(commits=tuple(sorted(int(found[1]) for found in commits if found)), checkpoints=complete)


def replay(location: str, version: int | None = None) -> Replay | None:
    """A version, the newest where None, from the newest checkpoint that can be read; None where there is no log.

    Raises:
        OSError, ValueError: the storage can't be reached.
    """
    there = log_files(location)
    number = there.latest if version is None else version
    if number is None:
        return None
    state, faults = _State(), list[LogFault]()
    start = _from_checkpoint(location, there, number, state, faults)
    before = [commit for commit in there.commits if commit <= start]
    for commit in before:  # only for what they mention: files of the change feed are in no checkpoint
        state.mentioned.update(_mentioned(_commit(location, commit, [])))
    commits = set(there.commits)
    for commit in range(start + 1, number + 1):
        if commit not in commits:
            path = commit_file(location, commit)
            faults.append(
                LogFault("log gap", commit, path, f"there is no commit {commit}, and the table is at {number}")
            )
        else:
            state.apply(_commit(location, commit, faults))
    return Replay(
        version=number, files=state.files, mentioned=frozenset(state.mentioned | set(state.files)), faults=tuple(faults)
    )


def _from_checkpoint(location: str, there: LogFiles, number: int, state: _State, faults: list[LogFault]) -> int:
    """Apply the newest checkpoint at or before a version that can be read; its version, or -1 where there is none."""
    for version in sorted((v for v in there.checkpoints if v <= number), reverse=True):
        try:
            actions = [a for name in there.checkpoints[version] for a in checkpoint_actions(location, name)]
        except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
            path = f"{location}/_delta_log/{there.checkpoints[version][0]}"
            faults.append(LogFault("damaged checkpoint", version, path, _first_line(error)))
        else:
            state.apply(actions)
            return version
    return -1


def checkpoint_actions(location: str, name: str) -> list[dict[str, Any]]:
    """The files in one file of a checkpoint, and in its sidecars (Delta protocol, "V2 Spec").

    Raises:
        OSError, ValueError: it can't be read.
    """
    system, path = file_system(location)
    folder = f"{path}/_delta_log"
    if name.endswith(".json"):
        with system.open_input_stream(f"{folder}/{name}") as stream:
            lines = stream.read().decode("utf-8").split("\n")
        actions = [json.loads(line) for line in lines if line.strip()]
    else:
        actions = _rows(system, f"{folder}/{name}", ("add", "remove", "sidecar"))
    for sidecar in [action["sidecar"]["path"] for action in actions if action.get("sidecar")]:
        actions += _rows(system, f"{folder}/_sidecars/{sidecar}", ("add", "remove"))
    return actions


def _rows(system: Any, path: str, wanted: tuple[str, ...]) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path, filesystem=system)
    rows: list[dict[str, Any]] = file.read(columns=[n for n in wanted if n in file.schema_arrow.names]).to_pylist()
    return rows


def _commit(location: str, number: int, faults: list[LogFault]) -> list[dict[str, Any]]:
    """The actions of a commit; none, and a fault, where its file is empty or cut off."""
    system, path = file_system(location)
    with system.open_input_stream(commit_file(path, number)) as stream:
        text = stream.read().decode("utf-8", "replace")
    try:
        actions: list[dict[str, Any]] = [json.loads(line) for line in text.split("\n") if line.strip()]
    except ValueError as error:
        actions, problem = [], f"it is cut off or no JSON ({_first_line(error)})"
    else:
        problem = "" if actions else "it is empty"
    if problem:
        faults.append(LogFault("damaged commit", number, commit_file(location, number), problem))
    return actions


def _mentioned(actions: Iterable[Mapping[str, Any]]) -> set[str]:
    files = (action.get(kind) for action in actions for kind in ("add", "remove", "cdc"))
    return {path for file in files if file for path in _paths(file)}


def _paths(file: Mapping[str, Any]) -> set[str]:
    """The paths that an action speaks of: the file's, and that of its deletion vector where it lies in a file."""
    vector = file.get("deletionVector")
    # Protocol, "Deletion Vectors": `u` is a name made of a UUID, which doctor does not spell out; `p` is a full path.
    return {_decoded(file["path"])} | ({vector["pathOrInlineDv"]} if vector and vector["storageType"] == "p" else set())


def _decoded(path: str) -> str:
    return unquote(path)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
