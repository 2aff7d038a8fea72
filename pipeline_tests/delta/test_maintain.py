"""Vacuum and checkpoint: dry unless asked, and the table's rows and versions are the same before and after."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.dataset import Append, Replace, TableRef
from pipeline.delta.maintain.checkpoint import CheckpointFailedError, Checkpoints
from pipeline.delta.maintain.maintain import checkpoint, vacuum
from pipeline.delta.spark import own_classes
from pipeline.delta.sql.slices import of_values
from pipeline.errors import TableNotFoundError
from pipeline.settings import SparkSettings
from pipeline_tests.conftest import close, connect
from pipeline_tests.delta.sample import APPENDED, REPLACED, day, days, files_of, placed, put, rows_of, versions_of

# Delta removes what its retention no longer protects; with none, what is not live.
FORGETFUL = days(Replace(), properties=(("delta.deletedFileRetentionDuration", "interval 0 hours"),))
DAYS_40 = 40 * 86_400


def parquet_files(location: str) -> set[str]:
    """Data files that lie in the folder, live or not."""
    return {str(path.relative_to(location)) for path in Path(location).glob("day=*/*.parquet")}


def test_a_vacuum_lists_what_it_would_remove_and_removes_it_only_when_asked(spark: SparkSession, root: str) -> None:
    location = FORGETFUL.location(root)
    placed(spark, FORGETFUL, root, [(day(1), 1, "old"), (day(2), 2, "kept")])
    (stale,) = [name for name in files_of(FORGETFUL, root) if name.startswith("day=2026-01-01/")]
    put(spark, FORGETFUL, root, [(day(1), 1, "new")], of_values("day", [day(1)]))
    live, rows = files_of(FORGETFUL, root), rows_of(FORGETFUL, root)
    assert parquet_files(location) == live | {stale}
    versions = versions_of(FORGETFUL, root)

    dry = vacuum(spark, TableRef(FORGETFUL, location))
    assert (dry.dataset, dry.applied, dry.version) == ("days", False, versions[-1])
    assert [name.split("/days/", maxsplit=1)[1] for name in dry.files if name.endswith(".parquet")] == [stale]
    assert parquet_files(location) == live | {stale}
    assert versions_of(FORGETFUL, root) == versions

    applied = vacuum(spark, TableRef(FORGETFUL, location), apply=True)
    assert applied.applied
    assert applied.files == dry.files
    assert applied.version == versions_of(FORGETFUL, root)[-1]
    assert parquet_files(location) == live
    assert rows_of(FORGETFUL, root) == rows == [(day(1), 1, "new"), (day(2), 2, "kept")]


@pytest.mark.exhaustive
def test_a_vacuum_leaves_what_the_tables_own_retention_protects(classic: SparkSession, root: str) -> None:
    """A week by default: older versions must stay readable, and running readers whole."""
    location = REPLACED.location(root)
    placed(classic, REPLACED, root, [(day(1), 1, "old")])
    put(classic, REPLACED, root, [(day(1), 1, "new")])
    before = parquet_files(location)
    assert len(before) == 2

    result = vacuum(classic, TableRef(REPLACED, location), apply=True)

    assert result.files == ()
    assert parquet_files(location) == before
    assert rows_of(REPLACED, root, version=1) == [(day(1), 1, "old")]


@pytest.mark.parametrize("verb", [vacuum, checkpoint])
def test_maintaining_a_table_that_was_never_written_is_not_found(spark: SparkSession, root: str, verb: object) -> None:
    with pytest.raises(TableNotFoundError) as caught:
        verb(spark, APPENDED.at(root))  # type: ignore[operator]

    assert (caught.value.dataset, caught.value.location) == ("days", APPENDED.location(root))
    assert not Path(root).exists()


def test_a_checkpoint_writes_its_file_and_the_pointer_and_commits_nothing(
    spark: SparkSession, spark_settings: SparkSettings, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over Connect a child process with a JVM of its own does it, with the settings of the environment."""
    monkeypatch.setenv("PIPELINE_CACHE", str(spark_settings.cache))
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    location = APPENDED.location(root)
    for n in range(2):
        put(spark, APPENDED, root, [(day(1), n, "a")])

    log = Path(location) / "_delta_log"
    for path in log.glob("*"):
        os.utime(path, (time.time() - DAYS_40,) * 2)
    follower = replace(REPLACED, name="follower")  # it never ran, so that it needs all of the log
    consumers = [follower.at(root)]

    result = checkpoint(spark, TableRef(APPENDED, location), consumers=consumers)

    assert (result.dataset, result.version) == ("days", 2)
    assert [(needed.consumer, needed.version) for needed in result.log_kept_for] == [("follower", 0)]
    assert [path.name for path in log.glob("*.checkpoint*.parquet")] == [f"{2:020d}.checkpoint.parquet"]
    assert json.loads((log / "_last_checkpoint").read_text(encoding="utf-8"))["version"] == 2
    assert versions_of(APPENDED, root) == [0, 1, 2]
    # With the commits behind it gone, the checkpoint alone gives the same rows.
    rows = rows_of(APPENDED, root)
    for version in (0, 1):
        (log / f"{version:020d}.json").unlink()
    assert rows_of(APPENDED, root) == rows == [(day(1), 0, "a"), (day(1), 1, "a")]


@pytest.mark.exhaustive
def test_a_vacuum_takes_files_that_no_commit_ever_named(classic: SparkSession, root: str) -> None:
    """What a killed writer leaves behind is in no log, and so in no version."""
    dataset = days(Append(), properties=FORGETFUL.properties)
    placed(classic, dataset, root, [(day(1), 1, "a")])
    location = dataset.location(root)
    (live,) = files_of(dataset, root)
    orphan = Path(location) / "day=2026-01-01" / "part-killed.parquet"
    orphan.write_bytes((Path(location) / live).read_bytes())
    outside = Path(root) / "beside.parquet"
    outside.write_bytes(b"not of the table")
    result = vacuum(classic, TableRef(dataset, location), apply=True)

    assert [name.split("/days/", maxsplit=1)[1] for name in result.files] == ["day=2026-01-01/part-killed.parquet"]
    assert parquet_files(location) == {live}
    assert outside.exists()


@pytest.mark.exhaustive
def test_without_our_classes_one_child_writes_the_checkpoints_of_all_tables_and_says_which_it_could_not(
    classic: SparkSession, remote_url: str, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_classes, "REQUESTS", "com.example.Another")
    datasets = [replace(APPENDED, name=name) for name in ("one", "two")]
    for dataset in datasets:
        put(classic, dataset, root, [(day(1), 1, "x")])
    broken = Path(root) / "broken" / "_delta_log" / f"{0:020d}.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("no action", encoding="utf-8")
    session = connect(remote_url)
    try:
        with Checkpoints(session) as checkpoints:
            first = checkpoint(session, datasets[0].at(root), within=checkpoints)
            child = checkpoints._child
            assert child is not None
            with pytest.raises(CheckpointFailedError, match=r"\w"):
                checkpoints.write(f"{root}/broken", None)
            second = checkpoint(session, datasets[1].at(root), within=checkpoints)
            assert checkpoints._child is child
        assert child.returncode == 0
    finally:
        close(session)
    assert (first.version, second.version) == (1, 1)
    for dataset in datasets:
        assert len(list((Path(dataset.location(root)) / "_delta_log").glob("*.checkpoint*.parquet"))) == 1
