"""Faults of a store: no row is lost or doubled, and a bucket that one side can't use is refused by name."""

from __future__ import annotations

import contextlib

import pytest

from pipeline.delta.log.commits import commit_versions
from pipeline.delta.storage.options import use_confs
from pipeline.settings import SparkSettings
from pipeline_tests.delta.stepping import child
from pipeline_tests.object_stores import LOG_ENTRY, Fault, FaultKind, served_bucket


@pytest.mark.exhaustive
def test_no_fault_of_a_store_loses_or_doubles_a_row(spark_settings: SparkSettings) -> None:
    faults = [
        *[Fault(FaultKind.LOSE_ANSWER, "PUT", LOG_ENTRY, times=times) for times in (1, 2)],
        *[Fault(FaultKind.RESET, "PUT", LOG_ENTRY, times=times) for times in (1, 3)],
        *[Fault(FaultKind.REFUSE, "PUT", LOG_ENTRY, times=2, status=status) for status in (500, 503)],
        Fault(FaultKind.DELAY, "PUT", LOG_ENTRY, times=1, seconds=0.4),
        Fault(FaultKind.RESET, "GET", LOG_ENTRY, times=2),
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
        for name, one in served.items():
            use_confs(one.hadoop | {endpoint.format(name): usable.endpoint})
            assert not commit_versions(f"s3a://{name}/lake/appended"), name
