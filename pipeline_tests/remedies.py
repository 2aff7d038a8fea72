"""The register of tests that follow the remedy of an error, and what they share.

Such a test provokes the error by a public function or a command, does what the remedy names, and shows that the same
call succeeds then. `test_remedies_known.py` holds that each error type has one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click
import pytest
from click.testing import CliRunner, Result

from pipeline.cli import main
from pipeline.errors import PipelineError

FOLLOWED: dict[type[PipelineError], list[str]] = {}
_read: set[type[PipelineError]] = set()
_Error = TypeVar("_Error", bound=PipelineError)


def follows(*kinds: type[PipelineError]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a test as one that follows the remedies of these errors; a test that reads none of one fails."""

    def registered(test: Callable[..., None]) -> Callable[..., None]:
        for kind in kinds:
            FOLLOWED.setdefault(kind, []).append(f"{test.__module__}.{test.__name__}")

        @functools.wraps(test)
        def checked(*arguments: Any, **named: Any) -> None:
            _read.clear()
            test(*arguments, **named)
            assert set(kinds) <= _read, "a remedy was not read"

        return checked

    return registered


def follows_each(cases: Iterable[tuple[Any, ...]]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a test with a parameter `kind` for the error that each of its cases begins with."""

    def registered(test: Callable[..., None]) -> Callable[..., None]:
        for kind in {case[0] for case in cases}:
            FOLLOWED.setdefault(kind, []).append(f"{test.__module__}.{test.__name__}")

        @functools.wraps(test)
        def checked(*arguments: Any, **named: Any) -> None:
            _read.clear()
            test(*arguments, **named)
            assert named["kind"] in _read, "the remedy was not read"

        return checked

    return registered


def refused(kind: type[_Error], call: Callable[[], object], *advice: str) -> _Error:
    """The error of exactly this type that the call raises; its remedy has each of these texts."""
    with pytest.raises(kind) as caught:
        call()
    advises(caught.value, kind, *advice)
    return caught.value


def advises(error: PipelineError, kind: type[PipelineError], *advice: str) -> None:
    """The error is of exactly this type, and its remedy has each of these texts."""
    assert type(error) is kind
    remedy = error.remedy()
    assert [text for text in advice if text not in remedy] == [], remedy
    assert advice, "what the remedy names is asserted"
    _read.add(kind)


def invoke(arguments: tuple[str, ...], environment: Mapping[str, str | None]) -> tuple[Result, PipelineError | None]:
    """The result of a `pipeline` command that runs in this process, and the error of ours that ended it."""
    raised: list[PipelineError] = []
    run = click.Group.invoke

    def observed(group: click.Group, context: click.Context) -> Any:
        try:
            return run(group, context)
        except PipelineError as error:
            raised.append(error)
            raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(click.Group, "invoke", observed)
        result = CliRunner().invoke(main, list(arguments), "", dict(environment), catch_exceptions=False)
    return result, raised[-1] if raised else None


def command_refused(
    kind: type[_Error], arguments: tuple[str, ...], environment: Mapping[str, str | None], *advice: str
) -> _Error:
    """The error of exactly this type that ends a command, which prints it; its remedy has each of these texts."""
    result, error = invoke(arguments, environment)
    assert isinstance(error, kind), result.output
    assert (result.exit_code, str(error) in result.stderr) == (1, True), result.output
    advises(error, kind, *advice)
    return error
