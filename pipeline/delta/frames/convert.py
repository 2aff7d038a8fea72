"""Frames of every kind, from an asset into Spark and from Spark into an asset.

Here belong the kinds of frames and their conversion to Arrow and back. `arrow` checks that a frame fits its
declaration, and `staging` passes a frame between this process and Spark.

pandas, polars and pyarrow are imported only when such a frame exists or is requested.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, IntegralType, MapType, StructType

from pipeline.dataset import Dataset
from pipeline.dataset.schema import casefolded
from pipeline.delta.frames.arrow import LEFT_OUT, fitting
from pipeline.delta.frames.arrow_types import arrow_type, holds_variant, maps_as_lists, spark_schema
from pipeline.delta.frames.objects import entries_of_dicts, refuse_loss
from pipeline.delta.frames.staging import Staging
from pipeline.delta.spark.doors import door_of_block, making_frame, through_door
from pipeline.errors import FrameKindError, FrameMismatchError, FrameTooLargeError

SPARK = "pyspark.sql.DataFrame"
PANDAS = "pandas.DataFrame"
POLARS = "polars.DataFrame"
POLARS_LAZY = "polars.LazyFrame"
ARROW = "pyarrow.Table"
ARROW_READER = "pyarrow.RecordBatchReader"
LOCAL_KINDS = (PANDAS, POLARS, POLARS_LAZY, ARROW, ARROW_READER)
KINDS = (SPARK, *LOCAL_KINDS)

# Up to here a float holds integers exactly. Above, the frame may already have lost a digit.
_EXACT_FLOAT = 1 << 53
_UNNAMED = "the frame's index has no name and is not a column: name it (rename_axis) or reset the index"


def kind_of(cls: object) -> str | None:
    """The kind of frame that a class is. For any other type, None. Imports no module."""
    if not isinstance(cls, type):
        return None
    if issubclass(cls, DataFrame):
        return SPARK
    for kind in LOCAL_KINDS:
        library, _, name = kind.partition(".")
        # A class of the library exists only if the library is imported.
        if library in sys.modules and issubclass(cls, getattr(sys.modules[library], name, ())):
            return kind
    return None


# --- from an asset ----------------------------------------------------------------------------------------------------


@door_of_block
@contextmanager
def to_spark(
    obj: object, dataset: Dataset, open_session: Callable[[], SparkSession], staging: str
) -> Iterator[DataFrame]:
    """The object as a Spark frame, valid until the block ends. A Spark frame is returned unchanged.

    A local frame is converted and staged before the session is opened, so that a wrong one is refused without Spark.
    A missing value of pandas becomes NULL, and so does NaN in a NumPy column. NaN in an Arrow-backed column stays NaN.

    Args:
        staging: the URI of the staging folder for Spark. A folder of the frame is created in it and removed again.

    Raises:
        FrameMismatchError: the object is not a frame, or does not fit the declaration without loss.
        StagingError: the folder can't be written from here or read by Spark.
    """
    if isinstance(obj, DataFrame):
        yield obj
        return
    reader = arrow_reader(obj, dataset.name, dataset.schema)
    fit = fitting(dataset, reader.schema)
    with Staging(dataset, staging) as place:
        place.write(reader, fit.schema, fit.batch)
        yield place.read(open_session())


def with_schema(obj: object, name: str) -> tuple[object, StructType]:
    """A frame without a declaration, and its columns in Spark's types.

    A local frame is returned as a stream of its batches, so that a lazy frame is computed once.

    Args:
        name: the dataset of the frame, for the errors.

    Raises:
        FrameMismatchError: the object is not a frame, or a column has a type that Spark lacks.
    """
    if isinstance(obj, DataFrame):
        return obj, obj.schema
    reader = arrow_reader(obj, name, StructType())
    return reader, spark_schema(reader.schema, name)


def arrow_reader(obj: object, name: str, declared: StructType) -> Any:
    """The frame as a stream of Arrow batches. If values have no definite type, the declared one decides."""
    kind = kind_of(type(obj))
    if kind == ARROW_READER:
        return obj
    frame: Any = obj
    if kind == ARROW:
        return frame.to_reader()
    if kind == PANDAS:
        return _from_pandas(frame, name, declared).to_reader()
    if kind in (POLARS, POLARS_LAZY):
        with making_frame(name):
            eager = frame.collect() if kind == POLARS_LAZY else frame
        return _from_polars(eager, name).to_reader()
    what = "nothing (None)" if obj is None else f"a {type(obj).__module__}.{type(obj).__qualname__}"
    raise FrameMismatchError(
        dataset=name,
        differences=(
            f"the asset returned {what}; expected one of {', '.join(KINDS)}, or the annotation `-> None` if it "
            "stores its rows itself",
        ),
    )


def _from_polars(frame: Any, name: str) -> Any:
    import pyarrow as pa

    polars = importlib.import_module("polars")
    # polars converts Python objects into the bytes of their addresses.
    problems = [f"column {column}: has type {kind}" for column, kind in frame.schema.items() if kind == polars.Object]
    if not problems:
        try:
            return frame.to_arrow()
        except pa.ArrowInvalid as error:  # a type that Arrow lacks, as a 128-bit integer
            problems = [str(error)]
    raise FrameMismatchError(dataset=name, differences=tuple(problems))


def _from_pandas(frame: Any, name: str, schema: StructType) -> Any:
    """The columns in Arrow, preceded by the named levels of the index.

    Raises:
        FrameMismatchError: a name is not text, a level of the index can't become a column, or Arrow has no common type
            for a column's values or would change one.
    """
    import pyarrow as pa

    frame, problems = index_as_columns(frame)
    problems += [f"column {column!r}: its name is not text" for column in frame.columns if not isinstance(column, str)]
    declared = {casefolded(field.name): field.dataType for field in schema.fields}
    arrays = []
    for position, column in enumerate(map(str, frame.columns)):
        try:
            arrays.append(_from_series(frame.iloc[:, position], declared.get(casefolded(column))))
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
            problems.append(f"column {column}: {error}")
    if problems:
        raise FrameMismatchError(dataset=name, differences=tuple(problems))
    table = pa.Table.from_arrays(arrays, names=list(map(str, frame.columns)))
    return table if _counts_rows(frame.index) else table.replace_schema_metadata({LEFT_OUT: _UNNAMED.encode()})


def index_as_columns(frame: Any) -> tuple[Any, list[str]]:
    """A frame of pandas with the named levels of its index as columns, and a problem for each level that can't be one.

    A level that is already a column is left out. A single index without a name only numbers the rows, as in pandas. A
    level without a name among several is a problem.
    """
    index = frame.index
    if index.nlevels == 1 and index.names[0] is None:
        return frame, []
    problems, levels = [], {}
    for number, name in enumerate(index.names):
        values = index.get_level_values(number)
        if name is None:
            problems.append(f"level {number} of the frame's index has no name; name it (rename_axis)")
        elif name not in frame.columns:
            levels[name] = values
        elif not frame[[name]].iloc[:, 0].reset_index(drop=True).equals(values.to_series(index=range(len(frame)))):
            problems.append(f"column {name}: the frame's index has a level of that name with other values")
    if problems:
        return frame, problems
    plain = frame.reset_index(drop=True)
    for position, (name, values) in enumerate(levels.items()):
        plain.insert(position, name, values.to_series(index=plain.index))
    return plain, []


def _counts_rows(index: Any) -> bool:
    """Whether an index is pandas' default one."""
    return type(index).__name__ == "RangeIndex"


def _from_series(series: Any, declared: Any) -> Any:
    """A column in Arrow. If the inference of its type would change a value, raises ValueError."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_object = series.dtype == object
    if is_object and isinstance(declared, ArrayType | MapType | StructType):
        # Not `map`, which makes floats of whole numbers as soon as there is a float, or a missing one, among them.
        series = type(series)([entries_of_dicts(value, declared) for value in series], dtype=object)
    values = pa.array(series, from_pandas=True)
    if len(values) and values.null_count == len(values) and not _is_arrow_backed(series):
        return pa.nulls(len(values))  # the type of a NumPy column without values has no meaning
    if is_object:
        refuse_loss(series.dropna(), values.type)
    elif pa.types.is_floating(values.type) and isinstance(declared, IntegralType) and not _is_arrow_backed(series):
        # pandas makes floats of integers if one is missing.
        is_exact = pc.all(pc.less(pc.abs(values), _EXACT_FLOAT)).as_py() is not False
        if is_exact and pc.all(pc.equal(values, pc.trunc(values))).as_py() is not False:
            return values.cast(pa.int64())
    return values


def _is_arrow_backed(series: Any) -> bool:
    return hasattr(series.dtype, "pyarrow_dtype")


# --- into an asset ----------------------------------------------------------------------------------------------------


def from_spark(frame: DataFrame, kind: str, dataset: Dataset, *, max_bytes: int, staging: str) -> Any:
    """The rows of a Spark frame that was read from files, as a frame of that kind. Instants are in UTC, microseconds.

    Columns of pandas are Arrow-backed: only these hold every value, such as NULL besides NaN, decimals and any date. A
    RecordBatchReader streams from a staged copy that Spark writes at the first batch, without a limit, and can be read
    once. Any other local kind takes one Spark job to measure and one to collect.

    Args:
        max_bytes: the limit of a local frame's size, first of its files, then of its Arrow buffers.

    Raises:
        FrameTooLargeError: the frame exceeds the limit.
        FrameKindError: a column is a variant, which only Spark's frames can hold.
    """
    if kind == SPARK:
        return frame
    import pyarrow as pa

    schema = _arrow_schema(frame.schema, kind, dataset.name)
    if kind == ARROW_READER:
        return pa.RecordBatchReader.from_batches(schema, _streamed(frame, dataset, staging, schema))
    _refuse_large(_file_bytes(frame), kind, dataset, max_bytes)
    table = frame.toArrow().cast(schema)
    _refuse_large(table.nbytes, kind, dataset, max_bytes)
    return _of_kind(table, kind)


def empty_frame(schema: StructType, kind: str, name: str, open_session: Callable[[], SparkSession]) -> Any:
    """An empty frame of that kind with these columns. Only a Spark frame opens a session.

    Raises:
        FrameKindError: a column is a variant, which only Spark's frames can hold.
    """
    if kind == SPARK:
        return open_session().createDataFrame([], schema)
    table = _arrow_schema(schema, kind, name).empty_table()
    return table.to_reader() if kind == ARROW_READER else _of_kind(table, kind)


def _arrow_schema(schema: StructType, kind: str, name: str) -> Any:
    if holds_variant(schema):
        raise FrameKindError(dataset=name, annotation=f"{kind}, since it has variants", kinds=(SPARK,))
    import pyarrow as pa

    return pa.schema(list(arrow_type(schema)))


def _of_kind(table: Any, kind: str) -> Any:
    """An Arrow table as a local frame of that kind."""
    if kind == PANDAS:
        return table.to_pandas(types_mapper=importlib.import_module("pandas").ArrowDtype)
    if kind in (POLARS, POLARS_LAZY):
        eager = _to_polars(table)
        return eager.lazy() if kind == POLARS_LAZY else eager
    return table


def _to_polars(table: Any) -> Any:
    polars = importlib.import_module("polars")
    # Without the type Map, versions make lists of entries, and some an empty list of NULL (pola-rs/polars#28652).
    if not hasattr(polars, "Map"):
        import pyarrow as pa

        table = table.cast(pa.schema([field.with_type(maps_as_lists(field.type)) for field in table.schema]))
    return polars.from_arrow(table)


def _file_bytes(frame: DataFrame) -> int:
    """The size of the files with the frame's rows. One Spark job, which reads their footers."""
    files = frame.selectExpr("_metadata.file_path AS path", "_metadata.file_size AS size").distinct()
    return sum(row["size"] for row in files.collect())


def _refuse_large(size: int, kind: str, dataset: Dataset, max_bytes: int) -> None:
    if size > max_bytes:
        raise FrameTooLargeError(dataset=dataset.name, kind=kind, found_bytes=size, limit_bytes=max_bytes)


def _streamed(frame: DataFrame, dataset: Dataset, staging: str, schema: Any) -> Iterator[Any]:
    with through_door(dataset.name, staging), Staging(dataset, staging) as place:
        place.put(frame)
        yield from place.stream(schema)
