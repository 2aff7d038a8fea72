"""Declarations of the code graph's datasets: the files of a Python source tree and what is computed from them.

Here belong declarations only. Dagster is not imported, since the command line reads this module too.

Except in `source_files`, every row follows from one file's path and content alone, so only a changed file's rows are
replaced. Names are dotted and begin with the module's.
"""

from __future__ import annotations

from pyspark.sql.types import ArrayType, DataType, IntegerType, LongType, StringType, StructField, StructType

from pipeline.dataset import Check, Dataset, Merge, Replace

GROUP = "codegraph"


def _column(name: str, data_type: DataType, comment: str, *, nullable: bool = False) -> StructField:
    return StructField(name, data_type, nullable, {"comment": comment})


def _nested(fields: list[StructField]) -> ArrayType:
    """The rows of one file as an array. Delta has no NOT NULL inside an array."""
    return ArrayType(StructType([StructField(f.name, f.dataType, True, f.metadata) for f in fields]))


PATH = _column("path", StringType(), "file, with /, from the folder above the topmost package on")
SHA256 = _column("sha256", StringType(), "of the content, in hex")
LINE = _column("line", IntegerType(), "from 1")

DEFINITION = [
    _column("number", IntegerType(), "place among the file's definitions, from 1"),
    _column("qualified_name", StringType(), "module and Python's own __qualname__; overloads share one"),
    _column("kind", StringType(), "function, async function or class"),
    _column("parent", StringType(), "the definition or module in which it stands"),
    LINE,
    _column("end_line", IntegerType(), "of its last line"),
    _column("decorators", ArrayType(StringType()), "as written, without arguments"),
    _column("docstring", StringType(), "first line; NULL where there is none", nullable=True),
]
IMPORT = [
    _column("number", IntegerType(), "place among the file's imports, from 1; one a name"),
    _column("importer", StringType(), "the definition or module in which it stands"),
    _column("module", StringType(), "absolute; NULL where dots lead out of the topmost package", nullable=True),
    _column("name", StringType(), "what is taken from it; NULL for the module itself, * for all", nullable=True),
    _column("alias", StringType(), "the name after `as`", nullable=True),
    _column("level", IntegerType(), "leading dots"),
    LINE,
]
CALL = [
    _column("number", IntegerType(), "place among the file's calls, from 1"),
    _column("caller", StringType(), "the definition or module in which it stands"),
    _column("callee", StringType(), "as written, without arguments and indexes"),
    _column("target", StringType(), "what the file itself says that is; NULL where only a run can tell", nullable=True),
    LINE,
]

SOURCE_FILES = Dataset(
    name="source_files",
    group=GROUP,
    description="The Python files of a source tree, one row each, as of the newest snapshot.",
    keys=("path",),
    # An unchanged file is not updated, so the change feed is the difference of two snapshots.
    write=Merge(delete_missing=True, update_when="source.sha256 <> target.sha256"),
    code_version="1",
    schema=StructType(
        [
            PATH,
            SHA256,
            _column("bytes", LongType(), "size of the file"),
            _column("lines", IntegerType(), "the last one counts without a line end too"),
        ]
    ),
    checks=(Check("sha256_is_hex", "sha256 RLIKE '^[0-9a-f]{64}$'"),),
)


def _of_changes(name: str, description: str, source: str, keys: tuple[str, ...], columns: list[StructField]) -> Dataset:
    """A dataset computed from changes: the rows of a changed file replace that file's old rows."""
    return Dataset(
        name=name,
        group=GROUP,
        description=description,
        keys=keys,
        reads=(source,),
        reads_changes_of=(source,),
        write=Replace(),
        code_version="1",
        starts_on_change=True,
        schema=StructType(columns),
    )


MODULES = _of_changes(
    "modules",
    "The files parsed, one row each, with all that is told of them.",
    "source_files",
    ("path",),
    [
        PATH,
        _column("module", StringType(), "dotted name"),
        SHA256,
        _column("problem", StringType(), "why it can't be parsed; NULL where it is", nullable=True),
        _column("docstring", StringType(), "first line; NULL where there is none", nullable=True),
        _column("definitions", _nested(DEFINITION), "rows of definitions"),
        _column("imports", _nested(IMPORT), "rows of imports"),
        _column("calls", _nested(CALL), "rows of calls"),
    ],
)
DEFINITIONS = _of_changes(
    "definitions", "Functions and classes, one row each.", "modules", ("path", "number"), [PATH, *DEFINITION]
)
IMPORTS = _of_changes("imports", "Imports, one row a name.", "modules", ("path", "number"), [PATH, *IMPORT])
CALLS = _of_changes("calls", "Calls, one row each.", "modules", ("path", "number"), [PATH, *CALL])
NODES = _of_changes(
    "nodes",
    "The graph's nodes: modules and definitions.",
    "modules",
    ("path", "number"),
    [
        PATH,
        _column("number", IntegerType(), "0 for the module, else the definition's"),
        _column("qualified_name", StringType(), "what edges call it"),
        _column("kind", StringType(), "module, or the definition's"),
        _column("line", IntegerType(), "of a definition", nullable=True),
        _column("end_line", IntegerType(), "of a definition", nullable=True),
    ],
)
EDGES = _of_changes(
    "edges",
    "The graph's edges, one row for each place in a file that makes one.",
    "modules",
    ("path", "kind", "number"),
    [
        PATH,
        _column("kind", StringType(), "contains, imports or calls"),
        _column("number", IntegerType(), "of the row in definitions, imports or calls"),
        _column("source", StringType(), "a node of the same file"),
        _column(
            "target", StringType(), "what is meant, in the tree or not; a call that only a run can tell has no edge"
        ),
        LINE,
    ],
)

datasets = (SOURCE_FILES, MODULES, DEFINITIONS, IMPORTS, CALLS, NODES, EDGES)
