"""Delta's own modules of exceptions, imported without what their import changes for the whole process."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pyspark.errors.exceptions import captured, connect


def delta_exception_modules() -> tuple[list[ModuleType], Callable[..., Any]]:
    """The classic module and that of Connect, and the conversion that the first puts in the place of Spark's.

    Anybody who imports `delta` in a process changes how all of it sees conflicts; other tests are spared that.
    """
    convert, classes = captured.convert_exception, dict(connect.EXCEPTION_CLASS_MAPPING)
    modules = [importlib.import_module(name) for name in ("delta.exceptions.captured", "delta.connect.exceptions")]
    converting = captured.convert_exception
    captured.convert_exception = convert
    connect.EXCEPTION_CLASS_MAPPING.clear()
    connect.EXCEPTION_CLASS_MAPPING.update(classes)
    return modules, converting
