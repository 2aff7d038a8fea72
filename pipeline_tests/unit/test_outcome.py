"""Whether an error says that a statement has ended; if it does, the log alone decides what was committed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deltalake
import grpc
import pyarrow as pa
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkRuntimeError
from pyspark.errors.exceptions import captured
from pyspark.errors.exceptions.connect import SparkConnectGrpcException, convert_exception

from pipeline.delta.log.mark import Mark, marked_commit
from pipeline.delta.spark.failures import has_ended
from pipeline.errors import CommitUnknownError, SparkUnavailableError
from pipeline_tests.conflicts import delta_exception_modules

# A task on an executor fetches the files of its session before it begins.
LOST_ARTIFACT = (
    "Job aborted due to stage failure: Task 0 in stage 31.0 failed 4 times, most recent failure: Lost task 0.3 in "
    "stage 31.0 (TID 93) (127.0.0.1 executor 0): java.lang.RuntimeException: Stream "
    "'/artifacts/9b1d/pyfiles/sent.py' was not found."
)


def answered(message: str, *classes: str, condition: str | None = None) -> Exception:
    """The error that pyspark's Connect client makes of a server's answer."""
    metadata = {"classes": json.dumps(classes)} | ({} if condition is None else {"errorClass": condition})
    info = ErrorInfo(reason=classes[0], domain="org.apache.spark", metadata=metadata)
    return convert_exception(info, message, None, grpc_status_code=grpc.StatusCode.INTERNAL)


def of_java(name: str) -> Any:
    return SimpleNamespace(_target_id="o1", getClass=lambda: SimpleNamespace(getName=lambda: name))


SPARK = "org.apache.spark.SparkException"
ENDED: Mapping[str, Callable[[], Exception]] = {
    "a lost artifact": lambda: answered(LOST_ARTIFACT, SPARK, "java.lang.Exception"),
    "a class that the client does not know": lambda: answered("no", "com.example.Failed"),
    "a condition": lambda: answered("no", SPARK, condition="TASK_WRITE_FAILED"),
    "a conflict over Connect": lambda: delta_exception_modules()[0][1].ConcurrentAppendException("met another"),
    "Java": lambda: Py4JJavaError("", of_java(SPARK)),
    # Its constructor asks a JVM.
    "classic": lambda: captured.AnalysisException.__new__(captured.AnalysisException),
}
GOES_ON: Mapping[str, Callable[[], Exception]] = {
    "an abandoned operation": lambda: answered("no", SPARK, condition="INVALID_HANDLE.OPERATION_ABANDONED"),
    "a lost cursor": lambda: answered("no", SPARK, condition="INVALID_CURSOR.DISCONNECTED"),
    "an answer that is too large": lambda: SparkConnectGrpcException(
        "Received message larger than max", grpc_status_code=grpc.StatusCode.RESOURCE_EXHAUSTED
    ),
    "the client": lambda: PySparkRuntimeError("the answer was lost"),
    "a server that is gone": lambda: SparkUnavailableError(where="sc://h:1", reason="it does not answer"),
    "py4j": lambda: Py4JError("An error occurred while calling o1.sql"),
    "a JVM that is gone": lambda: Py4JNetworkError("Answer from Java side is empty"),
}


class Broken:
    """A session that raises the same error in each of its statements."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def sql(self, statement: str) -> Any:
        raise self._error


@pytest.fixture
def location(tmp_path: Path) -> str:
    deltalake.write_deltalake(tmp_path / "rows", pa.table({"n": [1]}))
    return str(tmp_path / "rows")


def searched(location: str, error: Exception) -> object:
    session: Any = Broken(error)
    return marked_commit(
        session, "rows", location, Mark(writer="w"), (), reason="it failed", ended=has_ended(error)
    )  # fmt: skip


@pytest.mark.parametrize("kind", ENDED)
def test_after_the_answer_of_a_statement_a_log_without_its_mark_says_that_nothing_was_committed(
    kind: str, location: str
) -> None:
    """Also if the session can run no statement any more: none is run to learn it."""
    assert searched(location, ENDED[kind]()) is None


@pytest.mark.parametrize("kind", GOES_ON)
def test_a_statement_without_an_answer_may_go_on_so_that_its_outcome_is_unknown(kind: str, location: str) -> None:
    with pytest.raises(CommitUnknownError, match="it failed"):
        searched(location, GOES_ON[kind]())
