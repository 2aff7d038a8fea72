"""`pipeline history`: the commits of a table, and who made them."""

from __future__ import annotations

import click

from pipeline.cli.options import WIDE
from pipeline.cli.output import count, instant, print_json, print_table
from pipeline.cli.tables import Tables
from pipeline.delta.inspect.history import HistoryEntry
from pipeline.delta.storage.options import project_settings

DEFAULT_LIMIT = 20


@click.command()
@click.argument("name", metavar="TABLE")
@click.option("--limit", type=click.IntRange(1), default=DEFAULT_LIMIT, show_default=True, help="How many commits.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, metrics included.")
@WIDE
def history(name: str, limit: int, as_json: bool) -> None:
    """Show the newest commits of a table with run, partitions and mark.

    TABLE is the name of a dataset, or a table's path. For a table on this machine no Spark is started. A commit that
    the pipeline did not make carries no mark; the engine that made it is shown instead.
    """
    tables = Tables(project_settings())
    entries = tables.history(tables.find(name), limit)
    if as_json:
        print_json([entry.document() for entry in entries])
        return
    print_table(
        ("version", "time (UTC)", "operation", "rows", "files", "run", "partitions", "attempt", "writer"),
        [_row(entry) for entry in entries],
        right=("version", "rows"),
    )


def _row(entry: HistoryEntry) -> tuple[str, ...]:
    note = entry.note or {}
    mark = note.get("mark") or {"writer": f"no pipeline mark ({entry.engine or 'engine unknown'})"}
    changed = [
        f"{sign}{number}"
        for sign, number in (("+", entry.files_added), ("-", entry.files_removed))
        if number is not None
    ]
    return (
        str(entry.version),
        instant(entry.timestamp),
        entry.operation,
        count(entry.rows_written),
        " ".join(changed) or "-",
        note.get("run_id") or "-",
        note.get("partitions") or "-",
        str(mark.get("attempt", "-")),
        mark.get("writer") or "-",
    )
