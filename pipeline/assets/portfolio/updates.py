"""The stream of position updates: a replayable one, what it must come to, and the way of an update into both tables.

Here belongs what a broker's stream does to those who read it: updates that come late, out of order, twice, and at the
same time. Neither Spark nor Dagster is needed.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pipeline.assets.portfolio.datasets import SYMBOLS
from pipeline.delta.sink.sink import UpdateHandler

Update = Mapping[str, Any]
START = dt.datetime(2026, 1, 5, 14, 30, tzinfo=dt.timezone.utc)
_FIRST_PRICE, _STEP, _LEAST = 10_000, 25, 100  # in cents
_LATEST_SECONDS = 120
_REMEMBERED = 50


@dataclass(frozen=True, kw_only=True)
class Mishaps:
    """Shares of updates that come twice, late, after a younger one, or at the very time of the one before."""

    duplicate: float = 0.03
    late: float = 0.05
    out_of_order: float = 0.05
    tie: float = 0.03


_USUAL = Mishaps()


def updates(
    seed: int, count: int, *, contracts: int = 200, per_second: float = 500.0, mishaps: Mishaps = _USUAL
) -> Iterator[dict[str, Any]]:
    """So many updates in the order in which they arrive; a longer stream begins as a shorter one of its seed does."""
    rng = random.Random(seed)  # noqa: S311  no secret
    prices = [_FIRST_PRICE] * contracts
    sent: list[dict[str, Any]] = []
    held_back: dict[str, Any] | None = None
    number = 0
    for arrival in range(count):
        if held_back is not None:
            found, held_back = held_back, None
        elif sent and rng.random() < mishaps.duplicate:
            found = dict(rng.choice(sent))
        else:
            number += 1
            found = _fresh(
                rng, number, START + dt.timedelta(seconds=arrival / per_second), prices, sent=sent, mishaps=mishaps
            )
            if rng.random() < mishaps.out_of_order:
                number += 1
                at = START + dt.timedelta(seconds=(arrival + 1) / per_second)
                held_back, found = found, _fresh(rng, number, at, prices, sent=[], mishaps=mishaps)
        sent = [*sent[-_REMEMBERED:], found]
        yield dict(found)


def _fresh(
    rng: random.Random, number: int, at: dt.datetime, prices: list[int], *, sent: list[dict[str, Any]], mishaps: Mishaps
) -> dict[str, Any]:
    """An update of any contract, of now, of some time ago, or of the contract and time of the one before."""
    contract = rng.randrange(len(prices))
    prices[contract] = max(_LEAST, prices[contract] + rng.randint(-_STEP, _STEP))
    kind = rng.random()
    conid = 1_000 + contract
    if sent and kind < mishaps.tie:
        conid, at = sent[-1]["conid"], sent[-1]["at"]
    elif kind < mishaps.tie + mishaps.late:
        at -= dt.timedelta(seconds=rng.uniform(0, _LATEST_SECONDS))
    return {
        "update_id": number,
        "conid": conid,
        "symbol": SYMBOLS[conid % len(SYMBOLS)],
        "quantity": Decimal(rng.randrange(-50_000, 50_000)) / 100,
        "price": prices[contract] / 100,
        "at": at,
    }


def position_of(update: Update) -> dict[str, Any]:
    """An update as a row of positions."""
    row = {name: update.get(name) for name in ("conid", "symbol", "quantity", "price")}
    return row | {"updated": {"at": update.get("at"), "update_id": update.get("update_id")}}


def stored_updates(stream: Iterable[Update]) -> dict[int, Update]:
    """What position_updates must hold after a stream, by the number of the update."""
    found: dict[int, Update] = {}
    for update in stream:
        found.setdefault(update["update_id"], update)
    return found


def newest_positions(stream: Iterable[Update]) -> dict[int, Update]:
    """The update that positions must show of each contract after a stream."""
    found: dict[int, Update] = {}
    for update in stream:
        there = found.get(update["conid"])
        if there is None or (update["at"], update["update_id"]) > (there["at"], there["update_id"]):
            found[update["conid"]] = update
    return found


class PositionStream:
    """Hands each update to a handler of updates and, as a position, to one of positions."""

    def __init__(self, position_updates: UpdateHandler, positions: UpdateHandler) -> None:
        self._updates, self._positions = position_updates, positions

    def on_update(self, update: Update) -> None:
        """Take one update; one that is no mapping is for the first handler to refuse."""
        self._updates.on_update(update)
        if isinstance(update, Mapping):
            self._positions.on_update(position_of(update))
