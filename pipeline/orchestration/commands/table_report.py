"""What was just done to tables, told to the project's Dagster instance at once.

Run as a child process of the command line in the project's folder, with `DAGSTER_HOME` set and the names of datasets as
arguments. What a commit means to Dagster is `foreign`'s. If nobody runs this, the sensor `table_versions` tells the
same later.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

from dagster import DagsterInstance

from pipeline.orchestration.automation.foreign import asset_tables, newest_unreported
from pipeline.orchestration.commands.project import assets
from pipeline.orchestration.dataset_asset import IO_MANAGER
from pipeline.settings import dagster_module, load_settings


def report(names: Collection[str], folder: Path, instance: DagsterInstance) -> int:
    """Report the newest commits of these tables that the instance does not know; how many materializations they are.

    A table that is no asset of the project's definitions is passed over.
    """
    module = dagster_module(folder)
    if module is None:
        return 0
    root = load_settings(start=folder).root
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
    """What the child process runs."""
    with DagsterInstance.get() as instance:
        report(sys.argv[1:], Path.cwd(), instance)


if __name__ == "__main__":
    main()
