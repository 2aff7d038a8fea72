"""Tables of delta-rs whose commits are as old as a test wants them to be, without Spark."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.dataset import Append, Dataset, TableRef
from pipeline.delta.log import checkpoints
from pipeline.delta.log.commits import FORMAT
from pipeline.delta.write import transaction

NOW = dt.datetime(2026, 3, 31, 12, tzinfo=dt.timezone.utc)
SCHEMA = StructType([StructField("n", LongType())])
BY_HAND = deltalake.PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class AgedTable:
    """A table with one column `n`. Each commit is given an age in days before `NOW`."""

    def __init__(self, root: Path, name: str = "rows", **declared: Any) -> None:
        dataset = Dataset(name=name, schema=SCHEMA, write=Append(), keys=("n",), **declared)
        self.ref: TableRef = dataset.at(str(root))
        self.log = Path(self.ref.location) / "_delta_log"

    @property
    def location(self) -> str:
        return self.ref.location

    @property
    def table(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self.location)

    @property
    def newest(self) -> int:
        return int(self.table.version())

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
        deltalake.write_deltalake(
            self.location, rows, mode=mode, configuration=feed | dict(properties or {}),
            commit_properties=properties_of(note, epoch), post_commithook_properties=BY_HAND,
        )  # fmt: skip
        return self.age(days)

    def age(self, days: float) -> int:
        """Give the newest commits that have no age yet this one; the newest version."""
        for path in self.log.rglob("*"):
            if path.stat().st_mtime > NOW.timestamp() + 1:
                os.utime(path, (NOW.timestamp() - 86_400 * days,) * 2)
        return self.newest

    def checkpoint(self, version: int | None = None, *, days: float = 0.0, pointed: bool = True) -> None:
        """Write a checkpoint. With `pointed`, `_last_checkpoint` names it."""
        pointer = self.log / "_last_checkpoint"
        before = pointer.read_bytes() if pointer.exists() else None
        deltalake.DeltaTable(self.location, version=version).create_checkpoint()
        if not pointed:
            pointer.unlink() if before is None else pointer.write_bytes(before)
        self.age(days)

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
    checkpoints._STARTS.clear()
    transaction._SEARCHED.clear()
