"""Every tick of the schedules for a time, against a real instance: no maintenance overlaps another, nor a write.

The schedules, the jobs, their pools, the sensor and the claims of slots are real. Simulated are the clock, and how long
a step takes: some take longer than the time between two ticks, some fail, and some are killed and free nothing.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetKey,
    AssetsDefinition,
    AssetSelection,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    DailyPartitionsDefinition,
    Definitions,
    JobDefinition,
    RunRequest,
    RunsFilter,
    ScheduleDefinition,
    build_schedule_context,
    build_schedule_from_partitioned_job,
    build_sensor_context,
    define_asset_job,
    graph_asset,
    multi_asset,
    op,
)
from dagster._core.definitions.dependency import NodeHandle
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES
from dagster._core.storage.tags import SCHEDULE_NAME_TAG
from dagster._utils.schedules import cron_string_iterator
from pyspark.sql.types import DateType, LongType, StructField, StructType
from sqlalchemy import event
from sqlalchemy.engine import Engine

from pipeline.dataset import Check, Dataset, MaintenancePolicy, Registry
from pipeline.orchestration import build_definitions, dataset_asset, definitions
from pipeline.orchestration.automation.pools import table_pools
from pipeline.orchestration.automation.sensors import landing_sensor
from pipeline.orchestration.dataset_asset import dataset_out
from pipeline.orchestration.metadata_keys import ROOT_TAG
from pipeline.settings import Settings
from pipeline_tests.orchestration.simulated_runs import HOUR, Simulation, Worked, use_clock

# Dagster's own schedule of a partitioned job uses a function that Dagster has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*run_request_for_partition:DeprecationWarning")
# A Saturday: the weekly vacuum comes on the second day.
START = dt.datetime(2024, 1, 6, tzinfo=dt.timezone.utc)
DAY = 24 * HOUR
# A step that still waits so long after the last tick waits for ever.
PATIENCE = 60 * DAY
NUMBER = StructField("n", LongType())
ORDERS = Dataset(
    name="shop/orders", schema=StructType([NUMBER]), group="shop", maintenance=MaintenancePolicy(),
    checks=(Check("positive", "n > 0", on_violation="quarantine"),),
)  # fmt: skip
ITEMS = Dataset(
    name="shop/items", schema=StructType([NUMBER]), group="shop", reads=("shop/orders",),
    maintenance=MaintenancePolicy(),
)  # fmt: skip
VISITS = Dataset(
    name="visits", schema=StructType([NUMBER, StructField("day", DateType())]), partition_by=("day",), group="web",
    maintenance=MaintenancePolicy(cron="0 */8 * * *"),
)  # fmt: skip
DAILY = DailyPartitionsDefinition("2023-12-01", end_date="2025-03-01")
ORDERS_AND_QUARANTINE = ("shop__orders", "shop__orders__quarantine")
SCHEDULES = ("maintain_shop", "maintain_web", "checkpoint_daily", "vacuum_weekly")
# A quarantine is maintained by the jobs of all tables and by hand.
NOT_SCHEDULED = {"maintain_shop__orders__quarantine"}
CHECKS = {"shop__orders_checks", "shop__items_checks", "visits_checks"}
# The tables that each step works on.
WRITES = {
    "shop__orders": ("shop/orders", "shop/orders__quarantine"), "shop__items": ("shop/items",), "visits": ("visits",),
}  # fmt: skip
MAINTAINED = {
    step: (name,)
    for name in ("shop/orders", "shop/items", "visits", "shop/orders__quarantine")
    for plain in [name.replace("/", "__")]
    for step in (f"maintain_{plain}", f"vacuum_tables.vacuum_{plain}", f"checkpoint_tables.checkpoint_{plain}")
}


@dataset_asset(ORDERS)
def orders() -> None:
    """Never run."""


@dataset_asset(ITEMS)
def items() -> None:
    """Never run."""


@dataset_asset(VISITS, partitions_def=DAILY)
def visits() -> None:
    """Never run."""


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[DagsterInstance]:
    """An instance with pools as in `dagster.yaml`. It need not survive a loss of power."""

    def without_sync(connection: Any, _: object) -> None:
        connection.execute("PRAGMA synchronous=OFF")

    event.listen(Engine, "connect", without_sync)
    overrides = {"concurrency": {"pools": {"default_limit": 1, "granularity": "op"}}}
    try:
        with DagsterInstance.local_temp(str(tmp_path), overrides=overrides) as made:
            yield made
    finally:
        event.remove(Engine, "connect", without_sync)


@dataclass
class Year:
    """The ticks of some days, and the runs that they and other causes request."""

    settings: Settings
    simulation: Simulation
    days: int

    def __post_init__(self) -> None:
        self.landing = Path(self.settings.landing)
        self.landing.mkdir()
        arrivals = landing_sensor(
            "arrivals", folder=str(self.landing), key_of=lambda name: name, has_key=DAILY.has_partition_key,
            selection=AssetSelection.assets("visits"),
        )  # fmt: skip
        by_day = define_asset_job("by_day", selection=["visits"])
        built = build_definitions(
            self.settings, datasets=[ORDERS, ITEMS, VISITS], assets=[orders, items, visits], sensors=[arrivals],
            schedules=[build_schedule_from_partitioned_job(by_day, name="by_day")],
        )  # fmt: skip
        self.repository = built.get_repository_def()
        self.sensor, self.cursor = self.repository.get_sensor_def("arrivals"), None
        self.skipped: Counter[str] = Counter()
        self.requested: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    def run(self) -> list[Worked]:
        """Plan every tick, each arriving file and the runs by hand; then let the time pass."""
        simulation, end = self.simulation, START.timestamp() + self.days * DAY
        for schedule in self.repository.schedule_defs:
            ticks = cron_string_iterator(
                START.timestamp(), str(schedule.cron_schedule), schedule.execution_timezone or "UTC"
            )
            for tick in ticks:
                if tick.timestamp() >= end:
                    break
                simulation.at(tick.timestamp(), lambda schedule=schedule, tick=tick: self._tick(schedule, tick))
        for day in range(self.days):
            began = START.timestamp() + day * DAY
            simulation.at(began + simulation.random.uniform(0, DAY), lambda day=day: self._arrive(day))
            for _ in range(simulation.random.choice((1, 2, 4))):
                simulation.at(began + simulation.random.uniform(0, DAY), self._load_orders)
        simulation.go(until=end + PATIENCE)
        return simulation.worked

    def _tick(self, schedule: ScheduleDefinition, tick: dt.datetime) -> None:
        with build_schedule_context(
            instance=self.simulation.instance, scheduled_execution_time=tick, repository_def=self.repository
        ) as context:
            context._instance = self.simulation.instance  # it would be opened anew for each tick
            evaluated = schedule.evaluate_tick(context)
        if not evaluated.run_requests:
            self.skipped[schedule.name] += 1
            assert str(evaluated.skip_message).endswith(f"of {schedule.job_name} has not ended")
        for request in evaluated.run_requests or ():
            self.requested[schedule.name] += 1
            self._launch(self.repository.get_job(schedule.job_name), request, {SCHEDULE_NAME_TAG: schedule.name})
        self.simulation.notice()
        self.most[schedule.name] = max(self.most[schedule.name], self.unfinished(schedule.name))

    def unfinished(self, schedule: str) -> int:
        """How many runs of a schedule have not ended."""
        requested = RunsFilter(statuses=NOT_FINISHED_STATUSES, tags={SCHEDULE_NAME_TAG: schedule})
        return self.simulation.instance.get_runs_count(requested)

    def waiting(self) -> dict[str, int]:
        """How many steps have a slot of each pool or wait for one."""
        storage = self.simulation.instance.event_log_storage
        pools = {key: storage.get_concurrency_info(key) for key in storage.get_concurrency_keys()}
        counts = {key: len(pool.claimed_slots) + len(pool.pending_steps) for key, pool in pools.items()}
        return {key: count for key, count in counts.items() if count}

    def _launch(self, job: JobDefinition, request: RunRequest, tags: dict[str, str], *names: str) -> None:
        assets = frozenset(AssetKey(name.split("/")) for name in names) or None
        self.simulation.launch(job, tags={**request.tags, **tags}, run_config=request.run_config, assets=assets)

    def _arrive(self, day: int) -> None:
        """A file arrives, for which the sensor requests the day's partition of `visits`."""
        (self.landing / (START + dt.timedelta(days=day)).date().isoformat()).write_text("x", encoding="utf-8")
        context = build_sensor_context(
            instance=self.simulation.instance, cursor=self.cursor, repository_def=self.repository
        )
        evaluated = self.sensor.evaluate_tick(context)
        self.cursor = evaluated.cursor
        for request in evaluated.run_requests or ():
            self._launch(self.repository.get_implicit_global_asset_job_def(), request, {}, "visits")

    def _load_orders(self) -> None:
        """A run by hand, after which the automation condition of a consumer would request the next."""
        job = self.repository.get_implicit_global_asset_job_def()
        self.simulation.launch(
            job, tags={}, assets=frozenset({AssetKey(["shop", "orders"])}),
            on_success=lambda: self._launch(job, RunRequest(), {}, "shop/items"),
        )  # fmt: skip


def overlaps(worked: list[Worked]) -> list[tuple[str, Worked, Worked]]:
    """The pairs of steps of different runs that worked on one table at the same time, by the names of tables."""
    by_table: dict[str, list[Worked]] = defaultdict(list)
    for one in worked:
        for table in (WRITES | MAINTAINED).get(one.step, ()):
            by_table[table].append(one)
    found = []
    for table, steps in by_table.items():
        last: Worked | None = None
        for one in sorted(steps, key=lambda step: step.start):
            if last is not None and one.start < last.end:
                found.append((table, last, one))
            last = one if last is None or one.end > last.end else last
    return found


Simulated = Callable[..., Year]


@pytest.fixture
def simulated(settings: Settings, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> Simulated:
    """The simulation of some days."""

    def simulate(days: int, *, seed: int, long: float, killed: float) -> Year:
        simulation = Simulation(instance, seed, START.timestamp(), long=long, killed=killed)
        use_clock(simulation, monkeypatch)
        year = Year(settings, simulation, days)
        year.run()
        return year

    return simulate


def assert_each_step_had_its_table_to_itself(year: Year) -> None:
    assert overlaps(year.simulation.worked) == []
    assert year.waiting() == {}, "a step waits for ever, or a slot is never freed"
    assert year.simulation.runs == {}
    ticks = {name: year.most[name] for name in (*SCHEDULES, "by_day")}
    assert {name: ticks[name] for name in SCHEDULES} == dict.fromkeys(SCHEDULES, 1), "runs of a schedule queue up"
    assert {one.step for one in year.simulation.worked} == {*WRITES, *MAINTAINED} - NOT_SCHEDULED | CHECKS


def test_for_some_days_of_long_and_killed_steps_no_maintenance_overlaps_another_or_a_write(
    simulated: Simulated,
) -> None:
    year = simulated(3, seed=3, long=0.1, killed=0.15)
    assert_each_step_had_its_table_to_itself(year)
    assert year.simulation.killed
    assert sum(year.skipped.values()) > 0
    assert max(one.waited for one in year.simulation.worked) > HOUR


@pytest.mark.exhaustive
def test_for_a_year_no_maintenance_overlaps_another_or_a_write(simulated: Simulated) -> None:
    year = simulated(366, seed=1, long=0.02, killed=0.03)
    assert_each_step_had_its_table_to_itself(year)
    ticks = {name: year.requested[name] + year.skipped[name] for name in (*SCHEDULES, "by_day")}
    assert ticks == {
        "maintain_shop": 366, "maintain_web": 3 * 366, "checkpoint_daily": 366, "vacuum_weekly": 53, "by_day": 366,
    }  # fmt: skip
    assert all(0 < year.skipped[name] < year.requested[name] for name in SCHEDULES if name != "vacuum_weekly")
    assert len(year.simulation.killed) > 50
    assert max(one.waited for one in year.simulation.worked) < 14 * DAY


@pytest.mark.exhaustive
def test_a_table_whose_maintenance_has_another_pool_is_found_by_the_simulation(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The assertion can fail."""

    def apart(registry: Registry, written: Iterable[AssetsDefinition]) -> dict[str, str]:
        return table_pools(registry, written) | {"shop/orders": "delta/elsewhere"}

    monkeypatch.setattr(definitions, table_pools.__name__, apart)
    year = simulated(3, seed=3, long=0.1, killed=0.15)
    assert {table for table, _, _ in overlaps(year.simulation.worked)} == {"shop/orders"}


# --- the pool of a table ----------------------------------------------------------------------------------------------


def test_a_quarantine_is_maintained_in_the_pool_of_its_dataset_whose_step_writes_it(settings: Settings) -> None:
    built = build_definitions(settings, datasets=[ORDERS], assets=[orders])
    pools = {
        handle.name: built.get_job_def(job).get_node(handle).definition.pool
        for job, group in (("vacuum", "vacuum_tables"), ("checkpoint", "checkpoint_tables"))
        for handle in [NodeHandle(f"{job}_{name}", NodeHandle(group, None)) for name in ORDERS_AND_QUARANTINE]
    }
    assert set(pools.values()) == {"delta/shop/orders"}
    assert len(pools) == 4


def test_a_table_is_maintained_in_the_pool_that_its_asset_declares() -> None:
    one, other, third = (Dataset(name=name, schema=StructType([NUMBER])) for name in ("one", "other", "third"))

    @multi_asset(outs={"one": dataset_out(one), "other": dataset_out(other)}, pool="both")
    def both() -> tuple[None, None]:
        """Never run."""

    @op(pool="last")
    def last() -> None:
        """Never run."""

    @graph_asset(name="third")
    def of_graph() -> None:
        return last()

    registry = Registry([one, other, third, VISITS])
    assert table_pools(registry, [both, of_graph, visits]) == {
        "one": "both", "other": "both", "third": "last", "visits": "delta/visits",
    }  # fmt: skip
    assert table_pools(registry) == {name: f"delta/{name}" for name in ("one", "other", "third", "visits")}


# --- a schedule whose last run has not ended --------------------------------------------------------------------------


def tick_of(built: Definitions, instance: DagsterInstance, name: str = "maintain_shop") -> str | None:
    """The reason why a tick is skipped; None if it requests a run."""
    repository = built.get_repository_def()
    with build_schedule_context(instance=instance, repository_def=repository) as context:
        evaluated = repository.get_schedule_def(name).evaluate_tick(context)
    assert len(evaluated.run_requests or ()) == (evaluated.skip_message is None)
    return evaluated.skip_message


def test_a_tick_is_skipped_until_the_run_of_the_last_one_has_ended(
    settings: Settings, instance: DagsterInstance
) -> None:
    """Runs by hand, runs of other schedules and those of another project with the same names don't count."""
    built = build_definitions(settings, datasets=[ORDERS, ITEMS])
    project, other = {ROOT_TAG: settings.root}, {ROOT_TAG: "/elsewhere"}
    shop = {SCHEDULE_NAME_TAG: "maintain_shop"}
    starting = DagsterRun("maintain_shop", tags=shop | project, status=DagsterRunStatus.STARTING)
    weekly = {SCHEDULE_NAME_TAG: "vacuum_weekly"} | project
    for job, tags in (("maintain_shop", project), ("maintain_shop", shop | other), ("vacuum", weekly)):
        instance.add_run(DagsterRun(job, tags=tags, status=DagsterRunStatus.STARTED))
    assert tick_of(built, instance) is None
    instance.add_run(starting)
    assert tick_of(built, instance) == f"run {starting.run_id} of maintain_shop has not ended"
    assert tick_of(built, instance, "checkpoint_daily") is None
    assert tick_of(built, instance, "vacuum_weekly") is not None
    instance.report_run_canceled(starting)
    assert tick_of(built, instance) is None


def test_a_run_whose_process_was_killed_does_not_stop_the_schedule(
    settings: Settings, instance: DagsterInstance
) -> None:
    simulation = Simulation(instance, 1, START.timestamp(), long=0, killed=0)
    built = build_definitions(settings, datasets=[ORDERS, ITEMS])
    run_id = simulation.launch(
        built.get_job_def("maintain_shop"), tags={SCHEDULE_NAME_TAG: "maintain_shop", ROOT_TAG: settings.root}
    )
    assert tick_of(built, instance) == f"run {run_id} of maintain_shop has not ended"
    simulation.kill(run_id)
    storage = instance.event_log_storage
    assert [key for key in storage.get_concurrency_keys() if storage.get_concurrency_info(key).claimed_slots]
    assert tick_of(built, instance) is None
    assert instance.get_run_by_id(run_id).status is DagsterRunStatus.FAILURE
    assert not [key for key in storage.get_concurrency_keys() if storage.get_concurrency_info(key).claimed_slots]
