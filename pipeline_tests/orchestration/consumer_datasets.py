"""Two sources, and two consumers of their changes, of which one replaces and one appends."""

from __future__ import annotations

from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset

SEEN = Dataset(
    name="feed/seen",
    schema=StructType([StructField("n", LongType(), False), StructField("day", DateType(), False)]),
    partition_by=("day",),
    keys=("n",),
)
NAMES = Dataset(name="names", schema=StructType([StructField("name", StringType(), False)]), keys=("name",))
PER_DAY = Dataset(
    name="per_day",
    schema=StructType(
        [StructField("day", DateType()), StructField("rows", LongType()), StructField("names", LongType())]
    ),
    partition_by=("day",),
    reads=("feed/seen", "names"),
    reads_changes_of=("feed/seen", "names"),
)
LOG = Dataset(
    name="log",
    schema=StructType([StructField("n", LongType()), StructField("kind", StringType())]),
    write=Append(),
    reads=("feed/seen",),
    reads_changes_of=("feed/seen",),
    starts_on_change=True,
)
