"""Files on this machine's disk: written completely or not at all, and read without waiting for a pipe.

Here belong the temporary name, the sync and the rename. What a file contains does not.
"""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_MODE = 0o644
# The end of a name under which a file is written that its folder's owner removes if it finds it.
TEMPORARY = ".tmp"


@contextmanager
def synced_file(path: Path, *, mode: int = _MODE) -> Iterator[IO[bytes]]:
    """A new file, open for writing. If the block succeeds, its content then survives a loss of power."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with open(handle, "wb") as file:
        yield file
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


@contextmanager
def replaced_file(path: Path, *, temporary: str | None = None, mode: int = _MODE) -> Iterator[IO[bytes]]:
    """The new content of a file, open for writing. If the block succeeds, it replaces the old content.

    A reader sees the old content or the new one. The new content survives a loss of power; the name does so after
    `sync_folder`.

    Args:
        temporary: the name until then. If None, a hidden one that no other process uses.
    """
    part = path.with_name(temporary or f".{path.name}.{uuid.uuid4().hex}")
    try:
        with synced_file(part, mode=mode) as file:
            yield file
        os.replace(part, path)
    finally:
        with suppress(OSError):  # after a success there is no such file
            part.unlink(missing_ok=True)


def write_file(path: Path, content: bytes, *, temporary: str | None = None, mode: int = _MODE) -> None:
    """Replace a file by this content, as `replaced_file` does. A missing folder is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced_file(path, temporary=temporary, mode=mode) as file:
        file.write(content)


def write_durably(path: Path, content: bytes) -> None:
    """As `write_file`, and the name survives a loss of power too.

    A killed process leaves a file that ends in `TEMPORARY`.
    """
    write_file(path, content, temporary=f"{path.name}{TEMPORARY}")
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a loss of power. Of a file, its content."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_regular(path: str | Path) -> IO[bytes]:
    """A file, open for reading.

    Raises:
        OSError: it can't be opened, or it is not a regular file: a pipe has no end, and a device may have none.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return open(handle, "rb")
