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
# Around the tables in a page.
BEGIN, END = "<!-- figures -->", "<!-- end of the figures -->"


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

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """The line: what, found, target, verdict, and the medians or what else is to be known."""
        target = "" if self.at_most is None else f"{self.at_most:g}"
        verdict = {None: "", True: "met", False: "NOT met"}[self.is_met]
        spread = "" if self.spread is None else f" (quartiles {self.spread:.2f})"
        return self.title, f"{self.value:.2f} {self.unit}".rstrip() + spread, target, verdict, self.details


def compared(
    title: str, found: Mapping[str, list[float]], at_most: float | None = None, *, left_out: int | None = None,
    note: str = "",
) -> None:  # fmt: skip
    """Report the ratio of the medians of two sides, the first to the second, usually `ours` to `bare`.

    Args:
        left_out: how many rounds have only warmed up. If None, half of them.
        note: what else is to be known of the figure.
    """
    print(f"\n{title}\n{shown(found, at_most, left_out)}\n{note}".rstrip(), flush=True)
    seconds = warm(found, left_out)
    (_, first), (name, second) = list(seconds.items())[:2]
    ratios = [one / other for one, other in zip(first, second, strict=True)]
    details = ", ".join(_median(side, taken) for side, taken in seconds.items())
    _keep(
        Result(
            title=title, value=median(first) / median(second), unit=f"of {name}", spread=_spread(ratios),
            at_most=at_most, details="; ".join(filter(None, (details, note))),
        )
    )  # fmt: skip


def measured(title: str, values: Sequence[float], unit: str, at_most: float | None = None, *, note: str = "") -> None:
    """Report the median of one side. `note` is what else is to be known of the figure."""
    print(f"\n{title}: {', '.join(f'{value:.2f}' for value in values)} {unit} {note}".rstrip(), flush=True)
    _keep(Result(title=title, value=median(values), unit=unit, spread=_spread(values), at_most=at_most, details=note))


def kept(file: Path) -> list[Result]:
    """The results that a benchmark's process has kept in a file."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [Result(**json.loads(line)) for line in lines]


def _spread(values: Sequence[float]) -> float | None:
    """The distance of the quartiles. A single value has none."""
    if len(values) == 1:
        return None
    low, *_, high = quantiles(values, n=4)
    return high - low


def _median(name: str, seconds: Sequence[float]) -> str:
    spread = _spread(seconds)
    return f"{name} {median(seconds):.3f} s" + ("" if spread is None else f" (quartiles {spread:.3f} s)")


def _keep(result: Result) -> None:
    file = os.environ.get(FILE)
    if file is not None:
        with Path(file).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(asdict(result)) + "\n")


def document(results: Mapping[str, Sequence[Result]], machine: Mapping[str, object]) -> str:
    """The results of all benchmarks as a JSON document."""
    rows = {name: [asdict(one) | {"is_met": one.is_met} for one in found] for name, found in results.items()}
    return json.dumps({"machine": dict(machine), "benchmarks": rows}, indent=2)


def kept_in_document(file: Path, machine: Mapping[str, object]) -> dict[str, list[Result]]:
    """The results in the JSON document of an earlier run. If there is no such file, none.

    Raises:
        SystemExit: the document is of another machine or other versions.
    """
    if not file.exists():
        return {}
    found = json.loads(file.read_text(encoding="utf-8"))
    if found["machine"] != json.loads(json.dumps(machine)):
        raise SystemExit(f"{file} has the results of another machine, or of other versions: give another file")
    fields = Result.__dataclass_fields__
    rows = found["benchmarks"].items()
    return {name: [Result(**{k: row[k] for k in fields}) for row in lines] for name, lines in rows}


def page_with(page: Path, results: Mapping[str, Sequence[Result]], machine: Mapping[str, object]) -> str:
    """The text of a page with the results between its two marks. A page without marks, or no page, is the tables."""
    tables = f"{BEGIN}\n\n{as_markdown(results, machine)}\n{END}"
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    return f"{before}{tables}{after}" if mark else f"{tables}\n"


def as_markdown(results: Mapping[str, Sequence[Result]], machine: Mapping[str, object]) -> str:
    """The machine and a table for each benchmark."""
    facts = dict(machine)
    memory, packages = facts.pop("memory_bytes"), facts.pop("packages")
    assert isinstance(memory, int)
    assert isinstance(packages, dict)
    shown = [f"{name} {value}" for name, value in packages.items()]
    lines = [
        f"{facts['processors']} processors, {memory / 2**30:.0f} GiB of memory, {facts['system']}, "
        f"Python {facts['python']}, {', '.join(shown)}.",
        "",
    ]
    for name, found in results.items():
        lines += [f"### {name}", "", "| what | found | target | | medians |", "|---|---|---|---|---|"]
        lines += [f"| {' | '.join(one.cells)} |" for one in found]
        lines.append("")
    return "\n".join(lines)
