"""A table with ten thousand versions against one with ten, of the same rows and live files.

Target: it opens, describes, appends and is judged for a consumer within 1.5 times the other. In each round the tables
are links of the prepared ones in a folder of their own, which neither this process nor its JVM has seen.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.delta.inspect.describe import describe, described_in_log
from pipeline.delta.log.commits import commit_identity
from pipeline.delta.log.mark import Cursor
from pipeline.delta.read.verdict import VerdictKind, verdict_on
from pipeline.delta.table.open_table import open_or_create, require_table
from pipeline_tests.benchmarks.results import compared
from pipeline_tests.benchmarks.slopes.written_log import EVENTS, REAL_COMMITS, table_of
from pipeline_tests.benchmarks.turns import all_in_turns, is_quick
from pipeline_tests.delta.sample import put

FEW, MANY = 10, 1_000 if is_quick() else 10_000
ROUNDS, AT_MOST = 8, 1.5


@pytest.fixture(scope="module")
def tables(classic: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The prepared tables, by the number of their versions."""
    return {count: table_of(classic, tmp_path_factory.mktemp(f"of{count}"), count) for count in (MANY, FEW)}


def copies(tables: dict[int, Path], folder: Path) -> tuple[dict[int, str], dict[str, Callable[[int], None]]]:
    """The roots of the copies that are there now, and what makes new ones before each turn."""
    roots: dict[int, str] = {}

    def renew(count: int, number: int) -> None:
        if count in roots:
            shutil.rmtree(roots[count])
        roots[count] = str(folder / f"{count}-{number}")
        shutil.copytree(tables[count], EVENTS.location(roots[count]), copy_function=os.link)

    return roots, {f"{count} versions": lambda number, count=count: renew(count, number) for count in tables}


def compare(title: str, tables: dict[int, Path], folder: Path, act: Callable[[str], None]) -> None:
    """Let both tables take turns at an action on the root of a fresh copy."""
    roots, before = copies(tables, folder)
    sides = {f"{count} versions": lambda _, count=count: act(roots[count]) for count in tables}
    compared(f"{title}, first sight of the table", all_in_turns(ROUNDS, sides, before), AT_MOST)


def test_it_opens(classic: SparkSession, tables: dict[int, Path], tmp_path: Path) -> None:
    compare("a table opens", tables, tmp_path, lambda root: void(open_or_create(classic, EVENTS.at(root))))


def test_it_is_described(classic: SparkSession, tables: dict[int, Path], tmp_path: Path) -> None:
    def in_log(root: str) -> None:
        described = described_in_log("events", EVENTS.location(root), EVENTS)
        assert described is not None
        assert described.standing == "ok"

    compare("a table is described from its log", tables, tmp_path / "log", in_log)
    by_spark = tmp_path / "spark"
    compare("a table is described by Spark", tables, by_spark, lambda root: void(describe(classic, EVENTS.at(root))))


def test_it_is_appended_to(classic: SparkSession, tables: dict[int, Path], tmp_path: Path) -> None:
    compare("an append", tables, tmp_path / "cold", lambda root: void(put(classic, EVENTS, root, [(1, "c")])))
    roots, before = copies(tables, tmp_path / "warm")
    for renew in before.values():
        renew(0)
    sides = {f"{n} versions": lambda _, n=n: void(put(classic, EVENTS, roots[n], [(1, "c")])) for n in tables}
    compared("an append, after others of the same process", all_in_turns(3 * ROUNDS, sides), AT_MOST)


def test_it_is_judged_for_a_consumer(classic: SparkSession, tables: dict[int, Path], tmp_path: Path) -> None:
    cursors: dict[str, Cursor] = {}
    roots, before = copies(tables, tmp_path)
    for count, location in tables.items():
        state = require_table(classic, EVENTS.at(str(location.parent)))
        number = state.version - REAL_COMMITS
        entry = commit_identity(str(location), number)
        cursors[f"{count} versions"] = Cursor(table_id=state.table_id, version=number, entry=entry)

    def judge(name: str, count: int) -> None:
        verdict = verdict_on(None, EVENTS.at(roots[count]), cursors[name])
        assert (verdict.kind, verdict.files) == (VerdictKind.CHANGES, REAL_COMMITS), str(verdict)

    sides = {
        f"{count} versions": lambda _, count=count: judge(f"{count} versions", count) for count in tables
    }  # fmt: skip
    compared("the verdict for a consumer, first sight of the table", all_in_turns(ROUNDS, sides, before), AT_MOST)


def void(_: object) -> None:
    """Nothing, whatever is given."""
