"""Run benchmarks, and show what each found beside its target.

    python -m pipeline_tests.benchmarks [NAME ...] [--quick] [--json FILE]

Each benchmark runs in a process of its own, one after the other. Inside one the sides take turns. A figure is worth
something only on a machine that does nothing else: the load before each benchmark is shown.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from pipeline_tests.benchmarks.results import FILE, Result, document, kept
from pipeline_tests.benchmarks.turns import QUICK

FOLDER = Path(__file__).parent
TESTS = ("writes", "sink", "operator", "codegraph")
PROGRAMS: Mapping[str, Sequence[str]] = {"commands": (), "stores": (), "warm_server": ("--runs", "0")}
NAMES = (*TESTS, *PROGRAMS)


def command(name: str) -> list[str]:
    """The command of one benchmark."""
    if name in TESTS:
        file = FOLDER / f"bench_{name}.py"
        return [sys.executable, "-m", "pytest", "-q", "-s", "-m", "full", "-p", "no:cacheprovider", str(file)]
    return [sys.executable, "-m", f"pipeline_tests.benchmarks.bench_{name}", *PROGRAMS[name]]


def machine() -> dict[str, object]:
    """What the figures depend on."""
    packages = {name: version(name) for name in ("dagster", "pyspark", "delta-spark")}
    return {
        "processors": os.cpu_count(), "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(), "system": platform.platform(), "packages": packages,
    }  # fmt: skip


def run(name: str, *, quick: bool) -> tuple[list[Result], int]:
    """The results of one benchmark, and the status of its process."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.jsonl"
        environment = os.environ | {FILE: str(file)} | ({QUICK: "1"} if quick else {})
        done = subprocess.run(command(name), env=environment, check=False, cwd=FOLDER.parent.parent)
        return kept(file), done.returncode


def show(results: Mapping[str, Sequence[Result]]) -> None:
    """Print the table."""
    table = Table("benchmark", "what", "found", "target", "", "medians")
    for name, found in results.items():
        for one in found:
            target = "" if one.at_most is None else f"{one.at_most:g}"
            verdict = {None: "", True: "met", False: "NOT met"}[one.is_met]
            spread = "" if one.spread is None else f" (quartiles {one.spread:.2f})"
            table.add_row(name, one.title, f"{one.value:.2f} {one.unit}{spread}", target, verdict, one.details)
    Console(width=200).print(table)


def main() -> None:
    """Run the named benchmarks, or all. The status is 1 if one fails; to miss a target is no failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all without one")
    parser.add_argument("--quick", action="store_true", help="a quarter of the rounds, which only shows that they run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results and the machine to a file too")
    given = parser.parse_args()
    unknown = sorted(set(given.names) - set(NAMES))
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}")
    results, failed = {}, []
    for name in given.names or NAMES:
        print(f"--- {name}, load {os.getloadavg()[0]:.1f}", flush=True)
        results[name], status = run(name, quick=given.quick)
        if status:
            failed.append(name)
    show(results)
    if given.json is not None:
        given.json.write_text(document(results, machine()) + "\n", encoding="utf-8")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
