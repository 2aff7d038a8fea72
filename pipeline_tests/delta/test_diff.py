"""What differs between two versions: the same from the change feed as by comparison."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Dataset, Replace
from pipeline.delta.inspect.diff import diff
from pipeline.delta.read.verdict import Reason
from pipeline_tests.delta.sample import placed, put, versions_of

ROWS = StructType([StructField("id", LongType(), False), StructField("text", StringType())])
REPLACED = Dataset(name="replaced", schema=ROWS, write=Replace(), keys=("id",))


def differing(session: SparkSession, dataset: Dataset, root: str, first: int) -> tuple[Reason | None, list[Any]]:
    last = versions_of(dataset, root)[-1]
    found = diff(session, dataset.at(root), first=first, last=last, limit=100)
    rows = [tuple(row) for row in found.answer.rows]
    assert sum(found.counts.values()) == len(rows)
    return found.verdict.reason, rows


@pytest.mark.both_modes
def test_what_differs_is_read_from_the_feed(spark: SparkSession, root: str) -> None:
    placed(spark, REPLACED, root, [(1, "a"), (2, "b")])
    put(spark, REPLACED, root, [(1, "a"), (2, "B"), (5, None)])
    assert differing(spark, REPLACED, root, 1) == (None, [("update_postimage", "2", "B"), ("insert", "5", None)])


@pytest.mark.exhaustive
def test_a_comparison_of_two_versions_says_what_the_feed_says(spark: SparkSession, root: str) -> None:
    placed(spark, REPLACED, root, [(1, "a"), (2, "b"), (3, "c"), (4, "d")])
    put(spark, REPLACED, root, [(1, "a"), (2, "B"), (4, "d")])
    put(spark, REPLACED, root, [(1, "a"), (2, "B"), (4, "d"), (5, None)])
    by_key = [("update_postimage", "2", "B"), ("delete", "3", "c"), ("insert", "5", None)]
    by_row = [("delete", "2", "b"), ("insert", "2", "B"), ("delete", "3", "c"), ("insert", "5", None)]
    keyless = replace(REPLACED, keys=())
    assert differing(spark, REPLACED, root, 1) == (None, by_key)
    reason, rows = differing(spark, keyless, root, 1)
    assert (reason, sorted(rows, key=str)) == (None, sorted(by_row, key=str))
    assert differing(spark, REPLACED, root, 3) == (None, [])
    table = f"delta.`{REPLACED.location(root)}`"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'false')").collect()
    spark.sql(f"INSERT INTO {table} VALUES (6, 'f')").collect()
    assert differing(spark, REPLACED, root, 1) == (Reason.FEED_OFF, [*by_key, ("insert", "6", "f")])
    reason, rows = differing(spark, keyless, root, 1)
    assert (reason, sorted(rows, key=str)) == (
        Reason.FEED_OFF, sorted([*by_row, ("insert", "6", "f")], key=str),
    )  # fmt: skip
