"""The parts of a graph in one Python file: definitions, imports and calls, with names resolved within the file.

Pure functions from bytes to values. The reading of files belongs to `tree`. Spark's Python workers import this module,
so it needs the standard library only. The syntax is that of the Python that runs it.

Names are resolved in Python's order (function, enclosing functions, module, builtins; a class only in its own body). A
name with two bindings, or with one that only a run can determine, stays unresolved.
"""

from __future__ import annotations

import ast
import builtins
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

SUFFIX = ".py"
PACKAGE_FILE = "__init__.py"
_BUILTINS = frozenset(dir(builtins))
_LOCALS = "<locals>"
_STAR = "*"
# The errors of `ast.parse` for a text that is not Python, contains NUL (before 3.12), or is nested too deeply.
_UNPARSED = (SyntaxError, ValueError, RecursionError, MemoryError)
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_KINDS = {ast.FunctionDef: "function", ast.AsyncFunctionDef: "async function", ast.ClassDef: "class"}


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """The content of a file. Each list has the file's order and is numbered from 1. With a problem all are empty.

    Names are dotted and begin with the module's. Below it they are Python's `__qualname__`.
    """

    module: str
    problem: str | None = None
    docstring: str | None = None
    definitions: tuple[dict[str, Any], ...] = ()
    imports: tuple[dict[str, Any], ...] = ()
    calls: tuple[dict[str, Any], ...] = ()


def module_name(path: str) -> str:
    """The dotted name of a file's module. `path` has `/` and begins at the folder above the topmost package."""
    parts = path.removesuffix(SUFFIX).split("/")
    if len(parts) > 1 and f"{parts[-1]}{SUFFIX}" == PACKAGE_FILE:
        parts.pop()
    return ".".join(parts)


def parse(path: str, content: bytes) -> Parsed:
    """Parse a file once. If it can't be parsed, the result has a problem; nothing is raised."""
    module = module_name(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the file's own warnings: an invalid escape, an assertion on a tuple
            tree = ast.parse(content)
    except _UNPARSED as error:
        return Parsed(module=module, problem=_problem(error))
    package = module if path.rsplit("/", 1)[-1] == PACKAGE_FILE else module.rpartition(".")[0]
    reading = _Reading(module, package)
    reading.walk(tree)
    return Parsed(
        module=module,
        docstring=_docstring(tree),
        definitions=tuple(reading.definitions),
        imports=tuple(reading.imports),
        calls=tuple(reading.resolved_calls()),
    )


def _problem(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.msg}, line {error.lineno}" if error.lineno else error.msg
    if isinstance(error, RecursionError | MemoryError):
        return "it is nested too deeply"
    return str(error)


def _docstring(node: ast.Module | ast.ClassDef | _Function) -> str | None:
    """The first line that is not blank. Characters that UTF-8 can't encode become question marks."""
    lines = (ast.get_docstring(node, clean=False) or "").strip().splitlines()
    return lines[0].strip().encode("utf-8", "replace").decode() if lines else None


# --- scopes and names -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Instance:
    """The first parameter of a method, as an instance of the class with that scope."""

    of: _Scope


@dataclass(eq=False)
class _Scope:
    """One scope with the targets of its names. The target None means that only a run can determine it.

    `owner` is the definition or module that calls in this scope are attributed to. A lambda or a comprehension has the
    owner of the scope around it.
    """

    owner: str
    prefix: str
    outer: _Scope | None = None
    is_class: bool = False
    names: dict[str, set[str | _Instance | None]] = field(default_factory=dict)
    elsewhere: dict[str, _Scope] = field(default_factory=dict)

    def bind(self, name: str, target: str | _Instance | None = None) -> None:
        self.elsewhere.get(name, self).names.setdefault(name, set()).add(target)

    def targets_of(self, name: str) -> set[str | _Instance | None] | None:
        """The targets of a name that is used in this scope. If no scope binds it, None."""
        scope: _Scope | None = self.elsewhere.get(name, self)
        is_own = True
        while scope is not None:
            if name in scope.names and (is_own or not scope.is_class):
                return scope.names[name]
            scope, is_own = scope.outer, False
        return None

    @property
    def module(self) -> _Scope:
        scope = self
        while scope.outer is not None:
            scope = scope.outer
        return scope

    def function_around(self) -> _Scope:
        """The scope in which an assignment expression in a comprehension binds its name."""
        scope = self
        while scope.outer is not None and scope.prefix == "":
            scope = scope.outer
        return scope


def spelled(node: ast.expr) -> tuple[str, tuple[str, ...] | None]:
    """An expression as text without arguments and indexes, and its names if it consists only of dotted names."""
    parts: list[str] = []
    is_dotted = True
    while True:
        if isinstance(node, ast.Attribute):
            parts.append(f".{node.attr}")
            node = node.value
        elif isinstance(node, ast.Call):
            parts.append("()")
            node, is_dotted = node.func, False
        elif isinstance(node, ast.Subscript):
            parts.append("[]")
            node, is_dotted = node.value, False
        else:
            break
    if not isinstance(node, ast.Name):
        kind = type(node.value if isinstance(node, ast.Constant) else node).__name__.lower()
        return "".join([f"<{kind}>", *reversed(parts)]), None
    text = "".join([node.id, *reversed(parts)])
    return text, tuple(text.split(".")) if is_dotted else None


Children = Iterable[tuple[ast.AST, _Scope]]


class _Reading:
    """One pass over a file's tree. It doesn't recurse, since an expression may be deeper than Python's stack."""

    def __init__(self, module: str, package: str) -> None:
        self._package = package
        self._top = _Scope(owner=module, prefix=module)
        self._has_star = False
        self._calls: list[tuple[ast.Call, _Scope]] = []
        self.definitions: list[dict[str, Any]] = []
        self.imports: list[dict[str, Any]] = []

    def walk(self, tree: ast.Module) -> None:
        """Process all nodes in the order of the file."""
        waiting: list[tuple[ast.AST, _Scope]] = [(tree, self._top)]
        while waiting:
            node, scope = waiting.pop()
            step = _STEPS.get(type(node))
            children = step(self, node, scope) if step else ((child, scope) for child in ast.iter_child_nodes(node))
            waiting.extend(reversed(list(children)))

    # Each step processes one kind of node and yields the next nodes, each with its scope.

    def definition(self, node: ast.ClassDef | _Function, scope: _Scope) -> Children:
        name = f"{scope.prefix}.{node.name}"
        scope.bind(node.name, name)
        row = {
            "number": len(self.definitions) + 1,
            "qualified_name": name,
            "kind": _KINDS[type(node)],
            "parent": scope.owner,
            "line": node.lineno,
            "end_line": node.end_lineno,
            "decorators": [spelled(decorator)[0] for decorator in node.decorator_list],
            "docstring": _docstring(node),
        }
        self.definitions.append(row)
        is_class = isinstance(node, ast.ClassDef)
        inner = _Scope(
            owner=name, prefix=name if is_class else f"{name}.{_LOCALS}", outer=scope, is_class=is_class
        )  # fmt: skip
        yield from ((decorator, scope) for decorator in node.decorator_list)
        yield from ((parameter, inner) for parameter in getattr(node, "type_params", ()))
        if isinstance(node, ast.ClassDef):
            yield from ((part, scope) for part in (*node.bases, *node.keywords))
        else:
            yield from self._parameters(node.args, scope, inner)
            if scope.is_class:
                self._first_parameter(node, scope, inner)
            if node.returns is not None:
                yield node.returns, scope
        yield from ((statement, inner) for statement in node.body)

    def _first_parameter(self, node: _Function, of: _Scope, inner: _Scope) -> None:
        positional = [*node.args.posonlyargs, *node.args.args]
        is_static = any(spelled(decorator)[0] == "staticmethod" for decorator in node.decorator_list)
        if positional and not is_static:
            inner.names[positional[0].arg] = {_Instance(of)}

    def _parameters(self, arguments: ast.arguments, scope: _Scope, inner: _Scope) -> Iterator[tuple[ast.AST, _Scope]]:
        """Bind the parameters in the inner scope. Defaults and annotations belong to the scope around."""
        starred = [parameter for parameter in (arguments.vararg, arguments.kwarg) if parameter is not None]
        for parameter in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *starred):
            inner.bind(parameter.arg)
            if parameter.annotation is not None:
                yield parameter.annotation, scope
        yield from ((default, scope) for default in (*arguments.defaults, *arguments.kw_defaults) if default)

    def lambda_(self, node: ast.Lambda, scope: _Scope) -> Children:
        inner = _Scope(owner=scope.owner, prefix=f"{scope.prefix}.<lambda>.{_LOCALS}", outer=scope)
        yield from self._parameters(node.args, scope, inner)
        yield node.body, inner

    def comprehension(self, node: _Comprehension, scope: _Scope) -> Children:
        inner = _Scope(owner=scope.owner, prefix="", outer=scope)
        first = node.generators[0].iter
        yield first, scope
        for generator in node.generators:
            yield generator.target, inner
            if generator.iter is not first:
                yield generator.iter, inner
            yield from ((condition, inner) for condition in generator.ifs)
        results = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        yield from ((result, inner) for result in results)

    def assignment_expression(self, node: ast.NamedExpr, scope: _Scope) -> Children:
        scope.function_around().bind(node.target.id)
        yield node.value, scope

    def call(self, node: ast.Call, scope: _Scope) -> Children:
        self._calls.append((node, scope))
        return [(child, scope) for child in ast.iter_child_nodes(node)]

    def name(self, node: ast.Name, scope: _Scope) -> Children:
        if not isinstance(node.ctx, ast.Load):
            scope.bind(node.id)
        return ()

    def other_scope(self, node: ast.Global | ast.Nonlocal, scope: _Scope) -> Children:
        outer = scope.module if isinstance(node, ast.Global) else scope.outer
        while isinstance(node, ast.Nonlocal) and outer is not None and outer.is_class:
            outer = outer.outer
        if outer is not None:
            scope.elsewhere |= dict.fromkeys(node.names, outer)
        return ()

    def named(self, node: Any, scope: _Scope) -> Children:
        """Bind the name of a handler, a pattern or a type parameter, which is a text there."""
        bound = node.rest if isinstance(node, ast.MatchMapping) else node.name
        if bound is not None:
            scope.bind(bound)
        return [(child, scope) for child in ast.iter_child_nodes(node)]

    def import_(self, node: ast.Import, scope: _Scope) -> Children:
        for alias in node.names:
            self._import(node, scope, alias.name, None, alias.asname)
            # `import a.b` binds `a`, `import a.b as c` binds the module itself.
            bound = alias.asname or alias.name.partition(".")[0]
            scope.bind(bound, alias.name if alias.asname else bound)
        return ()

    def import_from(self, node: ast.ImportFrom, scope: _Scope) -> Children:
        module = self._absolute(node)
        for alias in node.names:
            self._import(node, scope, module, alias.name, alias.asname)
            if alias.name == _STAR:
                self._has_star = True
            else:
                scope.bind(alias.asname or alias.name, module and f"{module}.{alias.name}")
        return ()

    def _import(
        self, node: ast.Import | ast.ImportFrom, scope: _Scope, module: str | None, name: str | None, alias: str | None
    ) -> None:
        row = {
            "number": len(self.imports) + 1,
            "importer": scope.owner,
            "module": module,
            "name": name,
            "alias": alias,
            "level": node.level if isinstance(node, ast.ImportFrom) else 0,
            "line": node.lineno,
        }
        self.imports.append(row)

    def _absolute(self, node: ast.ImportFrom) -> str | None:
        """The module that is imported from. If the dots lead out of the topmost package, None."""
        if not node.level:
            return node.module
        parts = self._package.split(".") if self._package else []
        if node.level > len(parts):
            return None
        return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])

    # Calls are resolved at the end: a function may call another that is defined below it.

    def resolved_calls(self) -> Iterator[dict[str, Any]]:
        """The calls in the order of the file."""
        for number, (node, scope) in enumerate(self._calls, start=1):
            text, names = spelled(node.func)
            yield {
                "number": number,
                "caller": scope.owner,
                "callee": text,
                "target": self._resolved(names, scope) if names else None,
                "line": node.lineno,
            }

    def _resolved(self, names: tuple[str, ...], scope: _Scope) -> str | None:
        first, *rest = names
        targets = scope.targets_of(first)
        if targets is None:
            is_builtin = first in _BUILTINS and not self._has_star
            return ".".join(["builtins", *names]) if is_builtin else None
        target = next(iter(targets)) if len(targets) == 1 else None
        if isinstance(target, _Instance):
            members = target.of.names.get(rest[0], set()) if len(rest) == 1 else set()
            member = next(iter(members)) if len(members) == 1 else None
            return member if isinstance(member, str) else None
        return ".".join([target, *rest]) if target is not None else None


Step = Callable[[_Reading, Any, _Scope], Children]
_STEPS: dict[type[ast.AST], Step] = {
    ast.FunctionDef: _Reading.definition,
    ast.AsyncFunctionDef: _Reading.definition,
    ast.ClassDef: _Reading.definition,
    ast.Lambda: _Reading.lambda_,
    ast.ListComp: _Reading.comprehension,
    ast.SetComp: _Reading.comprehension,
    ast.DictComp: _Reading.comprehension,
    ast.GeneratorExp: _Reading.comprehension,
    ast.NamedExpr: _Reading.assignment_expression,
    ast.Call: _Reading.call,
    ast.Name: _Reading.name,
    ast.Global: _Reading.other_scope,
    ast.Nonlocal: _Reading.other_scope,
    ast.Import: _Reading.import_,
    ast.ImportFrom: _Reading.import_from,
    ast.ExceptHandler: _Reading.named,
    ast.MatchAs: _Reading.named,
    ast.MatchStar: _Reading.named,
    ast.MatchMapping: _Reading.named,
}
_STEPS |= {
    getattr(ast, kind): _Reading.named for kind in ("TypeVar", "ParamSpec", "TypeVarTuple") if hasattr(ast, kind)
}
