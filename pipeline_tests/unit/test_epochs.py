"""The epochs of writers as a log has them, and the counting of flushes; no Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.delta.log.epochs import epoch_of_another_batch, epochs, last_epoch
from pipeline.delta.sink.committer import without_repeats
from pipeline.delta.sink.metrics import SinkCounters
from pipeline_tests.unit.sink_sample import UPDATES

NOTE = {"pipeline": 1, "run_id": None}


def log(folder: Path, *commits: tuple[str, int | None, str] | None) -> str:
    """A log of one commit for each (writer, epoch, batch); None is a commit that is not ours."""
    (folder / "_delta_log").mkdir()
    for number, commit in enumerate(commits):
        info: dict[str, object] = {"operation": "WRITE", "operationMetrics": {"numOutputRows": "5"}}
        if commit is not None:
            writer, epoch, batch = commit
            mark = {"writer": writer, "epoch": epoch, "attempt": 1, "token": "t"}
            info["userMetadata"] = json.dumps(NOTE | {"mark": mark, "run_id": batch})
        path = folder / "_delta_log" / f"{number:020d}.json"
        path.write_text(json.dumps({"commitInfo": info}), encoding="utf-8")
    return str(folder)


def test_epochs_are_told_with_their_versions_oldest_first(tmp_path: Path) -> None:
    location = log(tmp_path, None, ("a", 1, "x"), ("b", 1, "y"), ("a", None, "run"), ("a", 2, "z"))
    assert [(e.writer, e.epoch, e.version, e.batch, e.rows) for e in epochs(location)] == [
        ("a", 1, 1, "x", 5), ("b", 1, 2, "y", 5), ("a", 2, 4, "z", 5),
    ]  # fmt: skip
    assert [e.version for e in epochs(location, "b")] == [2]
    assert last_epoch(location, "a") == (2, 4)
    assert last_epoch(location, "nobody") == (0, 4)


def test_where_there_is_no_table_there_are_no_epochs(tmp_path: Path) -> None:
    assert epochs(str(tmp_path)) == []
    assert last_epoch(str(tmp_path), "a") == (0, -1)


def test_the_greatest_epoch_of_another_sink_is_found_between_two_versions(tmp_path: Path) -> None:
    location = log(tmp_path, ("a", 5, "mine"), ("a", 6, "theirs"), ("b", 9, "other"), ("a", 5, "older"), None)
    found = epoch_of_another_batch(location, "a", "mine", -1, 4)
    assert found is not None
    assert (found.epoch, found.version) == (6, 1)
    assert epoch_of_another_batch(location, "a", "theirs", 0, 2) is None
    gone = Path(location) / "_delta_log" / f"{1:020d}.json"
    gone.unlink()
    found = epoch_of_another_batch(location, "a", "mine", -1, 4)
    assert found is not None
    assert found.version == 3


def test_the_first_row_of_a_key_stays_and_others_that_differ_are_told() -> None:
    import pyarrow as pa

    table = pa.table({"id": [1, 2, 1, 1, 2], "symbol": ["A", "B", "A", "C", "D"]})
    good, letters = without_repeats(UPDATES, table)
    assert good.to_pylist() == [{"id": i, "symbol": s} for i, s in [(1, "A"), (2, "B"), (1, "A")]]
    assert [letter.record for letter in letters] == [{"id": 1, "symbol": "C"}, {"id": 2, "symbol": "D"}]
    assert letters[0].reason == "another row of its key (id = 1) came before it"


@pytest.mark.parametrize(
    ("seconds", "p50", "p95"),
    [([], None, None), ([3.0], 3.0, 3.0), ([4.0, 1.0, 3.0, 2.0], 2.0, 4.0), (list(map(float, range(1, 101))), 50, 95)],
)
def test_times_are_told_by_their_median_and_by_the_one_in_twenty(
    seconds: list[float], p50: float | None, p95: float | None
) -> None:
    meter = SinkCounters()
    for number, one in enumerate(seconds):
        meter.committed(10, one, version=number, replay=number == 0)
    found = meter.read(buffered_rows=1, backlog=(2, 3))
    assert (found.flush_seconds_p50, found.flush_seconds_p95) == (p50, p95)
    assert (found.flushes, found.rows_committed) == (len(seconds), 10 * len(seconds))
    assert (found.first_version, found.last_version) == ((0, len(seconds) - 1) if seconds else (None, None))
    assert f"backlog={found.backlog_rows} dead_letters=0" in found.line
