"""Consumers of changes in Dagster: what a step has read as changes waits here until its output is written.

Here belong who is a consumer and of what, the readings that are held, and the step that must be run again since another
run of its asset was first. What changes are, and how they are committed with their cursors, is `pipeline.delta`'s.
"""

from __future__ import annotations

import atexit
import random
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from dagster import (
    AssetKey,
    Field,
    HookContext,
    PartitionsDefinition,
    RetryRequested,
    StepExecutionContext,
    failure_hook,
)
from pyspark.sql import SparkSession

from pipeline.dataset import Dataset
from pipeline.delta.log.retry import RetryPolicy
from pipeline.delta.read.changes import SourceTable
from pipeline.delta.write.consume import Reading, read_sources
from pipeline.errors import CommitConflictError, DeclarationError, SettingsError
from pipeline.orchestration.metadata import declared_dataset
from pipeline.orchestration.metadata_keys import FULL_REFRESH

# The field in the configuration of one consumer's op that does what the tag `FULL_REFRESH` does for a run.
REFRESH_FIELD = "full_refresh"
REFRESH_CONFIG = {REFRESH_FIELD: Field(bool, default_value=False, description="Whether the table is made anew.")}
_RETRY = RetryPolicy()


@dataclass(frozen=True)
class _Held:
    attempt: int
    reading: Reading
    frames: ExitStack


# By run and step: what it has read as changes and not written yet. It is the process's, since a step may read through
# one IO manager and write through another.
_HELD: dict[tuple[str, str], _Held] = {}
# What steps have left that are gone: a run which raises in its caller's process calls no hook. It is let go of by the
# next step that reads, since a finalizer may come in the midst of a call into the JVM.
_LEFT: list[_Held] = []


def refuse_partitions(dataset: Dataset, partitions_def: PartitionsDefinition[str] | None) -> None:
    """Refuse a consumer that is partitioned in Dagster.

    Raises:
        DeclarationError: it is. Its cursors are the table's: a run of one partition would move them past the changes of
            all others, which would be lost.
    """
    if dataset.reads_changes_of and partitions_def is not None:
        problem = (
            "it reads changes and its asset is partitioned: a run of one partition would move the cursors past the "
            "changes of all others; leave the asset without partitions, its table may have them"
        )
        raise DeclarationError(dataset=dataset.name, problems=(problem,))


def consumer_of(step: StepExecutionContext | None) -> Dataset | None:
    """The dataset of a step's asset where it reads changes.

    Raises:
        DeclarationError: the asset is partitioned, or the step has several.
    """
    assets_def = None if step is None else step.assets_def
    if assets_def is None:
        return None
    found = [declared_dataset(spec.key, spec.metadata) for spec in assets_def.specs]
    consumers = [dataset for dataset in found if dataset is not None and dataset.reads_changes_of]
    if not consumers:
        return None
    refuse_partitions(consumers[0], assets_def.partitions_def)
    if len(found) > 1:
        raise DeclarationError(dataset=consumers[0].name, problems=(ONE_OUTPUT,))
    return consumers[0]


ONE_OUTPUT = "it reads changes, and its asset has further outputs, which cursors in its commit say nothing of"


def sources_of(step: StepExecutionContext, consumer: Dataset) -> dict[str, AssetKey]:
    """By the names in `reads_changes_of`, the assets that the step's parameters take.

    Raises:
        DeclarationError: no parameter takes one of them, so that its changes would be passed over.
    """
    assert step.assets_def is not None  # noqa: S101  a consumer's step has one
    keys = list(step.assets_def.keys_by_input_name.values())
    found = {name: _key_of(name, keys) for name in consumer.reads_changes_of}
    missing = tuple(f"no parameter takes the changes of {name}" for name, key in found.items() if key is None)
    if missing:
        raise DeclarationError(dataset=consumer.name, problems=missing)
    return {name: key for name, key in found.items() if key is not None}


def _key_of(name: str, keys: Iterable[AssetKey]) -> AssetKey | None:
    """The asset of a declared name, which its key may carry a prefix before."""
    path = name.split("/")
    alike = sorted((key for key in keys if list(key.path[-len(path) :]) == path), key=lambda key: len(key.path))
    return alike[0] if alike else None


def read_changes(
    session: SparkSession, step: StepExecutionContext, consumer: Dataset, location: str, sources: Iterable[SourceTable]
) -> Reading:
    """What has changed for this try of a step: read once, then held until `written_changes` or `release_step`."""
    _release_left()
    place = (step.run_id, step.step.key)
    attempt = step.previous_attempt_count + 1
    held = _HELD.get(place)
    if held is None or held.attempt != attempt:
        # Steps of one run follow each other in a process: what another has left was never written.
        for left in [other for other in list(_HELD) if other[0] == step.run_id]:
            release_step(*left)
        with ExitStack() as frames:
            wanted = _is_full_refresh(step)
            found = frames.enter_context(read_sources(session, consumer, location, tuple(sources), full_refresh=wanted))
            held = _HELD[place] = _Held(attempt, found, frames.pop_all())
        # Not in the interpreter's last moments, when nothing can be called any more: `_release_all` comes before.
        weakref.finalize(step, _leave, place, held).atexit = False
        atexit.unregister(_release_all)
        atexit.register(_release_all)
    return held.reading


def _is_full_refresh(step: StepExecutionContext) -> bool:
    """Whether the run's tag, or the configuration of the step's op, asks for a full refresh.

    Raises:
        SettingsError: the tag is neither true nor false.
    """
    config = step.op_config
    if isinstance(config, Mapping) and config.get(REFRESH_FIELD) is True:
        return True
    said = step.dagster_run.tags.get(FULL_REFRESH, "false")
    if said not in ("true", "false"):
        raise SettingsError(setting=f"run tag {FULL_REFRESH}", problem=f"got {said!r}", expected="true or false")
    return said == "true"


@contextmanager
def written_changes(step: StepExecutionContext | None, dataset: Dataset) -> Iterator[Reading | None]:
    """What the step has read as changes, let go of once the block ends; None for a dataset that is no consumer.

    A run that another run of the consumer has overtaken is asked to try the step again, since its frame is made of what
    has been consumed by now.

    Raises:
        RetryRequested: the step is to be run again.
        DeclarationError: a consumer is written of which nothing was read.
    """
    if not dataset.reads_changes_of:
        yield None
        return
    held = None if step is None else _HELD.get((step.run_id, step.step.key))
    if step is None or held is None:
        raise DeclarationError(dataset=dataset.name, problems=("it reads changes, and none were loaded in this step",))
    try:
        yield held.reading
    except CommitConflictError as error:
        wait = _RETRY.wait_seconds(held.attempt, 0.0, random.random())  # noqa: S311
        if wait is None or step.retry_mode.disabled:
            raise
        raise RetryRequested(max_retries=_RETRY.attempts - 1, seconds_to_wait=wait) from error
    finally:
        release_step(step.run_id, step.step.key)


def release_step(run_id: str, step_key: str) -> None:
    """Let go of what a step has read as changes."""
    held = _HELD.pop((run_id, step_key), None)
    if held is not None:
        held.frames.close()


def _leave(place: tuple[str, str], held: _Held) -> None:
    """Mark what a step that is gone has read; nothing where it was let go of, or read anew by another try."""
    if _HELD.get(place) is held:
        _LEFT.append(_HELD.pop(place))


def _release_left() -> None:
    """Let go of what steps that are gone have left."""
    while _LEFT:
        _LEFT.pop().frames.close()


def _release_all() -> None:
    """Let go of everything while the interpreter still can."""
    for place in list(_HELD):
        release_step(*place)
    _release_left()


@failure_hook(name="release_changes")
def release_changes(context: HookContext) -> None:
    """Let go of the changes that a failed step had read."""
    release_step(context.run_id, context.step_key)
