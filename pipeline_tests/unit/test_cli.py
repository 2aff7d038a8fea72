"""What every subcommand does with wrong usage, wrong settings and names that nobody declared, before Spark starts."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from pipeline.cli import main
from pipeline_tests.projects import beside_the_project

# What a subcommand needs to get past its usage; those that are not named need nothing.
ARGUMENTS = {
    ("materialize",): ["sightings"],
    ("history",): ["sightings"],
    ("diff",): ["sightings", "--from", "0", "--to", "1"],
    ("sql",): ["select 1"],
    ("manifest", "show"): ["run"],
    ("manifest", "diff"): ["one", "other"],
    ("manifest", "verify"): ["run"],
    ("rerun",): ["run"],
    ("migrate",): ["/lake", "--to", "sightings"],
    ("adopt",): ["sightings"],
    ("restore",): ["sightings", "--version", "0"],
    ("publish",): ["sightings", "--run", "run"],
    ("export",): ["sightings", "--to", "exports", "--format", "csv"],
    ("sink", "run"): ["sightings", "--from", "-"],
    ("sink", "epochs"): ["sightings"],
    ("docs",): ["sink"],
}
# What reads no settings, and so is there if they are wrong.
WITHOUT_SETTINGS = {("docs",)}


def leaves(group: click.Group = main, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name)


LEAVES = tuple(leaves())


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs the command line in a project without tables; a Spark that is asked for could not be reached."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    named = '[tool.pipeline]\ndatasets = "pipeline.assets.shipped:datasets"\n'
    (tmp_path / "pyproject.toml").write_text(named, encoding="utf-8")

    def invoke(*arguments: str, **environment: str) -> Result:
        result = CliRunner().invoke(main, list(arguments), env=environment)
        assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
        return result

    return invoke


def assert_no_faults(faults_of: Callable[[tuple[str, ...]], list[str]]) -> None:
    """Fail with the faults of all subcommands; pytest's own message cuts a long list short."""
    faults = [f"{' '.join(path)}: {fault}" for path in LEAVES for fault in with_crashes(faults_of, path)]
    assert faults == [], "\n  ".join(["", *faults])


def with_crashes(faults_of: Callable[[tuple[str, ...]], list[str]], path: tuple[str, ...]) -> list[str]:
    """The faults of a subcommand; one that ends by a traceback is listed among the others."""
    try:
        return faults_of(path)
    except AssertionError as error:
        return [f"ended by {error}"]


def test_the_arguments_are_those_of_subcommands_that_there_are() -> None:
    assert set(ARGUMENTS) <= set(LEAVES)
    assert len(LEAVES) >= 16


def test_wrong_usage_exits_with_2_and_says_what_is_wrong(run) -> None:
    def faults_of(path: tuple[str, ...]) -> list[str]:
        result = run(*path, *ARGUMENTS.get(path, []), "--nonsense")
        answer = (result.exit_code, "--nonsense" in result.stderr, result.stdout)
        return [] if answer == (2, True, "") else [f"exits with {result.exit_code}, says {result.output!r}"]

    assert_no_faults(faults_of)


def test_help_exits_with_0(run) -> None:
    def faults_of(path: tuple[str, ...]) -> list[str]:
        result = run(*path, "--help")
        answer = (result.exit_code, result.stdout.startswith(f"Usage: main {' '.join(path)}"))
        return [] if answer == (0, True) else [f"exits with {result.exit_code}, says {result.output!r}"]

    assert_no_faults(faults_of)


@pytest.mark.parametrize("verbose", [False, True], ids=["plain", "verbose"])
def test_an_error_exits_with_1_in_one_message_and_shows_a_traceback_only_when_asked(run, verbose: bool) -> None:
    options = ["--verbose"] if verbose else []
    message = [
        "Error: The setting PIPELINE_DRIVER_MEMRY can't be used: it is not a known name",
        "  -> Expected: PIPELINE_DRIVER_MEMORY or another that `pipeline docs reference` lists.",
    ]

    def faults_of(path: tuple[str, ...]) -> list[str]:
        if path in WITHOUT_SETTINGS:
            return []
        result = run(*options, *path, *ARGUMENTS.get(path, []), PIPELINE_DRIVER_MEMRY="2g")
        before, lines = result.stderr.splitlines()[:-2], result.stderr.splitlines()[-2:]
        is_traced = "Traceback (most recent call last):" in before
        answer = (result.exit_code, result.stdout, lines, is_traced, before != [])
        return (
            [] if answer == (1, "", message, verbose, verbose) else [f"exits with {answer[0]}, says {result.output!r}"]
        )

    assert_no_faults(faults_of)


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "sightngs"),
        ("history", "sightngs"),
        ("diff", "sightngs", "--from", "0", "--to", "1"),
        ("sql", "select 1", "--version", "sightngs=1"),
        ("sql", "select 1", "--changes", "sightngs=1.."),
        ("maintain", "vacuum", "airports", "sightngs"),
        ("maintain", "vacuum", "sightngs", "--apply"),
        ("maintain", "checkpoint", "sightngs"),
        ("maintain", "clean-log", "sightngs"),
        ("restore", "sightngs", "--version", "1"),
        ("export", "sightngs", "--to", "exports", "--format", "csv"),
        ("doctor", "sightngs"),
        ("publish", "sightngs", "--run", "run"),
        ("sink", "run", "sightngs", "--from", "-"),
        ("sink", "epochs", "sightngs"),
    ],
    ids=" ".join,
)
def test_a_name_that_nobody_declared_is_answered_with_near_ones_before_spark_is_asked_for(
    run, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    is_any_table = arguments[0] in ("show", "history", "diff", "restore", "export", "doctor")
    other = f", and there is no such table below {tmp_path}/.pipeline/tables" if is_any_table else ""
    assert result.stderr.splitlines() == [
        f"Error: No dataset is declared under the name 'sightngs'{other}.",
        "  -> Did you mean 'sightings'?",
    ]
    assert result.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["pyproject.toml"]


@pytest.mark.parametrize(
    ("windows", "problem"),
    [
        (["sightings=2..1"], "ends before it begins"),
        (["sightings=2"], "is not DATASET=FIRST..LAST"),
        (["sightings=a..2"], "is not DATASET=FIRST..LAST"),
        (["=1..2"], "is not DATASET=FIRST..LAST"),
        (["sightings=1..", "sightings=..2"], "sightings is named twice"),
    ],
)
def test_a_window_of_changes_has_two_ends_in_their_order(run, windows: list[str], problem: str) -> None:
    result = run("sql", "select 1", *(word for window in windows for word in ("--changes", window)))
    assert (result.exit_code, problem in result.stderr) == (2, True)


def test_a_diff_backwards_is_wrong_usage(run) -> None:
    result = run("diff", "sightings", "--from", "2", "--to", "1")
    assert (result.exit_code, "--from must not be after --to" in result.stderr) == (2, True)


@pytest.mark.parametrize("verb", [("manifest", "show"), ("manifest", "verify"), ("rerun",)], ids=" ".join)
def test_a_run_of_which_nothing_is_kept_is_named(run, verb: tuple[str, ...]) -> None:
    result = run(*verb, "nonsense")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0].startswith("Error: There are no records of run 'nonsense' under ")


def test_the_version_is_that_of_the_installed_package(run) -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"pipeline, version {version('delta-first-pipeline')}\n")


def test_a_project_that_names_no_datasets_is_told_where_to_name_them_and_sees_none_that_ship(
    run, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text("", encoding="utf-8")
    result = run("registry")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        "Error: The setting datasets can't be used: no datasets are named",
        '  -> Expected: datasets = "package.module:name" in [tool.pipeline] of pyproject.toml, or PIPELINE_DATASETS.',
    ]


def test_a_collection_may_be_a_module_in_the_project_s_folder(run, tmp_path: Path) -> None:
    """Dagster finds it there; a console script would not by itself."""
    shutil.copy(beside_the_project.__file__, tmp_path / "module_of_the_project.py")
    result = run("registry", PIPELINE_DATASETS="module_of_the_project:datasets")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[2].split()[0] == "east/own"
    missing = run("show", "own", PIPELINE_DATASETS="module_of_the_project:datasets")
    assert missing.stderr.splitlines()[1] == "  -> Did you mean 'east/own'?"
