"""Portfolio: market prices, the newest positions from the stored updates, and breaks against a broker's snapshot.

Plain functions from frame to frame come first, thin assets after them. The declarations belong to `datasets`, the
stream to `updates`. A table that a sink writes is no asset here: a sensor reports its commits to Dagster. Updates from
files go into the same table as those of the sink. Each update is stored once, whichever way it comes.
"""

# Without `annotations` from `__future__`: Dagster compares the annotation of `context` with types and refuses a text.

from decimal import Decimal

from dagster import AssetExecutionContext, StaticPartitionsDefinition
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  Spark's own name for it
from pyspark.sql.types import DoubleType, LongType, StringType, StructType

from pipeline.assets.aviation.assets import LandingFolder
from pipeline.assets.portfolio.datasets import (
    MARKET_PRICES,
    POSITION_BREAKS,
    POSITION_UPDATES,
    POSITIONS_FROM_UPDATES,
    QUANTITY,
    SYMBOLS,
    datasets,
)
from pipeline.delta.frames.source_files import read_csv_files, stream_json_files
from pipeline.delta.read.changes import CHANGE_TYPE, DELETE
from pipeline.orchestration import Changes, DeltaSparkResource, dataset_asset

__all__ = ["BY_SYMBOL", "assets", "datasets"]

BY_SYMBOL = StaticPartitionsDefinition(SYMBOLS)

PRICES_FILE = (
    StructType().add("symbol", StringType(), False).add("date", StringType(), False).add("price", DoubleType(), False)
)
_PRICE_DATE = "MMM d yyyy"
SNAPSHOT_FILE = (
    StructType()
    .add("conid", LongType(), False)
    .add("symbol", StringType(), False)
    .add("quantity", QUANTITY, False)
    .add("price", DoubleType())
)
QUANTITY_TOLERANCE = Decimal("0.0001")
PRICE_TOLERANCE = 0.005
_RANK = "row rank"


def is_price_of_its_symbol(price: Column, path: Column) -> Column:
    """Whether a price has a date and the symbol in its file's name."""
    has_date = F.try_to_date(price.getField("date"), _PRICE_DATE).isNotNull()
    return has_date & F.endswith(path, F.format_string("/%s.csv", price.getField("symbol")))


def prices_from_file(prices: DataFrame) -> DataFrame:
    """Prices of the source as market prices, one row each."""
    return prices.select("symbol", F.to_date("date", _PRICE_DATE).alias("date"), "price")


def newest_of(updates: DataFrame) -> DataFrame:
    """The newest update of each contract as its position. One row for each contract."""
    newest = Window.partitionBy("conid").orderBy(F.col("at").desc(), F.col("update_id").desc())
    ranked = updates.withColumn(_RANK, F.row_number().over(newest)).filter(F.col(_RANK) == 1)
    return ranked.select("conid", "symbol", "quantity", "price", F.struct("at", "update_id").alias("updated"))


def breaks_of(
    positions: DataFrame,
    snapshot: DataFrame,
    *,
    quantity_tolerance: Decimal = QUANTITY_TOLERANCE,
    price_tolerance: float = PRICE_TOLERANCE,
) -> DataFrame:
    """Differences between positions and a broker's snapshot of the form `SNAPSHOT_FILE`. One row by contract and kind.

    On both sides a position of no units counts as absent. A contract that the snapshot has several times is reported as
    `twice` and not compared.
    """
    ours = positions.filter("quantity <> 0").select(
        "conid", F.col("quantity").alias("our_quantity"), F.col("price").alias("our_price")
    )
    theirs = (
        snapshot.filter("quantity <> 0")
        .groupBy("conid")
        .agg(
            F.count("*").alias("times"),
            F.min("quantity").alias("broker_quantity"),
            F.min("price").alias("broker_price"),
        )
    )
    both = ours.join(theirs, "conid", how="full")
    on_both_sides = F.col("our_quantity").isNotNull() & F.col("broker_quantity").isNotNull()
    is_twice = F.coalesce(F.col("times") > 1, F.lit(False))
    quantities = F.abs(F.col("our_quantity") - F.col("broker_quantity")) > F.lit(quantity_tolerance)
    kinds = F.array_compact(
        F.array(
            F.when(is_twice, F.lit("twice")),
            F.when(~is_twice & F.col("our_quantity").isNull(), F.lit("missing")),
            F.when(F.col("broker_quantity").isNull(), F.lit("extra")),
            F.when(~is_twice & on_both_sides & quantities, F.lit("quantity")),
            F.when(~is_twice & on_both_sides & _differ("our_price", "broker_price", price_tolerance), F.lit("price")),
        )
    )
    return both.withColumn("kind", F.explode(kinds)).select(*POSITION_BREAKS.schema.names)


def _differ(one: str, other: str, tolerance: float) -> Column:
    """Whether two numbers are further apart than the tolerance. A missing number differs from a present one."""
    is_one_missing = F.col(one).isNull() != F.col(other).isNull()
    return F.coalesce(F.abs(F.col(one) - F.col(other)) > F.lit(tolerance), is_one_missing)


@dataset_asset(MARKET_PRICES, partitions_def=BY_SYMBOL)
def market_prices(context: AssetExecutionContext, spark: DeltaSparkResource, landing: LandingFolder) -> DataFrame:
    """Prices of the run's symbols, from one file for each symbol."""
    paths = [f"{landing.folder('prices')}/{symbol}.csv" for symbol in sorted(context.partition_keys)]
    return prices_from_file(read_csv_files(spark.spark_session, paths, PRICES_FILE, is_price_of_its_symbol))


@dataset_asset(POSITION_UPDATES, is_fed_elsewhere=True)
def position_updates(spark: DeltaSparkResource, landing: LandingFolder) -> DataFrame:
    """The updates in the files `position_updates/*.ndjson` of the landing folder that are new since the last run."""
    return stream_json_files(spark.spark_session, landing.folder("position_updates"), POSITION_UPDATES.schema)


@dataset_asset(POSITIONS_FROM_UPDATES)
def positions_from_updates(position_updates: Changes) -> DataFrame:
    """The newest of the new updates. An update older than the table's row changes nothing."""
    return newest_of(position_updates.frame.filter(F.col(CHANGE_TYPE) != DELETE))


@dataset_asset(POSITION_BREAKS)
def position_breaks(positions: DataFrame, spark: DeltaSparkResource, landing: LandingFolder) -> DataFrame:
    """Differences between positions and the broker's `reference/broker_positions.csv` in the landing folder."""
    files = landing.reference("broker_positions")
    return breaks_of(positions, read_csv_files(spark.spark_session, files, SNAPSHOT_FILE))


assets = [market_prices, position_updates, positions_from_updates, position_breaks]
