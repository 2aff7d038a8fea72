"""The `dagster` command, with the project's definitions and its instance found by every subcommand.

Dagster reads `[tool.dagster]` of `pyproject.toml` for most of its subcommands, but those that load a module into their
own process (`asset`, `job execute`) refuse to start without `-m` (dagster 1.13, `_cli/workspace/cli_target.py`), and
some (`run`, `instance`) don't look at a `dagster.yaml` beside them. In a folder that has both files this command names
the module and the instance where the user has named none, and is Dagster's own in all else.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.settings import dagster_module

# By subcommand, how many words it has; only these load definitions into their own process.
_IN_PROCESS: tuple[tuple[str, ...], ...] = (("asset", "materialize"), ("asset", "list"), ("job", "execute"))
_EXECUTING = (("asset", "materialize"), ("job", "execute"))
_POINTERS = ("-m", "--module-name", "-f", "--python-file", "-p", "--package-name", "--autoload-defs-module-name")
_POINTER_VARIABLES = ("DAGSTER_MODULE_NAME", "DAGSTER_PYTHON_FILE", "DAGSTER_PACKAGE_NAME")


def with_module(arguments: Sequence[str], environ: Mapping[str, str], folder: Path) -> list[str]:
    """The arguments with the project's module added, where the subcommand wants one and none is named."""
    given = list(arguments)
    words = next((words for words in _IN_PROCESS if tuple(given[: len(words)]) == words), None)
    if words is None or any(environ.get(name) for name in _POINTER_VARIABLES):
        return given
    if any(argument.split("=", 1)[0] in _POINTERS or argument == "--help" for argument in given):
        return given
    module = dagster_module(folder)
    return given if module is None else [*words, "-m", module, *given[len(words) :]]


def home(environ: Mapping[str, str], folder: Path) -> str | None:
    """What DAGSTER_HOME has to be: as it is set, else the project's root with its `dagster.yaml`."""
    if environ.get("DAGSTER_HOME"):
        return environ["DAGSTER_HOME"]
    return str(folder) if (folder / "dagster.yaml").is_file() and dagster_module(folder) is not None else None


def executes(arguments: Sequence[str]) -> bool:
    """Whether the subcommand runs steps in its own process."""
    return tuple(arguments[:2]) in _EXECUTING and "--help" not in arguments


def main() -> None:
    """What the console runs."""
    from dagster._cli import main as dagster

    sys.argv[1:] = with_module(sys.argv[1:], os.environ, Path.cwd())
    found = home(os.environ, Path.cwd())
    if found is not None:
        os.environ["DAGSTER_HOME"] = found
        if executes(sys.argv[1:]):
            _release_dead()
    dagster()  # type: ignore[no-untyped-call]


def _release_dead() -> None:
    """Where no daemon runs, nobody else gives back what a killed run has held."""
    from dagster import DagsterInstance

    # By its name: it brings pyspark with it, for which no other subcommand should wait.
    pools = importlib.import_module("pipeline.orchestration.pools")
    with DagsterInstance.get() as instance:
        for run_id in pools.release_dead(instance):
            print(f"The process of run {run_id} is gone; its slots are given back.", file=sys.stderr)
