"""The datasets of a project whose tables an earlier version has written."""

import pandas as pd
from dagster import AssetExecutionContext, DailyPartitionsDefinition
from pyspark.sql.types import DateType, DoubleType, LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Check, Dataset, Merge, Replace
from pipeline.orchestration import Changes, Touched, dataset_asset

ORDERS = Dataset(
    name="orders",
    schema=StructType(
        [
            StructField("day", DateType(), False),
            StructField("id", LongType(), False),
            StructField("customer", StringType()),
            StructField("amount", DoubleType()),
        ]
    ),
    partition_by=("day",),
    checks=(Check("positive", "amount > 0", on_violation="quarantine"),),
)
CUSTOMERS = Dataset(
    name="customers",
    schema=StructType([StructField("customer", StringType(), False), StructField("seen", LongType(), False)]),
    write=Merge(order_by="seen"),
    keys=("customer",),
)
TOTALS = Dataset(
    name="totals",
    schema=StructType([StructField("day", DateType(), False), StructField("total", DoubleType())]),
    write=Replace(),
    reads=("orders",),
    reads_changes_of=("orders",),
)
ARRIVALS = Dataset(
    name="arrivals",
    schema=StructType([StructField("arrival", LongType(), False), StructField("update_id", LongType(), False)]),
    write=Append(),
)
EVENTS = Dataset(name="events", schema=ARRIVALS.schema, write=Append())
datasets = (ORDERS, CUSTOMERS, TOTALS, ARRIVALS, EVENTS)


@dataset_asset(ORDERS, partitions_def=DailyPartitionsDefinition("2026-01-01"))
def orders(context: AssetExecutionContext) -> pd.DataFrame:
    """Three orders a day; the amount of the last is not positive."""
    rows = [
        (pd.Timestamp(key).date(), number, f"customer {number}", 10.0 * number if number < 3 else -1.0)
        for key in context.partition_keys
        for number in (1, 2, 3)
    ]
    return pd.DataFrame(rows, columns=["day", "id", "customer", "amount"])


@dataset_asset(TOTALS)
def totals(orders: Changes) -> Touched:
    """The sum of each day that has changed."""
    days = orders.touched("day")
    return Touched(orders.rows_in(days).groupBy("day").agg({"amount": "sum"}).toDF("day", "total"), within=days)
