"""Runs of real jobs in simulated time: their steps claim real slots of a real instance, and compute nothing.

Dagster's own parts decide what a run does next: its plan, its `ActiveExecution`, and its claims of slots, one step at a
time as in the project's executor. Only the clock and the work of a step are made up.
"""

from __future__ import annotations

import heapq
import random
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from dagster import AssetKey, DagsterEvent, DagsterInstance, DagsterRun, DagsterRunStatus, JobDefinition
from dagster._core.events import DagsterEventType
from dagster._core.events.log import EventLogEntry
from dagster._core.execution.api import create_execution_plan
from dagster._core.execution.plan import instance_concurrency_context
from dagster._core.execution.plan.active import ActiveExecution
from dagster._core.execution.plan.instance_concurrency_context import InstanceConcurrencyContext
from dagster._core.execution.plan.outputs import StepOutputHandle
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.retries import RetryMode
from dagster._core.utils import make_new_run_id

from pipeline.orchestration.automation.pools import release_dead

MINUTE, HOUR = 60.0, 3600.0
# The executor of a waiting run looks for dead runs so often, and asks for a slot at least so often.
DEAD_SECONDS, CLAIM_SECONDS = 8.0, 15.0
# A waiting run is also woken so often if no slot that it waits for was freed.
PATIENCE_SECONDS = 6 * HOUR


@dataclass(frozen=True)
class Worked:
    """A step that had its slot, from its start to its end, in simulated seconds."""

    step: str
    run_id: str
    start: float
    end: float
    waited: float


@dataclass
class _Run:
    run: DagsterRun
    active: ActiveExecution
    claims: InstanceConcurrencyContext
    on_success: Callable[[], None]
    step: str | None = None
    started: float = 0.0
    ready: float = 0.0
    ended: bool = False
    asked: int = 0


class Simulation:
    """The clock, the runs that have not ended, and what every step did."""

    def __init__(self, instance: DagsterInstance, seed: int, start: float, *, long: float, killed: float) -> None:
        """Begin at a time. `long` is the share of steps that take longer than a day, `killed` that of killed runs."""
        self.instance, self.now = instance, start
        self.long, self.kills = long, killed
        self.random = random.Random(seed)
        self.worked: list[Worked] = []
        self.runs: dict[str, _Run] = {}
        self.killed: set[str] = set()
        self.noticed: set[str] = set()
        self._searched: set[str] = set()
        self._plans: dict[tuple[str, frozenset[AssetKey] | None, str], ExecutionPlan] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._began = time.time()
        ended = subprocess.Popen(["true"])
        ended.wait()
        self._dead_pid = ended.pid

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do this at a simulated time."""
        heapq.heappush(self._events, (when, next(self._order), action))

    def go(self, until: float) -> None:
        """Do everything that is planned, and what follows from it. Killed runs are noticed in the end."""
        while self._events and self.now < until:
            when, _, action = heapq.heappop(self._events)
            self.now = max(self.now, when)
            action()
            if not self._events and self._has_dead:
                self.release()

    def time(self) -> float:
        """The simulated time, in the form of Python's module `time`."""
        return self.now

    # --- one run ------------------------------------------------------------------------------------------------------

    def launch(
        self, job: JobDefinition, *, tags: Mapping[str, str], run_config: Mapping[str, Any] | None = None,
        assets: frozenset[AssetKey] | None = None, on_success: Callable[[], None] = lambda: None,
    ) -> str:  # fmt: skip
        """Start a run of a job, or of some assets of it."""
        run_config = run_config or {}
        known = (job.name, assets, str(run_config))
        if known not in self._plans:
            chosen = job if assets is None else job.get_subset(asset_selection=assets)
            self._plans[known] = create_execution_plan(chosen, run_config=run_config)
        plan = self._plans[known]
        run = self.instance.add_run(
            DagsterRun(job_name=job.name, run_id=make_new_run_id(), tags=tags, status=DagsterRunStatus.STARTED)
        )
        claims = InstanceConcurrencyContext(self.instance, run).__enter__()
        active = plan.start(RetryMode.DISABLED, instance_concurrency_context=claims).__enter__()
        one = _Run(run, active, claims, on_success, ready=self.now)
        self.runs[run.run_id] = one
        if self.random.random() < self.kills:
            self.at(self.now + self.random.expovariate(1 / (20 * MINUTE)), lambda: self._kill(one))
        self._next_step(one)
        return run.run_id

    def _next_step(self, one: _Run) -> None:
        if one.ended or one.step is not None:
            return
        for step in one.active.get_steps_to_abandon():
            one.active.mark_abandoned(step.key)
        for step in one.active.get_steps_to_skip():
            one.active.mark_skipped(step.key)
        if one.active.is_complete:
            self._end(one)
            return
        steps = one.active.get_steps_to_execute(limit=1)
        if not steps:
            self._wait(one)
            return
        one.step, one.started = steps[0].key, self.now
        self.at(self.now + self._duration(), lambda: self._end_step(one))

    def _duration(self) -> float:
        """Mostly minutes; some take longer than a day, the time between two ticks."""
        if self.random.random() < self.long:
            return self.random.uniform(10, 40) * HOUR
        return self.random.expovariate(1 / (10 * MINUTE))

    def _wait(self, one: _Run) -> None:
        one.asked += 1
        asked = one.asked

        def ask() -> None:
            if one.asked == asked:
                self._ask(one)

        self.at(self.now + (DEAD_SECONDS if self._has_dead else PATIENCE_SECONDS), ask)

    @property
    def _has_dead(self) -> bool:
        """Whether a run was killed since dead runs were last searched for."""
        return bool(self.killed - self._searched)

    def _ask(self, one: _Run) -> None:
        """What the executor of a waiting run does: it frees the slots of dead runs, and asks again."""
        if one.ended or one.step is not None:
            return
        if self._has_dead:
            self.release()
        self._next_step(one)

    def release(self) -> None:
        """Free the slots of dead runs as the product does."""
        release_dead(self.instance)
        self._searched |= self.killed
        self.notice()

    def notice(self) -> None:
        """Learn which killed runs have been failed. Their slots are free then."""
        unknown = self.killed - self.noticed
        ended = {run_id for run_id in unknown if (run := self.instance.get_run_by_id(run_id)) and run.is_finished}
        if ended:
            self.noticed |= ended
            self._wake()

    def _wake(self) -> None:
        """A slot was freed: each waiting run asks for it when its next question is due."""
        for one in self.runs.values():
            if not one.ended and one.step is None:
                self.at(self.now + self.random.uniform(0, CLAIM_SECONDS) + 1, lambda one=one: self._ask(one))

    def _end_step(self, one: _Run) -> None:
        if one.ended or one.step is None:
            return
        step = self._record(one)
        if self.random.random() < 0.05:
            one.active.mark_failed(step)
        else:
            for output in one.active.get_step_by_key(step).step_outputs:
                one.active.mark_step_produced_output(StepOutputHandle(step, output.name))
            one.active.mark_success(step)
        one.claims.free_step(step)
        self._wake()
        self._next_step(one)

    def _record(self, one: _Run) -> str:
        assert one.step is not None
        step, one.step = one.step, None
        self.worked.append(Worked(step, one.run.run_id, one.started, self.now, one.started - one.ready))
        one.ready = self.now
        return step

    def _end(self, one: _Run) -> None:
        one.ended = True
        one.claims.__exit__(None, None, None)
        del self.runs[one.run.run_id]
        event = DagsterEvent(DagsterEventType.RUN_SUCCESS.value, one.run.job_name)
        self.instance.run_storage.handle_run_event(one.run.run_id, event)
        one.on_success()

    def kill(self, run_id: str) -> None:
        """Kill the process of a run now."""
        self._kill(self.runs[run_id])

    def _kill(self, one: _Run) -> None:
        """As by `kill -9`: nothing is freed and nothing is reported. The instance knows the id of the process."""
        if one.ended:
            return
        if one.step is not None:
            self._record(one)
        one.ended = True
        del self.runs[one.run.run_id]
        self.killed.add(one.run.run_id)
        event = DagsterEvent(DagsterEventType.RUN_START.value, one.run.job_name, pid=self._dead_pid)
        entry = EventLogEntry(
            error_info=None, level=20, user_message="", run_id=one.run.run_id, timestamp=self._began,
            job_name=one.run.job_name, dagster_event=event,
        )  # fmt: skip
        self.instance.store_event(entry)
        self._wake()


def use_clock(simulation: Simulation, monkeypatch: Any) -> None:
    """Let claims of slots use the simulated clock."""
    monkeypatch.setattr(instance_concurrency_context, "time", simulation)
