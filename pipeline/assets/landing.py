"""Copying of files from an installed package to the landing folder, each written atomically.

Here belong the functions that every subject uses. The package is located and never imported. Neither Spark nor Dagster
is needed.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import os
from collections.abc import Iterable
from pathlib import Path

from pipeline.delta.storage.local_files import write_file
from pipeline.errors import DemoError

_INSTALL = 'pip install "delta-first-pipeline[demo]", or in a checkout: pip install -e ".[demo]"'


def package_folder(package: str, holds: str) -> Path:
    """The folder of an installed package.

    Raises:
        DemoError: it is not installed. `holds` names its content in the message.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise DemoError(reason=f"The package {package}, which holds the real {holds}, is not installed.", hint=_INSTALL)
    return Path(spec.submodule_search_locations[0])


def csv_content(rows: Iterable[list[str]]) -> bytes:
    """The content of a CSV file with these rows."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8")


def lay(path: Path, content: bytes, written: list[Path]) -> None:
    """Write a file unless an equal one exists. A file that was written is added to `written`."""
    if path.is_file() and path.read_bytes() == content:
        return
    # Neither Spark nor a sensor reads a file whose name begins so.
    write_file(path, content, temporary=f"_{path.name}.{os.getpid()}.tmp")
    written.append(path)
