"""Partition mappings on inputs: a step sees exactly the rows of the partitions that Dagster maps to it."""

import datetime as dt
import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from dagster import (
    AllPartitionMapping,
    AssetIn,
    AssetKey,
    AssetsDefinition,
    BetaWarning,
    DagsterInstance,
    DailyPartitionsDefinition,
    Definitions,
    DimensionPartitionMapping,
    DynamicPartitionsDefinition,
    IdentityPartitionMapping,
    LastPartitionMapping,
    MultiPartitionMapping,
    MultiPartitionsDefinition,
    MultiToSingleDimensionPartitionMapping,
    PartitionKeyRange,
    PartitionMapping,
    PartitionsDefinition,
    SpecificPartitionsPartitionMapping,
    StaticPartitionMapping,
    StaticPartitionsDefinition,
    TimeWindowPartitionMapping,
    WeeklyPartitionsDefinition,
    asset,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from pipeline.dataset import Dataset
from pipeline.orchestration import DeltaSparkResource, dataset_asset
from pipeline.settings import SparkSettings
from pipeline_tests.delta.sample import put
from pipeline_tests.orchestration.conftest import RANGE_END, RANGE_START, Project

DAILY = DailyPartitionsDefinition("2026-01-01", end_date="2026-01-11")
WEEKLY = WeeklyPartitionsDefinition("2026-01-04", end_date="2026-01-18")
LETTERS = StaticPartitionsDefinition(["A", "B", "C"])
GROUPS = StaticPartitionsDefinition(["x", "y", "z"])
CELLS = MultiPartitionsDefinition({"letter": LETTERS, "day": DAILY})
DYNAMIC = DynamicPartitionsDefinition(name="letters")
Case = tuple[AssetsDefinition, PartitionsDefinition | None, PartitionMapping | None, list[str], set[int]]


def day(number: int) -> dt.date:
    return dt.date(2026, 1, number)


def dataset(name: str, *partition_by: str) -> Dataset:
    schema = StructType(
        [StructField("n", LongType()), StructField("letter", StringType()), StructField("day", DateType())]
    )
    return Dataset(name=name, schema=schema, partition_by=partition_by, change_feed=False)


# Of each table one row a cell, numbered, and one row of no partition at all.
ROWS = [(n, letter, day(d)) for n, (letter, d) in enumerate(itertools.product("ABC", range(1, 11)))]
NOWHERE = (100, None, None)


def source(declared: Dataset, partitions_def: PartitionsDefinition | None = None) -> AssetsDefinition:
    @dataset_asset(declared, partitions_def=partitions_def)
    def never_run() -> pa.Table:
        raise AssertionError

    return never_run


BY_DAY = source(dataset("by_day", "day"), DAILY)
BY_WEEK = source(dataset("by_week", "day"), WEEKLY)
BY_LETTER = source(dataset("by_letter", "letter"), LETTERS)
BY_DYNAMIC = source(dataset("by_dynamic", "letter"), DYNAMIC)
BY_CELL = source(dataset("by_cell", "letter", "day"), CELLS)
FLAT = source(dataset("flat"))
TABLES = {
    "by_day": ("day",), "by_week": ("day",), "by_letter": ("letter",), "by_dynamic": ("letter",),
    "by_cell": ("letter", "day"), "flat": (),
}  # fmt: skip


@dataclass
class Sources:
    """Tables of all kinds, each with the same rows, and steps that look at them."""

    project: Project

    def seen(
        self,
        upstream: AssetsDefinition,
        partitions_def: PartitionsDefinition | None,
        mapping: PartitionMapping | None,
        *keys: str,
    ) -> set[int]:
        """The numbers of the rows that a step over these keys sees; of several keys the first and last are given."""
        numbers: list[int] = []

        @asset(partitions_def=partitions_def, ins={"given": AssetIn(upstream.key, partition_mapping=mapping)})
        def look(given: DataFrame) -> None:
            numbers.extend(row["n"] for row in given.select("n").collect())

        options: dict[str, Any] = {}
        if len(keys) == 1:
            options["partition_key"] = keys[0]
        elif keys:
            options["tags"] = {RANGE_START: keys[0], RANGE_END: keys[-1]}
        self.project.run(upstream, look, selection=[look], **options)
        assert len(set(numbers)) == len(numbers)
        return set(numbers)


@pytest.fixture(scope="module")
def sources(
    classic: SparkSession, spark_settings: SparkSettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sources]:
    root = str(tmp_path_factory.mktemp("sources"))
    for name, partition_by in TABLES.items():
        put(classic, dataset(name, *partition_by), root, [*ROWS, NOWHERE])
    with DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("letters", list("ABC"))
        resource = DeltaSparkResource.from_settings(spark_settings)
        yield Sources(Project(root=root, spark=resource, instance=instance))


def of(letters: Sequence[str] = "ABC", days: Sequence[int] = range(1, 11)) -> set[int]:
    """The numbers of the rows of these letters and days."""
    return {n for n, letter, date in ROWS if letter in letters and date.day in days}


EVERYTHING = {*of(), NOWHERE[0]}


def cases() -> dict[str, Case]:
    """By name: what is read, how the reader is partitioned and mapped, its keys, and what it sees."""
    groups = StaticPartitionMapping({"A": "x", "B": "y", "C": "x"})
    return {
        "inferred identity": (BY_DAY, DAILY, None, ["2026-01-02"], of(days=[2])),
        "identity over a range": (
            BY_DAY,
            DAILY,
            IdentityPartitionMapping(),
            ["2026-01-02", "2026-01-04"],
            of(days=[2, 3, 4]),
        ),
        "all": (BY_DAY, DAILY, AllPartitionMapping(), ["2026-01-02"], of()),
        "last": (BY_DAY, DAILY, LastPartitionMapping(), ["2026-01-02"], of(days=[10])),
        "the day before too": (
            BY_DAY,
            DAILY,
            TimeWindowPartitionMapping(start_offset=-1),
            ["2026-01-05"],
            of(days=[4, 5]),
        ),
        "an overlapping range": (
            BY_DAY,
            DAILY,
            TimeWindowPartitionMapping(start_offset=-2),
            ["2026-01-05", "2026-01-06"],
            of(days=range(3, 7)),
        ),
        "nothing before the first": (
            BY_DAY,
            DAILY,
            TimeWindowPartitionMapping(start_offset=-1, allow_nonexistent_upstream_partitions=True),
            ["2026-01-01"],
            of(days=[1]),
        ),
        "days of a week": (BY_DAY, WEEKLY, None, ["2026-01-04"], of(days=range(4, 11))),
        "the week of a day": (BY_WEEK, DAILY, None, ["2026-01-06"], of(days=range(4, 11))),
        "named days": (
            BY_DAY,
            DAILY,
            SpecificPartitionsPartitionMapping(["2026-01-03", "2026-01-07"]),
            ["2026-01-01"],
            of(days=[3, 7]),
        ),
        "inferred letters": (BY_LETTER, LETTERS, None, ["B"], of("B")),
        "a group with a hole": (BY_LETTER, GROUPS, groups, ["x"], of("AC")),
        "a range of groups": (BY_LETTER, GROUPS, groups, ["x", "y"], of("ABC")),
        "a group of nothing": (BY_LETTER, GROUPS, groups, ["z"], set()),
        "a dynamic key": (BY_DYNAMIC, DYNAMIC, None, ["B"], of("B")),
        "a cell": (BY_CELL, CELLS, None, ["2026-01-02|B"], of("B", [2])),
        "a range of cells": (BY_CELL, CELLS, None, ["2026-01-02|A", "2026-01-03|B"], of("AB", [2, 3])),
        "a day of cells": (BY_CELL, DAILY, MultiToSingleDimensionPartitionMapping("day"), ["2026-01-02"], of(days=[2])),
        "a cell's day": (BY_DAY, CELLS, MultiToSingleDimensionPartitionMapping("day"), ["2026-01-02|B"], of(days=[2])),
        "a mapping a dimension": (
            BY_CELL,
            CELLS,
            MultiPartitionMapping(
                {
                    "day": DimensionPartitionMapping("day", TimeWindowPartitionMapping(start_offset=-1)),
                    "letter": DimensionPartitionMapping("letter", StaticPartitionMapping({"A": "B", "C": "B"})),
                }
            ),
            ["2026-01-05|B"],
            of("AC", [4, 5]),
        ),
        "unpartitioned reads all": (BY_DAY, None, None, [], EVERYTHING),
        "unpartitioned reads the last": (BY_DAY, None, LastPartitionMapping(), [], of(days=[10])),
        "unpartitioned reads one": (BY_DAY, None, SpecificPartitionsPartitionMapping(["2026-01-03"]), [], of(days=[3])),
        "partitioned of flat": (FLAT, DAILY, None, ["2026-01-02"], EVERYTHING),
    }


with warnings.catch_warnings():
    # Dagster calls some of its mappings beta.
    warnings.simplefilter("ignore", BetaWarning)
    CASES = cases()


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
@pytest.mark.parametrize(("upstream", "partitions_def", "mapping", "keys", "expected"), CASES.values(), ids=CASES)
def test_a_step_sees_exactly_the_mapped_partitions(
    sources: Sources,
    upstream: AssetsDefinition,
    partitions_def: PartitionsDefinition | None,
    mapping: PartitionMapping | None,
    keys: list[str],
    expected: set[int],
) -> None:
    assert sources.seen(upstream, partitions_def, mapping, *keys) == expected


def test_outside_a_run_a_value_is_of_the_keys_that_are_asked_for(sources: Sources) -> None:
    project = sources.project
    built = Definitions(assets=[BY_DAY, BY_DYNAMIC], resources=project.resources())
    with built.get_asset_value_loader(project.instance) as loader:

        def numbers(name: str, **keys: Any) -> set[int]:
            return {row["n"] for row in loader.load_asset_value(AssetKey(name), **keys).select("n").collect()}

        assert numbers("by_dynamic", partition_key="B") == of("B")
        days = PartitionKeyRange("2026-01-02", "2026-01-03")
        assert numbers("by_day", partition_key_range=days) == of(days=[2, 3])
        assert numbers("by_day") == EVERYTHING
