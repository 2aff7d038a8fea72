"""Constraints and expectations in Dagster: counts where the UI shows them, and what a failure keeps from starting."""

from typing import Any

import pyarrow as pa
import pytest
from dagster import AssetKey, AssetsDefinition, DagsterEventType, build_sensor_context
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Check, Dataset, Expect, Merge, NotNull, References, Registry, RowCount, Unique
from pipeline.delta.inspect.manifest import manifest
from pipeline.errors import DeclarationError, RegistryError
from pipeline.orchestration import DeltaIOManager, DeltaSparkResource, build_definitions, dataset_asset
from pipeline.orchestration.checks import quality_checks
from pipeline.settings import Settings
from pipeline_tests.orchestration.conftest import Project

ROW = StructType([StructField("id", LongType(), False), StructField("code", StringType())])
CODES = Dataset(name="codes", schema=StructType([StructField("code", StringType())]), change_feed=False)
ORDERS = Dataset(
    name="orders",
    schema=ROW,
    reads=("codes",),
    not_null=(NotNull("id", on_violation="quarantine", blocking=True),),
    checks=(Check("short", "length(code) < 3", on_violation="drop", severity="warn"), Check("positive", "id > 0")),
    expectations=(Unique(("id",), severity="warn"), References(("code",), "codes", severity="warn")),
    change_feed=False,
)
AFTER = Dataset(name="after", schema=ROW, reads=("orders",), change_feed=False)
classic_only = pytest.mark.parametrize("spark_resource", ["classic"], indirect=True)


def assets(rows: list[tuple[Any, ...]]) -> list[AssetsDefinition]:
    @dataset_asset(CODES)
    def codes() -> pa.Table:
        return pa.table({"code": ["a", "b"]})

    @dataset_asset(ORDERS)
    def orders() -> pa.Table:
        ids, given = zip(*rows, strict=True)
        return pa.table({"id": pa.array(ids, pa.int64()), "code": pa.array(given, pa.string())})

    @dataset_asset(AFTER)
    def after(orders: pa.Table) -> pa.Table:
        return orders

    return [codes, orders, after]


@classic_only
def test_a_blocking_constraint_stops_what_is_downstream_and_its_counts_are_in_the_check(
    project: Project, settings: Settings
) -> None:
    rows: list[tuple[Any, ...]] = [(1, "a"), (None, "a"), (None, "b"), (2, "long"), (3, "x"), (3, "b")]
    datasets, resources = (CODES, ORDERS, AFTER), project.resources()
    definitions = build_definitions(settings, datasets=datasets, assets=assets(rows), resources=resources)
    job = definitions.resolve_implicit_global_asset_job_def()
    selection = [AssetKey(dataset.name) for dataset in datasets]
    result = job.execute_in_process(instance=project.instance, asset_selection=selection, raise_on_error=False)

    assert not result.success
    assert "after" not in {event.step_key for event in result.get_step_success_events()}
    found = {one.check_name: one for one in result.get_asset_check_evaluations() if one.asset_key.path == ["orders"]}
    told = {
        name: (one.passed, one.severity.value, one.metadata["rows"].value, one.metadata["examples"].value)
        for name, one in found.items()
        if name != "schema"
    }
    assert told == {
        "not_null_id": (False, "ERROR", 2, ["id = NULL, code = a", "id = NULL, code = b"]),
        "check_short": (False, "WARN", 1, ["id = 2, code = long"]),
        "check_positive": (True, "ERROR", 0, []),
        "unique_id": (False, "WARN", 2, ["id = 3"]),
        "code_in_codes": (False, "WARN", 1, ["code = x"]),
    }
    # Of the version that this run has written, held to the version of the other table that it has read.
    assert found["code_in_codes"].metadata["delta/version"].value == project.version(ORDERS)
    assert found["code_in_codes"].metadata["delta/held_to_version"].value == project.version(CODES)

    records = project.instance.get_records_for_run(result.run_id, of_type=DagsterEventType.ASSET_MATERIALIZATION)
    events = [record.event_log_entry.asset_materialization for record in records.records]
    metadata = {"/".join(e.asset_key.path): {k: v.value for k, v in e.metadata.items()} for e in events if e}
    assert metadata["orders"]["delta/violations"]["id IS NULL"]["rows"] == 2
    assert (metadata["orders"]["delta/rows_quarantined"], metadata["orders"]["delta/rows_dropped"]) == (2, 1)
    apart = metadata["orders__quarantine"]
    assert (apart["delta/rows_written"], apart["delta/version"]) == (2, metadata["orders"]["delta/quarantine_version"])
    assert definitions.resolve_asset_graph().get(AssetKey("orders__quarantine")).parent_keys == {AssetKey("orders")}
    (sensor,) = definitions.sensors or ()
    tick = sensor.evaluate_tick(build_sensor_context(instance=project.instance, definitions=definitions))
    assert not tick.asset_events, "the run itself has told of the quarantine"

    kept = {record.name: record for record in manifest(project.root, result.run_id)}
    assert {v["constraint"]: v["rows"] for v in kept["orders"].violations} == {
        "id IS NULL": 2, "short": 1, "positive": 0,
    }  # fmt: skip
    assert kept["orders__quarantine"].rows_written == 2


def test_the_counts_of_one_commit_count_once_however_many_partitions_it_is_told_of() -> None:
    counted = {"rows": 2, "examples": ["id = 2"]}
    first, second = ({"delta/version": n, "delta/violations": {"short": counted}} for n in (4, 5))
    found = quality_checks.result(
        AssetKey("orders"), "check_short", dataset=ORDERS, written={"a": first, "b": first, "c": second},
        manager=DeltaIOManager(root="/nowhere", spark=DeltaSparkResource()),
    )  # fmt: skip
    assert (found.passed, found.metadata["rows"].value, found.metadata["delta/version"].value) == (False, 4, 5)


def test_the_quarantine_of_a_table_that_is_written_elsewhere_is_watched(settings: Settings) -> None:
    elsewhere = build_definitions(settings, datasets=(CODES, ORDERS))
    assert [sensor.name for sensor in elsewhere.sensors or ()] == ["table_versions"]


def test_a_quarantine_is_known_by_its_name_and_nobody_elses(root: str) -> None:
    registry = Registry([CODES, ORDERS])
    assert registry.names == ("codes", "orders", "orders__quarantine")
    assert registry.get("orders__quarantine").schema.names[-3:] == ["_set_apart_at", "id", "code"]
    with pytest.raises(RegistryError, match="orders__quarantine"):
        Registry([CODES, ORDERS, Dataset(name="orders__quarantine", schema=ROW)])


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({"not_null": (NotNull("code"),)}, "not_null code: no column of that name is declared NOT NULL"),
        ({"not_null": (NotNull("id"), NotNull("id"))}, "not_null names id twice"),
        ({"checks": (Check("c", "TRUE", on_violation="keep"),)}, "on_violation 'keep' is none of fail, drop"),  # type: ignore[arg-type]
        ({"checks": (Check("c", "TRUE", severity="warn", blocking=True),)}, "a warning blocks nothing"),
        (
            {
                "checks": (Check("c", "TRUE", on_violation="drop"),),
                "write": Merge(delete_missing=True),
                "keys": ("id",),
            },
            "check c: delete_missing would also delete the table's row of a row that is left out",
        ),
        ({"expectations": (Unique(("other",)),)}, "column 'other' is not in the schema"),
        ({"expectations": (Unique(("id",)), Unique(("id",)))}, "unique_id is declared twice"),
        ({"expectations": (References(("id",), "codes", ("a", "b")),)}, "1 columns can't be those of 2"),
        ({"expectations": (Expect("", "TRUE"),)}, "expectation expect_: its name or its SQL is empty"),
        ({"expectations": (Expect("e", "TRUE", over="rows"),)}, "over 'rows' is neither write nor table"),  # type: ignore[arg-type]
        ({"expectations": (Expect("e", "TRUE"), Expect("e", "FALSE"))}, "expect_e is declared twice"),
        ({"expectations": (Expect("e", "TRUE", severity="warn", blocking=True),)}, "a warning blocks nothing"),
        ({"expectations": (Expect("e", "TRUE", over="write"),), "change_feed": False}, "declare change_feed, or audit"),
        ({"audit": "during"}, "audit 'during' is neither after nor before"),
        ({"audit": "before"}, "audit='before' refuses no write: declare blocking=True"),
        ({"audit": "before", "expectations": (Expect("e", "TRUE"),)}, "audit='before' refuses no write"),
        (
            {
                "audit": "before",
                "row_count": RowCount(minimum=1, blocking=True),
                "schema": StructType([StructField("_write", LongType())]),
            },
            "column '_write' has a name that the table of rejected writes adds",
        ),
    ],
    ids=str,
)
def test_what_contradicts_itself_is_refused_where_it_is_declared(declared: dict[str, Any], problem: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        Dataset(**{"name": "d", "schema": ROW, "write": Append()} | declared)
    assert problem in str(caught.value)
