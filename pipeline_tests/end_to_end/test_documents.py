"""Every command line in the code blocks of README and documentation: run here in one project, or by a named test.

The tier full runs each as a process with a warm server. The quick one runs one of each kind in this process.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import click
import psutil
import pytest
from _pytest.mark import ParameterSet
from pyspark.sql import SparkSession

from pipeline.assets.shipped import datasets
from pipeline.cli import main
from pipeline.settings import SparkSettings
from pipeline_tests.conftest import free_port
from pipeline_tests.documents import commands
from pipeline_tests.end_to_end.conftest import COMMAND_SECONDS, REPOSITORY, SCRIPTS, ProjectFolder

STOP_SECONDS = 60
POLL_SECONDS = 0.3
MATERIALIZE = "dagster asset materialize -m pipeline.definitions --select sightings --partition 2013-01-01"
# By command line, the test that runs it. Where it needs a port, that test gives it one of its own.
ELSEWHERE = {
    'python3 -m venv .venv && .venv/bin/pip install --quiet -e ".[demo]" && .venv/bin/pipeline demo': (
        "test_demo.test_the_demonstration_ends_with_a_table_of_what_is_in_delta"
    ),
    "pipeline materialize sightings --partition-range 2013-01-01...2013-01-07": (
        "test_materialize.test_a_range_is_one_run_with_seven_counts_and_one_commit"
    ),
    "pipeline rerun RUN": "test_rerun.test_an_old_run_is_repeated_with_equal_rows_and_leaves_the_project_as_it_was",
    "pipeline rerun RUN --apply": "test_rerun.test_rows_that_differ_are_told_with_the_input_that_is_not_pinned",
    "dagster dev": "test_documents.test_dagster_dev_shows_the_project_and_nothing_is_left_after_ctrl_c",
    "pipeline up": "test_up.test_the_ui_and_a_warm_spark_come_up_together_and_nothing_is_left_after_ctrl_c",
}
# What starts, names and ends the server of this module's project, or is the shell's own business, or this very run.
AROUND = {
    'python3 -m venv .venv && .venv/bin/pip install --quiet -e ".[dev]" && '
    '.venv/bin/python -m pytest -m "quick and not browser"',
    ".ci/run",
    ". .venv/bin/activate",
    "pipeline spark start",
    "export SPARK_REMOTE=sc://127.0.0.1:15002",
    "pipeline spark status",
    "pipeline spark stop",
    'export DAGSTER_HOME="$PWD"',
    MATERIALIZE,
}


COMMANDS = commands()
# Verbs whose own tests run them as a command; those of the documents follow in the tier full.
DEAR = ("pipeline materialize", "pipeline restore", "pipeline maintain vacuum sightings --apply", "pipeline check")
HERE = [line for line in COMMANDS if line not in ELSEWHERE and line not in AROUND]
# What runs as a process only: it needs another dataset's rows, or takes signals.
SERVED_ONLY = ("pipeline sink", "dagster ")
UPDATE = {"conid": 1, "symbol": "IBM", "quantity": 10, "updated": {"at": "2026-01-31T12:00:00Z", "update_id": 1}}


def kind_of(line: str) -> tuple[str, ...]:
    """The words that name the command."""
    words = shlex.split(line)
    command = main.get_command(click.Context(main), words[1])
    return tuple(words[:3] if isinstance(command, click.Group) else words[:2])


def one_of_each_kind_is_quick(lines: Iterable[str]) -> list[ParameterSet]:
    seen: set[tuple[str, ...]] = set()
    found = []
    for line in lines:
        is_quick = not line.startswith(DEAR) and kind_of(line) not in seen
        seen |= {kind_of(line)} if is_quick else set()
        found.append(pytest.param(line, marks=[] if is_quick else [pytest.mark.exhaustive]))
    return found


@pytest.fixture(scope="module")
def served(project_folder: ProjectFolder) -> Iterator[ProjectFolder]:
    """A project with a day of sightings and a position, and the warm server that the commands start and end."""
    started = project_folder.command("pipeline", "spark", "start", "--port", str(free_port()))
    try:
        assert started.returncode == 0, started.stderr
        (exported,) = re.findall(r"export SPARK_REMOTE=(\S+)", started.stdout)
        tree = REPOSITORY / "pipeline" / "assets"  # small, where the default has hundreds of files
        environment = {"SPARK_REMOTE": exported, "CODEGRAPH_SOURCE_TREE": str(tree)}
        served = ProjectFolder(project_folder.folder, project_folder.cache, environment)
        status = served.command("pipeline", "spark", "status")
        assert (status.returncode, exported in status.stdout) == (0, True)
        for _ in range(2):  # so that there is a version to go back to
            done = served.command(*shlex.split(MATERIALIZE))
            assert done.returncode == 0, done.stderr
        (served.folder / "updates").mkdir()
        (served.folder / "updates" / "one.ndjson").write_text(f"{json.dumps(UPDATE)}\n", encoding="utf-8")
        done = served.command("pipeline", "sink", "run", "positions", "--from", "updates", "--once")
        assert done.returncode == 0, done.stderr
        yield served
    finally:
        stopped = project_folder.command("pipeline", "spark", "stop")
    assert stopped.stdout.startswith("Ended process ")
    assert project_folder.command("pipeline", "spark", "status").returncode == 1


def test_every_command_line_has_its_test() -> None:
    assert set(COMMANDS) == {*ELSEWHERE, *AROUND, *HERE}
    assert {line.split()[0] for line in HERE} <= {"pipeline", "dagster"}
    for named in ELSEWHERE.values():
        module, _, function = named.partition(".")
        assert callable(getattr(importlib.import_module(f"pipeline_tests.end_to_end.{module}"), function))


@pytest.fixture(scope="module")
def written(project_folder: ProjectFolder, classic: SparkSession, spark_settings: SparkSettings) -> ProjectFolder:
    """A project with one day of sightings in two versions."""
    for _ in range(2):
        project_folder.materialize(spark_settings, "sightings", "2013-01-01")
    return project_folder


@pytest.mark.parametrize(
    "line",
    one_of_each_kind_is_quick(line for line in HERE if not line.startswith(SERVED_ONLY) and "from edges" not in line),
)
def test_a_command_of_the_documents_does_its_work(written: ProjectFolder, line: str) -> None:
    done = written.invoke(*shlex.split(line)[1:])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.exhaustive
@pytest.mark.parametrize("line", HERE)
def test_a_command_of_the_documents_runs_as_it_stands_there(served: ProjectFolder, line: str) -> None:
    name, *arguments = shlex.split(line)
    done = served.command(name, *arguments)
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout if name == "pipeline" else done.stdout + done.stderr
    ).strip()  # Dagster logs on the other stream
    assert "Traceback" not in done.stderr


@pytest.mark.exhaustive
def test_dagster_dev_shows_the_project_and_nothing_is_left_after_ctrl_c(
    project_folder: ProjectFolder, tmp_path: Path
) -> None:
    port, log = free_port(), tmp_path / "dev.log"
    command = [str(SCRIPTS / "dagster"), "dev", "--port", str(port)]
    with log.open("w") as output, subprocess.Popen(
        command, cwd=project_folder.folder,
        env=project_folder.variables() | {"DAGSTER_HOME": str(project_folder.folder)},
        stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            keys = asked(port, process)
            assert keys == {dataset.name for dataset in datasets}, log.read_text(encoding="utf-8")
            family = psutil.Process(process.pid).children(recursive=True)
            os.kill(process.pid, signal.SIGINT)
            process.wait(STOP_SECONDS)
            _, alive = psutil.wait_procs(family, timeout=STOP_SECONDS)
            assert alive == []
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def asked(port: int, process: subprocess.Popen[bytes]) -> set[str]:
    """The assets that the web server names as soon as it answers; none where it does not."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/graphql",
        data=json.dumps({"query": "{ assetNodes { assetKey { path } } }"}).encode(),
        headers={"Content-Type": "application/json"},
    )
    ends = time.monotonic() + COMMAND_SECONDS
    while time.monotonic() < ends and process.poll() is None:
        with suppress(OSError), urllib.request.urlopen(request, timeout=60) as answer:
            nodes = json.load(answer)["data"]["assetNodes"]
            if nodes:
                return {node["assetKey"]["path"][0] for node in nodes}
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
    return set()
