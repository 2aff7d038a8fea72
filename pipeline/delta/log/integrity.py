"""Whether the log up to a version is as its commits wrote it: no entry is missing, cut, empty or replaced by another.

Here belongs the check of the entries of a version, from the newest readable checkpoint on, and of the checksum file
that Delta on Spark writes next to each. `entry` checks a single entry. Nothing is repaired.

Delta itself ignores some damage: it reads an empty file as an entry without actions. So the log is checked before Delta
reads it. Only logs on this machine are checked, and each entry once in a process, as long as its file does not change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

from pipeline.delta.log.checkpoints import CHECKSUM, checksum_version, complete_checkpoints, first_line
from pipeline.delta.log.commits import commit_file, version_of_commit
from pipeline.delta.log.entry import Action, actions_of, damaged_file, info_of
from pipeline.delta.storage.file_system import File, list_files, local_folder

# How often a log is checked if an entry disappears meanwhile, as in a clean-up.
_CHECK_ATTEMPTS = 5
_CACHED_FILES = 8192
_SIDECARS = "_sidecars"
# The operations whose checksum follows from their actions. Some other operations add a file again that the table has.
COUNTED_OPERATIONS = frozenset(
    {
        "ADD COLUMNS", "ADD CONSTRAINT", "CHANGE COLUMN", "CREATE TABLE", "CREATE TABLE AS SELECT", "DELETE",
        "DROP COLUMNS", "DROP CONSTRAINT", "MERGE", "OPTIMIZE", "SET TBLPROPERTIES", "STREAMING UPDATE", "TRUNCATE",
        "UNSET TBLPROPERTIES", "UPDATE", "WRITE",
    }
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EntryFacts:
    """The facts of an entry that checks compare. `files_gained` is the number of added files minus removed ones."""

    digest: bytes
    operation: str | None
    commit_id: str | None
    in_commit_milliseconds: int | None
    files_gained: int
    bytes_gained: int
    has_files: bool
    has_metadata: bool
    has_protocol: bool


@dataclass(frozen=True, kw_only=True)
class Checksum:
    """The state of the table at a version from its checksum file (Delta protocol, "Version Checksum File")."""

    commit_id: str | None
    files: int
    bytes: int
    metadata: str
    protocol: str


def require_sound(location: str, version: int) -> None:
    """Raise if the table at a version can't be read, or would be read wrongly. No Spark.

    A log that is not on this machine, and a version that was cleaned up, are not checked.

    Raises:
        DamagedTableError: with the file and its damage.
    """
    folder = local_folder(location)
    if folder is None:
        return
    for attempt in range(_CHECK_ATTEMPTS):
        try:
            _require_sound(str(folder), version, {file.name: file for file in list_files(f"{folder}/_delta_log")})
        except FileNotFoundError:
            if attempt == _CHECK_ATTEMPTS - 1:
                raise
        else:
            return


def _require_sound(location: str, version: int, files: Mapping[str, File]) -> None:
    commits = {number: file for file in files.values() if (number := version_of_commit(file.name)) is not None}
    if not commits or version > max(commits):
        return  # there is no such version
    start, emptied = _start(location, version, files)
    if version < max(start, min(commits)):
        return  # the version was cleaned up
    numbers = range(start + 1, version + 1)
    missing = [number for number in numbers if number not in commits]
    if missing and emptied is not None:
        raise damaged_file(_path(location, files[emptied]), "it is empty, and entries that it replaces are missing")
    if missing:
        if start < 0 and missing[-1] == len(missing) - 1 and max(_checkpoints(files), default=-1) > version:
            return  # the version was cleaned up
        raise damaged_file(
            commit_file(location, missing[0]), f"it is missing, and the newest entry is version {max(commits)}"
        )
    facts = {number: _facts_of(location, commits[number]) for number in numbers}
    _refuse_undescribed(location, start, facts)
    for number in numbers:
        # Of two equal entries the error names the later one.
        others = {other: file for other, file in commits.items() if other < number or other > version}
        _refuse_changed(location, files, number, others)
    lost = _lost_commit(location, files, max(commits)) if version == max(commits) else None
    if lost is not None:
        raise damaged_file(commit_file(location, lost), "it is missing, but its checksum file exists")


def require_sound_entries(location: str, numbers: Iterable[int]) -> None:
    """Raise where an entry among these is not what its commit has written; no table is known by them alone. No Spark.

    Nothing is said of an entry that is gone, nor of a log that is not on this machine.

    Raises:
        DamagedTableError: with the file and what is wrong with it.
    """
    folder = local_folder(location)
    if folder is None:
        return
    files = {file.name: file for file in list_files(f"{folder}/_delta_log")}
    commits = {number: file for file in files.values() if (number := version_of_commit(file.name)) is not None}
    by_size: dict[int, list[int]] = {}
    for number in sorted(commits):
        by_size.setdefault(commits[number].size, []).append(number)
    for number in sorted(commits.keys() & set(numbers)):
        alike = by_size[commits[number].size]
        _refuse_changed(str(folder), files, number, {other: commits[other] for other in alike if other < number})


def _refuse_changed(location: str, files: Mapping[str, File], number: int, others: Mapping[int, File]) -> None:
    """Refuse an entry that is damaged, the same as one of the others, or contradicted by its checksum."""
    file = files[Path(commit_file(location, number)).name]
    facts = _facts_of(location, file)
    problem = _copied(location, file.size, facts, others)
    checksums = _checksum(location, files, number), _checksum(location, files, number - 1)
    problem = problem or contradictions(facts, *checksums, is_first=number == 0)
    if problem is not None:
        raise damaged_file(commit_file(location, number), problem)


def _lost_commit(location: str, files: Iterable[str], newest: int) -> int | None:
    """The first commit after the newest entry of which only the checksum file exists. If there is none, None."""
    after = sorted(number for name in files if (number := checksum_version(name)) is not None and number > newest)
    # The listing may lack an entry that was written while the folder was listed.
    return next((number for number in after if not Path(commit_file(location, number)).exists()), None)


def _checkpoints(files: Mapping[str, File]) -> dict[int, tuple[str, ...]]:
    return complete_checkpoints(name for name, file in files.items() if file.size)


def _start(location: str, version: int, files: Mapping[str, File]) -> tuple[int, str | None]:
    """The newest usable checkpoint up to a version, or -1, and the empty file of the newest one above it, or None.

    Delta skips a checkpoint with an empty file, but no checkpoint that can't be read for another reason.
    """
    usable = _checkpoints(files)
    start = max((number for number in usable if number <= version), default=-1)
    for file in (files[name] for name in usable.get(start, ())):
        problem = _unreadable(location, file)
        if problem is not None:
            raise damaged_file(_path(location, file), problem)
        _refuse_sidecars(location, file)
    emptied = [number for number in complete_checkpoints(files) if start < number <= version and number not in usable]
    first = next((n for n in complete_checkpoints(files)[max(emptied)] if not files[n].size), None) if emptied else None
    return start, first


@lru_cache(maxsize=_CACHED_FILES)
def _unreadable(location: str, file: File) -> str | None:
    """Why a file of a checkpoint can't be read. If it can, None."""
    import pyarrow.parquet

    path = _path(location, file)
    try:
        if path.endswith(".json"):
            actions_of(path, Path(path).read_bytes().rstrip(b"\n") + b"\n")
        else:
            pyarrow.parquet.ParquetFile(path).close()
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        return f"it can't be read ({first_line(error)})"
    return None


def _refuse_sidecars(location: str, file: File) -> None:
    """Refuse a checkpoint with a sidecar file that is missing or can't be read (Delta protocol, "V2 Spec")."""
    present = {sidecar.name: sidecar for sidecar in list_files(f"{location}/_delta_log/{_SIDECARS}")}
    for name in _sidecars(location, file):
        sidecar, path = present.get(name), f"{_SIDECARS}/{name}"
        problem = "it is missing" if sidecar is None else _unreadable(location, replace(sidecar, name=path))
        if problem is not None:
            raise damaged_file(f"{location}/_delta_log/{path}", f"{problem}, and checkpoint {file.name} needs it")


@lru_cache(maxsize=_CACHED_FILES)
def _sidecars(location: str, file: File) -> tuple[str, ...]:
    """The names of the sidecar files of a checkpoint. A classic checkpoint has none."""
    import pyarrow.parquet

    path = _path(location, file)
    if path.endswith(".json"):
        actions = actions_of(path, Path(path).read_bytes().rstrip(b"\n") + b"\n")
    else:
        parquet = pyarrow.parquet.ParquetFile(path)
        actions = parquet.read(columns=["sidecar"]).to_pylist() if "sidecar" in parquet.schema_arrow.names else []
    return tuple(unquote(a["sidecar"]["path"]).rpartition("/")[2] for a in actions if a.get("sidecar"))


@lru_cache(maxsize=_CACHED_FILES)
def _facts_of(location: str, file: File) -> EntryFacts:
    path = _path(location, file)
    content = Path(path).read_bytes()
    return entry_facts(actions_of(path, content), content)


def entry_facts(actions: Sequence[Action], content: bytes) -> EntryFacts:
    """The facts of an entry, from its actions and content."""
    info = info_of(actions)
    added = [action["add"] for action in actions if action.get("add")]
    removed = [action["remove"] for action in actions if action.get("remove")]
    return EntryFacts(
        digest=hashlib.sha256(content).digest(),
        operation=info.get("operation"),
        commit_id=info.get("txnId"),
        in_commit_milliseconds=info.get("inCommitTimestamp"),
        files_gained=len(added) - len(removed),
        bytes_gained=sum(file["size"] for file in added) - sum(file.get("size") or 0 for file in removed),
        has_files=bool(added or removed or any(action.get("cdc") or action.get("txn") for action in actions)),
        has_metadata=any(action.get("metaData") for action in actions),
        has_protocol=any(action.get("protocol") for action in actions),
    )


def _refuse_undescribed(location: str, start: int, facts: Mapping[int, EntryFacts]) -> None:
    """Refuse entries without a checkpoint that lack a protocol or metadata action."""
    if start < 0 and not (any(f.has_protocol for f in facts.values()) and any(f.has_metadata for f in facts.values())):
        raise damaged_file(commit_file(location, min(facts)), "it lacks the table's protocol or metadata")


def _copied(location: str, size: int, facts: EntryFacts, others: Mapping[int, File]) -> str | None:
    """The problem if another entry has the same bytes, which two commits that add or remove files never have."""
    alike = [file for file in others.values() if facts.has_files and file.size == size]
    twin = next((file for file in alike if _digest(location, file) == facts.digest), None)
    return None if twin is None else f"it is the same as {twin.name}"


@lru_cache(maxsize=_CACHED_FILES)
def _digest(location: str, file: File) -> bytes:
    return hashlib.sha256(Path(_path(location, file)).read_bytes()).digest()


def contradictions(
    facts: EntryFacts, checksum: Checksum | None, before: Checksum | None, *, is_first: bool
) -> str | None:
    """How an entry contradicts its checksum. If it does not, or there is no checksum, None."""
    if checksum is None:
        return None
    if facts.commit_id and checksum.commit_id and facts.commit_id != checksum.commit_id:
        return "it is that of another commit, according to its checksum"
    if before is None and not is_first:
        return None
    files, size = (0, 0) if before is None else (before.files, before.bytes)
    if facts.operation in COUNTED_OPERATIONS or facts.operation is None:
        gained, gained_bytes = checksum.files - files, checksum.bytes - size
        if (gained, gained_bytes) != (facts.files_gained, facts.bytes_gained):
            return (
                f"its commit changed the table by {gained} files and {gained_bytes} bytes, according to its checksum, "
                f"but its actions by {facts.files_gained} files and {facts.bytes_gained} bytes"
            )
    if before is not None and checksum.metadata != before.metadata and not facts.has_metadata:
        return "its commit changed the table's metadata, according to its checksum, but it has no such action"
    if before is not None and checksum.protocol != before.protocol and not facts.has_protocol:
        return "its commit changed the table's protocol, according to its checksum, but it has no such action"
    return None


def _checksum(location: str, files: Mapping[str, File], number: int) -> Checksum | None:
    file = files.get(f"{number:020d}{CHECKSUM}")
    return None if file is None else _checksum_of(location, file)


@lru_cache(maxsize=_CACHED_FILES)
def _checksum_of(location: str, file: File) -> Checksum | None:
    return checksum_in(Path(_path(location, file)).read_bytes())


def _path(location: str, file: File) -> str:
    return f"{location}/_delta_log/{file.name}"


def checksum_in(content: bytes) -> Checksum | None:
    """The content of a checksum file. If it can't be parsed, None; Delta ignores it then too."""
    try:
        state = json.loads(content)
        return Checksum(
            commit_id=state.get("txnId"), files=int(state["numFiles"]), bytes=int(state["tableSizeBytes"]),
            metadata=json.dumps(state.get("metadata"), sort_keys=True),
            protocol=json.dumps(state.get("protocol"), sort_keys=True),
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
