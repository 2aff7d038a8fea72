"""Cached outcomes: a step is skipped if nothing that its rows are computed from has changed, and only then."""

# Without `annotations` from `__future__`: Dagster compares the annotations of `context` and `config` with types.

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetsDefinition,
    Config,
    DagsterInstance,
    ExecuteInProcessResult,
    StaticPartitionsDefinition,
    asset,
    graph_asset,
    op,
)
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset, Expect, RowCount, Unique
from pipeline.errors import DeclarationError
from pipeline.orchestration import DeltaSparkResource, build_definitions, dataset_asset
from pipeline.settings import Settings
from pipeline_tests.orchestration.conftest import Project, materializations

ROW = StructType([StructField("part", StringType()), StructField("id", LongType())])
RAW = Dataset(name="raw", schema=ROW, partition_by=("part",))
SUMS = Dataset(
    name="sums", schema=StructType([StructField("total", LongType())]), reads=("raw",), code_version="1", cache=True,
    row_count=RowCount(minimum=1, blocking=True),
    expectations=(Unique(("total",), blocking=True), Expect("positive", "min(total) > 0")),
)  # fmt: skip
PARTED = Dataset(
    name="parted", schema=ROW, partition_by=("part",), reads=("raw",), code_version="1", cache=True, write=Append()
)
KEYS = StaticPartitionsDefinition(["a", "b"])
classic_only = pytest.mark.parametrize("spark_resource", ["classic"], indirect=True)


class Factor(Config):
    factor: int = 1


@dataclass
class Steps:
    """The assets, and the calls of their functions. What they return can be set."""

    project: Project
    calls: list[str] = field(default_factory=list)
    ids: tuple[int, ...] = (1, 2)

    def raw(self, dataset: Dataset = RAW, **options: Any) -> AssetsDefinition:
        @dataset_asset(dataset, **options)
        def raw() -> pa.Table:
            parts = ["a", "b"] * (len(self.ids) // 2)
            return pa.table({"part": parts, "id": pa.array(self.ids, pa.int64())})

        return raw

    def sums(self, dataset: Dataset = SUMS) -> AssetsDefinition:
        @dataset_asset(dataset)
        def sums(raw: pa.Table, config: Factor) -> pa.Table:
            self.calls.append("sums")
            total = pc.sum(raw["id"]).as_py() * config.factor
            return pa.table({"total": pa.array([total], pa.int64())})

        return sums

    def parted(self) -> AssetsDefinition:
        @dataset_asset(PARTED, partitions_def=KEYS)
        def parted(context: AssetExecutionContext, raw: pa.Table) -> pa.Table:
            self.calls.extend(context.partition_keys)
            return raw.filter(pc.is_in(raw["part"], value_set=pa.array(context.partition_keys)))

        return parted

    def read_again(self) -> ExecuteInProcessResult:
        return self.project.run(self.raw())

    def run(self, one: AssetsDefinition, **options: Any) -> ExecuteInProcessResult:
        """Run one asset beside the source that it reads."""
        selection = [key for key in one.keys if key != AssetKey("raw")]
        return self.project.run(self.raw(), one, selection=selection, **options)

    def is_skipped(self, one: AssetsDefinition, **options: Any) -> bool:
        before = len(self.calls)
        result = self.run(one, **options)
        assert result.success
        called = len(self.calls) > before
        metadata = [
            event.materialization.metadata
            for event in result.all_events
            if event.is_step_materialization and event.materialization.asset_key in one.keys
        ]
        assert {"delta/cached" in found for found in metadata} == {not called}
        return not called


@pytest.fixture
def steps(project: Project) -> Steps:
    steps = Steps(project)
    steps.read_again()
    return steps


class NoSpark(DeltaSparkResource):
    """A session that can't be had."""

    @property
    def spark_session(self) -> Any:
        raise AssertionError("a session was requested")


@pytest.mark.both_modes
def test_an_equal_step_is_skipped_without_a_session_and_reports_the_version_of_its_rows(
    steps: Steps, settings: Settings
) -> None:
    project = steps.project
    assert not steps.is_skipped(steps.sums())
    first = materializations(project.run(steps.raw(), steps.sums(), selection=[AssetKey("sums")]), SUMS)[None]
    version = project.version(SUMS)
    assert (first["delta/cached"], first["delta/version"], first["delta/committed"]) == (True, version, False)
    assert (first["delta/rows_written"], first["dagster/row_count"]) == (0, 1)

    without = replace(project, spark=NoSpark.from_settings(settings.spark))
    definitions = build_definitions(
        settings, datasets=(RAW, SUMS), assets=(steps.raw(), steps.sums()), resources=project.resources()
    )
    job = definitions.resolve_implicit_global_asset_job_def()
    checked = job.execute_in_process(instance=project.instance, asset_selection=[AssetKey("sums")])
    assert [one.passed for one in checked.get_asset_check_evaluations()] == [True] * 4

    definitions = build_definitions(
        settings, datasets=(RAW, SUMS), assets=(steps.raw(), steps.sums()), resources=without.resources()
    )
    job = definitions.resolve_implicit_global_asset_job_def()
    again = job.execute_in_process(instance=project.instance, asset_selection=[AssetKey("sums")])
    found = {
        one.check_name: (one.passed, one.metadata["delta/version"].value) for one in again.get_asset_check_evaluations()
    }
    assert {name: found[name] for name in ("unique_total", "expect_positive")} == {
        "unique_total": (True, version), "expect_positive": (True, version),
    }  # fmt: skip
    assert materializations(again, SUMS)[None]["tags"]["dagster/data_version"] == first["tags"]["dagster/data_version"]
    assert steps.calls == ["sums"]
    assert project.version(SUMS) == version


@classic_only
def test_whatever_changes_the_step_runs_again(steps: Steps) -> None:
    project, session = steps.project, steps.project.spark.spark_session
    assert not steps.is_skipped(steps.sums())
    assert steps.is_skipped(steps.sums())

    steps.ids = (1, 2, 3, 4)
    steps.read_again()
    assert not steps.is_skipped(steps.sums())
    assert project.rows(SUMS) == [(10,)]

    newer = steps.sums(replace(SUMS, code_version="2"))
    assert (steps.is_skipped(newer), steps.is_skipped(newer)) == (False, True)
    config = {"ops": {"sums": {"config": {"factor": 2}}}}
    assert not steps.is_skipped(newer, run_config=config)
    assert project.rows(SUMS) == [(20,)]
    assert (steps.is_skipped(newer, run_config=config), steps.is_skipped(newer)) == (True, False)
    assert not steps.is_skipped(newer, tags={"pipeline/no_cache": "true"})

    declared = steps.sums(replace(SUMS, code_version="2", keys=("total",)))
    assert (steps.is_skipped(declared), steps.is_skipped(declared)) == (False, True)
    described = steps.sums(replace(SUMS, code_version="2", keys=("total",), description="A sum."))
    assert steps.is_skipped(described)

    session.sql(f"RESTORE TABLE delta.`{SUMS.location(project.root)}` TO VERSION AS OF 1")
    assert not steps.is_skipped(declared)
    frame = session.createDataFrame([(7,)], SUMS.schema)
    frame.write.format("delta").mode("append").save(SUMS.location(project.root))
    assert not steps.is_skipped(declared)
    assert project.rows(SUMS) == [(10,)]


@classic_only
@pytest.mark.exhaustive
def test_maintenance_is_no_change_until_the_files_of_the_version_are_gone(steps: Steps) -> None:
    project, session = steps.project, steps.project.spark.spark_session
    parted = steps.parted()
    for number in (1, 3):
        steps.ids = (number, number + 1)
        steps.read_again()
        assert not steps.is_skipped(parted, partition_key="a")
    newest = project.version(PARTED)
    assert steps.is_skipped(parted, partition_key="a")
    for table in (RAW, PARTED):
        session.sql(f"OPTIMIZE delta.`{table.location(project.root)}`")
    assert project.version(PARTED) > newest
    assert steps.is_skipped(parted, partition_key="a")
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        session.sql(f"VACUUM delta.`{PARTED.location(project.root)}` RETAIN 0 HOURS")
    finally:
        session.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    assert not steps.is_skipped(parted, partition_key="a")


@classic_only
def test_each_partition_has_its_own_outcome(steps: Steps) -> None:
    project, parted = steps.project, steps.parted()
    raw = steps.raw(RAW, partitions_def=KEYS)

    def skipped(key: str) -> bool:
        before = len(steps.calls)
        assert project.run(raw, parted, selection=[AssetKey("parted")], partition_key=key).success
        return len(steps.calls) == before

    assert [skipped("a"), skipped("b"), skipped("a"), skipped("b")] == [False, False, True, True]
    assert project.rows(PARTED) == [("a", 1), ("b", 2)]
    session = project.spark.spark_session
    session.sql(f"UPDATE delta.`{RAW.location(project.root)}` SET id = 5 WHERE part = 'b'")
    assert [skipped("a"), skipped("b")] == [True, False]
    assert project.rows(PARTED) == [("a", 1), ("b", 2), ("b", 5)]


@classic_only
def test_a_run_that_skips_a_step_still_reads_the_newest_rows_of_its_table(steps: Steps) -> None:
    """A cached partition names an old version; what reads the whole table in the same run must not read that."""
    project, seen = steps.project, list[int]()
    parted = steps.parted()
    steps.run(parted, partition_key="a")
    steps.run(parted, partition_key="b")

    @asset(io_manager_key="delta_io_manager")
    def counted(parted: pa.Table) -> pa.Table:
        seen.append(parted.num_rows)
        return pa.table({"rows": [parted.num_rows]})

    selection = [AssetKey("parted"), AssetKey("counted")]
    assert project.run(steps.raw(), parted, counted, selection=selection, partition_key="a").success
    assert (seen, steps.calls) == ([2], ["a", "b"])


@classic_only
@pytest.mark.exhaustive
def test_a_recreated_source_is_a_change(steps: Steps) -> None:
    import shutil

    assert not steps.is_skipped(steps.sums())
    shutil.rmtree(RAW.location(steps.project.root))
    steps.read_again()
    assert not steps.is_skipped(steps.sums())


@classic_only
@pytest.mark.exhaustive
def test_a_committed_attempt_whose_report_was_lost_is_reported_by_the_next_run(steps: Steps) -> None:
    steps.run(steps.sums())
    version = steps.project.version(SUMS)
    with DagsterInstance.ephemeral() as fresh:
        other = Steps(replace(steps.project, instance=fresh))
        result = other.run(other.sums())
        found = materializations(result, SUMS)[None]
    assert (other.calls, found["delta/version"], found["delta/cached"]) == ([], version, True)


@dataclass
class Plain:
    """A plain asset with a source that is no table, in a project that is built by `build_definitions`."""

    project: Project
    settings: Settings
    calls: list[str] = field(default_factory=list)

    def run(self, *, metadata: Any = None, **options: Any) -> ExecuteInProcessResult:
        @asset(
            deps=["landing"], code_version="1", io_manager_key="delta_io_manager",
            metadata={"delta/cache": True} if metadata is None else metadata,
        )  # fmt: skip
        def report() -> pa.Table:
            self.calls.append("report")
            return pa.table({"n": [1]})

        definitions = build_definitions(
            self.settings, datasets=(), assets=(report,), resources=self.project.resources()
        )
        job = definitions.resolve_implicit_global_asset_job_def()
        return job.execute_in_process(instance=self.project.instance, asset_selection=[AssetKey("report")], **options)

    def landing(self, version: str) -> None:
        event = AssetMaterialization("landing", tags={"dagster/data_version": version})
        self.project.instance.report_runless_asset_event(event)


@classic_only
def test_a_plain_asset_is_skipped_while_the_data_version_of_its_source_is_the_same(
    project: Project, settings: Settings
) -> None:
    plain = Plain(project, settings)
    for _ in range(2):
        plain.run()
    assert plain.calls == ["report"] * 2, "the source has no version"
    plain.landing("1")
    for _ in range(3):
        plain.run()
    assert len(plain.calls) == 3
    plain.landing("2")
    plain.run()
    assert len(plain.calls) == 4
    plain.run(metadata={})
    assert len(plain.calls) == 5


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: asset(metadata={"delta/cache": True})(nothing), "no code_version"),
        (lambda: asset(metadata={"delta/cache": True}, code_version="1")(generator), "a generator"),
        (lambda: graph_asset(metadata={"delta/cache": True}, code_version="1")(graph), "not made of one function"),
    ],
    ids=["no code version", "generator", "graph"],
)
def test_an_asset_that_can_t_be_skipped_is_refused(
    settings: Settings, make: Callable[[], AssetsDefinition], problem: str
) -> None:
    with pytest.raises(DeclarationError, match=problem):
        build_definitions(settings, datasets=(), assets=(make(),))


def nothing() -> None: ...


def generator() -> Any:
    yield


@op
def one() -> int:
    return 1


def graph() -> Any:
    return one()


@pytest.mark.parametrize(
    "declared",
    [
        {"code_version": None}, {"reads_changes_of": ("raw",)}, {"reads": ("raw", "sums")},
    ],
    ids=["no code version", "consumer", "reads itself"],
)  # fmt: skip
def test_a_dataset_that_can_t_be_cached_is_refused(declared: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError, match="cache"):
        replace(SUMS, **declared)
