"""The plan of a migration: the files to take, how they are read, and everything that is refused. No Spark.

Here belongs `MigrationPlan`. It is shown, and the same value is executed: `copy` and `convert` list no folder and infer
no type of their own. What the files must be like for a conversion in place is the subject of `convert`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pyspark.sql.types import StructField, StructType

from pipeline.dataset import Append, Dataset, TableRef
from pipeline.dataset.schema import casefolded
from pipeline.delta.export.target import resolved
from pipeline.delta.inspect.tables import table_around
from pipeline.delta.log.replay import replay
from pipeline.delta.log.snapshot import TableState
from pipeline.delta.migrate.contents import Contents, csv_contents, ndjson_contents, parquet_contents
from pipeline.delta.migrate.files import DataFile, Format, Listing, is_passed_over, list_source
from pipeline.delta.migrate.folders import FolderColumn, SourceFolders, parsed, source_folders, value_problems
from pipeline.delta.migrate.schemas import (
    Columns,
    Group,
    differences,
    groups,
    in_place_problems,
    merged_schema,
    without_folder_columns,
)
from pipeline.delta.migrate.taken import Selection, Taken, TakenFile, select_files, taken
from pipeline.delta.spark.doors import through_door
from pipeline.delta.sql.slices import Slice
from pipeline.delta.storage.access import StoreError
from pipeline.delta.storage.file_system import file_system, side_by_side
from pipeline.delta.table.open_table import latest_version, state_from_log
from pipeline.delta.table.undeclared import dataset_of
from pipeline.errors import DeclarationError, MigrationRefusedError, StorageError

Mode = Literal["copy", "in-place"]
# A commit takes at most so many files or bytes, so that a migration that was interrupted goes on from there.
BATCH_FILES, BATCH_BYTES = 20_000, 1 << 36
_IS_TABLE = "the folder is a Delta table, whose rows are not those of its files; pipeline adopt writes its declaration"
_UNREADABLE = (OSError, ValueError, NotImplementedError)


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where a migration writes. Without a dataset, the table there declares it, or else `schema`, or else the files."""

    name: str
    location: str
    dataset: Dataset | None = None
    schema: StructType | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedFile(DataFile):
    """A file that is to be taken. `values` are those of the folders' columns, in their order."""

    rows: int | None
    values: tuple[Any, ...]

    @property
    def taken(self) -> TakenFile:
        """The file as a record has it."""
        return TakenFile(path=self.path, size=self.size, changed_nanoseconds=self.changed_nanoseconds, rows=self.rows)


@dataclass(frozen=True, kw_only=True)
class MigrationPlan:
    """The plan of a migration.

    `version` is that of the table, None if there is none. `files` are taken, in this order; `unchanged` counts the
    files that earlier migrations have taken. With `replaces` the rows of `within` are replaced, those of the full table
    if it is None; otherwise rows are added. `problems` refuse the migration. `changed` and `vanished` are files that
    earlier migrations have taken; unless `replaces`, they refuse it too. `unverified` has the files of the newest
    record if its commit is still to be verified: a process was killed after the commit.
    """

    source: str
    table: TableRef
    mode: Mode
    format: Format
    version: int | None
    files: tuple[PlannedFile, ...]
    unchanged: int
    groups: tuple[Group, ...]
    folders: tuple[FolderColumn, ...]
    taken: Taken
    passed_over: tuple[str, ...]
    differences: tuple[str, ...]
    problems: tuple[str, ...]
    changed: tuple[str, ...] = ()
    vanished: tuple[str, ...] = ()
    replaces: bool = False
    within: Slice | None = None
    unverified: MigrationPlan | None = None

    @property
    def dataset(self) -> str:
        """The name of the dataset."""
        return self.table.name

    @property
    def location(self) -> str:
        """The location of the table."""
        return self.table.location

    @property
    def rows(self) -> int | None:
        """The rows of the files. If their format does not count them, None."""
        counts = [file.rows for file in self.files if file.rows is not None]
        return sum(counts) if len(counts) == len(self.files) else None

    @property
    def bytes(self) -> int:
        """The size of the files."""
        return sum(file.size for file in self.files)

    def batches(self) -> Iterator[tuple[PlannedFile, ...]]:
        """The files of each commit. A replacement is one commit, even without files."""
        if self.replaces:
            yield self.files
            return
        batch: list[PlannedFile] = []
        size = 0
        for file in self.files:
            if batch and (len(batch) == BATCH_FILES or size + file.size > BATCH_BYTES):
                yield tuple(batch)
                batch, size = [], 0
            batch.append(file)
            size += file.size
        if batch:
            yield tuple(batch)


def plan_migration(
    source: str, target: Target, *, mode: Mode = "copy", wanted: Format | None = None, accept_changed: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> MigrationPlan:  # fmt: skip
    """Plan a migration. Nothing is written.

    Args:
        source: the URI of the folder.
        mode: `copy` writes the rows to the table; `in-place` makes the folder itself a table.
        wanted: the format of the files. If None, that of their names.
        accept_changed: replace the partitions of files that changed or vanished since they were taken. Otherwise such
            files refuse the migration.
        progress: called with a line of text before each step.

    Raises:
        MigrationRefusedError: no dataset follows from the files, so that there is no plan.
        FileAccessError: the source can't be read.
        RecordError: it is not known what earlier migrations have taken.
        DamagedTableError, StorageError: the table can't be read.
    """
    with through_door(target.name, target.location):
        state = _state(target)
        known = target.dataset or (None if state is None else dataset_of(target.name, state, write=Append()))
        done = Taken() if known is None else taken(None, TableRef(known, target.location), state)
        base = _Base(source=source, target=target, known=known, state=state, done=done, mode=mode)
        progress(f"listing {source}")
        listing = list_source(source, wanted)
        folders = source_folders([f.path for f in listing.files], () if known is None else known.partition_by)
        chosen = select_files(
            source, listing.files, done, folders, known=known, state=state,
            accept_changed=accept_changed and mode == "copy",
        )  # fmt: skip
        progress(f"reading the columns of {len(chosen.files)} of {len(listing.files)} files")
        if mode == "in-place" and state is not None:
            return _converted(base, listing, folders)
        plan = replace(_plan(base, listing, folders, chosen), unverified=_unverified(base))
        further = (*_of_place(plan), *(_in_place(plan, target) if mode == "in-place" else ()))
        return replace(plan, problems=(*plan.problems, *further))


def _of_place(plan: MigrationPlan) -> Iterator[str]:
    """Messages about a source in whose place a table is, or that would be mixed with the files of the table."""
    source, table = resolved(plan.source), resolved(plan.location)
    below = f"{source}/".removeprefix(f"{table}/")
    above = source.rpartition("/")[0]
    if plan.mode == "copy" and source == table:
        yield "the table would be in the same folder as the files; --mode in-place makes the folder itself a table"
    elif plan.mode == "copy" and f"{source}/".startswith(f"{table}/") and not is_passed_over(f"{below}file"):
        yield f"{source} is in the folder of the table, where a vacuum removes files that no commit names"
    elif plan.mode == "copy" and f"{table}/".startswith(f"{source}/"):
        yield f"the table would be in the folder {source}, and its files among those of the source"
    elif not above.endswith(":/") and (around := table_around(above or "/")):
        yield f"the folder is in that of the Delta table {around}, whose rows are not those of its files"


def _in_place(plan: MigrationPlan, target: Target) -> Iterator[str]:
    """Messages about what a conversion in place can't do."""
    if plan.source.rstrip("/") != plan.location.rstrip("/"):
        yield f"in-place makes {plan.source} itself a table: name that folder, or the dataset whose table it will be"
    if plan.format != "parquet":
        yield f"in-place takes Parquet; copy takes files of the format {plan.format}"
    yield from in_place_problems(
        plan.groups, plan.folders, plan.table.dataset, is_declared=target.dataset is not None
    )  # fmt: skip


def _converted(base: _Base, listing: Listing, folders: SourceFolders) -> MigrationPlan:
    """The plan for a folder that is a table already: nothing is taken, and files that no commit names are refused."""
    state, newest = base.state, base.done.newest
    assert state is not None  # noqa: S101  the caller has looked
    if newest is None or newest.mode != "in-place" or newest.source != base.source:
        refused = Selection(files=(), unchanged=0, problems=(_IS_TABLE,))
        return _plan(base, listing, folders, refused)
    replayed = replay(state.location, state.version)
    known = frozenset[str]() if replayed is None else replayed.mentioned
    new = [file.path for file in listing.files if file.path not in known and file.size]
    rows = {file.path: file.rows for file in newest.files}
    unknown = [path for path in new if rows.get(path) != 0]  # the conversion leaves out files without rows
    problems = tuple(
        f"{path}: no commit names it; copy takes new files, from a folder that is no table" for path in unknown
    )
    selection = Selection(files=(), unchanged=len(listing.files) - len(unknown), problems=problems)
    plan = _plan(base, replace(listing, problems=()), folders, selection)
    return replace(plan, unverified=_unverified(base))


@dataclass(frozen=True, kw_only=True)
class _Base:
    """What a plan begins with: both sides, the table's dataset if it is known, and what earlier migrations took."""

    source: str
    target: Target
    known: Dataset | None
    state: TableState | None
    done: Taken
    mode: Mode


def _plan(
    base: _Base, listing: Listing, folders: SourceFolders, chosen: Selection, *, may_be_empty: bool = False
) -> MigrationPlan:  # fmt: skip
    declared = base.known.schema if base.known is not None else base.target.schema
    in_files = _in_files(declared, folders.names)
    contents, unreadable = _contents(base.source, chosen.files, listing.format, in_files, folders.names)
    by_path, stored = without_folder_columns(contents, folders)
    empty = () if listing.files or may_be_empty else (f"there are no files of the format {listing.format}",)
    problems = (*_of_source(listing, base), *empty, *folders.problems, *chosen.problems, *unreadable)
    columns = folders.columns(declared, stored)
    dataset, further = _dataset(base, files=by_path, columns=columns, problems=problems)
    grouped, misfits = groups(by_path, columns, dataset)
    wrong = [problem for at, column in enumerate(columns) for problem in value_problems(column, folders.of(at))]
    return MigrationPlan(
        source=base.source, table=TableRef(dataset, base.target.location), mode=base.mode, format=listing.format,
        version=None if base.state is None else base.state.version, unchanged=chosen.unchanged, groups=grouped,
        files=() if wrong else tuple(_planned(chosen.files, contents, columns, folders)), folders=columns,
        taken=base.done, passed_over=listing.passed_over, changed=chosen.changed, vanished=chosen.vanished,
        differences=differences(by_path), problems=(*problems, *further, *misfits, *wrong), replaces=chosen.replaces,
        within=chosen.within,
    )  # fmt: skip


def _unverified(base: _Base) -> MigrationPlan | None:
    """The plan of the newest record, whose commit is not verified yet. If there is none, None."""
    record = base.done.newest
    if record is None or base.done.unverified is None:
        return None
    listing = list_source(record.source)
    before = {file.path: file for file in record.files}
    files = tuple(file for file in listing.files if file.path in before and before[file.path].is_same(file))
    lost = sorted(before.keys() - {file.path for file in files})
    version = base.done.unverified
    problems = tuple(
        f"{path}: it changed or vanished before its rows in version {version} were verified" for path in lost
    )
    if lost and version:
        way = f"pipeline restore {base.target.name} --version {version - 1} removes those rows, to take the files again"
        problems = (*problems, way)
    folders = source_folders([f.path for f in files], () if base.known is None else base.known.partition_by)
    chosen = Selection(files=files, unchanged=0, problems=problems)
    own = replace(base, source=record.source, mode="in-place" if record.mode == "in-place" else "copy")
    # A commit that only replaced rows of files that had vanished has no files.
    return _plan(own, replace(listing, files=files, problems=()), folders, chosen, may_be_empty=True)


def _state(target: Target) -> TableState | None:
    state = state_from_log(target.location)
    if state is None and latest_version(target.location) is not None:
        reason = "its log has a form that only Spark reads"
        raise StorageError(dataset=target.name, location=target.location, reason=reason)
    return state


def _of_source(listing: Listing, base: _Base) -> Iterator[str]:
    yield from listing.problems
    if base.mode == "copy" and listing.is_table:
        yield _IS_TABLE
    if base.known is not None and base.known.keeps_state:
        yield (
            "the dataset is a History or a changelog with tombstones, which is computed from changes; write the rows "
            "by an asset or a sink"
        )


def _in_files(schema: StructType | None, folders: Iterable[str]) -> StructType | None:
    """The declared columns that are not in the folders."""
    if schema is None:
        return None
    elsewhere = {casefolded(name) for name in folders}
    return StructType([field for field in schema.fields if casefolded(field.name) not in elsewhere])


def _contents(
    source: str, files: Sequence[DataFile], form: Format, schema: StructType | None, of_folders: Iterable[str]
) -> tuple[dict[str, Contents], list[str]]:
    """The contents of each file that can be read, and messages about the others."""
    if form != "parquet" and schema is None:
        return {}, [f"files of the format {form} have no types: migrate to a declared dataset, or give --schema"]
    declared, repeated = schema or StructType(), frozenset(map(casefolded, of_folders))
    system, top = file_system(source)

    def read(file: DataFile) -> Contents | str:
        path = f"{top.rstrip('/')}/{file.path}"
        try:
            if form == "parquet":
                return parquet_contents(system, path, repeated)
            return csv_contents(system, path, declared) if form == "csv" else ndjson_contents(declared)
        except StoreError:
            raise
        except _UNREADABLE as error:
            return f"{file.path}: {str(error).splitlines()[0] if str(error) else type(error).__name__}"

    results = dict(zip((file.path for file in files), side_by_side(read, files, source), strict=True))
    contents = {path: result for path, result in results.items() if isinstance(result, Contents)}
    return contents, [result for result in results.values() if isinstance(result, str)]


def _dataset(
    base: _Base, *, files: Mapping[str, Columns], columns: Sequence[FolderColumn], problems: Sequence[str]
) -> tuple[Dataset, tuple[str, ...]]:
    """The dataset of the table, and messages about the files' columns."""
    known, target = base.known, base.target
    declared = known.schema if known is not None else target.schema
    if known is not None:
        return known, ()
    schema, merged = (declared, ()) if declared is not None else merged_schema(files)
    own = {casefolded(field.name): field.name for field in schema.fields}
    if declared is None:
        inside = {casefolded(name) for name in own.values()}
        further = [StructField(c.name, c.data_type) for c in columns if casefolded(c.name) not in inside]
        schema = StructType([*schema.fields, *further])
        own |= {casefolded(field.name): field.name for field in further}
    partition_by = tuple(own[casefolded(c.name)] for c in columns if casefolded(c.name) in own)
    try:
        dataset = Dataset(
            name=target.name, schema=schema, partition_by=partition_by, write=Append(), change_feed=False
        )  # fmt: skip
    except DeclarationError as error:
        refused = (*problems, *merged, *error.problems)
        raise MigrationRefusedError(source=base.source, location=target.location, problems=refused) from error
    return dataset, merged


def _planned(
    files: Iterable[DataFile], contents: Mapping[str, Contents], columns: Sequence[FolderColumn], folders: SourceFolders
) -> Iterator[PlannedFile]:
    """The files that can be read and have the expected folders, with their typed values."""
    for file in files:
        if file.path not in contents or file.path not in folders.texts:
            continue
        texts = zip(folders.texts[file.path], columns, strict=True)
        yield PlannedFile(
            path=file.path, size=file.size, changed_nanoseconds=file.changed_nanoseconds,
            rows=contents[file.path].rows,
            values=tuple(None if text is None else parsed(text, column.data_type) for text, column in texts),
        )  # fmt: skip
