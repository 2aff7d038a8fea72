"""Rows that break constraints, refused, dropped or set apart in one pass, and written once however often tried."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that everybody knows it by
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import (
    Append,
    Changelog,
    Check,
    Dataset,
    ErrorIfExists,
    InsertNew,
    Merge,
    Replace,
    TableRef,
    WriteMode,
)
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.read.changes import SourceChanges
from pipeline.delta.spark.connect import embedded_environment
from pipeline.delta.sql.slices import of_values
from pipeline.delta.table.apply import Applied
from pipeline.delta.write import write as write_module
from pipeline.delta.write.consume import consume
from pipeline.delta.write.quarantine import split_violations
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline.errors import CheckViolationError, DeclarationError, NullViolationError
from pipeline_tests.children.quarantine import ORDERS, ROW, batch_of, orders
from pipeline_tests.delta.lost_answers import lose_answers
from pipeline_tests.delta.sample import frame_in, frame_of, jobs, note, ordered, put, rows_of, versions_of
from pipeline_tests.tiers import first_is_quick

MANY_ROWS = 100_000


def apart(dataset: Dataset, root: str) -> list[tuple[Any, ...]]:
    """The rows in quarantine: id, amount, code and the reasons."""
    assert dataset.quarantine is not None
    if not Path(dataset.quarantine.location(root)).exists():
        return []
    shown = [*dataset.schema.names, "_reasons"]
    names = dataset.quarantine.schema.names
    rows = rows_of(dataset.quarantine, root)
    return ordered(tuple(row[names.index(name)] for name in shown) for row in rows)


@pytest.mark.exhaustive
def test_many_rows_are_judged_in_one_pass_and_each_row_is_somewhere(classic: SparkSession, root: str) -> None:
    """The amounts are drawn anew whenever the frame is computed: a second pass would set other rows apart."""
    dataset = orders(Replace())
    frame = classic.range(MANY_ROWS).selectExpr(
        "IF(id % 1000 = 1, NULL, id) AS id",
        "IF(CAST(reflect('java.lang.Math', 'random') AS DOUBLE) < 0.002, -1L, 1L) AS amount",
        "IF(id % 250 = 3, 'z', 'a') AS code",
    )
    before = jobs(classic)
    with split_violations(frame.limit(1000), dataset, None) as found:
        judging = jobs(classic) - before  # the rows are held, added up by task, and added up
    assert not found.is_refused
    before = jobs(classic)
    result = write(frame, table=dataset.at(root), note=note())
    writing = jobs(classic) - before
    print(f"{MANY_ROWS} rows: {judging} jobs to judge, {writing} in all")
    assert judging <= 3
    assert writing <= 18, "two tables made, two commits"

    told = {violation.constraint: violation for violation in result.violations}
    assert {name: (one.on_violation, len(one.examples)) for name, one in told.items()} == {
        "id IS NULL": ("quarantine", 5), "positive": ("quarantine", 5), "known": ("drop", 5),
    }  # fmt: skip
    assert (told["id IS NULL"].rows, told["known"].rows) == (100, 400)
    assert 100 < told["positive"].rows < 300
    assert result.rows_quarantined + result.rows_dropped + result.rows_written == MANY_ROWS
    assert result.quarantined is not None
    seen = [
        F.count("*"),
        F.count_if(F.col("id").isNull()),
        F.count_if(F.col("amount") < 0),
        F.count_if(F.col("code") == "z"),
    ]
    table, kept = (
        classic.read.format("delta").load(location).agg(*seen).collect()[0]
        for location in (result.location, result.quarantined.location)
    )
    assert tuple(table) == (result.rows_written, 0, 0, 0)
    assert tuple(kept)[:3] == (result.rows_quarantined, 100, told["positive"].rows)
    assert kept[3] + result.rows_dropped == 400


@pytest.mark.parametrize(
    "mode",
    first_is_quick([Append(), Merge(order_by="amount"), Replace(), Merge(), InsertNew(), ErrorIfExists()], count=2),
    ids=str,
)
def test_in_every_mode_the_good_rows_are_written_and_the_others_kept_with_their_reasons(
    classic: SparkSession, root: str, mode: WriteMode
) -> None:
    dataset = orders(mode)
    rows = [(1, 10, "a"), (2, -1, "a"), (None, 5, "a"), (None, -5, "z"), (4, 4, "z"), (5, None, "b")]
    result = put(classic, dataset, root, rows)
    assert rows_of(dataset, root) == [(1, 10, "a")]
    assert apart(dataset, root) == [
        (None, -5, "z", ["id IS NULL", "positive", "known"]), (None, 5, "a", ["id IS NULL"]),
        (2, -1, "a", ["positive"]), (5, None, "b", ["positive"]),
    ]  # fmt: skip
    assert (result.rows_quarantined, result.rows_dropped, result.rows_written) == (4, 1, 1)
    assert {v.constraint: v.rows for v in result.violations} == {"id IS NULL": 2, "positive": 3, "known": 2}


def test_a_frame_over_connect_with_none_but_bad_rows(spark: SparkSession, root: str) -> None:
    dataset = orders(Append())
    result = put(spark, dataset, root, [(1, -1, "a"), (2, -2, "a")])
    assert (result.committed, rows_of(dataset, root), len(apart(dataset, root))) == (False, [], 2)
    positive = next(v for v in result.violations if v.constraint == "positive")
    assert positive.examples == ("id = 1", "id = 2")


@pytest.mark.exhaustive
def test_a_slice_that_is_replaced_leaves_what_earlier_runs_have_set_apart(classic: SparkSession, root: str) -> None:
    dataset = Dataset(**vars(orders(Replace())) | {"partition_by": ("code",)})
    put(classic, dataset, root, [(1, 1, "a"), (2, -2, "a")], of_values("code", ["a"]))
    put(classic, dataset, root, [(3, 3, "a"), (4, -4, "a")], of_values("code", ["a"]))
    assert rows_of(dataset, root) == [(3, 3, "a")]
    assert [row[0] for row in apart(dataset, root)] == [2, 4]


@pytest.mark.exhaustive
def test_what_the_write_would_fail_on_is_told_before_anything_is_set_apart(classic: SparkSession, root: str) -> None:
    """A row that is set apart breaks nothing any more, since it is not written."""
    small = Check("small", "amount < 100")
    dataset = Dataset(**vars(orders(Append())) | {"checks": (*orders(Append()).checks, small)})
    with pytest.raises(CheckViolationError) as caught:
        put(classic, dataset, root, [(1, 500, "a"), (2, -1, "a"), (None, 500, "a")])
    assert (dict(caught.value.counts), caught.value.examples) == ({"small": 1}, ("small: id = 1",))
    assert (apart(dataset, root), Path(dataset.location(root)).exists()) == ([], False)
    put(classic, dataset, root, [(1, 5, "a"), (2, -1, "a"), (None, 500, "a")])
    assert (rows_of(dataset, root), len(apart(dataset, root))) == ([(1, 5, "a")], 2)


@pytest.mark.exhaustive
def test_a_row_that_deletes_is_not_judged_and_an_update_that_is_set_apart_deletes_nothing(
    classic: SparkSession, root: str
) -> None:
    """The image from before an update deletes its key where the one from after it is missing."""
    schema = StructType([*ROW.fields, StructField("op", StringType()), StructField("seq", LongType())])
    dataset = orders(Merge(changelog=Changelog(operation="op", sequence="seq")))

    def apply(*changes: tuple[Any, ...]) -> WriteResult:
        frame = frame_in(classic, schema, changes)
        return write(frame, table=dataset.at(root), note=note())

    apply((1, 1, "a", "c", 1), (2, 2, "a", "c", 1), (3, 3, "a", "c", 1))
    result = apply(
        (1, 1, "a", "update_before", 2), (1, -1, "a", "update_after", 2), (2, None, None, "d", 2),
        (3, 3, "a", "update_before", 2), (3, 4, "a", "update_after", 2),
    )  # fmt: skip
    assert rows_of(dataset, root) == [(1, 1, "a"), (3, 4, "a")]
    assert (apart(dataset, root), result.rows_quarantined) == ([(1, -1, "a", ["positive"])], 1)


# --- however often it is tried ----------------------------------------------------------------------------------------


def kill_between_the_commits(remote: str, root: str, mode: str, epoch: int) -> None:
    """A process that writes a batch, and is gone once its bad rows are in quarantine."""
    command = [sys.executable, "-m", "pipeline_tests.children.quarantine", remote, root, mode, str(epoch)]
    done = subprocess.run(command, env=embedded_environment(), check=False, timeout=300)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.exhaustive
def test_a_later_batch_of_a_writer_leaves_in_quarantine_what_its_earlier_ones_have_set_apart(
    classic: SparkSession, root: str
) -> None:
    dataset = orders(Append())
    for epoch in (1, 2):
        frame = frame_of(classic, dataset, [(epoch, 10, "a"), (epoch, -1, "a")])
        batch = CommitNote(mark=Mark(writer="batches", epoch=epoch))
        write(frame, table=dataset.at(root), note=batch)
    assert [row[0] for row in apart(dataset, root)] == [1, 2]
    assert [row[0] for row in rows_of(dataset, root)] == [1, 2]


@pytest.mark.parametrize("mode", first_is_quick(["append", "replace"]))
def test_a_replay_after_a_kill_between_the_commits_writes_neither_twice(
    classic: SparkSession, remote_url: str, root: str, mode: str
) -> None:
    dataset = ORDERS[mode]
    good, bad = batch_of(1)
    kill_between_the_commits(remote_url, root, mode, 1)
    assert (rows_of(dataset, root), [row[:3] for row in apart(dataset, root)]) == ([], ordered(bad))

    def replay() -> WriteResult:
        frame, same = frame_of(classic, dataset, good + bad), CommitNote(mark=Mark(writer="child", epoch=1))
        return write(frame, table=dataset.at(root), note=same)

    for _ in range(2):
        replay()
        assert rows_of(dataset, root) == ordered(good)
        assert [row[:3] for row in apart(dataset, root)] == ordered(bad)
    if mode == "append":
        assert dataset.quarantine is not None
        there = versions_of(dataset.quarantine, root)
        assert (replay().skipped, versions_of(dataset.quarantine, root)) == (True, there)


def test_a_write_that_fails_takes_back_what_it_had_set_apart(
    classic: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = orders(Append())
    rows = [(1, 1, "a"), (2, -2, "a")]
    with monkeypatch.context() as patched:
        lose_answers(patched, arrives=False, only=f"{dataset.name}`")
        with pytest.raises(Exception, match="the answer was lost"):
            put(classic, dataset, root, rows)
    assert (rows_of(dataset, root), apart(dataset, root)) == ([], [])
    put(classic, dataset, root, rows)
    assert (rows_of(dataset, root), len(apart(dataset, root))) == ([(1, 1, "a")], 1)


class Killed(BaseException):
    """Nothing that is written to take it back is run by what is caught as an error."""


@pytest.mark.exhaustive
def test_a_consumer_that_is_killed_or_overtaken_leaves_each_bad_row_in_quarantine_once(
    classic: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run reads more than the one that was killed; a run that was overtaken reads anew."""
    source = Dataset(name="source", schema=PLAIN, write=Append())
    consumer = Dataset(**vars(orders(Append())) | {"reads": ("source",)})

    def run(compute: Callable[[SourceChanges], DataFrame] = of_source) -> None:
        at = source.at(root)
        consume(classic, consumer.at(root), sources=[at], compute=compute, note=note("consumer"))

    put(classic, source, root, [(1, 1, "a"), (2, -2, "a")])
    run()
    put(classic, source, root, [(3, 3, "a"), (4, -4, "a")])
    with monkeypatch.context() as patched:
        patched.setattr(write_module, "_run", dies_at(consumer.location(root)))
        with pytest.raises(Killed):
            run()
    assert [row[0] for row in apart(consumer, root)] == [2, 4]
    put(classic, source, root, [(5, -5, "a"), (6, 6, "a")])
    run()
    assert rows_of(consumer, root) == [(1, 1, "a"), (3, 3, "a"), (6, 6, "a")]
    assert [row[0] for row in apart(consumer, root)] == [2, 4, 5]

    put(classic, source, root, [(7, -7, "a")])
    calls: list[int] = []

    def overtaken(changes: SourceChanges) -> DataFrame:
        calls.append(1)
        if len(calls) == 1:
            run()
            put(classic, source, root, [(8, -8, "a")])
        return of_source(changes)

    run(overtaken)
    assert (len(calls), [row[0] for row in apart(consumer, root)]) == (2, [2, 4, 5, 7, 8])


def of_source(changes: SourceChanges) -> DataFrame:
    return changes["source"].frame.select("id", "amount", "code")


PLAIN = StructType([StructField(field.name, field.dataType) for field in ROW.fields])


def dies_at(location: str) -> Callable[..., Any]:
    """In place of the statement of a write to that table the process ends, as far as the tables can tell."""
    real = write_module._run

    def run(statement: str, frame: DataFrame, table: TableRef, opened: Applied, **arguments: Any) -> Any:
        if table.location == location:
            raise Killed
        return real(statement, frame, table, opened, **arguments)

    return run


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.both_modes
def test_conditions_that_spark_cannot_analyse_are_told_all_at_once_before_anything_is_made(
    spark: SparkSession, root: str
) -> None:
    checks = (Check("fine", "amount > 0"), Check("unknown", "amont > 0"), Check("torn", "amount >"),
              Check("no_condition", "amount + 1"), Check("of_all", "count(*) > 1"))  # fmt: skip
    dataset = Dataset(name="orders", schema=ROW, checks=checks)
    with pytest.raises(DeclarationError) as caught:
        put(spark, dataset, root, [(1, 1, "a")])
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "check unknown", "check torn", "check no_condition", "check of_all",
    ]  # fmt: skip
    assert "amont" in caught.value.problems[0]
    assert not Path(dataset.location(root)).exists()


def test_a_refusal_tells_nulls_and_checks_with_rows_by_their_keys(classic: SparkSession, root: str) -> None:
    checks = (Check("positive", "amount > 0"),)
    dataset = Dataset(name="strict", schema=ROW, keys=("code",), write=Append(), checks=checks)
    with pytest.raises(NullViolationError) as caught:
        put(classic, dataset, root, [(None, 1, "a"), (2, -1, "b"), (3, 3, "c"), (None, None, None)])
    error = caught.value
    assert (dict(error.counts), dict(error.checks)) == ({"id": 2}, {"positive": 2})
    assert error.examples == (
        "id IS NULL: code = NULL", "id IS NULL: code = a", "positive: code = NULL", "positive: code = b",
    )  # fmt: skip
    assert "positive: code = b" in str(error)
