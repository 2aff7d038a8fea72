"""A streaming query into a table: each batch once, whatever Spark had to repeat."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.dataset import Check, Replace, RowCount, TableRef
from pipeline.delta.log.commits import commit_versions
from pipeline.delta.log.epochs import epochs
from pipeline.delta.maintain.checkpoint import Checkpoints
from pipeline.delta.spark.session import is_connect, open_session
from pipeline.delta.stream.structured_streaming import combined_result, outcome_text, read_outcome, write_available
from pipeline.errors import CheckViolationError, DeclarationError, FrameFailedError, StreamError
from pipeline.settings import SparkSettings
from pipeline_tests.children.sink import ARRIVALS
from pipeline_tests.children.stream import Job, StreamChild, source
from pipeline_tests.conftest import brief_conf, close, connect, connect_mode
from pipeline_tests.delta.sample import put, rows_of
from pipeline_tests.tiers import first_is_quick


def arrive(folder: Path, name: str, *numbers: int) -> None:
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps({"arrival": number, "update_id": number}) + "\n" for number in numbers)
    (folder / name).write_text(text, encoding="utf-8")


def test_each_batch_is_an_epoch_and_one_that_is_repeated_is_skipped(spark: SparkSession, tmp_path: Path) -> None:
    folder, checkpoint, root = tmp_path / "in", tmp_path / "checkpoint", str(tmp_path / "tables")
    location = ARRIVALS.location(root)

    def run() -> list[tuple[int | None, bool]]:
        results = write_available(
            source(spark, str(folder)), table=TableRef(ARRIVALS, location), checkpoint=str(checkpoint)
        )
        return [(result.mark.epoch, result.skipped) for result in results]

    arrive(folder, "a.json", 1, 2)
    arrive(folder, "b.json", 3)
    assert run() == [(0, False), (1, False)]
    assert run() == []
    # As a process leaves it that is killed after the commit and before Spark has noted it.
    for path in (checkpoint / "commits").glob("*1*"):
        path.unlink()
    arrive(folder, "c.json", 4)
    assert run() == [(1, True), (2, False)]
    assert rows_of(ARRIVALS, root) == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert [e.epoch for e in epochs(location)] == [0, 1, 2]
    assert {e.writer.partition("/")[0] for e in epochs(location)} == {"stream"}


@pytest.mark.parametrize("kind", first_is_quick(["connect", "embedded"]))
def test_a_query_whose_process_is_killed_is_gone_on_with_and_no_row_is_doubled(
    classic: SparkSession, remote_url: str, spark_settings: SparkSettings, tmp_path: Path, kind: str
) -> None:
    """Over Connect the server may go on with the query of a client that is gone, also while the next one begins."""
    folder, checkpoint, root = tmp_path / "in", str(tmp_path / "checkpoint"), str(tmp_path / "tables")
    location, files = ARRIVALS.location(root), 12
    for number in range(files):
        arrive(folder, f"{number:02}.json", 2 * number, 2 * number + 1)
    job = Job(
        root=root, folder=str(folder), checkpoint=checkpoint, cache=str(spark_settings.cache),
        remote=remote_url if kind == "connect" else None, conf=brief_conf(spark_settings),
    )  # fmt: skip
    for wanted in (3,):
        child = StreamChild(job)
        try:
            deadline = time.monotonic() + 120
            while len(commit_versions(location)) < wanted:
                assert child.is_running
                assert time.monotonic() < deadline
                time.sleep(0.02)
        finally:
            child.kill()
    spark = connect(remote_url) if kind == "connect" else classic
    with connect_mode() if kind == "connect" else nullcontext():
        write_available(source(spark, str(folder)), table=TableRef(ARRIVALS, location), checkpoint=checkpoint)
    if kind == "connect":
        close(spark)
    assert rows_of(ARRIVALS, root) == [(n, n) for n in sorted(range(2 * files), key=str)]
    assert [e.epoch for e in epochs(location)] == list(range(files))
    assert len({e.writer for e in epochs(location)}) == 1


@pytest.mark.exhaustive
def test_a_batch_that_is_refused_is_told_as_it_is_and_begun_with_the_next_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder, checkpoint, root = tmp_path / "in", tmp_path / "checkpoint", str(tmp_path / "tables")
    checked = replace(ARRIVALS, checks=(Check("small", "arrival < 10"),))
    arrive(folder, "a.json", 1)
    arrive(folder, "b.json", 10)

    def run() -> int:
        return len(write_available(
            source(spark, str(folder)), table=checked.at(root), checkpoint=str(checkpoint)
        ))  # fmt: skip

    for _ in range(2):
        with pytest.raises(CheckViolationError) as caught:
            run()
        assert caught.value.counts == {"small": 1}
    assert rows_of(ARRIVALS, root) == [(1, 1)]


def test_a_frame_that_is_no_stream_and_a_checkpoint_that_is_no_folder_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    arrive(tmp_path / "in", "a.json", 1)
    with pytest.raises(StreamError):
        write_available(
            source(spark, str(tmp_path / "in")), table=TableRef(ARRIVALS, str(tmp_path / "table")),
            checkpoint=str(tmp_path / "file"),
        )  # fmt: skip
    with pytest.raises(StreamError, match="not a streaming one"):
        write_available(
            spark.range(1).toDF("arrival"), table=TableRef(ARRIVALS, str(tmp_path)), checkpoint=str(tmp_path)
        )


def test_a_dataset_whose_batches_would_undo_others_or_be_refused_by_an_audit_has_no_stream(
    classic: SparkSession, tmp_path: Path
) -> None:
    arrive(tmp_path / "in", "a.json", 1)
    audited = replace(ARRIVALS, audit="before", row_count=RowCount(minimum=1, blocking=True))
    for dataset, problem in ((replace(ARRIVALS, write=Replace()), "no batch may undo"), (audited, "an audit refuses")):
        with pytest.raises(DeclarationError, match=problem):
            write_available(
                source(classic, str(tmp_path / "in")), table=TableRef(dataset, str(tmp_path / "table")),
                checkpoint=str(tmp_path / "checkpoint"),
            )  # fmt: skip
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.both_modes
def test_where_a_server_s_worker_can_not_write_the_error_says_what_it_needs(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.json").write_text('{"arrival": "x"}\n', encoding="utf-8")
    frame = spark.readStream.schema(ARRIVALS.schema).option("mode", "FAILFAST").json(str(folder))
    with pytest.raises(FrameFailedError):
        write_available(frame, table=TableRef(ARRIVALS, str(tmp_path / "table")), checkpoint=str(tmp_path / "other"))
    (tmp_path / "checkpoint").write_text("no folder", encoding="utf-8")
    with pytest.raises(StreamError) as caught:
        write_available(
            frame, table=TableRef(ARRIVALS, str(tmp_path / "table")), checkpoint=str(tmp_path / "checkpoint")
        )
    assert ("needs this package" in caught.value.reason) == is_connect(spark)


@pytest.mark.exhaustive
def test_what_several_batches_did_is_told_with_the_sums_and_the_newest_version(
    classic: SparkSession, tmp_path: Path
) -> None:
    folder, root = tmp_path / "in", str(tmp_path / "tables")
    small = replace(ARRIVALS, checks=(Check("small", "arrival < 10", on_violation="drop"),))
    arrive(folder, "a.json", 1, 2, 11)
    arrive(folder, "b.json", 3, 12, 13)
    results = write_available(
        source(classic, str(folder)),
        table=small.at(root),
        checkpoint=str(tmp_path / "checkpoint"),
    )
    told = combined_result(results)
    assert (told.version, told.committed, told.skipped, told.rows_written, told.rows_dropped) == (2, True, False, 3, 3)
    assert [(v.constraint, v.rows) for v in told.violations if v.rows] == [("small", 3)]
    assert told.files_added == sum(result.files_added for result in results)
    assert combined_result(results[:1]) == results[0]


class Doing:
    """What no outcome has: a call that is made when it is read."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call


@pytest.mark.parametrize(
    "given",
    [
        Doing(os.mkdir, "made"),
        Doing(eval, "open('made', 'w')"),
        Doing(subprocess.Popen, ["true"]),
        Doing(open_session, None),
        Doing(attrgetter("__class__"), 1),
        Doing(Checkpoints, None),
    ],
)
def test_an_answer_of_a_server_can_run_nothing_here(
    given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pickle.UnpicklingError, match="is no part of an outcome"):
        read_outcome(outcome_text(given))
    assert list(tmp_path.iterdir()) == []


def test_an_outcome_comes_back_as_it_was(classic: SparkSession, root: str) -> None:
    result = put(classic, ARRIVALS, root, [(1, 1)])
    assert read_outcome(outcome_text(result)) == result
    error = CheckViolationError(dataset="arrivals", counts={"small": 2})
    told = read_outcome(outcome_text(error))
    assert (type(told), vars(told)) == (CheckViolationError, vars(error))
