"""All datasets that ship, of all subjects: the collection that this project's `pyproject.toml` names."""

from __future__ import annotations

from pipeline.assets.aviation.datasets import datasets as aviation
from pipeline.assets.codegraph.datasets import datasets as codegraph
from pipeline.assets.portfolio.datasets import datasets as portfolio

datasets = (*aviation, *codegraph, *portfolio)
