"""A changelog: whatever the history, and however its rows are shuffled, the table is what a plain replay gives."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from pipeline.dataset import Changelog, Dataset, Merge
from pipeline.delta.sql.slices import of_values
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline.errors import ChangelogError, FrameMismatchError, StrayRowsError
from pipeline_tests.delta.sample import day, frame_in, note, ordered, rows_of, versions_of
from pipeline_tests.tiers import first_is_quick

ROW = StructType(
    [
        StructField("k", LongType()),
        StructField("seq", LongType()),
        StructField("a", StringType()),
        StructField("b", StringType()),
    ]
)
UNSTORED = StructType([field for field in ROW.fields if field.name != "seq"])
FRAME = StructType([*ROW.fields, StructField("op", StringType())])

Change = tuple[int | None, int, str | None, str | None, str]


def changelog(name: str, schema: StructType = ROW, **options: Any) -> Dataset:
    """A dataset of changes (k, seq, a, b, op)."""
    merge = {key: options.pop(key) for key in ("update_columns", "keep_columns") if key in options}
    log = Changelog(operation="op", sequence="seq", **options)
    return Dataset(name=name, schema=schema, keys=("k",), write=Merge(changelog=log, **merge))


def apply(spark: SparkSession, dataset: Dataset, root: str, changes: Sequence[tuple[Any, ...]]) -> WriteResult:
    frame = frame_in(spark, FRAME, changes)
    return write(frame, table=dataset.at(root), note=note())


# --- the reference ----------------------------------------------------------------------------------------------------

KINDS = {"c": 2, "u": 2, "d": 1, "t": 0}  # of one place in the sequence: a truncation, then ends, then rows


@dataclass
class Kept:
    seq: int
    a: str | None
    b: str | None
    batch: int


def replay(
    batches: Sequence[Sequence[Change]], *, ignore_nulls: bool = False, keep_b: bool = False, stored: bool = True
) -> list[tuple[Any, ...]]:
    """The table after the batches, change by change: what is older than the row that is there does nothing."""
    table: dict[int | None, Kept] = {}
    for number, batch in enumerate(batches):
        for k, seq, a, b, op in sorted(batch, key=lambda c: (c[1], KINDS[c[4]], c[2] or "", c[3] or "")):
            if op == "t":
                beats = lambda row: row.seq < seq or (not stored and row.batch < number)  # noqa: E731, B023
                table = {key: row for key, row in table.items() if not beats(row)}
                continue
            there = table.get(k)
            late = there is not None and there.batch < number and stored and there.seq >= seq
            if late:
                continue
            if op == "d":
                # A row of the same place stays; within a batch it comes after the end.
                table.pop(k, None)
                continue
            if there is not None and ignore_nulls:
                a, b = there.a if a is None else a, there.b if b is None else b  # noqa: PLW2901
            if there is not None and keep_b:
                b = there.b  # noqa: PLW2901
            table[k] = Kept(seq, a, b, number)
    return ordered((k, *((row.seq,) if stored else ()), row.a, row.b) for k, row in table.items())


texts = st.one_of(st.none(), st.sampled_from("xyz"))


def histories(kinds: str) -> st.SearchStrategy[list[list[Change]]]:
    """Up to three batches of changes of these kinds.

    Of a place and key there is one row: of several the greater counts, which is another test's business.
    """
    changes = st.tuples(st.sampled_from([1, 2, None]), st.integers(1, 8), texts, texts, st.sampled_from(kinds))
    batch = st.lists(changes, min_size=1, max_size=8, unique_by=lambda c: (c[0], c[1], KINDS[c[4]]))
    return st.lists(batch, min_size=1, max_size=3)


def drawn(strategy: st.SearchStrategy[list[list[Change]]], count: int) -> list[list[list[Change]]]:
    """So many examples."""
    found: list[list[list[Change]]] = []

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def draw(history: list[list[Change]]) -> None:
        found.append(history)

    draw()
    return found[:count]


@pytest.mark.parametrize(
    "options", first_is_quick([{"ignore_nulls": ("a", "b")}, {}]), ids=["NULL means as it was", "as they are"]
)
@pytest.mark.parametrize(
    ("calm_histories", "shuffles_of_each", "wild_histories"), first_is_quick([(24, 10, 0), (30, 20, 3)])
)
def test_any_history_gives_what_a_plain_replay_gives_however_it_is_shuffled(
    classic: SparkSession, root: str, options: dict[str, Any], calm_histories: int, shuffles_of_each: int,
    wild_histories: int,
) -> None:  # fmt: skip
    """Every example is a table of its own among the rows of one: its keys are moved apart, so that one merge does many.

    A truncation speaks of the whole table, so histories that have one are merged alone.
    """
    calm = drawn(histories("cudd"), calm_histories)
    truncated = histories("cuddt").filter(lambda history: any(c[4] == "t" for batch in history for c in batch))
    wild = drawn(truncated, wild_histories) if wild_histories else []
    dataset = changelog("calm", **options)
    expected: list[tuple[Any, ...]] = []
    shuffles = random.Random(0)
    merged: list[list[tuple[Any, ...]]] = [[], [], []]
    for number, history in enumerate(calm):
        for shuffle in range(shuffles_of_each):
            base = (number * shuffles_of_each + shuffle) * 10

            def moved(k: int | None, base: int = base) -> int:
                return base + (k or 0)

            for position, batch in enumerate(history):
                shuffled = shuffles.sample(batch, len(batch))
                merged[position] += [(moved(k), *rest) for k, *rest in shuffled]
            expected += [(moved(k), *rest) for k, *rest in replay(history, ignore_nulls=bool(options))]
    for batch in merged:
        if batch:
            apply(classic, dataset, root, batch)
    assert rows_of(dataset, root) == ordered(expected)
    for number, history in enumerate(wild):
        alone = changelog(f"wild{number}", **options)
        for batch in history:
            apply(classic, alone, root, shuffles.sample(batch, len(batch)))
        assert rows_of(alone, root) == replay(history, ignore_nulls=bool(options)), history


def test_changes_of_one_batch_end_as_the_newest_says_and_deletes_beat_earlier_rows(
    spark: SparkSession, root: str
) -> None:
    dataset = changelog("one")
    apply(
        spark, dataset, root,
        [(1, 1, "a", None, "c"), (1, 2, "b", None, "u"), (2, 1, "a", None, "r"), (2, 2, None, None, "d"),
         (None, 1, "n", None, "insert"), (3, 5, None, None, "DELETE"), (3, 4, "x", None, "c")],
    )  # fmt: skip
    assert rows_of(dataset, root) == [(None, 1, "n", None), (1, 2, "b", None)]
    assert versions_of(dataset, root) == [0, 1]


@pytest.mark.exhaustive
def test_late_changes_lose_against_the_stored_sequence(classic: SparkSession, root: str) -> None:
    dataset = changelog("late")
    apply(classic, dataset, root, [(1, 10, "ten", None, "c")])
    apply(classic, dataset, root, [(1, 9, "nine", None, "u"), (1, 8, None, None, "d")])
    assert rows_of(dataset, root) == [(1, 10, "ten", None)]
    apply(classic, dataset, root, [(1, 10, "again", None, "u"), (1, 10, None, None, "d")])
    assert rows_of(dataset, root) == [(1, 10, "ten", None)]
    apply(classic, dataset, root, [(1, 11, None, None, "d")])
    assert rows_of(dataset, root) == []


@pytest.mark.exhaustive
def test_a_truncation_empties_what_is_older_and_keeps_what_is_newer(spark: SparkSession, root: str) -> None:
    dataset = changelog("truncated")
    apply(spark, dataset, root, [(1, 1, "a", None, "c"), (2, 9, "b", None, "c")])
    apply(
        spark,
        dataset,
        root,
        [(None, 5, None, None, "t"), (3, 4, "gone", None, "c"), (4, 6, "new", None, "c"), (1, 7, "back", None, "c")],
    )
    assert rows_of(dataset, root) == [(1, 7, "back", None), (2, 9, "b", None), (4, 6, "new", None)]


@pytest.mark.exhaustive
def test_an_update_of_ignored_nulls_keeps_values_but_not_across_an_end(classic: SparkSession, root: str) -> None:
    dataset = changelog("kept", ignore_nulls=("a", "b"))
    apply(classic, dataset, root, [(1, 1, "a1", "b1", "c"), (2, 1, "a1", "b1", "c")])
    apply(
        classic,
        dataset,
        root,
        [(1, 2, None, "b2", "u"), (1, 3, "a3", None, "u"), (2, 2, None, None, "d"), (2, 3, "a3", None, "c")],
    )
    assert rows_of(dataset, root) == [(1, 3, "a3", "b2"), (2, 3, "a3", None)]


@pytest.mark.exhaustive
def test_columns_that_an_update_keeps_are_set_anew_after_an_end(classic: SparkSession, root: str) -> None:
    dataset = changelog("columns", keep_columns=("b",))
    apply(classic, dataset, root, [(1, 1, "a1", "b1", "c"), (2, 1, "a1", "b1", "c")])
    apply(classic, dataset, root, [(1, 2, "a2", "b2", "u"), (2, 2, None, None, "d"), (2, 3, "a3", "b3", "c")])
    assert rows_of(dataset, root) == [(1, 2, "a2", "b1"), (2, 3, "a3", "b3")]


@pytest.mark.exhaustive
def test_a_sequence_that_is_not_stored_orders_the_batch_only(classic: SparkSession, root: str) -> None:
    dataset = changelog("unstored", UNSTORED)
    apply(classic, dataset, root, [(1, 9, "old", None, "u"), (1, 10, "new", None, "u"), (2, 1, "x", None, "c")])
    apply(classic, dataset, root, [(1, 1, "last batch wins", None, "u"), (2, 2, None, None, "d")])
    assert rows_of(dataset, root) == [(1, "last batch wins", None)]


@pytest.mark.exhaustive
def test_a_sequence_of_several_columns_that_is_not_stored_truncates_nothing_by_itself(
    classic: SparkSession, root: str
) -> None:
    place = StructType([StructField("at", LongType()), StructField("number", LongType())])
    fields = [*UNSTORED.fields, StructField("seq", place), StructField("op", StringType())]
    dataset = changelog("several", UNSTORED)

    def apply_placed(*changes: tuple[int | None, int, str | None, str]) -> None:
        rows = [(k, a, None, {"at": 1, "number": number}, op) for k, number, a, op in changes]
        write(frame_in(classic, StructType(fields), rows), table=dataset.at(root), note=note())

    apply_placed((1, 1, "x", "c"), (2, 2, "y", "c"), (2, 1, None, "d"))
    apply_placed((3, 3, "z", "c"), (1, 4, None, "d"))
    assert rows_of(dataset, root) == [(2, "y", None), (3, "z", None)]
    apply_placed((None, 5, None, "t"), (4, 5, "new", "c"))
    assert rows_of(dataset, root) == [(4, "new", None)]


@pytest.mark.exhaustive
def test_delta_s_own_feed_is_a_changelog_and_gives_the_same_table(classic: SparkSession, root: str) -> None:
    """An update of the key itself among it: the row from before has another key than the row from after."""
    feed_on = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    classic.sql(f"CREATE TABLE delta.`{root}/source` (k BIGINT, a STRING, b STRING) USING delta {feed_on}")
    source = f"delta.`{root}/source`"
    for statement in (
        f"INSERT INTO {source} VALUES (1, 'a', 'b'), (2, 'a', 'b'), (3, 'a', 'b')",
        f"UPDATE {source} SET a = 'A' WHERE k = 1",
        f"UPDATE {source} SET k = 20 WHERE k = 2",
        f"DELETE FROM {source} WHERE k = 3",
        f"INSERT INTO {source} REPLACE WHERE k = 1 SELECT 1, 'replaced', NULL",
    ):
        classic.sql(statement).collect()
    feed: DataFrame = (
        classic.read.format("delta")
        .option("readChangeFeed", "true")
        .option("startingVersion", 0)
        .load(f"{root}/source")
    )
    log = Changelog(operation="_change_type", sequence="_commit_version")
    dataset = Dataset(name="copy", schema=UNSTORED, keys=("k",), write=Merge(changelog=log))
    write(feed, table=dataset.at(root), note=note())
    assert rows_of(dataset, root) == [(1, "replaced", None), (20, "a", "b")]


def test_unknown_operations_and_missing_places_are_refused_with_counts_and_examples(
    spark: SparkSession, root: str
) -> None:
    dataset = changelog("refused")
    apply(spark, dataset, root, [(1, 1, "a", None, "c")])
    bad = [(1, None, "a", None, "c"), (2, 3, "a", None, "upsert"), (3, 4, "a", None, None), (4, 5, "fine", None, "c")]
    with pytest.raises(ChangelogError) as caught:
        apply(spark, dataset, root, bad)
    assert caught.value.counts == {"op": 2, "seq": 1}
    assert set(caught.value.examples) == {
        "op = c, seq = None, k = 1",
        "op = upsert, seq = 3, k = 2",
        "op = None, seq = 4, k = 3",
    }
    assert rows_of(dataset, root) == [(1, 1, "a", None)]


@pytest.mark.parametrize(
    ("query", "difference"),
    [
        ("SELECT 1L AS k, 1L AS seq, 'a' AS a, 'b' AS b", "column op: missing; the write needs it"),
        (
            "SELECT 1L AS k, 1L AS seq, 'a' AS a, 'b' AS b, NULL AS op",
            "column op: has type void; the write needs it",
        ),
        ("SELECT 1L AS k, 'a' AS a, 'b' AS b, 'c' AS op", "column seq: missing, declared bigint"),
    ],
)
def test_a_frame_without_what_a_change_needs_is_refused(
    classic: SparkSession, root: str, query: str, difference: str
) -> None:
    dataset = changelog("lacking")
    with pytest.raises(FrameMismatchError) as caught:
        write(classic.sql(query), table=dataset.at(root), note=note())
    assert caught.value.differences == (difference,)


@pytest.mark.exhaustive
def test_changes_stay_inside_the_slice_of_the_run(classic: SparkSession, root: str) -> None:
    schema = StructType([StructField("day", DateType()), *ROW.fields])
    log = Changelog(operation="op", sequence="seq")
    dataset = Dataset(name="daily", schema=schema, partition_by=("day",), keys=("day", "k"), write=Merge(changelog=log))
    frame = StructType([*schema.fields, StructField("op", StringType())])

    def apply_daily(rows: list[tuple[Any, ...]], number: int) -> None:
        changes = frame_in(classic, frame, rows)
        within = of_values("day", [day(number)])
        write(changes, table=dataset.at(root), note=note(), within=within)

    apply_daily([(day(1), 1, 1, "a", None, "c")], 1)
    apply_daily([(day(2), 1, 1, "a", None, "c")], 2)
    apply_daily([(None, None, 5, None, None, "t")], 2)
    assert rows_of(dataset, root) == [(day(1), 1, 1, "a", None)]
    with pytest.raises(StrayRowsError):
        apply_daily([(day(1), 1, 2, "b", None, "u")], 2)
