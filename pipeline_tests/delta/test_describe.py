"""Looking at tables: what one is, what happened to it, and what a query over them answers; nothing is changed by it."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.errors import ArithmeticException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.dataset import Append, Dataset, Features, TableRef
from pipeline.delta import sql
from pipeline.delta.inspect.describe import TableDescription, describe, describe_all, describe_at, described_in_log
from pipeline.delta.inspect.history import history, history_in_log
from pipeline.delta.inspect.manifest import manifest
from pipeline.delta.inspect.query import Answer, QueryError, query
from pipeline.delta.inspect.record import verify, write_record
from pipeline.delta.log.commits import commit_file
from pipeline.delta.maintain.maintain import checkpoint
from pipeline.delta.read.version import ReadFacts, ReadOptions, read
from pipeline.delta.read.window import Window
from pipeline.delta.sql import slices
from pipeline.delta.table.open_table import DEFAULT_PROPERTIES
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline.errors import (
    ChangesUnreadableError,
    NotParquetError,
    PipelineError,
    RegistryError,
    StorageError,
    TableNotFoundError,
    UnknownDatasetError,
    VersionNotFoundError,
)
from pipeline_tests.delta.sample import (
    REPLACED,
    actions_of,
    commit_info,
    day,
    days,
    files_of,
    frame_of,
    note,
    put,
    versions_of,
)

UTC = dt.timezone.utc
LATEST = ReadOptions()
NESTED = days(Append(), name="in/depth")
NEVER = days(Append(), name="never")
LOG = Dataset(
    name="log.of-all", schema=StructType([StructField("n", LongType())]), write=Append(), change_feed=False
)  # fmt: skip
DATASETS = (REPLACED, NESTED, NEVER, LOG)


@pytest.fixture(scope="session")
def written(classic: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, WriteResult]]:
    """A root with tables of a known past, and what its last marked write did; no test adds a version.

    Written once, by the classic session; the tests look at it in both modes.
    """
    root = str(tmp_path_factory.mktemp("told"))
    put(classic, REPLACED, root, [(day(1), 1, "a"), (day(2), 2, "b"), (None, 3, None)])
    frame = frame_of(classic, REPLACED, [(day(2), 4, "d"), (day(2), 5, "e")])
    within = slices.of_values("day", [day(2)])
    said = note(writer="days/step", run_id="run-7", asset="days", partitions=str(within), sources={"landing": 3})
    result = write(frame, table=REPLACED.at(root), note=said, within=within)
    put(classic, NESTED, root, [(day(1), 1, "a")])
    kept = "'delta.logRetentionDuration' = 'interval 60 days'"
    classic.sql(f"ALTER TABLE {sql.path_table(NESTED.location(root))} SET TBLPROPERTIES ({kept})")
    for number in range(9):
        deltalake.write_deltalake(
            LOG.location(root), pa.table({"n": pa.array([number], pa.int64())}), mode="append",
            configuration={"delta.checkpointInterval": "4"},
            post_commithook_properties=deltalake.PostCommitHookProperties(create_checkpoint=False),
        )  # fmt: skip
    yield root, result
    assert [len(versions_of(dataset, root)) for dataset in (REPLACED, NESTED, LOG)] == [3, 3, 9]


@pytest.fixture(scope="session")
def told(written: tuple[str, WriteResult]) -> str:
    return written[0]


@pytest.mark.both_modes
def test_a_description_says_what_another_engine_counts(spark: SparkSession, told: str) -> None:
    found = describe(spark, REPLACED.at(told))
    table = deltalake.DeltaTable(REPLACED.location(told))
    sizes = pa.table(table.get_add_actions(flatten=True)).column("size_bytes").to_pylist()
    assert (found.standing, found.differences, found.rows, found.partitions) == ("ok", (), 4, 3)
    assert found.table is not None
    assert found.table.version == table.version() == 2
    assert (found.table.files, found.table.bytes) == (len(files_of(REPLACED, told)), sum(sizes))
    assert found.table.table_id == str(table.metadata().id)
    assert found.table.fingerprint == REPLACED.fingerprint
    assert found.table.properties == {"delta.enableChangeDataFeed": "true"} | DEFAULT_PROPERTIES
    assert "changeDataFeed" in found.table.features
    assert found.last_write is not None
    assert (found.last_write.version, found.last_write.rows_written) == (2, 2)
    document = json.loads(json.dumps(found.document()))
    assert [field["name"] for field in document["table"]["schema"]["fields"]] == ["day", "id", "text"]
    assert document["last_write"]["note"]["run_id"] == "run-7"


def test_the_last_write_is_the_last_commit_that_changed_rows(spark: SparkSession, told: str) -> None:
    found = describe(spark, NESTED.at(told))
    assert found.table is not None
    assert found.last_write is not None
    assert (found.table.version, found.last_write.version, found.last_write.operation) == (2, 1, "WRITE")
    milliseconds = commit_info(NESTED, told, 1)["timestamp"]
    assert abs(found.last_write.timestamp.timestamp() * 1000 - milliseconds) < 2000, "the time of the file, in UTC"
    assert found.table.properties["delta.logRetentionDuration"] == "interval 60 days"


@pytest.mark.exhaustive
def test_an_unpartitioned_table_has_no_count_of_partitions_and_many_commits_are_remarked(
    spark: SparkSession, told: str, tmp_path: Path
) -> None:
    copy = str(tmp_path / "copy")
    shutil.copytree(LOG.location(told), copy)
    found = describe(spark, TableRef(LOG, copy))
    assert (found.rows, found.partitions, found.standing) == (9, None, "ok")
    assert found.health is not None
    assert (found.health.checkpoint_version, found.health.commits_since_checkpoint) == (None, 9)
    slow, small = found.health.remarks
    assert "all 9 commits" in slow
    assert "pipeline maintain checkpoint" in slow
    assert small.startswith("9 files")
    assert "OPTIMIZE" in small

    checkpoint(spark, TableRef(LOG, copy))
    after = describe(spark, TableRef(LOG, copy)).health
    assert after is not None
    assert (after.checkpoint_version, after.commits_since_checkpoint, len(after.remarks)) == (8, 0, 1)


def test_an_overview_has_every_dataset_whatever_became_of_its_table(
    spark: SparkSession, told: str, tmp_path: Path
) -> None:
    root = str(tmp_path)
    for dataset in (REPLACED, NESTED):
        shutil.copytree(dataset.location(told), dataset.location(root))
    log = Path(NESTED.location(root)) / "_delta_log"
    for path in log.glob("*.crc"):
        path.unlink()
    (log / f"{2:020d}.json").write_text("{ no JSON", encoding="utf-8")
    other = days(Append(), partition_by=(), properties=(("delta.appendOnly", "true"),))
    found = {one.dataset: one for one in describe_all((NESTED, NEVER, other), root, partial(describe, spark))}

    assert {name: one.standing for name, one in found.items()} == {
        "in/depth": "unreadable", "never": "never written", "days": "differs from declaration",
    }  # fmt: skip
    assert found["in/depth"].problem
    assert found["never"] == TableDescription(dataset="never", standing="never written", location=NEVER.location(root))
    assert len(found["days"].differences) == 2
    assert found["days"].rows == 4
    with pytest.raises(StorageError):
        describe(spark, NESTED.at(root))


@pytest.mark.both_modes
def test_the_history_says_who_committed_what_for_which_run(spark: SparkSession, told: str) -> None:
    newest, first, created = history(spark, REPLACED.name, REPLACED.location(told))
    assert [entry.version for entry in (newest, first, created)] == [2, 1, 0]
    assert newest.note is not None
    assert newest.note["mark"]["writer"] == "days/step"
    assert (newest.note["run_id"], newest.note["partitions"]) == ("run-7", "day = 2026-01-02")
    assert newest.note["sources"] == {"landing": 3}
    actions = actions_of(REPLACED, told, 2)
    added, removed = (sum(kind in action for action in actions) for kind in ("add", "remove"))
    assert (newest.rows_written, newest.files_added, newest.files_removed) == (2, added, removed) == (2, added, 1)
    assert (first.rows_written, first.operation, created.operation) == (3, "WRITE", "CREATE TABLE")
    assert newest.timestamp.tzinfo is UTC
    assert abs(newest.timestamp.timestamp() * 1000 - commit_info(REPLACED, told, 2)["timestamp"]) < 2000

    foreign = history(spark, LOG.name, LOG.location(told), limit=2)
    assert [(entry.version, entry.note) for entry in foreign] == [(8, None), (7, None)]
    assert (foreign[0].engine or "").startswith("delta-rs")
    with pytest.raises(TableNotFoundError):
        history(spark, NEVER.name, NEVER.location(told))


# --- the log instead of Spark -----------------------------------------------------------------------------------------


def test_the_log_says_of_a_table_what_spark_says(classic: SparkSession, told: str) -> None:
    for dataset in (REPLACED, NESTED, LOG):
        location = dataset.location(told)
        for limit in (None, 2):
            assert history_in_log(dataset.name, location, limit) == history(classic, dataset.name, location, limit)
        assert described_in_log(dataset.name, location, dataset) == describe(classic, TableRef(dataset, location))
        undeclared = described_in_log(dataset.name, location, None)
        assert undeclared == describe_at(classic, dataset.name, location, None)
        assert undeclared is not None
        assert (undeclared.standing, undeclared.differences) == ("not declared", ())


def test_the_log_s_times_are_those_of_spark_whenever_commits_began_to_keep_their_own(
    classic: SparkSession, root: str
) -> None:
    """Its files were copied out of their order, as a copy of a folder may leave them."""
    location = f"{root}/timed"
    classic.sql(f"CREATE TABLE delta.`{location}` (n BIGINT) USING delta")
    for number in range(4):
        if number == 2:
            timed = "'delta.enableInCommitTimestamps' = 'true'"
            classic.sql(f"ALTER TABLE delta.`{location}` SET TBLPROPERTIES ({timed})")
        classic.sql(f"INSERT INTO delta.`{location}` VALUES ({number})")
    for number, hours in enumerate((5, 7, 6, 3, 2, 9)):
        os.utime(commit_file(location, number), (1_700_000_000 + 3600 * hours,) * 2)
    for limit in (None, 1, 3, 4, 5, 99):
        found = history(classic, "timed", location, limit)
        assert history_in_log("timed", location, limit) == found
        assert len(found) == min(limit or 6, 6)


@pytest.mark.exhaustive
def test_the_log_says_what_spark_says_of_a_table_with_mapped_columns_deleted_rows_and_a_checkpoint(
    classic: SparkSession, root: str
) -> None:
    dataset = days(Append(), name="mapped", features=Features(column_mapping="name", deletion_vectors=True))
    put(classic, dataset, root, [(day(1), number, "a") for number in range(6)])
    put(classic, dataset, root, [(None, 9, "b"), (day(2), 10, "c")])
    location = dataset.location(root)
    checkpoint(classic, TableRef(dataset, location))
    classic.sql(f"DELETE FROM delta.`{location}` WHERE id IN (1, 10)").collect()
    found, wanted = described_in_log(dataset.name, location, dataset), describe(classic, TableRef(dataset, location))
    assert found is not None
    assert found.table is not None
    assert wanted.table is not None
    assert found.table.fingerprint == wanted.table.fingerprint
    # Spark leaves the names in files out of what it shows.
    assert replace(found, table=replace(found.table, schema=wanted.table.schema)) == wanted
    assert found.document() == wanted.document()
    assert (found.rows, found.partitions, found.standing) == (6, 2, "ok")


# --- queries ----------------------------------------------------------------------------------------------------------


def ask(spark: SparkSession, told: str, statement: str, **options: Any) -> Answer:
    given = {"pins": {}, "everything": LATEST, "limit": 100} | options
    return query(spark, statement, datasets=DATASETS, root=told, **given)


# None of these reads only, whatever its first word seems to be.
HOSTILE = (
    "/* /* */ describe */ update delta.`{days}` set id = 0",
    "/* /* */ explain */ delete from delta.`{days}`",
    "-- show\n delete from delta.`{days}`",
    "-- show \\\n delete from delta.`{days}`",
    "/*+ show */ delete from delta.`{days}`",
    "show/**/; delete from delta.`{days}`",
    "show tables; delete from delta.`{days}`",
    "describe days; delete from delta.`{days}`",
    "explain select 1; delete from delta.`{days}`",
    "explain delete from delta.`{days}`",
    "explain extended delete from delta.`{days}`",
    "explain analyze delete from delta.`{days}`",
    "explain formatted execute immediate 'delete from delta.`{days}`'",
    "describe query execute immediate 'delete from delta.`{days}`'",
    "describe execute immediate 'delete from delta.`{days}`'",
    "execute immediate 'delete from delta.`{days}`'",
    "explain call spark_catalog.system.remove('{days}')",
    "call spark_catalog.system.remove('{days}')",
    "truncate table delta.`{days}`",
    "with x as (select 1 as id) delete from delta.`{days}`",
    "with x as (select 1 as id) merge into delta.`{days}` t using x on t.id = x.id when matched then delete",
    "merge into delta.`{days}` t using (select 1 as id) x on t.id = x.id when matched then delete",
    "update delta.`{days}` set text = null",
    "from days insert into delta.`{days}` select * insert into delta.`{days}` select *",
    "with x as (select * from days) from x insert overwrite delta.`{days}` select *",
    "insert overwrite directory '{days}' using parquet select 1",
    "create table delta.`{days}/copy` using delta as select 1 as n",
    "create view v as select 1",
    "create temporary function f as 'java.lang.Object'",
    "alter table delta.`{days}` set tblproperties ('a' = 'b')",
    "restore table delta.`{days}` to version as of 0",
    "cache table days",
    "uncache table days",
    "refresh table days",
    "analyze table days compute statistics",
    "use default",
    "reset",
    "set x = 1",
    "set time zone 'Asia/Tokyo'",
    "declare variable x = 1",
    "add jar '/no/such.jar'",
    "add file '/no/such'",
    "begin\n delete from delta.`{days}`;\nend",
    "/* show */ begin delete from delta.`{days}`; end",
    "select * from (delete from delta.`{days}`)",
    "select 1) select * from pipeline_query); delete from delta.`{days}` --",
    "*/ delete from delta.`{days}`",
)
# Queries to Spark that act. `{acts}` sets a property of the JVM.
ACTING = (
    "select reflect({acts})",
    "select reflect({acts}) from values (1)",
    "explain select reflect({acts}) from values (1)",
    "explain extended select java_method({acts}) from values (1)",
    "select system.builtin.java_method({acts}) as x from values (1)",
    "select `try_reflect`({acts}) as x from values (1)",
    "select identifier('ref' || 'lect')({acts}) as x from values (1)",
    "select 1 from values (1) where (select max(reflect({acts})) from values (2)) is null",
    "with a as (select reflect({acts}) as x from values (1)) select count(*) from a",
    "values (reflect({acts}))",
    "select * from days timestamp as of reflect({acts})",
    "select * from delta.`{days}` timestamp as of reflect({acts})",
    "select * from range(length(reflect({acts})))",
    "select 1 limit length(reflect({acts}))",
    "select * from identifier(reflect({acts}))",
    "show tables in identifier(reflect({acts}))",
    "select sum(1) from values (1) group by reflect({acts})",
    "select * from values (1) t(n), lateral (select reflect({acts}))",
    "select transform(array(1), x -> reflect({acts})) from values (1)",
    f"select {', '.join(f'{n} as c{n}' for n in range(60))}, reflect({{acts}}) as c from values (1)",
    "select transform (n) using 'touch {touched}' as (m) from values (1) as t(n)",
    "from values (1) as t(n) map n using 'touch {touched}' as (m)",
    "from values (1) as t(n) reduce n using 'touch {touched}' as (m)",
    "with a as (select tran\u017fform (n) using 'touch {touched}' as (m) from values (1) t(n)) select count(*) from a",
    "explain codegen select transform (n) using 'touch {touched}' as (m) from values (1) as t(n)",
)


def test_every_dataset_is_a_view_at_the_newest_version_or_at_the_one_that_is_named(
    spark: SparkSession, told: str
) -> None:
    newest = ask(spark, told, "select id from days order by id desc; ")
    assert [row[0] for row in newest.rows] == ["5", "4", "3", "1"]
    assert newest.versions == {"days": 2}
    pinned = ask(spark, told, "SELECT id FROM Days ORDER BY id", pins={"days": ReadOptions(version=1)})
    assert ([row[0] for row in pinned.rows], pinned.versions) == (["1", "2", "3"], {"days": 1})
    joined = ask(
        spark, told, "with x as (select * from in__depth) select d.id, n from days d join x using (day) left join "
        "log_of_all on n = d.id",
    )  # fmt: skip
    assert (joined.rows, joined.versions) == ((("1", "1"),), {"days": 2, "in/depth": 2, "log.of-all": 8})


@pytest.mark.exhaustive
def test_the_changes_of_a_dataset_are_a_view_too_over_a_window_with_both_ends(spark: SparkSession, told: str) -> None:
    every = [
        ("1", "insert", "1"), ("1", "insert", "2"), ("1", "insert", "3"),
        ("2", "delete", "2"), ("2", "insert", "4"), ("2", "insert", "5"),
    ]  # fmt: skip
    statement = "select _commit_version, _change_type, id from days__changes order by 1, 2, 3"
    answer = ask(spark, told, statement)
    assert list(answer.rows) == every
    rows, changes = answer.reads
    assert (rows.name, rows.kind, rows.version, rows.files) == ("days", "view", 2, 0)
    wanted = ReadFacts(name="days__changes", dataset="days", kind="changes", version=2, first=1, files=changes.files)
    assert (changes, answer.versions) == (wanted, {"days": 2})
    actions = [action for version in (1, 2) for action in actions_of(REPLACED, told, version)]
    assert changes.files == len({a[kind]["path"] for a in actions for kind in ("add", "remove") if kind in a})
    late = ask(spark, told, statement, pins={"days": ReadOptions(changes=Window(first=2))})
    early = ask(spark, told, statement, pins={"days": ReadOptions(version=1)})
    assert (list(late.rows), list(early.rows)) == (every[3:], every[:3])
    options = ReadOptions(changes=Window(last=1), columns=("id", "_change_type"))
    found = read(spark, REPLACED.at(told), options)
    assert (found.first, found.version, sorted(map(tuple, found.frame.collect()))) == (
        1, 1, [(1, "insert"), (2, "insert"), (3, "insert")],
    )  # fmt: skip


def test_changes_that_were_not_recorded_are_refused_by_the_name_of_the_property(
    classic: SparkSession, told: str
) -> None:
    with pytest.raises(ChangesUnreadableError) as off:
        ask(classic, told, "select * from log_of_all__changes")
    assert (off.value.setting, off.value.reason) == ("delta.enableChangeDataFeed", "the change feed was off")
    assert off.value.versions[-1] == 8
    assert f"delta.`{LOG.location(told)}` SET TBLPROPERTIES (delta.enableChangeDataFeed = true)" in str(off.value)
    with pytest.raises(VersionNotFoundError):
        ask(classic, told, "select * from days__changes", pins={"days": ReadOptions(changes=Window(first=3))})
    clash = (REPLACED, days(Append(), name="days/changes"))
    with pytest.raises(RegistryError) as caught:
        query(classic, "select 1", datasets=clash, root=told, pins={}, everything=LATEST, limit=1)
    assert "days__changes" in caught.value.problems[0]


def test_a_table_is_not_read_as_the_parquet_files_that_lie_in_its_folder(classic: SparkSession, told: str) -> None:
    """They hold rows that are deleted, and of every version; Delta does not look at who reads them."""
    location = REPLACED.location(told)
    for asked in (location, f"file://{location}", f"{location}/day=2026-01-02"):
        with pytest.raises(NotParquetError) as caught:
            ask(classic, told, f"select * from `parquet` . `{asked}`")
        assert caught.value.path == asked
    answer = ask(classic, told, f"select count(*) from delta.`{location}` version as of 1 where id > 1")
    assert answer.rows == (("2",),)
    wanted = ReadFacts(name=location, dataset=None, kind="table", version=1, files=answer.reads[-1].files)
    assert replace(answer.reads[-1], pushed_filters=None) == wanted
    assert "GreaterThan(id,1)" in str(answer.reads[-1].pushed_filters)


@pytest.mark.both_modes
def test_what_a_query_has_read_is_told_by_its_plan(spark: SparkSession, told: str) -> None:
    answer = ask(spark, told, "select text from days where day = date'2026-01-02' and id > 4")
    (found,) = answer.reads
    assert (found.name, found.version, found.files, len(files_of(REPLACED, told))) == ("days", 2, 1, 4)
    partition, pushed = found.pushed_filters or ("", "")
    assert "day" in partition
    assert pushed == "[GreaterThan(id,4)]"
    assert json.dumps(answer.document()["reads"]).startswith('[{"name": "days", "dataset": "days", "kind": "view", ')


def test_a_time_reads_every_dataset_as_it_was_and_one_that_was_not_there_yet_only_matters_if_named(
    spark: SparkSession, told: str
) -> None:
    entries = history(spark, REPLACED.name, REPLACED.location(told))
    at = next(entry.timestamp for entry in entries if entry.version == 1)
    before = ReadOptions(timestamp=at)
    assert ask(spark, told, "select count(*) from days -- not in__depth", everything=before).rows == (("3",),)
    with pytest.raises(VersionNotFoundError):
        ask(spark, told, "select * from in__depth", everything=before)
    with pytest.raises(VersionNotFoundError):
        ask(spark, told, "select 1", pins={"days": ReadOptions(version=9)})


@pytest.mark.both_modes
def test_values_come_out_exactly_and_null_is_not_a_text(spark: SparkSession, told: str) -> None:
    answer = ask(
        spark, told,
        "select null n, 'NULL' t, 9007199254740993L big, 1.10BD d, 0.1f f, double('nan') nan, true b,"
        " date'0001-01-01' a, timestamp'2026-07-01 12:00:00.5+02:00' ts, timestamp_ntz'2026-07-01 12:00:00' w,"
        " x'00ff' x, array(1, null) r, named_struct('d', 1.10BD, 't', timestamp'2026-01-01 00:00:00Z', 'n', null) s,"
        " 1 n, '[b]' m, map('k', 12345678901234567890.12BD) p",
    )  # fmt: skip
    assert answer.columns == ("n", "t", "big", "d", "f", "nan", "b", "a", "ts", "w", "x", "r", "s", "n", "m", "p")
    assert answer.rows == (
        (
            None, "NULL", "9007199254740993", "1.10", "0.1", "NaN", "true", "0001-01-01", "2026-07-01 10:00:00.5Z",
            "2026-07-01 12:00:00", "00FF", "[1,null]",
            '{"d":"1.10","t":"2026-01-01 00:00:00.000000Z","n":null}', "1", "[b]", '{"k":"12345678901234567890.12"}',
        ),
    )  # fmt: skip
    plain = answer.document()["rows"][0]
    assert plain[:7] == [None, "NULL", 9007199254740993, "1.10", 0.1, "NaN", True]


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("DELETE FROM days", marks=pytest.mark.both_modes),
        "delete from delta.`{days}`",
        "/* select */ DROP TABLE delta.`{days}`",
        "OPTIMIZE delta.`{days}`",
        "VACUUM days",
        "INSERT INTO days VALUES (1)",
        "WITH x AS (SELECT 1) INSERT INTO days SELECT * FROM x",
        "FROM days INSERT INTO delta.`{days}` SELECT *",
        "CREATE OR REPLACE TEMPORARY VIEW v AS SELECT 1",
        "SET spark.sql.ansi.enabled = false",
        "select 1; delete from days",
        "BEGIN DELETE FROM days; END",
        "show: BEGIN DELETE FROM days; END",
        "select 1) insert into delta.`{days}` select * from (select 1",
        "clear cache",
        "",
        pytest.param("/* /* */ show */ delete from delta.`{days}`", marks=pytest.mark.both_modes),
        pytest.param("explain execute immediate 'delete from delta.`{days}`'", marks=pytest.mark.both_modes),
        *(pytest.param(text, marks=pytest.mark.exhaustive) for text in HOSTILE),
    ],
)
def test_what_is_no_query_is_not_run(spark: SparkSession, told: str, statement: str) -> None:
    with pytest.raises(QueryError) as caught:
        ask(spark, told, statement.replace("{days}", REPLACED.location(told)))
    assert not caught.value.is_query
    assert "SELECT" in caught.value.remedy()
    assert versions_of(REPLACED, told) == [0, 1, 2]


@pytest.mark.parametrize(
    "statement",
    [pytest.param(text, marks=[] if text == ACTING[2] else pytest.mark.exhaustive) for text in ACTING],
)
def test_a_query_that_would_call_java_or_start_a_program_is_not_evaluated(
    spark: SparkSession, told: str, statement: str, tmp_path: Path
) -> None:
    touched, key = tmp_path / "touched", str(tmp_path)
    acts = f"'java.lang.System', 'setProperty', '{key}', 'set'"
    text = statement.replace("{days}", REPLACED.location(told)).replace("{touched}", str(touched))
    with pytest.raises(PipelineError) as caught:
        ask(spark, told, text.replace("{acts}", acts))
    assert isinstance(caught.value, QueryError)
    assert SparkContext._jvm is not None
    assert SparkContext._jvm.java.lang.System.getProperty(key) is None
    assert not touched.exists()


def test_what_only_speaks_of_functions_that_act_is_answered(classic: SparkSession, told: str) -> None:
    """The plan is asked, not the text; `transform` of an array is another thing."""
    answer = ask(classic, told, "select /* reflect(x) */ transform(array(1), x -> x + 1) as r -- java_method(")
    assert answer.rows == (("[2]",),)


def test_statements_that_only_look_are_answered(spark: SparkSession, told: str) -> None:
    listed = ask(spark, told, "-- which\nshow views")
    assert sorted(dict(zip(listed.columns, row, strict=True))["viewName"] or "" for row in listed.rows) == [
        "days", "in__depth", "log_of_all",
    ]  # fmt: skip
    described = ask(spark, told, "DESCRIBE days")
    assert ("id", "bigint") in {row[:2] for row in described.rows}
    for mode in ("", "extended", "-- how\n formatted"):
        explained = ask(spark, told, f"EXPLAIN {mode} SELECT id FROM days")
        assert "days" in str(explained.rows)
    assert ask(spark, told, "VALUES (1), (2)", limit=1).more
    assert not ask(spark, told, "VALUES (1), (2)", limit=2).more


def test_a_users_own_error_after_a_query_is_spark_s(
    classic: SparkSession, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(logging.Logger.manager.loggerDict, "SQLQueryContextLogger", raising=False)  # as at the start
    assert ask(classic, told, "select count(*) from days").rows
    with pytest.raises(ArithmeticException):
        classic.sql("select 1 / 0").collect()


def test_a_name_that_is_no_dataset_brings_near_misses_and_one_without_a_table_says_so(
    spark: SparkSession, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UnknownDatasetError) as caught:
        ask(spark, told, "select * from dayz")
    assert (caught.value.name, caught.value.near) == ("dayz", ("days",))
    with pytest.raises(UnknownDatasetError) as of_changes:
        ask(spark, told, "select * from dayz__changes")
    assert of_changes.value.near == ("days__changes",)
    with pytest.raises(TableNotFoundError) as missing:
        ask(spark, told, "select * from never")
    assert missing.value.dataset == "never"
    with pytest.raises(QueryError) as wrong:
        ask(spark, told, "select idd from days")
    assert wrong.value.is_query
    assert "idd" in wrong.value.reason
    with pytest.raises(QueryError) as failing:
        ask(spark, told, "select 1 div (id - id) from days")
    assert "DIVIDE_BY_ZERO" in failing.value.reason
    assert capfd.readouterr().err == "", "pyspark printed the error too"


def test_two_datasets_with_the_name_of_one_view_are_refused(spark: SparkSession, told: str) -> None:
    twins = (days(Append(), name="a/b"), days(Append(), name="A__B"))
    with pytest.raises(RegistryError) as caught:
        query(spark, "select 1", datasets=twins, root=told, pins={}, everything=LATEST, limit=1)
    (problem,) = caught.value.problems
    assert "a/b" in problem
    assert "A__B" in problem


@pytest.mark.both_modes
def test_the_callers_session_stays_as_it_was(spark: SparkSession, told: str) -> None:
    before = (spark.conf.get("spark.sql.session.timeZone"), spark.conf.get("spark.sql.variable.substitute", None))
    ask(spark, told, "select '${x}' from days")
    assert [table.name for table in spark.catalog.listTables() if table.name == "days"] == []
    assert before == (
        spark.conf.get("spark.sql.session.timeZone"),
        spark.conf.get("spark.sql.variable.substitute", None),
    )


# --- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.both_modes
def test_the_record_of_a_write_says_what_the_log_says(
    spark: SparkSession, written: tuple[str, WriteResult], root: str
) -> None:
    told, result = written
    options = {"spark.hadoop.fs.s3a.secret.key": "hush"}
    path = write_record(spark, REPLACED, result, root=root, run_id="r", sources={"up": 4}, options=options)
    assert "hush" not in Path(path).read_text(encoding="utf-8")
    (record,) = manifest(root, "r")
    assert (record.version, record.rows_written, record.sources) == (2, 2, {"up": 4})
    assert record.rows_by_partition == ({"partition": {"day": "2026-01-02"}, "rows": 2},)
    assert record.table_id == str(deltalake.DeltaTable(REPLACED.location(told)).metadata().id)
    assert record.properties == {"delta.enableChangeDataFeed": "true"} | DEFAULT_PROPERTIES
    assert record.schema["fields"][1]["name"] == "id"
    assert record.runtime["mode"] == "local[2]", "what wrote the rows, not what wrote the record"
    info = commit_info(REPLACED, told, 2)
    assert (record.commit["user_metadata"], record.commit["metrics"]) == (
        info["userMetadata"],
        info["operationMetrics"],
    )
    assert verify([record])[0].problem is None
    assert verify([replace(record, version=1)])[0].problem == "version 1 has another mark"
