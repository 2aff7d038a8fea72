"""Who writes, as far as Dagster knows it: the same name for every try of one step, another for every run that is meant.

Here belongs what makes two writes one and the same. What Delta makes of it is `pipeline.delta.write.transaction`'s.
"""

from __future__ import annotations

import hashlib

from dagster import DagsterEventType, DagsterInstance, DagsterRun, StepExecutionContext

# Dagster's name for the tag of a run that it has started by itself after a failure; not public yet.
from dagster._core.storage.tags import RETRY_NUMBER_TAG

from pipeline.dataset import Dataset
from pipeline.delta.sql.slices import Slice

_SLICE_DIGITS = 16


def writer(dataset: Dataset, step: StepExecutionContext, within: Slice | None) -> str:
    """The writer of a step's slice of a dataset: the same for every try of it, whichever run tries."""
    place = "" if within is None else hashlib.sha256(within.identity.encode()).hexdigest()[:_SLICE_DIGITS]
    return "/".join((dataset.name, step.step.key, first_try(step.instance, step.dagster_run, step.step.key), place))


def first_try(instance: DagsterInstance, run: DagsterRun, step_key: str) -> str:
    """The id of the run that was the first to try what this run's step does.

    A run that Dagster has started again by itself tries what the failed one tried, also where it repeats steps that
    had succeeded. One that a person has started again does so where the step had not succeeded: its commit may stand
    all the same. A step that had is meant to be done once more.
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
