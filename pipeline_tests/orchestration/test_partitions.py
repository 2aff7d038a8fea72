"""Keys to slices and back, for every kind of partitions; what can't be addressed is refused where the asset is made."""

from __future__ import annotations

import datetime as dt

import pytest
from dagster import (
    DailyPartitionsDefinition,
    DynamicPartitionsDefinition,
    HourlyPartitionsDefinition,
    MonthlyPartitionsDefinition,
    MultiPartitionKey,
    MultiPartitionsDefinition,
    StaticPartitionsDefinition,
    TimeWindowPartitionsDefinition,
    WeeklyPartitionsDefinition,
)
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pipeline.dataset import Dataset
from pipeline.delta.sql.slices import Interval, Values
from pipeline.errors import DeclarationError, PartitionKeyError
from pipeline.orchestration import dataset_asset
from pipeline.orchestration.partitions import NULL_KEY, rows_by_key, slice_of

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
        days |= days_of(part)
    return days


def days_of(part: Values | Interval) -> set[dt.date]:
    if isinstance(part, Values):
        return set(part.values)
    return {part.start + dt.timedelta(days=n) for n in range((part.end - part.start).days)}


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


def one_column(name: str, data_type: DataType, nullable: bool = True) -> Dataset:
    schema = StructType([StructField("n", LongType()), StructField(name, data_type, nullable)])
    return Dataset(name="one", schema=schema, partition_by=(name,))


@pytest.mark.case("D-YEAR-FMT")
@pytest.mark.parametrize(
    ("data_type", "predicate"),
    [
        (StringType(), "(`p` = '2025')"),
        (IntegerType(), "(`p` = 2025)"),
        (LongType(), "(`p` = 2025L)"),
        (DecimalType(6, 0), "(`p` = CAST('2025' AS decimal(6,0)))"),
        (DateType(), "(`p` >= DATE'2025-01-01' AND `p` < DATE'2026-01-01')"),
        (
            TimestampType(),
            "(`p` >= TIMESTAMP'2025-01-01 00:00:00.000000Z' AND `p` < TIMESTAMP'2026-01-01 00:00:00.000000Z')",
        ),
    ],
    ids=lambda value: value.simpleString() if isinstance(value, DataType) else "",
)
def test_a_yearly_key_becomes_what_the_column_s_type_says(data_type: DataType, predicate: str) -> None:
    yearly = TimeWindowPartitionsDefinition(start="2020", fmt="%Y", cron_schedule="0 0 1 1 *")
    dataset = one_column("p", data_type)
    assert slice_of(dataset, yearly, ["2025"]).predicate(dataset) == predicate


def test_keys_of_months_that_follow_each_other_are_one_interval() -> None:
    months = [f"2025-{month:02d}-01" for month in range(12, 0, -1)]
    slice_ = slice_of(BY_DAY, MonthlyPartitionsDefinition("2020-01-01"), months)
    assert slice_.predicate(BY_DAY) == "(`day` >= DATE'2025-01-01' AND `day` < DATE'2026-01-01')"


@pytest.mark.case("P-DST-HOUR")
def test_the_hour_that_the_clocks_repeat_has_two_keys_with_instants_of_their_own() -> None:
    hourly = HourlyPartitionsDefinition("2023-11-05-00:00", end_date="2023-11-06-00:00", timezone="America/Los_Angeles")
    keys = list(hourly.get_partition_keys())
    dataset = one_column("at", TimestampType())
    assert len(keys) == 25
    starts = {key: slice_of(dataset, hourly, [key]).boxes[0].columns[0][1] for key in keys}
    assert len(set(starts.values())) == 25
    assert all((part.end - part.start) == dt.timedelta(hours=1) for part in starts.values())
    spelled = {(part.start.strftime("%Y-%m-%d %H:%M:%S"),): position for position, part in enumerate(starts.values())}
    assert rows_by_key(dataset, hourly, keys, spelled) == {key: position for position, key in enumerate(keys)}


@pytest.mark.case("D-PIPE-KEY")
def test_the_key_of_several_dimensions_is_split_by_their_names() -> None:
    schema = StructType([StructField("n", LongType()), StructField("b", StringType()), StructField("a", LongType())])
    dataset = Dataset(name="cells", schema=schema, partition_by=("b", "a"))
    multi = MultiPartitionsDefinition(
        {"b": StaticPartitionsDefinition(["x", "y"]), "a": StaticPartitionsDefinition(["1"])}
    )
    assert slice_of(dataset, multi, ["1|y"]).predicate(dataset) == "(`a` = 1L AND `b` = 'y')"
    assert rows_by_key(dataset, multi, ["1|x", "1|y"], {("y", "1"): 4}) == {"1|x": 0, "1|y": 4}


CELLS = st.sets(st.tuples(st.sampled_from("ABCD"), st.dates(dt.date(2015, 1, 1), dt.date(2015, 1, 9))), min_size=1)


@given(CELLS)
def test_cells_of_two_dimensions_are_selected_exactly_whatever_their_shape(cells) -> None:
    multi = MultiPartitionsDefinition(
        {"area": StaticPartitionsDefinition(list("ABCD")), "day": DailyPartitionsDefinition("2015-01-01")}
    )
    keys = [str(MultiPartitionKey({"area": area, "day": day.isoformat()})) for area, day in cells]
    found: list[tuple[str, dt.date]] = []
    for box in slice_of(BY_BOTH, multi, keys).boxes:
        sides = dict(box.columns)
        assert isinstance(sides["area"], Values)
        found += [(area, day) for area in sides["area"].values for day in days_of(sides["day"])]
    assert sorted(found) == sorted(cells)


def test_a_full_product_of_two_dimensions_is_one_box() -> None:
    multi = MultiPartitionsDefinition(
        {"area": StaticPartitionsDefinition(list("ABCD")), "day": DailyPartitionsDefinition("2015-01-01")}
    )
    days = [(dt.date(2015, 1, 1) + dt.timedelta(days=n)).isoformat() for n in range(750)]
    keys = [str(MultiPartitionKey({"area": area, "day": day})) for area in "ABCD" for day in days]
    (box,) = slice_of(BY_BOTH, multi, keys).boxes
    assert dict(box.columns) == {
        "area": Values(("A", "B", "C", "D")),
        "day": Interval(dt.date(2015, 1, 1), dt.date(2017, 1, 20)),
    }


@given(st.sets(st.text(min_size=1).filter(lambda text: text.isprintable()), min_size=1))
def test_a_string_key_is_its_own_text_and_comes_back_whatever_it_holds(texts) -> None:
    dataset, keys = one_column("p", StringType()), sorted(texts)
    dynamic = DynamicPartitionsDefinition(name="any")
    (box,) = slice_of(dataset, dynamic, keys).boxes
    assert box.columns == (("p", Values(tuple(keys))),)
    assert rows_by_key(dataset, dynamic, keys, {(key,): len(key) for key in keys}) == {key: len(key) for key in keys}


def test_the_null_partition_has_a_key_of_its_own() -> None:
    dataset, static = one_column("p", LongType()), StaticPartitionsDefinition(["1", NULL_KEY])
    assert slice_of(dataset, static, ["1", NULL_KEY]).predicate(dataset) == "((`p` = 1L OR `p` IS NULL))"
    assert rows_by_key(dataset, static, [NULL_KEY], {(None,): 3, ("1",): 4}) == {NULL_KEY: 3}


@pytest.mark.parametrize(
    ("data_type", "key"),
    [
        (LongType(), "01"), (LongType(), "x"), (ByteType(), "128"), (DateType(), "2026-02-30"),
        (DecimalType(3, 1), "1.25"),
        (BooleanType(), "yes"), (TimestampType(), "noon"), (LongType(), "9223372036854775808"),
    ],
    ids=str,
)  # fmt: skip
def test_a_key_that_spells_no_value_of_the_type_is_named(data_type: DataType, key: str) -> None:
    with pytest.raises(PartitionKeyError) as caught:
        slice_of(one_column("p", data_type), StaticPartitionsDefinition([key]), [key])
    assert caught.value.keys == (key,)


def test_two_keys_with_one_value_are_refused() -> None:
    static = StaticPartitionsDefinition(["1.0", "1.00"])
    with pytest.raises(PartitionKeyError) as caught:
        slice_of(one_column("p", DecimalType(4, 2)), static, ["1.0", "1.00"])
    assert set(caught.value.keys) == {"1.0", "1.00"}


@pytest.mark.parametrize("kind", [WeeklyPartitionsDefinition, MonthlyPartitionsDefinition], ids=["weekly", "monthly"])
def test_a_window_of_several_days_is_all_its_days_and_counts_come_back(kind) -> None:
    partitions_def = kind("2026-01-01", end_date="2026-06-01")
    keys = list(partitions_def.get_partition_keys())
    windows = [partitions_def.time_window_for_partition_key(key) for key in keys]
    slice_ = slice_of(BY_DAY, partitions_def, keys)
    assert [box.columns[0][1] for box in slice_.boxes] == [Interval(windows[0].start.date(), windows[-1].end.date())]
    last_days = {((w.end - dt.timedelta(days=1)).date().isoformat(),): n for n, w in enumerate(windows)}
    assert rows_by_key(BY_DAY, partitions_def, keys, last_days) == {key: n for n, key in enumerate(keys)}


@pytest.mark.case("D-QUOTE-INJECTION")
@pytest.mark.parametrize(
    ("dataset", "partitions_def", "expr"),
    [
        (Dataset(name="flat", schema=SCHEMA), DAILY, None),
        (BY_BOTH, DAILY, None),
        (BY_BOTH, DAILY, "n"),
        (BY_DAY, DAILY, "day OR 1=1"),
        (BY_DAY, HourlyPartitionsDefinition("2026-01-01-00:00"), None),
        (
            BY_DAY,
            TimeWindowPartitionsDefinition(start="2026-01-01-00", fmt="%Y-%m-%d-%H", cron_schedule="0 0,12 * * *"),
            None,
        ),
        (BY_DAY, MultiPartitionsDefinition({"day": DAILY, "area": StaticPartitionsDefinition(["a"])}), None),
        (BY_BOTH, MultiPartitionsDefinition({"x": DAILY, "y": StaticPartitionsDefinition(["a"])}), {"x": "day"}),
        (one_column("p", LongType()), DAILY, None),
        (one_column("p", DoubleType()), StaticPartitionsDefinition(["1.5"]), None),
        (
            one_column("p", TimestampNTZType()),
            HourlyPartitionsDefinition("2026-01-01-00:00", timezone="Europe/Vilnius"),
            None,
        ),
    ],
    ids=[
        "table not partitioned", "two columns", "not a partition column", "an expression", "hourly keys for a date",
        "two keys a day for a date",
        "a dimension without a column", "a dimension not mapped", "dashes are no number", "a fraction",
        "repeated hours",
    ],
)  # fmt: skip
def test_keys_that_can_t_address_the_table_are_refused_where_the_asset_is_made(dataset, partitions_def, expr) -> None:
    with pytest.raises(DeclarationError) as caught:
        dataset_asset(dataset, partitions_def=partitions_def, partition_expr=expr)
    assert caught.value.dataset == dataset.name
