"""The code graph of a Python source tree: files become modules, and those definitions, imports, calls, nodes and edges.

Plain functions from frame to frame above, thin assets below. The declarations are `datasets`'s, and how files
are found and read is `tree`'s. Each asset replaces the rows of the files that have changed, and no
others.
"""

# Without `annotations` from `__future__`: Dagster compares the annotation of `context` with types and refuses a text.

from collections.abc import Callable
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
from pipeline.assets.codegraph.tree import STALE, base_of, installed_package, parser_of, snapshot
from pipeline.delta.read.changes import CHANGE_TYPE, DELETE, TOUCHED_VALUES
from pipeline.delta.sql.slices import Slice, of_rows
from pipeline.errors import SourceTreeError
from pipeline.orchestration import Changes, DeltaSparkResource, Touched, dataset_asset

__all__ = ["SourceTree", "assets", "datasets"]

FILES_PARSED = "codegraph/files_parsed"
_STALE_SHOWN = 5


class SourceTree(ConfigurableResource):  # type: ignore[type-arg]
    """The folder whose Python files are read, also by Spark's Python workers; the installed `dagster` where None."""

    folder: str | None = None

    @classmethod
    def at(cls, folder: Path | None) -> "SourceTree":
        """The tree of that folder."""
        return cls(folder=None if folder is None else str(folder))

    @property
    def path(self) -> Path:
        """The folder.

        Raises:
            SourceTreeError: none is named, and the package is not installed.
        """
        return installed_package() if self.folder is None else Path(self.folder)


def files_of_tree(session: SparkSession, folder: Path) -> DataFrame:
    """The Python files that are there now; one row each. They are read here, not by Spark.

    Raises:
        SourceTreeError: as `snapshot` does.
    """
    import pyarrow as pa

    schema = SOURCE_FILES.schema
    rows = [asdict(file) for file in snapshot(folder)]
    return session.createDataFrame(pa.Table.from_pylist(rows, schema=to_arrow_schema(schema)), schema)


def modules_of_files(files: DataFrame, folder: Path) -> tuple[DataFrame, int]:
    """The files parsed by Spark's Python workers, each once, now; one row each. And the number of files parsed.

    Raises:
        SourceTreeError: files are not what they were when the snapshot was taken.
    """
    form = StructType([StructField(field.name, field.dataType) for field in MODULES.schema.fields])
    form.add(STALE, StringType())
    # An explicit number: by itself Spark would put all into one task, since their rows are few and short.
    tasks = int(files.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    parse = parser_of(str(base_of(folder)), to_arrow_schema(form))
    # Held until nothing refers to it any more.
    parsed = files.select("path", "sha256").repartition(tasks).mapInArrow(parse, form).localCheckpoint(eager=False)
    # NULL where the file is that of the snapshot, and then not among the collected.
    stale = F.collect_list(F.concat(F.col("path"), F.lit(": "), F.col(STALE)))
    found = parsed.agg(F.count("*").alias("files"), F.sort_array(stale).alias("stale")).collect()[0]
    if found["stale"]:
        problem = f"{len(found['stale'])} files are not those of the snapshot"
        raise SourceTreeError(folder=str(folder), problem=problem, paths=tuple(found["stale"][:_STALE_SHOWN]))
    return parsed.drop(STALE), found["files"]


def exploded(modules: DataFrame, rows: Column) -> DataFrame:
    """The rows that modules hold in an array, with their path."""
    return modules.select("path", F.explode(rows).alias("row")).select("path", "row.*")


def nodes_of(modules: DataFrame) -> DataFrame:
    """One row a module, files with a problem included, and one a definition."""
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
    """One row a definition, an import of a known module, and a call of which the file says what is called."""
    contains = F.transform("definitions", lambda row: _edge("contains", row, row["parent"], row["qualified_name"]))
    known = F.filter("imports", lambda row: row["module"].isNotNull())
    imports = F.transform(known, lambda row: _edge("imports", row, row["importer"], _imported(row)))
    resolved = F.filter("calls", lambda row: row["target"].isNotNull())
    calls = F.transform(resolved, lambda row: _edge("calls", row, row["caller"], row["target"]))
    return exploded(modules, F.concat(contains, imports, calls))


def _edge(kind: str, row: Column, source: Column, target: Column) -> Column:
    return F.struct(
        F.lit(kind).alias("kind"), row["number"].alias("number"), source.alias("source"), target.alias("target"),
        row["line"].alias("line"),
    )  # fmt: skip


def _imported(row: Column) -> Column:
    """The module, or the name in it."""
    is_whole = row["name"].isNull() | (row["name"] == "*")
    return F.when(is_whole, row["module"]).otherwise(F.concat_ws(".", row["module"], row["name"]))


def changed_files(changes: Changes) -> tuple[Slice | None, DataFrame]:
    """The files that have changed since, and their rows as they are now; of a source that has a row each.

    A file that is again as it was has not changed. The slice is None where that is every file, or too many to be named.
    Up to one Spark job.
    """
    within = None if changes.is_full else of_rows(changes.frame, ("path",), TOUCHED_VALUES)
    if within is None:
        return None, changes.whole
    return within, changes.frame.filter(F.col(CHANGE_TYPE) != DELETE)


def replaced(modules: Changes, compute: Callable[[DataFrame], DataFrame]) -> Touched:
    """What follows from the modules that have changed, in the place of what followed from them before."""
    within, rows = changed_files(modules)
    return Touched(compute(rows), within)


@dataset_asset(SOURCE_FILES)
def source_files(spark: DeltaSparkResource, source_tree: SourceTree) -> DataFrame:
    """The files of the tree as they are now."""
    return files_of_tree(spark.spark_session, source_tree.path)


@dataset_asset(MODULES)
def modules(context: AssetExecutionContext, source_files: Changes, source_tree: SourceTree) -> Touched:
    """The files that have changed, parsed."""
    within, rows = changed_files(source_files)
    if within is not None and not within.boxes:
        context.add_output_metadata({FILES_PARSED: 0})
        return Touched(rows.sparkSession.createDataFrame([], MODULES.schema), within)
    frame, parsed = modules_of_files(rows, source_tree.path)
    context.add_output_metadata({FILES_PARSED: parsed})
    return Touched(frame, within)


@dataset_asset(DEFINITIONS)
def definitions(modules: Changes) -> Touched:
    """The definitions of the modules that have changed."""
    return replaced(modules, lambda rows: exploded(rows, F.col("definitions")))


@dataset_asset(IMPORTS)
def imports(modules: Changes) -> Touched:
    """The imports of the modules that have changed."""
    return replaced(modules, lambda rows: exploded(rows, F.col("imports")))


@dataset_asset(CALLS)
def calls(modules: Changes) -> Touched:
    """The calls of the modules that have changed."""
    return replaced(modules, lambda rows: exploded(rows, F.col("calls")))


@dataset_asset(NODES)
def nodes(modules: Changes) -> Touched:
    """The nodes of the modules that have changed."""
    return replaced(modules, nodes_of)


@dataset_asset(EDGES)
def edges(modules: Changes) -> Touched:
    """The edges of the modules that have changed."""
    return replaced(modules, edges_of)


assets = [source_files, modules, definitions, imports, calls, nodes, edges]
