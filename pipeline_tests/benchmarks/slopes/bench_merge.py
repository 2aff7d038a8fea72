"""A merge of 500 rows whose keys are in two of 50 partitions, into small, middle and great tables.

Target: from 200 000 rows to 20 000 000 rows at most twice the time. That no other file is read is proven: before the
last merge the folders of all other partitions are moved away.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from pipeline.dataset import Dataset, Merge
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline_tests.benchmarks.results import compared, measured
from pipeline_tests.benchmarks.turns import all_in_turns, is_quick
from pipeline_tests.delta.sample import files_of, note

PARTITIONS, MERGED, TOUCHED = 50, 500, (7, 8)
SCHEMA = StructType(
    [
        StructField("part", IntegerType(), False),
        StructField("id", LongType(), False),
        StructField("at", LongType()),
        StructField("text", StringType()),
    ]
)
SIZES = (20_000, 200_000, 2_000_000) if is_quick() else (200_000, 2_000_000, 20_000_000)
ROUNDS, AT_MOST = 16, 2.0


def dataset(size: int) -> Dataset:
    write_mode = Merge(order_by="at")
    return Dataset(name=f"of{size}", schema=SCHEMA, partition_by=("part",), keys=("part", "id"), write=write_mode)


def rows(spark: SparkSession, size: int) -> DataFrame:
    """The rows of a table, one file for each partition."""
    columns = f"CAST(id DIV {size // PARTITIONS} AS INT) AS part", "id", "0L AS at", "concat('row ', id) AS text"
    return spark.range(0, size, 1, PARTITIONS).selectExpr(*columns)


def changed(spark: SparkSession, size: int, at: int) -> DataFrame:
    """Rows whose keys are all over two partitions."""
    each, count = size // PARTITIONS, MERGED // len(TOUCHED)
    part = f"CAST({TOUCHED[0]} + id DIV {count} AS INT)"
    identity = f"CAST({part} * {each} + (id % {count}) * {each // count} AS BIGINT)"
    return spark.range(MERGED).selectExpr(f"{part} AS part", f"{identity} AS id", f"{at}L AS at", f"'at {at}' AS text")


def merge(spark: SparkSession, root: str, size: int, number: int) -> WriteResult:
    frame = changed(spark, size, number + 1)
    result = write(frame, table=dataset(size).at(root), note=note())
    assert result.rows_updated == MERGED
    return result


def bare_merge(spark: SparkSession, location: str, size: int, number: int) -> None:
    statement = f"""
        MERGE INTO delta.`{location}` AS target USING {{changed}} AS source
        ON target.part = source.part AND target.id = source.id AND target.part IN {TOUCHED}
        WHEN MATCHED AND source.at > target.at THEN UPDATE SET *
        WHEN NOT MATCHED THEN INSERT *"""
    spark.sql(statement, changed=changed(spark, size, number + 1)).collect()


def test_a_merge_into_tables_of_growing_size(classic: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "tables")
    for size in SIZES:
        write(rows(classic, size), table=dataset(size).at(root), note=note())
    bare = {size: str(tmp_path / f"bare{size}") for size in (SIZES[-1], SIZES[0])}
    for size, location in bare.items():  # the same files
        shutil.copytree(dataset(size).location(root), location, copy_function=os.link)
    sides = {f"{size} rows": lambda n, size=size: merge(classic, root, size, n) for size in reversed(SIZES)}
    sides |= {f"bare, {size} rows": lambda n, size=size: bare_merge(classic, bare[size], size, n) for size in bare}
    found = all_in_turns(ROUNDS, sides)
    ends = {f"{size} rows": found[f"{size} rows"] for size in (SIZES[-1], SIZES[0], SIZES[1])}
    compared(f"merge of {MERGED} rows into two partitions of {PARTITIONS}", ends, AT_MOST)
    theirs = {name: seconds for name, seconds in found.items() if name.startswith("bare")}
    compared(f"merge of {MERGED} rows into two partitions of {PARTITIONS}, by bare delta-spark", theirs)
    greatest = {"ours": found[f"{SIZES[-1]} rows"], "bare": theirs[f"bare, {SIZES[-1]} rows"]}
    compared(f"merge of {MERGED} rows into {SIZES[-1]}", greatest)
    prove_files_read(classic, root, tmp_path / "away")


def prove_files_read(spark: SparkSession, root: str, away: Path) -> None:
    """A merge into the greatest table while only the folders of the two partitions are there."""
    table = dataset(SIZES[-1])
    location = Path(table.location(root))
    away.mkdir()
    files = len(files_of(table, root))
    there = [location / f"part={part}" for part in TOUCHED]
    live = sum(Path(file).parent.name in {folder.name for folder in there} for file in files_of(table, root))
    for folder in location.glob("part=*"):
        if folder not in there:
            folder.rename(away / folder.name)
    result = merge(spark, root, SIZES[-1], ROUNDS)
    proven = f"{result.files_removed} of {files} files were rewritten; no other partition's files could be read"
    measured("merge of 500 rows: files that it may read", [live], "files", len(TOUCHED), note=proven)
