"""`pipeline diff`: what differs between two versions of a table."""

from __future__ import annotations

import click

from pipeline.cli.options import WIDE
from pipeline.cli.output import count, print_json, print_table
from pipeline.cli.tables import Tables
from pipeline.delta.inspect.diff import diff as difference
from pipeline.delta.inspect.query import is_number
from pipeline.delta.read.changes import DELETE, INSERT, UPDATED
from pipeline.settings import load_settings

DEFAULT_LIMIT = 100
NULL = "NULL"
_SHOWN = {INSERT: "insert", UPDATED: "update", DELETE: "delete"}


@click.command()
@click.argument("name", metavar="TABLE")
@click.option("--from", "first", type=click.IntRange(0), required=True, help="From this version.")
@click.option("--to", "last", type=click.IntRange(0), required=True, help="To this version.")
@click.option("--limit", type=click.IntRange(1), default=DEFAULT_LIMIT, show_default=True, help="At most so many rows.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@WIDE
def diff(name: str, first: int, last: int, limit: int, as_json: bool) -> None:
    """What differs between two versions: one row for each key, as it is now, or as it was before it was deleted.

    TABLE is the name of a dataset, or a table's path. From the change feed if it can be read, otherwise by
    comparison of the two versions. Without keys in the declaration, the rows that there are more or fewer of.
    """
    if first > last:
        raise click.UsageError("--from must not be after --to.")
    tables = Tables(load_settings())
    table = tables.find(name)
    found = difference(tables.session, tables.dataset(table), table.location, first=first, last=last, limit=limit)
    counts = {shown: found.counts.get(kind, 0) for kind, shown in _SHOWN.items()}
    compared = None if found.verdict.reason is None else found.verdict.reason.value
    if as_json:
        document = found.answer.document()
        print_json(
            {"dataset": found.dataset, "from": first, "to": last, "compared_because": compared, "counts": counts}
            | {"columns": document["columns"][1:], "more": document["more"]}
            | {"rows": [{"change": _SHOWN[change], "values": values} for change, *values in document["rows"]]}
        )
        return
    rows = [[NULL if value is None else value for value in row] for row in found.answer.rows]
    shown = [[_SHOWN[change], *values] for change, *values in rows]
    kinds = zip(found.answer.columns, found.answer.types, strict=True)
    numbers = [column for column, kind in kinds if is_number(kind)]
    print_table(("change", *found.answer.columns[1:]), shown, right=numbers)
    click.echo(", ".join(f"{count(number)} {change}{'s' if number != 1 else ''}" for change, number in counts.items()))
    if compared is not None:
        click.echo(f"By comparison of the two versions: {compared}.", err=True)
    if found.answer.more:
        click.echo(f"There are more rows than {limit}; --limit shows them.", err=True)
