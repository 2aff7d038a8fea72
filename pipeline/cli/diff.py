"""`pipeline diff`: the differences between two versions of a table."""

from __future__ import annotations

import click

from pipeline.cli.options import WIDE
from pipeline.cli.output import count, print_json, print_table
from pipeline.cli.tables import Tables
from pipeline.delta.inspect.diff import diff as difference
from pipeline.delta.inspect.query import is_number
from pipeline.delta.read.changes import DELETE, INSERT, UPDATED
from pipeline.delta.storage.options import project_settings

DEFAULT_LIMIT = 100
NULL = "NULL"
_SHOWN = {INSERT: "insert", UPDATED: "update", DELETE: "delete"}


@click.command()
@click.argument("name", metavar="TABLE")
@click.option("--from", "first", type=click.IntRange(0), required=True, help="From this version.")
@click.option("--to", "last", type=click.IntRange(0), required=True, help="To this version.")
@click.option(
    "--limit", type=click.IntRange(1), default=DEFAULT_LIMIT, show_default=True, help="At most this many rows."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@WIDE
def diff(name: str, first: int, last: int, limit: int, as_json: bool) -> None:
    """Show what differs between two versions: one row for each key, with its new or, if deleted, its last values.

    TABLE is the name of a dataset, or a table's path. The differences come from the change feed if it can be read,
    otherwise from a comparison of the two versions. If the declaration has no keys, they are the rows that occur more
    or less often.
    """
    if first > last:
        raise click.UsageError("--from must not be after --to.")
    tables = Tables(project_settings())
    table = tables.ref(tables.find(name))
    result = difference(tables.session, table, first=first, last=last, limit=limit)
    counts = {shown: result.counts.get(kind, 0) for kind, shown in _SHOWN.items()}
    compared = None if result.verdict.reason is None else result.verdict.reason.value
    if as_json:
        document = result.answer.document()
        print_json(
            {"dataset": result.dataset, "from": first, "to": last, "compared_because": compared, "counts": counts}
            | {"columns": document["columns"][1:], "more": document["more"]}
            | {"rows": [{"change": _SHOWN[change], "values": values} for change, *values in document["rows"]]}
        )
        return
    rows = [[NULL if value is None else value for value in row] for row in result.answer.rows]
    shown = [[_SHOWN[change], *values] for change, *values in rows]
    kinds = zip(result.answer.columns, result.answer.types, strict=True)
    numbers = [column for column, kind in kinds if is_number(kind)]
    print_table(("change", *result.answer.columns[1:]), shown, right=numbers)
    click.echo(", ".join(f"{count(number)} {change}{'s' if number != 1 else ''}" for change, number in counts.items()))
    if compared is not None:
        click.echo(f"By comparison of the two versions: {compared}.", err=True)
    if result.answer.more:
        click.echo(f"There are more rows than {limit}; --limit shows them.", err=True)
