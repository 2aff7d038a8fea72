"""A tree of Python source files: its snapshot, and the parse of its files where Spark's Python workers run.

Here belongs what touches the files; what stands in one is `codegraph_parse`'s. The workers import this module, so it
needs neither Spark nor Dagster, and they find the tree under the same path as the process that took the snapshot.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.assets.codegraph.parse import PACKAGE_FILE, SUFFIX, parse
from pipeline.errors import SourceTreeError

DEFAULT_PACKAGE = "dagster"
# What a worker adds to a file that is no longer the one of the snapshot; it never gets into a table.
STALE = "stale"


@dataclass(frozen=True)
class SourceFile:
    """One file as it was when the snapshot was taken; `path` has `/` and begins below the tree's base."""

    path: str
    sha256: str
    bytes: int
    lines: int


def installed_package(name: str = DEFAULT_PACKAGE) -> Path:
    """The folder of an installed package, which is not imported.

    Raises:
        SourceTreeError: it is not installed, or is no folder.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SourceTreeError(folder=name, problem="no package of that name is installed as a folder")
    return Path(spec.submodule_search_locations[0])


def base_of(folder: Path) -> Path:
    """The folder below which paths begin: the one above the topmost package, or the folder itself where it is none.

    So a path says the whole name of a module, and rows that follow from path and content follow from nothing else.
    """
    base = folder.resolve()
    while (base / PACKAGE_FILE).is_file():
        base = base.parent
    return base


def snapshot(folder: Path) -> list[SourceFile]:
    """Every Python file of the folder, by path. Names that begin with a dot, and folders that are links, are left out.

    Raises:
        SourceTreeError: the folder is not there or holds no Python file, or a file can't be read or has a name that is
            no UTF-8. Nothing is told then of any file, since those left out would pass for deleted.
    """
    if not folder.is_dir():
        raise SourceTreeError(folder=str(folder), problem="there is no such folder")
    base = base_of(folder)
    found = []
    for path in _python_files(folder.resolve()):
        relative = path.relative_to(base).as_posix()
        try:
            content = path.read_bytes()
            relative.encode("utf-8")
        except FileNotFoundError:  # gone since it was listed, as it would be a moment later
            continue
        except (OSError, UnicodeEncodeError) as error:
            raise SourceTreeError(folder=str(folder), problem=f"{relative!r} can't be read: {error}") from error
        lines = content.count(b"\n") + (not content.endswith(b"\n") if content else 0)
        found.append(SourceFile(relative, hashlib.sha256(content).hexdigest(), len(content), lines))
    if not found:
        raise SourceTreeError(folder=str(folder), problem="it holds no Python file")
    return sorted(found, key=lambda file: file.path)


def _python_files(folder: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise SourceTreeError(folder=str(folder), problem=f"it can't be listed: {error}") from error

    for parent, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.endswith(SUFFIX) and not name.startswith("."):
                yield Path(parent, name)


def parsed_file(base: str, path: str, sha256: str) -> dict[str, Any]:
    """A file of the snapshot as a row of `modules`, and under `STALE` why it is none; None where it is one."""
    row: dict[str, Any] = {"path": path, "sha256": sha256, STALE: None}
    try:
        content = Path(base, path).read_bytes()
    except OSError as error:
        return row | {STALE: error.strerror or str(error)}
    if hashlib.sha256(content).hexdigest() != sha256:
        return row | {STALE: "its content has changed"}
    return row | vars(parse(path, content))


def parser_of(base: str, schema: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What `mapInArrow` runs: batches with `path` and `sha256` become batches of that Arrow schema, one a file."""

    def parsed(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for file in batch.select(["path", "sha256"]).to_pylist():
                yield pa.RecordBatch.from_pylist([parsed_file(base, file["path"], file["sha256"])], schema=schema)

    return parsed
