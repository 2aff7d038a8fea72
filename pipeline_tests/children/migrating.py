"""A migration in a process of its own that is killed at one of its steps.

Run as `python -m pipeline_tests.children.migrating REMOTE SOURCE LOCATION MODE STEP`; STEP is one of `STEPS`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.delta.migrate import convert as convert_module
from pipeline.delta.migrate import copy as copy_module
from pipeline.delta.migrate.plan import Mode, Target, plan_migration
from pipeline.delta.spark.session import open_session
from pipeline.settings import SparkSettings

# By step: the module and the function before which the process is killed, in the mode `copy`.
STEPS = {
    "record": (copy_module, "write_record"),
    "write": (copy_module, "write"),
    "verification": (copy_module, "compare"),
    "report": (copy_module, "to_json"),
    "seal": (copy_module, "seal"),
}
CONVERSION_STEPS = {
    "conversion": (convert_module, "_converted"),
    "verification": (copy_module, "compare"),
    "seal": (copy_module, "seal"),
}


def main(remote: str, source: str, location: str, mode: Mode, step: str) -> None:
    session = open_session(SparkSettings(master="local[2]", remote=remote, cache=Path(location)))
    module, name = (STEPS if mode == "copy" else CONVERSION_STEPS)[step]

    def kill(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    pytest.MonkeyPatch().setattr(module, name, kill)
    plan = plan_migration(source, Target(name="t", location=location), mode=mode)
    (copy_module.copy if mode == "copy" else convert_module.convert)(session, plan, "killed")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], "copy" if sys.argv[4] == "copy" else "in-place", sys.argv[5])
