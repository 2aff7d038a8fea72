"""The code graph of a Python source tree: files become modules, and those definitions, imports, calls, nodes and edges.

Plain functions from frame to frame come first, thin assets after them. The declarations belong to `datasets`, finding
and reading files to `tree`. Each asset replaces only the rows of changed files.
"""

# Without `annotations` from `__future__`: Dagster compares the annotation of `context` with types and refuses a text.

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from dagster import AssetExecutionContext, ConfigurableResource
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own name for it
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from pipeline.assets.codegraph.datasets import (
    CALLS,
    DEFINITIONS,
    EDGES,
    IMPORTS,
    MODULES,
    NODES,
    SOURCE_FILES,
    datasets,
)
from pipeline.assets.codegraph.errors import SourceTreeError
from pipeline.assets.codegraph.tree import STALE, base_of, installed_package, parser_of, snapshot
from pipeline.delta.read.changes import CHANGE_TYPE, DELETE, TOUCHED_VALUES
from pipeline.delta.sql.slices import Slice, of_rows
from pipeline.orchestration import Changes, DeltaSparkResource, Touched, dataset_asset

__all__ = ["SourceTree", "assets", "datasets"]

FILES_PARSED = "codegraph/files_parsed"
# The variable that names the folder.
SOURCE_TREE = "CODEGRAPH_SOURCE_TREE"
_STALE_SHOWN = 5
# A table has a file for so many parsed files, up to a bound. If a file of the tree changes, the file of the table that
# has its rows is rewritten.
_PARSED_FOR_A_FILE, _MOST_FILES = 250, 32


class SourceTree(ConfigurableResource):  # type: ignore[type-arg]
    """The folder of Python files, which Spark's Python workers read too. If None, the installed `dagster`."""

    folder: str | None = None

    @classmethod
    def at(cls, folder: Path | None) -> "SourceTree":
        """The tree of that folder."""
        return cls(folder=None if folder is None else str(folder))

    @classmethod
    def in_environment(cls, environ: Mapping[str, str], project: Path) -> "SourceTree":
        """The tree that `CODEGRAPH_SOURCE_TREE` names, a path that may be relative to the project or begin with `~`.

        It must be the same wherever Spark's Python workers run.
        """
        folder = environ.get(SOURCE_TREE)
        return cls.at((project / Path(folder).expanduser()).resolve() if folder else None)

    @property
    def path(self) -> Path:
        """The folder.

        Raises:
            SourceTreeError: no folder is set, and the package is not installed.
        """
        return installed_package() if self.folder is None else Path(self.folder)


def files_of_tree(session: SparkSession, folder: Path) -> DataFrame:
    """The Python files that exist now, one row each. This process reads them, and Spark does not.

    Raises:
        SourceTreeError: as `snapshot` does.
    """
    import pyarrow as pa

    schema = SOURCE_FILES.schema
    rows = [asdict(file) for file in snapshot(folder)]
    return session.createDataFrame(pa.Table.from_pylist(rows, schema=to_arrow_schema(schema)), schema)


def modules_of_files(files: DataFrame, folder: Path) -> tuple[DataFrame, int]:
    """The files parsed by Spark's Python workers, each once, one row each, and the number of parsed files.

    Raises:
        SourceTreeError: files have changed since the snapshot.
    """
    form = StructType([StructField(field.name, field.dataType) for field in MODULES.schema.fields])
    form.add(STALE, StringType())
    # An explicit number: by default Spark would put all rows into one task, since they are few and short.
    tasks = int(files.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    parse = parser_of(str(base_of(folder)), to_arrow_schema(form))
    # The checkpoint lives until nothing refers to it.
    parsed = files.select("path", "sha256").repartition(tasks).mapInArrow(parse, form).localCheckpoint(eager=False)
    # NULL if the file is unchanged since the snapshot; `collect_list` leaves NULL out.
    stale = F.collect_list(F.concat(F.col("path"), F.lit(": "), F.col(STALE)))
    summary = parsed.agg(F.count("*").alias("files"), F.sort_array(stale).alias("stale")).collect()[0]
    if summary["stale"]:
        problem = f"{len(summary['stale'])} files are not those of the snapshot"
        raise SourceTreeError(folder=str(folder), problem=problem, paths=tuple(summary["stale"][:_STALE_SHOWN]))
    return parsed.drop(STALE), summary["files"]


def by_folder(rows: DataFrame, files: int) -> DataFrame:
    """The rows in so many tasks, 32 at most, each with all rows of its folders of the tree.

    Each task writes one file of the table. Changes are often in one folder, so they rewrite few files.
    """
    return rows.repartition(max(1, min(files, _MOST_FILES)), F.regexp_replace("path", "[^/]*$", ""))


def exploded(modules: DataFrame, rows: Column) -> DataFrame:
    """The rows in an array column of modules, with their path."""
    return modules.select("path", F.explode(rows).alias("row")).select("path", "row.*")


def nodes_of(modules: DataFrame) -> DataFrame:
    """One row for each module, files with a problem included, and one row for each definition."""
    nowhere = F.lit(None).cast("int")
    module = _node(F.lit(0), F.col("module"), F.lit("module"), nowhere, nowhere)
    columns = ("number", "qualified_name", "kind", "line", "end_line")
    definitions = F.transform("definitions", lambda row: _node(*(row[name] for name in columns)))
    return exploded(modules, F.concat(F.array(module), definitions))


def _node(number: Column, qualified_name: Column, kind: Column, line: Column, end_line: Column) -> Column:
    return F.struct(
        number.alias("number"), qualified_name.alias("qualified_name"), kind.alias("kind"), line.alias("line"),
        end_line.alias("end_line"),
    )  # fmt: skip


def edges_of(modules: DataFrame) -> DataFrame:
    """One row for each definition, each import of a known module, and each call whose target the file determines."""
    contains = F.transform("definitions", lambda row: _edge("contains", row, row["parent"], row["qualified_name"]))
    in_known_modules = F.filter("imports", lambda row: row["module"].isNotNull())
    imports = F.transform(in_known_modules, lambda row: _edge("imports", row, row["importer"], _imported(row)))
    resolved = F.filter("calls", lambda row: row["target"].isNotNull())
    calls = F.transform(resolved, lambda row: _edge("calls", row, row["caller"], row["target"]))
    return exploded(modules, F.concat(contains, imports, calls))


def _edge(kind: str, row: Column, source: Column, target: Column) -> Column:
    return F.struct(
        F.lit(kind).alias("kind"), row["number"].alias("number"), source.alias("source"), target.alias("target"),
        row["line"].alias("line"),
    )  # fmt: skip


def _imported(row: Column) -> Column:
    """The imported module, or the imported name in it."""
    is_module = row["name"].isNull() | (row["name"] == "*")
    return F.when(is_module, row["module"]).otherwise(F.concat_ws(".", row["module"], row["name"]))


def changed_files(changes: Changes) -> tuple[Slice | None, DataFrame]:
    """The changed files and their current rows. The source must have one row for each file.

    A file whose row is the same as before counts as unchanged. If every file may have changed, or if too many have
    changed to be listed, the slice is None and all rows are returned. Up to one Spark job.
    """
    within = None if changes.is_full else of_rows(changes.frame, ("path",), TOUCHED_VALUES)
    if within is None:
        return None, changes.whole
    return within, changes.frame.filter(F.col(CHANGE_TYPE) != DELETE)


def replaced(modules: Changes, compute: Callable[[DataFrame], DataFrame]) -> Touched:
    """The rows computed from changed modules, as a replacement of those modules' rows."""
    within, rows = changed_files(modules)
    frame = compute(rows)
    return Touched(by_folder(frame, len(rows.inputFiles())) if within is None else frame, within)


@dataset_asset(SOURCE_FILES)
def source_files(spark: DeltaSparkResource, source_tree: SourceTree) -> DataFrame:
    """The current files of the tree."""
    return files_of_tree(spark.spark_session, source_tree.path)


@dataset_asset(MODULES)
def modules(context: AssetExecutionContext, source_files: Changes, source_tree: SourceTree) -> Touched:
    """The changed files, parsed."""
    within, rows = changed_files(source_files)
    if within is not None and not within.boxes:
        context.add_output_metadata({FILES_PARSED: 0})
        return Touched(rows.sparkSession.createDataFrame([], MODULES.schema), within)
    frame, parsed = modules_of_files(rows, source_tree.path)
    context.add_output_metadata({FILES_PARSED: parsed})
    return Touched(by_folder(frame, parsed // _PARSED_FOR_A_FILE) if within is None else frame, within)


@dataset_asset(DEFINITIONS)
def definitions(modules: Changes) -> Touched:
    """The definitions in changed modules."""
    return replaced(modules, lambda rows: exploded(rows, F.col("definitions")))


@dataset_asset(IMPORTS)
def imports(modules: Changes) -> Touched:
    """The imports in changed modules."""
    return replaced(modules, lambda rows: exploded(rows, F.col("imports")))


@dataset_asset(CALLS)
def calls(modules: Changes) -> Touched:
    """The calls in changed modules."""
    return replaced(modules, lambda rows: exploded(rows, F.col("calls")))


@dataset_asset(NODES)
def nodes(modules: Changes) -> Touched:
    """The nodes of changed modules."""
    return replaced(modules, nodes_of)


@dataset_asset(EDGES)
def edges(modules: Changes) -> Touched:
    """The edges of changed modules."""
    return replaced(modules, edges_of)


assets = [source_files, modules, definitions, imports, calls, nodes, edges]
