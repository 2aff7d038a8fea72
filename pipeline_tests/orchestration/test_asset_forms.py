"""Every form in which Dagster knows an asset, and every frame one may return or ask for: each output its own table."""

import datetime as dt
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from dagster import (
    AssetIn,
    AssetKey,
    AssetsDefinition,
    BetaWarning,
    DagsterInstance,
    DataVersion,
    Definitions,
    Failure,
    MaterializeResult,
    Out,
    Output,
    asset,
    define_asset_job,
    graph_asset,
    materialize,
    mem_io_manager,
    multi_asset,
    observable_source_asset,
    op,
)
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from pipeline.dataset import Dataset
from pipeline.delta.frames.convert import FrameKindError, FrameTooLargeError
from pipeline.errors import ClassicSparkError, FrameMismatchError
from pipeline.orchestration import DeltaIOManager, DeltaSparkResource, dataset_asset
from pipeline.orchestration.dataset_asset import IO_MANAGER, dataset_metadata, dataset_out
from pipeline.settings import SparkSettings
from pipeline_tests.conftest import connect_mode
from pipeline_tests.delta.sample import rows_of, versions_of
from pipeline_tests.orchestration.conftest import Project, materializations
from pipeline_tests.refusals import refused
from pipeline_tests.remedies import advises, follows

NUMBERS = StructType([StructField("n", LongType())])
classic_only = pytest.mark.parametrize("spark_resource", ["classic"], indirect=True)


def numbers(name: str, *reads: str) -> Dataset:
    return Dataset(name=name, schema=NUMBERS, reads=reads, change_feed=False)


def table(*values: int) -> pa.Table:
    return pa.table({"n": list(values)})


FIRST, SECOND = numbers("x/first"), numbers("x/second")


def two_outputs(rows: dict[str, int]) -> AssetsDefinition:
    """Two tables from one function, each with that one number; the outputs are named otherwise than the tables."""

    @multi_asset(
        outs={"o1": dataset_out(FIRST, is_required=False), "o2": dataset_out(SECOND, is_required=False)},
        can_subset=True,
        ins={"source": AssetIn("source")},
    )
    def both(context, source: pa.Table):
        for name, value in rows.items():
            if name in context.op_execution_context.selected_output_names:
                yield Output(table(value + source.num_rows), name)

    return both


@dataset_asset(numbers("source"))
def source() -> pd.DataFrame:
    return pd.DataFrame({"n": [1, 2, 3]})


@classic_only
@pytest.mark.case("D-MULTI-ASSET")
def test_each_output_of_a_multi_asset_has_its_own_table_and_a_subset_leaves_the_other(project: Project) -> None:
    assets = (source, two_outputs({"o1": 10, "o2": 20}))
    result = project.run(*assets)
    assert (rows_of(FIRST, project.root), rows_of(SECOND, project.root)) == ([(13,)], [(23,)])
    for dataset in (FIRST, SECOND):
        metadata = materializations(result, dataset)[None]
        assert metadata["dagster/uri"] == dataset.location(project.root)
        assert metadata["delta/sources"] == {"source": 1}
    subset = project.run(source, two_outputs({"o1": 30, "o2": 40}), selection=[AssetKey(["x", "second"])])
    assert subset.success
    assert (rows_of(FIRST, project.root), rows_of(SECOND, project.root)) == ([(13,)], [(43,)])
    assert (versions_of(FIRST, project.root)[-1], versions_of(SECOND, project.root)[-1]) == (1, 2)


def test_assets_return_and_take_each_kind_of_frame(project: Project) -> None:
    """A chain in which every link asks for another kind than its source returned."""
    text = StructType([StructField("n", LongType()), StructField("day", DateType()), StructField("t", StringType())])

    def dataset(name: str, *reads: str) -> Dataset:
        return Dataset(name=name, schema=text, reads=reads, change_feed=False)

    @dataset_asset(dataset("one"))
    def one() -> pa.Table:
        return pa.table({"t": ["a", None], "n": [2**63 - 1, None], "day": pa.array([-719162, None], pa.date32())})

    @dataset_asset(dataset("two", "one"))
    def two(one: pd.DataFrame) -> pl.LazyFrame:
        assert one.sort_values("n")["n"].tolist() == [2**63 - 1, pd.NA]
        return pl.from_pandas(one).lazy()

    @dataset_asset(dataset("three", "two", "one"))
    def three(two: pa.RecordBatchReader, one: pl.LazyFrame) -> pa.RecordBatchReader:
        assert one.select(pl.len()).collect().item() == 2
        return two

    assert project.run(one, two, three).success
    assert rows_of(dataset("three"), project.root) == [
        (None, None, None),
        (2**63 - 1, dt.date(1, 1, 1), "a"),
    ]


@classic_only
def test_an_annotation_that_is_no_frame_is_named_and_a_large_input_is_refused(project: Project) -> None:
    @dataset_asset(numbers("after", "source"))
    def wrong(source: dict) -> pa.Table:
        return table()

    @dataset_asset(numbers("after", "source"))
    def large(source: pd.DataFrame) -> pa.Table:
        return table()

    with refused(FrameKindError) as caught:
        project.run(source, wrong)
    assert (caught.value.dataset, caught.value.annotation) == ("source", "builtins.dict")
    assert "polars.LazyFrame" in caught.value.kinds
    small = DeltaIOManager(root=project.root, spark=project.spark, local_frame_max_bytes=100)
    with refused(FrameTooLargeError) as too_large:
        materialize(
            [source, large],
            selection=[large],
            resources={"spark": project.spark, IO_MANAGER: small},
            instance=project.instance,
        )
    assert (too_large.value.kind, too_large.value.limit_bytes) == ("pandas.DataFrame", 100)


@classic_only
@pytest.mark.exhaustive
def test_a_plain_asset_and_a_graph_asset_are_written_through_the_metadata_that_they_carry(project: Project) -> None:
    """The graph's last op writes; what passes between its ops is none of the table's business."""

    @asset(io_manager_key=IO_MANAGER, metadata=dataset_metadata(FIRST), key=AssetKey(FIRST.asset_key))
    def plain() -> pl.DataFrame:
        return pl.DataFrame({"n": [1]})

    @op(out=Out(io_manager_key="memory"))
    def start(first: pa.Table) -> int:
        return first.num_rows

    @op(out=Out(io_manager_key=IO_MANAGER))
    def finish(count: int) -> pa.Table:
        return table(count + 1)

    @graph_asset(
        key=AssetKey(SECOND.asset_key),
        metadata=dataset_metadata(SECOND),
        ins={"first": AssetIn(AssetKey(FIRST.asset_key))},
    )
    def graphed(first):
        return finish(start(first))

    manager = DeltaIOManager(root=project.root, spark=project.spark)
    resources = {IO_MANAGER: manager, "memory": mem_io_manager}
    result = materialize([plain, graphed], resources=resources, instance=project.instance)
    assert (rows_of(FIRST, project.root), rows_of(SECOND, project.root)) == ([(1,)], [(2,)])
    assert materializations(result, SECOND)[None]["dagster/table_name"] == "x.second"


@classic_only
def test_a_result_with_a_value_is_written_and_one_without_is_left_alone(project: Project) -> None:
    @dataset_asset(FIRST)
    def with_value() -> MaterializeResult[pa.Table]:
        return MaterializeResult(value=table(7), metadata={"said": "by the asset"})

    @dataset_asset(SECOND)
    def without() -> MaterializeResult:
        return MaterializeResult(metadata={"stored": "elsewhere"})

    result = project.run(with_value, without)
    assert rows_of(FIRST, project.root) == [(7,)]
    metadata = materializations(result, FIRST)[None]
    assert (metadata["said"], metadata["delta/rows_written"]) == ("by the asset", 1)
    assert not Path(SECOND.location(project.root)).exists()


class Forbidden(DeltaSparkResource):
    """A session that nobody may ask for."""

    def _init_session(self) -> None:
        pytest.fail("a session was asked for")


# Dagster's own executor asks it of every op of an observation.
@pytest.mark.filterwarnings("ignore:Property `OpDefinition.version` is deprecated:DeprecationWarning")
@pytest.mark.case("D-NONE-OUTPUT")
def test_nothing_to_store_never_reaches_spark(root: str) -> None:
    """Without an annotation None is a mistake and told as one; all before a JVM would be started."""

    @dataset_asset(FIRST)
    def own() -> None:
        pass

    @dataset_asset(SECOND)
    def forgotten():
        pass

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BetaWarning)

        @observable_source_asset(io_manager_key=IO_MANAGER)
        def observed() -> DataVersion:
            return DataVersion("1")

    spark = Forbidden()
    resources: dict[str, Any] = {"spark": spark, IO_MANAGER: DeltaIOManager(root=root, spark=spark)}
    with DagsterInstance.ephemeral() as instance:
        assert materialize([own], resources=resources, instance=instance).success
        job = define_asset_job("observe", selection=[observed])
        definitions = Definitions(assets=[observed], jobs=[job], resources=resources)
        assert definitions.resolve_job_def("observe").execute_in_process(instance=instance).success
        with refused(FrameMismatchError) as caught:
            materialize([forgotten], resources=resources, instance=instance)
        assert "-> None" in caught.value.differences[0]
        with refused(FrameMismatchError):
            materialize([wrong_frame], resources=resources, instance=instance)


@dataset_asset(FIRST)
def wrong_frame() -> pl.DataFrame:
    return pl.DataFrame({"n": ["text"]})


@pytest.mark.exhaustive
@classic_only
@pytest.mark.case("D-KEY-COLLISION")
def test_keys_that_end_or_read_alike_are_separate_tables(project: Project) -> None:
    names = ["a/b/t", "c/b/t", "b/t", "b__t", "my-asset", "my_asset"]
    keys = dict(enumerate(names))

    @multi_asset(
        outs={f"o{n}": dataset_out(numbers(name), is_required=False) for n, name in keys.items()}, can_subset=True
    )
    def alike(context):
        for n in keys:
            if f"o{n}" in context.op_execution_context.selected_output_names:
                yield Output(table(n), f"o{n}")

    project.run(alike)
    assert [rows_of(numbers(name), project.root) for name in names] == [[(n,)] for n in keys]
    project.run(alike, selection=[AssetKey(["b", "t"])])
    assert [versions_of(numbers(name), project.root)[-1] for name in names] == [1, 1, 2, 1, 1, 1]


@pytest.mark.exhaustive
@classic_only
def test_a_prefix_moves_the_table_with_the_key_and_the_reader_follows(project: Project) -> None:
    @dataset_asset(numbers("after", "source"))
    def after(source: pa.Table) -> pa.Table:
        return table(source.num_rows)

    keys = {*source.keys, *after.keys}
    east = {key: AssetKey(["east", *key.path]) for key in keys}
    project.run(*(one.with_attributes(asset_key_replacements=east) for one in (source, after)))
    assert rows_of(numbers("east/after"), project.root) == [(3,)]
    for name in ("source", "after"):
        assert not Path(numbers(name).location(project.root)).exists()


@follows(ClassicSparkError)
def test_code_that_needs_spark_in_its_process_is_told_so_on_a_server(
    root: str, remote_url: str, spark_settings: SparkSettings
) -> None:
    @dataset_asset(numbers("counted"))
    def counted(spark: DeltaSparkResource) -> pd.DataFrame:
        return pd.DataFrame({"n": [spark.spark_session.sparkContext.parallelize([1, 2]).count()]})

    def run(settings: SparkSettings) -> None:
        spark = DeltaSparkResource.from_settings(settings)
        resources = {"spark": spark, "delta_io_manager": DeltaIOManager(root=root, spark=spark)}
        materialize([counted], resources=resources)

    with connect_mode(), pytest.raises(Failure) as caught:
        run(replace(spark_settings, remote=remote_url))
    error = caught.value.__cause__
    assert isinstance(error, ClassicSparkError)
    advises(error, ClassicSparkError, "PIPELINE_WARM=never", "SPARK_REMOTE")
    assert "sparkContext" in error.reason
    run(replace(spark_settings, warm="never"))
    assert rows_of(numbers("counted"), root) == [(2,)]
