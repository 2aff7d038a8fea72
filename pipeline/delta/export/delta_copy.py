"""A copy of a Delta table: its files as they are, with a log that names them by paths below the copy.

Without history the log is new: one entry with the protocol, the metadata and the files of the version. The copy has an
id of its own and no transaction identifiers. Files that the table names by full paths (a shallow clone does) are in the
folder of the copy like all others. With history the entries and checkpoints up to the version are copied byte by byte,
with every file that they name and that still exists.

This process copies the files, so it must reach both storages. It needs memory for a few parts of files only.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import unquote

from pipeline.dataset import TableRef
from pipeline.delta.export.log_copy import log_file_names, named_files
from pipeline.delta.log.checkpoints import LOG, commit_name, first_line
from pipeline.delta.log.counts import TableActions, is_of_state, table_actions
from pipeline.delta.log.entry import damaged_file, encoded_vector, vector_file
from pipeline.delta.storage.access import StoreError, kept_store_errors
from pipeline.delta.storage.file_system import file_system, local_folder, missing_files, side_by_side, write_file
from pipeline.errors import ExportRefusedError

_CHUNK_BYTES = 8 << 20
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|/")
# Features that bind a table to its own catalog, which has its commits.
_BOUND = frozenset({"catalogManaged", "catalogOwned-preview", "coordinatedCommits-preview"})
# Properties that hold for the old log only (Delta protocol, "In-Commit Timestamps").
_OF_OLD_LOG = ("delta.inCommitTimestampEnablement", "delta.coordinatedCommits.")
_TIMED = "delta.enableInCommitTimestamps"
# The maps in actions, which Parquet has as lists of pairs.
_MAPS = ("partitionValues", "tags", "configuration", "options")
_PARSED = ("stats_parsed", "partitionValues_parsed")


@dataclass(frozen=True, kw_only=True)
class CopiedFile:
    """A file to copy: its URI, and its path below the copy.

    `size` is in bytes, None if the log does not have it. `deleted` is the number of rows that a deletion vector
    deletes; None for a file without rows of the version.
    """

    source: str
    path: str
    size: int | None = None
    deleted: int | None = None


@dataclass(frozen=True, kw_only=True)
class Copy:
    """What a copy has: the files in the order in which they are copied, and the entry of a new log, or None."""

    files: tuple[CopiedFile, ...]
    entry: bytes | None = field(default=None, repr=False)

    @property
    def bytes(self) -> int:
        """The size of the files as far as the log has it."""
        return sum(file.size or 0 for file in self.files)


def is_absolute(path: str) -> bool:
    """Whether a path in the log is a full one. Paths below the table are escaped, so that they begin with no scheme."""
    return _ABSOLUTE.match(path) is not None


def copy_of(table: TableRef, number: int, *, history: bool) -> Copy:
    """The copy of a version. Nothing is copied.

    Raises:
        ExportRefusedError: the table belongs to a catalog, or its log can't be copied.
    """
    actions = table_actions(table.location, number)
    if actions is None:
        raise _refused(table, "its log is in a form that can't be copied; choose another format")
    bound = _BOUND & {*(actions.protocol.get("readerFeatures") or ()), *(actions.protocol.get("writerFeatures") or ())}
    if bound:
        raise _refused(table, f"its catalog has the commits ({', '.join(sorted(bound))}); choose another format")
    if history:
        return _with_history(table, actions)
    names = _Names()
    added = [_relative(table.location, add, names, actions.metadata) for add in actions.files]
    return Copy(files=tuple(names.files), entry=_entry(table, actions, added))


def _refused(table: TableRef, problem: str) -> ExportRefusedError:
    return ExportRefusedError(dataset=table.name, format="delta", problems=(problem,))


# --- without history --------------------------------------------------------------------------------------------------


class _Names:
    """The files of a copy, each source once, under paths that are all different."""

    def __init__(self) -> None:
        self._by_source: dict[str, CopiedFile] = {}
        self._paths: set[str] = set()

    @property
    def files(self) -> Iterable[CopiedFile]:
        return self._by_source.values()

    def add(self, file: CopiedFile) -> str:
        """Add a file, and return its path, which differs from the wanted one if another file has that."""
        known = self._by_source.get(file.source)
        if known is not None:
            return known.path
        folder, slash, name = file.path.rpartition("/")
        number, path = 0, file.path
        while path in self._paths:
            number += 1
            path = f"{folder}{slash}{number}-{name}"
        self._paths.add(path)
        self._by_source[file.source] = replace(file, path=path)
        return path


def _deleted(added: Mapping[str, Any], metadata: Mapping[str, Any]) -> int | None:
    """The number of deleted rows in a file. If its rows are not of the dataset, None."""
    deleted = int((added.get("deletionVector") or {}).get("cardinality") or 0)
    return None if is_of_state(added, metadata) else deleted


def _relative(
    location: str, added: Mapping[str, Any], names: _Names, metadata: Mapping[str, Any]
) -> dict[str, Any]:  # fmt: skip
    """The action that adds a file of the copy."""
    action = {
        name: dict(value) if name in _MAPS else value
        for name, value in added.items()
        if value is not None and name not in _PARSED
    }
    vector, path = added.get("deletionVector"), str(added["path"])
    deleted, size = _deleted(added, metadata), int(added["size"])
    if is_absolute(path):
        name = path.rpartition("/")[2]
        wanted = CopiedFile(source=unquote(path), path=unquote(name), size=size, deleted=deleted)
        action["path"] = f"{names.add(wanted).removesuffix(unquote(name))}{name}"
    else:
        below = unquote(path)
        names.add(CopiedFile(source=f"{location}/{below}", path=below, size=size, deleted=deleted))
    if vector:
        action["deletionVector"] = _relative_vector(location, dict(vector), names)
    if "defaultRowCommitVersion" in action:
        action["defaultRowCommitVersion"] = 0
    return action | {"dataChange": True}


def _relative_vector(location: str, vector: dict[str, Any], names: _Names) -> dict[str, Any]:
    file = vector_file(vector)
    kept = {name: value for name, value in vector.items() if value is not None}
    if file is None:
        return kept
    if not is_absolute(file):
        names.add(CopiedFile(source=f"{location}/{file}", path=file))
        return kept
    # The name has to be that of a UUID, and one vector file may serve several data files.
    own = uuid.uuid5(uuid.NAMESPACE_URL, file)
    names.add(CopiedFile(source=unquote(file), path=f"deletion_vector_{own}.bin"))
    return kept | {"storageType": "u", "pathOrInlineDv": encoded_vector(own)}


def _entry(table: TableRef, actions: TableActions, added: Iterable[Mapping[str, Any]]) -> bytes:
    """The only entry of a new log. The order of its first two actions is that of the protocol."""
    now = int(time.time() * 1000)
    properties = {
        name: value
        for name, value in dict(actions.metadata.get("configuration") or {}).items()
        if not name.startswith(_OF_OLD_LOG)
    }
    info: dict[str, Any] = {
        "timestamp": now, "operation": "CLONE", "isolationLevel": "Serializable", "isBlindAppend": False,
        "operationParameters": {"source": table.name, "sourceVersion": str(actions.version), "isShallow": "false"},
        "operationMetrics": {}, "engineInfo": f"delta-first-pipeline/{_own_version()}", "txnId": str(uuid.uuid4()),
    }  # fmt: skip
    if properties.get(_TIMED, "").lower() == "true":
        info["inCommitTimestamp"] = now
    metadata = _plain(actions.metadata) | {
        "id": str(uuid.uuid4()), "configuration": properties, "createdTime": now,
    }  # fmt: skip
    lines: list[dict[str, Any]] = [{"commitInfo": info}, {"protocol": _plain(actions.protocol)}, {"metaData": metadata}]
    lines += [{"domainMetadata": _plain(domain)} for domain in actions.domains]
    lines += [{"add": add} for add in added]
    return "".join(f"{json.dumps(line, separators=(',', ':'), ensure_ascii=False)}\n" for line in lines).encode()


def _plain(action: Mapping[str, Any]) -> dict[str, Any]:
    """An action as an entry has it: without fields that are not set, and with maps as objects."""
    plain: dict[str, Any] = {}
    for name, value in action.items():
        if name in _MAPS and not isinstance(value, str):  # the configuration of a domain is a text
            plain[name] = dict(value or {})
        elif value is not None:
            plain[name] = _plain(value) if isinstance(value, Mapping) else value
    return plain


def _own_version() -> str:
    try:
        return version("delta-first-pipeline")
    except PackageNotFoundError:
        return "unknown"


# --- with history -----------------------------------------------------------------------------------------------------


def _with_history(table: TableRef, actions: TableActions) -> Copy:
    """The files of a version, those of earlier versions and of the change feed that still exist, and then the log."""
    location = table.location
    named = named_files(location, actions.version)
    live = {add["path"] for add in actions.files}
    paths = [*live, *(path for path in named.files if path not in live), *sorted(named.vectors)]
    if any(map(is_absolute, paths)):
        raise _refused(table, "its log names files by full paths, as a shallow clone does; leave out --history")
    earlier = [unquote(path) for path in named.files if path not in live] + sorted(named.vectors)
    gone = set(missing_files(location, earlier))
    deleted = {add["path"]: _deleted(add, actions.metadata) for add in actions.files}
    sizes = {add["path"]: int(add["size"]) for add in actions.files}
    files = [
        CopiedFile(source=f"{location}/{unquote(path)}", path=unquote(path), size=size, deleted=deleted[path])
        for path, size in sizes.items()
    ]
    files += [CopiedFile(source=f"{location}/{path}", path=path) for path in earlier if path not in gone]
    # Until the first of these entries or checkpoints is there, no reader takes the folder for a table.
    log = [f"{LOG}/{name}" for name in log_file_names(location, actions.version)]
    return Copy(files=(*files, *(CopiedFile(source=f"{location}/{name}", path=name) for name in log)))


# --- copying ----------------------------------------------------------------------------------------------------------


def copy_files(copy: Copy, location: str, folder: str) -> int:
    """Copy the files, the log last. Returns the rows of the version in the copied files, by their footers.

    Raises:
        FileNotFoundError: a file does not exist any more.
        DamagedTableError: a file has another size than in the log, or is not Parquet.
        OSError: a storage can't be used.
    """
    data = [file for file in copy.files if not file.path.startswith(f"{LOG}/")]
    elsewhere = location if local_folder(folder) is not None else folder

    def copied(file: CopiedFile) -> int:
        _copy_file(file, folder)
        return 0 if file.deleted is None else _rows(file, f"{folder}/{file.path}") - file.deleted

    rows = sum(side_by_side(copied, data, elsewhere))
    for file in copy.files:
        if file.path.startswith(f"{LOG}/"):
            _copy_file(file, folder)
    if copy.entry is not None:
        write_file(f"{folder}/{LOG}/{commit_name(0)}", copy.entry)
    return rows


def _copy_file(file: CopiedFile, folder: str) -> None:
    system, path = file_system(file.source)
    own_system, own_path = file_system(f"{folder}/{file.path}")
    own_system.create_dir(own_path.rpartition("/")[0], recursive=True)
    size = 0
    with (
        kept_store_errors(),
        system.open_input_file(path) as source,
        own_system.open_output_stream(own_path) as target,
    ):  # fmt: skip
        for chunk in _chunks(source):
            target.write(chunk)
            size += len(chunk)
    if file.size is not None and size != file.size:
        raise damaged_file(file.source, f"it has {size} bytes, but {file.size} were committed")
    _keep_time(system, path, own_path, folder)


def _chunks(source: Any) -> Iterator[bytes]:
    while chunk := source.read(_CHUNK_BYTES):
        yield chunk


def _keep_time(system: Any, path: str, own_path: str, folder: str) -> None:
    """Give a copy on this machine the time of its source: of a log without timestamps it is the time of the commit."""
    if local_folder(folder) is None:
        return
    import os

    changed = system.get_file_info(path).mtime_ns
    if changed is not None:
        os.utime(own_path, ns=(changed, changed))


def _rows(file: CopiedFile, uri: str) -> int:
    import pyarrow.parquet as pq

    system, path = file_system(uri)
    try:
        with kept_store_errors(), system.open_input_file(path) as copy:
            return int(pq.ParquetFile(copy).metadata.num_rows)
    except StoreError:  # the store refuses, which is no damage
        raise
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise damaged_file(file.source, f"it can't be read as Parquet ({first_line(error)})") from error
