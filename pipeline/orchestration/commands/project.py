"""The definitions of the project that a command runs in, from the module that its `pyproject.toml` names."""

from __future__ import annotations

from pathlib import Path

from dagster import AssetsDefinition, RepositoryDefinition

# Dagster's own resolution of a module's name to its definitions; not public.
from dagster._core.definitions.reconstruct import repository_def_from_target_def
from dagster._core.workspace.autodiscovery import loadable_targets_from_python_module


def repositories(module: str, folder: Path) -> list[RepositoryDefinition]:
    """The repositories of a module's definitions."""
    targets = loadable_targets_from_python_module(module, str(folder))
    candidates = [repository_def_from_target_def(target.target_definition) for target in targets]
    return [repository for repository in candidates if repository is not None]


def assets(module: str, folder: Path) -> list[AssetsDefinition]:
    """The assets of a module's definitions."""
    by_key = [asset for repo in repositories(module, folder) for asset in repo.assets_defs_by_key.values()]
    return list({id(asset): asset for asset in by_key}.values())
