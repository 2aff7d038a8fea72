"""The code graph of a Python source tree: files become modules, those definitions, imports and calls, those a graph.

Plain functions from frame to frame above, thin assets below. The declarations are `codegraph_datasets`'s, and how files
are found and read is `codegraph_tree`'s. Each asset replaces the rows of the files that have changed, and no others.
"""

# Without `annotations` from `__future__`: Dagster compares the annotation of `context` with types and refuses a text.

from dataclasses import asdict
from pathlib import Path

from dagster import AssetExecutionContext, ConfigurableResource
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own name for it
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from pipeline.assets.codegraph_datasets import (
    CALLS,
    DEFINITIONS,
    EDGES,
    IMPORTS,
    MODULES,
    NODES,
    SOURCE_FILES,
    datasets,
)
from pipeline.assets.codegraph_tree import STALE, base_of, installed_package, parser_of, snapshot
from pipeline.dataset import Dataset
from pipeline.delta.changes import CHANGE_TYPE, DELETE, Changes
from pipeline.delta.consume import Touched
from pipeline.delta.slices import Slice, united
from pipeline.errors import SourceTreeError
from pipeline.orchestration import DeltaSparkResource, dataset_asset

__all__ = ["SourceTree", "assets", "datasets"]

FILES_PARSED = "codegraph/files_parsed"
_STALE_SHOWN = 5


class SourceTree(ConfigurableResource):  # type: ignore[type-arg]
    """The folder whose Python files are read, also by Spark's Python workers; the installed `dagster` where None."""

    folder: str | None = None

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
    spread = files.select("path", "sha256").repartition(
        int(files.sparkSession.conf.get("spark.sql.shuffle.partitions"))
    )
    # Held until nothing refers to it any more.
    parsed = spread.mapInArrow(parser_of(str(base_of(folder)), to_arrow_schema(form)), form).localCheckpoint(
        eager=False
    )
    is_stale = F.col(STALE).isNotNull()
    found = parsed.agg(
        F.count("*").alias("files"),
        F.count_if(is_stale).alias("stale"),
        F.slice(
            F.sort_array(F.collect_list(F.when(is_stale, F.concat_ws(": ", "path", STALE)))), 1, _STALE_SHOWN
        ).alias("shown"),
    ).collect()[0]
    if found["stale"]:
        problem = f"{found['stale']} files are not those of the snapshot"
        raise SourceTreeError(folder=str(folder), problem=problem, paths=tuple(found["shown"]))
    return parsed.drop(STALE), found["files"]


def exploded(modules: DataFrame, column: str) -> DataFrame:
    """The rows that the modules hold in a nested column, with their path."""
    return modules.select("path", F.explode(column).alias("row")).select("path", "row.*")


def nodes_of(modules: DataFrame, definitions: DataFrame) -> DataFrame:
    """One row a module, files with a problem included, and one a definition."""
    of_modules = modules.select(
        "path", F.lit(0).alias("number"), F.col("module").alias("qualified_name"), F.lit("module").alias("kind")
    )
    of_definitions = definitions.select("path", "number", "qualified_name", "kind", "line", "end_line")
    return of_definitions.unionByName(of_modules, allowMissingColumns=True)


def edges_of(definitions: DataFrame, imports: DataFrame, calls: DataFrame) -> DataFrame:
    """One row a definition, an import of a known module, and a call of which the file says what is called."""
    is_whole = F.col("name").isNull() | (F.col("name") == "*")
    imported = F.when(is_whole, F.col("module")).otherwise(F.concat_ws(".", "module", "name"))
    kinds = {
        "contains": definitions.withColumns({"source": F.col("parent"), "target": F.col("qualified_name")}),
        "imports": imports.filter(F.col("module").isNotNull()).withColumns(
            {"source": F.col("importer"), "target": imported}
        ),
        "calls": calls.filter(F.col("target").isNotNull()).withColumns({"source": F.col("caller")}),
    }
    contains, *others = (
        frame.select("path", F.lit(kind).alias("kind"), "number", "source", "target", "line")
        for kind, frame in kinds.items()
    )
    for frame in others:
        contains = contains.unionByName(frame)
    return contains


def touched_rows(dataset: Dataset, *sources: Changes) -> tuple[Slice | None, list[DataFrame]]:
    """The files whose rows have changed in any of the sources, and all rows that each source has of those files.

    The slice is None where that is every file, or too many to be named.
    """
    within = united(*(changes.touched("path") for changes in sources))
    rows = [changes.whole for changes in sources]
    return within, rows if within is None else [frame.filter(within.predicate(dataset)) for frame in rows]


def _of_modules(modules: Changes, column: str) -> Touched:
    within = modules.touched("path")
    rows = modules.whole if within is None else still_there(modules)
    return Touched(exploded(rows, column), within)


def still_there(changes: Changes) -> DataFrame:
    """The rows that have changed, as they are now, without those that are gone."""
    return changes.frame.filter(F.col(CHANGE_TYPE) != DELETE)


@dataset_asset(SOURCE_FILES)
def source_files(spark: DeltaSparkResource, source_tree: SourceTree) -> DataFrame:
    """The files of the tree as they are now."""
    return files_of_tree(spark.spark_session, source_tree.path)


@dataset_asset(MODULES)
def modules(context: AssetExecutionContext, source_files: Changes, source_tree: SourceTree) -> Touched:
    """The files that have changed, parsed."""
    within = source_files.touched("path")
    rows = source_files.whole if within is None else still_there(source_files)
    frame, parsed = modules_of_files(rows, source_tree.path)
    context.add_output_metadata({FILES_PARSED: parsed})
    return Touched(frame, within)


@dataset_asset(DEFINITIONS)
def definitions(modules: Changes) -> Touched:
    """The definitions of the modules that have changed."""
    return _of_modules(modules, "definitions")


@dataset_asset(IMPORTS)
def imports(modules: Changes) -> Touched:
    """The imports of the modules that have changed."""
    return _of_modules(modules, "imports")


@dataset_asset(CALLS)
def calls(modules: Changes) -> Touched:
    """The calls of the modules that have changed."""
    return _of_modules(modules, "calls")


@dataset_asset(NODES)
def nodes(modules: Changes, definitions: Changes) -> Touched:
    """The nodes of the files whose modules or definitions have changed."""
    within, rows = touched_rows(NODES, modules, definitions)
    return Touched(nodes_of(*rows), within)


@dataset_asset(EDGES)
def edges(definitions: Changes, imports: Changes, calls: Changes) -> Touched:
    """The edges of the files whose definitions, imports or calls have changed."""
    within, rows = touched_rows(EDGES, definitions, imports, calls)
    return Touched(edges_of(*rows), within)


assets = [source_files, modules, definitions, imports, calls, nodes, edges]
