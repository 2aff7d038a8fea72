"""The file system of a URI, and the files in its folders. No Spark.

Here belong the reading of URIs, and the listing and reading of folders and files on any storage. What a file contains
does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pipeline.delta.storage.options import S3Options, s3_options

# How often a folder is listed that another process creates or removes meanwhile, before the error is raised.
_LIST_ATTEMPTS = 5
# A listing of a folder with all below it costs a request for a thousand files.
_ASKED_ONE_BY_ONE = 100
# A storage that does not answer is given up after these times.
_CONNECT_SECONDS, _REQUEST_SECONDS, _ATTEMPTS = 5.0, 10.0, 3


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


def file_system(location: str) -> tuple[Any, str]:
    """Pyarrow's file system for a URI, and the path in it. A plain path is on this machine.

    Raises:
        OSError, ValueError: pyarrow does not know the file system, or can't reach it.
    """
    from pyarrow import fs

    scheme = urlsplit(location).scheme
    if scheme in ("", "file"):
        # Hadoop does not decode a path; pyarrow would decode a percent sign in a URI.
        return fs.LocalFileSystem(), location.removeprefix("file://").removeprefix("file:")
    if scheme in ("s3", "s3a", "s3n"):
        path = location.partition("://")[2].strip("/")
        return _s3(s3_options(path.partition("/")[0])), path
    return fs.FileSystem.from_uri(location)  # type: ignore[no-any-return]


@lru_cache(maxsize=16)
def _s3(options: S3Options) -> Any:
    """The S3 file system with these options. It gives up after some 20 s."""
    from pyarrow import fs

    endpoint = urlsplit(options.endpoint) if options.endpoint and "://" in options.endpoint else None
    return fs.S3FileSystem(
        access_key=options.access_key, secret_key=options.secret_key, session_token=options.session_token,
        endpoint_override=endpoint.netloc if endpoint else options.endpoint, region=options.region,
        **({"scheme": endpoint.scheme} if endpoint else {}),
        connect_timeout=_CONNECT_SECONDS, request_timeout=_REQUEST_SECONDS,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
    )  # fmt: skip
