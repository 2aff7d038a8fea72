"""Marks for parameters of which the quick tier needs one in a further form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def first_in_both_modes(values: Iterable[Any]) -> list[Any]:
    """The parameters of a test that the quick tier runs in both modes for the first of them only."""
    first, *others = values
    return [_marked(first, pytest.mark.both_modes), *others]


def first_is_quick(values: Iterable[Any], count: int = 1) -> list[Any]:
    """The parameters of a test of which the quick tier runs so many, and the tier full all."""
    listed = list(values)
    return [*listed[:count], *(_marked(value, pytest.mark.exhaustive) for value in listed[count:])]


def some_are_quick(values: Iterable[Any], *quick: Any) -> list[Any]:
    """The parameters of a test of which the quick tier runs the named ones, and the tier full all."""
    return [value if value in quick else _marked(value, pytest.mark.exhaustive) for value in values]


def _marked(value: Any, mark: pytest.MarkDecorator) -> Any:
    """The parameter with a mark; a tuple holds the values of several names, `pytest.param` those of one or more."""
    if isinstance(value, ParameterSet):
        return pytest.param(*value.values, marks=[*value.marks, mark], id=value.id)
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=mark)
