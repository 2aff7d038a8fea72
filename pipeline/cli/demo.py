"""`pipeline demo`: the demonstration in a child process, with its progress and its result."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from pipeline.cli.child import FINGERPRINT_DIGITS, StepProgress, reports
from pipeline.delta.storage.options import project_settings
from pipeline.errors import DemoError
from pipeline.settings import Settings

DAYS = 365
_SENTENCES = {
    "landing": "Landing folder {folder}: {files_written} files written.",
    "run": "Run {run_id}: {first_day} to {last_day}. The first step starts Spark.",
}


@click.command()
@click.option("--days", type=click.IntRange(1, DAYS), default=7, show_default=True, help="Days of 2013 to run.")
@click.pass_context
def demo(ctx: click.Context, days: int) -> None:
    """Run real flights from New York through the aviation datasets, in one Dagster run."""
    settings = project_settings()
    verbose = bool(ctx.find_root().params["verbose"])
    child_reports = reports("pipeline.assets.demo", ["--days", str(days)], settings, verbose=verbose, failed=_failed)
    with closing(child_reports) as lines:
        shown = StepProgress(_SENTENCES, quiet=verbose).follow(lines)
    _print_tables([report for report in shown if report["event"] == "table"])
    _print_next(settings, next(report["next_day"] for report in shown if report["event"] == "run"))


def _failed(reason: str, hint: str) -> DemoError:
    return DemoError(reason=reason, hint=hint)


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
    click.echo(f"  pipeline materialize sightings --partition {day}")
    click.echo("  dagster dev")
    click.echo("  pipeline maintain vacuum")
