"""`pipeline up` as a real process: everything comes up on the project's one instance, and all of it ends on Ctrl-C."""

import json
import socket
import urllib.request

import psutil
import pytest

from pipeline.assets.shipped import datasets
from pipeline_tests.end_to_end.conftest import ProjectFolder


def ask(url: str, query: str) -> dict:
    request = urllib.request.Request(
        f"{url}/graphql",
        data=json.dumps({"query": query}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["data"]


@pytest.mark.exhaustive
def test_the_ui_and_a_warm_spark_come_up_together_and_nothing_is_left_after_ctrl_c(
    project_folder: ProjectFolder,
) -> None:
    with project_folder.up() as up:
        materialize = ("dagster", "asset", "materialize", "-m", "pipeline.definitions", "--select", "airports")
        done = project_folder.command(*materialize, SPARK_REMOTE=up.remote)
        assert done.returncode == 0, done.stderr
        runs = ask(up.url, "{ runsOrError { ... on Runs { results { status assetSelection { path } } } } }")
        assert runs["runsOrError"]["results"] == [{"status": "SUCCESS", "assetSelection": [{"path": ["airports"]}]}]
        nodes = ask(up.url, "{ assetNodes { assetKey { path } } }")["assetNodes"]
        assert {node["assetKey"]["path"][0] for node in nodes} == {dataset.name for dataset in datasets}
        family = psutil.Process(up.process.pid).children(recursive=True)
        assert up.interrupt() == 130
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []
    status = project_folder.command("pipeline", "spark", "status")
    assert (status.returncode, status.stdout.strip()) == (1, "No server runs.")


def test_a_port_that_is_taken_is_said_so_and_nothing_is_started(project_folder: ProjectFolder) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = project_folder.invoke("up", "--port", str(port))
    assert done.returncode == 1
    assert f"port {port} is used by another process" in done.stderr


@pytest.mark.parametrize("arguments", [("up", "--port", "none"), ("nonsense",), ("demo", "--days", "0")], ids=" ".join)
def test_wrong_usage_exits_with_2(project_folder: ProjectFolder, arguments: tuple[str, ...]) -> None:
    assert project_folder.invoke(*arguments).returncode == 2
