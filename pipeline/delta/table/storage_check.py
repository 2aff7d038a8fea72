"""The check of a bucket before the first write of a session: both sides can use it, and a create is conditional.

A file is created beside the tables, once for all sessions, and this process and Spark read it. Spark gets a bounded
time for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from threading import Thread
from typing import TypeVar
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from pipeline.dataset import TableRef
from pipeline.delta.spark.confs import CONDITIONAL_LOG_STORES, log_store_conf
from pipeline.delta.spark.failures import NOTHING_TO_READ, SPARK_ERRORS, Failure, failure_of
from pipeline.delta.storage.access import problem_in_java
from pipeline.delta.storage.file_system import create_file, local_folder, read_file
from pipeline.errors import AccessProblem, StorageAccessError

SPARK_SECONDS = 30.0
_FILE = "_staging/storage-check.txt"
# The folders that each session has checked.
_CHECKED: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()
_T = TypeVar("_T")


def check_storage(session: SparkSession, table: TableRef) -> None:
    """Check the bucket of a table, once in a session. A table on a disk needs no check.

    At most three requests of this process, and one Spark job.

    Raises:
        StorageAccessError: Spark can't use the bucket, or uses another one, or the store ignores the condition of a
            create while the session relies on it.
        OSError: this process can't use the bucket; with its problem, if the store reports one.
    """
    root = table.location.removesuffix(f"/{table.name}")
    checked = _CHECKED.setdefault(session, set())
    if local_folder(root) is not None or root in checked:
        return
    file = f"{root}/{_FILE}"
    relies_on_conditions = session.conf.get(log_store_conf(root), None) in CONDITIONAL_LOG_STORES
    if create_file(file, _content()) and create_file(file, _content()) and relies_on_conditions:
        reason = "a file was created twice with If-None-Match"
        raise _error(table, "this process", AccessProblem.UNCONDITIONAL, reason)
    content = read_file(file)
    try:
        seen = _within(SPARK_SECONDS, lambda: _read_by_spark(session, file))
    except TimeoutError as error:
        reason = f"no answer within {SPARK_SECONDS:.0f} s"
        raise _error(table, "Spark", AccessProblem.UNREACHABLE, reason) from error
    except SPARK_ERRORS as error:
        failure = failure_of(error)
        raise _error(table, "Spark", _problem_of(failure), failure.summary) from error
    if seen != content.decode():
        raise _error(table, "Spark", AccessProblem.OTHER_STORE, f"{file} has other content there")
    checked.add(root)


def _content() -> bytes:
    return f"A check of the storage created this file: {uuid.uuid4().hex}".encode("ascii")


def _read_by_spark(session: SparkSession, file: str) -> str:
    frame = session.read.format("text").option("wholetext", "true").option("globPaths", "false").load(file)
    return "".join(str(row[0]) for row in frame.collect())


def _within(seconds: float, call: Callable[[], _T]) -> _T:
    """The result of a call in a thread of its own, which is left behind if it takes longer."""
    results: list[_T] = []
    failures: list[Exception] = []

    def run() -> None:
        try:
            results.append(call())
        except SPARK_ERRORS as error:
            failures.append(error)

    thread = Thread(target=run, name="storage-check", daemon=True)
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not results:
        raise TimeoutError
    return results[0]


def _problem_of(failure: Failure) -> AccessProblem:
    if failure.has(NOTHING_TO_READ) or failure.is_file_gone:
        return AccessProblem.OTHER_STORE
    return problem_in_java(failure.message, failure.classes)


def _error(table: TableRef, side: str, problem: AccessProblem, reason: str) -> StorageAccessError:
    return table.error(StorageAccessError, side=side, problem=problem, reason=reason)
