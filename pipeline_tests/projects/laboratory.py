"""What a user adds next to the README's `readings`: an asset with a prefix that reads it, and two that are wrong."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from dagster import DailyPartitionsDefinition, Definitions, definitions
from pyspark.sql.types import DoubleType, LongType, StructField, StructType
from readings import READINGS, readings

from pipeline.dataset import Dataset
from pipeline.orchestration import build_definitions, dataset_asset
from pipeline.settings import load_settings

MEAN = Dataset(
    name="lab/mean",
    schema=StructType([StructField("mean", DoubleType()), StructField("days", LongType())]),
    reads=("readings",),
)
WRONG = replace(READINGS, name="lab/wrong")
NOTHING = Dataset(name="lab/nothing", schema=MEAN.schema)
datasets = (READINGS, MEAN, WRONG, NOTHING)


@dataset_asset(MEAN)
def mean(readings: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"mean": [readings["value"].mean()], "days": [readings["day"].nunique()]})


@dataset_asset(WRONG, partitions_def=DailyPartitionsDefinition("2025-01-01"))
def wrong() -> pd.DataFrame:
    return pd.DataFrame({"value": [1.0]})


@dataset_asset(NOTHING)
def nothing() -> pd.DataFrame:
    return pd.DataFrame()


@definitions
def defs() -> Definitions:
    return build_definitions(load_settings(), assets=[readings, mean, wrong, nothing])
