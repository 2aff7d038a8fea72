"""A shop: orders, of which a row may be set apart, and customers that were never written."""

from __future__ import annotations

from pyspark.sql.types import DateType, DecimalType, LongType, StringType, StructField, StructType, TimestampType

from pipeline.dataset import Check, Dataset, NotNull, References, RowCount, Unique

orders = Dataset(
    name="shop/orders",
    schema=StructType(
        [
            StructField("day", DateType()),
            StructField("id", LongType(), False),
            StructField("price", DecimalType(10, 2)),
            StructField("at", TimestampType(), True, {"comment": "when it came"}),
            StructField("text", StringType()),
        ]
    ),
    partition_by=("day",),
    keys=("id",),
    checks=(Check("not_for_nothing", "price > 0"),),
    not_null=(NotNull("id", on_violation="quarantine"),),
    row_count=RowCount(maximum=1, severity="warn"),
    expectations=(Unique(("price",)), References(("text",), "customers", ("name",))),
)
customers = Dataset(name="customers", schema=StructType([StructField("name", StringType())]), reads=("shop/orders",))
datasets = (orders, customers)
