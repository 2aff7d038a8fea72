"""The part of a log up to a version: its files in the order in which they are copied, and the files that they name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.delta.log.checkpoints import (
    LOG,
    all_files,
    checkpoint_actions,
    checksum_name,
    commit_name,
    log_files,
    usable_checkpoints,
)
from pipeline.delta.log.commits import read_entry
from pipeline.delta.log.entry import vector_file
from pipeline.delta.storage.file_system import list_files

_SIDECARS = "_sidecars"


@dataclass
class NamedFiles:
    """The files that a log adds, as its entries write their paths, and the files of its deletion vectors."""

    files: dict[str, None] = field(default_factory=dict)
    vectors: set[str] = field(default_factory=set)

    def add(self, actions: Iterable[Mapping[str, Any]]) -> None:
        """Add the files of these actions."""
        for action in actions:
            named = action.get("add") or action.get("cdc")
            if not named:
                continue
            self.files[named["path"]] = None
            vector = named.get("deletionVector")
            file = vector_file(vector) if vector else None
            if file is not None:
                self.vectors.add(file)


def named_files(location: str, version: int) -> NamedFiles:
    """The files that the entries and checkpoints up to a version name.

    Raises:
        OSError, ValueError, DamagedTableError: an entry or a checkpoint can't be read.
    """
    listed = all_files(location)
    named = NamedFiles()
    for number, names in sorted(usable_checkpoints(listed).items()):
        for name in names if number <= version else ():
            named.add(checkpoint_actions(location, name, ("add",)))
    for number in log_files(location, listed).commits:
        if number <= version:
            named.add(read_entry(location, number))
    return named


def log_file_names(location: str, version: int) -> list[str]:
    """The files of a log up to a version, in an order in which an unfinished copy is no table or that version.

    Entries come from the newest to the oldest. After them come the checkpoints, with which a log can be read that no
    longer has its oldest entries.
    """
    listed = all_files(location)
    commits = [number for number in log_files(location, listed).commits if number <= version]
    present = {file.name for file in listed}
    checksums = [name for number in commits if (name := checksum_name(number)) in present]
    checkpoints = {number: names for number, names in usable_checkpoints(listed).items() if number <= version}
    sidecars = [f"{_SIDECARS}/{file.name}" for file in list_files(f"{location}/{LOG}/{_SIDECARS}")]
    entries = [commit_name(number) for number in sorted(commits, reverse=True)]
    newest_first = [name for number in sorted(checkpoints, reverse=True) for name in checkpoints[number]]
    return [*checksums, *(sidecars if checkpoints else []), *entries, *newest_first]
