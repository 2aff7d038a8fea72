"""`pipeline publish`: commit a write that its audit refused. It shows the write, unless `--apply` is given."""

from __future__ import annotations

from typing import Any

import click

from pipeline.cli.dagster_instance import report_changes
from pipeline.cli.options import WIDE
from pipeline.cli.output import count, instant, print_json, print_pairs, print_table
from pipeline.cli.tables import Tables
from pipeline.dataset import TableRef
from pipeline.delta.inspect.record import write_record
from pipeline.delta.maintain.publish import (
    Publication,
    RejectedWrite,
    discard,
    plan_publications,
    rejected_writes,
    waiting_rows,
)
from pipeline.delta.maintain.publish import publish as do_publish
from pipeline.delta.storage.options import project_settings
from pipeline.delta.write.result import WriteResult

# How many rows of a write are shown, and how many characters of a value.
_SHOWN_ROWS = 5
_SHOWN_CHARACTERS = 60


@click.command()
@click.argument("name", metavar="DATASET")
@click.option("--run", "run_id", metavar="RUN", help="The run whose write waits. Without it, all are listed.")
@click.option("--apply", is_flag=True, help="Commit the rows; without it they are only shown.")
@click.option("--over-newer", is_flag=True, help="Replace rows that were written after the audit, too.")
@click.option("--discard", "discards", is_flag=True, help="Remove the rows instead of committing them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@WIDE
def publish(
    name: str, run_id: str | None, apply: bool, *, over_newer: bool, discards: bool, as_json: bool
) -> None:  # fmt: skip
    """Commit a write that its audit refused, exactly once, in its own slice and under its own identifier.

    The rows wait in the table DATASET__rejected. A write that would replace rows which are newer than its audit is
    refused, unless --over-newer is given.
    """
    if run_id is None and (apply or over_newer or discards):
        raise click.UsageError("Give --run, the run whose write is meant.")
    if discards and over_newer:
        raise click.UsageError("Give one of --over-newer and --discard.")
    tables = Tables(project_settings())
    table = tables.registry.get(name).at(tables.settings.root)
    if run_id is None:
        _list(rejected_writes(tables.session, table), as_json=as_json)
        return
    plans = plan_publications(tables.session, table, run_id)
    results = [_applied(tables, table, plan, over_newer=over_newer, discards=discards) for plan in plans if apply]
    if as_json:
        print_json([_document(plan) | {"applied": _outcome(result)} for plan, result in _paired(plans, results)])
        return
    for plan, result in _paired(plans, results):
        _print(tables, table, plan)
        click.echo(_told(plan, result, apply=apply, discards=discards))


def _paired(
    plans: list[Publication], results: list[WriteResult | None]
) -> list[tuple[Publication, WriteResult | None]]:
    return list(zip(plans, results or [None] * len(plans), strict=True))


def _applied(
    tables: Tables, table: TableRef, plan: Publication, *, over_newer: bool, discards: bool
) -> WriteResult | None:
    session, settings = tables.session, tables.settings
    if discards:
        discard(session, table, plan.write)
        return None
    result = do_publish(session, table, plan.write, over_newer=over_newer)
    if result.committed:
        report_changes(settings, [table.name])
        with result.behind():
            write_record(
                session, table.dataset, result, root=settings.root, run_id=plan.write.run_id,
                sources=plan.write.note.sources, partitions=plan.write.note.partitions,
                options=dict(settings.spark.conf),
            )  # fmt: skip
    return result


def _list(waiting: list[RejectedWrite], *, as_json: bool) -> None:
    if as_json:
        print_json([_write_document(one) for one in waiting])
        return
    if not waiting:
        click.echo("No rejected write waits.")
        return
    print_table(
        ("run", "rejected", "rows", "partitions", "failed"),
        [
            (one.run_id, instant(one.rejected_at), count(one.rows), _slice(one), ", ".join(one.failed))
            for one in waiting
        ],
        right=("rows",),
    )


def _slice(one: RejectedWrite) -> str:
    return "the whole table" if one.within is None else str(one.within)


def _write_document(one: RejectedWrite) -> dict[str, Any]:
    return {
        "run": one.run_id, "rejected_at": one.rejected_at.isoformat(), "rows": one.rows, "failed": dict(one.failed),
        "partitions": None if one.within is None else str(one.within), "judged_version": one.version,
        "writer": one.note.mark.writer, "epoch": one.note.mark.epoch,
    }  # fmt: skip


def _document(plan: Publication) -> dict[str, Any]:
    return _write_document(plan.write) | {
        "table_version": plan.table_version, "held_at": plan.held_at, "is_overtaken": plan.is_overtaken,
        "is_consumed": plan.is_consumed,
    }  # fmt: skip


def _outcome(result: WriteResult | None) -> dict[str, Any] | None:
    if result is None:
        return None
    return {"version": result.version, "committed": result.committed, "rows_written": result.rows_written}


def _print(tables: Tables, table: TableRef, plan: Publication) -> None:
    one, mode = plan.write, type(table.dataset.write).__name__
    print_pairs([
        ("dataset", table.name), ("run", one.run_id), ("rejected", instant(one.rejected_at)),
        ("rows", count(one.rows)), ("write", f"{mode}, {_slice(one)}{', the table built again' * one.replace_all}"),
        ("judged at version", str(one.version)), ("version now", str(plan.table_version)),
        *((f"failed {name}", found) for name, found in one.failed.items()),
    ])  # fmt: skip
    if one.rows:
        columns = (*table.dataset.schema.names, *table.dataset.frame_columns)
        rows = waiting_rows(tables.session, table, one).limit(_SHOWN_ROWS).collect()
        click.echo()
        print_table(columns, [[_shown(value) for value in row] for row in rows])
        if one.rows > len(rows):
            click.echo(f"and {count(one.rows - len(rows))} more rows, in {table.name}__rejected.")


def _shown(value: object) -> str:
    return "NULL" if value is None else str(value)[:_SHOWN_CHARACTERS]


def _told(plan: Publication, result: WriteResult | None, *, apply: bool, discards: bool) -> str:
    """What was done, or would be."""
    if discards:
        return "The rejected rows were removed." if apply else "Nothing was changed; --apply removes these rows."
    if result is not None and result.committed:
        return f"Published in version {result.version}: {count(result.rows_written)} rows written."
    if result is not None:
        return (
            f"Nothing was committed: version {result.version} has these rows."
            if result.skipped
            else "Nothing to write."
        )
    if plan.held_at is not None:
        return f"Version {plan.held_at} has these rows; --apply removes them from the rejected ones."
    if plan.is_consumed:
        return "The consumer has read the same changes again and committed; --discard --apply removes these rows."
    if plan.is_overtaken:
        return "Rows that this write replaces are newer than its audit; only --over-newer --apply commits it."
    return "Nothing was committed; --apply commits these rows."
