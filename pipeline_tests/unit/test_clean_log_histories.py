"""Random histories of a table: after vacuum and clean-up promised versions are as a model says, no verdict changes.

A history is drawn from a seed. The table, two consumers of its changes and a table that it reads itself are written by
delta-rs. Beside them stands a model of the rows of each version.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline.delta.maintain.clean_log import CleanLogPlan, clean_log, plan_clean_log
from pipeline.delta.read.cursors import EffectiveCursors, effective_cursors
from pipeline.delta.read.restores import commits_in_force
from pipeline.delta.read.verdict import VerdictKind, verdict_on
from pipeline.delta.table.open_table import require_table, table_state
from pipeline.delta.write.transaction import incarnation
from pipeline_tests.unit.aged_table import BY_HAND, NO_SESSION, NOW, AgedTable, forget_logs, replays

WRITER = "writer"
OPERATIONS = (
    "append", "append", "append", "write", "write", "repeat", "overwrite", "delete", "restore", "optimize", "vacuum",
    "checkpoint", "checkpoint", "property", "record", "consume", "consume", "read", "batch", "clean", "time", "time",
)  # fmt: skip
# Each of these is left out of half of the histories, since what it needs stays needed.
RARE = ("restore", "batch", "read", "write")
STEPS = 40


@dataclass
class History:
    """The tables and the model of `table`: the rows of each version. The age of commits, in days, only decreases."""

    folder: Path
    choose: random.Random
    days: float = 90.0
    rows: dict[int, list[int]] = field(default_factory=dict)
    next_row: int = 0
    epoch: int = 0
    removals: int = 0
    needed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        left_out = [name for name in RARE if self.choose.random() < 0.5]
        self.operations = [name for name in OPERATIONS if name not in left_out]
        sources = () if "read" in left_out else ("source",)
        self.table = AgedTable(self.folder, "rows", reads=sources, reads_changes_of=sources)
        self.source = AgedTable(self.folder, "source")
        self.consumers = [AgedTable(self.folder, name) for name in ("quick", "slow")][: self.choose.randint(0, 2)]
        self.append()
        if sources:
            self.read()
        for consumer in self.consumers:
            consumer.consume(self.table, 0, days=self.days)

    # --- operations ---------------------------------------------------------------------------------------------------

    def step(self) -> None:
        getattr(self, self.choose.choice(self.operations))()

    def time(self) -> None:
        self.days = max(self.days - self.choose.choice((0.5, 3, 10)), 0.0)

    def grown(self, rows: list[int]) -> None:
        """Note the rows of the newest version, and of those that the operation made before it."""
        newest = self.table.age(self.days)
        for version in range(max(self.rows, default=-1) + 1, newest + 1):
            self.rows[version] = rows

    def current(self) -> list[int]:
        return self.rows[max(self.rows)] if self.rows else []

    def new(self) -> int:
        self.next_row += 1
        return self.next_row

    def append(self, **options: object) -> None:
        row = self.new()
        self.table.append(row, days=self.days, **options)  # type: ignore[arg-type]
        self.grown([*self.current(), row])

    def write(self) -> None:
        """A batch of a writer of ours, under the identifier of the table's incarnation."""
        self.epoch += 1
        forget_logs()
        number = incarnation(NO_SESSION, require_table(None, self.table.ref))
        self.append(epoch=(f"pipeline/{number}/{WRITER}", self.epoch))

    def repeat(self) -> None:
        """The epochs from a random one on are repeated; those that are written are recorded again."""
        if not self.epoch:
            return
        self.epoch = self.choose.randint(0, self.epoch)
        self.write()

    def overwrite(self) -> None:
        row = self.new()
        self.table.append(row, days=self.days, mode="overwrite")
        self.grown([row])

    def delete(self) -> None:
        if self.current():
            row = self.choose.choice(self.current())
            self.table.change(
                lambda table: table.delete(f"n = {row}", post_commithook_properties=BY_HAND), days=self.days
            )
            self.grown([each for each in self.current() if each != row])

    def restore(self) -> None:
        version = self.choose.choice(sorted(self.readable()))
        if version < self.table.newest:
            self.table.restore(version, days=self.days)
            self.grown(self.rows[version])

    def optimize(self) -> None:
        self.table.change(lambda table: table.optimize.compact(post_commithook_properties=BY_HAND), days=self.days)
        self.grown(self.current())

    def vacuum(self) -> None:
        self.table.vacuum(days=self.days)
        self.grown(self.current())

    def checkpoint(self) -> None:
        versions = sorted(self.readable())
        version = self.choose.choice([versions[-1], *versions])
        self.table.checkpoint(version, days=self.days, pointed=version == versions[-1])

    def property(self) -> None:
        self.table.set("any", str(self.new()), days=self.days)
        self.grown(self.current())

    def record(self) -> None:
        """As a checkpoint of ours records the newest restore."""
        forget_logs()
        number = incarnation(NO_SESSION, require_table(None, self.table.ref))
        self.table.set("pipeline.incarnation", str(number), days=self.days)
        self.grown(self.current())

    def consume(self) -> None:
        for consumer in self.consumers:
            if self.choose.random() < 0.6:
                consumer.consume(self.table, self.table.newest, days=self.days)

    def read(self) -> None:
        """The table reads changes of its source, in a commit that appends no row of the model."""
        self.source.append(self.new(), days=self.days)
        row = self.new()
        self.table.consume(self.source, self.source.newest, days=self.days, row=row)
        self.grown([*self.current(), row])

    def batch(self) -> None:
        name = self.choose.choice(("one", "two"))
        note = {"mark": {"writer": name, "epoch": self.new()}, "stream": {"checkpoint": name, "content": None}}
        self.append(note=note)

    # --- the clean-up -------------------------------------------------------------------------------------------------

    def clean(self) -> None:
        """Clean the log up, and compare everything that depends on it with what it was before."""
        plan = self.plan()
        assert plan == self.plan()
        before = self.answers()
        files = self.table.names()
        for name in clean_log(plan, self.table.write_checkpoint).plan.files:
            files.discard(name)
        written = set() if plan.checkpoint is None else {f"{plan.checkpoint:020d}.checkpoint.parquet"}
        assert self.table.names() == files | written
        assert self.answers() == before
        promised = range(plan.readable_from, plan.version + 1)
        assert plan.version in promised
        assert {version: self.table.rows(version) for version in promised} == {
            version: sorted(self.rows[version]) for version in promised
        }
        assert self.plan().files == (), "nothing is left to remove"
        self.removals += bool(plan.files)
        self.needed |= {need.by for need in plan.needed}

    def plan(self) -> CleanLogPlan:
        return plan_clean_log(self.table.ref, consumers=[one.ref for one in self.consumers], now=NOW)

    def answers(self) -> dict[str, object]:
        """What reads, consumers, streams and repeated writes make of the log."""
        forget_logs()
        state = require_table(None, self.table.ref)
        own = effective_cursors(None, state)
        streams: dict[str, int] = {}
        for version, info in commits_in_force(None, self.table.location):
            text = str(info.get("userMetadata"))
            for name in ("one", "two"):
                if f'"checkpoint": "{name}"' in text:
                    streams.setdefault(name, version)
        return {
            "own cursors": (own, own.missing) if own.sources or self.table.ref.dataset.reads_changes_of else None,
            "verdicts": [self.verdict(consumer) for consumer in self.consumers],
            "streams": streams,
            "replays": replays(self.table, WRITER, range(self.epoch + 2)),
        }

    def verdict(self, consumer: AgedTable) -> object:
        in_force: EffectiveCursors = effective_cursors(None, table_state(None, consumer.ref))
        found = verdict_on(None, self.table.ref, in_force.sources.get("rows"), in_force.missing)
        return found.kind if found.kind is VerdictKind.FULL else (found, found.files, found.appended)

    def readable(self) -> set[int]:
        """The versions that the log and the files allow to read."""
        return {*range(self.plan_of_nothing().readable_from, self.table.newest + 1)}

    def plan_of_nothing(self) -> CleanLogPlan:
        return plan_clean_log(self.table.ref, now=NOW.replace(year=2020))


def lived(folder: Path, seed: int) -> History:
    """A history of `STEPS` steps and a clean-up at its end."""
    history = History(folder, random.Random(seed))
    for _ in range(STEPS):
        history.step()
    history.days = 0.0
    history.append()
    history.clean()
    return history


@pytest.mark.parametrize("seed", range(3))
def test_promised_versions_are_readable_and_no_verdict_changes(tmp_path: Path, seed: int) -> None:
    assert lived(tmp_path, seed).rows


@pytest.mark.exhaustive
@pytest.mark.soaked(60)
def test_promised_versions_are_readable_and_no_verdict_changes_in_many_histories(
    tmp_path: Path, soak_seed: int
) -> None:
    assert lived(tmp_path, 1000 + soak_seed).rows


@pytest.mark.exhaustive
def test_the_histories_have_what_they_are_about(tmp_path: Path) -> None:
    """On average each removes something more than once, and every kind of need keeps something."""
    histories = [lived(tmp_path / str(seed), seed) for seed in range(10)]
    assert sum(history.removals for history in histories) > len(histories)
    assert {by for history in histories for by in history.needed} == {
        "consumer", "cursors", "restore", "stream", "rows", "pointer",
    }  # fmt: skip
