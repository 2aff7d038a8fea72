"""The remedies of frames, rows, partitions, queries, sinks, streams and sessions are followed to their end."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from dagster import AssetsDefinition, DagsterInstance, StaticPartitionsDefinition, materialize
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.assets.codegraph.assets import files_of_tree, modules_of_files
from pipeline.assets.codegraph.errors import SourceTreeError
from pipeline.dataset import Append, Check, Dataset, Merge, Replace, SchemaPolicy, TableRef
from pipeline.delta.frames import convert
from pipeline.delta.frames.convert import from_spark, to_spark
from pipeline.delta.frames.source_files import read_csv_files
from pipeline.delta.log.mark import clone_session, release_session
from pipeline.delta.read.version import read
from pipeline.delta.server import process as server
from pipeline.delta.sink.sink import DeltaSink, sink_folders
from pipeline.delta.spark.session import open_session
from pipeline.delta.sql.slices import of_values
from pipeline.delta.write.write import write
from pipeline.errors import (
    ChangelogError,
    DuplicateKeysError,
    ExpressionFailedError,
    FrameFailedError,
    FrameKindError,
    FrameMismatchError,
    FrameTooLargeError,
    NotParquetError,
    PartitionKeyError,
    PartitionNameError,
    PartitionValueError,
    PipelineError,
    QueryError,
    ServerError,
    SessionConfError,
    SinkConflictError,
    SinkStoppedError,
    SourceFileError,
    SparkUnavailableError,
    StagingError,
    StrayRowsError,
    StreamBatchError,
    StreamCheckpointError,
    TextError,
)
from pipeline.orchestration import DeltaIOManager, DeltaSparkResource, dataset_asset
from pipeline.orchestration.dataset_asset import dataset_metadata
from pipeline.settings import Settings, SparkSettings, load_settings
from pipeline_tests.children import losing_jvm
from pipeline_tests.children.sink import ARRIVALS, WRITER
from pipeline_tests.conftest import brief_conf, close, free_port
from pipeline_tests.delta.operator import Operator
from pipeline_tests.delta.sample import note, placed, rows_of
from pipeline_tests.delta.test_changelog import apply, changelog
from pipeline_tests.delta.test_sink import BY_HAND, PATIENCE
from pipeline_tests.delta.test_stream_checkpoints import Stream
from pipeline_tests.object_stores import unreachable_bucket
from pipeline_tests.orchestration.test_plain_assets import Foreign, plain
from pipeline_tests.refusals import refused as refused_run
from pipeline_tests.remedies import advises, follows, follows_each, refused
from pipeline_tests.unit.sink_sample import NOBODY

exhaustive = pytest.mark.exhaustive

NUMBERS = Dataset(name="numbers", schema=StructType([StructField("n", LongType())]), write=Append())
PAIRS = StructType([StructField("p", StringType()), StructField("n", LongType())])
PARTED = Dataset(name="parted", schema=PAIRS, partition_by=("p",), write=Append())


@pytest.fixture
def operator(classic: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Operator:
    return Operator.of(classic, tmp_path, monkeypatch)


@pytest.fixture
def foreign(root: str, classic: SparkSession, spark_settings: SparkSettings) -> Iterator[Foreign]:
    with DagsterInstance.ephemeral() as instance:
        yield Foreign(root, DeltaSparkResource.from_settings(spark_settings), instance)


# --- rows -------------------------------------------------------------------------------------------------------------

MERGED = replace(PARTED, name="merged", partition_by=(), keys=("p",), write=Merge())
RATIO = replace(NUMBERS, checks=(Check("ratio", "1 / n > 0"),))
TWICE = "SELECT * FROM VALUES ('a', 1L), ('a', 2L) AS t(p, n)"
Written = tuple[Dataset, str]


ROWS: list[tuple[Any, ...]] = [
    (FrameFailedError, "use try_cast, try_divide or nullif",
     (NUMBERS, "SELECT CAST(x AS BIGINT) AS n FROM VALUES ('1'), ('one') AS t(x)"),
     (NUMBERS, "SELECT TRY_CAST(x AS BIGINT) AS n FROM VALUES ('1'), ('one') AS t(x)"), [(None,), (1,)]),
    (ExpressionFailedError, "Change the SQL so that it has a value for every row (try_cast, try_divide, nullif)",
     (RATIO, "SELECT id AS n FROM range(2)"),
     (replace(RATIO, checks=(Check("ratio", "try_divide(1, n) > 0", on_violation="drop"),)),
      "SELECT id AS n FROM range(2)"), [(1,)]),
    (PartitionValueError, "Map '' and '__HIVE_DEFAULT_PARTITION__' to NULL or to other values",
     (PARTED, "SELECT '' AS p, 1L AS n"), (PARTED, "SELECT nullif('', '') AS p, 1L AS n"), [(None, 1)]),
    (PartitionNameError, "Partition by a shorter value, such as its first characters",
     (PARTED, "SELECT repeat('x', 300) AS p, 1L AS n"),
     (PARTED, "SELECT left(repeat('x', 300), 3) AS p, 1L AS n"), [("xxx", 1)]),
    (DuplicateKeysError, "Keep one row per key", (MERGED, TWICE),
     (MERGED, f"SELECT p, max(n) AS n FROM ({TWICE}) GROUP BY p"), [("a", 2)]),
    (DuplicateKeysError, "or declare order_by in its Merge", (MERGED, TWICE),
     (replace(MERGED, write=Merge(order_by="n")), TWICE), [("a", 2)]),
]  # fmt: skip


@exhaustive
@follows_each(ROWS)
@pytest.mark.parametrize(
    ("kind", "advice", "wrong", "right", "rows"),
    ROWS,
    ids=["a cast", "a check", "no text", "a long text", "one row per key", "an order"],
)
def test_rows_are_written_once_they_or_the_declaration_are_as_the_remedy_has_it(
    operator: Operator, kind: type[PipelineError], advice: str, wrong: Written, right: Written, rows: list[Any]
) -> None:
    refused(kind, partial(operator.put, *wrong), advice)
    if right[0] != wrong[0]:
        operator.declare(right[0])
        operator.run("conform", "apply", right[0].name)
    operator.put(*right)
    assert rows_of(right[0], operator.root) == rows


@exhaustive
@follows(StrayRowsError)
def test_a_frame_is_written_once_it_is_filtered_to_the_partitions_of_the_run(operator: Operator) -> None:
    dataset, query = replace(PARTED, write=Replace()), "SELECT * FROM VALUES ('a', 1L), ('b', 2L) AS t(p, n)"
    within = of_values("p", ["a"])
    refused(StrayRowsError, lambda: operator.put(dataset, query, within), "Filter the frame to the partitions")
    operator.put(dataset, f"SELECT * FROM ({query}) WHERE p = 'a'", within)
    assert rows_of(dataset, operator.root) == [("a", 1)]


@exhaustive
@follows(ChangelogError)
def test_a_changelog_is_applied_once_every_row_has_what_the_remedy_lists(operator: Operator) -> None:
    dataset = changelog("log")
    rows = [(1, None, "a", None, "c"), (2, 3, "b", None, "upsert")]
    error = refused(
        ChangelogError,
        lambda: apply(operator.session, dataset, operator.root, rows),
        "Every row needs a sequence value",
    )
    code = error.remedy().rstrip(".").rpartition(" ")[2]
    assert code in error.codes
    apply(operator.session, dataset, operator.root, [(1, 1, "a", None, "c"), (2, 3, "b", None, error.codes[0])])
    assert [row[0] for row in rows_of(dataset, operator.root)] == [1, 2]


@exhaustive
@follows(TextError)
def test_a_text_is_used_once_it_is_decoded_as_what_it_is(operator: Operator) -> None:
    dataset, halves = replace(PARTED, write=Replace()), "\ud83d\ude00"

    def put(text: str) -> None:
        operator.put(dataset, "SELECT '\N{GRINNING FACE}' AS p, 1L AS n", of_values("p", [text]))

    refused(TextError, lambda: put(halves), "Decode the text with its real encoding")
    put(halves.encode("utf-16", "surrogatepass").decode("utf-16"))
    assert rows_of(dataset, operator.root) == [("\N{GRINNING FACE}", 1)]


# --- frames and files -------------------------------------------------------------------------------------------------


@dataset_asset(NUMBERS)
def numbers() -> pa.Table:
    return pa.table({"n": [1, 2]})


def run(operator: Operator, spark_settings: SparkSettings, asset: AssetsDefinition, **manager: Any) -> None:
    """Run one asset, as Dagster does."""
    spark = DeltaSparkResource.from_settings(spark_settings)
    resources = {"spark": spark, "delta_io_manager": DeltaIOManager(root=operator.root, spark=spark, **manager)}
    with DagsterInstance.ephemeral() as instance:
        materialize([numbers, asset], resources=resources, instance=instance, selection=[asset])


def reader(kind: Any, rows_in: Callable[[Any], int]) -> AssetsDefinition:
    """An asset that takes the numbers as that kind of frame, and returns their count."""

    def counted(numbers):
        return pa.table({"n": [rows_in(numbers)]})

    counted.__annotations__ = {"numbers": kind, "return": pa.Table}
    return dataset_asset(replace(NUMBERS, name="counted", reads=("numbers",)))(counted)


@exhaustive
@follows(FrameMismatchError)
@pytest.mark.parametrize("way", ["the columns of the table", "declared columns", "another asset key"])
def test_a_frame_of_a_plain_asset_is_written_in_each_way_that_is_named(foreign: Foreign, way: str) -> None:
    foreign.run(plain(pd.DataFrame({"n": [1]})))
    wider = pd.DataFrame({"n": [2], "more": ["a"]})
    with refused_run(FrameMismatchError) as caught:
        foreign.run(plain(wider))
    advises(
        caught.value, FrameMismatchError, "Select and cast to the declared columns",
        "declare them with dataset_metadata", "write under another asset key",
    )  # fmt: skip
    columns = StructType([StructField("n", LongType()), StructField("more", StringType())])
    evolving = Dataset(name="readings", schema=columns, schema_policy=SchemaPolicy(mode="evolve"))
    changed, rows = {
        "the columns of the table": (plain(wider[["n"]]), [(2,)]),
        "declared columns": (plain(wider, metadata=dataset_metadata(evolving)), [(2, "a")]),
        "another asset key": (plain(wider, key="others"), [(2, "a")]),
    }[way]
    foreign.run(changed)
    assert foreign.rows("/".join(changed.key.path)) == rows


@exhaustive
@follows(FrameKindError)
def test_a_parameter_is_given_the_rows_as_one_of_the_kinds_that_are_listed(
    operator: Operator, spark_settings: SparkSettings
) -> None:
    placed(operator.session, NUMBERS, operator.root, [(1,), (2,)])
    with refused_run(FrameKindError) as caught:
        run(operator, spark_settings, reader(dict, len))
    advises(caught.value, FrameKindError, "Annotate the parameter with one of these.")
    assert "pyarrow.Table" in caught.value.kinds
    run(operator, spark_settings, reader(pa.Table, lambda table: table.num_rows))
    assert rows_of(replace(NUMBERS, name="counted"), operator.root) == [(2,)]


@exhaustive
@follows(FrameTooLargeError)
def test_a_large_input_is_read_by_spark_or_as_a_stream_or_under_a_larger_limit(
    operator: Operator, spark_settings: SparkSettings
) -> None:
    placed(operator.session, NUMBERS, operator.root, [(1,), (2,)])
    small = partial(run, operator, spark_settings, local_frame_max_bytes=10)
    as_table = reader(pa.Table, lambda table: table.num_rows)
    with refused_run(FrameTooLargeError) as caught:
        small(as_table)
    advises(
        caught.value, FrameTooLargeError, "pyspark.sql.DataFrame or pyarrow.RecordBatchReader",
        "raise the setting local_frame_max_bytes",
    )  # fmt: skip
    small(reader(DataFrame, lambda frame: frame.count()))
    small(reader(pa.RecordBatchReader, lambda batches: batches.read_all().num_rows))
    run(operator, spark_settings, as_table, local_frame_max_bytes=caught.value.found_bytes * 10)
    assert rows_of(replace(NUMBERS, name="counted"), operator.root) == [(2,)] * 3


@exhaustive
@follows(StagingError)
def test_a_frame_that_can_t_be_staged_is_returned_as_spark_s_or_staged_below_another_root(operator: Operator) -> None:
    table = pa.table({"n": [1]})

    def stage(place: str) -> list[tuple[int, ...]]:
        with to_spark(table, NUMBERS, lambda: operator.session, place) as frame:
            return [tuple(row) for row in frame.collect()]

    refused(StagingError, lambda: stage(f"{unreachable_bucket()}/_staging"), "Return a Spark DataFrame")
    frame = operator.session.createDataFrame(table)
    write(frame, table=NUMBERS.at(operator.root), note=note())
    (operator.folder / "file").touch()
    refused(StagingError, lambda: stage(f"{operator.folder}/file/_staging"), "choose another PIPELINE_ROOT")
    assert stage(f"{operator.root}/_staging") == [(1,)]
    taken = from_spark(frame, convert.SPARK, NUMBERS, max_bytes=1, staging=f"{operator.folder}/file/_staging")
    assert taken.count() == 1


@exhaustive
@follows(SourceFileError)
def test_a_file_is_read_once_it_is_delivered_again(operator: Operator) -> None:
    path, form = operator.folder / "numbers.csv", NUMBERS.schema
    read_file = partial(read_csv_files, operator.session, [str(path)], form)
    refused(SourceFileError, read_file, "Deliver the file again")
    path.write_text("n\n1\ntwo\n", encoding="utf-8")
    assert refused(SourceFileError, read_file, "then run the same command or partition again").line == 3
    path.write_text("n\n1\n2\n", encoding="utf-8")
    assert [row.n for row in read_file().collect()] == [1, 2]


@exhaustive
@follows(SourceTreeError)
def test_files_are_parsed_once_a_new_snapshot_is_taken(operator: Operator) -> None:
    module = operator.folder / "code" / "module.py"
    module.parent.mkdir()
    module.write_text("one = 1\n", encoding="utf-8")
    files = files_of_tree(operator.session, module.parent)
    module.write_text("two = 2\n", encoding="utf-8")
    refused(SourceTreeError, lambda: modules_of_files(files, module.parent), "pipeline materialize source_files")
    again = files_of_tree(operator.session, module.parent)  # what that asset returns
    assert modules_of_files(again, module.parent)[1] == 1


@exhaustive
@follows(PartitionKeyError)
def test_a_partitioned_asset_runs_with_the_key_that_the_command_wants(
    operator: Operator, spark_settings: SparkSettings
) -> None:
    dataset = replace(PARTED, write=Replace())

    @dataset_asset(dataset, partitions_def=StaticPartitionsDefinition(["a", "b"]))
    def parted() -> pa.Table:
        return pa.table({"p": ["a"], "n": [1]})

    with refused_run(PartitionKeyError) as caught:
        run(operator, spark_settings, parted)
    advises(caught.value, PartitionKeyError, "pipeline materialize parted --partition KEY")
    operator.declare(dataset, assets=(parted,))
    operator.materializes(caught.value, "parted", partition="a")
    assert rows_of(dataset, operator.root) == [("a", 1)]


# --- queries and sessions ---------------------------------------------------------------------------------------------


@follows(QueryError, NotParquetError)
def test_a_query_names_the_dataset_or_its_table_and_only_reads(operator: Operator) -> None:
    operator.declare(NUMBERS)
    placed(operator.session, NUMBERS, operator.root, [(1,), (2,)])
    location = NUMBERS.location(operator.root)
    as_parquet = ("sql", f"SELECT sum(n) AS total FROM parquet.`{location}`")
    operator.refused(NotParquetError, as_parquet, "Name the dataset in the query", "delta.`...` with the path")
    operator.refused(QueryError, ("sql", "DELETE FROM numbers"), "Only statements that read are run: SELECT")
    for named in ("numbers", f"delta.`{location}`"):
        assert operator.json("sql", f"SELECT sum(n) AS total FROM {named}")["rows"] == [[3]]


@exhaustive
@follows(SessionConfError)
def test_a_dataset_is_read_without_the_conf_or_in_another_session(operator: Operator) -> None:
    placed(operator.session, NUMBERS, operator.root, [(1,)])
    hostile, location = clone_session(operator.session), NUMBERS.location(operator.root)
    name = "spark.sql.files.ignoreMissingFiles"
    hostile.conf.set(name, "true")
    error = refused(
        SessionConfError, lambda: read(hostile, TableRef(NUMBERS, location)), "Unset them where the session is created",
        "read in another session",
    )  # fmt: skip
    assert error.problems == (f"{name} is true",)
    assert read(operator.session, TableRef(NUMBERS, location)).frame.count() == 1
    hostile.conf.unset(name)
    assert read(hostile, TableRef(NUMBERS, location)).frame.count() == 1
    release_session(hostile)


@exhaustive
@follows(SparkUnavailableError)
def test_a_session_opens_in_this_process_or_once_a_server_is_at_the_address(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, remote_url: str
) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    monkeypatch.delenv("SPARK_CONNECT_MODE_ENABLED")
    operator.declare(NUMBERS)
    query = ("sql", "SELECT 1 AS one")
    monkeypatch.setenv("SPARK_REMOTE", f"sc://127.0.0.1:{free_port()}")
    operator.refused(SparkUnavailableError, query, "Start the server at that address", "unset SPARK_REMOTE")
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
    monkeypatch.setenv("SPARK_REMOTE", remote_url)
    session = open_session(load_settings().spark)
    assert session.sql("SELECT 1 AS one").collect()[0].one == 1
    close(session)
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
    monkeypatch.delenv("SPARK_REMOTE")
    assert operator.json(*query)["rows"] == [[1]]


@exhaustive
@follows(SparkUnavailableError)
def test_a_table_is_read_by_another_process_than_the_one_whose_jvm_has_died(
    operator: Operator, spark_settings: SparkSettings
) -> None:
    placed(operator.session, NUMBERS, operator.root, [(1,)])
    location, ((_, java_options),) = NUMBERS.location(operator.root), brief_conf(spark_settings)
    command = [sys.executable, "-m", losing_jvm.__name__, location, str(spark_settings.cache), java_options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE * 2, check=True)
    error = SparkUnavailableError(where="this process", reason="")
    advises(error, SparkUnavailableError, "Run the command again: a new process starts a new JVM.")
    assert done.stdout.splitlines() == [SparkUnavailableError.__name__, error.remedy()]
    assert read(operator.session, TableRef(NUMBERS, location)).frame.count() == 1


@exhaustive
@follows(ServerError)
def test_a_server_starts_on_another_port_than_the_one_that_is_in_use(operator: Operator) -> None:
    state, port = operator.folder / ".pipeline" / "spark", free_port()
    with socket.socket() as other_program:
        other_program.bind((server.HOST, 0))
        other_program.listen()
        in_use = other_program.getsockname()[1]
        error = refused(
            ServerError, lambda: server.start(state, in_use), "pipeline spark status", "with another --port"
        )
        assert "No server runs." in operator.does(error, "spark status", status=1)
        try:
            assert f"sc://{server.HOST}:{port}" in operator.does(error, "spark start", "--port", str(port))
            assert "answers" in operator.does(error, "spark status")
        finally:
            assert "Ended process" in operator.does(error, "spark stop")


# --- sinks and streams ------------------------------------------------------------------------------------------------


@exhaustive
@follows(SinkStoppedError)
def test_what_a_stopped_sink_has_acknowledged_is_committed_first_by_its_next_start(
    classic: SparkSession, settings: Settings
) -> None:
    away = replace(settings, spark=replace(settings.spark, remote=NOBODY))
    stopped = DeltaSink(ARRIVALS, WRITER, away, BY_HAND).start()
    receipt = stopped.submit({"arrival": 1, "update_id": 1})
    with pytest.raises(SparkUnavailableError):
        stopped.stop(PATIENCE)
    assert receipt.result(0).rows == 1
    refused(SinkStoppedError, lambda: stopped.submit({"arrival": 2, "update_id": 2}), "Start it again")
    with DeltaSink(ARRIVALS, WRITER, settings, BY_HAND) as again:
        again.flush(PATIENCE)
        assert rows_of(ARRIVALS, settings.root) == [(1, 1)]
        again.submit({"arrival": 2, "update_id": 2})
    assert rows_of(ARRIVALS, settings.root) == [(1, 1), (2, 2)]


@exhaustive
@follows(SinkConflictError)
def test_the_rows_of_a_sink_that_met_another_one_are_committed_under_a_writer_id_of_their_own(
    classic: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    here, there = (replace(BY_HAND, journal=tmp_path / name) for name in ("here", "there"))
    first = DeltaSink(ARRIVALS, WRITER, settings, here).start()
    with DeltaSink(ARRIVALS, WRITER, settings, there) as second:
        second.submit({"arrival": 1, "update_id": 1})
        second.flush(PATIENCE)
        first.submit({"arrival": 2, "update_id": 2})
        with pytest.raises(SinkConflictError):
            first.flush(PATIENCE)
    error = refused(SinkConflictError, first.stop, "a writer id of its own", "rename the folder of its journal")
    journal = sink_folders(ARRIVALS, error.writer, settings, here)[0]
    journal.rename(journal.with_name("another"))
    with DeltaSink(ARRIVALS, "another", settings, here) as renamed:
        renamed.flush(PATIENCE)
    assert rows_of(ARRIVALS, settings.root) == [(1, 1), (2, 2)]


def put_back(copy: Path, checkpoint: Path) -> None:
    shutil.rmtree(checkpoint, ignore_errors=True)
    shutil.copytree(copy, checkpoint)


@exhaustive
@follows(StreamBatchError)
@pytest.mark.parametrize("way", ["the newest checkpoint", "a restore of the table"])
def test_a_stream_goes_on_from_its_newest_checkpoint_or_from_a_restored_table(
    operator: Operator, tmp_path: Path, way: str
) -> None:
    stream = Stream(operator.session, tmp_path)
    operator.declare(ARRIVALS)
    for number in (1, 2):
        stream.arrive(number)
        stream.run()
        shutil.copytree(stream.checkpoint, tmp_path / f"copy {number}")
    put_back(tmp_path / "copy 1", stream.checkpoint)
    stream.arrive(3)
    error = refused(StreamBatchError, stream.run, "Put the newest checkpoint back", "Or restore the table")
    if way == "the newest checkpoint":
        put_back(tmp_path / "copy 2", stream.checkpoint)
    else:
        operator.does(error, f"restore arrivals --version {error.before} --apply")
    stream.run()
    assert stream.numbers == [1, 2, 3]


@exhaustive
@follows(StreamCheckpointError)
@pytest.mark.parametrize("way", ["a copy of the checkpoint", "a restore of the table"])
def test_a_stream_goes_on_from_a_copy_of_its_checkpoint_or_reads_all_input_again(
    operator: Operator, tmp_path: Path, way: str
) -> None:
    stream = Stream(operator.session, tmp_path)
    operator.declare(ARRIVALS)
    stream.arrive(1, 2)
    stream.run()
    stream.checkpoint.rename(tmp_path / "copy")
    stream.arrive(3)
    error = refused(StreamCheckpointError, stream.run, "Put a copy of the checkpoint back", "To read all input again")
    if way == "a copy of the checkpoint":
        put_back(tmp_path / "copy", stream.checkpoint)
    else:
        operator.does(error, f"restore arrivals --version {error.before} --apply")
    stream.run()
    assert stream.numbers == [1, 2, 3]
