"""Whether the log up to a version is what its commits have made: no entry gone, cut, emptied or put in another's place.

Here belongs the look at the entries that a version is made of, from the newest checkpoint that can be read on, and at
the checksum file that Delta on Spark leaves beside each. Of a single entry `entry` judges. Nothing is mended.

Delta itself reads past some damage: an entry of no bytes is one without actions to it. So the log is looked at before
Delta is asked. On this machine only; each entry once in a process, as long as its file stays what it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pipeline.delta.log.commits import File, commit_file, complete_checkpoints, list_files, version_of_commit
from pipeline.delta.log.entry import Action, actions_of, damaged_file, info_of
from pipeline.delta.log.snapshot import first_line, local_folder

# How often a log is looked at from which an entry goes at that moment, as in a clean-up.
_LOOKS = 5
_REMEMBERED = 8192
_CHECKSUM = ".crc"
# Of other operations Delta does not take the checksum from their actions: some add a file again that is there.
COUNTED_OPERATIONS = frozenset(
    {
        "ADD COLUMNS", "ADD CONSTRAINT", "CHANGE COLUMN", "CREATE TABLE", "CREATE TABLE AS SELECT", "DELETE",
        "DROP COLUMNS", "DROP CONSTRAINT", "MERGE", "OPTIMIZE", "SET TBLPROPERTIES", "STREAMING UPDATE", "TRUNCATE",
        "UNSET TBLPROPERTIES", "UPDATE", "WRITE",
    }
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EntryFacts:
    """What is kept in mind of an entry; `files_gained` are those added less those removed."""

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
    """What a checksum file says of the table at its version (Delta protocol, "Version Checksum File")."""

    commit_id: str | None
    files: int
    bytes: int
    metadata: str
    protocol: str


def require_sound(location: str, version: int) -> None:
    """Raise where the table can't be known at a version, or would be read wrongly. No Spark.

    Nothing is said of a log that is not on this machine, nor of a version that was cleaned away.

    Raises:
        DamagedTableError: with the file and what is wrong with it.
    """
    folder = local_folder(location)
    if folder is None:
        return
    for look in range(_LOOKS):
        try:
            _require_sound(str(folder), version, {file.name: file for file in list_files(f"{folder}/_delta_log")})
        except FileNotFoundError:
            if look == _LOOKS - 1:
                raise
        else:
            return


def _require_sound(location: str, version: int, files: Mapping[str, File]) -> None:
    commits = {number: file for file in files.values() if (number := version_of_commit(file.name)) is not None}
    if not commits or version > max(commits):
        return  # there is no such version
    start, emptied = _start(location, version, files)
    if version < max(start, min(commits)):
        return  # it was cleaned away
    numbers = range(start + 1, version + 1)
    missing = [number for number in numbers if number not in commits]
    if missing and emptied is not None:
        raise damaged_file(_path(location, files[emptied]), "it is empty, and entries that it has stood for are gone")
    if missing:
        if start < 0 and missing[-1] == len(missing) - 1 and max(_checkpoints(files), default=-1) > version:
            return  # cleaned away
        raise damaged_file(
            commit_file(location, missing[0]), f"there is no such entry, and the table is at {max(commits)}"
        )
    facts = {number: _facts_of(location, commits[number]) for number in numbers}
    _refuse_undescribed(location, start, facts)
    for number in numbers:
        # Of two that are the same the later one is named.
        others = {other: file for other, file in commits.items() if other < number or other > version}
        problem = _copied(location, commits[number].size, facts[number], others)
        checksums = _checksum(location, files, number), _checksum(location, files, number - 1)
        problem = problem or contradictions(facts[number], *checksums, is_first=number == 0)
        if problem is not None:
            raise damaged_file(commit_file(location, number), problem)
    lost = _lost_commit(location, files, max(commits)) if version == max(commits) else None
    if lost is not None:
        raise damaged_file(commit_file(location, lost), "it is gone, and its checksum file is there")


def _lost_commit(location: str, files: Iterable[str], newest: int) -> int | None:
    """The first commit after the newest entry of which only the checksum is left; None where none is."""
    after = sorted(number for name in files if (number := checksum_version(name)) is not None and number > newest)
    # A list of files may lack an entry that was written while it was made.
    return next((number for number in after if not Path(commit_file(location, number)).exists()), None)


def checksum_version(name: str) -> int | None:
    """The version that a checksum file is of; None for any other file."""
    number = name.removesuffix(_CHECKSUM)
    return int(number) if name.endswith(_CHECKSUM) and number.isdigit() else None


def _checkpoints(files: Mapping[str, File]) -> dict[int, tuple[str, ...]]:
    return complete_checkpoints(name for name, file in files.items() if file.size)


def _start(location: str, version: int, files: Mapping[str, File]) -> tuple[int, str | None]:
    """The newest checkpoint up to a version, -1 for none; and the newest above it that is of no bytes.

    Delta passes over one of no bytes, and over none that can't be read otherwise.
    """
    usable = _checkpoints(files)
    start = max((number for number in usable if number <= version), default=-1)
    for file in (files[name] for name in usable.get(start, ())):
        problem = _unreadable(location, file)
        if problem is not None:
            raise damaged_file(_path(location, file), problem)
    emptied = [number for number in complete_checkpoints(files) if start < number <= version and number not in usable]
    first = next((n for n in complete_checkpoints(files)[max(emptied)] if not files[n].size), None) if emptied else None
    return start, first


@lru_cache(maxsize=_REMEMBERED)
def _unreadable(location: str, file: File) -> str | None:
    """Why a file of a checkpoint can't be read; None where it can."""
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


@lru_cache(maxsize=_REMEMBERED)
def _facts_of(location: str, file: File) -> EntryFacts:
    path = _path(location, file)
    content = Path(path).read_bytes()
    return entry_facts(actions_of(path, content), content)


def entry_facts(actions: Sequence[Action], content: bytes) -> EntryFacts:
    """What is kept in mind of an entry's actions."""
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
    """Without a checkpoint the entries themselves say what the table is."""
    if start < 0 and not (any(f.has_protocol for f in facts.values()) and any(f.has_metadata for f in facts.values())):
        raise damaged_file(commit_file(location, min(facts)), "it says nothing of the table's protocol and columns")


def _copied(location: str, size: int, facts: EntryFacts, others: Mapping[int, File]) -> str | None:
    """Whether another entry of the log is the same to the byte, as no two commits are that bring or take files."""
    alike = [file for file in others.values() if facts.has_files and file.size == size]
    twin = next((file for file in alike if _digest(location, file) == facts.digest), None)
    return None if twin is None else f"it is the same as {twin.name}"


@lru_cache(maxsize=_REMEMBERED)
def _digest(location: str, file: File) -> bytes:
    return hashlib.sha256(Path(_path(location, file)).read_bytes()).digest()


def contradictions(
    facts: EntryFacts, checksum: Checksum | None, before: Checksum | None, *, is_first: bool
) -> str | None:
    """In what an entry and its checksum contradict each other; None where they don't, or there is no checksum."""
    if checksum is None:
        return None
    if facts.commit_id and checksum.commit_id and facts.commit_id != checksum.commit_id:
        return "it is that of another commit, as its checksum says"
    if before is None and not is_first:
        return None
    files, size = (0, 0) if before is None else (before.files, before.bytes)
    if facts.operation in COUNTED_OPERATIONS or facts.operation is None:
        gained, gained_bytes = checksum.files - files, checksum.bytes - size
        if (gained, gained_bytes) != (facts.files_gained, facts.bytes_gained):
            return (
                f"its commit has changed the table by {gained} files and {gained_bytes} bytes, as its checksum says, "
                f"and its actions by {facts.files_gained} files and {facts.bytes_gained} bytes"
            )
    if before is not None and checksum.metadata != before.metadata and not facts.has_metadata:
        return "its commit has changed the table's metadata, as its checksum says, and no such action is there"
    if before is not None and checksum.protocol != before.protocol and not facts.has_protocol:
        return "its commit has changed the table's protocol, as its checksum says, and no such action is there"
    return None


def _checksum(location: str, files: Mapping[str, File], number: int) -> Checksum | None:
    file = files.get(f"{number:020d}{_CHECKSUM}")
    return None if file is None else _checksum_of(location, file)


@lru_cache(maxsize=_REMEMBERED)
def _checksum_of(location: str, file: File) -> Checksum | None:
    return checksum_in(Path(_path(location, file)).read_bytes())


def _path(location: str, file: File) -> str:
    return f"{location}/_delta_log/{file.name}"


def checksum_in(content: bytes) -> Checksum | None:
    """What stands in a checksum file; None where that can't be read, and Delta makes nothing of it either."""
    try:
        said = json.loads(content)
        return Checksum(
            commit_id=said.get("txnId"), files=int(said["numFiles"]), bytes=int(said["tableSizeBytes"]),
            metadata=json.dumps(said.get("metadata"), sort_keys=True),
            protocol=json.dumps(said.get("protocol"), sort_keys=True),
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
