"""The file system of a URI, and the files in its folders. No Spark.

Here belong the reading of URIs, and the listing and reading of folders and files on any storage. What a file contains
does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pipeline.delta.storage import local_files
from pipeline.delta.storage.object_stores import in_parallel, object_store
from pipeline.errors import UnknownSchemeError
from pipeline.settings import SCHEMES

# How often a folder is listed that another process creates or removes meanwhile, before the error is raised.
_LIST_ATTEMPTS = 5
# A listing of a folder with all below it costs a request for a thousand files.
_ASKED_ONE_BY_ONE = 100
_T = TypeVar("_T")
_R = TypeVar("_R")


def local_folder(uri: str) -> Path | None:
    """The folder that a plain path or a `file:` URI names. For any other storage, None."""
    if uri.startswith("file:"):
        return Path("/" + uri.removeprefix("file:").lstrip("/"))
    return None if "://" in uri else Path(uri)


@dataclass(frozen=True)
class File:
    """A file in a folder. The modification time is in nanoseconds since the epoch."""

    name: str
    size: int
    changed_nanoseconds: int


def list_files(folder: str) -> list[File]:
    """The files directly in a folder of any URI. If there is no such folder, empty. No Spark."""
    from pyarrow import fs

    system, path = file_system(folder)
    infos = list_folder(system, path)
    return [File(info.base_name, info.size, info.mtime_ns or 0) for info in infos if info.type == fs.FileType.File]


def list_folder(system: Any, path: str, *, recursive: bool = False) -> list[Any]:
    """The files and folders in a folder of a file system. If there is no such folder, empty."""
    from pyarrow import fs

    selector = fs.FileSelector(path, recursive=recursive, allow_not_found=True)
    for _ in range(_LIST_ATTEMPTS):
        # pyarrow raises in spite of `allow_not_found` if the folder is created or removed while it is listed.
        with suppress(FileNotFoundError):
            return list(system.get_file_info(selector))
    return list(system.get_file_info(selector))


def read_file(uri: str) -> bytes:
    """The content of a file.

    Raises:
        FileNotFoundError: there is no such file.
        OSError, ValueError: the storage can't be read.
    """
    system, path = file_system(uri)
    with system.open_input_stream(path) as stream:
        content: bytes = stream.read()
    return content


def missing_files(folder: str, names: Iterable[str]) -> tuple[str, ...]:
    """Those of these files below a folder that do not exist, in their order.

    Raises:
        OSError, ValueError: the storage can't be read.
    """
    from pyarrow import fs

    asked = tuple(names)
    local = local_folder(folder)
    if local is not None:
        return tuple(name for name in asked if not (local / name).exists())
    system, top = file_system(folder)
    if len(asked) > _ASKED_ONE_BY_ONE:
        existing = {info.path for info in list_folder(system, top, recursive=True)}
        return tuple(name for name in asked if f"{top.rstrip('/')}/{name}" not in existing)
    infos = system.get_file_info([f"{top.rstrip('/')}/{name}" for name in asked])
    return tuple(name for name, info in zip(asked, infos, strict=True) if info.type == fs.FileType.NotFound)


def write_file(uri: str, content: bytes) -> None:
    """Write a file: a reader sees the full content or no file. An existing file is replaced.

    Raises:
        OSError, ValueError: the storage can't be written.
    """
    local = local_folder(uri)
    if local is not None:
        local_files.write_file(local, content)
        return
    system, path = file_system(uri)
    system.handler.put(path, content)


def side_by_side(read: Callable[[_T], _R], items: Iterable[_T], uri: str) -> list[_R]:
    """The result of `read` for each item, in their order. On a storage off this machine the calls run side by side."""
    if local_folder(uri) is not None:
        return [read(item) for item in items]
    return in_parallel(read, items)


def create_file(uri: str, content: bytes) -> bool:
    """Create a file in a bucket by one conditional request. If it exists, False, and nothing is written.

    A request whose answer is lost is repeated; then the file may hold this content although the answer is False.

    Raises:
        OSError, ValueError: the storage can't be written.
    """
    system, path = file_system(uri)
    return bool(system.handler.create(path, content))


def file_system(location: str) -> tuple[Any, str]:
    """Pyarrow's file system for a URI, and the path in it. A plain path is on this machine.

    A URI is read as Hadoop reads it: nothing in its path is decoded.

    Raises:
        UnknownSchemeError: there is no client for the scheme.
        ExtraMissingError: the client is not installed.
        OSError: the client's options are not valid.
    """
    local = local_folder(location)
    if local is not None:
        from pyarrow import fs

        return fs.LocalFileSystem(), str(local)
    scheme, _, rest = location.partition("://")
    if scheme not in SCHEMES:
        raise UnknownSchemeError(scheme=scheme, known=tuple(SCHEMES))
    return object_store(scheme, rest.partition("/")[0]), rest.rstrip("/")
