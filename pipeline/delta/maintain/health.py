"""What the log, the settings and the consumers of a table show besides damage. No Spark.

Here belong findings that make no row unreadable: parts of the log that readers skip, settings that contradict each
other, consumers that may soon lose changes, and small files. `doctor` finds damage.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence

from pipeline.dataset import Dataset, TableRef
from pipeline.dataset.features import brought_by, features_of, wanted_features, with_required
from pipeline.delta.inspect.describe import MANY_FILES_PER_PARTITION
from pipeline.delta.inspect.doctor import Finding
from pipeline.delta.log.checkpoints import (
    LOG,
    POINTER,
    all_files,
    checksum_version,
    incomplete_parts,
    last_checkpoint,
    usable_checkpoints,
)
from pipeline.delta.log.commits import instant
from pipeline.delta.log.integrity import checksum_of
from pipeline.delta.log.timestamps import (
    FILE_RETENTION,
    LOG_RETENTION,
    file_retention,
    interval,
    log_retention,
    timed_commits,
)
from pipeline.delta.maintain.log_needs import CLEANUP
from pipeline.delta.maintain.retention import unread_files
from pipeline.delta.maintain.sizes import joinable_files
from pipeline.delta.read.cursors import effective_cursors
from pipeline.delta.read.verdict import Reason, verdict_on
from pipeline.delta.spark.doors import door
from pipeline.delta.storage.file_system import File
from pipeline.delta.table.compatibility import CLIENTS, READER_FEATURES
from pipeline.delta.table.open_table import TableState, state_from_log, table_state
from pipeline.delta.table.plan import plain_properties
from pipeline.errors import CursorUnreadableError, DamagedTableError

_MANY = 0.5


@door
def health_findings(
    name: str, location: str, *, declared: Dataset | None = None, consumers: Sequence[TableRef] = (),
    now: dt.datetime | None = None,
) -> tuple[Finding, ...]:  # fmt: skip
    """The findings about a table that are no damage. What can't be known because of damage is left out.

    Args:
        name: the name of the dataset, for the findings.
        declared: the declaration of the table, if it has one.
        consumers: the consumers of this dataset's changes.
        now: the time for the age of commits. If None, the present.

    Raises:
        StorageError: the storage can't be read.
    """
    listed = all_files(location)
    findings = [*_of_checkpoints(name, location, listed), *_of_pointer(name, location, listed)]
    findings += _of_checksums(name, location, listed)
    try:
        state = state_from_log(location)
        if state is not None:
            findings += _of_settings(name, state)
            findings += _of_features(name, state, declared)
            findings += _of_gone_changes(state, declared, consumers)
            findings += _of_consumers(state, declared, consumers, now or dt.datetime.now(dt.timezone.utc))
            findings += _of_small_files(name, state, declared)
    except (DamagedTableError, CursorUnreadableError):  # the diagnosis of that table has it
        pass
    return tuple(findings)


# --- the log ----------------------------------------------------------------------------------------------------------


def incomplete_checkpoints(listed: Sequence[File]) -> dict[int, list[File]]:
    """The files of checkpoints that have a missing part, by version. Readers skip them."""
    by_name = {file.name: file for file in listed}
    return {version: [by_name[name] for name in names] for version, names in incomplete_parts(by_name).items()}


def pointer_problem(location: str, listed: Sequence[File]) -> str | None:
    """What is wrong with `_last_checkpoint`. If nothing is, or there is none, None."""
    if all(file.name != POINTER for file in listed):
        return None
    named = last_checkpoint(location)
    if named is None:
        return "it can't be parsed"
    return None if named in usable_checkpoints(listed) else f"the log has no complete checkpoint of version {named}"


def wrong_checksums(location: str, listed: Sequence[File]) -> list[File]:
    """The checksum files that can't be parsed. Delta ignores them."""
    checksums = [file for file in listed if checksum_version(file.name) is not None]
    return [file for file in checksums if checksum_of(location, file) is None]


def _of_checkpoints(name: str, location: str, listed: Sequence[File]) -> Iterator[Finding]:
    for version, files in sorted(incomplete_checkpoints(listed).items()):
        yield _finding(
            "incomplete checkpoint", f"{location}/{LOG}/{files[0].name}",
            f"the checkpoint of version {version} has a missing part; readers skip it", _repair(name),
        )  # fmt: skip


def _of_pointer(name: str, location: str, listed: Sequence[File]) -> Iterator[Finding]:
    problem = pointer_problem(location, listed)
    if problem is not None:
        yield _finding("wrong pointer", f"{location}/{LOG}/{POINTER}", problem, _repair(name))


def _of_checksums(name: str, location: str, listed: Sequence[File]) -> Iterator[Finding]:
    for file in wrong_checksums(location, listed):
        yield _finding("wrong checksum", f"{location}/{LOG}/{file.name}", "it can't be parsed", _repair(name))


def _repair(name: str) -> str:
    return f"pipeline doctor {name} --repair --apply removes it."


def _finding(kind: str, path: str, detail: str, remedy: str) -> Finding:
    return Finding(kind=kind, path=path, detail=detail, remedy=remedy, serious=False)


# --- the table --------------------------------------------------------------------------------------------------------


def _of_settings(name: str, state: TableState) -> Iterator[Finding]:
    """Findings about contradictory properties of the retention."""
    files, log = interval(state.properties, FILE_RETENTION), interval(state.properties, LOG_RETENTION)
    if files is not None and log_retention(state.properties) < files:
        yield _finding(
            "contradictory settings", state.location, f"{LOG_RETENTION} is less than {FILE_RETENTION}: versions lose "
            "their log before their files",
            f"Declare StoragePolicy(log_retention_hours=…) of {name}, at least deleted_file_retention_hours.",
        )  # fmt: skip
    values = {key.lower(): value.lower() for key, value in state.properties.items()}
    if log is not None and values.get(CLEANUP.lower()) == "false":
        yield _finding(
            "contradictory settings", state.location, f"{LOG_RETENTION} is set, but {CLEANUP} is false: the log is "
            "never cleaned",
            "Remove one of the two properties.",
        )  # fmt: skip


def _of_features(name: str, state: TableState, declared: Dataset | None) -> Iterator[Finding]:
    """A finding about features that the declaration does not want and that known clients can't read."""
    unwanted = sorted((READER_FEATURES & set(state.features)) - _wanted(declared))
    clients = [client.name for client in CLIENTS if not client.can_read(unwanted)]
    if clients:
        yield _finding(
            "readers excluded", state.location, f"{', '.join(unwanted)}: not read by {', '.join(clients)}",
            f"If {name} is to be read by them, ALTER TABLE delta.`{state.location}` DROP FEATURE removes a feature.",
        )  # fmt: skip


def _wanted(declared: Dataset | None) -> set[str]:
    """The features that a declaration brings: by name, by a property, or by the type of a column."""
    if declared is None:
        return set()
    brought = (feature for name, value in plain_properties(declared).items() for feature in brought_by(name, value))
    return {*with_required(wanted_features(declared.features)), *brought, *features_of(declared.schema.fields)}


def _of_gone_changes(
    state: TableState, declared: Dataset | None, consumers: Sequence[TableRef]
) -> Iterator[Finding]:  # fmt: skip
    """Findings about consumers that have not read a change of which a file is gone."""
    if declared is None:
        return
    for consumer in consumers:
        cursor = effective_cursors(None, table_state(None, consumer)).sources.get(declared.name)
        verdict = None if cursor is None else verdict_on(None, TableRef(declared, state.location), cursor)
        if cursor is not None and verdict is not None and verdict.reason is Reason.CHANGE_FILES_GONE:
            yield _finding(
                "unread changes", state.location,
                f"{consumer.name} has read to version {cursor.version}, and files with later changes are missing",
                f"The next run of {consumer.name} reads all of {declared.name}; or restore the files from a backup.",
            )  # fmt: skip


def _of_consumers(
    state: TableState, declared: Dataset | None, consumers: Sequence[TableRef], now: dt.datetime
) -> Iterator[Finding]:
    """Findings about consumers whose oldest unread commit is older than half of the time for which it is kept."""
    if declared is None or not consumers:
        return
    kept = min(log_retention(state.properties), file_retention(state.properties))
    times = {commit.version: instant(commit.milliseconds) for commit in timed_commits(state.location) or ()}
    for unread in unread_files(None, TableRef(declared, state.location), consumers):
        committed = times.get(unread.version + 1)
        if committed is not None and now - committed > kept / 2:
            yield _finding(
                "lagging consumer", state.location,
                f"{unread.consumer} has read to version {unread.version} of {state.version}; the oldest commit after "
                f"it is {(now - committed).days} days old",
                f"pipeline materialize {unread.consumer}",
            )  # fmt: skip


def _of_small_files(name: str, state: TableState, declared: Dataset | None) -> Iterator[Finding]:
    counted = None if declared is None else joinable_files(state)
    if counted is None:
        return
    joinable, files = counted
    if joinable >= MANY_FILES_PER_PARTITION and joinable >= _MANY * files:
        yield _finding(
            "small files", state.location, f"{joinable} of {files} files are small and could be joined",
            f"pipeline maintain optimize {name}",
        )  # fmt: skip
