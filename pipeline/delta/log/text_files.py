"""Small text files below the root, through the root's file system.

Here belong the reading and writing of a full file; its content does not. On this machine's storage no Spark and no JVM
is used. On other storage a classic session uses its Hadoop file system and a Connect session its server, so that files
are reached with the same credentials as tables.
"""

from __future__ import annotations

import os
import stat
import tempfile
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pipeline.delta import sql
from pipeline.delta.log.snapshot import local_folder
from pipeline.delta.spark.failures import SPARK_ERRORS, failure_of
from pipeline.delta.spark.session import is_connect
from pipeline.errors import FileAccessError


def write_text(session: SparkSession, path: str, text: str) -> None:
    """Write a file atomically: a reader sees the full text or no file. An existing file is replaced.

    Raises:
        FileAccessError: the storage refused.
    """
    local = local_folder(path)
    try:
        if local is not None:
            _write_local(local, text)
        elif is_connect(session):
            _write_by_server(session, path, text)
        else:
            _write_by_hadoop(session, path, text)
    except OSError as error:
        raise FileAccessError(path=path, reason=error.strerror or str(error)) from error
    except SPARK_ERRORS as error:
        raise FileAccessError(path=path, reason=failure_of(error).summary) from error


def _write_local(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _write_by_hadoop(session: SparkSession, path: str, text: str) -> None:
    jvm: Any = session._jvm
    hadoop = jvm.org.apache.hadoop.fs
    target = hadoop.Path(path)
    temporary = hadoop.Path(target.getParent(), f".{target.getName()}.{uuid.uuid4().hex}")
    system = target.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
    stream = system.create(temporary, True)
    try:
        stream.write(bytearray(text.encode("utf-8")))
    finally:
        stream.close()
    # Some file systems refuse to rename onto an existing file.
    system.delete(target, False)
    if not system.rename(temporary, target):
        raise OSError(f"{temporary.getName()} could not be renamed")


def _write_by_server(session: SparkSession, path: str, text: str) -> None:
    import grpc

    client: Any = session
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder) / "text"
        local.write_text(text, encoding="utf-8")
        try:
            client.copyFromLocalToFs(str(local), path)
        except grpc.RpcError as error:
            raise OSError(str(error.details() if isinstance(error, grpc.Call) else error)) from error


@dataclass(frozen=True)
class TextFile:
    """A file and its text. If it can't be read, its text is None and `problem` is the reason."""

    path: str
    text: str | None
    problem: str = ""


def read_texts(session: SparkSession | None, folder: str, suffix: str) -> list[TextFile]:
    """Every file at any depth below a folder, by path. If there is no such folder, an empty list.

    Args:
        session: may be None for a folder on this machine.

    Raises:
        FileAccessError: the storage refused.
    """
    local = local_folder(folder)
    try:
        if local is not None:
            paths = sorted(p for p in local.rglob(f"*{suffix}") if not p.name.startswith("."))
            return [_read_local(path) for path in paths]
        if session is None:
            raise FileAccessError(path=folder, reason="it is on a storage that only Spark can read")
        return _read_by_spark(session, folder, suffix)
    except OSError as error:
        raise FileAccessError(path=folder, reason=error.strerror or str(error)) from error


def _read_local(path: Path) -> TextFile:
    try:
        # Non-blocking: a pipe has no end, and a device may have none.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return TextFile(str(path), None, "it is not a regular file")
            return TextFile(str(path), file.read())
    except UnicodeDecodeError as error:
        return TextFile(str(path), None, f"it is not UTF-8 text from byte {error.start} on")
    except OSError as error:
        return TextFile(str(path), None, error.strerror or str(error))


def _read_by_spark(session: SparkSession, folder: str, suffix: str) -> list[TextFile]:
    reader = session.read.option("recursiveFileLookup", "true").option("pathGlobFilter", f"*{suffix}")
    try:
        rows = (
            reader.text(sql.path_pattern(folder), wholetext=True)
            .selectExpr("_metadata.file_path AS path", "value")
            .collect()
        )
    except SPARK_ERRORS as error:
        failure = failure_of(error)
        if failure.has(frozenset({"PATH_NOT_FOUND"})):
            return []
        raise FileAccessError(path=folder, reason=failure.summary) from error
    return [TextFile(path, text) for path, text in sorted((row["path"], row["value"]) for row in rows)]
