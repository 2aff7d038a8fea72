"""`pipeline restore`: bring a table back to an earlier version; a plan unless asked to apply it."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import asdict

import click

from pipeline.cli.dagster_instance import report_changes
from pipeline.cli.options import as_instant
from pipeline.cli.output import count, print_json, print_pairs
from pipeline.cli.registry import declared
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.maintain.restore import RestorePlan, RestoreResult, plan_restore
from pipeline.delta.maintain.restore import restore as do_restore
from pipeline.delta.read.version import ReadOptions
from pipeline.delta.spark.session import open_session
from pipeline.record import write_record
from pipeline.settings import load_settings


@click.command()
@click.argument("name", metavar="DATASET")
@click.option("--version", type=click.IntRange(0), help="To this version.")
@click.option(
    "--timestamp",
    metavar="TIME",
    callback=as_instant,
    help="To the newest version at or before a time; it needs a zone.",
)
@click.option("--apply", is_flag=True, help="Do it; without it the plan is shown.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def restore(name: str, version: int | None, timestamp: dt.datetime | None, apply: bool, as_json: bool) -> None:
    """Bring a table back to an earlier version, in a commit of its own: no history is lost."""
    if (version is None) == (timestamp is None):
        raise click.UsageError("Give one of --version and --timestamp.")
    settings = load_settings()
    dataset = declared(settings).get(name)
    session = open_session(settings.spark)
    location = dataset.location(settings.root)
    plan = plan_restore(session, dataset, location, ReadOptions(version=version, timestamp=timestamp))
    result = None
    if apply:
        run = f"restore-{uuid.uuid4()}"
        note = CommitNote(mark=Mark(writer=f"{dataset.name}/{run}"), run_id=run)
        result = do_restore(session, dataset, plan, note)
        if result.written is not None:
            options, written = dict(settings.spark.conf), result.written
            report_changes(settings, [dataset.name])
            with written.behind():
                write_record(session, dataset, written, root=settings.root, run_id=run, sources={}, options=options)
    if as_json:
        print_json(_document(plan, result))
        return
    _print(plan)
    if result is None:
        click.echo("Nothing was changed; --apply restores." if plan.changes else "There is nothing to restore.")
    elif plan.changes:
        click.echo(f"Restored in version {result.version}; the table is at version {result.latest}.")


def _document(plan: RestorePlan, result: RestoreResult | None) -> dict[str, object]:
    done: dict[str, object] | None = None
    if result is not None:
        written = result.written
        done = {"version": result.version, "latest": result.latest}
        done["metrics"] = dict(written.metrics) if written is not None else {}
    return {"plan": asdict(plan), "applied": done}


def _print(plan: RestorePlan) -> None:
    pairs = [("dataset", plan.dataset), ("version now", str(plan.version)), ("version restored", str(plan.target))]
    if plan.changes:
        pairs += [("files that come back", count(plan.files_back)), ("files that go", count(plan.files_gone))]
    pairs += [
        (f"flips {name}", f"{now or 'not set'} -> {then or 'not set'}") for name, (now, then) in plan.flips.items()
    ]
    pairs += [(f"applied again {name}", value) for name, value in plan.reapplied.items()]
    print_pairs(pairs)
