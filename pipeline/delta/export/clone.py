"""A table that begins as a version of another one: a shallow clone, which has no copy of its rows.

Here belong the clone and the removal of a folder of clones. The log of a clone names the files of the other table by
full paths, and what is written to the clone is in files of its own: neither table changes the other. A clone can be
read as long as the files of that version exist.
"""

from __future__ import annotations

from contextlib import suppress

from pyspark.sql import SparkSession

from pipeline.delta import sql
from pipeline.delta.log.mark import private_session
from pipeline.delta.read.changes import WITHIN_RETENTION
from pipeline.delta.spark.doors import door
from pipeline.delta.storage.file_system import file_system, list_folder, local_folder, remove_folder


@door
def shallow_clone(session: SparkSession, name: str, location: str, version: int, target: str) -> None:  # noqa: ARG001
    """Create a table at `target` with the rows, the schema and the properties of a version of another table.

    Its log has one commit: no earlier version, no transaction identifier and no note of the other table.

    Raises:
        StorageError: the version can't be read, or there is a table at `target`.
    """
    statement = (
        f"CREATE TABLE {sql.path_table(target)} SHALLOW CLONE {sql.path_table(location)} VERSION AS OF {int(version)}"
    )
    with private_session(session, {WITHIN_RETENTION: "false"}) as clone:
        clone.sql(statement).collect()


@door
def remove_clones(root: str) -> None:
    """Remove a folder of clones, and the folder around it if it is empty. The tables that were cloned stay as they are.

    In a bucket the empty objects remain that Hadoop has written for folders.

    Raises:
        StorageError: the storage refuses.
    """
    remove_folder(root)
    folder = local_folder(root)
    if folder is not None:
        with suppress(OSError):  # there are other folders of clones
            folder.parent.rmdir()


@door
def folders_of_clones(root: str) -> tuple[str, ...]:
    """The URIs of the folders in a folder that have files. If there is no such folder, empty.

    Raises:
        StorageError: the storage can't be read.
    """
    from pyarrow import fs

    system, path = file_system(root)
    folders = [info for info in list_folder(system, path) if info.type == fs.FileType.Directory]
    left = [one for one in folders if any(file.size for file in list_folder(system, one.path, recursive=True))]
    return tuple(sorted(f"{root.rstrip('/')}/{one.base_name}" for one in left))
