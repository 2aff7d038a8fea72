"""The durability of commits to a table on this machine's disk after a loss of power. No Spark.

Delta and Spark leave written data to the kernel, which writes it to disk about half a minute later. Here belongs the
rule which files of a commit must be synced before its rows may be deleted elsewhere. Writes to other storages are
durable when they return.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pipeline.delta.log.checkpoints import LOG
from pipeline.delta.log.commits import commit_file, commit_versions, read_entry
from pipeline.delta.log.entry import vector_file
from pipeline.delta.storage.file_system import local_folder
from pipeline.delta.storage.local_files import sync_folder

_PARALLEL_SYNCS = 16


def sync_commits(location: str, after: int, until: int) -> int:
    """Sync the files added by the commits after one version up to another, and these commits. Return how many files.

    The commits of all writers count: a commit is useless without those before it, and compacted files have old rows.

    Raises:
        OSError: a file or folder can't be synced.
        DamagedTableError: an entry of the log is damaged.
    """
    table = local_folder(location)
    if table is None:
        return 0
    numbers = [number for number in commit_versions(location, after) if number <= until]
    files = {path for number in numbers for action in read_entry(location, number) for path in _files(table, action)}
    folders = {folder for path in files for folder in path.parents if folder.is_relative_to(table)}
    entries = [Path(commit_file(str(table), number)) for number in numbers]
    # In parallel: the kernel joins concurrent requests into one write of its own journal.
    with ThreadPoolExecutor(_PARALLEL_SYNCS, thread_name_prefix="sync") as pool:
        count = sum(pool.map(_sync, sorted(files)))
        sum(pool.map(_sync, sorted({*folders, table, table.parent})))
        # Last, so that no entry is durable before the files that it names.
        count += sum(pool.map(_sync, entries))
    sync_folder(table / LOG)
    return count


def _sync(path: Path) -> bool:
    """Whether the file or folder still exists. Another commit may have removed it."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return True


def _files(table: Path, action: Mapping[str, Any]) -> Iterator[Path]:
    """The files that an action adds to a table (Delta protocol, "Add File", "Deletion Vectors")."""
    for kind in ("add", "cdc"):
        added = action.get(kind)
        if added:
            yield _path(table, unquote(added["path"]))
            vector = added.get("deletionVector") or {}
            name = vector_file(vector) if vector else None
            if name is not None:
                yield _path(table, unquote(name) if vector["storageType"] == "p" else name)


def _path(table: Path, path: str) -> Path:
    return table / (local_folder(path) or path)
