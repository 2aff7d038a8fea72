"""Errors of Spark, Delta and the JVM as one value, for classic and Connect sessions alike.

Here belongs the parsing of foreign errors: classic Spark wraps some and leaves others as raw Java errors, and Spark
Connect has types of its own. The meaning of a failure is decided here, by error condition, SQL state and Java class,
never by the message. How to react to it does not belong here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import CapturedException

from pipeline.errors import PipelineError, SparkUnavailableError

# The errors that any call into Spark may raise, classic or Connect.
SPARK_ERRORS = (PySparkException, Py4JError)
# The same for a caller that must know whether a call ran: for a server that is gone, our own error is raised.
LOST_OR_REFUSED = (*SPARK_ERRORS, SparkUnavailableError)

# Delta's error conditions, from its `delta-error-classes.json`.
NO_TABLE = frozenset({"DELTA_MISSING_DELTA_TABLE", "DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST"})
# Reading statements raise these if there is no table. They are never a reason to create one.
NOTHING_TO_READ = frozenset({"PATH_NOT_FOUND", "DELTA_TABLE_ONLY_OPERATION"})
NOT_NULL_BROKEN = frozenset({"DELTA_NOT_NULL_CONSTRAINT_VIOLATED"})
CHECK_BROKEN = frozenset({"DELTA_VIOLATE_CONSTRAINT_WITH_VALUES"})
SLICE_BROKEN = frozenset({"DELTA_REPLACE_WHERE_MISMATCH"})
RAISED_BY_US = frozenset({"USER_RAISED_EXCEPTION"})
# A Connect client gets this condition for every task that failed while it wrote, whatever the cause.
CAUSE_UNKNOWN = frozenset({"TASK_WRITE_FAILED"})
VERSION_GONE = frozenset(
    {"DELTA_VERSION_NOT_FOUND", "DELTA_NO_REPRODUCIBLE_HISTORY_FOUND", "DELTA_TRUNCATED_TRANSACTION_LOG"}
)
BEYOND_RETENTION = frozenset({"DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION"})
# Reads of a change feed raise these: the feed was not recorded, or its rows don't fit the newest schema.
FEED_MISSING = frozenset({"DELTA_MISSING_CHANGE_DATA"})
FEED_UNREADABLE = frozenset(
    {"DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_DATA_SCHEMA", "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_SCHEMA_CHANGE"}
)
# A file is missing while a frame is executed: over Connect a condition reports it, else a class.
FILE_GONE = frozenset({"FAILED_READ_FILE.FILE_NOT_EXIST"})
FILE_GONE_CLASSES = frozenset({"java.io.FileNotFoundException", "org.apache.spark.SparkFileNotFoundException"})
# Reads raise these if a file of the log or the table is not as it was written. Some are families of conditions, as
# `FAILED_READ_FILE.…` for files that can't be read, which a failing storage raises too.
DAMAGED = frozenset(
    {
        "CANNOT_READ_FILE_FOOTER", "DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE", "DELTA_LOG_FILE_NOT_FOUND",
        "DELTA_MISSING_COMMIT_INFO", "DELTA_MISSING_FILES_UNEXPECTED_VERSION", "DELTA_MISSING_PART_FILES",
        "DELTA_MISSING_TRANSACTION_LOG", "DELTA_STATE_RECOVER_ERROR", "DELTA_TRUNCATED_TRANSACTION_LOG",
        "DELTA_TXN_LOG_FAILED_INTEGRITY", "DELTA_VERSIONS_NOT_CONTIGUOUS", "FAILED_READ_FILE",
    }
)  # fmt: skip
DAMAGED_CLASSES = frozenset(
    {
        "com.fasterxml.jackson.core.JsonParseException", "com.fasterxml.jackson.core.io.JsonEOFException",
        "org.apache.parquet.io.ParquetDecodingException",
    }
)  # fmt: skip
# Classes of SQL states for values: data exceptions, failed routines, limits, and errors that a SQL expression raises.
_OF_ROWS = ("22", "23", "38", "39", "54", "P0")
# The class of a Python function's error, which has no state.
_OF_FUNCTIONS = "PythonException"
# The log has a column of a type that this Spark does not know. It is a fault of the table, though its state is one of
# values.
UNKNOWN_TYPE = frozenset({"CANNOT_PARSE_DATATYPE", "INVALID_JSON_DATA_TYPE"})
# The classes of SQL states for statements: a feature is not supported, or a name, type or the syntax is wrong.
_OF_STATEMENTS = ("0A", "42")
# Java's errors of files, by package, without those of a stream between processes; and the class of SQL states of a
# failed system, for example of a task that wrote.
_STORAGE_PACKAGES = ("java.io.", "java.nio.file.", "org.apache.hadoop.")
_NO_STORAGE = frozenset({"java.io.EOFException", "java.io.InvalidClassException", "java.io.NotSerializableException"})
_OF_STORAGE = "58"
STORAGE_REFUSED = frozenset(
    {
        "DELTA_CANNOT_CREATE_LOG_PATH", "FAILED_RENAME_PATH", "FAILED_RENAME_TEMP_FILE",
        "UNABLE_TO_CREATE_TEMP_DIRECTORY",
    }
)  # fmt: skip
_PATH_PARAMETERS = ("path", "filePath", "fileName", "file")
# CREATE TABLE raises these if the location has files but no table.
NOT_EMPTY_LOCATION = frozenset({"DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION", "TABLE_OR_VIEW_ALREADY_EXISTS"})
# The classes of `io.delta.exceptions`. If `delta.exceptions` has converted a classic error, it has no condition, and
# only the class shows a conflict. SQL state 2D521 is not enough: permanent errors have it too.
CONFLICT_CLASSES = frozenset(
    {
        "ConcurrentAppendException",
        "ConcurrentDeleteDeleteException",
        "ConcurrentDeleteReadException",
        "ConcurrentTransactionException",
        "ConcurrentWriteException",
        "DeltaConcurrentModificationException",
        "MetadataChangedException",
        "ProtocolChangedException",
    }
)
CONFLICT_CONDITIONS = frozenset({"DELTA_PROTOCOL_CHANGED", "DELTA_METADATA_CHANGED"})
CONFLICT_PREFIX = "DELTA_CONCURRENT_"
# A Connect server raises these families of conditions about a client's connection to a statement. The statement may go
# on.
_OF_CONNECTION = ("INVALID_HANDLE", "INVALID_CURSOR")
_CONNECT_ERRORS = "pyspark.errors.exceptions.connect"


@dataclass(frozen=True)
class Failure:
    """A parsed foreign error and its causes, the outermost first.

    `conditions` are Spark's error conditions, `classes` are the Java classes, if known. `file` is the file that a
    condition names.
    """

    conditions: tuple[str, ...]
    sql_states: tuple[str, ...]
    classes: tuple[str, ...]
    message: str
    file: str | None = None

    def has(self, conditions: frozenset[str]) -> bool:
        """Whether the error or a cause has one of these conditions."""
        return any(condition in conditions for condition in self.conditions)

    @property
    def is_file_gone(self) -> bool:
        """Whether a file to read is missing."""
        return self.has(FILE_GONE) or not FILE_GONE_CLASSES.isdisjoint(self.classes)

    @property
    def is_damage(self) -> bool:
        """Whether a file is not as it was written."""
        families = {condition.partition(".")[0] for condition in self.conditions}
        return not DAMAGED.isdisjoint(families) or not DAMAGED_CLASSES.isdisjoint(self.classes)

    @property
    def is_storage(self) -> bool:
        """Whether the storage refused. A failure of a value is never one of the storage."""
        by_condition = self.has(STORAGE_REFUSED) or any(state.startswith(_OF_STORAGE) for state in self.sql_states)
        by_class = any(name.startswith(_STORAGE_PACKAGES) for name in set(self.classes) - _NO_STORAGE)
        return (by_condition or by_class) and not self.is_of_rows

    @property
    def is_of_rows(self) -> bool:
        """Whether a value, or a function of the user, caused it."""
        by_state = any(state.startswith(_OF_ROWS) for state in self.sql_states)
        return (by_state or self._is_of_function) and not self.has(UNKNOWN_TYPE)

    @property
    def _is_of_function(self) -> bool:
        return any(name.rpartition(".")[2] == _OF_FUNCTIONS for name in self.classes)

    @property
    def is_of_statement(self) -> bool:
        """Whether the statement caused it, whatever the rows."""
        return self.has(UNKNOWN_TYPE) or any(state.startswith(_OF_STATEMENTS) for state in self.sql_states)

    def has_only(self, conditions: frozenset[str]) -> bool:
        """Whether all of its conditions are among these, and it has at least one."""
        return bool(self.conditions) and set(self.conditions) <= conditions

    @property
    def is_conflict(self) -> bool:
        """Whether Delta refused the commit because of another one; nothing was committed."""
        return (
            self.has(CONFLICT_CONDITIONS)
            or any(condition.startswith(CONFLICT_PREFIX) for condition in self.conditions)
            or any(name.rpartition(".")[2] in CONFLICT_CLASSES for name in self.classes)
        )

    @property
    def condition(self) -> str:
        """The outermost condition. Without one, the outermost Java class, or UNKNOWN."""
        return next(iter((*self.conditions, *self.classes)), "UNKNOWN")

    @property
    def summary(self) -> str:
        """The first line of the innermost message. For a Python function the last line, after its stack trace."""
        lines = [line for line in self.message.splitlines() if line.strip() and not line.strip().startswith("SQLSTATE")]
        lines = lines or [self.condition]
        return (lines[-1] if self._is_of_function else lines[0]).strip()


def failure_of(error: BaseException) -> Failure:
    """Parse a caught error and its causes. Runs no Spark job."""
    if isinstance(error, Py4JJavaError):
        return _from_java(error.java_exception)
    if isinstance(error, PySparkException):
        condition, state = error.getCondition(), error.getSqlState()
        inner = getattr(error, "_origin", None)
        below = _from_java(inner) if inner is not None else Failure((), (), (), "")
        return Failure(
            conditions=tuple(dict.fromkeys([*([condition] if condition else []), *below.conditions])),
            sql_states=tuple(dict.fromkeys([*([state] if state else []), *below.sql_states])),
            classes=below.classes or (type(error).__name__,),
            message=_without_trace(str(error)),
            file=_file_in(condition, error.getMessageParameters()) or below.file,
        )
    text = error.message() if isinstance(error, PipelineError) else str(error)
    return Failure((), (), (type(error).__name__,), text)


def has_ended(error: BaseException) -> bool:
    """Whether an error is the answer to a statement, which then runs no more and commits nothing later.

    If a connection is lost, the client itself raises, or gRPC does, the statement may still run.
    """
    if isinstance(error, Py4JJavaError | CapturedException):
        return True
    # The base class itself is raised for an error without details, which is not the server's.
    base = getattr(sys.modules.get(_CONNECT_ERRORS), "SparkConnectGrpcException", None)
    if base is None or not isinstance(error, base) or type(error) is base:
        return False
    return (error.getCondition() or "").partition(".")[0] not in _OF_CONNECTION


def _without_trace(text: str) -> str:
    return text.split("\n\nJVM stacktrace:", maxsplit=1)[0]


def _from_java(throwable: Any) -> Failure:
    conditions: list[str] = []
    states: list[str] = []
    classes: list[str] = []
    message, file = "", None
    seen = 0
    while throwable is not None and seen < 16:  # noqa: PLR2004  a cause chain may be a ring
        seen += 1
        classes.append(throwable.getClass().getName())
        message = throwable.getMessage() or message
        if _is_spark_throwable(throwable):
            conditions.extend(filter(None, [throwable.getCondition()]))
            states.extend(filter(None, [throwable.getSqlState()]))
            file = file or _file_in(throwable.getCondition(), _parameters_of(throwable))
        throwable = throwable.getCause()
    return Failure(tuple(conditions), tuple(states), tuple(classes), message, file)


def _parameters_of(throwable: Any) -> Any:
    """The parameters of a condition's message. If a Delta error does not expose them, None."""
    try:
        return throwable.getMessageParameters()
    except Py4JError:
        return None


def _file_in(condition: str | None, parameters: Any) -> str | None:
    """The file that a condition's parameters name. A failed task names its output folder, which does not count."""
    if condition in CAUSE_UNKNOWN:
        return None
    named = (parameters.get(name) for name in _PATH_PARAMETERS) if parameters else ()
    return next((str(value).strip("`") for value in named if value), None)


def _is_spark_throwable(throwable: Any) -> bool:
    """Whether the Java object has `getCondition`, by its classes: py4j returns a member for every name."""
    pending = [throwable.getClass()]
    while pending:
        cls = pending.pop()
        if cls is None:
            continue
        if cls.getName() == "org.apache.spark.SparkThrowable":
            return True
        pending.append(cls.getSuperclass())
        pending.extend(cls.getInterfaces())
    return False
