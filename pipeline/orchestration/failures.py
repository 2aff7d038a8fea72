"""A `PipelineError` as a Dagster failure: its message is the description, and its fields are the metadata.

Here belongs this conversion, and whether a retry policy applies. The message belongs to the error itself.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from dagster import Failure, MetadataValue
from pyspark.errors import PySparkAttributeError, PySparkNotImplementedError

from pipeline.delta.spark.connect import CONNECT_MODE
from pipeline.errors import ClassicSparkError, PipelineError
from pipeline.errors.listing import bounded

# Spark's conditions for what a Connect session lacks.
_ONLY_CLASSIC = frozenset({"JVM_ATTRIBUTE_NOT_SUPPORTED", "NOT_IMPLEMENTED"})


@contextmanager
def as_dagster_failure() -> Iterator[None]:
    """Convert a `PipelineError` that leaves the block of a step to Dagster's own failure.

    Raises:
        Failure: for a `PipelineError`. A retry policy applies only if the error may pass. Also if the block uses what a
            session on a server lacks.
    """
    try:
        yield
    except PipelineError as error:
        raise failure_of(error) from error
    except (PySparkAttributeError, PySparkNotImplementedError) as error:
        if error.getCondition() not in _ONLY_CLASSIC or CONNECT_MODE not in os.environ:
            raise
        found = ClassicSparkError(reason=error.getMessage())
        found.__cause__ = error
        raise failure_of(found) from found


def failure_of(error: PipelineError) -> Failure:
    """The failure for an error."""
    metadata: dict[str, MetadataValue[Any]] = {"error": MetadataValue.text(type(error).__name__)}
    metadata |= {field.name: _metadata(getattr(error, field.name)) for field in fields(error)}
    return Failure(description=str(error), metadata=metadata, allow_retries=error.may_pass)


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
    """The function of an asset, with each `PipelineError` converted to a failure. A generator is returned unchanged."""
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with as_dagster_failure():
            return function(*args, **kwargs)

    return call
