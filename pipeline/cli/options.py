"""The options that several commands share, and the parsing of their values."""

from __future__ import annotations

import datetime as dt

import click

from pipeline.cli.output import wide

# An option of every command that prints a table.
WIDE = click.option(
    "--wide", is_flag=True, expose_value=False, callback=wide, help="Print values in full, however narrow the terminal."
)


def as_instant(ctx: click.Context, param: click.Parameter, value: str | None) -> dt.datetime | None:  # noqa: ARG001
    """The callback of an option that is a time. A time without a zone is wrong usage; no session zone is assumed."""
    if value is None:
        return None
    try:
        # Python 3.10 does not parse the Z.
        time = dt.datetime.fromisoformat(value[:-1] + "+00:00" if value[-1:] in "Zz" else value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a time as in 2026-01-31T12:00:00Z") from error
    if time.tzinfo is None:
        raise click.BadParameter(f"{value!r} has no zone; 2026-01-31T12:00:00Z is UTC")
    return time
