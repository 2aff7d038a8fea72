"""What becomes of records and frames: rows that fit as they are, and dead letters with a reason for each other one."""

from __future__ import annotations

import datetime as dt
import json
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from pipeline.dataset import Append, Changelog, Dataset, Features, Merge
from pipeline.delta.sink.buffer import Item, Receipt
from pipeline.delta.sink.dead_letters import EXCERPT, DeadLetter, json_value, raw_letter
from pipeline.delta.sink.intake import Intake, IntakeResult
from pipeline_tests.unit.sink_sample import AT, UPDATES, update

LIMIT = 1 << 20


def take(*payloads: Any, dataset: Dataset = UPDATES, allow_nan: bool = False) -> IntakeResult:
    intake = Intake(dataset, allow_nan=allow_nan, record_bytes=LIMIT)
    return intake.take([Item(payload=p, rows=getattr(p, "num_rows", 1), size_bytes=0) for p in payloads])


def rows(taken: IntakeResult) -> list[dict[str, Any]]:
    return [row for table in taken.tables for row in table.to_pylist()]


def reasons(taken: IntakeResult) -> list[str]:
    return [letter.reason for letter in taken.letters]


def test_a_record_becomes_a_row_whether_it_comes_as_values_or_as_json_has_them() -> None:
    values = update(1, lots=2, fee=Decimal("1.50"), day=dt.date(2026, 1, 31))
    text = {"id": 1, "symbol": "ABC", "price": 1.5, "lots": 2, "fee": "1.5", "day": "2026-01-31"}
    taken = take(values, text | {"at": "2026-01-31T12:00:00Z"}, text | {"AT": "2026-01-31T13:00:00+01:00"})
    assert reasons(taken) == []
    assert rows(taken) == [values] * 3
    assert [table.num_rows for table in taken.tables] == [3]


@dataclass
class Update:
    id: int
    symbol: str
    at: dt.datetime
    price: float | None = None


def test_a_dataclass_is_a_record_and_columns_that_may_be_null_may_be_left_out() -> None:
    taken = take(Update(7, "XYZ", AT))
    assert rows(taken) == [{"id": 7, "symbol": "XYZ", "price": None, "lots": None, "fee": None, "day": None, "at": AT}]


BAD: dict[str, tuple[Any, str]] = {
    "text for a number": (update(1, price="dear"), "column price: got str 'dear', declared double"),
    "truth for a number": (update(1, lots=True), "column lots: got bool True, declared int"),
    "a fraction for an integer": (update(1, lots=1.0), "column lots: got float 1.0, declared int"),
    "out of range": (update(1, lots=1 << 31), "column lots: got int 2147483648, declared int: it is out of range"),
    "NaN": (update(1, price=math.nan), "column price: got float nan, declared double: it is not a finite number"),
    "infinity": (update(1, price=-math.inf), "column price: got float -inf, declared double: it is not a finite "
                                             "number"),
    "digits": (update(1, price=2**53 + 1), "column price: got int 9007199254740993, declared double: digits would be"
                                           " lost"),
    "a third place": (update(1, fee="1.001"), "column fee: got str '1.001', declared decimal(10,2): digits would be"
                                              " lost"),
    "no decimal": (update(1, fee="cheap"), "column fee: got str 'cheap', declared decimal(10,2)"),
    "no zone": (update(1, at=dt.datetime(2026, 1, 1)), "column at: got datetime datetime.datetime(2026, 1, 1, 0, 0), "
                                                       "declared timestamp: it has no zone"),
    "no time": (update(1, at="yesterday at noon"), "column at: got str 'yesterday at noon', declared timestamp: it is"
                                                   " not a time such as 2026-01-31T12:00:00Z"),
    "a time for a day": (update(1, day=AT), "column day: got datetime "),
    "half a pair": (update(1, symbol="\ud800"), "column symbol: got str '\\ud800', declared string: half of a surrogate"
                                                " pair is not text"),
    "NULL": (update(1, symbol=None), "column symbol: NULL, declared NOT NULL"),
    "empty partition": (update(1, symbol=""), "column symbol: an empty text in a partition column would be read back"),
    "no key": ({"symbol": "ABC", "at": AT}, "columns id are missing"),
    "extra": (update(1, colour="red"), "column colour: not declared"),
    "twice": (update(1, ID=2), "column ID: is given twice"),
    "no record": (17, "a builtins.int is not a record"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_record_that_does_not_fit_is_a_dead_letter_with_its_reason_and_the_others_go_on(name: str) -> None:
    record, reason = BAD[name]
    taken = take(update(1), record, update(2))
    assert [row["id"] for row in rows(taken)] == [1, 2]
    (letter,) = taken.letters
    assert letter.reason.startswith(reason)
    assert taken.receipts[0] == taken.receipts[2] == Receipt(rows=1, refused=0)
    assert taken.receipts[1] == Receipt(rows=0, refused=1, reasons=(letter.reason,))
    json.dumps(letter.record, allow_nan=False)
    if isinstance(record, dict) and isinstance(record.get("id"), int):
        assert letter.record["id"] == record["id"]


def test_a_record_above_the_limit_is_kept_by_its_beginning() -> None:
    intake = Intake(UPDATES, allow_nan=False, record_bytes=LIMIT)
    large = Item(payload=update(1, symbol="x" * (LIMIT + 1)), rows=1, size_bytes=LIMIT + 30)
    taken = intake.take([large])
    assert reasons(taken) == [f"it takes at least {LIMIT + 30} bytes, at most {LIMIT} are allowed"]
    assert taken.letters[0].record["symbol"] == {"text": "x" * EXCERPT, "characters": LIMIT + 1}


def test_nan_is_a_number_where_it_is_allowed() -> None:
    taken = take(update(1, price=math.nan), allow_nan=True)
    assert [math.isnan(row["price"]) for row in rows(taken)] == [True]


def frames(columns: dict[str, list[Any]]) -> list[Any]:
    return [pa.table(columns), pa.table(columns).to_batches()[0], pl.DataFrame(columns), pd.DataFrame(columns)]


COLUMNS = {
    "id": [1, 2, 3], "symbol": ["A", "B", "C"], "price": [1.0, 2.0, 3.0], "lots": [1, 2, 3],
    "fee": [Decimal("1.00")] * 3, "day": [dt.date(2026, 1, 1)] * 3, "at": [AT] * 3,
}  # fmt: skip


@pytest.mark.parametrize("kind", range(4), ids=["table", "batch", "polars", "pandas"])
def test_a_frame_of_any_kind_is_taken_whole(kind: int) -> None:
    taken = take(frames(COLUMNS)[kind])
    assert reasons(taken) == []
    expected = [dict(zip(COLUMNS, values, strict=True)) for values in zip(*COLUMNS.values(), strict=True)]
    assert rows(taken) == expected


@pytest.mark.parametrize("kind", range(4), ids=["table", "batch", "polars", "pandas"])
def test_bad_rows_of_a_frame_are_dead_letters_and_its_good_ones_go_on(kind: int) -> None:
    columns = COLUMNS | {"price": [1.0, math.inf, 3.0], "symbol": ["A", "B", ""]}
    taken = take(frames(columns)[kind])
    assert [row["id"] for row in rows(taken)] == [1]
    assert [(letter.record["id"], letter.reason.partition(":")[0]) for letter in taken.letters] == [
        (2, "column price"), (3, "column symbol"),
    ]  # fmt: skip
    assert taken.receipts[0].refused == 2


def test_a_frame_whose_types_do_not_fit_is_looked_at_row_by_row() -> None:
    taken = take(pd.DataFrame(COLUMNS | {"lots": pd.Series([1, "two", 3], dtype=object)}))
    assert [row["id"] for row in rows(taken)] == [1, 3]
    assert reasons(taken) == ["column lots: got str 'two', declared int"]


def test_rows_keep_the_order_in_which_they_came() -> None:
    taken = take(update(1), pa.table(COLUMNS | {"id": [2, 3, 4]}), update(5))
    assert [row["id"] for row in rows(taken)] == [1, 2, 3, 4, 5]
    assert len(taken.tables) == 1


NESTED = Dataset(
    name="nested",
    write=Append(),
    schema=StructType(
        [
            StructField("tags", MapType(StringType(), LongType())),
            StructField("legs", ArrayType(StructType([StructField("n", LongType())]))),
        ]
    ),
)


def test_a_wrong_value_deep_down_is_named_by_its_place() -> None:
    good = {"tags": {"a": 1}, "legs": [{"n": 1}, {"n": None}]}
    taken = take(good, good | {"legs": [{"n": 1}, {"n": "x"}]}, good | {"tags": {"a": "x"}}, dataset=NESTED)
    assert rows(taken) == [{"tags": [("a", 1)], "legs": [{"n": 1}, {"n": None}]}]
    assert reasons(taken) == [
        "column legs: element 1: n: got str 'x', declared bigint",
        "column tags: key 'a': got str 'x', declared bigint",
    ]


COMPUTED = Dataset(
    name="computed",
    write=Append(),
    partition_by=("day",),
    features=Features(generated=(("day", "CAST(at AS DATE)"),), defaults=(("lots", "1"),)),
    schema=StructType([f for f in UPDATES.schema.fields if f.name in ("id", "lots", "day", "at")]),
)


def test_columns_that_delta_computes_are_left_out_where_a_record_has_none() -> None:
    taken = take(
        {"id": 1, "at": AT}, {"id": 2, "at": AT, "lots": 5}, {"id": 3, "at": AT, "lots": 6}, {"id": 4}, dataset=COMPUTED
    )
    assert [table.column_names for table in taken.tables] == [["id", "at"], ["id", "lots", "at"]]
    assert [table["id"].to_pylist() for table in taken.tables] == [[1], [2, 3]]
    assert reasons(taken) == ["column at: NULL, declared NOT NULL"]
    assert rows(take(pa.table({"id": [1], "at": [AT]}), dataset=COMPUTED)) == [{"id": 1, "at": AT}]


LOGGED = Dataset(
    name="logged",
    keys=("k",),
    write=Merge(changelog=Changelog(operation="op", sequence="n")),
    schema=StructType([StructField("k", LongType(), False), StructField("v", StringType(), False)]),
)


def test_a_changelog_is_judged_by_the_operation_of_each_row() -> None:
    given = [
        {"k": 1, "v": "a", "op": "C", "n": 1},
        {"k": 1, "v": None, "op": "d", "n": 2},
        {"k": 2, "v": None, "op": "u", "n": 3},
        {"k": 3, "v": "a", "op": "upsert", "n": 4},
        {"k": 4, "v": "a", "op": "c", "n": None},
        {"k": None, "op": "t", "n": 5},
    ]
    taken = take(*given, dataset=LOGGED)
    assert [row["n"] for row in rows(taken)] == [1, 2, 5]
    assert [reason.partition(":")[0] for reason in reasons(taken)] == ["column v", "column op", "column n"]
    by_frame = take(pa.Table.from_pylist([{"k": None, "v": None} | row for row in given]), dataset=LOGGED)
    assert sorted(row["n"] for row in rows(by_frame)) == [1, 2, 5]
    assert sorted(reasons(by_frame)) == sorted(reasons(taken))


def test_what_json_has_no_type_for_is_told_as_text() -> None:
    value = {1: math.nan, "at": AT, "raw": b"\xff", "other": {3}, "list": (1, None)}
    assert json_value(value) == {
        "1": "nan", "at": "2026-01-31T12:00:00+00:00", "raw": {"bytes": 1, "base64": "/w=="}, "other": "{3}",
        "list": [1, None],
    }  # fmt: skip


def test_a_letter_of_raw_bytes_keeps_a_bounded_part_and_tells_the_whole() -> None:
    short = raw_letter(b"{x", "no JSON")
    assert short == DeadLetter(reason="no JSON", record={"bytes": 2, "text": "{x"}, at=short.at)
    large = raw_letter(b"x" * (EXCERPT + 1), "too long")
    assert len(large.record["text"]) == EXCERPT
    assert (large.record["bytes"], len(large.record["sha256"])) == (EXCERPT + 1, 64)
