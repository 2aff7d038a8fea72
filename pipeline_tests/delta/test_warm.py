"""The warm server of a project as real processes: shared by commands, replaced if it hangs, ended if it is idle."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.delta.server import process as servers
from pipeline.delta.server import warm
from pipeline.delta.server.serve import LEAVING_SECONDS, WATCH_SECONDS
from pipeline.delta.server.warm import warm_folders, warm_servers
from pipeline.delta.spark.connect import end_connect
from pipeline.delta.spark.server_record import RELEASE_SIGNAL, Server, token_of
from pipeline.delta.spark.session import open_session
from pipeline.settings import SparkSettings, load_settings
from pipeline_tests.conftest import TESTS, connect_mode
from pipeline_tests.end_to_end.conftest import until

SHARED = {"connect": True, "rows": 3}
exhaustive = pytest.mark.exhaustive


@pytest.fixture
def project(tmp_path: Path, spark_settings: SparkSettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current project, whose settings ask for a warm server. Its servers end with the test."""
    monkeypatch.setenv("PIPELINE_CACHE", str(spark_settings.cache))
    monkeypatch.setenv("PIPELINE_DRIVER_MEMORY", "1g")
    monkeypatch.setenv("PIPELINE_WARM", "require")
    monkeypatch.setenv("PYTHONPATH", str(TESTS.parent))
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").touch()
    yield tmp_path
    for folder in warm_folders(load_settings()):
        servers.stop(folder)


def command(*arguments: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "pipeline_tests.children.command", *arguments]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(running: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    """What a command printed, and what it said beside."""
    out, said = running.communicate(timeout=300)
    assert running.returncode == 0, said
    return json.loads(out), "".join(line for line in said.splitlines(keepends=True) if "Spark" in line)


def only_server() -> tuple[Path, Server]:
    (found,) = warm_servers(load_settings())
    return found


def jvm_of(server: Server) -> psutil.Process:
    (jvm,) = [child for child in psutil.Process(server.pid).children() if child.name() == "java"]
    return jvm


@contextmanager
def client_of(folder: Path, server: Server) -> Iterator[Any]:
    with connect_mode():
        session = open_session(SparkSettings(remote=f"{server.remote}/;token={token_of(folder, server.port)}"))
        try:
            yield session
        finally:
            session.client.close()


def test_commands_at_once_start_one_server_which_answers_later_commands_too(project: Path) -> None:
    both = [command(), command()]
    (first, said), (second, also_said) = map(ended, both)
    assert (first, second) == (SHARED, SHARED)
    assert sorted([said.count("Starting Spark in the background"), also_said.count("Starting Spark")]) == [0, 1]
    folder, server = only_server()
    assert server.idle_minutes == warm.IDLE_MINUTES
    assert servers.answers(folder, server)
    assert ended(command()) == (SHARED, "")
    assert only_server() == (folder, server)


@exhaustive
def test_a_server_runs_the_functions_of_a_command_as_they_are_now(project: Path) -> None:
    module = project / "functions.py"
    for answer in (1, 2):
        module.write_text(f"def answer(_):\n    return {answer}\n", encoding="utf-8")
        assert ended(command("functions"))[0] == SHARED | {"answer": answer}
    only_server()


@exhaustive
def test_a_command_with_other_settings_gets_a_server_of_its_own(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended(command())
    first = only_server()
    monkeypatch.setenv("PIPELINE_DRIVER_MEMORY", "1200m")
    assert ended(command())[0] == SHARED
    found = warm_servers(load_settings())
    assert len(found) == 2
    assert first in found


@exhaustive
def test_a_server_that_hangs_is_replaced_and_ended_unless_it_has_clients(project: Path) -> None:
    ended(command())
    folder, server = only_server()
    jvm = jvm_of(server)
    os.kill(jvm.pid, signal.SIGSTOP)
    assert not servers.answers(folder, server)
    assert ended(command())[0] == SHARED
    assert only_server()[1].pid != server.pid
    psutil.wait_procs([jvm], timeout=30)
    assert not jvm.is_running()

    folder, server = only_server()
    jvm = jvm_of(server)
    with client_of(folder, server) as session:
        os.kill(jvm.pid, signal.SIGSTOP)
        try:
            assert ended(command())[0] == SHARED
        finally:
            os.kill(jvm.pid, signal.SIGCONT)
        assert only_server()[1].pid != server.pid
        assert session.range(2).count() == 2, "what its client does goes on"
    psutil.Process(server.pid).terminate()
    psutil.wait_procs([jvm], timeout=60)


@exhaustive
def test_a_server_whose_jvm_was_killed_is_replaced(project: Path) -> None:
    ended(command())
    _, server = only_server()
    jvm_of(server).kill()
    assert ended(command())[0] == SHARED
    assert only_server()[1].pid != server.pid


@exhaustive
def test_a_process_goes_on_with_the_server_that_replaced_its_own(project: Path) -> None:
    ended(command())
    folder, server = only_server()
    with client_of(folder, server) as session:
        assert session.range(2).count() == 2
        servers.stop(folder)
        ended(command())
        _, other = only_server()
        assert other.port != server.port
        with client_of(folder, other) as again:
            assert again.range(3).count() == 3


@exhaustive
def test_a_server_ends_if_it_is_asked_to_or_its_folder_is_gone_unless_it_has_clients(project: Path) -> None:
    ended(command())
    folder, server = only_server()
    process = psutil.Process(server.pid)
    with client_of(folder, server) as session:
        assert session.range(2).count() == 2
        process.send_signal(RELEASE_SIGNAL)
        with pytest.raises(psutil.TimeoutExpired):
            process.wait(2 * WATCH_SECONDS)
        assert only_server() == (folder, server)
    process.send_signal(RELEASE_SIGNAL)
    process.wait(LEAVING_SECONDS + 60)
    assert warm_servers(load_settings()) == []

    ended(command())
    folder, server = only_server()
    process = psutil.Process(server.pid)
    shutil.rmtree(project / ".pipeline")
    process.wait(LEAVING_SECONDS + 60)
    assert not folder.exists()


@exhaustive
def test_a_command_that_has_found_a_server_as_it_leaves_is_still_answered(project: Path) -> None:
    ended(command())
    folder, server = only_server()
    address = servers.address(folder, server)
    process = psutil.Process(server.pid)
    process.send_signal(RELEASE_SIGNAL)
    until(lambda: warm_servers(load_settings()) == [], process.is_running)
    with connect_mode():
        session = open_session(SparkSettings(remote=address))
        assert session.range(5).count() == 5
        end_connect(session)
    process.wait(LEAVING_SECONDS + 60)
