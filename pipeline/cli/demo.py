"""`pipeline demo`: the demonstration as a child process, its progress and its result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from types import FrameType
from typing import Any, NoReturn

import click
from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from pipeline.errors import DemoError
from pipeline.settings import STATE_FOLDER, Settings, load_settings

DAYS = 365
FINGERPRINT_DIGITS = 12
# How long Dagster may take to record the end of an interrupted run.
STOP_SECONDS = 20
_SENTENCES = {
    "landing": "Landing folder {folder}: {files_written} files written.",
    "run": "Run {run_id}: {first_day} to {last_day}. The first step starts Spark.",
}
_DONE = {"step_succeeded": "done", "step_failed": "failed"}


@click.command()
@click.option("--days", type=click.IntRange(1, DAYS), default=7, show_default=True, help="Days of 2013 to run.")
@click.pass_context
def demo(ctx: click.Context, days: int) -> None:
    """Run real flights from New York through the aviation datasets, in one Dagster run."""
    settings = load_settings()
    verbose = bool(ctx.find_root().params["verbose"])
    with closing(_reports(settings, days, verbose=verbose)) as reports:
        shown = _Progress(quiet=verbose).follow(reports)
    _print_tables([report for report in shown if report["event"] == "table"])
    _print_next(settings, next(report["next_day"] for report in shown if report["event"] == "run"))


def _reports(settings: Settings, days: int, *, verbose: bool) -> Generator[dict[str, Any], None, None]:
    """What the child reports, line by line.

    Raises:
        DemoError: it reported an error, or ended without one.
    """
    log = settings.project / STATE_FOLDER / "demo.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        errors = None if verbose else stack.enter_context(log.open("wb"))
        child = stack.enter_context(_child(settings, days, errors))
        assert child.stdout is not None  # noqa: S101  asked for above
        for line in child.stdout:
            report = json.loads(line)
            if "error" in report:
                raise DemoError(reason=report["error"], hint=_where(log, verbose))
            yield report
        status = child.wait()
    if status:
        raise DemoError(reason=f"The demonstration ended with exit status {status}.", hint=_where(log, verbose))


def _where(log: object, verbose: bool) -> str:
    return "" if verbose else f"All that was printed stands in {log}."


@contextmanager
def _child(settings: Settings, days: int, errors: Any) -> Iterator[subprocess.Popen[str]]:
    """The child process, in a session of its own so that an interrupt reaches it once; it never outlives this block."""
    environment = {"DAGSTER_HOME": str(settings.project)} | os.environ
    command = [sys.executable, "-m", "pipeline.assets.demo", "--days", str(days)]
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        with subprocess.Popen(  # noqa: S603  our own module
            command, cwd=settings.project, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True,
            stdin=subprocess.DEVNULL, start_new_session=True,
        ) as child:  # fmt: skip
            try:
                yield child
            finally:
                _stop(child)
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    sys.exit(128 + number)


def _stop(child: subprocess.Popen[str]) -> None:
    """End a child that still runs: it may record how its run ended, and is killed with its JVM if it takes long."""
    if child.poll() is not None:
        return
    child.send_signal(signal.SIGINT)
    try:
        child.wait(STOP_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(child.pid, signal.SIGKILL)


class _Progress:
    """Bars on a terminal, plain lines elsewhere; both on standard error."""

    def __init__(self, *, quiet: bool) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.has_bars = self.console.is_terminal and not quiet

    def follow(self, reports: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
        """Show the reports as they come; returns them all."""
        shown = []
        columns = (SpinnerColumn(finished_text=" "), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=self.console, disable=not self.has_bars) as bars:
            tasks: dict[str, Any] = {}
            for report in reports:
                shown.append(report)
                kind, dataset = report["event"], report.get("dataset", "")
                if kind == "step_started":
                    tasks[dataset] = bars.add_task(dataset, total=1)
                    self._line(f"{dataset}: started")
                elif kind in _DONE:
                    if dataset in tasks:
                        bars.update(tasks[dataset], completed=1, description=f"{dataset}: {_DONE[kind]}")
                    self._line(f"{dataset}: {_DONE[kind]} after {report['seconds']} s")
                elif kind in _SENTENCES:
                    self.console.print(_SENTENCES[kind].format_map(report))
        return shown

    def _line(self, text: str) -> None:
        if not self.has_bars:
            self.console.print(text)


def _print_tables(tables: list[dict[str, Any]]) -> None:
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("dataset", no_wrap=True)
    for name in ("rows", "partitions", "Delta version"):
        shown.add_column(name, justify="right")
    shown.add_column("fingerprint", min_width=FINGERPRINT_DIGITS, no_wrap=True)
    shown.add_column("seconds", justify="right")
    for table in tables:
        shown.add_row(
            table["dataset"],
            f"{table['rows']:,}",
            "-" if table["partitions"] is None else str(table["partitions"]),
            str(table["version"]),
            table["fingerprint"][:FINGERPRINT_DIGITS],
            f"{table['seconds']:.1f}",
        )
    Console().print(shown)


def _print_next(settings: Settings, day: str) -> None:
    click.echo(f"The tables lie under {settings.root}. Next, in {settings.project}:")
    click.echo(f"  dagster asset materialize --select sightings --partition {day}")
    click.echo("  dagster dev")
    click.echo("  pipeline maintain vacuum")
