"""No foreign error leaves a public function: each that we know is put in at every door, and comes out as one of ours.

A session that fails at its first call stands for Spark; which later call fails makes no difference to a door.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkRuntimeError, PythonException
from pyspark.errors.exceptions.connect import AnalysisException, SparkRuntimeException
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.dataset import Append, Dataset, Replace, TableRef
from pipeline.delta.export.export import export, plan_export
from pipeline.delta.export.refresh import refresh_export
from pipeline.delta.export.request import ExportPlan, ExportRequest
from pipeline.delta.frames.convert import to_spark
from pipeline.delta.inspect import record
from pipeline.delta.inspect.check import check_table, rows_per_partition
from pipeline.delta.inspect.describe import describe
from pipeline.delta.inspect.diff import diff
from pipeline.delta.inspect.history import history
from pipeline.delta.inspect.query import query
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.maintain.maintain import checkpoint, optimize, plan_optimize, vacuum
from pipeline.delta.maintain.restore import RestorePlan, plan_restore, restore
from pipeline.delta.maintain.retention import unread_files
from pipeline.delta.read.version import ReadOptions, read, resolve_version
from pipeline.delta.spark import doors
from pipeline.delta.spark.doors import disk_problem, door, door_of_block, foreign
from pipeline.delta.stream.structured_streaming import write_available
from pipeline.delta.table.open_table import (
    conform,
    open_or_create,
    open_with_steps,
    plan_of,
    require_table,
    state_at_location,
    table_state,
    table_state_with_sizes,
)
from pipeline.delta.write.consume import read_sources, write_consumed
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline.errors import (
    CommitConflictError,
    EngineError,
    FrameFailedError,
    PipelineError,
    SparkUnavailableError,
    StatementError,
    StorageError,
    TextError,
)
from pipeline_tests.conflicts import delta_exception_modules

D = Dataset(name="d", schema=StructType([StructField("n", LongType())]), write=Append())
ELSEWHERE = "/nowhere/d"
NOTE = CommitNote(mark=Mark(writer="test"))


class Failing:
    """Raises the error whatever is asked of it."""

    def __init__(self, error: Exception) -> None:
        self.__dict__["error"] = error

    def __getattr__(self, name: str) -> Any:
        raise self.error


class RpcFailed(grpc.RpcError):
    def details(self) -> str:
        return "Socket closed"


def java(*names: str) -> Any:
    """A Java error with its causes, outermost first, as far as it is asked."""
    cause = java(*names[1:]) if len(names) > 1 else None
    cls = SimpleNamespace(getName=lambda: names[0], getSuperclass=lambda: None, getInterfaces=list)
    return SimpleNamespace(
        _target_id="o1", getClass=lambda: cls, getMessage=lambda: f"{names[0]} said so", getCause=lambda: cause
    )


def condition(kind: type[Any], name: str, state: str) -> Exception:
    """An error of a Connect client."""
    error: Exception = kind(f"[{name}] said so", errorClass=name, messageParameters={}, sql_state=state)
    return error


ERRORS: Mapping[str, tuple[Callable[[], Exception], type[PipelineError]]] = {
    "analysis": (lambda: condition(AnalysisException, "UNSUPPORTED_FEATURE", "0A000"), StatementError),
    "value": (lambda: condition(SparkRuntimeException, "CAST_INVALID_INPUT", "22018"), PipelineError),
    "type of a log": (lambda: condition(AnalysisException, "INVALID_JSON_DATA_TYPE", "2203G"), StatementError),
    "rename": (lambda: condition(SparkRuntimeException, "FAILED_RENAME_PATH", "42K04"), StorageError),
    "lost": (lambda: PySparkRuntimeError("the answer was lost"), PipelineError),
    "function": (lambda: PythonException("LookupError"), PipelineError),
    "conflict": (
        lambda: delta_exception_modules()[0][1].ConcurrentAppendException("met another"),
        PipelineError,
    ),
    "py4j": (lambda: Py4JError("An error occurred while calling o1.sql"), PipelineError),
    "py4j network": (lambda: Py4JNetworkError("Answer from Java side is empty"), PipelineError),
    "disk in Java": (
        lambda: Py4JJavaError("", java("org.apache.spark.SparkException", "java.io.IOException")),
        StorageError,
    ),
    "name in Java": (lambda: Py4JJavaError("", java("java.nio.file.FileSystemException")), StorageError),
    "worker in Java": (
        lambda: Py4JJavaError("", java("org.apache.spark.SparkException", "java.io.EOFException")),
        PipelineError,
    ),
    "rpc": (RpcFailed, PipelineError),
    "protobuf": (lambda: DecodeError("wrong wire type"), PipelineError),
    "arrow": (lambda: pa.ArrowInvalid("no such value"), PipelineError),
    "arrow type": (lambda: pa.ArrowTypeError("no such type"), PipelineError),
    "arrow not there": (lambda: pa.ArrowNotImplementedError("not yet"), PipelineError),
    "arrow key": (lambda: pa.ArrowKeyError("no such key"), PipelineError),
    "full disk": (lambda: OSError(28, "No space left on device"), PipelineError),
    "not allowed": (lambda: PermissionError(13, "Permission denied"), PipelineError),
    "JVM gone": (lambda: ConnectionRefusedError(111, "Connection refused"), PipelineError),
    "text": (lambda: UnicodeEncodeError("utf-8", "a\ud800", 1, 2, "surrogates not allowed"), PipelineError),
}
PLAN = RestorePlan(dataset="d", location=ELSEWHERE, version=2, target=1)
RESULT: Any = SimpleNamespace(location=ELSEWHERE, version=1, committed=True)
READING: Any = SimpleNamespace(
    changes=SimpleNamespace(nothing_new=False, is_full=False, versions={}, cursors={}),
    cursors=SimpleNamespace(followed_by=lambda _: None), is_late=False,
)  # fmt: skip
SOURCE = TableRef(D, ELSEWHERE)


def entered(block: Any) -> None:
    with block:
        raise AssertionError("it was entered")


def opens(error: Exception) -> Any:
    raise error


# By the function, a call of it with what fails in the place of Spark.
DOORS: Mapping[str, Callable[[Any, Path], Any]] = {
    "observe": lambda s, _: table_state_with_sizes(s, TableRef(D, ELSEWHERE)),
    "look": lambda s, _: table_state(s, TableRef(D, ELSEWHERE)),
    "look_at": lambda s, _: state_at_location(s, "d", ELSEWHERE),
    "existing": lambda s, _: require_table(s, TableRef(D, ELSEWHERE)),
    "plan_of": lambda s, _: plan_of(s, TableRef(D, ELSEWHERE)),
    "conform": lambda s, _: conform(s, TableRef(D, ELSEWHERE)),
    "opened": lambda s, _: open_with_steps(s, TableRef(D, ELSEWHERE)),
    "open_or_create": lambda s, _: open_or_create(s, TableRef(D, ELSEWHERE)),
    "read": lambda s, _: read(s, TableRef(D, ELSEWHERE)),
    "resolve": lambda s, _: resolve_version(s, TableRef(D, ELSEWHERE), ReadOptions(version=3)),
    "describe": lambda s, _: describe(s, TableRef(D, ELSEWHERE)),
    "history": lambda s, _: history(s, D.name, ELSEWHERE),
    "vacuum": lambda s, _: vacuum(s, TableRef(D, ELSEWHERE)),
    "optimize": lambda s, _: optimize(s, TableRef(D, ELSEWHERE), NOTE),
    "plan_optimize": lambda s, _: plan_optimize(s, TableRef(D, ELSEWHERE)),
    "checkpoint": lambda s, _: checkpoint(s, TableRef(D, ELSEWHERE)),
    "plan_restore": lambda s, _: plan_restore(s, TableRef(D, ELSEWHERE), ReadOptions(version=1)),
    "restore": lambda s, _: restore(s, D, PLAN, NOTE),
    "findings": lambda s, _: check_table(s, D, ELSEWHERE),
    "rows_per_partition": lambda s, _: rows_per_partition(lambda: s, TableRef(D, ELSEWHERE), 1),
    "diff": lambda s, _: diff(s, TableRef(D, ELSEWHERE), first=0, last=1, limit=3),
    "plan_export": lambda s, folder: plan_export(s, TableRef(D, ELSEWHERE), asked(folder), ReadOptions(version=1)),
    "export": lambda s, folder: export(s, TableRef(D, ELSEWHERE), planned(folder)),
    "refresh_export": lambda s, folder: refresh_export(
        s, TableRef(D, ELSEWHERE), asked(folder), ReadOptions(version=1)
    ),
    "query": lambda s, _: query(
        s, "SELECT 1", datasets=[D], root=ELSEWHERE, pins={}, everything=ReadOptions(), limit=1
    ),
    "unread": lambda s, _: unread_files(s, SOURCE, []),
    "reading": lambda s, _: entered(read_sources(s, TableRef(consumer(), ELSEWHERE), [SOURCE])),
    "write": lambda s, _: write(s, table=TableRef(D, ELSEWHERE), note=NOTE),
    "write_consumed": lambda s, _: write_consumed(s, s, READING, table=TableRef(D, ELSEWHERE), note=NOTE),
    "write_available": lambda s, _: write_available(s, table=TableRef(D, ELSEWHERE), checkpoint="/c"),
    "to_spark": lambda s, folder: entered(to_spark(pa.table({"n": [1]}), D, lambda: opens(s.error), str(folder))),
    "write_record": lambda s, _: record.write_record(
        s, D, RESULT, root=ELSEWHERE, run_id="r", sources={}, options={}
    ),
}  # fmt: skip


def asked(folder: Path) -> ExportRequest:
    return ExportRequest(target=str(folder / "out"), format="csv")


def planned(folder: Path) -> ExportPlan:
    return ExportPlan(
        dataset="d", location=ELSEWHERE, version=1, request=asked(folder), columns=("n",), partition_by=(),
        rows_by_folder={}, files=0, bytes=0, table_id="", entry=None, fingerprint="", schema=D.schema,
    )  # fmt: skip


def consumer() -> Dataset:
    return Dataset(name="c", schema=D.schema, reads=("d",), reads_changes_of=("d",), write=Replace())


@pytest.mark.parametrize("name", DOORS)
def test_every_foreign_error_leaves_a_door_as_one_of_ours(name: str, tmp_path: Path) -> None:
    raw = {}
    for kind, (make, _) in ERRORS.items():
        try:
            DOORS[name](Failing(make()), tmp_path)
        except PipelineError:
            pass
        except Exception as error:  # noqa: BLE001  what must not be
            raw[kind] = repr(error)
        else:
            raw[kind] = "nothing was raised"
    assert raw == {}


@pytest.mark.parametrize("kind", ERRORS)
def test_what_an_error_becomes_is_said_by_what_it_is(kind: str) -> None:
    make, expected = ERRORS[kind]

    @door
    def act(dataset: Dataset, location: str) -> None:
        raise make()

    with pytest.raises(expected) as caught:
        act(D, ELSEWHERE)
    told = {
        "value": FrameFailedError, "lost": EngineError, "function": FrameFailedError, "conflict": CommitConflictError,
        "py4j": EngineError, "py4j network": SparkUnavailableError, "worker in Java": EngineError,
        "rpc": SparkUnavailableError, "protobuf": SparkUnavailableError, "arrow": FrameFailedError,
        "full disk": StorageError, "not allowed": StorageError, "JVM gone": SparkUnavailableError, "text": TextError,
    }  # fmt: skip
    assert type(caught.value) is told.get(kind, type(caught.value))
    assert isinstance(caught.value.__cause__, foreign())


@pytest.mark.parametrize("kind", ["full disk", "arrow", "text"])
def test_what_fails_while_a_local_frame_is_made_is_the_frames_and_not_the_folders(kind: str, tmp_path: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": [1]})
        raise ERRORS[kind][0]()

    reader = pa.RecordBatchReader.from_batches(pa.schema([("n", pa.int64())]), batches())
    with pytest.raises(FrameFailedError):
        entered(to_spark(reader, D, lambda: opens(AssertionError()), str(tmp_path)))


def test_a_text_that_py4j_could_not_send_is_told_as_that_text() -> None:
    @door
    def act(dataset: Dataset, location: str) -> None:
        try:
            try:
                "a\ud800".encode()
            except UnicodeEncodeError as error:
                raise Py4JNetworkError("Error while sending") from error
        except Py4JNetworkError:
            raise Py4JError("An error occurred while calling o1.sql")  # noqa: B904  as py4j does

    with pytest.raises(TextError) as caught:
        act(D, ELSEWHERE)
    assert caught.value.text == "a\ud800"
    str(caught.value).encode()


def test_what_a_block_raises_itself_comes_through_as_it_is() -> None:
    from contextlib import contextmanager

    @door_of_block
    @contextmanager
    def block(dataset: Dataset, location: str) -> Any:
        yield 1

    with pytest.raises(OSError, match="of the user"), block(D, ELSEWHERE):
        raise OSError("of the user")


def test_an_error_of_the_caller_comes_through_as_it_is() -> None:
    @door
    def act(dataset: Dataset, location: str) -> None:
        raise TypeError("no such argument")

    with pytest.raises(TypeError, match="no such argument"):
        act(D, ELSEWHERE)


def test_a_disk_is_looked_at_before_a_remedy_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert disk_problem(str(tmp_path / "tables" / "d")) == ""
    assert disk_problem(f"{tmp_path}/file/d").startswith(f"{tmp_path}/file is a file: choose another PIPELINE_ROOT")
    assert disk_problem(f"file:{tmp_path}/file/d").startswith(f"{tmp_path}/file is a file")
    assert disk_problem("/proc/nothing").startswith("The disk of /proc is full") or disk_problem("/proc/nothing") == ""
    assert disk_problem("s3://bucket/d") == ""
    assert disk_problem("/" + "x" * 300) == ""


MODULES = (
    "delta.table.open_table", "delta.read.version", "delta.write.write", "delta.write.consume", "delta.inspect.check",
    "delta.inspect.describe", "delta.inspect.diff", "delta.inspect.query", "delta.maintain.maintain",
    "delta.maintain.restore", "delta.maintain.retention", "delta.stream.structured_streaming", "delta.inspect.manifest",
    "delta.inspect.record", "delta.inspect.history", "delta.maintain.publish",
)  # fmt: skip
# What takes a session and is no door: it stands inside of one, tells what it finds, or calls what a user has given.
INSIDE = {
    "answer_of", "consume", "entries", "finding_at", "query_session", "rows_at", "version_of_other", "waiting_rows",
}  # fmt: skip


def test_every_public_function_that_takes_a_session_or_a_frame_is_a_door() -> None:
    found = set()
    for name in MODULES:
        module = import_module(f"pipeline.{name}")
        for function in vars(module).values():
            if inspect.isfunction(function) and inspect.unwrap(function).__module__ == module.__name__:
                takes = {"session", "frame"} & set(inspect.signature(function).parameters)
                is_door = function.__code__.co_filename == doors.__file__
                if takes and not is_door and not inspect.unwrap(function).__name__.startswith("_"):
                    found.add(inspect.unwrap(function).__name__)
    assert found == INSIDE
    assert set(DOORS) >= {"read", "write", "restore", "vacuum", "history"}


def test_foreign_errors_are_known_without_a_library_that_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pyarrow")
    assert not any(cls.__module__.startswith("pyarrow") for cls in foreign())
    assert issubclass(WriteResult, object)
