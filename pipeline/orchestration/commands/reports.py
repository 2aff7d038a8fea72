"""The reports of a child process about a run: one JSON document a line on standard output, and nothing else there.

Here belong the lines and their output. The display of a report belongs to the command line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dagster import AssetKey, DagsterEvent, DagsterEventType, EventLogEntry, ExecuteInProcessResult
from dagster_shared.error import SerializableErrorInfo

from pipeline import errors
from pipeline.delta.server.warm import said_by
from pipeline.errors import PipelineError

Report = Callable[[dict[str, Any]], None]
INTERRUPTED = 130
_STEP_EVENTS = {
    DagsterEventType.STEP_START: "step_started",
    DagsterEventType.STEP_SUCCESS: "step_succeeded",
    DagsterEventType.STEP_FAILURE: "step_failed",
}


def child(work: Callable[[Report], bool]) -> int:
    """Do the work of a child process. Returns its exit status.

    A `PipelineError` is reported as the last line, `{"error": …}`.
    """
    # The same as for an interrupt: Dagster then records the end of the run.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _own_output() as report, said_by(lambda line: report({"event": "notice", "text": line})):
        try:
            return 0 if work(report) else 1
        except PipelineError as error:
            report({"error": str(error)})
            return 1
        except KeyboardInterrupt:
            return INTERRUPTED


@contextmanager
def _own_output() -> Iterator[Report]:
    """Standard output for the report alone. All other output, the JVM's included, goes to standard error."""
    sys.stdout.flush()
    own = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with os.fdopen(own, "w", encoding="utf-8") as stream:
        yield lambda line: print(json.dumps(line), file=stream, flush=True)


def step_listener(
    names: Mapping[str, str], seconds: dict[str, float], report: Report
) -> Callable[[EventLogEntry], None]:
    """The function that Dagster calls with each event of a run.

    Args:
        names: the name of a step in the report, by its key. Other steps are not reported.
        seconds: is filled with the duration of every step that ended.
    """
    started: dict[str, float] = {}

    def listen(entry: EventLogEntry) -> None:
        event = entry.dagster_event
        kind = _STEP_EVENTS.get(event.event_type) if event is not None else None
        name = names.get(entry.step_key or "")
        if kind is None or name is None:
            return
        started.setdefault(name, entry.timestamp)
        seconds[name] = round(entry.timestamp - started[name], 1)
        report({"event": kind, "dataset": name, "seconds": seconds[name]})

    return listen


def step_key(key: AssetKey) -> str:
    """The key of an asset's step, if the asset has a step of its own."""
    return key.to_python_identifier()


def failure_of(result: ExecuteInProcessResult) -> str:
    """The text of the first failure: that of a `PipelineError` among its causes, else that of the innermost cause."""
    failures = [event for event in result.all_events if event.is_failure]
    error = next(filter(None, map(_error, failures)), None)
    if error is None:
        return "Dagster recorded no reason"
    cause: SerializableErrorInfo | None = error
    while cause is not None:
        error = cause
        name, _, text = cause.message.partition(": ")
        if name.startswith(f"{errors.__name__}."):
            return text.strip()
        cause = cause.cause
    return error.message.strip()


def _error(event: DagsterEvent) -> SerializableErrorInfo | None:
    error = getattr(event.event_specific_data, "error", None)
    return error if isinstance(error, SerializableErrorInfo) else None
