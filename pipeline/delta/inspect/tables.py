"""Which tables lie below a root on this machine's disk, whether anything is declared of them or not. No Spark."""

from __future__ import annotations

import os

from pipeline.delta.log.replay import log_files
from pipeline.delta.log.snapshot import local_folder

LOG = "_delta_log"


def is_table(location: str) -> bool:
    """Whether a table lies at a place on this machine's disk; False for any other place."""
    folder = local_folder(location)
    return folder is not None and (folder / LOG).is_dir() and log_files(str(folder)).latest is not None


def tables_below(root: str) -> tuple[str, ...]:
    """The paths of all tables below a folder, by path; none where it is no folder of this machine.

    What lies inside a table is its own, and folders that begin with an underscore or a dot hold no tables.
    """
    top = local_folder(root)
    if top is None:
        return ()
    found = []
    for folder, inner, _ in os.walk(top):
        path = os.path.relpath(folder, top)
        if LOG in inner and is_table(folder):
            found.append(path)
            inner.clear()
        else:
            inner[:] = [name for name in inner if name[:1] not in "_."]
    return tuple(sorted(path for path in found if path != os.curdir))
