"""The name of a table in the session's catalog: an entry that points to the table's location.

Here belong the look-up of the entry and its registration. The location remains the truth: no row is read or written by
the name, and an entry of something else is never changed.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from pipeline.dataset import TableRef
from pipeline.delta import sql
from pipeline.delta.log.mark import private_session
from pipeline.delta.spark.failures import SPARK_ERRORS, failure_of
from pipeline.delta.storage.file_system import local_folder
from pipeline.errors import CatalogError, TableNameTakenError

_NO_SCHEMA = frozenset({"SCHEMA_NOT_FOUND"})
_NO_ENTRY = frozenset({"SCHEMA_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND"})
_DELTA = "delta"
_VIEW = "VIEW"
# The lines of an entry. A comment or a property may have further lines of such a form: they follow the first two, and
# precede the location.
_FIRST = ("Type", "Provider")
_LAST = "Location"
_LINE = re.compile(r"^(Type|Provider|Location): ?(.*)$", re.MULTILINE)
# The schemes of one storage.
_SCHEMES = {"s3": "s3a", "s3n": "s3a"}


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """An entry of a catalog; its location is empty if it has none."""

    type: str
    provider: str
    location: str

    @classmethod
    def parsed(cls, text: str) -> _Entry:
        """The entry from Spark's description of it."""
        values: dict[str, str] = {}
        for name, value in _LINE.findall(text):
            if name == _LAST or name not in values:
                values[name] = value.strip()
        type_name, provider = (values.get(name, "") for name in _FIRST)
        return cls(type=type_name, provider=provider.lower(), location=values.get(_LAST, ""))

    @property
    def is_delta(self) -> bool:
        return self.provider == _DELTA and self.type != _VIEW

    @property
    def kind(self) -> str:
        """What it is, in words."""
        if self.type == _VIEW:
            return "view"
        return "Delta table" if self.is_delta else f"table in the format {self.provider or 'unknown'}"

    def is_at(self, location: str) -> bool:
        """Whether it is the Delta table at a location."""
        return self.is_delta and bool(self.location) and _normalized(self.location) == _normalized(location)


def is_registered(session: SparkSession, table: TableRef) -> bool:
    """Whether the catalog has the table under its name. If the dataset has no name, True. One look-up, no Spark job.

    Nothing is remembered: another session may have changed the entry since.

    Raises:
        TableNameTakenError: the name is that of something else.
        CatalogError: the catalog can't be asked.
    """
    if table.dataset.table_name is None:
        return True
    entry = _entry(session, table)
    if entry is None:
        return False
    if entry.is_at(table.location):
        return True
    raise table.error(
        TableNameTakenError, table_name=table.dataset.table_name, found=entry.kind,
        registered_location=entry.location, is_delta=entry.is_delta,
    )  # fmt: skip


def _entry(session: SparkSession, table: TableRef) -> _Entry | None:
    """The entry of the table's name. Tables are listed: to describe one, Spark would load a Delta table's log."""
    *schema, name = table.dataset.table_name_parts
    # A pattern is a regular expression in which `*` and `|` have meanings of their own.
    pattern = sql.string(re.sub(r"[^A-Za-z0-9_]", ".", name))
    within = f"IN {sql.names_path(schema)} " if schema else ""
    try:
        rows = session.sql(f"SHOW TABLE EXTENDED {within}LIKE {pattern}").collect()
    except SPARK_ERRORS as error:
        if isinstance(error, Py4JNetworkError):
            raise
        failure = failure_of(error)
        if failure.has(_NO_ENTRY):
            return None
        raise _refused(table, failure.summary) from error
    # A row is a schema, a name, whether it is a temporary view, and a description.
    found = [row for row in rows if row[1].casefold() == name.casefold() and not row[2]]
    return _Entry.parsed(found[0][3]) if found else None


def register(session: SparkSession, table: TableRef, version: int) -> None:
    """Register the table, which exists, under its name. If the name's schema is missing, create it.

    Idempotent, and no commit of the table.

    Args:
        version: the table's version, for the error.

    Raises:
        TableNameTakenError: in the meantime the name was given to something else.
        CatalogError: the catalog refuses.
    """
    *schema, _ = parts = table.dataset.table_name_parts
    entry = f"{sql.names_path(parts)} USING delta LOCATION {sql.string(_absolute(table.location))}"
    with private_session(session, {}) as clone:
        try:
            try:
                clone.sql(f"CREATE TABLE IF NOT EXISTS {entry}")
            except SPARK_ERRORS as error:
                if not schema or not failure_of(error).has(_NO_SCHEMA):
                    raise
                clone.sql(f"CREATE SCHEMA IF NOT EXISTS {sql.names_path(schema)}")
                clone.sql(f"CREATE TABLE IF NOT EXISTS {entry}")
        except SPARK_ERRORS as error:
            if isinstance(error, Py4JNetworkError):
                raise
            raise _refused(table, failure_of(error).summary, version=version) from error
    # With IF NOT EXISTS the statement succeeds too if another process was first.
    if not is_registered(session, table):
        raise _refused(table, "the catalog does not list the entry that was created", version=version)


def _refused(table: TableRef, reason: str, *, version: int | None = None) -> CatalogError:
    return table.error(CatalogError, table_name=table.dataset.table_name, reason=reason, version=version)


def _absolute(location: str) -> str:
    """The location, absolute: a catalog would resolve a relative path against the folder of the schema."""
    return os.path.abspath(location) if not location.startswith("file:") and "://" not in location else location


def _normalized(location: str) -> str:
    """A location in a form that is equal for two spellings of the same location."""
    folder = local_folder(location)
    if folder is not None:
        return os.path.realpath(folder)
    scheme, _, path = location.partition("://")
    return f"{_SCHEMES.get(scheme, scheme)}://{re.sub('/+', '/', path).rstrip('/')}"
