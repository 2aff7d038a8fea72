"""Formatting, lint and types, held by the tools that `pyproject.toml` configures."""

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
COMMANDS = {
    "ruff check": ["-m", "ruff", "check", "--quiet", "."],
    "ruff format": ["-m", "ruff", "format", "--check", "--quiet", "."],
    "mypy": ["-m", "mypy", "--no-error-summary"],
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_the_tree_passes(command: list[str]) -> None:
    done = subprocess.run([sys.executable, *command], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
