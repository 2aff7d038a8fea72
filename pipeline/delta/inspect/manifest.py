"""The records of all runs below a root: every run, and the manifest of one.

Here belongs the reading of the folder of records. A file that can't be read hides no other file. `record` defines a
record and its file.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipeline.delta.inspect.record import FOLDER, DatasetRecord
from pipeline.delta.spark.doors import door
from pipeline.delta.storage.text_files import read_texts
from pipeline.errors import RecordError, RunNotFoundError
from pipeline.errors.spelling import near

_LOG = logging.getLogger(__name__)


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
    by_run: dict[str, list[DatasetRecord]] = defaultdict(list)
    for record in _read(root, damaged):
        by_run[record.run_id].append(record)
    summaries = [
        RunSummary(
            run_id=run_id,
            first=min(record.recorded_at for record in records),
            last=max(record.recorded_at for record in records),
            records=len(records),
            datasets=tuple(sorted({record.name for record in records})),
            rows_written=sum(record.rows_written for record in records),
        )
        for run_id, records in by_run.items()
    ]
    return sorted(summaries, key=lambda summary: summary.first, reverse=True)


@door
def manifest(root: str, run_id: str, *, damaged: Callable[[RecordError], None] = _warn) -> list[DatasetRecord]:
    """The records of a run, the oldest first. `run_id` may be the beginning of an id if only one run's id has it.

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
    return sorted((r for r in records if r.run_id == matching[0]), key=lambda record: record.recorded_at)


def _read(root: str, damaged: Callable[[RecordError], None]) -> Iterator[DatasetRecord]:
    for file in read_texts(f"{root.rstrip('/')}/{FOLDER}", ".json"):
        try:
            if file.text is None:
                raise RecordError(path=file.path, reason=file.problem)
            yield DatasetRecord.from_json(file.text, file.path)
        except RecordError as error:
            damaged(error)
