"""Which subcommands of `dagster` are told the project's module, and when."""

from pathlib import Path

import pytest

from pipeline.dagster_command import home, with_module


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text('[tool.dagster]\nmodule_name = "a.b"\n', encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("words", [("asset", "materialize"), ("asset", "list"), ("job", "execute")], ids=" ".join)
def test_a_subcommand_that_loads_definitions_itself_gets_the_project_s_module(words, project: Path) -> None:
    assert with_module([*words, "--select", "x"], {}, project) == [*words, "-m", "a.b", "--select", "x"]


@pytest.mark.parametrize(
    "pointer", [["-m", "c"], ["--module-name=c"], ["-f", "c.py"], ["--package-name", "c"]], ids=str
)
def test_what_the_user_names_stays(pointer, project: Path) -> None:
    arguments = ["asset", "materialize", *pointer, "--select", "x"]
    assert with_module(arguments, {}, project) == arguments


def test_what_the_environment_names_stays(project: Path) -> None:
    assert with_module(["asset", "list"], {"DAGSTER_MODULE_NAME": "c"}, project) == ["asset", "list"]


@pytest.mark.parametrize(
    "arguments", [["dev"], ["run", "list"], ["asset", "wipe"], [], ["asset", "list", "--help"]], ids=str
)
def test_any_other_subcommand_is_left_alone(arguments, project: Path) -> None:
    assert with_module(arguments, {}, project) == arguments


def test_outside_a_project_nothing_is_added(tmp_path: Path) -> None:
    assert with_module(["asset", "list"], {}, tmp_path) == ["asset", "list"]


def test_the_instance_is_the_project_s_where_none_is_named(project: Path) -> None:
    assert home({}, project) is None
    (project / "dagster.yaml").touch()
    assert home({}, project) == str(project)
    assert home({"DAGSTER_HOME": "/elsewhere"}, project) == "/elsewhere"


def test_a_folder_with_an_instance_and_no_definitions_is_not_taken_for_a_project(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").touch()
    assert home({}, tmp_path) is None
