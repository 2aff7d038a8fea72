"""What a message tells to do next can be done: its commands parse, and the names in it stand for something.

The texts are those of every error, and every text in the code that names a command.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pipeline import dataset as declarations
from pipeline import orchestration
from pipeline.cli import main
from pipeline.delta.sink.receiver import SinkSettings
from pipeline.settings import Settings, SparkSettings, setting_names
from pipeline_tests.unit.test_errors import CONCRETE, built

PACKAGE = Path(orchestration.__file__).parents[1]
# What is behind a verb in a message may be one of its arguments; a word is not.
ARGUMENT = re.compile(r"--[a-z][a-z-]*|-|<[^>]+>|\d+|[A-Z]{3,}|\{\}")
COMMAND = re.compile(r"(?<![\w./-])pipeline ((?:[a-z]+ )*[^\n`;,()]*)")
# Of Spark, pandas, polars and Java, whose names are not ours.
OF_OTHERS = {"PYSPARK_PYTHON",
    "HTTPS_PROXY", "JAVA_HOME", "SPARK_REMOTE", "convert_timezone", "java_method", "replace_time_zone", "rename_axis",
    "spark_conf",
    "to_timestamp_ltz", "to_timestamp_ntz", "try_cast", "try_divide", "tz_localize",
}  # fmt: skip
# Names in a text that is about what the user's own project has.
OF_THE_PROJECT = {"source_files", "dead_letters"}


def texts_in(source: str) -> Iterator[str]:
    """The texts of a module that are no docstrings; what is filled in is shown as `{}`."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings | inside:
            yield re.sub(r"\{[a-z_]+\}", "{}", node.value)


def commands_in(text: str) -> Iterator[list[str]]:
    """The commands that a text names, each with the arguments behind it."""
    for found in COMMAND.finditer(text):
        words = found.group(1).split()
        group: click.Command = main
        taken: list[str] = []
        for word in words:
            bare = word.rstrip(".:'\"")
            if isinstance(group, click.Group):
                below = group.get_command(click.Context(group), bare)
                if below is None:
                    break
                group = below
                taken.append(bare)
            elif ARGUMENT.fullmatch(bare):
                taken.append("7" if bare in ("{}",) else bare)
            else:
                break
            if bare != word:  # the sentence goes on without it
                break
        if taken:
            yield taken


def parsed(arguments: list[str]) -> str | None:
    """What the command line has against these arguments; None where it takes them. Nothing is run."""
    command: click.Command = main
    context = click.Context(main, info_name="pipeline")
    rest = arguments
    while isinstance(command, click.Group) and rest:
        name, found, rest = command.resolve_command(context, list(rest))
        assert found is not None
        command = found
        context = click.Context(command, info_name=name, parent=context)
    if isinstance(command, click.Group):
        return None
    try:
        command.make_context("pipeline", rest, parent=context.parent)
    except click.MissingParameter:
        return None  # a text that speaks of the command as such
    except click.UsageError as error:
        return error.format_message()
    return None


TEXTS = {
    **{cls.__name__: [str(built(cls)), str(built(cls, only_required=True))] for cls in CONCRETE},
    **{
        str(path.relative_to(PACKAGE)): list(texts_in(path.read_text(encoding="utf-8")))
        for path in sorted(PACKAGE.rglob("*.py"))
    },
}


def test_every_command_in_a_message_is_one_of_the_command_line_with_arguments_that_it_takes() -> None:
    found = {
        (where, " ".join(command)): parsed(command)
        for where, texts in TEXTS.items()
        for text in texts
        for command in commands_in(text)
    }
    assert {place: problem for place, problem in found.items() if problem is not None} == {}
    assert {command.split()[0] for _, command in found} >= {"conform", "doctor", "history", "materialize", "restore"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("pipeline restore <dataset> --version 4 --aply.", "No such option"),
        ("pipeline maintain vacuum --by-force", "No such option"),
    ],
)
def test_a_command_that_is_none_is_found(text: str, problem: str) -> None:
    (command,) = commands_in(text)
    assert problem in str(parsed(command))


def known_names() -> set[str]:
    classes = [value for value in vars(declarations).values() if dataclasses.is_dataclass(value)]
    fields = {f.name for cls in (*classes, SinkSettings, Settings, SparkSettings) for f in dataclasses.fields(cls)}
    return fields | set(setting_names()) | set(orchestration.__all__) | OF_OTHERS | OF_THE_PROJECT


def test_every_argument_and_setting_in_a_remedy_exists() -> None:
    def names(cls: type) -> set[str]:
        remedy = re.sub(r"<[^>]*>|delta\.\S*", " ", f"{built(cls).remedy()} {built(cls, only_required=True).remedy()}")
        return set(re.findall(r"\b[A-Za-z]+(?:_[A-Za-z]+)+\b", remedy))

    found = {cls.__name__: names(cls) - known_names() for cls in CONCRETE}
    assert {name: unknown for name, unknown in found.items() if unknown} == {}
