"""Declarations of the portfolio datasets: a broker's stream of position updates and what is computed from it.

Here belong declarations only. Dagster is not imported, since the command line reads this module too.

A sink writes `position_updates` and `positions`. Updates of one position are ordered by their time and, at equal times,
by their number, so that the result does not depend on how the stream was split into batches.
"""

from __future__ import annotations

from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pipeline.dataset import Check, Dataset, InsertNew, Merge, Replace, RowCount, StoragePolicy

GROUP = "portfolio"
SYMBOLS = ("AAPL", "AMZN", "GOOG", "IBM", "MSFT")
QUANTITY = DecimalType(18, 4)


def _column(name: str, data_type: DataType, comment: str, *, nullable: bool = False) -> StructField:
    return StructField(name, data_type, nullable, {"comment": comment})


CONID = _column("conid", LongType(), "the broker's number of the contract")
SYMBOL = _column("symbol", StringType(), "the contract's ticker")
HELD = _column("quantity", QUANTITY, "units held after the update; negative: short")
PRICE = _column("price", DoubleType(), "of one unit in the market, in dollars; NULL where none is known", nullable=True)
UPDATE_ID = _column("update_id", LongType(), "the broker's number of the update; a resend has the same")
KNOWN_SYMBOL = Check("known_symbol", f"symbol IN ({', '.join(map(repr, SYMBOLS))})")
PRICE_IS_POSITIVE = Check("price_is_positive", "price IS NULL OR price > 0")
# A checkpoint takes half as long as a flush of the sink, and by default Delta writes one every ten commits.
STREAMED = StoragePolicy(checkpoint_interval_commits=100)

POSITION_UPDATES = Dataset(
    name="position_updates",
    group=GROUP,
    description="Every update of a position that the broker has sent, once each.",
    keys=("symbol", "update_id"),
    partition_by=("symbol",),
    # An update that the broker sends again is in the table already.
    write=InsertNew(),
    schema=StructType([UPDATE_ID, CONID, SYMBOL, HELD, PRICE, _column("at", TimestampType(), "the broker's time")]),
    checks=(KNOWN_SYMBOL, PRICE_IS_POSITIVE),
    storage=STREAMED,
)
MARKET_PRICES = Dataset(
    name="market_prices",
    group=GROUP,
    description="What a unit of each symbol cost in the market, month by month.",
    keys=("symbol", "date"),
    partition_by=("symbol",),
    write=Replace(),
    code_version="1",
    # The youngest symbol has 68 months.
    row_count=RowCount(minimum=60, severity="warn"),
    schema=StructType(
        [
            SYMBOL,
            _column("date", DateType(), "first day of the month"),
            _column("price", DoubleType(), "of one unit, in dollars"),
        ]
    ),
    checks=(KNOWN_SYMBOL, Check("price_is_positive", "price > 0")),
)
_POSITION = StructType(
    [
        CONID, SYMBOL, HELD, PRICE,
        _column(
            "updated",
            StructType([StructField("at", TimestampType()), StructField("update_id", LongType())]),
            "time and number of the newest update",
        ),
    ]
)  # fmt: skip
POSITIONS = Dataset(
    name="positions",
    group=GROUP,
    description="The newest state of each position.",
    keys=("conid",),
    write=Merge(order_by="updated"),
    schema=_POSITION,
    checks=(KNOWN_SYMBOL, PRICE_IS_POSITIVE),
    storage=STREAMED,
)
POSITIONS_FROM_UPDATES = Dataset(
    name="positions_from_updates",
    group=GROUP,
    description="The newest state of each position, from the stored updates; equal to positions.",
    keys=("conid",),
    reads=("position_updates",),
    reads_changes_of=("position_updates",),
    write=Merge(order_by="updated"),
    code_version="1",
    starts_on_change=True,
    schema=_POSITION,
)
POSITION_BREAKS = Dataset(
    name="position_breaks",
    group=GROUP,
    description="Where the broker's snapshot and positions differ, one row a contract and kind.",
    keys=("conid", "kind"),
    reads=("positions",),
    write=Replace(),
    code_version="1",
    row_count=RowCount(maximum=0, severity="warn"),
    schema=StructType(
        [
            CONID,
            _column("kind", StringType(), "missing, extra, twice, quantity or price"),
            _column("our_quantity", QUANTITY, "NULL where we hold none", nullable=True),
            _column("broker_quantity", QUANTITY, "NULL where the broker has none", nullable=True),
            _column("our_price", DoubleType(), "of one unit", nullable=True),
            _column("broker_price", DoubleType(), "of one unit", nullable=True),
        ]
    ),
)

datasets = (MARKET_PRICES, POSITION_UPDATES, POSITIONS, POSITIONS_FROM_UPDATES, POSITION_BREAKS)
