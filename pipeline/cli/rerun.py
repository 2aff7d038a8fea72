"""`pipeline rerun`: a run once more on the versions that it has read, and whether it makes the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import click

from pipeline.cli.child import StepProgress, reports, without_event
from pipeline.cli.differences import print_differences
from pipeline.cli.options import WIDE
from pipeline.cli.output import count, print_json, print_table
from pipeline.delta.storage.options import project_settings
from pipeline.errors import RerunError, RerunRefusedError, RunNotFoundError

_MODULE = "pipeline.orchestration.commands.rerun"
_SENTENCES = {"run": "Run {original} is repeated as run {run_id} in {folder}."}


@click.command()
@click.argument("run")
@click.option("--apply", "applied", is_flag=True, help="Repeat the run; without it only the plan is shown.")
@click.option("--keep", is_flag=True, help="Keep the tables of the repeated run in their folder below _reruns.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document of the plan and its results.")
@WIDE
@click.pass_context
def rerun(ctx: click.Context, run: str, applied: bool, keep: bool, as_json: bool) -> None:
    """Repeat a run on the versions that it has read, beside the tables, and compare the rows.

    The beginning of the run's id is enough. No table of the project is changed. The exit status is 1 if the run can't
    be repeated, or if a table has other rows.
    """
    settings = project_settings()
    verbose = bool(ctx.find_root().params["verbose"])
    arguments = [*(["--apply"] if applied else []), *(["--keep"] if keep else []), "--", run]
    with closing(reports(_MODULE, arguments, settings, verbose=verbose, failed=_failed)) as lines:
        shown = StepProgress(_SENTENCES, quiet=verbose).follow(_planned(lines, prints=not as_json))
    plan = next(report["plan"] for report in shown if report["event"] == "plan")
    results = [without_event(report) for report in shown if report["event"] == "result"]
    differences = [one for report in shown if report["event"] == "manifest" for one in report["differences"]]
    if as_json:
        run_id = next((report["run_id"] for report in shown if report["event"] == "run"), None)
        done = None if run_id is None else {"run_id": run_id, "tables": results, "manifest_diff": differences}
        print_json({"plan": plan, "rerun": done})
    if plan["problems"]:
        raise RerunRefusedError(run=plan["run_id"], problems=tuple(plan["problems"]))
    if not as_json:
        _print_end(plan["run_id"], results, differences, applied=applied)
    if not all(result["equal"] for result in results):
        ctx.exit(1)


def _failed(reason: str, hint: str) -> RerunError:
    return RerunError(reason=reason, hint=hint)


def _planned(lines: Iterator[dict[str, Any]], *, prints: bool) -> Iterator[dict[str, Any]]:
    """The reports of the child. The plan is printed as soon as it is there.

    Raises:
        RunNotFoundError: no run, or more than one, has such an id.
    """
    for report in lines:
        if report["event"] == "unknown":
            raise RunNotFoundError(run=report["run"], root=report["root"], near=tuple(report["near"]))
        if report["event"] == "plan" and prints:
            _print_plan(report["plan"])
        yield report


def _print_plan(plan: Mapping[str, Any]) -> None:
    print_table(
        ("dataset", "partitions", "operation", "version", "begins with", "reads", "code version"),
        [
            (
                table["dataset"],
                table["partitions"] or "-",
                table["operation"],
                str(table["version"]),
                "no rows" if table["before"] is None else f"version {table['before']}",
                ", ".join(map(_source, table["sources"])) or "-",
                table["code_version"] or "-",
            )
            for table in plan["tables"]
        ],
        right=("version",),
    )
    for line in _remarks(plan):
        click.echo(line)


def _source(source: Mapping[str, Any]) -> str:
    """A source with its version, and its newest one if that is another. Of changes, also where they begin."""
    changes = source["changes"]
    read = "" if changes is None else f" ({changes['kind']}{_after(changes['after'])})"
    newest = source["newest"]
    now = "" if newest == source["version"] else f" (now {'gone' if newest is None else newest})"
    return f"{source['dataset']}@{source['version']}{read}{now}"


def _after(version: int | None) -> str:
    return "" if version is None else f" after {version}"


def _remarks(plan: Mapping[str, Any]) -> Iterator[str]:
    for name, versions in plan["environment"].items():
        yield f"{name}: {versions['then']} then, {versions['now']} now"
    for table in plan["tables"]:
        yield from (f"{table['dataset']}: {difference}" for difference in table["differences"])
        yield from (f"{table['dataset']}: not pinned: {one}" for one in table["unpinned"])
    if plan["not_repeated"]:
        yield f"Not repeated, since they are no tables of the project: {', '.join(plan['not_repeated'])}"


def _print_end(
    run_id: str, results: list[dict[str, Any]], differences: list[dict[str, Any]], *, applied: bool
) -> None:  # fmt: skip
    if not applied:
        click.echo(f"Nothing was started. To repeat it: pipeline rerun {run_id} --apply")
        return
    print_table(
        ("dataset", "version", "rows then", "rows now", "result", "seconds"),
        [
            (
                result["dataset"],
                str(result["version"]),
                count(result["rows"]),
                count(result["rows_now"]),
                "rows are equal" if result["equal"] else "rows differ",
                "-" if result["seconds"] is None else f"{result['seconds']:.1f}",
            )
            for result in results
        ],
        right=("version", "rows then", "rows now", "seconds"),
    )
    for result in results:
        name = result["dataset"]
        for line in result["differences"]:
            click.echo(f"{name}: {line}")
        for line in result["reasons"]:
            click.echo(f"{name}: may be the reason: {line}")
        if result["not_compared"]:
            click.echo(f"{name}: not compared: {', '.join(result['not_compared'])}, which Delta numbers")
    click.echo()
    print_differences(differences)
