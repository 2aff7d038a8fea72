"""An asset of a thousand rows, materialized by a whole process, beside peers.

    python -m pipeline_tests.benchmarks peers

The peers are an IO manager of bare delta-spark, and those of dagster-deltalake-pandas and dagster-delta, which write by
delta-rs and need no JVM. They have an environment of their own, with the same version of Dagster. Each side is a
process from its start to its end: `dagster asset materialize`, and `pipeline materialize` beside it. The start of the
warm server is in the first round, which does not count.

Targets: with a warm server as fast as the naive IO manager and within 1.25 of dagster-deltalake-pandas; embedded as
fast as the naive one; `pipeline materialize` within 0.8 of Dagster's own command.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import deltalake

from pipeline.delta.server.warm import warm_servers
from pipeline.settings import load_settings
from pipeline_tests.benchmarks.environments import environment
from pipeline_tests.benchmarks.results import compared, measured
from pipeline_tests.benchmarks.turns import all_in_turns, is_quick, warm
from pipeline_tests.end_to_end.conftest import PROJECTS, REPOSITORY, ProjectFolder

# The first round creates the tables and starts the warm server.
ROUNDS, WARMING = (1, 0) if is_quick() else (9, 1)
ROWS = 1_000
PEERS = Path(__file__).parent / "peers"
DELTALAKE, DELTA = "dagster-deltalake-pandas", "dagster-delta"
OURS_WARM, OURS_EMBEDDED, NAIVE = "ours, warm server", "ours, embedded", "naive, embedded"
COMMAND_WARM, COMMAND_EMBEDDED = "pipeline materialize, warm server", "pipeline materialize, embedded"
SCRIPT_OURS, SCRIPT_DELTALAKE = "script with write, warm server", "script with deltalake"
# Relative to the project's folder.
TABLES = (
    ".pipeline/tables/small", ".pipeline/naive", ".pipeline/peers/by_deltalake", ".pipeline/peers/by_delta",
)  # fmt: skip
# Each asset of one table; with a variable CI there would be no warm server.
WARM, EMBEDDED = {"PIPELINE_WARM": "auto", "CI": ""}, {"PIPELINE_WARM": "never"}
PROJECT = '[tool.dagster]\nmodule_name = "outside"\n\n[tool.pipeline]\n'


def requirements() -> list[str]:
    """The peers, with the versions that belong to the Dagster of this environment."""
    dagster, libraries = version("dagster"), version("dagster-pyspark")
    return [
        f"dagster=={dagster}", f"{DELTALAKE}=={libraries}", f"{DELTA}==0.5.9", f"deltalake=={version('deltalake')}",
        f"pyarrow=={version('pyarrow')}",
    ]  # fmt: skip


def project_in(folder: Path, cache: Path) -> ProjectFolder:
    """A project with our asset, the naive one and those of the peers."""
    shutil.copy(REPOSITORY / "dagster.yaml", folder)
    shutil.copy(PROJECTS / "small.py", folder / "outside.py")
    for file in (PROJECTS / "naive.py", *PEERS.glob("*.py")):
        shutil.copy(file, folder)
    (folder / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    return ProjectFolder(folder=folder, cache=cache)


class Sides:
    """The processes. `inside` has the seconds that the scripts themselves have measured."""

    def __init__(self, project: ProjectFolder, programs: Path) -> None:
        self.project, self.programs = project, programs
        self.inside: dict[str, list[float]] = {SCRIPT_OURS: [], SCRIPT_DELTALAKE: []}

    def ours(self, name: str, *arguments: str, **environment: str) -> str:
        done = self.project.command(name, *arguments, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def theirs(self, name: str, *arguments: str) -> str:
        """A program of the peers' environment, which sees no package of ours."""
        folder = self.project.folder
        variables = self.project.variables() | {"PYTHONPATH": "", "DAGSTER_HOME": str(folder)}
        done = subprocess.run(
            [str(self.programs / name), *arguments], cwd=folder, env=variables, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def dagster(self, module: str, name: str, **environment: str) -> None:
        self.ours("dagster", "asset", "materialize", "-m", module, "--select", name, **environment)

    def peer(self, module: str, name: str) -> None:
        self.theirs("dagster", "asset", "materialize", "-m", module, "--select", name)

    def append_by_ours(self) -> None:
        # A script shares the warm server only if it is told to.
        found = self.ours("python3", "append_by_ours.py", **WARM | {"PIPELINE_WARM": "require"})
        self.inside[SCRIPT_OURS].append(float(found))

    def append_by_deltalake(self) -> None:
        found = self.theirs("python", "append_by_deltalake.py")
        self.inside[SCRIPT_DELTALAKE].append(float(found))

    def all(self) -> dict[str, Callable[[int], None]]:
        return {
            OURS_WARM: lambda _: self.dagster("outside", "small", **WARM),
            COMMAND_WARM: lambda _: void(self.ours("pipeline", "materialize", "small", **WARM)),
            DELTALAKE: lambda _: self.peer("deltalake_pandas", "peers/by_deltalake"),
            DELTA: lambda _: self.peer("delta_arrow", "peers/by_delta"),
            SCRIPT_OURS: lambda _: self.append_by_ours(),
            SCRIPT_DELTALAKE: lambda _: self.append_by_deltalake(),
            NAIVE: lambda _: self.dagster("naive", "rows", **EMBEDDED),
            OURS_EMBEDDED: lambda _: self.dagster("outside", "small", **EMBEDDED),
            COMMAND_EMBEDDED: lambda _: void(self.ours("pipeline", "materialize", "small", **EMBEDDED)),
        }


def void(_: object) -> None:
    """Nothing, whatever is given."""


def report(found: dict[str, list[float]], inside: dict[str, list[float]]) -> None:
    """Each side alone, the ratios with their targets, and the scripts."""
    for name, seconds in warm(found, WARMING).items():
        measured(f"a process that materializes {ROWS} rows: {name}" if "script" not in name else name, seconds, "s")
    targets = (
        (OURS_WARM, NAIVE, 1.0), (OURS_WARM, DELTALAKE, 1.25), (OURS_WARM, DELTA, None), (OURS_EMBEDDED, NAIVE, 1.0),
        (COMMAND_WARM, OURS_WARM, 0.8), (COMMAND_EMBEDDED, OURS_EMBEDDED, 0.8),
    )  # fmt: skip
    for ours, other, at_most in targets:
        compared(f"{ours}, against {other}", {ours: found[ours], other: found[other]}, at_most, left_out=WARMING)
    compared(f"append of {ROWS} rows and a read inside a script, ours warm against deltalake", inside, left_out=WARMING)


def main() -> None:
    cache = load_settings().spark.cache
    programs = environment(cache, "peers", requirements())
    with tempfile.TemporaryDirectory() as name:
        project = project_in(Path(name), cache)
        sides = Sides(project, programs)
        try:
            found = all_in_turns(ROUNDS, sides.all())
            assert warm_servers(load_settings(start=project.folder)), "no warm server was used"
        finally:
            project.command("pipeline", "spark", "stop")
        for table in TABLES:
            assert deltalake.DeltaTable(project.folder / table).count() == ROWS, table
        report(found, sides.inside)


if __name__ == "__main__":
    main()
