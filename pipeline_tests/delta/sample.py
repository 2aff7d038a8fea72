"""What the tests of this folder share: small declarations, writes into them, and a look at a table without Spark.

The look goes through delta-rs, a second implementation of the protocol: it costs milliseconds, and what it sees is not
what Spark remembers.
"""

from __future__ import annotations

import atexit
import datetime as dt
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import deltalake
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset, Replace, TableRef, WriteMode
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.sql.slices import Slice
from pipeline.delta.storage.file_system import list_files, read_file
from pipeline.delta.table.open_table import open_or_create
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write

DAYS = StructType(
    [StructField("day", DateType()), StructField("id", LongType(), False), StructField("text", StringType())]
)


def days(write: WriteMode, **declaration: Any) -> Dataset:
    """Rows (day, id, text), partitioned by day."""
    declared: dict[str, Any] = {"name": "days", "schema": DAYS, "partition_by": ("day",), "write": write}
    return Dataset(**(declared | declaration))


APPENDED = days(Append())
REPLACED = days(Replace())


def day(number: int) -> dt.date:
    """A day of January 2026."""
    return dt.date(2026, 1, number)


def note(writer: str = "test", **fields: Any) -> CommitNote:
    """A note with a mark of its own."""
    return CommitNote(mark=Mark(writer=writer), **fields)


def frame_of(spark: SparkSession, dataset: Dataset, rows: Sequence[tuple[Any, ...]]) -> DataFrame:
    """Rows in the declared order as a frame; everything may be NULL, as in the frames that Spark makes."""
    return frame_in(spark, StructType([StructField(f.name, f.dataType) for f in dataset.schema.fields]), rows)


def frame_in(spark: SparkSession, schema: StructType, rows: Sequence[tuple[Any, ...]]) -> DataFrame:
    """Rows as a frame, by way of Arrow: rows as they are would cost a classic session two Python workers each time."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    columns = zip(*rows, strict=True) if rows else [()] * len(arrow)
    arrays = [pa.array(list(values), field.type) for values, field in zip(columns, arrow, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=arrow), schema)


def put(
    spark: SparkSession, dataset: Dataset, root: str, rows: Sequence[tuple[Any, ...]], within: Slice | None = None
) -> WriteResult:
    """Write rows in the declared order."""
    frame = frame_of(spark, dataset, rows)
    return write(frame, table=dataset.at(root), note=note(), within=within)


def placed(session: SparkSession, dataset: Dataset, root: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Rows in a table that a test only needs to be there: made once, copied, and filled by delta-rs, one commit a call.

    The versions are those of as many appends; where how it is written matters, `put`.
    """
    location = Path(dataset.location(root))
    if not location.exists():
        template = _templates() / f"{hash(repr(dataset)):x}"
        if not template.exists():
            open_or_create(session, TableRef(dataset, str(template)))
        location.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(template, location, ignore=shutil.ignore_patterns("*.crc"))
        first = location / "_delta_log" / f"{0:020d}.json"
        made = deltalake.DeltaTable(str(template)).metadata().id
        first.write_text(first.read_text(encoding="utf-8").replace(str(made), str(uuid4())), encoding="utf-8")
    arrow = to_arrow_schema(dataset.schema, timezone="UTC")
    columns = zip(*rows, strict=True) if rows else [()] * len(arrow)
    arrays = [pa.array(list(values), field.type) for values, field in zip(columns, arrow, strict=True)]
    deltalake.write_deltalake(str(location), pa.Table.from_arrays(arrays, schema=arrow), mode="append")


@cache
def _templates() -> Path:
    """A folder of empty tables, for as long as the process runs."""
    folder = tempfile.TemporaryDirectory(prefix="tables-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def ordered(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows in an order that NULL does not upset."""
    return sorted(rows, key=lambda row: [(value is not None, str(value)) for value in row])


def rows_of(
    dataset: Dataset, root: str, version: int | None = None, options: Mapping[str, str] | None = None
) -> list[tuple[Any, ...]]:
    """The rows of a table in the declared column order, as delta-rs sees them.

    Args:
        options: of delta-rs for the store.
    """
    location = dataset.location(root)
    table = deltalake.DeltaTable(location, version=version, storage_options=dict(options or {})).to_pyarrow_table()
    return ordered(tuple(row[name] for name in dataset.schema.names) for row in table.to_pylist())


def files_of(dataset: Dataset, root: str) -> set[str]:
    """The live data files, below the table."""
    location = dataset.location(root)
    return {uri.split(location.strip("/") + "/", maxsplit=1)[-1] for uri in deltalake.DeltaTable(location).file_uris()}


def versions_of(dataset: Dataset, root: str) -> list[int]:
    """The versions in the log folder."""
    files = list_files(f"{dataset.location(root)}/_delta_log")
    return sorted(int(file.name.removesuffix(".json")) for file in files if file.name.endswith(".json"))


def actions_of(dataset: Dataset, root: str, version: int) -> list[dict[str, Any]]:
    """The actions of one commit as they stand in its file."""
    entry = read_file(f"{dataset.location(root)}/_delta_log/{version:020d}.json")
    return [json.loads(line) for line in entry.decode().splitlines()]


def commit_info(dataset: Dataset, root: str, version: int) -> dict[str, Any]:
    """The commitInfo action of one commit."""
    return next(action["commitInfo"] for action in actions_of(dataset, root, version) if "commitInfo" in action)


def jobs(classic: SparkSession) -> int:
    """How many Spark jobs the driver has run."""
    context: Any = classic.sparkContext
    return int(context._jsc.sc().dagScheduler().numTotalJobs())
