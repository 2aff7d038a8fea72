"""Small text files below the root, through the root's file system. No Spark.

Here belong the reading and writing of a full file; its content does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.delta.storage.file_system import file_system, list_folder, local_folder, write_file
from pipeline.delta.storage.local_files import open_regular
from pipeline.errors import FileAccessError


def write_text(path: str, text: str) -> None:
    """Write a file: a reader sees the full text or no file. An existing file is replaced.

    Raises:
        FileAccessError: the storage refused.
    """
    try:
        write_file(path, text.encode())
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise FileAccessError(path=path, reason=_reason(error)) from error


@dataclass(frozen=True)
class TextFile:
    """A file and its text. If it can't be read, its text is None and `problem` is the reason."""

    path: str
    text: str | None
    problem: str = ""


def read_texts(folder: str, suffix: str) -> list[TextFile]:
    """Every file at any depth below a folder, by path. If there is no such folder, an empty list.

    Raises:
        FileAccessError: the storage refused.
    """
    local = local_folder(folder)
    try:
        if local is not None:
            paths = sorted(p for p in local.rglob(f"*{suffix}") if not p.name.startswith("."))
            return [_read_local(path) for path in paths]
        system, top = file_system(folder)
        infos = list_folder(system, top, recursive=True)
        found = sorted(info.path for info in infos if info.is_file and info.path.endswith(suffix))
        return [_read(system, path, f"{folder.rstrip('/')}/{path[len(top) :].lstrip('/')}") for path in found]
    except (OSError, ValueError) as error:
        raise FileAccessError(path=folder, reason=_reason(error)) from error


def _read_local(path: Path) -> TextFile:
    try:
        with open_regular(path) as file:
            return _decoded(str(path), file.read())
    except OSError as error:
        return TextFile(str(path), None, _reason(error))


def _read(system: Any, path: str, uri: str) -> TextFile:
    try:
        with system.open_input_stream(path) as stream:
            return _decoded(uri, stream.read())
    except OSError as error:
        return TextFile(uri, None, _reason(error))


def _decoded(path: str, content: bytes) -> TextFile:
    try:
        return TextFile(path, content.decode())
    except UnicodeDecodeError as error:
        return TextFile(path, None, f"it is not UTF-8 text from byte {error.start} on")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
