"""The doors of this package: errors of Spark, Delta, py4j, gRPC, Arrow or the system leave it as errors of ours.

Here belongs which error of ours a foreign error becomes. `failures` parses foreign errors. The code that has the rows
reports before which rules they break, and which declared expression fails for them.
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

from pipeline.dataset import Dataset, TableRef
from pipeline.delta.spark.failures import SPARK_ERRORS, Failure, failure_of
from pipeline.delta.storage.access import StoreError
from pipeline.errors import (
    CommitConflictError,
    DamagedTableError,
    EngineError,
    FrameFailedError,
    PipelineError,
    SparkUnavailableError,
    StatementError,
    StorageAccessError,
    StorageError,
    TextError,
)

_P = ParamSpec("_P")
_T = TypeVar("_T")
# The base classes of libraries' errors, by the module that must be imported before one can be raised.
_LIBRARIES = {"pyarrow": "ArrowException", "grpc": "RpcError", "google.protobuf.message": "Error"}
# How many characters of a text an error shows on each side of the wrong one.
_AROUND = 20
# The class of what Delta raises for the value of a property that it can't parse.
_BAD_ARGUMENT = "java.lang.IllegalArgumentException"
# A disk with less free space than this is full: Delta's smallest commit and its files need some of it.
_MINIMUM_FREE_BYTES = 1 << 20


def foreign() -> tuple[type[Exception], ...]:
    """Every kind of foreign error that a call into a library or the system may raise. Imports no module."""
    imported = [getattr(sys.modules[module], name) for module, name in _LIBRARIES.items() if module in sys.modules]
    return (*SPARK_ERRORS, OSError, UnicodeError, *imported)


def door(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function so that it raises no foreign error.

    One of its parameters is `table` or `plan`, or it takes `dataset` or `name`, and `location`, `root` or `staging`.
    """
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
    """As `door`, for a function that returns a context manager: its entry and exit, not the errors of the block."""
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


def _place(arguments: dict[str, Any]) -> tuple[str, str]:
    """The dataset's name and the table's location in a call's arguments. A plan names its own."""
    for argument in ("table", "source", "plan"):
        if isinstance(place := arguments.get(argument), TableRef):
            return place.name, place.location
    plan = arguments.get("plan")
    dataset = arguments.get("dataset", getattr(plan, "dataset", None))
    name = arguments.get("name", "") if dataset is None else getattr(dataset, "name", dataset)
    locations = (arguments.get("location"), arguments.get("staging"), getattr(plan, "location", None))
    location = next((location for location in locations if location is not None), None)
    if location is None:
        root = arguments.get("root", "")
        location = dataset.location(root) if isinstance(dataset, Dataset) else root
    return str(name), str(location)


@contextmanager
def through_door(dataset: str, location: str) -> Iterator[None]:
    """Raise foreign errors of the block as ours. For code whose arguments have no dataset or location for `door`."""
    try:
        yield
    except foreign() as error:
        raise as_ours(error, dataset, location) from error


@contextmanager
def making_frame(dataset: str) -> Iterator[None]:
    """Compute a user's frame in the block: a file or a value that fails there is a fault of the frame.

    Raises:
        FrameFailedError: from a foreign error. The user's own errors pass unchanged.
    """
    try:
        yield
    except foreign() as error:
        raise FrameFailedError(dataset=dataset, condition=type(error).__name__, reason=str(error)) from error


def as_ours(error: BaseException, dataset: str, location: str) -> PipelineError:
    """The error of ours for a foreign error of a call on that table."""
    text = _unicode_error_in(error)
    if text is not None:
        return _text_error(text, dataset)
    if isinstance(error, StoreError):
        return storage_error(error, dataset, location)
    if isinstance(error, Py4JNetworkError | ConnectionError):  # the JVM of this process is gone
        return SparkUnavailableError(where="this process", reason=str(error) or type(error).__name__)
    if isinstance(error, OSError):
        return storage_error(error, dataset, location)
    if not isinstance(error, SPARK_ERRORS):
        return _of_library(error, dataset)
    failure = failure_of(error)
    if _is_damage(failure):
        return _damaged(dataset, location, failure)
    known = _of_failure(dataset, location, failure)
    if known is not None:
        return known
    remedy = disk_problem(location)  # over Connect a Java error comes without its class
    if remedy:
        return StorageError(dataset=dataset, location=location, reason=failure.summary, found=remedy)
    return EngineError(dataset=dataset, location=location, condition=failure.condition, reason=failure.summary)


def storage_error(error: OSError | ValueError, dataset: str, location: str) -> StorageError:
    """The error of ours for a storage that this process can't use. pyarrow's own errors are ValueErrors."""
    if isinstance(error, StoreError) and error.problem is not None:
        return StorageAccessError(
            dataset=dataset, location=location, reason=error.answer, side="this process", problem=error.problem
        )
    reason = getattr(error, "strerror", None) or str(error)
    return StorageError(dataset=dataset, location=location, reason=reason, found=disk_problem(location))


def _unicode_error_in(error: BaseException) -> UnicodeError | None:
    """The UnicodeError among the causes: py4j reports it as an error of its connection, and that as one of the call."""
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
    """If gRPC or protobuf fails, the server is gone or is not Spark. If Arrow fails, the frame is wrong."""
    details = getattr(error, "details", None)
    if type(error).__module__.partition(".")[0] in ("grpc", "google") or callable(details):
        reason = details() if callable(details) else str(error)
        return SparkUnavailableError(where="sc://", reason=reason or type(error).__name__)
    return FrameFailedError(dataset=dataset, condition=type(error).__name__, reason=str(error))


def _of_failure(dataset: str, location: str, failure: Failure) -> PipelineError | None:
    """The error for a failure without damage, by its conditions, states and classes. If these don't decide, None."""
    place = {"dataset": dataset, "location": location}
    if failure.is_conflict:
        return CommitConflictError(**place, condition=failure.condition)
    if failure.is_storage:
        return StorageError(**place, reason=failure.summary, found=disk_problem(location))
    if failure.is_of_rows:
        return _frame_failed(dataset, failure)
    if failure.is_of_statement:
        return StatementError(**place, condition=failure.condition, reason=failure.summary)
    return None


def _frame_failed(dataset: str, failure: Failure) -> FrameFailedError:
    file = "" if failure.file is None or failure.file in failure.summary else f" (file {failure.file})"
    return FrameFailedError(dataset=dataset, condition=failure.condition, reason=f"{failure.summary}{file}")


# --- the storage ------------------------------------------------------------------------------------------------------


def storage_failure(dataset: str, location: str, failure: Failure, *, nothing_committed: bool = False) -> PipelineError:
    """The error of a table that can't be read or written: damage, or else the storage.

    A failure of values or of a statement is neither; its own error is returned.
    """
    if _is_damage(failure):
        return _damaged(dataset, location, failure, nothing_committed=nothing_committed)
    if failure.is_of_rows:
        return StatementError(dataset=dataset, location=location, condition=failure.condition, reason=failure.summary)
    if not failure.conditions and failure.classes[:1] == (_BAD_ARGUMENT,):
        return StatementError(dataset=dataset, location=location, condition=_BAD_ARGUMENT, reason=failure.summary)
    return _of_failure(dataset, location, failure) or StorageError(
        dataset=dataset, location=location, reason=failure.summary, found=disk_problem(location)
    )


def _is_damage(failure: Failure) -> bool:
    return failure.is_damage or (failure.is_file_gone and failure.file is not None)


def _damaged(
    dataset: str, location: str, failure: Failure, *, nothing_committed: bool = False
) -> DamagedTableError:  # fmt: skip
    return DamagedTableError(
        dataset=dataset, location=location, file=failure.file or location, reason=failure.summary,
        nothing_committed=nothing_committed,
    )  # fmt: skip


def disk_problem(location: str) -> str:
    """What is wrong with a folder on this machine, with the remedy. If nothing is visibly wrong, empty."""
    path = _without_scheme(location)
    if not path.startswith("/") or "\x00" in path:
        return ""
    try:
        existing = next(folder for folder in (Path(path), *Path(path).parents) if folder.exists())
        disk = os.statvfs(existing)
    except OSError:  # the file system can't have the name, or the folder can't be listed
        return ""
    if not existing.is_dir():
        return f"{existing} is a file: choose another PIPELINE_ROOT, or move that file away."
    if disk.f_flag & os.ST_RDONLY:
        return (
            f"The file system of {existing} is mounted read-only: "
            "mount it for writing, or choose another PIPELINE_ROOT."
        )
    free = disk.f_bavail * disk.f_frsize
    if free < _MINIMUM_FREE_BYTES or (disk.f_files and not disk.f_favail):
        return f"The disk of {existing} is full ({free} bytes are free): free space there, then run it again."
    return ""


@contextmanager
def door_of_write(dataset: str, location: str) -> Iterator[None]:
    """Raise foreign errors of a table's write, the block, as ours.

    A missing or damaged file of the table is damage. A file outside of the table's folder belongs to the frame, which
    can't be computed then. Code that runs after the commit must raise other errors.

    Raises:
        DamagedTableError: with the file.
        PipelineError: as `as_ours` returns it.
    """
    try:
        yield
    except DamagedTableError as error:
        error.nothing_committed = True
        raise
    except SPARK_ERRORS as error:
        failure = failure_of(error)
        if not _is_damage(failure):
            raise as_ours(error, dataset, location) from error
        if failure.file is not None and _is_below(failure.file, location):
            raise _damaged(dataset, location, failure, nothing_committed=True) from error
        raise _frame_failed(dataset, failure) from error
    except foreign() as error:
        raise as_ours(error, dataset, location) from error


def _is_below(file: str, location: str) -> bool:
    """Whether a file is in the folder of a table. Spark reports it as a URI, in which some characters are escaped."""
    folder = _without_scheme(location).rstrip("/") + "/"
    return any(_without_scheme(name).startswith(folder) for name in (file, unquote(file)))


def _without_scheme(uri: str) -> str:
    """The path of a file on this machine, given with or without a scheme. Any other URI is returned unchanged."""
    return "/" + uri.removeprefix("file:").lstrip("/") if uri.startswith(("file:", "/")) else uri
