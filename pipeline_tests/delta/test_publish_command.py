"""`pipeline publish`: what waits is shown, and committed or removed only when that is asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.dataset import Dataset
from pipeline.delta.maintain import publish as publications
from pipeline.delta.write import write as write_module
from pipeline.errors import AuditError, NewerRowsReplacedError, NewerWritesError, NothingRejectedError
from pipeline_tests.children.auditing import DATASETS, FIRST, REFUSED, write_rows
from pipeline_tests.delta.operator import Operator
from pipeline_tests.delta.sample import placed, rows_of, versions_of
from pipeline_tests.remedies import follows, refused

REPLACED = DATASETS["replace"]


@pytest.fixture
def operator(classic: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Operator:
    operator = Operator.of(classic, tmp_path, monkeypatch)
    operator.declare(REPLACED)
    placed(classic, REPLACED, operator.root, FIRST)
    return operator


def refuse(operator: Operator, dataset: Dataset = REPLACED, run: str = "r1") -> AuditError:
    def put() -> object:
        return write_rows(operator.session, dataset, operator.root, REFUSED["replace"], run)

    publish = f"pipeline publish {dataset.name} --run {run}"
    return refused(AuditError, put, f"{publish} shows the rows", f"{publish} --apply")


@follows(AuditError)
def test_a_refused_write_is_shown_and_then_published_by_the_commands_that_its_error_names(operator: Operator) -> None:
    refuse(operator)
    shown = operator.run("publish", "replace", "--run", "r1").splitlines()
    facts = {line.split("  ")[0]: line.rpartition("  ")[2] for line in shown if "  " in line}
    assert facts["write"] == "Replace, part = b"
    assert facts["failed expect_no_debt"] == "false over 1 row"
    assert [line.split() for line in shown[-3:-1]][-1] == ["b", "8", "-8"]
    assert shown[-1] == "Nothing was committed; --apply commits these rows."
    assert versions_of(REPLACED, operator.root) == [0, 1]

    (listed,) = operator.json("publish", "replace")
    assert (listed["run"], listed["rows"], listed["partitions"]) == ("r1", 1, "part = b")
    (done,) = operator.json("publish", "replace", "--run", "r1", "--apply")
    assert done["applied"] == {"version": 2, "committed": True, "rows_written": 1}
    assert rows_of(REPLACED, operator.root) == [FIRST[0], ("b", 8, -8)]
    assert operator.run("publish", "replace") == "No rejected write waits.\n"


@pytest.mark.exhaustive
@follows(NothingRejectedError)
def test_a_run_that_has_nothing_waiting_is_told_which_have(operator: Operator) -> None:
    refuse(operator)
    command = ("publish", "replace", "--run", "r2")
    error = operator.refused(NothingRejectedError, command, "pipeline publish replace lists those", "r1")
    (listed,) = operator.json("publish", "replace")
    assert (listed["run"], error.waiting) == ("r1", ("r1",))
    operator.run("publish", "replace", "--run", "r1", "--discard", "--apply")
    operator.refused(NothingRejectedError, command, "pipeline history replace --json")
    assert versions_of(REPLACED, operator.root) == [0, 1]


@pytest.mark.exhaustive
@follows(NewerWritesError)
def test_newer_rows_are_overwritten_by_the_command_that_the_error_names(operator: Operator) -> None:
    refuse(operator)
    open_to_all = replace(REPLACED, audit="after")
    write_rows(operator.session, open_to_all, operator.root, [("b", 9, 9)], "r2")
    command = ("publish", "replace", "--run", "r1", "--apply")
    again = "pipeline publish replace --run r1 --over-newer --apply"
    operator.refused(NewerWritesError, command, "pipeline history replace", again)
    assert rows_of(REPLACED, operator.root) == [FIRST[0], ("b", 9, 9)]
    shown = operator.run("publish", "replace", "--run", "r1").splitlines()[-1]
    assert shown == "Rows that this write replaces are newer than its audit; only --over-newer --apply commits it."
    operator.run(*command, "--over-newer")
    assert rows_of(REPLACED, operator.root) == [FIRST[0], ("b", 8, -8)]


def write_newer_before(module: Any, name: str, operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the next call of a function another writer commits newer rows into the slice of the refused write."""
    real, open_to_all = getattr(module, name), replace(REPLACED, audit="after")

    def raced(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(module, name, real)
        write_rows(operator.session, open_to_all, operator.root, [("b", 9, 9)], "r2")
        return real(*arguments, **named)

    monkeypatch.setattr(module, name, raced)


def test_rows_that_are_committed_after_the_plan_and_before_the_statement_stay(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(operator)
    write_newer_before(publications, "write", operator, monkeypatch)
    command = ("publish", "replace", "--run", "r1", "--apply")
    error = operator.refused(NewerWritesError, command, "pipeline publish replace --run r1 --over-newer --apply")
    assert (error.judged, error.version) == (1, 2)
    assert rows_of(REPLACED, operator.root) == [FIRST[0], ("b", 9, 9)]
    assert [one["run"] for one in operator.json("publish", "replace")] == ["r1"]


@pytest.mark.exhaustive
@follows(NewerRowsReplacedError)
def test_rows_that_are_committed_as_the_statement_begins_are_named_and_come_back_by_a_restore(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(operator)
    write_newer_before(write_module, "_run", operator, monkeypatch)
    back = "pipeline restore replace --version 2 --apply"
    command = ("publish", "replace", "--run", "r1", "--apply")
    error = operator.refused(NewerRowsReplacedError, command, "pipeline history replace", back)
    assert (error.version, error.first, error.last) == (3, 2, 2)
    assert rows_of(REPLACED, operator.root) == [FIRST[0], ("b", 8, -8)]
    operator.run(*back.split()[1:])
    assert rows_of(REPLACED, operator.root) == [FIRST[0], ("b", 9, 9)]
    assert [one["run"] for one in operator.json("publish", "replace")] == ["r1"]
