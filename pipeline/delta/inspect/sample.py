"""A few rows of a commit, as text: the first of one file that it has added, on this machine's disk; no Spark.

Here belong the choice of the file and the reading of its beginning. How rows are shown is for those who show them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pipeline.delta.log.commits import read_entry
from pipeline.delta.log.snapshot import TableFacts, local_folder, table_facts
from pipeline.delta.log.table_state import PHYSICAL_NAME
from pipeline.errors import DamagedTableError

Row = dict[str, object]
# No larger file is opened, and no more columns are read: a look must not cost what a read does.
SAMPLED_BYTES = 64 * 2**20
SAMPLED_COLUMNS = 12
# A file that can't be read, is gone by now, or holds values that Python has none for: there is no sample then.
_UNREADABLE = (
    OSError, ValueError, KeyError, IndexError, OverflowError, NotImplementedError, MemoryError, DamagedTableError,
)  # fmt: skip


def sample(location: str, version: int, most: int) -> list[Row] | None:
    """At most so many rows of a commit by column; None where none can be had cheaply.

    The values of partition columns are those of the log. A commit that updates may have written a row again as it was.
    """
    folder = local_folder(location)
    if folder is None or most < 1:
        return None
    try:
        added = [action["add"] for action in read_entry(str(folder), version) if action.get("add")]
        file = next((file for file in added if _is_cheap(file)), None)
        facts = table_facts(folder, version)
        return None if file is None or facts is None else _first_rows(folder, file, facts, most)
    except _UNREADABLE:
        return None


def _is_cheap(file: Mapping[str, Any]) -> bool:
    is_below = "://" not in file["path"] and not file["path"].startswith(("/", "file:"))
    return is_below and file["size"] <= SAMPLED_BYTES and not file.get("deletionVector")


def _first_rows(folder: Path, file: Mapping[str, Any], facts: TableFacts, most: int) -> list[Row]:
    import pyarrow.parquet as pq

    physical = {one["name"]: one.get("metadata", {}).get(PHYSICAL_NAME, one["name"]) for one in facts.schema["fields"]}
    shown = list(physical)[:SAMPLED_COLUMNS]
    in_log = {name: file.get("partitionValues", {}).get(physical[name]) for name in facts.partition_by}
    with pq.ParquetFile(folder / unquote(file["path"])) as parquet:
        there = set(parquet.schema_arrow.names)
        columns = [physical[name] for name in shown if name not in in_log and physical[name] in there]
        batch = next(parquet.iter_batches(batch_size=most, columns=columns), None)
    rows = [] if batch is None else batch.to_pylist()
    return [{name: in_log[name] if name in in_log else row.get(physical[name]) for name in shown} for row in rows]
