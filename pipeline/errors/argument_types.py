"""The check of a declaration's arguments against their annotations, with near misses.

Here belongs the type check that every declaration makes of its fields. Contradictions between valid values are checked
by the declaration itself.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_SHOWN_CHARACTERS = 60


@dataclasses.dataclass(frozen=True)
class TypeProblem:
    """A field whose value is not of its annotated type. `near_miss` is the probably intended value, or empty."""

    path: str
    expected: str
    got: str
    near_miss: str = ""

    def __str__(self) -> str:
        meant = f"; did you mean {self.near_miss}?" if self.near_miss else ""
        return f"{self.path}: expected {self.expected}, got {self.got}{meant}"


def type_problems(declared: Any, path: str = "") -> Iterator[TypeProblem]:
    """The fields of a dataclass whose values are not of their annotated types; nested dataclasses included.

    Args:
        declared: an instance of a dataclass whose annotations are classes, `None`, unions, `Literal` and tuples.
        path: the prefix of a field's name in the problem, with its dot.
    """
    hints = _hints(declared.__class__)
    for field in dataclasses.fields(declared):
        yield from _problems(getattr(declared, field.name), hints[field.name], f"{path}{field.name}")


def is_text(value: str) -> bool:
    """Whether a text can be stored. A text with half of a surrogate pair, from wrongly decoded bytes, can't."""
    return not any("\ud800" <= char <= "\udfff" for char in value)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def _problems(value: object, hint: Any, path: str) -> Iterator[TypeProblem]:
    arms = _arms(hint)
    fitting = [arm for arm in arms if _is_of(value, arm)]
    if isinstance(value, str) and not is_text(value):
        yield TypeProblem(path, "a text", f"{_shown(value)}, which contains half of a surrogate pair")
    elif not fitting:
        yield TypeProblem(path, _shown_hint(hint), _shown(value), _near_miss(value, arms))
    elif isinstance(value, tuple):
        yield from _item_problems(value, get_args(fitting[0]), path)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from type_problems(value, f"{path}.")


def _item_problems(items: tuple[object, ...], hints: tuple[Any, ...], path: str) -> Iterator[TypeProblem]:
    if hints[-1:] == (Ellipsis,):
        hints = hints[:1] * len(items)
    elif len(items) != len(hints):
        yield TypeProblem(path, f"{len(hints)} values", _shown(items))
        return
    for position, (item, hint) in enumerate(zip(items, hints, strict=True)):
        yield from _problems(item, hint, f"{path}[{position}]")


def _arms(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _is_of(value: object, arm: Any) -> bool:
    """Whether a value is of a type. The items of a tuple are checked separately."""
    if arm is None or arm is type(None):
        return value is None
    if get_origin(arm) is Literal:
        # The declaration checks the value itself, and its error lists all literals.
        return any(type(value) is type(literal) for literal in get_args(arm))
    if get_origin(arm) is tuple:
        return isinstance(value, tuple)
    if arm is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if arm is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, get_origin(arm) or arm)


def _shown(value: object) -> str:
    text = repr(value)
    cut = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
    return f"the class {value.__name__}" if isinstance(value, type) else f"{cut} ({type(value).__name__})"


def _shown_hint(hint: Any) -> str:
    return " or ".join(_shown_arm(arm) for arm in _arms(hint))


def _shown_arm(arm: Any) -> str:
    if arm is type(None):
        return "None"
    if get_origin(arm) is Literal:
        return " or ".join(map(repr, get_args(arm)))
    if get_origin(arm) is tuple:
        items = get_args(arm)
        if items[-1:] == (Ellipsis,):
            return f"a tuple of {_shown_hint(items[0])}"
        return f"({', '.join(_shown_hint(item) for item in items)})"
    return str(getattr(arm, "__name__", arm))


def _near_miss(value: object, arms: tuple[Any, ...]) -> str:
    """The probably intended value, or empty."""
    return next((text for arm in arms for text in [_meant(value, arm)] if text is not None), "")


def _meant(value: object, arm: Any) -> str | None:
    if get_origin(arm) is tuple:
        return _meant_tuple(value, get_args(arm))
    if not isinstance(arm, type) or not dataclasses.is_dataclass(arm):
        return None
    if isinstance(value, type):
        return f"{arm.__name__}()" if issubclass(value, arm) else None
    if isinstance(value, str) and value.replace("_", "").replace(" ", "").lower() == arm.__name__.lower():
        return f"{arm.__name__}()"
    hints = _hints(arm)
    named = [f.name for f in dataclasses.fields(arm) if any(_is_plain(value, a) for a in _arms(hints[f.name]))]
    return f"{arm.__name__}({named[0]}={value!r})" if named else None


def _is_plain(value: object, arm: Any) -> bool:
    """Whether a single value fits a field. Nothing is guessed from a text or a boolean."""
    return value is not None and not isinstance(value, str | bool) and _is_of(value, arm)


def _meant_tuple(value: object, items: tuple[Any, ...]) -> str | None:
    if items[-1:] != (Ellipsis,):
        return None
    arms = _arms(items[0])
    if isinstance(value, list | set | frozenset):
        listed: tuple[object, ...] = tuple(value)
    elif isinstance(value, dict):
        listed = tuple(value.items())
    else:
        listed = (value,)
    fits = all(any(_is_of(item, arm) for arm in arms) for item in listed)
    return repr(listed) if fits and listed else None
