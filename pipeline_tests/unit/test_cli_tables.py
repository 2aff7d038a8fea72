"""The commands that answer from the log of a table on this machine: in this process, with no Spark to be reached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from pipeline.cli import main
from pipeline.delta.log.commits import commit_file
from pipeline_tests.projects import conform_datasets

NO_SPARK = {"JAVA_HOME": "/nowhere", "SPARK_REMOTE": "sc://127.0.0.1:1"}
ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "text": ["a", "b", None]})


class Project:
    """A project of the dataset `plain`, which has a table, and of `never`; two more tables lie below its root."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tables"
        self.environment = {
            "PIPELINE_ROOT": str(self.root), "PIPELINE_DATASETS": f"{conform_datasets.__name__}:datasets", **NO_SPARK,
        }  # fmt: skip
        self.put("plain", ROWS)
        self.put("plain", ROWS.slice(0, 1))
        self.put("loose", ROWS, partition_by=["text"])
        self.put("in/depth", ROWS)

    def put(self, name: str, rows: pa.Table, **options: Any) -> None:
        deltalake.write_deltalake(self.root / name, rows, mode="append", **options)

    def run(self, *arguments: str, status: int = 0) -> Result:
        result = CliRunner().invoke(main, list(arguments), env=self.environment, catch_exceptions=False)
        assert result.exit_code == status, result.output
        return result

    def json(self, *arguments: str, status: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", status=status).stdout)

    def pairs(self, *arguments: str) -> dict[str, str]:
        """The names and values above the first empty line."""
        lines = self.run(*arguments).stdout.split("\n\n")[0].splitlines()
        return {line[:12].strip(): line[12:].strip() for line in lines}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)


def test_every_dataset_is_shown_and_tables_of_which_nothing_is_declared_are_named(project: Project) -> None:
    result = project.run("show")
    assert [line.split()[:2] for line in result.stdout.splitlines()[2:]] == [["plain", "differs"], ["never", "never"]]
    said = f"Not declared below {project.root}: in/depth, loose; pipeline show TABLE shows one.\n"
    assert result.stderr == said
    plain, never = project.json("show")
    size = sum(path.stat().st_size for path in (project.root / "plain").glob("*.parquet"))
    assert (plain["rows"], plain["table"]["files"], plain["table"]["bytes"], plain["partitions"]) == (4, 2, size, None)
    assert (plain["last_write"]["version"], plain["health"]["commits_since_checkpoint"]) == (1, 2)
    assert (never["standing"], never["table"]) == ("never written", None)


@pytest.mark.parametrize("name", ["loose", "tables/loose", "{root}/loose", "file://{root}/loose"])
def test_a_table_without_a_declaration_is_named_by_its_path(project: Project, name: str) -> None:
    pairs = project.pairs("show", name.replace("{root}", str(project.root)))
    assert pairs["dataset"] == "loose"
    assert (pairs["state"], pairs["rows"], pairs["partitions"]) == ("not declared", "3", "3 by text")


def test_the_path_of_a_dataset_s_table_names_the_dataset(project: Project) -> None:
    assert project.pairs("show", str(project.root / "plain"))["state"] == "differs from declaration"
    assert project.pairs("show", "in/depth")["dataset"] == "in/depth"


@pytest.mark.parametrize(
    "arguments",
    [("show", "lose"), ("history", "lose"), ("doctor", "lose"), ("diff", "lose", "--from", "0", "--to", "1"),
     ("restore", "lose", "--version", "0")],
    ids=lambda arguments: arguments[0],
)  # fmt: skip
def test_a_name_under_which_nothing_lies_is_answered_with_near_ones(
    project: Project, arguments: tuple[str, ...]
) -> None:
    said = project.run(*arguments, status=1).stderr.splitlines()
    assert said == [
        f"Error: No dataset is declared under the name 'lose', and there is no such table below {project.root}.",
        "  -> Did you mean 'loose'?",
    ]
    far = project.run("show", "nothing_like_it", status=1).stderr
    assert "Declared datasets and tables: plain, never, in/depth, loose." in far


def test_the_history_is_that_of_the_log(project: Project) -> None:
    newest, first = project.json("history", "plain")
    assert [(entry["version"], entry["operation"], entry["files_added"]) for entry in (newest, first)] == [
        (1, "WRITE", None), (0, "WRITE", None),
    ]  # fmt: skip
    assert newest["metrics"]["num_added_files"] == "1"
    assert newest["engine"].startswith("delta-rs")
    assert [entry["version"] for entry in project.json("history", "plain", "--limit", "1")] == [1]
    assert [entry["version"] for entry in project.json("history", "in/depth")] == [0]
    never = project.run("history", "never", status=1)
    assert "Dataset 'never' has no table yet" in never.stderr


def test_the_plan_is_shown_and_its_status_says_that_tables_differ(project: Project) -> None:
    shown = project.run("conform", "plan", status=3)
    assert "set property: property delta.enableDeletionVectors: not set -> true" in shown.stdout
    assert shown.stderr == "never: no table yet\n"
    (plan,) = project.json("conform", "plan", "plain", status=3)
    assert [step["step"] for step in plan["steps"]] == ["set property", "set property"]


def test_a_plan_that_brings_sql_asks_spark_and_no_other_does(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(project.environment, "PIPELINE_DATASETS", f"{conform_datasets.__name__}:checked")
    asked = project.run("conform", "plan", status=1)
    assert "No Spark session on sc://127.0.0.1:1" in asked.stderr


def test_rows_of_files_without_statistics_are_those_of_their_footers(project: Project) -> None:
    entry = Path(commit_file(str(project.root / "plain"), 0))
    lines = [json.loads(line) for line in entry.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        line.get("add", {}).pop("stats", None)
    entry.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert project.json("show", "plain")["rows"] == 4


def test_a_damaged_log_is_an_error_of_one_table_among_others(project: Project) -> None:
    Path(commit_file(str(project.root / "plain"), 1)).write_text("{ no JSON", encoding="utf-8")
    result = project.run("show", status=1)
    assert [line.split()[:2] for line in result.stdout.splitlines()[2:]] == [
        ["plain", "unreadable"],
        ["never", "never"],
    ]
    for verb in (("history", "plain"), ("conform", "plan", "plain")):
        assert "is damaged" in project.run(*verb, status=1).stderr


def test_the_doctor_looks_at_a_table_without_a_declaration(project: Project) -> None:
    (found,) = project.json("doctor", "loose")
    assert (found["dataset"], found["files"], found["healthy"]) == ("loose", 3, True)
    next((project.root / "loose").glob("*/*.parquet")).unlink()
    (found,) = project.json("doctor", "tables/loose", status=1)
    assert [finding["kind"] for finding in found["findings"]] == ["missing file"]


def test_a_process_without_java_answers(project: Project) -> None:
    """The environment of this process has none either way, but a JVM of its own could still be found by a path."""
    environment = os.environ | project.environment | {"PATH": "/nowhere", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", "from pipeline.cli import main; main()"]
    for arguments, status in ((("show",), 0), (("history", "plain"), 0), (("conform", "plan"), 3)):
        done = subprocess.run(
            [*command, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
        )  # fmt: skip
        assert (done.returncode, done.stdout != "") == (status, True), done.stderr


def test_a_log_is_cleaned_without_spark_and_the_dry_run_shows_what_is_removed(project: Project) -> None:
    log = project.root / "plain" / "_delta_log"
    deltalake.DeltaTable(log.parent).create_checkpoint()
    for path in log.iterdir():
        os.utime(path, (time.time() - 40 * 86_400,) * 2)
    entry = log / f"{0:020d}.json"
    size = entry.stat().st_size

    (dry,) = project.json("maintain", "clean-log", "plain")
    assert (dry["applied"], dry["files"], dry["bytes"], dry["kept_from"]) == (False, [entry.name], size, 1)
    shown = project.run("maintain", "clean-log")
    assert shown.stdout.splitlines() == [
        "plain (version 1): 1 to remove (1.2 kB); versions 1 to 1 can be read afterwards", f"  {entry.name}",
        "Nothing was removed; --apply removes.",
    ]  # fmt: skip
    assert shown.stderr == "never: no table yet\n"
    assert entry.exists()

    applied = project.json("maintain", "clean-log", "plain", "--apply")
    assert applied == [dry | {"applied": True}]
    assert not entry.exists()
    assert project.pairs("show", "plain")["rows"] == "4"
