"""Several ways to the same end, taking turns in one process, so that all meet the same load and as warm a JVM."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from statistics import median, quantiles
from typing import Any

Side = Callable[[int], Any]
# With this variable a comparison has a quarter of its rounds.
QUICK = "BENCHMARK_QUICK"
_LEAST_ROUNDS = 4


def is_quick() -> bool:
    """Whether the benchmarks are only to show that they run."""
    return bool(os.environ.get(QUICK))


def in_turns(rounds: int, ours: Side, bare: Side) -> dict[str, list[float]]:
    """Seconds of each round by side; each round has a number of its own, and the side that begins changes with it."""
    return all_in_turns(rounds, {"ours": ours, "bare": bare})


def all_in_turns(
    rounds: int, sides: Mapping[str, Side], before: Mapping[str, Side] | None = None
) -> dict[str, list[float]]:
    """As `in_turns`, for any number of sides. What `before` has for a side runs before each of its turns, untimed."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(min(rounds, max(_LEAST_ROUNDS, rounds // 4)) if is_quick() else rounds):
        for name in sides if number % 2 else reversed(list(sides)):
            if before is not None:
                before[name](number)
            started = time.perf_counter()
            sides[name](number)
            found[name].append(time.perf_counter() - started)
    return found


def warm(found: Mapping[str, list[float]], left_out: int | None = None) -> dict[str, list[float]]:
    """The rounds that count: all but the first, which have warmed up. If `left_out` is None, half are left out."""
    return {name: seconds[len(seconds) // 2 if left_out is None else left_out :] for name, seconds in found.items()}


def shown(found: Mapping[str, list[float]], wanted: float | None = None, left_out: int | None = None) -> str:
    """Medians and spreads of the rounds that count, with the ratio of the first side to the second, and the others."""
    lines, counted = [], warm(found, left_out)
    for name, seconds in counted.items():
        before = ", ".join(f"{s:.2f}" for s in found[name][: -len(seconds)])
        spread = ""
        if len(seconds) > 1:
            quarters, high = quantiles(seconds, n=4), quantiles(seconds, n=20, method="inclusive")[-1]
            spread = f", IQR {quarters[-1] - quarters[0]:.3f} s, p95 {high:.3f} s"
        lines.append(f"{name}: median {median(seconds):.3f} s{spread}; before: {before}")
    first, second = (median(counted[name]) for name in list(found)[:2])
    target = "" if wanted is None else f" (wanted: {wanted})"
    return "\n".join([*lines, f"ratio of the medians {first / second:.2f}{target}"])
