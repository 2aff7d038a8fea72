"""Lists that people read: numbers as ranges, and the first of many of anything, wherever a message names some."""

from __future__ import annotations

import datetime as dt

import pytest
from pyspark.sql.types import StructType

from pipeline.delta.read.changes import Changes
from pipeline.delta.read.verdict import Reason, Verdict, VerdictKind
from pipeline.delta.sql.slices import Slice, of_values
from pipeline.errors import (
    ChangesUnreadableError,
    CheckViolationError,
    DuplicateKeysError,
    FilesNotFoundError,
    FrameMismatchError,
    PipelineError,
    StorageError,
    StrayRowsError,
    UnknownDatasetError,
    VersionVacuumedError,
)
from pipeline.errors.base import _LONGEST_FIELD
from pipeline.errors.listing import NAMED, bounded, listed

MANY = 3_000
LONG = "x" * 200_000
NAMES = tuple(f"name {number}" for number in range(MANY))
AT = {"dataset": "d", "location": "/d"}
COUNTS = dict.fromkeys(NAMES, 2)


@pytest.mark.parametrize(
    "error",
    [
        DuplicateKeysError(dataset="d", counts={f"k = {LONG}": 2}, total_keys=1),
        StrayRowsError(dataset="d", counts={f"k = {LONG}": 2}, slice=str(of_values("k", [LONG])), total_rows=2),
        StrayRowsError(dataset="d", counts={}, slice=str(of_values("k", [LONG, f"{LONG}!"])), total_rows=2),
        FrameMismatchError(dataset="d", differences=(LONG,)),
        StorageError(dataset="d", location="/d", reason=LONG),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_long_value_makes_no_long_message(error: PipelineError) -> None:
    assert len(str(error)) < 2 * _LONGEST_FIELD
    assert LONG[:100] in str(error)


def test_the_identity_of_a_slice_has_its_values_whole() -> None:
    assert of_values("k", [LONG]).identity == f"k = {LONG}"
    assert of_values("k", [LONG, f"{LONG}!"]).identity == f"k in ({LONG}, {LONG}!)"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((), ""),
        ((4,), "4"),
        (range(4, 14), "4 to 13"),
        ((20, *range(4, 14), 21), "4 to 13, 20, 21"),
        ((3, 3, 1, 2), "1 to 3"),
        ((True, False), "True, False"),
        (("b", None, "a"), "b, None, a"),
        ((1, "a"), "1, a"),
    ],
)
def test_numbers_are_told_as_ranges_and_anything_else_one_by_one(values: tuple[object, ...], text: str) -> None:
    assert listed(values) == text


def test_of_many_the_first_are_named_and_the_others_counted() -> None:
    assert listed("abcde", most=2) == "a, b, and 3 more"
    assert listed((*range(10), *range(20, 30), 40, 50), most=2) == "0 to 9, 20 to 29, and 2 more"
    assert bounded(range(0, 2 * MANY, 2))[-1] == f"and {MANY - NAMED} more"
    assert len(bounded(NAMES)) == NAMED + 1


@pytest.mark.parametrize(
    "error",
    [
        ChangesUnreadableError(**AT, reason="off", versions=tuple(range(0, 2 * MANY, 2)), setting="s"),
        VersionVacuumedError(**AT, version=1, missing=NAMES),
        FilesNotFoundError(**AT, version=1, missing=NAMES),
        FrameMismatchError(dataset="d", differences=NAMES),
        CheckViolationError(dataset="d", counts=COUNTS, examples=NAMES),
        DuplicateKeysError(dataset="d", counts=COUNTS, total_keys=MANY),
        UnknownDatasetError(name="d", known=NAMES),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_about_thousands_of_things_is_short_and_says_how_many_it_leaves_out(error: PipelineError) -> None:
    assert f"and {MANY - NAMED:d} more" in str(error)
    assert len(str(error)) < 4_000


@pytest.mark.case("C-LONG-VERDICT")
def test_a_verdict_over_thousands_of_versions_names_ranges_in_its_text_and_in_its_facts() -> None:
    faults = (*range(4, 14), 20, *range(100, 100 + MANY))
    verdict = Verdict(
        kind=VerdictKind.FULL, table_id="t", version=MANY, schema=StructType(), reason=Reason.FEED_OFF, at_fault=faults
    )
    told = f"4 to 13, 20, 100 to {99 + MANY}"
    assert str(verdict) == f"full snapshot: the change feed was off (versions {told})"
    changes = Changes(source=None, verdict=verdict, frame=None)  # type: ignore[arg-type]
    assert changes.facts["at_fault"] == told.split(", ")


def test_a_slice_of_thousands_of_values_is_short_in_words_and_whole_in_its_identity() -> None:
    days = [dt.date(2000, 1, 1) + dt.timedelta(days=number) for number in range(MANY)]
    texts = [of_values("name", NAMES), of_values("name", NAMES[:-1])]
    assert all(len(str(within)) < 1_000 for within in texts)
    assert texts[0].identity != texts[1].identity
    several = Slice(tuple(box for day in days for box in of_values("day", [day]).boxes))
    assert str(several).endswith(f" or {MANY - NAMED} more")
    assert len(several.identity.split(" or ")) == MANY
