"""Random histories of a source against an incremental consumer: after every run its table is what a recompute gives.

A history is drawn from a seed. Beside the tables stands a model of what each operation means for the feed, which says
which verdicts are right; where an operation may or may not have touched a file, more than one is.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import deltalake
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset, Merge, TableRef
from pipeline.delta.maintain.restore import plan_restore, restore
from pipeline.delta.read.changes import SourceChanges
from pipeline.delta.read.verdict import Reason, VerdictKind
from pipeline.delta.read.version import ReadOptions
from pipeline.delta.table.open_table import open_or_create
from pipeline.delta.write.consume import consume
from pipeline_tests.delta.sample import note, ordered, rows_of
from pipeline_tests.tiers import first_is_quick

ROWS = StructType([StructField("id", LongType(), False), StructField("text", StringType())])
SOURCE = Dataset(name="source", schema=ROWS, write=Append(), keys=("id",))
CONSUMER = Dataset(
    name="consumer", schema=ROWS, keys=("id",), reads=("source",), reads_changes_of=("source",),
    full_without_feed=True,
    write=Merge(delete_when="_change_type = 'delete'", frame_columns=("_change_type",)),
)  # fmt: skip
OPERATIONS = (
    "append", "append", "replace", "merge", "merge", "delete", "restore", "restore_consumer", "optimize", "vacuum",
    "feed", "column", "recreate", "nothing",
)  # fmt: skip
NOTHING, CHANGES = VerdictKind.NOTHING_NEW, VerdictKind.CHANGES
Expected = VerdictKind | Reason


@dataclass(frozen=True)
class Made:
    """A version of the source: whether its commit changed rows (None: perhaps), and what held after it."""

    changed: bool | None
    only_adds: bool = False
    feed_on: bool = True
    columns: frozenset[str] = frozenset()
    gone: bool | None = False


@dataclass
class History:
    """The tables, and the model beside them; a cursor is (life of the table, version)."""

    session: SparkSession
    root: str
    draw: random.Random
    life: int = 0
    made: list[Made] = field(default_factory=list)
    kept_from: int = 0
    cursors: list[tuple[int, int] | None] = field(default_factory=list)

    @property
    def location(self) -> str:
        return SOURCE.location(self.root)

    def sql(self, statement: str) -> None:
        self.session.sql(statement.format(t=f"delta.`{self.location}`")).collect()

    def values(self, ids: list[int]) -> str:
        return ", ".join(f"({number}, '{self.draw.choice('abc')}')" for number in ids)

    def some(self, count: int = 3) -> list[int]:
        return self.draw.sample(range(12), count)

    def step(self, operation: str) -> None:
        before = rows_of(SOURCE, self.root) if self.made else []
        last = self.made[-1] if self.made else Made(None)
        life = self.life
        changes = getattr(self, f"_{operation}")(last)
        if changes is None:
            return
        new = deltalake.DeltaTable(self.location).version() + 1 - len(self.made)
        if new:
            columns = self._trimmed(rows_of(SOURCE, self.root)) != self._trimmed(before)
            changed = True if columns or life != self.life else (None if changes.changed else False)
            self.made += [replace(changes, changed=False)] * (new - 1) + [replace(changes, changed=changed)]

    @staticmethod
    def _trimmed(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
        return [row[:2] for row in rows]

    def _append(self, last: Made) -> Made:
        there = {row[0] for row in rows_of(SOURCE, self.root)}
        fresh = [number for number in self.some() if number not in there] or [100 + len(self.made) + 1000 * self.life]
        self.sql(f"INSERT INTO {{t}} (id, text) VALUES {self.values(fresh)}")
        return replace(last, changed=True, only_adds=True, gone=False)

    def _replace(self, last: Made) -> Made:
        start = self.draw.randrange(8)
        rows = self.values(self.draw.sample(range(start, start + 4), 2))
        frame = self.session.sql(f"SELECT * FROM VALUES {rows} AS v(id, text)").selectExpr(
            "CAST(id AS LONG) id", "text"
        )
        slice_ = f"id >= {start} AND id < {start + 4}"
        frame.write.format("delta").mode("overwrite").option("replaceWhere", slice_).save(self.location)
        return replace(last, changed=True, only_adds=False, gone=False)

    def _merge(self, last: Made) -> Made:
        self.sql(
            f"MERGE INTO {{t}} AS t USING (SELECT * FROM VALUES {self.values(self.some(4))} AS v(id, text)) AS s "
            "ON t.id = s.id WHEN MATCHED AND s.text = 'c' THEN DELETE WHEN MATCHED THEN UPDATE SET t.text = s.text "
            "WHEN NOT MATCHED THEN INSERT (id, text) VALUES (s.id, s.text)"
        )
        return replace(last, changed=True, only_adds=False, gone=False)

    def _delete(self, last: Made) -> Made:
        self.sql(f"DELETE FROM {{t}} WHERE id % 3 = {self.draw.randrange(3)}")
        return replace(last, changed=True, only_adds=False, gone=False)

    def _restore(self, last: Made) -> Made:
        target = self.draw.randrange(self.kept_from, len(self.made))
        self.sql(f"RESTORE TABLE {{t}} TO VERSION AS OF {target}")
        then = self.made[target]
        return replace(last, changed=True, only_adds=False, gone=False, feed_on=then.feed_on, columns=then.columns)

    def _restore_consumer(self, last: Made) -> None:
        if len(self.cursors) > 1:
            location = CONSUMER.location(self.root)
            target = self.draw.randrange(len(self.cursors) - 1)
            plan = plan_restore(self.session, TableRef(CONSUMER, location), ReadOptions(version=target))
            restore(self.session, CONSUMER, plan, note("restore"))
            self._note_cursor(self.cursors[target], between=self.cursors[target])

    def _optimize(self, last: Made) -> Made:
        self.sql("OPTIMIZE {t}")
        return replace(last, changed=False, only_adds=False, gone=False)

    def _vacuum(self, last: Made) -> Made:
        self.session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        try:
            self.sql("VACUUM {t} RETAIN 0 HOURS")
        finally:
            self.session.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
        # The files of an append are gone if something has written them again since.
        self.made = [
            replace(made, gone=(None if made.only_adds and made.gone is not True else True))
            if any(not later.only_adds for later in self.made[number + 1 :]) or not made.only_adds
            else made
            for number, made in enumerate(self.made)
        ]
        self.kept_from = len(self.made) - 1
        return replace(last, changed=False, only_adds=False, gone=False)

    def _feed(self, last: Made) -> Made:
        self.sql(
            f"ALTER TABLE {{t}} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = '{str(not last.feed_on).lower()}')"
        )
        return replace(last, changed=False, feed_on=not last.feed_on, only_adds=False, gone=False)

    def _column(self, last: Made) -> Made:
        name = f"more{len(self.made)}"
        self.sql(f"ALTER TABLE {{t}} ADD COLUMN {name} STRING")
        return replace(last, changed=False, columns=last.columns | {name}, only_adds=False, gone=False)

    def _recreate(self, last: Made) -> Made:
        shutil.rmtree(self.location, ignore_errors=True)
        self.life, self.made, self.kept_from = self.life + 1, [], 0
        open_or_create(self.session, TableRef(SOURCE, self.location))
        self.sql(f"INSERT INTO {{t}} VALUES {self.values(self.some(5))}")
        return Made(True, only_adds=True)

    def _nothing(self, last: Made) -> None:
        """An empty window."""

    def _note_cursor(self, found: tuple[int, int] | None, *, between: tuple[int, int] | None) -> None:
        """What is in force in the consumer's newest version, and in those since the last note."""
        new = deltalake.DeltaTable(CONSUMER.location(self.root)).version() + 1 - len(self.cursors)
        self.cursors += [between] * (new - 1) + [found]

    # --- what is expected ---------------------------------------------------------------------------------------------

    def expected(self) -> set[Expected]:
        found = self.cursors[-1] if self.cursors else None
        if found is None:
            return {Reason.CONSUMER_RESTORED if self.cursors else Reason.FIRST_RUN}
        life, version = found
        if life != self.life:
            return {Reason.RECREATED}
        window = self.made[version + 1 :]
        if any(not made.columns <= self.made[-1].columns for made in self.made[version:]):
            return {Reason.SCHEMA_CHANGED}
        surely = [number for number, made in enumerate(window) if made.changed]
        perhaps = [number for number, made in enumerate(window) if made.changed is not False]
        return self._of(window, surely) | self._of(window, perhaps)

    @staticmethod
    def _of(window: list[Made], changing: list[int]) -> set[Expected]:
        if not changing:
            return {NOTHING}
        if any(not made.feed_on for made in window[changing[0] : changing[-1] + 1]):
            return {Reason.FEED_OFF}
        gone = [window[number].gone for number in changing]
        if True in gone:
            return {Reason.CHANGE_FILES_GONE}
        return {CHANGES} if None not in gone else {CHANGES, Reason.CHANGE_FILES_GONE}

    # --- the consumer -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        expected = self.expected()

        def compute(changes: SourceChanges) -> DataFrame:
            return changes["source"].frame.select("id", "text", "_change_type")

        sources = [TableRef(SOURCE, self.location)]
        done = consume(
            self.session, CONSUMER.at(self.root), sources=sources, compute=compute,
            note=note("consumer"),
        )  # fmt: skip
        verdict = done.verdicts["source"]
        assert (verdict.reason or verdict.kind) in expected
        assert (done.written is None) == (verdict.kind is NOTHING)
        assert rows_of(CONSUMER, self.root) == self._trimmed(ordered(rows_of(SOURCE, self.root)))
        if done.written is not None:
            before = self.cursors[-1] if self.cursors else None
            self._note_cursor((self.life, len(self.made) - 1), between=before)


def play(session: SparkSession, root: str, seed: int, operations: Sequence[str] | None = None) -> None:
    """A table with rows, the operations one after the other, and runs of the consumer in between; four are drawn."""
    history = History(session, root, random.Random(seed))
    history.step("recreate")
    history.run()
    steps = 4 if operations is None else len(operations)
    for number in range(steps):
        history.step(history.draw.choice(OPERATIONS) if operations is None else operations[number])
        if operations is not None or history.draw.random() < 0.7 or number == steps - 1:
            history.run()


@pytest.mark.parametrize(
    "operations",
    first_is_quick(
        [
            pytest.param(("merge", "restore_consumer", "delete", "optimize", "nothing")),
            pytest.param(("column", "feed", "append", "feed", "recreate")),
            pytest.param(("append", "replace", "restore", "vacuum")),
        ],
    ),
    ids=", ".join,
)
def test_a_consumer_follows_each_operation(classic: SparkSession, root: str, operations: tuple[str, ...]) -> None:
    play(classic, root, 1, operations)


@pytest.mark.exhaustive
@pytest.mark.soaked(40)
def test_a_consumer_follows_any_history(classic: SparkSession, root: str, soak_seed: int) -> None:
    play(classic, root, 1 + soak_seed)
