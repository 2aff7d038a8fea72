"""Assets that need no Spark: of days, of letters, and without partitions; one fails, one has a check that fails."""

from __future__ import annotations

from dagster import (
    AssetCheckResult,
    DailyPartitionsDefinition,
    Definitions,
    MaterializeResult,
    StaticPartitionsDefinition,
    asset,
    asset_check,
    in_process_executor,
)


@asset(partitions_def=DailyPartitionsDefinition("2025-01-01", end_date="2025-01-11"))
def days() -> MaterializeResult[None]:
    return MaterializeResult(metadata={"delta/rows_written": 3, "delta/version": 7, "delta/committed": True})


@asset(partitions_def=StaticPartitionsDefinition(["a", "b"]))
def letters() -> None: ...


@asset
def total() -> MaterializeResult[None]:
    return MaterializeResult(metadata={"delta/rows_written": 2, "delta/version": 4, "delta/committed": False})


@asset(key_prefix="lab", deps=[total])
def broken() -> None:
    raise ValueError("the source is empty")


@asset_check(asset=total)
def is_whole() -> AssetCheckResult:
    return AssetCheckResult(passed=False)


defs = Definitions(assets=[days, letters, total, broken], asset_checks=[is_whole], executor=in_process_executor)
