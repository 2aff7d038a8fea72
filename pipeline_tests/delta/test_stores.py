"""Every verb on tables in each kind of store, with the log store of its scheme, and the requests that it costs."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from pipeline.delta.log.counts import table_rows
from pipeline.delta.spark.jars import OWN_JAR, delta_jars
from pipeline.settings import SparkSettings
from pipeline_tests.children.bucket import APPENDED, MERGED
from pipeline_tests.delta.stepping import child
from pipeline_tests.object_stores import AnyStore, Bucket, Store, served_bucket, served_store
from pipeline_tests.relay import Meeting

# One kind is in the quick tier.
KINDS = ["s3", *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in ("local", "azure", "gcs"))]


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path, spark_settings: SparkSettings) -> Iterator[AnyStore]:
    """An empty store of the kind that the test names."""
    with served_store(request.param, tmp_path, spark_settings.cache) as served:
        yield served


@pytest.mark.parametrize("store", KINDS, indirect=True)
def test_each_verb_does_the_same_in_each_kind_of_store(store: AnyStore, spark_settings: SparkSettings) -> None:
    steps = ("append", "append_of_one_row", "merge", "replace", "consume", "consume_nothing", "maintain", "restore")
    with child(store, spark_settings, f"{store.uri}/lake", *steps) as process:
        rows = [["a b", 1], ["a b", 2], [None, 1], [None, 2]]
        assert process.next() == [[[1, True, False], [2, True, False], [2, False, True]], rows]
        assert process.next() == 3
        if isinstance(store, Bucket):
            assert (process.jobs <= 2, len(process.requests) <= 50) == (True, True)
        assert process.next() == [[1, 2], [["x", 1], ["x", 2], ["y", 3]]]
        assert process.next() == [2, [["x", 1], ["y", 2]]]
        assert process.next() == ["full snapshot", 5]
        assert process.next() == ["nothing new", None]
        assert process.jobs == 0
        if isinstance(store, Bucket):
            assert len(process.requests) <= 10
        removed, version, listed, kept = process.next()
        assert (removed > 0, version, listed, len(kept)) == (True, 4, 0, 5)
        assert process.next() == [2, 5, True, rows]


@pytest.mark.exhaustive
@pytest.mark.parametrize("store", KINDS, indirect=True)
def test_frames_records_descriptions_and_small_feeds_are_the_same_in_each_kind_of_store(
    store: AnyStore, spark_settings: SparkSettings
) -> None:
    steps = ("replace", "pandas", "record", "describe", "feed")
    with child(store, spark_settings, f"{store.uri}/lake", *steps) as process:
        assert process.next() == [2, [["x", 1], ["y", 2]]]
        assert process.next() == [3, [["p", 9], ["x", 1], ["y", 2]]]
        assert process.next() == [[None, None if "://" not in store.uri else True]]
        assert process.next() == [[1, 1, "ok"], [1, 1, "ok"]]
        assert process.next() == (None if "://" not in store.uri else [8, [0, 0], True])


@pytest.mark.exhaustive
@pytest.mark.parametrize("store", KINDS, indirect=True)
def test_exports_are_complete_in_each_kind_of_store(store: AnyStore, spark_settings: SparkSettings) -> None:
    with child(store, spark_settings, f"{store.uri}/lake", "append", "export") as process:
        process.next()
        results, first, second, rows, copy = process.next()
        assert results == [[4, True, True]] * 4
        assert (first, second) == (["part=__HIVE_DEFAULT_PARTITION__", "part=a b"], ["part=a b"])
        assert (rows, copy) == (5, 4)


@pytest.mark.exhaustive
def test_fifty_new_commits_cost_three_requests_each_at_most(spark_settings: SparkSettings) -> None:
    steps = ("append", "consume", "consume")
    with served_bucket() as bucket, child(bucket, spark_settings, f"{bucket.uri}/lake", *steps) as process:
        process.next()
        assert process.next() == ["full snapshot", 4]
        location = f"s3://{bucket.name}/lake/appended"
        for number in range(50):
            rows = pa.table({"part": ["b"], "k": pa.array([number], pa.int64())})
            deltalake.write_deltalake(location, rows, mode="append", storage_options=dict(bucket.delta_rs))
        assert process.next() == ["changes", 50]
        assert process.jobs <= 8
        assert len(process.requests) <= 150


@pytest.mark.exhaustive
@pytest.mark.parametrize("store", ["s3", "azure", "gcs"], indirect=True)
def test_two_drivers_that_make_and_write_the_same_tables_lose_and_double_nothing(
    store: AnyStore, spark_settings: SparkSettings
) -> None:
    root = f"{store.uri}/lake"
    with (
        child(store, spark_settings, root, "race", writer="one") as one,
        child(store, spark_settings, root, "race", writer="two") as two,
    ):
        for process in (one, two):
            process.wait()
        for process in (one, two):
            process.go()
        results = [process.result() for process in (one, two)]
    for dataset in (APPENDED, MERGED):
        told = sorted(version for result in results for name, version in result if name == dataset.name)
        assert told == list(range(1, 21)), dataset.name
        rows = table_rows(dataset.location(root), 20)
        assert rows is not None
        assert dict(rows.by_partition) == {("one",): 10, ("two",): 10}


@pytest.mark.exhaustive
@pytest.mark.parametrize("store", ["azure", "gcs"], indirect=True)
def test_of_two_commits_of_one_version_that_reach_the_store_together_one_is_made(
    store: AnyStore, spark_settings: SparkSettings
) -> None:
    """The relay holds the requests that make the entry visible until it has both."""
    assert isinstance(store, Store)
    assert store.relay is not None
    store.relay.change = Meeting(store.relay.change, _commits)
    with child(store, spark_settings, f"{store.uri}/lake", "collide") as process:
        ends, entry = process.next()
    (made,) = {"one", "two"} & set(ends)
    assert sorted(ends) == sorted([made, "java.nio.file.FileAlreadyExistsException"])
    assert entry == f"{made}\n"
    statuses = [request.rpartition(" ")[2] for request in process.requests if ".json" in request]
    assert len({"409", "412"} & set(statuses)) == 1


def _commits(method: str, path: str, headers: Mapping[str, str]) -> bool:
    """Whether a request makes an entry of a log visible: the copy of a file on Azure, an upload's end on GCS."""
    return method == "PUT" and ".json" in path and ("x-ms-copy-source" in headers or "upload_id=" in path)


def test_the_shipped_jar_is_what_its_sources_compile_to(spark_settings: SparkSettings, tmp_path: Path) -> None:
    javac = shutil.which("javac")
    version = subprocess.run([javac, "-version"], capture_output=True, text=True, check=True).stdout if javac else ""
    if not version.startswith("javac 17."):
        pytest.skip("another compiler may write other bytes")
    import pyspark

    jars = [*delta_jars(spark_settings), *(Path(pyspark.__file__).parent / "jars").glob("*.jar")]
    sources = sorted(OWN_JAR.parent.rglob("*.java"))
    options = ["--release", "17", "-proc:none", "-g:source,lines", "-encoding", "UTF-8", "-d", str(tmp_path)]
    subprocess.run(
        [str(javac), *options, "-cp", ":".join(map(str, jars)), *map(str, sources)], check=True, capture_output=True
    )
    compiled = {p.relative_to(tmp_path).as_posix(): p.read_bytes() for p in tmp_path.rglob("*.class")}
    with zipfile.ZipFile(OWN_JAR) as jar:
        shipped = {name: jar.read(name) for name in jar.namelist() if name.endswith(".class")}
    assert {n: hashlib.sha256(c).hexdigest() for n, c in compiled.items()} == {
        n: hashlib.sha256(c).hexdigest() for n, c in shipped.items()
    }
