"""Collections of datasets, and what is none."""

from __future__ import annotations

from pyspark.sql.types import LongType, StructField, StructType

from pipeline.dataset import Dataset

SCHEMA = StructType([StructField("id", LongType())])
in_tuple = (Dataset(name="a", schema=SCHEMA), Dataset(name="b", schema=SCHEMA, reads=("a",)))
in_list = list(in_tuple)
empty = ()
mixed = (*in_tuple, "c")
by_name = {d.name: d for d in in_tuple}
one = in_tuple[0]
text = "a, b"
number = 3
