"""A command that has changed rows tells the project's Dagster instance of it, through a child process.

Here belongs whether there is an instance to be told, and the child. The command line itself works without Dagster: what
can't be told does not undo what was done.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import click

from pipeline.settings import Settings, dagster_module

REPORT_SECONDS = 120.0
_LATER = "The sensor table_versions reports it once it runs."


def report_changes(settings: Settings, names: Sequence[str]) -> None:
    """Have the newest commits of these tables reported; nothing where the project has no instance or definitions."""
    home = os.environ.get("DAGSTER_HOME") or _home(settings)
    if not names or home is None or dagster_module(settings.project) is None:
        return
    command = [sys.executable, "-m", "pipeline.orchestration.commands.table_report", *names]
    try:
        done = subprocess.run(  # noqa: S603  our own module
            command, cwd=settings.project, env=os.environ | {"DAGSTER_HOME": home}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=REPORT_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        click.echo(f"Dagster was not told of the change within {REPORT_SECONDS:.0f} s. {_LATER}", err=True)
        return
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        reason = lines[-1] if lines else f"exit status {done.returncode}"
        click.echo(f"Dagster could not be told of the change: {reason}. {_LATER}", err=True)


def _home(settings: Settings) -> str | None:
    """The project's root where a `dagster.yaml` says which instance is its own."""
    return str(settings.project) if (settings.project / "dagster.yaml").is_file() else None
