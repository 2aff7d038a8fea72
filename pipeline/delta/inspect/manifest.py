"""The records of all runs below a root: every run, and the manifest of one.

Here belongs the reading of the folder of records. A file that can't be read hides no other file. `record` defines a
record and its file.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipeline.delta.inspect.maintenance_record import KIND, MaintenanceRecord
from pipeline.delta.inspect.record import FOLDER, DatasetRecord
from pipeline.delta.spark.doors import door
from pipeline.delta.storage.text_files import read_texts
from pipeline.errors import RecordError, RunNotFoundError
from pipeline.errors.spelling import near

_LOG = logging.getLogger(__name__)
AnyRecord = DatasetRecord | MaintenanceRecord


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The records of one run, the oldest first: those of its commits, and those of maintained tables."""

    commits: tuple[DatasetRecord, ...]
    maintenance: tuple[MaintenanceRecord, ...]


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The summary of one run's records. `first` and `last` are the times of its first and last record."""

    run_id: str
    first: str
    last: str
    records: int
    datasets: tuple[str, ...]
    rows_written: int


def _warn(error: RecordError) -> None:
    _LOG.warning("%s", error.message())


@door
def runs(root: str, *, damaged: Callable[[RecordError], None] = _warn) -> list[RunSummary]:
    """The summaries of all runs with records, the newest first. No Spark if the root is on this machine.

    Args:
        damaged: called for each record that can't be read; by default it logs a warning. The others are read.

    Raises:
        FileAccessError: the folder of the records can't be read.
    """
    by_run: dict[str, list[AnyRecord]] = defaultdict(list)
    for record in _read(root, damaged):
        by_run[record.run_id].append(record)
    summaries = [
        RunSummary(
            run_id=run_id,
            first=min(record.recorded_at for record in records),
            last=max(record.recorded_at for record in records),
            records=len(records),
            datasets=tuple(sorted({record.name for record in records})),
            rows_written=sum(record.rows_written for record in records if isinstance(record, DatasetRecord)),
        )
        for run_id, records in by_run.items()
    ]
    return sorted(summaries, key=lambda summary: summary.first, reverse=True)


@door
def manifest(root: str, run_id: str, *, damaged: Callable[[RecordError], None] = _warn) -> list[DatasetRecord]:
    """The records of a run's commits, as `full_manifest` has them."""
    return list(full_manifest(root, run_id, damaged=damaged).commits)


@door
def full_manifest(root: str, run_id: str, *, damaged: Callable[[RecordError], None] = _warn) -> Manifest:
    """All records of a run. `run_id` may be the beginning of an id if only one run's id has it.

    Args:
        damaged: as for `runs`.

    Raises:
        RunNotFoundError: no run, or more than one, has such an id.
        FileAccessError: the folder of the records can't be read.
    """
    records = list(_read(root, damaged))
    known = sorted({record.run_id for record in records})
    matching = [run_id] if run_id in known else [run for run in known if run_id and run.startswith(run_id)]
    if len(matching) != 1:
        similar = matching or near(run_id, known)
        raise RunNotFoundError(run=run_id, root=f"{root.rstrip('/')}/{FOLDER}", near=tuple(similar))
    chosen = sorted((r for r in records if r.run_id == matching[0]), key=lambda record: record.recorded_at)
    return Manifest(
        commits=tuple(record for record in chosen if isinstance(record, DatasetRecord)),
        maintenance=tuple(record for record in chosen if isinstance(record, MaintenanceRecord)),
    )


def _read(root: str, damaged: Callable[[RecordError], None]) -> Iterator[AnyRecord]:
    for file in read_texts(f"{root.rstrip('/')}/{FOLDER}", ".json"):
        try:
            if file.text is None:
                raise RecordError(path=file.path, reason=file.problem)
            yield _parsed(file.text, file.path)
        except RecordError as error:
            damaged(error)


def _parsed(text: str, path: str) -> AnyRecord:
    """The record in a file's text. Only a record of maintenance has the kind of one.

    Raises:
        RecordError: the text is damaged, or has a newer format than this version of the package.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(path=path, reason=f"it is damaged ({error})") from error
    if isinstance(document, dict) and document.get("kind") == KIND:
        return MaintenanceRecord.from_document(document, path)
    return DatasetRecord.from_json(text, path)
