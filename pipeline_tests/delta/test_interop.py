"""Our tables as other engines read them by themselves, from the log and the files: polars, and delta-rs for the rest.

What they can't read they must refuse; a row that is not there, or one that is missing, is never right.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType, TimestampType

from pipeline.dataset import Append, Dataset, TableRef
from pipeline.delta.frames import convert
from pipeline.delta.log.mark import clone_session
from pipeline.delta.maintain.maintain import vacuum
from pipeline.delta.read.version import read
from pipeline.delta.sql import slices
from pipeline.delta.write.write import write
from pipeline_tests.delta.sample import actions_of, files_of, note, put, rows_of

case = pytest.mark.case
UTC = dt.timezone.utc
SPECIAL = (
    "A/A", "B B", "a%b", "a%2Fb", "a:c", "x=y", "R&D", "ID$", "a+b", "a?b", "a#b", "é", "日本", "a~b", "/lead",
    "trail/", "a\\b", ".",
)  # fmt: skip
SPELLED = Dataset(
    name="spelled",
    schema=StructType([StructField("n", LongType()), StructField("value", StringType())]),
    partition_by=("value",),
    write=Append(),
    change_feed=False,
)
INSTANTS = Dataset(
    name="instants",
    schema=StructType([StructField("p", TimestampType()), StructField("d", TimestampType())]),
    partition_by=("p",),
    write=Append(),
    change_feed=False,
)
ZONES = ("UTC", "Europe/Vilnius", "America/Bahia_Banderas")


@pytest.fixture(scope="module")
def spelled(classic: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    root = str(tmp_path_factory.mktemp("spelled"))
    put(classic, SPELLED, root, list(enumerate(SPECIAL)))
    return root


def columns(location: str) -> dict[str, dict[str, list[Any]]]:
    """By engine, the columns of a table, each engine reading it by itself."""
    table = deltalake.DeltaTable(location)
    return {
        "arrow": table.to_pyarrow_table().to_pydict(),
        "pandas": table.to_pandas().to_dict("list"),
        "polars": pl.read_delta(location).to_dict(as_series=False),
    }


def handed_out(classic: SparkSession, dataset: Dataset, root: str) -> dict[str, dict[str, list[Any]]]:
    """By kind of local frame, the columns of a table as our own loader hands them out."""
    frame = read(classic, dataset.at(root)).frame
    found = {}
    for kind in (convert.PANDAS, convert.POLARS, convert.ARROW):
        given = convert.from_spark(frame, kind, dataset, max_bytes=1 << 20, staging=f"{root}/_staging")
        found[kind] = given.to_dict("list") if kind == convert.PANDAS else pl.DataFrame(given).to_dict(as_series=False)
    return found


@case("P-SPECIAL-VALUES")
@pytest.mark.exhaustive
def test_values_that_a_folder_spells_otherwise_are_the_same_for_every_engine(
    classic: SparkSession, spelled: str
) -> None:
    expected = sorted(enumerate(SPECIAL))
    location = SPELLED.location(spelled)
    for engine, found in (columns(location) | handed_out(classic, SPELLED, spelled)).items():
        assert sorted(zip(found["n"], found["value"], strict=True)) == expected, engine
    lazy = pl.scan_delta(location)
    for n, value in enumerate(SPECIAL):
        assert lazy.filter(pl.col("value") == value).collect()["n"].to_list() == [n]


@pytest.mark.exhaustive
@case("P-PCT-COLNAME")
def test_a_partition_column_with_an_escape_in_its_name_has_its_values(classic: SparkSession, root: str) -> None:
    """polars by itself refuses such a folder (2.1); from our loader, and by way of pyarrow, it has the values."""
    schema = StructType([StructField("y", LongType()), StructField("x%20x", LongType())])
    dataset = Dataset(name="percent", schema=schema, partition_by=("x%20x",), change_feed=False)
    put(classic, dataset, root, [(10, 1), (20, 2)])
    location = dataset.location(root)
    loaded = handed_out(classic, dataset, root) | {
        "delta-rs": deltalake.DeltaTable(location).to_pyarrow_table().to_pydict(),
        "delta-rs, pandas": deltalake.DeltaTable(location).to_pandas().to_dict("list"),
        "polars by way of pyarrow": pl.read_delta(location, use_pyarrow=True).to_dict(as_series=False),
    }
    for engine, found in loaded.items():
        assert sorted(zip(found["x%20x"], found["y"], strict=True)) == [(1, 10), (2, 20)], engine


@case("S-INF-NAN")
def test_infinities_and_nan_are_read_and_filtered_by_other_engines(classic: SparkSession, root: str) -> None:
    dataset = Dataset(name="x", schema=StructType([StructField("x", DoubleType())]), change_feed=False)
    put(classic, dataset, root, [(value,) for value in (math.inf, -math.inf, math.nan, -0.0, 1.0)])
    location = dataset.location(root)
    for engine, found in columns(location).items():
        assert sorted(map(repr, found["x"])) == ["-0.0", "-inf", "1.0", "inf", "nan"], engine
    lazy = pl.scan_delta(location)
    assert lazy.filter(pl.col("x").is_nan()).collect().height == 1
    assert lazy.filter((pl.col("x") > 1e308) & ~pl.col("x").is_nan()).collect()["x"].to_list() == [math.inf]
    assert lazy.filter(pl.col("x") < -1e308).collect()["x"].to_list() == [-math.inf]


@case("I-EMPTY-PARTITIONED")
def test_a_partitioned_table_without_files_keeps_its_columns_for_other_engines(
    classic: SparkSession, root: str
) -> None:
    put(classic, SPELLED, root, [])
    location = SPELLED.location(root)
    assert files_of(SPELLED, root) == set()
    found = pl.scan_delta(location).filter(pl.col("value") == "a").collect()
    assert (found.height, found.schema) == (0, {"n": pl.Int64, "value": pl.String})
    arrow = deltalake.DeltaTable(location).to_pyarrow_table(filters=[("value", "=", "a")])
    assert (arrow.num_rows, arrow.column_names) == (0, ["n", "value"])


@case("I-NANO-INT96")
def test_an_instant_is_stored_as_the_same_microsecond_for_other_engines(classic: SparkSession, root: str) -> None:
    instant = dt.datetime(2026, 1, 1, 0, 0, 0, 1, UTC)
    frame = classic.createDataFrame([(instant, instant)], INSTANTS.schema)
    write(frame, table=INSTANTS.at(root), note=note())
    location = INSTANTS.location(root)
    (file,) = files_of(INSTANTS, root)
    (stored,) = Path(location).rglob(file.rsplit("/", 1)[-1])
    assert pq.ParquetFile(stored).schema.column(0).physical_type == "INT64"
    found = pl.read_delta(location)
    assert found.schema == {"p": pl.Datetime("us", "UTC"), "d": pl.Datetime("us", "UTC")}
    assert found.rows() == [(instant, instant)]
    assert rows_of(INSTANTS, root) == [(instant, instant)]


@case("I-DELETION-VECTOR")
def test_rows_that_a_deletion_vector_hides_are_hidden_or_the_table_is_refused(classic: SparkSession, root: str) -> None:
    """As polars frames our own loader gives them right; an engine by itself may lack the feature, and must say so."""
    dataset = Dataset(
        name="vectors",
        schema=StructType([StructField("id", LongType())]),
        properties=(("delta.enableDeletionVectors", "true"),),
        change_feed=False,
    )
    put(classic, dataset, root, [(n,) for n in range(5)])
    location = dataset.location(root)
    classic.sql(f"DELETE FROM delta.`{location}` WHERE id IN (1, 3)").collect()
    assert any(action["add"].get("deletionVector") for action in actions_of(dataset, root, 2) if "add" in action)
    refusals = (pl.exceptions.PolarsError, deltalake.exceptions.DeltaProtocolError)

    def loaded(load: Callable[[str], Any]) -> list[int] | None:
        """None for a refusal."""
        try:
            return sorted(load(location))
        except refusals:
            return None

    assert sorted(handed_out(classic, dataset, root)[convert.POLARS]["id"]) == [0, 2, 4]
    assert loaded(lambda path: pl.read_delta(path)["id"].to_list()) in (None, [0, 2, 4])
    assert loaded(lambda path: deltalake.DeltaTable(path).to_pyarrow_table()["id"].to_pylist()) in (None, [0, 2, 4])


@case("P-TS-TZ")
@pytest.mark.exhaustive
def test_an_instant_is_one_partition_whatever_zone_it_is_written_and_read_under(
    classic: SparkSession, root: str
) -> None:
    instant = dt.datetime(2020, 5, 5, tzinfo=UTC)
    location = INSTANTS.location(root)
    sessions = {zone: clone_session(classic) for zone in ZONES}
    for zone, session in sessions.items():
        session.conf.set("spark.sql.session.timeZone", zone)
        frame = session.sql("SELECT TIMESTAMP'2020-05-05 00:00:00Z' AS p, TIMESTAMP'2020-05-05 00:00:00Z' AS d")
        write(frame, table=TableRef(INSTANTS, location), note=note())
    assert rows_of(INSTANTS, root) == [(instant, instant)] * 3
    spelled = {a["add"]["partitionValues"]["p"] for n in (1, 2, 3) for a in actions_of(INSTANTS, root, n) if "add" in a}
    assert len(spelled) == 1
    micros = int(instant.timestamp()) * 1_000_000
    within = slices.of_values("p", [instant])
    for zone, session in sessions.items():
        found = read(session, TableRef(INSTANTS, location), within=within).frame.selectExpr(
            "unix_micros(p)", "unix_micros(d)"
        )
        assert [tuple(row) for row in found.collect()] == [(micros, micros)] * 3, zone


@pytest.mark.exhaustive
@case("P-UNDERSCORE")
def test_stale_files_of_a_partition_column_with_an_underscore_go_and_a_folder_beside_stays(
    classic: SparkSession, root: str
) -> None:
    """Delta leaves folders alone whose names begin with `_`; those of a partition column are none of them."""
    dataset = Dataset(
        name="hidden",
        schema=StructType([StructField("_date", LongType()), StructField("n", LongType())]),
        partition_by=("_date",),
        properties=(("delta.deletedFileRetentionDuration", "interval 0 hours"),),
        change_feed=False,
    )
    put(classic, dataset, root, [(1, 1), (2, 1)])
    (stale,) = [path for path in files_of(dataset, root) if path.startswith("_date=1/")]
    put(classic, dataset, root, [(1, 2)], slices.of_values("_date", [1]))
    folder = Path(dataset.location(root))
    kept = folder / "_dates_backup" / "keep.txt"
    kept.parent.mkdir()
    kept.write_text("of somebody else", encoding="utf-8")
    vacuum(classic, TableRef(dataset, str(folder)), apply=True)
    assert not (folder / stale).exists()
    assert {str(path.relative_to(folder)) for path in folder.glob("_date=*/*.parquet")} == files_of(dataset, root)
    assert kept.read_text(encoding="utf-8") == "of somebody else"
    assert rows_of(dataset, root) == [(1, 2), (2, 1)]
