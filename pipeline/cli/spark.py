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

from pipeline.delta.server import process as servers
from pipeline.delta.server.warm import warm_folders, warm_servers
from pipeline.delta.spark.connect import CONNECT_PORT
from pipeline.delta.spark.server_record import Server
from pipeline.errors import ServerError
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
    """Show the servers of this project and what each does now; the exit status is 1 if none runs."""
    states = [_state(folder, server) for folder, server in _servers()]
    if as_json:
        first = states[0] if states else {}
        click.echo(json.dumps({"running": bool(states)} | first | {"servers": states}, indent=2))
    else:
        for state in states:
            click.echo(_line(state))
        if not states:
            click.echo("No server runs.")
    if not states:
        raise SystemExit(1)


def _servers() -> list[tuple[Path, Server]]:
    """The servers that run, each with its folder; the one that was started by hand is the first."""
    folder = state_folder()
    server = servers.running(folder)
    return [*([] if server is None else [(folder, server)]), *warm_servers(load_settings())]


def _state(folder: Path, server: Server) -> dict[str, Any]:
    return asdict(server) | {
        "kind": "started" if folder == state_folder() else "warm",
        "remote": server.remote,
        "answers": servers.answers(folder, server),
        "clients": servers.connected(folder, server),
        "memory_bytes": servers.memory_bytes(folder, server),
    }


def _line(state: dict[str, Any]) -> str:
    verb = "answers" if state["answers"] else "does not answer"
    clients = f"{state['clients']} client{'' if state['clients'] == 1 else 's'}"
    ends = "" if state["idle_minutes"] is None else f", ends after {state['idle_minutes']} minutes without a client"
    return (
        f"{state['kind']}: process {state['pid']} {verb} at {state['remote']}, {clients}, "
        f"{state['memory_bytes'] // 2**20} MB{ends}, log {state['log']}"
    )


@spark.command()
def stop() -> None:
    """End the servers of this project, and remove the leftovers of a crashed one."""
    ended, failed = 0, []
    for folder in (state_folder(), *warm_folders(load_settings())):
        try:
            server = servers.stop(folder)
        except ServerError as error:
            failed.append(error)
            continue
        if server is not None:
            ended += 1
            click.echo(f"Ended process {server.pid}.")
    if failed:
        raise failed[-1]
    if not ended:
        click.echo("No server ran.")


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
