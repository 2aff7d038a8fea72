"""Which server a command may share, and what forbids one. No server is started here."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from pipeline.cli import child
from pipeline.delta.server import process, warm
from pipeline.delta.server.warm import warm_remote, warm_servers
from pipeline.delta.spark.connect import CONNECT_MODE
from pipeline.delta.spark.server_record import (
    MODULE,
    RELEASE_SIGNAL,
    Server,
    _command_line,
    arguments,
    other_servers,
    warm_folder_name,
)
from pipeline.errors import ServerError, WarmServerError
from pipeline.settings import SparkSettings, load_settings
from pipeline_tests.remedies import follows, refused


class StartedError(Exception):
    """In the place of a server: a command would start one in this folder."""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current project, whose settings ask for a warm server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIPELINE_WARM", "auto")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(warm, "SparkContext", NoContext)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/pipeline", "check"])
    monkeypatch.setattr(warm, "start_locked", not_started)
    (tmp_path / "pyproject.toml").write_text("[tool.pipeline]\n", encoding="utf-8")
    return tmp_path


class NoContext:
    """In the place of pyspark's context, since other tests of the process may have one."""

    _active_spark_context: object = None


def not_started(folder: Path, *_: object) -> None:
    raise StartedError(folder.name)


def would_start() -> str:
    """The name of the folder in which a command would start a server."""
    with pytest.raises(StartedError) as caught:
        warm_remote(load_settings().spark)
    return str(caught.value)


def test_a_command_with_the_same_settings_shares_a_server_and_any_other_does_not(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = would_start()
    with monkeypatch.context() as patch:
        patch.setenv(CONNECT_MODE, "1")  # pyspark sets it when a session of a server is opened
        assert would_start() == first
    said = capsys.readouterr()
    assert (said.out, said.err.splitlines()[0]) == (
        "",
        "Starting Spark in the background for this and later commands. It ends after 30 idle minutes, or with: "
        "pipeline spark stop",
    )
    names = {first}
    changes = {
        "TZ": "Asia/Tokyo", "AWS_SECRET_ACCESS_KEY": "hush", "PYTHONPATH": "/elsewhere", "PIPELINE_DRIVER_MEMORY": "3g",
        "SPARK_LOCAL_DIRS": "/elsewhere",
    }  # fmt: skip
    for name, value in changes.items():
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            names.add(would_start())
    with monkeypatch.context() as patch:
        patch.setattr(warm, "version", lambda name: "0.0")
        names.add(would_start())
    (project / "pyproject.toml").write_text('[tool.pipeline.spark_conf]\n"spark.a" = "1"\n', encoding="utf-8")
    names.add(would_start())
    below = project / "below"
    below.mkdir()
    monkeypatch.chdir(below)
    names.add(would_start())
    assert len(names) == len(changes) + 4
    homes = [path for path in (project / ".pipeline").iterdir() if path.name.startswith("warm-")]
    assert [stat.S_IMODE(path.stat().st_mode) for path in homes] == [0o700]
    assert stat.S_IMODE((homes[0] / "key").stat().st_mode) == 0o600
    assert sorted(path.name for path in homes[0].iterdir()) == sorted([*names, "key"])


def test_a_project_has_digests_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = would_start()
    (tmp_path / ".pipeline").rename(tmp_path / "other")
    assert would_start() != first, "the key is another one, so that nobody can guess a secret by its digest"


def test_never_and_settings_that_are_not_the_projects_leave_no_trace(project: Path) -> None:
    loaded = load_settings().spark
    for settings in (
        SparkSettings(warm="never"), SparkSettings(warm="auto", master="local[2]"),
        SparkSettings(warm="auto", driver_memory="3g"), SparkSettings(warm="require", remote="sc://127.0.0.1:1"),
    ):  # fmt: skip
        assert warm_remote(settings) is None
    assert loaded.warm == "auto"
    assert not (project / ".pipeline").exists()


@pytest.mark.parametrize("program", [
    "/bin/dagster", "/bin/dagster-daemon", "/bin/dg", "/lib/dagster/__main__.py", "/lib/dagster_webserver/__main__.py",
    child.__file__,
])  # fmt: skip
def test_the_processes_of_dagster_and_of_commands_share_a_server(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [program])
    assert would_start()


@pytest.mark.parametrize("arguments", [["/home/me/flow.py"], ["/lib/pytest/__main__.py"], ["-c"], [""], []], ids=str)
def test_another_program_keeps_spark_in_its_process_unless_a_server_is_required(
    arguments: list[str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    assert warm_remote(load_settings().spark) is None
    assert not (project / ".pipeline" / "spark").exists()
    monkeypatch.setenv("PIPELINE_WARM", "require")
    assert would_start()


def test_with_little_free_memory_a_server_is_only_started_if_it_is_required(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    free = psutil.virtual_memory()._replace(available=warm.LEAST_FREE_BYTES - 1)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    assert warm_remote(load_settings().spark) is None
    assert "less than 2 GiB of memory is free" in capsys.readouterr().err
    monkeypatch.setenv("PIPELINE_WARM", "require")
    assert would_start()


def test_of_many_servers_of_a_user_the_oldest_are_asked_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Process:
        def __init__(self, number: int, seconds: float) -> None:
            self.number, self.seconds = number, seconds

        def create_time(self) -> float:
            return time.time() - self.seconds

        def send_signal(self, number: int) -> None:
            asked.append((self.number, number))

    others = [Process(1, 5000), Process(2, 4000), Process(3, 3000), Process(4, 1)]
    monkeypatch.setattr(warm, "other_servers", lambda: others)
    assert would_start()
    assert asked == [(1, RELEASE_SIGNAL), (2, RELEASE_SIGNAL)]
    asked.clear()
    monkeypatch.setattr(warm, "other_servers", lambda: others[:2])
    assert would_start()
    assert asked == []


def test_only_the_warm_servers_of_a_user_are_asked_to_end(project: Path) -> None:
    home = project / ".pipeline" / warm_folder_name()
    states = [home / "a digest", project / ".pipeline" / "spark"]
    program = project / "program"
    module = program.joinpath(*MODULE.split(".")).with_suffix(".py")
    module.parent.mkdir(parents=True)
    module.write_text("import time\ntime.sleep(600)\n", encoding="utf-8")
    with ExitStack() as stack:
        started = []
        for state in states:
            command = [sys.executable, *arguments(state, 1, 30)]
            process = subprocess.Popen(command, cwd=program, env=os.environ | {"PYTHONPATH": str(program)})
            stack.callback(process.wait)
            stack.callback(process.kill)
            started.append(process.pid)
            assert psutil.Process(process.pid).cmdline() or _command_line(psutil.Process(process.pid))
        found = {process.pid for process in other_servers()} & set(started)
    assert found == {started[0]}


def test_the_folder_of_a_server_that_was_not_used_for_long_is_removed(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = would_start()
    home = project / ".pipeline" / f"warm-{os.geteuid()}"
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    second = would_start()
    assert {path.name for path in home.iterdir() if path.is_dir()} == {first, second}
    old = time.time() - warm.OLD_FOLDER_SECONDS - 1
    os.utime(home / first / "lock", (old, old))
    assert would_start() == second
    assert {path.name for path in home.iterdir() if path.is_dir()} == {second}


def test_a_process_with_a_session_of_its_own_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NoContext, "_active_spark_context", object())
    assert warm_remote(load_settings().spark) is None


def test_if_the_folder_can_t_be_written_spark_runs_here_and_says_so(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / ".pipeline").write_text("not a folder", encoding="utf-8")
    assert warm_remote(load_settings().spark) is None
    said = capsys.readouterr().err
    assert said.startswith("There is no warm Spark server, so Spark runs in this process: its folder can't be written")
    assert warm_servers(load_settings()) == []


@follows(WarmServerError)
def test_a_server_that_is_required_and_can_t_be_is_an_error_and_never_runs_spark_here(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPELINE_WARM", "require")
    (project / ".pipeline").write_text("not a folder", encoding="utf-8")
    for master in (None, "local[2]"):
        if master is not None:
            monkeypatch.setenv("PIPELINE_MASTER", master)
        error = refused(
            WarmServerError, lambda: warm_remote(load_settings().spark), "PIPELINE_WARM=never", "pipeline spark status",
            "pipeline spark stop",
        )  # fmt: skip
        assert error.reason.startswith("its folder can't be written" if master is None else "the master is set")
    monkeypatch.setenv("PIPELINE_WARM", "never")
    assert warm_remote(load_settings().spark) is None


def test_a_server_that_another_command_starts_is_waited_for(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = project / ".pipeline" / f"warm-{os.geteuid()}" / would_start()
    monkeypatch.setattr(warm, "START_SECONDS", 0.0)
    with process.locked(folder):
        assert warm_remote(load_settings().spark) is None
        with pytest.raises(ServerError), process.locked(folder):
            pass
    assert would_start() == folder.name


def test_the_clients_of_a_server_are_counted_while_its_workers_come_and_go() -> None:
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            with subprocess.Popen(["sleep", "0.01"]):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        assert {process.clients(psutil.Process(), 1) for _ in range(60)} == {0}
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_a_server_without_a_token_does_not_answer(project: Path) -> None:
    server = Server(pid=1, began="never", port=1, log="")
    assert not process.answers(project, server)
