"""Buckets and containers as pyarrow's file systems: one request for each read, write and page of a listing.

Here belong the clients of S3, Azure and GCS, and the translation of their errors. Which account they use is the subject
of `options`. A client gives up after some 20 s.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar

from pipeline.delta.storage.options import azure_options, gcs_options, s3_options
from pipeline.errors import ExtraMissingError

_CLIENT = {"allow_http": True, "connect_timeout": "5s", "timeout": "20s"}
_RETRIES = 3
_RETRY_SECONDS = 15
_PARALLEL_REQUESTS = 16
_SHOWN_CHARACTERS = 400
# A file up to this size is read at once: a request takes longer than the reading of so many bytes.
_WHOLE_BYTES = 2**20
_LISTED_PAGE = 1000
_T = TypeVar("_T")
_R = TypeVar("_R")
# The extra of this package that brings the client for a scheme.
EXTRAS = {"s3": "s3", "s3a": "s3", "s3n": "s3", "abfs": "azure", "abfss": "azure", "gs": "gcs"}


def object_store(scheme: str, authority: str) -> Any:
    """Pyarrow's file system over a bucket or container. Its paths begin with the authority.

    Raises:
        ExtraMissingError: the client is not installed.
        OSError: the account's options are not valid.
    """
    by_extra = {"s3": s3_options, "azure": azure_options, "gcs": gcs_options}
    options = by_extra[EXTRAS[scheme]](authority)
    return _opened(scheme, authority, tuple(sorted(options.items())))


def extras_of(schemes: Iterable[str]) -> set[str]:
    """The extras of this package that tables with these schemes need."""
    return {EXTRAS[scheme] for scheme in schemes if scheme in EXTRAS}


def in_parallel(read: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
    """The result of `read`, which waits for the storage, for each item, in their order."""
    with ThreadPoolExecutor(_PARALLEL_REQUESTS, thread_name_prefix="storage") as pool:
        return list(pool.map(read, items))


@lru_cache(maxsize=64)
def _opened(scheme: str, authority: str, options: tuple[tuple[str, Any], ...]) -> Any:
    try:
        from obstore.store import AzureStore, GCSStore, S3Store
    except ImportError as error:
        raise ExtraMissingError(scheme=scheme, extra=EXTRAS[scheme]) from error
    from pyarrow import fs

    backoff = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2), "base": 2}
    retry = {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_RETRY_SECONDS), "backoff": backoff}
    common: dict[str, Any] = {"client_options": _CLIENT, "retry_config": retry}
    with os_errors():
        if EXTRAS[scheme] == "s3":
            store: Any = S3Store(authority, **dict(options), **common)
        elif EXTRAS[scheme] == "azure":
            store = AzureStore(authority.partition("@")[0], **dict(options), **common)
        else:
            store = GCSStore(authority, **common)
    fs.FileSystemHandler.register(ObjectStoreHandler)
    return fs.PyFileSystem(ObjectStoreHandler(store, EXTRAS[scheme], authority))


@contextmanager
def os_errors() -> Iterator[None]:
    """Raise a client's errors in the block as OSErrors. Its text is cut: it may repeat a full answer."""
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

    try:
        yield
    except (BaseError, ValueError) as error:  # a ValueError is about the name
        text = " ".join(str(error).split())[:_SHOWN_CHARACTERS]
        kind = PermissionError if isinstance(error, PermissionDeniedError | UnauthenticatedError) else OSError
        raise kind(text) from error


def _nanoseconds(meta: Any) -> int:
    return int(meta["last_modified"].timestamp() * 1_000_000) * 1_000


class ObjectStoreHandler:
    """The methods of `pyarrow.fs.FileSystemHandler`, which it is registered as: pyarrow is imported on first use."""

    def __init__(self, store: Any, kind: str, authority: str) -> None:
        self._store, self._kind, self._authority = store, kind, authority

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectStoreHandler) and self._store is other._store

    def __hash__(self) -> int:
        return id(self._store)

    def _key(self, path: str) -> str:
        return path.removeprefix(self._authority).strip("/")

    def _path(self, key: str) -> str:
        return f"{self._authority}/{key}"

    def get_type_name(self) -> str:
        """The kind of store."""
        return self._kind

    def normalize_path(self, path: str) -> str:
        """The path as it is: a key may have any characters."""
        return path

    # --- reading ------------------------------------------------------------------------------------------------------

    def get_file_info(self, paths: Sequence[str]) -> list[Any]:
        """The files and folders at these paths, side by side."""
        if len(paths) == 1:
            return [self._info(paths[0])]
        return in_parallel(self._info, paths)

    def _info(self, path: str) -> Any:
        from pyarrow import fs

        key = self._key(path)
        with os_errors():
            try:
                return self._file(self._store.head(key))
            except FileNotFoundError:
                listed = self._store.list_with_delimiter(key)
        is_folder = bool(listed["objects"] or listed["common_prefixes"])
        return fs.FileInfo(path, fs.FileType.Directory if is_folder else fs.FileType.NotFound)

    def _file(self, meta: Any) -> Any:
        from pyarrow import fs

        path = self._path(meta["path"])
        return fs.FileInfo(path, fs.FileType.File, size=meta["size"], mtime_ns=_nanoseconds(meta))

    def get_file_info_selector(self, selector: Any) -> list[Any]:
        """The files and folders in a folder."""
        from pyarrow import fs

        key = self._key(selector.base_dir)
        with os_errors():
            if selector.recursive:
                infos = [self._file(meta) for page in self._store.list(key) for meta in page]
            else:
                listed = self._store.list_with_delimiter(key)
                folders = (fs.FileInfo(self._path(p), fs.FileType.Directory) for p in listed["common_prefixes"])
                infos = [*folders, *map(self._file, listed["objects"])]
        if not infos and not selector.allow_not_found:
            raise FileNotFoundError(f"There is no folder {selector.base_dir}")
        return infos

    def files_from(self, folder: str, start: str, at_most: int | None) -> list[tuple[str, int, int, str | None]] | None:
        """The names below a folder that follow `start`, each with size, modification time in nanoseconds, and tag.

        If there are more than `at_most`, None.
        """
        key = self._key(folder)
        metas: list[Any] = []
        with os_errors():
            for page in self._store.list(key, offset=f"{key}/{start}", chunk_size=_LISTED_PAGE):
                metas += page
                if at_most is not None and len(metas) > at_most:
                    return None
        below = len(key) + 1
        return [(m["path"][below:], m["size"], _nanoseconds(m), m["e_tag"]) for m in metas]

    def read_timed(self, path: str) -> tuple[bytes, int]:
        """The content of a file and its modification time in nanoseconds, by one request."""
        with os_errors():
            answer = self._store.get(self._key(path))
            return bytes(answer.bytes()), _nanoseconds(answer.meta)

    def open_input_stream(self, path: str) -> Any:
        """The content of a file, read by one request."""
        import pyarrow as pa

        with os_errors():
            return pa.BufferReader(memoryview(self._store.get(self._key(path)).bytes()))

    def open_input_file(self, path: str) -> Any:
        """A file whose parts are read as they are asked for. A small one is read by one request."""
        import obstore
        import pyarrow as pa

        with os_errors():
            answer = self._store.get(self._key(path))
            if answer.meta["size"] <= _WHOLE_BYTES:
                return pa.BufferReader(memoryview(answer.bytes()))
            return pa.PythonFile(_Translated(obstore.open_reader(self._store, self._key(path))), mode="r")

    # --- writing ------------------------------------------------------------------------------------------------------

    def open_output_stream(self, path: str, metadata: object) -> Any:  # noqa: ARG002  pyarrow passes it
        """A new file, which appears when it is closed."""
        import obstore
        import pyarrow as pa

        with os_errors():
            return pa.PythonFile(_Translated(obstore.open_writer(self._store, self._key(path))), mode="w")

    def put(self, path: str, content: bytes) -> None:
        """Write a file by one request. An existing file is replaced."""
        with os_errors():
            self._store.put(self._key(path), content)

    def honours_conditions(self, folder: str) -> bool:
        """Whether the store refuses to create a file that exists. A file in the folder is created twice and deleted."""
        from obstore.exceptions import AlreadyExistsError

        key = f"{self._key(folder)}/_probe-{uuid.uuid4().hex}".lstrip("/")
        with os_errors():
            self._store.put(key, b"first", mode="create")
            try:
                self._store.put(key, b"second", mode="create")
            except AlreadyExistsError:
                return bool(self._store.get(key).bytes() == b"first")
            finally:
                self._store.delete(key)
        return False

    def create_dir(self, path: str, recursive: bool) -> None:
        """Nothing: a folder exists if it has files."""

    def delete_file(self, path: str) -> None:
        """Delete one file. If there is none, nothing."""
        with os_errors():
            self._store.delete(self._key(path))

    def delete_dir(self, path: str) -> None:
        """Delete all files in a folder."""
        key = self._key(path)
        if not key:
            raise OSError("A whole bucket is not deleted.")
        with os_errors():
            for page in self._store.list(key):
                self._store.delete([meta["path"] for meta in page])


class _Translated:
    """A file of the client whose errors are OSErrors."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._closed = False

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        with os_errors():
            return method(*arguments)

    @property
    def closed(self) -> bool:
        return self._closed

    def read(self, size: int = -1) -> bytes:
        return bytes(self._call(self._file.read, None if size < 0 else size))

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._call(self._file.seek, offset, whence))

    def tell(self) -> int:
        return int(self._call(self._file.tell))

    def write(self, content: Iterable[int]) -> int:
        return int(self._call(self._file.write, bytes(content)))

    def flush(self) -> None:
        """Nothing: the file is complete when it is closed."""

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._call(self._file.close)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True
