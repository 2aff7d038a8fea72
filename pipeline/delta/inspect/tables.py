"""The tables below a root, whether they are declared or not, and the table around a place. No Spark."""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from pipeline.delta.log.checkpoints import LOG, newest_version
from pipeline.delta.spark.doors import door
from pipeline.delta.storage.access import StoreError
from pipeline.delta.storage.file_system import file_system, files_from, list_folder, local_folder
from pipeline.errors import AccessProblem


@door
def is_table(location: str) -> bool:
    """Whether a location is a table.

    Raises:
        StorageError: the storage can't be read.
    """
    return newest_version(location) is not None


@door
def tables_below(root: str, without: Container[str] = ()) -> tuple[str, ...]:
    """The paths of all tables below a root, sorted. If there is no such folder, empty.

    Folders inside a table, links, and folders whose name begins with an underscore or a dot, are not searched. In a
    bucket each folder is a request.

    Args:
        without: paths that are not searched.

    Raises:
        StorageError: the storage can't be read.
    """
    system, top = file_system(root)
    return tuple(sorted(_tables(system, root.rstrip("/"), top.rstrip("/"), "", without)))


def _tables(system: Any, root: str, top: str, path: str, without: Container[str]) -> Iterator[str]:
    from pyarrow import fs

    infos = list_folder(system, f"{top}/{path}".rstrip("/"))
    names = [info.base_name for info in infos if info.type == fs.FileType.Directory]
    if path and LOG in names and is_table(f"{root}/{path}"):
        yield path
        return
    for name in names:
        below = f"{path}/{name}".lstrip("/")
        is_link = system.type_name == "local" and Path(top, below).is_symlink()
        if name[:1] not in "_." and below not in without and not is_link:
            yield from _tables(system, root, top, below, without)


def table_around(place: str) -> str | None:
    """The folder with a log at or above a place. If there is none, None.

    A folder above that the account may not list is passed over.

    Raises:
        StoreError: the store refuses otherwise.
    """
    for folder in _folders(place):
        try:
            if files_from(f"{folder}/{LOG}", at_most=0) != []:
                return folder
        except StoreError as error:
            if error.problem is not AccessProblem.NOT_ALLOWED:
                raise
    return None


def _folders(place: str) -> Iterator[str]:
    local = local_folder(place)
    if local is not None:
        yield from map(str, (local, *local.parents))
        return
    scheme, _, rest = place.rstrip("/").partition("://")
    while rest:
        yield f"{scheme}://{rest}"
        rest = rest.rpartition("/")[0]
