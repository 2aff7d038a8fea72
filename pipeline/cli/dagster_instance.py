"""Report the row changes of a command to the project's Dagster instance, through a child process.

Here belong the child process and the question whether the project has an instance. The command line itself works
without Dagster: a failed report does not undo the change.
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
    """Report the newest commits of these tables; does nothing if the project has no instance or no definitions."""
    home = os.environ.get("DAGSTER_HOME") or _home(settings)
    if not names or home is None or dagster_module(settings.project) is None:
        return
    command = [sys.executable, "-m", "pipeline.orchestration.commands.table_report", *names]
    try:
        process = subprocess.run(  # noqa: S603  our own module
            command, cwd=settings.project, env=os.environ | {"DAGSTER_HOME": home}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=REPORT_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        click.echo(f"The change was not reported to Dagster within {REPORT_SECONDS:.0f} s. {_LATER}", err=True)
        return
    if process.returncode:
        lines = process.stderr.strip().splitlines()
        reason = lines[-1] if lines else f"exit status {process.returncode}"
        click.echo(f"The change could not be reported to Dagster: {reason}. {_LATER}", err=True)


def _home(settings: Settings) -> str | None:
    """The project's folder if it has a `dagster.yaml`, which names its instance; otherwise None."""
    return str(settings.project) if (settings.project / "dagster.yaml").is_file() else None
