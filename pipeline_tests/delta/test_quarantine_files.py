"""Writes leave no file in a quarantine's folder that no commit names, and take out what a first try had put there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.dataset import Append
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.write import write as write_module
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline_tests.children.quarantine import orders
from pipeline_tests.delta.lost_answers import lose_answers
from pipeline_tests.delta.sample import actions_of, frame_of, versions_of

DATASET = orders(Append())
APART = DATASET.quarantine
GOOD, BAD = (1, 1, "a"), (2, -2, "a")


def deliver(spark: SparkSession, root: str, epoch: int, *rows: tuple[Any, ...], parts: int = 1) -> WriteResult:
    """A batch; of several parts its first rows are in the first one."""
    frame = frame_of(spark, DATASET, rows)
    if parts > 1:
        frame = frame.repartitionByRange(parts, "id").sortWithinPartitions("id")
    carried = CommitNote(mark=Mark(writer="w", epoch=epoch))
    return write(frame, dataset=DATASET, location=DATASET.location(root), note=carried)


def orphans(root: str) -> set[str]:
    """Files in the quarantine's folder that no commit has ever named."""
    assert APART is not None
    folder = Path(APART.location(root))
    lying = {str(path.relative_to(folder)) for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts}
    actions = [action for version in versions_of(APART, root) for action in actions_of(APART, root, version)]
    return lying - {(action.get("add") or action.get("remove") or {}).get("path") for action in actions}


def test_neither_a_clean_write_nor_one_of_few_bad_rows_leaves_a_file_in_quarantine_that_no_commit_names(
    classic: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert APART is not None
    deliver(classic, root, 0, GOOD, BAD)
    before = versions_of(APART, root)
    clean = deliver(classic, root, 1, GOOD)
    assert clean.rows_quarantined == 0
    assert clean.quarantined is None or not clean.quarantined.committed
    assert (versions_of(APART, root), orphans(root)) == (before, set())
    deliver(classic, root, 2, (1, 1, "a"), (2, 1, "a"), (3, -1, "a"), parts=3)  # the bad row is in the last part
    assert orphans(root) == set()
    with monkeypatch.context() as patched:
        lose_answers(patched, arrives=False, only=f"{DATASET.name}`")
        with pytest.raises(Exception, match="the answer was lost"):
            deliver(classic, root, 3, GOOD, BAD)
    assert deliver(classic, root, 3, GOOD, BAD).rows_quarantined == 1
    rows = classic.read.format("delta").load(APART.location(root))
    assert sorted(row["_epoch"] for row in rows.collect()) == [0, 2, 3]


@pytest.mark.exhaustive
def test_a_repeat_without_the_bad_rows_of_the_first_try_takes_them_out(
    classic: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert APART is not None
    with monkeypatch.context() as patched:
        patched.setattr(write_module._QuarantinedRows, "_removed", lambda *_: None)  # as one that is killed there
        lose_answers(patched, arrives=False, only=f"{DATASET.name}`")
        with pytest.raises(Exception, match="the answer was lost"):
            deliver(classic, root, 0, GOOD, BAD)
    again = deliver(classic, root, 0, GOOD)
    assert again.quarantined is not None
    assert (again.quarantined.operation, again.quarantined.rows_deleted) == ("DELETE", 1)
    assert classic.read.format("delta").load(APART.location(root)).count() == 0
