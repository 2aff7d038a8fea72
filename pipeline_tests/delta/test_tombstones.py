"""Tombstones of a changelog: a change that is older than the deletion of its key never brings the row back."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import deltalake
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from pipeline.dataset import Changelog, Check, Dataset, Expect, Features, MaintenancePolicy, Merge, Tombstones
from pipeline.delta.inspect.describe import describe
from pipeline.delta.log.commits import commit_note, read_commit
from pipeline.delta.log.counts import table_rows
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.maintain.checkpoint import Checkpoints
from pipeline.delta.maintain.maintain import optimize
from pipeline.delta.maintain.restore import plan_restore, restore
from pipeline.delta.maintain.routine import Maintained, maintain_table
from pipeline.delta.read.changes import SourceChanges
from pipeline.delta.read.version import ReadOptions, read
from pipeline.delta.read.window import Window
from pipeline.delta.sql.slices import Slice, of_values
from pipeline.delta.write import merge
from pipeline.delta.write.consume import consume
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline.errors import StrayRowsError, TableMismatchError
from pipeline_tests.delta.sample import day, frame_in, note, ordered, versions_of
from pipeline_tests.tiers import first_is_quick

ROW = StructType(
    [
        StructField("k", LongType()),
        StructField("seq", LongType()),
        StructField("a", StringType()),
        StructField("b", StringType()),
    ]
)
FRAME = StructType([*ROW.fields, StructField("op", StringType())])
LOG = Changelog(operation="op", sequence="seq", tombstones=Tombstones(keep_hours=48))
# Of a key: place, values, operation. A truncation has no key.
Change = tuple[int | None, int, str | None, str | None, str]
EXPIRY_ALONE = MaintenancePolicy(checkpoint=False, small_file_ratio=None, vacuum=False, clean_log=False)


def remembering(name: str, *, log: dict[str, Any] | None = None, **fields: Any) -> Dataset:
    """A dataset of rows (k, seq, a, b) from changes (k, seq, a, b, op), whose deletions are remembered for two days."""
    declared: dict[str, Any] = {"schema": ROW, "keys": ("k",), "write": Merge(changelog=replace(LOG, **(log or {})))}
    return Dataset(name=name, **(declared | fields))


def apply(
    spark: SparkSession, dataset: Dataset, root: str, changes: Sequence[tuple[Any, ...]], **arguments: Any
) -> WriteResult:  # fmt: skip
    columns = [StructField(field.name, field.dataType) for field in dataset.schema.fields]
    frame = frame_in(spark, StructType([*columns, StructField("op", StringType())]), changes)
    return write(frame, table=dataset.at(root), **({"note": note()} | arguments))


def stored(dataset: Dataset, root: str) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The rows of the dataset, and of the others key, place and state, as delta-rs sees them."""
    rows = deltalake.DeltaTable(dataset.location(root)).to_pyarrow_table().to_pylist()
    of_dataset = [tuple(row[n] for n in dataset.schema.names) for row in rows if row["_pipeline_state"] is None]
    others = [(row["k"], row["seq"], row["_pipeline_state"]) for row in rows if row["_pipeline_state"] is not None]
    return ordered(of_dataset), ordered(others)


def row(k: int | None, seq: int, a: str | None = None, op: str = "u", b: str | None = None) -> Change:
    return (k, seq, a, b, op)


def today() -> str:
    return dt.datetime.now(dt.timezone.utc).date().isoformat()


def on(monkeypatch: pytest.MonkeyPatch, number: int) -> dt.datetime:
    """Let writes be of this day of January 2026. Return its end."""
    monkeypatch.setattr(merge, "_today", lambda: day(number))
    return dt.datetime.combine(day(number + 1), dt.time(), dt.timezone.utc)


def maintained(spark: SparkSession, dataset: Dataset, root: str, now: dt.datetime, *, apply: bool = True) -> Maintained:
    with Checkpoints(spark) as checkpoints:
        return maintain_table(dataset.at(root), checkpoints, apply=apply, run_id="run", now=now)


# --- what a table remembers -------------------------------------------------------------------------------------------


def test_a_late_change_brings_no_row_back_and_readers_see_rows_alone(spark: SparkSession, root: str) -> None:
    """After a deletion, after the deletion of a key that was not there, and after a truncation."""
    dataset = remembering("remembering")
    apply(spark, dataset, root, [row(1, 1, "x"), row(2, 1, "x"), row(None, 1, "x"), row(5, 9, "x")])
    apply(spark, dataset, root, [row(1, 5, op="d"), row(None, 3, op="d"), row(3, 4, op="d"), row(5, 8, op="d")])
    tombstones = [(None, 3), (1, 5), (3, 4), (5, 8)]
    rows, others = stored(dataset, root)
    assert rows == [(2, 1, "x", None), (5, 9, "x", None)]
    assert others == ordered((k, seq, f"deletion-{today()}") for k, seq in tombstones)
    late = [row(1, 4, "late"), row(None, 2, "late"), row(3, 3, "late"), row(2, 2, "y"), row(5, 8, "late")]
    apply(spark, dataset, root, late)
    assert stored(dataset, root) == ([(2, 2, "y", None), (5, 9, "x", None)], others)
    apply(spark, dataset, root, [row(1, 5, "at its place"), row(3, 6, "newer"), row(3, 6, op="d")])
    rows = [(1, 5, "at its place", None), (2, 2, "y", None), (3, 6, "newer", None), (5, 9, "x", None)]
    assert stored(dataset, root) == (rows, others)
    apply(spark, dataset, root, [row(None, 7, op="t"), row(4, 8, "new")])
    rows = [(4, 8, "new", None), (5, 9, "x", None)]
    assert stored(dataset, root) == (rows, ordered([*others, (None, 7, f"truncation-{today()}")]))
    apply(spark, dataset, root, [row(6, 6, "late"), row(2, 7, "at its place"), row(None, 6, op="t")])
    rows = [(2, 7, "at its place", None), *rows]
    assert stored(dataset, root) == (rows, ordered([*others, (None, 7, f"truncation-{today()}")]))
    table = dataset.at(root)
    assert ordered(map(tuple, read(spark, table).frame.collect())) == rows
    described = describe(spark, table)
    assert described.table is not None
    assert (described.rows, described.standing, described.table.partition_by) == (3, "ok", ())
    counted = table_rows(table.location, described.table.version)
    assert (counted is not None and counted.total) == 3
    changes = read(spark, table, ReadOptions(changes=Window(first=2, last=2))).frame
    assert {r["k"] for r in changes.collect()} == {None, 1}
    assert "_pipeline_state" not in changes.columns


def of(changes: Iterable[Change]) -> list[tuple[Any, ...]]:
    """The table after these changes, in any order: of a key the newest counts, and at one place an end comes first."""
    changes = list(changes)
    cut = max((seq for _, seq, *_, op in changes if op == "t"), default=-1)
    rows = []
    for key in {k for k, *_, op in changes if op != "t"}:
        own = [change for change in changes if change[0] == key and change[4] != "t"]
        _, seq, a, b, op = max(own, key=lambda change: (change[1], change[4] != "d"))
        if op != "d" and seq >= cut:
            rows.append((key, seq, a, b))
    return ordered(rows)


def drawn(seed: int, keys: int, truncations: int = 2) -> list[Change]:
    """Changes of some keys in a random order, some of them twice. Of a key and place there is one row at most."""
    draw = random.Random(seed)
    changes: list[Change] = [row(None, draw.randrange(1, 9), op="t") for _ in range(truncations)]
    for key in [None, *range(1, keys)]:
        for place in draw.sample(range(1, 12), draw.choice([1, 2, 3, 5, 8])):
            kinds = draw.choice([["u"], ["u"], ["d"], ["u", "d"]])
            for op in kinds:
                change = row(key, place, draw.choice("xyz") if op == "u" else None, op)
                changes += [change] * draw.choice([1, 1, 1, 2])
    draw.shuffle(changes)
    return changes


def cut(changes: Sequence[Change], batches: int, seed: int = 0) -> list[Sequence[Change]]:
    """The changes in their order, cut anywhere into so many frames."""
    places = sorted(random.Random(seed).sample(range(1, len(changes)), batches - 1))
    return [changes[first:last] for first, last in zip([0, *places], [*places, len(changes)], strict=True)]


@pytest.mark.parametrize(("seed", "batches"), first_is_quick([(1, 4), (2, 1), (3, 3), (4, 8), (5, 50)]))
def test_changes_in_any_order_and_cut_anywhere_give_the_newest_of_each_key(
    classic: SparkSession, root: str, seed: int, batches: int
) -> None:
    changes, dataset = drawn(seed, keys=60), remembering("cut")
    for batch in cut(changes, batches, seed):
        apply(classic, dataset, root, batch)
    assert stored(dataset, root)[0] == of(changes)


@pytest.mark.exhaustive
def test_over_connect_too(spark: SparkSession, root: str) -> None:
    changes, dataset = drawn(6, keys=30), remembering("both")
    for batch in cut(changes, 4):
        apply(spark, dataset, root, batch)
    assert stored(dataset, root)[0] == of(changes)


@pytest.mark.exhaustive
def test_a_key_has_one_tombstone_a_day_with_the_newest_place(
    classic: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = remembering("daily")
    on(monkeypatch, 1)
    for change in (row(1, 5, op="d"), row(1, 7, op="d"), row(1, 6, op="d"), row(None, 2, op="t"), row(None, 3, op="t")):
        apply(classic, dataset, root, [change])
    first = [(None, 3, "truncation-2026-01-01"), (1, 7, "deletion-2026-01-01")]
    assert stored(dataset, root) == ([], first)
    on(monkeypatch, 2)
    apply(classic, dataset, root, [row(1, 7, op="d"), row(None, 3, op="t")])
    assert stored(dataset, root) == ([], first)
    apply(classic, dataset, root, [row(1, 8, op="d"), row(None, 4, op="t")])
    second = [(None, 4, "truncation-2026-01-02"), (1, 8, "deletion-2026-01-02")]
    assert stored(dataset, root) == ([], ordered([*first, *second]))
    apply(classic, dataset, root, [row(1, 7, "late"), row(2, 3, "late"), row(3, 4, "in time")])
    assert stored(dataset, root)[0] == [(3, 4, "in time", None)]


@pytest.mark.exhaustive
def test_a_repeated_write_is_skipped_and_one_that_is_not_recognised_changes_nothing(
    classic: SparkSession, root: str
) -> None:
    dataset, changes = remembering("repeated"), [row(1, 5, op="d"), row(2, 3, "x"), row(None, 2, op="t")]
    identified = CommitNote(mark=Mark(writer="writer", epoch=1))
    assert apply(classic, dataset, root, changes, note=identified).committed
    known = stored(dataset, root)
    again = apply(classic, dataset, root, changes, note=replace(identified, mark=Mark(writer="writer", epoch=1)))
    assert (again.skipped, again.version) == (True, 1)
    apply(classic, dataset, root, changes)
    assert stored(dataset, root) == known


@pytest.mark.exhaustive
def test_an_update_of_ignored_nulls_keeps_values_but_not_across_a_remembered_deletion(
    classic: SparkSession, root: str
) -> None:
    dataset = remembering("kept", log={"ignore_nulls": ("a", "b")})
    apply(classic, dataset, root, [row(1, 1, "a1", b="b1"), row(2, 1, "a1", b="b1")])
    apply(classic, dataset, root, [row(1, 2, "a2"), row(2, 5, op="d")])
    apply(classic, dataset, root, [row(2, 4, "late", b="late")])
    apply(classic, dataset, root, [row(2, 6, "a6"), row(2, 3, b="late")])
    assert stored(dataset, root)[0] == [(1, 2, "a2", "b1"), (2, 6, "a6", None)]


@pytest.mark.exhaustive
def test_writers_at_the_same_time_and_on_either_side_of_midnight_bring_no_row_back(
    classic: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement reads the tombstones of all days in the transaction that writes the rows."""
    changes, dataset = drawn(11, keys=20), remembering("together")
    apply(classic, dataset, root, [row(99, 1, "x")])
    days = random.Random(1)
    monkeypatch.setattr(merge, "_today", lambda: day(days.choice([1, 2])))

    def written(half: Sequence[Change]) -> None:
        for batch in cut(half, 4):
            apply(classic, dataset, root, batch)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(written, (changes[::2], changes[1::2])))
    assert stored(dataset, root)[0] == of([row(99, 1, "x"), *changes])


# --- expiry, compaction, restore --------------------------------------------------------------------------------------


def test_maintenance_removes_old_tombstones_which_no_consumer_sees(
    classic: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = remembering("expiring", maintenance=EXPIRY_ALONE)
    schema = StructType([field for field in ROW.fields if field.name in ("k", "a")])
    copy = Dataset(
        name="copy", schema=schema, keys=("k",), write=Merge(delete_when="gone", frame_columns=("gone",)),
        reads=("expiring",), reads_changes_of=("expiring",),
    )  # fmt: skip

    def run() -> bool:
        def compute(changes: SourceChanges) -> DataFrame:
            return changes["expiring"].frame.selectExpr("k", "a", "_change_type = 'delete' AS gone")

        sources = [dataset.at(root)]
        written = consume(classic, copy.at(root), sources=sources, compute=compute, note=note("copy")).written
        return written is not None and written.committed

    end = on(monkeypatch, 1)
    apply(classic, dataset, root, [row(1, 1, "x"), row(2, 1, "x"), row(9, 1, op="d")])
    assert run()
    apply(classic, dataset, root, [row(1, 5, op="d"), row(None, 0, op="t")])
    on(monkeypatch, 2)
    apply(classic, dataset, root, [row(3, 5, op="d")])
    assert run()
    others = [(None, 0), (1, 5), (9, 1)]
    remembered = [(k, seq, f"{'truncation' if k is None else 'deletion'}-2026-01-01") for k, seq in others]
    younger = (3, 5, "deletion-2026-01-02")
    assert stored(dataset, root) == ([(2, 1, "x", None)], ordered([*remembered, younger]))

    optimize(classic, dataset.at(root), note())
    early = end + dt.timedelta(hours=48, seconds=-1)
    assert maintained(classic, dataset, root, early).is_idle
    apply(classic, dataset, root, [row(1, 4, "late")])
    assert stored(dataset, root)[0] == [(2, 1, "x", None)]
    now, before = end + dt.timedelta(hours=48), versions_of(dataset, root)
    dry = maintained(classic, dataset, root, now, apply=False)
    assert (dry.tombstones_expired, versions_of(dataset, root)) == (3, before)
    assert not run()
    done = maintained(classic, dataset, root, now)
    assert (done.tombstones_expired, done.record("run").tombstones_expired, done.is_idle) == (3, 3, False)
    assert stored(dataset, root) == ([(2, 1, "x", None)], [younger])
    commit = read_commit(dataset.location(root), done.sizes.version, ())
    assert (commit.operation, commit.changes_rows, commit.files_added) == ("DELETE", False, 0)
    assert (commit_note(commit.user_metadata) or {})["run_id"] == "run"
    assert maintained(classic, dataset, root, now).is_idle
    assert not run(), "nothing is new for a consumer"
    apply(classic, dataset, root, [row(1, 4, "late"), row(3, 4, "late")])
    assert stored(dataset, root)[0] == [(1, 4, "late", None), (2, 1, "x", None)], "its deletion is forgotten"
    assert run()
    rows = deltalake.DeltaTable(copy.location(root)).to_pyarrow_table().to_pylist()
    assert ordered(tuple(each.values()) for each in rows) == [(1, "late"), (2, "x")]


@pytest.mark.exhaustive
def test_a_restore_takes_rows_and_tombstones_back_together(classic: SparkSession, root: str) -> None:
    dataset = remembering("restored")
    apply(classic, dataset, root, [row(1, 1, "x"), row(2, 9, op="d")])
    apply(classic, dataset, root, [row(1, 5, op="d"), row(None, 3, op="t")])
    plan = plan_restore(classic, dataset.at(root), ReadOptions(version=1))
    restore(classic, dataset, plan, note("restore"))
    assert stored(dataset, root) == ([(1, 1, "x", None)], [(2, 9, f"deletion-{today()}")])
    apply(classic, dataset, root, [row(1, 4, "y"), row(2, 8, "late"), row(3, 2, "z")])
    assert stored(dataset, root)[0] == [(1, 4, "y", None), (3, 2, "z", None)]
    apply(classic, dataset, root, [row(1, 5, op="d"), row(None, 3, op="t")])
    assert stored(dataset, root)[0] == []


# --- tables -----------------------------------------------------------------------------------------------------------


def test_a_table_without_the_column_is_refused_and_another_name_makes_one_with_it(
    classic: SparkSession, root: str
) -> None:
    dataset = remembering("existing")
    forgetful = replace(dataset, write=Merge(changelog=replace(LOG, tombstones=None)))
    apply(classic, forgetful, root, [row(1, 1, "x")])
    with pytest.raises(TableMismatchError) as caught:
        apply(classic, dataset, root, [row(1, 2, op="d")])
    (difference,) = caught.value.differences
    assert "partition column _pipeline_state: the table lacks it" in difference
    assert "declare the dataset under another name" in difference
    other = replace(dataset, name="another")
    apply(classic, other, root, [row(1, 2, op="d")])
    assert stored(other, root) == ([], [(1, 2, f"deletion-{today()}")])
    with pytest.raises(TableMismatchError, match="the table has it"):
        apply(classic, replace(forgetful, name="another"), root, [row(1, 1, "x")])


@pytest.mark.exhaustive
def test_partitions_by_a_key_are_written_one_by_one(classic: SparkSession, root: str) -> None:
    schema = StructType([StructField("day", DateType()), *ROW.fields])
    dataset = remembering("by_key", schema=schema, partition_by=("day",), keys=("day", "k"))

    def apply_daily(number: int, changes: Sequence[Change], within: Slice | None) -> WriteResult:
        return apply(classic, dataset, root, [(day(number), *change) for change in changes], within=within)

    first, second = of_values("day", [day(1)]), of_values("day", [day(2)])
    apply_daily(1, [row(1, 1, "x"), row(2, 5, op="d")], first)
    apply_daily(2, [row(1, 1, "x"), row(2, 1, "x")], second)
    result = apply_daily(1, [row(1, 5, op="d"), row(3, 1, "x")], first)
    assert result.partitions is not None
    assert set(result.partitions) == {("2026-01-01",)}
    apply_daily(1, [row(1, 4, "late"), row(2, 4, "late")], first)
    apply_daily(2, [row(1, 4, "in time")], None)
    with pytest.raises(StrayRowsError):
        apply_daily(1, [row(2, 6, "x")], second)
    with pytest.raises(StrayRowsError) as caught:
        apply_daily(1, [row(None, 4, op="t")], first)
    assert caught.value.counts == {"truncations": 1}
    rows = [(day(1), 3, 1, "x", None), (day(2), 1, 4, "in time", None), (day(2), 2, 1, "x", None)]
    assert stored(dataset, root) == (rows, ordered((k, 5, f"deletion-{today()}") for k in (1, 2)))
    apply_daily(1, [row(None, 4, op="t")], None)
    apply_daily(2, [row(2, 3, "late"), row(3, 4, "in time")], None)
    rows = [(day(2), 1, 4, "in time", None), (day(2), 3, 4, "in time", None)]
    assert stored(dataset, root)[0] == rows


@pytest.mark.exhaustive
def test_a_key_moves_between_partitions_and_stays_deleted_in_all_of_them(classic: SparkSession, root: str) -> None:
    dataset = remembering("moving", partition_by=("a",))
    apply(classic, dataset, root, [row(1, 1, "x"), row(2, 1, "x")])
    apply(classic, dataset, root, [row(1, 2, "y"), row(2, 5, op="d")])
    result = apply(classic, dataset, root, [row(1, 5, op="d"), row(2, 4, "z")])
    assert result.partitions is not None
    assert set(result.partitions) == {("y",)}
    apply(classic, dataset, root, [row(1, 4, "x"), row(1, 3, "z"), row(3, 1, "z")])
    assert stored(dataset, root) == ([(3, 1, "z", None)], ordered((k, 5, f"deletion-{today()}") for k in (1, 2)))


@pytest.mark.exhaustive
def test_columns_may_be_mapped(classic: SparkSession, root: str) -> None:
    """Then the state is under another name in the log."""
    mapped = Features(column_mapping="name")
    dataset = remembering("mapped", partition_by=("a",), features=mapped, maintenance=EXPIRY_ALONE)
    apply(classic, dataset, root, [row(1, 1, "x"), row(2, 1, "x"), row(3, 5, op="d")])
    apply(classic, dataset, root, [row(1, 5, op="d")])
    apply(classic, dataset, root, [row(1, 4, "late"), row(3, 4, "late"), row(2, 4, "y")])
    assert list(map(tuple, read(classic, dataset.at(root)).frame.collect())) == [(2, 4, "y", None)]
    counted = table_rows(dataset.location(root), versions_of(dataset, root)[-1])
    assert (counted is not None and counted.total) == 1
    later = dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=4)
    assert maintained(classic, dataset, root, later).tombstones_expired == 2
    changes = read(classic, dataset.at(root), ReadOptions(changes=Window(first=4, last=4))).frame
    assert changes.collect() == []
    apply(classic, dataset, root, [row(1, 4, "late")])
    assert ordered(map(tuple, read(classic, dataset.at(root)).frame.collect())) == [
        (1, 4, "late", None),
        (2, 4, "y", None),
    ]


@pytest.mark.exhaustive
def test_not_null_columns_checks_and_partitions_are_those_of_rows(classic: SparkSession, root: str) -> None:
    """The deletion of a key that no row can have leaves nothing."""
    fields = [("part", StringType()), ("k", LongType()), ("seq", LongType()), ("kind", StringType()), ("a", DateType())]
    schema = StructType([StructField(name, kind, False) for name, kind in fields])
    dataset = remembering(
        "bound", schema=schema, keys=("part", "k"), partition_by=("part", "kind"),
        checks=(Check("known", "a > DATE'2020-01-01'"),),
    )  # fmt: skip
    apply(classic, dataset, root, [("p", 1, 1, "n", day(1), "u"), ("p", 2, 1, "n", day(1), "u")])
    gone: list[tuple[Any, ...]] = [("p", 1), ("p", 3), ("", 1), ("q", None), (None, 1)]
    apply(classic, dataset, root, [(part, k, 5, None, None, "d") for part, k in gone])
    apply(classic, dataset, root, [(None, None, 0, None, None, "t")])
    late = [("p", 1, 4, "m", day(2), "u"), ("p", 2, 4, "m", day(2), "u"), ("p", 4, 5, None, None, "d")]
    apply(classic, dataset, root, late)
    kept = [(0, 0, f"truncation-{today()}"), *((k, 5, f"deletion-{today()}") for k in (1, 3, 4))]
    assert stored(dataset, root) == ([("p", 2, 4, "m", day(2))], kept)
    assert optimize(classic, dataset.at(root), note()).files_removed == 2
    assert stored(dataset, root) == ([("p", 2, 4, "m", day(2))], kept)


@pytest.mark.exhaustive
def test_the_sequence_may_be_several_columns(classic: SparkSession, root: str) -> None:
    place = StructType([StructField("at", LongType()), StructField("number", LongType())])
    schema = StructType([StructField("k", LongType()), StructField("seq", place), StructField("a", StringType())])
    dataset = remembering("several", schema=schema)

    def change(k: int | None, at: int, number: int, a: str | None, op: str) -> tuple[Any, ...]:
        return (k, {"at": at, "number": number}, a, op)

    def rows() -> list[tuple[Any, ...]]:
        frame = read(classic, dataset.at(root)).frame
        return ordered(map(tuple, frame.selectExpr("k", "seq.at", "seq.number", "a").collect()))

    apply(classic, dataset, root, [change(1, 1, 1, "x", "u"), change(2, 1, 1, "x", "u")])
    apply(classic, dataset, root, [change(1, 1, 5, None, "d")])
    apply(classic, dataset, root, [change(1, 1, 4, "late", "u"), change(2, 1, 2, "y", "u")])
    assert rows() == [(2, 1, 2, "y")]
    apply(classic, dataset, root, [change(None, 2, 1, None, "t")])
    apply(classic, dataset, root, [change(2, 2, 0, "late", "u"), change(1, 2, 1, "new", "u")])
    assert rows() == [(1, 2, 1, "new")]


# --- other ways to write ----------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_a_replace_of_everything_forgets_the_past_and_remembers_the_deletions_of_its_frame(
    classic: SparkSession, root: str
) -> None:
    dataset = remembering("replaced")
    apply(classic, dataset, root, [row(1, 9, op="d"), row(2, 1, "x"), row(None, 1, op="t")])
    changes = [row(1, 5, "x"), row(3, 5, op="d"), row(4, 1, "old"), row(None, 2, op="t")]
    apply(classic, dataset, root, changes, replace_all=True)
    others = [(None, 2, f"truncation-{today()}"), (3, 5, f"deletion-{today()}")]
    assert stored(dataset, root) == ([(1, 5, "x", None)], others)
    apply(classic, dataset, root, [row(3, 4, "late"), row(2, 1, "late")])
    assert stored(dataset, root)[0] == [(1, 5, "x", None)]


@pytest.mark.exhaustive
def test_an_audit_judges_the_rows_without_those_that_are_too_late(classic: SparkSession, root: str) -> None:
    at_most = (Expect("at_most_two", "count(*) <= 2", blocking=True),)
    dataset = remembering("audited", audit="before", expectations=at_most)
    apply(classic, dataset, root, [row(1, 1, "x"), row(2, 1, "x")])
    apply(classic, dataset, root, [row(1, 5, op="d"), row(3, 5, op="d"), row(4, 1, "x")])
    result = apply(classic, dataset, root, [row(1, 4, "late"), row(3, 4, "late"), row(2, 2, "y")])
    assert [one.finding.value for one in result.judged] == ["true over 2 rows"]
    result = apply(classic, dataset, root, [row(None, 2, op="t"), row(5, 1, "late")])
    assert [one.finding.value for one in result.judged] == ["true over 1 row"]
    assert stored(dataset, root)[0] == [(2, 2, "y", None)]
