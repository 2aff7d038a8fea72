"""`pipeline registry`: the declared datasets, read from the declarations alone."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import click

from pipeline.cli.options import WIDE
from pipeline.cli.output import print_json, print_table
from pipeline.dataset import Dataset, Registry, load_datasets
from pipeline.dataset.expectations import expectation_name
from pipeline.delta.storage.options import project_settings
from pipeline.settings import Settings


def declared(settings: Settings) -> Registry:
    """The datasets that the settings name. Their module may be in the project's folder.

    Raises:
        SettingsError: the settings name no collection of datasets.
    """
    folder = str(settings.project)
    # Dagster does the same before it loads a module. A console script has its own folder there, not the project's.
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return Registry(load_datasets(settings.datasets), catalog=settings.catalog)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document with all fields of every declaration.")
@WIDE
def registry(as_json: bool) -> None:
    """Show the declared datasets, upstream first. No Spark is started and no table is opened."""
    settings = project_settings()
    documents = [declaration(dataset, settings.root) for dataset in declared(settings)]
    if as_json:
        print_json(documents)
        return
    print_table(
        ("dataset", "write", "partitioned by", "keys", "reads", "checks", "columns", "fingerprint"),
        [
            (
                document["name"],
                document["write"]["mode"],
                ", ".join(document["partition_by"]) or "-",
                ", ".join(document["keys"]) or "-",
                ", ".join(document["reads"]) or "-",
                ", ".join(check["name"] for check in document["checks"]) or "-",
                str(len(document["columns"])),
                document["fingerprint"][:12],
            )
            for document in documents
        ],
        right=("columns",),
    )


def declaration(dataset: Dataset, root: str) -> dict[str, Any]:
    """A declaration as a JSON document."""
    return {
        "name": dataset.name,
        "asset_key": list(dataset.asset_key),
        "location": dataset.location(root),
        "table_name": dataset.table_name,
        "description": dataset.description,
        "group": dataset.group,
        "owners": list(dataset.owners),
        "tags": dict(dataset.tags),
        "partition_by": list(dataset.partition_by),
        "write": {"mode": type(dataset.write).__name__.lower()} | asdict(dataset.write),
        "keys": list(dataset.keys),
        "reads": list(dataset.reads),
        "checks": [asdict(check) for check in dataset.checks],
        "not_null": [asdict(constraint) for constraint in dataset.not_null],
        "properties": dict(dataset.properties),
        "change_feed": dataset.change_feed,
        "code_version": dataset.code_version,
        "starts_on_change": dataset.starts_on_change,
        "freshness": _freshness(dataset),
        "schema_check": asdict(dataset.schema_check),
        "expectations": [
            {"name": expectation_name(expectation)} | asdict(expectation) for expectation in dataset.expectations
        ],
        "audit": dataset.audit,
        "row_count": None if dataset.row_count is None else asdict(dataset.row_count),
        "fingerprint": dataset.fingerprint,
        "columns": dataset.schema.jsonValue()["fields"],
    }


def _freshness(dataset: Dataset) -> dict[str, Any] | None:
    """The fields of a freshness declaration. Times are in seconds, under names that end in `_seconds`."""
    if dataset.freshness is None:
        return None
    return {
        f"{name}_seconds" if isinstance(value, timedelta) else name: (
            value.total_seconds() if isinstance(value, timedelta) else value
        )
        for name, value in asdict(dataset.freshness).items()
    }
