"""An embedded driver on a cluster: its executors get our jars, run tasks, and have the Python of this process.

Here belongs what is done once for a session whose master is a cluster's. Each check is bounded in time. A session whose
master is this machine needs none of it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.serializers import CPickleSerializer
from pyspark.sql import SparkSession

from pipeline.delta.spark.failures import failure_of
from pipeline.errors import ExecutorPythonError, ExecutorsUnavailableError, SettingsError, SparkUnavailableError

# How long a session waits for the first task of an executor. With 0 nothing is checked.
WAIT_CONF = "spark.pipeline.executors.seconds"
WAIT_SECONDS = 60
MASTER_SECONDS = 5.0
_JARS = "spark.jars"
_STANDALONE = "spark://"
_TIMEOUT = "java.util.concurrent.TimeoutException"
_FAILED = "java.util.concurrent.ExecutionException"
# What a task raises if a program can't be started, or ends with an error.
_NO_PROGRAM = frozenset({"java.io.IOException", "java.lang.IllegalStateException"})
# What a Python reports of itself: its version, whether it imports this package, and the version of that.
_Described = tuple[str, bool, str]


def require_master(master: str) -> None:
    """Check that a standalone master listens: without one, the start of a session takes a minute to fail.

    Raises:
        SparkUnavailableError: none of its addresses answers.
    """
    if not master.startswith(_STANDALONE):
        return
    reasons = []
    for address in master.removeprefix(_STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=MASTER_SECONDS):
                return
        except (ValueError, OverflowError):
            reasons.append(f"{address} must look like host:port")
        except OSError as error:
            reasons.append(f"{address}: {error.strerror or error}")
    raise SparkUnavailableError(where=master, reason="; ".join(reasons))


def jars_for_executors(jars: list[Path], conf: str) -> str:
    """The value of `spark.jars`: our jars, those of the settings, and those of Spark's own files and arguments.

    Requires the JVM, which has read Spark's files and arguments.
    """
    theirs = [jar.strip() for jar in f"{conf},{SparkConf().get(_JARS, '')}".split(",") if jar.strip()]
    return ",".join(dict.fromkeys([*(jar.as_uri() for jar in jars), *theirs]))


def wait_seconds(value: str | None) -> int:
    """How long to wait for a task, by the value of `WAIT_CONF`.

    Raises:
        SettingsError: the value is no whole number.
    """
    if value is None:
        return WAIT_SECONDS
    if not value.isascii() or not value.isdigit():
        raise SettingsError(
            setting=f"[tool.pipeline.spark_conf] {WAIT_CONF}",
            problem=f"got {value!r}",
            expected="a whole number of seconds, or 0 for no check",
        )
    return int(value)


def check_executors(session: SparkSession, master: str) -> None:
    """Run one task on an executor, with a Python function. If it can't run there, the session is stopped.

    Raises:
        ExecutorsUnavailableError: no executor has run it in time, or executors end.
        ExecutorPythonError: the Python there is missing or another one, or has not this package in this version.
        SettingsError: the conf for the time is no number.
    """
    context = session.sparkContext
    try:
        seconds = wait_seconds(context.getConf().get(WAIT_CONF))
        if seconds > 0:
            _check(context, master, seconds)
    except (ExecutorsUnavailableError, ExecutorPythonError, SettingsError):
        session.stop()
        raise


def _check(context: SparkContext, master: str, seconds: int) -> None:
    described = _description()
    here = described(0)
    ends = time.monotonic() + seconds
    tasks: Any = context.parallelize([0], 1).map(described)
    try:
        answer = _first_of(context, tasks._jrdd, seconds)
    except Py4JError as error:
        failure = failure_of(error)
        if failure.classes[:1] == (_TIMEOUT,):
            reason = f"no task has ended within {seconds} s, with {_executors(context)}"
            raise ExecutorsUnavailableError(master=master, seconds=seconds, reason=reason) from error
        version = _version_there(context, max(ends - time.monotonic(), 1))
        if version is None:
            raise ExecutorsUnavailableError(master=master, seconds=seconds, reason=failure.summary) from error
        same = not version or version.split(".")[:2] == here[0].split(".")[:2]
        problem = failure.summary if same else "both need the same minor version of Python"
        raise _python_error(context, master, here, (version, False, ""), problem) from error
    unpickled: Any = CPickleSerializer()
    (there,) = unpickled.loads(bytes(answer))
    if not there[1]:
        raise _python_error(context, master, here, there, "the package pipeline can't be imported there")
    if there[2] != here[2] and there[2] and here[2]:
        problem = f"the package has version {there[2]} there, and {here[2]} here"
        raise _python_error(context, master, here, there, problem)


def _python_error(
    context: SparkContext, master: str, here: _Described, there: _Described, problem: str
) -> ExecutorPythonError:
    return ExecutorPythonError(
        master=master, python=context.pythonExec, executor_python=there[0], driver_python=here[0],
        executor_package=there[2], driver_package=here[2], importable=there[1], reason=problem,
    )  # fmt: skip


def _description() -> Callable[[object], _Described]:
    """The function of the task. It is sent as its code, since the package may be missing on the executor."""

    def described(_: object) -> _Described:
        import importlib
        import importlib.metadata
        import platform

        try:
            importlib.import_module("pipeline.errors")
        except ImportError:
            return platform.python_version(), False, ""
        try:
            version = importlib.metadata.version("delta-first-pipeline")
        except importlib.metadata.PackageNotFoundError:  # it is imported from its sources
            version = ""
        return platform.python_version(), True, version

    return described


def _version_there(context: SparkContext, seconds: float) -> str | None:
    """The version of the Python that executors start, empty if it does not start. If no task runs, None."""
    program = [context.pythonExec, "-c", "import platform; print(platform.python_version())"]
    java: Any = context._jsc
    if java.sc().isStopped():
        return None
    try:
        return str(_first_of(context, java.parallelize([0], 1).pipe(program), seconds))
    except Py4JError as error:
        classes = failure_of(error).classes
        return "" if classes[:1] == (_FAILED,) and _NO_PROGRAM.intersection(classes) else None


def _first_of(context: SparkContext, rdd: Any, seconds: float) -> Any:
    """The first row of a Java RDD. If that takes longer, its job is cancelled and Java's timeout is raised."""
    jvm: Any = context._jvm
    future = rdd.collectAsync()
    try:
        return future.get(int(seconds * 1000), jvm.java.util.concurrent.TimeUnit.MILLISECONDS)[0]
    finally:
        future.cancel(True)


def _executors(context: SparkContext) -> str:
    java: Any = context._jsc
    count = java.sc().getExecutorMemoryStatus().size() - 1  # without the driver
    return f"{count or 'no'} executor{'' if count == 1 else 's'}"
