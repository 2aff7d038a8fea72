"""What a benchmark found: printed at once, and kept for the table and the JSON document of the command.

A comparison has a ratio of medians, and a figure is one number; both may have a target.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

from pipeline_tests.benchmarks.turns import shown, warm

FILE = "BENCHMARK_RESULTS"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One line of the table. `spread` is the distance of the quartiles, and `at_most` is the target."""

    title: str
    value: float
    unit: str
    spread: float | None = None
    at_most: float | None = None
    details: str = ""

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met. If there is none, None."""
        return None if self.at_most is None else self.value <= self.at_most


def compared(title: str, found: dict[str, list[float]], at_most: float | None = None) -> None:
    """Report the ratio of the medians of `ours` and `bare`, of the second half of the rounds."""
    print(f"\n{title}\n{shown(found, at_most)}")
    seconds = warm(found)
    ours, bare = median(seconds["ours"]), median(seconds["bare"])
    details = ", ".join(
        f"{name} {median(taken):.3f} s (quartiles {_spread(taken):.3f} s)" for name, taken in seconds.items()
    )
    _keep(Result(title=title, value=ours / bare, unit="of bare", spread=None, at_most=at_most, details=details))


def measured(title: str, values: Sequence[float], unit: str, at_most: float | None = None) -> None:
    """Report the median of one side."""
    print(f"\n{title}: {', '.join(f'{value:.2f}' for value in values)} {unit}")
    spread = _spread(values) if len(values) > 1 else None
    _keep(Result(title=title, value=median(values), unit=unit, spread=spread, at_most=at_most))


def kept(file: Path) -> list[Result]:
    """The results that a benchmark's process has kept in a file."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [Result(**json.loads(line)) for line in lines]


def _spread(values: Sequence[float]) -> float:
    low, *_, high = quantiles(values, n=4)
    return high - low


def _keep(result: Result) -> None:
    file = os.environ.get(FILE)
    if file is not None:
        with Path(file).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(asdict(result)) + "\n")


def document(results: Mapping[str, Sequence[Result]], machine: Mapping[str, object]) -> str:
    """The results of all benchmarks as a JSON document."""
    rows = {name: [asdict(one) | {"is_met": one.is_met} for one in found] for name, found in results.items()}
    return json.dumps({"machine": dict(machine), "benchmarks": rows}, indent=2)
