"""The executor of a project's runs: Dagster's own for one process, which also frees the slots of dead runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dagster import DagsterEvent, Executor, ExecutorDefinition, InitExecutorContext, in_process_executor
from dagster._core.execution.retries import RetryMode

from pipeline.orchestration.automation.pools import with_dead_released


class _OneProcess(Executor):
    """Frees the slots of runs whose process has ended, while a step waits for the slot of its table."""

    def __init__(self, own: Executor) -> None:
        self._own = own

    @property
    def retries(self) -> RetryMode:
        return self._own.retries

    def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[DagsterEvent]:
        with with_dead_released(plan_context.instance, plan_context.log.warning):
            yield from self._own.execute(plan_context, execution_plan)


def _create(context: InitExecutorContext) -> Executor:
    make: Any = in_process_executor.executor_creation_fn
    return _OneProcess(make(context))


_CONFIG: Any = in_process_executor.config_schema
# One JVM for each run: Dagster's default gives each step a process, and each process would start its own JVM (10 s and
# 2 GB for each step). Spark runs in parallel inside a step. Different runs have different processes.
one_process_executor = ExecutorDefinition(
    name="in_process",
    config_schema=_CONFIG,
    executor_creation_fn=_create,
    description="Execute all steps in a single process.",
)
