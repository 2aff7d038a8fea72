"""The only place where a Spark session is built.

Here belong the confs, the embedded JVM and the Connect client. A session is made when it is asked for, never at import,
and one process has one.
"""

from __future__ import annotations

import atexit
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipeline.delta.spark.failures import SPARK_ERRORS, failure_of
from pipeline.delta.spark.jars import delta_jars
from pipeline.delta.spark.java import find_java
from pipeline.delta.spark.server_record import HOST, token_of
from pipeline.errors import SparkUnavailableError
from pipeline.settings import STATE_FOLDER, SparkSettings, find_project

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
CONNECT_PORT = 15002  # Spark Connect's own default
CONNECT_SECONDS = 5.0
# About 15 s in all: a restart of a local server is survived, a dead one is told within a step's patience.
CONNECT_ATTEMPTS = 8
CONNECT_BACKOFF_MILLISECONDS = 4000
# What the meaning of rows and names depends on: the same in every session, whoever runs its server. A variable would be
# put in the place of `${x}` within quotes too, and a quoted name has no escape for `$`.
SEMANTIC_CONFS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.variable.substitute": "false",
}
# What keeps a JVM that is used for days as small and as quick as it was.
_BOUNDS = {
    # What Spark keeps of work that is done, for a UI that nobody sees here; it keeps thousands.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "100",
    "spark.sql.ui.retainedExecutions": "10",
    "spark.connect.ui.retainedSessions": "10",
    "spark.connect.ui.retainedStatements": "10",
    # Pools that start a thread for each task up to their bound, which is 1 024, and keep it for a minute.
    "spark.sql.shuffleExchange.maxThreadThreshold": "16",
    "spark.sql.resultQueryStage.maxThreadThreshold": "16",
    # A merge, an append and a look at the feed have about a hundred generated classes between them. Spark keeps 100 of
    # all, so that most were compiled again each time: 77 in a round of the three, then 4.
    "spark.sql.codegen.cache.maxEntries": "1000",
}
# What the meaning of our statements depends on, each with Spark's and Delta's own default. A caller's dynamic overwrite
# would leave old partitions, an unchecked replaceWhere would take stray rows, raw literals would address other values.
STATEMENT_CONFS = {
    "spark.sql.sources.partitionOverwriteMode": "static",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.databricks.delta.replaceWhere.constraintCheck.enabled": "true",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
}
# What a private session has beside them. Delta hands on the literals of a REPLACE WHERE as Java's old dates, which lack
# days of 1582, unless it is told to use the new ones; instants as INT96 are read wrong by other readers.
WRITE_CONFS = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.datetime.java8API.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    # A partition value of an instant without its zone is read by the zone of whoever reads.
    "spark.databricks.delta.write.utcTimestampPartitionValues": "true",
    # A statement that rewrites a file without some of those it should have read has lost their rows.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
}
# How its conditions begin where a server was started anew, or has ended a session that was idle for too long.
_NO_SESSION = "INVALID_HANDLE.SESSION_"
_REFUSED = (
    "it answers only who has its token. One of this project (pipeline spark start) is used from the project's folder; "
    "another's token goes behind the address, sc://host:port/;token=..."
)
_NO_ADDRESS = "SPARK_REMOTE must look like sc://host:port"
_LOST = "the server no longer has this run's session"
FEW_CORES = 2
_CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"


def open_session(settings: SparkSettings) -> SparkSession:
    """The process's session: a Connect client where `remote` is set, else an embedded or cluster driver.

    Raises:
        PipelineError: the machine lacks the Java or the jars of an embedded driver; as `find_java` and `delta_jars`.
        SparkUnavailableError: nothing answers, the JVM does not start, or the session that is there has no Delta.
    """
    session = _connect(settings.remote) if settings.remote else _embedded(settings)
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


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def confs(settings: SparkSettings, jars: list[Path]) -> dict[str, str]:
    """Every conf of an embedded session; the settings' own win.

    Sizes follow the cores: with Delta's and Spark's defaults a small table costs more in empty tasks than in work.
    """
    parallel = str(cores())
    # On few cores threads that collect garbage take them from the work: a first write is a sixth slower with them.
    collector = ["-XX:+UseSerialGC"] if settings.master.startswith("local") and cores() <= FEW_CORES else []
    quiet = files("pipeline.delta.spark").joinpath("log4j2.properties")
    ours = {
        "spark.app.name": "pipeline",
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraClassPath": os.pathsep.join(map(str, jars)),
        # As a URI: the launcher splits this text at spaces.
        "spark.driver.extraJavaOptions": " ".join(
            [f"-Dlog4j2.configurationFile={Path(str(quiet)).as_uri()}", *collector]
        ),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **_BOUNDS,
        "spark.sql.extensions": DELTA_EXTENSION,
        "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
        "spark.sql.catalogImplementation": "in-memory",
        # Nothing is kept in a catalog; left alone, Spark makes an empty folder of that name where it is started.
        "spark.sql.warehouse.dir": (settings.cache / "warehouse").as_uri(),
        "spark.sql.shuffle.partitions": parallel,
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": parallel,
        "spark.databricks.delta.snapshotPartitions": parallel,
        "spark.databricks.delta.vacuum.parallelDelete.enabled": "true",
    }
    if not settings.master.startswith("local"):
        # A cluster's executors can't reach a driver on loopback, nor jars that lie on this machine only.
        for name in ("spark.driver.host", "spark.driver.bindAddress"):
            del ours[name]
        ours["spark.jars"] = ",".join(map(str, jars))
    return ours | SEMANTIC_CONFS | STATEMENT_CONFS | WRITE_CONFS | dict(settings.conf)


def _embedded(settings: SparkSettings) -> SparkSession:
    running = SparkSession.getActiveSession() if _CONNECT_MODE not in os.environ else None
    if running is not None:
        return running
    jars, java = delta_jars(settings), find_java(os.environ, settings.cache)
    builder = SparkSession.builder.master(settings.master)
    for name, value in confs(settings, jars).items():
        builder = builder.config(name, value)
    # Functions of the user run in Python processes of their own; on this machine they must be of this very Python.
    python = os.environ.get("PYSPARK_PYTHON") or (sys.executable if settings.master.startswith("local") else None)
    with _environment(JAVA_HOME=str(java.home), SPARK_REMOTE=None, PYSPARK_PYTHON=python):
        try:
            return builder.getOrCreate()
        except (*SPARK_ERRORS, RuntimeError) as error:
            # pyspark reports a JVM that ends while it starts as a bare RuntimeError of its own.
            raise SparkUnavailableError(where=settings.master, reason=failure_of(error).summary) from error


def embedded_environment() -> dict[str, str]:
    """The environment for a child process that runs Spark itself, whatever server this process uses."""
    return {name: value for name, value in os.environ.items() if name not in ("SPARK_REMOTE", _CONNECT_MODE)}


@contextmanager
def _environment(**values: str | None) -> Iterator[None]:
    """Environment variables for the time in which the JVM is launched."""
    before = {name: os.environ.get(name) for name in values}
    try:
        _set_environment(values)
        yield
    finally:
        _set_environment(before)


def _set_environment(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _connect(remote: str) -> SparkSession:
    _answer(remote)
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    builder = ConnectSession.builder.channelBuilder(_channel(remote))
    try:
        session: Any = builder.getOrCreate()
        try:
            _prepare(session)
        except SparkUnavailableError as error:
            if error.reason not in (_LOST, _REFUSED):
                raise
            # The process had one, of a server that was started anew since, with another token, or has ended it.
            session.release_session_on_close = False
            session.stop()
            session = builder.getOrCreate()
            _prepare(session)
    except PySparkException as error:
        raise SparkUnavailableError(where=shown_remote(remote), reason=failure_of(error).summary) from error
    # `pyspark.sql.functions` decides by this variable whether a Column is a classic or a Connect one.
    os.environ[_CONNECT_MODE] = "1"
    atexit.register(_end_if_answered, session, remote)
    return session  # type: ignore[no-any-return]


def _channel(remote: str) -> Any:
    """The way to a server. To one on this machine a token goes without TLS, as pyspark lets it for `localhost` alone.

    A token in the address wins; else the project's own server is given its own.
    """
    import grpc
    from pyspark.sql.connect.client import DefaultChannelBuilder

    class Channel(DefaultChannelBuilder):
        def toChannel(self) -> Any:  # noqa: N802  pyspark's name
            host = self.host.strip("[]")
            if self.token is None or self.use_ssl or not (host in ("localhost", "::1") or host.startswith("127.")):
                return super().toChannel()
            local = grpc.local_channel_credentials(grpc.LocalConnectionType.LOCAL_TCP)
            credentials = grpc.composite_channel_credentials(local, grpc.access_token_call_credentials(self.token))
            return self._secure_channel(self.endpoint, credentials)

    try:
        channel = Channel(remote)
    except PySparkException:  # its text repeats the address with the token
        raise SparkUnavailableError(where=shown_remote(remote), reason=_NO_ADDRESS) from None
    host, _, port = channel.endpoint.rpartition(":")
    if host == HOST and channel.getDefault(Channel.PARAM_TOKEN, None) is None:
        token = token_of(find_project(Path.cwd()) / STATE_FOLDER / "spark", int(port))
        if token is not None:
            channel.set(Channel.PARAM_TOKEN, token)
    return channel


def _prepare(session: Any) -> None:
    """Give a session our bounds and confs; the first calls to the server."""
    with_bounded_retries(session)
    for name, value in (SEMANTIC_CONFS | WRITE_CONFS).items():
        session.conf.set(name, value)
    hold_statement_confs(session)
    _patience(_where(session)).max_retries = CONNECT_ATTEMPTS  # it answers


def _where(session: Any) -> str:
    return f"sc://{session.client._builder.endpoint}"


def hold_statement_confs(session: SparkSession) -> None:
    """Set those of `STATEMENT_CONFS` that the session's caller has changed; some warn when they are set at all."""
    for name, value in STATEMENT_CONFS.items():
        if session.conf.get(name, value) != value:
            session.conf.set(name, value)


def with_bounded_retries(session: SparkSession) -> SparkSession:
    """The Connect session with an end to its patience: as it comes it asks a server that is gone for ten minutes.

    At that end any call raises `SparkUnavailableError`. That also holds for the process's exit, where the client would
    ask once more; ours asks only a server that answers.
    """
    client: Any = session.client
    client.set_retry_policies([_patience(_where(session))])
    atexit.unregister(client._on_exit)
    return session


@cache
def _patience(where: str) -> Any:
    """A server's retry policy, which names what it gave up on; after that one attempt must do, in all its sessions.

    It is asked with every failed call of a client, the caller's own included, so nothing comes out as a gRPC error, and
    no clean-up waits for a server that is known to be gone.
    """
    import grpc
    from pyspark.sql.connect.client.retries import DefaultPolicy, RetryPolicyState

    class Asking(RetryPolicyState):
        def next_attempt(self, exception: BaseException | None = None) -> int | None:
            wait = super().next_attempt(exception)
            if wait is None:
                self.policy.max_retries = 0
                details = getattr(exception, "details", lambda: None)()
                raise SparkUnavailableError(where=where, reason=details or "it does not answer") from exception
            return wait

    class Patience(DefaultPolicy):
        def to_state(self) -> RetryPolicyState:
            return Asking(self)

        def can_retry(self, e: BaseException) -> bool:
            if any(condition.startswith(_NO_SESSION) for condition in _conditions(e)):
                raise SparkUnavailableError(where=where, reason=_LOST) from e
            if isinstance(e, grpc.RpcError) and e.code() == grpc.StatusCode.UNAUTHENTICATED:
                raise SparkUnavailableError(where=where, reason=_REFUSED) from e
            return super().can_retry(e)

    return Patience(max_retries=CONNECT_ATTEMPTS, max_backoff=CONNECT_BACKOFF_MILLISECONDS)


def clone_connect(session: SparkSession) -> SparkSession:
    """A clone of a Connect session. The client asks for it past its retries and its reading of errors."""
    from grpc import RpcError

    parent: Any = session
    where = _where(parent)
    try:
        session.conf.get(next(iter(SEMANTIC_CONFS)))  # the server knows of a session from its first call on
        clone = parent.cloneSession()
    except PySparkException as error:
        raise SparkUnavailableError(where=where, reason=failure_of(error).summary) from error
    except RpcError as error:
        raise SparkUnavailableError(where=where, reason=error.details()) from error
    return with_bounded_retries(clone)


def _conditions(error: BaseException) -> list[str]:
    """Spark's error conditions in a gRPC error, which no client has read yet."""
    from google.rpc.error_details_pb2 import ErrorInfo
    from grpc_status import rpc_status

    status = rpc_status.from_call(error) if hasattr(error, "trailing_metadata") else None
    infos = [ErrorInfo.FromString(d.value) for d in status.details if d.Is(ErrorInfo.DESCRIPTOR)] if status else []
    return [info.metadata.get("errorClass", "") for info in infos]


def end_connect(session: SparkSession) -> None:
    """Release a Connect session's state on the server and close its channel; a server that is gone keeps nothing."""
    client: Any = session.client
    if client.is_closed:
        return
    try:
        client.release_session()
    except (PySparkException, SparkUnavailableError):
        pass
    finally:
        client.close()


def _end_if_answered(session: SparkSession, remote: str) -> None:
    try:
        _answer(remote)
    except SparkUnavailableError:
        return
    end_connect(session)


def shown_remote(remote: str) -> str:
    """The address without its parameters and its user, which may hold a token."""
    scheme, colon, rest = remote.partition("://") if "://" in remote else ("", "", remote)
    return f"{scheme}{colon}{re.split('[/;?#]', rest, maxsplit=1)[0].rpartition('@')[2]}"


def _answer(remote: str) -> None:
    """Ask whether anything listens, since the client itself would go on trying for minutes."""
    try:
        parts = urlsplit(remote.split(";", maxsplit=1)[0])
        host, port = parts.hostname, parts.port or CONNECT_PORT
    except ValueError:  # its text repeats a part of the address
        raise SparkUnavailableError(where=shown_remote(remote), reason=_NO_ADDRESS) from None
    if parts.scheme != "sc" or not host:
        raise SparkUnavailableError(where=shown_remote(remote), reason=_NO_ADDRESS)
    try:
        with socket.create_connection((host, port), timeout=CONNECT_SECONDS):
            pass
    except OSError as error:
        raise SparkUnavailableError(where=shown_remote(remote), reason=error.strerror or str(error)) from error
