"""The `dagster` command, with the project's definitions found by every subcommand.

Dagster reads `[tool.dagster]` of `pyproject.toml` for most of its subcommands, but those that load a module into their
own process (`asset`, `job execute`) refuse to start without `-m` (dagster 1.13, `_cli/workspace/cli_target.py`). This
command gives them the module that `[tool.dagster]` names, where no other was given, and is Dagster's own in all else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.settings import dagster_module

# By subcommand, how many words it has; only these load definitions into their own process.
_IN_PROCESS: tuple[tuple[str, ...], ...] = (("asset", "materialize"), ("asset", "list"), ("job", "execute"))
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


def main() -> None:
    """What the console runs."""
    from dagster._cli import main as dagster

    sys.argv[1:] = with_module(sys.argv[1:], os.environ, Path.cwd())
    dagster()  # type: ignore[no-untyped-call]
