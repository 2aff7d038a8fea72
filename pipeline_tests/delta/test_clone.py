"""A table that begins as a version of another one: the same writes give the same rows, and both stay apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Check, Dataset, Features, History, Merge
from pipeline.delta.export.clone import folders_of_clones, remove_clones, shallow_clone
from pipeline.delta.log.mark import Mark
from pipeline.delta.log.snapshot import transaction_version
from pipeline.delta.migrate.compare import compare_tables
from pipeline.delta.table.open_table import require_table
from pipeline.delta.write.write import write
from pipeline.errors import PipelineError
from pipeline_tests.delta.sample import APPENDED, day, frame_of, note, put

ROWS = StructType(
    [StructField("id", LongType(), False), StructField("part", StringType(), False), StructField("n", LongType())]
)
TWICE = StructType([*ROWS.fields, StructField("twice", LongType())])
HISTORY = StructType([*ROWS.fields, StructField("since", LongType()), StructField("until", LongType())])
MODES: dict[str, Dataset] = {
    "mapped columns": Dataset(
        name="mapped", schema=ROWS, write=Append(), features=Features(column_mapping="name"), partition_by=("part",)
    ),
    "deletion vectors": Dataset(
        name="vectors", schema=ROWS, write=Merge(order_by="n"), keys=("id",), features=Features(deletion_vectors=True)
    ),
    "clusters and row tracking": Dataset(
        name="tracked", schema=ROWS, write=Append(), features=Features(cluster_by=("id",), row_tracking=True)
    ),
    "generated columns and checks": Dataset(
        name="generated", schema=TWICE, write=Append(), features=Features(generated=(("twice", "n * 2"),)),
        checks=(Check("is_small", "n < 1000"),),
    ),
    "the state of a History": Dataset(
        name="aged", schema=HISTORY, keys=("id",),
        write=History(order_by="n", valid_from="since", valid_to="until", from_snapshots=True),
    ),
}  # fmt: skip


def rows_for(dataset: Dataset, rows: list[tuple[Any, ...]], spark: SparkSession) -> Any:
    given = StructType([field for field in dataset.schema.fields if field.name in ROWS.names])
    return frame_of(spark, replace(dataset, schema=given, write=Append(), features=Features(), checks=()), rows)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", MODES)
def test_the_same_write_gives_the_same_rows_in_the_clone(spark: SparkSession, root: str, kind: str) -> None:
    dataset = MODES[kind]
    table, clone = dataset.at(root), dataset.at(f"{root}/_reruns/one")
    first, second = [(1, "a", 1), (2, "b", 1), (3, "b", 1)], [(1, "a", 2), (4, "c", 2)]
    write(rows_for(dataset, first, spark), table=table, note=note())
    before = require_table(spark, table).version
    write(rows_for(dataset, second, spark), table=table, note=note())
    after = require_table(spark, table).version
    files = sorted(str(path) for path in Path(table.location).rglob("*.parquet"))
    shallow_clone(spark, dataset.name, table.location, before, clone.location)
    assert compare_tables(spark, dataset.name, (table.location, before), (clone.location, 0)).is_equal
    done = write(rows_for(dataset, second, spark), table=clone, note=note())
    assert done.version == 1
    compared = compare_tables(spark, dataset.name, (table.location, after), (clone.location, 1))
    assert (compared.is_equal, compared.left_out) == (True, ())
    assert not compare_tables(spark, dataset.name, (table.location, before), (clone.location, 1)).is_equal
    remove_clones(f"{root}/_reruns/one")
    assert not Path(root, "_reruns").exists()
    assert sorted(str(path) for path in Path(table.location).rglob("*.parquet")) == files
    assert compare_tables(spark, dataset.name, (table.location, after), (table.location, after)).is_equal


@pytest.mark.exhaustive
def test_a_clone_has_no_identifier_of_an_earlier_write_so_that_no_write_is_skipped(
    spark: SparkSession, root: str
) -> None:
    table, clone = APPENDED.at(root), APPENDED.at(f"{root}/_reruns/one")
    once = note("writer", run_id="run")
    own = replace(once, mark=Mark(writer="writer", epoch=0))
    frame = frame_of(spark, APPENDED, [(day(1), 1, "a")])
    write(frame, table=table, note=own)
    assert transaction_version(table.location, 1, "pipeline/0/writer") == 0
    shallow_clone(spark, APPENDED.name, table.location, 1, clone.location)
    assert transaction_version(clone.location, 0, "pipeline/0/writer") is None
    again = write(frame, table=clone, note=replace(own, mark=Mark(writer="writer", epoch=0)))
    assert (again.committed, again.rows_written) == (True, 1)
    compared = compare_tables(spark, APPENDED.name, (table.location, 1), (clone.location, 1))
    assert compared.rows is not None
    assert (compared.is_equal, compared.rows.source_rows, compared.rows.table_rows) == (False, 1, 2)
    assert folders_of_clones(f"{root}/_reruns") == (f"{root}/_reruns/one",)


@pytest.mark.exhaustive
def test_columns_that_differ_are_named_and_the_others_are_compared(spark: SparkSession, root: str) -> None:
    first, second = f"{root}/first", f"{root}/second"
    old = "1L AS id, 'x' AS gone, map('a', 1L, 'b', 2L) AS by_name, parse_json('[1]') AS any, 1L AS kind"
    new = "1L AS id, map('b', 2L, 'a', 1L) AS by_name, parse_json('[ 1]') AS any, '1' AS kind, 2 AS more"
    for location, columns in ((first, old), (second, new)):
        spark.sql(f"SELECT {columns}").write.format("delta").save(location)
    compared = compare_tables(spark, "wide", (first, 0), (second, 0))
    assert compared.columns == (
        "column gone is missing", "column more is new", "column kind was bigint and is string",
    )  # fmt: skip
    assert compared.rows is not None
    assert (compared.is_equal, compared.rows.differences) == (False, ())


@pytest.mark.exhaustive
def test_a_version_that_is_gone_and_a_place_that_is_taken_are_refused(spark: SparkSession, root: str) -> None:
    put(spark, APPENDED, root, [(day(1), 1, "a")])
    location = APPENDED.location(root)
    with pytest.raises(PipelineError):
        shallow_clone(spark, APPENDED.name, location, 7, f"{root}/_reruns/one/days")
    shallow_clone(spark, APPENDED.name, location, 1, f"{root}/_reruns/two/days")
    with pytest.raises(PipelineError):
        shallow_clone(spark, APPENDED.name, location, 1, f"{root}/_reruns/two/days")


@pytest.mark.exhaustive
def test_the_numbers_of_an_identity_column_are_not_compared(spark: SparkSession, root: str) -> None:
    first, second = f"{root}/first", f"{root}/second"
    for location, rows in ((first, "(1), (2)"), (second, "(2), (1)")):
        spark.sql(
            f"CREATE TABLE delta.`{location}` (number BIGINT GENERATED ALWAYS AS IDENTITY, id INT) USING DELTA"
        ).collect()
        spark.sql(f"INSERT INTO delta.`{location}` (id) VALUES {rows}").collect()
    compared = compare_tables(spark, "numbered", (first, 1), (second, 1))
    assert (compared.is_equal, compared.left_out) == (True, ("number",))
