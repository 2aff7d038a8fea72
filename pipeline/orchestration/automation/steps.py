"""The parts that the jobs of maintenance share: the names of their steps, and schedules that never queue up runs.

Here belongs nothing about the work of a step. The pools of tables belong to `pools`.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from typing import Any

from dagster import JobDefinition, RunRequest, ScheduleDefinition, ScheduleEvaluationContext, SkipReason

# The tag of a scheduled run; not public.
from dagster._core.storage.tags import SCHEDULE_NAME_TAG

from pipeline.dataset import Dataset
from pipeline.orchestration.automation.pools import unfinished_run
from pipeline.orchestration.automation.sensors import schedule_status
from pipeline.orchestration.metadata_keys import ROOT_TAG


def step_names(verb: str, datasets: Iterable[Dataset]) -> list[str]:
    """A name for each dataset's step. Dagster allows only letters, digits and `_`, so names may have to be numbered."""
    names: list[str] = []
    for dataset in datasets:
        name = f"{verb}_" + re.sub(r"\W", "_", dataset.name.replace("/", "__"), flags=re.ASCII)
        while name in names:
            name += "_"
        names.append(name)
    return names


def schedule_of(
    name: str, job: JobDefinition, cron: str, *, root: str, running: Container[str],
    run_config: Mapping[str, Any] | None = None, timezone: str | None = None,
) -> ScheduleDefinition:  # fmt: skip
    """A schedule of a job of maintenance. If its last run has not ended, a tick is skipped, with that as the reason.

    So a maintenance that takes longer than the time between two ticks, or ticks that are made up for after a pause, do
    not become a queue of equal runs. Projects on one instance may have schedules of one name: a run belongs to the
    project whose root it is tagged with.
    """
    project = {ROOT_TAG: root}

    def evaluate(context: ScheduleEvaluationContext) -> RunRequest | SkipReason:
        run_id = unfinished_run(context.instance, job.name, {SCHEDULE_NAME_TAG: name} | project)
        if run_id is not None:
            return SkipReason(f"run {run_id} of {job.name} has not ended")
        return RunRequest(run_config=run_config, tags=project)

    return ScheduleDefinition(
        name=name, job=job, cron_schedule=cron, execution_fn=evaluate, execution_timezone=timezone,
        default_status=schedule_status(name, running),
    )  # fmt: skip
