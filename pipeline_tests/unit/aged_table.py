"""Tables of delta-rs whose commits are as old as a test wants them to be, without Spark."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.dataset import Append, Dataset, TableRef
from pipeline.delta.log.commits import FORMAT
from pipeline.delta.log.mark import Mark
from pipeline.delta.log.snapshot import transaction_version
from pipeline.delta.table.open_table import require_table
from pipeline.delta.write import transaction
from pipeline.delta.write.transaction import Identifier, Written, identifier

NOW = dt.datetime(2026, 3, 31, 12, tzinfo=dt.timezone.utc)
SCHEMA = StructType([StructField("n", LongType())])


class NoSession:
    """In the place of a session of which nothing is asked: what is remembered of logs is remembered by session."""


NO_SESSION: Any = NoSession()
BY_HAND = deltalake.PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class AgedTable:
    """A table with one column `n`. Each commit is given an age in days before `NOW`."""

    def __init__(self, root: Path, name: str = "rows", **declared: Any) -> None:
        dataset = Dataset(name=name, schema=SCHEMA, write=Append(), keys=("n",), **declared)
        self.ref: TableRef = dataset.at(str(root))
        self.log = Path(self.ref.location) / "_delta_log"
        self._aged = self._times()

    @property
    def location(self) -> str:
        return self.ref.location

    @property
    def table(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self.location)

    @property
    def newest(self) -> int:
        return max(self.entries())

    def append(
        self, *numbers: int, days: float, note: Mapping[str, Any] | None = None, epoch: tuple[str, int] | None = None,
        mode: Any = "append", properties: Mapping[str, str] | None = None,
    ) -> int:  # fmt: skip
        """Append rows, or replace all by mode `overwrite`; the version of the commit.

        Args:
            note: our note in the commit.
            epoch: a transaction identifier.
            properties: the properties of a new table, with its change feed.
        """
        rows = pa.table({"n": pa.array(list(numbers), pa.int64())})
        feed = {"delta.enableChangeDataFeed": "true"}
        with self._young():
            deltalake.write_deltalake(
                self.location, rows, mode=mode, configuration=feed | dict(properties or {}),
                commit_properties=properties_of(note, epoch), post_commithook_properties=BY_HAND,
            )  # fmt: skip
        return self.age(days)

    def consume(self, source: AgedTable, version: int, *, days: float, read_at: int | None = None, row: int = 1) -> int:
        """A commit of a consumer that has read a source up to a version; the version of the commit.

        Args:
            read_at: the version of the consumer at which it read its cursors. If None, the newest.
        """
        before = self.newest if self.log.exists() else -1
        cursor = {"table_id": require_table(None, source.ref).table_id, "version": version, "entry": None}
        cursors = {
            "number": before + 1, "read_at": before if read_at is None else read_at,
            "sources": {source.ref.name: cursor},
        }  # fmt: skip
        return self.append(row, days=days, note={"mark": {}, "cursors": cursors})

    def age(self, days: float) -> int:
        """Give the files of the log that are new or changed since the last call this age; the newest version."""
        for path, _ in self._times() - self._aged:
            os.utime(path, (NOW.timestamp() - 86_400 * days,) * 2)
        self._aged = self._times()
        return self.newest

    def _times(self) -> set[tuple[Path, int]]:
        return {(path, path.stat().st_mtime_ns) for path in self.log.rglob("*") if path.is_file()}

    def checkpoint(self, version: int | None = None, *, days: float = 0.0, pointed: bool = True) -> None:
        """Write a checkpoint. With `pointed`, `_last_checkpoint` names it."""
        pointer = self.log / "_last_checkpoint"
        before = pointer.read_bytes() if pointer.exists() else None
        with self._young():
            deltalake.DeltaTable(self.location, version=version).create_checkpoint()
        if not pointed:
            pointer.unlink(missing_ok=True) if before is None else pointer.write_bytes(before)
        self.age(days)

    def change(self, call: Callable[[deltalake.DeltaTable], object], *, days: float) -> int:
        """Change the table by a call of delta-rs; the newest version."""
        with self._young():
            call(self.table)
        return self.age(days)

    def set(self, name: str, value: str, *, days: float) -> int:
        """Set a property; the version of the commit."""
        return self.change(
            lambda table: table.alter.set_table_properties(
                {name: value}, raise_if_not_exists=False, post_commithook_properties=BY_HAND
            ),
            days=days,
        )

    def restore(self, version: int, *, days: float) -> int:
        """Restore a version; the version of the commit."""
        return self.change(lambda table: table.restore(version, post_commithook_properties=BY_HAND), days=days)

    def vacuum(self, *, days: float) -> int:
        """Remove all files that the newest version does not have; the newest version after it."""
        return self.change(
            lambda table: table.vacuum(
                retention_hours=0, enforce_retention_duration=False, dry_run=False, post_commithook_properties=BY_HAND
            ),
            days=days,
        )

    @contextmanager
    def _young(self) -> Iterator[None]:
        """During the block all files are new. Otherwise delta-rs itself would clean the log up."""
        times = self._times()
        for path, _ in times:
            os.utime(path)
        yield
        for path, time in times:
            os.utime(path, ns=(time, time))

    def write_checkpoint(self, version: int) -> None:
        """As a clean-up has it written."""
        self.checkpoint(version, pointed=False)

    def rows(self, version: int | None = None) -> list[int]:
        table = deltalake.DeltaTable(self.location, version=version).to_pyarrow_table()
        return sorted(table.column("n").to_pylist())

    def entries(self) -> list[int]:
        """The versions that have an entry."""
        return sorted(int(path.stem) for path in self.log.glob("*.json") if path.stem.isdigit())

    def names(self) -> set[str]:
        """The files of the log, below its folder."""
        return {str(path.relative_to(self.log)) for path in self.log.rglob("*") if path.is_file()}

    def edit(self, version: int, **changed: Mapping[str, Any]) -> None:
        """Change fields of an entry's actions by the kind of the action. The entry keeps its time."""
        path = self.log / f"{version:020d}.json"
        time = path.stat().st_mtime
        actions = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for action in actions:
            for kind, fields in changed.items():
                if kind in action:
                    action[kind] |= fields
        path.write_text("".join(f"{json.dumps(action)}\n" for action in actions), encoding="utf-8")
        os.utime(path, (time,) * 2)


def aged(root: Path, days: Iterable[float], **options: Any) -> AgedTable:
    """A table with a row and a commit for each of these ages; version n has the rows 0 to n."""
    table = AgedTable(root)
    for number, age in enumerate(days):
        table.append(number, days=age, **options)
    return table


def properties_of(note: Mapping[str, Any] | None, epoch: tuple[str, int] | None) -> deltalake.CommitProperties:
    """The properties of a commit with our note and a transaction identifier."""
    text = {} if note is None else {"userMetadata": json.dumps({"pipeline": FORMAT} | dict(note))}
    identifiers = [] if epoch is None else [deltalake.Transaction(*epoch)]
    return deltalake.CommitProperties(custom_metadata=text, app_transactions=identifiers)


def forget_logs() -> None:
    """As in another process, which remembers nothing of a log."""
    transaction._SEARCHED.clear()


def replays(table: AgedTable, writer: str, epochs: range) -> list[str]:
    """What becomes of a repeat of each of these epochs: whether it is skipped or written, and by which identifier."""
    forget_logs()
    state = require_table(None, table.ref)
    answers = []
    for epoch in epochs:
        guard = identifier(NO_SESSION, state, Mark(writer=writer, epoch=epoch))
        if isinstance(guard, Identifier):
            recorded = transaction_version(table.location, state.version, guard.app_id)
            is_skipped = recorded is not None and recorded >= guard.version
            answers.append(f"{'skipped' if is_skipped else 'written'} {guard.app_id}")
        else:
            assert isinstance(guard, Written)
            answers.append("in the table")
    return answers
