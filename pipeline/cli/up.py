"""`pipeline up`: the warm server, Dagster's daemon and its web server, together and until interrupted."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import click

from pipeline.cli.spark import state_folder, waiting
from pipeline.delta.server import process as servers
from pipeline.delta.spark.connect import CONNECT_PORT
from pipeline.delta.storage.options import project_settings
from pipeline.errors import UpError
from pipeline.settings import Settings, shown_remote

HOST = "127.0.0.1"
WEB_PORT = 3000
START_SECONDS = 120.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.3


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=WEB_PORT, show_default=True, help="Of the web server.")
@click.option(
    "--spark-port", type=click.IntRange(1, 65535), default=CONNECT_PORT, show_default=True, help="Of the Spark server."
)
def up(port: int, spark_port: int) -> None:
    """Run everything on the project's one instance: the UI also shows the command line's runs. Ctrl-C stops all."""
    settings = project_settings()
    _refuse_busy(port)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as stack:
        remote = settings.spark.remote or stack.enter_context(_server(spark_port))
        environment = os.environ | {"SPARK_REMOTE": remote}
        environment.setdefault("DAGSTER_HOME", str(settings.project))
        web_command = ["dagster-webserver", "-h", HOST, "-p", str(port)]
        web = stack.enter_context(_child(settings, "web server", web_command, environment))
        # One after the other: both create the tables of a new instance, and the later one would fail.
        _await_web(port, [web])
        children = [web, stack.enter_context(_child(settings, "daemon", ["dagster-daemon", "run"], environment))]
        click.echo(f"The UI is at http://{HOST}:{port}, Spark at {shown_remote(remote)}. Ctrl-C stops all of it.")
        _watch(children)


@contextmanager
def _server(port: int) -> Iterator[str]:
    """The address of the project's server. A running server is left running; one started here ends with this block."""
    folder = state_folder()
    server = servers.running(folder)
    if server is not None and servers.answers(folder, server):
        yield server.remote
        return
    with waiting("Starting Spark") as wait:
        started = servers.start(folder, port, None, wait)
    try:
        yield started.remote
    finally:
        servers.stop(folder)


class _Child:
    """A child process, its name in messages, and its log."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log


@contextmanager
def _child(settings: Settings, name: str, command: list[str], environment: dict[str, str]) -> Iterator[_Child]:
    """A child in a process group of its own. No process of the group outlives this block."""
    log = state_folder().parent / f"{command[0]}.log"
    program = str(Path(sys.executable).parent / command[0])
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603  Dagster's own commands
            [program, *command[1:]], cwd=settings.project, env=environment, stdin=subprocess.DEVNULL,
            stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        yield _Child(name, process, log)
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        pass
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _refuse_busy(port: int) -> None:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, port))
        except OSError as error:
            raise UpError(
                reason=f"port {port} is used by another process", hint="Choose another with --port."
            ) from error


def _await_web(port: int, children: list[_Child]) -> None:
    began = time.monotonic()
    while True:
        _refuse_ended(children)
        with socket.socket() as sock:
            sock.settimeout(1)
            if sock.connect_ex((HOST, port)) == 0:
                return
        if time.monotonic() - began > START_SECONDS:
            raise UpError(reason=f"the web server did not answer in {START_SECONDS:.0f} s", hint=str(children[-1].log))
        time.sleep(POLL_SECONDS)


def _watch(children: list[_Child]) -> None:
    while True:
        _refuse_ended(children)
        time.sleep(POLL_SECONDS)


def _refuse_ended(children: list[_Child]) -> None:
    for child in children:
        status = child.process.poll()
        if status is not None:
            raise UpError(reason=f"the {child.name} ended with exit status {status}", hint=f"Its log is {child.log}.")
