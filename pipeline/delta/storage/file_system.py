"""The file system of a URI, and the files in its folders. No Spark.

Here belong the reading of URIs, and the listing and reading of folders and files on any storage. What a file contains
does not.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pipeline.delta.storage import local_files
from pipeline.delta.storage.object_stores import in_parallel, object_store
from pipeline.errors import UnknownSchemeError
from pipeline.settings import SCHEMES

# How often a folder is listed that another process creates or removes meanwhile, before the error is raised.
_LIST_ATTEMPTS = 5
# More files are listed, with all others that follow them, unless that costs half as many requests as there are files.
_ASKED_ONE_BY_ONE = 4
_NAMES_IN_A_REQUEST = 1000
# The content of so many files in buckets is kept, 64 MB at most.
KEPT_FILES, KEPT_BYTES = 1024, 2**16
_T = TypeVar("_T")
_R = TypeVar("_R")


@lru_cache(maxsize=KEPT_FILES)
def local_folder(uri: str) -> Path | None:
    """The folder that a plain path or a `file:` URI names. For any other storage, None."""
    if uri.startswith("file:"):
        return Path("/" + uri.removeprefix("file:").lstrip("/"))
    return None if "://" in uri else Path(uri)


@dataclass(frozen=True)
class File:
    """A file in a folder. The modification time is in nanoseconds since the epoch.

    `tag` is the tag by which an object store identifies the content. If it is not known, None.
    """

    name: str
    size: int
    changed_nanoseconds: int
    tag: str | None = None


def list_files(folder: str) -> list[File]:
    """The files directly in a folder of any URI. If there is no such folder, empty. No Spark."""
    from pyarrow import fs

    system, path = file_system(folder)
    infos = list_folder(system, path)
    return [File(info.base_name, info.size, info.mtime_ns or 0) for info in infos if info.type == fs.FileType.File]


def files_from(folder: str, start: str = "", at_most: int | None = None) -> list[File] | None:
    """The files directly in a folder whose names follow `start`. If there are more than `at_most`, None.

    In a bucket the listing begins at `start`: one request for a thousand names. There the files have tags.
    """
    local = local_folder(folder)
    if local is not None:
        files = _local_files(local, start)
        return files if at_most is None or len(files) <= at_most else None
    system, path = file_system(folder)
    listed = system.handler.files_from(path, start, at_most)
    return None if listed is None else [File(*facts) for facts in listed if "/" not in facts[0]]


def _local_files(folder: Path, start: str) -> list[File]:
    """As `files_from`. Only the files that are asked for are looked at: a log has thousands of others."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return named_files(folder, [name for name in names if name >= start])


def named_files(folder: Path, names: Iterable[str]) -> list[File]:
    """The files of these names in a folder on this machine. Names of nothing, and of folders, are left out."""
    found = []
    for name in names:
        with suppress(FileNotFoundError):  # it was removed since it was listed
            status = os.stat(f"{folder}/{name}")
            if stat.S_ISREG(status.st_mode):
                found.append(File(name, status.st_size, status.st_mtime_ns))
    return found


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


def read_timed(uri: str) -> tuple[bytes, int]:
    """The content of a file, and its modification time in nanoseconds since the epoch.

    Raises:
        As `read_file` does.
    """
    system, path = file_system(uri)
    if system.type_name != "local":
        timed: tuple[bytes, int] = system.handler.read_timed(path)
        return timed
    return read_file(uri), system.get_file_info(path).mtime_ns or 0


def read_listed(folder: str, file: File) -> bytes:
    """The content of a file that was listed. A small file in a bucket is read once, as long as it does not change.

    Raises:
        As `read_file` does.
    """
    local = local_folder(folder)
    if local is not None:
        return (local / file.name).read_bytes()
    uri = f"{folder}/{file.name}"
    return _read_once(uri, file) if file.size <= KEPT_BYTES else read_file(uri)


@lru_cache(maxsize=KEPT_FILES)
def _read_once(uri: str, file: File) -> bytes:  # noqa: ARG001  the cache compares it
    return read_file(uri)


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
        at_most = _NAMES_IN_A_REQUEST * (len(asked) // 2)
        listed = system.handler.files_from(top, min(asked)[:-1], at_most)
        if listed is not None:
            existing = {name for name, *_ in listed}
            return tuple(name for name in asked if name not in existing)
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


def total_bytes(uris: Sequence[str]) -> int:
    """The sum of the sizes of files. A file that does not exist, and a folder, count as empty.

    Raises:
        OSError, ValueError: the storage can't be read.
    """
    return sum(side_by_side(_size, uris, uris[0])) if uris else 0


def _size(uri: str) -> int:
    system, path = file_system(uri)
    return int(system.get_file_info(path).size or 0)


def remove_file(uri: str) -> None:
    """Remove one file. If there is none, nothing.

    Raises:
        OSError, ValueError: the storage refuses.
    """
    system, path = file_system(uri)
    with suppress(FileNotFoundError):
        system.delete_file(path)


def remove_folder(uri: str) -> None:
    """Remove a folder with everything below it. If there is none, nothing.

    Raises:
        OSError, ValueError: the storage refuses.
    """
    system, path = file_system(uri)
    with suppress(FileNotFoundError):
        system.delete_dir(path)


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
