"""Every verb on tables in an S3 bucket, with S3A and the conditional log store, and the requests that it costs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.delta.log.commits import commit_versions
from pipeline.delta.log.counts import table_rows
from pipeline.delta.spark.jars import LOG_STORE, delta_jars
from pipeline.delta.storage.options import use_confs
from pipeline.settings import SparkSettings
from pipeline_tests.children.bucket import APPENDED, MERGED
from pipeline_tests.conftest import brief_conf
from pipeline_tests.object_stores import Bucket, Fault, FaultKind, served_bucket

# Roots in buckets, each with the confs for this process alone.
Unusable = Sequence[tuple[str, Mapping[str, str]]]


class Child:
    """A process that takes steps over a bucket."""

    def __init__(
        self, bucket: Bucket, settings: SparkSettings, root: str, *steps: str, writer: str = "one",
        unusable: Unusable = (), conf: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        job = {
            "cache": str(settings.cache), "conf": dict(brief_conf(settings)) | bucket.hadoop | dict(conf or {}),
            "root": root, "steps": steps, "writer": writer, "unusable": unusable,
        }  # fmt: skip
        command = [sys.executable, "-m", "pipeline_tests.children.bucket", json.dumps(job)]
        self.bucket, self.requests = bucket, list[str]()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def next(self) -> Any:
        """The result of the next step; `requests` are those that it made."""
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
        result = self._answer("result")
        self.go()
        return result

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
        return json.loads(line)[name]

    def go(self) -> None:
        """Let the process go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextlib.contextmanager
def child(bucket: Bucket, settings: SparkSettings, root: str, *steps: str, **options: Any) -> Iterator[Child]:
    process = Child(bucket, settings, root, *steps, **options)
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
        assert process.next() == [[1, 2], [["x", 1], ["x", 2], ["y", 3]]]
        assert process.next() == [2, [["x", 1], ["y", 2]]]
        assert process.next() == [3, [["p", 9], ["x", 1], ["y", 2]]]
        assert process.next() == ["full snapshot", 5]
        assert process.next() == ["nothing new", None]
        assert len(process.requests) <= 11
        assert process.next() == [None]
        assert process.next() == [[1, 1, "ok"], [1, 1, "ok"]]
        removed, version, listed, kept = process.next()
        assert (removed > 0, version, listed, len(kept)) == (True, 4, 0, 5)
        assert process.next() == [2, 5, True, rows]


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


LOG_PUT = r"_delta_log/\d{20}\.json"


@pytest.mark.exhaustive
def test_no_fault_of_a_store_loses_or_doubles_a_row(spark_settings: SparkSettings) -> None:
    faults = [
        *[Fault(FaultKind.LOSE_ANSWER, "PUT", LOG_PUT, times=times) for times in (1, 2)],
        *[Fault(FaultKind.RESET, "PUT", LOG_PUT, times=times) for times in (1, 3)],
        *[Fault(FaultKind.REFUSE, "PUT", LOG_PUT, times=2, status=status) for status in (500, 503)],
        Fault(FaultKind.DELAY, "PUT", LOG_PUT, times=1, seconds=0.4),
        Fault(FaultKind.RESET, "GET", LOG_PUT, times=2),
        Fault(FaultKind.REFUSE, "GET", "list-type", times=2),
        Fault(FaultKind.LOSE_ANSWER, "PUT", r"\.parquet", times=1),
        Fault(FaultKind.RESET, "HEAD", r"\.parquet", times=1),
    ]
    steps = ["append_under_an_identifier"] * (len(faults) + 1)
    with served_bucket() as bucket, child(bucket, spark_settings, f"{bucket.uri}/lake", *steps) as process:
        assert process.next() == [[], 1, [["e", 1]]]
        for number, fault in enumerate(faults, 2):
            bucket.faults[:] = [fault]
            failures, version, rows = process.next()
            assert (version, rows) == (number, [["e", n] for n in range(1, number + 1)]), (fault, failures)
            assert fault.met >= 1, fault


@pytest.mark.exhaustive
def test_a_bucket_that_one_side_can_t_use_is_refused_before_the_first_write(spark_settings: SparkSettings) -> None:
    with contextlib.ExitStack() as stack:
        usable, other, elsewhere, silent, read_only = (stack.enter_context(served_bucket()) for _ in range(5))
        unconditional = stack.enter_context(served_bucket(ignores_conditions=True))
        refusing = stack.enter_context(served_bucket())
        elsewhere.faults[:] = [Fault(FaultKind.REFUSE, times=None, status=404, code="NoSuchKey")]
        refusing.faults[:] = [Fault(FaultKind.REFUSE, times=None, status=403, code="InvalidAccessKeyId")]
        read_only.faults[:] = [Fault(FaultKind.REFUSE, "PUT", times=None, status=403, code="AccessDenied")]
        expected = [
            (other.name, elsewhere.endpoint, ["Spark", "OTHER_STORE", True]),
            (elsewhere.name, refusing.endpoint, ["Spark", "NOT_ALLOWED", True]),
            (silent.name, "http://127.0.0.1:1", ["Spark", "UNREACHABLE", True]),
            (read_only.name, read_only.endpoint, ["this process", "NOT_ALLOWED", True]),
            (unconditional.name, unconditional.endpoint, ["this process", "UNCONDITIONAL", True]),
        ]
        served = {one.name: one for one in (other, elsewhere, silent, read_only, unconditional)}
        endpoint = "spark.hadoop.fs.s3a.bucket.{}.endpoint"
        conf = {k: v for name, one in served.items() for k, v in (one.hadoop | {endpoint.format(name): ""}).items()}
        conf |= {endpoint.format(name): of_spark for name, of_spark, _ in expected}
        # This process reaches `elsewhere` by another server: all of them share their buckets.
        of_client = {name: one.endpoint for name, one in served.items()} | {elsewhere.name: usable.endpoint}
        unusable = [(f"s3a://{name}/lake", {endpoint.format(name): of_client[name]}) for name, _, _ in expected]
        steps = ("first_writes", "append")
        process = stack.enter_context(
            child(usable, spark_settings, f"{usable.uri}/lake", *steps, unusable=unusable, conf=conf)
        )
        assert process.next() == [result for _, _, result in expected]
        assert process.next()[0] == [[1, True, False], [2, True, False], [2, False, True]]
        use_confs(usable.hadoop)
        for name in served:
            use_confs({endpoint.format(name): usable.endpoint})
            assert not commit_versions(f"s3a://{name}/lake/appended"), name


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
