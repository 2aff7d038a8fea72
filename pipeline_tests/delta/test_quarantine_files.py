"""Files that no commit names, after writes that keep rows out; and what a first try has put in quarantine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.dataset import Append, Dataset, InsertNew, Merge, TableRef, WriteMode
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.write import write as write_module
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline_tests.children.quarantine import orders
from pipeline_tests.delta.lost_answers import lose_answers
from pipeline_tests.delta.sample import actions_of, frame_of, versions_of
from pipeline_tests.tiers import first_is_quick

DATASET = orders(Append())
APART = DATASET.quarantine
GOOD, BAD = (1, 1, "a"), (2, -2, "a")


def deliver(spark: SparkSession, root: str, epoch: int, *rows: tuple[Any, ...], parts: int = 1) -> WriteResult:
    """A batch; of several parts its first rows are in the first one."""
    frame = frame_of(spark, DATASET, rows)
    if parts > 1:
        frame = frame.repartitionByRange(parts, "id").sortWithinPartitions("id")
    carried = CommitNote(mark=Mark(writer="w", epoch=epoch))
    return write(frame, table=DATASET.at(root), note=carried)


def orphans(root: str, dataset: Dataset | None = APART) -> set[str]:
    """Files in the folder of a dataset, by default the quarantine, that no commit has ever named."""
    assert dataset is not None
    folder = Path(dataset.location(root))
    lying = {str(path.relative_to(folder)) for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts}
    actions = [action for version in versions_of(dataset, root) for action in actions_of(dataset, root, version)]
    return lying - {(action.get("add") or action.get("remove") or {}).get("path") for action in actions}


@pytest.mark.exhaustive
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


@pytest.mark.parametrize(
    "mode", first_is_quick([Merge(order_by="amount"), InsertNew()]), ids=lambda mode: type(mode).__name__
)
def test_a_merge_of_which_every_row_is_kept_out_leaves_no_file_that_no_commit_names(
    classic: SparkSession, root: str, mode: WriteMode
) -> None:
    dataset = orders(mode)
    location = dataset.location(root)

    def merge(epoch: int, *rows: tuple[Any, ...]) -> WriteResult:
        note = CommitNote(mark=Mark(writer="w", epoch=epoch))
        return write(frame_of(classic, dataset, rows), table=TableRef(dataset, location), note=note)

    first = merge(0, GOOD)
    second = merge(1, BAD, (3, 1, "unknown"))
    assert (second.committed, second.version) == (False, first.version)
    assert (second.rows_quarantined, second.rows_dropped) == (1, 1)
    assert second.quarantined is not None
    assert second.quarantined.committed
    assert orphans(root, dataset) == orphans(root, dataset.quarantine) == set()
    assert [tuple(row) for row in classic.read.format("delta").load(location).collect()] == [GOOD]


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
