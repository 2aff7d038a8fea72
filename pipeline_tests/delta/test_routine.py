"""Routine maintenance and the clean-up of a log with Delta's own checkpoints: the plan is what is done."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.dataset import Append, Dataset, MaintenancePolicy, Replace
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.maintain.checkpoint import Checkpoints
from pipeline.delta.maintain.clean_log import clean_log, plan_clean_log
from pipeline.delta.maintain.maintain import checkpoint_at
from pipeline.delta.maintain.routine import Maintained, maintain_table
from pipeline.delta.write import transaction
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline.settings import SparkSettings
from pipeline_tests.delta.sample import APPENDED, day, days, frame_of, placed, put, rows_of, versions_of

DAYS_40 = 40 * 86_400


def log_of(dataset: Dataset, root: str) -> Path:
    return Path(dataset.location(root)) / "_delta_log"


def make_old(dataset: Dataset, root: str, until: int) -> None:
    """Give the entries up to a version an age of forty days."""
    for number in range(until + 1):
        os.utime(log_of(dataset, root) / f"{number:020d}.json", (time.time() - DAYS_40,) * 2)


def deliver(session: SparkSession, root: str, epoch: int) -> WriteResult:
    frame = frame_of(session, APPENDED, [(day(1), epoch, "a")])
    return write(frame, table=APPENDED.at(root), note=CommitNote(mark=Mark(writer="writer", epoch=epoch)))


@pytest.mark.exhaustive
def test_a_log_without_a_checkpoint_begins_with_one_of_deltas_and_repeats_are_still_recognised(
    spark: SparkSession, spark_settings: SparkSettings, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over Connect a child process with a JVM of its own writes the checkpoint, of a version that is not the newest."""
    monkeypatch.setenv("PIPELINE_CACHE", str(spark_settings.cache))
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    for epoch in range(1, 5):
        deliver(spark, root, epoch)
    make_old(APPENDED, root, 3)
    table, log = APPENDED.at(root), log_of(APPENDED, root)
    plan = plan_clean_log(table)
    assert (plan.checkpoint, plan.kept_from, plan.readable_from, plan.version) == (3, 3, 3, 4)
    before = {path.name for path in log.iterdir()}

    with Checkpoints(spark) as checkpoints:
        clean_log(plan, lambda version: checkpoint_at(table, version, checkpoints))

    left = {path.name for path in log.iterdir()}
    assert before - left == {*plan.files}
    assert {name for name in left - before if not name.startswith(".")} == {f"{3:020d}.checkpoint.parquet"}
    assert versions_of(APPENDED, root) == [3, 4]
    assert [len(rows_of(APPENDED, root, version)) for version in (3, 4)] == [3, 4]
    transaction._SEARCHED.clear()
    assert [deliver(spark, root, epoch).skipped for epoch in (1, 4, 5)] == [True, True, False]
    assert rows_of(APPENDED, root) == [(day(1), epoch, "a") for epoch in range(1, 6)]


def maintained(session: SparkSession, dataset: Dataset, root: str, *, apply: bool) -> Maintained:
    with Checkpoints(session) as checkpoints:
        return maintain_table(dataset.at(root), checkpoints, apply=apply, run_id="run")


def steps(done: Maintained) -> tuple[int | None, int | None, int, int, int]:
    return done.checkpoint, done.files_joined, done.files_vacuumed, done.log_files_removed, done.bytes_reclaimed


def test_small_files_are_joined_and_the_log_is_cleaned_as_the_dry_run_says(classic: SparkSession, root: str) -> None:
    dataset = days(Append(), maintenance=MaintenancePolicy())
    for number in range(9):
        placed(classic, dataset, root, [(day(1), number, "a")])
    make_old(dataset, root, 9)
    rows, before = rows_of(dataset, root), {path.name for path in log_of(dataset, root).iterdir()}
    dry = maintained(classic, dataset, root, apply=False)
    assert (dry.checkpoint, dry.files_joined, dry.files_vacuumed, dry.log_files_removed) == (9, 9, 0, 9)
    assert {path.name for path in log_of(dataset, root).iterdir()} == before

    done = maintained(classic, dataset, root, apply=True)
    assert steps(done) == steps(dry)
    # After its checkpoint of version 10, Delta itself removes the last old entry.
    assert (versions_of(dataset, root), done.sizes.files, done.sizes.log_entries) == ([10], 1, 1)
    assert rows_of(dataset, root) == rows


@pytest.mark.exhaustive
def test_a_vacuum_removes_what_the_dry_run_says_and_a_second_one_makes_no_commit(
    classic: SparkSession, root: str
) -> None:
    policy = MaintenancePolicy(checkpoint=False, small_file_ratio=None, clean_log=False)
    at_once = (("delta.deletedFileRetentionDuration", "interval 0 hours"),)
    dataset = days(Replace(), properties=at_once, maintenance=policy)
    for text in ("old", "new"):
        put(classic, dataset, root, [(day(1), 1, text)])
    dry = maintained(classic, dataset, root, apply=False)
    files = {path: path.stat().st_size for path in Path(dataset.location(root)).glob("day=*/*.parquet")}
    done = maintained(classic, dataset, root, apply=True)
    gone = {path: size for path, size in files.items() if not path.exists()}
    assert (done.files_vacuumed, done.bytes_reclaimed) == (len(gone), sum(gone.values()))
    assert steps(done) == steps(dry)
    assert len(gone) == 1
    versions = versions_of(dataset, root)
    assert maintained(classic, dataset, root, apply=True).is_idle
    assert versions_of(dataset, root) == versions
