"""A project whose datasets and assets a test sets."""

from __future__ import annotations

from dagster import AssetsDefinition, Definitions, definitions

from pipeline.dataset import Dataset
from pipeline.orchestration import build_definitions
from pipeline.settings import load_settings

datasets: tuple[Dataset, ...] = ()
assets: tuple[AssetsDefinition, ...] = ()


@definitions
def defs() -> Definitions:
    return build_definitions(load_settings(), datasets=datasets, assets=assets)
