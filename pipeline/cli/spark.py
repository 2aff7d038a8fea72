"""`pipeline spark`: a warm local Spark server in the background."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from pipeline.delta.spark import server as servers
from pipeline.delta.spark.connect import CONNECT_PORT
from pipeline.settings import STATE_FOLDER, load_settings

PROGRESS_SECONDS = 10.0


@click.group()
def spark() -> None:
    """A local Spark Connect server with Delta, so that runs need no JVM of their own."""


def state_folder() -> Path:
    """The folder with the project's records of its server."""
    return load_settings().project / STATE_FOLDER / "spark"


@spark.command()
@click.option("--port", type=click.IntRange(1, 65535), default=CONNECT_PORT, show_default=True, help="Of the server.")
@click.option("--idle-minutes", type=click.IntRange(1), help="End by itself after this long without a client.")
def start(port: int, idle_minutes: int | None) -> None:
    """Start the server and wait until it answers."""
    with waiting("Starting Spark") as wait:
        server = servers.start(state_folder(), port, idle_minutes, wait)
    click.echo(f"Spark answers at {server.remote} (process {server.pid}, log {server.log}). Runs use it with:")
    click.echo(f"  export SPARK_REMOTE={server.remote}")


@spark.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def status(as_json: bool) -> None:
    """Show whether the server runs; the exit status is 1 if it does not."""
    folder = state_folder()
    server = servers.running(folder)
    state: dict[str, Any] = {"running": server is not None}
    if server is not None:
        state |= asdict(server) | {
            "remote": server.remote,
            "answers": servers.answers(server),
            "memory_bytes": servers.memory_bytes(folder, server),
        }
    if as_json:
        click.echo(json.dumps(state, indent=2))
    elif server is None:
        click.echo("No server runs.")
    else:
        megabytes = state["memory_bytes"] // 2**20
        verb = "answers" if state["answers"] else "does not answer"
        click.echo(f"Process {server.pid} {verb} at {server.remote}, {megabytes} MB, log {server.log}")
    if server is None:
        raise SystemExit(1)


@spark.command()
def stop() -> None:
    """End the server, and remove the leftovers of a crashed one."""
    server = servers.stop(state_folder())
    click.echo("No server ran." if server is None else f"Ended process {server.pid}.")


@contextmanager
def waiting(what: str) -> Iterator[Any]:
    """Yield a function of the elapsed seconds that shows progress: a spinner on a terminal, otherwise some lines."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with console.status(f"{what} ..."):
            yield lambda _: None
        return
    printed = 0.0

    def show(seconds: float) -> None:
        nonlocal printed
        if seconds - printed >= PROGRESS_SECONDS:
            printed = seconds
            console.print(f"{what}: {seconds:.0f} s")

    yield show
