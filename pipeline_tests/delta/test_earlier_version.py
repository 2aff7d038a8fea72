"""What an earlier version has written is read and continued: tables, cursors, records, a stream and killed sinks.

Commit ab3c8a7 (version 0.1.0) wrote `pipeline_tests/data/earlier`, from the datasets of
`pipeline_tests.projects.earlier`: three days of orders with a quarantined row each, totals of the first two days, two
epochs of customers, a stream whose last batch is in the table but not in the list of its commits, and two sinks that
were killed with a batch begun: `before` its commit and `after` it.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.delta.inspect.manifest import manifest, runs
from pipeline.delta.inspect.record import verify
from pipeline.delta.read.verdict import VerdictKind
from pipeline.delta.sink.receiver import SinkSettings
from pipeline.delta.sink.sink import DeltaSink
from pipeline.delta.stream.structured_streaming import write_available
from pipeline.delta.table.open_table import plan_in_log
from pipeline.delta.write.consume import Touched, consume
from pipeline.settings import Settings
from pipeline_tests.delta.sample import note, put, rows_of
from pipeline_tests.projects.earlier import ARRIVALS, CUSTOMERS, EVENTS, ORDERS, TOTALS, datasets
from pipeline_tests.tiers import first_is_quick

DATA = Path(__file__).parents[1] / "data" / "earlier"
PLACE = "{place}"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A copy of the old data. The files that name its folder have `PLACE` there."""
    place = Path(shutil.copytree(DATA, tmp_path / "kept"))
    for path in (*place.glob("checkpoint/sources/0/*"), *place.glob("root/_records/*/*.json")):
        path.write_text(path.read_text(encoding="utf-8").replace(PLACE, str(place)), encoding="utf-8")
    return place


def day(number: int) -> dt.date:
    return dt.date(2026, 1, number)


def test_tables_are_as_declared_and_their_records_are_verified(kept: Path) -> None:
    root = str(kept / "root")
    for dataset in datasets:
        plan = plan_in_log(dataset.at(root))
        assert plan is not None
        assert [step for step in plan.steps if step.needed] == []
    assert len(rows_of(ORDERS, root)) == 6
    assert ORDERS.quarantine is not None
    assert len(rows_of(ORDERS.quarantine, root)) == 3
    summaries = runs(root)
    assert sorted(summary.datasets for summary in summaries) == [*[("orders", "orders__quarantine")] * 3, ("totals",)]
    records = [record for summary in summaries for record in manifest(root, summary.run_id)]
    assert [verdict.problem for verdict in verify(records)] == [None] * 7


def test_a_consumer_goes_on_from_its_cursor(classic: SparkSession, kept: Path) -> None:
    root = str(kept / "root")
    source = ORDERS.at(root)
    assert rows_of(TOTALS, root) == [(day(1), 30.0), (day(2), 30.0)]

    def run() -> tuple[VerdictKind, tuple[int, int] | None, bool]:
        consumed = consume(
            classic, TOTALS.at(root), sources=[source], note=note("totals"),
            compute=lambda changes: Touched(
                changes["orders"].rows_in(days := changes["orders"].touched("day")).groupBy("day")
                .agg({"amount": "sum"}).toDF("day", "total"), within=days,
            ),
        )  # fmt: skip
        verdict = consumed.verdicts["orders"]
        return verdict.kind, verdict.window, consumed.written is not None

    assert run() == (VerdictKind.CHANGES, (3, 3), True)
    assert rows_of(TOTALS, root) == [(day(1), 30.0), (day(2), 30.0), (day(3), 30.0)]
    assert run() == (VerdictKind.NOTHING_NEW, None, False)


@pytest.mark.exhaustive
def test_late_and_new_rows_are_merged_into_the_stored_ones(classic: SparkSession, kept: Path) -> None:
    root = str(kept / "root")
    assert rows_of(CUSTOMERS, root) == [("a", 1), ("b", 2)]
    assert put(classic, CUSTOMERS, root, [("b", 1), ("c", 1)]).rows_written == 1
    assert rows_of(CUSTOMERS, root) == [("a", 1), ("b", 2), ("c", 1)]


@pytest.mark.exhaustive
def test_a_stream_repeats_the_batch_whose_end_it_does_not_know_and_goes_on(classic: SparkSession, kept: Path) -> None:
    root = str(kept / "root")
    folder, checkpoint = str(kept / "in"), str(kept / "checkpoint")
    (kept / "in" / "c.json").write_text(json.dumps({"arrival": 4, "update_id": 4}) + "\n", encoding="utf-8")
    stream = classic.readStream.schema(EVENTS.schema).option("maxFilesPerTrigger", 1).json(folder)
    results = write_available(stream, table=EVENTS.at(root), checkpoint=checkpoint)
    assert [(result.mark.epoch, result.skipped) for result in results] == [(1, True), (2, False)]
    assert rows_of(EVENTS, root) == [(1, 1), (2, 2), (3, 3), (4, 4)]


@pytest.mark.parametrize("writer", first_is_quick(["before", "after"]))
def test_a_sink_that_was_killed_in_the_middle_of_a_batch_commits_it_once(
    classic: SparkSession, settings: Settings, kept: Path, writer: str
) -> None:
    root = str(kept / "root")
    batch, rest = [(1, 1), (2, 2)], [(3, 3), (4, 4), (5, 5)]
    assert rows_of(ARRIVALS, root) == sorted([*batch, *batch, *rest])
    here = replace(settings, project=kept, root=root)
    with DeltaSink(ARRIVALS, writer, here, SinkSettings(flush_seconds=0.1)) as sink:
        assert sink.positions == {"source": 5}
        sink.flush(60)
    added = rest if writer == "before" else []
    assert rows_of(ARRIVALS, root) == sorted([*batch, *batch, *rest, *added])
