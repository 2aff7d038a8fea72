"""The remedies of tables, versions, changes and commits are followed to their end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Check, Dataset, ErrorIfExists, Features, Replace, SchemaPolicy, TableRef
from pipeline.delta.log import mark as commit_module
from pipeline.delta.log.commits import commit_file
from pipeline.delta.log.retry import NO_RETRY
from pipeline.delta.read.changes import Changes
from pipeline.delta.read.version import ReadOptions, read
from pipeline.delta.read.window import Window
from pipeline.delta.sql.slices import of_values
from pipeline.delta.table.open_table import conform
from pipeline.delta.write import write as write_module
from pipeline.delta.write.consume import consume as consume_changes
from pipeline.errors import (
    AfterCommitError,
    ChangeFeedOffError,
    ChangesUnreadableError,
    CommitConflictError,
    CommitOverwrittenError,
    CommitUnknownError,
    ConformError,
    ConsumerBehindError,
    CursorUnreadableError,
    DamagedTableError,
    ExistingRowsError,
    ExpressionError,
    NotADeltaTableError,
    StorageAccessError,
    StorageError,
    TableExistsError,
    TableMismatchError,
    TableNotFoundError,
    VersionNotFoundError,
    VersionVacuumedError,
)
from pipeline.orchestration import dataset_asset
from pipeline_tests.delta.lost_answers import act_after_writes, lose_answers
from pipeline_tests.delta.operator import Operator
from pipeline_tests.delta.sample import APPENDED, REPLACED, day, note, placed, put, rows_of, versions_of
from pipeline_tests.delta.test_conflicts import write_around
from pipeline_tests.delta.test_retention import CONSUMER, at, run
from pipeline_tests.delta.test_retention import source as source_with
from pipeline_tests.delta.test_told_failures import small_disk  # noqa: F401
from pipeline_tests.object_stores import unreachable_bucket
from pipeline_tests.remedies import follows, refused

exhaustive = pytest.mark.exhaustive

ONE = StructType([StructField("n", LongType())])
NUMBERS = Dataset(name="numbers", schema=ONE, write=Append())
WIDER = replace(NUMBERS, schema=StructType([*ONE.fields, StructField("text", StringType())]))
FEED = source_with(deletedFileRetentionDuration="interval 0 hours")
COPY = replace(CONSUMER, reads=("source",), reads_changes_of=("source",))
AT_ONCE = ("delta.deletedFileRetentionDuration", "interval 0 hours")


@dataset_asset(NUMBERS)
def numbers() -> pa.Table:
    return pa.table({"n": [1, 2]})


@pytest.fixture
def operator(classic: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Operator:
    return Operator.of(classic, tmp_path, monkeypatch)


@pytest.fixture
def filled(operator: Operator) -> Iterator[Operator]:
    """With a table of two versions with a row each."""
    operator.declare(NUMBERS, assets=(numbers,))
    for row in (1, 2):
        placed(operator.session, NUMBERS, operator.root, [(row,)])
    return operator


def count(operator: Operator, dataset: Dataset = NUMBERS, **options: Any) -> int:
    found = read(operator.session, dataset.at(operator.root), ReadOptions(**options))
    return found.frame.count()


# --- the table and its storage ----------------------------------------------------------------------------------------


@follows(TableNotFoundError)
def test_a_dataset_without_a_table_is_read_once_it_is_materialized(operator: Operator) -> None:
    operator.declare(NUMBERS, assets=(numbers,))
    error = operator.refused(TableNotFoundError, ("history", "numbers"), "pipeline materialize numbers")
    operator.materializes(error, "numbers")
    assert [entry["version"] for entry in operator.json("history", "numbers")] == [1, 0]
    assert rows_of(NUMBERS, operator.root) == [(1,), (2,)]


@exhaustive
@follows(NotADeltaTableError)
def test_a_table_is_created_once_the_files_in_its_place_are_moved_away_or_below_another_root(
    operator: Operator,
) -> None:
    location = Path(NUMBERS.location(operator.root))
    location.mkdir(parents=True)
    (location / "export.csv").write_text("n\n1\n", encoding="utf-8")
    refused(NotADeltaTableError, lambda: operator.put(NUMBERS, "SELECT 1L AS n"), "Move those files", "PIPELINE_ROOT")
    elsewhere = operator.move_root("elsewhere")
    operator.put(NUMBERS, "SELECT 1L AS n", root=elsewhere)
    (location / "export.csv").rename(operator.folder / "export.csv")
    operator.put(NUMBERS, "SELECT 1L AS n")
    assert rows_of(NUMBERS, operator.root) == rows_of(NUMBERS, elsewhere) == [(1,)]


@exhaustive
@follows(StorageError)
def test_the_storage_is_used_once_its_root_is_below_no_file(operator: Operator) -> None:
    (operator.folder / "file").touch()
    root = str(operator.folder / "file/tables")
    advice = "file is a file: choose another PIPELINE_ROOT, or move that file away"
    refused(StorageError, lambda: operator.put(NUMBERS, "SELECT 1L AS n", root=root), advice)
    operator.put(NUMBERS, "SELECT 1L AS n", root=operator.move_root("another"))
    (operator.folder / "file").rename(operator.folder / "moved")
    operator.put(NUMBERS, "SELECT 1L AS n", root=root)


@exhaustive
@follows(StorageAccessError)
def test_the_storage_is_used_once_its_endpoint_answers(operator: Operator) -> None:
    root = f"{unreachable_bucket()}/tables"
    advice = "Check the network, and `endpoint` in the bucket's table in [tool.pipeline.storage]"
    refused(StorageAccessError, lambda: operator.put(NUMBERS, "SELECT 1L AS n", root=root), advice)
    operator.put(NUMBERS, "SELECT 1L AS n", root=operator.move_root("another"))


@exhaustive
@follows(StorageError)
def test_the_storage_is_used_once_it_is_mounted_for_writing(
    operator: Operator, small_disk: Path  # noqa: F811
) -> None:  # fmt: skip
    root = str(small_disk)
    write = partial(operator.put, NUMBERS, "SELECT 1L AS n", root=root)
    write()
    subprocess.run(["mount", "-o", "remount,ro", root], check=True)
    refused(StorageError, write, "is mounted read-only: mount it for writing, or choose another PIPELINE_ROOT")
    operator.put(NUMBERS, "SELECT 1L AS n")
    subprocess.run(["mount", "-o", "remount,rw", root], check=True)
    write()
    assert rows_of(NUMBERS, root) == [(1,), (1,)]


@exhaustive
@follows(DamagedTableError)
def test_the_doctor_names_the_damage_and_its_advice_arrives(filled: Operator) -> None:
    location = Path(NUMBERS.location(filled.root))
    entry = location / "_delta_log" / f"{2:020d}.json"
    whole = entry.read_text(encoding="utf-8")
    entry.write_text(whole[:40], encoding="utf-8")
    error = filled.refused(DamagedTableError, ("history", "numbers"), "pipeline doctor numbers")
    assert f"{entry}" in filled.does(error, "doctor numbers", status=1)
    entry.write_text(whole, encoding="utf-8")
    assert len(filled.json("history", "numbers")) == 3

    lost = max(location.glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    lost.unlink()
    total = partial(filled.put, replace(NUMBERS, write=Replace()), f"SELECT sum(n) AS n FROM delta.`{location}`")
    error = refused(DamagedTableError, total, "pipeline doctor numbers")
    assert "pipeline restore numbers to a version" in filled.does(error, "doctor numbers", status=1)
    filled.run("restore", "numbers", "--version", "1", "--apply")
    total()
    assert rows_of(NUMBERS, filled.root) == [(1,)]


# --- the table and its declaration ------------------------------------------------------------------------------------


@follows(TableMismatchError)
def test_a_table_is_as_declared_once_its_plan_is_applied(filled: Operator) -> None:
    filled.declare(WIDER)
    write = partial(filled.put, WIDER, "SELECT 3L AS n, 'a' AS text")
    error = refused(TableMismatchError, write, "pipeline conform plan numbers", "pipeline conform apply numbers")
    assert "text" in filled.does(error, "conform plan numbers", status=3)
    filled.put(NUMBERS, "SELECT 3L AS n")  # or the declaration matches the table
    filled.does(error, "conform apply numbers")
    write()
    assert rows_of(WIDER, filled.root) == [(1, None), (2, None), (3, None), (3, "a")]


@exhaustive
@follows(TableMismatchError)
@pytest.mark.parametrize("way", ["the declaration matches", "another name", "the table is created again"])
def test_another_partition_layout_is_written_in_each_way_that_is_named(operator: Operator, way: str) -> None:
    by_text = replace(WIDER, partition_by=("text",), write=Replace())
    operator.put(replace(WIDER, write=Replace()), "SELECT 1L AS n, 'a' AS text")
    query = "SELECT 2L AS n, 'b' AS text"
    error = refused(
        TableMismatchError, lambda: operator.put(by_text, query), "Change the declaration to match the table",
        "give the dataset another name", "schema_policy=SchemaPolicy(mode='overwrite')",
    )  # fmt: skip
    assert not error.is_settled_by_steps
    changed = {
        "the declaration matches": replace(by_text, partition_by=()),
        "another name": replace(by_text, name="others"),
        "the table is created again": replace(by_text, schema_policy=SchemaPolicy(mode="overwrite")),
    }[way]
    operator.put(changed, query)
    assert rows_of(changed, operator.root) == [(2, "b")]


@exhaustive
@follows(TableMismatchError)
@pytest.mark.parametrize(
    "condition", ["try_divide(1,n)>=-1.5 and n<>7", "concat('a  b', `n`) LIKE '%it''s%' or n in (1,2,3)"]
)
def test_a_check_is_as_declared_once_its_plan_is_applied_however_it_is_spaced(filled: Operator, condition: str) -> None:
    checked = replace(NUMBERS, checks=(Check("spaced", condition),))
    filled.declare(checked)
    write = partial(filled.put, checked, "SELECT 3L AS n")
    error = refused(TableMismatchError, write, "pipeline conform apply numbers")
    filled.does(error, "conform apply numbers")
    assert "as declared" in filled.run("conform", "plan", "numbers")
    write()
    assert rows_of(NUMBERS, filled.root) == [(1,), (2,), (3,)]


@exhaustive
@follows(ExpressionError)
def test_a_default_is_applied_once_its_expression_is_corrected(filled: Operator) -> None:
    def apply(expression: str) -> None:
        dataset = replace(WIDER, features=Features(defaults=(("text", expression),)))
        conform(filled.session, dataset.at(filled.root))

    refused(ExpressionError, lambda: apply("no_such_column"), "Correct that expression in the declaration of 'numbers'")
    apply("'none'")
    filled.put(replace(WIDER, features=Features(defaults=(("text", "'none'"),))), "SELECT 3L AS n")
    assert rows_of(WIDER, filled.root)[-1] == (3, "none")


@exhaustive
@follows(ExistingRowsError)
def test_a_check_is_applied_once_it_or_the_rows_that_break_it_are_corrected(filled: Operator) -> None:
    def apply(condition: str) -> None:
        filled.declare(replace(NUMBERS, checks=(Check("low", condition),)))
        filled.run("conform", "apply", "numbers")

    filled.declare(replace(NUMBERS, checks=(Check("low", "n < 2"),)))
    advice = "Correct those rows, or the declaration of 'numbers'"
    filled.refused(ExistingRowsError, ("conform", "apply", "numbers"), advice)
    apply("n < 3")
    filled.declare(replace(NUMBERS, checks=(Check("low", "n < 2"), Check("lower", "n < 2"))))
    filled.refused(ExistingRowsError, ("conform", "apply", "numbers"), advice)
    filled.sql(f"DELETE FROM delta.`{NUMBERS.location(filled.root)}` WHERE n = 2")
    apply("n < 2")


@exhaustive
@follows(ConformError)
def test_the_plan_shows_the_steps_that_remain_after_one_that_was_refused(filled: Operator) -> None:
    wrong, right = (("delta.checkpointInterval", value) for value in ("often", "20"))
    filled.declare(replace(WIDER, properties=(wrong,)))
    error = filled.refused(ConformError, ("conform", "apply", "numbers"), "pipeline conform plan numbers")
    plan = filled.does(error, "conform plan numbers", status=3)
    assert "delta.checkpointInterval" in plan
    filled.declare(replace(WIDER, properties=(right,)))
    filled.run("conform", "apply", "numbers")
    assert "as declared" in filled.run("conform", "plan", "numbers")


@exhaustive
@follows(TableExistsError)
def test_a_first_load_is_made_below_another_root_and_later_ones_in_another_mode(operator: Operator) -> None:
    loaded = replace(NUMBERS, write=ErrorIfExists())
    write = partial(operator.put, query="SELECT 1L AS n")
    write(loaded)
    refused(TableExistsError, lambda: write(loaded), "another write mode for 'numbers'", "another PIPELINE_ROOT")
    write(loaded, root=operator.move_root("elsewhere"))
    write(replace(loaded, write=Append()))
    assert rows_of(NUMBERS, operator.root) == [(1,), (1,)]


# --- versions and changes ---------------------------------------------------------------------------------------------


@exhaustive
@follows(VersionNotFoundError)
def test_a_version_that_the_history_lists_is_read(filled: Operator) -> None:
    error = refused(VersionNotFoundError, lambda: count(filled, version=7), "pipeline history numbers")
    versions = [int(line.split()[0]) for line in filled.does(error, "history numbers").splitlines()[2:]]
    assert [count(filled, version=version) for version in versions] == [2, 1, 0]


@exhaustive
@follows(VersionVacuumedError)
def test_a_later_version_of_the_history_is_read_in_place_of_one_that_was_vacuumed(operator: Operator) -> None:
    dataset = replace(NUMBERS, properties=(AT_ONCE,))
    operator.declare(dataset)
    placed(operator.session, dataset, operator.root, [(1,)])
    operator.sql(f"DELETE FROM delta.`{dataset.location(operator.root)}`")
    operator.put(dataset, "SELECT 3L AS n")
    operator.run("maintain", "vacuum", "numbers", "--apply")
    error = refused(VersionVacuumedError, lambda: count(operator, dataset, version=1), "pipeline history numbers")
    newest, *_ = operator.does(error, "history numbers").splitlines()[2:]
    assert count(operator, dataset, version=int(newest.split()[0])) == 1


@exhaustive
@follows(ChangeFeedOffError)
def test_a_consumer_runs_once_the_feed_is_on_or_it_reads_the_whole_table_without(operator: Operator) -> None:
    source = source_with()
    placed(operator.session, source, operator.root, [(1, "a")])
    run(operator.session, operator.root, source)
    operator.sql(
        f"ALTER TABLE delta.`{source.location(operator.root)}` SET TBLPROPERTIES (delta.enableChangeDataFeed = false)"
    )
    operator.put(replace(source, change_feed=False), "SELECT 2L AS id, 'b' AS text")
    consume = partial(run, operator.session, operator.root, source)
    error = refused(ChangeFeedOffError, consume, "ALTER TABLE ", "declare full_without_feed for 'consumer'")
    whole = consume_changes(
        operator.session, TableRef(replace(COPY, full_without_feed=True), COPY.location(operator.root)),
        sources=[at(source, operator.root)], compute=lambda changes: changes["source"].frame, note=note("consumer"),
    )  # fmt: skip
    assert "the change feed was off" in str(whole.verdicts["source"])
    statement, _, _ = error.remedy().partition(", or declare")
    operator.sql(statement)
    consume()
    operator.put(source, "SELECT 3L AS id, 'c' AS text")
    assert consume() == "changes"
    assert rows_of(CONSUMER, operator.root) == [(1, "a"), (2, "b"), (3, "c")]


@exhaustive
@follows(ChangesUnreadableError)
def test_changes_are_compared_by_version_and_recorded_from_the_statement_on(operator: Operator) -> None:
    dataset = replace(NUMBERS, change_feed=False)
    operator.declare(dataset)
    for row in (1, 2):
        placed(operator.session, dataset, operator.root, [(row,)])
    error = refused(
        ChangesUnreadableError, lambda: count(operator, dataset, changes=Window(first=0)), "Request a later window",
        "pipeline diff numbers", "ALTER TABLE",
    )  # fmt: skip
    assert "insert" in operator.does(error, "diff numbers", "--from", "1", "--to", "2")
    statement = error.remedy()[error.remedy().index("ALTER TABLE") :].partition(" records ")[0]
    operator.sql(statement)
    operator.put(replace(dataset, change_feed=True), "SELECT 3L AS n")
    assert count(operator, dataset, changes=Window(first=3)) == 1


# --- consumers --------------------------------------------------------------------------------------------------------


@dataset_asset(COPY)
def consumer(source: Changes) -> DataFrame:
    return source.frame


@pytest.fixture
def updated(operator: Operator) -> Operator:
    """With a table whose consumer has not read the newest change, which a vacuum would remove."""
    operator.declare(FEED, COPY, assets=(consumer,))
    placed(operator.session, FEED, operator.root, [(1, "a"), (2, "b")])
    run(operator.session, operator.root, FEED)
    operator.sql(f"UPDATE delta.`{FEED.location(operator.root)}` SET text = 'B' WHERE id = 2")
    operator.sql(f"UPDATE delta.`{FEED.location(operator.root)}` SET text = 'C' WHERE id = 2")
    return operator


@exhaustive
@follows(ConsumerBehindError)
@pytest.mark.parametrize("way", ["the consumer runs", "by force"])
def test_files_are_removed_once_the_consumer_has_run_or_by_force(updated: Operator, way: str) -> None:
    vacuum = ("maintain", "vacuum", "source", "--apply")
    error = updated.refused(ConsumerBehindError, vacuum, "pipeline materialize consumer", "repeat this with --force")
    if way == "by force":
        updated.run(*vacuum, "--force")
    else:
        updated.materializes(error, "consumer")
        updated.run(*vacuum)
    assert run(updated.session, updated.root, FEED).startswith("full snapshot" if way == "by force" else "nothing new")
    assert rows_of(COPY, updated.root) == [(1, "a"), (2, "C")]


@exhaustive
@follows(CursorUnreadableError)
def test_the_doctor_names_the_log_that_hides_the_cursor_and_force_needs_no_cursor(updated: Operator) -> None:
    newest = Path(COPY.location(updated.root)) / "_delta_log" / f"{versions_of(COPY, updated.root)[-1]:020d}.json"
    newest.write_text(newest.read_text(encoding="utf-8")[:200], encoding="utf-8")
    vacuum = ("maintain", "vacuum", "source", "--apply")
    error = updated.refused(CursorUnreadableError, vacuum, "pipeline doctor", "pipeline maintain vacuum --force")
    assert str(newest) in updated.does(error, "doctor", status=1)
    updated.does(error, "maintain vacuum --force", "source", "--apply")


# --- commits ----------------------------------------------------------------------------------------------------------


@exhaustive
@follows(CommitConflictError)
def test_a_write_that_met_another_one_is_made_by_the_same_call_again(operator: Operator, tmp_path: Path) -> None:
    placed(operator.session, APPENDED, operator.root, [(day(1), 1, "before")])
    within = of_values("day", [day(1)])

    def meet() -> None:
        write_around(
            operator.session, tmp_path, REPLACED, operator.root, [(day(1), 2, "ours")],
            lambda: put(operator.session, APPENDED, operator.root, [(day(1), 3, "theirs")]),
            within=within, retry=NO_RETRY,
        )  # fmt: skip

    refused(CommitConflictError, meet, "Run the same command or partition again")
    put(operator.session, REPLACED, operator.root, [(day(1), 2, "ours")], within)
    assert rows_of(REPLACED, operator.root) == [(day(1), 2, "ours")]


@follows(CommitUnknownError)
@pytest.mark.parametrize("arrives", [True, pytest.param(False, marks=exhaustive)], ids=["arrived", "never arrived"])
def test_the_history_tells_by_the_token_whether_to_write_again(filled: Operator, *, arrives: bool) -> None:
    def unreadable(*_: Any) -> None:
        raise OSError("storage is away")

    def write() -> None:
        filled.put(NUMBERS, "SELECT 3L AS n")

    with pytest.MonkeyPatch.context() as away:
        lose_answers(away, arrives=arrives)
        away.setattr(commit_module, "find_mark", unreadable)
        error = refused(CommitUnknownError, write, "pipeline history numbers --json")
    token = error.mark.rpartition("/")[2]
    tokens = [
        (entry["note"] or {"mark": {"token": None}})["mark"]["token"] for entry in filled.json("history", "numbers")
    ]
    assert (token in tokens) == arrives
    if token not in tokens:
        write()
    assert rows_of(NUMBERS, filled.root) == [(1,), (2,), (3,)]


@follows(CommitOverwrittenError)
def test_rows_whose_commit_was_overwritten_are_written_again_and_those_of_the_other_writer_stay(
    filled: Operator,
) -> None:
    location = NUMBERS.location(filled.root)
    entry = Path(commit_file(location, 3))

    def overwrite() -> None:
        """Commit as a writer that has not seen the entry and whose storage lets it replace it."""
        entry.unlink()
        (entry.parent / f".{entry.name}.crc").unlink()  # Hadoop's, which only a local disk has
        checksum = entry.with_suffix(".crc")
        content = checksum.read_bytes()
        checksum.unlink()
        deltalake.write_deltalake(location, pa.table({"n": pa.array([8], pa.int64())}), mode="append")
        checksum.write_bytes(content)

    with pytest.MonkeyPatch.context() as other:
        act_after_writes(other, overwrite)
        error = refused(
            CommitOverwrittenError, lambda: filled.put(NUMBERS, "SELECT 3L AS n"), "only one process",
            "write the rows again",
        )  # fmt: skip
    assert (error.dataset, error.version, "WRITE by delta-rs" in error.other) == ("numbers", 3, True)
    assert "conditional" in filled.does(error, "docs scaling")
    assert Path(error.checksum).exists()
    Path(error.checksum).unlink()
    assert filled.put(NUMBERS, "SELECT 3L AS n").version == 4
    assert rows_of(NUMBERS, filled.root) == [(1,), (2,), (3,), (8,)]
    assert count(filled) == 4


@exhaustive
@follows(AfterCommitError)
def test_the_history_shows_the_commit_that_something_failed_after(filled: Operator) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no")

    replaced = replace(WIDER, write=Replace(), schema_policy=SchemaPolicy(mode="overwrite"))
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(write_module, "conform", fails)
        error = refused(
            AfterCommitError, lambda: filled.put(replaced, "SELECT 3L AS n, 'a' AS text"), "don't write them again",
            "pipeline history numbers",
        )  # fmt: skip
    newest, *_ = filled.does(error, "history numbers").splitlines()[2:]
    assert newest.split()[0] == str(error.version)
    assert rows_of(WIDER, filled.root) == [(3, "a")]
