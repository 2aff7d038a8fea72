"""The checks of a declaration: what they look at, what they tell, and what a failure keeps from starting.

Most tables here are written by another engine and no session may be asked for: a check of a local table needs no JVM.
"""

import shutil
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetsDefinition,
    AssetSelection,
    AssetSpec,
    DagsterInstance,
    DailyPartitionsDefinition,
    Definitions,
    ExecuteInProcessResult,
    TableSchema,
    define_asset_job,
)
from deltalake import write_deltalake
from pyspark.sql.types import DateType, IntegerType, LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset, RowCount, SchemaCheck
from pipeline.orchestration import (
    DeltaIOManager,
    DeltaSparkResource,
    build_definitions,
    dataset_asset,
    dataset_checks,
    dataset_spec,
)
from pipeline.orchestration.dataset_asset import IO_MANAGER
from pipeline.settings import Settings
from pipeline_tests.orchestration.conftest import RANGE_END, RANGE_START, Project, day

NUMBERS = StructType([StructField("n", LongType())])
ROWS = StructType(
    [
        StructField("n", LongType(), False),
        StructField("area", StringType()),
        StructField("inner", StructType([StructField("a", IntegerType()), StructField("b", StringType())])),
    ]
)
ARROW = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("area", pa.string()),
        pa.field("inner", pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.string())])),
    ]
)
FED = Dataset(name="fed/table", schema=ROWS, partition_by=("area",), change_feed=False)
DAILY = DailyPartitionsDefinition("2026-01-01", end_date="2026-02-01")
BY_DAY = Dataset(
    name="by_day",
    schema=StructType([StructField("n", LongType(), False), StructField("day", DateType(), False)]),
    partition_by=("day",),
    row_count=RowCount(minimum=1, maximum=3, severity="warn"),
    change_feed=False,
)
classic_only = pytest.mark.parametrize("spark_resource", ["classic"], indirect=True)


class Forbidden(DeltaSparkResource):
    """A session that nobody may ask for."""

    def _init_session(self) -> None:
        pytest.fail("a session was asked for")


def numbers(name: str, **declaration: Any) -> Dataset:
    return Dataset(name=name, schema=NUMBERS, change_feed=False, **declaration)


def assembled(
    datasets: Iterable[Dataset], root: str, spark: DeltaSparkResource, *assets: AssetsDefinition
) -> Definitions:
    """Assets and checks of these datasets; those that no asset is given for are written elsewhere."""
    datasets = list(datasets)
    written = {key for asset in assets for key in asset.keys}
    specs: list[AssetSpec] = [dataset_spec(d) for d in datasets if AssetKey(d.asset_key) not in written]
    return Definitions(
        assets=[*assets, *specs],
        asset_checks=dataset_checks(datasets),
        jobs=[
            define_asset_job(name, AssetSelection.checks(*_keys(datasets, name))) for name in ("schema", "row_count")
        ],
        resources={"spark": spark, IO_MANAGER: DeltaIOManager(root=root, spark=spark)},
    )


def _keys(datasets: Iterable[Dataset], name: str) -> list[AssetCheckKey]:
    return [AssetCheckKey(AssetKey(d.asset_key), name) for d in datasets if name == "schema" or d.row_count is not None]


def looked_at(dataset: Dataset, root: str, instance: DagsterInstance, name: str = "schema") -> AssetCheckEvaluation:
    """The result of one check that is run by itself, without a session."""
    job = assembled([dataset], root, Forbidden()).resolve_job_def(name)
    (evaluation,) = job.execute_in_process(instance=instance).get_asset_check_evaluations()
    return evaluation


def by_name(result: ExecuteInProcessResult) -> dict[str, AssetCheckEvaluation]:
    return {f"{one.asset_key.to_user_string()}.{one.check_name}": one for one in result.get_asset_check_evaluations()}


def values(evaluation: AssetCheckEvaluation) -> Mapping[str, Any]:
    return {name: entry.value for name, entry in evaluation.metadata.items()}


def columns(schema: TableSchema) -> list[tuple[str, str, bool, bool]]:
    return [(c.name, c.type, c.constraints.nullable, "partition_column" in c.tags) for c in schema.columns]


def feed(root: str, schema: pa.Schema = ARROW, partition_by: tuple[str, ...] = ("area",)) -> None:
    table = pa.Table.from_pylist([{"n": 1, "area": "x", "inner": {"a": 1, "b": "y"}}], schema=schema)
    write_deltalake(FED.location(root), table, partition_by=list(partition_by))


@pytest.fixture
def instance():
    with DagsterInstance.ephemeral() as instance:
        yield instance


def test_a_table_as_declared_passes_with_what_was_expected_and_found(root: str, instance: DagsterInstance) -> None:
    feed(root)
    evaluation = looked_at(FED, root, instance)
    found = values(evaluation)
    assert evaluation.passed
    assert columns(found["expected"]) == columns(found["found"])
    assert columns(found["found"])[:2] == [("n", "bigint", False, False), ("area", "string", True, True)]
    assert found["delta/declared_fingerprint"] == found["delta/schema_fingerprint"] == FED.fingerprint
    assert (found["delta/version"], found["differences"]) == (0, [])


def changed(position: int, field: pa.Field) -> pa.Schema:
    return ARROW.set(position, field)


@pytest.mark.parametrize(
    ("schema", "partition_by", "told"),
    [
        (changed(0, pa.field("n", pa.int32(), nullable=False)), ("area",), "column n: declared bigint NOT NULL"),
        (changed(0, pa.field("n", pa.int64())), ("area",), "the table has bigint"),
        (changed(2, pa.field("inner", pa.struct([("b", pa.string()), ("a", pa.int32())]))), ("area",), "column inner"),
        (pa.schema([ARROW.field(1), ARROW.field(0), ARROW.field(2)]), ("area",), "column order"),
        (ARROW.append(pa.field("more", pa.string())), ("area",), "column more: the table has it"),
        (ARROW, (), "partition columns: declared (area)"),
    ],
    ids=["type", "nullability", "nesting", "order", "extra", "partitioning"],
)
def test_every_kind_of_difference_is_told(
    root: str, instance: DagsterInstance, schema: pa.Schema, partition_by: tuple[str, ...], told: str
) -> None:
    feed(root, schema, partition_by)
    evaluation = looked_at(FED, root, instance)
    (difference,) = values(evaluation)["differences"]
    assert not evaluation.passed
    assert told in difference
    assert evaluation.description == difference


def test_the_severity_is_the_declared_one(root: str, instance: DagsterInstance) -> None:
    feed(root, partition_by=())
    warned = Dataset(**{**vars(FED), "schema_check": SchemaCheck(severity="warn")})
    assert looked_at(FED, root, instance).severity.value == "ERROR"
    assert looked_at(warned, root, instance).severity.value == "WARN"


def test_the_newest_version_is_looked_at(root: str, instance: DagsterInstance) -> None:
    feed(root)
    more = pa.Table.from_pylist([{"n": 2, "more": "z"}], schema=pa.schema([ARROW.field(0), ("more", pa.string())]))
    write_deltalake(FED.location(root), more, mode="append", schema_mode="merge")
    found = values(looked_at(FED, root, instance))
    assert (found["delta/version"], len(found["differences"])) == (1, 1)


def test_the_rows_of_a_table_that_is_written_elsewhere_are_those_of_its_last_report(
    root: str, instance: DagsterInstance
) -> None:
    fed = numbers("fed/table", row_count=RowCount(minimum=5))
    missing = looked_at(fed, root, instance, "row_count")
    assert (missing.passed, values(missing)["found"]) == (False, "no write that was recorded")
    for rows in (9, 4):
        event = AssetMaterialization(["fed", "table"], metadata={"delta/rows_written": rows, "delta/version": rows})
        instance.report_runless_asset_event(event)
    evaluation = looked_at(fed, root, instance, "row_count")
    assert not evaluation.passed
    assert values(evaluation) == {
        "expected": "at least 5 rows", "found": "4 rows", "partitions": 0, "delta/version": 4,
    }  # fmt: skip


def run(project: Project, definitions: Definitions, *names: str, **options: Any) -> ExecuteInProcessResult:
    job = definitions.resolve_implicit_global_asset_job_def()
    selection = [AssetKey(name) for name in names]
    return job.execute_in_process(instance=project.instance, asset_selection=selection, **options)


def by_day_asset(rows: Mapping[str, int]) -> AssetsDefinition:
    @dataset_asset(BY_DAY, partitions_def=DAILY)
    def by_day(context: AssetExecutionContext) -> pa.Table:
        days = [day(key) for key in context.partition_keys for _ in range(rows[key])]
        return pa.table({"n": pa.array(range(len(days)), pa.int64()), "day": pa.array(days, pa.date32())})

    return by_day


@classic_only
def test_a_range_is_counted_by_its_keys_and_the_counts_are_those_that_the_run_recorded(project: Project) -> None:
    by_day = by_day_asset({"2026-01-02": 1, "2026-01-03": 5, "2026-01-04": 0})
    definitions = assembled([BY_DAY], project.root, project.spark, by_day)
    ranged = run(project, definitions, "by_day", tags={RANGE_START: "2026-01-02", RANGE_END: "2026-01-04"})
    evaluations = by_name(ranged)
    assert evaluations["by_day.schema"].passed
    rows = evaluations["by_day.row_count"]
    assert (rows.passed, rows.severity.value) == (False, "WARN")
    assert values(rows) == {
        "expected": "1 to 3 rows", "found": "0 to 5 rows", "partitions": 3, "delta/version": 1,
        "outside": {"2026-01-03": 5, "2026-01-04": 0},
    }  # fmt: skip
    assert ranged.success

    single = by_name(run(project, definitions, "by_day", partition_key="2026-01-02"))["by_day.row_count"]
    assert single.passed
    assert values(single) == {"expected": "1 to 3 rows", "found": "1 row", "partitions": 1, "delta/version": 2}

    shutil.rmtree(BY_DAY.location(project.root))
    alone = looked_at(BY_DAY, project.root, project.instance, "row_count")
    assert (alone.passed, values(alone)) == (True, values(single))


@classic_only
def test_a_blocking_check_keeps_what_is_downstream_from_starting_and_another_does_not(project: Project) -> None:
    """Both sources append one row, and then none: of an append the rows of the write count, not those of the table."""
    rows = [1]
    strict = numbers("strict", write=Append(), row_count=RowCount(minimum=1, blocking=True))
    lenient = numbers("lenient", write=Append(), row_count=RowCount(minimum=1))

    def source(dataset: Dataset) -> AssetsDefinition:
        @dataset_asset(dataset)
        def appended() -> pa.Table:
            return pa.table({"n": pa.array(rows, pa.int64())})

        return appended

    def reader(name: str, of: str) -> AssetsDefinition:
        @dataset_asset(numbers(name, reads=(of,)))
        def read() -> None: ...

        return read

    never = numbers("never")

    @dataset_asset(never)
    def stored_elsewhere() -> None: ...

    definitions = assembled(
        [strict, lenient, never],
        project.root,
        project.spark,
        source(strict),
        source(lenient),
        stored_elsewhere,
        reader("after_strict", "strict"),
        reader("after_lenient", "lenient"),
    )
    names = ("strict", "lenient", "after_strict", "after_lenient")
    first = run(project, definitions, *names, "never")
    evaluations = by_name(first)
    assert values(evaluations["strict.row_count"])["found"] == "1 row"
    assert evaluations["lenient.row_count"].passed
    assert "has no table yet" in evaluations["never.schema"].description
    rows.clear()
    second = run(project, definitions, *names, raise_on_error=False)
    evaluations = by_name(second)
    assert not second.success
    for name in ("strict", "lenient"):
        assert (evaluations[f"{name}.row_count"].passed, values(evaluations[f"{name}.row_count"])["found"]) == (
            False,
            "0 rows",
        )
    done = {event.step_key for event in second.get_step_success_events()}
    assert {"after_strict", "after_lenient"} & done == {"after_lenient"}


def test_a_prefix_moves_the_check_with_the_table(root: str, instance: DagsterInstance) -> None:
    feed(root)
    key, moved = AssetKey(["other"]), AssetKey(["fed", "table"])
    other = Dataset(**{**vars(FED), "name": "other"})
    (checks,) = dataset_checks([other])
    spark = Forbidden()
    definitions = Definitions(
        assets=[AssetSpec(moved)],
        asset_checks=[checks.with_attributes(asset_key_replacements={key: moved})],
        jobs=[define_asset_job("look", AssetSelection.all_asset_checks())],
        resources={"spark": spark, IO_MANAGER: DeltaIOManager(root=root, spark=spark)},
    )
    evaluations = by_name(definitions.resolve_job_def("look").execute_in_process(instance=instance))
    assert evaluations["fed/table.schema"].passed


def test_every_dataset_of_the_definitions_has_its_checks_also_where_keys_read_alike(settings: Settings) -> None:
    names = ["a/b/t", "b/t", "b__t", "my-asset", "my_asset", "v.2"]
    datasets = [numbers(name, row_count=RowCount(minimum=1)) for name in names]
    graph = build_definitions(settings, datasets=datasets).resolve_asset_graph()
    found = {(key.asset_key.to_user_string(), key.name) for key in graph.asset_check_keys}
    assert found == {(name, check) for name in names for check in ("schema", "row_count")}
