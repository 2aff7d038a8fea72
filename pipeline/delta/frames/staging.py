"""The staging folder: how a frame passes between this process and Spark as Parquet on the root's own filesystem.

Here belong the folder of one frame, its files and its end; no value is changed here. Spark's own way out of Python
memory is five times slower, and its way into it holds everything at once.

The folder's name begins with `_`, which no table's does, so what a killed process leaves there harms nobody.
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
from pipeline.delta.frames.arrow_types import storage_type
from pipeline.delta.log.commits import file_system
from pipeline.delta.log.mark import private_session
from pipeline.delta.spark.doors import look_at_disk, making_frame
from pipeline.delta.spark.failures import LOST_OR_REFUSED, SPARK_ERRORS, failure_of
from pipeline.delta.sql.quoting import path_pattern
from pipeline.errors import StagingError

STAGING = "_staging"
# Large enough for Parquet, small enough that a file of some row groups can be read by several tasks.
ROW_GROUP_ROWS = 1 << 17
ROW_GROUP_BYTES = 64 << 20


class Staging:
    """A folder of one frame under the staging folder, gone after the block."""

    def __init__(self, dataset: Dataset, staging: str) -> None:
        self.dataset = dataset
        self._frame_columns: list[StructField] = []
        self._left_out: set[str] = set()
        self.location = f"{staging.rstrip('/')}/{uuid.uuid4().hex}"
        try:
            self.filesystem, self.path = file_system(self.location)
        except (OSError, ValueError) as error:  # what pyarrow raises for a scheme that it does not know, too
            raise self._error(error) from error

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # the rows are written or refused by now; what stays behind does no harm
            self.filesystem.delete_dir(self.path)

    def _error(self, reason: object) -> StagingError:
        return StagingError(
            dataset=self.dataset.name, location=self.location, reason=str(reason), found=look_at_disk(self.location)
        )

    def write(self, batches: Iterable[Any], schema: Any, fit: Callable[[Any], Any]) -> None:
        """One Parquet file of the batches, a row group at a time; no more than that is held.

        Raises:
            FrameFailedError: the batches can't be made; an error of the user's own comes through as it is.
            StagingError: the folder can't be written.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        names = self.dataset.frame_columns
        self._left_out = {name for name in self.dataset.schema.names if name not in schema.names}
        self._frame_columns = [StructField(name, from_arrow_type(schema.field(name).type)) for name in names]
        try:
            self.filesystem.create_dir(self.path, recursive=True)
            writer = pq.ParquetWriter(
                f"{self.path}/part-0.parquet", schema, filesystem=self.filesystem, store_schema=False
            )
        except OSError as error:
            raise self._error(error) from error
        with writer:
            for group in _row_groups(self._made(batches)):
                table = pa.Table.from_batches(map(fit, group), schema)
                try:
                    writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
                except OSError as error:
                    raise self._error(error) from error

    def _made(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches; what fails while they are made is the frame's, and not the folder's."""
        with making_frame(self.dataset.name):
            yield from batches

    def read(self, session: SparkSession) -> DataFrame:
        """What was written, in the declared types, as Spark sees it; columns that only the frame has in theirs."""
        try:
            return staged(session, self.dataset, [self.location], self._frame_columns, self._left_out)
        except SPARK_ERRORS as error:
            raise self._error(f"Spark does not find it there ({failure_of(error).summary})") from error

    def put(self, frame: DataFrame) -> None:
        """The rows of a Spark frame as Parquet files, in no other calendar than ours whatever its session writes."""
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
        """The batches of the Parquet files that Spark has put here."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        selector = pa.fs.FileSelector(self.path)
        try:
            files = [info.path for info in self.filesystem.get_file_info(selector) if info.path.endswith(".parquet")]
            for path in files:
                # Spark writes instants as INT96 where it is not told otherwise; as nanoseconds they would wrap.
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
    """Parquet files and folders of a dataset's rows as one frame; columns that only the frame has as they are given.

    Args:
        left_out: declared columns that are in none of the files, for Delta to compute.
    """
    schema = storage_type(dataset.schema)
    assert isinstance(schema, StructType)  # noqa: S101  of a struct
    declared = [field for field in schema.fields if field.name not in left_out]
    schema = StructType([*declared, *frame_columns])
    # Spark takes a path for a pattern, in which a bracket of the root's name would stand for something else.
    paths = map(path_pattern, locations)
    frame = session.read.schema(schema).option("datetimeRebaseMode", "CORRECTED").parquet(*paths)
    frame.schema  # noqa: B018  on Connect the first look
    return frame


def _row_groups(batches: Iterable[Any]) -> Iterator[list[Any]]:
    held: list[Any] = []
    rows = size = 0
    for batch in batches:
        for start in range(0, batch.num_rows, ROW_GROUP_ROWS):
            part = batch.slice(start, ROW_GROUP_ROWS)
            if held and rows + part.num_rows > ROW_GROUP_ROWS:
                yield held
                held, rows, size = [], 0, 0
            held.append(part)
            rows, size = rows + part.num_rows, size + part.nbytes
            if size >= ROW_GROUP_BYTES:
                yield held
                held, rows, size = [], 0, 0
    if held:
        yield held
