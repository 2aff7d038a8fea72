"""The columns of many files: the columns that hold all of them, the differences between them, and what each needs.

Here belong the merged schema and the groups of files that are read alike. Values are not read here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql.types import DataType, NullType, StructField, StructType, TimestampNTZType

from pipeline.dataset import Dataset
from pipeline.dataset.schema import case_duplicates, casefolded, widens
from pipeline.delta import sql
from pipeline.delta.frames.fit import select_list
from pipeline.delta.migrate.contents import NANOSECONDS, Contents, FileColumn
from pipeline.delta.migrate.folders import FolderColumn, SourceFolders, is_decoded_otherwise_by_spark
from pipeline.errors import FrameMismatchError
from pipeline.errors.listing import listed

Columns = tuple[FileColumn, ...]
_COPY = "--mode copy takes it"
# Parquet stores these alike, so that Delta's conversion merges them.
_MERGED_BY_DELTA = frozenset({"tinyint", "smallint", "int"})


@dataclass(frozen=True, kw_only=True)
class Group:
    """The files with the same columns. `expressions` are the SQL of the declared columns, in their order.

    The expressions use the columns of the file, those of the folders, and `absent`: declared columns that the files
    lack, which are NULL.
    """

    columns: Columns
    absent: tuple[StructField, ...]
    expressions: Mapping[str, str]
    paths: tuple[str, ...]


def merged_schema(files: Mapping[str, Columns]) -> tuple[StructType, tuple[str, ...]]:
    """The columns that hold the values of all files, all nullable, and messages about those that have no such type.

    The order is that of the first file; further columns follow in the order of their files.

    Args:
        files: the columns by path.
    """
    types: dict[str, DataType] = {}
    first: dict[str, str] = {}
    problems: dict[str, str] = {}
    for path, columns in files.items():
        for column in columns:
            known = types.get(column.name, NullType())
            wide = _wider(known, column.data_type)
            if wide is None:
                problems.setdefault(
                    column.name,
                    f"column {column.name}: {sql.type_name(known)} in {first[column.name]} and "
                    f"{sql.type_name(column.data_type)} in {path}; no type holds the values of both",
                )
                continue
            if isinstance(known, NullType):
                first[column.name] = path
            types[column.name] = wide
    for name, data_type in types.items():
        if isinstance(data_type, NullType):
            problems[name] = f"column {name}: no file gives it a type, since all of its values are NULL; declare it"
    schema = StructType([StructField(name, data_type) for name, data_type in types.items()])
    duplicates = [f"columns {listed(group)} differ by case only" for group in case_duplicates(schema)]
    return schema, (*problems.values(), *duplicates)


def without_folder_columns(
    files: Mapping[str, Contents], folders: SourceFolders
) -> tuple[dict[str, Columns], dict[str, DataType]]:
    """The columns of files without those that only repeat the value of the file's folder, and the types of these.

    Some writers, as polars, store the partition columns in the files too. A column stays if its footer does not show
    that every row has the value of the folder. A column whose types no type holds has none.

    Args:
        files: the contents by path.
    """
    columns: dict[str, Columns] = {}
    types: dict[str, DataType | None] = {}
    names = {casefolded(name) for name in folders.names}
    for path, contents in files.items():
        repeated = [c for c in contents.columns if casefolded(c.name) in names and _repeats(c, path, contents, folders)]
        for column in repeated:
            known = types.get(casefolded(column.name), NullType())
            types[casefolded(column.name)] = None if known is None else _wider(known, column.data_type)
        columns[path] = tuple(column for column in contents.columns if column not in repeated)
    return columns, {name: t for name, t in types.items() if t is not None and not isinstance(t, NullType)}


def _repeats(column: FileColumn, path: str, contents: Contents, folders: SourceFolders) -> bool:
    """Whether every row of a file has the value of its folder in a column."""
    if contents.rows == 0:
        return True
    constants = contents.constants
    return column.name in constants and folders.has(path, column.name, constants[column.name], column.data_type)


def _wider(one: DataType, other: DataType) -> DataType | None:
    """The type that holds the values of both types. If neither of them does, None."""
    if isinstance(one, NullType) or (not isinstance(other, NullType) and widens(one, other)):
        return other
    if isinstance(other, NullType) or widens(other, one) or one.simpleString() == other.simpleString():
        return one
    return None


def differences(files: Mapping[str, Columns]) -> tuple[str, ...]:
    """Messages about the differences between the columns of files, each with the number of files."""
    return (*_of_columns(files), *_of_order(files.values()))


def _of_columns(files: Mapping[str, Columns]) -> Iterator[str]:
    by_name: dict[str, list[FileColumn]] = defaultdict(list)
    for columns in files.values():
        for column in columns:
            by_name[column.name].append(column)
    for name, found in by_name.items():
        aspects = {
            "": Counter(sql.type_name(column.data_type) for column in found),
            "nullability: ": Counter("NULL" if column.nullable else "NOT NULL" for column in found),
            "unit: ": Counter(column.unit for column in found if column.unit),
        }
        for label, counts in aspects.items():
            if len(counts) > 1:
                yield f"column {name}: {label}{', '.join(f'{kind} in {n} files' for kind, n in counts.items())}"
        if len(found) < len(files):
            yield f"column {name}: missing in {len(files) - len(found)} of {len(files)} files"


def _of_order(files: Iterable[Columns]) -> Iterator[str]:
    orders = [tuple(column.name for column in columns) for columns in files]
    other = sum(set(order) == set(orders[0]) and order != orders[0] for order in orders)
    if other:
        yield f"columns are in another order in {other} of {len(orders)} files"


def groups(
    files: Mapping[str, Columns], folders: Sequence[FolderColumn], dataset: Dataset
) -> tuple[tuple[Group, ...], tuple[str, ...]]:
    """The files in groups of the same columns, and messages about what does not fit the declaration.

    A message begins with the path of the first file that it concerns.
    """
    paths: dict[Columns, list[str]] = defaultdict(list)
    for path, columns in files.items():
        paths[columns].append(path)
    nowhere = _missing_everywhere(files.values(), folders, dataset)
    made, problems = [], []
    for columns, same in paths.items():
        own = {casefolded(name) for name in (*(c.name for c in columns), *(f.name for f in folders))}
        absent = tuple(f for f in dataset.schema.fields if casefolded(f.name) not in own and f.name not in nowhere)
        problems += [f"{same[0]}: column {f.name} is missing and declared NOT NULL" for f in absent if not f.nullable]
        both = {casefolded(c.name) for c in columns} & {casefolded(f.name) for f in folders}
        problems += [
            f"{same[0]}: column {name} is in the file and in its folders, and the file's footer does not show the "
            "folder's value for all rows"
            for name in sorted(both)
        ]
        try:
            expressions = select_list(dataset, _given(columns, absent, folders))
        except FrameMismatchError as error:
            problems += [f"{same[0]}: {difference}" for difference in error.differences]
            continue
        made.append(Group(columns=columns, absent=absent, expressions=expressions, paths=tuple(same)))
    return tuple(made), tuple(problems)


def _missing_everywhere(
    files: Iterable[Columns], folders: Iterable[FolderColumn], dataset: Dataset
) -> frozenset[str]:  # fmt: skip
    """The generated columns and those with a default that no file has: they are computed."""
    found = {casefolded(column.name) for columns in files for column in columns}
    found |= {casefolded(folder.name) for folder in folders}
    computed = (*dataset.features.generated, *dataset.features.defaults)
    return frozenset(name for name, _ in computed if casefolded(name) not in found)


def _given(columns: Columns, absent: Sequence[StructField], folders: Sequence[FolderColumn]) -> StructType:
    """The columns that a group's frame has before its columns are selected."""
    fields = [StructField(column.name, column.data_type) for column in columns]
    fields += [StructField(field.name, field.dataType) for field in absent]
    return StructType([*fields, *(StructField(folder.name, folder.data_type) for folder in folders)])


def in_place_problems(
    grouped: Sequence[Group], folders: Sequence[FolderColumn], dataset: Dataset, *, is_declared: bool
) -> Iterator[str]:
    """Messages about files that Delta's conversion would refuse or read otherwise; `copy` takes them.

    The conversion merges the columns of the files by itself (`SchemaMergingUtils.scala`), and keeps their types.
    """
    kinds: dict[str, set[str]] = defaultdict(set)
    for folder in folders:
        if folder.stored:
            yield f"column {folder.name} is in the files and in their folders; {_COPY}"
    for group in grouped:
        yield from _unconvertible(group)
        for column in group.columns:
            kinds[column.name].add(sql.type_name(column.data_type))
    for name, found in kinds.items():
        if len(found) > 1 and not found <= _MERGED_BY_DELTA:
            yield f"column {name}: Delta's conversion does not merge {' and '.join(sorted(found))}; {_COPY}"
    for folder in folders:
        if isinstance(folder.data_type, TimestampNTZType):
            yield f"partition column {folder.name}: Delta's conversion does not have the type TIMESTAMP_NTZ; {_COPY}"
    if is_declared:
        yield from _undeclared(grouped, folders, dataset)


def _unconvertible(group: Group) -> Iterator[str]:
    for column in group.columns:
        if column.unit == NANOSECONDS:
            yield f"{group.paths[0]}: column {column.name} has nanoseconds, which Spark does not read; {_COPY}"
        if isinstance(column.data_type, NullType):
            yield f"{group.paths[0]}: column {column.name} has NULLs of no type; {_COPY}"
    for path in group.paths:
        if is_decoded_otherwise_by_spark(path):
            yield f"{path}: Spark reads other characters in the names of its folders; {_COPY}"


def _undeclared(grouped: Sequence[Group], folders: Sequence[FolderColumn], dataset: Dataset) -> Iterator[str]:
    """Messages about what a conversion would make otherwise than declared."""
    for group in grouped:
        for name, text in group.expressions.items():
            if casefolded(text) != casefolded(sql.identifier(name)):
                yield f"{group.paths[0]}: column {name} has another type than declared; {_COPY}"
    names = tuple(casefolded(column.name) for column in folders)
    if names != tuple(map(casefolded, dataset.partition_by)):
        found, declared = (listed(columns) or "no columns" for columns in (names, dataset.partition_by))
        yield f"the folders have {found}, and {declared} are declared as partition columns; {_COPY}"
    present = {casefolded(column.name) for group in grouped for column in group.columns} | set(names)
    for name in dataset.schema.names:
        if casefolded(name) not in present:
            yield f"column {name} is declared, and no file has it; {_COPY}"
