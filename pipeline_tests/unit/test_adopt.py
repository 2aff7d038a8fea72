"""The declaration of an existing table: its text is a module with a dataset that the table matches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DateType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pipeline.dataset import Append, Check, Dataset, Features, StoragePolicy
from pipeline.delta.log.snapshot import TableState
from pipeline.delta.migrate.adopt import Adoption, adopt
from pipeline.delta.table.open_table import state_from_log
from pipeline.delta.table.plan import plan

ROW = StructType(
    [
        StructField("id", LongType(), False, {"comment": 'the "key"'}),
        StructField("price", DecimalType(8, 2)),
        StructField("tags", ArrayType(StringType())),
        StructField("facts", MapType(StringType(), StructType([StructField("at", TimestampType())]))),
        StructField("day", DateType()),
    ]
)


def observed(schema: StructType, **facts: Any) -> TableState:
    base: dict[str, Any] = {
        "location": "/tables/orders", "table_id": "id", "version": 3, "schema": schema, "partition_by": (),
        "properties": {}, "features": (), "reader_version": 1, "writer_version": 7,
    }  # fmt: skip
    return TableState(**(base | facts))


def executed(adopted: Adoption) -> Dataset:
    """The dataset that the text makes."""
    module: dict[str, Any] = {}
    exec(compile(adopted.text, "adopted", "exec"), module)
    (dataset,) = (value for value in module.values() if isinstance(value, Dataset))
    return dataset


def test_the_text_makes_the_dataset_and_the_table_does_not_differ_from_it() -> None:
    properties = {
        "delta.enableChangeDataFeed": "true", "delta.constraints.positive": "price > 0",
        "delta.enableDeletionVectors": "true", "delta.logRetentionDuration": "interval 240 hours",
        "delta.dataSkippingStatsColumns": "id,day", "owner": "a 'team'", "pipeline.migration": "token",
        "delta.deletedFileRetentionDuration": "interval 1 week",
    }  # fmt: skip
    features = ("appendOnly", "changeDataFeed", "checkConstraints", "deletionVectors", "invariants")
    state = observed(ROW, partition_by=("day",), properties=properties, features=features)
    adopted = adopt("sales/orders", state)
    assert adopted.not_kept == ()
    dataset = executed(adopted)
    assert dataset == adopted.dataset == Dataset(
        name="sales/orders", schema=ROW, partition_by=("day",), write=Append(),
        checks=(Check("positive", "price > 0"),),
        properties=(("owner", "a 'team'"), ("delta.deletedFileRetentionDuration", "interval 1 week")),
        features=Features(deletion_vectors=True),
        storage=StoragePolicy(log_retention_hours=240, statistics_columns=("id", "day")),
    )  # fmt: skip
    assert dataset.schema["id"].metadata == {"comment": 'the "key"'}
    assert not plan(dataset, state).differs
    assert adopted.text.startswith("from pyspark.sql.types import ArrayType, DateType,")
    assert "\norders = Dataset(\n" in adopted.text


def test_generated_columns_defaults_mapping_and_clustering_are_kept() -> None:
    fields = [
        StructField("id", LongType(), True, {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "c1"}),
        StructField("double id", LongType(), True, {"delta.generationExpression": "id * 2"}),
        StructField("text", StringType(), True, {"CURRENT_DEFAULT": "'x'"}),
    ]
    properties = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "3"}
    features = ("columnMapping", "generatedColumns", "allowColumnDefaults", "clustering", "domainMetadata")
    state = observed(StructType(fields), properties=properties, features=features, cluster_by=("id",))
    adopted = adopt("t", state)
    assert adopted.not_kept == ()
    dataset = executed(adopted)
    assert dataset.features == Features(
        column_mapping="name", cluster_by=("id",), generated=(("double id", "id * 2"),), defaults=(("text", "'x'"),)
    )  # fmt: skip
    assert not plan(dataset, state).differs


def test_what_no_declaration_has_is_named() -> None:
    field = StructField("id", LongType(), True, {"delta.identity.start": 1})
    state = observed(
        StructType([field]), properties={"delta.unheardOf": "1"}, features=("identityColumns", "coming-feature")
    )  # fmt: skip
    adopted = adopt("t", state)
    for text in ("delta.identity.start", "delta.unheardOf", "coming-feature"):
        assert any(text in message for message in adopted.not_kept), adopted.not_kept
    assert executed(adopted).features.others == ("identityColumns",)


def test_a_table_that_no_declaration_describes_has_no_text() -> None:
    fields = [StructField("a", LongType()), StructField("A", LongType())]
    adopted = adopt("t", observed(StructType(fields)))
    assert (adopted.dataset, adopted.text) == (None, "")
    assert any("differ by case only" in message for message in adopted.not_kept)


def test_a_table_of_delta_rs_is_adopted_as_it_is(tmp_path: Path) -> None:
    location = str(tmp_path / "orders")
    deltalake.write_deltalake(location, pa.table({"id": [1], "day": ["a"]}), partition_by=["day"])
    state = state_from_log(location)
    assert state is not None
    adopted = adopt("orders", state)
    assert adopted.not_kept == ()
    dataset = executed(adopted)
    assert (dataset.schema.names, dataset.partition_by, dataset.change_feed) == (["id", "day"], ("day",), False)
    assert not plan(dataset, state).differs


@pytest.mark.parametrize(("name", "variable"), [("a/class", "class_ ="), ("2026", "_2026 ="), ("a-b.c", "a_b_c =")])
def test_the_name_of_the_variable_is_one_of_python(name: str, variable: str) -> None:
    assert variable in adopt(name, observed(StructType([StructField("n", LongType())]))).text
