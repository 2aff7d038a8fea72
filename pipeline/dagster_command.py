"""The `dagster` command, with the project's definitions and its instance found by every subcommand.

Dagster reads `[tool.dagster]` of `pyproject.toml` for most of its subcommands, but those that load a module into their
own process (`asset`, `job execute`) refuse to start without `-m` (dagster 1.13, `_cli/workspace/cli_target.py`), and
some (`run`, `instance`) don't look at a `dagster.yaml` beside them. In a folder that has both files this command names
the module and the instance where the user has named none, and is Dagster's own in all else.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from pipeline.settings import dagster_module

# By subcommand, how many words it has; only these load definitions into their own process.
_IN_PROCESS: tuple[tuple[str, ...], ...] = (("asset", "materialize"), ("asset", "list"), ("job", "execute"))
_EXECUTING = (("asset", "materialize"), ("job", "execute"))
_POINTERS = ("-m", "--module-name", "-f", "--python-file", "-p", "--package-name", "--autoload-defs-module-name")
# Objects that are made before the collector looks at the youngest; Python's own number is 700.
_COLLECT_EVERY = 100_000
# A whole command against a warm server takes less than that if nobody is in its way.
_LOOK_SECONDS = 8.0
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
    _collect_seldom()
    from dagster._cli import main as dagster

    sys.argv[1:] = with_module(sys.argv[1:], os.environ, Path.cwd())
    found = home(os.environ, Path.cwd())
    if found is not None:
        os.environ["DAGSTER_HOME"] = found
    may_wait = found is not None and executes(sys.argv[1:])
    with _dead_released() if may_wait else nullcontext():
        dagster()  # type: ignore[no-untyped-call]


def _collect_seldom() -> None:
    """Dagster makes a million objects that live as long as the process: to look through them costs a third of it."""
    gc.set_threshold(_COLLECT_EVERY)
    atexit.register(gc.freeze)


@contextmanager
def _dead_released() -> Iterator[None]:
    """Inside the block, give back what killed runs have held: where no daemon runs, nobody else does."""
    ended = threading.Event()
    watcher = threading.Thread(target=_release_dead, args=(ended,), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _release_dead(ended: threading.Event) -> None:
    """A command that ends sooner than the first look has waited for nobody, and pays nothing for it."""
    if ended.wait(_LOOK_SECONDS):
        return
    from dagster import DagsterInstance

    # By its name: it brings pyspark with it, for which no other subcommand should wait.
    pools = importlib.import_module("pipeline.orchestration.pools")
    with DagsterInstance.get() as instance:
        while True:
            for run_id in pools.release_dead(instance):
                print(f"The process of run {run_id} is gone; its slots are given back.", file=sys.stderr)
            if ended.wait(_LOOK_SECONDS):
                return
