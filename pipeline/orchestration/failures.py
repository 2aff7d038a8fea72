"""Errors of ours as Dagster tells them: a failure with the message as its description and the fields as its metadata.

Here belongs that form, and whether a retry policy tries again. What an error says is its own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from dagster import Failure, MetadataValue

from pipeline.errors import PipelineError
from pipeline.errors.listing import bounded


@contextmanager
def as_dagster_failure() -> Iterator[None]:
    """The block of a step, out of which an error of ours comes as Dagster's own failure.

    Raises:
        Failure: a retry policy tries again what may pass, and nothing else.
    """
    try:
        yield
    except PipelineError as error:
        raise failure_of(error) from error


def failure_of(error: PipelineError) -> Failure:
    """The failure that tells of an error."""
    told: dict[str, MetadataValue[Any]] = {"error": MetadataValue.text(type(error).__name__)}
    told |= {field.name: _metadata(getattr(error, field.name)) for field in fields(error)}
    return Failure(description=str(error), metadata=told, allow_retries=error.may_pass)


def _metadata(value: Any) -> MetadataValue[Any]:
    if isinstance(value, bool):
        return MetadataValue.bool(value)
    if isinstance(value, int):
        return MetadataValue.int(value)
    if isinstance(value, Mapping):
        return MetadataValue.json({str(name): count for name, count in value.items()})
    if isinstance(value, tuple):
        return MetadataValue.json(bounded(value))
    return MetadataValue.text("" if value is None else str(value))


def with_dagster_failures(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of an asset, out of which errors of ours come as failures; one that yields is left as it is."""
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with as_dagster_failure():
            return function(*args, **kwargs)

    return call
