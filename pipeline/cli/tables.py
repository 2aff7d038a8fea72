"""The tables that commands name: those that are declared, those below the root, and any other by its path.

Here belong the way from a name to a table, and the choice between the files of its log, where they say enough, and
Spark, which is not started before something is asked of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pyspark.sql import SparkSession

from pipeline.cli.registry import declared
from pipeline.dataset import Dataset, table_location
from pipeline.dataset.registry import near_misses
from pipeline.delta.inspect.describe import TableDescription, describe_at, described_in_log
from pipeline.delta.inspect.history import HistoryEntry, history, history_in_log
from pipeline.delta.inspect.tables import is_table, tables_below
from pipeline.delta.log.snapshot import local_folder
from pipeline.delta.spark.session import open_session
from pipeline.delta.table.open_table import state_at_location
from pipeline.delta.table.undeclared import dataset_of
from pipeline.errors import TableNotFoundError, UnknownDatasetError
from pipeline.settings import Settings

# What the name of a dataset may not hold.
_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, kw_only=True)
class NamedTable:
    """A table that a command was given; `declared` is None where nothing is declared of it."""

    name: str
    location: str
    declared: Dataset | None


class Tables:
    """The tables of a project; its session is opened when it is first asked for."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.registry = declared(settings)

    @cached_property
    def session(self) -> SparkSession:
        """The project's Spark."""
        return open_session(self.settings.spark)

    def find(self, name: str) -> NamedTable:
        """The table of a dataset by its name, or one that lies below the root under that path or at a path or URI.

        Raises:
            UnknownDatasetError: there is none, with near misses; of a root that is not on this machine nobody looks.
        """
        if name in self.registry:
            return self.of(self.registry.get(name))
        if "://" in name:
            return self._at(name.rstrip("/"))
        root = self.settings.root
        for location in (table_location(root, name), str(Path(name).resolve())):
            if is_table(location):
                return self._at(str(Path(local_folder(location) or location).resolve()))
        known = tuple(dict.fromkeys((*self.registry.names, *tables_below(root))))
        is_seen = root if local_folder(root) is not None else ""
        raise UnknownDatasetError(name=name, near=near_misses(name, known), known=known, root=is_seen)

    def of(self, dataset: Dataset) -> NamedTable:
        """The table of a dataset."""
        return NamedTable(name=dataset.name, location=dataset.location(self.settings.root), declared=dataset)

    def _at(self, location: str) -> NamedTable:
        """The table at a place: that of a dataset if it is one, named by its path below the root if it lies there."""
        for dataset in self.registry:
            if _place(dataset.location(self.settings.root)) == _place(location):
                return self.of(dataset)
        root, place = _place(self.settings.root), _place(location)
        below = place.removeprefix(f"{root}/") if place.startswith(f"{root}/") else place.rpartition("/")[2]
        return NamedTable(name=below, location=location, declared=None)

    def undeclared(self) -> tuple[str, ...]:
        """The names of the tables below the root of which nothing is declared."""
        return tuple(name for name in tables_below(self.settings.root) if name not in self.registry)

    def describe(self, table: NamedTable) -> TableDescription:
        """A table as it is now; raises as `describe_at` does."""
        found = described_in_log(table.name, table.location, table.declared)
        return found or describe_at(self.session, table.name, table.location, table.declared)

    def history(self, table: NamedTable, limit: int) -> list[HistoryEntry]:
        """The newest commits of a table; raises as `history` does."""
        found = history_in_log(table.name, table.location, limit)
        return found or history(self.session, table.name, table.location, limit)

    def dataset(self, table: NamedTable) -> Dataset:
        """What is declared of a table, or else a dataset of its columns, of which nothing is to be enforced.

        Raises:
            TableNotFoundError: nothing is declared of it, and it is not there.
            DeclarationError: nothing is declared of it, and it is none that could be.
        """
        if table.declared is not None:
            return table.declared
        state = state_at_location(self.session, table.name, table.location)
        if state is None:
            raise TableNotFoundError(dataset=table.name, location=table.location)
        name = "/".join(_NO_NAME.sub("_", part).lstrip("_.-") or "table" for part in table.name.split("/"))
        return replace(dataset_of(name, state), checks=(), change_feed=False)


def _place(location: str) -> str:
    """A location by which two spellings of one are told to be the same."""
    folder = local_folder(location)
    return location.rstrip("/") if folder is None else str(folder.resolve())
