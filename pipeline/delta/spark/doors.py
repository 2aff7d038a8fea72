"""The doors of this package: what Spark, Delta, py4j, gRPC, Arrow or the system raises leaves them as errors of ours.

Here belongs which error of ours a foreign one becomes. What it says is read by `failures`; what rows break, and which
declared expression fails for them, is told before by who has the rows.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar
from urllib.parse import unquote

from py4j.protocol import Py4JNetworkError

from pipeline.dataset import Dataset
from pipeline.delta.spark.failures import SPARK_ERRORS, Failure, failure_of
from pipeline.errors import (
    CommitConflictError,
    DamagedTableError,
    EngineError,
    FrameFailedError,
    PipelineError,
    SparkUnavailableError,
    StatementError,
    StorageError,
    TextError,
)

_P = ParamSpec("_P")
_T = TypeVar("_T")
# By the module that has to be there before one of them can be raised.
_LIBRARIES = {"pyarrow": "ArrowException", "grpc": "RpcError", "google.protobuf.message": "Error"}
# How many characters of a text are told on each side of the one at fault.
_AROUND = 20
# Less room than this is none: Delta's smallest commit and its files take some of it.
_ROOM_BYTES = 1 << 20


def foreign() -> tuple[type[Exception], ...]:
    """Every kind of error that is not ours and may come of a call at a border; imports nothing."""
    there = [getattr(sys.modules[module], name) for module, name in _LIBRARIES.items() if module in sys.modules]
    return (*SPARK_ERRORS, OSError, UnicodeError, *there)


def door(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function of ours out of which no foreign error comes; it takes the `dataset`, and its `location` or `root`."""
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except foreign() as error:
            name, location = _place(signature.bind(*args, **kwargs).arguments)
            raise as_ours(error, name, location) from error

    return call


def door_of_block(function: Callable[_P, AbstractContextManager[_T]]) -> Callable[_P, AbstractContextManager[_T]]:
    """As `door`, of what makes a block: both of its ends, and nothing that the block itself raises."""
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> AbstractContextManager[_T]:
        return _Block(function(*args, **kwargs), *_place(signature.bind(*args, **kwargs).arguments))

    return call


class _Block(AbstractContextManager[_T]):
    def __init__(self, block: AbstractContextManager[_T], dataset: str, location: str) -> None:
        self._block, self._place = block, (dataset, location)

    def __enter__(self) -> _T:
        with through_door(*self._place):
            return self._block.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if error is not None:
            return self._block.__exit__(kind, error, trace)
        with through_door(*self._place):
            return self._block.__exit__(None, None, None)


def _place(given: dict[str, Any]) -> tuple[str, str]:
    """The dataset and the table that a call is about; a plan or a source names its own."""
    about = given["plan"] if "plan" in given else given.get("source")
    dataset = given.get("dataset", getattr(about, "dataset", None))
    name = given.get("name", "") if dataset is None else getattr(dataset, "name", dataset)
    places = (given.get("location"), given.get("staging"), getattr(about, "location", None))
    place = next((place for place in places if place is not None), None)
    if place is None:
        root = given.get("root", "")
        place = dataset.location(root) if isinstance(dataset, Dataset) else root
    return str(name), str(place)


@contextmanager
def through_door(dataset: str, location: str) -> Iterator[None]:
    """The block of a call that leaves by a door; as `door`, where a function has no name or place by itself."""
    try:
        yield
    except foreign() as error:
        raise as_ours(error, dataset, location) from error


@contextmanager
def making_frame(dataset: str) -> Iterator[None]:
    """The block in which a frame of the user's is computed: a file or a value that fails there is the frame's.

    Raises:
        FrameFailedError: from a foreign error; an error of the user's own comes through as it is.
    """
    try:
        yield
    except foreign() as error:
        raise FrameFailedError(dataset=dataset, condition=type(error).__name__, reason=str(error)) from error


def as_ours(error: BaseException, dataset: str, location: str) -> PipelineError:
    """What to raise in place of a foreign error of a call that was about that table."""
    text = _unicode_error_in(error)
    if text is not None:
        return _text_error(text, dataset)
    if isinstance(error, Py4JNetworkError | ConnectionError):  # the JVM of this process is gone
        return SparkUnavailableError(where="this process", reason=str(error) or type(error).__name__)
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return StorageError(dataset=dataset, location=location, reason=reason, found=look_at_disk(location))
    if not isinstance(error, SPARK_ERRORS):
        return _of_library(error, dataset)
    failure = failure_of(error)
    if _tells_damage(failure):
        return _damaged(dataset, location, failure)
    told = _of_failure(dataset, location, failure)
    if told is not None:
        return told
    found = look_at_disk(location)  # over Connect a Java error comes without its class
    if found:
        return StorageError(dataset=dataset, location=location, reason=failure.summary, found=found)
    return EngineError(dataset=dataset, location=location, condition=failure.condition, reason=failure.summary)


def _unicode_error_in(error: BaseException) -> UnicodeError | None:
    """The error of a text among the causes: py4j takes it for one of its connection, and that for one of the call."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        if isinstance(cause, UnicodeError):
            return cause
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
    return None


def _text_error(error: UnicodeError, dataset: str) -> PipelineError:
    if isinstance(error, UnicodeEncodeError):
        around = error.object[max(error.start - _AROUND, 0) : error.start + _AROUND]
        return TextError(dataset=dataset, text=around)
    return FrameFailedError(dataset=dataset, condition=type(error).__name__, reason=str(error))


def _of_library(error: BaseException, dataset: str) -> PipelineError:
    """Of gRPC or protobuf a server is gone or none of Spark's; of Arrow the frame is at fault."""
    details = getattr(error, "details", None)
    if type(error).__module__.partition(".")[0] in ("grpc", "google") or callable(details):
        reason = details() if callable(details) else str(error)
        return SparkUnavailableError(where="sc://", reason=reason or type(error).__name__)
    return FrameFailedError(dataset=dataset, condition=type(error).__name__, reason=str(error))


def _of_failure(dataset: str, location: str, failure: Failure) -> PipelineError | None:
    """The error that a failure without damage is by what it says of itself; None if that is too little."""
    place = {"dataset": dataset, "location": location}
    if failure.is_conflict:
        return CommitConflictError(**place, condition=failure.condition)
    if failure.is_storage:
        return StorageError(**place, reason=failure.summary, found=look_at_disk(location))
    if failure.is_of_rows:
        return FrameFailedError(dataset=dataset, condition=failure.condition, reason=failure.summary)
    if failure.is_of_statement:
        return StatementError(**place, condition=failure.condition, reason=failure.summary)
    return None


# --- the storage ------------------------------------------------------------------------------------------------------


def storage_failure(dataset: str, location: str, failure: Failure, *, nothing_committed: bool = False) -> PipelineError:
    """The error to raise of a table that can't be read or written: of damage, or else of the storage.

    What is said of values or of a statement has nothing to do with either.
    """
    if _tells_damage(failure):
        return _damaged(dataset, location, failure, nothing_committed=nothing_committed)
    if failure.is_of_rows:
        return StatementError(dataset=dataset, location=location, condition=failure.condition, reason=failure.summary)
    return _of_failure(dataset, location, failure) or StorageError(
        dataset=dataset, location=location, reason=failure.summary, found=look_at_disk(location)
    )


def _tells_damage(failure: Failure) -> bool:
    return failure.is_damage or (failure.is_file_gone and failure.file is not None)


def _damaged(
    dataset: str, location: str, failure: Failure, *, nothing_committed: bool = False
) -> DamagedTableError:  # fmt: skip
    return DamagedTableError(
        dataset=dataset, location=location, file=failure.file or location, reason=failure.summary,
        nothing_committed=nothing_committed,
    )  # fmt: skip


def look_at_disk(location: str) -> str:
    """What a place on this machine lacks, as a remedy; empty where nothing is seen to be wrong."""
    path = _without_scheme(location)
    if not path.startswith("/") or "\x00" in path:
        return ""
    try:
        place = next(folder for folder in (Path(path), *Path(path).parents) if folder.exists())
        disk = os.statvfs(place)
    except OSError:  # a name that the file system can't have, or a folder that may not be looked at
        return ""
    if not place.is_dir():
        return f"{place} is a file: choose another PIPELINE_ROOT, or move that file away."
    if disk.f_flag & os.ST_RDONLY:
        return (
            f"The file system of {place} is mounted read-only: mount it for writing, or choose another PIPELINE_ROOT."
        )
    free = disk.f_bavail * disk.f_frsize
    if free < _ROOM_BYTES or (disk.f_files and not disk.f_favail):
        return f"The disk of {place} is full ({free} bytes are free): make room there, then run it again."
    return ""


@contextmanager
def door_of_write(dataset: str, location: str) -> Iterator[None]:
    """The block of a write of a table, out of which no foreign error comes.

    A file of the table that is missing or damaged is told as such. A file that lies elsewhere is read for the frame,
    which can't be computed then. What fails behind the commit must come as another error.

    Raises:
        DamagedTableError: with the file.
        PipelineError: as `as_ours` has it.
    """
    try:
        yield
    except DamagedTableError as error:
        error.nothing_committed = True
        raise
    except SPARK_ERRORS as error:
        failure = failure_of(error)
        if not _tells_damage(failure):
            raise as_ours(error, dataset, location) from error
        if failure.file is not None and _is_below(failure.file, location):
            raise _damaged(dataset, location, failure, nothing_committed=True) from error
        raise FrameFailedError(dataset=dataset, condition=failure.condition, reason=failure.summary) from error
    except foreign() as error:
        raise as_ours(error, dataset, location) from error


def _is_below(file: str, location: str) -> bool:
    """Whether a file lies in the folder of a table; Spark tells it as a URI, in which some characters are escaped."""
    folder = _without_scheme(location).rstrip("/") + "/"
    return any(_without_scheme(name).startswith(folder) for name in (file, unquote(file)))


def _without_scheme(uri: str) -> str:
    """A path on this machine, which is told with a scheme or without; any other URI as it is."""
    return "/" + uri.removeprefix("file:").lstrip("/") if uri.startswith(("file:", "/")) else uri
