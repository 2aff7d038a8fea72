"""Whatever a record is, it becomes a row or a dead letter with a reason, and the records beside it become rows."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as searched
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from pipeline.dataset import Append, Changelog, Dataset, Features, Merge
from pipeline.delta.frames.records import MAX_DEPTH, size_of
from pipeline.delta.sink.buffer import Item
from pipeline.delta.sink.dead_letters import DeadLetter
from pipeline.delta.sink.intake import Intake, IntakeResult
from pipeline.delta.sink.ndjson import lines, parser, record_of
from pipeline_tests.unit.sink_sample import UPDATES, update

LIMIT = 1 << 20
TYPES: dict[str, DataType] = {
    "flag": BooleanType(), "tiny": ByteType(), "small": ShortType(), "whole": IntegerType(), "long": LongType(),
    "single": FloatType(), "double": DoubleType(), "money": DecimalType(10, 2), "exact": DecimalType(38, 38),
    "text": StringType(), "short": VarcharType(3), "fixed": CharType(2), "raw": BinaryType(), "day": DateType(),
    "at": TimestampType(), "local": TimestampNTZType(), "list": ArrayType(VarcharType(3)),
    "map": MapType(StringType(), DecimalType(5, 0)),
    "struct": StructType([StructField("a", LongType(), False), StructField("b", ArrayType(FloatType()))]),
}  # fmt: skip
WIDE = Dataset(
    name="wide", write=Append(), partition_by=("part",),
    schema=StructType([StructField("part", StringType()), *(StructField(name, kind) for name, kind in TYPES.items())]),
)  # fmt: skip
LOGGED = Dataset(
    name="logged",
    keys=("k",),
    write=Merge(changelog=Changelog(operation="op", sequence="n")),
    schema=StructType([StructField("k", LongType(), False), StructField("v", StringType())]),
)


def parsed(dataset: Dataset, *contents: bytes) -> list[Any]:
    parse = parser(dataset)
    stream = io.BytesIO(b"".join(content + b"\n" for content in contents))
    return [record_of(line, parse, LIMIT, "stdin") for line in lines(stream, LIMIT)]


def taken(dataset: Dataset, *records: Any, allow_nan: bool = False) -> IntakeResult:
    intake = Intake(dataset, allow_nan=allow_nan, record_bytes=LIMIT)
    return intake.take([Item(payload=r, rows=1, size_bytes=size_of(r, LIMIT)) for r in records])


def rows(found: IntakeResult) -> list[dict[str, Any]]:
    return [row for table in found.tables for row in table.to_pylist()]


def nested(depth: int, inner: str = "1") -> bytes:
    return b"[" * depth + inner.encode() + b"]" * depth


def itself() -> list[Any]:
    held: list[Any] = []
    held += [held, held]
    return held


class Unshowable:
    def __repr__(self) -> str:
        raise ZeroDivisionError


HOSTILE_LINES = {
    "an array 600 deep": (b'{"list": ' + nested(600) + b"}", "lists and objects are nested more than 64 deep"),
    "an object 600 deep": (b'{"a": ' * 600 + b"1" + b"}" * 600, "lists and objects are nested more than 64"),
    "an unknown name 600 deep": (b'{"no": ' + nested(600) + b"}", "lists and objects are nested more than 64"),
    "an exponent of 20 digits": (b'{"money": 1e99999999999999999999}', "a number has an exponent that no number can"),
    "a low exponent of 20 digits": (b'{"money": 1e-99999999999999999999}', "a number has an exponent that no number"),
    "a large exponent": (b'{"money": 1e999999999}', "column money: got Decimal"),
    "a large double": (b'{"double": 1e999}', "column double: got Decimal Decimal('1E+999')"),
    "a large single": (b'{"single": 1e39}', "column single: got Decimal Decimal('1E+39')"),
    "a large integer": (b'{"double": 1' + b"0" * 400 + b"}", "column double: got int"),
    "VARCHAR": (b'{"short": "four"}', "column short: got str 'four', declared varchar(3): it has 4 characters"),
    "CHAR": (b'{"fixed": "abc"}', "column fixed: got str 'abc', declared char(2): it has 3 characters"),
    "VARCHAR deep down": (b'{"list": ["abc", "abcd"]}', "column list: element 1: got str 'abcd'"),
    "a long folder": (b'{"part": "' + b"x" * 251 + b'"}', "column part: the name of its partition's folder takes 256"),
    "an escaped folder": (b'{"part": "' + b"%" * 84 + b'"}', "column part: the name of its partition's folder takes"),
    "NUL in a folder": (b'{"part": "a\\u0000b"}', "column part: NUL can't stand in the name"),
    "the folder of NULL": (b'{"part": "__HIVE_DEFAULT_PARTITION__"}', "column part: __HIVE_DEFAULT_PARTITION__ in a"),
    "half a pair": (b'{"text": "\\ud800"}', "column text: got str '\\ud800'"),
    "half a pair in a key": (b'{"map": {"\\udfff": 1}}', "column map: got"),
    "half a pair in a name": (b'{"\\ud800": 1}', "column \ud800: not declared"),
    "a long name": (b'{"' + b"n" * 100_000 + b'": 1}', "column nnn"),
}


@pytest.mark.parametrize("name", HOSTILE_LINES)
def test_a_hostile_line_is_a_dead_letter_with_its_reason_and_the_lines_beside_it_are_rows(name: str) -> None:
    content, reason = HOSTILE_LINES[name]
    found = taken(WIDE, *parsed(WIDE, b'{"long": 1}', content, b'{"long": 2}'))
    assert [row["long"] for row in rows(found)] == [1, 2]
    (letter,) = found.letters
    assert letter.reason.startswith(reason)
    assert len(letter.reason) < 2_000
    assert [receipt.refused for receipt in found.receipts] == [0, 1, 0]
    json.dumps(letter.record, allow_nan=False)


FITTING_LINES: dict[str, tuple[bytes, dict[str, Any]]] = {
    "zero with an exponent": (b'{"money": 0e999999999}', {"money": Decimal("0.00")}),
    "zero with a low exponent": (b'{"money": -0e-999999999}', {"money": Decimal("0.00")}),
    "many zeros": (b'{"money": 1.' + b"0" * 5_000 + b"}", {"money": Decimal("1.00")}),
    "the most digits": (b'{"money": 99999999.99}', {"money": Decimal("99999999.99")}),
    "VARCHAR": (b'{"short": "\\ud83d\\ude00bc"}', {"short": "😀bc"}),
    "blanks that Spark cuts off": (b'{"short": "abc   "}', {"short": "abc   "}),
    "a folder of 255 bytes": (b'{"part": "' + b"x" * 250 + b'"}', {"part": "x" * 250}),
    "an array as deep as may be": (b'{"list": ["a"]}', {"list": ["a"]}),
}


@pytest.mark.parametrize("name", FITTING_LINES)
def test_a_line_that_only_looks_hostile_is_a_row(name: str) -> None:
    content, values = FITTING_LINES[name]
    found = taken(WIDE, *parsed(WIDE, content))
    assert found.letters == []
    assert [{name: row[name] for name in values} for row in rows(found)] == [values]


HOSTILE_RECORDS: dict[str, tuple[Callable[[], Any], str]] = {
    "a list that holds itself": (lambda: {"list": itself()}, "it takes at least"),
    "deep lists": (lambda: {"list": json.loads(nested(MAX_DEPTH + 1))}, "lists and objects are nested"),
    "an integer of 10 000 digits": (lambda: {"long": 10**10_000}, "column long: got int an integer of 33220 bits"),
    "a value that can't be shown": (lambda: {"long": Unshowable()}, "column long: got Unshowable"),
    "a name that can't be shown": (lambda: {Unshowable(): 1}, "column <Unshowable instance"),
    "a key that can't be shown": (lambda: {"map": {Unshowable(): 1}}, "column map: got Unshowable"),
    "a NaN that signals": (lambda: {"double": Decimal("sNaN")}, "column double: got Decimal Decimal('sNaN')"),
}


@pytest.mark.parametrize("name", HOSTILE_RECORDS)
def test_a_hostile_value_of_a_caller_is_a_dead_letter_as_well(name: str) -> None:
    make, reason = HOSTILE_RECORDS[name]
    found = taken(WIDE, {"long": 1}, make(), {"long": 2})
    assert [row["long"] for row in rows(found)] == [1, 2]
    assert [letter.reason[: len(reason)] for letter in found.letters] == [reason]
    json.dumps(found.letters[0].record, allow_nan=False)


def test_a_record_of_very_many_unknown_names_takes_no_longer_than_its_line() -> None:
    content = json.dumps({f"n{number}": 1 for number in range(80_000)}).encode()
    started = time.process_time()
    found = taken(WIDE, *parsed(WIDE, content))
    assert time.process_time() - started < 5
    assert [letter.reason for letter in found.letters] == ["column n0: not declared"]


def test_a_value_of_a_column_that_is_declared_nowhere_may_be_what_arrow_refuses() -> None:
    bad = [
        {"k": 2, "op": "c", "n": "\ud800"},
        {"k": 3, "op": "c", "n": 1 << 80},
        {"k": 4, "op": "c", "n": Unshowable()},
    ]
    found = taken(LOGGED, {"k": 1, "op": "c", "n": 1}, *bad, {"k": 5, "op": "c", "n": 5})
    assert [row["k"] for row in rows(found)] == [1, 5]
    assert [letter.record["k"] for letter in found.letters] == [2, 3, 4]


def test_rows_of_a_frame_with_what_no_column_takes_are_dead_letters_alone() -> None:
    table = pa.table({"short": ["abc", "abcd", None], "part": ["p", "p", "\0"]})
    empty = {name: pa.nulls(3) for name in WIDE.schema.names if name not in table.column_names}
    for name, values in empty.items():
        table = table.append_column(name, values)
    found = taken(WIDE, table)
    assert [row["short"] for row in rows(found)] == ["abc"]
    assert [letter.reason.partition(":")[0] for letter in found.letters] == ["column short", "column part"]
    frame = pd.DataFrame([update(1), update(2, symbol="\ud800"), update(3)])
    by_pandas = taken(UPDATES, frame)
    assert [row["id"] for row in rows(by_pandas)] == [1, 3]
    assert [letter.record["id"] for letter in by_pandas.letters] == [2]


MAPPED = Dataset(
    name="mapped", write=Append(), partition_by=("part",), features=Features(column_mapping="name"),
    schema=StructType([StructField("part", StringType()), StructField("n", LongType())]),
)  # fmt: skip


def test_a_partition_whose_folder_has_another_name_may_have_any_text() -> None:
    found = taken(MAPPED, {"part": "x" * 300, "n": 1}, {"part": "", "n": 2})
    assert [row["n"] for row in rows(found)] == [1]


# --- searched ---------------------------------------------------------------------------------------------------------

TEXTS = st.one_of(
    st.text(st.characters(codec=None), max_size=8),
    st.sampled_from(["\ud800", "\0", "", "x" * 300, "2026-01-31", "2026-01-31T12:00:00Z", "0001-01-01T00:00:00+14:00",
                     "9999-12-31T23:59:59-01:00", "1e999999999", "NaN", "sNaN", "-0", "1" * 50]),
)  # fmt: skip
NUMBERS = st.one_of(
    st.integers(), st.integers(-(1 << 64), 1 << 64), st.floats(),
    st.sampled_from([1 << 63, -(1 << 63) - 1, 10**38, 1e300, -0.0]),
)  # fmt: skip
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4),
                            st.fixed_dictionaries({"a": inner}, optional={"b": inner})),
    max_leaves=12,
)  # fmt: skip
NAMES = st.one_of(st.sampled_from(WIDE.schema.names), st.sampled_from(WIDE.schema.names).map(str.upper), TEXTS)
RECORDS = st.dictionaries(NAMES, VALUES, max_size=4)
LITERALS = st.one_of(
    st.from_regex(r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,20})?", fullmatch=True),
    st.sampled_from(["NaN", "Infinity", "-Infinity", "tru", "", "1e", '"\\ud800"', '"\\x"', "[" * 70 + "]" * 70]),
)
WRITTEN = st.tuples(NAMES, LITERALS).map(lambda pair: f"{{{json.dumps(pair[0])}: {pair[1]}}}".encode())
LINES = st.one_of(
    RECORDS.map(lambda record: json.dumps(record).encode()),
    WRITTEN,
    st.binary(max_size=40).filter(lambda content: b"\n" not in content),
)


def assert_each_is_one_or_the_other(dataset: Dataset, records: list[Any], *, allow_nan: bool) -> None:
    guards = [{}, {}]
    found = taken(dataset, guards[0], *records, guards[1], allow_nan=allow_nan)
    assert [receipt.rows + receipt.refused for receipt in found.receipts] == [1] * (len(records) + 2)
    assert (found.receipts[0].rows, found.receipts[-1].rows) == (1, 1)
    assert sum(receipt.rows for receipt in found.receipts) == sum(table.num_rows for table in found.tables)
    assert sum(receipt.refused for receipt in found.receipts) == len(found.letters)
    for table in found.tables:
        table.validate(full=True)
    for letter in found.letters:
        assert letter.reason
        json.dumps({"reason": letter.reason, "record": letter.record}, allow_nan=False).encode("ascii")
    for row in rows(found):
        assert allow_nan or all(math.isfinite(row[name]) for name in ("single", "double") if row[name] is not None)


@example(contents=[content for content, _ in HOSTILE_LINES.values()], allow_nan=True)
@example(contents=[content for content, _ in FITTING_LINES.values()], allow_nan=False)
@searched(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(contents=st.lists(LINES, max_size=4), allow_nan=st.booleans())
def test_any_lines_become_rows_and_dead_letters_and_nothing_else(contents: list[bytes], allow_nan: bool) -> None:
    records = [record for record in parsed(WIDE, *contents) if record is not None]
    assert all(isinstance(record, dict | DeadLetter) for record in records)
    assert_each_is_one_or_the_other(WIDE, records, allow_nan=allow_nan)


@searched(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    records=st.lists(st.one_of(RECORDS, VALUES.filter(lambda v: v is not None)), max_size=4), allow_nan=st.booleans()
)
def test_any_values_become_rows_and_dead_letters_and_nothing_else(records: list[Any], allow_nan: bool) -> None:
    assert_each_is_one_or_the_other(WIDE, records, allow_nan=allow_nan)
