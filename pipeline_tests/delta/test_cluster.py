"""A driver and a Connect server on a Spark standalone cluster, and the errors of one that lacks something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType

from pipeline import errors
from pipeline.delta.server import process as servers
from pipeline.delta.spark.cluster import WAIT_CONF, require_master, wait_seconds
from pipeline.delta.spark.jars import delta_jars
from pipeline.delta.stream.structured_streaming import write_available
from pipeline.errors import (
    ExecutorPythonError,
    ExecutorsUnavailableError,
    ServerError,
    SettingsError,
    SparkUnavailableError,
    rebuilt,
)
from pipeline.settings import SparkSettings, shown_remote
from pipeline_tests.children.cluster import MARKER
from pipeline_tests.children.sink import ARRIVALS
from pipeline_tests.children.stream import source
from pipeline_tests.clusters import CONF, Cluster, standalone
from pipeline_tests.conftest import TESTS, free_port
from pipeline_tests.delta.sample import APPENDED, day, put, rows_of
from pipeline_tests.delta.test_server import folder as state  # noqa: F401
from pipeline_tests.delta.test_server import opened
from pipeline_tests.end_to_end.conftest import ProjectFolder, project_folder  # noqa: F401
from pipeline_tests.remedies import follows, refused

CHILD_SECONDS = 600
PARTS = [["a b", 1], ["a b", 2], [None, 1], [None, 2]]


@pytest.fixture(scope="module")
def cluster(spark_settings: SparkSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with a worker of one core: one driver at a time."""
    with standalone(tmp_path_factory.mktemp("cluster"), spark_settings.cache, 1) as started:
        yield started


class Driver:
    """Runs drivers on a master, each in a process of its own."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self._cache = folder, cache

    def run(self, master: str, *steps: str, conf: dict[str, str] | None = None, **environment: str) -> Any:
        """The results of the steps in a session, whose executors start this Python.

        Raises:
            PipelineError: what opening the session has raised there.
        """
        (answer,) = self.attempts(master, [sys.executable], *steps, conf=conf, **environment)
        return results_of(answer)

    def attempts(
        self, master: str, pythons: list[str], *steps: str, conf: dict[str, str] | None = None, **environment: str
    ) -> list[dict[str, Any]]:
        """The answers of sessions in one process, one after another, whose executors start these Pythons."""
        job = {
            "master": master, "cache": str(self._cache), "conf": CONF | (conf or {}), "steps": steps,
            "pythons": pythons, "root": str(self.folder / "tables"),
        }  # fmt: skip
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        done = subprocess.run(
            [sys.executable, "-m", "pipeline_tests.children.cluster", json.dumps(job)],
            env=kept | {"PYTHONPATH": str(TESTS.parent)} | environment, stdout=subprocess.PIPE, text=True,
            timeout=CHILD_SECONDS, check=True,
        )  # fmt: skip
        return [json.loads(line) for line in done.stdout.splitlines()]


def results_of(answer: dict[str, Any]) -> Any:
    """The results in an answer. The error in it is raised."""
    if "error" in answer:
        raise rebuilt(getattr(errors, answer["error"]), answer["fields"])
    return answer["results"]


@pytest.fixture
def driver(tmp_path: Path, spark_settings: SparkSettings) -> Driver:
    return Driver(tmp_path, spark_settings.cache)


def python_that(folder: Path, does: str) -> str:
    """A program that is this Python, but runs these lines first."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(does, encoding="utf-8")
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}:$PYTHONPATH" exec "{sys.executable}" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return str(program)


ANOTHER_VERSION = """
import collections, sys
info = collections.namedtuple("info", "major minor micro releaselevel serial")
sys.version_info = info(3, 9, 1, "final", 0)
sys.version = "3.9.1 " + sys.version.partition(" ")[2]
"""
NO_PACKAGE = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "pipeline":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
"""
VERSION_OF_PACKAGE = """
import importlib.metadata
known = importlib.metadata.version
importlib.metadata.version = lambda name: "{}" if name == "delta-first-pipeline" else known(name)
"""


# --- without a cluster ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("addresses", "reasons"),
    [("{}", 1), ("{},{}", 2), ("127.0.0.1:port", 1), ("127.0.0.1:99999", 1), ("127.0.0.1", 1)],
)
def test_a_master_that_does_not_listen_is_named_with_each_of_its_addresses(addresses: str, reasons: int) -> None:
    master = "spark://" + addresses.replace("{}", f"127.0.0.1:{free_port()}")
    started = time.monotonic()
    with pytest.raises(SparkUnavailableError) as caught:
        require_master(master)
    assert time.monotonic() - started < 5
    assert caught.value.where == master
    assert len(caught.value.reason.split("; ")) == reasons
    assert "PIPELINE_MASTER" in caught.value.remedy()


def test_how_long_to_wait_for_executors_is_a_whole_number_of_seconds() -> None:
    assert [wait_seconds(value) for value in (None, "0", "300")] == [60, 0, 300]
    for value in ("", "1m", "-1", "1.5", "²"):
        with pytest.raises(SettingsError) as caught:
            wait_seconds(value)
        assert WAIT_CONF in caught.value.setting


# --- on a cluster -----------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_tables_frames_consumers_functions_sinks_and_streams_are_on_a_cluster_what_they_are_on_one_machine(
    cluster: Cluster, driver: Driver
) -> None:
    ports = {"spark.driver.port": str(free_port()), "spark.blockManager.port": str(free_port())}
    steps = (
        "append", "merge", "replace", "pandas", "consume", "consume_nothing", "record", "maintain", "restore",
        "functions", "sink", "stream", "addresses",
    )  # fmt: skip
    done = driver.run(cluster.master, *steps, conf=ports)
    assert done["append"] == [[[1, True, False], [2, True, False], [2, False, True]], PARTS]
    assert done["merge"] == [[1, 2], [["x", 1], ["x", 2], ["y", 3]]]
    assert done["replace"] == [2, [["x", 1], ["y", 2]]]
    assert done["pandas"] == [3, [["p", 9], ["x", 1], ["y", 2]]]
    assert (done["consume"], done["consume_nothing"]) == (["full snapshot", 4], ["nothing new", None])
    assert done["record"] == [[None, None]]
    removed, version, listed, kept = done["maintain"]
    assert (removed > 0, version, listed, kept) == (True, 3, 0, PARTS)
    assert done["restore"] == [2, 4, True, PARTS]
    folders, shown = done["functions"]
    assert [Path(path).parent.name.partition("-")[0] for path in folders] == ["app"], "the folder of an executor"
    assert shown == ["sc://h:0", "sc://h:1", "sc://h:2", "sc://h:3"]
    assert done["sink"] == [1, [1, 2, 3]]
    assert done["stream"] == [2, 0, [4, 5]]
    assert done["addresses"] == ["127.0.0.1", ports["spark.driver.port"], "127.0.0.1", ports["spark.blockManager.port"]]


@pytest.mark.exhaustive
def test_jars_and_class_paths_of_the_user_are_added_to_ours_wherever_they_are_set(
    cluster: Cluster, driver: Driver, spark_settings: SparkSettings
) -> None:
    ours = {jar.name for jar in delta_jars(spark_settings)}
    for name in ("settings", "defaults", "path"):
        with zipfile.ZipFile(driver.folder / f"{name}.jar", "w") as jar:
            jar.writestr(MARKER if name == "path" else "other.txt", name)
    (driver.folder / "conf").mkdir()
    defaults = {
        "spark.jars": f"{driver.folder}/defaults.jar",
        "spark.driver.extraClassPath": f"{driver.folder}/path.jar",
    }
    lines = "".join(f"{name} {value}\n" for name, value in defaults.items())
    (driver.folder / "conf" / "spark-defaults.conf").write_text(lines, encoding="utf-8")
    conf = {"SPARK_CONF_DIR": str(driver.folder / "conf")}

    of_defaults, has_marker = driver.run(cluster.master, "append", "jars", **conf)["jars"]
    assert (ours < set(of_defaults), set(of_defaults) - ours, has_marker) == (True, {"defaults.jar"}, True)
    arguments = f"--jars {driver.folder}/path.jar --driver-class-path {driver.folder}/settings.jar pyspark-shell"
    listed, has_marker = driver.run(
        cluster.master, "append", "jars", conf={"spark.jars": f"{driver.folder}/settings.jar"},
        PYSPARK_SUBMIT_ARGS=arguments, **conf,
    )["jars"]  # fmt: skip
    assert (ours < set(listed), set(listed) - ours, has_marker) == (True, {"path.jar", "settings.jar"}, False)


@pytest.mark.exhaustive
def test_a_class_path_of_the_user_is_added_to_ours_on_one_machine_too(driver: Driver) -> None:
    with zipfile.ZipFile(driver.folder / "path.jar", "w") as jar:
        jar.writestr(MARKER, "")
    conf = {"spark.driver.extraClassPath": f"{driver.folder}/path.jar"}
    done = driver.run("local[1]", "append", "jars", conf=conf)
    assert done["append"][1] == PARTS
    assert done["jars"] == [[], True]


@pytest.mark.exhaustive
def test_the_connect_server_runs_on_a_cluster_for_writes_and_functions(
    cluster: Cluster,
    state: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served_on(cluster, tmp_path, monkeypatch)
    server = servers.start(state, free_port())
    assert cluster.applications() == 1
    (tmp_path / "sent.py").write_text("def sent(number):\n    return number + 1\n", encoding="utf-8")

    def of_file(number: int) -> int:
        from sent import sent

        return int(sent(number))

    with opened(server.remote) as session:
        address = F.format_string("sc://h:%d/;token=secret", "id")
        shown = session.range(2).select(F.udf(shown_remote, StringType(), useArrow=False)(address)).collect()
        assert sorted(row[0] for row in shown) == ["sc://h:0", "sc://h:1"]
        root = str(tmp_path / "tables")
        put(session, APPENDED, root, [(day(1), 1, "a")])
        arriving, streamed = tmp_path / "arriving", ARRIVALS.at(root)
        arriving.mkdir()
        (arriving / "1.json").write_text('{"arrival": 1, "update_id": 1}\n', encoding="utf-8")
        results = write_available(source(session, str(arriving)), table=streamed, checkpoint=f"{root}/_streams/one")
        assert (len(results), rows_of(ARRIVALS, root)) == (1, [(1, 1)])
        # A session with files of its own has class loaders of its own on executors.
        session.addArtifacts(str(tmp_path / "sent.py"), pyfile=True)
        put(session, APPENDED, root, [(day(2), 2, "b")])
        table = session.read.format("delta").load(APPENDED.location(root))
        assert sorted(row[0] for row in table.select(F.udf(of_file, "int", useArrow=False)("id")).collect()) == [2, 3]
        assert rows_of(APPENDED, root) == [(day(1), 1, "a"), (day(2), 2, "b")]
    assert servers.stop(state) == server
    assert cluster.applications() == 0


def served_on(cluster: Cluster, project: Path, monkeypatch: pytest.MonkeyPatch, **conf: str) -> None:
    """Set the project's master."""
    lines = "".join(f'"{name}" = "{value}"\n' for name, value in (CONF | conf).items())
    (project / "pyproject.toml").write_text(f"[tool.pipeline.spark_conf]\n{lines}", encoding="utf-8")
    monkeypatch.setenv("PIPELINE_MASTER", cluster.master)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)


@pytest.mark.exhaustive
def test_the_demonstration_runs_on_a_cluster(cluster: Cluster, project_folder: ProjectFolder) -> None:  # noqa: F811
    lines = "".join(f'"{name}" = "{value}"\n' for name, value in CONF.items())
    with (project_folder.folder / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write(f"\n[tool.pipeline.spark_conf]\n{lines}")
    on = {"PIPELINE_MASTER": cluster.master, "PYSPARK_PYTHON": sys.executable, "PIPELINE_DRIVER_MEMORY": "1g"}
    done = project_folder.command("pipeline", "demo", "--days", "1", COLUMNS="120", **on)
    assert done.returncode == 0, done.stderr
    assert project_folder.rows_by_day() == {"2013-01-01": 842}


# --- what a cluster lacks ---------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@follows(ExecutorPythonError)
def test_executors_with_another_python_are_named_until_pyspark_python_names_the_right_one(
    cluster: Cluster, driver: Driver
) -> None:
    """All in one process, which has a session in the end."""
    here = ".".join(map(str, sys.version_info[:3]))
    python_that(driver.folder / "driver", VERSION_OF_PACKAGE.format("0.0.2"))
    lacking = {
        python_that(driver.folder / "another", ANOTHER_VERSION): (
            "3.9.1", False, "both need the same minor version of Python",
        ),
        python_that(driver.folder / "bare", NO_PACKAGE): (here, False, "the package pipeline can't be imported there"),
        python_that(driver.folder / "older", VERSION_OF_PACKAGE.format("0.0.1")): (
            here, True, "the package has version 0.0.1 there, and 0.0.2 here",
        ),
        str(driver.folder / "nothing"): ("", False, "No such file or directory"),
    }  # fmt: skip
    right = python_that(driver.folder / "right", VERSION_OF_PACKAGE.format("0.0.2"))
    path = f"{driver.folder / 'driver'}:{TESTS.parent}"
    *wrong, last = driver.attempts(cluster.master, [*lacking, right], PYTHONPATH=path)
    for answer, (program, (executor, importable, reason)) in zip(wrong, lacking.items(), strict=True):
        error = refused(
            ExecutorPythonError,
            partial(results_of, answer),
            "Install this Python version",
            "set PYSPARK_PYTHON",
            "spark.pipeline.executors.seconds to 0",
        )
        assert (error.master, error.python, error.driver_python) == (cluster.master, program, here)
        assert (error.executor_python, error.importable) == (executor, importable)
        assert reason in error.reason
    assert results_of(last) == {}
    assert cluster.applications() == 0


@pytest.mark.exhaustive
def test_without_the_check_tables_are_written_by_executors_that_have_no_python(
    cluster: Cluster, driver: Driver
) -> None:
    nothing = str(driver.folder / "nothing")
    (answer,) = driver.attempts(cluster.master, [nothing], "pandas", conf={WAIT_CONF: "0"})
    assert results_of(answer)["pandas"] == [1, [["p", 9]]]


@pytest.mark.exhaustive
@follows(ExecutorsUnavailableError)
def test_a_cluster_without_workers_or_with_too_little_memory_is_named_until_it_has_what_is_requested(
    driver: Driver, spark_settings: SparkSettings, tmp_path: Path
) -> None:
    wait = {WAIT_CONF: "5"}
    with standalone(tmp_path / "cluster", spark_settings.cache, 0) as empty:
        error = refused(
            ExecutorsUnavailableError, lambda: driver.run(empty.master, conf=wait), "Start a worker", "longer than 5 s"
        )
        assert (error.master, error.seconds) == (empty.master, 5)
        assert error.reason == "no task has ended within 5 s, with no executors"
        assert empty.applications() == 0
        empty.add_worker()
        too_much = wait | {"spark.executor.memory": "8g"}
        refused(ExecutorsUnavailableError, lambda: driver.run(empty.master, conf=too_much), "spark.executor.memory")
        assert driver.run(empty.master) == {}


@pytest.mark.exhaustive
@follows(ExecutorsUnavailableError)
def test_executors_that_can_t_reach_the_driver_are_named_until_its_address_is_right(
    cluster: Cluster, driver: Driver
) -> None:
    wrong = {"spark.driver.host": "127.0.0.2", "spark.driver.bindAddress": "127.0.0.1", WAIT_CONF: "30"}
    started = time.monotonic()
    refused(ExecutorsUnavailableError, lambda: driver.run(cluster.master, conf=wrong), "set spark.driver.host")
    assert time.monotonic() - started < 90
    assert driver.run(cluster.master, conf={"spark.driver.host": "127.0.0.1"}) == {}


@pytest.mark.exhaustive
def test_a_server_on_a_cluster_without_workers_ends_with_the_named_reason(
    spark_settings: SparkSettings,
    state: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with standalone(tmp_path / "cluster", spark_settings.cache, 0) as empty:
        served_on(empty, tmp_path, monkeypatch, **{WAIT_CONF: "5"})
        with pytest.raises(ServerError) as caught:
            servers.start(state, free_port())
        assert f"The cluster {empty.master} runs no task of this driver" in caught.value.reason
        assert "Start a worker" in caught.value.reason
        assert servers.running(state) is None
        assert empty.applications() == 0
