"""The only place where a Spark session is built.

Here belong the choice of the session's kind, and the embedded session. `connect` opens a client's session. A session is
built when it is requested, never at import, and a process has one.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from pipeline.delta.spark.cluster import check_executors, jars_for_executors, require_master
from pipeline.delta.spark.confs import DELTA_EXTENSION, confs
from pipeline.delta.spark.connect import CONNECT_MODE, connect_session, open_connect
from pipeline.delta.spark.failures import SPARK_ERRORS, failure_of
from pipeline.delta.spark.jars import delta_jars
from pipeline.delta.spark.java import find_java
from pipeline.delta.spark.launch import environment, quiet_loggers, start_jvm
from pipeline.delta.storage.options import account_confs, use_accounts, with_prefixes
from pipeline.errors import SparkUnavailableError
from pipeline.settings import SparkSettings, shown_remote


def open_session(settings: SparkSettings) -> SparkSession:
    """The process's session: a Connect client if `remote` is set, else an embedded or cluster driver.

    Raises:
        PipelineError: the machine lacks the Java or the jars of an embedded driver; as `find_java` and `delta_jars`.
        SparkUnavailableError: the server or the master does not answer, the JVM does not start, or the session has no
            Delta.
        ExecutorsUnavailableError: a cluster's executors run no task; as `check_executors`.
        ExecutorPythonError: a cluster's executors can't run this process's Python functions.
    """
    use_accounts(settings)
    session = open_connect(settings.remote) if settings.remote else _embedded(settings)
    where = shown_remote(settings.remote) if settings.remote else settings.master
    try:
        extensions = session.conf.get("spark.sql.extensions", "") or ""
    except SPARK_ERRORS as error:
        raise SparkUnavailableError(where=where, reason=failure_of(error).summary) from error
    if DELTA_EXTENSION not in extensions:
        raise SparkUnavailableError(
            where=where, reason=f"it runs without Delta (spark.sql.extensions is {extensions!r})"
        )
    return session


def is_connect(session: SparkSession) -> bool:
    """Whether the session is a Connect client, which has no JVM in this process."""
    return not hasattr(session, "_jsparkSession")


def _embedded(settings: SparkSettings) -> SparkSession:
    running = SparkSession.getActiveSession() if CONNECT_MODE not in os.environ else connect_session()
    if running is not None:
        return running
    java, jars = find_java(os.environ, settings.cache), delta_jars(settings)
    ours = {"spark.master": settings.master} | confs(settings, jars)
    # Functions of the user run in their own Python processes. On this machine these must use this very Python.
    python = os.environ.get("PYSPARK_PYTHON") or (None if settings.is_cluster else sys.executable)
    require_master(settings.master)
    os.environ.pop(CONNECT_MODE, None)  # of a parent process
    with environment(JAVA_HOME=str(java.home), SPARK_REMOTE=None, PYSPARK_PYTHON=python):
        try:
            # What the user has set may be secret. It is not set again by calls, which can be logged.
            kept = start_jvm(ours) & {*with_prefixes(settings.conf), *account_confs(settings)}
            quiet_loggers()
            called = {name: text for name, text in ours.items() if name not in kept}
            if settings.is_cluster:
                called["spark.jars"] = jars_for_executors(jars, ours.get("spark.jars", ""))
            session = SparkSession.builder.config(map={**called}).getOrCreate()
        except (*SPARK_ERRORS, RuntimeError) as error:
            # If the JVM ends while it starts, pyspark raises a RuntimeError.
            raise SparkUnavailableError(where=settings.master, reason=failure_of(error).summary) from error
        except OSError as error:
            raise SparkUnavailableError(
                where=settings.master, reason=f"its confs can't be passed to the JVM: {error}"
            ) from error
    if settings.is_cluster:
        check_executors(session, settings.master)
    return session
