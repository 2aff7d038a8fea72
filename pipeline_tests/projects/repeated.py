"""A project whose runs can be repeated: a file becomes a table, and tables of every write mode are made of that table.

The file is what no run pins: `delivered` reads it. The other assets depend on nothing but their sources. A repeated
write of `added` takes no cached outcome.
"""

# Without `annotations` from `__future__`: Dagster compares the annotation of `context` with types and refuses a text.

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dagster import (
    AssetExecutionContext,
    ConfigurableResource,
    Definitions,
    DynamicPartitionsDefinition,
    MultiPartitionsDefinition,
    Output,
    StaticPartitionsDefinition,
    definitions,
    multi_asset,
)
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset, Features, History, Merge
from pipeline.orchestration import Changes, DeltaSparkResource, build_definitions, dataset_asset, dataset_out
from pipeline.settings import Settings, load_settings

COLUMNS = [
    StructField("id", LongType(), False), StructField("part", StringType(), False), StructField("n", LongType(), False)
]  # fmt: skip
ROWS = StructType(COLUMNS)
DELIVERED = Dataset(name="delivered", schema=ROWS, code_version="1")
ADDED = Dataset(
    name="added", schema=ROWS, write=Append(), reads=("delivered",), features=Features(column_mapping="name"),
    code_version="1", cache=True,
)  # fmt: skip
MERGED = Dataset(
    name="lab/merged", schema=ROWS, keys=("id",), write=Merge(order_by="n"), reads=("delivered",),
    features=Features(deletion_vectors=True),
)  # fmt: skip
PARTS = Dataset(name="parts", schema=ROWS, partition_by=("part",), reads=("delivered",))
NAMED = Dataset(name="named", schema=ROWS, partition_by=("part",), reads=("delivered",))
FOLLOWED = Dataset(
    name="followed", schema=ROWS, keys=("id",), write=Merge(), reads=("lab/merged",), reads_changes_of=("lab/merged",)
)
AGED = Dataset(
    name="aged", schema=StructType([*COLUMNS, StructField("since", LongType()), StructField("until", LongType())]),
    keys=("id",), reads=("delivered",),
    write=History(order_by="n", valid_from="since", valid_to="until", from_snapshots=True),
)  # fmt: skip
CELLS = Dataset(name="cells", schema=ROWS, partition_by=("part", "n"), reads=("delivered",))
TWINS = tuple(Dataset(name=f"twin_{name}", schema=ROWS, write=Append(), reads=("delivered",)) for name in "ab")
datasets = (DELIVERED, ADDED, MERGED, PARTS, NAMED, FOLLOWED, AGED, CELLS, *TWINS)
NAMES = DynamicPartitionsDefinition(name="names")
LETTERS = StaticPartitionsDefinition(["a", "b", "c"])
NUMBERS = StaticPartitionsDefinition(["1", "2", "3"])


class Deliveries(ConfigurableResource):  # type: ignore[type-arg]
    """The file with the rows of the newest delivery, as a list of lists."""

    path: str

    def rows(self) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in json.loads(Path(self.path).read_text(encoding="utf-8"))]


@dataset_asset(DELIVERED)
def delivered(deliveries: Deliveries, spark: DeltaSparkResource) -> DataFrame:
    frame: DataFrame = spark.spark_session.createDataFrame(deliveries.rows(), ROWS)
    return frame


@dataset_asset(ADDED)
def added(delivered: DataFrame) -> DataFrame:
    return delivered


@dataset_asset(MERGED)
def merged(delivered: DataFrame) -> DataFrame:
    return delivered


@dataset_asset(PARTS, partitions_def=LETTERS)
def parts(context: AssetExecutionContext, delivered: DataFrame) -> DataFrame:
    keys = ", ".join(f"'{key}'" for key in context.partition_keys)
    return delivered.where(f"part IN ({keys})")


@dataset_asset(NAMED, partitions_def=NAMES)
def named(context: AssetExecutionContext, delivered: DataFrame) -> DataFrame:
    return delivered.where(f"part = '{context.partition_key}'")


@dataset_asset(FOLLOWED)
def followed(merged: Changes) -> DataFrame:
    return merged.frame.where("_change_type <> 'delete'").select("id", "part", "n")


@dataset_asset(AGED)
def aged(delivered: DataFrame) -> DataFrame:
    return delivered


@dataset_asset(CELLS, partitions_def=MultiPartitionsDefinition({"part": LETTERS, "n": NUMBERS}))
def cells(context: AssetExecutionContext, delivered: DataFrame) -> DataFrame:
    keys = ", ".join(f"'{key}'" for key in context.partition_keys)
    return delivered.where(f"concat(n, '|', part) IN ({keys})")


@multi_asset(outs={dataset.name: dataset_out(dataset, is_required=False) for dataset in TWINS}, can_subset=True)
def twins(context: AssetExecutionContext, delivered: DataFrame) -> Iterator[Output[DataFrame]]:
    for name in sorted(context.op_execution_context.selected_output_names):
        yield Output(delivered.where(f"part = '{name[-1]}'"), output_name=name)


ASSETS = [delivered, added, merged, parts, named, followed, aged, cells, twins]


def project(settings: Settings) -> Definitions:
    """The definitions with these settings; the delivery lies in the project's folder."""
    deliveries = Deliveries(path=str(settings.project / "delivery.json"))
    return build_definitions(settings, datasets=datasets, assets=ASSETS, resources={"deliveries": deliveries})


@definitions
def defs() -> Definitions:
    return project(load_settings())
