"""A Dagster run as a child process of a command: its reports line by line, and its progress on the screen.

Here belong the lifetime of the child process and the display while it runs. The work is done by a module of its own,
which reports one JSON document a line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from pipeline.errors import PipelineError
from pipeline.settings import STATE_FOLDER, Settings

FINGERPRINT_DIGITS = 12
# How long Dagster may take to record the end of an interrupted run.
STOP_SECONDS = 20
_DONE = {"step_succeeded": "done", "step_failed": "failed"}


def reports(
    module: str,
    arguments: Sequence[str],
    settings: Settings,
    *,
    verbose: bool,
    failed: Callable[[str, str], PipelineError],
) -> Generator[dict[str, Any], None, None]:
    """Run a module as a child process in the project's folder and yield its reports.

    Args:
        verbose: whether the child's other output goes to standard error; otherwise it goes into a log file.
        failed: makes the error from a reason and a hint.

    Raises:
        PipelineError: the child reported an error, or ended with an exit status other than 0.
    """
    log = settings.project / STATE_FOLDER / f"{module.rpartition('.')[2]}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    hint = "" if verbose else f"The full output is in {log}."
    with ExitStack() as stack:
        errors = None if verbose else stack.enter_context(log.open("wb"))
        child = stack.enter_context(_child([sys.executable, "-m", module, *arguments], settings, errors))
        assert child.stdout is not None  # noqa: S101  asked for below
        for line in child.stdout:
            report = json.loads(line)
            if "error" in report:
                raise failed(report["error"], hint)
            yield report
        status = child.wait()
    if status:
        raise failed(f"The run ended with exit status {status}.", hint)


@contextmanager
def _child(command: list[str], settings: Settings, errors: Any) -> Iterator[subprocess.Popen[str]]:
    """The child process, in its own session so that an interrupt reaches it once; it never outlives this block."""
    environment = {"DAGSTER_HOME": str(settings.project)} | os.environ
    handler = signal.signal(signal.SIGTERM, _terminated)
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
        signal.signal(signal.SIGTERM, handler)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    sys.exit(128 + number)


def _stop(child: subprocess.Popen[str]) -> None:
    """End a child that still runs. It may record the end of its run; if that takes long, it is killed with its JVM."""
    if child.poll() is not None:
        return
    child.send_signal(signal.SIGINT)
    try:
        child.wait(STOP_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(child.pid, signal.SIGKILL)


class StepProgress:
    """Bars on a terminal, plain lines elsewhere; both on standard error."""

    def __init__(self, sentences: Mapping[str, str], *, quiet: bool) -> None:
        """`sentences`: by kind of report, the line to print for reports that are not about steps or notices."""
        self.sentences = {"notice": "{text}"} | dict(sentences)
        self.console = Console(stderr=True, highlight=False)
        self.has_bars = self.console.is_terminal and not quiet

    def follow(self, reports: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
        """Show the reports as they come, and return them all."""
        seen = []
        columns = (SpinnerColumn(finished_text=" "), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=self.console, disable=not self.has_bars) as bars:
            tasks: dict[str, Any] = {}
            for report in reports:
                seen.append(report)
                kind, dataset = report["event"], report.get("dataset", "")
                if kind == "step_started":
                    tasks[dataset] = bars.add_task(dataset, total=1)
                    self._line(f"{dataset}: started")
                elif kind in _DONE:
                    if dataset in tasks:
                        bars.update(tasks[dataset], completed=1, description=f"{dataset}: {_DONE[kind]}")
                    self._line(f"{dataset}: {_DONE[kind]} after {report['seconds']} s")
                elif kind in self.sentences:
                    # Not folded: a path in it can be copied.
                    self.console.print(self.sentences[kind].format_map(report), soft_wrap=True)
        return seen

    def _line(self, text: str) -> None:
        if not self.has_bars:
            self.console.print(text)


def without_event(report: dict[str, Any]) -> dict[str, Any]:
    """A report without the name of its event, for a document."""
    return {name: value for name, value in report.items() if name != "event"}
