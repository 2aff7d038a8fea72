"""Daily keys to slices and back; what can't be addressed is refused where the asset is made."""

from __future__ import annotations

import datetime as dt

import pytest
from dagster import DailyPartitionsDefinition, HourlyPartitionsDefinition, StaticPartitionsDefinition
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from pipeline.dataset import Dataset
from pipeline.delta.slices import Interval, Values
from pipeline.errors import DeclarationError, PartitionKeyError
from pipeline.orchestration import dataset_asset
from pipeline.orchestration.partitions import rows_by_key, slice_of

SCHEMA = StructType([StructField("n", LongType()), StructField("day", DateType()), StructField("area", StringType())])
BY_DAY = Dataset(name="by_day", schema=SCHEMA, partition_by=("day",))
BY_BOTH = Dataset(name="by_both", schema=SCHEMA, partition_by=("area", "day"))
DAILY = DailyPartitionsDefinition("2026-01-01")
DATES = st.dates(dt.date(2026, 1, 1), dt.date(2026, 3, 1))


def selected(dataset: Dataset, keys: list[str]) -> set[dt.date]:
    """The days that the slice of these keys selects."""
    days: set[dt.date] = set()
    for box in slice_of(dataset, DAILY, keys).boxes:
        ((column, part),) = box.columns
        assert column == "day"
        if isinstance(part, Values):
            days |= set(part.values)
        else:
            assert isinstance(part, Interval)
            days |= {part.start + dt.timedelta(days=n) for n in range((part.end - part.start).days)}
    return days


@given(st.sets(DATES, min_size=1), st.randoms())
def test_the_slice_selects_exactly_the_days_of_the_keys_in_whatever_order_they_come(days, shuffle) -> None:
    keys = [day.isoformat() for day in days]
    shuffle.shuffle(keys)
    assert selected(BY_DAY, keys) == days


def test_no_keys_address_nothing() -> None:
    assert slice_of(BY_DAY, DAILY, []).predicate(BY_DAY) == "FALSE"


@given(st.dictionaries(DATES, st.integers(1, 9), min_size=1))
def test_counts_come_back_to_their_keys(counts) -> None:
    keys = [*(day.isoformat() for day in counts), "2026-04-01"]
    rows = {(day.isoformat(),): count for day, count in counts.items()}
    expected = {day.isoformat(): count for day, count in counts.items()} | {"2026-04-01": 0}
    assert rows_by_key(BY_DAY, DAILY, keys, rows) == expected


def test_counts_of_a_finer_partitioning_are_summed_by_key() -> None:
    rows = {("a", "2026-01-01"): 2, ("b", "2026-01-01"): 3, (None, "2026-01-02"): 4}
    found = rows_by_key(BY_BOTH, DAILY, ["2026-01-01", "2026-01-02"], rows, "day")
    assert found == {"2026-01-01": 5, "2026-01-02": 4}


def test_a_format_of_its_own_is_read_by_that_format() -> None:
    daily = DailyPartitionsDefinition("20260101", fmt="%Y%m%d")
    assert slice_of(BY_DAY, daily, ["20260105"]).predicate(BY_DAY) == "(`day` = DATE'2026-01-05')"


def test_a_key_of_another_form_is_named() -> None:
    with pytest.raises(PartitionKeyError) as caught:
        slice_of(BY_DAY, DAILY, ["2026-01-01", "01/02/2026"])
    assert caught.value.keys == ("01/02/2026",)


@pytest.mark.parametrize(
    ("dataset", "partitions_def", "expr"),
    [
        (Dataset(name="flat", schema=SCHEMA), DAILY, None),
        (BY_BOTH, DAILY, None),
        (BY_BOTH, DAILY, "n"),
        (BY_DAY, DAILY, "day OR 1=1"),
        (BY_BOTH, DAILY, "area"),
        (BY_DAY, StaticPartitionsDefinition(["a"]), None),
        (BY_DAY, HourlyPartitionsDefinition("2026-01-01-00:00"), None),
        (BY_DAY, DailyPartitionsDefinition("2026-01-01", hour_offset=6), None),
    ],
    ids=[
        "table not partitioned", "two columns", "not a partition column", "an expression", "string column",
        "static keys", "hourly keys", "day with an offset",
    ],
)  # fmt: skip
def test_keys_that_can_t_address_the_table_are_refused_where_the_asset_is_made(dataset, partitions_def, expr) -> None:
    with pytest.raises(DeclarationError) as caught:
        dataset_asset(dataset, partitions_def=partitions_def, partition_expr=expr)
    assert caught.value.dataset == dataset.name
