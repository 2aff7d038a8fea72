"""`pipeline sink`: write lines of JSON to a table as they arrive, and list the epochs of a writer."""

from __future__ import annotations

import signal
import threading
from dataclasses import asdict
from pathlib import Path

import click

from pipeline.cli.options import WIDE
from pipeline.cli.output import count, instant, print_json, print_table
from pipeline.cli.registry import declared
from pipeline.delta.log.checkpoints import newest_version
from pipeline.delta.log.epochs import epochs as read_epochs
from pipeline.delta.sink import DeltaSink, SinkSettings
from pipeline.delta.sink.ndjson import Tail, submit_lines
from pipeline.delta.spark.doors import through_door
from pipeline.delta.storage.options import project_settings
from pipeline.errors import PipelineError, SinkStoppedError, SourceFileError, TableNotFoundError

STDIN = "-"
# The wait before a folder without new lines is read again.
POLL_SECONDS = 0.5


@click.group()
def sink() -> None:
    """Write continuously arriving rows to a table in micro-batches, each row exactly once."""


@sink.command()
@click.argument("name", metavar="DATASET")
@click.option(
    "--from", "source", required=True, metavar="SOURCE", help="A folder of NDJSON files, or - for standard input."
)
@click.option("--writer", default="cli", show_default=True, help="The writer id; only one live sink may have it.")
@click.option(
    "--flush-seconds", type=click.FloatRange(min=0, min_open=True), default=3.0, show_default=True,
    help="Write when the oldest row has waited this long.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="End when the folder is read, instead of waiting for more.")
def run(name: str, source: str, writer: str, flush_seconds: float, once: bool) -> None:
    """Write lines of JSON to a dataset until the input ends, or until Ctrl-C or SIGTERM.

    The files of a folder are read as they grow. A restart with the same writer id continues where the last run ended.
    """
    settings = project_settings()
    dataset = declared(settings).get(name)
    if source != STDIN and not Path(source).is_dir():
        raise click.BadParameter(f"{source} is no folder", param_hint="--from")
    options = SinkSettings(flush_seconds=flush_seconds, on_sigterm=False)
    ended, failed = threading.Event(), list[str]()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with DeltaSink(dataset, writer, settings, options) as opened:
        # On a thread of its own: a signal could not end the sink while a read waits for input.
        threading.Thread(target=_read, args=(opened, source, ended, failed), kwargs={"once": once}, daemon=True).start()
        while opened.is_running and not ended.wait(POLL_SECONDS):
            pass
    click.echo(opened.metrics().line)
    if failed:
        raise SourceFileError(path=source, problem=failed[0])


def _read(opened: DeltaSink, source: str, ended: threading.Event, failed: list[str], *, once: bool) -> None:
    problem: str | None = "the thread that reads it has ended"
    try:
        if source == STDIN:
            # Not `sys.stdin`: Python could not close it at its exit while this thread still reads it.
            submit_lines(open(0, "rb", closefd=False), opened)  # noqa: SIM115
        elif once:
            Tail(Path(source).resolve(), opened).read()
        else:
            Tail(Path(source).resolve(), opened).follow(ended, min(POLL_SECONDS, opened.options.flush_seconds))
        problem = None
    except SinkStoppedError:
        problem = None  # leaving the sink raises the cause
    except PipelineError as error:
        problem = error.message()
    except OSError as error:
        problem = str(error)
    finally:
        failed += [] if problem is None else [problem]
        ended.set()


@sink.command()
@click.argument("name", metavar="DATASET")
@click.option("--writer", help="Of this writer only.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@WIDE
def epochs(name: str, writer: str | None, as_json: bool) -> None:
    """List the committed epochs with writer and version, oldest first. No Spark is started."""
    settings = project_settings()
    dataset = declared(settings).get(name)
    location = dataset.location(settings.root)
    with through_door(name, location):
        entries = read_epochs(location, writer)
        exists = bool(entries) or newest_version(location) is not None
    if not exists:
        raise TableNotFoundError(dataset=name, location=location)
    if as_json:
        print_json([asdict(epoch) | {"timestamp": epoch.timestamp.isoformat()} for epoch in entries])
        return
    print_table(
        ("writer", "epoch", "version", "time (UTC)", "operation", "rows"),
        [(e.writer, str(e.epoch), str(e.version), instant(e.timestamp), e.operation, count(e.rows)) for e in entries],
        right=("epoch", "version", "rows"),
    )
