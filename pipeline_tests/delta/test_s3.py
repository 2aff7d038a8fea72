"""Every verb on tables in an S3 bucket, with S3A and the conditional log store, and the requests that it costs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from pipeline.delta.log.counts import table_rows
from pipeline.delta.spark.jars import LOG_STORE, delta_jars
from pipeline.delta.storage.options import use_confs
from pipeline.settings import SparkSettings
from pipeline_tests.children.bucket import APPENDED, MERGED
from pipeline_tests.conftest import brief_conf
from pipeline_tests.object_stores import Bucket, served_bucket


class Child:
    """A process that takes steps over a bucket."""

    def __init__(self, bucket: Bucket, settings: SparkSettings, root: str, *steps: str, writer: str = "one") -> None:
        conf = dict(brief_conf(settings)) | bucket.hadoop
        job = {"cache": str(settings.cache), "conf": conf, "root": root, "steps": steps, "writer": writer}
        command = [sys.executable, "-m", "pipeline_tests.children.bucket", json.dumps(job)]
        self.bucket, self.requests, self.jobs = bucket, list[str](), 0
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def next(self) -> Any:
        """The result of the next step; `requests` and `jobs` are those that it made."""
        self.wait()
        self.bucket.requests.clear()
        self.go()
        result = self.result()
        self.requests = list(self.bucket.requests)
        return result

    def wait(self) -> None:
        """Wait until the process can take its next step."""
        self._answer("step")

    def result(self) -> Any:
        """The result of the step that was begun."""
        answer = self._answer("result")
        self.jobs = answer["jobs"]
        self.go()
        return answer["result"]

    def end(self) -> None:
        """Kill the process."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe and pipe.close()
        self.process.wait()

    def _answer(self, name: str) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process ended with {self.process.wait()}"
        answer = json.loads(line)
        assert name in answer
        return answer

    def go(self) -> None:
        """Let the process go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextlib.contextmanager
def child(bucket: Bucket, settings: SparkSettings, root: str, *steps: str, writer: str = "one") -> Iterator[Child]:
    process = Child(bucket, settings, root, *steps, writer=writer)
    try:
        yield process
    finally:
        process.end()


def test_each_verb_does_on_s3_what_it_does_on_a_disk(spark_settings: SparkSettings) -> None:
    steps = (
        "append", "append_of_one_row", "merge", "replace", "pandas", "consume", "consume_nothing", "record", "describe",
        "maintain", "restore",
    )  # fmt: skip
    with served_bucket() as bucket, child(bucket, spark_settings, f"{bucket.uri}/lake", *steps) as process:
        rows = [["a b", 1], ["a b", 2], [None, 1], [None, 2]]
        assert process.next() == [[[1, True, False], [2, True, False], [2, False, True]], rows]
        assert process.next() == 3
        assert (process.jobs <= 2, len(process.requests) <= 50) == (True, True)
        assert process.next() == [[1, 2], [["x", 1], ["x", 2], ["y", 3]]]
        assert process.next() == [2, [["x", 1], ["y", 2]]]
        assert process.next() == [3, [["p", 9], ["x", 1], ["y", 2]]]
        assert process.next() == ["full snapshot", 5]
        assert process.next() == ["nothing new", None]
        assert (process.jobs, len(process.requests) <= 10) == (0, True)
        assert process.next() == [None]
        assert process.next() == [[1, 1, "ok"], [1, 1, "ok"]]
        removed, version, listed, kept = process.next()
        assert (removed > 0, version, listed, len(kept)) == (True, 4, 0, 5)
        assert process.next() == [2, 5, True, rows]


def test_fifty_new_commits_cost_three_requests_each_and_are_those_of_delta_s_feed(
    spark_settings: SparkSettings,
) -> None:
    with (
        served_bucket() as bucket,
        child(bucket, spark_settings, f"{bucket.uri}/lake", "append", "consume", "consume", "feed") as process,
    ):
        process.next()
        assert process.next() == ["full snapshot", 4]
        location = f"s3://{bucket.name}/lake/appended"
        for number in range(50):
            rows = pa.table({"part": ["b"], "k": pa.array([number], pa.int64())})
            deltalake.write_deltalake(location, rows, mode="append", storage_options=dict(bucket.delta_rs))
        assert process.next() == ["changes", 50]
        assert process.jobs <= 8
        assert len(process.requests) <= 150
        assert process.next() == [8, [0, 0], True]


@pytest.mark.exhaustive
def test_two_drivers_that_make_and_write_the_same_tables_lose_and_double_nothing(spark_settings: SparkSettings) -> None:
    with served_bucket() as bucket:
        use_confs(bucket.hadoop)
        root = f"{bucket.uri}/lake"
        with (
            child(bucket, spark_settings, root, "race", writer="one") as one,
            child(bucket, spark_settings, root, "race", writer="two") as two,
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


def test_the_shipped_log_store_is_what_its_source_compiles_to(spark_settings: SparkSettings, tmp_path: Path) -> None:
    javac = shutil.which("javac")
    version = subprocess.run([javac, "-version"], capture_output=True, text=True, check=True).stdout if javac else ""
    if not version.startswith("javac 17."):
        pytest.skip("another compiler may write other bytes")
    import pyspark

    jars = [*delta_jars(spark_settings), *(Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")]
    sources = sorted(LOG_STORE.parent.rglob("*.java"))
    options = ["--release", "17", "-proc:none", "-g:source,lines", "-encoding", "UTF-8", "-d", str(tmp_path)]
    subprocess.run(
        [str(javac), *options, "-cp", ":".join(map(str, jars)), *map(str, sources)], check=True, capture_output=True
    )
    compiled = {p.relative_to(tmp_path).as_posix(): p.read_bytes() for p in tmp_path.rglob("*.class")}
    with zipfile.ZipFile(LOG_STORE) as jar:
        shipped = {name: jar.read(name) for name in jar.namelist() if name.endswith(".class")}
    assert {n: hashlib.sha256(c).hexdigest() for n, c in compiled.items()} == {
        n: hashlib.sha256(c).hexdigest() for n, c in shipped.items()
    }
