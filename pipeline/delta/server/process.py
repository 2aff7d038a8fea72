"""A local Spark Connect server with Delta that runs in the background.

Here belong its start, the check whether it runs, and its end. The server is a process of our own (`serve`) that opens
an embedded session and serves Connect on a loopback port. So its Java, jars and confs are those of any embedded
session, and the JVM ends with its parent process in any case. A client needs the server's token, which `record` keeps.
The server gets the token in its environment, which only its user may read.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

import psutil

from pipeline.delta.spark.cluster import WAIT_CONF, wait_seconds
from pipeline.delta.spark.connect import CONNECT_PORT, channel, embedded_environment
from pipeline.delta.spark.jars import delta_jars
from pipeline.delta.spark.server_record import (
    HOST,
    TOKEN_VARIABLE,
    Server,
    arguments,
    beginning,
    forget,
    is_ready,
    new_token,
    own,
    process_of,
    read_record,
    remember,
    token_of,
)
from pipeline.errors import ServerError
from pipeline.settings import load_settings

START_SECONDS = 180.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.2
# A server that does not answer an empty request for so long hangs.
ANSWER_SECONDS = 5.0
Waiting = Callable[[float], None]


def running(folder: Path) -> Server | None:
    """The server that this state folder records. If its process is gone, None.

    Raises:
        ServerError: the folder's record can't be read.
    """
    server = read_record(folder)
    return server if server is not None and process_of(folder, server) is not None else None


def answers(folder: Path, server: Server) -> bool:
    """Whether a server answers a request, and does not only listen."""
    import grpc
    from pyspark.sql.connect.proto import ReleaseSessionRequest, SparkConnectServiceStub

    request = ReleaseSessionRequest(session_id=str(uuid.uuid4()))  # of no session, so that nothing is made or changed
    try:
        opened = channel(address(folder, server)).toChannel()
        with opened:
            stub: Any = SparkConnectServiceStub(opened)  # type: ignore[no-untyped-call]
            stub.ReleaseSession(request, timeout=ANSWER_SECONDS)
    except ServerError:
        return False
    except grpc.RpcError as error:
        code = grpc.StatusCode
        return bool(error.code() not in (code.DEADLINE_EXCEEDED, code.UNAVAILABLE, code.UNAUTHENTICATED))
    return True


def address(folder: Path, server: Server) -> str:
    """The address of a server with its token.

    Raises:
        ServerError: the server has ended, or the token's file is gone or others may read it.
    """
    token = token_of(folder, server.port)
    if token is None:
        raise ServerError(folder=str(folder), reason="its token is gone, or others may read the file")
    return f"{server.remote}/;token={token}"


def start(
    folder: Path,
    port: int = CONNECT_PORT,
    idle_minutes: int | None = None,
    waiting: Waiting = lambda _: None,
) -> Server:
    """Start a server in the background and return when it answers.

    Args:
        idle_minutes: end after so long without a connection. If None, never.
        waiting: called every `POLL_SECONDS` with the seconds since the start.

    Raises:
        ServerError: a server runs already, another process uses the port, or the server did not start.
        JarsUnavailableError: and the other errors of `delta_jars`.
    """
    with locked(folder):
        earlier = running(folder)
        if earlier is not None and answers(folder, earlier):
            raise ServerError(
                folder=str(folder), reason=f"a server runs already, process {earlier.pid} at {earlier.remote}"
            )
        if earlier is not None:  # it hangs, or its JVM is gone
            if (count := connected(folder, earlier)) > 0:
                raise ServerError(
                    folder=str(folder), reason=f"process {earlier.pid} does not answer, and has {count} clients"
                )
            end(folder, earlier)
        if not _is_free(port):
            raise ServerError(folder=str(folder), reason=f"another process uses port {port}")
        return start_locked(folder, port, idle_minutes, waiting)


def start_locked(folder: Path, port: int, idle_minutes: int | None, waiting: Waiting) -> Server:
    """As `start`, for a caller that has the folder's lock and has seen that no server of it runs."""
    settings = load_settings().spark
    seconds = START_SECONDS + (wait_seconds(dict(settings.conf).get(WAIT_CONF)) if settings.is_cluster else 0)
    delta_jars(settings)  # here, so that the caller gets their errors and the server downloads nothing
    log = folder / "server.log"
    try:
        with ExitStack() as unless_ready:  # also an interrupt must leave no process or record
            unless_ready.callback(forget, folder)
            child = _spawn(folder, port, idle_minutes, log)
            began = beginning(psutil.Process(child.pid))
            server = Server(pid=child.pid, began=began, port=port, log=str(log), idle_minutes=idle_minutes)
            unless_ready.callback(end, folder, server)
            remember(folder, server)  # at once: if this command is killed, the next one finds the server
            _await_answer(child, server, folder, waiting, seconds)
            unless_ready.pop_all()
    except OSError as error:
        raise _not_writable(folder, error) from error
    return server


def _spawn(folder: Path, port: int, idle_minutes: int | None, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        child = subprocess.Popen(  # noqa: S603  this very module
            [sys.executable, *arguments(folder, port, idle_minutes)],
            env=embedded_environment() | {TOKEN_VARIABLE: new_token(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    # It collects the exit status, without which an ended process stays in the table of processes.
    threading.Thread(target=child.wait, name="spark-server-exit", daemon=True).start()
    return child


def _await_answer(
    child: subprocess.Popen[bytes], server: Server, folder: Path, waiting: Waiting, at_most: float
) -> None:
    started = time.monotonic()
    while not (is_ready(folder, server.pid) and _listens(server)):
        seconds = time.monotonic() - started
        if child.poll() is not None:
            raise ServerError(folder=str(folder), reason=f"it ended while it started; {_last_line(server)}")
        if seconds > at_most:
            raise ServerError(folder=str(folder), reason=f"it did not answer in {at_most:.0f} s")
        waiting(seconds)
        time.sleep(POLL_SECONDS)


def _last_line(server: Server) -> str:
    lines = Path(server.log).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


def stop(folder: Path) -> Server | None:
    """End the server and its child processes. If no server ran, None. Also removes the record of a crashed server.

    A record that can't be read is removed too, and no process is ended then.

    Raises:
        ServerError: the folder can't be written.
    """
    with locked(folder):
        server = None
        with contextlib.suppress(ServerError):
            server = running(folder)
        if server is not None:
            end(folder, server)
        try:
            forget(folder)
        except OSError as error:
            raise _not_writable(folder, error) from error
        return server


def end(folder: Path, server: Server, seconds: float = STOP_SECONDS) -> None:
    """End a server's processes. Those that are not gone after so many seconds are killed."""
    process = process_of(folder, server)
    if process is None:
        return
    family = [process]
    with contextlib.suppress(psutil.NoSuchProcess):
        family += process.children(recursive=True)
        process.terminate()
    _, alive = psutil.wait_procs(family, timeout=seconds)
    for survivor in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            survivor.kill()
    psutil.wait_procs(alive, timeout=STOP_SECONDS)


def clients(process: psutil.Process, port: int) -> int:
    """The connections that the child processes of a server have at its port. A process that can't be read has one."""
    found = 0
    for child in process.children(recursive=True):
        try:
            connections = child.net_connections("tcp")
        except psutil.NoSuchProcess:  # Spark's workers in Python come and go
            continue
        except psutil.Error:
            found += 1
            continue
        found += sum(c.status == psutil.CONN_ESTABLISHED and c.laddr.port == port for c in connections)
    return found


def connected(folder: Path, server: Server) -> int:
    """The clients that a server has now, as `clients` counts them."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = process_of(folder, server)
        return 0 if process is None else clients(process, server.port)
    return 0


def memory_bytes(folder: Path, server: Server) -> int:
    """The resident memory of the server's processes now."""
    process = process_of(folder, server)
    resident = 0
    with contextlib.suppress(psutil.Error):
        for member in () if process is None else (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                resident += member.memory_info().rss
    return resident


@contextmanager
def locked(folder: Path, seconds: float = 0.0) -> Iterator[None]:
    """One command at a time may change the folder. The lock ends with its process.

    Args:
        seconds: wait so long for another command.

    Raises:
        ServerError: another command has the lock, or the folder can't be written.
    """
    import fcntl

    last = time.monotonic() + seconds
    with _opened_lock(folder) as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() >= last:
                    raise ServerError(
                        folder=str(folder), reason="another command is starting or stopping it"
                    ) from error
            time.sleep(POLL_SECONDS)
        yield


def _opened_lock(folder: Path) -> TextIO:
    try:
        own(folder)
        return (folder / "lock").open("w")
    except OSError as error:
        raise _not_writable(folder, error) from error


def _not_writable(folder: Path, error: OSError) -> ServerError:
    return ServerError(folder=str(folder), reason=f"its folder can't be written ({error})")


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, port))
        except OSError:
            return False
        return True


def _listens(server: Server) -> bool:
    """Whether something listens on the server's port."""
    with socket.socket() as sock:
        sock.settimeout(1)
        return sock.connect_ex((HOST, server.port)) == 0
