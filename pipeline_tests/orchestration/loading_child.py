"""What loading costs in a process of its own: `python -m pipeline_tests.orchestration.loading_child definitions|help`.

Nothing of the package is imported before the clock runs.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def definitions() -> dict[str, Any]:
    started = time.process_time()
    from pipeline.definitions import defs

    loaded = defs.load_fn() if hasattr(defs, "load_fn") else defs()
    loaded.get_repository_def()
    seconds = time.process_time() - started
    from pyspark import SparkContext

    return {"seconds": seconds, "jvm": SparkContext._gateway is not None}


def help_text() -> dict[str, Any]:
    started = time.process_time()
    from click.testing import CliRunner

    from pipeline.cli import main

    status = CliRunner().invoke(main, ["--help"]).exit_code
    seconds = time.process_time() - started
    heavy = [name for name in ("pyspark", "dagster", "pandas") if name in sys.modules]
    return {"status": status, "seconds": seconds, "heavy": heavy}


if __name__ == "__main__":
    print(json.dumps({"definitions": definitions, "help": help_text}[sys.argv[1]]()))
