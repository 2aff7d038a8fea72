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

SAID_EVERY_SECONDS = 10.0


@click.group()
def spark() -> None:
    """A local Spark Connect server with Delta on it, so that runs need no JVM of their own."""


def state_folder() -> Path:
    """Where the project keeps what it knows of its server."""
    return load_settings().project / STATE_FOLDER / "spark"


@spark.command()
@click.option("--port", type=click.IntRange(1, 65535), default=CONNECT_PORT, show_default=True, help="Of the server.")
@click.option("--idle-minutes", type=click.IntRange(1), help="End by itself after so long without a client.")
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
    found: dict[str, Any] = {"running": server is not None}
    if server is not None:
        found |= asdict(server) | {
            "remote": server.remote,
            "answers": servers.answers(server),
            "memory_bytes": servers.memory_bytes(folder, server),
        }
    if as_json:
        click.echo(json.dumps(found, indent=2))
    elif server is None:
        click.echo("No server runs.")
    else:
        megabytes = found["memory_bytes"] // 2**20
        said = "answers" if found["answers"] else "does not answer"
        click.echo(f"Process {server.pid} {said} at {server.remote}, {megabytes} MB, log {server.log}")
    if server is None:
        raise SystemExit(1)


@spark.command()
def stop() -> None:
    """End the server, and clear what a crashed one left."""
    server = servers.stop(state_folder())
    click.echo("No server ran." if server is None else f"Ended process {server.pid}.")


@contextmanager
def waiting(what: str) -> Iterator[Any]:
    """Something that is called with the seconds gone by: a spinner on a terminal, a line now and then elsewhere."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with console.status(f"{what} ..."):
            yield lambda _: None
        return
    said = 0.0

    def say(seconds: float) -> None:
        nonlocal said
        if seconds - said >= SAID_EVERY_SECONDS:
            said = seconds
            console.print(f"{what}: {seconds:.0f} s")

    yield say
