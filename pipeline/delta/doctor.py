"""What ails a table: read only, from its files, without Spark.

Here belong the findings and what helps against each. How the log is read is `replay`'s. Works where neither Dagster nor
a JVM is at hand.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.dataset import Dataset
from pipeline.delta.log import file_system, listed
from pipeline.delta.replay import LogFault, replay
from pipeline.errors import StorageError, TableNotFoundError

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


def examine(dataset: Dataset, location: str) -> Diagnosis:
    """Look for a log that can't be read in full, files that are missing, and files that no version knows.

    Raises:
        TableNotFoundError: it was never written.
        StorageError: the storage can't be read.
    """
    try:
        replayed = replay(location)
        on_disk = dict(_data_files(location))
    except (OSError, ValueError) as error:
        raise StorageError(dataset=dataset.name, location=location, reason=str(error)) from error
    if replayed is None:
        raise TableNotFoundError(dataset=dataset.name, location=location)
    findings = [_of_log(dataset, fault) for fault in replayed.faults]
    cut_off = any(fault.kind != "damaged checkpoint" for fault in replayed.faults)
    if not cut_off:  # else nobody knows which files the table is made of
        findings += [
            Finding(
                kind="missing file",
                path=path,
                detail=f"version {replayed.version} is made of it, and it is not there",
                remedy=f"pipeline restore {dataset.name} to a version before it was lost, or bring the file back.",
                serious=True,
            )
            for path in sorted(set(replayed.files) - set(on_disk))
            if "://" not in path and not path.startswith("/")
        ]
        findings += [_orphan(dataset, p, on_disk[p]) for p in sorted(set(on_disk) - replayed.mentioned)]
    return Diagnosis(
        dataset=dataset.name,
        location=location,
        version=replayed.version,
        files=len(replayed.files),
        bytes=sum(replayed.files.values()),
        findings=tuple(findings),
    )


def _of_log(dataset: Dataset, fault: LogFault) -> Finding:
    if fault.kind == "damaged checkpoint":
        remedy = f"Remove it and _last_checkpoint beside it, then pipeline maintain checkpoint {dataset.name}."
    else:
        remedy = f"Write nothing until commit {fault.version} is back, from a copy or a backup of the log."
    return Finding(kind=fault.kind, path=fault.path, detail=fault.detail, remedy=remedy, serious=True)


def _orphan(dataset: Dataset, path: str, changed: dt.datetime | None) -> Finding:
    when = "" if changed is None else f"; it was written at {changed:%Y-%m-%d %H:%M:%S}Z"
    return Finding(
        kind="orphan",
        path=path,
        detail=f"no commit knows it: left by a write that was ended, or of one that runs now{when}",
        remedy=f"pipeline maintain vacuum {dataset.name} --apply removes it once it is older than the retention.",
        serious=False,
    )


def _data_files(location: str) -> Iterator[tuple[str, dt.datetime | None]]:
    """Files by path below the table, as a vacuum looks at them, with their times of change.

    Hidden files and folders are not the table's, but for the change feed and partition folders whose column begins
    with an underscore (delta#256). Deletion vectors are left out: their names in the log are encoded.
    """
    from pyarrow import fs

    system, root = file_system(location)
    for info in listed(system, root, recursive=True):
        path = info.path[len(root) :].strip("/")
        parts = path.split("/")
        hidden = any(part[:1] in "_." and "=" not in part for part in parts if part != CHANGE_DATA)
        if info.type == fs.FileType.File and not hidden and not parts[-1].startswith(_DELETION_VECTOR):
            yield path, info.mtime
