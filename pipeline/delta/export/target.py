"""The folder of an export: whether it may be used, and how files get there so that a reader sees all or none.

On this machine's disk the files are written to a hidden folder beside the target. The hidden folder is locked: a second
export is refused, and the folder of a killed export can be cleared. A new target appears by one rename. A bucket has no
rename: there the files are written to the target, which has the file `_exporting.json` until `_SUCCESS` is written.

A target that is kept up to date changes partition by partition. `_SUCCESS` is removed before the first change and
written after the last one. In between, `_exporting.json` names the partitions, so that a later export completes them.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.dataset import TableRef
from pipeline.delta.export.manifest import BEGUN, SUCCESS, Begun, Manifest, parse_begun, parse_manifest
from pipeline.delta.inspect.tables import table_around
from pipeline.delta.storage.file_system import (
    create_file,
    file_system,
    list_folder,
    local_folder,
    read_file,
    write_file,
)
from pipeline.delta.storage.local_files import sync_folder
from pipeline.errors import ExportRunningError, ExportTargetError
from pipeline.errors.listing import listed
from pipeline.settings import SparkSettings
from pipeline.settings.addresses import unreachable

_STAGING_SUFFIX = ".exporting"
_CHECKSUM_SUFFIX = ".crc"
# How often the hidden folder is opened again if another export ends in between.
_LOCK_ATTEMPTS = 5
_NAMED_FILES = 3


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A file below a folder, by its path there. `size` is in bytes."""

    path: str
    size: int


def files_below(folder: str) -> list[Listed]:
    """All files at any depth below a folder, by path. If there is no such folder, empty."""
    system, top = file_system(folder)
    infos = [info for info in list_folder(system, top, recursive=True) if info.is_file]
    below = len(top.rstrip("/")) + 1
    return sorted((Listed(path=info.path[below:], size=info.size) for info in infos), key=lambda file: file.path)


def data_files(files: Iterable[Listed]) -> list[Listed]:
    """The files that readers of a folder read: no part of their path is hidden."""
    return [file for file in files if not any(map(_is_hidden, file.path.split("/")))]


def _is_hidden(name: str) -> bool:
    """As Spark's readers decide it (`HadoopFSUtils.shouldFilterOutPathName`): a partition column may begin with `_`."""
    return name[:1] == "." or (name[:1] == "_" and "=" not in name)


@dataclass(frozen=True, kw_only=True)
class TargetState:
    """The content of a target: its files, the manifest of a complete export, and the export that has begun to write."""

    files: tuple[Listed, ...]
    manifest: Manifest | None
    begun: Begun | None

    @property
    def is_of_killed_export(self) -> bool:
        """Whether all files are those of a killed export into an empty folder."""
        return self.manifest is None and self.begun is not None and self.begun.previous is None


def target_state(target: str) -> TargetState:
    """The content of a target. If it does not exist, it has no files."""
    files = files_below(target)
    names = {file.path for file in files}
    manifest = parse_manifest(read_file(f"{target}/{SUCCESS}")) if SUCCESS in names else None
    begun = parse_begun(read_file(f"{target}/{BEGUN}")) if BEGUN in names else None
    return TargetState(files=tuple(files), manifest=manifest, begun=begun)


def resolved(target: str) -> str:
    """The URI of a target, in one form for each place. A path on this machine is absolute and has no links."""
    folder = local_folder(target)
    return target.rstrip("/") if folder is None else str(folder.absolute().resolve())


def refuse_place(table: TableRef, target: str) -> None:
    """Refuse a target that is a file, or that lies in the folder of a table or around it.

    Raises:
        ExportTargetError: with the reason.
    """
    folder, source = local_folder(target), resolved(table.location)
    problem = ""
    if f"{source}/".startswith(f"{target}/"):
        problem = "the table itself lies there"
    elif f"{target}/".startswith(f"{source}/"):
        problem = "it lies in the folder of the table"
    elif folder is not None and folder.exists() and not folder.is_dir():
        problem = "it is a file"
    elif table_around(target) is not None:
        problem = "it lies in the folder of a Delta table"
    if problem:
        raise ExportTargetError(dataset=table.name, target=target, reason=problem)


def refuse_elsewhere(dataset: str, target: str, spark: SparkSettings) -> None:
    """Refuse a target on this machine for a Spark on another one, which would write to its own disk.

    Raises:
        ExportTargetError: with the other machine.
    """
    problem = unreachable(target, spark)
    if problem:
        raise ExportTargetError(dataset=dataset, target=target, reason=f"it {problem}")


def require_empty(dataset: str, target: str, state: TargetState) -> None:
    """Refuse a target that has files, unless all of them are those of a killed export in a bucket.

    Raises:
        ExportTargetError: with the first files.
    """
    folder = local_folder(target)
    if folder is not None:
        entries = sorted(os.listdir(folder)) if folder.exists() else []
    else:
        entries = [] if state.is_of_killed_export else [file.path for file in state.files]
    if entries:
        names = listed(entries, _NAMED_FILES)
        raise ExportTargetError(dataset=dataset, target=target, reason=f"it is not empty ({names})")


def leftovers_at(target: str, state: TargetState) -> bool:
    """Whether there are files of an export that was killed, or that is still running."""
    folder = local_folder(target)
    return state.is_of_killed_export if folder is None else _staging_of(folder).exists()


def _staging_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}{_STAGING_SUFFIX}")


@contextmanager
def workspace(dataset: str, target: str) -> Iterator[Workspace]:
    """The place where the files of an export are written. Files that are not published are removed after the block.

    Raises:
        ExportRunningError: another export writes to the target, which is on this machine.
    """
    folder = local_folder(target)
    space = BucketWorkspace(dataset, target) if folder is None else LocalWorkspace(dataset, target, folder)
    try:
        yield space
    finally:
        space.close()


class LocalWorkspace:
    """A locked hidden folder beside a target on this machine's disk."""

    def __init__(self, dataset: str, target: str, folder: Path) -> None:
        self.dataset, self.target, self._folder = dataset, target, folder
        self._staging = _staging_of(folder)
        self.uri = str(self._staging)
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._lock = self._locked()
        try:
            for leftover in self._staging.iterdir():
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        except OSError:
            os.close(self._lock)
            raise

    def _locked(self) -> int:
        import fcntl

        for _ in range(_LOCK_ATTEMPTS):
            self._staging.mkdir(exist_ok=True)
            try:
                handle = os.open(self._staging, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:  # the other export has ended
                continue
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                break
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), self._staging.stat()):
                    return handle
            os.close(handle)
        raise ExportRunningError(dataset=self.dataset, target=self.target)

    def begin(self, previous: Manifest | None, folders: Collection[str] | None) -> None:
        """Nothing: the target changes when the files are published."""

    def new_files(self) -> list[Listed]:
        """The files that were written. Hadoop's checksum files are removed."""
        for checksum in self._staging.rglob(f".*{_CHECKSUM_SUFFIX}"):
            checksum.unlink()
        return files_below(self.uri)

    def _sync(self) -> None:
        """Make the files and their names survive a loss of power: Spark does not."""
        for path in (self._staging, *self._staging.rglob("*")):
            sync_folder(path)

    def publish(self, manifest: Manifest) -> None:
        """Make the files appear at a target that is empty, by one rename.

        Raises:
            ExportTargetError: the target has files by now.
        """
        write_file(f"{self.uri}/{SUCCESS}", manifest.content)
        self._sync()
        try:
            os.rename(self._staging, self._folder)
        except OSError as error:
            if not self._folder.is_dir() or not any(self._folder.iterdir()):
                raise
            reason = "another process has written there"
            raise ExportTargetError(dataset=self.dataset, target=self.target, reason=reason) from error
        sync_folder(self._folder.parent)

    def publish_changes(self, manifest: Manifest, begun: Begun, state: TargetState) -> None:
        """Replace the files of the changed partitions in the target by those that were written."""
        self._sync()
        write_file(f"{self.target}/{BEGUN}", begun.content)
        (self._folder / SUCCESS).unlink(missing_ok=True)
        new = {file.path for file in data_files(self.new_files())}
        old = {file.path for file in data_files(state.files) if _is_of(file.path, begun.folders)}
        for parent in sorted({posixpath.dirname(path) for path in new | old}):
            for path in (path for path in old if posixpath.dirname(path) == parent):
                (self._folder / path).unlink(missing_ok=True)
            (self._folder / parent).mkdir(parents=True, exist_ok=True)
            for path in (path for path in new if posixpath.dirname(path) == parent):
                os.rename(self._staging / path, self._folder / path)
            _remove_empty(self._folder / parent, self._folder)
        write_file(f"{self.target}/{SUCCESS}", manifest.content)
        (self._folder / BEGUN).unlink()
        sync_folder(self._folder)

    def close(self) -> None:
        """Remove what was not published, and unlock."""
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._lock), self._staging.stat()):
                shutil.rmtree(self._staging, ignore_errors=True)  # the next export removes what is left
        os.close(self._lock)


class BucketWorkspace:
    """A target in a bucket, to which files are written directly.

    Nobody knows whether an export that has begun still runs. The newest one takes the target over, and one before it
    fails as soon as it publishes.
    """

    def __init__(self, dataset: str, target: str) -> None:
        self.dataset, self.target, self.uri = dataset, target, target
        self._token = uuid.uuid4().hex
        self._begun: Begun | None = None
        self._before: frozenset[str] = frozenset()
        self._is_complete = False
        self._system, self._path = file_system(target)

    def begin(self, previous: Manifest | None, folders: Collection[str] | None) -> None:
        """Record that the target is being changed. In a target that is not kept, remove a killed export's files.

        Raises:
            ExportRunningError: another export has begun in the same moment.
        """
        ordered = None if folders is None else tuple(sorted(folders))
        self._begun = Begun(token=self._token, previous=previous, folders=ordered)
        state = target_state(self.target)
        marker = f"{self.target}/{BEGUN}"
        if state.begun is None:
            self._create(marker, self._begun.content)
        else:
            write_file(marker, self._begun.content)
        if previous is None and folders is None:
            self._delete(file.path for file in state.files if file.path != BEGUN)
            return
        self._delete([SUCCESS])
        self._before = frozenset(file.path for file in state.files)

    def new_files(self) -> list[Listed]:
        """The files that were written."""
        return [file for file in files_below(self.target) if file.path not in {*self._before, BEGUN, SUCCESS}]

    def publish(self, manifest: Manifest) -> None:
        """Write the manifest, which makes the export complete.

        Raises:
            ExportRunningError: another export has taken the target over.
        """
        self._require_own()
        self._create(f"{self.target}/{SUCCESS}", manifest.content)
        self._is_complete = True
        self._delete([BEGUN])

    def publish_changes(self, manifest: Manifest, begun: Begun, state: TargetState) -> None:
        """Remove the old files of the changed partitions, and write the manifest."""
        self._require_own()
        new = {file.path for file in manifest.files}
        self._delete(
            file.path for file in data_files(state.files) if _is_of(file.path, begun.folders) and file.path not in new
        )
        self.publish(manifest)

    def _create(self, uri: str, content: bytes) -> None:
        """Create a file that no other export has created. If the answer of the store is lost, the content decides."""
        if not create_file(uri, content) and read_file(uri) != content:
            raise ExportRunningError(dataset=self.dataset, target=self.target)

    def _require_own(self) -> None:
        begun = target_state(self.target).begun
        if begun is None or begun.token != self._token:
            raise ExportRunningError(dataset=self.dataset, target=self.target)

    def _delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with suppress(FileNotFoundError):
                self._system.delete_file(f"{self._path}/{path}")

    def close(self) -> None:
        """Remove the files of an export that failed. A target that is kept stays as it is, for the next export."""
        begun = self._begun
        if begun is None or self._is_complete or begun.previous is not None or begun.folders is not None:
            return
        with suppress(OSError, ExportRunningError):  # the error of the block is the one to report
            self._require_own()
            self._system.delete_dir(self._path)


Workspace = LocalWorkspace | BucketWorkspace


def _is_of(path: str, folders: Collection[str] | None) -> bool:
    return folders is None or posixpath.dirname(path) in folders


def _remove_empty(folder: Path, top: Path) -> None:
    """Remove a folder and those above it, below `top`, as long as they are empty."""
    while folder != top:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent
