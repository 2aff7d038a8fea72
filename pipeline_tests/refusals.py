"""What a run is refused with: Dagster's failure, and the error of ours that it tells."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from dagster import Failure

from pipeline.errors import PipelineError


@contextmanager
def refused(kind: type[PipelineError]) -> Iterator[Any]:
    """The block whose run fails with an error of that kind; afterwards `value` is the error."""
    caught = SimpleNamespace(value=None)
    with pytest.raises(Failure) as failed:
        yield caught
    caught.value = failed.value.__cause__
    assert isinstance(caught.value, kind)
    assert failed.value.description == str(caught.value)
