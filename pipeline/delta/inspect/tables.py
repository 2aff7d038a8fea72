"""The tables below a root on this machine's disk, whether they are declared or not. No Spark."""

from __future__ import annotations

import os

from pipeline.delta.log.checkpoints import LOG, newest_version
from pipeline.delta.spark.doors import door
from pipeline.delta.storage.file_system import local_folder


@door
def is_table(location: str) -> bool:
    """Whether a location is a table.

    Raises:
        StorageError: the storage can't be read.
    """
    return newest_version(location) is not None


def tables_below(root: str) -> tuple[str, ...]:
    """The paths of all tables below a folder, sorted. If the folder is not on this machine, empty.

    Folders inside a table, and folders whose name begins with an underscore or a dot, are not searched.
    """
    top = local_folder(root)
    if top is None:
        return ()
    paths = []
    for folder, inner, _ in os.walk(top):
        path = os.path.relpath(folder, top)
        if LOG in inner and is_table(folder):
            paths.append(path)
            inner.clear()
        else:
            inner[:] = [name for name in inner if name[:1] not in "_."]
    return tuple(sorted(path for path in paths if path != os.curdir))
