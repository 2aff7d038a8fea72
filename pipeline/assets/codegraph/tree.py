"""A tree of Python source files: its snapshot, and the parsing of its files in Spark's Python workers.

Here belongs all access to the files. Their content belongs to `parse`. The workers import this module, so it needs
neither Spark nor Dagster. They find the tree under the same path as the process that took the snapshot.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.assets.codegraph.errors import SourceTreeError
from pipeline.assets.codegraph.parse import PACKAGE_FILE, SUFFIX, parse

DEFAULT_PACKAGE = "dagster"
# The column in which a worker reports that a file has changed since the snapshot. It is never written to a table.
STALE = "stale"


@dataclass(frozen=True)
class SourceFile:
    """One file of the snapshot. `path` has `/` and begins below the tree's base."""

    path: str
    sha256: str
    bytes: int
    lines: int


def installed_package(name: str = DEFAULT_PACKAGE) -> Path:
    """The folder of an installed package, which is not imported.

    Raises:
        SourceTreeError: it is not installed, or is not a folder.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SourceTreeError(folder=name, problem="no package of that name is installed as a folder")
    return Path(spec.submodule_search_locations[0])


def base_of(folder: Path) -> Path:
    """The folder at which paths begin: the one above the topmost package. If the folder is no package, itself.

    A path therefore determines the full name of a module, and rows follow from path and content alone.
    """
    base = folder.resolve()
    while (base / PACKAGE_FILE).is_file():
        base = base.parent
    return base


def snapshot(folder: Path) -> list[SourceFile]:
    """Every Python file of the folder, by path. Names that begin with a dot, and linked folders, are left out.

    Raises:
        SourceTreeError: the folder does not exist or has no Python file, or a file can't be read or its name is not
            UTF-8. No file is returned then, because missing files would count as deleted.
    """
    if not folder.is_dir():
        raise SourceTreeError(folder=str(folder), problem="there is no such folder")
    base = base_of(folder)
    files = []
    for path in _python_files(folder.resolve()):
        relative = path.relative_to(base).as_posix()
        try:
            content = path.read_bytes()
            relative.encode("utf-8")
        except FileNotFoundError:  # deleted since it was listed
            continue
        except (OSError, UnicodeEncodeError) as error:
            raise SourceTreeError(folder=str(folder), problem=f"{relative!r} can't be read: {error}") from error
        lines = content.count(b"\n") + (not content.endswith(b"\n") if content else 0)
        files.append(SourceFile(relative, hashlib.sha256(content).hexdigest(), len(content), lines))
    if not files:
        raise SourceTreeError(folder=str(folder), problem="it holds no Python file")
    return sorted(files, key=lambda file: file.path)


def _python_files(folder: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise SourceTreeError(folder=str(folder), problem=f"it can't be listed: {error}") from error

    for parent, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.endswith(SUFFIX) and not name.startswith("."):
                yield Path(parent, name)


def parsed_file(base: str, path: str, sha256: str) -> dict[str, Any]:
    """A file of the snapshot as a row of `modules`. If it has changed, `STALE` holds the reason, else None."""
    row: dict[str, Any] = {"path": path, "sha256": sha256, STALE: None}
    try:
        content = Path(base, path).read_bytes()
    except OSError as error:
        return row | {STALE: error.strerror or str(error)}
    if hashlib.sha256(content).hexdigest() != sha256:
        return row | {STALE: "its content has changed"}
    return row | vars(parse(path, content))


def parser_of(base: str, schema: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for `mapInArrow`: batches with `path` and `sha256` become batches of that schema, one per file."""

    def parsed(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for file in batch.select(["path", "sha256"]).to_pylist():
                yield pa.RecordBatch.from_pylist([parsed_file(base, file["path"], file["sha256"])], schema=schema)

    return parsed
