"""What is told of a Python file: definitions, imports and calls, and which names can be resolved within it."""

from __future__ import annotations

import textwrap

import pytest

from pipeline.assets.codegraph.parse import Parsed, module_name, parse


def parsed(source: str, path: str = "pkg/sub/mod.py") -> Parsed:
    found = parse(path, textwrap.dedent(source).encode())
    assert found.problem is None
    return found


def targets(source: str, path: str = "pkg/sub/mod.py") -> dict[str, str | None]:
    """By callee, what the calls of a file are resolved to; a callee is called once."""
    calls = parsed(source, path).calls
    assert len({call["callee"] for call in calls}) == len(calls)
    return {call["callee"]: call["target"] for call in calls}


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("pkg/sub/mod.py", "pkg.sub.mod"),
        ("pkg/__init__.py", "pkg"),
        ("pkg/__main__.py", "pkg.__main__"),
        ("setup.py", "setup"),
        ("__init__.py", "__init__"),
    ],
)
def test_a_path_says_the_name_of_its_module(path: str, module: str) -> None:
    assert module_name(path) == module


def test_definitions_are_numbered_in_the_files_order_and_named_as_python_names_them() -> None:
    found = parsed(
        '''
        """The module.

        More.
        """
        import functools

        @functools.wraps(print)
        @app.route("/", methods=["GET"])
        def outer(a, b=lambda: 1):
            def inner():
                class Deep:
                    pass
            return inner

        class Base(metaclass=Meta):
            """  A base.  """
            @property
            def value(self): ...
            @value.setter
            def value(self, to): ...
            async def wait(self):
                """
                Waits.
                """
        '''
    )
    assert found.docstring == "The module."
    m = "pkg.sub.mod"
    assert [(d["number"], d["qualified_name"], d["kind"], d["parent"]) for d in found.definitions] == [
        (1, f"{m}.outer", "function", m),
        (2, f"{m}.outer.<locals>.inner", "function", f"{m}.outer"),
        (3, f"{m}.outer.<locals>.inner.<locals>.Deep", "class", f"{m}.outer.<locals>.inner"),
        (4, f"{m}.Base", "class", m),
        (5, f"{m}.Base.value", "function", f"{m}.Base"),
        (6, f"{m}.Base.value", "function", f"{m}.Base"),
        (7, f"{m}.Base.wait", "async function", f"{m}.Base"),
    ]
    assert found.definitions[0]["decorators"] == ["functools.wraps()", "app.route()"]
    assert (found.definitions[0]["line"], found.definitions[0]["end_line"]) == (10, 14)
    assert [d["docstring"] for d in found.definitions[3:]] == ["A base.", None, None, "Waits."]
    # A decorator's call and a default's belong to what stands around the function.
    assert [(call["callee"], call["caller"]) for call in found.calls] == [("functools.wraps", m), ("app.route", m)]


@pytest.mark.parametrize("path", ["pkg/sub/mod.py", "pkg/sub/__init__.py"])
def test_relative_imports_are_told_absolutely_one_row_a_name(path: str) -> None:
    found = parsed(
        """
        import os.path, numpy as np
        from . import a as b, c
        from ..x.y import z
        from .. import *
        from .... import lost
        def f():
            from .late import g
        """,
        path,
    )
    module = module_name(path)
    assert [(i["importer"], i["module"], i["name"], i["alias"], i["level"]) for i in found.imports] == [
        (module, "os.path", None, None, 0),
        (module, "numpy", None, "np", 0),
        (module, "pkg.sub", "a", "b", 1),
        (module, "pkg.sub", "c", None, 1),
        (module, "pkg.x.y", "z", None, 2),
        (module, "pkg", "*", None, 2),
        (module, None, "lost", None, 4),
        (f"{module}.f", "pkg.sub.late", "g", None, 1),
    ]
    assert [i["number"] for i in found.imports] == [*range(1, 9)]
    assert [i["line"] for i in found.imports] == [2, 2, 3, 3, 4, 5, 6, 8]


def test_a_call_is_resolved_through_imports_definitions_and_builtins_as_python_looks_names_up() -> None:
    found = targets(
        """
        import os.path
        import numpy as np
        from . import helper as h
        from .... import lost
        os.path.join()
        np.linalg.norm()
        h.run()
        lost()
        below()
        print()
        nowhere()
        def below():
            inner()
            def inner(): ...
            Thing.make()
        class Thing:
            def make(self):
                self.other()
                self.inherited()
                self.a.b()
                make()
                super().make()
            def other(self): ...
            other()
        """
    )
    m = "pkg.sub.mod"
    assert found == {
        "os.path.join": "os.path.join",
        "np.linalg.norm": "numpy.linalg.norm",
        "h.run": "pkg.sub.helper.run",
        "lost": None,
        "below": f"{m}.below",
        "print": "builtins.print",
        "nowhere": None,
        "inner": f"{m}.below.<locals>.inner",
        "Thing.make": f"{m}.Thing.make",
        "self.other": f"{m}.Thing.other",
        "self.inherited": None,
        "self.a.b": None,
        "make": None,  # a method is no name in another method
        "super().make": None,
        "super": "builtins.super",
        "other": f"{m}.Thing.other",
    }


def test_a_name_that_only_a_run_can_tell_stays_unresolved() -> None:
    found = targets(
        """
        try:
            import tomllib as toml
        except ImportError:
            import tomli as toml
        from x import p, q, r, s, t, u, v
        toml.load()
        def f(p):
            p()
            q = 1
            q.bit_length()
            [r() for r in range(3)]
            lambda s: s.strip()
            global t
            (u := len)
            match f:
                case [v]: v.w()
        t = 2
        def g():
            t()
            u()
            r.again()
        class C:
            @staticmethod
            def h(self): self.i()
            def i(self):
                self = f(1)
                self.i.j()
        """
    )
    m = "pkg.sub.mod"
    assert found == {
        "toml.load": None, "p": None, "q.bit_length": None, "r": None, "range": "builtins.range", "s.strip": None,
        "v.w": None, "t": None, "u": "x.u", "r.again": "x.r.again", "self.i": None, "f": f"{m}.f", "self.i.j": None,
    }  # fmt: skip


def test_a_star_import_may_hide_a_builtin_and_nothing_that_the_file_binds_itself() -> None:
    found = targets(
        """
        from os import *
        def f(): ...
        f()
        open()
        """
    )
    assert found == {"f": "pkg.sub.mod.f", "open": None}


def test_calls_are_told_with_what_is_called_as_written_and_by_whom() -> None:
    found = parsed(
        """
        f(g)(1).h[2](lambda: k())
        "-".join([l(x) for x in y()])
        (lambda: 0)()
        class A(base()):
            z = n()
            async def m(self, o=p()) -> q():
                await self.r()
        """
    )
    m = "pkg.sub.mod"
    assert [(c["number"], c["caller"], c["callee"], c["line"]) for c in found.calls] == [
        (1, m, "f()().h[]", 2),
        (2, m, "f()", 2),
        (3, m, "f", 2),
        (4, m, "k", 2),
        (5, m, "<str>.join", 3),
        (6, m, "y", 3),
        (7, m, "l", 3),
        (8, m, "<lambda>", 4),
        (9, m, "base", 5),
        (10, f"{m}.A", "n", 6),
        (11, f"{m}.A", "p", 7),
        (12, f"{m}.A", "q", 7),
        (13, f"{m}.A.m", "self.r", 8),
    ]


@pytest.mark.parametrize(
    ("content", "docstring"),
    [
        (b"", None),
        (b"\xef\xbb\xbf'''b\xc3\xa9'''\n", "bé"),
        ("# -*- coding: latin-1 -*-\n'''b\u00e9'''\n".encode("latin-1"), "bé"),
        (b"'''\\ud800!'''\n", "?!"),
        (b"'''\n\n  '''\n", None),
        (b"'\\d'\r\nassert (1, 'x')\r\n", "\\d"),
    ],
    ids=["empty", "byte order mark", "another encoding", "no UTF-8", "blank", "warnings of its own"],
)
def test_a_file_that_is_odd_is_parsed_all_the_same(content: bytes, docstring: str | None) -> None:
    assert parse("a.py", content) == Parsed(module="a", docstring=docstring)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"def f(:\n", "line 1"),
        (b"x = 1\n\xff\n", "utf-8"),
        (b"# coding: nonsense\n", "nonsense"),
        (b"x = 1\0\n", "null bytes"),
        (b"print 'old'\n", "print"),
        (b"not " * 100_000 + b"x", "nested too deeply"),
        (b"(" * 1000 + b")" * 1000, "too many nested parentheses"),
    ],
    ids=["syntax", "no UTF-8", "unknown encoding", "NUL", "Python 2", "operators", "parentheses"],
)
def test_a_file_that_can_t_be_parsed_is_told_as_a_problem_with_nothing_else(content: bytes, problem: str) -> None:
    found = parse("a/b.py", content)
    assert found.problem is not None
    assert problem in found.problem
    assert found == Parsed(module="a.b", problem=found.problem)


def test_what_python_can_parse_is_never_too_deep_for_us() -> None:
    chain = parsed("x = " + "f()" + ".g()" * 700 + "\ny = " + " + ".join(["h()"] * 900))
    assert len(chain.calls) == 1 + 700 + 900
    assert chain.calls[0]["callee"] == "f" + "().g" * 700
