"""A dataset's table: read its state, open it, create it.

Opening commits nothing, unless the table needs a change that the dataset's schema policy allows. Creating makes exactly
one commit, version 0, with everything that is declared. A table is created only if the location has no table.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pipeline.dataset import Dataset, TableRef
from pipeline.dataset.features import SUPPORTED, wanted_features
from pipeline.dataset.history import STATE_COLUMN
from pipeline.delta import sql
from pipeline.delta.log.checkpoints import log_files, newest_files, newest_version
from pipeline.delta.log.commits import CREATION_SECONDS, has_log_folder, remove_empty_log
from pipeline.delta.log.entry import of_dataset
from pipeline.delta.log.integrity import require_sound
from pipeline.delta.log.mark import CommitNote, Mark, private_session, write_confs
from pipeline.delta.log.snapshot import TableState, table_facts
from pipeline.delta.spark.doors import door, storage_failure
from pipeline.delta.spark.failures import NO_TABLE, NOT_EMPTY_LOCATION, SPARK_ERRORS, failure_of
from pipeline.delta.sql.state import table_checks, without_state_rows
from pipeline.delta.storage.file_system import File, local_folder
from pipeline.delta.table.apply import Applied, apply, refuse_bad_expressions
from pipeline.delta.table.catalog import is_registered, register
from pipeline.delta.table.plan import (
    CHANGE_FEED,
    CONSTRAINT_PREFIX,
    DEFAULT_PROPERTIES,
    Plan,
    brings_sql,
    plain_properties,
    plan,
    shape_differences,
)
from pipeline.delta.table.storage_check import check_storage
from pipeline.errors import NotADeltaTableError, StorageError, TableMismatchError, TableNotFoundError

__all__ = [
    "CHANGE_FEED",
    "CONSTRAINT_PREFIX",
    "DEFAULT_PROPERTIES",
    "TableState",
    "conform",
    "declared_properties",
    "latest_version",
    "observe_at",
    "open_or_create",
    "open_with_steps",
    "plan_in_log",
    "plan_of",
    "require_table",
    "rows_at",
    "shape_differences",
    "state_at_location",
    "state_from_log",
    "table_state",
    "table_state_with_sizes",
    "version_of_other",
]


# How long a process waits before it tries again, if another process is creating the table.
_RETRY_SECONDS = 0.2


def declared_properties(dataset: Dataset) -> dict[str, str]:
    """The declared table properties, with those of checks."""
    checks = {f"{CONSTRAINT_PREFIX}{name}": condition for name, condition in table_checks(dataset).items()}
    return plain_properties(dataset) | checks


def _properties_at_creation(dataset: Dataset) -> dict[str, str]:
    declared = declared_properties(dataset)
    declared_names = {name.lower() for name in declared}
    defaults = {name: value for name, value in DEFAULT_PROPERTIES.items() if name.lower() not in declared_names}
    return defaults | declared | {f"{SUPPORTED}{name}": "supported" for name in wanted_features(dataset.features)}


@door
def table_state_with_sizes(session: SparkSession, table: TableRef) -> TableState | None:
    """The table's current state with its sizes; None if there is no table. Makes no commit.

    Raises:
        DamagedTableError: the table is damaged.
        StorageError: the storage can't be read.
    """
    return observe_at(session, table.name, table.location)


@door
def observe_at(session: SparkSession, name: str, location: str) -> TableState | None:
    """As `table_state_with_sizes`, for a table without a declaration; `name` is the dataset's name in errors."""
    try:
        with of_dataset(name):
            _require_sound_newest(location)
        detail = session.sql(f"DESCRIBE DETAIL {sql.path_table(location)}").collect()[0]
        # The schema is read at the reported version, so that both are of one commit.
        number = latest_version(location)
        if number is None:
            raise StorageError(dataset=name, location=location, reason="its log can't be listed")
        schema = rows_at(session, location, number).schema
    except SPARK_ERRORS as error:
        failure = failure_of(error)
        if failure.has(NO_TABLE):
            return None
        raise storage_failure(name, location, failure) from error
    return TableState(
        location=location,
        table_id=detail["id"],
        version=number,
        schema=schema,
        partition_by=tuple(column for column in detail["partitionColumns"] if column != STATE_COLUMN),
        keeps_state=STATE_COLUMN in detail["partitionColumns"],
        properties=dict(detail["properties"] or {}),
        features=tuple(detail["tableFeatures"] or ()),
        reader_version=detail["minReaderVersion"],
        writer_version=detail["minWriterVersion"],
        cluster_by=tuple(detail["clusteringColumns"] or ()),
        files=detail["numFiles"],
        bytes=detail["sizeInBytes"],
    )


@door
def table_state(session: SparkSession | None, table: TableRef) -> TableState | None:
    """The table's current state without its sizes; None if there is no table.

    It is read from the newest entries of the log, which is a hundred times faster than Spark. If that fails, Spark
    reads the state; only Spark decides that there is no table.

    Args:
        session: if None, only the log is read.

    Raises:
        DamagedTableError: the table is damaged.
        StorageError: the storage can't be read, or there is no session and the log has a form that only Spark reads.
    """
    return state_at_location(session, table.name, table.location)


@door
def state_at_location(session: SparkSession | None, name: str, location: str) -> TableState | None:
    """As `table_state`, for a table without a declaration; `name` is the dataset's name in errors."""
    with of_dataset(name):
        state = state_from_log(location)
    if state is not None:
        return state
    if session is not None:
        return observe_at(session, name, location)
    if newest_version(location) is None:
        return None
    raise StorageError(dataset=name, location=location, reason="its log has a form that only Spark reads")


def _require_sound_newest(location: str) -> None:
    listed = newest_files(location)
    newest = log_files(location, listed).latest
    if newest is not None:
        require_sound(location, newest, listed)


def state_from_log(location: str, listed: Sequence[File] | None = None) -> TableState | None:
    """The table's state from the newest entries of its log. If it has no commits, or can't be read, None. No Spark.

    Args:
        listed: the files of the log, as `newest_files` returns them. If None, they are listed.

    Raises:
        DamagedTableError: the log is damaged.
    """
    try:
        files = newest_files(location) if listed is None else listed
        versions = log_files(location, files).commits
        if versions:
            require_sound(location, versions[-1], files)
        facts = table_facts(location, versions[-1], files) if versions else None
    except OSError:
        if local_folder(location) is None:
            raise  # Spark would try for minutes
        return None
    except (KeyError, NotImplementedError):  # the log has a form that we don't read
        return None
    if facts is None:
        return None
    return TableState(
        location=location,
        table_id=facts.table_id,
        version=versions[-1],
        schema=StructType.fromJson(dict(facts.schema)),
        partition_by=facts.partition_by,
        properties=facts.properties,
        features=facts.features,
        reader_version=facts.reader_version,
        writer_version=facts.writer_version,
        cluster_by=facts.cluster_by,
        keeps_state=facts.keeps_state,
        log={} if local_folder(location) is not None else {file.name: file for file in files},
    )


@door
def require_table(session: SparkSession | None, table: TableRef) -> TableState:
    """The state of a table that must exist, without its sizes. Without a session it is read from the log alone.

    Raises:
        TableNotFoundError: there is no table.
    """
    state = table_state(session, table)
    if state is None:
        raise table.error(TableNotFoundError)
    return state


def latest_version(location: str) -> int | None:
    """The newest version in the log. If there is no table, None. No Spark."""
    return newest_version(location)


def version_of_other(session: SparkSession, name: str, location: str) -> int:
    """The newest version of another dataset's table.

    Raises:
        TableNotFoundError: it was never written.
    """
    state = state_at_location(session, name, location)
    if state is None:
        raise TableNotFoundError(dataset=name, location=location)
    return state.version


def rows_at(session: SparkSession, location: str, number: int) -> DataFrame:
    """The dataset's rows in the table at one version, lazily.

    Raises:
        DamagedTableError: the log up to that version is damaged.
    """
    require_sound(location, number)
    return without_state_rows(session.read.format("delta").option("versionAsOf", number).load(location))


@door
def plan_of(session: SparkSession, table: TableRef) -> Plan:
    """The plan that leads from the table to its declaration; changes nothing.

    Raises:
        TableNotFoundError: there is no table.
        DeclarationError, ExpressionError: a check, a generated column or a default can't be used.
    """
    state = require_table(session, table)
    table_plan = plan(table.dataset, state)
    if brings_sql(table.dataset, state, table_plan):
        refuse_bad_expressions(session, table.dataset)
    return table_plan


@door
def plan_in_log(table: TableRef) -> Plan | None:
    """As `plan_of`, from the table's log. If the log is not enough, None. No Spark.

    If Spark must analyse SQL that the table does not have yet (a check, a generated column or a default), None too.

    Raises:
        TableNotFoundError: the table was never written.
        DamagedTableError: the log is damaged.
    """
    if latest_version(table.location) is None:
        raise table.error(TableNotFoundError)
    with of_dataset(table.name):
        state = state_from_log(table.location)
    if state is None:
        return None
    table_plan = plan(table.dataset, state)
    return None if brings_sql(table.dataset, state, table_plan) else table_plan


@door
def conform(session: SparkSession, table: TableRef) -> Applied:
    """Take every step that leads from the table to its declaration, each a commit of its own.

    Before the first step, a table with a name is registered in the catalog. Idempotent. Two calls at the same time lead
    to one result.

    Raises:
        TableMismatchError: no step resolves a difference; nothing was changed.
        TableNotFoundError, DeclarationError, ExpressionError, ExistingRowsError: nothing was changed.
        TableNameTakenError, CatalogError: the table can't be registered; nothing was changed.
        ConformError: Delta refused a step; the steps before it are committed.
    """
    registered = is_registered(session, table)
    state = require_table(session, table)
    if not registered:
        register(session, table, state.version)
    applied = apply(session, table.dataset, state, partial(require_table, session, table))
    return applied if registered else replace(applied, registered_as=table.dataset.table_name)


@door
def open_with_steps(session: SparkSession, table: TableRef, *, replaced: bool = False) -> Applied:
    """As `open_or_create`, with the state of the table before, and the steps that were taken.

    With `replaced`, for a write that replaces the whole table, the schema policy may let the write replace the schema.
    """
    check_storage(session, table)
    registered = is_registered(session, table)
    state = table_state(session, table)
    if state is None:
        state = _create(session, table)
    if not registered:
        register(session, table, state.version)
    table_plan = plan(table.dataset, state)
    if table_plan.is_automatic:
        if not any(step.needed for step in table_plan.steps):
            return Applied(before=state, after=state, steps=())
        return apply(session, table.dataset, state, partial(require_table, session, table), automatic=True)
    if replaced and table.dataset.schema_policy.mode == "overwrite":
        return Applied(before=state, after=state, steps=(), overwrites=True)
    raise table.error(
        TableMismatchError,
        version=state.version,
        differences=tuple(shape_differences(table.dataset, state)),
        is_settled_by_steps=not table_plan.problems,
    )


@door
def open_or_create(session: SparkSession, table: TableRef) -> TableState:
    """The table's state; a missing table is created with the full declaration.

    If two processes create it at the same time, there is one table; the second process opens it. A table with a name is
    registered in the catalog, before any row is written.

    Raises:
        TableNameTakenError: the catalog has something else under the table's name; nothing was created.
        CatalogError: the catalog can't be used; the table may have been created.
        TableMismatchError: the table differs from the declaration in a way that the schema policy does not allow; with
            every difference.
        NotADeltaTableError: the location holds files but no log.
        DeclarationError, ExpressionError: a check, a generated column or a default can't be used; nothing was created.
        DamagedTableError: the table is damaged.
        StorageError: the root can't be written.
    """
    return open_with_steps(session, table).after


def _create(session: SparkSession, table: TableRef) -> TableState:
    """Create the table and return its state, or that of the table that another process has created in the meantime.

    If the log has no commit, another process is creating the table, or was killed while it created it. This function
    waits for the first, and removes the empty log of the second.
    """
    deadline = time.monotonic() + CREATION_SECONDS + _RETRY_SECONDS
    while True:
        try:
            note = CommitNote(mark=Mark(writer=f"{table.name}/create"))
            with private_session(session, write_confs(note, session, table.dataset.fingerprint)) as clone:
                refuse_bad_expressions(clone, table.dataset)
                clone.sql(sql.create_table(table, _properties_at_creation(table.dataset)))
            return require_table(session, table)
        except SPARK_ERRORS as error:
            # Whatever the error is: if there is a table now, another process has created it.
            state = table_state_with_sizes(session, table)
            if state is not None:
                return state
            failure = failure_of(error)
            if not failure.has(NOT_EMPTY_LOCATION):
                raise storage_failure(table.name, table.location, failure) from error
            if _holds_files(session, table.location):
                # The files may be the first rows of a table that another process has just created.
                state = table_state_with_sizes(session, table)
                if state is not None:
                    return state
                raise table.error(NotADeltaTableError) from error
            removed = remove_empty_log(table.location)
            if time.monotonic() > deadline or not (removed or _is_begun(table.location)):
                raise table.error(StorageError, reason=failure.summary) from error
            if not removed:
                time.sleep(_RETRY_SECONDS)


def _is_begun(location: str) -> bool:
    try:
        return has_log_folder(location)
    except (OSError, ValueError):  # only Spark can reach the storage
        return False


def _holds_files(session: SparkSession, location: str) -> bool:
    """Whether the location has files that a Spark reader lists."""
    files = session.read.format("binaryFile").option("recursiveFileLookup", "true").load(sql.path_pattern(location))
    return bool(files.select("path").limit(1).collect())
