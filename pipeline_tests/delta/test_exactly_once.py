"""Exactly once: a batch that comes again is not written again, one that a restore has undone is, and both are told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import (
    Append,
    Changelog,
    Dataset,
    ErrorIfExists,
    Ignore,
    InsertNew,
    Merge,
    Replace,
    TableRef,
    WriteMode,
)
from pipeline.delta import sql
from pipeline.delta.log.commits import commit_file, commit_token
from pipeline.delta.log.mark import CommitNote, Mark, clone_session, release_session
from pipeline.delta.maintain.maintain import checkpoint
from pipeline.delta.maintain.restore import plan_restore, restore
from pipeline.delta.read.version import ReadOptions
from pipeline.delta.table import open_table
from pipeline.delta.write import transaction
from pipeline.delta.write import write as write_module
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline.errors import DuplicateKeysError, TableExistsError
from pipeline_tests.delta.lost_answers import lose_answers
from pipeline_tests.delta.sample import commit_info, frame_in, note, ordered, versions_of
from pipeline_tests.tiers import first_in_both_modes, first_is_quick, some_are_quick

case = pytest.mark.case

ROW = StructType([StructField("k", LongType()), StructField("at", LongType()), StructField("v", StringType())])
LOG = Changelog(operation="op", sequence="at")
Rows = Sequence[tuple[Any, ...]]


def table_of(mode: WriteMode, name: str = "once") -> Dataset:
    return Dataset(name=name, schema=ROW, keys=("k",), write=mode)


def deliver(
    spark: SparkSession, dataset: Dataset, root: str, epoch: int | None, rows: Rows, writer: str = "w"
) -> WriteResult:
    """Write a batch under its writer and epoch; rows are (k, at, v), and (k, at, v, op) for a changelog."""
    is_log = isinstance(dataset.write, Merge) and dataset.write.changelog is not None
    schema = StructType([*ROW.fields, StructField("op", StringType())]) if is_log else ROW
    said = CommitNote(mark=Mark(writer=writer, epoch=epoch))
    return write(frame_in(spark, schema, rows), table=dataset.at(root), note=said)


def rows_in(dataset: Dataset, root: str) -> list[tuple[Any, ...]]:
    """Every row with its copies, as delta-rs sees them."""
    found = deltalake.DeltaTable(dataset.location(root)).to_pyarrow_table().to_pylist()
    return ordered((row["k"], row["at"], row["v"]) for row in found)


def was_skipped(result: WriteResult, version: int) -> bool:
    """Whether nothing was written and the result says so, with the version that holds the rows."""
    told = (result.skipped, result.committed, result.rows_written, result.operation, result.version)
    return told == (True, False, 0, "no commit", version)


# --- the same batch again ---------------------------------------------------------------------------------------------


@case("T-OLDER-VERSION")
@pytest.mark.parametrize("mode", first_in_both_modes([Append(), Merge()]), ids=str)
def test_a_batch_that_is_not_newer_than_what_was_written_is_skipped_and_told_as_skipped(
    spark: SparkSession, root: str, mode: WriteMode
) -> None:
    dataset = table_of(mode)
    first = deliver(spark, dataset, root, 30, [(1, 1, "thirty")])
    older = deliver(spark, dataset, root, 10, [(2, 1, "ten")])
    again = deliver(spark, dataset, root, 30, [(1, 1, "thirty")])
    assert (first.skipped, first.committed, first.version, first.rows_written) == (False, True, 1, 1)
    assert was_skipped(older, version=1)
    assert was_skipped(again, version=1)
    assert (rows_in(dataset, root), versions_of(dataset, root)) == ([(1, 1, "thirty")], [0, 1])


@pytest.mark.exhaustive
def test_another_writer_and_a_write_without_an_epoch_are_no_repeats(classic: SparkSession, root: str) -> None:
    dataset = table_of(Append())
    batch = [(1, 1, "a")]
    results = [
        deliver(classic, dataset, root, 5, batch),
        deliver(classic, dataset, root, 5, batch, writer="other"),
        deliver(classic, dataset, root, None, batch),
        deliver(classic, dataset, root, None, batch),
        deliver(classic, dataset, root, 6, batch),
    ]
    assert [(result.version, result.skipped) for result in results] == [(n, False) for n in range(1, 6)]
    assert rows_in(dataset, root) == batch * 5


@pytest.mark.exhaustive
@case("T-MERGE-CONF")
def test_two_threads_that_merge_under_two_writers_leave_nothing_in_the_callers_session(
    spark: SparkSession, root: str
) -> None:
    """Delta takes the identifier of a MERGE from the session: one that stays makes the next plain write vanish."""
    datasets = [table_of(Merge(), "t1"), table_of(Merge(), "t2")]

    def upsert(number: int) -> list[WriteResult]:
        dataset, writer = datasets[number], f"app-{number}"
        batches = [(epoch, [(epoch, 1, writer), (0, epoch, writer)]) for epoch in (1, 2, 3)]
        return [deliver(spark, dataset, root, epoch, rows, writer) for epoch, rows in batches]

    with ThreadPoolExecutor(2) as pool:
        results = [result for of_one in pool.map(upsert, (0, 1), timeout=240) for result in of_one]
    with pytest.raises(DuplicateKeysError):
        deliver(spark, datasets[0], root, 4, [(7, 1, "x"), (7, 1, "y")], "app-0")
    left = [name for name in ("write.txnAppId", "write.txnVersion", "commitInfo.userMetadata")
            if spark.conf.get(f"spark.databricks.delta.{name}", None) is not None]  # fmt: skip
    spark.sql(f"INSERT INTO {sql.path_table(datasets[0].location(root))} VALUES (9, 9, 'plain')").collect()

    assert [(result.skipped, result.version) for result in results] == [(False, n) for _ in datasets for n in (1, 2, 3)]
    assert left == []
    merged = [[(0, 3, f"app-{n}"), *((k, 1, f"app-{n}") for k in (1, 2, 3))] for n in (0, 1)]
    assert [rows_in(dataset, root) for dataset in datasets] == [[*merged[0], (9, 9, "plain")], merged[1]]


# --- a lost answer ----------------------------------------------------------------------------------------------------

OF_ONE_BATCH = [(1, 1, "a"), (2, 1, "b")]
# By test id: the mode, and whether Delta is told the identifier, since a repeat after other batches would change rows.
MODES: dict[str, tuple[WriteMode, bool]] = {
    "append": (Append(), True),
    "merge": (Merge(), True),
    "merge by order": (Merge(order_by="at"), False),
    "merge by order under a condition": (Merge(order_by="at", update_when="target.v <> 'kept'"), True),
    "changelog": (Merge(changelog=LOG), True),
    "insert new": (InsertNew(), False),
    "error if exists": (ErrorIfExists(), True),
    "ignore": (Ignore(), True),
    "replace": (Replace(), False),
}


@pytest.mark.parametrize("name", some_are_quick(MODES, "append", "changelog"))
def test_a_write_whose_answer_was_lost_is_told_with_its_own_version_and_its_replay_changes_nothing(
    classic: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    mode, is_known = MODES[name]
    dataset = table_of(mode)
    batch = [(*row, "c") for row in OF_ONE_BATCH] if name == "changelog" else OF_ONE_BATCH
    with monkeypatch.context() as patched:
        lose_answers(patched, arrives=True)
        first = deliver(classic, dataset, root, 7, batch)
    assert (first.committed, first.skipped, first.version, first.rows_written) == (True, False, 1, 2)
    assert commit_token(commit_info(dataset, root, 1)["userMetadata"]) == first.mark.token
    replay = deliver(classic, dataset, root, 7, batch)
    assert rows_in(dataset, root) == OF_ONE_BATCH
    assert was_skipped(replay, version=1) is is_known
    assert replay.rows_written == (2 if name == "replace" else 0)


# --- restores ---------------------------------------------------------------------------------------------------------

Restore = Callable[[SparkSession, Dataset, str, int], None]


def by_sql(spark: SparkSession, dataset: Dataset, root: str, version: int) -> None:
    """A restore by somebody who knows nothing of us; so is one of ours that is killed after its first commit."""
    target = sql.path_table(dataset.location(root))
    spark.sql(f"RESTORE TABLE {target} TO VERSION AS OF {version}").collect()


def by_us(spark: SparkSession, dataset: Dataset, root: str, version: int) -> None:
    plan = plan_restore(spark, dataset.at(root), ReadOptions(version=version))
    restore(spark, dataset, plan, note("operator"))


def by_us_and_then_the_log_is_cleaned(spark: SparkSession, dataset: Dataset, root: str, version: int) -> None:
    """As Delta's clean-up leaves it: commits before the checkpoint are gone, the restore among them."""
    by_us(spark, dataset, root, version)
    location = dataset.location(root)
    checkpoint(spark, TableRef(dataset, location))
    for number in versions_of(dataset, root)[:-1]:
        Path(commit_file(location, number)).unlink()


@case("T-RESTORE-REPLAY")
@pytest.mark.parametrize(
    "undo",
    first_is_quick([pytest.param((by_sql, by_us)), pytest.param((by_us_and_then_the_log_is_cleaned, by_sql))]),
    ids=["by sql, by us", "log cleaned, by sql"],
)
def test_a_batch_that_a_restore_has_undone_is_written_again_exactly_once_after_each_restore(
    classic: SparkSession, root: str, undo: tuple[Restore, Restore]
) -> None:
    """RESTORE undoes the rows of a batch and not its transaction identifier, so Delta would skip the replay."""
    dataset = table_of(Append())
    deliver(classic, dataset, root, 1, [(1, 1, "one")])
    deliver(classic, dataset, root, 2, [(2, 1, "two")])
    target = 1
    for restores in undo:
        restores(classic, dataset, root, target)
        transaction._SEARCHED.clear()  # as in another process, which remembers nothing of the log
        assert rows_in(dataset, root) == [(1, 1, "one")]
        target = versions_of(dataset, root)[-1]
        replay = deliver(classic, dataset, root, 2, [(2, 1, "two")])
        assert (replay.skipped, replay.committed, replay.version) == (False, True, target + 1)
        assert was_skipped(deliver(classic, dataset, root, 2, [(2, 1, "two")]), version=target + 1)
        assert rows_in(dataset, root) == [(1, 1, "one"), (2, 1, "two")]


@pytest.mark.exhaustive
@case("T-RESTORE-REPLAY")
def test_a_batch_that_a_restore_has_kept_is_not_written_again(classic: SparkSession, root: str) -> None:
    """The incarnation that a restore begins knows no identifiers; what the restored version holds still counts."""
    transaction._SEARCHED.clear()
    dataset = table_of(Append())
    batches = {epoch: [(epoch, 1, "x")] for epoch in (1, 2, 3)}
    deliver(classic, dataset, root, 1, batches[1])
    deliver(classic, dataset, root, 2, batches[2])
    by_sql(classic, dataset, root, 1)
    deliver(classic, dataset, root, 2, batches[2])
    deliver(classic, dataset, root, 3, batches[3])
    by_sql(classic, dataset, root, 4)
    replays = [deliver(classic, dataset, root, epoch, batches[epoch]) for epoch in (1, 2, 3, 2)]
    assert [(replay.skipped, replay.version) for replay in replays] == [(True, 1), (True, 4), (False, 7), (True, 4)]
    assert rows_in(dataset, root) == [(1, 1, "x"), (2, 1, "x"), (3, 1, "x")]


@case("T-RESTORE-REPLAY")
def test_a_restore_that_comes_between_a_look_at_the_table_and_the_write_is_noticed(
    classic: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay was about to be skipped for rows that are gone by then; a new one was written all the same."""
    dataset = table_of(Append())
    deliver(classic, dataset, root, 1, [(1, 1, "one")])
    deliver(classic, dataset, root, 2, [(2, 1, "two")])
    real, restores = write_module.write_confs, [1]

    def restored_meanwhile(*arguments: Any) -> dict[str, str]:
        if restores:
            by_sql(classic, dataset, root, restores.pop())
        return real(*arguments)

    monkeypatch.setattr(write_module, "write_confs", restored_meanwhile)
    replay = deliver(classic, dataset, root, 2, [(2, 1, "two")])
    assert (replay.skipped, replay.version, replay.mark.attempt) == (False, 4, 2)
    restores.append(2)
    new = deliver(classic, dataset, root, 3, [(3, 1, "three")], writer="other")
    assert (new.skipped, new.version, commit_info(dataset, root, 5)["operation"]) == (False, 6, "RESTORE")
    assert was_skipped(deliver(classic, dataset, root, 3, [(3, 1, "three")], writer="other"), version=6)
    assert rows_in(dataset, root) == [(1, 1, "one"), (2, 1, "two"), (3, 1, "three")]


# --- first loads ------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_a_first_load_happens_once_and_again_after_the_table_was_emptied(classic: SparkSession, root: str) -> None:
    refusing, passing = table_of(ErrorIfExists()), table_of(Ignore())
    first = deliver(classic, refusing, root, None, [(1, 1, "first")])
    with pytest.raises(TableExistsError) as caught:
        deliver(classic, refusing, root, None, [(2, 1, "second")])
    passed = deliver(classic, passing, root, None, [(2, 1, "second")])
    assert (first.version, caught.value.version) == (1, 1)
    assert (passed.committed, passed.skipped, passed.version) == (False, False, 1)
    assert (rows_in(passing, root), versions_of(passing, root)) == ([(1, 1, "first")], [0, 1])
    classic.sql(f"DELETE FROM {sql.path_table(passing.location(root))}").collect()
    again = deliver(classic, refusing, root, None, [(3, 1, "again")])
    assert (again.version, rows_in(refusing, root)) == (3, [(3, 1, "again")])


@pytest.mark.exhaustive
def test_an_emptied_table_is_loaded_again_however_long_ago_it_was_emptied(
    classic: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits that change no rows may fill all of the history that is searched at first."""
    monkeypatch.setattr(transaction, "HISTORY_LIMIT", 2)
    dataset = table_of(Ignore())
    target = sql.path_table(dataset.location(root))
    deliver(classic, dataset, root, None, [(1, 1, "first")])
    classic.sql(f"DELETE FROM {target}").collect()
    for number in range(2):
        classic.sql(f"ALTER TABLE {target} SET TBLPROPERTIES ('some.property' = '{number}')").collect()
    again = deliver(classic, dataset, root, None, [(2, 1, "again")])
    assert (again.skipped, again.version, rows_in(dataset, root)) == (False, 5, [(2, 1, "again")])


@case("T-FIRST-WRITE-RACE")
@pytest.mark.parametrize(
    "mode", first_is_quick(first_in_both_modes([Append(), ErrorIfExists(), Ignore()]), count=2), ids=str
)
def test_of_two_sessions_that_write_first_both_append_and_one_loads(
    spark: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch, mode: WriteMode
) -> None:
    """Both have seen that there is no table before either makes it, and both that it is empty before either writes."""
    dataset = table_of(mode)
    barriers = {"_create": threading.Barrier(2, timeout=120), "write_confs": threading.Barrier(2, timeout=120)}
    passed: set[tuple[str, int]] = set()

    def together(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if (name, threading.get_ident()) not in passed:  # a further attempt goes alone
                passed.add((name, threading.get_ident()))
                barriers[name].wait()
            return real(*arguments)

        return call

    monkeypatch.setattr(open_table, "_create", together("_create", open_table._create))
    monkeypatch.setattr(write_module, "write_confs", together("write_confs", write_module.write_confs))
    clones = [clone_session(spark) for _ in range(2)]

    def load(number: int) -> WriteResult | TableExistsError:
        try:
            return deliver(clones[number], dataset, root, 0, [(number, 1, "x")], writer=f"w{number}")
        except TableExistsError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(load, (0, 1), timeout=240))
    for clone in clones:
        release_session(clone)

    made = {n: result for n, result in enumerate(results) if isinstance(result, WriteResult) and result.committed}
    assert rows_in(dataset, root) == [(number, 1, "x") for number in made]
    assert versions_of(dataset, root) == list(range(len(made) + 1))
    assert len({result.table_id for result in results if isinstance(result, WriteResult)}) == 1
    if isinstance(mode, Append):
        assert sorted(result.version for result in made.values()) == [1, 2]
        return
    (winner,) = made
    loser = results[1 - winner]
    if isinstance(mode, ErrorIfExists):
        assert isinstance(loser, TableExistsError)
        assert loser.version == 1
    else:
        assert isinstance(loser, WriteResult)
        assert (loser.committed, loser.skipped, loser.version, loser.rows_written) == (False, False, 1, 0)
