"""The record of the files that migrations of a table have taken.

A record is a file below the table, written before the commit of the rows. The mark in the commit has the record's
token: the record is in force if, and only if, a commit with its token is in force. So rows and record are committed
together, and a process that is killed between them leaves a record that counts for nothing.

The log is cleaned up some day, but the properties of a table stay. Therefore a property names the newest record after
its rows are verified, and each record names the one before it. A restore brings the old property back, so that records
of undone commits are out of force without further work.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any

from pyspark.sql import SparkSession

from pipeline.dataset import Dataset, TableRef
from pipeline.dataset.schema import casefolded
from pipeline.delta import sql
from pipeline.delta.inspect.describe import ROWS_KEPT
from pipeline.delta.log.counts import table_rows
from pipeline.delta.log.mark import (
    MIGRATION,
    MIGRATION_WRITER,
    CommitNote,
    Mark,
    migration_token,
    private_session,
    write_confs,
)
from pipeline.delta.log.snapshot import TableState
from pipeline.delta.migrate.files import DataFile
from pipeline.delta.migrate.folders import SourceFolders, folder_values, parsed
from pipeline.delta.read.restores import commits_in_force
from pipeline.delta.sql.slices import Box, Slice, Values
from pipeline.delta.storage.file_system import list_files, read_file
from pipeline.delta.storage.text_files import write_text
from pipeline.errors import RecordError

FORMAT = 1
# Readers and a vacuum skip a folder whose name begins with an underscore.
FOLDER = "_migration"
_TOKEN = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, kw_only=True)
class TakenFile:
    """A file as it was taken, by its path below the source. `rows` is None if its format does not count them."""

    path: str
    size: int
    changed_nanoseconds: int
    rows: int | None

    def is_same(self, file: DataFile) -> bool:
        """Whether a file is as it was taken, by its size and its modification time."""
        return (file.size, file.changed_nanoseconds) == (self.size, self.changed_nanoseconds)


@dataclass(frozen=True, kw_only=True)
class Record:
    """The files of one commit.

    `number` counts the commits of migrations of the table from 1 on, and `after` is the token of the one before.
    `replaced` are the partitions that were replaced, as text, and None if rows were added. `vanished` are files of
    earlier records that are gone.
    """

    token: str
    number: int
    after: str | None
    source: str
    mode: str
    files: tuple[TakenFile, ...]
    replaced: str | None = None
    vanished: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The record as a JSON document."""
        return json.dumps({"format": FORMAT} | asdict(self), ensure_ascii=False)


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What the table's migrations have taken: the records in force, the oldest first.

    `unverified` is the version of the newest record's commit if its rows are not verified yet. `is_unsealed`: they are,
    but the table's properties do not name the record.
    """

    records: tuple[Record, ...] = ()
    unverified: int | None = None
    is_unsealed: bool = False

    @property
    def newest(self) -> Record | None:
        """The newest record. If there is none, None."""
        return self.records[-1] if self.records else None

    def files(self, source: str) -> dict[str, TakenFile]:
        """The files of a source, as they were last taken."""
        taken: dict[str, TakenFile] = {}
        for record in self.records:
            if record.source == source:
                taken |= {file.path: file for file in record.files}
                for path in record.vanished:
                    taken.pop(path, None)
        return taken

    def rows(self) -> int | None:
        """The rows of the files of all sources. If a file's rows are not known, None."""
        counts = [file.rows for source in self._sources() for file in self.files(source).values()]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def _sources(self) -> Iterable[str]:
        return dict.fromkeys(record.source for record in self.records)


def write_record(table: TableRef, record: Record) -> None:
    """Write a record. It is in force once a commit with its token is made.

    Raises:
        FileAccessError: the storage refused.
    """
    write_text(f"{table.location}/{FOLDER}/{record.token}.json", record.to_json())


def report_path(table: TableRef, token: str, ending: str = "json") -> str:
    """The file of the report of a verified commit."""
    return f"{table.location}/{FOLDER}/{token}.report.{ending}"


def taken(session: SparkSession | None, table: TableRef, state: TableState | None) -> Taken:
    """What the migrations of a table have taken, from its log and its properties.

    Args:
        session: only Spark knows the zone of a restore to a time without one. If None, such a restore hides the commits
            before it.

    Raises:
        RecordError: a record is missing or can't be read.
    """
    if state is None:
        return Taken()
    sealed = state.properties.get(MIGRATION)
    until = -1 if sealed is None else _verified_version(table, sealed)
    head, version, is_complete = _newest_commit(session, table, until)
    records: list[Record] = []
    token = head or sealed
    while token is not None:
        record = _record(table, token)
        records.append(record)
        token = record.after
    found = tuple(reversed(records))
    if not is_complete:
        _refuse_later_records(table, found)
    verified = head is None or _verified_version(table, head) == version
    return Taken(records=found, unverified=None if verified else version, is_unsealed=verified and head is not None)


def _newest_commit(
    session: SparkSession | None, table: TableRef, until: int
) -> tuple[str | None, int | None, bool]:  # fmt: skip
    """The token and the version of the newest commit of a migration that is in force above `until`.

    The third value is false if there is none in the log, and the log does not go back to `until`.
    """
    number = None
    for number, info in commits_in_force(session, table.location):
        if number <= until:
            return None, None, True
        token = migration_token(info.get("userMetadata"))
        if token is not None:
            return token, number, True
    return None, None, number == 0


def _refuse_later_records(table: TableRef, records: Sequence[Record]) -> None:
    """Refuse a table whose log no longer shows whether the commit of a later record was made."""
    tokens = {record.token for record in records}
    names = (file.name.removesuffix(".json") for file in list_files(f"{table.location}/{FOLDER}"))
    for token in sorted(name for name in names if _TOKEN.fullmatch(name) and name not in tokens):
        if _record(table, token).number > len(records):
            reason = (
                "the log was cleaned, so that it does not show whether the rows of the files in it were committed. If "
                f"the table does not have them, delete the record. If it has them, set the property {MIGRATION} of "
                f"the table to {token}"
            )
            raise RecordError(path=f"{table.location}/{FOLDER}/{token}.json", reason=reason)


def _verified_version(table: TableRef, token: str) -> int:
    """The version of a verified commit, from its report. If there is no report, -1."""
    try:
        return int(json.loads(read_file(report_path(table, token)))["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def _record(table: TableRef, token: str) -> Record:
    path = f"{table.location}/{FOLDER}/{token}.json"
    try:
        document = json.loads(read_file(path))
        files = tuple(TakenFile(**file) for file in document["files"])
        known = {field.name for field in fields(Record)} - {"files", "vanished"}
        values = {name: document[name] for name in known}
        if document["format"] != FORMAT:
            raise ValueError(f"its format is {document['format']}, known is {FORMAT}")
        return Record(**values, files=files, vanished=tuple(document["vanished"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"it has the files that a migration of {table.name} has taken, and it can't be read ({error})"
        raise RecordError(path=path, reason=reason) from error


def seal(session: SparkSession, table: TableRef, token: str, fingerprint: str) -> None:
    """Let the table's properties name a verified record, by a commit of its own."""
    note = CommitNote(mark=Mark(writer=f"{MIGRATION_WRITER} record"))
    value = f"{sql.string(MIGRATION)} = {sql.string(token)}"
    statement = f"ALTER TABLE {sql.path_table(table.location)} SET TBLPROPERTIES ({value})"
    with private_session(session, write_confs(note, session, fingerprint)) as clone:
        clone.sql(statement).collect()


# --- which files to take ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The files to take, and those of earlier migrations that changed or vanished."""

    files: tuple[DataFile, ...]
    unchanged: int
    changed: tuple[str, ...] = ()
    vanished: tuple[str, ...] = ()
    replaces: bool = False
    within: Slice | None = None
    problems: tuple[str, ...] = ()


def select_files(
    source: str, files: Sequence[DataFile], done: Taken, folders: SourceFolders, *, known: Dataset | None,
    state: TableState | None, accept_changed: bool,
) -> Selection:  # fmt: skip
    """Select the files of a source that a migration has to take.

    Args:
        known: the dataset of the table; None if there is neither a declaration nor a table.
        accept_changed: select all files of the partitions in which a file changed or vanished, to replace them.
    """
    before = done.files(source)
    present = {file.path for file in files}
    changed = tuple(f.path for f in files if f.path in before and not before[f.path].is_same(f))
    vanished = tuple(sorted(before.keys() - present))
    new = tuple(file for file in files if file.path not in before)
    unchanged = len(present & before.keys()) - len(changed)
    if not (accept_changed and (changed or vanished)) or known is None or state is None:
        return Selection(files=new, unchanged=unchanged, changed=changed, vanished=vanished)
    part_of = _partitions(known, folders, vanished)
    concerned = (*changed, *vanished, *(file.path for file in new))
    parts = {part_of[path] for path in concerned if path in part_of}
    is_whole = not all(path in part_of for path in concerned)
    again = tuple(file for file in files if is_whole or part_of.get(file.path) in parts)
    problems = tuple(_replacement_problems(done, state, source))
    return Selection(
        files=again, unchanged=len(files) - len(again), changed=changed, vanished=vanished, replaces=True,
        within=None if is_whole else _slice(known, parts), problems=problems,
    )  # fmt: skip


def _commits_of_others(location: str, first: str) -> tuple[str | None, int | None]:
    """A commit in force that is not of a migration and changed rows, and the version before the first migration.

    The second is None if the log does not go back so far.

    Args:
        first: the token of the first migration.
    """
    for number, info in commits_in_force(None, location):
        token = migration_token(info.get("userMetadata"))
        if token == first:
            return None, number - 1
        if token is None and info.get("operation") not in ROWS_KEPT:
            return f"version {number} ({info.get('operation')})", None
    return None, None


def _partitions(dataset: Dataset, folders: SourceFolders, vanished: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """The table's partition of each file, as typed values. If the folders don't tell it, the full table."""
    place = {casefolded(name): position for position, name in enumerate(folders.names)}
    if not dataset.partition_by or not all(casefolded(name) in place for name in dataset.partition_by):
        return {}
    texts = dict(folders.texts) | {path: tuple(text for _, text in folder_values(path)) for path in vanished}
    kinds = [(place[casefolded(name)], dataset.field(name).dataType) for name in dataset.partition_by]
    partitions = {}
    for path, row in texts.items():
        with suppress(ValueError):  # the plan names the value
            partitions[path] = tuple(None if (t := row[at]) is None else parsed(t, kind) for at, kind in kinds)
    return partitions


def _slice(dataset: Dataset, parts: Iterable[tuple[Any, ...]]) -> Slice:
    ordered = sorted(parts, key=lambda part: [(value is None, str(value)) for value in part])
    return Slice(
        tuple(
            Box(tuple((name, Values((value,))) for name, value in zip(dataset.partition_by, part, strict=True)))
            for part in ordered
        )
    )


def _replacement_problems(done: Taken, state: TableState, source: str) -> Iterator[str]:
    """Why partitions can't be replaced: they may have rows that are in no file of the source."""
    if any(record.source != source for record in done.records):
        yield "files changed, and the table has rows of another source too, so that no partition can be replaced"
        return
    other, before = _commits_of_others(state.location, done.records[0].token)
    if other is not None:
        yield f"files changed, and {other}, which is of another writer, changed rows, which would be lost"
        return
    if before is not None and (rows := table_rows(state.location, before)) is not None and not rows.total:
        return
    counted, taken_rows = table_rows(state.location, state.version), done.rows()
    if counted is None or taken_rows is None or counted.total != taken_rows:
        found = "an unknown number of" if counted is None else str(counted.total)
        expected = "an unknown number" if taken_rows is None else str(taken_rows)
        yield (
            f"files changed, and the table has {found} rows where migrations have taken {expected}: rows of other "
            "writers would be lost"
        )
