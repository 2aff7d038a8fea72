"""A process that writes rows which the audit refuses, publishes them, and is killed at a place on the way.

Run as `python -m pipeline_tests.children.auditing REMOTE ROOT KIND PLACE`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Changelog, Dataset, Expect, Merge, Replace
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.maintain import publish as publications
from pipeline.delta.spark.session import open_session
from pipeline.delta.sql.slices import Slice, of_values
from pipeline.delta.write import audit as audit_module
from pipeline.delta.write import write as write_module
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline.errors import AuditError
from pipeline.settings import SparkSettings
from pipeline_tests.delta.sample import frame_in

SCHEMA = StructType(
    [StructField("part", StringType()), StructField("id", LongType()), StructField("amount", LongType())]
)
IN_DEBT = (Expect("no_debt", "sum(amount) >= 0", over="write", blocking=True),)


def _dataset(name: str, **declared: Any) -> Dataset:
    return Dataset(
        name=name, schema=SCHEMA, partition_by=("part",), audit="before", expectations=IN_DEBT, **declared
    )  # fmt: skip


DATASETS = {
    dataset.name: dataset
    for dataset in (
        _dataset("append", write=Append()),
        _dataset("replace", write=Replace()),
        _dataset("merge", keys=("id",), write=Merge()),
        _dataset("changelog", keys=("id",), write=Merge(changelog=Changelog(operation="op", sequence="at"))),
    )
}
FIRST = [("a", 1, 1), ("b", 2, 2)]
REFUSED: dict[str, list[tuple[Any, ...]]] = {
    "append": [("a", 3, -30), ("b", 4, 4)],
    "replace": [("b", 8, -8)],
    "merge": [("b", 2, -20), ("b", 3, 3)],
    "changelog": [("b", 2, -20, "u", 11), ("a", 1, None, "d", 12)],
}


def scope_of(kind: str) -> Slice | None:
    return of_values("part", ["b"]) if kind == "replace" else None


def note_of(name: str, run: str) -> CommitNote:
    return CommitNote(mark=Mark(writer=f"{name}/{run}", epoch=0), run_id=run)


def write_rows(
    session: SparkSession, dataset: Dataset, root: str, rows: Sequence[tuple[Any, ...]], run: str
) -> WriteResult:
    """The write of a run. The columns of a changelog come after the declared ones."""
    more = [StructField("op", StringType()), StructField("at", LongType())]
    schema = StructType([*SCHEMA.fields, *(more if dataset.frame_columns else [])])
    frame = frame_in(session, schema, rows)
    return write(frame, table=dataset.at(root), note=note_of(dataset.name, run), within=scope_of(dataset.name))


def _dies(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _before(module: Any, name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """In place of a function the process ends."""
    return lambda patch: patch.setattr(module, name, _dies)


def _after(module: Any, name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """After a function the process ends."""

    def patched(patch: pytest.MonkeyPatch) -> None:
        real = getattr(module, name)

        def dying(*arguments: Any, **named: Any) -> Any:
            real(*arguments, **named)
            _dies()

        patch.setattr(module, name, dying)

    return patched


# By name: what ends the process there. The first six are on the way of the write, the others on that of a publication.
PLACES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before the judgment": _before(audit_module.Audit, "_judge"),
    "judged": _after(audit_module.Audit, "_judge"),
    "before the rows wait": _before(audit_module.Audit, "_waiting"),
    "waiting rows made": _after(audit_module.Audit, "_waiting"),
    "rejected": _after(audit_module.Audit, "_reject"),
    "the statement of the waiting rows": _before(write_module, "_run"),
    "before the publication": _before(publications, "publish"),
    "publication planned": _after(publications, "_plan"),
    "published, not removed": _before(publications, "discard"),
    "removed": _after(publications, "discard"),
}
# The same for rows that pass.
PASSING = {
    "passed, not committed": _before(write_module, "_run"),
    "passed and committed": _after(write_module, "_run"),
}
PASSES = [("a", 5, 50)]


def main(remote: str, root: str, kind: str, place: str) -> None:
    session = open_session(SparkSettings(master="local[2]", remote=remote, cache=Path(root)))
    dataset = DATASETS[kind]
    (PLACES | PASSING)[place](pytest.MonkeyPatch())
    try:
        write_rows(session, dataset, root, PASSES if place in PASSING else REFUSED[kind], "r1")
    except AuditError as error:
        for plan in publications.plan_publications(session, dataset.at(root), error.run_id):
            publications.publish(session, dataset.at(root), plan.write)


if __name__ == "__main__":
    main(*sys.argv[1:5])
