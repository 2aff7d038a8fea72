"""Columns of any name that a declaration takes are written, merged and read as changes under that name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Changelog, Dataset, Features, Merge, TableRef
from pipeline.delta.log.mark import Cursor
from pipeline.delta.read.changes import changes_since
from pipeline.delta.read.cursors import EffectiveCursors
from pipeline.delta.table.open_table import require_table
from pipeline.delta.write.write import write
from pipeline_tests.delta.sample import frame_in, note, ordered
from pipeline_tests.delta.test_changes import at

# What statements call their own columns, and a variable.
OURS = (
    "row rank", "is missing", "deletes key", "row before", "rows surplus", "is row", "ended at", "placed at",
    "change kind", "has row", "kept row rank", "fate of row", "${x}", "a.b",
)  # fmt: skip
SCHEMA = StructType(
    [StructField("k.ey", StringType()), StructField("n", LongType()), *(StructField(c, StringType()) for c in OURS)]
)
MERGED = Dataset(
    name="named", schema=SCHEMA, keys=("k.ey",), features=Features(column_mapping="name"),
    write=Merge(order_by="n", delete_when="n < 0", delete_missing=True),
)  # fmt: skip


def row(key: str, n: int, text: str) -> tuple[str | int, ...]:
    """A row with one text in all columns."""
    return (key, n, *(text for _ in OURS))


@pytest.mark.case("M-ODD-NAMES")
@pytest.mark.exhaustive
def test_columns_that_are_called_as_our_own_are_merged_and_their_changes_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    location = MERGED.location(tmp_path.as_uri())
    first = write(
        frame_in(spark, SCHEMA, [row("a", 1, "x"), row("b", 1, "x")]), table=TableRef(MERGED, location), note=note()
    )
    write(frame_in(spark, SCHEMA, [row("a", 2, "y"), row("c", 2, "y")]), table=TableRef(MERGED, location), note=note())
    log = StructType([StructField("op", StringType()), *SCHEMA.fields])
    mode = Merge(changelog=Changelog(operation="op", sequence="n", ignore_nulls=("row rank", "${x}")))
    kept = ("u", "a", 3, None, *("z" for _ in OURS[1:]))
    logged = replace(MERGED, write=mode)
    write(frame_in(spark, log, [kept, ("d", *row("c", 3, ""))]), table=TableRef(logged, location), note=note())
    expected = ("a", 3, "y", *("z" for _ in OURS[1:]))
    assert [tuple(found) for found in spark.read.format("delta").load(location).collect()] == [expected]
    table_id = require_table(spark, TableRef(MERGED, location)).table_id
    cursor = Cursor(table_id=table_id, version=first.version)
    with changes_since(
        spark, [at(MERGED, tmp_path.as_uri())], EffectiveCursors(number=1, read_at=1, sources={"named": cursor})
    ) as changes:
        net = changes["named"].frame.select("`k.ey`", "`${x}`", "_change_type").collect()
    assert ordered(tuple(found) for found in net) == [("a", "z", "update_postimage"), ("b", "x", "delete")]
