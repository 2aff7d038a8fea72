"""Consumers of changes in Dagster: the changes that a step has read are kept here until its output is written.

Here belong the recognition of consumers and their sources, the readings that are kept, and the retry of a step after
another run of its asset has committed first. The changes themselves, and their commit with the cursors, belong to
`pipeline.delta`.
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

from pipeline.dataset import Dataset, TableRef
from pipeline.delta.log.retry import RetryPolicy
from pipeline.delta.write.consume import Reading, read_sources
from pipeline.errors import CommitConflictError, DeclarationError, SettingsError
from pipeline.orchestration.io.pins import pinned_changes
from pipeline.orchestration.metadata import declared_dataset
from pipeline.orchestration.metadata_keys import FULL_REFRESH

# The field in the configuration of one consumer's op with the same effect as the tag `FULL_REFRESH` of a run.
REFRESH_FIELD = "full_refresh"
REFRESH_CONFIG = {REFRESH_FIELD: Field(bool, default_value=False, description="Read everything and replace the table.")}
_RETRY = RetryPolicy()


@dataclass(frozen=True)
class _KeptReading:
    attempt: int
    reading: Reading
    frames: ExitStack


class SessionReadings:
    """The changes that steps have read in one Spark session and not written yet, by run and step.

    `abandoned` are those of steps that no longer exist: a run that raises in its caller's process calls no hook. The
    next step that reads releases them, because a finalizer may run during a call into the JVM.
    """

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], _KeptReading] = {}
        self.abandoned: list[_KeptReading] = []

    def release(self, step_id: tuple[str, str]) -> None:
        """Release the changes that a step has read."""
        kept = self.kept.pop(step_id, None)
        if kept is not None:
            kept.frames.close()

    def abandon(self, step_id: tuple[str, str], kept: _KeptReading) -> None:
        """Mark the reading of a step that no longer exists, unless it was released or replaced by another attempt's."""
        if self.kept.get(step_id) is kept:
            self.abandoned.append(self.kept.pop(step_id))

    def release_abandoned(self) -> None:
        """Release the readings of steps that no longer exist."""
        while self.abandoned:
            self.abandoned.pop().frames.close()


# They belong to the session and not to an IO manager: a step may read through one and write through another.
READINGS: weakref.WeakKeyDictionary[SparkSession, SessionReadings] = weakref.WeakKeyDictionary()


def refuse_partitions(dataset: Dataset, partitions_def: PartitionsDefinition[str] | None) -> None:
    """Refuse a consumer that is partitioned in Dagster.

    Raises:
        DeclarationError: the consumer is partitioned. The cursors belong to the table: a run of one partition would
            move them past the changes of all other partitions, which would be lost.
    """
    if dataset.reads_changes_of and partitions_def is not None:
        problem = (
            "it reads changes and its asset is partitioned: a run of one partition would move the cursors past the "
            "changes of all others; leave the asset without partitions, its table may have them"
        )
        raise DeclarationError(dataset=dataset.name, problems=(problem,))


def consumer_of(step: StepExecutionContext | None) -> Dataset | None:
    """The dataset of a step's asset, if it reads changes; otherwise None.

    Raises:
        DeclarationError: the asset is partitioned, or the step has several assets.
    """
    assets_def = None if step is None else step.assets_def
    if assets_def is None:
        return None
    datasets = [declared_dataset(spec.key, spec.metadata) for spec in assets_def.specs]
    consumers = [dataset for dataset in datasets if dataset is not None and dataset.reads_changes_of]
    if not consumers:
        return None
    refuse_partitions(consumers[0], assets_def.partitions_def)
    if len(datasets) > 1:
        raise DeclarationError(dataset=consumers[0].name, problems=(ONE_OUTPUT,))
    return consumers[0]


ONE_OUTPUT = "it reads changes, and its asset has further outputs, which the cursors in its commit don't cover"


def sources_of(step: StepExecutionContext, consumer: Dataset) -> dict[str, AssetKey]:
    """By the names in `reads_changes_of`, the assets of the step's parameters.

    Raises:
        DeclarationError: a source has no parameter, so that its changes would be skipped.
    """
    assert step.assets_def is not None  # noqa: S101  a consumer's step has one
    keys = list(step.assets_def.keys_by_input_name.values())
    by_name = {name: _key_of(name, keys) for name in consumer.reads_changes_of}
    missing = tuple(f"no parameter takes the changes of {name}" for name, key in by_name.items() if key is None)
    if missing:
        raise DeclarationError(dataset=consumer.name, problems=missing)
    return {name: key for name, key in by_name.items() if key is not None}


def _key_of(name: str, keys: Iterable[AssetKey]) -> AssetKey | None:
    """The asset of a declared name. Its key may have a prefix before the name; the shortest key is chosen."""
    path = name.split("/")
    candidates = sorted((key for key in keys if list(key.path[-len(path) :]) == path), key=lambda key: len(key.path))
    return candidates[0] if candidates else None


def read_changes(
    session: SparkSession, step: StepExecutionContext, consumer: TableRef, sources: Iterable[TableRef]
) -> Reading:
    """The changes for this attempt of a step: read once, then kept until `written_changes` or `release_step`."""
    readings = READINGS.setdefault(session, SessionReadings())
    readings.release_abandoned()
    step_id = (step.run_id, step.step.key)
    attempt = step.previous_attempt_count + 1
    kept = readings.kept.get(step_id)
    if kept is None or kept.attempt != attempt:
        # The steps of one run follow each other in a process: a reading of another step was never written.
        for other in [key for key in readings.kept if key[0] == step.run_id]:
            readings.release(other)
        with ExitStack() as frames:
            full, pins = _is_full_refresh(step), pinned_changes(consumer.dataset)
            reading = frames.enter_context(
                read_sources(session, consumer, tuple(sources), full_refresh=full, pinned=pins)
            )
            kept = readings.kept[step_id] = _KeptReading(attempt, reading, frames.pop_all())
        # Not at the exit of the interpreter, when nothing can be called any more: `_release_all` runs before.
        weakref.finalize(step, readings.abandon, step_id, kept).atexit = False
        atexit.unregister(_release_all)
        atexit.register(_release_all)
    return kept.reading


def _is_full_refresh(step: StepExecutionContext) -> bool:
    """Whether the run's tag or the configuration of the step's op requests a full refresh.

    Raises:
        SettingsError: the tag is neither true nor false.
    """
    config = step.op_config
    if isinstance(config, Mapping) and config.get(REFRESH_FIELD) is True:
        return True
    tag = step.dagster_run.tags.get(FULL_REFRESH, "false")
    if tag not in ("true", "false"):
        raise SettingsError(setting=f"run tag {FULL_REFRESH}", problem=f"got {tag!r}", expected="true or false")
    return tag == "true"


@contextmanager
def written_changes(step: StepExecutionContext | None, dataset: Dataset) -> Iterator[Reading | None]:
    """The changes that the step has read, released when the block ends. If the dataset is no consumer, None.

    If another run of the consumer has committed first, the step is retried, because its frame is made of changes that
    are consumed by now.

    Raises:
        RetryRequested: the step must be run again.
        DeclarationError: a consumer is written, but its changes were not read in this step.
    """
    if not dataset.reads_changes_of:
        yield None
        return
    step_id = ("", "") if step is None else (step.run_id, step.step.key)
    kept = next((readings.kept[step_id] for readings in READINGS.values() if step_id in readings.kept), None)
    if step is None or kept is None:
        raise DeclarationError(dataset=dataset.name, problems=("it reads changes, and none were loaded in this step",))
    try:
        yield kept.reading
    except CommitConflictError as error:
        wait = _RETRY.wait_seconds(kept.attempt, 0.0, random.random())  # noqa: S311
        if wait is None or step.retry_mode.disabled:
            raise
        raise RetryRequested(max_retries=_RETRY.attempts - 1, seconds_to_wait=wait) from error
    finally:
        release_step(step.run_id, step.step.key)


def release_step(run_id: str, step_key: str) -> None:
    """Release the changes that a step has read."""
    for readings in list(READINGS.values()):
        readings.release((run_id, step_key))


def _release_all() -> None:
    """Release all readings before the interpreter exits."""
    for readings in list(READINGS.values()):
        for step_id in list(readings.kept):
            readings.release(step_id)
        readings.release_abandoned()


@failure_hook(name="release_changes")
def release_changes(context: HookContext) -> None:
    """Release the changes that a failed step had read."""
    release_step(context.run_id, context.step_key)
