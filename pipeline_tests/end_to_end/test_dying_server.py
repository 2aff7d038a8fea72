"""The warm server's JVM killed at every point of a run: a named error, nothing half written, and a retry that works."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pipeline.delta.server import process as servers
from pipeline.delta.spark.server_record import Server
from pipeline_tests.conftest import free_port
from pipeline_tests.delta.sample import put
from pipeline_tests.end_to_end.conftest import BRIEF, COMMAND_SECONDS, PROJECTS, SCRIPTS, ProjectFolder, until
from pipeline_tests.projects.waiting import FIRST, SECOND


@pytest.fixture(scope="module")
def project(project_folder: ProjectFolder, classic: SparkSession) -> Iterator[ProjectFolder]:
    """A project whose two tables hold three rows each."""
    shutil.copy(PROJECTS / "waiting.py", project_folder.folder / "outside.py")
    for dataset in (FIRST, SECOND):
        put(classic, dataset, str(project_folder.folder / ".pipeline" / "tables"), [(0,), (1,), (2,)])
    yield project_folder
    servers.stop(state(project_folder))


def state(project: ProjectFolder) -> Path:
    return project.folder / ".pipeline" / "spark"


def start(project: ProjectFolder, port: int | None = None) -> Server:
    done = project.command("pipeline", "spark", "start", "--port", str(port or free_port()), **BRIEF)
    assert done.returncode == 0, done.stderr
    server = servers.running(state(project))
    assert server is not None
    return server


def kill_jvm(server: Server) -> None:
    process = psutil.Process(server.pid)
    (jvm,) = (child for child in process.children(recursive=True) if child.name() == "java")
    jvm.kill()
    process.wait(COMMAND_SECONDS)


@contextmanager
def armed(project: ProjectFolder) -> Iterator[None]:
    (project.folder / "armed").touch()
    try:
        yield
    finally:
        for name in ("armed", "here"):
            (project.folder / name).unlink(missing_ok=True)


def command(name: str) -> tuple[str, ...]:
    return "dagster", "asset", "materialize", "-m", "outside", "--select", name


def killed_while_it_runs(project: ProjectFolder, server: Server, name: str) -> str:
    """What a run says whose server is killed at the place where its asset waits."""
    program, *arguments = command(name)
    log = project.folder / f"{name}.log"
    with armed(project), log.open("w") as output, subprocess.Popen(
        [str(SCRIPTS / program), *arguments], cwd=project.folder, stdout=output, stderr=output,
        env=project.variables() | {"SPARK_REMOTE": server.remote, "DAGSTER_HOME": str(project.folder)},
    ) as process:  # fmt: skip
        until((project.folder / "here").exists, lambda: process.poll() is None)
        kill_jvm(server)
        (project.folder / "armed").unlink()
        assert process.wait(COMMAND_SECONDS) != 0
    return log.read_text(encoding="utf-8")


def numbers(project: ProjectFolder, name: str) -> tuple[int, list[int]]:
    """Version and values of a table, read by another engine."""
    table = project.table(name)
    return table.version(), sorted(table.to_pyarrow_table()["n"].to_pylist())


@pytest.mark.exhaustive
def test_a_server_that_dies_in_a_write_is_named_and_nothing_is_half_written(project: ProjectFolder) -> None:
    server = start(project)
    assert numbers(project, "first") == (1, [0, 1, 2])
    in_the_write = killed_while_it_runs(project, server, "first")
    assert "pipeline.errors.commits.CommitUnknownError: The write to dataset 'first'" in in_the_write
    assert numbers(project, "first") == (1, [0, 1, 2])
    status = project.command("pipeline", "spark", "status")
    assert (status.returncode, status.stdout.strip()) == (1, "No server runs.")


@pytest.mark.exhaustive
def test_the_run_after_a_server_that_died_in_a_write_works_with_the_next_one(project: ProjectFolder) -> None:
    server = start(project)
    done = project.command(*command("first,second"), SPARK_REMOTE=server.remote)
    assert done.returncode == 0, done.stderr
    assert [numbers(project, name) for name in ("first", "second")] == [(2, [0, 1, 2]), (2, [0, 1, 2])]


@pytest.mark.exhaustive
def test_a_server_that_dies_between_input_and_output_or_before_the_session_is_named(project: ProjectFolder) -> None:
    server = servers.running(state(project)) or start(project)
    before = numbers(project, "second")
    between_input_and_output = killed_while_it_runs(project, server, "second")
    assert "pipeline.errors.machine.SparkUnavailableError: No Spark session on sc://" in between_input_and_output

    before_the_session = project.command(*command("second"), SPARK_REMOTE=server.remote)
    assert before_the_session.returncode != 0
    assert "pipeline.errors.machine.SparkUnavailableError: No Spark session on sc://" in before_the_session.stderr
    assert numbers(project, "second") == before


def line(number: int) -> str:
    record = {"update_id": number, "conid": number, "symbol": "IBM", "quantity": 1, "at": "2026-01-31T12:00:00Z"}
    return f"{json.dumps(record)}\n"


@pytest.mark.exhaustive
@pytest.mark.parametrize("deaths", [1, 2])
def test_a_sink_goes_on_with_the_server_that_is_started_in_the_place_of_one_that_died(
    project: ProjectFolder, deaths: int
) -> None:
    """The second time finds a process that has lost a server before."""
    arriving, first = project.folder / f"arriving{deaths}", 100 * deaths
    arriving.mkdir()
    server = servers.running(state(project)) or start(project)
    port = urlsplit(server.remote).port
    arguments = (
        "run",
        "position_updates",
        "--from",
        str(arriving),
        "--writer",
        arriving.name,
        "--flush-seconds",
        "0.1",
    )

    def stored() -> list[int]:
        if not DeltaTable.is_deltatable(str(project.folder / ".pipeline" / "tables" / "position_updates")):
            return []
        found = project.table("position_updates").to_pyarrow_table()["update_id"].to_pylist()
        return sorted(number for number in found if number >= first)

    def up_to(newest: int) -> Callable[[], bool]:
        return lambda: stored() == list(range(first, newest + 1))

    def arrive(*numbers: int) -> None:
        with (arriving / "a.ndjson").open("a", encoding="utf-8") as file:
            file.writelines(line(number) for number in numbers)

    with subprocess.Popen(
        [str(SCRIPTS / "pipeline"), "sink", *arguments], cwd=project.folder,
        env=project.variables() | {"SPARK_REMOTE": server.remote},
    ) as sink:  # fmt: skip
        try:
            arrive(first, first + 1)
            until(up_to(first + 1), lambda: sink.poll() is None)
            for number in range(first + 2, first + 2 + 2 * deaths, 2):
                kill_jvm(server)
                arrive(number)
                server = start(project, port)
                arrive(number + 1)
                until(up_to(number + 1), lambda: sink.poll() is None)
        finally:
            sink.terminate()
        assert sink.wait(COMMAND_SECONDS) == 0
    assert up_to(first + 1 + 2 * deaths)()
