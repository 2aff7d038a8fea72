"""A dataset with a feature that its table lacks, and one that was never written; and the first with a check too."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Check, Dataset, Features

plain = Dataset(
    name="plain",
    schema=StructType([StructField("id", LongType()), StructField("text", StringType())]),
    write=Append(),
    features=Features(deletion_vectors=True),
)
never = Dataset(name="never", schema=plain.schema)
datasets = (plain, never)
checked = (replace(plain, checks=(Check("positive", "id > 0"),)),)
