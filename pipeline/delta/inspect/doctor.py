"""The damage of a table: a read-only diagnosis from its files, without Spark.

Here belong the findings and the remedy for each. `replay` reads the log. The diagnosis needs neither Dagster nor a JVM.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.dataset import TableRef
from pipeline.delta.log.commits import commit_file, commit_versions
from pipeline.delta.log.entry import is_below_table, vector_file
from pipeline.delta.log.replay import FaultKind, LogFault, Replay, replay
from pipeline.delta.log.snapshot import table_facts
from pipeline.delta.read.cursors import effective_cursors
from pipeline.delta.read.data_files import problem_of, problem_of_vector
from pipeline.delta.read.readable import readable_versions
from pipeline.delta.spark.doors import door, storage_error
from pipeline.delta.storage.file_system import file_system, list_folder
from pipeline.delta.table.open_table import state_from_log
from pipeline.errors import DamagedTableError, TableNotFoundError

CHANGE_DATA = "_change_data"
_DELETION_VECTOR = "deletion_vector_"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One problem of a table, with its file and its remedy.

    `serious` is true if rows can't be read or a write may fail or be wrong. Other problems only cost space.
    """

    kind: str
    path: str
    detail: str
    remedy: str
    serious: bool


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The diagnosis of a table at one version. An intact table has no findings. `bytes` is the size of live files.

    What writers have left without a table has no version.

    From `readable_from` on, the log and the files of every version exist. If damage hides it, it is None.
    """

    dataset: str
    location: str
    version: int | None
    readable_from: int | None = None
    files: int
    bytes: int
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether there is no serious finding."""
        return not any(finding.serious for finding in self.findings)


@dataclass(frozen=True)
class _OnDisk:
    size: int
    changed: dt.datetime | None


@door
def examine(name: str, location: str, *, consumers: Sequence[TableRef] = (), deep: bool = False) -> Diagnosis:
    """Search for damage of the log, for missing or damaged data files, and for orphan files.

    Args:
        name: the name of the dataset, for the findings.
        consumers: the consumers of this dataset's changes, whose next runs need entries of the log.
        deep: read every data file, which also shows damage that does not change a file's size and footer.

    Raises:
        TableNotFoundError: the table was never written.
        StorageError: the storage can't be read.
    """
    try:
        replayed = replay(location)
        on_disk = dict(_data_files(location))
    except (OSError, ValueError) as error:
        raise storage_error(error, name, location) from error
    if replayed is None:
        raise TableNotFoundError(dataset=name, location=location)
    unread = _unread(name, location, replayed.version, consumers) if consumers else {}
    findings = [_of_log(name, fault, unread) for fault in replayed.faults]
    findings += _cleaned(name, location, unread) if unread else ()
    if not any(fault.hides_files for fault in replayed.faults):  # else the files of the table are not known
        findings += _missing(name, replayed, on_disk)
        findings += [_orphan(name, p, on_disk[p].changed) for p in sorted(set(on_disk) - replayed.mentioned)]
    findings += _damaged(name, location, replayed, on_disk, deep=deep)
    findings += _damaged_vectors(name, location, replayed)
    return Diagnosis(
        dataset=name,
        location=location,
        version=replayed.version,
        readable_from=_readable_from(location, replayed),
        files=len(replayed.files),
        bytes=sum(action.get("size") or 0 for action in replayed.files.values()),
        findings=tuple(findings),
    )


def _readable_from(location: str, replayed: Replay) -> int | None:
    """The oldest version that can be read. If damage of the log hides it, None."""
    is_damaged = any(fault.kind is FaultKind.COMMIT for fault in replayed.faults)
    try:
        readable = readable_versions(location, removals=None if is_damaged else replayed.removals)
    except (OSError, ValueError, DamagedTableError):
        return None
    return None if readable is None else readable.with_files


def _unread(name: str, location: str, newest: int, consumers: Iterable[TableRef]) -> dict[str, int]:
    """The last version of this table that each consumer has read. A consumer without one will read the full table."""
    try:
        facts = table_facts(location, newest)
    except DamagedTableError:  # the findings contain it
        return {}
    read = {}
    for consumer in consumers:
        try:
            state = state_from_log(consumer.location)
            cursor = effective_cursors(None, state).sources.get(name)
        except DamagedTableError:  # the findings of that dataset contain it
            continue
        if facts is not None and cursor is not None and cursor.table_id == facts.table_id:
            read[consumer.name] = cursor.version
    return read


def _of_log(name: str, fault: LogFault, unread: Mapping[str, int]) -> Finding:
    consumers = sorted(consumer for consumer, version in unread.items() if version < fault.version)
    serious = fault.kind is not FaultKind.GAP or fault.hides_files or bool(consumers)
    if fault.kind is FaultKind.CHECKPOINT:
        remedy = f"pipeline doctor {name} --repair --apply replaces it if the entries of the log have its state."
    elif fault.hides_files:
        remedy = f"Write nothing until commit {fault.version} is restored from a copy or a backup of the log."
    else:
        remedy = (
            f"Restore commit {fault.version} from a copy or a backup of the log. A checkpoint has the newest version; "
            "older versions and changes can't be read without the commit."
        )
    if fault.checksums:
        files = " and ".join(fault.checksums)
        remedy += f" If the commit is right, a checksum file is wrong: delete {files}, which Spark does not need."
    detail = fault.detail + (f"; not yet read by {', '.join(consumers)}" if consumers else "")
    return Finding(kind=fault.kind.value, path=fault.path, detail=detail, remedy=remedy, serious=serious)


def _cleaned(name: str, location: str, unread: Mapping[str, int]) -> list[Finding]:
    """The consumers whose next entry was removed by a clean-up of the log, together with all entries before it."""
    oldest = min(commit_versions(location), default=0)
    return [
        Finding(
            kind="unread changes",
            path=commit_file(location, version + 1),
            detail=f"{consumer} has read to version {version}, but the log begins at version {oldest}",
            remedy=f"The next run of {consumer} reads all of {name}; or restore the entries from a backup.",
            serious=False,
        )
        for consumer, version in unread.items() if version + 1 < oldest
    ]  # fmt: skip


def _missing(name: str, replayed: Replay, on_disk: Mapping[str, _OnDisk]) -> list[Finding]:
    return [
        Finding(
            kind="missing file",
            path=path,
            detail=f"version {replayed.version} needs it, but it does not exist",
            remedy=f"Run pipeline restore {name} to a version before it was lost, or restore the file from a backup.",
            serious=True,
        )
        for path in sorted(set(replayed.files) - set(on_disk)) if is_below_table(path)
    ]  # fmt: skip


def _damaged(
    name: str, location: str, replayed: Replay, on_disk: Mapping[str, _OnDisk], *, deep: bool
) -> Iterator[Finding]:
    """The existing files of the newest version and of the change feed that are not as they were committed."""
    system, root = file_system(location)
    committed = dict(replayed.changes) | dict(replayed.files)
    for path in sorted(set(committed) & set(on_disk)):
        problem = problem_of(system, f"{root}/{path}", on_disk[path].size, committed[path], deep=deep)
        if problem is not None:
            user = f"version {replayed.version} needs it" if path in replayed.files else "the change feed needs it"
            yield Finding(
                kind="damaged file",
                path=path,
                detail=f"{problem}; {user}",
                remedy=f"Restore the file from a copy or a backup, or write its rows again, or run pipeline restore "
                f"{name} to a version without it.",
                serious=True,
            )


def _damaged_vectors(name: str, location: str, replayed: Replay) -> Iterator[Finding]:
    """Deletion vectors of the newest version that are missing or damaged: its rows can't be read."""
    system, root = file_system(location)
    for path, added in sorted(replayed.files.items()):
        vector, file = added.get("deletionVector"), None
        try:
            file = vector_file(vector) if vector else None
            if not vector or file is None or not is_below_table(file):
                continue
            problem = problem_of_vector(system, f"{root}/{file}", vector)
        except FileNotFoundError:
            problem = "it is missing"
        except ValueError:
            problem = "the log does not have its name as the protocol says"
        if problem is not None:
            yield Finding(
                kind="damaged file",
                path=file or path,
                detail=f"{problem}; it has the deleted rows of {path}",
                remedy=f"Bring the file back from a copy or a backup; pipeline restore {name} goes back to a version "
                "without it.",
                serious=True,
            )


def _orphan(name: str, path: str, changed: dt.datetime | None) -> Finding:
    written = "" if changed is None else f"; it was written at {changed:%Y-%m-%d %H:%M:%S}Z"
    return Finding(
        kind="orphan",
        path=path,
        detail=f"no commit names it: it is from a write that was killed, or from one that runs now{written}",
        remedy=f"If it is older than the retention, pipeline maintain vacuum {name} --apply removes it.",
        serious=False,
    )


def _data_files(location: str) -> Iterator[tuple[str, _OnDisk]]:
    """The files that a vacuum would consider, by path below the table, with their sizes and modification times.

    Hidden files and folders don't belong to the table, except the change feed and the folders of a partition column
    whose name begins with an underscore (delta#256). Deletion vectors are left out: their names in the log are encoded.
    """
    from pyarrow import fs

    system, root = file_system(location)
    for info in list_folder(system, root, recursive=True):
        path = info.path[len(root) :].strip("/")
        parts = path.split("/")
        hidden = any(part[:1] in "_." and "=" not in part for part in parts if part != CHANGE_DATA)
        if info.type == fs.FileType.File and not hidden and not parts[-1].startswith(_DELETION_VECTOR):
            yield path, _OnDisk(info.size, info.mtime)
