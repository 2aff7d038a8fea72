"""Writes that are audited before their commit: refused whole, kept beside the table, and published once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import (
    Append,
    Changelog,
    Check,
    Dataset,
    ErrorIfExists,
    Expect,
    InsertNew,
    Merge,
    References,
    Replace,
    RowCount,
    Unique,
    WriteMode,
)
from pipeline.delta import sql
from pipeline.delta.inspect.check import check_table
from pipeline.delta.log.mark import CommitNote, Cursor, Cursors, Mark
from pipeline.delta.log.retry import NO_RETRY
from pipeline.delta.maintain import publish as publications
from pipeline.delta.maintain.publish import RejectedWrite, plan_publications, publish, rejected_writes
from pipeline.delta.read.changes import SourceChanges
from pipeline.delta.read.window import Window, read_window
from pipeline.delta.spark.connect import embedded_environment
from pipeline.delta.sql import exact
from pipeline.delta.sql.slices import Slice, of_values
from pipeline.delta.write.consume import consume, read_sources
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.statement import write_statement
from pipeline.delta.write.write import write
from pipeline.errors import (
    AuditError,
    CommitConflictError,
    DeclarationError,
    DuplicateKeysError,
    ExpressionFailedError,
    NewerWritesError,
    NothingRejectedError,
)
from pipeline_tests.children.auditing import (
    DATASETS,
    FIRST,
    PASSES,
    PASSING,
    PLACES,
    REFUSED,
    SCHEMA,
    note_of,
    scope_of,
    write_rows,
)
from pipeline_tests.delta.sample import frame_in, ordered, placed, rows_of, versions_of
from pipeline_tests.tiers import first_is_quick, some_are_quick

Row = tuple[Any, ...]


def refuse(session: SparkSession, dataset: Dataset, root: str, rows: Sequence[Row], run: str = "r1") -> AuditError:
    with pytest.raises(AuditError) as caught:
        write_rows(session, dataset, root, rows, run)
    return caught.value


def only(session: SparkSession, dataset: Dataset, root: str) -> RejectedWrite:
    (one,) = rejected_writes(session, dataset.at(root))
    return one


def waiting(dataset: Dataset, root: str) -> list[Row]:
    """The rows beside the table, without the columns that tell of their write."""
    assert dataset.rejected is not None
    names = dataset.rejected.schema.names
    first = names.index(dataset.schema.names[0])
    return ordered(row[first:] for row in rows_of(dataset.rejected, root))


@dataclass(frozen=True)
class Story:
    """Rows of a refused write, and the table after their publication; for a replace, of partition b."""

    waits: list[Row]
    after: list[Row]


AFTER = {
    "append": Story(REFUSED["append"], ordered([*FIRST, *REFUSED["append"]])),
    "replace": Story(REFUSED["replace"], [FIRST[0], ("b", 8, -8)]),
    "merge": Story(REFUSED["merge"], [FIRST[0], ("b", 2, -20), ("b", 3, 3)]),
    "changelog": Story([("a", 1, None, "d", "12"), ("b", 2, -20, "u", "11")], [("b", 2, -20)]),
}


@pytest.mark.parametrize("kind", some_are_quick(list(DATASETS), "replace"))
def test_a_refused_write_leaves_the_table_alone_waits_beside_it_and_is_published_once(
    classic: SparkSession, root: str, kind: str
) -> None:
    dataset, story = DATASETS[kind], AFTER[kind]
    placed(classic, dataset, root, FIRST)
    error = refuse(classic, dataset, root, REFUSED[kind])
    assert (versions_of(dataset, root), rows_of(dataset, root)) == ([0, 1], FIRST)
    stored = sum(row[2] is not None for row in REFUSED[kind])
    assert dict(error.failed) == {"expect_no_debt": f"false over {stored} row{'s' * (stored > 1)}"}
    assert (error.run_id, error.rejected, error.rows) == ("r1", f"{kind}__rejected", len(REFUSED[kind]))
    assert waiting(dataset, root) == ordered(story.waits)

    refuse(classic, dataset, root, REFUSED[kind])  # an attempt more of the same run
    assert waiting(dataset, root) == ordered(story.waits)

    (plan,) = plan_publications(classic, dataset.at(root), "r1")
    assert (plan.held_at, plan.is_overtaken, plan.write.within) == (None, False, scope_of(kind))
    assert versions_of(dataset, root) == [0, 1], "a plan commits nothing"
    done = publish(classic, dataset.at(root), plan.write)
    assert (done.committed, done.version, rows_of(dataset, root)) == (True, 2, story.after)
    assert waiting(dataset, root) == []

    again = publish(classic, dataset.at(root), plan.write)
    assert (again.committed, again.skipped, again.version) == (False, True, 2)
    repeated = write_rows(classic, dataset, root, REFUSED[kind], "r1")
    assert (repeated.skipped, repeated.version) == (True, 2)
    assert (versions_of(dataset, root), rows_of(dataset, root)) == ([0, 1, 2], story.after)


@pytest.mark.exhaustive
@pytest.mark.both_modes
def test_a_refused_write_of_no_rows_is_published_too(spark: SparkSession, root: str) -> None:
    dataset = replace(DATASETS["replace"], row_count=RowCount(minimum=1, blocking=True), expectations=())
    placed(spark, dataset, root, FIRST)
    within = of_values("part", ["b"])
    with pytest.raises(AuditError) as caught:
        write(frame_in(spark, SCHEMA, []), table=dataset.at(root), note=note_of("replace", "r1"), within=within,
              parts={"b": within})  # fmt: skip
    assert (dict(caught.value.failed), caught.value.rows) == ({"row_count": "b: 0"}, 0)
    assert [row[0] for row in waiting(dataset, root)] == [None]
    done = publish(spark, dataset.at(root), only(spark, dataset, root))
    assert (done.committed, rows_of(dataset, root)) == (True, [FIRST[0]])


@pytest.mark.exhaustive
def test_a_consumer_sees_nothing_of_a_refused_write_and_its_own_leaves_its_cursors(
    classic: SparkSession, root: str
) -> None:
    source = DATASETS["append"]
    consumer = replace(source, name="consumer", reads=("append",), reads_changes_of=("append",))
    placed(classic, source, root, FIRST)

    def run(name: str) -> None:
        compute = lambda changes: changes["append"].frame.select("part", "id", "amount")  # noqa: E731
        consume(classic, consumer.at(root), sources=[source.at(root)], compute=compute, note=note_of("consumer", name),
                retry=NO_RETRY)  # fmt: skip

    run("c1")
    refuse(classic, source, root, REFUSED["append"])
    with read_sources(classic, consumer.at(root), [source.at(root)]) as reading:
        assert reading.changes.nothing_new

    publish(classic, source.at(root), only(classic, source, root))
    before = versions_of(consumer, root)
    with pytest.raises(AuditError):
        run("c2")
    assert versions_of(consumer, root) == before
    with read_sources(classic, consumer.at(root), [source.at(root)]) as reading:
        assert not reading.changes.nothing_new, "the cursors are where they were"
    kept = only(classic, consumer, root)
    done = publish(classic, consumer.at(root), kept)
    assert (done.committed, rows_of(consumer, root)) == (True, rows_of(source, root))
    with read_sources(classic, consumer.at(root), [source.at(root)]) as reading:
        assert reading.changes.nothing_new, "the cursors are committed with the rows"
    assert publish(classic, consumer.at(root), kept).skipped


@pytest.mark.exhaustive
def test_a_consumer_that_has_read_the_same_changes_again_can_publish_them_no_more(
    classic: SparkSession, root: str
) -> None:
    source = replace(DATASETS["append"], audit="after")
    consumer = replace(DATASETS["append"], name="consumer", reads=("append",), reads_changes_of=("append",))
    placed(classic, source, root, FIRST)

    def run(name: str, amount: int) -> None:
        def compute(changes: SourceChanges) -> Any:
            return changes["append"].frame.selectExpr("part", "id", f"amount * {amount} AS amount")

        consume(classic, consumer.at(root), sources=[source.at(root)], compute=compute, note=note_of("consumer", name))

    with pytest.raises(AuditError):
        run("c1", -1)
    kept = only(classic, consumer, root)
    run("c2", 1)
    assert rejected_writes(classic, consumer.at(root)) == [], "its changes are in the newer commit"
    with pytest.raises(NewerWritesError) as caught:
        publish(classic, consumer.at(root), kept, over_newer=True)
    assert caught.value.is_consumed
    assert rows_of(consumer, root) == FIRST


# --- what is judged ---------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_each_expectation_is_judged_of_the_write_or_of_the_table_as_it_would_be(
    classic: SparkSession, root: str
) -> None:
    """None blocks but one that holds: so all are found and the write commits."""
    codes = Dataset(name="codes", schema=StructType([StructField("part", StringType())]), write=Append())
    placed(classic, codes, root, [("a",)])
    dataset = Dataset(
        name="judged", schema=SCHEMA, write=Append(), audit="before", row_count=RowCount(maximum=1, severity="warn"),
        expectations=(
            Expect("here", "sum(amount) = 5", over="write", blocking=True),
            Expect("two_here", "count(*) = 2", over="write", severity="warn"),
            Expect("three_there", "count(*) = 3 AND max(id) = 2"),
            Expect("unknown", "max(NULLIF(amount, amount)) > 0", severity="warn"),
            Unique(("id",), severity="warn"), References(("part",), "codes", severity="warn"),
        ),
    )  # fmt: skip
    placed(classic, dataset, root, FIRST)
    result = write_rows(classic, dataset, root, [("a", 1, 2), ("c", 2, 3)], "r1")
    assert {one.name: (one.finding.passed, one.finding.value) for one in result.judged} == {
        "expect_here": (True, "true over 2 rows"), "expect_two_here": (True, "true over 2 rows"),
        "expect_three_there": (False, "false over 4 rows"), "expect_unknown": (False, "NULL over 4 rows"),
        "row_count": (False, "in all: 2"), "unique_id": (False, "4 rows break it: id = 1; id = 2"),
        "part_in_codes": (False, "2 rows break it: part = b; part = c"),
    }  # fmt: skip
    assert (result.committed, len(rows_of(dataset, root))) == (True, 4)
    assert dataset.rejected is not None
    assert not Path(dataset.rejected.location(root)).exists()

    told = {one.name: (one.passed, one.detail) for one in check_table(classic, dataset, root)}
    assert told["expect_here"] == (True, "true over 2 rows"), "of the rows of the newest write"
    assert told["expect_three_there"] == (False, "false over 4 rows")


MODES: dict[str, tuple[WriteMode, Slice | None]] = {
    "order": (Merge(order_by="amount"), None),
    "plain": (Merge(), None),
    "conditions": (Merge(update_when="source.amount <> 7", delete_when="amount = 9", keep_columns=("part",)), None),
    "missing": (Merge(delete_missing=True), None),
    "missing in a slice": (Merge(delete_missing=True), of_values("part", ["a"])),
    "slice": (Merge(order_by="amount"), of_values("part", ["a"])),
    "insert new": (InsertNew(), None),
    "append": (Append(), None),
    "replace": (Replace(), None),
    "replace a slice": (Replace(), of_values("part", ["a"])),
}
TABLE = [("a", 1, 1), ("a", 2, 2), ("a", 3, 9), ("b", 4, 4), (None, 5, 5), ("a", 6, 6)]
GIVEN = [("a", 1, 7), ("a", 2, 0), ("a", 3, 9), ("a", 7, 7), ("a", 8, 8)]


@pytest.mark.parametrize("name", first_is_quick(list(MODES)))
def test_the_table_as_it_would_be_is_as_it_becomes(classic: SparkSession, root: str, name: str) -> None:
    mode, within = MODES[name]
    dataset = Dataset(name="foretold", schema=SCHEMA, partition_by=("part",), keys=("id",), write=mode)
    given = GIVEN if not isinstance(mode, InsertNew) else [("a", 6, 1), ("a", 7, 7)]
    as_foretold(classic, dataset, root, frame_in(classic, SCHEMA, given), within)


LOG = Changelog(operation="op", sequence="at", ignore_nulls=("amount",))
CHANGES: dict[str, list[Row]] = {
    "changes": [("a", 1, None, "u", 5), ("a", 2, None, "d", 5), ("a", 2, 20, "c", 6), ("b", 4, None, "d", 1),
                ("a", 3, 30, "u", 1), ("c", 9, 90, "c", 1)],
    "truncation": [(None, 0, None, "t", 3), ("a", 1, 11, "u", 4), ("c", 9, None, "c", 5)],
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("stored", [False, True], ids=["not stored", "stored"])
@pytest.mark.parametrize("name", list(CHANGES))
def test_the_table_after_a_changelog_is_foretold(classic: SparkSession, root: str, name: str, stored: bool) -> None:
    at = [StructField("at", LongType())]
    schema = StructType([*SCHEMA.fields, *(at if stored else [])])
    dataset = Dataset(name="log", schema=schema, keys=("id",), write=Merge(changelog=LOG))
    given = StructType([*SCHEMA.fields, StructField("op", StringType()), *at])
    placed(classic, dataset, root, [(*row, 2) if stored else row for row in TABLE])
    as_foretold(classic, dataset, root, frame_in(classic, given, CHANGES[name]), None, filled=True)


def as_foretold(
    session: SparkSession, dataset: Dataset, root: str, frame: Any, within: Slice | None, *, filled: bool = False
) -> None:
    if not filled:
        placed(session, dataset, root, TABLE)
    frame.createOrReplaceTempView("given")
    session.read.format("delta").load(dataset.location(root)).createOrReplaceTempView("held")
    try:
        statement = write_statement(frame, dataset.at(root), "given", within, replace_all=False)
        foretold = ordered(tuple(row) for row in session.sql(statement.rows_after("held")).collect())
    finally:
        for name in ("given", "held"):
            session.catalog.dropTempView(name)
    write(frame, table=dataset.at(root), note=note_of(dataset.name, "r1"), within=within)
    assert foretold == rows_of(dataset, root)


@pytest.mark.exhaustive
def test_the_rows_that_wait_are_those_that_were_judged(classic: SparkSession, root: str) -> None:
    """The rows are drawn anew whenever the frame is computed: another pass would find another number of them."""
    dataset = Dataset(
        name="drawn", schema=SCHEMA, write=Append(), audit="before", row_count=RowCount(minimum=10_000, blocking=True)
    )
    frame = classic.range(4_000).selectExpr("'a' AS part", "id", "id AS amount").filter(
        "CAST(reflect('java.lang.Math', 'random') AS DOUBLE) < 0.5 AND id >= 0"
    )  # fmt: skip
    with pytest.raises(AuditError) as caught:
        write(frame, table=dataset.at(root), note=note_of("drawn", "r1"))
    rows = caught.value.rows
    assert dict(caught.value.failed) == {"row_count": f"in all: {rows}"}
    assert 1_800 < rows < 2_200
    done = publish(classic, dataset.at(root), only(classic, dataset, root))
    assert (done.rows_written, len(rows_of(dataset, root))) == (rows, rows)


@pytest.mark.exhaustive
def test_rows_that_constraints_keep_out_wait_too_and_go_where_they_would_have_gone(
    classic: SparkSession, root: str
) -> None:
    checks = (Check("even", "id % 2 = 0", on_violation="quarantine"), Check("small", "id < 100", on_violation="drop"))
    dataset = replace(DATASETS["append"], checks=checks)
    rows = [("a", 2, -2), ("a", 3, 3), ("a", 200, 0)]
    error = refuse(classic, dataset, root, rows)
    assert dict(error.failed) == {"expect_no_debt": "false over 1 row"}
    assert (waiting(dataset, root), error.rows) == (ordered(rows), 3)
    assert dataset.quarantine is not None
    assert not Path(dataset.quarantine.location(root)).exists()
    result = publish(classic, dataset.at(root), only(classic, dataset, root))
    assert (result.rows_written, result.rows_quarantined, result.rows_dropped) == (1, 1, 1)
    assert (rows_of(dataset, root), len(rows_of(dataset.quarantine, root))) == ([("a", 2, -2)], 1)


@pytest.mark.exhaustive
@pytest.mark.both_modes
def test_values_of_columns_that_only_the_frame_has_are_kept_as_texts(spark: SparkSession) -> None:
    values = spark.sql(
        "SELECT TIMESTAMP'2026-01-31 12:00:00.000001' AS t, TIMESTAMP_NTZ'2026-01-31 12:00:00' AS n, X'00FF' AS b, "
        "0.1D AS d, 1.50BD AS p, DATE'1582-10-04' AS a, TRUE AS o, array(1, NULL) AS l, "
        "named_struct('it''s', 'x') AS s, map('k', 1.5D) AS m, CAST(NULL AS BIGINT) AS z"
    )
    pairs = [
        f"{exact.from_text(exact.as_text(f.name, f.dataType), f.dataType, sql.type_name(f.dataType))} AS {f.name}"
        for f in values.schema.fields
    ]
    assert values.selectExpr(*pairs).collect() == values.collect()


# --- what came later --------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["replace", "changelog"])
def test_a_publication_overwrites_newer_rows_only_if_it_is_told_to(classic: SparkSession, root: str, kind: str) -> None:
    dataset = DATASETS[kind]
    placed(classic, dataset, root, FIRST)
    refuse(classic, dataset, root, REFUSED[kind])
    kept = only(classic, dataset, root)
    newer = [("b", 2, 22)] if kind == "replace" else [("b", 2, 22, "u", 20)]
    if kind == "replace":
        elsewhere = frame_in(classic, SCHEMA, [("a", 1, 100)])
        write(elsewhere, table=dataset.at(root), note=note_of("r", "r2"), within=of_values("part", ["a"]))
        (plan,) = plan_publications(classic, dataset.at(root), "r1")
        assert not plan.is_overtaken, "another partition is not that of the write"
    write_rows(classic, dataset, root, newer, "r3")
    before = rows_of(dataset, root)
    with pytest.raises(NewerWritesError) as caught:
        publish(classic, dataset.at(root), kept)
    assert (caught.value.run_id, caught.value.judged, rows_of(dataset, root)) == ("r1", 1, before)
    done = publish(classic, dataset.at(root), kept, over_newer=True)
    assert done.committed
    assert ("b", 2, 22) not in rows_of(dataset, root)


@pytest.mark.exhaustive
def test_an_append_is_published_after_others_and_a_first_load_once_the_table_is_empty(
    classic: SparkSession, root: str
) -> None:
    dataset = DATASETS["append"]
    refuse(classic, dataset, root, REFUSED["append"])
    kept = only(classic, dataset, root)
    write_rows(classic, dataset, root, [("a", 1, 50)], "r2")
    assert publish(classic, dataset.at(root), kept).committed
    assert rows_of(dataset, root) == ordered([("a", 1, 50), *REFUSED["append"]])

    first = replace(dataset, name="first", write=ErrorIfExists())
    refuse(classic, first, root, REFUSED["append"])
    one = only(classic, first, root)
    assert publish(classic, first.at(root), one).committed
    assert publish(classic, first.at(root), one).skipped
    assert rows_of(first, root) == ordered(REFUSED["append"])


@pytest.mark.exhaustive
def test_a_write_that_passes_at_its_repetition_removes_what_its_first_attempt_has_left(
    classic: SparkSession, root: str
) -> None:
    dataset = DATASETS["append"]
    refuse(classic, dataset, root, REFUSED["append"])
    kept = only(classic, dataset, root)
    assert write_rows(classic, dataset, root, [("a", 1, 50)], "r1").committed
    assert rejected_writes(classic, dataset.at(root)) == []
    assert publish(classic, dataset.at(root), kept).skipped
    assert rows_of(dataset, root) == [("a", 1, 50)]
    with pytest.raises(NothingRejectedError):
        plan_publications(classic, dataset.at(root), "r1")


@pytest.mark.exhaustive
def test_a_write_without_a_run_waits_under_its_token(classic: SparkSession, root: str) -> None:
    dataset = DATASETS["append"]
    frame = frame_in(classic, SCHEMA, REFUSED["append"])
    mark = Mark(writer="by hand")
    with pytest.raises(AuditError) as caught:
        write(frame, table=dataset.at(root), note=CommitNote(mark=mark))
    assert caught.value.run_id == mark.token
    kept = only(classic, dataset, root)
    assert publish(classic, dataset.at(root), kept).committed
    assert publish(classic, dataset.at(root), kept).skipped
    assert rows_of(dataset, root) == ordered(REFUSED["append"])


@pytest.mark.exhaustive
def test_a_consumer_whose_cursors_were_published_meanwhile_is_told_to_read_again(
    classic: SparkSession, root: str
) -> None:
    dataset = DATASETS["append"]
    cursors = Cursors(number=1, read_at=-1, sources={"s": Cursor(table_id="t", version=1)})

    def put(run: str, rows: list[Row]) -> WriteResult:
        note = replace(note_of("append", run), cursors=cursors)
        return write(frame_in(classic, SCHEMA, rows), table=dataset.at(root), note=note, retry=NO_RETRY)

    with pytest.raises(AuditError):
        put("c1", REFUSED["append"])
    assert publish(classic, dataset.at(root), only(classic, dataset, root)).committed
    with pytest.raises(CommitConflictError):
        put("c2", REFUSED["append"])
    assert rows_of(dataset, root) == ordered(REFUSED["append"])


# --- killed -----------------------------------------------------------------------------------------------------------


def killed_at(place: str, remote: str, root: str, kind: str) -> None:
    """A process that writes and publishes, and ends at that place."""
    command = [sys.executable, "-m", "pipeline_tests.children.auditing", remote, root, kind, place]
    done = subprocess.run(command, env=embedded_environment(), check=False, timeout=300)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["append", "replace"])
@pytest.mark.parametrize("place", PLACES)
def test_a_process_that_is_killed_at_any_place_doubles_and_loses_nothing(
    classic: SparkSession, remote_url: str, root: str, kind: str, place: str
) -> None:
    dataset, story = DATASETS[kind], AFTER[kind]
    placed(classic, dataset, root, FIRST)
    killed_at(place, remote_url, root, kind)
    assert rows_of(dataset, root) in (FIRST, story.after)
    for _ in range(2):  # the run again, as often as one likes
        if rows_of(dataset, root) == FIRST:
            refuse(classic, dataset, root, REFUSED[kind])
            assert waiting(dataset, root) == ordered(story.waits)
        else:
            assert write_rows(classic, dataset, root, REFUSED[kind], "r1").skipped
    for one in rejected_writes(classic, dataset.at(root)):
        publish(classic, dataset.at(root), one)
    assert (rows_of(dataset, root), rejected_writes(classic, dataset.at(root))) == (story.after, [])
    assert len(versions_of(dataset, root)) == 3, "the table, its first rows, and one publication"


@pytest.mark.exhaustive
@pytest.mark.parametrize("place", list(PASSING))
def test_a_process_that_is_killed_after_its_audit_has_passed_commits_once(
    classic: SparkSession, remote_url: str, root: str, place: str
) -> None:
    dataset = DATASETS["append"]
    placed(classic, dataset, root, FIRST)
    killed_at(place, remote_url, root, "append")
    for _ in range(2):
        write_rows(classic, dataset, root, PASSES, "r1")
    assert (rows_of(dataset, root), versions_of(dataset, root)) == (ordered([*FIRST, *PASSES]), [0, 1, 2])


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.both_modes
def test_sql_that_is_no_boolean_aggregate_is_refused_before_anything_is_written(spark: SparkSession, root: str) -> None:
    wrong = {"unknown": "sum(amont) > 0", "torn": "sum(amount) >", "number": "sum(amount)", "row": "amount > 0"}
    expectations = tuple(Expect(name, text, blocking=True) for name, text in wrong.items())
    dataset = replace(DATASETS["append"], expectations=expectations)
    with pytest.raises(DeclarationError) as caught:
        write_rows(spark, dataset, root, [("a", 1, 1)], "r1")
    told = [problem.partition(": ")[0] for problem in caught.value.problems]
    assert told == [f"expectation expect_{name}" for name in wrong]
    assert "amont" in caught.value.problems[0]
    assert versions_of(dataset, root) == [0]


@pytest.mark.exhaustive
def test_sql_that_fails_for_a_row_and_rows_that_break_the_merge_are_told_by_name(
    classic: SparkSession, root: str
) -> None:
    failing = replace(DATASETS["append"], expectations=(Expect("ratio", "sum(1 / amount) > 0", blocking=True),))
    with pytest.raises(ExpressionFailedError) as caught:
        write_rows(classic, failing, root, [("a", 1, 0)], "r1")
    assert (caught.value.part, rows_of(failing, root)) == ("expectation 'ratio'", [])
    twice = replace(DATASETS["merge"], write=Merge(), expectations=(Expect("any", "count(*) > 0", blocking=True),))
    with pytest.raises(DuplicateKeysError):
        write_rows(classic, twice, root, [("a", 1, 1), ("a", 1, 2)], "r1")


@pytest.mark.exhaustive
def test_the_feed_has_nothing_of_a_refused_write(classic: SparkSession, root: str) -> None:
    dataset = DATASETS["merge"]
    placed(classic, dataset, root, FIRST)
    refuse(classic, dataset, root, REFUSED["merge"])
    found = read_window(classic, dataset.at(root), Window(first=1), 1)
    assert ordered((row["part"], row["id"], row["amount"]) for row in found.frame.collect()) == FIRST
    publications.discard(classic, dataset.at(root), only(classic, dataset, root))
    assert (rejected_writes(classic, dataset.at(root)), versions_of(dataset, root)) == ([], [0, 1])
