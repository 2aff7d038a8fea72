"""A dataset's table on disk: observed, opened, created.

Here belong what a table is (`TableState`) and its making. Opening commits nothing; creating makes exactly one commit,
version 0, with everything that is declared. Only "there is no table here" may lead to creating one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pipeline.dataset import Dataset, schema_fingerprint
from pipeline.delta import sql
from pipeline.delta.failures import NO_TABLE, NOT_EMPTY_LOCATION, SPARK_ERRORS, read_failure
from pipeline.delta.log import remove_empty_log, versions
from pipeline.delta.snapshot import local_folder, table_facts
from pipeline.errors import (
    NotADeltaTableError,
    StorageError,
    TableMismatchError,
    TableNotFoundError,
)

CHANGE_FEED = "delta.enableChangeDataFeed"
# What a table gets when it is created, unless the declaration says otherwise; one that lacks it is as good.
# Transaction identifiers are forgotten no later than the log forgets a restore, which makes them new.
DEFAULT_PROPERTIES = {"delta.setTransactionRetentionDuration": "interval 30 days"}
CONSTRAINT_PREFIX = "delta.constraints."


@dataclass(frozen=True, kw_only=True)
class TableState:
    """A table as observed at one version; `features` are the protocol's table features.

    `files` and `bytes` are None where they were not asked for: to know them Delta reads all of its log.
    """

    location: str
    table_id: str
    version: int
    schema: StructType
    partition_by: tuple[str, ...]
    properties: Mapping[str, str]
    features: tuple[str, ...]
    reader_version: int
    writer_version: int
    files: int | None = None
    bytes: int | None = None

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the schema on disk."""
        return schema_fingerprint(self.schema, self.partition_by)


def declared_properties(dataset: Dataset) -> dict[str, str]:
    """The table properties that the declaration asks for, checks included."""
    checks = {f"{CONSTRAINT_PREFIX}{check.name}": check.condition for check in dataset.checks}
    feed = {CHANGE_FEED: "true"} if dataset.change_feed else {}
    return dict(dataset.properties) | feed | checks


def _properties_at_creation(dataset: Dataset) -> dict[str, str]:
    declared = declared_properties(dataset)
    named = {name.lower() for name in declared}
    return {name: value for name, value in DEFAULT_PROPERTIES.items() if name.lower() not in named} | declared


def observe(session: SparkSession, dataset: Dataset, location: str) -> TableState | None:
    """The table's state now, sizes included; None where there is no table. Makes no commit.

    Raises:
        StorageError: the storage can't be read, or what is there is damaged.
    """
    return _observe(session, dataset.name, location)


def _observe(session: SparkSession, name: str, location: str) -> TableState | None:
    try:
        detail = session.sql(f"DESCRIBE DETAIL {sql.path_table(location)}").collect()[0]
        # The schema is read at the version that is reported, so that both speak of one commit.
        number = latest_version(session, location)
        schema = load(session, location, number).schema
    except SPARK_ERRORS as error:
        failure = read_failure(error)
        if failure.has(NO_TABLE):
            return None
        raise StorageError(dataset=name, location=location, reason=failure.summary) from error
    return TableState(
        location=location,
        table_id=detail["id"],
        version=number,
        schema=schema,
        partition_by=tuple(detail["partitionColumns"]),
        properties=dict(detail["properties"] or {}),
        features=tuple(detail["tableFeatures"] or ()),
        reader_version=detail["minReaderVersion"],
        writer_version=detail["minWriterVersion"],
        files=detail["numFiles"],
        bytes=detail["sizeInBytes"],
    )


def look(session: SparkSession, dataset: Dataset, location: str) -> TableState | None:
    """The table's state now without its sizes; None where there is no table.

    On this machine's disk it is read from the newest entries of the log, which is a hundred times faster than
    asking Spark. What the log's files don't say plainly is Spark's to say, and so is that there is no table.
    """
    return look_at(session, dataset.name, location)


def look_at(session: SparkSession, name: str, location: str) -> TableState | None:
    """As `look`, of a table that nothing is declared of; `name` is for the errors."""
    return state_in_log(location) or _observe(session, name, location)


def state_in_log(location: str) -> TableState | None:
    """What the newest entries of a log on this machine's disk say; None where they don't say it plainly. No Spark."""
    folder = local_folder(location)
    if folder is None:
        return None
    try:
        there = versions(str(folder))
        facts = table_facts(folder, there[-1]) if there else None
    except (OSError, ValueError, KeyError, NotImplementedError):  # damaged, or in a form that we don't read
        return None
    if facts is None:
        return None
    return TableState(
        location=location,
        table_id=facts.table_id,
        version=there[-1],
        schema=StructType.fromJson(dict(facts.schema)),
        partition_by=facts.partition_by,
        properties=facts.properties,
        features=facts.features,
        reader_version=facts.reader_version,
        writer_version=facts.writer_version,
    )


def existing(session: SparkSession, dataset: Dataset, location: str) -> TableState:
    """The state of a table that must be there, without its sizes.

    Raises:
        TableNotFoundError: it was never written.
    """
    state = look(session, dataset, location)
    if state is None:
        raise TableNotFoundError(dataset=dataset.name, location=location)
    return state


def latest_version(session: SparkSession, location: str) -> int:
    """The newest version in the log."""
    folder = local_folder(location)
    there = versions(str(folder)) if folder is not None else []
    if there:
        return there[-1]
    row = session.sql(f"DESCRIBE HISTORY {sql.path_table(location)} LIMIT 1").select("version").collect()[0]
    return int(row["version"])


def load(session: SparkSession, location: str, number: int) -> DataFrame:
    """The table at one version, lazily."""
    return session.read.format("delta").option("versionAsOf", number).load(location)


def open_or_create(session: SparkSession, dataset: Dataset, location: str) -> TableState:
    """The table, made with the full declaration where there is none.

    Two processes that create at once get one table; the one that came second opens it.

    Raises:
        TableMismatchError: the table differs from the declaration, with every difference.
        NotADeltaTableError: the location holds files but no log.
        StorageError: the root can't be written.
    """
    state = look(session, dataset, location)
    if state is None:
        state = _create(session, dataset, location)
    differences = compare(dataset, state)
    if differences:
        raise TableMismatchError(
            dataset=dataset.name, location=location, version=state.version, differences=tuple(differences)
        )
    return state


def _create(session: SparkSession, dataset: Dataset, location: str, *, again: bool = True) -> TableState:
    try:
        session.sql(sql.create_table(dataset, location, _properties_at_creation(dataset)))
    except SPARK_ERRORS as error:
        # Whatever was refused: where a table stands now, somebody else has created it in the meantime.
        state = observe(session, dataset, location)
        if state is not None:
            return state
        failure = read_failure(error)
        if failure.has(NOT_EMPTY_LOCATION):
            if _holds_files(session, location):
                raise NotADeltaTableError(dataset=dataset.name, location=location) from error
            if again and remove_empty_log(location):
                return _create(session, dataset, location, again=False)
        raise StorageError(dataset=dataset.name, location=location, reason=failure.summary) from error
    return existing(session, dataset, location)


def _holds_files(session: SparkSession, location: str) -> bool:
    """Whether anything lies there that a reader would see."""
    files = session.read.format("binaryFile").option("recursiveFileLookup", "true").load(sql.path_pattern(location))
    return bool(files.select("path").limit(1).collect())


def compare(dataset: Dataset, state: TableState) -> list[str]:
    """Every way in which a table differs from its declaration, in words; empty where it does not."""
    differences = []
    if state.partition_by != dataset.partition_by:
        differences.append(
            f"partition columns: declared {_tuple(dataset.partition_by)}, the table has {_tuple(state.partition_by)}"
        )
    differences += _schema_differences(dataset.schema, state.schema)
    for name, value in declared_properties(dataset).items():
        found = next((v for k, v in state.properties.items() if k.lower() == name.lower()), None)
        is_text = name.startswith(CONSTRAINT_PREFIX)
        if found is None or (found != value if is_text else found.lower() != value.lower()):
            differences.append(f"property {name}: declared {value!r}, the table has {found!r}")
    declared = {f"{CONSTRAINT_PREFIX}{check.name}".lower() for check in dataset.checks}
    for name, value in state.properties.items():
        if name.lower().startswith(CONSTRAINT_PREFIX) and name.lower() not in declared:
            differences.append(f"property {name}: the table has {value!r}, the declaration does not")
    return differences


def _tuple(columns: tuple[str, ...]) -> str:
    return f"({', '.join(columns)})" if columns else "none"


def _schema_differences(declared: StructType, found: StructType) -> list[str]:
    differences = []
    there = {field.name: field for field in found.fields}
    for field in declared.fields:
        other = there.get(field.name)
        if other is None:
            differences.append(f"column {field.name}: declared {sql.column_definition(field)}, the table lacks it")
        elif schema_fingerprint(StructType([field]), ()) != schema_fingerprint(StructType([other]), ()):
            differences.append(
                f"column {field.name}: declared {sql.type_name(field.dataType)}{_null(field.nullable)}, "
                f"the table has {sql.type_name(other.dataType)}{_null(other.nullable)}"
            )
    extra = [name for name in there if name not in declared.names]
    differences += [f"column {name}: the table has it, the declaration does not" for name in extra]
    if not differences and declared.names != found.names:
        differences.append(
            f"column order: declared {_tuple(tuple(declared.names))}, the table has {_tuple(tuple(found.names))}"
        )
    return differences


def _null(nullable: bool) -> str:
    return "" if nullable else " NOT NULL"
