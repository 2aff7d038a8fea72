"""Environments of their own for peers, so that the project's own one keeps its packages.

Each is made once, in the cache folder of the project beside the jars, with exactly the named versions.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

_COMPLETE = "complete"
_DIGEST = 12


def environment(cache: Path, name: str, requirements: Sequence[str]) -> Path:
    """The folder of an environment's programs. If there is none with these requirements and this Python, it is made.

    Raises:
        CalledProcessError: pip can't install the requirements.
    """
    facts = "\n".join([sys.version, *requirements])
    folder = cache / "environments" / f"{name}-{hashlib.sha256(facts.encode()).hexdigest()[:_DIGEST]}"
    if not (folder / _COMPLETE).exists():
        print(f"Making the environment {folder} with {', '.join(requirements)}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *requirements]
        subprocess.run(command, check=True)
        (folder / _COMPLETE).touch()
    return folder / "bin"
