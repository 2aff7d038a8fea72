"""A collection of datasets that a project keeps in a module beside its `pyproject.toml`."""

from pyspark.sql.types import LongType, StructField, StructType

from pipeline.dataset import Dataset

datasets = [Dataset(name="east/own", schema=StructType([StructField("n", LongType())]))]
