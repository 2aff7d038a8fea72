"""The files of a log, and the reading of its checkpoints. No Spark.

Here belong the listing of `_delta_log`, which of its files are a complete checkpoint, and the actions in one. `commits`
reads commits.
"""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.delta.log.entry import actions_of
from pipeline.delta.storage.access import kept_store_errors
from pipeline.delta.storage.file_system import (
    KEPT_BYTES,
    File,
    file_system,
    files_from,
    local_folder,
    named_files,
    read_file,
    read_listed,
)

LOG = "_delta_log"
_COMMIT_NAME = re.compile(r"(\d{20})\.json")
_CHECKPOINT_NAME = re.compile(r"(\d{20})\.checkpoint(?:\.[\w-]+)?(?:\.\d{10}\.(\d{10}))?\.(?:parquet|json)")
_CLASSIC_DOTS = 2  # as in `<version>.checkpoint.parquet`
_COMPACTED_NAME = re.compile(r"(\d{20})\.(\d{20})\.compacted\.json")
CHECKSUM = ".crc"
SIDECARS = "_sidecars"
# The names of a first page of a listing. A log with more is listed from the checkpoint that `POINTER` names.
_FIRST_PAGE, POINTER = 999, "_last_checkpoint"
# Of so many logs a client remembers the newest checkpoint.
_REMEMBERED_LOGS = 1_000


@dataclass(frozen=True, kw_only=True)
class LogFiles:
    """The files of a log: the versions of its commits, and the files of each complete checkpoint by version.

    `checksums` are the versions that have a checksum file.
    """

    commits: tuple[int, ...]
    checkpoints: Mapping[int, tuple[str, ...]]
    checksums: frozenset[int] = frozenset()

    @property
    def latest(self) -> int | None:
        """The newest version. If the log is empty, None."""
        return max((*self.commits, *self.checkpoints), default=None)


def log_files(location: str, listed: Iterable[File] | None = None) -> LogFiles:
    """The commits and checkpoints of a table's log. A checkpoint with a missing part does not count.

    Args:
        listed: files of the log. If None, all are listed.
    """
    names = [file.name for file in (all_files(location) if listed is None else listed)]
    commits = sorted(number for name in names if (number := version_of_commit(name)) is not None)
    checksums = frozenset(number for name in names if (number := checksum_version(name)) is not None)
    return LogFiles(commits=tuple(commits), checkpoints=complete_checkpoints(names), checksums=checksums)


# --- listings ---------------------------------------------------------------------------------------------------------


def version_of_commit(name: str) -> int | None:
    """The version of a commit file. If a file of the log is no commit, None."""
    match = _COMMIT_NAME.fullmatch(name)
    return int(match[1]) if match else None


def version_in_name(name: str) -> int | None:
    """The version of a commit, of its checksum file, or of a file of a checkpoint. For any other file, None.

    Hadoop keeps a hidden checksum of each file on a disk. It has the version of that file.
    """
    is_hidden = name.startswith(".") and name.endswith(CHECKSUM)
    visible = name[1:].removesuffix(CHECKSUM) if is_hidden else name
    match = _COMMIT_NAME.fullmatch(visible) or _CHECKPOINT_NAME.fullmatch(visible)
    return int(match[1]) if match else checksum_version(visible)


def first_compacted(name: str) -> int | None:
    """The first version of a log compaction file (Delta protocol, "Log Compaction Files"). For any other file, None."""
    match = _COMPACTED_NAME.fullmatch(name)
    return int(match[1]) if match else None


def commit_name(number: int) -> str:
    """The name of a commit's file in the log."""
    return f"{number:020d}.json"


def checksum_name(number: int) -> str:
    """The name of a commit's checksum file in the log."""
    return f"{number:020d}{CHECKSUM}"


def all_files(location: str, start: int = 0) -> list[File]:
    """The files of a log from a version on. If there is no log, empty."""
    return files_from(f"{location}/{LOG}", f"{start:020d}" if start else "") or []


def newest_files(location: str) -> list[File]:
    """The files of a log from one of its complete checkpoints on, or all.

    On this machine that is the newest one, and a first page of files at least. In a bucket the listing begins at the
    newest checkpoint that the client has seen. If it has seen none and the log is long, the listing begins at the
    checkpoint that `_last_checkpoint` names. If the log no longer has the checkpoint, all files are listed.
    """
    folder = local_folder(f"{location}/{LOG}")
    if folder is not None:
        return _newest_local_files(folder, sorted(os.listdir(folder)) if folder.is_dir() else [])
    seen: dict[str, int] = file_system(location)[0].handler.checkpoints
    files = None if location not in seen else _files_with_checkpoint(location, seen[location])
    if files is None:
        files = files_from(f"{location}/{LOG}", at_most=_FIRST_PAGE)
    if files is None:
        last = last_checkpoint(location)
        files = None if last is None else _files_with_checkpoint(location, last)
    if files is None:
        files = all_files(location)
    seen.pop(location, None)
    newest = max(usable_checkpoints(files), default=None)
    if newest is not None:
        seen[location] = newest
        for oldest in list(seen)[:-_REMEMBERED_LOGS]:
            seen.pop(oldest, None)
    return files


def _newest_local_files(folder: Path, names: Sequence[str]) -> list[File]:
    newest = max(complete_checkpoints(names), default=None)
    if newest is not None and len(names) > _FIRST_PAGE:
        # The files before the checkpoint let a copy of an earlier entry be found.
        start = min(f"{newest:020d}", names[-_FIRST_PAGE])
        files = named_files(folder, names[bisect_left(names, start) :])
        if newest in usable_checkpoints(files):
            return files
    return named_files(folder, names)


def files_for(location: str, version: int) -> list[File]:
    """The files of a log that are needed to read a version, and those after them; possibly more."""
    files = newest_files(location)
    is_enough = any(number <= version for number in usable_checkpoints(files)) or any(
        version_of_commit(file.name) == 0 for file in files
    )
    return files if is_enough else all_files(location)


def newest_version(location: str) -> int | None:
    """The newest version in the log. If there is no table, None."""
    return log_files(location, newest_files(location)).latest


def _files_with_checkpoint(location: str, start: int) -> list[File] | None:
    """The files of a log from a checkpoint on. If the log does not have that checkpoint, None."""
    files = all_files(location, start)
    return files if start in usable_checkpoints(files) else None


def last_checkpoint(location: str) -> int | None:
    """The version that `_last_checkpoint` names. If there is none, or it can't be parsed, None."""
    try:
        version = json.loads(read_file(f"{location}/{LOG}/{POINTER}"))["version"]
    except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return version if isinstance(version, int) and version >= 0 else None


# --- checkpoints ------------------------------------------------------------------------------------------------------


def usable_checkpoints(files: Iterable[File]) -> dict[int, tuple[str, ...]]:
    """As `complete_checkpoints`. A checkpoint with an empty file does not count: Delta skips it too."""
    return complete_checkpoints(file.name for file in files if file.size)


def complete_checkpoints(names: Iterable[str]) -> dict[int, tuple[str, ...]]:
    """The files of each checkpoint among these, by version. A checkpoint with a missing part does not count.

    A version may have several checkpoints, each complete by itself (Delta protocol, "Checkpoints"). Then it is the one
    that Delta on Spark reads (`CheckpointInstance`): one with sidecars, or else the one with the most parts.
    """
    checkpoints: dict[int, tuple[str, ...]] = {}
    for (version, _, parts, _), of in sorted(_by_checkpoint(names).items()):
        if len(of) >= parts:
            checkpoints[version] = tuple(sorted(of))
    return checkpoints


def incomplete_parts(names: Iterable[str]) -> dict[int, tuple[str, ...]]:
    """The files among these, by version, that are parts of a checkpoint whose other parts are missing."""
    incomplete: dict[int, tuple[str, ...]] = {}
    for (version, _, parts, _), of in sorted(_by_checkpoint(names).items()):
        if len(of) < parts:
            incomplete[version] = (*incomplete.get(version, ()), *sorted(of))
    return incomplete


def is_checkpoint_file(name: str) -> bool:
    """Whether a file of the log is a checkpoint, or a part of one."""
    return _CHECKPOINT_NAME.fullmatch(name) is not None


def _by_checkpoint(names: Iterable[str]) -> dict[tuple[int, bool, int, str], list[str]]:
    """The files of each checkpoint. Of two checkpoints of one version the greater key is of that which Delta reads.

    A key has the version, whether the file has an own name ("V2 Spec"), the number of parts, and that name.
    """
    files: dict[tuple[int, bool, int, str], list[str]] = {}
    for name in names:
        match = _CHECKPOINT_NAME.fullmatch(name) if ".checkpoint" in name else None
        if match:
            own = name if match[2] is None and name.count(".") > _CLASSIC_DOTS else ""
            files.setdefault((int(match[1]), bool(own), int(match[2] or 0), own), []).append(name)
    return files


def checkpoint_actions(
    location: str, name: str, columns: Sequence[str] = ("add", "remove"), file: File | None = None
) -> list[dict[str, Any]]:
    """The actions in one file of a checkpoint, and in its sidecars (Delta protocol, "V2 Spec").

    Args:
        columns: the columns to read of a Parquet file. A column that it does not have is skipped.
        file: the file as it was listed. If None, it is read in any case.

    Raises:
        OSError, ValueError: the file can't be read.
        DamagedTableError: the file is JSON, and is not as it was written.
    """
    folder = f"{location}/{LOG}"
    if name.endswith(".json"):
        content = read_file(f"{folder}/{name}") if file is None else read_listed(folder, file)
        actions = actions_of(f"{folder}/{name}", content)
    else:
        actions = _rows(folder, name, (*columns, "sidecar"), file)
    for sidecar in [action["sidecar"]["path"] for action in actions if action.get("sidecar")]:
        actions += _rows(folder, f"{SIDECARS}/{sidecar}", columns)
    return actions


def parquet_file(folder: str, name: str, file: File | None = None) -> Any:
    """A Parquet file of a log, opened. In a bucket a file that was listed is read as `read_listed` does.

    Raises:
        OSError, ValueError: the file can't be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if file is not None and file.size <= KEPT_BYTES and local_folder(folder) is None:
        return pq.ParquetFile(pa.BufferReader(read_listed(folder, file)), page_checksum_verification=True)
    system, path = file_system(f"{folder}/{name}")
    return pq.ParquetFile(path, filesystem=system, page_checksum_verification=True)


def _rows(folder: str, name: str, columns: Sequence[str], file: File | None = None) -> list[dict[str, Any]]:
    with kept_store_errors():
        rows: list[dict[str, Any]] = parquet_file(folder, name, file).read(columns=list(columns)).to_pylist()
    return rows


def checksum_version(name: str) -> int | None:
    """The version of a checksum file. For any other file, None."""
    number = name.removesuffix(CHECKSUM)
    return int(number) if name.endswith(CHECKSUM) and number.isdigit() else None


def first_line(error: Exception) -> str:
    """The first line of an error's message. If it has none, the name of its type."""
    return next(iter(str(error).splitlines()), type(error).__name__)
