"""Whether the log up to a version is as its commits wrote it: no entry is missing, cut, empty or replaced by another.

Here belongs the check of the entries of a version, from the newest readable checkpoint on, and of the checksum file
that Delta on Spark writes next to each. `entry` checks a single entry. Nothing is repaired.

Delta itself ignores some damage: it reads an empty file as an entry without actions. So the log is checked before Delta
reads it, and each entry once in a process, as long as its file does not change. In a bucket an entry is one request. Of
the checksums only the first and the last are read there, if the entries between them lead from one to the other.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from urllib.parse import unquote

from pipeline.delta.log.chain import COUNTED_OPERATIONS, Checksum, EntryFacts, checksum_in, contradictions, entry_facts
from pipeline.delta.log.checkpoints import (
    LOG,
    SIDECARS,
    all_files,
    checksum_name,
    checksum_version,
    commit_name,
    complete_checkpoints,
    files_for,
    first_line,
    parquet_file,
    usable_checkpoints,
    version_of_commit,
)
from pipeline.delta.log.commits import commit_file
from pipeline.delta.log.entry import actions_of, damaged_file
from pipeline.delta.storage.access import StoreError, kept_store_errors
from pipeline.delta.storage.file_system import File, list_files, local_folder, missing_files, read_listed, side_by_side

# How often a log is checked if an entry disappears meanwhile, as in a clean-up.
_CHECK_ATTEMPTS = 5
_CACHED_FILES = 8192
# So many entries of the same size are compared with an entry.
_ALIKE = 64
_OLDER_ENTRIES = 1_000


def require_sound(location: str, version: int, listed: Iterable[File] | None = None) -> None:
    """Raise if the table at a version can't be read, or would be read wrongly. No Spark.

    A version that was cleaned up is not checked.

    Args:
        listed: the files of the log, as `files_for` returns them. If None, they are listed.

    Raises:
        OSError: the storage can't be read.
        DamagedTableError: with the file and its damage.
    """
    folder = local_folder(location)
    place = location if folder is None else str(folder)
    for attempt in range(_CHECK_ATTEMPTS):
        files = files_for(place, version) if listed is None or attempt else listed
        try:
            _require_sound(place, version, {file.name: file for file in files})
        except FileNotFoundError:
            if attempt == _CHECK_ATTEMPTS - 1:
                raise
        else:
            return


def _require_sound(location: str, version: int, files: Mapping[str, File]) -> None:
    commits = {number: file for file in files.values() if (number := version_of_commit(file.name)) is not None}
    if not commits or version > max(commits):
        return  # there is no such version
    start, emptied = _start(location, version, files)
    if version < max(start, min(commits)):
        return  # the version was cleaned up
    numbers = range(start + 1, version + 1)
    missing = [number for number in numbers if number not in commits]
    if missing and emptied is not None:
        raise damaged_file(_path(location, files[emptied]), "it is empty, and entries that it replaces are missing")
    if missing:
        newest = max(usable_checkpoints(files.values()), default=-1)
        if start < 0 and missing[-1] == len(missing) - 1 and newest > version:
            return  # the version was cleaned up
        raise damaged_file(
            commit_file(location, missing[0]), f"it is missing, and the newest entry is version {max(commits)}"
        )
    facts = _facts_of_all(location, [commits[number] for number in numbers])
    _refuse_undescribed(location, start, facts)
    # Of two equal entries the error names the later one.
    _refuse_changed(location, files, numbers, _alike(commits, above=version))
    lost = _lost_commit(location, files, max(commits)) if version == max(commits) else None
    if lost is not None:
        raise damaged_file(commit_file(location, lost), "it is missing, but its checksum file exists")


def files_beside(location: str, numbers: range) -> list[File]:
    """The files of a log that `require_sound_entries` compares: on this machine some older ones, in a bucket none."""
    older = 1 if local_folder(location) is None else _OLDER_ENTRIES
    return all_files(location, max(numbers.start - older, 0))


def require_sound_entries(location: str, numbers: range, listed: Iterable[File] | None = None) -> None:
    """Raise if an entry among these is not as its commit wrote it; no table is known by them alone. No Spark.

    An entry that is gone is not checked.

    Args:
        listed: the files of the log, as `files_beside` returns them. If None, they are listed.

    Raises:
        OSError: the storage can't be read.
        DamagedTableError: with the file and its damage.
    """
    folder = local_folder(location)
    place = location if folder is None else str(folder)
    files = {file.name: file for file in (files_beside(place, numbers) if listed is None else listed)}
    commits = {number: file for file in files.values() if (number := version_of_commit(file.name)) is not None}
    present = [number for number in numbers if number in commits]
    _facts_of_all(place, [commits[number] for number in present])
    _refuse_changed(place, files, present, _alike(commits))


def _alike(commits: Mapping[int, File], above: int | None = None) -> Callable[[int], list[File]]:
    """A function of a version: the entries of the same size that it is compared with.

    A log may have very many. These are the nearest below it and, with `above`, the first after that version. Doctor
    compares all.
    """
    by_size: dict[int, list[int]] = {}
    for number in sorted(commits):
        by_size.setdefault(commits[number].size, []).append(number)

    def others(number: int) -> list[File]:
        alike = by_size[commits[number].size]
        below = bisect_left(alike, number)
        after = len(alike) if above is None else bisect_right(alike, above)
        nearest = (*reversed(alike[max(below - _ALIKE, 0) : below]), *alike[after : after + _ALIKE])
        return [commits[other] for other in nearest]

    return others


def _facts_of_all(location: str, files: Sequence[File]) -> dict[int, EntryFacts]:
    """The facts of these entries by version. Those of a bucket are read side by side."""
    facts = side_by_side(partial(_facts_of, location), files, location)
    return {int(file.name.partition(".")[0]): each for file, each in zip(files, facts, strict=True)}


def _refuse_changed(
    location: str, files: Mapping[str, File], numbers: Sequence[int], others: Callable[[int], Iterable[File]]
) -> None:
    """Refuse an entry that is damaged, the same as one of its others, or contradicted by its checksum."""
    read = {commit_name(number) for number in numbers}
    is_remote = local_folder(location) is None
    compares = not (is_remote and _fit_together(location, files, numbers))
    if compares and is_remote:
        side_by_side(partial(_checksum, location, files), sorted({n - 1 for n in numbers} | {*numbers}), location)
    for number in numbers:
        file = files[commit_name(number)]
        facts = _facts_of(location, file)
        checksum = _checksum(location, files, number) if compares else None
        if checksum is not None and checksum.commit_id is not None and checksum.commit_id == facts.commit_id:
            problem = None  # the checksum file has the entry's own id, so that it is no copy
        else:
            problem = _copied(location, file, facts, others(number), read)
        if compares and problem is None:
            before = _checksum(location, files, number - 1)
            problem = contradictions(facts, checksum, before, is_first=number == 0)
        if problem is not None:
            raise damaged_file(commit_file(location, number), problem)


def _fit_together(location: str, files: Mapping[str, File], numbers: Sequence[int]) -> bool:
    """Whether entries lead from the checksum before the first of them to that of the last one. Two requests at most.

    In a bucket this takes the place of a comparison with each checksum. If it is false, each is compared.
    """
    if not numbers or len(numbers) <= numbers[-1] - numbers[0]:
        return False
    facts = [_facts_of(location, files[commit_name(number)]) for number in numbers]
    before = _checksum(location, files, numbers[0] - 1)
    after = _checksum(location, files, numbers[-1])
    if after is None or (before is None and numbers[0] > 0):
        return False
    if any(each.operation is not None and each.operation not in COUNTED_OPERATIONS for each in facts):
        return False
    files_before, size_before = (0, 0) if before is None else (before.files, before.bytes)
    files_gained, size_gained = sum(each.files_gained for each in facts), sum(each.bytes_gained for each in facts)
    metadata = next((each.metadata for each in reversed(facts) if each.metadata), before and before.metadata)
    protocol = next((each.protocol for each in reversed(facts) if each.protocol), before and before.protocol)
    return (
        (after.files, after.bytes) == (files_before + files_gained, size_before + size_gained)
        and (after.metadata, after.protocol) == (metadata, protocol)
        and (None in (after.commit_id, facts[-1].commit_id) or after.commit_id == facts[-1].commit_id)
    )


def _lost_commit(location: str, files: Iterable[str], newest: int) -> int | None:
    """The first commit after the newest entry of which only the checksum file exists. If there is none, None."""
    after = sorted(number for name in files if (number := checksum_version(name)) is not None and number > newest)
    # The listing may lack an entry that was written while the folder was listed.
    gone = missing_files(f"{location}/{LOG}", map(commit_name, after))
    return next((number for number in after if commit_name(number) in gone), None)


def _start(location: str, version: int, files: Mapping[str, File]) -> tuple[int, str | None]:
    """The newest usable checkpoint up to a version, or -1, and the empty file of the newest one above it, or None.

    Delta skips a checkpoint with an empty file, but no checkpoint that can't be read for another reason.
    """
    usable = usable_checkpoints(files.values())
    start = max((number for number in usable if number <= version), default=-1)
    for file in (files[name] for name in usable.get(start, ())):
        problem = _unreadable(location, file)
        if problem is not None:
            raise damaged_file(_path(location, file), problem)
        _refuse_sidecars(location, file)
    emptied = [number for number in complete_checkpoints(files) if start < number <= version and number not in usable]
    first = next((n for n in complete_checkpoints(files)[max(emptied)] if not files[n].size), None) if emptied else None
    return start, first


@lru_cache(maxsize=_CACHED_FILES)
def _unreadable(location: str, file: File) -> str | None:
    """Why a file of a checkpoint can't be read. If it can, None."""
    path = _path(location, file)
    try:
        if path.endswith(".json"):
            actions_of(path, _content(location, file).rstrip(b"\n") + b"\n")
        else:
            with kept_store_errors():
                parquet_file(f"{location}/{LOG}", file.name, file).close()
    except (FileNotFoundError, StoreError):  # the store refuses, which is no damage
        raise
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        return f"it can't be read ({first_line(error)})"
    return None


def _refuse_sidecars(location: str, file: File) -> None:
    """Refuse a checkpoint with a sidecar file that is missing or can't be read (Delta protocol, "V2 Spec")."""
    names = sidecars_of(location, file)
    present = {sidecar.name: sidecar for sidecar in (list_files(f"{location}/{LOG}/{SIDECARS}") if names else ())}
    for name in names:
        sidecar, path = present.get(name), f"{SIDECARS}/{name}"
        problem = "it is missing" if sidecar is None else _unreadable(location, replace(sidecar, name=path))
        if problem is not None:
            raise damaged_file(f"{location}/{LOG}/{path}", f"{problem}, and checkpoint {file.name} needs it")


@lru_cache(maxsize=_CACHED_FILES)
def sidecars_of(location: str, file: File) -> tuple[str, ...]:
    """The names of the sidecar files of a checkpoint. A classic checkpoint has none."""
    path = _path(location, file)
    if path.endswith(".json"):
        actions = actions_of(path, _content(location, file).rstrip(b"\n") + b"\n")
    else:
        parquet = parquet_file(f"{location}/{LOG}", file.name, file)
        actions = parquet.read(columns=["sidecar"]).to_pylist() if "sidecar" in parquet.schema_arrow.names else []
    return tuple(unquote(a["sidecar"]["path"]).rpartition("/")[2] for a in actions if a.get("sidecar"))


@lru_cache(maxsize=_CACHED_FILES)
def _facts_of(location: str, file: File) -> EntryFacts:
    content = _content(location, file)
    return entry_facts(actions_of(_path(location, file), content), content)


def _refuse_undescribed(location: str, start: int, facts: Mapping[int, EntryFacts]) -> None:
    """Refuse entries without a checkpoint that lack a protocol or metadata action."""
    if start < 0 and not (any(f.protocol for f in facts.values()) and any(f.metadata for f in facts.values())):
        raise damaged_file(commit_file(location, min(facts)), "it lacks the table's protocol or metadata")


def _copied(location: str, file: File, facts: EntryFacts, others: Iterable[File], read: Container[str]) -> str | None:
    """The problem if another entry has the same bytes, which two commits that add or remove files never have."""
    alike = others if facts.has_files else ()
    twin = next((other for other in alike if _is_copy(location, file, facts, other, read)), None)
    return None if twin is None else f"it is the same as {twin.name}"


def _is_copy(location: str, file: File, facts: EntryFacts, other: File, read: Container[str]) -> bool:
    """Whether another entry has the same bytes. In a bucket only the entries in `read` are read for it."""
    if other.name in read:
        return _facts_of(location, other).digest == facts.digest
    if local_folder(location) is None:  # the tag is a digest of the content, unless the store encrypts with other keys
        return file.tag is not None and file.tag == other.tag
    return _digest(location, other) == facts.digest


@lru_cache(maxsize=_CACHED_FILES)
def _digest(location: str, file: File) -> bytes:
    return hashlib.sha256(_content(location, file)).digest()


def _checksum(location: str, files: Mapping[str, File], number: int) -> Checksum | None:
    file = files.get(checksum_name(number))
    return None if file is None else checksum_of(location, file)


@lru_cache(maxsize=_CACHED_FILES)
def checksum_of(location: str, file: File) -> Checksum | None:
    """The content of a checksum file that was listed. If it can't be parsed, None. It is read once in a process."""
    return checksum_in(_content(location, file))


def _path(location: str, file: File) -> str:
    return f"{location}/{LOG}/{file.name}"


def _content(location: str, file: File) -> bytes:
    return read_listed(f"{location}/{LOG}", file)
