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


def in_turns(rounds: int, ours: Side, bare: Side) -> dict[str, list[float]]:
    """Seconds of each round by side; each round has a number of its own, and the side that begins changes with it."""
    return all_in_turns(rounds, {"ours": ours, "bare": bare})


def all_in_turns(rounds: int, sides: Mapping[str, Side]) -> dict[str, list[float]]:
    """As `in_turns`, for any number of sides."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(max(_LEAST_ROUNDS, rounds // 4) if os.environ.get(QUICK) and rounds > 1 else rounds):
        for name in sides if number % 2 else reversed(list(sides)):
            started = time.perf_counter()
            sides[name](number)
            found[name].append(time.perf_counter() - started)
    return found


def warm(found: dict[str, list[float]]) -> dict[str, list[float]]:
    """The second half of the rounds; the first has warmed up."""
    return {name: seconds[len(seconds) // 2 :] for name, seconds in found.items()}


def shown(found: dict[str, list[float]], wanted: float | None = None) -> str:
    """Medians and spreads of the second halves with their ratio, and the first halves as they were."""
    lines = []
    for name, seconds in warm(found).items():
        quarters, high = quantiles(seconds, n=4), quantiles(seconds, n=20, method="inclusive")[-1]
        before = ", ".join(f"{s:.2f}" for s in found[name][: -len(seconds)])
        spread = f"IQR {quarters[-1] - quarters[0]:.3f} s, p95 {high:.3f} s"
        lines.append(f"{name}: median {median(seconds):.3f} s, {spread}; before: {before}")
    ours, bare = (median(warm(found)[name]) for name in ("ours", "bare"))
    target = "" if wanted is None else f" (wanted: {wanted})"
    return "\n".join([*lines, f"ratio of the medians {ours / bare:.2f}{target}"])
