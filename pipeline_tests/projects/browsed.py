"""What a user adds to the shipped definitions: a dataset with quarantine, a check that fails, a schedule."""

from __future__ import annotations

import pyarrow as pa
from dagster import AssetCheckResult, AssetSelection, Definitions, RunRequest, asset_check, definitions, schedule
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.dataset import Check, Dataset
from pipeline.definitions import shipped_definitions
from pipeline.orchestration import dataset_asset, dataset_checks, dataset_spec
from pipeline.settings import load_settings

WEIGHTS = Dataset(
    name="weights",
    schema=StructType([StructField("kilograms", LongType())]),
    checks=(Check("positive", "kilograms > 0", on_violation="quarantine"),),
)


@dataset_asset(WEIGHTS)
def weights() -> pa.Table:
    return pa.table({"kilograms": [1, -23, 4, -5, -6]})


@asset_check(asset="airports")
def all_in_europe() -> AssetCheckResult:
    return AssetCheckResult(passed=False, metadata={"airports_elsewhere": 1458})


@schedule(cron_schedule="* * * * *", target=AssetSelection.assets("planes"))
def every_minute() -> RunRequest:
    return RunRequest()


@definitions
def defs() -> Definitions:
    set_apart = WEIGHTS.quarantine
    assert set_apart is not None
    ours = Definitions(
        assets=[weights, dataset_spec(set_apart)],
        asset_checks=[all_in_europe, *dataset_checks([WEIGHTS])],
        schedules=[every_minute],
    )
    return Definitions.merge(shipped_definitions(load_settings()), ours)
