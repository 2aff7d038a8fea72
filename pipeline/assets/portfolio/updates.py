"""The stream of position updates: a repeatable stream, its expected result, and its submission to both tables.

Here belongs the behaviour of a broker's stream: updates that come late, out of order, twice, and at the same time.
Neither Spark nor Dagster is needed.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pipeline.assets.portfolio.datasets import SYMBOLS
from pipeline.delta.sink import UpdateHandler

Update = Mapping[str, Any]
START = dt.datetime(2026, 1, 5, 14, 30, tzinfo=dt.timezone.utc)
_FIRST_PRICE, _STEP, _LEAST = 10_000, 25, 100  # in cents
_LATEST_SECONDS = 120
_REMEMBERED = 50


@dataclass(frozen=True, kw_only=True)
class Mishaps:
    """Shares of updates that come twice, late, after a younger one, or with the same time as the one before."""

    duplicate: float = 0.03
    late: float = 0.05
    out_of_order: float = 0.05
    tie: float = 0.03


_USUAL = Mishaps()


def updates(
    seed: int, count: int, *, contracts: int = 200, per_second: float = 500.0, mishaps: Mishaps = _USUAL
) -> Iterator[dict[str, Any]]:
    """That many updates in the order of their arrival. Of one seed, a longer stream begins with the shorter one."""
    rng = random.Random(seed)  # noqa: S311  no secret
    prices = [_FIRST_PRICE] * contracts
    sent: list[dict[str, Any]] = []
    held_back: dict[str, Any] | None = None
    number = 0
    for arrival in range(count):
        if held_back is not None:
            update, held_back = held_back, None
        elif sent and rng.random() < mishaps.duplicate:
            update = dict(rng.choice(sent))
        else:
            number += 1
            update = _fresh(
                rng, number, START + dt.timedelta(seconds=arrival / per_second), prices, sent=sent, mishaps=mishaps
            )
            if rng.random() < mishaps.out_of_order:
                number += 1
                at = START + dt.timedelta(seconds=(arrival + 1) / per_second)
                held_back, update = update, _fresh(rng, number, at, prices, sent=[], mishaps=mishaps)
        sent = [*sent[-_REMEMBERED:], update]
        yield dict(update)


def _fresh(
    rng: random.Random, number: int, at: dt.datetime, prices: list[int], *, sent: list[dict[str, Any]], mishaps: Mishaps
) -> dict[str, Any]:
    """An update of any contract with the present or an earlier time, or of the previous update's contract and time."""
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
    """An update as a row of `positions`."""
    row = {name: update.get(name) for name in ("conid", "symbol", "quantity", "price")}
    return row | {"updated": {"at": update.get("at"), "update_id": update.get("update_id")}}


def stored_updates(stream: Iterable[Update]) -> dict[int, Update]:
    """The expected content of `position_updates` after a stream, by the number of the update."""
    by_number: dict[int, Update] = {}
    for update in stream:
        by_number.setdefault(update["update_id"], update)
    return by_number


def newest_positions(stream: Iterable[Update]) -> dict[int, Update]:
    """The update that `positions` must show for each contract after a stream."""
    newest: dict[int, Update] = {}
    for update in stream:
        current = newest.get(update["conid"])
        if current is None or (update["at"], update["update_id"]) > (current["at"], current["update_id"]):
            newest[update["conid"]] = update
    return newest


class PositionStream:
    """Passes each update to a handler of updates and, as a position, to a handler of positions."""

    def __init__(self, position_updates: UpdateHandler, positions: UpdateHandler) -> None:
        self._updates, self._positions = position_updates, positions

    def on_update(self, update: Update) -> None:
        """Handle one update. If it is not a mapping, only the first handler gets it, and refuses it."""
        self._updates.on_update(update)
        if isinstance(update, Mapping):
            self._positions.on_update(position_of(update))
