"""What became of a write whose answer is lost or whose look at the log fails: told by the mark, never guessed."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.dataset import Dataset
from pipeline.delta.log import mark as commit_module
from pipeline.delta.sql.slices import Slice, of_values
from pipeline.errors import CommitUnknownError, EngineError
from pipeline_tests.delta.lost_answers import lose_answers
from pipeline_tests.delta.sample import APPENDED, REPLACED, day, put, rows_of, versions_of
from pipeline_tests.tiers import first_in_both_modes, first_is_quick

WRITES = [(APPENDED, None), (REPLACED, of_values("day", [day(1)])), (REPLACED, None)]
WRITE_IDS = ["append", "replace of a slice", "replace of the table"]


@pytest.mark.parametrize(("dataset", "within"), first_is_quick(first_in_both_modes(WRITES), count=2), ids=WRITE_IDS)
def test_a_commit_whose_answer_was_lost_is_found_by_its_mark_and_reported(
    spark: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch, dataset: Dataset, within: Slice | None
) -> None:
    put(spark, dataset, root, [(day(1), 1, "before")], within)
    lose_answers(monkeypatch, arrives=True)
    result = put(spark, dataset, root, [(day(1), 2, "after")], within)
    assert (result.committed, result.version, result.rows_written) == (True, 2, 1)
    assert versions_of(dataset, root) == [0, 1, 2]


@pytest.mark.both_modes
def test_a_statement_that_never_arrived_is_told_as_a_failure_and_commits_nothing(
    spark: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(spark, APPENDED, root, [(day(1), 1, "before")])
    lose_answers(monkeypatch, arrives=False)
    with pytest.raises(EngineError, match="the answer was lost"):
        put(spark, APPENDED, root, [(day(1), 2, "after")])
    assert rows_of(APPENDED, root) == [(day(1), 1, "before")]


@pytest.mark.both_modes
def test_a_log_that_can_t_be_read_after_a_lost_answer_leaves_the_outcome_unknown_and_names_the_mark(
    spark: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(spark, APPENDED, root, [(day(1), 1, "before")])
    lose_answers(monkeypatch, arrives=True)

    def unreadable(*_: Any) -> None:
        raise OSError("storage is away")

    monkeypatch.setattr(commit_module, "find_mark", unreadable)
    with pytest.raises(CommitUnknownError) as caught:
        put(spark, APPENDED, root, [(day(1), 2, "after")])
    assert caught.value.reason == "the answer was lost"
    assert caught.value.mark.startswith("test/None/1/")


def test_a_commit_whose_file_can_t_be_read_at_once_is_found_by_a_second_look(
    spark: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = commit_module.read_commit
    looks: list[int] = []

    def flaky(location: str, number: int, partition_by: tuple[str, ...]) -> Any:
        looks.append(number)
        if len(looks) == 1:
            raise OSError("storage hiccup")
        return read(location, number, partition_by)

    monkeypatch.setattr(commit_module, "read_commit", flaky)
    result = put(spark, APPENDED, root, [(day(1), 1, "a")])
    assert (result.version, looks) == (1, [1, 1])
