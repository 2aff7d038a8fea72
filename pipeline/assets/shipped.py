"""Every dataset that ships, of all subjects; what definitions and command line read where a project names none."""

from __future__ import annotations

from pipeline.assets import aviation_datasets, codegraph_datasets, portfolio_datasets

datasets = (*aviation_datasets.datasets, *codegraph_datasets.datasets, *portfolio_datasets.datasets)
