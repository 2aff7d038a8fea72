"""`pipeline materialize`: a selection of assets in one Dagster run, with its progress and its result."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import click

from pipeline.cli.child import FINGERPRINT_DIGITS, StepProgress, reports, without_event
from pipeline.cli.options import WIDE
from pipeline.cli.output import count, print_json, print_table
from pipeline.delta.storage.options import project_settings
from pipeline.errors import MaterializeError

_SENTENCES = {"run": "Run {run_id}."}


@click.command()
@click.argument("selection")
@click.option("--partition", metavar="KEY", help="The partition to run.")
@click.option("--partition-range", metavar="A...B", help="The partitions from A to B, in one run.")
@click.option("--no-cache", is_flag=True, help="Skip no step, even if its outcome is cached.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document of the run and its results.")
@WIDE
@click.pass_context
def materialize(
    ctx: click.Context,
    selection: str,
    *,
    partition: str | None,
    partition_range: str | None,
    no_cache: bool,
    as_json: bool,
) -> None:
    """Run the assets of SELECTION in Dagster's syntax: names, `group:…`, `upstream+`, several with commas."""
    if partition is not None and partition_range is not None:
        raise click.UsageError("--partition and --partition-range can't be used together")
    settings = project_settings()
    verbose = bool(ctx.find_root().params["verbose"])
    given = {"--partition": partition, "--partition-range": partition_range}
    arguments = [f"{option}={value}" for option, value in given.items() if value is not None]
    arguments += ["--no-cache"] if no_cache else []
    module = "pipeline.orchestration.commands.materialize"
    child_reports = reports(module, [*arguments, "--", selection], settings, verbose=verbose, failed=_failed)
    with closing(child_reports) as lines:
        shown = StepProgress(_SENTENCES, quiet=verbose).follow(lines)
    run_id = next(report["run_id"] for report in shown if report["event"] == "run")
    results = [without_event(report) for report in shown if report["event"] == "result"]
    if as_json:
        print_json({"run_id": run_id, "assets": results})
    else:
        _print_results(results)


def _failed(reason: str, hint: str) -> MaterializeError:
    return MaterializeError(reason=reason, hint=hint)


def _print_results(results: list[dict[str, Any]]) -> None:
    print_table(
        ("dataset", "rows written", "partitions", "version", "fingerprint", "checks", "seconds"),
        [
            (
                result["dataset"],
                count(result["rows_written"]),
                str(result["partitions"] or "-"),
                _version(result),
                (result["fingerprint"] or "-")[:FINGERPRINT_DIGITS],
                _checks(result),
                "-" if result["seconds"] is None else f"{result['seconds']:.1f}",
            )
            for result in results
        ],
        right=("rows written", "partitions", "version", "seconds"),
    )


def _version(result: dict[str, Any]) -> str:
    """The version of the table; marked as cached if the step was skipped, as unchanged if it had nothing to commit."""
    if result["version"] is None:
        return "-"
    mark = " (cached)" if result["cached"] else "" if result["committed"] else " (unchanged)"
    return f"{result['version']}{mark}"


def _checks(result: dict[str, Any]) -> str:
    failed, passed = result["checks_failed"], result["checks_passed"]
    if failed:
        return f"failed: {', '.join(failed)}"
    return f"{len(passed)} passed" if passed else "-"
