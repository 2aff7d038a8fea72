"""Knowing one's own commit: the version reported is that of our entry, and nothing of a write stays behind."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipeline.dataset import Append, Dataset, Replace, TableRef
from pipeline.delta import sql
from pipeline.delta.log.commits import commit_file, read_commit
from pipeline.delta.log.mark import (
    FORMAT,
    CommitNote,
    Mark,
    clone_session,
    commit_token,
    find_mark,
    own_commit,
    private_session,
    release_session,
    write_confs,
)
from pipeline.delta.spark.session import is_connect
from pipeline.delta.sql.slices import Slice, of_values
from pipeline.delta.table.open_table import open_or_create
from pipeline.delta.write import write as write_module
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline.errors import CommitOverwrittenError, CommitUnknownError, FrameFailedError, NullViolationError
from pipeline_tests.conftest import close, connect
from pipeline_tests.delta.sample import (
    APPENDED,
    REPLACED,
    commit_info,
    day,
    days,
    frame_of,
    note,
    ordered,
    put,
    rows_of,
    versions_of,
)
from pipeline_tests.tiers import first_in_both_modes, first_is_quick

USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
LAST_COMMIT = "spark.databricks.delta.lastCommitVersionInSession"


def insert(session: SparkSession, dataset: Dataset, root: str, values: str) -> None:
    """A commit of somebody who knows nothing of us."""
    session.sql(f"INSERT INTO {sql.path_table(dataset.location(root))} VALUES {values}").collect()


@pytest.mark.parametrize(
    ("dataset", "within"),
    first_is_quick(
        first_in_both_modes([(APPENDED, None), (REPLACED, of_values("day", [day(1)])), (REPLACED, None)]), count=2
    ),
    ids=["append", "replace of a slice", "replace of the table"],
)
def test_the_version_is_that_of_our_own_commit_although_another_lands_before_we_look(
    spark: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch, dataset: Dataset, within: Slice | None
) -> None:
    """'The latest version' after a write is the other one's."""
    other = clone_session(spark)
    look = write_module.own_commit

    def look_late(*arguments: Any) -> Any:
        insert(other, dataset, root, "(DATE'2026-01-09', 99, 'foreign')")
        return look(*arguments)

    monkeypatch.setattr(write_module, "own_commit", look_late)
    try:
        result = put(spark, dataset, root, [(day(1), 1, "ours")], within)
    finally:
        release_session(other)

    assert versions_of(dataset, root) == [0, 1, 2]
    assert result.version == 1
    assert commit_token(commit_info(dataset, root, 1)["userMetadata"]) == result.mark.token
    assert "userMetadata" not in commit_info(dataset, root, 2)
    assert result.rows_by_partition == {("2026-01-01",): 1}
    assert rows_of(dataset, root) == [(day(1), 1, "ours"), (day(9), 99, "foreign")]


def test_of_two_writers_that_race_each_reports_the_versions_that_carry_its_own_marks(
    spark: SparkSession, root: str
) -> None:
    open_or_create(spark, APPENDED.at(root))
    barrier = threading.Barrier(2, timeout=60)

    def append_five(number: int) -> list[WriteResult]:
        session = clone_session(spark)
        frames = [frame_of(session, APPENDED, [(day(number), turn, f"w{number}")]) for turn in range(5)]
        results = []
        for frame in frames:
            barrier.wait()
            results.append(write(frame, table=APPENDED.at(root), note=note(f"writer-{number}")))
        release_session(session)
        return results

    with ThreadPoolExecutor(2) as pool:
        results = [result for five in pool.map(append_five, (1, 2), timeout=180) for result in five]

    assert sorted(result.version for result in results) == list(range(1, 11))
    for result in results:
        assert commit_token(commit_info(APPENDED, root, result.version)["userMetadata"]) == result.mark.token
        number = int(result.mark.writer.removeprefix("writer-"))
        assert result.rows_by_partition == {(day(number).isoformat(),): 1}
    assert rows_of(APPENDED, root) == ordered((day(n), turn, f"w{n}") for n in (1, 2) for turn in range(5))


def test_a_commit_that_delta_adds_by_itself_after_ours_is_not_taken_for_ours(spark: SparkSession, root: str) -> None:
    """Auto-compaction runs in our session, with our user metadata, and is newer."""
    dataset = days(Append(), properties=(("delta.autoOptimize.autoCompact", "true"),))
    session = clone_session(spark)
    session.conf.set("spark.databricks.delta.autoCompact.minNumFiles", "2")
    try:
        put(session, dataset, root, [(day(1), 1, "a")])
        result = put(session, dataset, root, [(day(1), 2, "b")])
    finally:
        release_session(session)

    assert [commit_info(dataset, root, v)["operation"] for v in versions_of(dataset, root)] == [
        "CREATE TABLE", "WRITE", "WRITE", "OPTIMIZE",
    ]  # fmt: skip
    assert (result.version, result.operation, result.rows_written) == (2, "WRITE", 1)


def test_an_empty_append_makes_no_commit_and_reports_the_current_version(spark: SparkSession, root: str) -> None:
    """An older commit of the same session must not be taken for it."""
    put(spark, APPENDED, root, [(day(1), 1, "a")])
    insert(spark, APPENDED, root, "(DATE'2026-01-02', 2, 'b')")

    result = put(spark, APPENDED, root, [])

    assert (result.committed, result.operation, result.version) == (False, "no commit", 2)
    assert result.rows_by_partition == {}
    assert versions_of(APPENDED, root) == [0, 1, 2]


def test_the_commit_carries_who_wrote_what_from_what(spark: SparkSession, root: str) -> None:
    mark = Mark(writer="days/step", epoch=7, attempt=2)
    said = CommitNote(
        mark=mark, run_id="run-1", asset="days", partitions="day = 2026-01-01", sources={"raw/b": 4, "raw/a": 11}
    )
    location = APPENDED.location(root)
    result = write(frame_of(spark, APPENDED, [(day(1), 1, "a")]), table=TableRef(APPENDED, location), note=said)

    metadata = json.loads(commit_info(APPENDED, root, 1)["userMetadata"])
    runtime = metadata.pop("runtime")
    assert metadata == {
        "pipeline": FORMAT,
        "mark": {"writer": "days/step", "epoch": 7, "attempt": 2, "token": mark.token},
        "run_id": "run-1",
        "asset": "days",
        "partitions": "day = 2026-01-01",
        "sources": {"raw/a": 11, "raw/b": 4},
        "schema_fingerprint": APPENDED.fingerprint,
    }
    assert runtime["mode"] == ("connect" if is_connect(spark) else "local[2]")
    assert (runtime["spark"], runtime["delta"]) == ("4.2.0", "4.4.0")
    assert set(runtime) == {"spark", "delta", "pipeline", "python", "mode"}
    assert result.mark == mark

    seen = read_commit(location, 1, ("day",))
    assert (seen.version, seen.token, seen.operation) == (1, mark.token, "WRITE")
    assert seen.timestamp == result.timestamp
    changed = (Path(location) / "_delta_log" / f"{1:020d}.json").stat().st_mtime_ns // 1_000_000
    assert round(seen.timestamp.timestamp() * 1000) == changed
    assert find_mark(location, mark) == 1
    assert find_mark(location, Mark(writer="days/step", epoch=7, attempt=2)) is None
    created = read_commit(location, 0, ("day",))
    assert created.token not in (None, mark.token)  # the commit that makes the table has a mark of its own
    assert (created.files_added, created.rows_by_partition) == (0, {})


@pytest.mark.both_modes
def test_a_commit_that_cannot_be_found_again_has_an_unknown_outcome(spark: SparkSession, root: str) -> None:
    """The session committed something that is gone: claiming 'nothing was committed' would be a lie."""
    location = APPENDED.location(root)
    open_or_create(spark, TableRef(APPENDED, location))
    mark = Mark(writer="w", epoch=3)
    with private_session(spark, {}) as clone:
        insert(clone, APPENDED, root, "(DATE'2026-01-02', 2, 'b')")
        Path(commit_file(location, 1)).unlink()
        with pytest.raises(CommitUnknownError) as caught:
            own_commit(clone, "days", location, mark, ("day",))

    assert (caught.value.dataset, caught.value.location) == ("days", location)
    assert caught.value.mark == f"w/3/1/{mark.token}"
    assert caught.value.retryable is False


def test_a_commit_whose_entry_is_that_of_another_writer_was_overwritten(classic: SparkSession, root: str) -> None:
    location = APPENDED.location(root)
    open_or_create(classic, TableRef(APPENDED, location))
    mark, theirs = Mark(writer="w", epoch=3), Mark(writer="theirs")
    confs = write_confs(CommitNote(mark=theirs), classic, "f")
    with private_session(classic, confs) as clone:  # the entry in the log has another mark than the one of the write
        insert(clone, APPENDED, root, "(DATE'2026-01-02', 2, 'b')")
        with pytest.raises(CommitOverwrittenError) as caught:
            own_commit(clone, "days", location, mark, ("day",))

    assert (caught.value.version, caught.value.mark, caught.value.other) == (1, f"w/3/1/{mark.token}", "writer theirs")
    assert caught.value.checksum == f"{location}/_delta_log/{1:020d}.crc"
    assert not caught.value.may_pass


@pytest.mark.parametrize(
    "garbage",
    [
        None, "", "x", "{", "[]", "null", "7", '"pipeline"', "{}", '{"pipeline": 1}', '{"pipeline": 1, "mark": null}',
        '{"pipeline": 1, "mark": "t"}', '{"pipeline": 1, "mark": {}}', '{"pipeline": 1, "mark": {"token": 5}}',
        '{"pipeline": 2, "mark": {"token": "t"}}',
        '{"mark": {"token": "t"}}', '{"pipeline": "1", "mark": {"token": "t"}}',
    ],
)  # fmt: skip
def test_user_metadata_that_is_not_ours_has_no_token(garbage: str | None) -> None:
    assert commit_token(garbage) is None


def test_our_own_user_metadata_has_our_token() -> None:
    assert commit_token('{"pipeline": 1, "mark": {"token": "t"}, "more": []}') == "t"
    assert Mark(writer="w").token != Mark(writer="w").token


@pytest.fixture
def traces(spark: SparkSession) -> Callable[[], dict[str, Any]]:
    """What of a write could stay behind in the caller's session."""

    def look() -> dict[str, Any]:
        return {
            "views": sorted(table.name for table in spark.catalog.listTables()),
            "confs": {name: spark.conf.get(name, None) for name in (USER_METADATA, LAST_COMMIT)},
            "catalogs": spark.catalog.currentDatabase(),
        }

    return look


@pytest.mark.both_modes
def test_nothing_stays_behind_in_the_callers_session(
    spark: SparkSession, root: str, traces: Callable[[], dict[str, Any]]
) -> None:
    """Left-over user metadata would mark the next commit of anybody as ours."""
    before = traces()
    put(spark, APPENDED, root, [(day(1), 1, "a")])
    after_success = traces()
    with pytest.raises(NullViolationError):
        put(spark, APPENDED, root, [(day(1), None, "a")])
    after_refusal = traces()
    with pytest.raises(FrameFailedError):
        write(
            spark.sql("SELECT DATE'2026-01-01' AS day, 1L DIV (id - id) AS id, 'x' AS text FROM RANGE(2)"),
            table=APPENDED.at(root), note=note(),
        )  # fmt: skip

    assert before["confs"][USER_METADATA] is None
    assert before["views"] == []
    for now in (after_success, after_refusal, traces()):
        assert now["views"] == []
        assert now["confs"][USER_METADATA] is None


@pytest.mark.both_modes
def test_a_private_session_sees_the_callers_views_and_keeps_its_confs_to_itself(spark: SparkSession) -> None:
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW mine AS SELECT 5 AS n")
    try:
        with private_session(spark, {USER_METADATA: "private", "spark.sql.session.timeZone": "Asia/Tokyo"}) as clone:
            assert clone.sql("SELECT n FROM mine").collect()[0].n == 5
            assert clone.conf.get(USER_METADATA) == "private"
            assert spark.conf.get(USER_METADATA, None) is None
            assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    finally:
        spark.catalog.dropTempView("mine")


def test_a_connect_clone_is_released_on_the_server_after_success_and_after_failure(
    classic: SparkSession, remote_url: str
) -> None:
    """Sessions that are not released pile up in a server that runs for weeks."""
    service = classic._jvm.java.lang.Class.forName("org.apache.spark.sql.connect.service.SparkConnectService$")
    manager = service.getField("MODULE$").get(None).sessionManager()

    def active() -> int:
        return int(manager.listActiveSessions().size())

    session = connect(remote_url)
    try:
        assert session.sql("SELECT 1 AS one").collect()[0].one == 1
        before = active()
        with private_session(session, {}) as clone:
            assert active() == before + 1
        assert active() == before
        with pytest.raises(PySparkException):
            clone.sql("SELECT 1").collect()
        with pytest.raises(LookupError), private_session(session, {}):
            raise LookupError
        assert active() == before
        assert session.sql("SELECT 2 AS two").collect()[0].two == 2
    finally:
        close(session)
    assert active() == before - 1


def test_a_note_is_the_same_text_for_the_same_content(classic: SparkSession) -> None:
    mark = Mark(writer="w", token="t")
    first = CommitNote(mark=mark, sources={"a": 1, "b": 2})
    second = dataclasses.replace(first, sources={"b": 2, "a": 1})

    assert first.to_json(classic, "f") == second.to_json(classic, "f")
    assert days(Replace()).fingerprint == days(Append()).fingerprint
