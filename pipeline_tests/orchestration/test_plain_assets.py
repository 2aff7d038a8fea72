"""`DeltaIOManager` alone in a project that knows nothing else of this package: assets that carry no dataset."""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from dagster import (
    AssetKey,
    AssetsDefinition,
    AssetSpec,
    DagsterInstance,
    DailyPartitionsDefinition,
    ExecuteInProcessResult,
    MetadataValue,
    MultiPartitionsDefinition,
    PartitionsDefinition,
    StaticPartitionsDefinition,
    asset,
    materialize,
)
from deltalake import DeltaTable
from pyspark.sql import DataFrame

from pipeline.errors import DeclarationError, FrameMismatchError, TableNotFoundError
from pipeline.orchestration import DeltaIOManager, DeltaSparkResource
from pipeline.settings import SparkSettings
from pipeline_tests.delta.sample import ordered
from pipeline_tests.refusals import refused

DAILY = DailyPartitionsDefinition("2026-01-01", end_date="2026-01-08")
BY_DAY = {"partition_expr": "day"}


def day(number: int) -> dt.date:
    return dt.date(2026, 1, number)


@dataclass
class Foreign:
    """A project with the IO manager under Dagster's default key, and no other resource."""

    root: str
    spark: DeltaSparkResource
    instance: DagsterInstance

    def run(self, *assets: AssetsDefinition, resources: Any = None, **options: Any) -> ExecuteInProcessResult:
        bound = resources or {"io_manager": DeltaIOManager(root=self.root, spark=self.spark)}
        return materialize(assets, resources=bound, instance=self.instance, **options)

    def table(self, name: str) -> DeltaTable:
        return DeltaTable(f"{self.root}/{name}")

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        return ordered(tuple(row.values()) for row in self.table(name).to_pyarrow_table().to_pylist())

    def is_there(self, name: str) -> bool:
        return Path(f"{self.root}/{name}").exists()


@pytest.fixture
def foreign(root: str, classic: Any, spark_settings: SparkSettings) -> Iterator[Foreign]:
    with DagsterInstance.ephemeral() as instance:
        yield Foreign(root, DeltaSparkResource.from_settings(spark_settings), instance)


def plain(
    frame: Any,
    *,
    key: str = "readings",
    metadata: dict[str, Any] | None = None,
    partitions_def: PartitionsDefinition | None = None,
) -> AssetsDefinition:
    """A plain asset that returns that frame."""

    @asset(key=AssetKey(key.split("/")), metadata=metadata, partitions_def=partitions_def)
    def plain_asset() -> Any:
        return frame

    return plain_asset


def readings(number: int, *values: float | None) -> pd.DataFrame:
    return pd.DataFrame({"day": [day(number)] * len(values), "value": list(values)})


@pytest.mark.exhaustive
def test_a_partitioned_asset_s_table_follows_its_frame_and_its_partition_expr_and_is_read_by_others(
    foreign: Foreign,
) -> None:
    seen: dict[str, Any] = {}

    @asset(partitions_def=DAILY, metadata={"partition_expr": MetadataValue.text("day")})
    def measured(context) -> pd.DataFrame:
        number = int(context.partition_key[-2:])
        return pd.DataFrame({"value": [number / 2, None], "day": [day(number)] * 2, "text": ["a", None]})

    @asset(partitions_def=DAILY)
    def same_day(measured: pa.Table) -> None:
        seen["same_day"] = measured.to_pylist()

    @asset
    def whole(measured: DataFrame) -> pl.DataFrame:
        return pl.DataFrame({"rows": [measured.count()]})

    foreign.run(measured, partition_key="2026-01-02")
    foreign.run(measured, partition_key="2026-01-03")
    result = foreign.run(measured, same_day, partition_key="2026-01-03")
    foreign.run(measured, whole, selection=[whole])
    fields = foreign.table("measured").schema().fields
    assert [(f.name, str(f.type), f.nullable) for f in fields] == [
        ("value", 'PrimitiveType("double")', True),
        ("day", 'PrimitiveType("date")', True),
        ("text", 'PrimitiveType("string")', True),
    ]
    assert foreign.table("measured").metadata().partition_columns == ["day"]
    assert foreign.table("measured").version() == 3
    expected = [(1.0, day(2), "a"), (1.5, day(3), "a"), (None, day(2), None), (None, day(3), None)]
    assert foreign.rows("measured") == ordered(expected)
    assert [row["value"] for row in seen["same_day"]] == [1.5, None]
    assert foreign.rows("whole") == [(4,)]
    (event,) = result.asset_materializations_for_node("measured")
    assert event.metadata["delta/version"].value == 3
    assert event.metadata["dagster/partition_row_count"].value == 2


def test_the_table_is_the_declaration_of_every_later_frame(foreign: Foreign) -> None:
    """A frame of other columns would change the table by accident; one that fits by value is written."""
    foreign.run(plain(pd.DataFrame({"n": [1, 2], "text": ["a", "b"]})))
    with refused(FrameMismatchError) as caught:
        foreign.run(plain(pd.DataFrame({"n": ["x"], "more": [1]})))
    assert caught.value.table_declares
    assert [difference.split(":")[0] for difference in caught.value.differences] == [
        "column text", "column more", "column n",
    ]  # fmt: skip
    assert "another asset key" in caught.value.remedy()
    assert foreign.table("readings").version() == 1
    # Of integers pandas makes floats as soon as one is missing.
    foreign.run(plain(pd.DataFrame({"text": ["c", None], "n": [3, None]})))
    assert foreign.rows("readings") == ordered([(3, "c"), (None, None)])


@pytest.mark.parametrize(
    ("frame", "metadata", "partitions_def", "said"),
    [
        (readings(1, 1.0), {}, DAILY, "name the column of its keys as 'partition_expr'"),
        (readings(1, 1.0), {"partition_expr": "hour"}, DAILY, "partition column 'hour' is not in the schema"),
        (readings(1, 1.0), {"partition_expr": "day OR 1=1"}, DAILY, "'day OR 1=1' is not in the schema"),
        (readings(1, 1.0), {"delta/write_mode": "upsert"}, None, "'replace' or 'merge' or 'insert_new'"),
        (readings(1, 1.0), {"delta/order_by": "value"}, None, "expected one column, and only for a merge"),
        (readings(1, 1.0), {"delta/write_mode": "merge"}, None, "Merge needs keys"),
        (readings(1, 1.0), {"delta/keys": ["id"]}, None, "key column 'id' is not in the schema"),
        (pa.table({"n": pa.nulls(2), "m": [1, 2]}), {}, None, "column 'n' has type void"),
        (pa.table({}), {}, None, "the schema has no columns"),
        (pa.table({"a b": [1]}), {}, None, "has a character that Parquet refuses"),
        (pa.table({"_change_type": [1]}), {}, None, "has a name that the change feed adds itself"),
    ],
    ids=[
        "no partition_expr", "another column", "an expression", "an unknown write mode",
        "an order without a merge", "a merge without keys", "an unknown key",
        "only NULL", "no columns", "a space", "reserved",
    ],
)  # fmt: skip
def test_what_can_t_be_derived_is_told_and_leaves_nothing_behind(
    foreign: Foreign, frame: Any, metadata: dict[str, Any], partitions_def: Any, said: str
) -> None:
    key = {"partition_key": "2026-01-01"} if partitions_def is not None else {}
    with refused(DeclarationError) as caught:
        foreign.run(plain(frame, metadata=metadata, partitions_def=partitions_def), **key)
    assert caught.value.dataset == "readings"
    assert any(said in problem for problem in caught.value.problems)
    assert not foreign.is_there("readings")


def test_no_frame_is_told_as_for_any_other_asset(foreign: Foreign) -> None:
    with refused(FrameMismatchError) as caught:
        foreign.run(plain({"n": 1}))
    assert "builtins.dict" in caught.value.differences[0]
    assert not foreign.is_there("readings")


def test_the_metadata_says_the_write_mode_and_the_keys(foreign: Foreign) -> None:
    metadata = {**BY_DAY, "delta/write_mode": "append", "delta/keys": "value"}
    for _ in range(2):
        foreign.run(plain(readings(1, 1.0), metadata=metadata))
    assert foreign.rows("readings") == [(day(1), 1.0)] * 2
    by_name = {field.name: field.nullable for field in foreign.table("readings").schema().fields}
    assert by_name == {"day": True, "value": False}
    assert foreign.table("readings").metadata().partition_columns == ["day"]
    with refused(DeclarationError) as caught:
        foreign.run(plain(readings(1, 1.0), metadata={"partition_expr": "value"}))
    assert "its table is partitioned by (day)" in caught.value.problems[0]


def test_a_plain_asset_may_be_merged_by_its_keys_and_an_order(foreign: Foreign) -> None:
    merged = {"delta/write_mode": "merge", "delta/keys": "day", "delta/order_by": "value"}
    for value in (2.0, 3.0, 1.0):
        foreign.run(plain(readings(1, value), metadata=merged))
    assert foreign.rows("readings") == [(day(1), 3.0)]


def test_cells_take_their_columns_from_an_expr_by_dimension(foreign: Foreign) -> None:
    cells = MultiPartitionsDefinition({"area": StaticPartitionsDefinition(["a", "b"]), "date": DAILY})
    metadata = {"partition_expr": {"date": "day", "area": "place"}}
    for area in "ab":
        frame = pl.LazyFrame({"day": [day(2)], "place": [area], "n": [1]})
        foreign.run(plain(frame, metadata=metadata, partitions_def=cells), partition_key=f"{area}|2026-01-02")
    assert foreign.table("readings").metadata().partition_columns == ["day", "place"]
    assert foreign.rows("readings") == [(day(2), "a", 1), (day(2), "b", 1)]


def test_a_spark_frame_of_nested_columns_is_declared_nullable_at_every_depth(foreign: Foreign) -> None:
    frame = foreign.spark.spark_session.sql(
        "SELECT 1 AS n, named_struct('a', array(1), 'b', map('k', 1.5D)) AS s, TIMESTAMP'2026-01-01 00:00:00Z' AS at"
    )
    foreign.run(plain(frame, key="deep/readings"))
    schema = foreign.spark.spark_session.read.format("delta").load(f"{foreign.root}/deep/readings").schema
    assert schema.simpleString() == "struct<n:int,s:struct<a:array<int>,b:map<string,double>>,at:timestamp>"
    assert all(field.nullable for field in schema.fields)
    assert schema["s"].dataType["a"].dataType.containsNull


@pytest.mark.exhaustive
def test_a_table_of_somebody_else_is_read_and_one_that_is_not_there_is_named(foreign: Foreign) -> None:
    location = f"{foreign.root}/theirs"
    foreign.spark.spark_session.sql(f"CREATE TABLE delta.`{location}` USING delta AS SELECT 7L AS n").collect()

    @asset
    def reader(theirs: pa.Table) -> pa.Table:
        return theirs

    foreign.run(AssetSpec("theirs"), reader, selection=[reader])
    assert foreign.rows("reader") == [(7,)]

    @asset
    def other(missing: pa.Table) -> pa.Table:
        return missing

    with refused(TableNotFoundError) as caught:
        foreign.run(AssetSpec("missing"), other, selection=[other])
    assert (caught.value.dataset, caught.value.location) == ("missing", f"{foreign.root}/missing")


@pytest.mark.exhaustive
def test_two_io_managers_keep_their_tables_under_their_own_roots_and_are_read_across(foreign: Foreign) -> None:
    @asset(io_manager_key="north")
    def first() -> pa.Table:
        return pa.table({"n": [1, 2]})

    @asset(io_manager_key="south")
    def second() -> pa.Table:
        return pa.table({"n": [3]})

    @asset(io_manager_key="south")
    def both(first: pa.Table, second: pa.Table) -> pa.Table:
        return pa.concat_tables([first, second])

    roots = {name: f"{foreign.root}/{name}" for name in ("north", "south")}
    managers = {name: DeltaIOManager(root=root, spark=foreign.spark) for name, root in roots.items()}
    result = foreign.run(first, second, both, resources=managers)
    assert foreign.rows("north/first") == [(1,), (2,)]
    assert foreign.rows("south/both") == [(1,), (2,), (3,)]
    assert sorted(path.name for path in Path(roots["north"]).iterdir() if path.name[0] != "_") == ["first"]
    (event,) = result.asset_materializations_for_node("both")
    assert event.metadata["delta/sources"].value == {"first": 1, "second": 1}
