"""A history of spans: whatever the order of the changes and the cut of the frames, the table is what a replay gives."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import deltalake
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BooleanType, DateType, LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Changelog, Check, Dataset, History, Merge, Spans
from pipeline.delta.inspect.check import check_table
from pipeline.delta.inspect.describe import describe
from pipeline.delta.inspect.diff import diff
from pipeline.delta.log.counts import table_rows
from pipeline.delta.maintain.restore import plan_restore, restore
from pipeline.delta.read.changes import SourceChanges
from pipeline.delta.read.version import ReadOptions, read
from pipeline.delta.read.window import Window
from pipeline.delta.sql.slices import Slice, of_values
from pipeline.delta.write.consume import consume
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline.errors import (
    ChangelogError,
    CheckViolationError,
    DeclarationError,
    FrameMismatchError,
    NullViolationError,
    SnapshotError,
    StrayRowsError,
    TableMismatchError,
)
from pipeline_tests.delta.sample import day, frame_in, note, ordered, put, versions_of
from pipeline_tests.remedies import follows, refused
from pipeline_tests.tiers import first_is_quick

SCHEMA = StructType(
    [
        StructField("k", LongType()),
        StructField("a", StringType()),
        StructField("b", StringType()),
        StructField("since", LongType(), False),
        StructField("until", LongType()),
        StructField("current", BooleanType(), False),
    ]
)
FRAME = StructType(
    [
        StructField("k", LongType()),
        StructField("a", StringType()),
        StructField("b", StringType()),
        StructField("seq", LongType()),
        StructField("op", StringType()),
    ]
)
# Of a key: a, b, place, operation. A truncation has no key.
Change = tuple[int | None, str | None, str | None, int, str]
SPANS = History(
    changelog=Changelog(operation="op", sequence="seq"),
    track=("a",),
    valid_from="since",
    valid_to="until",
    is_current="current",
)


def history(name: str, **fields: Any) -> Dataset:
    """A dataset of spans (k, a, b, since, until, current) from changes (k, a, b, seq, op)."""
    changelog = fields.pop("changelog", {})
    mode = replace(SPANS, changelog=replace(SPANS.changelog, **changelog)) if changelog else SPANS
    return Dataset(name=name, schema=SCHEMA, keys=("k",), write=mode, **fields)


def apply(spark: SparkSession, dataset: Dataset, root: str, changes: Sequence[tuple[Any, ...]]) -> WriteResult:
    return write(frame_in(spark, FRAME, changes), table=dataset.at(root), note=note())


def spans_of(dataset: Dataset, root: str) -> list[tuple[Any, ...]]:
    """The spans of a table in the declared column order, as delta-rs sees them."""
    rows = deltalake.DeltaTable(dataset.location(root)).to_pyarrow_table().to_pylist()
    return ordered(tuple(row[n] for n in dataset.schema.names) for row in rows if row["_pipeline_state"] is None)


# --- the reference ----------------------------------------------------------------------------------------------------


@dataclass
class Span:
    since: int
    a: str | None
    b: str | None
    until: int | None = None


def replay(changes: Iterable[Change], *, ignore_nulls: bool = False) -> list[tuple[Any, ...]]:
    """The spans of all changes, place by place: at one place a truncation, then ends, then the greatest row."""
    changes = list(changes)
    truncations = {seq for *_, seq, op in changes if op == "t"}
    expected: list[tuple[Any, ...]] = []
    for key in {k for k, *_, op in changes if op != "t"}:
        own = [change for change in changes if change[0] == key and change[4] != "t"]
        for span in _spans(own, truncations, ignore_nulls=ignore_nulls):
            expected.append((key, span.a, span.b, span.since, span.until, span.until is None))
    return ordered(expected)


def _spans(own: Sequence[Change], truncations: set[int], *, ignore_nulls: bool) -> list[Span]:
    spans: list[Span] = []
    values: tuple[str | None, str | None] | None = None
    for place in sorted({change[3] for change in own} | truncations):
        here = [change for change in own if change[3] == place]
        rows = [(a, b) for _, a, b, _, op in here if op in "cu"]
        is_end = place in truncations or any(change[4] == "d" for change in here)
        is_open = bool(spans) and spans[-1].until is None
        if not rows:
            if is_end or any(change[4] == "update_before" for change in here):
                values = None
                if is_open:
                    spans[-1].until = place
            continue
        a, b = max(rows, key=lambda row: [(value is not None, value or "") for value in row])
        if ignore_nulls and values is not None and not is_end:
            a, b = values[0] if a is None else a, values[1] if b is None else b
        values = (a, b)
        if is_open and spans[-1].a == a:
            spans[-1].b = b
            continue
        if is_open:
            spans[-1].until = place
        spans.append(Span(place, a, b))
    return spans


def drawn(seed: int, keys: int, truncations: int = 2) -> list[Change]:
    """Changes of some keys in a random order, many of them at one place or with the values of another."""
    draw = random.Random(seed)
    changes: list[Change] = [(None, None, None, draw.randrange(1, 12), "t") for _ in range(truncations)]
    for key in [None, *range(1, keys)]:
        for _ in range(draw.choice([1, 2, 3, 4, 6, 9])):
            op = draw.choice(["c", "c", "u", "u", "u", "d", "update_before"])
            values = (draw.choice([None, "x", "y"]), draw.choice([None, "p", "q"]))
            change = (key, *(values if op != "d" else (None, None)), draw.randrange(1, 12), op)
            changes += [change] * draw.choice([1, 1, 1, 2])
    draw.shuffle(changes)
    return changes


def cut(changes: Sequence[Change], batches: int, seed: int = 0) -> list[Sequence[Change]]:
    """The changes in their order, cut anywhere into so many frames."""
    places = sorted(random.Random(seed).sample(range(1, len(changes)), batches - 1))
    return [changes[first:last] for first, last in zip([0, *places], [*places, len(changes)], strict=True)]


@pytest.mark.parametrize(
    ("seed", "ignore_nulls", "batches"),
    first_is_quick([(1, False, 4), (2, True, 3), *((seed, seed % 2 == 0, 5) for seed in range(3, 8))]),
)
def test_changes_in_any_order_and_cut_give_what_a_replay_gives(
    classic: SparkSession, root: str, seed: int, ignore_nulls: bool, batches: int
) -> None:
    """Every key is a changelog of its own; the truncations are those of all keys."""
    changes = drawn(seed, keys=60)
    dataset = history("cut", changelog={"ignore_nulls": ("a", "b")} if ignore_nulls else {})
    for batch in cut(changes, batches, seed):
        apply(classic, dataset, root, batch)
    assert spans_of(dataset, root) == replay(changes, ignore_nulls=ignore_nulls)


@pytest.mark.exhaustive
@pytest.mark.parametrize("ignore_nulls", [False, True])
def test_one_frame_and_fifty_give_the_same_table(classic: SparkSession, root: str, ignore_nulls: bool) -> None:
    changes = drawn(9, keys=40, truncations=3)
    options = {"ignore_nulls": ("a", "b")} if ignore_nulls else {}
    one, fifty = history("one", changelog=options), history("fifty", changelog=options)
    apply(classic, one, root, changes)
    for batch in cut(changes, 50):
        apply(classic, fifty, root, batch)
    assert spans_of(one, root) == spans_of(fifty, root) == replay(changes, ignore_nulls=ignore_nulls)


@pytest.mark.exhaustive
def test_writers_at_the_same_time_lose_no_change(classic: SparkSession, root: str) -> None:
    """A statement reads the spans in the transaction that writes them, so the later of two reads them again."""
    changes, dataset = drawn(11, keys=20), history("together")
    apply(classic, dataset, root, [row(99, "x", 1)])

    def written(half: Sequence[Change]) -> None:
        for batch in cut(half, 3):
            apply(classic, dataset, root, batch)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(written, (changes[::2], changes[1::2])))
    assert spans_of(dataset, root) == replay([row(99, "x", 1), *changes])


# --- what a table remembers -------------------------------------------------------------------------------------------


def row(k: int | None, a: str | None, seq: int, op: str = "u", b: str | None = None) -> Change:
    return (k, a, b, seq, op)


def test_late_changes_find_what_no_span_shows_and_readers_see_spans_alone(spark: SparkSession, root: str) -> None:
    """A change that was equal to its span, a deletion of a key that was not there, and a truncation before a row."""
    dataset = history("remembered")
    apply(
        spark, dataset, root,
        [row(1, "x", 1), row(1, "x", 5, b="new"), row(2, None, 4, "d"), row(None, None, 10, "t"), row(3, "x", 12)],
    )  # fmt: skip
    assert spans_of(dataset, root) == [(1, "x", "new", 1, 10, False), (3, "x", None, 12, None, True)]
    late = [row(1, "y", 3), row(2, "x", 2), row(4, "x", 8)]
    apply(spark, dataset, root, late)
    expected = ordered(
        [
            (1, "x", None, 1, 3, False), (1, "y", None, 3, 5, False), (1, "x", "new", 5, 10, False),
            (2, "x", None, 2, 4, False), (3, "x", None, 12, None, True), (4, "x", None, 8, 10, False),
        ]
    )  # fmt: skip
    assert spans_of(dataset, root) == expected
    stored = deltalake.DeltaTable(dataset.location(root)).to_pyarrow_table().to_pylist()
    others = [r for r in stored if r["_pipeline_state"] is not None]
    assert all(r["since"] == r["until"] and not r["current"] for r in others), "other readers see no span in them"
    known = {(r["k"], r["since"], r["_pipeline_state"]) for r in others}
    assert known == {(2, 4, "deletion"), (None, 10, "truncation")}
    before = versions_of(dataset, root)
    again = apply(spark, dataset, root, late)
    assert (again.committed, versions_of(dataset, root)) == (False, before)
    table = dataset.at(root)
    assert ordered(map(tuple, read(spark, table).frame.collect())) == expected
    described = describe(spark, table)
    assert described.table is not None
    assert (described.rows, described.standing, described.table.partition_by) == (6, "ok", ())
    counted = table_rows(table.location, described.table.version)
    assert counted is not None
    assert counted.total == 6
    changes = read(spark, table, ReadOptions(changes=Window(first=2))).frame
    assert {r["k"] for r in changes.collect()} == {1, 2, 4}
    assert "_pipeline_state" not in changes.columns


def test_what_can_not_be_placed_is_refused_and_nothing_is_written(classic: SparkSession, root: str) -> None:
    dataset = history("refused")
    with pytest.raises(ChangelogError) as caught:
        apply(classic, dataset, root, [row(1, "x", 1), (1, "x", None, None, "u"), row(2, "x", 3, "upsert")])
    assert caught.value.counts == {"op": 1, "seq": 1}
    with pytest.raises(FrameMismatchError) as other:
        write(classic.sql("SELECT 1L AS k, 'a' AS a, 'b' AS b, 1L AS since, 'u' AS op, 1L AS seq"),
              table=dataset.at(root), note=note())  # fmt: skip
    assert other.value.differences == ("column since: the write computes it; leave it out of the frame",)
    with pytest.raises(StrayRowsError):
        write(frame_in(classic, FRAME, [row(None, None, 3, "t")]), table=dataset.at(root), note=note(),
              within=of_values("k", [1]))  # fmt: skip
    nothing = write(frame_in(classic, FRAME, []), table=dataset.at(root), note=note(), within=Slice(()))
    assert not nothing.committed
    merged = replace(dataset, write=Merge())
    with pytest.raises(TableMismatchError) as mismatch:
        write(frame_in(classic, SCHEMA, []), table=merged.at(root), note=note())
    assert "partition column _pipeline_state" in mismatch.value.differences[0]
    assert spans_of(dataset, root) == []


@pytest.mark.exhaustive
def test_not_null_columns_and_checks_are_those_of_spans(classic: SparkSession, root: str) -> None:
    schema = StructType(
        [StructField("k", LongType(), False), StructField("a", StringType(), False), *SCHEMA.fields[2:]]
    )
    dataset = replace(history("bound", checks=(Check("known", "a IN ('x', 'y')"),)), schema=schema)
    apply(classic, dataset, root, [row(1, "x", 1), row(1, "x", 3), row(1, None, 5, "d"), row(None, None, 7, "t")])
    assert spans_of(dataset, root) == [(1, "x", None, 1, 5, False)]
    with pytest.raises(CheckViolationError):
        apply(classic, dataset, root, [row(2, "z", 2)])
    with pytest.raises(NullViolationError):
        apply(classic, dataset, root, [row(2, None, 2)])
    assert [outcome.name for outcome in check_table(classic, dataset, root) if outcome.passed is False] == []


@pytest.mark.exhaustive
def test_a_run_of_partitions_changes_the_spans_of_their_keys(classic: SparkSession, root: str) -> None:
    schema = StructType([StructField("day", DateType()), *SCHEMA.fields])
    frame = StructType([StructField("day", DateType()), *FRAME.fields])
    mode = replace(SPANS, changelog=Changelog(operation="op", sequence="seq", truncates=()))
    dataset = Dataset(name="daily", schema=schema, keys=("day", "k"), partition_by=("day",), write=mode)

    def apply_daily(number: int, changes: Sequence[tuple[Any, ...]], within: Slice | None) -> None:
        rows = frame_in(classic, frame, [(day(number), *change) for change in changes])
        write(rows, table=dataset.at(root), note=note(), within=within)

    apply_daily(1, [row(1, "x", 1), row(1, None, 5, "d")], of_values("day", [day(1)]))
    apply_daily(2, [row(1, "x", 1)], of_values("day", [day(2)]))
    apply_daily(1, [row(1, "y", 3)], None)
    with pytest.raises(StrayRowsError):
        apply_daily(1, [row(1, "z", 9)], of_values("day", [day(2)]))
    assert spans_of(dataset, root) == ordered(
        [
            (day(1), 1, "x", None, 1, 3, False), (day(1), 1, "y", None, 3, 5, False),
            (day(2), 1, "x", None, 1, None, True),
        ]
    )  # fmt: skip


# --- snapshots, consumers, restores -----------------------------------------------------------------------------------

# Columns whose names the statement uses itself.
SNAPSHOTS = StructType(
    [
        StructField("k", LongType()),
        StructField("state", StringType()),
        StructField("kind", StringType()),
        StructField("at", LongType()),
        StructField("row", LongType()),
    ]
)
TAKEN = StructType([*SNAPSHOTS.fields[:3], StructField("taken", LongType())])


@follows(SnapshotError)
def test_a_snapshot_closes_the_keys_that_it_lacks(classic: SparkSession, root: str) -> None:
    mode = History(order_by="taken", except_=("kind",), valid_from="at", valid_to="row", from_snapshots=True)
    dataset = Dataset(name="snapshots", schema=SNAPSHOTS, keys=("k",), write=mode)

    def snapshot(taken: int, *rows: tuple[int, str, str]) -> WriteResult:
        frame = frame_in(classic, TAKEN, [(*values, taken) for values in rows])
        return write(frame, table=dataset.at(root), note=note())

    snapshot(1, (1, "x", "p"), (2, "x", "p"), (3, "x", "p"))
    snapshot(3, (1, "x", "q"), (3, "y", "p"))
    assert spans_of(dataset, root) == ordered(
        [(1, "x", "q", 1, None), (2, "x", "p", 1, 3), (3, "x", "p", 1, 3), (3, "y", "p", 3, None)]
    )
    known = spans_of(dataset, root)
    error = refused(SnapshotError, lambda: snapshot(2, (1, "x", "q")), "the time at which it was taken")
    assert (error.taken, error.newest, error.keys_newer) == ("2", "3", 1)
    empty = refused(SnapshotError, lambda: snapshot(4), "the time at which it was taken")
    assert (empty.taken, empty.keys_newer) == (None, 2)
    assert spans_of(dataset, root) == known
    snapshot(5, (1, "x", "q"))
    spans = ordered([(1, "x", "q", 1, None), (2, "x", "p", 1, 3), (3, "x", "p", 1, 3), (3, "y", "p", 3, 5)])
    assert spans_of(dataset, root) == spans
    again = refused(SnapshotError, lambda: snapshot(5, (1, "a", "q")), "one value in taken")
    assert (again.taken, again.newest, again.keys_newer, again.keys_other) == ("5", None, 0, 1)
    assert again.examples == ('{"k0":1}',)
    assert not snapshot(5, (1, "x", "q")).committed
    assert spans_of(dataset, root) == spans


@pytest.mark.exhaustive
def test_a_consumer_writes_the_changes_of_its_source_and_keeps_its_past_if_all_is_read(
    classic: SparkSession, root: str
) -> None:
    rows = StructType([StructField("k", LongType()), StructField("a", StringType()), StructField("b", StringType())])
    source = Dataset(name="source", schema=rows, write=Append())
    log = Changelog(operation="_change_type", sequence="_commit_version")
    dataset = Dataset(
        name="consumer", schema=SCHEMA, keys=("k",), write=replace(SPANS, changelog=log),
        reads=("source",), reads_changes_of=("source",),
    )  # fmt: skip

    def run(*, full_refresh: bool = False) -> None:
        def compute(changes: SourceChanges) -> DataFrame:
            return changes["source"].frame

        consume(classic, dataset.at(root), sources=[source.at(root)], compute=compute, note=note("consumer"),
                full_refresh=full_refresh)  # fmt: skip

    put(classic, source, root, [(1, "x", None), (2, "x", None), (3, "x", None)])
    run()
    assert spans_of(dataset, root) == [(k, "x", None, 1, None, True) for k in (1, 2, 3)]
    location = f"delta.`{source.location(root)}`"
    classic.sql(f"UPDATE {location} SET a = 'y' WHERE k = 1").collect()
    classic.sql(f"DELETE FROM {location} WHERE k = 2").collect()
    run()
    spans = [(1, "x", None, 1, 2, False), (1, "y", None, 2, None, True), (2, "x", None, 1, 3, False)]
    assert spans_of(dataset, root) == ordered([*spans, (3, "x", None, 1, None, True)])
    classic.sql(f"DELETE FROM {location} WHERE k = 3").collect()
    run(full_refresh=True)
    assert spans_of(dataset, root) == ordered([*spans, (3, "x", None, 1, 4, False)])


@pytest.mark.exhaustive
def test_a_source_that_was_created_again_is_a_snapshot_once_its_versions_are_greater(
    classic: SparkSession, root: str
) -> None:
    rows = StructType([StructField("k", LongType()), StructField("a", StringType()), StructField("b", StringType())])
    source = Dataset(name="again", schema=rows, write=Append())
    log = Changelog(operation="_change_type", sequence="_commit_version")
    dataset = Dataset(
        name="follower", schema=SCHEMA, keys=("k",), write=replace(SPANS, changelog=log),
        reads=("again",), reads_changes_of=("again",),
    )  # fmt: skip

    def run(consumer: Dataset = dataset, *, full_refresh: bool = False) -> None:
        consume(classic, consumer.at(root), sources=[source.at(root)], note=note(consumer.name),
                compute=lambda changes: changes["again"].frame, full_refresh=full_refresh)  # fmt: skip

    for number in (1, 2):
        put(classic, source, root, [(number, "x", None)])
        run()
    known = spans_of(dataset, root)
    assert known == [(1, "x", None, 1, None, True), (2, "x", None, 2, None, True)]
    location = source.location(root)
    shutil.rmtree(location)
    put(classic, source, root, [(2, "x", None)])
    error = refused(SnapshotError, run, "when they have rows with a greater _commit_version than the table")
    assert (error.taken, error.newest, error.keys_newer, error.keys_other) == ("1", None, 1, 0)
    run(new := replace(dataset, name="begun_anew"))
    assert spans_of(new, root) == [(2, "x", None, 1, None, True)]
    assert spans_of(dataset, root) == known
    put(classic, source, root, [(3, "x", None)])
    run()
    spans = [(1, "x", None, 1, 2, False), (2, "x", None, 2, None, True), (3, "x", None, 2, None, True)]
    assert spans_of(dataset, root) == spans
    run(full_refresh=True)
    assert spans_of(dataset, root) == spans, "a snapshot may be repeated"


@pytest.mark.exhaustive
def test_a_deletion_in_a_full_frame_closes_a_row_of_nulls(classic: SparkSession, root: str) -> None:
    dataset = history("nulls")
    apply(classic, dataset, root, [row(1, None, 1)])
    frame = frame_in(classic, FRAME, [row(1, None, 5, "d"), row(2, "x", 5)])
    write(frame, table=dataset.at(root), note=note(), replace_all=True)
    assert spans_of(dataset, root) == [(1, None, None, 1, 5, False), (2, "x", None, 5, None, True)]


@pytest.mark.exhaustive
def test_a_history_with_partitions_takes_no_full_frame(classic: SparkSession, root: str) -> None:
    mode = replace(SPANS, changelog=Changelog(operation="op", sequence="seq", truncates=()))
    dataset = Dataset(name="parts", schema=SCHEMA, keys=("k",), partition_by=("k",), write=mode)
    apply(classic, dataset, root, [row(1, "x", 1), row(2, "x", 1)])
    frame = frame_in(classic, FRAME, [row(1, "x", 5)])
    with pytest.raises(DeclarationError, match="snapshot of all partitions"):
        write(frame, table=dataset.at(root), note=note(), replace_all=True)
    with pytest.raises(DeclarationError, match="a History with partitions can't consume changes"):
        consume(classic, dataset.at(root), sources=[], compute=lambda _: frame, note=note())
    assert spans_of(dataset, root) == [(1, "x", None, 1, None, True), (2, "x", None, 1, None, True)]


@pytest.mark.exhaustive
def test_the_changes_of_a_history_are_those_of_its_spans(classic: SparkSession, root: str) -> None:
    source = history("spans")
    copy = Dataset(
        name="copy", schema=SCHEMA, keys=("k", "since"), write=Merge(), reads=("spans",), reads_changes_of=("spans",)
    )
    seen: list[list[tuple[Any, ...]]] = []

    def compute(changes: SourceChanges) -> DataFrame:
        frame = changes["spans"].frame
        seen.append(ordered(map(tuple, frame.select("since", "until", "_change_type").collect())))
        return frame.drop("_change_type")

    def run() -> None:
        consume(classic, copy.at(root), sources=[source.at(root)], compute=compute, note=note("copy"))

    apply(classic, source, root, [row(1, "x", 1)])
    run()
    apply(classic, source, root, [row(1, "y", 5)])
    run()
    assert seen == [[(1, None, "insert")], [(1, 5, "update_postimage"), (5, None, "insert")]]
    rows = deltalake.DeltaTable(copy.location(root)).to_pyarrow_table().to_pylist()
    assert ordered(tuple(r.values()) for r in rows) == spans_of(source, root)
    last = versions_of(source, root)[-1]
    found = diff(classic, source.at(root), first=last - 1, last=last, limit=10)
    assert found.counts == {"update_postimage": 1, "insert": 1}


@pytest.mark.exhaustive
def test_a_restore_takes_back_what_the_table_remembers_and_a_replay_brings_it_again(
    classic: SparkSession, root: str
) -> None:
    dataset = history("restored")
    first, second = [row(1, "x", 1), row(1, "x", 5)], [row(2, None, 4, "d"), row(1, "y", 3)]
    apply(classic, dataset, root, first)
    apply(classic, dataset, root, second)
    done = spans_of(dataset, root)
    plan = plan_restore(classic, dataset.at(root), ReadOptions(version=1))
    restore(classic, dataset, plan, note("restore"))
    assert spans_of(dataset, root) == [(1, "x", None, 1, None, True)]
    apply(classic, dataset, root, [row(2, "x", 2)])
    assert (2, "x", None, 2, None, True) in spans_of(dataset, root)
    apply(classic, dataset, root, second)
    assert spans_of(dataset, root) == ordered([*done, (2, "x", None, 2, 4, False)])


# --- the expectation --------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_spans_that_another_writer_has_broken_are_found(classic: SparkSession, root: str) -> None:
    dataset = history("planted", expectations=(Spans(),))
    apply(classic, dataset, root, [row(1, "x", 1), row(1, "y", 3), row(2, "x", 1)])

    def found() -> tuple[int | None, tuple[str, ...]]:
        spans = next(outcome for outcome in check_table(classic, dataset, root) if outcome.name == "spans")
        assert spans.passed == (not spans.rows)
        return spans.rows, spans.examples

    assert found() == (0, ())
    faults = [
        "(10, 'a', 'b', 1, 5, FALSE), (10, 'a', 'b', 4, 6, FALSE)",  # overlap
        "(11, 'a', 'b', 1, NULL, TRUE), (11, 'a', 'b', 4, NULL, TRUE)",  # two are open
        "(12, 'a', 'b', 5, 5, FALSE)",  # empty
        "(13, 'a', 'b', 5, 6, TRUE)",  # closed and current
        "(14, 'a', 'b', 1, 9, FALSE), (14, 'a', 'b', 2, 3, FALSE), (14, 'a', 'b', 4, 5, FALSE)",  # within another
    ]
    columns = ", ".join(SCHEMA.names)
    values = f"SELECT * FROM VALUES {', '.join(faults)} AS v({columns})"
    classic.sql(f"INSERT INTO delta.`{dataset.location(root)}` BY NAME {values}").collect()
    assert found() == (
        6,
        ("k = 10, since = 4", "k = 11, since = 4", "k = 12, since = 5", "k = 13, since = 5", "k = 14, since = 2"),
    )
