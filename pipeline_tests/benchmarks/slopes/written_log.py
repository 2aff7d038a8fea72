"""Tables of many versions whose log is written by hand, since a real commit of each would take an hour.

Every commit replaces one of five files by another, four minutes after the one before, as a busy table does in four
weeks. The data files exist only if they are live. delta-rs writes a checkpoint of every hundredth version, and Delta
the newest one; the last commits are made by `write`, with their checksums.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import deltalake
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset
from pipeline.delta.maintain.checkpoint import Checkpoints
from pipeline.delta.table.open_table import open_or_create
from pipeline_tests.delta.sample import actions_of, put

SCHEMA = StructType([StructField("id", LongType(), False), StructField("text", StringType())])
EVENTS = Dataset(name="events", schema=SCHEMA, write=Append())
LIVE_FILES, CHECKPOINT_EVERY, REAL_COMMITS = 5, 100, 3
_MILLISECONDS, _APART = 1_000, 240_000


def table_of(spark: SparkSession, root: Path, versions: int) -> Path:
    """A table of so many versions below the root, five live files and three commits after a checkpoint."""
    location = Path(EVENTS.location(str(root)))
    open_or_create(spark, EVENTS.at(str(root)))
    put(spark, EVENTS, str(root), [(number, "a") for number in range(100)])
    first = actions_of(EVENTS, str(root), 1)
    add = next(action["add"] for action in first if "add" in action)
    last = versions - REAL_COMMITS - 1
    _write_commits(location, add, last)
    for number in range(CHECKPOINT_EVERY, last, CHECKPOINT_EVERY):
        deltalake.DeltaTable(str(location), version=number).create_checkpoint()
    with Checkpoints(spark) as checkpoints:
        checkpoints.write(str(location), None, last)
    for number in range(REAL_COMMITS):
        put(spark, EVENTS, str(root), [(number, "b")])
    return location


def _write_commits(location: Path, add: dict[str, Any], last: int) -> None:
    """The commits from the second to the last, and the data files that are live after it."""
    now, data = int(time.time() * _MILLISECONDS), location / add["path"]
    for number in range(2, last + 1):
        at, replaced = now - (last + 2 - number) * _APART, number - LIVE_FILES
        added = add | {"path": _name(number), "modificationTime": at}
        actions: list[dict[str, Any]] = [{"commitInfo": _info(at)}, {"add": added}]
        if replaced >= 1:
            path = add["path"] if replaced == 1 else _name(replaced)
            actions.append({"remove": _removed(add, path, at)})
        entry = location / "_delta_log" / f"{number:020d}.json"
        entry.write_text("".join(f"{json.dumps(action)}\n" for action in actions), encoding="utf-8")
        os.utime(entry, (at / _MILLISECONDS, at / _MILLISECONDS))
        if number > last - LIVE_FILES:
            os.link(data, location / added["path"])
    if last > LIVE_FILES:
        data.unlink()


def _name(number: int) -> str:
    return f"part-{number:05d}.parquet"


def _info(at: int) -> dict[str, Any]:
    return {
        "timestamp": at, "operation": "WRITE", "operationParameters": {"mode": "Overwrite", "partitionBy": "[]"},
        "isolationLevel": "Serializable", "isBlindAppend": False, "operationMetrics": {}, "engineInfo": "by hand",
    }  # fmt: skip


def _removed(add: dict[str, Any], path: str, at: int) -> dict[str, Any]:
    return {
        "path": path, "deletionTimestamp": at, "dataChange": True, "extendedFileMetadata": True,
        "partitionValues": {}, "size": add["size"],
    }  # fmt: skip
