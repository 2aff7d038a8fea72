"""The `pipeline` command: parse, call, print.

Here belong options, one call and the printing of its result. The command line works if Dagster is not installed or is
down; a command that needs Dagster runs it as a child process. Each command is a module of its own, loaded when the
command is called, so that help needs neither Spark nor Dagster.
"""

from __future__ import annotations

import importlib
import logging
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from pipeline.errors import PipelineError
from pipeline.errors.spelling import did_you_mean

FAILED = 1
INTERRUPTED = 130
# The logger that reports the download of Delta's jars and its progress.
_JARS_LOGGER = "pipeline.delta.spark.jars"

# By command: the module that defines it under the same name, and its line in the help.
_COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": ("pipeline.cli.demo", "Run real flights through the aviation datasets."),
    "materialize": ("pipeline.cli.materialize", "Run assets; show their progress and what they wrote."),
    "up": ("pipeline.cli.up", "Run the UI, the daemon and a warm Spark together."),
    "spark": ("pipeline.cli.spark", "A warm local Spark in the background: start, status, stop."),
    "show": ("pipeline.cli.show", "Every table at a glance, or one of them in full."),
    "history": ("pipeline.cli.history", "The commits of a table, and who made them."),
    "diff": ("pipeline.cli.diff", "What differs between two versions of a table."),
    "sql": ("pipeline.cli.sql", "Query the tables, at their newest or at a named version."),
    "registry": ("pipeline.cli.registry", "The declared datasets; needs no Spark."),
    "manifest": ("pipeline.cli.manifest", "The records of runs: list, show, compare, verify."),
    "rerun": ("pipeline.cli.rerun", "Repeat a run on what it has read; are its rows the same?"),
    "sink": ("pipeline.cli.sink", "Write continuously arriving rows to a table: run, epochs."),
    "conform": ("pipeline.cli.conform", "Compare declarations with tables: show the plan, apply it."),
    "migrate": ("pipeline.cli.migrate", "Bring a folder of files into a table, proven equal."),
    "adopt": ("pipeline.cli.adopt", "The declaration of an existing Delta table, as Python."),
    "maintain": ("pipeline.cli.maintain", "Keep the tables healthy: vacuum, optimize, checkpoint."),
    "restore": ("pipeline.cli.restore", "Bring a table back to an earlier version."),
    "export": ("pipeline.cli.export", "Write a version of a table to a folder, in any of four formats."),
    "check": ("pipeline.cli.check", "Whether the tables match what their declarations expect."),
    "publish": ("pipeline.cli.publish", "Commit a write that its audit refused."),
    "doctor": ("pipeline.cli.doctor", "Damage in the tables' logs and files; needs no Spark."),
    "docs": ("pipeline.cli.docs", "The documentation, a page for each topic."),
}


class PipelineGroup(click.Group):
    """Loads a command when it is called, and turns our errors into one message and an exit status."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The commands in the order of help."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of that name, or None."""
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(_COMMANDS[cmd_name][0]), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The named command. For an unknown name, a usage error with the near misses."""
        name = args[0]
        if name not in _COMMANDS and not ctx.resilient_parsing and not name.startswith("-"):
            ctx.fail(f"No such command {name!r}. {did_you_mean(name, _COMMANDS)}".strip())
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; exit with 1 after a `PipelineError`, 130 after an interrupt, 2 (click's) on wrong usage."""
        try:
            return super().invoke(ctx)
        except PipelineError as error:
            # The context holds the one option of `main`.
            if ctx.params["verbose"]:
                traceback.print_exc()
            click.echo(f"Error: {error}", err=True)
            ctx.exit(FAILED)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(INTERRUPTED)


@click.group(cls=PipelineGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="delta-first-pipeline", prog_name="pipeline")
@click.option("--verbose", is_flag=True, help="Show stack traces and what child processes print.")
def main(verbose: bool) -> None:  # noqa: ARG001  read by `invoke`
    """A Delta-first data pipeline on Dagster and Spark.

    Settings come from PIPELINE_* variables and from [tool.pipeline] in pyproject.toml.
    """
    click.get_current_context().with_resource(_on_standard_error(_JARS_LOGGER))


@contextmanager
def _on_standard_error(logger: str) -> Iterator[None]:
    """Write that logger's messages from INFO on to standard error."""
    handler, source = logging.StreamHandler(), logging.getLogger(logger)
    level = source.level
    source.addHandler(handler)
    source.setLevel(logging.INFO)
    try:
        yield
    finally:
        source.setLevel(level)
        source.removeHandler(handler)
