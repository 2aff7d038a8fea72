"""`pipeline restore`: bring a table back to an earlier version. It shows a plan, unless `--apply` is given."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import asdict, fields

import click

from pipeline.cli.dagster_instance import report_changes
from pipeline.cli.options import WIDE, as_instant
from pipeline.cli.output import count, print_json, print_pairs, print_table
from pipeline.cli.tables import Tables
from pipeline.delta.inspect.record import write_record
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.maintain.exchange import Exchange
from pipeline.delta.maintain.restore import RestorePlan, RestoreResult, plan_restore
from pipeline.delta.maintain.restore import restore as do_restore
from pipeline.delta.read.version import ReadOptions
from pipeline.delta.storage.options import project_settings
from pipeline.errors.listing import NAMED

UNKNOWN = "unknown"


@click.command()
@click.argument("name", metavar="TABLE")
@click.option("--version", type=click.IntRange(0), help="To this version.")
@click.option(
    "--timestamp",
    metavar="TIME",
    callback=as_instant,
    help="To the newest version at or before a time; it needs a zone.",
)
@click.option("--apply", is_flag=True, help="Restore; without it only the plan is shown.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@WIDE
def restore(name: str, version: int | None, timestamp: dt.datetime | None, apply: bool, as_json: bool) -> None:
    """Bring a table back to an earlier version, in a commit of its own: no history is lost.

    TABLE is the name of a dataset, or a table's path. Rows are counted by the statistics of the files that come back
    and go. They are unknown if a file has no statistics.
    """
    if (version is None) == (timestamp is None):
        raise click.UsageError("Give one of --version and --timestamp.")
    tables = Tables(project_settings())
    table, settings, session = tables.ref(tables.find(name)), tables.settings, tables.session
    plan = plan_restore(session, table, ReadOptions(version=version, timestamp=timestamp))
    result = None
    if apply:
        run = f"restore-{uuid.uuid4()}"
        note = CommitNote(mark=Mark(writer=f"{table.name}/{run}"), run_id=run)
        result = do_restore(session, table.dataset, plan, note)
        if result.written is not None:
            options, written = dict(settings.spark.conf), result.written
            report_changes(settings, [table.name])
            with written.behind():
                write_record(
                    session, table.dataset, written, root=settings.root, run_id=run, sources={}, options=options
                )
    if as_json:
        print_json(_document(plan, result))
        return
    _print(plan)
    if result is None:
        click.echo("Nothing was changed; --apply restores." if plan.changes else "There is nothing to restore.")
    elif plan.changes:
        files = "" if result.exchange is None else f": {_exchanged(result.exchange)}"
        click.echo(f"Restored in version {result.version}{files}; the table is at version {result.latest}.")


def _document(plan: RestorePlan, result: RestoreResult | None) -> dict[str, object]:
    done: dict[str, object] | None = None
    if result is not None:
        written = result.written
        done = {"version": result.version, "latest": result.latest}
        done["metrics"] = dict(written.metrics) if written is not None else {}
        done |= _fields(result.exchange)
    planned = asdict(plan)
    del planned["exchange"]
    return {"plan": planned | _fields(plan.exchange), "applied": done}


def _fields(exchange: Exchange | None) -> dict[str, object]:
    names = [field.name for field in fields(Exchange)]
    return dict.fromkeys(names) if exchange is None else asdict(exchange)


def _known(rows: int | None) -> str:
    return UNKNOWN if rows is None else count(rows)


def _rows(rows: int | None) -> str:
    return f"{_known(rows)} row{'' if rows == 1 else 's'}"


def _exchanged(exchange: Exchange) -> str:
    """The files that came back and went, in words."""
    back = f"{count(exchange.files_back)} files came back ({_rows(exchange.rows_back)})"
    return f"{back}, {count(exchange.files_gone)} went ({_rows(exchange.rows_gone)})"


def _print(plan: RestorePlan) -> None:
    pairs = [("dataset", plan.dataset), ("version now", str(plan.version)), ("version restored", str(plan.target))]
    exchange = plan.exchange
    if exchange is not None:
        pairs += [
            ("rows", f"{_known(exchange.rows_now)} -> {_known(exchange.rows_then)}"),
            ("files that come back", f"{count(exchange.files_back)} ({_rows(exchange.rows_back)})"),
            ("files that go", f"{count(exchange.files_gone)} ({_rows(exchange.rows_gone)})"),
        ]
    elif plan.changes:
        pairs += [("files that come back", UNKNOWN), ("files that go", UNKNOWN)]
    pairs += [
        (f"flips {name}", f"{now or 'not set'} -> {then or 'not set'}") for name, (now, then) in plan.flips.items()
    ]
    pairs += [(f"applied again {name}", value) for name, value in plan.reapplied.items()]
    print_pairs(pairs)
    if exchange is not None and any(each.partition for each in exchange.partitions):
        _print_partitions(exchange)


def _print_partitions(exchange: Exchange) -> None:
    numbers = ("rows now", "rows then", "files back", "files gone")
    click.echo()
    print_table(
        ("partition", *numbers),
        [
            (
                ", ".join(f"{name}={'NULL' if value is None else value}" for name, value in each.partition.items()),
                _known(each.rows_now),
                _known(each.rows_then),
                count(each.files_back),
                count(each.files_gone),
            )
            for each in exchange.partitions[:NAMED]
        ],
        right=numbers,
    )
    if len(exchange.partitions) > NAMED:
        click.echo(f"and {len(exchange.partitions) - NAMED} more partitions; --json names them all.")
