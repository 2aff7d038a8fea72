"""What writers have left that no longer run: rows in journals, checkpoints of streams, and staged frames. No Spark.

Here belong only findings that files and locks show without a guess. Nothing is changed. A journal in a folder that the
options of a sink name is not known here. Damage of a table belongs to `inspect.doctor`.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.dataset import Append, History, InsertNew, Merge, Registry, TableRef, table_location
from pipeline.delta.frames.staging import STAGING
from pipeline.delta.inspect.doctor import Finding
from pipeline.delta.log.checkpoints import all_files, log_files, newest_version
from pipeline.delta.log.commits import commit_note
from pipeline.delta.log.epochs import epochs
from pipeline.delta.log.snapshot import table_facts, transaction_versions
from pipeline.delta.read.restores import commits_in_force
from pipeline.delta.sink.segments import (
    BATCH,
    SEGMENT,
    UntrustedFileError,
    epoch_of,
    read_document,
)
from pipeline.delta.sink.sink import journals_folder
from pipeline.delta.spark.doors import door
from pipeline.delta.storage.file_system import file_system, list_folder, local_folder
from pipeline.delta.storage.local_files import TEMPORARY
from pipeline.delta.stream.query_log import STREAMS, checkpoint_beside, query_id
from pipeline.delta.stream.structured_streaming import WRITER
from pipeline.delta.write.transaction import OUR_IDENTIFIERS
from pipeline.errors import DamagedTableError
from pipeline.settings import Settings

STAGED_FOR = dt.timedelta(days=1)
_STAGED = re.compile(r"[0-9a-f]{32}")
_IN_CHECKPOINT = frozenset({"metadata", "offsets", "commits", "sources", "state"})


# --- journals ---------------------------------------------------------------------------------------------------------


@door
def journals_left_behind(registry: Registry, settings: Settings, root: str) -> dict[str, tuple[Finding, ...]]:
    """By dataset, the journals with acknowledged rows that no process has open. Their rows are in no table yet.

    The names of datasets that are no longer declared are included.

    Raises:
        StorageError: a folder or a log can't be read.
    """
    left: dict[str, tuple[Finding, ...]] = {}
    for folder in sorted(path for path in journals_folder(settings).glob("*/*") if path.is_dir()):
        name, writer = folder.parent.name.replace("+", "/"), folder.name
        if _is_open(folder):
            continue
        try:
            waiting = _waiting_files(folder, table_location(root, name), writer)
            detail = _counted(folder, waiting) if waiting else None
        except (UntrustedFileError, DamagedTableError) as error:
            detail = f"its rows can't be counted: {error}"
        if detail is not None:
            finding = _of_journal(name, writer, folder, detail, is_declared=name in registry)
            left[name] = (*left.get(name, ()), finding)
    return left


def _of_journal(name: str, writer: str, folder: Path, detail: str, *, is_declared: bool) -> Finding:
    declare = "" if is_declared else f"Declare the dataset {name} again. Then: "
    return Finding(
        kind="journal left behind",
        path=str(folder),
        detail=f"no process has the journal of the sink {writer} open; {detail}",
        remedy=f"{declare}pipeline sink run {name} --from - --writer {shlex.quote(writer)} < /dev/null",
        serious=True,
    )


def _is_open(folder: Path) -> bool:
    """Whether a process has a journal open. The lock is only asked for as a reader, and given back at once."""
    import fcntl

    try:
        handle = os.open(folder / "lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _waiting_files(folder: Path, location: str, writer: str) -> list[str]:
    """The files of acknowledged rows that are in no commit, as the next sink of this writer would read them."""
    names = set(os.listdir(folder))
    committed = _document(folder, "committed.json") if "committed.json" in names else {}
    batches = [
        _document(folder, name)
        for name in sorted(names)
        if BATCH.fullmatch(name) and epoch_of(Path(name)) > committed.get("epoch", 0)
    ]
    waiting = {name for name in names if SEGMENT.fullmatch(name)}
    if "together.json" in names:
        waiting |= set(_document(folder, "together.json")["segments"])
    waiting -= {*committed.get("segments", ()), *committed.get("replaces", ())}
    for batch in batches:
        waiting -= set(batch["replaces"])
        if any((one.epoch, one.batch) == (batch["epoch"], batch["token"]) for one in epochs(location, writer)):
            waiting -= set(batch["segments"])  # the process ended after the commit
        else:
            waiting |= {name for name in batch["segments"] if name in names}
    return sorted(waiting)


def _document(folder: Path, name: str) -> dict[str, Any]:
    try:
        return read_document(folder / name)
    except UntrustedFileError as error:
        raise UntrustedFileError(f"{folder / name}: {error}") from error


def _counted(folder: Path, names: list[str]) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 0
    for name in names:
        path = folder / name
        try:
            rows += pq.read_metadata(path if path.exists() else folder / f"{name}{TEMPORARY}").num_rows
        except (pa.ArrowException, OSError) as error:
            raise UntrustedFileError(f"{path}: {error}") from error
    return f"{rows} acknowledged rows in {len(names)} files are not in the table"


# --- streams ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stream:
    """The batches of a query in a table's log, by the folder of its checkpoint."""

    writer: str
    epoch: int
    version: int
    first: int


@door
def lost_checkpoints(table: TableRef) -> tuple[Finding, ...]:
    """The checkpoints of streams that have written a table and whose folder is gone or has another query.

    Only streams whose repeated batches would double rows are known: the table has Delta's transaction identifiers of
    them. Batches that a restore has undone don't count.

    Raises:
        StorageError: the log or a checkpoint can't be read.
    """
    if not isinstance(table.dataset.write, Append | InsertNew | Merge | History):  # no stream writes it any more
        return ()
    try:
        if not _is_written_by_streams(table.location):
            return ()
        return tuple(
            _of_lost(table, checkpoint_beside(name, table.location), stream)
            for name, stream in _streams_of(table.location).items()
            if _writer_of(checkpoint_beside(name, table.location)) != stream.writer
        )
    except DamagedTableError:  # the diagnosis of the table has it
        return ()


def _is_written_by_streams(location: str) -> bool:
    listed = all_files(location)
    commits = log_files(location, listed).commits
    apps = transaction_versions(location, commits[-1], listed) if commits else ()
    return any(app.startswith(OUR_IDENTIFIERS) and f"/{WRITER}" in app for app in apps)


def _writer_of(checkpoint: str) -> str:
    return f"{WRITER}{query_id(checkpoint)}"


def _streams_of(location: str) -> dict[str, _Stream]:
    streams: dict[str, _Stream] = {}
    for version, info in commits_in_force(None, location):
        note = commit_note(info.get("userMetadata")) or {}
        mark, checkpoint = note.get("mark") or {}, (note.get("stream") or {}).get("checkpoint")
        if mark.get("epoch") is None or checkpoint is None:
            continue
        newest = streams.get(checkpoint, _Stream(mark["writer"], mark["epoch"], version, version))
        streams[checkpoint] = _Stream(newest.writer, newest.epoch, newest.version, version)
    return streams


def _of_lost(table: TableRef, checkpoint: str, stream: _Stream) -> Finding:
    return Finding(
        kind="stream left behind",
        path=checkpoint,
        detail=f"the checkpoint of the stream that wrote batch {stream.epoch} in version {stream.version} does not "
        "exist any more",
        remedy="If that stream is to run again, put a copy of the checkpoint back; or, to read all its input again, "
        f"pipeline restore {table.name} --version {max(stream.first - 1, 0)} --apply goes back to before its first "
        "batch.",
        serious=False,
    )


@door
def streams_left_behind(root: str) -> dict[str, tuple[Finding, ...]]:
    """By dataset, the checkpoints of streaming assets whose table does not exist any more, or was made again.

    Raises:
        StorageError: a folder or a log can't be read.
    """
    left: dict[str, tuple[Finding, ...]] = {}
    for name, table_id in _checkpoints_below(f"{root.rstrip('/')}/{STREAMS}", ()):
        problem = _problem_of_table(table_location(root, name), table_id)
        if problem is not None:
            path = f"{root.rstrip('/')}/{STREAMS}/{name}/{table_id}"
            finding = Finding(
                kind="stream left behind", path=path, detail=f"the checkpoint of a stream into {name}: {problem}",
                remedy=_remove(path), serious=False,
            )  # fmt: skip
            left[name] = (*left.get(name, ()), finding)
    return left


def _checkpoints_below(top: str, parts: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The name of the dataset and the id of the table of each checkpoint."""
    from pyarrow import fs

    system, path = file_system("/".join((top, *parts)))
    infos = list_folder(system, path)
    if any(info.base_name in _IN_CHECKPOINT for info in infos):
        if len(parts) > 1:
            yield "/".join(parts[:-1]), parts[-1]
        return
    for info in sorted(infos, key=lambda info: str(info.base_name)):
        if info.type == fs.FileType.Directory:
            yield from _checkpoints_below(top, (*parts, info.base_name))


def _problem_of_table(location: str, table_id: str) -> str | None:
    newest = newest_version(location)
    if newest is None:
        return "its table does not exist any more"
    try:
        facts = table_facts(location, newest)
    except DamagedTableError:
        return None
    if facts is None or facts.table_id == table_id:
        return None
    return "its table was made again since, and a stream begins anew with each table"


# --- staged frames ----------------------------------------------------------------------------------------------------


@door
def staging_left_behind(root: str, now: dt.datetime) -> tuple[Finding, ...]:
    """The folders of staged frames that nothing was written to for a day. A write removes its own when it ends.

    Raises:
        StorageError: a folder can't be read.
    """
    from pyarrow import fs

    top = f"{root.rstrip('/')}/{STAGING}"
    system, path = file_system(top)
    findings = []
    for info in sorted(list_folder(system, path), key=lambda info: str(info.base_name)):
        if info.type != fs.FileType.Directory or not _STAGED.fullmatch(info.base_name):
            continue
        files = [one for one in list_folder(system, info.path, recursive=True) if one.type == fs.FileType.File]
        times = [one.mtime for one in (*files, info) if one.mtime is not None]
        if times and now - max(times) > STAGED_FOR:
            size = sum(one.size or 0 for one in files)
            folder = f"{top}/{info.base_name}"
            detail = f"{size} bytes that were staged for a write; last written at {max(times):%Y-%m-%d %H:%M}Z"
            findings.append(
                Finding(kind="staged frame", path=folder, detail=detail, remedy=_remove(folder), serious=False)
            )
    return tuple(findings)


def _remove(folder: str) -> str:
    """How a folder is removed."""
    local = local_folder(folder)
    return "Remove the objects below it." if local is None else f"rm -r {shlex.quote(str(local))}"
