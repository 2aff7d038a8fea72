"""A plain asset writes no more of its table than it did: not the whole of it because its partitions are gone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import deltalake
import pandas as pd
import pyarrow as pa
import pytest
from dagster import (
    AssetsDefinition,
    DagsterInstance,
    DailyPartitionsDefinition,
    MultiPartitionKey,
    MultiPartitionsDefinition,
    StaticPartitionsDefinition,
    asset,
    materialize,
)
from pyspark.sql import SparkSession
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from pipeline.dataset import Dataset
from pipeline.delta.log.mark import HISTORY_LIMIT
from pipeline.errors import DeclarationError
from pipeline.orchestration import DeltaIOManager, DeltaSparkResource, dataset_metadata
from pipeline.settings import SparkSettings
from pipeline_tests.refusals import refused
from pipeline_tests.tiers import first_is_quick

DAILY = DailyPartitionsDefinition("2026-01-01", end_date="2026-01-08")
BY_DAY = {"partition_expr": "day"}
LETTERS = StaticPartitionsDefinition(["A", "B"])
CELLS = MultiPartitionsDefinition({"day": DAILY, "letter": LETTERS})
BY_CELL = {"partition_expr": {"day": "day", "letter": "letter"}}
FIRST, SECOND = dt.date(2026, 1, 1), dt.date(2026, 1, 2)
Run = Callable[..., Any]


@pytest.fixture
def run(root: str, classic: SparkSession, spark_settings: SparkSettings) -> Iterator[Run]:
    manager = DeltaIOManager(root=root, spark=DeltaSparkResource.from_settings(spark_settings))
    with DagsterInstance.ephemeral() as instance:
        yield lambda made, **options: materialize(
            [made], resources={"io_manager": manager}, instance=instance, **options
        )


def readings(frame: pd.DataFrame, **options: Any) -> AssetsDefinition:
    @asset(key="readings", **options)
    def plain() -> Any:
        return frame

    return plain


def rows(root: str) -> list[tuple[Any, ...]]:
    table = deltalake.DeltaTable(f"{root}/readings").to_pyarrow_table().select(["day", "n"])
    return sorted(tuple(row.values()) for row in table.to_pylist())


def of_day(day: dt.date, n: int) -> pd.DataFrame:
    return pd.DataFrame({"day": [day], "n": [n]})


def test_an_asset_that_was_partitioned_and_is_no_more_is_refused_until_it_says_what_it_means(
    root: str, run: Run
) -> None:
    for number, day in enumerate((FIRST, SECOND)):
        frame = of_day(day, number)
        run(readings(frame, partitions_def=DAILY, metadata=BY_DAY), partition_key=day.isoformat())
    written = [(FIRST, 0), (SECOND, 1)]

    for metadata in ({}, BY_DAY):
        with refused(DeclarationError) as caught:
            run(readings(of_day(FIRST, 9), metadata=metadata))
        assert caught.value.dataset == "readings"
        (problem,) = caught.value.problems
        assert "partitioned by (day)" in problem
        assert "2026-01-02" in problem
        assert "partitions_def again" in problem
    assert rows(root) == written

    run(readings(of_day(FIRST, 9), metadata={**BY_DAY, "delta/write_mode": "append"}))
    run(readings(of_day(FIRST, 8), partitions_def=DAILY, metadata=BY_DAY), partition_key="2026-01-01")
    assert rows(root) == [(FIRST, 8), (SECOND, 1)]

    schema = StructType([StructField("day", DateType()), StructField("n", LongType())])
    whole = Dataset(name="readings", schema=schema, partition_by=("day",))
    run(readings(of_day(FIRST, 7), metadata=dataset_metadata(whole)))
    run(readings(of_day(FIRST, 6), metadata=BY_DAY))
    assert rows(root) == [(FIRST, 6)]


@pytest.mark.parametrize("since", first_is_quick(["an append of its own", "many commits of others"]))
def test_that_an_asset_was_partitioned_is_known_whatever_was_committed_since(root: str, run: Run, since: str) -> None:
    for number, day in enumerate((FIRST, SECOND)):
        frame = of_day(day, number)
        run(readings(frame, partitions_def=DAILY, metadata=BY_DAY), partition_key=day.isoformat())
    if since == "an append of its own":
        run(readings(of_day(FIRST, 9), metadata={**BY_DAY, "delta/write_mode": "append"}))
    else:
        for number in range(HISTORY_LIMIT):
            deltalake.write_deltalake(f"{root}/readings", pa.table({"day": [SECOND], "n": [number]}), mode="append")
    written = rows(root)

    with refused(DeclarationError) as caught:
        run(readings(of_day(FIRST, 8), metadata=BY_DAY))
    assert "2026-01-02" in caught.value.problems[0]
    assert rows(root) == written


def test_a_partitioned_table_of_others_is_replaced_only_by_an_asset_that_names_its_partition_column(
    root: str, run: Run
) -> None:
    theirs = pa.table({"day": [FIRST, SECOND], "n": pa.array([1, 2], pa.int64())})
    deltalake.write_deltalake(f"{root}/readings", theirs, partition_by=["day"])

    with refused(DeclarationError) as caught:
        run(readings(of_day(FIRST, 9)))
    assert "nothing states that it replaces all" in caught.value.problems[0]
    assert rows(root) == [(FIRST, 1), (SECOND, 2)]

    run(readings(of_day(FIRST, 9), metadata=BY_DAY))
    assert rows(root) == [(FIRST, 9)]


def in_cell(letter: str, n: int) -> pd.DataFrame:
    return of_day(FIRST, n).assign(letter=letter)


def write_cells(run: Run) -> None:
    for n, letter in enumerate("AB"):
        key = MultiPartitionKey({"day": "2026-01-01", "letter": letter})
        run(readings(in_cell(letter, n), partitions_def=CELLS, metadata=BY_CELL), partition_key=key)


@pytest.mark.parametrize(
    ("partitions_def", "column", "key"),
    first_is_quick([(DAILY, "day", "2026-01-01"), (LETTERS, "letter", "B")]),
    ids=["day", "letter"],
)
def test_an_asset_that_lost_one_of_its_dimensions_is_refused(
    root: str, run: Run, partitions_def: Any, column: str, key: str
) -> None:
    write_cells(run)
    with refused(DeclarationError) as caught:
        plain = readings(in_cell("B", 8), partitions_def=partitions_def, metadata={"partition_expr": column})
        run(plain, partition_key=key)
    (problem,) = caught.value.problems
    assert f"partitions only by ({column})" in problem
    assert "day = 2026-01-01 and letter = B" in problem
    assert "partitions_def again" in problem
    assert rows(root) == [(FIRST, 0), (FIRST, 1)]


@pytest.mark.exhaustive
def test_an_asset_that_lost_a_dimension_is_refused_after_an_append_until_a_declared_replace(
    root: str, run: Run
) -> None:
    write_cells(run)
    daily = {"partitions_def": DAILY}
    run(
        readings(in_cell("A", 7), metadata={**BY_DAY, "delta/write_mode": "append"}, **daily),
        partition_key="2026-01-01",
    )
    with refused(DeclarationError):
        run(readings(in_cell("A", 8), metadata=BY_DAY, **daily), partition_key="2026-01-01")
    assert rows(root) == [(FIRST, 0), (FIRST, 1), (FIRST, 7)]

    schema = StructType(
        [StructField("day", DateType()), StructField("n", LongType()), StructField("letter", StringType())]
    )
    declared = Dataset(name="readings", schema=schema, partition_by=("day", "letter"))
    run(readings(in_cell("A", 6), metadata=dataset_metadata(declared) | BY_DAY, **daily), partition_key="2026-01-01")
    run(readings(in_cell("B", 5), metadata=BY_DAY, **daily), partition_key="2026-01-01")
    assert rows(root) == [(FIRST, 5)]


@pytest.mark.exhaustive
def test_what_a_group_by_returns_makes_a_table_with_the_column_that_it_is_grouped_by(root: str, run: Run) -> None:
    frame = pd.concat([of_day(FIRST, 1), of_day(FIRST, 2), of_day(SECOND, 3)]).groupby("day").sum()
    run(readings(frame))
    run(readings(frame))
    assert rows(root) == [(FIRST, 3), (SECOND, 3)]
