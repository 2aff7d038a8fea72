"""The aviation subject's frame functions on real and on broken files, in a classic and in a Connect session."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance, ExecuteInProcessResult, materialize
from pyspark.sql import SparkSession

from pipeline.assets.aviation.assets import (
    AIRPORTS_FILE,
    FLIGHTS_FILE,
    LandingFolder,
    airports_from_file,
    assets,
    belongs_to_its_day,
    sightings_from_flights,
    traffic_by_airport,
)
from pipeline.assets.aviation.datasets import AIRPORT_TRAFFIC, SIGHTINGS
from pipeline.assets.aviation.landing import prepare_landing
from pipeline.delta.frames.fit import select_list
from pipeline.delta.frames.source_files import read_csv_files
from pipeline.errors import SourceFileError
from pipeline.orchestration import DeltaSparkResource
from pipeline.settings import SparkSettings
from pipeline_tests.delta.sample import actions_of, ordered, rows_of
from pipeline_tests.orchestration.conftest import RANGE_END, RANGE_START, Project, materializations

NEW_YEAR_ROWS = 842


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> LandingFolder:
    folder = tmp_path_factory.mktemp("a folder [of] flights")
    prepare_landing(folder, 2)
    return LandingFolder(uri=str(folder))


@pytest.fixture
def broken(landing: LandingFolder, tmp_path: Path):
    """Two days, the second of which can be changed by the test."""
    for day in ("2013-01-01", "2013-01-02"):
        lines = Path(landing.flights([day])[0]).read_text(encoding="utf-8").splitlines()
        (tmp_path / f"{day}.csv").write_text("\n".join(lines[:10]) + "\n", encoding="utf-8")
    paths = [str(tmp_path / f"{day}.csv") for day in ("2013-01-01", "2013-01-02")]

    def change(line: int, old: str, new: str) -> list[str]:
        lines = Path(paths[1]).read_text(encoding="utf-8").splitlines()
        lines[line - 1] = lines[line - 1].replace(old, new, 1)
        Path(paths[1]).write_text("\n".join(lines) + "\n", encoding="utf-8")
        return paths

    return change


def test_new_year_s_day_has_its_842_sightings_as_declared(spark, landing: LandingFolder) -> None:
    flights = read_csv_files(spark, landing.flights(["2013-01-01"]), FLIGHTS_FILE, belongs_to_its_day)
    sightings = sightings_from_flights(flights)
    assert list(select_list(SIGHTINGS, sightings.schema)) == SIGHTINGS.schema.names
    first = sightings.orderBy("scheduled_departure", "flight_number").first()
    assert sightings.count() == NEW_YEAR_ROWS
    assert (str(first["seen_date"]), first["carrier"], first["origin"]) == ("2013-01-01", "UA", "EWR")
    assert sightings.filter("departure_hhmm IS NULL").count() == 4


@pytest.mark.exhaustive
def test_the_traffic_counts_every_departure_and_keeps_airports_without_a_name(spark, landing: LandingFolder) -> None:
    sightings = sightings_from_flights(read_csv_files(spark, landing.flights(["2013-01-01"]), FLIGHTS_FILE))
    airports = airports_from_file(read_csv_files(spark, landing.reference("airports"), AIRPORTS_FILE))
    traffic = traffic_by_airport(sightings, airports)
    assert list(select_list(AIRPORT_TRAFFIC, traffic.schema)) == AIRPORT_TRAFFIC.schema.names
    rows = {row["airport"]: row for row in traffic.collect()}
    assert sum(row["departures"] + row["cancelled_departures"] for row in rows.values()) == NEW_YEAR_ROWS
    assert rows["SJU"]["airport_name"] is None
    assert rows["SJU"]["arrivals"] > 0


@pytest.mark.exhaustive
def test_only_the_days_whose_sightings_have_changed_are_counted_again(
    classic: SparkSession, root: str, spark_settings: SparkSettings, landing: LandingFolder, tmp_path: Path
) -> None:
    delivered = LandingFolder(uri=str(shutil.copytree(landing.uri, tmp_path / "landing")))
    with DagsterInstance.ephemeral() as instance:
        project = Project(root=root, spark=DeltaSparkResource.from_settings(spark_settings), instance=instance)

        def run(*names: str, **options: Any) -> ExecuteInProcessResult:
            resources = project.resources() | {"landing": delivered}
            return materialize(assets, selection=list(names), resources=resources, instance=instance, **options)

        run("airports")
        run("sightings", tags={RANGE_START: "2013-01-01", RANGE_END: "2013-01-02"})
        run("airport_traffic")
        second = Path(delivered.flights(["2013-01-02"])[0])
        second.write_text("".join(second.read_text("utf-8").splitlines(keepends=True)[:101]), "utf-8")
        run("sightings", partition_key="2013-01-02")
        metadata = materializations(run("airport_traffic"), AIRPORT_TRAFFIC)[None]
    assert metadata["delta/changes"]["sightings"]["counts"]["insert"] == 100
    files = [
        a.get("add") or a.get("remove") for a in actions_of(AIRPORT_TRAFFIC, root, 2) if "add" in a or "remove" in a
    ]
    assert {file["partitionValues"]["seen_date"] for file in files} == {"2013-01-02"}
    whole = traffic_by_airport(
        *(classic.read.format("delta").load(f"{root}/{name}") for name in ("sightings", "airports"))
    )
    assert rows_of(AIRPORT_TRAFFIC, root) == ordered(tuple(row) for row in whole.collect())
    assert sum(row[3] + row[5] for row in rows_of(AIRPORT_TRAFFIC, root)) == NEW_YEAR_ROWS + 100


@pytest.mark.parametrize(
    ("line", "old", "new", "problem"),
    [
        (1, "year,month", "month,year", "the header must be"),
        (4, ",", ";", "fields, expected 19"),
        (5, "2013,1,2", "2013,x,2", "month is 'x'"),
        (6, ",B6,", ",NA,", "carrier has no value"),
        (7, "2013,1,2", "2013,1,1", "another file"),
    ],
    ids=["header", "number of fields", "text in a number", "a value that must be there", "a line of another day"],
)
def test_a_line_that_can_t_be_taken_is_named_with_file_and_number(spark, broken, line, old, new, problem) -> None:
    paths = broken(line, old if old != ",B6," else _carrier(broken, line), new)
    with pytest.raises(SourceFileError) as caught:
        read_csv_files(spark, paths, FLIGHTS_FILE, belongs_to_its_day)
    assert caught.value.line == line
    assert caught.value.path.endswith("2013-01-02.csv")
    assert problem in caught.value.problem


def _carrier(broken, line: int) -> str:
    text = Path(broken(1, "", "")[1]).read_text(encoding="utf-8").splitlines()[line - 1]
    return f",{text.split(',')[9]},"


def test_a_file_that_was_not_delivered_is_named(spark, landing: LandingFolder) -> None:
    with pytest.raises(SourceFileError) as caught:
        read_csv_files(spark, landing.flights(["2013-01-01", "2013-02-20"]), FLIGHTS_FILE)
    assert caught.value.path.endswith("2013-02-20.csv")
