"""The warm server as real processes: started, found, refused a second time, killed, ended."""

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.delta.server import process as servers
from pipeline.delta.spark import server_record as records
from pipeline.delta.spark.connect import clone_connect, end_connect
from pipeline.delta.spark.server_record import Server, beginning, token_of
from pipeline.delta.spark.session import open_session
from pipeline.errors import ServerError, SparkUnavailableError
from pipeline.settings import STATE_FOLDER, SparkSettings
from pipeline_tests.conftest import connect_mode, free_port
from pipeline_tests.delta.processes import watched

SECRET_NAME, SECRET = "spark.hadoop.fs.azure.account.key.a.dfs.core.windows.net", "s3cret-of-a-conf"


@pytest.fixture
def folder(tmp_path: Path, spark_settings: SparkSettings, monkeypatch: pytest.MonkeyPatch):
    """The state folder of the current project, whose server, if any, does not outlive the test."""
    monkeypatch.setenv("PIPELINE_CACHE", str(spark_settings.cache))
    monkeypatch.setenv("PIPELINE_DRIVER_MEMORY", "1g")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").touch()
    folder = tmp_path / STATE_FOLDER / "spark"
    folder.parent.mkdir()
    yield folder
    servers.stop(folder)


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@contextmanager
def opened(remote: str) -> Any:
    with connect_mode():
        session = open_session(SparkSettings(remote=remote))
        try:
            yield session
        finally:
            end_connect(session)


@contextmanager
def looks_like_a_server(folder: Path, port: int) -> Any:
    """A process with the command line of this folder's server, that does nothing."""
    program = folder.parent / "program"
    module = program.joinpath(*records.MODULE.split(".")).with_suffix(".py")
    module.parent.mkdir(parents=True)
    module.write_text("import time\ntime.sleep(600)\n", encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(program)}
    command = [sys.executable, *records.arguments(folder, port, None)]
    with subprocess.Popen(command, cwd=program, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def busy_processors() -> Iterator[None]:
    """Twice as many processes that only use their processor as there are processors."""
    program = [sys.executable, "-c", "while True: pass"]
    with ExitStack() as stack:
        for _ in range(2 * (os.cpu_count() or 1)):
            stack.callback(stack.enter_context(subprocess.Popen(program)).kill)
        yield


def family(server: Server) -> list[psutil.Process]:
    process = psutil.Process(server.pid)
    return [process, *process.children(recursive=True)]


@pytest.mark.exhaustive
def test_a_server_is_started_once_serves_delta_and_leaves_nothing_when_it_is_stopped(folder: Path) -> None:
    project = folder.parent.parent / "pyproject.toml"
    project.write_text(f'[tool.pipeline.spark_conf]\n"{SECRET_NAME}" = "{SECRET}"\n', encoding="utf-8")
    with watched(SECRET) as seen:
        server = servers.start(folder, free_port())
    assert seen == set()
    assert [path.name for path in folder.iterdir() if SECRET.encode() in path.read_bytes()] == []
    assert servers.running(folder) == server
    assert servers.answers(folder, server)
    with pytest.raises(ServerError):
        servers.start(folder, free_port())
    with opened(server.remote) as session:
        assert session.conf.get(SECRET_NAME) == SECRET
        table = folder.parent / "table"
        session.sql(f"CREATE TABLE delta.`{table}` USING delta AS SELECT 1 AS n").collect()
        clone = clone_connect(session)  # it goes the same way, with the same token
        assert clone.read.format("delta").load(str(table)).collect()[0]["n"] == 1
        end_connect(clone)
    only_its_user_can_use_it(folder, server)
    processes = family(server)
    assert servers.stop(folder) == server
    assert [process.pid for process in processes if process.is_running()] == []
    assert servers.running(folder) is None
    assert servers.stop(folder) is None


def only_its_user_can_use_it(folder: Path, server: Server) -> None:
    """Without the token nothing is answered, and the token stands in its file only."""
    token = token_of(folder, server.port) or ""
    assert len(token) > 40
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "token").stat().st_mode) == 0o600
    address = f"127.0.0.1:{server.port}"
    with opened(f"sc://{address}/;token={token}") as session:
        assert session.range(2).count() == 2
    elsewhere = folder.parent.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "pyproject.toml").touch()
    refused = [f"sc://{address}/;token={token[:-1]}"]
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(elsewhere)
        for remote in (server.remote, f"sc://localhost:{server.port}", *refused):
            with pytest.raises(SparkUnavailableError) as caught, opened(remote):
                pass
            assert "requires a token" in caught.value.reason
            assert token[:-1] not in str(caught.value)
    lines = [" ".join(one.cmdline()) for one in family(server) if one.status() != psutil.STATUS_ZOMBIE]
    assert len(lines) > 1
    assert [line for line in lines if token in line] == []
    kept = {path.name for path in folder.iterdir() if token.encode() in path.read_bytes()}
    assert kept == {"token"}


@pytest.mark.exhaustive
def test_what_a_broken_server_left_is_cleared_and_a_killed_ones_jvm_ends_with_it(folder: Path) -> None:
    port = free_port()
    with looks_like_a_server(folder, port) as left:  # a server's process that no longer answers
        began = beginning(psutil.Process(left.pid))
        records.remember(made(folder), Server(pid=left.pid, began=began, port=port, log=""))
        server = servers.start(folder, free_port())
        assert left.poll() is not None
    assert servers.running(folder) == server
    processes = family(server)
    os.kill(server.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert alive == []
    assert servers.running(folder) is None
    assert servers.stop(folder) is None
    assert not (folder / "server.json").exists()


def test_a_port_that_is_taken_is_said_so_and_nothing_is_started(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind((servers.HOST, 0))
        taken.listen()
        with pytest.raises(ServerError) as caught:
            servers.start(folder, taken.getsockname()[1])
    assert "another process uses port" in caught.value.reason
    assert servers.running(folder) is None


@pytest.mark.parametrize("forged", ["began", "program", "port", "folder"])
def test_a_process_that_is_not_this_folder_s_server_is_neither_taken_for_it_nor_ended(
    folder: Path, forged: str
) -> None:
    """A record may be stale, copied from another project, or made up."""
    of = folder.parent / "another" if forged == "folder" else folder
    with looks_like_a_server(of, 1) if forged != "program" else subprocess.Popen(["sleep", "600"]) as other:
        began = "earlier" if forged == "began" else beginning(psutil.Process(other.pid))
        port = 2 if forged == "port" else 1
        records.remember(made(folder), Server(pid=other.pid, began=began, port=port, log=""))
        records.new_token(folder)
        assert servers.running(folder) is None
        assert token_of(folder, port) is None
        assert servers.stop(folder) is None
        assert other.poll() is None
        other.kill()
    assert {path.name for path in folder.iterdir()} == {"lock"}


def test_a_server_is_known_from_the_moment_that_it_is_started(folder: Path) -> None:
    command = [sys.executable, *records.arguments(made(folder), 1, None)]
    unknown = []
    with busy_processors():
        for _ in range(100):
            with subprocess.Popen(command) as process:
                record = Server(pid=process.pid, began=beginning(psutil.Process(process.pid)), port=1, log="")
                if records.process_of(folder, record) is None:
                    unknown.append(process.poll())
                process.kill()
    assert unknown == []


def test_a_server_is_known_by_ticks_that_the_clock_does_not_change(folder: Path) -> None:
    process = psutil.Process()
    boot, ticks = beginning(process).split()
    seconds = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    assert 0 < int(ticks) / os.sysconf("SC_CLK_TCK") <= seconds
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    with looks_like_a_server(folder, 1) as left:
        record = Server(pid=left.pid, began=beginning(psutil.Process(left.pid)), port=1, log="")
        records.remember(made(folder), record)
        assert servers.running(folder) == record
        (folder / "token").write_text("t", encoding="ascii")
        (folder / "token").chmod(0o640)
        assert token_of(folder, 1) is None, "others can read it"
        assert records.new_token(folder) == token_of(folder, 1)


@pytest.mark.parametrize(
    "record",
    ["", "{", "[]", "{}", '{"pid": "1", "began": "b", "port": 1, "log": ""}',
     '{"pid": 1, "began": 1.0, "port": 1, "log": ""}', '{"pid": -1, "began": "b", "port": 1, "log": ""}',
     '{"pid": true, "began": "b", "port": 1, "log": ""}'],
)  # fmt: skip
def test_a_record_that_can_t_be_read_is_named_and_cleared_by_stop(folder: Path, record: str) -> None:
    path = made(folder) / "server.json"
    path.write_text(record, encoding="utf-8")
    for command in (servers.running, servers.start):
        with pytest.raises(ServerError) as caught:
            command(folder)
        assert caught.value.folder == str(folder)
    assert servers.stop(folder) is None
    assert not path.exists()


def test_a_folder_that_can_t_be_written_is_named(folder: Path) -> None:
    folder.write_text("not a folder", encoding="utf-8")
    for command in (servers.start, servers.stop):
        with pytest.raises(ServerError) as caught:
            command(folder)
        assert caught.value.folder == str(folder)
    folder.unlink()


def test_two_commands_can_t_change_the_folder_at_once(folder: Path) -> None:
    folder.mkdir()
    with servers.locked(folder), pytest.raises(ServerError):
        servers.stop(folder)
