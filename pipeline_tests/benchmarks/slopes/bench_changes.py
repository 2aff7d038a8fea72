"""A consumer of changes: an incremental run against a full one, and against one over another size of the source.

Targets: after a change of 1 % of 5 million rows a tenth of a full run; with the same number of changes at most 1.5
times as long over 10 million rows as over 1 million. The changes are in one partition of 50. Beside the first stands
what a careful user of bare delta-spark writes: a MERGE of the feed of the last commit into the touched partition.
"""

from __future__ import annotations

from itertools import count

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from pipeline.dataset import Dataset, Merge
from pipeline.delta.read.changes import SourceChanges
from pipeline.delta.read.verdict import VerdictKind
from pipeline.delta.write.consume import consume
from pipeline.delta.write.write import write
from pipeline_tests.benchmarks.results import compared
from pipeline_tests.benchmarks.turns import all_in_turns, is_quick
from pipeline_tests.delta.sample import note, versions_of

PARTITIONS = 50
SCALE = 20 if is_quick() else 1
SMALL, MIDDLE, GREAT = 1_000_000 // SCALE, 5_000_000 // SCALE, 10_000_000 // SCALE
FEW_CHANGES = 10_000 // SCALE
# The suffix of the source that bare delta-spark reads.
BARE = "bare"
SCHEMA = StructType(
    [
        StructField("part", IntegerType(), False),
        StructField("id", LongType(), False),
        StructField("at", LongType()),
        StructField("text", StringType()),
    ]
)


def source(size: int, suffix: str = "") -> Dataset:
    mode = Merge(order_by="at")
    return Dataset(name=f"source{size}{suffix}", schema=SCHEMA, partition_by=("part",), keys=("part", "id"), write=mode)


def consumer(size: int, suffix: str = "") -> Dataset:
    name = source(size).name
    return Dataset(
        name=f"consumer{size}{suffix}", schema=SCHEMA, partition_by=("part",), keys=("part", "id"), write=Merge(),
        reads=(name,), reads_changes_of=(name,),
    )  # fmt: skip


class Lake:
    """The tables below a root. `rounds` number the changes, so that each changes its rows again."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.spark, self.root, self.rounds = spark, root, count(1)

    def fill(self, size: int, suffix: str = "") -> None:
        columns = f"CAST(id DIV {size // PARTITIONS} AS INT) AS part", "id", "0L AS at", "concat('row ', id) AS text"
        frame = self.spark.range(0, size, 1, PARTITIONS).selectExpr(*columns)
        write(frame, table=source(size, suffix).at(self.root), note=note())

    def change(self, size: int, rows: int, suffix: str = "") -> None:
        """Change so many rows of one partition."""
        each, at = size // PARTITIONS, next(self.rounds)
        identity = f"{each * 7}L + id * {each // rows}"
        columns = "7 AS part", f"{identity} AS id", f"{at}L AS at", f"'round {at}' AS text"
        frame = self.spark.range(rows).selectExpr(*columns)
        assert write(frame, table=source(size, suffix).at(self.root), note=note()).rows_updated == rows

    def refresh(self, dataset: Dataset, size: int, kind: VerdictKind) -> None:
        """A run of a consumer, which has to read in this way."""
        name = source(size).name

        def compute(changes: SourceChanges) -> DataFrame:
            frame = changes[name].frame.filter("_change_type != 'delete'")
            return frame.selectExpr("part", "id", "at", "upper(text) AS text")

        consumed = consume(
            self.spark, dataset.at(self.root), sources=[source(size).at(self.root)], compute=compute, note=note(),
            full_refresh=kind is VerdictKind.FULL,
        )  # fmt: skip
        assert consumed.verdicts[name].kind is kind, str(consumed.verdicts[name])

    def fill_bare(self, size: int) -> None:
        """A table for `refresh_bare`, with the rows that a full run of a consumer has."""
        self.spark.sql(
            f"CREATE TABLE {self.bare} USING delta PARTITIONED BY (part) TBLPROPERTIES "
            f"('delta.enableChangeDataFeed' = 'true') AS SELECT part, id, at, upper(text) AS text "
            f"FROM delta.`{source(size, BARE).location(self.root)}`"
        )

    def refresh_bare(self, size: int) -> None:
        """The changes of the newest commit into the partition that it changed."""
        version = versions_of(source(size, BARE), self.root)[-1]
        feed = self.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", version)
        changes = feed.load(source(size, BARE).location(self.root)).filter("_change_type <> 'update_preimage'")
        changed = changes.selectExpr("part", "id", "at", "upper(text) AS text", "_change_type")
        statement = f"""
            MERGE INTO {self.bare} AS target USING {{changed}} AS source
            ON target.part = source.part AND target.id = source.id AND target.part = 7
            WHEN MATCHED AND source._change_type = 'delete' THEN DELETE
            WHEN MATCHED THEN UPDATE SET part = source.part, id = source.id, at = source.at, text = source.text
            WHEN NOT MATCHED AND source._change_type <> 'delete' THEN
            INSERT (part, id, at, text) VALUES (source.part, source.id, source.at, source.text)"""
        self.spark.sql(statement, changed=changed).collect()

    @property
    def bare(self) -> str:
        return f"delta.`{self.root}/bare`"


def test_a_change_of_a_hundredth_against_a_full_run(classic: SparkSession, root: str) -> None:
    lake, rows = Lake(classic, root), MIDDLE // 100
    lake.fill(MIDDLE)
    lake.fill(MIDDLE, BARE)
    lake.fill_bare(MIDDLE)
    by_changes, in_full = consumer(MIDDLE), consumer(MIDDLE, "full")
    lake.refresh(by_changes, MIDDLE, VerdictKind.FULL)
    found = all_in_turns(
        6,
        {
            "incremental": lambda _: lake.refresh(by_changes, MIDDLE, VerdictKind.CHANGES),
            "full": lambda _: lake.refresh(in_full, MIDDLE, VerdictKind.FULL),
            "bare": lambda _: lake.refresh_bare(MIDDLE),
        },
        {
            "incremental": lambda _: lake.change(MIDDLE, rows),
            "full": lambda _: None,
            "bare": lambda _: lake.change(MIDDLE, rows, BARE),
        },
    )
    title = f"refresh after a change of {rows} of {MIDDLE} rows"
    compared(title, {side: found[side] for side in ("incremental", "full")}, 0.1)
    compared(f"{title}, beside bare", {side: found[side] for side in ("incremental", "bare")})


def test_the_same_changes_of_a_greater_table(classic: SparkSession, root: str) -> None:
    lake = Lake(classic, root)
    for size in (GREAT, SMALL):
        lake.fill(size)
        lake.refresh(consumer(size), size, VerdictKind.FULL)
    sides = {
        f"{size} rows": lambda _, size=size: lake.refresh(consumer(size), size, VerdictKind.CHANGES)
        for size in (GREAT, SMALL)
    }
    before = {f"{size} rows": lambda _, size=size: lake.change(size, FEW_CHANGES) for size in (GREAT, SMALL)}
    compared(f"refresh after {FEW_CHANGES} changes", all_in_turns(16, sides, before), 1.5)
