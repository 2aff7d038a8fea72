"""What ails a table: read only, from its files, without Spark.

Here belong the findings and what helps against each. How the log is read is `replay`'s. Works where neither Dagster nor
a JVM is at hand.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.delta.inspect.data_files import problem_of, problem_of_vector, vector_file
from pipeline.delta.log.commits import commit_file, commit_versions, file_system, list_folder
from pipeline.delta.log.replay import LogFault, Replay, replay
from pipeline.delta.log.snapshot import local_folder, table_facts
from pipeline.delta.read.changes import SourceTable
from pipeline.delta.read.cursors import effective_cursors
from pipeline.delta.spark.doors import door
from pipeline.delta.table.open_table import state_from_log
from pipeline.errors import DamagedTableError, StorageError, TableNotFoundError

CHANGE_DATA = "_change_data"
_DELETION_VECTOR = "deletion_vector_"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is not as it should be; `path` is a file, `remedy` what helps.

    `serious` where rows can't be read or a write may go wrong; the rest costs space only.
    """

    kind: str
    path: str
    detail: str
    remedy: str
    serious: bool


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """A table examined at one version; no findings where all is well. `bytes` are those of its live files."""

    dataset: str
    location: str
    version: int
    files: int
    bytes: int
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing serious was found."""
        return not any(finding.serious for finding in self.findings)


@dataclass(frozen=True)
class _OnDisk:
    size: int
    changed: dt.datetime | None


@door
def examine(name: str, location: str, *, consumers: Sequence[SourceTable] = (), deep: bool = False) -> Diagnosis:
    """Look for a log that is not as it was written, for files that are missing or damaged, and for stray files.

    Args:
        name: of the dataset, for what is told.
        consumers: those that read the changes of this dataset, whose next runs need entries of the log.
        deep: read every data file, so that damage shows that leaves size and footer as they are.

    Raises:
        TableNotFoundError: it was never written.
        StorageError: the storage can't be read.
    """
    try:
        replayed = replay(location)
        on_disk = dict(_data_files(location))
    except (OSError, ValueError) as error:
        raise StorageError(dataset=name, location=location, reason=str(error)) from error
    if replayed is None:
        raise TableNotFoundError(dataset=name, location=location)
    unread = _unread(name, location, consumers)
    findings = [_of_log(name, fault, unread) for fault in replayed.faults]
    findings += _cleaned(name, location, unread)
    if not any(fault.hides_files for fault in replayed.faults):  # else nobody knows what the table is made of
        findings += _missing(name, replayed, on_disk)
        findings += [_orphan(name, p, on_disk[p].changed) for p in sorted(set(on_disk) - replayed.mentioned)]
    findings += _damaged(name, location, replayed, on_disk, deep=deep)
    findings += _damaged_vectors(name, location, replayed)
    return Diagnosis(
        dataset=name,
        location=location,
        version=replayed.version,
        files=len(replayed.files),
        bytes=sum(action.get("size") or 0 for action in replayed.files.values()),
        findings=tuple(findings),
    )


def _unread(name: str, location: str, consumers: Iterable[SourceTable]) -> dict[str, int]:
    """By consumer the last version of this table that it has read; those that know none read the whole table anyway."""
    folder = local_folder(location)
    there = commit_versions(location) if folder is not None else []
    try:
        facts = table_facts(folder, there[-1]) if folder is not None and there else None
    except DamagedTableError:  # it is among the findings
        return {}
    read = {}
    for consumer in consumers:
        try:
            state = state_from_log(consumer.location)
            cursor = effective_cursors(None, state).sources.get(name)
        except DamagedTableError:  # it is among those of that dataset
            continue
        if facts is not None and cursor is not None and cursor.table_id == facts.table_id:
            read[consumer.dataset.name] = cursor.version
    return read


def _of_log(name: str, fault: LogFault, unread: Mapping[str, int]) -> Finding:
    needing = sorted(name for name, version in unread.items() if version < fault.version)
    serious = fault.kind != "log gap" or fault.hides_files or bool(needing)
    if fault.kind == "damaged checkpoint":
        remedy = f"Remove it and _last_checkpoint beside it, then pipeline maintain checkpoint {name}."
    elif fault.hides_files:
        remedy = f"Write nothing until commit {fault.version} is back, from a copy or a backup of the log."
    else:
        remedy = (
            f"Bring commit {fault.version} back from a copy or a backup of the log. A checkpoint holds the newest "
            "version; older versions and changes can't be read without it."
        )
    detail = fault.detail + (f"; {', '.join(needing)} has still to read it" if needing else "")
    return Finding(kind=fault.kind, path=fault.path, detail=detail, remedy=remedy, serious=serious)


def _cleaned(name: str, location: str, unread: Mapping[str, int]) -> list[Finding]:
    """Consumers whose next entry is gone with all before it, as a clean-up of the log leaves it."""
    oldest = min(commit_versions(location), default=0)
    return [
        Finding(
            kind="unread changes",
            path=commit_file(location, version + 1),
            detail=f"{consumer} has read to version {version}, and the log begins with {oldest}",
            remedy=f"The next run of {consumer} reads all of {name}; or bring the entries back from a backup.",
            serious=False,
        )
        for consumer, version in unread.items() if version + 1 < oldest
    ]  # fmt: skip


def _is_below(path: str) -> bool:
    return "://" not in path and not path.startswith("/")


def _missing(name: str, replayed: Replay, on_disk: Mapping[str, _OnDisk]) -> list[Finding]:
    return [
        Finding(
            kind="missing file",
            path=path,
            detail=f"version {replayed.version} is made of it, and it is not there",
            remedy=f"pipeline restore {name} to a version before it was lost, or bring the file back.",
            serious=True,
        )
        for path in sorted(set(replayed.files) - set(on_disk)) if _is_below(path)
    ]  # fmt: skip


def _damaged(
    name: str, location: str, replayed: Replay, on_disk: Mapping[str, _OnDisk], *, deep: bool
) -> Iterator[Finding]:
    """Files of the newest version and of the change feed that are there, and not what was committed."""
    system, root = file_system(location)
    committed = dict(replayed.changes) | dict(replayed.files)
    for path in sorted(set(committed) & set(on_disk)):
        problem = problem_of(system, f"{root}/{path}", on_disk[path].size, committed[path], deep=deep)
        if problem is not None:
            what = f"version {replayed.version} is made of it" if path in replayed.files else "changes are read from it"
            yield Finding(
                kind="damaged file",
                path=path,
                detail=f"{problem}; {what}",
                remedy=f"Bring the file back from a copy or a backup, or write its rows anew; pipeline restore "
                f"{name} goes back to a version without it.",
                serious=True,
            )


def _damaged_vectors(name: str, location: str, replayed: Replay) -> Iterator[Finding]:
    """Deletion vectors of the newest version that are gone, or not what was written: its rows can't be read."""
    system, root = file_system(location)
    for path, added in sorted(replayed.files.items()):
        vector = added.get("deletionVector")
        file = vector_file(vector) if vector else None
        if not vector or file is None or not _is_below(file):
            continue
        try:
            problem = problem_of_vector(system, f"{root}/{file}", vector)
        except FileNotFoundError:
            problem = "it is not there"
        if problem is not None:
            yield Finding(
                kind="damaged file",
                path=file,
                detail=f"{problem}; it says which rows of {path} are deleted",
                remedy=f"Bring the file back from a copy or a backup; pipeline restore {name} goes back to a version "
                "without it.",
                serious=True,
            )


def _orphan(name: str, path: str, changed: dt.datetime | None) -> Finding:
    when = "" if changed is None else f"; it was written at {changed:%Y-%m-%d %H:%M:%S}Z"
    return Finding(
        kind="orphan",
        path=path,
        detail=f"no commit knows it: left by a write that was ended, or of one that runs now{when}",
        remedy=f"pipeline maintain vacuum {name} --apply removes it once it is older than the retention.",
        serious=False,
    )


def _data_files(location: str) -> Iterator[tuple[str, _OnDisk]]:
    """Files by path below the table, as a vacuum looks at them, with sizes and times of change.

    Hidden files and folders are not the table's, but for the change feed and partition folders whose column begins
    with an underscore (delta#256). Deletion vectors are left out: their names in the log are encoded.
    """
    from pyarrow import fs

    system, root = file_system(location)
    for info in list_folder(system, root, recursive=True):
        path = info.path[len(root) :].strip("/")
        parts = path.split("/")
        hidden = any(part[:1] in "_." and "=" not in part for part in parts if part != CHANGE_DATA)
        if info.type == fs.FileType.File and not hidden and not parts[-1].startswith(_DELETION_VECTOR):
            yield path, _OnDisk(info.size, info.mtime)
