"""The staging folder: a frame passes between this process and Spark as Parquet on the root's own file system.

Here belong the folder of one frame, its files and its removal; no value is changed here. Spark's own transfer from
Python is five times slower, and its transfer to Python holds all rows in memory.

The folder's name begins with `_`, which no table's name does, so files of a killed process there do no harm.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from pipeline.dataset import Dataset
from pipeline.delta import sql
from pipeline.delta.frames.arrow_types import storage_type
from pipeline.delta.log.mark import private_session
from pipeline.delta.spark.doors import disk_problem, making_frame
from pipeline.delta.spark.failures import LOST_OR_REFUSED, SPARK_ERRORS, failure_of
from pipeline.delta.storage.file_system import file_system
from pipeline.errors import StagingError

STAGING = "_staging"
# Large enough for Parquet, small enough that a file of some row groups can be read by several tasks.
ROW_GROUP_ROWS = 1 << 17
ROW_GROUP_BYTES = 64 << 20


class Staging:
    """A folder of one frame in the staging folder. It is removed after the block."""

    def __init__(self, dataset: Dataset, staging: str) -> None:
        self.dataset = dataset
        self._frame_columns: list[StructField] = []
        self._left_out: set[str] = set()
        self.location = f"{staging.rstrip('/')}/{uuid.uuid4().hex}"
        try:
            self.filesystem, self.path = file_system(self.location)
        except (OSError, ValueError) as error:  # pyarrow raises a ValueError for an unknown scheme
            raise self._error(error) from error

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # the rows are written or refused by now, and remaining files do no harm
            self.filesystem.delete_dir(self.path)

    def _error(self, reason: object) -> StagingError:
        return StagingError(
            dataset=self.dataset.name, location=self.location, reason=str(reason), found=disk_problem(self.location)
        )

    def write(self, batches: Iterable[Any], schema: Any, fit: Callable[[Any], Any]) -> None:
        """Write the batches to one Parquet file. At most one row group is in memory.

        Raises:
            FrameFailedError: the batches can't be computed. The user's own errors pass unchanged.
            StagingError: the folder can't be written.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        names = self.dataset.frame_columns
        self._left_out = {name for name in self.dataset.schema.names if name not in schema.names}
        self._frame_columns = [StructField(name, from_arrow_type(schema.field(name).type)) for name in names]
        path = f"{self.path}/part-0.parquet"
        try:
            self.filesystem.create_dir(self.path, recursive=True)
            with pq.ParquetWriter(path, schema, filesystem=self.filesystem, store_schema=False) as writer:
                for group in _row_groups(self._computed(batches)):
                    writer.write_table(pa.Table.from_batches(map(fit, group), schema), row_group_size=ROW_GROUP_ROWS)
        except OSError as error:  # on an object store the file is written when it is closed
            raise self._error(error) from error

    def _computed(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches. An error while they are computed is one of the frame, not of the folder."""
        with making_frame(self.dataset.name):
            yield from batches

    def read(self, session: SparkSession) -> DataFrame:
        """The written rows as a Spark frame in the declared types. Columns that only the frame has keep their types."""
        try:
            return staged(session, self.dataset, [self.location], self._frame_columns, self._left_out)
        except SPARK_ERRORS as error:
            raise self._error(f"Spark does not find the files ({failure_of(error).summary})") from error

    def put(self, frame: DataFrame) -> None:
        """Write the rows of a Spark frame to Parquet files, in the proleptic Gregorian calendar in any session."""
        view = f"pipeline_staged_{uuid.uuid4().hex}"
        try:
            frame.createOrReplaceTempView(view)
            with private_session(frame.sparkSession, {}) as clone:
                clone.table(view).write.parquet(self.location)
        except SPARK_ERRORS as error:
            raise self._error(failure_of(error).summary) from error
        finally:
            with suppress(*LOST_OR_REFUSED):  # a view that remains has a name of its own
                frame.sparkSession.catalog.dropTempView(view)

    def stream(self, schema: Any) -> Iterator[Any]:
        """The batches of the Parquet files that Spark has written."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        selector = pa.fs.FileSelector(self.path)
        try:
            files = [info.path for info in self.filesystem.get_file_info(selector) if info.path.endswith(".parquet")]
            for path in files:
                # Spark's default for timestamps is INT96; read as nanoseconds they would overflow.
                with pq.ParquetFile(path, filesystem=self.filesystem, coerce_int96_timestamp_unit="us") as file:
                    for batch in file.iter_batches():
                        yield from pa.Table.from_batches([batch]).cast(schema).to_batches()
        except OSError as error:
            raise self._error(error) from error


def staged(
    session: SparkSession,
    dataset: Dataset,
    locations: Iterable[str],
    frame_columns: Iterable[StructField],
    left_out: Container[str] = (),
) -> DataFrame:
    """Parquet files and folders of a dataset's rows as one frame. `frame_columns` follow the declared columns.

    Args:
        left_out: declared columns that no file has, for Delta to compute.
    """
    schema = storage_type(dataset.schema)
    assert isinstance(schema, StructType)  # noqa: S101  of a struct
    declared = [field for field in schema.fields if field.name not in left_out]
    schema = StructType([*declared, *frame_columns])
    # Spark reads a path as a pattern, in which a bracket of the root's name would have a meaning.
    paths = map(sql.path_pattern, locations)
    frame = session.read.schema(schema).option("datetimeRebaseMode", "CORRECTED").parquet(*paths)
    frame.schema  # noqa: B018  makes a Connect client call the server
    return frame


def _row_groups(batches: Iterable[Any]) -> Iterator[list[Any]]:
    group: list[Any] = []
    rows = size = 0
    for batch in batches:
        for start in range(0, batch.num_rows, ROW_GROUP_ROWS):
            part = batch.slice(start, ROW_GROUP_ROWS)
            if group and rows + part.num_rows > ROW_GROUP_ROWS:
                yield group
                group, rows, size = [], 0, 0
            group.append(part)
            rows, size = rows + part.num_rows, size + part.nbytes
            if size >= ROW_GROUP_BYTES:
                yield group
                group, rows, size = [], 0, 0
    if group:
        yield group
