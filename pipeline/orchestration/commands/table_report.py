"""The immediate report of a command's commits to the project's Dagster instance.

The command line runs it as a child process in the project's folder, with `DAGSTER_HOME` set and the datasets' names as
arguments. The meaning of a commit for Dagster belongs to `foreign`. Without this report, the sensor `table_versions`
reports the same later.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

from dagster import DagsterInstance

from pipeline.delta.storage.options import project_settings
from pipeline.orchestration.automation.foreign import asset_tables, newest_unreported
from pipeline.orchestration.commands.project import assets
from pipeline.orchestration.dataset_asset import IO_MANAGER
from pipeline.settings import dagster_module


def report(names: Collection[str], folder: Path, instance: DagsterInstance) -> int:
    """Report the newest commits of these tables that are not reported yet. Returns the number of materializations.

    A table that is not an asset of the project's definitions is skipped.
    """
    module = dagster_module(folder)
    if module is None:
        return 0
    root = project_settings(folder).root
    events = [
        event
        for table in asset_tables(assets(module, folder), IO_MANAGER)
        if table.name in names
        for event in newest_unreported(table, root, instance)
    ]
    for event in events:
        instance.report_runless_asset_event(event)
    return len(events)


def main() -> None:
    """Run the child process's work."""
    with DagsterInstance.get() as instance:
        report(sys.argv[1:], Path.cwd(), instance)


if __name__ == "__main__":
    main()
