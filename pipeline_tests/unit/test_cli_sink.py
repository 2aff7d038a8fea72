"""`pipeline sink epochs` reads a log and starts no Spark; `pipeline sink run` says what it can't read."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pipeline.cli import main
from pipeline.delta.sink import journal as journal_module
from pipeline.delta.sink import sink as sink_module
from pipeline.delta.sink.ndjson import Tail
from pipeline.errors import JavaNotFoundError
from pipeline.settings import SparkSettings
from pipeline_tests.unit.test_epochs import log


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs the command line on the portfolio's datasets in a project of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    monkeypatch.setenv("PIPELINE_DATASETS", "pipeline.assets.portfolio.datasets:datasets")
    (tmp_path / "pyproject.toml").write_text("", encoding="utf-8")

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["sink", *arguments])

    return invoke


def test_epochs_are_shown_with_their_versions(run, tmp_path: Path) -> None:
    table = tmp_path / ".pipeline" / "tables" / "positions"
    table.mkdir(parents=True)
    log(table, None, ("broker", 1, "x"), ("cli", 7, "y"))
    shown = run("epochs", "positions")
    assert shown.exit_code == 0
    assert [line.split()[:3] for line in shown.stdout.splitlines() if line.split()[0] in ("broker", "cli")] == [
        ["broker", "1", "1"], ["cli", "7", "2"],
    ]  # fmt: skip
    (only,) = json.loads(run("epochs", "positions", "--writer", "cli", "--json").stdout)
    assert (only["epoch"], only["version"], only["batch"], only["rows"]) == (7, 2, "y", 5)


def test_a_table_that_was_never_written_has_no_epochs_to_show(run) -> None:
    shown = run("epochs", "positions")
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert "Error: Dataset 'positions' has no table yet" in shown.stderr


def test_a_log_that_can_t_be_listed_is_told_without_a_stack(run, tmp_path: Path) -> None:
    table = tmp_path / ".pipeline" / "tables" / "positions"
    table.mkdir(parents=True)
    (table / "_delta_log").write_text("a file where the log is to be", encoding="utf-8")
    shown = run("epochs", "positions")
    assert (shown.exit_code, shown.stderr.startswith("Error: ")) == (1, True)


def test_a_source_that_is_no_folder_is_wrong_usage_and_nothing_is_made(run, tmp_path: Path) -> None:
    shown = run("run", "positions", "--from", "nowhere")
    assert shown.exit_code == 2
    assert "nowhere is no folder" in shown.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["pyproject.toml"]


@pytest.fixture
def signals() -> Iterator[None]:
    """What the command does with signals is forgotten."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def record_in(folder: Path) -> str:
    folder.mkdir()
    updated = {"at": "2026-01-31T12:00:00Z", "update_id": 1}
    record = {"conid": 1, "symbol": "IBM", "quantity": "1.0", "updated": updated}
    (folder / "a.ndjson").write_text(f"{json.dumps(record)}\n", encoding="utf-8")
    return str(folder)


def test_a_committing_thread_that_ends_is_told_by_its_error_and_an_exit_status(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals: None
) -> None:
    def no_java(settings: SparkSettings) -> None:
        raise JavaNotFoundError(minimum=17, tried=())

    monkeypatch.setattr(sink_module, "open_project_session", no_java)
    shown = run("run", "positions", "--from", record_in(tmp_path / "in"))
    assert shown.exit_code == 1
    assert "Error: Spark needs Java 17 or newer and none was found" in shown.stderr


def test_a_receiving_thread_that_ends_is_told_by_its_error_and_an_exit_status(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals: None
) -> None:
    def fails(folder: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(journal_module, "sync_folder", fails)
    shown = run("run", "positions", "--from", record_in(tmp_path / "in"), "--flush-seconds", "0.1")
    assert shown.exit_code == 1
    assert "Error: The journal of dataset 'positions' can't be used" in shown.stderr
    assert "Input/output error" in shown.stderr


def test_a_reading_thread_that_ends_without_a_word_is_told_by_an_exit_status(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals: None
) -> None:
    def breaks(self: Tail, *arguments: object) -> None:
        raise LookupError("a mistake of ours")

    unhandled, before = list[str](), set(threading.enumerate())
    monkeypatch.setattr(threading, "excepthook", lambda said: unhandled.append(str(said.exc_value)))

    monkeypatch.setattr(Tail, "follow", breaks)
    shown = run("run", "positions", "--from", record_in(tmp_path / "in"))
    for thread in set(threading.enumerate()) - before:
        thread.join()
    assert (shown.exit_code, unhandled) == (1, ["a mistake of ours"])
    assert shown.stderr.strip().startswith("Error: ")


def test_a_dataset_that_is_not_written_in_batches_is_refused(run, tmp_path: Path) -> None:
    shown = run("run", "position_breaks", "--from", str(tmp_path))
    assert shown.exit_code == 1
    assert "a sink appends, inserts new rows or merges" in shown.stderr
