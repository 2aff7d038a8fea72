"""A slice selects exactly what it was made of: never wider, whatever the order, NULL included."""

from __future__ import annotations

import datetime as dt
import json
import random
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from pipeline.dataset import Dataset
from pipeline.delta.sql.slices import (
    SHORTEST_INTERVAL,
    Box,
    Interval,
    Slice,
    Values,
    of_values,
    slice_of_document,
    united,
)

CELLS = Dataset(
    name="cells",
    schema=StructType(
        [
            StructField("day", DateType()),
            StructField("region", StringType()),
            StructField("n", LongType()),
            StructField("value", LongType()),
        ]
    ),
    partition_by=("day", "region", "n"),
)
FIRST = dt.date(2026, 1, 1)
DAYS = st.integers(min_value=0, max_value=40).map(lambda n: FIRST + dt.timedelta(days=n))


TIMES = st.datetimes().map(lambda time: time.replace(fold=0))
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary(), st.dates(),
    TIMES, TIMES.map(lambda time: time.replace(tzinfo=dt.timezone.utc)), st.decimals(allow_nan=False),
)  # fmt: skip
PARTS = st.one_of(
    st.lists(VALUES, max_size=4).map(lambda values: Values(tuple(values))),
    st.tuples(st.dates(), st.dates()).map(lambda ends: Interval(min(ends), max(ends))),
)
BOXES = st.dictionaries(st.text(), PARTS, max_size=3).map(lambda parts: Box(tuple(parts.items())))


@given(st.lists(BOXES, max_size=3).map(lambda boxes: Slice(tuple(boxes))))
def test_a_slice_that_is_kept_as_json_is_the_same_slice(within: Slice) -> None:
    again = slice_of_document(json.loads(json.dumps(within.document())))
    assert (again, repr(again)) == (within, repr(within)), "a date is no time, and true is not 1"


def test_a_slice_holds_the_rows_that_its_predicate_selects() -> None:
    within = Slice((Box((("day", Interval(FIRST, FIRST + dt.timedelta(days=2))), ("n", Values((1, None))))),))
    rows = [(0, 1), (1, None), (2, 1), (None, 1), (0, 2)]
    held = [within.holds({"day": None if d is None else FIRST + dt.timedelta(days=d), "n": n}) for d, n in rows]
    assert held == [True, True, False, False, False]
    assert not Slice(()).holds({})


def selects(within: Slice, row: dict[str, Any]) -> bool:
    """What the boxes say of a row, read as the words of their declarations say."""

    def holds(part: Values | Interval, value: Any) -> bool:
        if isinstance(part, Values):
            return value in part.values
        return value is not None and part.start <= value < part.end

    return any(all(holds(part, row[name]) for name, part in box.columns) for box in within.boxes)


def days_in(predicate: str, candidates: list[dt.date]) -> set[dt.date]:
    """The days for which the SQL is true, by an interpreter of the four forms that a predicate on days has."""

    def true_of(term: str, day: dt.date) -> bool:
        dates = [dt.date.fromisoformat(text) for text in re.findall(r"DATE'([^']*)'", term)]
        if re.fullmatch(r"`day` >= DATE'[^']*' AND `day` < DATE'[^']*'", term):
            return dates[0] <= day < dates[1]
        if re.fullmatch(r"`day` = DATE'[^']*'", term):
            return day == dates[0]
        assert re.fullmatch(r"`day` IN \((DATE'[^']*'(, )?)+\)", term), term
        return day in dates

    if predicate == "FALSE":
        return set()
    assert predicate[0] == "("
    assert predicate[-1] == ")"
    terms = predicate[1:-1].split(") OR (")
    return {day for day in candidates if any(true_of(term, day) for term in terms)}


@given(st.sets(DAYS))
@example(set())
@example({FIRST})
@example({dt.date.max, dt.date.max - dt.timedelta(days=1), dt.date.max - dt.timedelta(days=2)})
@example({dt.date.min, dt.date.min + dt.timedelta(days=1), dt.date.min + dt.timedelta(days=2)})
def test_the_predicate_selects_exactly_the_days_it_was_made_of(days: set[dt.date]) -> None:
    within = of_values("day", days)
    around = [FIRST + dt.timedelta(days=n) for n in range(-3, 45)]
    candidates = sorted(days | set(around) | {dt.date.min, dt.date.max})

    assert {day for day in candidates if selects(within, {"day": day})} == days
    assert days_in(within.predicate(CELLS), candidates) == days
    assert not selects(within, {"day": None})


@given(st.lists(DAYS), st.randoms(use_true_random=False))
def test_neither_order_nor_repetition_of_the_days_matters(days: list[dt.date], shuffle: random.Random) -> None:
    other = [*days, *days[:3]]
    shuffle.shuffle(other)

    assert of_values("day", other) == of_values("day", days)


@pytest.mark.parametrize("length", [1, SHORTEST_INTERVAL - 1, SHORTEST_INTERVAL, 400])
def test_a_run_of_days_is_one_interval_once_it_is_long_enough(length: int) -> None:
    """Thousands of days one by one take Spark half a minute to plan."""
    days = [FIRST + dt.timedelta(days=n) for n in range(length)]

    (box,) = of_values("day", days).boxes

    ((column, part),) = box.columns
    assert column == "day"
    if length < SHORTEST_INTERVAL:
        assert part == Values(tuple(days))
    else:
        assert part == Interval(FIRST, FIRST + dt.timedelta(days=length))


def test_runs_and_single_days_stand_side_by_side() -> None:
    days = [FIRST + dt.timedelta(days=n) for n in (0, 1, 2, 5, 9, 10, 11, 12, 20)]

    within = of_values("day", days)

    assert within.predicate(CELLS) == (
        "(`day` >= DATE'2026-01-01' AND `day` < DATE'2026-01-04')"
        " OR (`day` >= DATE'2026-01-10' AND `day` < DATE'2026-01-14')"
        " OR (`day` IN (DATE'2026-01-06', DATE'2026-01-21'))"
    )
    assert within.columns == ("day",)


def test_null_is_addressed_as_null_alone_and_beside_values() -> None:
    assert of_values("region", [None]).predicate(CELLS) == "(`region` IS NULL)"
    assert of_values("region", ["EU", None]).predicate(CELLS) == "((`region` = 'EU' OR `region` IS NULL))"
    assert of_values("region", [None, "b", "a"]).predicate(CELLS) == "((`region` IN ('a', 'b') OR `region` IS NULL))"
    assert of_values("day", [None, FIRST]).predicate(CELLS) == "((`day` = DATE'2026-01-01' OR `day` IS NULL))"
    assert selects(of_values("day", [None, FIRST]), {"day": None})


def test_no_values_select_nothing() -> None:
    assert of_values("day", []) == Slice(())
    assert of_values("day", []).predicate(CELLS) == "FALSE"
    assert of_values("day", []).columns == ()


def test_values_are_written_as_literals_of_the_columns_type() -> None:
    assert of_values("n", [1, 2]).predicate(CELLS) == "(`n` IN (1L, 2L))"
    assert of_values("region", ["x' OR '1'='1"]).predicate(CELLS) == "(`region` = 'x\\' OR \\'1\\'=\\'1')"
    for column, value in (("n", "1"), ("day", "2026-01-01"), ("region", 1)):
        with pytest.raises(ValueError, match="is not a value of type"):
            of_values(column, [value]).predicate(CELLS)


def test_equal_values_are_named_once() -> None:
    assert of_values("region", ["a", "a", "b", "a"]) == of_values("region", ["a", "b"])


def test_a_box_holds_where_all_its_columns_do_and_a_slice_where_any_box_does() -> None:
    within = Slice(
        (
            Box((("day", Interval(FIRST, FIRST + dt.timedelta(days=2))), ("region", Values(("EU", None))))),
            Box((("n", Values((7,))),)),
        )
    )

    assert within.columns == ("day", "region", "n")
    assert within.predicate(CELLS) == (
        "(`day` >= DATE'2026-01-01' AND `day` < DATE'2026-01-03' AND (`region` = 'EU' OR `region` IS NULL))"
        " OR (`n` = 7L)"
    )
    assert str(within) == "day from 2026-01-01 to before 2026-01-03 and region in (EU, None) or n = 7"
    assert selects(within, {"day": FIRST, "region": None, "n": 0})
    assert not selects(within, {"day": FIRST + dt.timedelta(days=2), "region": "EU", "n": 0})
    assert selects(within, {"day": None, "region": None, "n": 7})


def test_slices_are_united_and_the_whole_table_takes_in_all() -> None:
    one, two = of_values("n", [1]), of_values("region", ["EU"])
    assert united(one, two, one).boxes == one.boxes + two.boxes
    assert united(one, Slice(())) == one
    assert united(one, None) is None
    assert united() == Slice(())
