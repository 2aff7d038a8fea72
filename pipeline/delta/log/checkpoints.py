"""The files of a log, and the reading of its checkpoints. No Spark.

Here belong which files of `_delta_log` are a complete checkpoint, and the actions in one. `commits` reads commits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.delta.log.commits import version_of_commit
from pipeline.delta.log.entry import actions_of
from pipeline.delta.storage.access import kept_store_errors
from pipeline.delta.storage.file_system import file_system, list_files, read_file

_CHECKPOINT_NAME = re.compile(r"(\d{20})\.checkpoint(?:\.[\w-]+)?(?:\.\d{10}\.(\d{10}))?\.(?:parquet|json)")
CHECKSUM = ".crc"


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


def log_files(location: str) -> LogFiles:
    """The commits and checkpoints of a table's log. A checkpoint with a missing part does not count."""
    names = [file.name for file in list_files(f"{location}/_delta_log")]
    commits = sorted(number for name in names if (number := version_of_commit(name)) is not None)
    checksums = frozenset(number for name in names if (number := checksum_version(name)) is not None)
    return LogFiles(commits=tuple(commits), checkpoints=complete_checkpoints(names), checksums=checksums)


def complete_checkpoints(names: Iterable[str]) -> dict[int, tuple[str, ...]]:
    """The files of each checkpoint among these, by version. A checkpoint with a missing part does not count."""
    parts: dict[int, list[tuple[str, int]]] = {}
    for name in names:
        match = _CHECKPOINT_NAME.fullmatch(name)
        if match:
            parts.setdefault(int(match[1]), []).append((name, int(match[2] or 1)))
    return {v: tuple(sorted(n for n, _ in of)) for v, of in parts.items() if len(of) >= max(total for _, total in of)}


def checkpoint_actions(location: str, name: str, columns: Sequence[str] = ("add", "remove")) -> list[dict[str, Any]]:
    """The actions in one file of a checkpoint, and in its sidecars (Delta protocol, "V2 Spec").

    Args:
        columns: the columns to read of a Parquet file. A column that it does not have is skipped.

    Raises:
        OSError, ValueError: the file can't be read.
        DamagedTableError: the file is JSON, and is not as it was written.
    """
    system, path = file_system(location)
    folder = f"{path}/_delta_log"
    if name.endswith(".json"):
        actions = actions_of(f"{folder}/{name}", read_file(f"{location}/_delta_log/{name}"))
    else:
        actions = _rows(system, f"{folder}/{name}", (*columns, "sidecar"))
    for sidecar in [action["sidecar"]["path"] for action in actions if action.get("sidecar")]:
        actions += _rows(system, f"{folder}/_sidecars/{sidecar}", columns)
    return actions


def _rows(system: Any, path: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    with kept_store_errors(), pq.ParquetFile(path, filesystem=system, page_checksum_verification=True) as file:
        rows: list[dict[str, Any]] = file.read(columns=list(columns)).to_pylist()
    return rows


def checksum_version(name: str) -> int | None:
    """The version of a checksum file. For any other file, None."""
    number = name.removesuffix(CHECKSUM)
    return int(number) if name.endswith(CHECKSUM) and number.isdigit() else None


def first_line(error: Exception) -> str:
    """The first line of an error's message. If it has none, the name of its type."""
    return next(iter(str(error).splitlines()), type(error).__name__)
