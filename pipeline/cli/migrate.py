"""`pipeline migrate`: a folder of files becomes a table. It shows a plan, unless `--apply` is given."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import click
from pyspark.sql.types import StructType

from pipeline.cli.dagster_instance import report_changes
from pipeline.cli.options import WIDE
from pipeline.cli.output import count, print_json, print_pairs, print_table, size
from pipeline.cli.tables import Tables, dataset_name, normalized
from pipeline.delta.inspect.record import write_record
from pipeline.delta.migrate.convert import convert
from pipeline.delta.migrate.copy import Copied, copy, refuse
from pipeline.delta.migrate.files import FORMATS, Format
from pipeline.delta.migrate.plan import MigrationPlan, Mode, Target, plan_migration
from pipeline.delta.migrate.report import document, replaced_text
from pipeline.delta.migrate.taken import report_path
from pipeline.delta.spark.failures import SPARK_ERRORS, failure_of
from pipeline.delta.sql import type_name
from pipeline.delta.storage.options import project_settings
from pipeline.errors.listing import bounded


@click.command()
@click.argument("source")
@click.option("--to", "target", required=True, metavar="DATASET|PATH", help="A dataset, or the folder of a table.")
@click.option(
    "--mode",
    type=click.Choice(["copy", "in-place"]),
    default="copy",
    show_default=True,
    help="Write the rows to the table, or make the folder itself a table; its files stay as they are.",
)
@click.option("--format", "form", type=click.Choice(FORMATS), help="Of the files; by default that of their names.")
@click.option("--schema", metavar="COLUMNS", help="Columns as in `id BIGINT, day DATE`, for a table at a new PATH.")
@click.option("--accept-changed", is_flag=True, help="Replace the partitions of files that changed or vanished since.")
@click.option("--apply", is_flag=True, help="Migrate; without it only the plan is shown.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@WIDE
def migrate(
    source: str, target: str, *, mode: Mode, form: Format | None, schema: str | None, accept_changed: bool, apply: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Bring the Parquet, CSV or NDJSON files of the folder SOURCE into a table, and compare every value with them.

    Files that were taken before are not taken again. The plan is made from the names and the footers of the files,
    without Spark. If a value differs after the commit, the commit is undone.
    """
    tables = Tables(project_settings())
    place = _target(tables, target, schema)
    plan = plan_migration(
        normalized(source), place, mode=mode, wanted=form, accept_changed=accept_changed, progress=_show
    )  # fmt: skip
    if not as_json:
        _print(plan)
    elif not apply:
        print_json(document(plan, ()) | {"applied": False})
    refuse(plan)
    needs_spark = apply and (_has_work(plan) or plan.taken.is_unsealed)
    done = _apply(tables, plan) if needs_spark else Copied(done=(), writes=())
    if as_json:
        if apply:
            print_json(document(plan, done.done) | {"applied": True})
    elif not apply:
        click.echo("Nothing was written; --apply migrates." if _has_work(plan) else "There is nothing to take.")
    else:
        _print_done(plan, done)


def _show(line: str) -> None:
    click.echo(line, err=True)


def _has_work(plan: MigrationPlan) -> bool:
    return bool(plan.files or plan.replaces or plan.unverified is not None)


def _apply(tables: Tables, plan: MigrationPlan) -> Copied:
    run = f"migrate-{uuid.uuid4()}"
    settings, session = tables.settings, tables.session
    execute: Callable[..., Copied] = copy if plan.mode == "copy" else convert
    done = execute(session, plan, run, _show)
    for written in done.writes:
        with written.behind():
            write_record(
                session, plan.table.dataset, written, root=settings.root, run_id=run, sources={},
                options=dict(settings.spark.conf),
            )  # fmt: skip
    if done.writes:
        report_changes(settings, [plan.dataset] if plan.dataset in tables.registry else [])
    return done


def _target(tables: Tables, name: str, schema: str | None) -> Target:
    """The target: a dataset, an existing table, or the folder of a new table if the name is a path."""
    if name in tables.registry:
        dataset = tables.registry.get(name)
        if schema is not None:
            raise click.UsageError(f"--schema is for a table without a declaration; {name} is a dataset.")
        return Target(name=name, location=dataset.location(tables.settings.root), dataset=dataset)
    is_path = "/" in name or name.startswith(".")
    if not is_path:
        found = tables.find(name)
        return Target(name=dataset_name(found.name), location=found.location)
    location = normalized(name)
    for dataset in tables.registry:
        if normalized(dataset.location(tables.settings.root)) == location:
            return Target(name=dataset.name, location=location, dataset=dataset)
    columns = None if schema is None else _columns(tables, schema)
    return Target(name=dataset_name(location.rpartition("/")[2]), location=location, schema=columns)


def _columns(tables: Tables, schema: str) -> StructType:
    tables.session  # noqa: B018  Spark parses the columns
    try:
        columns = StructType.fromDDL(schema)
    except SPARK_ERRORS as error:
        raise click.BadParameter(failure_of(error).summary, param_hint="--schema") from error
    if not isinstance(columns, StructType):
        raise click.BadParameter(f"{schema!r} is a single type, not columns", param_hint="--schema")
    return columns


def _print(plan: MigrationPlan) -> None:
    pairs = [
        ("source", plan.source), ("table", plan.location),
        ("version", "no table yet" if plan.version is None else str(plan.version)), ("mode", plan.mode),
        ("format", plan.format), ("files", count(len(plan.files))), ("rows", count(plan.rows)),
        ("size", size(plan.bytes)), ("taken before", count(plan.unchanged)),
    ]  # fmt: skip
    if plan.replaces:
        pairs.append(("replaces", replaced_text(plan)))
    if plan.unverified is not None:
        pairs.append(("to verify first", f"version {plan.taken.unverified}"))
    print_pairs(pairs)
    folders = {column.name: column for column in plan.folders}
    click.echo()
    print_table(
        ("column", "type", "from", "note"),
        [
            (
                field.name,
                type_name(field.dataType),
                "folders" if field.name in folders else "files",
                _note(plan, field.name),
            )
            for field in plan.table.dataset.schema.fields
        ],
    )
    lists = {
        "the files differ": plan.differences, "passed over": plan.passed_over, "changed": plan.changed,
        "gone": plan.vanished,
    }  # fmt: skip
    for title, texts in lists.items():
        if texts:
            click.echo("\n  ".join([f"{title}:", *bounded(texts)]))


def _note(plan: MigrationPlan, name: str) -> str:
    column = next((column for column in plan.folders if column.name == name), None)
    if column is None:
        return ""
    guess = f"; looks like {column.guess}" if column.guess else ""
    source = "declared" if column.declared else "from the files" if column.stored else "from all values"
    return f"{source}{guess}"


def _print_done(plan: MigrationPlan, done: Copied) -> None:
    for each in done.done:
        facts = each.document()
        click.echo(
            f"Version {each.version}: {count(facts['rows'])} rows of {count(facts['files'])} files, equal in "
            f"{count(facts['partitions'])} partitions and {facts['columns_compared']} columns ({each.seconds:.1f} s)."
        )
        click.echo(f"  report: {report_path(plan.table, each.record.token, 'md')}")
    if not done.done:
        click.echo("There was nothing to take.")
