"""The reference page of the documentation, made from the code.

`python -m pipeline_tests.reference` writes it; a test compares what it would write with what is there. Here belongs
what the page says and in which order. Every meaning is a docstring, or a click help text, beside what it explains.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

import click

import pipeline
from pipeline import dataset as declarations
from pipeline import orchestration
from pipeline.cli import main
from pipeline.delta.sink import DeltaSink, SinkSettings
from pipeline.errors import PipelineError, commits, frames, machine, requests, sinks, storage, tables
from pipeline.errors import declarations as not_declared
from pipeline.orchestration import metadata_keys
from pipeline.settings import PREFIX, LogRequests, Settings, SparkSettings, StorageOptions, load_settings, setting_names

PATH = Path(str(pipeline.__file__)).parent / "docs" / "reference.md"
HEAD = """\
# Reference

Every command, setting, part of a declaration, function, metadata key and error, made from the code.

This page is generated: `python -m pipeline_tests.reference` writes it.
"""
# The words of a declaration, in the order of the page.
DECLARED = (
    "Dataset", "Append", "Replace", "InsertNew", "Merge", "Changelog", "Tombstones", "History", "ErrorIfExists",
    "Ignore", "Check", "NotNull", "Unique", "References", "Spans", "Expect", "RowCount", "SchemaCheck", "FreshWithin",
    "FreshByCron", "Features", "StoragePolicy", "SchemaPolicy", "Export",
)  # fmt: skip
# The modules of errors, in the order of the page.
ERRORS = (not_declared, machine, storage, tables, frames, commits, sinks, requests)
PROJECT, HOME = "/project", "/home-of-the-user"


def reference() -> str:
    """The text of the page."""
    sections = {
        "Commands": _commands(),
        "Settings": _settings(),
        "Declarations": _declarations(),
        "Functions": _functions(),
        "Metadata": _metadata(),
        "Errors": _errors(),
    }
    text = "\n".join([HEAD, *(line for title, lines in sections.items() for line in (f"## {title}", "", *lines, ""))])
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


# --- commands ---------------------------------------------------------------------------------------------------------


def _commands() -> Iterator[str]:
    yield "Every command takes `--help`. The exit status is 1 after an error of the pipeline, and 2 for wrong usage."
    yield ""
    yield from _options(main)
    yield ""
    for words, command in _leaves(main, ("pipeline",)):
        arguments = [_metavar(param) for param in command.params if isinstance(param, click.Argument)]
        yield f"### `{' '.join([*words, *arguments])}`"
        yield ""
        yield from _prose(command.help or "")
        yield ""
        options = list(_options(command))
        yield from [*options, ""] if options else []


def _leaves(group: click.Group, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _leaves(command, (*words, name))
        elif command is not None:
            yield (*words, name), command


def _options(command: click.Command) -> Iterator[str]:
    for param in command.params:
        if isinstance(param, click.Option):
            spelt = ", ".join(param.opts) + ("" if param.is_flag else f" {_metavar(param)}")
            default = f" Default: `{param.default}`." if param.show_default else ""
            yield from _item(f"`{spelt}`", f"{param.help or ''}{default}")


def _metavar(param: click.Parameter) -> str:
    if param.metavar is not None:
        return param.metavar
    name = str(param.name).upper()
    return name if param.required or isinstance(param, click.Option) else f"[{name}]"


# --- settings ---------------------------------------------------------------------------------------------------------


def _settings() -> Iterator[str]:
    yield from _prose(
        "Environment variables, or the same names in lower case and without the prefix under `[tool.pipeline]` of "
        "`pyproject.toml`; the environment wins. A name that is not listed is an error."
    )
    yield ""
    default = load_settings({"HOME": HOME}, Path(PROJECT))
    meanings = _arguments_of(Settings) | _arguments_of(SparkSettings)
    for variable in setting_names():
        field = variable.removeprefix(PREFIX).removeprefix("SPARK_").lower()
        value = getattr(default, field) if hasattr(default, field) else getattr(default.spark, field)
        yield from _item(f"`{variable}`", f"{_sentence(meanings[field])} Default: {_shown_setting(value)}.")
    yield from _item("`[tool.pipeline.spark_conf]`", f"{_sentence(meanings['conf'])} Not a variable.")
    of_bucket, of_logs = _arguments_of(StorageOptions), _arguments_of(LogRequests)
    table = '[tool.pipeline.storage."URI"]'
    yield from _item(f"`{table}`", f"{_sentence(meanings['storage'])} {_sentence(of_bucket['options'])}")
    options = [f"`{name}`: {meaning}" for name, meaning in of_logs.items()]
    yield from _item(f"`{table[:-1]}.log]`", " ".join(map(_sentence, [of_bucket["log"], *options])))


def _shown_setting(value: Any) -> str:
    if value is None or value == ():
        return "none"
    return f"`{str(value).replace(f'{PROJECT}/', '').replace(HOME, '~')}`"


# --- declarations -----------------------------------------------------------------------------------------------------


def _declarations() -> Iterator[str]:
    named = "`Check`, `NotNull`, `Unique`, `References` and `Expect`"
    yield f"From `pipeline.dataset`; all but the first fields of {named} by name."
    yield ""
    for name in DECLARED:
        yield from _parts(getattr(declarations, name))
    yield "From `pipeline.delta.sink`:"
    yield ""
    yield from _parts(SinkSettings)


def _parts(declared: type) -> Iterator[str]:
    yield f"### `{declared.__name__}`"
    yield ""
    yield from _prose(_text_of(declared))
    yield ""
    meanings = _arguments_of(declared)
    fields = dataclasses.fields(declared)
    for field in fields:
        meaning = meanings.get(field.name)
        default = "required" if field.default is dataclasses.MISSING else f"default `{_shown(field.default)}`"
        kind = _spelt_out(str(field.type), sys.modules[declared.__module__])
        yield from _item(f"`{field.name}: {kind}`, {default}", "" if meaning is None else _sentence(meaning))
    yield from [""] if fields else []


def _spelt_out(annotation: str, module: ModuleType) -> str:
    """An annotation with the values in place of the name of a `Literal`."""

    def values(name: re.Match[str]) -> str:
        found = getattr(module, name[0], None)
        return " | ".join(map(repr, get_args(found))) if get_origin(found) is Literal else name[0]

    return re.sub(r"\w+", values, annotation)


def _shown(value: Any) -> str:
    if dataclasses.is_dataclass(value) and value == type(value)():
        return f"{type(value).__name__}()"
    return f"{value:_}" if type(value) is int else repr(value)


# --- functions --------------------------------------------------------------------------------------------------------


def _functions() -> Iterator[str]:
    yield "From `pipeline.orchestration`:"
    yield ""
    for name in orchestration.__all__:
        yield from _callable(name, getattr(orchestration, name))
    yield "From `pipeline.delta.sink`, the methods of a `DeltaSink`:"
    yield ""
    for name, method in vars(DeltaSink).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            yield from _callable(name, method)


def _callable(name: str, called: Any) -> Iterator[str]:
    """A function by its call, or a class by its name."""
    awaited = "async " if inspect.iscoroutinefunction(called) else ""
    yield f"### `{awaited}{name}{_call(called) if inspect.isfunction(called) else ''}`"
    yield ""
    yield from _prose(_text_of(called))
    yield ""
    meanings = _arguments_of(called)
    for parameter, meaning in meanings.items():
        yield from _item(f"`{parameter}`", _sentence(meaning))
    yield from [""] if meanings else []


def _call(function: Any) -> str:
    """The parameters without their types."""
    bare = inspect.Parameter.empty
    parameters = [
        parameter.replace(annotation=bare)
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self"
    ]
    return str(inspect.Signature(parameters))


# --- metadata ---------------------------------------------------------------------------------------------------------


def _metadata() -> Iterator[str]:
    yield "What Dagster shows of assets, runs and checks. Names with `dagster/` are Dagster's own."
    yield ""
    source = inspect.getsource(metadata_keys)
    headings = _headings(source)
    for line, (name, meaning) in keys_with_meanings(source).items():
        yield from headings.pop(line, ())
        shown = f"{name}…" if name.endswith("_") else name
        yield from _item(f"`{shown}`", meaning)


def keys_with_meanings(source: str) -> dict[int, tuple[str, str]]:
    """By line of the module, the value of each constant and the text below it."""
    found = {}
    for statement, below in pairwise(ast.parse(source).body):
        if isinstance(statement, ast.Assign) and isinstance(below, ast.Expr):
            meaning = " ".join(ast.literal_eval(below.value).split())
            found[statement.lineno] = (ast.literal_eval(statement.value), meaning)
    return found


# --- errors -----------------------------------------------------------------------------------------------------------


def _errors() -> Iterator[str]:
    yield from _prose(
        "All are in `pipeline.errors` and are a `PipelineError`, or a group of it that is named in brackets. "
        "*Remedy* is what the error itself suggests; a word in `<>` is one of its fields. If a write raises an error, "
        "no row was written to its table, unless the error says otherwise."
    )
    yield ""
    for module in ERRORS:
        yield f"### {module.__name__.rpartition('.')[2].capitalize()}"
        yield ""
        yield from _prose(_text_of(module))
        yield ""
        for kind in _error_types(module):
            yield from _error(kind)


def _error(kind: type[PipelineError]) -> Iterator[str]:
    group = kind.__bases__[0]
    yield f"#### `{kind.__name__}`" + ("" if group is PipelineError else f" (`{group.__name__}`)")
    yield ""
    yield from _prose(_text_of(kind))
    yield ""
    names = [f"`{field.name}`" for field in dataclasses.fields(kind)]
    yield from _item("Fields", ", ".join(names) + ".")
    remedy = _remedy(kind)
    yield from _item("Remedy", remedy) if remedy else ()
    if kind.retryable:
        yield "- Retryable: the same call may succeed at once."
    elif kind.may_pass:
        yield "- May pass: the same call may succeed later, when what is outside has changed."
    yield ""


def _error_types(module: ModuleType) -> list[type[PipelineError]]:
    """The errors of a module in its order."""
    return [
        kind
        for kind in vars(module).values()
        if inspect.isclass(kind) and issubclass(kind, PipelineError) and kind.__module__ == module.__name__
    ]


def _remedy(kind: type[PipelineError]) -> str:
    """The template of the remedy, or what the method that makes it says of it."""
    if "remedy" in vars(kind):
        return inspect.cleandoc(str(kind.remedy.__doc__))
    return re.sub(r"\{(\w+)(?:![a-z])?\}", r"<\1>", kind.next_step)


# --- texts ------------------------------------------------------------------------------------------------------------


def _headings(source: str) -> dict[int, Iterable[str]]:
    """By the line of the first statement below it, each comment that begins a section, as a heading."""
    lines = source.splitlines()
    found: dict[int, Iterable[str]] = {}
    for number, line in enumerate(lines, 1):
        title = re.fullmatch(r"# --- (.+?) -+", line)
        if title is not None:
            below = next(n for n in range(number + 1, len(lines) + 1) if lines[n - 1].strip())
            found[below] = ("", f"### {title[1][0].upper()}{title[1][1:]}", "")
    return found


def _text_of(kind: Any) -> str:
    """The docstring without its sections."""
    return re.split(r"\n\n(?:Args|Raises):\n", inspect.cleandoc(str(kind.__doc__)))[0]


def _arguments_of(kind: Any) -> dict[str, str]:
    """The meanings in the section `Args` of a docstring, by name."""
    section = re.search(r"\n\nArgs:\n(.*?)(?:\n\n|$)", inspect.cleandoc(str(kind.__doc__)), re.DOTALL)
    if section is None:
        return {}
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section[1], re.MULTILINE)
    return {name: " ".join(meaning.split()) for name, meaning in found}


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _prose(text: str) -> Iterator[str]:
    paragraphs = [_wrapped(" ".join(part.split())) for part in inspect.cleandoc(text).split("\n\n")]
    yield from "\n\n".join(paragraphs).splitlines()


def _item(name: str, meaning: str) -> Iterator[str]:
    yield from _wrapped(f"- {name}: {meaning}" if meaning else f"- {name}", "  ").splitlines()


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    PATH.write_text(reference(), encoding="utf-8")
