"""README and the pages of `pipeline docs`: complete, true in every name that they use, and their code runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import click
import pytest
from click.testing import CliRunner, Result
from dagster import Definitions

from pipeline import errors
from pipeline.cli import main
from pipeline.cli.docs import TOPICS, page, summary
from pipeline.orchestration import metadata_keys
from pipeline.settings import load_settings, setting_names
from pipeline.settings.load import tomllib
from pipeline_tests import reference
from pipeline_tests.children import loading
from pipeline_tests.documents import README, REPOSITORY, blocks, documents

FOLDER = reference.PATH.parent
TEXTS = documents()
KEYS = [value for name, value in vars(metadata_keys).items() if name.isupper()]
WITH_PYTHON = [name for name, text in TEXTS.items() if blocks(text, "python")]
WITH_TOML = [name for name, text in TEXTS.items() if blocks(text, "toml")]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs the command line in a project whose settings can't be used."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.pipeline]\nnonsense = 1\n", encoding="utf-8")
    return lambda *arguments: CliRunner().invoke(main, ["docs", *arguments], catch_exceptions=False)


# --- the command ------------------------------------------------------------------------------------------------------


def test_without_a_topic_every_page_is_listed_with_what_it_is_about(run: Callable[..., Result]) -> None:
    done = run()
    assert done.exit_code == 0
    words = " ".join(done.stdout.split())
    assert [topic for topic in TOPICS if f"{topic} {summary(page(topic))}" not in words] == []
    assert done.stdout.splitlines()[0].split()[0] == TOPICS[0]


@pytest.mark.parametrize("topic", TOPICS)
def test_a_page_is_printed_as_it_stands(run: Callable[..., Result], topic: str) -> None:
    done = run(topic)
    assert (done.exit_code, done.stdout) == (0, (FOLDER / f"{topic}.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("topic", "remedy"),
    [
        ("sinks", "Did you mean sink?"),
        ("Quality", "Did you mean quality?"),
        ("xyz", f"The pages are: {', '.join(TOPICS)}."),
        ("../docs/sink", None),
        ("", f"The pages are: {', '.join(TOPICS)}."),
    ],
)
def test_a_page_that_there_is_not_is_answered_with_near_ones(
    run: Callable[..., Result], topic: str, remedy: str | None
) -> None:
    done = run(topic)
    assert (done.exit_code, done.stdout) == (1, "")
    first, second = done.stderr.splitlines()
    assert first == f"Error: The documentation has no page {topic!r}."
    assert remedy is None or second == f"  -> {remedy}"


def test_a_page_is_printed_without_loading_spark_or_dagster(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", loading.__name__, "help", "docs", "sink"],
        cwd=tmp_path, env={"HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["status"], answer["heavy"], answer["text"]) == (0, [], page("sink"))


# --- the pages --------------------------------------------------------------------------------------------------------


def test_every_page_is_in_the_list_in_the_readme_and_in_the_wheel() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{topic}.md" for topic in TOPICS}
    linked = re.findall(r"^\| \[([\w-]+)\]\(pipeline/docs/([\w-]+)\.md\)", TEXTS[README], re.MULTILINE)
    assert linked == [(topic, topic) for topic in TOPICS]
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    assert "docs/*.md" in project["tool"]["setuptools"]["package-data"]["pipeline"]


def test_every_page_begins_with_its_title_and_a_line_for_the_list() -> None:
    heads = {topic: page(topic).split("\n\n")[:2] for topic in TOPICS}
    assert [topic for topic, (title, _) in heads.items() if not re.fullmatch(r"# \S[^\n]*", title)] == []
    assert [topic for topic, (_, line) in heads.items() if "\n" in line or not line.endswith(".")] == []


def test_the_reference_is_what_the_code_says() -> None:
    assert reference.PATH.read_text(encoding="utf-8") == reference.reference(), (
        "python -m pipeline_tests.reference writes it"
    )


def test_the_reference_names_every_error_setting_and_key() -> None:
    text = TEXTS["reference"]
    names = [name for name in vars(errors) if name.endswith("Error")]
    assert [name for name in names if name != "PipelineError" and f"#### `{name}`" not in text] == []
    assert [name for name in setting_names() if f"- `{name}`: " not in text] == []
    assert [name for name in KEYS if f"- `{name}" not in text] == []


def test_every_metadata_key_is_written_once_in_the_code() -> None:
    literal = re.compile(r"""["'](?:delta|dagster|pipeline)/[a-z_]*[a-z]["']""")
    found = {
        str(path.relative_to(REPOSITORY)): literal.findall(path.read_text(encoding="utf-8"))
        for path in (REPOSITORY / "pipeline").rglob("*.py")
        if path.name != "metadata_keys.py"
    }
    assert {path: literals for path, literals in found.items() if literals} == {}
    assert len(KEYS) == len(set(KEYS)) == len(reference.keys_with_meanings(Path(metadata_keys.__file__).read_text()))


# --- the names in their text ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEXTS)
def test_every_error_setting_key_and_command_that_a_page_names_is_one(name: str) -> None:
    text = TEXTS[name]
    wrong = [error for error in re.findall(r"`(\w+Error)\b", text) if not hasattr(errors, error)]
    wrong += [setting for setting in re.findall(r"\bPIPELINE_[A-Z_]+", text) if setting not in setting_names()]
    keys = re.findall(r"`((?:delta|pipeline|dagster)/[a-z_]+)[`:]", text)
    wrong += [key for key in keys if key.replace(metadata_keys.COMMIT_PREFIX, "delta/") not in KEYS]
    verbs = main.list_commands(click.Context(main))
    wrong += [verb for verb in re.findall(r"`pipeline ([a-z]+)", text) if verb not in verbs]
    assert wrong == []


@pytest.mark.parametrize("name", TEXTS)
def test_every_page_that_a_text_points_at_is_one(name: str) -> None:
    pages = re.findall(r"\bthe page \*([\w-]+)\*", TEXTS[name])
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", TEXTS[name])
    assert [topic for topic in pages if topic not in TOPICS] == []
    assert [link for link in links if not (REPOSITORY / link).is_file()] == []


# --- their code -------------------------------------------------------------------------------------------------------


def module_of(name: str) -> str:
    """The Python blocks of a page, which together are a module."""
    return "\n\n".join(blocks(TEXTS[name], "python"))


@pytest.mark.parametrize("name", WITH_PYTHON)
def test_the_python_of_a_page_is_a_module_that_can_be_imported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Declarations check themselves when they are made, assets when they are decorated, definitions when asked."""
    module = ModuleType(f"page_{name.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(module_of(name), f"{name}.md", "exec", dont_inherit=True), vars(module))
    for value in list(vars(module).values()):
        if isinstance(value, Definitions):
            Definitions.validate_loadable(value)


@pytest.mark.parametrize("name", WITH_PYTHON)
def test_the_python_of_a_page_has_no_unknown_name_and_no_import_too_much(name: str) -> None:
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "E5,E9,F", "--line-length", "120"]
    done = subprocess.run(
        [*command, "--stdin-filename", f"{name}.py", "-"], input=module_of(name), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@pytest.mark.exhaustive
def test_the_python_of_all_pages_is_typed(tmp_path: Path) -> None:
    files = []
    for name in WITH_PYTHON:
        files.append(tmp_path / f"page_{name.replace('-', '_')}.py")
        files[-1].write_text(module_of(name), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--allow-untyped-decorators",
        "--no-warn-return-any",
        *map(str, files),
    ]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", WITH_TOML)
def test_the_settings_that_a_page_shows_can_be_read(name: str, tmp_path: Path) -> None:
    for text in blocks(TEXTS[name], "toml"):
        (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
        assert load_settings({}, tmp_path) != load_settings({}, tmp_path.parent)
