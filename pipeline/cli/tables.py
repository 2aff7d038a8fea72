"""The tables that commands name: those that are declared, those below the root, and any other by its path.

Here belong the resolution of a name to a table, and the choice between the files of its log and Spark. Spark is started
only if the files of the log do not suffice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pyspark.sql import SparkSession

from pipeline.cli.registry import declared
from pipeline.dataset import Dataset, TableRef, table_location
from pipeline.dataset.registry import near_misses
from pipeline.delta.inspect.describe import TableDescription, describe_at, described_in_log
from pipeline.delta.inspect.history import HistoryEntry, history, history_in_log
from pipeline.delta.inspect.tables import is_table, tables_below
from pipeline.delta.server.warm import open_project_session
from pipeline.delta.storage.file_system import local_folder
from pipeline.delta.table.open_table import state_at_location
from pipeline.delta.table.undeclared import dataset_of
from pipeline.errors import TableNotFoundError, UnknownDatasetError
from pipeline.settings import Settings, require_uri_without_secret

# Characters that the name of a dataset may not contain.
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, kw_only=True)
class NamedTable:
    """A table that a command names. `declared` is None if the table has no declaration."""

    name: str
    location: str
    declared: Dataset | None


class Tables:
    """The tables of a project. The session is opened on its first use."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.registry = declared(settings)

    @cached_property
    def session(self) -> SparkSession:
        """The project's Spark."""
        return open_project_session(self.settings.spark)

    def find(self, name: str) -> NamedTable:
        """The table of a dataset by its name, a table by its path below the root, or a table by its path or URI.

        Raises:
            UnknownDatasetError: there is no such table; with near misses.
            SettingsError: a URI holds a user, a key or a signature.
        """
        if name in self.registry:
            return self.of(self.registry.get(name))
        if "://" in name:
            require_uri_without_secret("TABLE", name)
            return self._at(name.rstrip("/"))
        root = self.settings.root
        for location in (table_location(root, name), str(Path(name).resolve())):
            if is_table(location):
                folder = local_folder(location)
                return self._at(location if folder is None else str(folder.resolve()))
        known = tuple(dict.fromkeys((*self.registry.names, *tables_below(root))))
        raise UnknownDatasetError(name=name, near=near_misses(name, known), known=known, root=root)

    def of(self, dataset: Dataset) -> NamedTable:
        """The table of a dataset."""
        return NamedTable(name=dataset.name, location=dataset.location(self.settings.root), declared=dataset)

    def _at(self, location: str) -> NamedTable:
        """The table at a location: a dataset's table if it is one, otherwise named by its path below the root."""
        for dataset in self.registry:
            if normalized(dataset.location(self.settings.root)) == normalized(location):
                return self.of(dataset)
        root, folder = normalized(self.settings.root), normalized(location)
        name = folder.removeprefix(f"{root}/") if folder.startswith(f"{root}/") else folder.rpartition("/")[2]
        return NamedTable(name=name, location=location, declared=None)

    def undeclared(self) -> tuple[str, ...]:
        """The names of the tables below the root that have no declaration."""
        return tables_below(self.settings.root, without=self.registry)

    def describe(self, table: NamedTable, *, with_health: bool = True) -> TableDescription:
        """The current state of a table; raises as `describe_at` does.

        Args:
            with_health: if false, the description from the log leaves out the table's health.
        """
        description = described_in_log(table.name, table.location, table.declared, with_health=with_health)
        return description or describe_at(self.session, table.name, table.location, table.declared)

    def history(self, table: NamedTable, limit: int) -> list[HistoryEntry]:
        """The newest commits of a table; raises as `history` does."""
        entries = history_in_log(table.name, table.location, limit)
        return entries or history(self.session, table.name, table.location, limit)

    def ref(self, table: NamedTable) -> TableRef:
        """A table with its declaration. If it has none, with a dataset of its columns without checks.

        Raises:
            TableNotFoundError: the table has no declaration and does not exist.
            DeclarationError: the table has no declaration, and no valid declaration could describe it.
        """
        if table.declared is not None:
            return TableRef(table.declared, table.location)
        state = state_at_location(self.session, table.name, table.location)
        if state is None:
            raise TableNotFoundError(dataset=table.name, location=table.location)
        return TableRef(
            replace(dataset_of(dataset_name(table.name), state), checks=(), change_feed=False), table.location
        )


def dataset_name(name: str) -> str:
    """The name of a dataset for a table of this name, which may have any characters."""
    return "/".join(_NOT_IN_NAMES.sub("_", part).lstrip("_.-") or "table" for part in name.split("/"))


def normalized(location: str) -> str:
    """A location in a form that is equal for two spellings of the same location."""
    folder = local_folder(location)
    return location.rstrip("/") if folder is None else str(folder.resolve())
