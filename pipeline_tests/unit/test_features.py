"""Features and policies as they are declared, and what a plan says of the clients that lose a table."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, DataType, IntegerType, LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Check, Dataset, Features, SchemaPolicy, StoragePolicy
from pipeline.dataset.features import KNOWN_FEATURES
from pipeline.dataset.policy import storage_confs, storage_properties
from pipeline.delta.log.snapshot import TableState
from pipeline.delta.spark.failures import Failure
from pipeline.delta.table.compatibility import CLIENTS, READER_FEATURES, clients_lost
from pipeline.delta.table.plan import declared_shape, observed_shape, plan, shape_differences
from pipeline.delta.table.steps import SetNotNull
from pipeline.errors import DeclarationError

ROWS = StructType([StructField("id", LongType(), False), StructField("text", StringType())])
PLAIN = Dataset(name="plain", schema=ROWS, write=Append())
STATE = TableState(
    location="/t", table_id="i", version=3, schema=ROWS, partition_by=(),
    properties={"delta.enableChangeDataFeed": "true"}, features=("appendOnly", "changeDataFeed", "invariants"),
    reader_version=1, writer_version=7,
)  # fmt: skip


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"properties": (("delta.targetFileSize", "1"),)}, "Delta 4.4.0 has no table property delta.targetFileSize"),
        ({"properties": (("delta.enableDeletionVector", "1"),)}, "did you mean delta.enableDeletionVectors"),
        ({"features": Features(others=("deletionVector",))}, "no table feature 'deletionVector'; did you mean"),
        ({"features": Features(cluster_by=("nope",))}, "cluster_by names 'nope'"),
        ({"features": Features(cluster_by=("id",)), "partition_by": ("id",)}, "cluster_by beside partition_by"),
        ({"features": Features(generated=(("text", "'a'"),), defaults=(("text", "'a'"),))}, "generated and has a"),
        ({"features": Features(column_mapping="names")}, "column_mapping 'names' is none of"),  # type: ignore[arg-type]
        (
            {"features": Features(row_tracking=True), "properties": (("delta.enablerowtracking", "true"),)},
            "is what features says",
        ),
        (
            {"storage": StoragePolicy(auto_compact=True), "properties": (("delta.autoOptimize.autoCompact", "true"),)},
            "is what storage says",
        ),
        ({"storage": StoragePolicy(codec="brotl")}, "codec 'brotl' is none of"),  # type: ignore[arg-type]
        ({"storage": StoragePolicy(statistics_columns=("nope",))}, "statistics_columns names 'nope'"),
        ({"storage": StoragePolicy(target_file_bytes=0)}, "target_file_bytes is not positive"),
        ({"storage": StoragePolicy(log_retention_hours=1, deleted_file_retention_hours=2)}, "log_retention_hours is"),
        ({"schema_policy": SchemaPolicy(mode="all")}, "mode 'all' is none of"),  # type: ignore[arg-type]
        ({"schema_policy": SchemaPolicy(drops=("old",))}, "need features.column_mapping"),
        ({"schema_policy": SchemaPolicy(renames=(("a", "b"),)), "features": Features(column_mapping="name")}, "to 'b'"),
        (
            {"schema_policy": SchemaPolicy(drops=("text",)), "features": Features(column_mapping="name")},
            "in the schema",
        ),
    ],
)
def test_what_contradicts_itself_or_delta_is_refused_where_it_is_declared(said: dict[str, Any], problem: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        replace(PLAIN, **said)
    assert any(problem in line for line in caught.value.problems), caught.value.problems


def test_names_that_parquet_refuses_are_allowed_where_columns_are_mapped() -> None:
    odd = StructType([StructField("Sales Order", LongType())])
    with pytest.raises(DeclarationError):
        replace(PLAIN, schema=odd)
    assert replace(PLAIN, schema=odd, features=Features(column_mapping="name")).schema.names == ["Sales Order"]


def test_a_table_as_declared_has_an_empty_plan_and_both_sides_are_of_one_shape() -> None:
    found = plan(PLAIN, STATE)
    assert (found.steps, found.problems, found.differs) == ((), (), False)
    assert shape_differences(PLAIN, STATE) == []
    assert declared_shape(PLAIN).schema == observed_shape(STATE).schema


def test_a_plan_says_which_clients_lose_the_table_and_is_one_json_document() -> None:
    dataset = replace(PLAIN, features=Features(deletion_vectors=True, type_widening=True))
    found = plan(dataset, STATE)
    first, second = found.losses()
    assert "deltalake 1.6 as pyarrow or pandas" in first.readers
    assert {"polars 2.1", "deltalake 1.6"} <= set(second.readers)
    assert "DuckDB's delta extension" not in second.readers
    document = json.loads(json.dumps(found.document()))
    assert [step["gains"] for step in document["steps"]] == [["deletionVectors"], ["typeWidening"]]
    assert document["steps"][1]["loses"]["readers"] == list(second.readers)
    assert found.is_automatic is False


def test_clients_know_features_that_there_are_and_ours_knows_all_that_can_be_declared() -> None:
    assert not any(client.reads - READER_FEATURES for client in CLIENTS)
    (ours,) = [client for client in CLIENTS if client.name.startswith("Delta 4.4")]
    assert ours.can_write(KNOWN_FEATURES)
    assert not clients_lost({"appendOnly"}, {"appendOnly"})


def test_not_null_of_a_column_made_without_it_is_held_by_a_check_and_counts_as_its_own() -> None:
    nullable = StructType([StructField("id", LongType()), ROWS["text"]])
    state = replace(STATE, schema=nullable)
    (step,) = plan(PLAIN, state).steps
    assert (step.kind, step.gains) == ("set not null", ("checkConstraints",))
    held = {"delta.constraints.not_null_id": "`id` IS NOT NULL", **STATE.properties}
    assert not plan(PLAIN, replace(state, properties=held)).differs
    assert shape_differences(PLAIN, replace(state, properties=held)) == []
    (relaxed,) = plan(replace(PLAIN, schema=nullable), replace(state, properties=held)).steps
    assert relaxed.statement("/t") == "ALTER TABLE delta.`/t` DROP CONSTRAINT IF EXISTS `not_null_id`"


@pytest.mark.parametrize("name", ["not_null_DayNo", "not_null_dayno", "not_null_anything"])
def test_a_check_that_enforces_not_null_is_known_by_its_condition(name: str) -> None:
    declared = replace(PLAIN, schema=StructType([StructField("DayNo", LongType(), False), ROWS["text"]]))
    nullable = StructType([StructField("DayNo", LongType()), ROWS["text"]])
    state = replace(
        STATE, schema=nullable, properties={f"delta.constraints.{name}": "`DayNo` IS NOT NULL", **STATE.properties}
    )
    assert plan(declared, state).steps == ()
    (relaxed,) = plan(replace(declared, schema=nullable), state).steps
    assert relaxed.action() == f"DROP CONSTRAINT IF EXISTS `{name}`"


@pytest.mark.parametrize(
    ("name", "declared", "stored", "is_same"),
    [
        ("small", "length(text)<9 AND `id`>=1", "length ( text ) < 9 AND `id` >= 1", True),
        ("Small", "id>0", "id > 0", True),
        ("small", "text <> 'a  b'", "text <> 'a b'", False),
        ("small", "`a b` > 0", "`ab` > 0", False),
        ("small", "id > 0", "id > 1", False),
    ],
)
def test_a_check_that_delta_has_stored_in_its_own_form_is_no_difference(
    name: str, declared: str, stored: str, is_same: bool
) -> None:
    dataset = replace(PLAIN, checks=(Check(name, declared),))
    state = replace(STATE, properties={"delta.constraints.small": stored, **STATE.properties})
    assert (plan(dataset, state).steps == ()) is is_same
    assert (shape_differences(dataset, state) == []) is is_same


def test_columns_that_differ_by_a_dot_have_not_null_checks_of_their_own() -> None:
    def schema(*, nullable: bool) -> StructType:
        inner = StructType([StructField("b", LongType(), nullable)])
        own = [
            StructField("a", inner),
            StructField("a_b", LongType(), nullable),
            StructField("c.d", LongType(), nullable),
        ]
        return StructType(own)

    mapped = Features(column_mapping="name")
    declared = replace(PLAIN, schema=schema(nullable=False), features=mapped)
    properties = {**STATE.properties, "delta.columnMapping.mode": "name"}
    state = replace(
        STATE, schema=schema(nullable=True), properties=properties, features=("columnMapping", "checkConstraints")
    )
    steps = [step for step in plan(declared, state).steps if isinstance(step, SetNotNull)]
    assert [step.path for step in steps] == [("a", "b"), ("a_b",), ("c.d",)]
    assert len({step.check.lower() for step in steps}) == 3
    checks = {f"delta.constraints.{step.check.lower()}": step.condition for step in steps}
    assert plan(declared, replace(state, properties=properties | checks)).steps == ()


def test_properties_that_differ_by_case_only_are_refused() -> None:
    with pytest.raises(DeclarationError) as caught:
        replace(PLAIN, properties=(("team.Owner", "x"), ("team.owner", "y")))
    assert caught.value.problems == (
        "properties team.Owner, team.owner are one property for Delta, which compares names without regard to case",
    )


@pytest.mark.parametrize("data_type", [StructType([StructField("b", LongType())]), ArrayType(LongType())])
def test_a_column_with_the_dotted_name_of_a_field_inside_another_is_refused(data_type: DataType) -> None:
    inner = "A.B" if isinstance(data_type, StructType) else "a.element"
    columns = StructType([StructField("a", data_type), StructField(inner, LongType())])
    with pytest.raises(DeclarationError) as caught:
        replace(PLAIN, schema=columns, keys=(), features=Features(column_mapping="name"))
    assert any(f"column {inner!r} has the dotted name of a field" in line for line in caught.value.problems)


@pytest.mark.parametrize(
    "form", ["LookupError: no entry\nSQLSTATE: 38000", "LookupError: no entry\n  SQLSTATE: 38000\n\n"]
)
def test_an_error_of_a_users_function_is_summed_up_by_the_last_line_of_its_trace(form: str) -> None:
    failure = Failure((), ("38000",), ("PythonException",), f"An exception was thrown:\nTraceback\n  File x\n{form}")
    assert failure.summary == "LookupError: no entry"


@pytest.mark.parametrize(("name", "value", "other"), [("owner", "Ann", "ann"), ("delta.appendOnly", "true", "TRUE")])
def test_a_property_of_the_users_own_differs_by_case_and_one_of_delta_s_does_not(
    name: str, value: str, other: str
) -> None:
    declared = replace(PLAIN, properties=((name, value),))
    steps = plan(declared, replace(STATE, properties={**STATE.properties, name: other})).steps
    assert [step.kind for step in steps] == (["set property"] if name == "owner" else [])


def test_a_type_is_only_widened_where_that_is_declared() -> None:
    narrow = StructType([StructField("id", IntegerType(), False), ROWS["text"]])
    found = plan(PLAIN, replace(STATE, schema=narrow))
    assert found.problems == ("column id: declared bigint, the table has int; features.type_widening would widen it",)
    assert shape_differences(PLAIN, replace(STATE, schema=narrow)) == [
        "column id: declared bigint NOT NULL, the table has int NOT NULL"
    ]


def test_a_changed_check_is_dropped_before_it_is_added_and_is_one_difference() -> None:
    dataset = replace(PLAIN, checks=(Check("positive", "id > 0"),))
    state = replace(STATE, properties={"delta.constraints.positive": "id > 1", **STATE.properties})
    assert [step.kind for step in plan(dataset, state).steps] == ["drop check", "add check"]
    assert shape_differences(dataset, state) == [
        "property delta.constraints.positive: declared 'id > 0', the table has 'id > 1'"
    ]


def test_what_delta_asks_the_session_follows_from_the_tables_properties() -> None:
    assert storage_confs({}) == {}
    said = storage_properties(StoragePolicy(codec="zstd", target_file_bytes=64 * 2**20))
    assert storage_confs(said) == {
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.databricks.delta.optimize.maxFileSize": "67108864",
        "spark.databricks.delta.optimize.minFileSize": "33554432",
        "spark.databricks.delta.autoCompact.maxFileSize": "67108864",
        "spark.databricks.delta.optimizeWrite.binSize": "64m",
    }
