"""The process of a server: an embedded session that serves Connect on a loopback port until it ends."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from pipeline.delta.server.process import STOP_SECONDS, clients, locked
from pipeline.delta.spark.own_classes import RELATION_PLUGINS, REQUESTS
from pipeline.delta.spark.server_record import HOST, RELEASE_SIGNAL, forget, is_ready, set_ready
from pipeline.delta.spark.session import open_session
from pipeline.errors import PipelineError, ServerError
from pipeline.settings import SparkSettings, load_settings

# How often an idle server checks its connections.
WATCH_SECONDS = 5.0
# How long it keeps a session whose client is gone. Clients of ours ask for something every few minutes.
SESSION_MINUTES = 60
# A command that has found the server connects within this time. So long it answers after its record is removed.
LEAVING_SECONDS = 15.0
COLLECT_SECONDS = 60
PLUGIN = "org.apache.spark.sql.connect.SparkConnectPlugin"


def serving(settings: SparkSettings, port: int) -> SparkSettings:
    """The settings of a driver that serves Connect."""
    given = dict(settings.conf)
    conf = given | {
        "spark.app.name": "pipeline-server",
        "spark.plugins": PLUGIN,
        RELATION_PLUGINS: ",".join(filter(None, (given.get(RELATION_PLUGINS), REQUESTS))),
        # A server outlives the code of its clients: each task imports their modules anew.
        "spark.python.worker.reuse": "false",
        # The heap of an idle server shrinks after a collection, so that its memory is free for others.
        "spark.driver.defaultJavaOptions": "-XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=30",
        # With Spark's half hour the garbage of hundreds of runs would stay in resident memory.
        "spark.cleaner.periodicGC.interval": f"{COLLECT_SECONDS}s",
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.session.manager.defaultSessionTimeout": f"{SESSION_MINUTES}m",
    }
    return replace(settings, remote=None, warm="never", conf=tuple(sorted(conf.items())))


def serve(folder: Path, port: int, idle_minutes: int | None) -> None:
    """Run as the server's process until a signal ends it, its JVM ends, or it was idle for `idle_minutes`.

    A server with `idle_minutes` also ends if it has no client and its record is gone, or `RELEASE_SIGNAL` asks for it.
    """
    ending, released = threading.Event(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    signal.signal(RELEASE_SIGNAL, lambda *_: released.set())
    try:
        session = open_session(serving(load_settings().spark, port))
    except PipelineError as error:
        raise SystemExit(" ".join(str(error).split())) from error  # as one line, which `start` reports
    set_ready(folder, os.getpid())
    jvm: subprocess.Popen[bytes] = session.sparkContext._gateway.proc  # type: ignore[union-attr]
    threading.Thread(target=_set_after, args=(jvm, ending), daemon=True).start()
    if idle_minutes is None:
        ending.wait()
    else:
        _wait_while_used(folder, port, idle_minutes * 60, ending, released)
    if jvm.poll() is not None:
        raise SystemExit(f"The JVM ended with status {jvm.returncode}.")
    threading.Thread(target=_kill_after, args=(jvm, STOP_SECONDS), daemon=True).start()  # it may hang
    session.stop()


def _wait_while_used(
    folder: Path, port: int, idle_seconds: float, ending: threading.Event, released: threading.Event
) -> None:
    """Wait until `ending` is set, or the server is without clients and no command can find it any more."""
    used, is_left = time.monotonic(), False
    while not ending.wait(WATCH_SECONDS):
        now = time.monotonic()
        if clients(psutil.Process(), port):
            used = now
            released.clear()
        elif is_left:
            if now - used > LEAVING_SECONDS:
                return
        elif released.is_set() or now - used > idle_seconds or not is_ready(folder, os.getpid()):
            is_left = not is_ready(folder, os.getpid()) or _forgotten(folder, port)
            used = now if is_left else used


def _forgotten(folder: Path, port: int) -> bool:
    """Remove the record, so that no command takes a server that ends. If a command uses or changes it now, false."""
    with suppress(ServerError), locked(folder):
        if not clients(psutil.Process(), port):
            forget(folder)
            return True
    return False


def _kill_after(child: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        child.kill()


def _set_after(child: subprocess.Popen[bytes], event: threading.Event) -> None:
    child.wait()
    event.set()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--idle-minutes", type=int, default=None)
    parser.add_argument("--state", required=True)  # the server's folder; other processes read it on the command line
    options = parser.parse_args()
    serve(Path(options.state), options.port, options.idle_minutes)
