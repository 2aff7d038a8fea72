"""The results of benchmarks: ratios, verdicts, and the documents that they are written to."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from pipeline_tests.benchmarks.results import (
    BEGIN,
    END,
    FILE,
    compared,
    document,
    kept,
    kept_in_document,
    measured,
    page_with,
)
from pipeline_tests.benchmarks.turns import all_in_turns, is_quick

MACHINE = {
    "processors": 2, "memory_bytes": 2**33, "python": "3.11", "system": "Linux", "packages": {"pyspark": "4.2.0"},
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the process keeps its results."""
    monkeypatch.setenv(FILE, str(tmp_path / "results.jsonl"))
    return tmp_path / "results.jsonl"


def test_a_comparison_is_the_ratio_of_the_first_side_to_the_second_without_the_rounds_that_warm_up(file: Path) -> None:
    compared("half", {"new": [9.0, 9.0, 3.0, 3.0], "old": [1.0, 1.0, 2.0, 2.0]}, 1.2)
    compared("first", {"new": [9.0, 2.0, 2.0], "old": [9.0, 4.0, 4.0]}, 0.5, left_out=1)
    compared("one round", {"new": [1.0], "old": [4.0]}, left_out=0)
    half, first, single = kept(file)
    assert (half.value, half.unit, half.is_met) == (1.5, "of old", False)
    assert (first.value, first.unit, first.is_met) == (0.5, "of old", True)
    assert (single.value, single.spread, single.details) == (0.25, None, "new 1.000 s, old 4.000 s")


def test_a_measure_is_the_median_with_its_spread_and_one_value_has_none(file: Path) -> None:
    measured("seconds", [1.0, 2.0, 4.0], "s", 3)
    measured("once", [5.0], "s", note="why")
    several, once = kept(file)
    assert (several.value, several.is_met) == (2.0, True)
    assert math.isclose(several.spread or 0, 3.0)
    assert (once.spread, once.is_met, once.details) == (None, None, "why")


def test_sides_take_turns_and_what_comes_before_a_turn_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    sides = {name: lambda number, name=name: seen.append(f"{name}{number}") for name in ("a", "b")}
    before = {name: lambda number, name=name: seen.append(f"before {name}{number}") for name in sides}
    found = all_in_turns(2, sides, before)
    assert seen == ["before b0", "b0", "before a0", "a0", "before a1", "a1", "before b1", "b1"]
    assert {name: len(seconds) for name, seconds in found.items()} == {"a": 2, "b": 2}
    monkeypatch.setenv("BENCHMARK_QUICK", "1")
    assert is_quick()
    assert [len(all_in_turns(rounds, sides)["a"]) for rounds in (1, 3, 8, 40)] == [1, 3, 4, 10]


def test_a_document_keeps_the_results_of_other_benchmarks_and_refuses_those_of_another_machine(
    file: Path, tmp_path: Path
) -> None:
    measured("seconds", [1.0, 2.0], "s", 1)
    results, path = {"peers": kept(file)}, tmp_path / "results.json"
    path.write_text(document(results, MACHINE), encoding="utf-8")
    assert kept_in_document(path, MACHINE) == results
    assert kept_in_document(tmp_path / "none.json", MACHINE) == {}
    assert json.loads(path.read_text(encoding="utf-8"))["benchmarks"]["peers"][0]["is_met"] is False
    with pytest.raises(SystemExit, match="another machine"):
        kept_in_document(path, MACHINE | {"processors": 8})


def test_a_page_gets_the_tables_between_its_marks_and_keeps_its_text(file: Path, tmp_path: Path) -> None:
    measured("seconds", [1.5], "s", 2, note="a note")
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n\nThe end.\n", encoding="utf-8")
    text = page_with(page, {"peers": kept(file)}, MACHINE)
    assert text.startswith(f"# Title\n\n{BEGIN}\n\n2 processors, 8 GiB of memory, Linux, Python 3.11, pyspark 4.2.0.\n")
    assert "### peers\n\n| what | found | target | | medians |\n|---|---|---|---|---|\n" in text
    assert "| seconds | 1.50 s | 2 | met | a note |\n" in text
    assert text.endswith(f"\n{END}\n\nThe end.\n")
    assert "old" not in text
    page.write_text(text, encoding="utf-8")
    assert page_with(page, {"peers": kept(file)}, MACHINE) == text
