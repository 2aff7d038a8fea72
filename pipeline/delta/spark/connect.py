"""Sessions on a Spark Connect server: the channel, the bounded retries of its client, and the end of a session.

Here belongs the client. `server` starts a server of our own.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipeline.delta.spark.confs import SEMANTIC_CONFS, STATEMENT_CONFS, WRITE_CONFS
from pipeline.delta.spark.failures import failure_of
from pipeline.delta.spark.server_record import HOST, token_of
from pipeline.errors import SparkUnavailableError
from pipeline.settings import STATE_FOLDER, find_project, shown_remote

CONNECT_PORT = 15002  # Spark Connect's own default
CONNECT_SECONDS = 5.0
# How often an idle session asks its server for something. A server ends a session that does nothing for an hour.
ALIVE_SECONDS = 300.0
_KEPT_ALIVE = "_pipeline_kept_alive"
# About 15 s in all: a call survives a restart of a local server, and a dead server is reported before a run waits long.
CONNECT_ATTEMPTS = 8
CONNECT_BACKOFF_MILLISECONDS = 4000
# The prefix of the conditions if a server was restarted, or has ended a session that was idle for too long.
_NO_SESSION = "INVALID_HANDLE.SESSION_"
_REFUSED = (
    "it requires a token. The token of this project's server (pipeline spark start) is read in the project's folder; "
    "for another server append it to the address, sc://host:port/;token=..."
)
_NEVER = 2**31 - 1
_NO_ADDRESS = "SPARK_REMOTE must look like sc://host:port"
_LOST = "the server no longer has this run's session"
# By this variable `pyspark.sql.functions` decides whether a Column is a classic or a Connect one.
CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"


def embedded_environment() -> dict[str, str]:
    """The environment for a child process that runs Spark itself, without this process's server."""
    return {name: value for name, value in os.environ.items() if name not in ("SPARK_REMOTE", CONNECT_MODE)}


def open_connect(remote: str) -> SparkSession:
    """A session on the server at this address, with our retries and confs. If the process has one there, that one.

    Raises:
        SparkUnavailableError: the server does not answer, or refuses.
    """
    _require_listener(remote)
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    wanted = channel(remote)
    builder = ConnectSession.builder.channelBuilder(wanted)
    try:
        session: Any = builder.getOrCreate()
        if session.client._builder.endpoint != wanted.endpoint:  # it has one of another server, or of one that is gone
            session = builder.create()
        try:
            _prepare(session)
        except SparkUnavailableError as error:
            if error.reason not in (_LOST, _REFUSED):
                raise
            # The process has a session of a server that was restarted since, with another token, or has ended it.
            session.release_session_on_close = False
            session.stop()
            session = builder.getOrCreate()
            _prepare(session)
    except PySparkException as error:
        raise SparkUnavailableError(where=shown_remote(remote), reason=failure_of(error).summary) from error
    os.environ[CONNECT_MODE] = "1"
    atexit.register(_end_if_listening, session, remote)
    _keep_alive(session)
    return session  # type: ignore[no-any-return]


def _keep_alive(session: Any) -> None:
    """Ask a session for something every few minutes: a run may compute for hours between two statements."""
    if getattr(session, _KEPT_ALIVE, False):
        return
    setattr(session, _KEPT_ALIVE, True)

    def ask() -> None:
        while not session.client.is_closed:
            time.sleep(ALIVE_SECONDS)
            try:
                session.conf.get(next(iter(SEMANTIC_CONFS)))
            except (PySparkException, SparkUnavailableError, ValueError):  # gRPC raises one if the channel is closed
                return

    threading.Thread(target=ask, name="spark-session-alive", daemon=True).start()


def connect_session() -> SparkSession | None:
    """The Connect session that this process has. If it has none, None."""
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    session: Any = ConnectSession.getActiveSession() or ConnectSession._get_default_session()
    return None if session is None or session.is_stopped else session


def channel(remote: str) -> Any:
    """The channel to a server. On this machine it sends a token without TLS; pyspark does so for `localhost` alone.

    A token in the address has precedence. Without one, the project's own server gets its own token.
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
    except PySparkException:  # the error's text repeats the address with the token
        raise SparkUnavailableError(where=shown_remote(remote), reason=_NO_ADDRESS) from None
    # By default a client disconnects after 30 idle minutes, and a server of ours would seem to have no clients.
    channel.setChannelOption("grpc.client_idle_timeout_ms", _NEVER)
    host, _, port = channel.endpoint.rpartition(":")
    if host == HOST and channel.getDefault(Channel.PARAM_TOKEN, None) is None:
        token = token_of(find_project(Path.cwd()) / STATE_FOLDER / "spark", int(port))
        if token is not None:
            channel.set(Channel.PARAM_TOKEN, token)
    return channel


def _prepare(session: Any) -> None:
    """Set our retries and confs in a session, by two requests. These are the first calls to the server.

    Of `STATEMENT_CONFS` only those are set that the caller has changed: Spark logs a warning when some of them are set.
    """
    with_bounded_retries(session)
    known = session.conf.getAll
    wanted = SEMANTIC_CONFS | WRITE_CONFS | {name: value for name, value in STATEMENT_CONFS.items() if name in known}
    changed = {name: value for name, value in wanted.items() if known.get(name) != value}
    if changed:
        session.conf._set_all(changed, silent=False)
    _retry_policy(_where(session)).max_retries = CONNECT_ATTEMPTS  # the server answers


def _where(session: Any) -> str:
    return f"sc://{session.client._builder.endpoint}"


def with_bounded_retries(session: SparkSession) -> SparkSession:
    """Limit the retries of a Connect session: by default it retries a server that is gone for ten minutes.

    After the last retry any call raises `SparkUnavailableError`. The client's own handler at the process's exit would
    retry too; ours calls only a server that answers.
    """
    client: Any = session.client
    client.set_retry_policies([_retry_policy(_where(session))])
    atexit.unregister(client._on_exit)
    return session


@cache
def _retry_policy(where: str) -> Any:
    """A server's retry policy. Its last retry raises our error; after that every session of the server tries once.

    The client calls it for every failed call, also for those of the caller. So no call raises a gRPC error, and no
    clean-up waits for a server that is known to be gone.
    """
    import grpc
    from pyspark.sql.connect.client.retries import DefaultPolicy, RetryPolicyState

    class State(RetryPolicyState):
        def next_attempt(self, exception: BaseException | None = None) -> int | None:
            wait = super().next_attempt(exception)
            if wait is None:
                self.policy.max_retries = 0
                details = getattr(exception, "details", lambda: None)()
                raise SparkUnavailableError(where=where, reason=details or "it does not answer") from exception
            return wait

    class Policy(DefaultPolicy):
        def to_state(self) -> RetryPolicyState:
            return State(self)

        def can_retry(self, e: BaseException) -> bool:
            if any(condition.startswith(_NO_SESSION) for condition in _conditions(e)):
                raise SparkUnavailableError(where=where, reason=_LOST) from e
            if isinstance(e, grpc.RpcError) and e.code() == grpc.StatusCode.UNAUTHENTICATED:
                raise SparkUnavailableError(where=where, reason=_REFUSED) from e
            return super().can_retry(e)

    return Policy(max_retries=CONNECT_ATTEMPTS, max_backoff=CONNECT_BACKOFF_MILLISECONDS)


def clone_connect(session: SparkSession) -> SparkSession:
    """A clone of a Connect session. The client clones without its retries and its translation of errors."""
    from grpc import RpcError

    parent: Any = session
    where = _where(parent)
    try:
        session.conf.get(next(iter(SEMANTIC_CONFS)))  # the server knows a session only after its first call
        clone = parent.cloneSession()
    except PySparkException as error:
        raise SparkUnavailableError(where=where, reason=failure_of(error).summary) from error
    except RpcError as error:
        raise SparkUnavailableError(where=where, reason=error.details()) from error
    return with_bounded_retries(clone)


def _conditions(error: BaseException) -> list[str]:
    """Spark's error conditions in a gRPC error that the client has not translated yet."""
    from google.rpc.error_details_pb2 import ErrorInfo
    from grpc_status import rpc_status

    status = rpc_status.from_call(error) if hasattr(error, "trailing_metadata") else None
    infos = [ErrorInfo.FromString(d.value) for d in status.details if d.Is(ErrorInfo.DESCRIPTOR)] if status else []
    return [info.metadata.get("errorClass", "") for info in infos]


def end_connect(session: SparkSession) -> None:
    """Release a Connect session's state on the server and close its channel. A server that is gone keeps no state."""
    client: Any = session.client
    if client.is_closed:
        return
    try:
        client.release_session()
    except (PySparkException, SparkUnavailableError):
        pass
    finally:
        client.close()


def _end_if_listening(session: SparkSession, remote: str) -> None:
    try:
        _require_listener(remote)
    except SparkUnavailableError:
        return
    end_connect(session)


def _require_listener(remote: str) -> None:
    """Check that something listens at the address, since the client itself would retry for minutes."""
    try:
        parts = urlsplit(remote.split(";", maxsplit=1)[0])
        host, port = parts.hostname, parts.port or CONNECT_PORT
    except ValueError:  # the error's text repeats a part of the address
        raise SparkUnavailableError(where=shown_remote(remote), reason=_NO_ADDRESS) from None
    if parts.scheme != "sc" or not host:
        raise SparkUnavailableError(where=shown_remote(remote), reason=_NO_ADDRESS)
    try:
        with socket.create_connection((host, port), timeout=CONNECT_SECONDS):
            pass
    except OSError as error:
        raise SparkUnavailableError(where=shown_remote(remote), reason=error.strerror or str(error)) from error
