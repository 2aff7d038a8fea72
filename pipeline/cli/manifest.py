"""`pipeline manifest`: the records of runs."""

from __future__ import annotations

from dataclasses import asdict

import click

from pipeline.cli.differences import print_differences
from pipeline.cli.options import WIDE
from pipeline.cli.output import count, print_json, print_table, size
from pipeline.delta.inspect.maintenance_record import MaintenanceRecord
from pipeline.delta.inspect.manifest import full_manifest, runs
from pipeline.delta.inspect.manifest import manifest as records_of
from pipeline.delta.inspect.record import DatasetRecord, diff, verify
from pipeline.delta.storage.options import project_settings
from pipeline.errors import RecordError

_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def _warn(error: RecordError) -> None:
    click.echo(f"warning: {error}", err=True)


@click.group()
def manifest() -> None:
    """The records that runs keep beside the tables, one for every write and every maintained table."""


@manifest.command("list")
@_AS_JSON
@WIDE
def list_command(as_json: bool) -> None:
    """List every run that has records, newest first."""
    settings = project_settings()
    summaries = runs(settings.root, damaged=_warn)
    if as_json:
        print_json([asdict(summary) for summary in summaries])
        return
    print_table(
        ("run", "first (UTC)", "last (UTC)", "records", "rows", "datasets"),
        [
            (
                run.run_id,
                _time(run.first),
                _time(run.last),
                str(run.records),
                count(run.rows_written),
                ", ".join(run.datasets),
            )
            for run in summaries
        ],
        right=("records", "rows"),
    )


@manifest.command("show")
@click.argument("run")
@_AS_JSON
@WIDE
def show_command(run: str, as_json: bool) -> None:
    """Show the records of a run; the beginning of its id is enough. --json prints all fields."""
    settings = project_settings()
    found = full_manifest(settings.root, run, damaged=_warn)
    if as_json:
        print_json([*map(asdict, found.commits), *map(asdict, found.maintenance)])
        return
    if found.commits or not found.maintenance:
        print_table(
            ("dataset", "version", "operation", "rows", "partitions", "sources", "fingerprint", "time (UTC)"),
            [_row(record) for record in found.commits],
            right=("version", "rows"),
        )
    if found.maintenance:
        print_table(
            ("maintained", "version", "checkpoint", "joined", "tombstones", "vacuumed", "log files", "reclaimed",
             "oldest readable", "time (UTC)"),
            [_maintenance_row(record) for record in found.maintenance],
            right=("version", "checkpoint", "joined", "tombstones", "vacuumed", "log files", "reclaimed",
                   "oldest readable"),
        )  # fmt: skip


def _maintenance_row(record: MaintenanceRecord) -> tuple[str, ...]:
    return (
        record.name,
        str(record.version),
        count(record.checkpoint),
        count(record.files_joined),
        count(record.tombstones_expired),
        count(record.files_vacuumed),
        count(record.log_files_removed),
        size(record.bytes_reclaimed),
        count(record.oldest_readable_version),
        _time(record.recorded_at),
    )


def _row(record: DatasetRecord) -> tuple[str, ...]:
    return (
        record.name,
        str(record.version),
        record.commit["operation"] if record.committed else "no commit",
        count(record.rows_written),
        record.partitions or "-",
        ", ".join(f"{name}@{version}" for name, version in record.sources.items()) or "-",
        record.fingerprint[:12],
        _time(record.recorded_at),
    )


@manifest.command("diff")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@_AS_JSON
@WIDE
def diff_command(before: str, after: str, as_json: bool) -> None:
    """Show the datasets with another version, schema or number of rows written in run B than in run A."""
    settings = project_settings()
    first, second = (records_of(settings.root, run, damaged=_warn) for run in (before, after))
    differences = [asdict(difference) for difference in diff(first, second)]
    if as_json:
        print_json(differences)
        return
    print_differences(differences)


@manifest.command("verify")
@click.argument("run")
@_AS_JSON
@WIDE
@click.pass_context
def verify_command(ctx: click.Context, run: str, as_json: bool) -> None:
    """Verify that the log has the mark of every record of a run. If a mark is missing or a record damaged, status 1."""
    settings = project_settings()
    damaged = list[RecordError]()
    verdicts = verify(records_of(settings.root, run, damaged=damaged.append))
    for error in damaged:
        _warn(error)
    if as_json:
        print_json([{"dataset": v.record.name, "version": v.record.version, "problem": v.problem} for v in verdicts])
    else:
        print_table(
            ("dataset", "version", "log"),
            [(v.record.name, str(v.record.version), v.problem or "as recorded") for v in verdicts],
            right=("version",),
        )
    if damaged or any(verdict.problem for verdict in verdicts):
        ctx.exit(1)


def _time(text: str) -> str:
    return text[:19].replace("T", " ") + "Z"
