"""The demonstration: real flights through the aviation assets, in one Dagster run of the project's own instance.

It runs as a child process, `python -m pipeline.assets.demo --days N`, with `DAGSTER_HOME` set. Here belong the run and
its report, one JSON document a line on standard output. All other output goes to standard error. The display of a
report belongs to the command line.
"""

from __future__ import annotations

import argparse
import sys
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from dagster import AssetKey, DagsterInstance, ExecuteInProcessResult
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG
from pyspark.sql import SparkSession

from pipeline.assets.aviation import assets as aviation
from pipeline.assets.aviation.landing import DAYS, prepare_landing
from pipeline.assets.portfolio.landing import prepare_prices
from pipeline.dataset import Dataset, Registry
from pipeline.delta.read.version import ReadOptions, read
from pipeline.delta.server.warm import open_project_session
from pipeline.delta.storage.options import project_settings
from pipeline.delta.table.open_table import require_table
from pipeline.errors import DemoError
from pipeline.orchestration import build_definitions
from pipeline.orchestration.commands.reports import Report, child, failure_of, step_key, step_listener
from pipeline.settings import Settings


def demonstrate(settings: Settings, days: int, report: Report) -> None:
    """Prepare the landing folder, materialize every aviation asset for its first days, and report each table.

    Raises:
        DemoError: the landing folder can't be prepared, or the run failed.
    """
    registry = Registry(aviation.datasets)
    # One day more than the run covers, so that the next partition can be materialized by hand.
    folder = _local_folder(settings.landing)
    landing = prepare_landing(folder, min(days + 1, DAYS))
    written = len(landing.written) + len(prepare_prices(folder).written)
    first, last, following = (landing.flights[number].stem for number in (0, days - 1, -1))
    report({"event": "landing", "folder": str(landing.folder), "files_written": written})
    seconds: dict[str, float] = {}
    names = {step_key(AssetKey(dataset.asset_key)): dataset.name for dataset in registry}
    with DagsterInstance.get() as instance:
        run_id = str(uuid.uuid4())
        instance.add_event_listener(run_id, step_listener(names, seconds, report))
        report({"event": "run", "run_id": run_id, "first_day": first, "last_day": last, "next_day": following})
        result = _run(settings, registry, instance, run_id, (first, last))
    if not result.success:
        raise DemoError(reason=f"Run {run_id} failed: {failure_of(result)}")
    session = open_project_session(settings.spark)
    for dataset in registry:
        report(_table(session, dataset, settings) | {"seconds": seconds[dataset.name]})


def _run(
    settings: Settings, registry: Registry, instance: DagsterInstance, run_id: str, days: tuple[str, str]
) -> ExecuteInProcessResult:
    """One run over all days, in this process: its steps and the report share one running session."""
    resources = {"landing": aviation.LandingFolder(uri=settings.landing)}
    built = build_definitions(settings, datasets=registry, assets=aviation.assets, resources=resources)
    return built.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance,
        run_id=run_id,
        asset_selection=[AssetKey(dataset.asset_key) for dataset in registry],
        tags={ASSET_PARTITION_RANGE_START_TAG: days[0], ASSET_PARTITION_RANGE_END_TAG: days[1]},
        raise_on_error=False,
    )


def _local_folder(uri: str) -> Path:
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file"):
        raise DemoError(
            reason=f"The demonstration writes its files to a local landing folder, but PIPELINE_LANDING is {uri}.",
            hint="Unset PIPELINE_LANDING, or set it to a local folder.",
        )
    return Path(unquote(parts.path)) if parts.scheme else Path(uri)


def _table(session: SparkSession, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    """The table's current content. Without partition columns `partitions` is None. Two small Spark jobs."""
    table = dataset.at(settings.root)
    state = require_table(session, table)
    frame = read(session, table, ReadOptions(version=state.version)).frame
    return {
        "event": "table",
        "dataset": dataset.name,
        "rows": frame.count(),
        "partitions": frame.select(*dataset.partition_by).distinct().count() if dataset.partition_by else None,
        "version": state.version,
        "fingerprint": state.fingerprint,
    }


def main(arguments: list[str]) -> int:
    """Run the child process. Return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.assets.demo", description=demonstrate.__doc__)
    parser.add_argument("--days", type=int, default=7, help=f"1 to {DAYS}")
    days = parser.parse_args(arguments).days

    def work(report: Report) -> bool:
        demonstrate(project_settings(), days, report)
        return True

    return child(work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
