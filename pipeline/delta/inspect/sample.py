"""A sample of a commit's rows: the first rows of one file that it added. No Spark.

Here belong the choice of the file and the reading of its beginning. The caller decides how to show the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from pipeline.delta.log.commits import read_entry
from pipeline.delta.log.snapshot import PHYSICAL_NAME, TableFacts, table_facts
from pipeline.delta.storage.access import kept_store_errors
from pipeline.delta.storage.file_system import file_system
from pipeline.errors import DamagedTableError

Row = dict[str, object]
# Larger files are not opened, and more columns are not read, so that a sample stays cheap.
SAMPLED_BYTES = 64 * 2**20
SAMPLED_COLUMNS = 12
# Errors without a sample: the file can't be read, is gone, or has values that Python can't represent.
_UNREADABLE = (
    OSError, ValueError, KeyError, IndexError, OverflowError, NotImplementedError, MemoryError, DamagedTableError,
)  # fmt: skip


def sample(location: str, version: int, most: int) -> list[Row] | None:
    """At most `most` rows of a commit, each a mapping by column. If they can't be read cheaply, None.

    The values of partition columns are those of the log. The rows of an update may be unchanged copies.
    """
    if most < 1:
        return None
    try:
        added = [action["add"] for action in read_entry(location, version) if action.get("add")]
        facts = table_facts(location, version)
        if facts is None:
            return None
        file = next((file for file in added if _is_cheap(file) and not _is_of_state(file, facts)), None)
        return None if file is None else _first_rows(location, file, facts, most)
    except _UNREADABLE:
        return None


def _is_cheap(file: Mapping[str, Any]) -> bool:
    is_below = "://" not in file["path"] and not file["path"].startswith(("/", "file:"))
    return is_below and file["size"] <= SAMPLED_BYTES and not file.get("deletionVector")


def _physical(facts: TableFacts) -> dict[str, str]:
    """The names of the columns in files and log, by their names."""
    fields = facts.schema["fields"]
    return {field["name"]: field.get("metadata", {}).get(PHYSICAL_NAME, field["name"]) for field in fields}


def _is_of_state(file: Mapping[str, Any], facts: TableFacts) -> bool:
    """Whether a file has rows that are no rows of the dataset: its only partition column that the facts leave out."""
    physical = _physical(facts)
    known = {physical[name] for name in facts.partition_by}
    values = dict(file.get("partitionValues") or {})
    return facts.keeps_state and any(value is not None for name, value in values.items() if name not in known)


def _first_rows(location: str, file: Mapping[str, Any], facts: TableFacts, most: int) -> list[Row]:
    import pyarrow.parquet as pq

    physical = _physical(facts)
    shown = list(physical)[:SAMPLED_COLUMNS]
    in_log = {name: file.get("partitionValues", {}).get(physical[name]) for name in facts.partition_by}
    system, folder = file_system(location)
    with kept_store_errors(), pq.ParquetFile(f"{folder}/{unquote(file['path'])}", filesystem=system) as parquet:
        in_file = set(parquet.schema_arrow.names)
        columns = [physical[name] for name in shown if name not in in_log and physical[name] in in_file]
        batch = next(parquet.iter_batches(batch_size=most, columns=columns), None)
    rows = [] if batch is None else batch.to_pylist()
    return [{name: in_log[name] if name in in_log else row.get(physical[name]) for name in shown} for row in rows]
