"""Run benchmarks, and show what each found beside its target.

    python -m pipeline_tests.benchmarks [NAME ...] [--quick] [--json FILE] [--markdown FILE]

Each benchmark runs in a process of its own or in several, one after the other. Inside one the sides take turns. A
figure is worth something only on a machine that does nothing else: the load before each benchmark is shown.
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

from pipeline_tests.benchmarks.results import (
    BEGIN,
    END,
    FILE,
    Result,
    document,
    kept,
    kept_in_document,
    page_with,
)
from pipeline_tests.benchmarks.turns import QUICK

FOLDER = Path(__file__).parent
SLOPES = FOLDER / "slopes"
TESTS = ("writes", "sink", "operator", "codegraph")
PROGRAMS: Mapping[str, Sequence[str]] = {"commands": (), "stores": (), "warm_server": ("--runs", "0"), "peers": ()}
# Of `slopes`, what needs a process without a JVM, or with a JVM of its own.
SLOPE_PROGRAMS = ("show_of_many", "bounded_memory")
NAMES = (*TESTS, *PROGRAMS, "slopes")


def commands(name: str) -> list[list[str]]:
    """The commands of one benchmark."""
    if name == "slopes":
        programs = [[sys.executable, "-m", f"pipeline_tests.benchmarks.slopes.{part}"] for part in SLOPE_PROGRAMS]
        return [*programs, _tests(*sorted(SLOPES.glob("bench_*.py")))]
    if name in TESTS:
        return [_tests(FOLDER / f"bench_{name}.py")]
    return [[sys.executable, "-m", f"pipeline_tests.benchmarks.bench_{name}", *PROGRAMS[name]]]


def _tests(*files: Path) -> list[str]:
    options = ("-q", "-s", "-m", "full", "-p", "no:cacheprovider")
    return [sys.executable, "-m", "pytest", *options, *map(str, files)]


def machine() -> dict[str, object]:
    """What the figures depend on."""
    system = f"{platform.system()} {platform.machine()}"
    packages = {name: version(name) for name in ("dagster", "pyspark", "delta-spark")}
    return {
        "processors": os.cpu_count(), "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(), "system": system, "packages": packages,
    }  # fmt: skip


def run(name: str, *, quick: bool) -> tuple[list[Result], int]:
    """The results of one benchmark, and the first status of its processes that is not 0."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.jsonl"
        environment = os.environ | {FILE: str(file)} | ({QUICK: "1"} if quick else {})
        statuses = [
            subprocess.run(command, env=environment, check=False, cwd=FOLDER.parent.parent).returncode
            for command in commands(name)
        ]
        return kept(file), next(filter(None, statuses), 0)


def show(results: Mapping[str, Sequence[Result]]) -> None:
    """Print the table."""
    table = Table("benchmark", "what", "found", "target", "", "medians")
    for name, found in results.items():
        for one in found:
            table.add_row(name, *one.cells)
    Console(width=200).print(table)


def main() -> None:
    """Run the named benchmarks, or all. The status is 1 if one fails; to miss a target is no failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all without one")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller tables, to see that they run")
    parser.add_argument(
        "--json", type=Path, metavar="FILE",
        help="write the results and the machine to a file too, which keeps those of benchmarks that don't run now",
    )  # fmt: skip
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE",
        help=f"write the same results as tables into a page, between {BEGIN!r} and {END!r}",
    )  # fmt: skip
    given = parser.parse_args()
    unknown = sorted(set(given.names) - set(NAMES))
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}")
    results, failed = {} if given.json is None else kept_in_document(given.json, machine()), []
    for name in given.names or NAMES:
        print(f"--- {name}, load {os.getloadavg()[0]:.1f}", flush=True)
        results[name], status = run(name, quick=given.quick)
        if status:
            failed.append(name)
    results = {name: results[name] for name in NAMES if name in results}
    show(results)
    if given.json is not None:
        given.json.write_text(document(results, machine()) + "\n", encoding="utf-8")
    if given.markdown is not None:
        given.markdown.write_text(page_with(given.markdown, results, machine()), encoding="utf-8")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
