"""Reading a source as changes: the verdict and its reason, net changes, cursors committed with the rows."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Changelog, Dataset, Merge, Replace, TableRef, WriteMode
from pipeline.delta.log.mark import Cursor
from pipeline.delta.maintain.maintain import checkpoint
from pipeline.delta.maintain.restore import plan_restore, restore
from pipeline.delta.read.changes import (
    Changes,
    SourceChanges,
    changes_since,
    read_changes,
    release_changes,
)
from pipeline.delta.read.cursors import EffectiveCursors, effective_cursors
from pipeline.delta.read.verdict import Reason, Verdict, VerdictKind, verdict_on
from pipeline.delta.read.version import ReadOptions
from pipeline.delta.sql.slices import Slice, of_values
from pipeline.delta.table.open_table import table_state
from pipeline.delta.write.consume import Consumed, Touched, consume
from pipeline.errors import (
    DeclarationError,
    SessionConfError,
    StrayRowsError,
    TableMismatchError,
    TableNotFoundError,
    TouchedSliceError,
)
from pipeline_tests.delta.sample import commit_info, note, ordered, placed, put, rows_of, versions_of
from pipeline_tests.tiers import first_is_quick

case = pytest.mark.case
ROWS = StructType([StructField("id", LongType(), False), StructField("text", StringType())])
_BY_TYPE = {"delete_when": "_change_type = 'delete'", "frame_columns": ("_change_type",)}
MERGED = Merge(**_BY_TYPE)  # type: ignore[arg-type]


def source(write: WriteMode = Append(), **declaration: Any) -> Dataset:  # noqa: B008
    return Dataset(**({"name": "source", "schema": ROWS, "write": write, "keys": ("id",)} | declaration))


APPENDED = source()
REPLACED = source(Replace())
KEYLESS = source(keys=())
CONSUMER = Dataset(name="consumer", schema=ROWS, write=MERGED, keys=("id",))


def at(dataset: Dataset, root: str) -> TableRef:
    return dataset.at(root)


def cursor(dataset: Dataset, root: str, version: int) -> Cursor:
    (table_id,) = {deltalake.DeltaTable(dataset.location(root)).metadata().id}
    return Cursor(table_id=table_id, version=version)


def verdict(session: SparkSession, dataset: Dataset, root: str, after: int) -> Verdict:
    return verdict_on(session, dataset.at(root), cursor(dataset, root, after))


def rows_and_types(changes: Changes) -> list[tuple[Any, ...]]:
    return ordered(tuple(row) for row in changes.frame.select("id", "text", "_change_type").collect())


def since(session: SparkSession, dataset: Dataset, root: str, after: int) -> tuple[Changes, list[tuple[Any, ...]]]:
    """What has changed after a version, and the rows of its frame."""
    found = EffectiveCursors(number=1, read_at=1, sources={dataset.name: cursor(dataset, root, after)})
    with changes_since(session, [at(dataset, root)], found) as several:
        changes = several[dataset.name]
        return changes, rows_and_types(changes)


def sql(session: SparkSession, dataset: Dataset, root: str, statement: str) -> None:
    session.sql(statement.format(table=f"delta.`{dataset.location(root)}`")).collect()


def frame(changes: SourceChanges) -> DataFrame:
    return changes["source"].frame


def run(
    session: SparkSession, root: str, dataset: Dataset = APPENDED, consumer: Dataset = CONSUMER,
    compute: Callable[[SourceChanges], DataFrame | Touched] = frame,
) -> Consumed:  # fmt: skip
    location = consumer.location(root)
    return consume(
        session, TableRef(consumer, location), sources=[at(dataset, root)], compute=compute, note=note("consumer")
    )


# --- the verdict and the frame ----------------------------------------------------------------------------------------


@case("C-NO-NEW-COMMITS")
@case("C-LATEST-ONLY")
def test_the_window_is_pinned_at_both_ends_and_may_be_empty_or_one_version(spark: SparkSession, root: str) -> None:
    placed(spark, APPENDED, root, [(1, "a"), (2, "b"), (3, "c")])
    changes, rows = since(spark, APPENDED, root, 1)
    assert (changes.verdict.kind, changes.verdict.version, rows) == (VerdictKind.NOTHING_NEW, 1, [])
    changes, rows = since(spark, APPENDED, root, 0)
    assert changes.verdict == Verdict(
        kind=VerdictKind.CHANGES, table_id=changes.verdict.table_id, version=1, schema=ROWS, after=0, window=(1, 1)
    )
    assert (rows, dict(changes.counts)) == (
        [(1, "a", "insert"), (2, "b", "insert"), (3, "c", "insert")], {"insert": 3},
    )  # fmt: skip
    placed(spark, APPENDED, root, [(4, "d")])
    assert since(spark, APPENDED, root, 1)[1] == [(4, "d", "insert")]
    changes, rows = since(spark, APPENDED, root, 99)
    assert (changes.verdict.kind, changes.verdict.reason) == (VerdictKind.FULL, Reason.CURSOR_AHEAD)
    assert [row[0] for row in rows] == [1, 2, 3, 4]


def test_nothing_is_asked_of_spark_where_the_log_says_it(root: str, classic: SparkSession) -> None:
    placed(classic, APPENDED, root, [(1, "a")])
    nobody: Any = None
    assert verdict(nobody, APPENDED, root, 0).kind is VerdictKind.CHANGES
    assert effective_cursors(nobody, table_state(nobody, APPENDED.at(root))).missing is Reason.FIRST_RUN


@case("C-OVERWRITE")
@pytest.mark.exhaustive
def test_within_a_commit_what_comes_in_beats_what_goes_out_and_an_identical_row_cancels(
    spark: SparkSession, root: str
) -> None:
    put(spark, REPLACED, root, [(1, "a"), (2, "b"), (3, "c")])
    put(spark, REPLACED, root, [(3, "c"), (4, "d")])
    changes, rows = since(spark, REPLACED, root, 1)
    assert dict(changes.counts) == {"delete": 3, "insert": 2}
    assert rows == [(1, "a", "delete"), (2, "b", "delete"), (4, "d", "insert")]
    put(spark, REPLACED, root, [(1, "a"), (2, "B"), (3, "c"), (5, None)])
    assert since(spark, REPLACED, root, 1)[1] == [(2, "B", "update_postimage"), (5, None, "insert")]
    assert since(spark, replace(REPLACED, keys=()), root, 2)[0].counts == {"delete": 2, "insert": 4}


@pytest.mark.exhaustive
def test_rows_that_came_and_went_within_the_window_are_left_out(classic: SparkSession, root: str) -> None:
    placed(classic, APPENDED, root, [(1, "a")])
    placed(classic, APPENDED, root, [(2, "b")])
    sql(classic, APPENDED, root, "DELETE FROM {table} WHERE id = 2")
    sql(classic, APPENDED, root, "UPDATE {table} SET id = 3 WHERE id = 1")
    changes, rows = since(classic, APPENDED, root, 1)
    assert rows == [(1, "a", "delete"), (3, "a", "insert")]
    assert sum(changes.counts.values()) == 4


def test_a_source_without_keys_gives_the_raw_rows_with_their_versions(classic: SparkSession, root: str) -> None:
    placed(classic, KEYLESS, root, [(1, "a")])
    placed(classic, KEYLESS, root, [(1, "a")])
    found = EffectiveCursors(number=1, read_at=1, sources={"source": cursor(KEYLESS, root, 0)})
    with changes_since(classic, [at(KEYLESS, root)], found) as several:
        got = ordered(tuple(row) for row in several["source"].frame.collect())
        assert (got, several["source"].frame.columns) == (
            [(1, "a", "insert", 1), (1, "a", "insert", 2)], ["id", "text", "_change_type", "_commit_version"],
        )  # fmt: skip


def test_commits_that_change_no_row_are_nothing_new(classic: SparkSession, root: str) -> None:
    placed(classic, APPENDED, root, [(1, "a")])
    placed(classic, APPENDED, root, [(2, "b")])
    sql(classic, APPENDED, root, "OPTIMIZE {table}")
    sql(classic, APPENDED, root, "ALTER TABLE {table} SET TBLPROPERTIES ('a' = 'b')")
    changes, rows = since(classic, APPENDED, root, 2)
    assert (changes.verdict.kind, changes.verdict.version, rows) == (VerdictKind.NOTHING_NEW, 4, [])
    assert since(classic, APPENDED, root, 1)[0].verdict.window == (2, 2)


@case("C-RECREATED")
def test_a_table_that_was_made_anew_at_the_same_place_is_told_by_its_id(classic: SparkSession, root: str) -> None:
    placed(classic, APPENDED, root, [(1, "a")])
    old = cursor(APPENDED, root, 1)
    shutil.rmtree(APPENDED.location(root))
    for number in (7, 8, 9):
        placed(classic, APPENDED, root, [(number, "x")])
    found = verdict_on(classic, APPENDED.at(root), old)
    assert (found.kind, found.reason, found.version) == (VerdictKind.FULL, Reason.RECREATED, 3)
    with changes_since(
        classic, [at(APPENDED, root)], EffectiveCursors(number=1, read_at=1, sources={"source": old})
    ) as several:
        assert [row[0] for row in rows_and_types(several["source"])] == [7, 8, 9]
    # A column that is added keeps the id, and the feed carries it.
    sql(classic, APPENDED, root, "ALTER TABLE {table} ADD COLUMN more STRING")
    sql(classic, APPENDED, root, "INSERT INTO {table} VALUES (10, 'x', 'y')")
    assert since(classic, APPENDED, root, 2)[1] == [(10, "x", "insert"), (9, "x", "insert")]


@case("C-NOT-ENABLED")
@pytest.mark.exhaustive
def test_a_window_in_which_the_feed_was_off_names_its_versions(classic: SparkSession, root: str) -> None:
    """Versions 2 and 3 change rows without it; a window without changes in its gap can be read."""
    switch = "ALTER TABLE {{table}} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = '{}')"
    put(classic, replace(APPENDED, change_feed=False), root, [(1, "a")])
    sql(classic, APPENDED, root, "INSERT INTO {table} VALUES (2, 'b')")
    sql(classic, APPENDED, root, switch.format("true"))
    placed(classic, APPENDED, root, [(3, "c")])
    sql(classic, APPENDED, root, switch.format("false"))
    sql(classic, APPENDED, root, switch.format("true"))
    placed(classic, APPENDED, root, [(4, "d")])
    assert verdict(classic, APPENDED, root, 0).at_fault == (1, 2, 5)
    changes, rows = since(classic, APPENDED, root, 0)
    assert (changes.verdict.reason, len(rows)) == (Reason.FEED_OFF, 4)
    assert str(changes.verdict) == "full snapshot: the change feed was off (versions 1, 2, 5)"
    assert verdict(classic, APPENDED, root, 3).at_fault == (5,)
    assert since(classic, APPENDED, root, 4)[1] == [(4, "d", "insert")]
    sql(classic, APPENDED, root, switch.format("false"))
    assert since(classic, APPENDED, root, 4)[1] == [(4, "d", "insert")]
    sql(classic, APPENDED, root, "INSERT INTO {table} VALUES (5, 'e')")
    assert verdict(classic, APPENDED, root, 4).at_fault == (8, 9)


@case("C-VACUUMED")
def test_changes_whose_files_are_gone_are_never_read_in_part(spark: SparkSession, root: str) -> None:
    """Also where the files go after the verdict, which only the execution of the frame shows."""
    placed(spark, APPENDED, root, [(1, "a"), (2, "b")])
    sql(spark, APPENDED, root, "UPDATE {table} SET text = 'B' WHERE id = 2")
    sql(spark, APPENDED, root, "DELETE FROM {table} WHERE id = 1")
    before = verdict(spark, APPENDED, root, 1)
    assert before.window == (2, 3)
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        sql(spark, APPENDED, root, "VACUUM {table} RETAIN 0 HOURS")
    finally:
        spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    late = read_changes(spark, at(APPENDED, root), before)
    assert (late.verdict.reason, late.verdict.version, rows_and_types(late)) == (
        Reason.CHANGE_FILES_GONE, 3, [(2, "B", "insert")],
    )  # fmt: skip
    release_changes(late)
    changes, rows = since(spark, APPENDED, root, 1)
    assert (changes.verdict.reason, changes.verdict.at_fault, rows) == (
        Reason.CHANGE_FILES_GONE, (2, 3), [(2, "B", "insert")],
    )  # fmt: skip


def test_a_window_past_the_retention_becomes_a_full_snapshot_of_the_newest_version(
    classic: SparkSession, root: str
) -> None:
    """Delta refuses to read what a vacuum may have removed, whether or not one ran."""
    brief = replace(APPENDED, properties=(("delta.deletedFileRetentionDuration", "interval 0 hours"),))
    put(classic, brief, root, [(1, "a")])
    put(classic, brief, root, [(2, "b")])
    before = verdict(classic, brief, root, 1)
    put(classic, brief, root, [(3, "c")])
    late = read_changes(classic, at(brief, root), before)
    assert (late.verdict.reason, late.verdict.version) == (Reason.CHANGE_FILES_GONE, 3)
    assert [row[0] for row in rows_and_types(late)] == [1, 2, 3]


def test_a_session_that_passes_over_missing_files_is_refused(classic: SparkSession, root: str) -> None:
    placed(classic, APPENDED, root, [(1, "a")])
    classic.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        with pytest.raises(SessionConfError):
            since(classic, APPENDED, root, 0)
    finally:
        classic.conf.unset("spark.sql.files.ignoreMissingFiles")


def test_commits_that_are_gone_from_the_log_need_a_full_snapshot(classic: SparkSession, root: str) -> None:
    for number in (1, 2, 3):
        placed(classic, APPENDED, root, [(number, "a")])
    begun = cursor(APPENDED, root, 0)
    checkpoint(classic, APPENDED.at(root))
    for number in (0, 1):
        (Path(APPENDED.location(root)) / "_delta_log" / f"{number:020d}.json").unlink()
    found = verdict_on(classic, APPENDED.at(root), begun)
    assert (found.reason, found.at_fault) == (Reason.LOG_CLEANED, (1,))


@pytest.mark.exhaustive
def test_a_restore_of_the_source_is_read_from_the_feed_unless_it_takes_a_column_away(
    classic: SparkSession, root: str
) -> None:
    placed(classic, APPENDED, root, [(1, "a")])
    placed(classic, APPENDED, root, [(2, "b")])
    sql(classic, APPENDED, root, "DELETE FROM {table} WHERE id = 1")
    sql(classic, APPENDED, root, "RESTORE TABLE {table} TO VERSION AS OF 1")
    assert since(classic, APPENDED, root, 3)[1] == [(1, "a", "insert"), (2, "b", "delete")]
    sql(classic, APPENDED, root, "ALTER TABLE {table} ADD COLUMN more STRING")
    sql(classic, APPENDED, root, "RESTORE TABLE {table} TO VERSION AS OF 2")
    changes, rows = since(classic, APPENDED, root, 5)
    assert (changes.verdict.reason, len(rows)) == (Reason.SCHEMA_CHANGED, 2)


# --- a consumer -------------------------------------------------------------------------------------------------------


@pytest.mark.both_modes
def test_rows_and_cursors_are_one_commit_and_a_repeat_makes_none(spark: SparkSession, root: str) -> None:
    placed(spark, APPENDED, root, [(1, "a"), (2, "b")])
    first = run(spark, root)
    assert first.written is not None
    assert (first.verdicts["source"].reason, first.written.version, first.attempts) == (Reason.FIRST_RUN, 1, 1)
    said = json.loads(commit_info(CONSUMER, root, 1)["userMetadata"])
    entry = first.verdicts["source"].cursor.entry
    assert entry
    consumed = {"table_id": cursor(APPENDED, root, 1).table_id, "version": 1, "entry": entry}
    assert said["cursors"] == {"number": 1, "read_at": -1, "sources": {"source": consumed}}
    assert said["sources"] == {"source": 1}
    assert run(spark, root).written is None
    sql(spark, APPENDED, root, "UPDATE {table} SET text = 'B' WHERE id = 2")
    sql(spark, APPENDED, root, "DELETE FROM {table} WHERE id = 1")
    assert run(spark, root).verdicts["source"].window == (2, 3)
    assert (rows_of(CONSUMER, root), versions_of(CONSUMER, root)) == ([(2, "B")], [0, 1, 2])


@pytest.mark.parametrize("mode", first_is_quick([MERGED, Append(), Replace()]), ids=lambda mode: type(mode).__name__)
def test_a_frame_without_rows_advances_the_cursor(classic: SparkSession, root: str, mode: WriteMode) -> None:
    consumer = replace(CONSUMER, write=mode)
    kept = ("id", "text", "_change_type") if mode is MERGED else ("id", "text")

    def nothing(changes: SourceChanges) -> DataFrame:
        return frame(changes).select(*kept).filter("FALSE")

    placed(classic, APPENDED, root, [(1, "a")])
    for number in (1, 2):
        done = run(classic, root, consumer=consumer, compute=nothing)
        assert done.written is not None
        assert (done.written.committed, done.attempts, done.written.version) == (True, 1, number)
        assert run(classic, root, consumer=consumer, compute=nothing).written is None
        placed(classic, APPENDED, root, [(number + 1, "b")])


@pytest.mark.exhaustive
def test_a_run_that_was_overtaken_makes_its_frame_again(classic: SparkSession, root: str) -> None:
    """The second run commits while the first has its frame and not yet written; an append would double the rows."""
    consumer = replace(CONSUMER, write=Append())
    placed(classic, APPENDED, root, [(1, "a")])
    run(classic, root, consumer=consumer, compute=lambda c: frame(c).select("id", "text"))
    placed(classic, APPENDED, root, [(2, "b")])
    seen: list[tuple[int, int]] = []

    def overtaken(changes: SourceChanges) -> DataFrame:
        seen.append(changes["source"].verdict.window or (-1, -1))
        if len(seen) == 1:
            run(classic, root, consumer=consumer, compute=lambda c: frame(c).select("id", "text"))
            placed(classic, APPENDED, root, [(3, "c")])
        return frame(changes).select("id", "text")

    done = run(classic, root, consumer=consumer, compute=overtaken)
    assert (seen, done.attempts) == ([(2, 2), (3, 3)], 2)
    assert rows_of(consumer, root) == [(1, "a"), (2, "b"), (3, "c")]


def test_two_runs_at_once_both_end_and_no_row_is_there_twice(classic: SparkSession, root: str) -> None:
    consumer = replace(CONSUMER, write=Append())
    placed(classic, APPENDED, root, [(1, "a")])
    run(classic, root, consumer=consumer, compute=lambda c: frame(c).select("id", "text"))
    placed(classic, APPENDED, root, [(2, "b")])
    barrier = threading.Barrier(2)
    ended: list[Consumed] = []
    arrived: list[int] = []

    def together(changes: SourceChanges) -> DataFrame:
        if len(arrived) < barrier.parties:
            arrived.append(1)
            barrier.wait(120)
        return frame(changes).select("id", "text")

    threads = [
        threading.Thread(target=lambda: ended.append(run(classic, root, consumer=consumer, compute=together)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done.written is not None for done in ended) == [False, True]
    assert rows_of(consumer, root) == [(1, "a"), (2, "b")]


@pytest.mark.exhaustive
def test_after_a_restore_of_the_consumer_the_cursors_of_that_version_are_in_force(
    classic: SparkSession, root: str
) -> None:
    location = CONSUMER.location(root)
    for number in (1, 2, 3):
        placed(classic, APPENDED, root, [(number, "a")])
        run(classic, root)

    def back_to(version: int) -> None:
        plan = plan_restore(classic, TableRef(CONSUMER, location), ReadOptions(version=version))
        restore(classic, CONSUMER, plan, note("restore"))

    back_to(2)
    assert run(classic, root).verdicts["source"].window == (3, 3)
    assert rows_of(CONSUMER, root) == [(1, "a"), (2, "a"), (3, "a")]
    back_to(0)
    again = run(classic, root)
    assert (again.verdicts["source"].reason, len(rows_of(CONSUMER, root))) == (Reason.CONSUMER_RESTORED, 3)


@pytest.mark.exhaustive
def test_the_version_of_a_restore_has_the_cursors_of_what_it_brought_back(classic: SparkSession, root: str) -> None:
    location = CONSUMER.location(root)
    for number in (1, 2, 3):
        placed(classic, APPENDED, root, [(number, "a")])
        run(classic, root)
    for version in (2, 4):
        plan = plan_restore(classic, TableRef(CONSUMER, location), ReadOptions(version=version))
        restore(classic, CONSUMER, plan, note("restore"))
        assert run(classic, root).verdicts["source"].window == (3, 3)
        assert rows_of(CONSUMER, root) == [(1, "a"), (2, "a"), (3, "a")]


@pytest.mark.exhaustive
def test_a_restore_between_the_reading_of_cursors_and_the_commit_is_seen_by_the_next_run(
    classic: SparkSession, root: str
) -> None:
    placed(classic, APPENDED, root, [(1, "a")])
    run(classic, root)
    placed(classic, APPENDED, root, [(2, "b")])

    def restored(changes: SourceChanges) -> DataFrame:
        sql(classic, CONSUMER, root, "RESTORE TABLE {table} TO VERSION AS OF 0")
        return frame(changes)

    run(classic, root, compute=restored)
    assert rows_of(CONSUMER, root) == [(2, "b")]
    assert run(classic, root).verdicts["source"].reason is Reason.CONSUMER_RESTORED
    assert rows_of(CONSUMER, root) == [(1, "a"), (2, "b")]
    assert run(classic, root).written is None


def test_a_consumer_whose_log_lost_its_cursor_is_made_anew(classic: SparkSession, root: str) -> None:
    placed(classic, APPENDED, root, [(1, "a")])
    run(classic, root)
    location = Path(CONSUMER.location(root))
    sql(classic, CONSUMER, root, "INSERT INTO {table} VALUES (7, 'stray')")
    checkpoint(classic, TableRef(CONSUMER, str(location)))
    (location / "_delta_log" / f"{1:020d}.json").unlink()
    again = run(classic, root)
    assert (again.verdicts["source"].reason, again.attempts) == (Reason.CURSOR_LOST, 1)
    assert rows_of(CONSUMER, root) == [(1, "a")]
    assert run(classic, root).written is None


@pytest.mark.exhaustive
def test_of_several_sources_one_that_needs_a_full_snapshot_makes_all_full(classic: SparkSession, root: str) -> None:
    other = replace(APPENDED, name="other")
    sources = [at(APPENDED, root), at(other, root)]

    def both(changes: SourceChanges) -> DataFrame:
        return changes["source"].frame.unionByName(changes["other"].frame)

    def once() -> Consumed:
        return consume(classic, CONSUMER.at(root), sources=sources, compute=both, note=note("consumer"))

    placed(classic, APPENDED, root, [(1, "a")])
    with pytest.raises(TableNotFoundError):
        once()
    placed(classic, other, root, [(2, "b")])
    once()
    placed(classic, other, root, [(3, "c")])
    assert [verdict.kind for verdict in once().verdicts.values()] == [VerdictKind.NOTHING_NEW, VerdictKind.CHANGES]
    shutil.rmtree(other.location(root))
    placed(classic, other, root, [(4, "d")])
    assert [verdict.reason for verdict in once().verdicts.values()] == [Reason.OTHER_SOURCE, Reason.RECREATED]
    assert rows_of(CONSUMER, root) == [(1, "a"), (4, "d")]


@pytest.mark.parametrize("mode", first_is_quick([Append(), MERGED, Replace()]), ids=lambda mode: type(mode).__name__)
def test_a_cursor_that_has_seen_nothing_new_is_moved_before_the_log_forgets_its_place(
    classic: SparkSession, root: str, mode: WriteMode
) -> None:
    """The log is kept for 30 days; a commit that carries the cursor alone changes no row."""
    consumer = replace(CONSUMER, write=mode)
    columns = ("id", "text", "_change_type") if mode is MERGED else ("id", "text")
    placed(classic, APPENDED, root, [(1, "a")])
    run(classic, root, consumer=consumer, compute=lambda changes: frame(changes).select(*columns))
    sql(classic, APPENDED, root, "ALTER TABLE {table} SET TBLPROPERTIES ('kept' = 'long')")
    file = Path(APPENDED.location(root)) / "_delta_log" / f"{2:020d}.json"
    for days, moves in ((14, False), (16, True)):
        then = time.time() - days * 86_400
        os.utime(file, (then, then))
        done = run(classic, root, consumer=consumer)
        assert (done.verdicts["source"].kind, done.written is not None) == (VerdictKind.NOTHING_NEW, moves)
    assert done.written is not None
    assert (done.written.committed, done.written.changes_rows) == (True, False)
    assert effective_cursors(classic, table_state(classic, consumer.at(root))).sources["source"].version == 2
    assert rows_of(consumer, root) == [(1, "a")]
    assert run(classic, root, consumer=consumer).written is None


def test_what_has_changed_touches_where_it_was_and_where_it_is(classic: SparkSession, root: str) -> None:
    placed(classic, APPENDED, root, [(1, "a"), (2, "b"), (3, "c")])
    sql(classic, APPENDED, root, "UPDATE {table} SET text = 'z' WHERE id = 1")
    sql(classic, APPENDED, root, "DELETE FROM {table} WHERE id = 2")
    reads = [at(APPENDED, root)]
    place = cursor(APPENDED, root, 1)
    with changes_since(classic, reads, EffectiveCursors(number=1, read_at=1, sources={"source": place})) as several:
        changes = several["source"]
        assert changes.touched("text") == of_values("text", ["a", "b", "z"])
        both = changes.touched("id", "text")
        assert both is not None
        assert ordered(tuple(row) for row in changes.rows_in(both).collect()) == [(1, "z")]
        assert changes.touched("text", at_most=2) is None
        placed(classic, APPENDED, root, [(4, "d")])
        assert ordered(tuple(row) for row in changes.whole.collect()) == [(1, "z"), (3, "c")]
    with changes_since(classic, reads, EffectiveCursors(number=0, read_at=-1)) as several:
        assert several["source"].touched("text") is None
    with changes_since(
        classic, reads, EffectiveCursors(number=1, read_at=1, sources={"source": cursor(APPENDED, root, 4)})
    ) as n:
        assert n["source"].touched("text") == Slice(())


@pytest.mark.exhaustive
def test_a_touched_slice_of_any_columns_is_replaced_and_rows_outside_it_are_refused(
    classic: SparkSession, root: str
) -> None:
    consumer = replace(CONSUMER, write=Replace())

    def touched(changes: SourceChanges) -> Touched:
        within = changes["source"].touched("id")
        return Touched(changes["source"].rows_in(within), within)

    def stray(changes: SourceChanges) -> Touched:
        return Touched(changes["source"].whole, changes["source"].touched("id"))

    def mistyped(changes: SourceChanges) -> Touched:
        return Touched(changes["source"].whole, of_values("id", ["1"]))

    placed(classic, APPENDED, root, [(1, "a"), (2, "b"), (3, "c")])
    run(classic, root, consumer=consumer, compute=touched)
    sql(classic, APPENDED, root, "UPDATE {table} SET text = 'B' WHERE id = 2")
    sql(classic, APPENDED, root, "DELETE FROM {table} WHERE id = 3")
    with pytest.raises(StrayRowsError) as caught:
        run(classic, root, consumer=consumer, compute=stray)
    assert caught.value.counts == {"id = 1": 1}
    with pytest.raises(TouchedSliceError):
        run(classic, root, consumer=consumer, compute=mistyped)
    assert versions_of(consumer, root) == [0, 1]
    done = run(classic, root, consumer=consumer, compute=touched)
    assert done.written is not None
    assert done.written.version == 2
    assert rows_of(consumer, root) == [(1, "a"), (2, "B")]
    # The feed of the consumer says what was replaced, and no more.
    assert since(classic, consumer, root, 1)[1] == [(2, "B", "update_postimage"), (3, "c", "delete")]


def test_a_key_that_the_feed_lacks_is_named(classic: SparkSession, root: str) -> None:
    placed(classic, APPENDED, root, [(1, "a")])
    wider = source(schema=StructType([*ROWS.fields, StructField("region", StringType())]), keys=("region", "id"))
    with pytest.raises(TableMismatchError) as caught:
        since(classic, wider, root, 0)
    assert caught.value.differences == ("key column region: declared, the change feed lacks it",)


@case("C-RESERVED-NAMES")
@pytest.mark.parametrize("name", ["_change_type", "_Commit_Version", "_COMMIT_TIMESTAMP"])
def test_a_column_that_is_named_like_one_of_the_feed_is_refused_where_it_is_declared(name: str) -> None:
    with pytest.raises(DeclarationError, match="the change feed adds itself"):
        source(schema=StructType([*ROWS.fields, StructField(name, StringType())]))


def test_a_consumer_that_could_not_be_made_anew_is_refused(classic: SparkSession, root: str) -> None:
    changelog = Changelog(operation="_change_type", sequence="_commit_version")
    with pytest.raises(DeclarationError):
        run(classic, root, consumer=replace(CONSUMER, write=Merge(changelog=changelog)))
    assert not Path(CONSUMER.location(root)).exists()
