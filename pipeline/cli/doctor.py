"""`pipeline doctor`: damage in the tables and what else their logs show, and the repair of logs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial

import click

from pipeline.cli.options import WIDE
from pipeline.cli.output import collected, count, print_json, print_table, size
from pipeline.cli.tables import NamedTable, Tables
from pipeline.dataset import TableRef, table_location
from pipeline.delta.frames.staging import STAGING
from pipeline.delta.inspect.doctor import Diagnosis, Finding, examine
from pipeline.delta.maintain.checkpoint import Checkpoints
from pipeline.delta.maintain.health import health_findings
from pipeline.delta.maintain.maintain import checkpoint_at
from pipeline.delta.maintain.repair import RepairPlan, plan_repair, repair
from pipeline.delta.maintain.retention import consumers_of
from pipeline.delta.sink.left_behind import (
    journals_left_behind,
    lost_checkpoints,
    staging_left_behind,
    streams_left_behind,
)
from pipeline.delta.spark.confs import confs, log_store_conf
from pipeline.delta.storage.file_system import local_folder
from pipeline.delta.storage.options import project_settings
from pipeline.delta.table.storage_facts import StorageFacts, storage_facts
from pipeline.errors import PipelineError, TableNotFoundError
from pipeline.settings import SCHEMES, Settings

NONE = "-"


@click.command()
@click.argument("names", metavar="[TABLE]...", nargs=-1)
@click.option("--deep", is_flag=True, help="Read every data file, so that each page and its checksum are verified.")
@click.option("--repair", "as_repair", is_flag=True, help="Show the parts of logs that can be removed without a guess.")
@click.option("--apply", is_flag=True, help="With --repair: remove them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@WIDE
@click.pass_context
def doctor(
    ctx: click.Context, names: tuple[str, ...], *, deep: bool, as_repair: bool, apply: bool, as_json: bool
) -> None:
    """Find damage in log and files, missing files and files that no version references; changes nothing by itself.

    Also found are parts of the log that readers skip, contradictory settings, consumers that may soon lose changes,
    small files, and what writers that no longer run have left: rows in journals, checkpoints of streams, and staged
    frames. TABLE is the name of a dataset, or a table's path. The exit status is 1 if a table is damaged. It also
    shows how each bucket is reached.
    """
    if apply and not as_repair:
        raise click.UsageError("--apply needs --repair.")
    tables = Tables(project_settings())
    chosen = [tables.find(name) for name in names] or [tables.of(dataset) for dataset in tables.registry]
    if as_repair:
        _repair(tables, chosen, apply=apply, as_json=as_json)
        return
    if not as_json:
        _print_buckets(tables.settings, [table.location for table in chosen])
    failed: list[PipelineError] = []
    diagnoses = _diagnoses(tables, chosen, failed, named=bool(names), deep=deep)
    if as_json:
        print_json([_document(diagnosis, tables.settings) for diagnosis in diagnoses])
    else:
        _print(diagnoses)
    if failed:
        raise failed[-1]
    if not all(diagnosis.healthy for diagnosis in diagnoses):
        ctx.exit(1)


def _document(diagnosis: Diagnosis, settings: Settings) -> dict[str, object]:
    facts = _facts(settings, diagnosis.location)
    return asdict(diagnosis) | {"healthy": diagnosis.healthy, "storage": asdict(facts)}


def _facts(settings: Settings, location: str) -> StorageFacts:
    return storage_facts(location, confs(settings.spark, []).get(log_store_conf(location)))


def _print_buckets(settings: Settings, locations: list[str]) -> None:
    """How each bucket of the settings and of the tables is reached. Folders on this machine are left out."""
    uris = [settings.root, settings.landing, *(storage.uri for storage in settings.spark.storage), *locations]
    buckets: dict[tuple[str | None, str], StorageFacts] = {}
    for one in (_facts(settings, uri) for uri in uris if local_folder(uri) is None):
        buckets.setdefault((SCHEMES.get(one.scheme), one.uri.partition("://")[2]), one)
    if not buckets:
        return
    checked = {True: "checked before a write", False: "not checked", None: NONE}
    rows = [
        (one.uri, one.endpoint or NONE, one.log_endpoint or NONE, one.region or NONE, one.account or NONE,
         one.log_store or NONE, checked[one.creates_checked])
        for one in buckets.values()
    ]  # fmt: skip
    heads = ("bucket", "endpoint", "endpoint of logs", "region", "account", "log store", "conditional creates")
    print_table(heads, rows)
    click.echo()


def _diagnoses(
    tables: Tables, chosen: Iterable[NamedTable], failed: list[PipelineError], *, named: bool, deep: bool
) -> list[Diagnosis]:  # fmt: skip
    """The diagnosis of each table. Unless tables are named, also what was left below the root without a table."""
    left = _left_behind(tables)
    diagnoses: list[Diagnosis] = []
    for table in chosen:
        more = left.pop(table.name, ())
        with collected(failed, table.name, named=named):
            diagnoses.append(_diagnosis(tables, table, more, deep=deep))
    return diagnoses if named else [*diagnoses, *_of_project(tables.settings.root, left)]


def _left_behind(tables: Tables) -> dict[str, tuple[Finding, ...]]:
    """By dataset, what writers of it have left that no longer run."""
    root = tables.settings.root
    journals, streams = journals_left_behind(tables.registry, tables.settings, root), streams_left_behind(root)
    return {name: (*journals.get(name, ()), *streams.get(name, ())) for name in {**journals, **streams}}


def _of_project(root: str, left: Mapping[str, tuple[Finding, ...]]) -> Iterator[Diagnosis]:
    """What was left for datasets that are not declared, and staged frames."""
    for name, findings in sorted(left.items()):
        yield _without_table(name, table_location(root, name), findings)
    staged = staging_left_behind(root, dt.datetime.now(dt.timezone.utc))
    if staged:
        yield _without_table(STAGING, f"{root.rstrip('/')}/{STAGING}", staged)


def _without_table(name: str, location: str, findings: tuple[Finding, ...]) -> Diagnosis:
    return Diagnosis(dataset=name, location=location, version=None, files=0, bytes=0, findings=findings)


def _diagnosis(tables: Tables, table: NamedTable, left: tuple[Finding, ...], *, deep: bool) -> Diagnosis:
    consumers = consumers_of(table.name, tables.registry, tables.settings.root)
    try:
        found = examine(table.name, table.location, consumers=consumers, deep=deep)
    except TableNotFoundError:
        if not left:
            raise
        return _without_table(table.name, table.location, left)
    more = health_findings(table.name, table.location, declared=table.declared, consumers=consumers)
    lost = () if table.declared is None else lost_checkpoints(TableRef(table.declared, table.location))
    return replace(found, findings=(*found.findings, *more, *left, *lost))


def _repair(tables: Tables, chosen: Iterable[NamedTable], *, apply: bool, as_json: bool) -> None:
    plans: list[RepairPlan] = []
    failed: list[PipelineError] = []
    with Checkpoints(lambda: tables.session) as checkpoints:
        for table in chosen:
            with collected(failed, table.name, named=True):
                plan = plan_repair(table.name, table.location)
                write = partial(_write_checkpoint, tables, table, checkpoints)
                plans.append(repair(plan, write) if apply else plan)
    if as_json:
        print_json([asdict(plan) | {"applied": apply} for plan in plans])
    else:
        _print_repairs(plans, apply=apply)
    if failed:
        raise failed[-1]


def _write_checkpoint(tables: Tables, table: NamedTable, checkpoints: Checkpoints, version: int) -> None:
    checkpoint_at(tables.ref(table), version, checkpoints)


def _print_repairs(plans: list[RepairPlan], *, apply: bool) -> None:
    for plan in plans:
        for step in plan.steps:
            click.echo(f"{plan.dataset}: {'removed' if apply else 'to remove'}: {step.path}: {step.reason}")
        if plan.checkpoint is not None:
            click.echo(f"{plan.dataset}: a checkpoint {'was' if apply else 'is'} written in its place")
    if not any(plan.steps for plan in plans):
        click.echo("There is nothing to repair.")
    elif not apply:
        click.echo("Nothing was removed; --apply removes.")


def _print(diagnoses: list[Diagnosis]) -> None:
    rows = [
        (d.dataset, _version(d), count(d.readable_from), count(d.files), size(d.bytes),
         "healthy" if d.healthy else "damaged", count(len(d.findings)))
        for d in diagnoses
    ]  # fmt: skip
    print_table(
        ("dataset", "version", "readable from", "files", "size", "health", "findings"), rows,
        right=("version", "readable from", "files", "size", "findings"),
    )  # fmt: skip
    for diagnosis in diagnoses:
        for finding in diagnosis.findings:
            click.echo(f"\n{diagnosis.dataset}: {finding.kind}: {finding.path}\n  {finding.detail}")
            click.echo(f"  -> {finding.remedy}")


def _version(diagnosis: Diagnosis) -> str:
    return NONE if diagnosis.version is None else str(diagnosis.version)
