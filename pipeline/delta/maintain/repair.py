"""The repair of a log, as far as nothing has to be guessed: what readers skip or can do without is removed. No Spark.

Here belong the plan of a repair and its execution. No entry is ever removed or changed. What a repair can't settle has
its remedy in the findings of `doctor`.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pipeline.delta.log.checkpoints import LOG, POINTER, all_files, complete_checkpoints, log_files, version_in_name
from pipeline.delta.log.commits import is_empty_log, remove_empty_log
from pipeline.delta.log.replay import FaultKind, Replay, replay
from pipeline.delta.maintain.health import incomplete_checkpoints, pointer_problem, wrong_checksums
from pipeline.delta.spark.doors import door
from pipeline.delta.storage.file_system import File, local_folder, remove_file
from pipeline.errors import StorageError

_NOT_EMPTY = "another process has begun to write its log"
# A checkpoint with a missing part may be one that another process is writing.
_WRITTEN = dt.timedelta(days=1)
# A log without a commit may be that of a first write that is still writing its files.
_LOADED = dt.timedelta(hours=1)


@dataclass(frozen=True)
class RepairStep:
    """A file of the log, or the log itself, that is removed, with the reason."""

    path: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class RepairPlan:
    """The plan of a repair. `steps` are in their order. If nothing can be repaired, it is empty.

    `checkpoint` is the version of a checkpoint that is written at the end, in place of a removed one; or None.
    """

    dataset: str
    location: str
    steps: tuple[RepairStep, ...] = ()
    checkpoint: int | None = None


@door
def plan_repair(name: str, location: str, *, now: dt.datetime | None = None) -> RepairPlan:
    """The plan of a repair of a table's log. Nothing is changed.

    A damaged checkpoint is removed only if the entries and an older checkpoint have the state of the newest version.

    Args:
        name: the name of the dataset.
        now: the time for the age of an incomplete checkpoint. If None, the present.

    Raises:
        StorageError: the storage can't be read.
    """
    time = now or dt.datetime.now(dt.timezone.utc)
    if is_empty_log(location):
        if _has_young_files(location, time):  # of a first write that has not committed yet
            return RepairPlan(dataset=name, location=location)
        return RepairPlan(
            dataset=name, location=location, steps=(RepairStep(LOG, "it has no entry: a first write was killed"),)
        )
    listed, replayed = all_files(location), replay(location)
    if replayed is None:
        return RepairPlan(dataset=name, location=location)
    damaged = _damaged(replayed)
    incomplete = _incomplete(listed, time - _WRITTEN)
    removed = dict([*_pointer(location, listed, damaged), *_checkpoints(listed, damaged), *incomplete])
    removed |= {file.name: "it can't be parsed" for file in wrong_checksums(location, listed)}
    return RepairPlan(
        dataset=name, location=location, steps=tuple(_steps(removed, {file.name for file in listed})),
        checkpoint=replayed.version if damaged else None,
    )  # fmt: skip


def _has_young_files(location: str, now: dt.datetime) -> bool:
    """Whether a data file was written so recently that its write may still run."""
    limit = (now - _LOADED).timestamp()
    folder = local_folder(location)
    if folder is None:
        return False
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != LOG]
        for name in names:
            with suppress(FileNotFoundError):
                if os.stat(f"{parent}/{name}").st_mtime > limit:
                    return True
    return False


def _steps(removed: Mapping[str, str], present: Container[str]) -> Iterator[RepairStep]:
    """The removal of these files of the log, each with the checksum that Hadoop keeps beside it."""
    for name, reason in removed.items():
        yield from (RepairStep(f"{LOG}/{file}", reason) for file in (name, f".{name}.crc") if file in present)


def _damaged(replayed: Replay) -> dict[int, str]:
    """The damaged checkpoints by version, with their damage. If the state is not known without them, none."""
    if any(fault.hides_files for fault in replayed.faults):
        return {}
    return {fault.version: fault.detail for fault in replayed.faults if fault.kind is FaultKind.CHECKPOINT}


def _pointer(location: str, listed: Sequence[File], damaged: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    """The removal of a wrong pointer. Without it, readers list the log."""
    left = [file for file in listed if version_in_name(file.name) not in damaged or ".checkpoint" not in file.name]
    problem = pointer_problem(location, left)
    if problem is not None:
        yield POINTER, problem


def _checkpoints(listed: Sequence[File], damaged: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    complete = complete_checkpoints(file.name for file in listed)
    for version, reason in sorted(damaged.items()):
        yield from ((name, reason) for name in complete.get(version, ()))


def _incomplete(listed: Sequence[File], before: dt.datetime) -> Iterator[tuple[str, str]]:
    limit = before.timestamp() * 1_000_000_000
    for _, files in sorted(incomplete_checkpoints(listed).items()):
        if all(file.changed_nanoseconds <= limit for file in files):
            yield from ((file.name, "its checkpoint has a missing part") for file in files)


@door
def repair(plan: RepairPlan, write_checkpoint: Callable[[int], object]) -> RepairPlan:
    """Make the steps of a plan, and return it.

    Args:
        write_checkpoint: writes a checkpoint of a version of the table. It is called if the plan has one.

    Raises:
        StorageError: a file can't be removed, or an empty log is no longer empty; the steps before it are made.
    """
    for step in plan.steps:
        if step.path == LOG:
            if not remove_empty_log(plan.location):
                raise StorageError(dataset=plan.dataset, location=plan.location, reason=_NOT_EMPTY)
        else:
            remove_file(f"{plan.location}/{step.path}")
    newest = log_files(plan.location).latest
    if plan.checkpoint is not None and newest is not None:
        write_checkpoint(newest)
    return plan
