"""The files of a folder that is to be migrated, by their names: data, what is passed over, and strangers. No Spark.

Here belongs the listing. What a file contains is the subject of `contents`, and the values in the names of folders that
of `folders`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pipeline.delta.log.checkpoints import LOG
from pipeline.delta.storage.access import StoreError
from pipeline.delta.storage.file_system import file_system, list_folder, local_folder
from pipeline.errors import FileAccessError

Format = Literal["parquet", "csv", "ndjson"]
FORMATS: tuple[Format, ...] = get_args(Format)
# The ends of the names of data files. A file without an ending is Parquet if its content begins so.
_ENDINGS: dict[Format, tuple[str, ...]] = {
    "parquet": (".parquet", ".parq", ".pq"),
    "csv": (".csv", ".csv.gz"),
    "ndjson": (".ndjson", ".jsonl", ".ndjson.gz", ".jsonl.gz"),
}
_MAGIC = b"PAR1"
_COMMIT = re.compile(rf"{LOG}/\d{{20}}(\.checkpoint.*\.parquet|\.json)")
# Hadoop marks an empty folder of an object store by a file of such a name.
_FOLDER_MARK = "_$folder$"


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """A file, by its path below the folder, with its size in bytes and its modification time since the epoch."""

    path: str
    size: int
    changed_nanoseconds: int


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The files below a folder, each list in the order of its paths.

    `passed_over` are files that no reader takes for data. `problems` are messages about files that are refused.
    `is_table`: the folder has a Delta log.
    """

    format: Format
    files: tuple[DataFile, ...]
    passed_over: tuple[str, ...]
    problems: tuple[str, ...]
    is_table: bool


def list_source(source: str, wanted: Format | None = None) -> Listing:
    """List a folder at any depth. If there is no such folder, the listing is empty.

    Args:
        source: the URI of the folder.
        wanted: the format of the data. If None, that of the names: Parquet before CSV before NDJSON.

    Raises:
        FileAccessError: the storage can't be read, or `source` is no folder.
        StoreError: the object store refuses.
    """
    try:
        system, top = file_system(source)
        infos = {info.path[len(top) :].strip("/"): info for info in list_folder(system, top, recursive=True)}
        by_path = {path: info for path, info in infos.items() if info.is_file}
        visible = [path for path in sorted(by_path) if not is_passed_over(path)]
        plain = frozenset(path for path in visible if _has_no_ending(path) and _is_parquet(system, by_path[path]))
        lost = sorted(path for path in (*_special(infos), *_broken_links(source)) if not is_passed_over(path))
    except StoreError:
        raise
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise FileAccessError(path=source, reason=getattr(error, "strerror", None) or str(error)) from error
    form = wanted or _format_of(visible, plain)
    data = [path for path in visible if path.lower().endswith(_ENDINGS[form]) or (form == "parquet" and path in plain)]
    problems = [f"{path}: it is empty (0 bytes)" for path in data if not by_path[path].size]
    problems += [f"{path}: it is not a file of the format {form}" for path in sorted(set(visible) - set(data))]
    problems += [f"{path}: it is no file, or a link to a file that does not exist" for path in lost]
    problems += _repeated(source, data)
    return Listing(
        format=form,
        files=tuple(_data_file(path, by_path[path]) for path in data if by_path[path].size),
        passed_over=tuple(path for path in sorted(by_path) if is_passed_over(path)),
        problems=tuple(problems),
        is_table=any(_COMMIT.fullmatch(path) for path in by_path),
    )


def _special(infos: Mapping[str, Any]) -> Iterator[str]:
    """What is neither a file nor a folder: a pipe, a socket or a device."""
    from pyarrow import fs

    known = (fs.FileType.File, fs.FileType.Directory)
    return (path for path, info in infos.items() if info.type not in known)


def _broken_links(source: str) -> Iterator[str]:
    """The links on this machine that lead nowhere. A listing leaves them out."""
    folder = local_folder(source)
    for parent, folders, names in () if folder is None else os.walk(folder):
        for path in (os.path.join(parent, name) for name in (*folders, *names)):
            if os.path.islink(path) and not os.path.exists(path):
                yield os.path.relpath(path, folder).replace(os.sep, "/")


def _repeated(source: str, paths: Iterable[str]) -> Iterator[str]:
    """Messages about files on this machine that are listed under several paths: their rows would be taken twice."""
    folder = local_folder(source)
    if folder is None:
        return
    first: dict[tuple[int, int], str] = {}
    for path in paths:
        with suppress(FileNotFoundError):
            facts = (folder / path).stat()
            other = first.setdefault((facts.st_dev, facts.st_ino), path)
            if other != path:
                yield f"{path}: it is the same file as {other}"


def is_passed_over(path: str) -> bool:
    """Whether no reader takes the file for data: its name, or a folder's, is hidden or marks something.

    A folder of a partition column may begin with an underscore (`_day=1`).
    """
    *folders, name = path.split("/")
    hidden = any(folder[:1] == "." or (folder[:1] == "_" and "=" not in folder) for folder in folders)
    return hidden or name[:1] in ("_", ".") or name.endswith((".crc", _FOLDER_MARK))


def _has_no_ending(path: str) -> bool:
    return "." not in path.rpartition("/")[2]


def _is_parquet(system: Any, info: Any) -> bool:
    with system.open_input_stream(info.path) as stream:
        return bool(stream.read(len(_MAGIC)) == _MAGIC)


def _format_of(paths: Iterable[str], plain: frozenset[str]) -> Format:
    names = [path.lower() for path in paths]
    known = (form for form in FORMATS if any(name.endswith(_ENDINGS[form]) for name in names))
    return "parquet" if plain else next(known, "parquet")


def _data_file(path: str, info: Any) -> DataFile:
    return DataFile(path=path, size=info.size, changed_nanoseconds=info.mtime_ns or 0)
