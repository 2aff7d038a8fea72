"""The records of maintenance: one JSON file for each maintained table, beside the records of the runs' commits.

Here belong `MaintenanceRecord` and its file. A file is `_records/<run>/<dataset>@<version>-maintenance.json`, with the
version of the table after its maintenance.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.delta.inspect.record import FOLDER, FORMAT, folder_name
from pipeline.delta.spark.doors import door
from pipeline.delta.storage.text_files import write_text
from pipeline.errors import RecordError
from pipeline.errors.argument_types import type_problems

KIND = "maintenance"


@dataclass(frozen=True, kw_only=True)
class MaintenanceRecord:
    """The record of the maintenance of one table.

    `version` is that of the table afterwards. `checkpoint` is the version of a checkpoint that was written. If none was
    due, it is None. `tombstones_expired` is the number of tombstones that were removed. `bytes_reclaimed` is the size
    of the files and log files that were removed. `waits` are the reasons why files or entries past their retention were
    kept. `files`, `bytes`, `small_file_ratio`, `log_entries` and `oldest_readable_version` describe the table
    afterwards.
    """

    record: int = FORMAT
    name: str
    kind: str = KIND
    path: str
    run_id: str
    recorded_at: str
    version: int
    checkpoint: int | None
    files_joined: int
    tombstones_expired: int = 0
    files_vacuumed: int
    log_files_removed: int
    bytes_reclaimed: int
    waits: tuple[str, ...]
    files: int
    bytes: int
    small_file_ratio: float
    log_entries: int
    oldest_readable_version: int | None

    def to_json(self) -> str:
        """The text of the record's file."""
        return json.dumps(asdict(self), indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @classmethod
    def from_document(cls, document: Mapping[str, Any], path: str) -> MaintenanceRecord:
        """The record in a file's JSON document.

        Raises:
            RecordError: the document is damaged, or has a newer format than this version of the package.
        """
        try:
            if document["record"] > FORMAT:
                raise RecordError(path=path, reason=f"it has format {document['record']}, expected {FORMAT}")
            record = cls(**(dict(document) | {"waits": tuple(document["waits"])}))
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(path=path, reason=f"it is damaged ({error})") from error
        problem = next(iter(type_problems(record)), None)
        if problem is not None:
            raise RecordError(path=path, reason=f"it is damaged ({problem.path} is not {problem.expected})")
        return record


@door
def write_maintenance_record(record: MaintenanceRecord, *, root: str) -> str:
    """Write the record of a maintenance that was just made, and return the path of its file.

    Raises:
        FileAccessError: the record could not be written.
    """
    name = f"{record.name}@{record.version}-{KIND}.json"
    path = f"{root.rstrip('/')}/{FOLDER}/{folder_name(record.run_id)}/{name}"
    write_text(path, record.to_json())
    return path
