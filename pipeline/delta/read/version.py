"""The only reader: a dataset at one version, as a frame.

Here belong pins, columns, file lineage and file lists. Every read is pinned: the newest version is looked up first and
then read by its number, so a lazy frame can't change while it is used.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DateType, IntegralType, StringType

from pipeline.dataset import Dataset, TableRef
from pipeline.delta import sql
from pipeline.delta.log.checkpoints import LOG, all_files, log_files, usable_checkpoints
from pipeline.delta.log.commits import instant
from pipeline.delta.log.entry import of_dataset
from pipeline.delta.log.timestamps import timed_commits
from pipeline.delta.read.window import Window, read_window
from pipeline.delta.spark.doors import door, storage_failure
from pipeline.delta.spark.failures import (
    BEYOND_RETENTION,
    NO_TABLE,
    NOTHING_TO_READ,
    SPARK_ERRORS,
    VERSION_GONE,
    failure_of,
)
from pipeline.delta.spark.meaning import refuse_misreading
from pipeline.delta.sql.constraints import NULL_FOLDER
from pipeline.delta.sql.slices import Slice
from pipeline.delta.storage.file_system import local_folder
from pipeline.delta.table.open_table import latest_version, rows_at
from pipeline.errors import (
    FilesNotFoundError,
    FrameMismatchError,
    NotParquetError,
    TableNotFoundError,
    VersionNotFoundError,
    VersionVacuumedError,
)
from pipeline.errors.listing import listed
from pipeline.settings import refuse_other_types


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Which part of a dataset to read, and at which version.

    Args:
        version: read this version. If neither it nor `timestamp` is given, the newest.
        timestamp: read the newest version that was committed at or before this instant. It must carry a zone.
        columns: these columns in this order. If empty, all.
        file_column: the name of an added column with the URI of the file that holds the row.
        files: only rows of these files, named as in the file column or by their path below the table.
        changes: read the change feed over this window. Unless it has an end, it ends at the pinned version.

    Raises:
        SettingsError: a value of another type.
        ValueError: values that contradict each other.
    """

    version: int | None = None
    timestamp: dt.datetime | None = None
    columns: tuple[str, ...] = ()
    file_column: str | None = None
    files: tuple[str, ...] | None = None
    changes: Window | None = None

    def __post_init__(self) -> None:
        refuse_other_types(self)
        if self.version is not None and self.timestamp is not None:
            raise ValueError("pin a version or a timestamp, not both")
        if self.timestamp is not None and self.timestamp.tzinfo is None:
            raise ValueError("the timestamp needs a zone: without one it would follow the session's")
        if self.changes is not None and (self.files is not None or self.file_column is not None):
            raise ValueError("the rows of a change feed lie in files of its own")


@dataclass(frozen=True, kw_only=True)
class Read:
    """A frame and the version that it was read at. `files_asked` and `files_in_version` are None without a file list.

    If changes were read, `first` and `version` are the first and the last commit of the window, both included, and
    `files_in_version` is the number of files that hold the changes.
    """

    frame: DataFrame
    version: int
    first: int | None = None
    files_asked: int | None = None
    files_in_version: int | None = None


@dataclass(frozen=True, kw_only=True)
class ReadFacts:
    """What was read of a table, for reports and records.

    `kind` is `table` for a frame or a read by path, `view` for the rows at `version` under the name of a view, and
    `changes` for the change feed from `first` to `version`. If a table is read by its path, `dataset` is None and
    `name` is its location. `files` is the number of files left after pruning by partitions and statistics, or the
    number that hold the changes; None if nobody looked. `pushed_filters` are those of the plan, one text for each list,
    or the slice that the frame was restricted to; None if the plan is not available: over Connect, and for changes.
    """

    name: str
    dataset: str | None
    kind: Literal["table", "view", "changes"]
    version: int
    first: int | None = None
    files: int | None = None
    pushed_filters: tuple[str, ...] | None = None


_EVERYTHING = ReadOptions()


@door
def read(
    session: SparkSession,
    table: TableRef,
    options: ReadOptions = _EVERYTHING,
    *,
    within: Slice | None = None,
) -> Read:
    """Read a dataset; `within` restricts it to a slice. No Spark job beyond the look-up of the version.

    Raises:
        TableNotFoundError: it was never written.
        VersionNotFoundError: the pin names a version or a time that the table does not have.
        VersionVacuumedError: the pinned version is older than the retention of the table's files.
        FrameMismatchError: the table does not have a column that is asked for.
        FilesNotFoundError: the version does not have a file that is asked for.
        ChangesUnreadableError: the changes were not recorded, or their files are gone.
        DamagedTableError: the log up to that version does not match its commits.
        SessionConfError: the session's confs would change what is read.
    """
    refuse_misreading(session, table.dataset)
    if options.changes is not None:
        return _read_changes(session, table, options, within)
    try:
        number = _pinned_version(table, options)
        with of_dataset(table.name):
            whole = rows_at(session, table.location, number)
        names = whole.columns
    except SPARK_ERRORS as error:
        raise _read_error(error, table, options) from error
    frame = whole if within is None else whole.filter(within.predicate(table.dataset))
    files_asked = files_in_version = None
    if options.files is not None:
        uris, files_in_version = _find_files(whole, table, number, options.files)
        files_asked = len(uris)
        frame = _only_files(frame, table.dataset, uris)
    columns = _selected_columns(table.dataset, options, names)
    if options.file_column is not None:
        columns.append(f"_metadata.file_path AS {sql.identifier(options.file_column)}")
    return Read(
        frame=frame.selectExpr(*columns), version=number, files_asked=files_asked, files_in_version=files_in_version
    )


def _read_changes(session: SparkSession, table: TableRef, options: ReadOptions, within: Slice | None) -> Read:
    try:
        version = _pinned_version(table, options)
        window = read_window(session, table, options.changes or Window(), version)
        frame = window.frame if within is None else window.frame.filter(within.predicate(table.dataset))
        chosen = frame.selectExpr(*_selected_columns(table.dataset, options, frame.columns))
    except SPARK_ERRORS as error:
        raise _read_error(error, table, options) from error
    return Read(frame=chosen, version=window.last, first=window.first, files_in_version=window.files)


def _selected_columns(dataset: Dataset, options: ReadOptions, names: list[str]) -> list[str]:
    unknown = [column for column in options.columns if column not in names]
    if unknown:
        raise FrameMismatchError(
            dataset=dataset.name,
            differences=tuple(f"column {c}: asked for, the table has {listed(names)}" for c in unknown),
        )
    return [sql.identifier(column) for column in options.columns or names]


@door
def resolve_version(session: SparkSession, table: TableRef, options: ReadOptions) -> int:
    """The version that a pin names, if the log has it. If nothing is pinned, the newest.

    Raises:
        TableNotFoundError: it was never written.
        VersionNotFoundError, VersionVacuumedError: the log does not have the pinned version, or its files may be gone.
    """
    try:
        number = _pinned_version(table, options)
        with of_dataset(table.name):
            rows_at(session, table.location, number).columns  # noqa: B018  fails if there is no such version
    except SPARK_ERRORS as error:
        raise _read_error(error, table, options) from error
    return number


def _pinned_version(table: TableRef, options: ReadOptions) -> int:
    if options.version is not None:
        return options.version
    if options.timestamp is None:
        newest = latest_version(table.location)
        if newest is None:
            raise table.error(TableNotFoundError)
        return newest
    commits = timed_commits(table.location)
    if not commits:
        raise table.error(TableNotFoundError)
    earlier = [commit.version for commit in commits if instant(commit.milliseconds) <= options.timestamp]
    if not earlier:
        asked = f"version at {options.timestamp.isoformat()}"
        raise table.error(VersionNotFoundError, asked=asked, available=f"from {instant(commits[0].milliseconds)} on")
    return earlier[-1]


def _read_error(error: Exception, table: TableRef, options: ReadOptions) -> Exception:
    failure = failure_of(error)
    if failure.has(NO_TABLE | NOTHING_TO_READ) or latest_version(table.location) is None:
        return table.error(TableNotFoundError)
    if failure.has(BEYOND_RETENTION):
        number = _pinned_version(table, options)
        return table.error(VersionVacuumedError, version=number)
    # Of the newest version the same conditions tell of damage.
    if failure.has(VERSION_GONE) and (options.version is not None or options.timestamp is not None):
        asked = _pinned_version(table, options)
        available = _available(table.location)
        return table.error(VersionNotFoundError, asked=f"version {asked}", available=available)
    return storage_failure(table.name, table.location, failure)


def _available(location: str) -> str:
    """The versions that can be read: from the first checkpoint on, where the log before it was cleaned up.

    The history still has commits of which no state can be made any more.
    """
    listed = all_files(location)
    versions = log_files(location, listed).commits
    first = 0 if versions[:1] == (0,) else min(usable_checkpoints(listed), default=versions[0])
    return f"{first} to {versions[-1]}"


def refuse_table_as_parquet(path: str) -> None:
    """Raise if Parquet that is to be read by its path belongs to a Delta table. Delta itself does not check this.

    On this machine the check covers the table's folder and all that lies in it, elsewhere only the table's folder.

    Raises:
        NotParquetError: the path belongs to a Delta table.
    """
    folder = local_folder(path)
    if folder is None:
        if latest_version(path) is None:
            return
    elif not any((parent / LOG).is_dir() for parent in (folder, *folder.parents)):
        return
    raise NotParquetError(path=path)


def _folders(dataset: Dataset) -> int:
    """The number of partition folders around a file."""
    return len(dataset.partition_by) + dataset.keeps_state


def _find_files(whole: DataFrame, table: TableRef, number: int, names: Iterable[str]) -> tuple[list[str], int]:
    """The files that are asked for, as the frame lists them, and the number of files in the version.

    A frame's file column escapes a path once more than its list of files does.
    """
    uris = whole.inputFiles()
    depth = _folders(table.dataset) + 1
    by_name = {"/".join(uri.split("/")[-depth:]): uri for uri in uris} | {uri: uri for uri in uris}
    uri_by_name = {name: by_name.get(unquote(name)) or by_name.get(name) for name in dict.fromkeys(names)}
    missing = tuple(name for name, uri in uri_by_name.items() if uri is None)
    if missing:
        raise table.error(FilesNotFoundError, version=number, missing=missing)
    return [uri for uri in uri_by_name.values() if uri is not None], len(uris)


def _only_files(frame: DataFrame, dataset: Dataset, uris: list[str]) -> DataFrame:
    """The rows of these files. A filter by path alone opens every file, so a filter by their partitions goes first."""
    if not uris:
        return frame.filter("FALSE")
    path = "url_decode(replace(_metadata.file_path, '+', '%2B'))"
    by_path = f"{path} IN ({', '.join(sql.string(uri) for uri in uris)})"
    return frame.filter(f"({_partitions_of(dataset, uris)}) AND {by_path}")


def _partitions_of(dataset: Dataset, uris: list[str]) -> str:
    """SQL that is true for all rows of these files, from their partition folders. If those show nothing, TRUE."""
    predicates = []
    for position, column in enumerate(dataset.partition_by):
        data_type = dataset.field(column).dataType
        if not isinstance(data_type, StringType | DateType | IntegralType):
            continue
        depth = _folders(dataset) - position + 1
        folders = {uri.split("/")[-depth] for uri in uris}
        if not all(folder.startswith(f"{column}=") for folder in folders):
            continue
        values = {folder.removeprefix(f"{column}=") for folder in folders}
        options = [
            f"{sql.identifier(column)} = CAST({sql.string(unquote(v))} AS {sql.type_name(data_type)})"
            for v in sorted(values - {NULL_FOLDER})
        ]
        if NULL_FOLDER in values:
            options.append(f"{sql.identifier(column)} IS NULL")
        predicates.append(f"({' OR '.join(options)})")
    return " AND ".join(predicates) or "TRUE"
