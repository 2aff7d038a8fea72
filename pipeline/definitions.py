"""The Dagster definitions of the subjects that ship.

`workspace.yaml` and `pyproject.toml` name this module. A project of your own has a similar module, which calls
`build_definitions` with its own datasets and assets and imports none of these.
"""

from __future__ import annotations

import os

from dagster import Definitions, definitions

from pipeline.assets.aviation import assets as aviation
from pipeline.assets.aviation.automation import daily_sightings, flights_arrived
from pipeline.assets.codegraph import assets as codegraph
from pipeline.assets.portfolio import assets as portfolio
from pipeline.assets.shipped import datasets
from pipeline.orchestration import build_definitions
from pipeline.settings import Settings, load_settings


def shipped_definitions(settings: Settings) -> Definitions:
    """The definitions of every subject that ships.

    Raises:
        SettingsError: the settings switch on a schedule or sensor that these definitions don't have.
    """
    landing = aviation.LandingFolder(uri=settings.landing)
    source_tree = codegraph.SourceTree.in_environment(os.environ, settings.project)
    return build_definitions(
        settings,
        datasets=datasets,
        assets=[*aviation.assets, *codegraph.assets, *portfolio.assets],
        sensors=[flights_arrived(landing, settings.running)],
        schedules=[daily_sightings(settings.running)],
        resources={"landing": landing, "source_tree": source_tree},
    )


@definitions
def defs() -> Definitions:
    """The definitions that `dagster` and `dg` load."""
    return shipped_definitions(load_settings())
