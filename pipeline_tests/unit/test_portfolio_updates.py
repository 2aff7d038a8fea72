"""The replayable stream: the same for a seed, with everything that goes wrong in it, and what it must come to."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from pipeline.assets.portfolio.datasets import POSITION_UPDATES, POSITIONS, SYMBOLS
from pipeline.assets.portfolio.updates import (
    Mishaps,
    PositionStream,
    newest_positions,
    position_of,
    stored_updates,
    updates,
)
from pipeline.delta.sink.buffer import Item
from pipeline.delta.sink.intake import Intake

COUNT = 4_000
QUIET = Mishaps(duplicate=0, late=0, out_of_order=0, tie=0)


@pytest.fixture(scope="module")
def stream() -> list[dict[str, Any]]:
    return list(updates(1, COUNT))


def test_a_stream_is_the_same_for_the_same_seed_and_another_for_another(stream: list[dict[str, Any]]) -> None:
    assert list(updates(1, COUNT)) == stream
    assert list(updates(1, 100)) == stream[:100]
    assert list(updates(2, COUNT)) != stream


def test_a_stream_without_mishaps_is_in_the_order_of_its_times_and_numbers() -> None:
    found = list(updates(1, 500, mishaps=QUIET))
    assert [update["update_id"] for update in found] == list(range(1, 501))
    assert all(one["at"] < other["at"] for one, other in pairwise(found))


def test_every_mishap_is_there(stream: list[dict[str, Any]]) -> None:
    times = Counter(update["update_id"] for update in stream)
    assert sum(count - 1 for count in times.values()) > COUNT * 0.01, "duplicates"
    unique = list(stored_updates(stream).values())
    late = sum(other["at"] < one["at"] for one, other in pairwise(unique))
    assert late > COUNT * 0.03, "late"
    assert sum(other["update_id"] < one["update_id"] for one, other in pairwise(unique)) > COUNT * 0.02, "out of order"
    places = Counter((update["conid"], update["at"]) for update in unique)
    assert sum(count - 1 for count in places.values()) > COUNT * 0.01, "ties"
    assert {update["symbol"] for update in stream} == set(SYMBOLS)
    assert all(len({u["symbol"] for u in unique if u["conid"] == conid}) == 1 for conid in range(1_000, 1_020))


def test_a_resend_is_equal_to_what_it_repeats(stream: list[dict[str, Any]]) -> None:
    stored = stored_updates(stream)
    assert all(update == stored[update["update_id"]] for update in stream)


def test_what_it_comes_to_does_not_depend_on_the_order_of_arrival(stream: list[dict[str, Any]]) -> None:
    shuffled = random.Random(3).sample(stream, len(stream))
    assert newest_positions(shuffled) == newest_positions(stream)
    assert stored_updates(shuffled) == stored_updates(stream)


def test_every_update_fits_both_datasets(stream: list[dict[str, Any]]) -> None:
    for dataset, records in ((POSITION_UPDATES, stream), (POSITIONS, [position_of(update) for update in stream])):
        intake = Intake(dataset, allow_nan=False, record_bytes=1 << 20)
        taken = intake.take([Item(payload=record, rows=1, size_bytes=0) for record in records[:500]])
        assert taken.letters == []
        assert sum(table.num_rows for table in taken.tables) == 500


class Collected:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_update(self, update: Any) -> None:
        self.seen.append(update)


def test_an_update_goes_into_both_tables_and_what_is_none_into_one() -> None:
    one, other = Collected(), Collected()
    handler = PositionStream(one, other)
    (update,) = updates(1, 1)
    handler.on_update(update)
    handler.on_update("nonsense")  # type: ignore[arg-type]
    assert one.seen == [update, "nonsense"]
    assert [position["updated"]["update_id"] for position in other.seen] == [1]
