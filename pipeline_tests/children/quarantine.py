"""A writer in a process of its own that is killed when its bad rows are in quarantine and its good ones not written.

Run as `python -m pipeline_tests.children.quarantine REMOTE ROOT MODE EPOCH`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Check, Dataset, NotNull, Replace, TableRef, WriteMode
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.spark.session import open_session
from pipeline.delta.table.apply import Applied
from pipeline.delta.write import write as write_module
from pipeline.delta.write.write import write
from pipeline.settings import SparkSettings
from pipeline_tests.delta.sample import frame_of

ROW = StructType(
    [StructField("id", LongType(), False), StructField("amount", LongType()), StructField("code", StringType())]
)


def orders(mode: WriteMode, name: str = "orders") -> Dataset:
    """Orders (id, amount, code): two constraints set rows apart, one drops them."""
    return Dataset(
        name=name,
        schema=ROW,
        keys=("id",),
        write=mode,
        not_null=(NotNull("id", on_violation="quarantine"),),
        checks=(
            Check("positive", "amount > 0", on_violation="quarantine"),
            Check("known", "code IN ('a', 'b')", on_violation="drop"),
        ),
        change_feed=False,
    )


ORDERS = {"append": orders(Append(), "appended"), "replace": orders(Replace(), "replaced")}


def batch_of(epoch: int) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The good and the bad rows of a batch."""
    return [(epoch, 1, "a"), (epoch + 1, 2, "b")], [(epoch + 2, -1, "a"), (None, 1, "b")]


def main(remote: str, root: str, mode: str, epoch: int) -> None:
    session = open_session(SparkSettings(master="local[2]", remote=remote, cache=Path(root)))
    dataset = ORDERS[mode]
    real = write_module._run

    def run(statement: str, frame: Any, to: TableRef, opened: Applied, **arguments: Any) -> Any:
        if to.dataset is dataset:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(statement, frame, to, opened, **arguments)

    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(write_module, "_run", run)
    good, bad = batch_of(epoch)
    note = CommitNote(mark=Mark(writer="child", epoch=epoch))
    write(frame_of(session, dataset, good + bad), table=dataset.at(root), note=note)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
