"""The only place where a Spark session is built.

Here belongs which kind a session is, and the embedded one; a client's is `connect`'s. A session is made when it is
asked for, never at import, and one process has one.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from pipeline.delta.spark.confs import DELTA_EXTENSION, confs
from pipeline.delta.spark.connect import CONNECT_MODE, open_connect
from pipeline.delta.spark.failures import SPARK_ERRORS, failure_of
from pipeline.delta.spark.jars import delta_jars
from pipeline.delta.spark.java import find_java
from pipeline.delta.spark.launch import environment, start_jvm
from pipeline.errors import SparkUnavailableError
from pipeline.settings import SparkSettings, shown_remote


def open_session(settings: SparkSettings) -> SparkSession:
    """The process's session: a Connect client where `remote` is set, else an embedded or cluster driver.

    Raises:
        PipelineError: the machine lacks the Java or the jars of an embedded driver; as `find_java` and `delta_jars`.
        SparkUnavailableError: nothing answers, the JVM does not start, or the session that is there has no Delta.
    """
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
    """Whether the session is a Connect client; such a one has no JVM on this side."""
    return not hasattr(session, "_jsparkSession")


def _embedded(settings: SparkSettings) -> SparkSession:
    running = SparkSession.getActiveSession() if CONNECT_MODE not in os.environ else None
    if running is not None:
        return running
    java = find_java(os.environ, settings.cache)
    ours = {"spark.master": settings.master} | confs(settings, delta_jars(settings))
    # Functions of the user run in Python processes of their own; on this machine they must be of this very Python.
    python = os.environ.get("PYSPARK_PYTHON") or (sys.executable if settings.master.startswith("local") else None)
    with environment(JAVA_HOME=str(java.home), SPARK_REMOTE=None, PYSPARK_PYTHON=python):
        try:
            start_jvm(ours)
            return SparkSession.builder.config(map={**ours}).getOrCreate()
        except (*SPARK_ERRORS, RuntimeError) as error:
            # pyspark reports a JVM that ends while it starts as a bare RuntimeError of its own.
            raise SparkUnavailableError(where=settings.master, reason=failure_of(error).summary) from error
        except OSError as error:
            raise SparkUnavailableError(
                where=settings.master, reason=f"its confs can't be handed over: {error}"
            ) from error


def embedded_environment() -> dict[str, str]:
    """The environment for a child process that runs Spark itself, whatever server this process uses."""
    return {name: value for name, value in os.environ.items() if name not in ("SPARK_REMOTE", CONNECT_MODE)}
