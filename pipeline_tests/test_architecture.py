"""The borders inside `pipeline/`, held by a walk over its syntax trees.

Each rule is a function from a module to the list of its faults. One test a rule names every module that breaks it, and
each rule has a made-up module below that does: a rule that can't fail holds nothing.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from pipeline import errors

ROOT = Path(__file__).parents[1]
PACKAGE = "pipeline"

# A module or package directly under `pipeline`, and its layer. Imports go to the same layer or a lower one.
LAYERS = {
    "errors": 0,
    "dataset": 1,
    "settings": 1,
    "delta": 2,
    "orchestration": 4,
    "assets": 5,
    "definitions": 6,
    "cli": 6,
}
# Inside layer 1 each part says what it may import; `errors` is a layer below.
DECLARATIONS = {
    "dataset": {"dataset", "errors"},
    "settings": {"settings", "errors"},
}
# The packages of `delta`: a module imports only from its own package and from those before it.
DELTA_PACKAGES = (
    "storage",
    "spark",
    "server",
    "sql",
    "log",
    "frames",
    "table",
    "read",
    "write",
    "inspect",
    "maintain",
    "export",
    "migrate",
    "stream",
    "sink",
)
FOLDER_MODULES = 12
# The command line has a file for each verb.
FOLDERS_OF_ANY_SIZE = frozenset({"cli"})
WITHOUT_DAGSTER = 3  # the highest layer that works where Dagster is not installed or down; the command line needs it
SECOND_HOMES = frozenset({"utils", "util", "helpers", "helper", "common"})
MODULE_LINES = 400
FUNCTION_LINES = 40

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Import:
    """One imported module by its full name; `inside` is the function that the import stands in."""

    target: str
    line: int
    inside: str | None = None

    @property
    def top(self) -> str:
        return self.target.partition(".")[0]

    @property
    def unit(self) -> str | None:
        """The part of our package that is imported: `delta` for `pipeline.delta.sql`, an empty text for itself."""
        return self.target.removeprefix(PACKAGE).lstrip(".").partition(".")[0] if self.top == PACKAGE else None


@dataclass(frozen=True)
class Module:
    """A module of the package, by its dotted name, with its text; `known` are the names of all modules."""

    name: str
    source: str
    is_package: bool = False
    known: frozenset[str] = frozenset()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @property
    def unit(self) -> str:
        return self.name.removeprefix(PACKAGE).lstrip(".").partition(".")[0]

    @property
    def delta_parts(self) -> list[str]:
        """The parts of the name below `delta`."""
        return self.name.removeprefix(f"{PACKAGE}.delta.").split(".")

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        return tuple(dict.fromkeys(self._imports(self.tree, None)))

    def _imports(self, node: ast.AST, inside: str | None) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (Import(alias.name, child.lineno, inside) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = self._base(child)
                for alias in child.names:
                    full = f"{base}.{alias.name}"
                    yield Import(full if full in self.known else base, child.lineno, inside)
            yield from self._imports(child, child.name if isinstance(child, Function) else inside)

    def _base(self, node: ast.ImportFrom) -> str:
        """The absolute name of the module that `from … import` names."""
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        here = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*here, *([node.module] if node.module else [])])

    @property
    def functions(self) -> Iterator[Function]:
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))


def load_modules() -> tuple[Module, ...]:
    """Every module of the package as it stands on disk."""
    paths = sorted((ROOT / PACKAGE).rglob("*.py"))
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths}
    known = frozenset(names.values())
    modules = tuple(
        Module(name, path.read_text(encoding="utf-8"), path.name == "__init__.py", known)
        for path, name in names.items()
    )
    # Before any test: a finalizer of what a test has left may run inside `ast.parse`, which Python 3.11 can't bear.
    assert all(isinstance(module.tree, ast.Module) for module in modules)
    return modules


# --- the rules --------------------------------------------------------------------------------------------------------


def faults_of_place(module: Module) -> list[str]:
    """Every module has a place in the layers, and inside `delta` one in a package."""
    if module.name == PACKAGE:
        return []
    if module.unit not in LAYERS:
        return [f"{module.unit} is in no layer"]
    if module.unit == "delta" and module.name != f"{PACKAGE}.delta":
        package, *rest = module.delta_parts
        if package not in DELTA_PACKAGES or len(rest) > 1 or not (rest or module.is_package):
            return [f"{'.'.join(module.delta_parts)} is in no package of delta"]
    return []


def faults_of_layers(module: Module) -> list[str]:
    """Imports go to the same layer or a lower one; the package itself imports nothing, and nobody imports from it."""
    layer = LAYERS.get(module.unit, -1)
    return [
        f"line {i.line}: imports {i.target}"
        for i in module.imports
        if i.unit is not None and (not i.unit or LAYERS.get(i.unit, 99) > layer)
    ]


def faults_of_declarations(module: Module) -> list[str]:
    """Inside layer 1 a part imports only what its line allows."""
    allowed = DECLARATIONS.get(module.unit)
    if allowed is None:
        return []
    return [
        f"line {i.line}: imports {i.target}" for i in module.imports if i.unit is not None and i.unit not in allowed
    ]


def faults_of_delta_packages(module: Module) -> list[str]:
    """Inside `delta` a module imports only its own package and those before it, and never the front of `delta`."""
    if module.unit != "delta" or module.name == f"{PACKAGE}.delta":
        return []
    reach = DELTA_PACKAGES[: DELTA_PACKAGES.index(module.delta_parts[0]) + 1]
    return [
        f"line {i.line}: imports {i.target}"
        for i in module.imports
        if i.unit == "delta" and i.target.removeprefix(f"{PACKAGE}.delta").lstrip(".").partition(".")[0] not in reach
    ]


def faults_of_dagster(module: Module) -> list[str]:
    """Up to the records, and in the command line, nothing imports Dagster or one of its libraries."""
    if LAYERS.get(module.unit, -1) > WITHOUT_DAGSTER and module.unit != "cli":
        return []
    return [
        f"line {i.line}: imports {i.target}"
        for i in module.imports
        if i.top == "dagster" or i.top.startswith("dagster_")
    ]


def faults_of_command_line(module: Module) -> list[str]:
    """The command line stands on what works without Dagster; what needs Dagster runs as a child process."""
    if module.unit != "cli":
        return []
    return [
        f"line {i.line}: imports {i.target}"
        for i in module.imports
        if i.unit and i.unit != "cli" and LAYERS.get(i.unit, 99) > WITHOUT_DAGSTER
    ]


def faults_of_hidden_imports(module: Module) -> list[str]:
    """No import of our own modules inside a function, where it would hide a cycle."""
    return [
        f"line {i.line}: {i.inside} imports {i.target}"
        for i in module.imports
        if i.inside is not None and i.unit is not None
    ]


def faults_of_names(module: Module) -> list[str]:
    """No module is the second home of whatever has none."""
    return [f"{part} says nothing" for part in module.name.split(".") if part.strip("_") in SECOND_HOMES]


def faults_of_docstring(module: Module) -> list[str]:
    """Every module says what belongs in it."""
    return [] if (ast.get_docstring(module.tree) or "").strip() else ["no docstring"]


def faults_of_module_length(module: Module) -> list[str]:
    """A module fits in a head."""
    lines = len(module.source.splitlines())
    return [f"{lines} lines"] if lines > MODULE_LINES else []


def function_lines(function: Function) -> int:
    """Lines from `def` to the end without those of the docstring; decorators stand above `def`."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def faults_of_function_length(module: Module) -> list[str]:
    """A function fits on a page."""
    return [
        f"{function.name}: {function_lines(function)} lines"
        for function in module.functions
        if function_lines(function) > FUNCTION_LINES
    ]


def faults_of_broad_excepts(module: Module) -> list[str]:
    """No handler takes errors that nobody thought of; a mistake of ours must not pass for an answer."""
    handlers = [node for node in ast.walk(module.tree) if isinstance(node, ast.ExceptHandler)]
    return [f"line {handler.lineno}: except {caught}" for handler in handlers for caught in broad_types(handler.type)]


def broad_types(caught: ast.expr | None) -> list[str]:
    """What is too broad in the expression after `except`."""
    if caught is None:
        return ["everything"]
    if isinstance(caught, ast.Tuple):
        return [name for element in caught.elts for name in broad_types(element)]
    name = caught.attr if isinstance(caught, ast.Attribute) else getattr(caught, "id", "")
    return [name] if name in ("Exception", "BaseException") else []


def faults_of_table_refs(module: Module) -> list[str]:
    """A dataset and the location of its table are passed together, as a `TableRef`."""
    taken = {
        function.name: {
            (each.arg, each.annotation and ast.unparse(each.annotation))
            for each in (*function.args.args, *function.args.kwonlyargs)
        }
        for function in module.functions
    }
    return [f"{n} takes both apart" for n, a in taken.items() if {("dataset", "Dataset"), ("location", "str")} <= a]


def faults_of_error_fields(module: Module) -> list[str]:
    """`TableRef.error` gets the fields of its error's type: the type checker does not look at them."""
    faults = []
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "error":
            continue
        kind = getattr(errors, ast.unparse(node.args[0]), None) if node.args else None
        if not isinstance(kind, type):
            continue  # the method of a logger
        given = {"dataset", "location"} | {keyword.arg for keyword in node.keywords}
        required = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
        known = {f.name for f in fields(kind)}
        if len(node.args) != 1 or not required <= given <= known:
            faults.append(f"line {node.lineno}: {kind.__name__} gets {sorted(map(str, given ^ required))}")
    return faults


def faults_of_accounts(module: Module) -> list[str]:
    """A command uses the accounts of its settings: `project_settings` does both. Those about servers read no table."""
    commands = (f"{PACKAGE}.cli.", f"{PACKAGE}.orchestration.commands.", f"{PACKAGE}.assets.")
    if not module.name.startswith(commands) or module.name == f"{PACKAGE}.cli.spark":
        return []
    imports = [node for node in ast.walk(module.tree) if isinstance(node, ast.ImportFrom)]
    return [f"line {node.lineno}" for node in imports if "load_settings" in {alias.name for alias in node.names}]


Rule = Callable[[Module], list[str]]
RULES: tuple[Rule, ...] = (
    faults_of_place,
    faults_of_layers,
    faults_of_declarations,
    faults_of_delta_packages,
    faults_of_dagster,
    faults_of_command_line,
    faults_of_hidden_imports,
    faults_of_names,
    faults_of_docstring,
    faults_of_module_length,
    faults_of_function_length,
    faults_of_broad_excepts,
    faults_of_table_refs,
    faults_of_error_fields,
    faults_of_accounts,
)


def cycle_in(modules: tuple[Module, ...]) -> list[str]:
    """The modules of one import cycle, or none; imports inside functions and for type checkers count."""
    names = {module.name for module in modules}
    graph = {m.name: {i.target for i in m.imports if i.target in names} for m in modules}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


# --- the package ------------------------------------------------------------------------------------------------------

MODULES = load_modules()


def rule_name(rule: Rule) -> str:
    return rule.__name__.removeprefix("faults_of_")


@pytest.mark.parametrize("rule", RULES, ids=rule_name)
def test_every_module_keeps_the_rule(rule: Rule) -> None:
    assert [f"{module.name}: {fault}" for module in MODULES for fault in rule(module)] == [], rule.__doc__


def test_the_imports_have_no_cycle() -> None:
    assert cycle_in(MODULES) == []


def exported(package: str) -> set[str]:
    """The names in `__all__` of a package of `delta`: modules below it and what they define."""
    (module,) = [module for module in MODULES if module.name == package]
    return {name for names in exports(module.tree) for name in names}


def exports(tree: ast.Module) -> Iterator[list[str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            yield ast.literal_eval(node.value)


def test_a_package_of_delta_is_imported_by_the_modules_that_it_exports() -> None:
    """`__all__` of a package names the modules that others may import; each of them is imported by others."""
    imported: dict[str, set[str]] = {f"{PACKAGE}.delta.{package}": set() for package in DELTA_PACKAGES}
    for module in MODULES:
        for target in {i.target for i in module.imports}:
            package, _, name = target.rpartition(".")
            if package in imported and not module.name.startswith(package):
                imported[package].add(name)
    modules = {
        package: {m.name.rpartition(".")[2] for m in MODULES if m.name.startswith(f"{package}.")}
        for package in imported
    }
    assert {
        package: names - exported(package) for package, names in imported.items() if names - exported(package)
    } == {}
    unused = {package: (exported(package) & modules[package]) - names for package, names in imported.items()}
    assert {package: names for package, names in unused.items() if names} == {}


def test_no_folder_has_more_than_a_dozen_modules() -> None:
    counts = Counter(module.name.rpartition(".")[0] for module in MODULES if not module.is_package)
    full = {folder: count for folder, count in counts.items() if count > FOLDER_MODULES}
    assert {folder for folder in full if folder.removeprefix(f"{PACKAGE}.") not in FOLDERS_OF_ANY_SIZE} == set()


def test_the_walk_sees_the_package() -> None:
    names = {module.name for module in MODULES}
    assert {
        "pipeline",
        "pipeline.errors",
        "pipeline.dataset",
        "pipeline.dataset.registry",
        "pipeline.settings",
    } <= names
    assert {"pipeline.delta", "pipeline.delta.sql"} <= names
    registry = next(module for module in MODULES if module.name == "pipeline.dataset.registry")
    assert {i.target for i in registry.imports if i.unit is not None} == {
        "pipeline.dataset.declaration", "pipeline.dataset.expectations", "pipeline.dataset.exports",
        "pipeline.errors", "pipeline.errors.spelling",
    }  # fmt: skip


# --- each rule can fail -----------------------------------------------------------------------------------------------

KNOWN = frozenset(
    {PACKAGE}
    | {f"{PACKAGE}.{unit}" for unit in LAYERS}
    | {f"{PACKAGE}.delta.{part}" for part in DELTA_PACKAGES}
    | {f"{PACKAGE}.delta.{part}" for part in ("sql.slices", "table.plan", "read.version", "write.write")}
    | {f"{PACKAGE}.orchestration.io", f"{PACKAGE}.orchestration.io.io_manager"}
)


def made_up(name: str, source: str) -> Module:
    full = f"{PACKAGE}.{name}" if name else PACKAGE
    return Module(full, source, is_package=name in ("", "delta", "delta.sql", "orchestration", "assets"), known=KNOWN)


def long_function(lines: int) -> str:
    """A function of so many lines, its docstring and decorator not counted."""
    return '@decorated\ndef f():\n    """One.\n\n    Two.\n    """\n' + "    x = 1\n" * (lines - 1)


BREAKS: tuple[tuple[Rule, str, str], ...] = (
    (faults_of_place, "new_idea", ""),
    (faults_of_place, "delta.new_idea", ""),
    (faults_of_place, "delta.read", ""),
    (faults_of_place, "delta.sql.deeper.still", ""),
    (faults_of_layers, "errors", "import pipeline.dataset"),
    (faults_of_layers, "errors", "from pipeline import settings"),
    (faults_of_layers, "dataset", "from pipeline.delta.sql import quoted"),
    (faults_of_layers, "delta.sql", "from pipeline.orchestration import DeltaIOManager"),
    (faults_of_layers, "delta.sql.slices", "from ... import record"),
    (faults_of_layers, "delta.sql.slices", "from ...record import DatasetRecord"),
    (faults_of_layers, "delta", "from ..record import DatasetRecord"),
    (faults_of_layers, "record", "from pipeline.orchestration.io import io_manager"),
    (faults_of_layers, "orchestration.io.io_manager", "import pipeline.assets.aviation as aviation"),
    (faults_of_layers, "assets.aviation", "from pipeline.definitions import defs"),
    (faults_of_layers, "assets.aviation", "if TYPE_CHECKING:\n    from pipeline.cli import main"),
    (faults_of_layers, "assets.aviation", "def f():\n    from pipeline.cli import main"),
    (faults_of_layers, "cli", "import pipeline"),
    (faults_of_layers, "cli", "from pipeline.nowhere import x"),
    (faults_of_layers, "", "from pipeline.errors import PipelineError"),
    (faults_of_layers, "", "from .errors import PipelineError"),
    (faults_of_declarations, "dataset.declaration", "import pipeline.settings"),
    (faults_of_declarations, "dataset", "from pipeline.settings import Settings"),
    (faults_of_declarations, "settings", "from pipeline.dataset import Dataset"),
    (faults_of_delta_packages, "delta.spark.failures", "from pipeline.delta.sql import quoted"),
    (faults_of_delta_packages, "delta.read.version", "from pipeline.delta import table, write"),
    (faults_of_delta_packages, "delta.read.version", "from .. import write"),
    (faults_of_delta_packages, "delta.read.version", "from ..write import append"),
    (faults_of_delta_packages, "delta.write.write", "import pipeline.delta.maintain"),
    (faults_of_delta_packages, "delta.write.write", "from pipeline.delta import DeltaThing"),
    (faults_of_dagster, "errors", "import dagster"),
    (faults_of_dagster, "settings", "from dagster._core import x"),
    (faults_of_dagster, "delta.spark.session", "def f():\n    from dagster_pyspark import PySparkResource"),
    (faults_of_dagster, "record", "import dagster as dg"),
    (faults_of_dagster, "cli", "from dagster import materialize"),
    (faults_of_command_line, "cli", "import pipeline.assets.demo"),
    (faults_of_command_line, "cli", "from pipeline import definitions"),
    (faults_of_command_line, "cli", "from pipeline.assets.aviation import flights"),
    (faults_of_command_line, "cli", "from pipeline.orchestration.io import io_manager"),
    (faults_of_hidden_imports, "delta.write", "def f():\n    from pipeline.delta.sql import quoted"),
    (faults_of_hidden_imports, "delta.write", "class A:\n    async def f(self):\n        import pipeline.errors"),
    (faults_of_hidden_imports, "delta.write", "def f():\n    if True:\n        from . import sql"),
    (faults_of_names, "utils", ""),
    (faults_of_names, "delta.helpers", ""),
    (faults_of_names, "delta._common", ""),
    (faults_of_docstring, "errors", "x = 1"),
    (faults_of_docstring, "errors", '""" """'),
    (faults_of_module_length, "dataset", "x = 1\n" * (MODULE_LINES + 1)),
    (faults_of_module_length, "errors.tables", "x = 1\n" * (MODULE_LINES + 1)),
    (faults_of_function_length, "errors", long_function(FUNCTION_LINES + 1)),
    (faults_of_function_length, "errors", "class A:\n  async def f(self):\n" + "    x = 1\n" * FUNCTION_LINES),
    (faults_of_broad_excepts, "errors", "try:\n    x\nexcept:\n    y"),
    (faults_of_broad_excepts, "errors", "try:\n    x\nexcept Exception as error:\n    y"),
    (faults_of_broad_excepts, "errors", "try:\n    x\nexcept (ValueError, builtins.BaseException):\n    raise"),
    (
        faults_of_broad_excepts,
        "errors",
        "def f():\n    try:\n        x\n    except ValueError:\n        y\n    except Exception:\n        z",
    ),
    (faults_of_table_refs, "delta.read.version", "def f(session, dataset: Dataset, location: str):\n    pass"),
    (faults_of_table_refs, "delta.read.version", "class A:\n def f(self, *, location: str, dataset: Dataset): pass"),
    (faults_of_error_fields, "delta.read.version", "raise table.error(StorageError)"),
    (faults_of_error_fields, "delta.read.version", "raise table.error(StorageError, reason='r', other=1)"),
    (faults_of_error_fields, "delta.read.version", "raise self.table.error(TableNotFoundError, version=1)"),
    (faults_of_accounts, "orchestration.commands.rerun", "from pipeline.settings import Settings, load_settings"),
    (faults_of_accounts, "cli.show", "def f():\n    from pipeline.settings import load_settings"),
)
KEEPS: tuple[tuple[Rule, str, str], ...] = (
    (faults_of_place, "", ""),
    (faults_of_place, "delta", ""),
    (faults_of_place, "delta.sql", ""),
    (faults_of_place, "delta.sql.anything", ""),
    (faults_of_place, "assets.anything", ""),
    (faults_of_layers, "", "x = 1"),
    (faults_of_layers, "errors", "import pipelines.dataset\nfrom dataclasses import dataclass"),
    (
        faults_of_layers,
        "delta.sql.slices",
        "from pipeline import errors\nfrom pipeline.dataset import Dataset\nfrom . import slices",
    ),
    (faults_of_layers, "cli", "from pipeline.delta.inspect.record import DatasetRecord\nimport pipeline.delta.read"),
    (
        faults_of_declarations,
        "dataset.registry",
        "from pipeline.dataset.declaration import Dataset\nfrom pipeline import errors\nimport json",
    ),
    (faults_of_declarations, "cli", "from pipeline.settings import Settings"),
    (
        faults_of_delta_packages,
        "delta.write.write",
        "from pipeline.delta import sql, table\nfrom .merge import x\nfrom pipeline.delta.write import y",
    ),
    (faults_of_delta_packages, "delta", "from pipeline.delta.maintain import vacuum"),
    (faults_of_delta_packages, "assets.aviation", "from pipeline.delta import write"),
    (faults_of_dagster, "delta.spark.session", "import dagsters\nfrom pipeline import errors"),
    (faults_of_dagster, "orchestration.io.io_manager", "import dagster as dg"),
    (faults_of_dagster, "definitions", "import dagster as dg"),
    (faults_of_command_line, "cli", "from pipeline import errors, record, settings\nfrom pipeline.delta import read"),
    (faults_of_command_line, "definitions", "from pipeline.assets import aviation"),
    (faults_of_hidden_imports, "delta.write", "from pipeline.delta import sql\ndef f():\n    import pyspark"),
    (faults_of_names, "delta.commit", ""),
    (faults_of_docstring, "errors", '"""Errors."""'),
    (faults_of_module_length, "dataset", "x = 1\n" * MODULE_LINES),
    (faults_of_function_length, "errors", long_function(FUNCTION_LINES)),
    (faults_of_broad_excepts, "errors", "try:\n    x\nexcept (OSError, errors.PipelineException):\n    y"),
    (faults_of_table_refs, "delta.read.version", "def f(dataset: str, location: str): pass\ndef g(d: Dataset): pass"),
    (faults_of_error_fields, "delta.read.version", "raise table.error(StorageError, reason='r', found='f')"),
    (faults_of_error_fields, "delta.read.version", "_LOG.error('failed: %s', reason)"),
    (faults_of_accounts, "orchestration.commands.rerun", "from pipeline.settings import Settings"),
    (faults_of_accounts, "cli.spark", "from pipeline.settings import load_settings"),
    (faults_of_accounts, "definitions", "from pipeline.settings import load_settings"),
)


@pytest.mark.parametrize("rule", RULES, ids=rule_name)
def test_the_rule_finds_one_fault_in_each_module_that_breaks_it_and_none_in_those_that_keep_it(rule: Rule) -> None:
    breaks = {(name, source): rule(made_up(name, source)) for broken, name, source in BREAKS if broken is rule}
    assert {place: faults for place, faults in breaks.items() if len(faults) != 1} == {}
    keeps = {(name, source): rule(made_up(name, source)) for kept, name, source in KEEPS if kept is rule}
    assert {place: faults for place, faults in keeps.items() if faults} == {}


def test_every_rule_is_shown_to_fail_and_to_pass() -> None:
    assert {rule for rule, _, _ in BREAKS} == {rule for rule, _, _ in KEEPS} == set(RULES)


def test_a_cycle_is_found_though_one_of_its_imports_stands_in_a_function() -> None:
    one = made_up("settings", "from pipeline.definitions import defs")
    other = made_up("definitions", "def f():\n    from pipeline import settings")
    assert set(cycle_in((one, other))) == {"pipeline.settings", "pipeline.definitions"}
    assert cycle_in((one, made_up("definitions", "import dagster"))) == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("def f():\n    pass", 2),
        ("def f(): pass", 1),
        ("@a\n@b\ndef f(\n    x,\n):\n    return x", 4),
        ('def f():\n    """One."""\n    return 1', 2),
        ('def f():\n    """One.\n\n    Two.\n    """\n\n    return 1\n\n\nx = 1', 3),
    ],
)
def test_a_functions_lines_are_counted_from_def_without_the_docstring(source: str, lines: int) -> None:
    (function,) = made_up("errors", source).functions
    assert function_lines(function) == lines
