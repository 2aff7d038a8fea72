"""A set of datasets: looked up by name, ordered by lineage, and refused if its datasets contradict one another.

Here belongs what concerns the set and no single dataset. Loading a user's own collection belongs here too, since both
the definitions and the command line need it. Operations on a dataset don't belong here.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

from pipeline.dataset.declaration import Dataset
from pipeline.dataset.expectations import References
from pipeline.dataset.exports import export_asset_name
from pipeline.errors import RegistryError, SettingsError, UnknownDatasetError
from pipeline.errors.spelling import did_you_mean, distinguishable, near


class Registry:
    """Datasets and their side tables by name, upstream first; iteration includes the side tables.

    Args:
        catalog: the setting of that name. Datasets without a `table_name` get the name that it gives them.

    Raises:
        RegistryError: two names are equal or share a folder on a file system that ignores case, a location lies inside
            another one, two table names differ at most by case, a source is not declared, a source whose changes are
            read has no change feed, or the lineage has a cycle.
        SettingsError: `catalog` is neither a catalog nor a catalog and a schema.
    """

    def __init__(self, datasets: Iterable[Dataset], *, catalog: str | None = None) -> None:
        given = tuple(datasets)
        wrong_types = tuple(f"{entry!r} is no Dataset" for entry in given if not isinstance(entry, Dataset))
        if wrong_types:
            raise RegistryError(problems=wrong_types)
        given = tuple(dataset.named(catalog) for dataset in given)
        # The writes of a dataset write its side tables; a reader uses them like any other dataset.
        declared = (*given, *(beside for dataset in given for beside in dataset.side_tables))
        by_name = {dataset.name: dataset for dataset in declared}
        problems = [*_collisions(declared), *_shared_table_names(declared), *_gaps(declared), *_without_feed(by_name)]
        problems += _shared_exports(declared)
        try:
            order = tuple(TopologicalSorter({d.name: d.reads for d in declared}).static_order())
        except CycleError as error:
            problems.append(f"lineage has a cycle: {' -> '.join(error.args[1])}")
            order = ()
        if problems:
            raise RegistryError(problems=tuple(problems))
        self._by_name = {name: by_name[name] for name in order}

    def __iter__(self) -> Iterator[Dataset]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the order of the lineage, upstream first."""
        return tuple(self._by_name)

    def get(self, name: str) -> Dataset:
        """The dataset of that name.

        Raises:
            UnknownDatasetError: no dataset has that name; the error holds similar names.
        """
        found = self._by_name.get(name)
        if found is None:
            raise UnknownDatasetError(name=name, near=near_misses(name, self.names), known=self.names)
        return found

    def by_asset_key(self, path: Iterable[str]) -> Dataset:
        """The dataset of that asset key path; raises as `get` does."""
        return self.get("/".join(path))

    def downstream(self, name: str) -> tuple[Dataset, ...]:
        """Datasets that read `name` directly."""
        return tuple(dataset for dataset in self if name in dataset.reads)


def near_misses(name: str, names: Collection[str]) -> tuple[str, ...]:
    """Those of the names of datasets that one was meant by a name that is none of them."""
    last = name.rsplit("/", 1)[-1]
    alike = [*near(name, names), *(one for one in names if one.rsplit("/", 1)[-1] == last)]
    return tuple(dict.fromkeys(alike))


def _collisions(declared: tuple[Dataset, ...]) -> Iterator[str]:
    groups: dict[str, list[str]] = defaultdict(list)
    for dataset in declared:
        groups[dataset.name.lower()].append(dataset.name)
    for names in groups.values():
        if len(names) > 1:
            yield f"{' and '.join(names)} would share one table"
    for low, names in groups.items():
        parts = low.split("/")
        for depth in range(1, len(parts)):
            outer = groups.get("/".join(parts[:depth]))
            if outer:
                yield f"the table of {names[0]} would lie inside the table of {outer[0]}"


def _shared_table_names(declared: tuple[Dataset, ...]) -> Iterator[str]:
    groups: dict[tuple[str, ...], dict[str, str]] = defaultdict(dict)
    for dataset in declared:
        if dataset.table_name is not None:
            key = tuple(part.casefold() for part in dataset.table_name_parts)
            groups[key].setdefault(dataset.name, dataset.table_name)
    for names in groups.values():
        if len(names) > 1:
            shared = " and ".join(dict.fromkeys(names.values()))
            yield f"{' and '.join(names)} would share the table name {shared}; declare another table_name for one"


def _shared_exports(declared: tuple[Dataset, ...]) -> Iterator[str]:
    """The assets of exports with the name of another asset, and the folders that two exports share."""
    names = {dataset.name.lower(): f"the dataset {dataset.name}" for dataset in declared}
    folders: dict[str, str] = {}
    for dataset in declared:
        for export in dataset.exports:
            asset, folder = export_asset_name(dataset.name, export), export.uri.rstrip("/")
            for known, key in ((names, asset.lower()), (folders, folder)):
                if key in known:
                    yield f"the export {asset} would have the name or the folder of {known[key]}"
                known[key] = f"the export {asset}"


def _gaps(declared: tuple[Dataset, ...]) -> Iterator[str]:
    by_name = {dataset.name: dataset for dataset in declared}
    for dataset in declared:
        for source in dataset.reads:
            if source not in by_name:
                yield f"{dataset.name} reads {_undeclared(source, by_name)}"
        for expectation in dataset.expectations:
            if isinstance(expectation, References):
                yield from _reference_problems(dataset, expectation, by_name)


def _undeclared(source: str, known: Iterable[str]) -> str:
    names = tuple(known)
    shown = distinguishable((source, *near(source, names)))(source)
    question = did_you_mean(source, names)
    return f"{shown}, which nobody declared" + (f"; d{question[1:]}" if question else "")


def _reference_problems(dataset: Dataset, expectation: References, known: Mapping[str, Dataset]) -> Iterator[str]:
    other = known.get(expectation.dataset)
    if other is None:
        yield f"{dataset.name} refers to {_undeclared(expectation.dataset, known)}"
        return
    for column, target in zip(expectation.columns, expectation.target, strict=True):
        if target not in other.schema.names:
            yield f"{dataset.name} refers to column {target} of {other.name}, which has none of that name"
        elif (kind := dataset.field(column).dataType) != other.field(target).dataType:
            other_kind = other.field(target).dataType.simpleString()
            yield (
                f"{dataset.name} refers with {column} ({kind.simpleString()}) "
                f"to {target} ({other_kind}) of {other.name}"
            )


def _without_feed(declared: Mapping[str, Dataset]) -> Iterator[str]:
    for dataset in declared.values():
        sources = [declared[name] for name in dataset.reads_changes_of if name in declared]
        for source in sources if not dataset.full_without_feed else ():
            if not source.change_feed:
                yield (
                    f"{dataset.name} reads the changes of {source.name}, which is declared with change_feed=False "
                    f"(delta.enableChangeDataFeed); declare it with the feed, or {dataset.name} with full_without_feed"
                )


def load_datasets(reference: str | None) -> tuple[Dataset, ...]:
    """The datasets at `package.module:name`; None is the value of the setting if it is not set.

    Raises:
        SettingsError: the setting is not set, the module or name does not exist, or its value is not datasets.
    """
    if reference is None:
        expected = 'datasets = "package.module:name" in [tool.pipeline] of pyproject.toml, or PIPELINE_DATASETS'
        raise SettingsError(setting="datasets", problem="no datasets are named", expected=expected)
    module_name, _, attribute = reference.partition(":")
    expected = "package.module:name of a tuple or list of Dataset values"
    if not module_name or module_name.startswith(".") or not attribute:
        raise SettingsError(setting="datasets", problem=f"got {reference!r}", expected=expected)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise
        raise SettingsError(setting="datasets", problem=f"no module {error.name!r}", expected=expected) from error
    value = getattr(module, attribute, None)
    if value is None:
        names = [name for name, kept in vars(module).items() if isinstance(kept, tuple | list)]
        problem = f"the module {module_name} has nothing of the name {attribute!r}. {did_you_mean(attribute, names)}"
        raise SettingsError(setting="datasets", problem=problem.strip(), expected=expected)
    datasets = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes) else ()
    if not datasets or not all(isinstance(dataset, Dataset) for dataset in datasets):
        raise SettingsError(
            setting="datasets", problem=f"{reference} holds {type(value).__name__}, not datasets", expected=expected
        )
    return datasets
