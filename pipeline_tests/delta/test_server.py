"""The warm server as real processes: started, found, refused a second time, killed, ended."""

import os
import signal
import socket
import subprocess
from pathlib import Path

import psutil
import pytest

from pipeline.delta import server as servers
from pipeline.delta.server import Server
from pipeline.errors import ServerError
from pipeline.settings import SparkSettings
from pipeline_tests.conftest import close, connect, connect_mode, free_port


@pytest.fixture
def folder(tmp_path: Path, spark_settings: SparkSettings, monkeypatch: pytest.MonkeyPatch):
    """A state folder whose server, if any, does not outlive the test."""
    monkeypatch.setenv("PIPELINE_CACHE", str(spark_settings.cache))
    monkeypatch.setenv("PIPELINE_DRIVER_MEMORY", "1g")
    yield tmp_path / "spark"
    servers.stop(tmp_path / "spark")


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def family(server: Server) -> list[psutil.Process]:
    process = psutil.Process(server.pid)
    return [process, *process.children(recursive=True)]


@pytest.mark.exhaustive
def test_a_server_is_started_once_serves_delta_and_leaves_nothing_when_it_is_stopped(folder: Path) -> None:
    server = servers.start(folder, free_port())
    assert servers.running(folder) == server
    assert servers.answers(server)
    with pytest.raises(ServerError):
        servers.start(folder, free_port())
    with connect_mode():
        session = connect(server.remote)
        table = folder.parent / "table"
        session.sql(f"CREATE TABLE delta.`{table}` USING delta AS SELECT 1 AS n").collect()
        assert session.read.format("delta").load(str(table)).collect()[0]["n"] == 1
        close(session)
    processes = family(server)
    assert servers.stop(folder) == server
    assert [process.pid for process in processes if process.is_running()] == []
    assert servers.running(folder) is None
    assert servers.stop(folder) is None


def test_what_a_broken_server_left_is_cleared_and_a_killed_ones_jvm_ends_with_it(folder: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as left:  # a server's process that no longer answers
        began = psutil.Process(left.pid).create_time()
        servers._remember(made(folder), Server(pid=left.pid, began=began, port=free_port(), log=""))
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
    assert "taken" in caught.value.reason
    assert servers.running(folder) is None


def test_an_id_that_was_given_to_another_process_is_neither_taken_for_the_server_nor_ended(folder: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        began = psutil.Process(other.pid).create_time() - 3600
        servers._remember(made(folder), Server(pid=other.pid, began=began, port=1, log=""))
        assert servers.running(folder) is None
        assert servers.stop(folder) is None
        assert other.poll() is None
        other.kill()
    assert not (folder / "server.json").exists()


@pytest.mark.parametrize(
    "record",
    ["", "{", "[]", "{}", '{"pid": "1", "began": 1.0, "port": 1, "log": ""}',
     '{"pid": -1, "began": 1.0, "port": 1, "log": ""}', '{"pid": true, "began": 1.0, "port": 1, "log": ""}'],
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
    with servers._locked(folder), pytest.raises(ServerError):
        servers.stop(folder)
