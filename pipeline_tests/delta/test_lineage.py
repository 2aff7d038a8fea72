"""Where the columns of a frame come from, by Spark's plan: known exactly, or left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.window import Window

from pipeline.delta.inspect.lineage import column_lineage, scans
from pipeline.delta.spark import own_classes

A, B, D, ARR = "A.a", "A.b", "A.d", "A.arr"
FORM = "a INT, b STRING, d DATE, arr ARRAY<STRUCT<x: INT, y: STRING>>"
Known = dict[str, set[str]]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, classic: SparkSession) -> Path:
    root = tmp_path_factory.mktemp("lineage of")
    for name in "AB":
        properties = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
        classic.sql(f"CREATE TABLE delta.`{root / name}` ({FORM}) USING delta PARTITIONED BY (d) {properties}")
    return root


def known(frame: DataFrame) -> Known:
    found = column_lineage(frame)
    return {column: {f"{Path(place).name}.{name}" for place, name in of} for column, of in found.items()}


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def stripped(text: str) -> str:
    return text.strip()


def frames_of_one_table(a: DataFrame) -> dict[str, tuple[DataFrame, Known]]:
    by_d = Window.partitionBy("d").orderBy("a")
    return {
        "columns": (a.select("b", F.col("a").alias("c")), {"b": {B}, "c": {A}}),
        "literal": (a.select(F.lit(1).alias("one")), {"one": set()}),
        "expression": (a.select(F.when(F.col("a") > 1, F.col("b")).alias("x")), {"x": {A, B}}),
        "itself": (a.alias("l").join(a.alias("r"), F.expr("l.a = r.a")).selectExpr("l.a", "r.b"), {"a": {A}, "b": {B}}),
        "aggregate": (a.groupBy("d").agg(F.max("b").alias("m"), F.count("*")), {"d": {D}, "m": {B}, "count(1)": set()}),
        "rollup": (a.rollup("d", "b").agg(F.sum("a").alias("s")), {"d": {D}, "b": {B}, "s": {A}}),
        "window": (a.select("b", F.row_number().over(by_d).alias("n")), {"b": {B}, "n": {A, D}}),
        "exploded": (a.select("a", F.explode("arr").alias("r")).select("a", "r.*"), {"a": {A}, "x": {ARR}, "y": {ARR}}),
        "nested": (a.select(F.struct("a", "b").alias("s")).select("s.b"), {"b": {A, B}}),
        "lambda": (a.select(F.transform("arr", lambda e: e["x"] + F.col("a")).alias("t")), {"t": {A, ARR}}),
        "row function": (a.select(F.udf(stripped, useArrow=False)("b").alias("u")), {"u": {B}}),
        "of other order": (a.select("a").orderBy("b").limit(3).repartition(2).dropDuplicates(), {"a": {A}}),
        "pivot": (a.groupBy("a").pivot("b", ["x"]).agg(F.max("d")), {"a": {A}, "x": {B, D}}),
        "held": (a.persist().select("a"), {"a": {A}}),
        "partition function": (a.select("a").mapInArrow(same, "a INT").withColumn("k", F.lit(1)), {"k": set()}),
        "group function": (a.groupBy("a").applyInPandas(lambda rows: rows, a.schema), {}),
        "unpivot": (a.selectExpr("a", "b").unpivot("a", ["b"], "k", "v"), {"a": {A}}),
        "checkpoint": (a.select("a").localCheckpoint(), {}),
    }


@pytest.mark.both_modes
def test_a_column_comes_from_what_its_expression_reads(spark: SparkSession, tables: Path) -> None:
    a = spark.read.format("delta").load(str(tables / "A"))
    expected = frames_of_one_table(a)
    assert {name: known(frame) for name, (frame, _) in expected.items()} == {n: of for n, (_, of) in expected.items()}


@pytest.mark.both_modes
def test_the_columns_of_several_tables_are_told_apart(spark: SparkSession, tables: Path) -> None:
    a, b = (spark.read.format("delta").load(str(tables / name)) for name in "AB")
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
    changes = feed.load(str(tables / "A"))
    a.createOrReplaceTempView("lineage_a")
    statement = (
        f"WITH t AS (SELECT a x, b FROM lineage_a) SELECT t.x, u.b FROM t JOIN delta.`{tables / 'B'}` u ON x = a"
    )
    cte = spark.sql(statement)
    subquery = spark.sql(f"SELECT a, (SELECT max(b) FROM lineage_a) m FROM delta.`{tables / 'B'}`")
    expected: dict[str, tuple[DataFrame, Known]] = {
        "join": (a.join(b, "a").select("a", b.b, (a.a + b.a).alias("s")), {"a": {A}, "b": {"B.b"}, "s": {A, "B.a"}}),
        "outer join": (a.join(b, "a", "full").select("a"), {"a": {A, "B.a"}}),
        "semi join": (a.select("a").join(b, "a", "left_semi"), {"a": {A}}),
        "union": (a.select("a", "b").unionByName(b.select("b", "a")), {"a": {A, "B.a"}, "b": {B, "B.b"}}),
        "difference": (a.select("a").exceptAll(b.select("a")), {"a": {A}}),
        "cte": (cte, {"x": {A}, "b": {"B.b"}}),
        "subquery": (subquery, {"a": {"B.a"}}),
        "changes": (changes.selectExpr("a", "_change_type t"), {"a": {A}, "t": set()}),
    }
    assert {name: known(frame) for name, (frame, _) in expected.items()} == {n: of for n, (_, of) in expected.items()}
    spark.catalog.dropTempView("lineage_a")
    read = [(Path(scan.location).name, scan.version) for scan in scans(a.join(changes, "a"))]
    assert read == [("A", 0), ("A", None)]


@pytest.mark.parametrize("spark", ["connect"], indirect=True)
def test_on_a_server_without_our_class_nothing_is_known(
    spark: SparkSession, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = spark.read.format("delta").load(str(tables / "A"))
    assert "a" in column_lineage(frame)
    monkeypatch.setattr(own_classes, "REQUESTS", "com.example.Another")
    assert (column_lineage(frame), scans(frame), own_classes.executed_scans(frame)) == ({}, [], None)
