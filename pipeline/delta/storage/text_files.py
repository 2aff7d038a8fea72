"""Small text files below the root, through the root's file system. No Spark.

Here belong the reading and writing of a full file; its content does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import IO

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
            return [_read(str(path), partial(open_regular, path)) for path in paths]
        system, top = file_system(folder)
        infos = list_folder(system, top, recursive=True)
        found = sorted(info.path for info in infos if info.is_file and info.path.endswith(suffix))
        uris = {path: f"{folder.rstrip('/')}/{path[len(top) :].lstrip('/')}" for path in found}
        return [_read(uri, partial(system.open_input_stream, path)) for path, uri in uris.items()]
    except (OSError, ValueError) as error:
        raise FileAccessError(path=folder, reason=_reason(error)) from error


def _read(path: str, opened: Callable[[], IO[bytes]]) -> TextFile:
    try:
        with opened() as file:
            return TextFile(path, file.read().decode())
    except UnicodeDecodeError as error:
        return TextFile(path, None, f"it is not UTF-8 text from byte {error.start} on")
    except OSError as error:
        return TextFile(path, None, _reason(error))


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
