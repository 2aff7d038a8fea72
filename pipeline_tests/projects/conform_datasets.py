"""A dataset with a feature that its table lacks, and one that was never written."""

from __future__ import annotations

from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset, Features

plain = Dataset(
    name="plain",
    schema=StructType([StructField("id", LongType()), StructField("text", StringType())]),
    write=Append(),
    features=Features(deletion_vectors=True),
)
never = Dataset(name="never", schema=plain.schema)
datasets = (plain, never)
