"""The writer id of a step: the same for every attempt of the step, and another one for every intended run.

Here belongs the decision whether two writes are attempts of the same write. The use of the id in Delta belongs to
`pipeline.delta.write.transaction`.
"""

from __future__ import annotations

import hashlib

from dagster import DagsterEventType, DagsterInstance, DagsterRun, StepExecutionContext

# Dagster's name for the tag of a run that Dagster itself has started after a failure; not public yet.
from dagster._core.storage.tags import RETRY_NUMBER_TAG

from pipeline.dataset import Dataset
from pipeline.delta.log.mark import Mark
from pipeline.delta.sql.slices import Slice

_SLICE_DIGITS = 16


def mark_of(run_id: str, step: StepExecutionContext | None, dataset: Dataset, within: Slice | None) -> Mark:
    """The mark of a write. Outside a run a repeated write can't be recognised, so the mark has no epoch."""
    if step is None:
        return Mark(writer=f"{dataset.name}/{run_id}")
    return Mark(writer=writer(dataset, step, within), epoch=0, attempt=step.previous_attempt_count + 1)


def writer(dataset: Dataset, step: StepExecutionContext, within: Slice | None) -> str:
    """The writer id of a step's slice of a dataset: the same for every attempt, in whichever run."""
    digest = "" if within is None else hashlib.sha256(within.identity.encode()).hexdigest()[:_SLICE_DIGITS]
    return "/".join((dataset.name, step.step.key, first_try(step.instance, step.dagster_run, step.step.key), digest))


def first_try(instance: DagsterInstance, run: DagsterRun, step_key: str) -> str:
    """The id of the run that first tried the write of this run's step.

    A run that Dagster itself has started again repeats the writes of the failed run, even of steps that had succeeded.
    A run that a person has started again repeats a write only if the step had not succeeded, because its commit may
    exist nevertheless. If the step had succeeded, the person intends another write.
    """
    while run.parent_run_id is not None:
        is_automatic = RETRY_NUMBER_TAG in run.tags
        parent = instance.get_run_by_id(run.parent_run_id)
        if parent is None or (not is_automatic and _has_succeeded(instance, parent.run_id, step_key)):
            break
        run = parent
    return run.run_id


def _has_succeeded(instance: DagsterInstance, run_id: str, step_key: str) -> bool:
    records = instance.get_records_for_run(run_id, of_type=DagsterEventType.STEP_SUCCESS).records
    return any(record.event_log_entry.step_key == step_key for record in records)
