"""Tables by their names: registered before the first row, found by others, never in the place of another entry."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import DagsterInstance, asset, materialize
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.dataset import Append, Check, Dataset, Features, Replace, SchemaPolicy
from pipeline.delta.log.mark import clone_session, release_session
from pipeline.delta.sink.sink import DeltaSink, SinkSettings
from pipeline.delta.table.open_table import conform, open_or_create
from pipeline.errors import CatalogError, TableNameTakenError, TableNotFoundError
from pipeline.orchestration import DeltaIOManager, DeltaSparkResource, dataset_asset
from pipeline.settings import Settings, SparkSettings
from pipeline_tests.conftest import brief_conf
from pipeline_tests.delta.operator import Operator
from pipeline_tests.delta.sample import (
    APPENDED,
    DAYS,
    day,
    days,
    jobs,
    placed,
    put,
    rows_of,
    versions_of,
)
from pipeline_tests.remedies import follows, invoke, refused

exhaustive = pytest.mark.exhaustive

ONE = StructType([StructField("n", LongType())])


@pytest.fixture
def schema(spark: SparkSession) -> Iterator[str]:
    """The name of a schema that does not exist yet."""
    yield from dropped_afterwards(spark)


@pytest.fixture
def classic_schema(classic: SparkSession) -> Iterator[str]:
    yield from dropped_afterwards(classic)


def dropped_afterwards(session: SparkSession) -> Iterator[str]:
    name = f"s_{uuid.uuid4().hex[:8]}"
    yield name
    session.sql(f"DROP SCHEMA IF EXISTS {name} CASCADE")


def rows_by_name(session: SparkSession, name: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, session.table(name).collect()))


@pytest.mark.both_modes
def test_a_table_is_registered_with_its_schema_and_found_by_its_name_and_registering_commits_nothing(
    spark: SparkSession, root: str, schema: str
) -> None:
    dataset = replace(APPENDED, table_name=f"{schema}.Days")

    put(spark, dataset, root, [(day(1), 1, "a")])

    assert versions_of(dataset, root) == [0, 1]
    assert rows_by_name(spark, f"{schema}.days") == [(day(1), 1, "a")]
    # The entry goes and the table stays; the next write registers it again.
    spark.sql(f"DROP TABLE {schema}.days")
    put(spark, dataset, root, [(day(1), 2, "b")])
    assert versions_of(dataset, root) == [0, 1, 2]
    assert rows_by_name(spark, f"spark_catalog.{schema}.days") == rows_of(dataset, root)
    assert len(rows_of(dataset, root)) == 2


@exhaustive
def test_a_write_to_a_registered_table_runs_no_further_spark_job_and_the_first_one_none_either(
    classic: SparkSession, root: str, classic_schema: str
) -> None:
    named = replace(APPENDED, table_name=f"{classic_schema}.days")

    def cost(dataset: Dataset, folder: str) -> list[int]:
        counts = []
        for number in range(3):
            before = jobs(classic)
            put(classic, dataset, folder, [(day(1), number, "a")])
            counts.append(jobs(classic) - before)
        return counts

    cost(APPENDED, f"{root}/warm")
    assert cost(named, f"{root}/named") == cost(APPENDED, f"{root}/unnamed")


# --- a name that something else has -----------------------------------------------------------------------------------


def of_another_table(session: SparkSession, name: str, folder: Path) -> str:
    placed(session, APPENDED, str(folder), [(day(1), 1, "other")])
    session.sql(f"CREATE TABLE {name} USING delta LOCATION '{folder}/days'")
    return "Delta table"


def of_a_view(session: SparkSession, name: str, folder: Path) -> str:
    session.sql(f"CREATE VIEW {name} AS SELECT 1 AS n")
    return "view"


def of_parquet(session: SparkSession, name: str, folder: Path) -> str:
    session.sql(f"CREATE TABLE {name} (day DATE) USING parquet LOCATION '{folder}/days'")
    return "table in the format parquet"


TAKEN = {"another location": of_another_table, "a view": of_a_view, "a Parquet table": of_parquet}


@exhaustive
@pytest.mark.parametrize("taken", TAKEN)
@pytest.mark.parametrize("exists", [False, True], ids=["new table", "existing table"])
def test_a_name_that_something_else_has_is_refused_before_anything_is_written_and_stays_as_it_is(
    spark: SparkSession, root: str, schema: str, tmp_path: Path, taken: str, exists: bool
) -> None:
    dataset = replace(APPENDED, table_name=f"{schema}.days")
    if exists:
        put(spark, APPENDED, root, [(day(1), 1, "a")])
    spark.sql(f"CREATE SCHEMA {schema}")
    kind = TAKEN[taken](spark, f"{schema}.days", tmp_path / "other")
    before = spark.sql(f"SHOW TABLE EXTENDED IN {schema} LIKE 'days'").collect()

    for call in (lambda: put(spark, dataset, root, [(day(1), 2, "b")]), lambda: conform(spark, dataset.at(root))):
        with pytest.raises(TableNameTakenError) as caught:
            call()
        error = caught.value
        assert (error.dataset, error.location, error.table_name) == ("days", f"{root}/days", f"{schema}.days")
        assert (error.found, error.is_delta) == (kind, kind == "Delta table")
        assert error.registered_location == ("" if kind == "view" else f"file:{tmp_path}/other/days")

    assert Path(f"{root}/days").exists() is exists
    assert not exists or versions_of(dataset, root) == [0, 1]
    assert spark.sql(f"SHOW TABLE EXTENDED IN {schema} LIKE 'days'").collect() == before


@follows(TableNameTakenError)
def test_an_entry_at_the_old_location_is_pointed_to_the_table_by_hand(
    classic: SparkSession, root: str, classic_schema: str, tmp_path: Path
) -> None:
    dataset = replace(APPENDED, table_name=f"{classic_schema}.days")
    placed(classic, APPENDED, root, [(day(1), 1, "a")])
    conform(classic, dataset.at(root))
    moved = str(tmp_path / "moved")
    Path(root).rename(moved)

    def again() -> object:
        return put(classic, dataset, moved, [(day(1), 2, "b")])

    advice = f"ALTER TABLE {classic_schema}.days SET LOCATION '{moved}/days'"
    refused(TableNameTakenError, again, advice, "another table_name")
    # Delta compares the schemas, so both have to exist.
    placed(classic, APPENDED, root, [])
    classic.sql(advice)
    again()
    assert rows_by_name(classic, f"{classic_schema}.days") == [(day(1), 1, "a"), (day(1), 2, "b")]


@exhaustive
def test_a_temporary_view_of_the_same_name_is_no_entry(spark: SparkSession, root: str) -> None:
    name = f"t_{uuid.uuid4().hex[:8]}"
    dataset = replace(APPENDED, table_name=name)
    spark.sql("SELECT 1 AS n").createTempView(name)
    try:
        put(spark, dataset, root, [(day(1), 1, "a")])
        assert rows_by_name(spark, f"default.{name}") == [(day(1), 1, "a")]
    finally:
        spark.catalog.dropTempView(name)
        spark.sql(f"DROP TABLE default.{name}")


# --- names that a catalog refuses -------------------------------------------------------------------------------------


@exhaustive
def test_words_of_sql_and_numbers_between_backquotes_are_names(spark: SparkSession, root: str, schema: str) -> None:
    dataset = replace(APPENDED, table_name=f"`spark_catalog`.{schema}.`select`")
    other = replace(APPENDED, name="other", table_name=f"{schema}.`1e5`")
    for one in (dataset, other):
        put(spark, one, root, [(day(1), 1, one.name)])
        assert rows_by_name(spark, str(one.table_name)) == [(day(1), 1, one.name)]


@follows(CatalogError)
@exhaustive
def test_a_name_that_the_catalog_does_not_allow_is_refused_before_the_first_row(
    spark: SparkSession, root: str, schema: str
) -> None:
    strange = replace(APPENDED, table_name=f"{schema}.`my-da``ys | * (1)`")

    error = refused(
        CatalogError, lambda: put(spark, strange, root, [(day(1), 1, "a")]), "change table_name of 'days'", "scaling"
    )

    assert (error.version, error.table_name) == (0, strange.table_name)
    assert versions_of(strange, root) == [0]
    assert not spark.catalog.databaseExists(schema)
    plain = replace(strange, table_name=f"{schema}.my_days")
    put(spark, plain, root, [(day(1), 1, "a")])
    assert rows_by_name(spark, f"{schema}.my_days") == [(day(1), 1, "a")]


@exhaustive
def test_a_catalog_that_does_not_exist_is_refused_before_anything_is_written(spark: SparkSession, root: str) -> None:
    dataset = replace(APPENDED, table_name="nowhere.silver.days")
    with pytest.raises(
        CatalogError, match=r"can't be registered as nowhere\.silver\.days; nothing was written"
    ) as caught:
        put(spark, dataset, root, [(day(1), 1, "a")])
    assert caught.value.version is None
    assert not Path(f"{root}/days").exists()


# --- every kind of table ----------------------------------------------------------------------------------------------

KINDS: dict[str, dict[str, Any]] = {
    "clustered": {"partition_by": (), "features": Features(cluster_by=("id",))},
    "mapped columns": {"features": Features(column_mapping="name", deletion_vectors=True)},
    "generated and defaults": {"features": Features(generated=(("text", "CAST(id AS STRING)"),))},
    "checks": {"checks": (Check("positive", "id > 0"),), "description": "Type: VIEW\nProvider: parquet\nLocation: x"},
}


@exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_table_is_registered_without_a_commit(
    classic: SparkSession, root: str, classic_schema: str, kind: str
) -> None:
    dataset = replace(days(Append(), **KINDS[kind]), table_name=f"{classic_schema}.days")
    for _ in range(2):
        open_or_create(classic, dataset.at(root))
    assert versions_of(dataset, root) == [0]
    assert classic.table(f"{classic_schema}.days").columns == DAYS.names


@exhaustive
@pytest.mark.parametrize("folder", ["with space", "100%", "a%20b", "ümläut", "it's", "a#b", "back\\slash"])
def test_a_location_with_any_characters_is_the_registered_one(
    classic: SparkSession, root: str, classic_schema: str, folder: str
) -> None:
    dataset = replace(APPENDED, table_name=f"{classic_schema}.days")
    for number in (1, 2):
        put(classic, dataset, f"{root}/{folder}", [(day(1), number, "a")])
    assert len(rows_by_name(classic, f"{classic_schema}.days")) == 2


@exhaustive
def test_quarantined_rows_have_a_name_of_their_own(classic: SparkSession, root: str, classic_schema: str) -> None:
    check = Check("positive", "id > 0", on_violation="quarantine")
    dataset = days(Append(), checks=(check,), table_name=f"{classic_schema}.days")
    put(classic, dataset, root, [(day(1), 1, "a"), (day(1), -1, "bad")])
    assert rows_by_name(classic, f"{classic_schema}.days") == [(day(1), 1, "a")]
    assert classic.table(f"{classic_schema}.days__quarantine").count() == 1


@exhaustive
def test_a_replaced_schema_is_that_of_the_name_too(classic: SparkSession, root: str, classic_schema: str) -> None:
    first = Dataset(name="numbers", schema=ONE, write=Replace(), table_name=f"{classic_schema}.numbers")
    wider = replace(
        first,
        schema=StructType([*ONE.fields, StructField("m", LongType())]),
        schema_policy=SchemaPolicy(mode="overwrite"),
    )
    put(classic, first, root, [(1,)])
    put(classic, wider, root, [(1, 2)])
    assert rows_by_name(classic, f"{classic_schema}.numbers") == [(1, 2)]


@exhaustive
def test_writers_that_register_at_the_same_time_all_write(
    classic: SparkSession, root: str, classic_schema: str
) -> None:
    dataset = replace(APPENDED, table_name=f"{classic_schema}.days")
    clones = [clone_session(classic) for _ in range(4)]
    try:
        with ThreadPoolExecutor(len(clones)) as pool:
            list(pool.map(lambda at: put(clones[at], dataset, root, [(day(1), at, "a")]), range(len(clones))))
    finally:
        for clone in clones:
            release_session(clone)
    assert [row[1] for row in rows_by_name(classic, f"{classic_schema}.days")] == [0, 1, 2, 3]


# --- who registers ----------------------------------------------------------------------------------------------------


@exhaustive
def test_conform_registers_a_table_that_exists_and_only_such_a_one(spark: SparkSession, root: str, schema: str) -> None:
    dataset = replace(APPENDED, table_name=f"{schema}.days")
    with pytest.raises(TableNotFoundError):
        conform(spark, dataset.at(root))
    put(spark, APPENDED, root, [(day(1), 1, "a")])
    assert [conform(spark, dataset.at(root)).registered_as for _ in range(2)] == [f"{schema}.days", None]
    assert versions_of(dataset, root) == [0, 1]
    assert rows_by_name(spark, f"{schema}.days") == [(day(1), 1, "a")]


@exhaustive
def test_the_commands_show_the_name_that_the_setting_gives_and_register_it(
    classic: SparkSession, classic_schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = Operator.of(classic, tmp_path, monkeypatch)
    operator.declare(APPENDED)
    placed(classic, APPENDED, operator.root, [(day(1), 1, "a")])
    monkeypatch.setenv("PIPELINE_CATALOG", f"spark_catalog.{classic_schema}")
    name = f"spark_catalog.{classic_schema}.days"

    assert f"register as {name}, if it is not registered yet" in operator.run("conform", "plan")
    assert operator.json("conform", "plan")[0]["table_name"] == name
    assert operator.json("show", "days")["table_name"] == name
    assert name in operator.run("show", "days")
    assert operator.json("registry")[0]["table_name"] == name
    assert f"registered as {name}" in operator.run("conform", "apply")
    assert operator.json("conform", "apply")[0]["registered_as"] is None
    assert rows_by_name(classic, name) == [(day(1), 1, "a")]
    monkeypatch.setenv("PIPELINE_CATALOG", "a.b.c")
    assert "The setting catalog can't be used" in invoke(("show",), {})[0].stderr


@exhaustive
def test_a_run_registers_what_it_writes_under_the_name_in_its_metadata(
    classic: SparkSession, spark_settings: SparkSettings, root: str, classic_schema: str
) -> None:
    dataset = Dataset(name="deep/merged", schema=ONE)

    @dataset_asset(dataset)
    def merged() -> pa.Table:
        return pa.table({"n": [1]})

    @asset(io_manager_key="delta_io_manager")
    def plain() -> pa.Table:
        return pa.table({"n": [2]})

    spark = DeltaSparkResource.from_settings(spark_settings)
    manager = DeltaIOManager(root=root, spark=spark, catalog=f"spark_catalog.{classic_schema}")
    with DagsterInstance.ephemeral() as instance:
        resources = {"spark": spark, "delta_io_manager": manager}
        result = materialize([merged, plain], resources=resources, instance=instance)
    names = [
        event.materialization.metadata["dagster/table_name"].value
        for event in result.all_events
        if event.is_step_materialization
    ]
    assert sorted(names) == [f"spark_catalog.{classic_schema}.{name}" for name in ("deep_merged", "plain")]
    assert [rows_by_name(classic, name) for name in sorted(names)] == [[(1,)], [(2,)]]


@exhaustive
def test_a_sink_registers_its_table(classic: SparkSession, settings: Settings, classic_schema: str) -> None:
    dataset = Dataset(name="numbers", schema=ONE, write=Append())
    named = replace(settings, catalog=f"spark_catalog.{classic_schema}")
    with DeltaSink(dataset, "test", named, SinkSettings(flush_seconds=600)) as sink:
        sink.submit({"n": 1})
        assert sink.flush(120.0) == 1
    assert rows_by_name(classic, f"{classic_schema}.numbers") == [(1,)]


# --- a catalog that outlives the process ------------------------------------------------------------------------------


@exhaustive
def test_another_process_finds_a_table_of_a_hive_catalog_by_its_name(
    tmp_path: Path, spark_settings: SparkSettings
) -> None:
    """The catalog is the one that pyspark ships: Hive's, with its tables in a Derby folder."""
    ((_, options),) = brief_conf(spark_settings)

    def run(verb: str) -> Any:
        arguments = [str(tmp_path), str(spark_settings.cache), options, verb]
        child = subprocess.run(
            [sys.executable, "-m", "pipeline_tests.children.naming", *arguments],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert child.returncode == 0, child.stderr
        return json.loads(child.stdout.splitlines()[-1])

    first = [["2026-01-01", 1, "write"]]
    assert run("write") == {"rows": first, "versions": [0, 1]}
    assert run("read") == {"rows": first, "versions": [0, 1]}
    assert run("write") == {"rows": [*first, ["2026-01-03", 3, "write"]], "versions": [0, 1, 2]}
