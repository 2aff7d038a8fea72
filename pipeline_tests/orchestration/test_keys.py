"""Partition keys through the IO manager to the rows on disk: what they address becomes right, all else stays."""

import datetime as dt
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest
from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    DailyPartitionsDefinition,
    DynamicPartitionsDefinition,
    HourlyPartitionsDefinition,
    MonthlyPartitionsDefinition,
    MultiPartitionsDefinition,
    OutputContext,
    PartitionKeyRange,
    PartitionsDefinition,
    StaticPartitionsDefinition,
    TimeWindowPartitionsDefinition,
    build_output_context,
)
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType, TimestampType

from pipeline.dataset import Dataset
from pipeline.orchestration import DeltaIOManager, dataset_asset
from pipeline.orchestration.dataset_asset import dataset_metadata
from pipeline_tests.delta.sample import files_of, rows_of, versions_of
from pipeline_tests.orchestration.conftest import Project, materializations

pytestmark = pytest.mark.parametrize("spark_resource", ["classic"], indirect=True)

Row = tuple[Any, ...]
LETTERS = StaticPartitionsDefinition(["A", "B", "C"])
LETTERED = Dataset(
    name="lettered",
    schema=StructType([StructField("letter", StringType()), StructField("n", LongType())]),
    partition_by=("letter",),
    change_feed=False,
)
AUTUMN = HourlyPartitionsDefinition("2023-11-05-00:00", end_date="2023-11-06-00:00", timezone="America/Los_Angeles")
HOURS = Dataset(
    name="hours",
    schema=StructType([StructField("at", TimestampType()), StructField("n", LongType())]),
    partition_by=("at",),
    change_feed=False,
)
MONTHS = MonthlyPartitionsDefinition("2015-01", end_date="2015-03", fmt="%Y-%m")
CELLS = MultiPartitionsDefinition({"month": MONTHS, "abc": StaticPartitionsDefinition(["A", "B"])})
CELLED = Dataset(
    name="celled",
    schema=StructType(
        [StructField("abc", StringType()), StructField("month", DateType()), StructField("n", LongType())]
    ),
    partition_by=("abc", "month"),
    change_feed=False,
)
ALL_CELLS = ["A|2015-01", "A|2015-02", "B|2015-01", "B|2015-02"]


def table(dataset: Dataset, rows: Iterable[Row]) -> pa.Table:
    names = dataset.schema.names
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows]).select(names)


def keyed(dataset: Dataset, partitions_def: PartitionsDefinition, row_of: Callable[[str], Row]) -> AssetsDefinition:
    """An asset with one row for each key of its run."""

    @dataset_asset(dataset, partitions_def=partitions_def)
    def one_row_a_key(context: AssetExecutionContext) -> pa.Table:
        return table(dataset, [row_of(key) for key in context.partition_keys])

    return one_row_a_key


def lettered(n: int) -> AssetsDefinition:
    return keyed(LETTERED, LETTERS, lambda key: (key, n))


def hour(key: str) -> dt.datetime:
    return AUTUMN.time_window_for_partition_key(key).start.astimezone(dt.timezone.utc)


def cell(key: str, n: int) -> Row:
    abc, month = key.split("|")
    return abc, dt.date.fromisoformat(f"{month}-01"), n


def handed(dataset: Dataset, partitions_def: PartitionsDefinition, keys: list[str]) -> OutputContext:
    """What Dagster hands over for a set of keys with holes, which `build_output_context` has no parameter for."""
    return OutputContext(
        log_manager=build_output_context().log,
        step_key="step",
        run_id="run",
        asset_key=AssetKey(dataset.asset_key),
        definition_metadata=dataset_metadata(dataset),
        asset_partitions_def=partitions_def,
        asset_partitions_subset=partitions_def.subset_with_partition_keys(keys),
    )


@pytest.mark.exhaustive
def test_two_of_three_static_keys_are_two_runs_and_the_one_between_is_untouched(project: Project) -> None:
    project.run_range("A", "C", lettered(1))
    before = {path for path in files_of(LETTERED, project.root) if "letter=B" in path}
    for key in ("A", "C"):
        found = materializations(project.run_range(key, key, lettered(2)), LETTERED)
        assert {k: metadata["dagster/partition_row_count"] for k, metadata in found.items()} == {key: 1}
    assert rows_of(LETTERED, project.root) == [("A", 2), ("B", 1), ("C", 2)]
    assert versions_of(LETTERED, project.root) == [0, 1, 2, 3]
    assert {path for path in files_of(LETTERED, project.root) if "letter=B" in path} == before


@pytest.mark.exhaustive
def test_a_set_of_keys_with_a_hole_is_one_commit_that_leaves_the_hole(project: Project) -> None:
    project.run_range("A", "C", lettered(1))
    manager = DeltaIOManager(root=project.root, spark=project.spark)
    manager.handle_output(handed(LETTERED, LETTERS, ["C", "A"]), table(LETTERED, [("A", 2), ("C", 2)]))
    assert rows_of(LETTERED, project.root) == [("A", 2), ("B", 1), ("C", 2)]
    assert versions_of(LETTERED, project.root) == [0, 1, 2]
    manager.handle_output(handed(LETTERED, LETTERS, ["C", "A"]), table(LETTERED, [("C", 3)]))
    assert rows_of(LETTERED, project.root) == [("B", 1), ("C", 3)], "a key without rows is emptied"


def test_a_context_that_a_test_builds_is_written_as_a_run_is(project: Project) -> None:
    """Without a step there is nobody to tell counts by key to."""
    context = build_output_context(
        asset_key=AssetKey(LETTERED.asset_key),
        definition_metadata=dataset_metadata(LETTERED),
        asset_partitions_def=LETTERS,
        asset_partition_key_range=PartitionKeyRange("A", "B"),
    )
    manager = DeltaIOManager(root=project.root, spark=project.spark)
    manager.handle_output(context, table(LETTERED, [("A", 1), ("B", 2)]))
    assert rows_of(LETTERED, project.root) == [("A", 1), ("B", 2)]
    metadata = context.get_logged_metadata()
    assert metadata["delta/version"].value == 1
    assert metadata["delta/rows_written"].value == 2


@pytest.mark.exhaustive
def test_cells_with_holes_in_both_dimensions_are_one_commit(project: Project) -> None:
    project.run_range(ALL_CELLS[0], ALL_CELLS[-1], keyed(CELLED, CELLS, lambda key: cell(key, 1)))
    manager = DeltaIOManager(root=project.root, spark=project.spark)
    diagonal = [ALL_CELLS[3], ALL_CELLS[0]]
    manager.handle_output(handed(CELLED, CELLS, diagonal), table(CELLED, [cell(key, 2) for key in diagonal]))
    expected = [cell(key, 2 if key in diagonal else 1) for key in ALL_CELLS]
    assert rows_of(CELLED, project.root) == expected
    assert versions_of(CELLED, project.root) == [0, 1, 2]


@pytest.mark.exhaustive
@pytest.mark.case("D-MULTI-RANGE")
def test_one_run_over_two_dimensions_writes_all_cells_in_one_commit(project: Project) -> None:
    """A range of cells is a product: from the first to the last month of each letter between."""
    celled = keyed(CELLED, CELLS, lambda key: cell(key, 1))
    found = materializations(project.run_range(ALL_CELLS[0], ALL_CELLS[-1], celled), CELLED)
    assert {key: metadata["dagster/partition_row_count"] for key, metadata in found.items()} == dict.fromkeys(
        ALL_CELLS, 1
    )
    assert rows_of(CELLED, project.root) == [cell(key, 1) for key in ALL_CELLS]
    again = keyed(CELLED, CELLS, lambda key: cell(key, 2))
    project.run_range("A|2015-02", "B|2015-02", again)
    assert rows_of(CELLED, project.root) == [cell(key, 2 if key.endswith("02") else 1) for key in ALL_CELLS]
    project.run(again, partition_key="B|2015-01")
    assert rows_of(CELLED, project.root) == [cell(key, 1 if key == "A|2015-01" else 2) for key in ALL_CELLS]
    assert versions_of(CELLED, project.root) == [0, 1, 2, 3]


@pytest.mark.case("P-DST-HOUR")
@pytest.mark.exhaustive
def test_each_of_the_25_hours_of_an_autumn_day_is_a_partition_and_is_run_again_alone(project: Project) -> None:
    keys = list(AUTUMN.get_partition_keys())
    assert len(keys) == 25
    found = materializations(
        project.run_range(keys[0], keys[-1], keyed(HOURS, AUTUMN, lambda key: (hour(key), keys.index(key)))), HOURS
    )
    assert {key: metadata["dagster/partition_row_count"] for key, metadata in found.items()} == dict.fromkeys(keys, 1)
    assert rows_of(HOURS, project.root) == [(hour(key), n) for n, key in enumerate(keys)]
    assert len({path.split("/")[0] for path in files_of(HOURS, project.root)}) == 25
    repeated = [key for key in keys if "01:00" in key]
    assert len(repeated) == 2
    expected = list(range(25))
    for key in repeated:
        before = files_of(HOURS, project.root)
        project.run(keyed(HOURS, AUTUMN, lambda key: (hour(key), 100)), partition_key=key)
        expected[keys.index(key)] = 100
        assert rows_of(HOURS, project.root) == [(hour(key), expected[n]) for n, key in enumerate(keys)]
        assert len(before - files_of(HOURS, project.root)) == 1


@pytest.mark.case("D-PIPE-KEY")
@pytest.mark.case("D-QUOTE-INJECTION")
def test_keys_of_any_characters_address_their_own_partition_only(project: Project) -> None:
    keys = ["a|1", "d'or", "x' OR '1'='1", "back\\slash", "per%cent", "$HOME", "日本", "sl/ash", "a b"]
    dynamic = DynamicPartitionsDefinition(name="letters")
    project.instance.add_dynamic_partitions("letters", keys)
    project.run_range(keys[0], keys[-1], keyed(LETTERED, dynamic, lambda key: (key, 1)))
    assert set(rows_of(LETTERED, project.root)) == {(key, 1) for key in keys}
    for key in keys[:4]:
        result = project.run(keyed(LETTERED, dynamic, lambda key: (key, 2)), partition_key=key)
        assert materializations(result, LETTERED)[key]["dagster/partition_row_count"] == 1
    assert set(rows_of(LETTERED, project.root)) == {(key, 2 if key in keys[:4] else 1) for key in keys}


@pytest.mark.exhaustive
@pytest.mark.case("D-SWALLOWED-ERROR")
def test_days_of_a_text_column_are_all_there_after_three_runs(project: Project) -> None:
    """A DATE literal against a string column would fail; the failure must never pass for 'no table yet'."""
    daily = DailyPartitionsDefinition("2026-01-01", end_date="2026-02-01")
    days = [f"2026-01-0{n}" for n in (1, 2, 3)]
    for day in days:
        project.run(keyed(LETTERED, daily, lambda key: (key, 1)), partition_key=day)
    assert rows_of(LETTERED, project.root) == [(day, 1) for day in days]


@pytest.mark.exhaustive
@pytest.mark.case("D-YEAR-FMT")
def test_a_year_of_a_date_column_is_replaced_whole(project: Project) -> None:
    yearly = TimeWindowPartitionsDefinition(start="2024", fmt="%Y", cron_schedule="0 0 1 1 *", end_offset=1)
    dataset = Dataset(
        name="years",
        schema=StructType([StructField("day", DateType()), StructField("n", LongType())]),
        partition_by=("day",),
        change_feed=False,
    )
    project.run(keyed(dataset, yearly, lambda key: (dt.date(int(key), 12, 31), 1)), partition_key="2024")
    for n, month in ((1, 1), (2, 6)):
        project.run(keyed(dataset, yearly, lambda key: (dt.date(int(key), month, 1), n)), partition_key="2025")  # noqa: B023  run at once
    assert rows_of(dataset, project.root) == [(dt.date(2024, 12, 31), 1), (dt.date(2025, 6, 1), 2)]
