"""Buckets and containers as pyarrow's file systems: one request for each read, write and page of a listing.

Here belong the clients of S3, Azure and GCS, and the translation of their errors. Which account they use is the subject
of `options`. Unless the bucket's options say otherwise, a client gives up after some 20 s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, TypeVar

from pipeline.delta.storage.access import StoreError, is_beyond_the_end, problem_by_code, problem_in, shown_answer
from pipeline.delta.storage.options import azure_options, gcs_options, log_requests, s3_options
from pipeline.delta.storage.ranged_file import WINDOW_BYTES, RangedFile
from pipeline.errors import AccessProblem, ExtraMissingError
from pipeline.settings import SCHEMES, LogRequests

_RETRY_SECONDS = 15
_CREATE_PAUSES = (0.1, 0.5, 2.0)
_PARALLEL_REQUESTS = 16
# The metadata of an object that stands for a folder in Azure.
_FOLDER_MARK = "hdi_isfolder"
_LISTED_PAGE = 1000
_T = TypeVar("_T")
_R = TypeVar("_R")


def object_store(scheme: str, authority: str) -> Any:
    """Pyarrow's file system over a bucket or container. Its paths begin with the authority.

    Raises:
        ExtraMissingError: the client is not installed.
        OSError: the account's options are not valid.
    """
    by_extra = {"s3": s3_options, "azure": azure_options, "gcs": gcs_options}
    options = by_extra[SCHEMES[scheme]](authority)
    return _opened(scheme, authority, tuple(sorted(options.items())), log_requests(scheme, authority))


def extras_of(schemes: Iterable[str]) -> set[str]:
    """The extras of this package that tables with these schemes need."""
    return {SCHEMES[scheme] for scheme in schemes if scheme in SCHEMES}


def in_parallel(read: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
    """The result of `read`, which waits for the storage, for each item, in their order."""
    with ThreadPoolExecutor(_PARALLEL_REQUESTS, thread_name_prefix="storage") as pool:
        return list(pool.map(read, items))


@lru_cache(maxsize=64)
def _opened(scheme: str, authority: str, options: tuple[tuple[str, Any], ...], requests: LogRequests) -> Any:
    try:
        from obstore.store import AzureStore, GCSStore, S3Store
    except ImportError as error:
        raise ExtraMissingError(scheme=scheme, extra=SCHEMES[scheme]) from error
    from pyarrow import fs

    backoff = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2), "base": 2}
    retry = {"max_retries": requests.retries, "retry_timeout": timedelta(seconds=_RETRY_SECONDS), "backoff": backoff}
    client = {
        "allow_http": True, "connect_timeout": timedelta(seconds=requests.connect_timeout_seconds),
        "timeout": timedelta(seconds=requests.timeout_seconds),
    }  # fmt: skip
    common: dict[str, Any] = {"client_options": client, "retry_config": retry}
    with os_errors():
        if SCHEMES[scheme] == "s3":
            store: Any = S3Store(authority, **dict(options), **common)
        elif SCHEMES[scheme] == "azure":
            store = AzureStore(authority.partition("@")[0], **dict(options), **common)
        else:
            store = GCSStore(authority, **dict(options), **common)
    fs.FileSystemHandler.register(ObjectStoreHandler)
    return fs.PyFileSystem(ObjectStoreHandler(store, SCHEMES[scheme], authority, requests.retries))


@contextmanager
def os_errors() -> Iterator[None]:
    """Raise a client's errors in the block as OSErrors, with the text that may be shown.

    The client's own error is not chained: its text repeats the store's answer.

    Raises:
        FileNotFoundError: the file is missing.
        StoreError: the store refuses, or doesn't answer.
        OSError: the name is not valid.
    """
    from obstore.exceptions import BaseError, GenericError, PermissionDeniedError, UnauthenticatedError

    refusals = (GenericError, PermissionDeniedError, UnauthenticatedError)
    try:
        yield
    except FileNotFoundError as error:
        if problem_by_code(str(error)) is AccessProblem.NO_BUCKET:
            raise StoreError(shown_answer(error), AccessProblem.NO_BUCKET) from None
        raise FileNotFoundError(shown_answer(error)) from None
    except StoreError:
        raise
    except OSError as error:  # of the client's open files
        raise StoreError(shown_answer(error), problem_in(str(error))) from None
    except BaseError as error:
        problem = problem_in(str(error)) if isinstance(error, refusals) else None
        raise StoreError(shown_answer(error), problem) from None
    except ValueError as error:  # it is about the name
        raise OSError(shown_answer(error)) from None


def _nanoseconds(meta: Any) -> int:
    return int(meta["last_modified"].timestamp() * 1_000_000) * 1_000


class ObjectStoreHandler:
    """The methods of `pyarrow.fs.FileSystemHandler`, which it is registered as: pyarrow is imported on first use.

    `checkpoints` is for the reader of logs: by table the newest checkpoint that it has seen in the log.
    """

    def __init__(self, store: Any, kind: str, authority: str, retries: int) -> None:
        self._store, self._kind, self._authority, self._retries = store, kind, authority, retries
        self.checkpoints: dict[str, int] = {}

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
                meta = self._store.head(key)
                if meta["size"] or not self._is_marker(key):
                    return self._file(meta)
                is_folder = True
            except FileNotFoundError:
                listed = self._store.list_with_delimiter(key)
                is_folder = bool(listed["objects"] or listed["common_prefixes"])
        return fs.FileInfo(path, fs.FileType.Directory if is_folder else fs.FileType.NotFound)

    def _is_marker(self, key: str) -> bool:
        """Whether an empty object stands for a folder, as Hadoop's clients write them in Azure."""
        return self._kind == "azure" and self._store.get(key).attributes.get(_FOLDER_MARK) == "true"

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
                metas = [meta for page in self._store.list(key) for meta in page]
                folders: list[str] = []
            else:
                listed = self._store.list_with_delimiter(key)
                metas, folders = listed["objects"], listed["common_prefixes"]
        infos = [fs.FileInfo(self._path(folder), fs.FileType.Directory) for folder in folders]
        infos += map(self._file, _without_markers(key, metas, folders))
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
        """A file whose parts are read as they are asked for. The first MB, or all of it, is read by one request."""
        import pyarrow as pa

        key = self._key(path)
        with os_errors():
            first, size = self._beginning(key)
        if size <= len(first):
            return pa.BufferReader(memoryview(first))
        return pa.PythonFile(RangedFile(bytes(first), size, partial(self._range, key)), mode="r")

    def _beginning(self, key: str) -> tuple[Any, int]:
        """The first bytes of a file, and its size."""
        from obstore.exceptions import GenericError

        try:
            answer = self._store.get(key, options={"range": (0, WINDOW_BYTES)})
        except GenericError as error:  # an empty file has no first byte
            if not is_beyond_the_end(str(error)):
                raise
            answer = self._store.get(key)
        return answer.bytes(), answer.meta["size"]

    def _range(self, key: str, start: int, end: int) -> bytes:
        with os_errors():
            return bytes(self._store.get_range(key, start=start, end=end))

    # --- writing ------------------------------------------------------------------------------------------------------

    def open_output_stream(self, path: str, metadata: object) -> Any:  # noqa: ARG002  pyarrow passes it
        """A new file, which appears when it is closed."""
        import obstore
        import pyarrow as pa

        with os_errors():
            return pa.PythonFile(_WrittenFile(obstore.open_writer(self._store, self._key(path))), mode="w")

    def put(self, path: str, content: bytes) -> None:
        """Write a file by one request. An existing file is replaced."""
        with os_errors():
            self._store.put(self._key(path), content)

    def create(self, path: str, content: bytes) -> bool:
        """Create a file by a conditional request. If it exists, False, and nothing is written.

        The client doesn't repeat such a request if its connection breaks. Here it is repeated for a bounded time.
        """
        ends = time.monotonic() + _RETRY_SECONDS
        for pause in _CREATE_PAUSES[: self._retries]:
            try:
                return self._create(self._key(path), content)
            except StoreError as error:
                if error.problem is not AccessProblem.UNREACHABLE or time.monotonic() + pause > ends:
                    raise
            time.sleep(pause)
        return self._create(self._key(path), content)

    def _create(self, key: str, content: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError

        with os_errors():
            try:
                self._store.put(key, content, mode="create")
            except AlreadyExistsError:
                return False
        return True

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


def _without_markers(key: str, metas: Sequence[Any], folders: Iterable[str]) -> list[Any]:
    """The objects but those that Hadoop's clients write for a folder: they are empty and have the folder's name."""
    named = {key, *folders}
    for meta in metas:
        parts = meta["path"].split("/")[:-1]
        named.update("/".join(parts[:count]) for count in range(1, len(parts) + 1))
    return [meta for meta in metas if meta["size"] or meta["path"] not in named]


class _WrittenFile:
    """A new file of the client whose errors are OSErrors."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def write(self, content: Iterable[int]) -> int:
        with os_errors():
            return int(self._file.write(bytes(content)))

    def flush(self) -> None:
        """Nothing: the file is complete when it is closed."""

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with os_errors():
                self._file.close()

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True
