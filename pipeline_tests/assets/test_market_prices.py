"""Market prices, from the real package's file to the table."""

from __future__ import annotations

import csv
import datetime as dt
import importlib.util
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from dagster import DagsterInstance, materialize
from pyspark.sql import SparkSession

from pipeline.assets.aviation.assets import LandingFolder
from pipeline.assets.portfolio import landing as prices_landing
from pipeline.assets.portfolio.assets import PRICES_FILE, is_price_of_its_symbol, market_prices, prices_from_file
from pipeline.assets.portfolio.datasets import MARKET_PRICES
from pipeline.assets.portfolio.landing import prepare_prices
from pipeline.delta.frames.fit import select_list
from pipeline.delta.frames.source_files import read_csv_files
from pipeline.errors import DemoError, SourceFileError
from pipeline.orchestration import DeltaSparkResource
from pipeline.settings import SparkSettings
from pipeline_tests.children import loading
from pipeline_tests.delta.sample import actions_of, rows_of
from pipeline_tests.orchestration.conftest import RANGE_END, RANGE_START, Project, materializations

COUNTS = {"AAPL": 123, "AMZN": 123, "GOOG": 68, "IBM": 123, "MSFT": 123}


def source_lines() -> list[str]:
    spec = importlib.util.find_spec("vega_datasets")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    file = Path(spec.submodule_search_locations[0]) / "_data" / "stocks.csv"
    return file.read_text(encoding="utf-8").splitlines()


def pretend_package(monkeypatch: pytest.MonkeyPatch, folder: Path, *lines: str) -> None:
    """A package whose file has these lines."""
    (folder / "_data").mkdir(parents=True)
    (folder / "_data" / "stocks.csv").write_text("\n".join(lines), encoding="utf-8")
    spec = ModuleSpec("vega_datasets", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)


@pytest.fixture
def landing(tmp_path: Path) -> LandingFolder:
    folder = tmp_path / "a folder [of] prices"
    prepare_prices(folder)
    return LandingFolder(uri=str(folder))


def test_each_line_of_the_source_lies_in_the_file_of_its_symbol_and_nothing_is_written_twice(tmp_path: Path) -> None:
    laid = prepare_prices(tmp_path)
    assert laid.written == laid.files
    assert [path.name for path in laid.files] == [f"{symbol}.csv" for symbol in COUNTS]
    header, *rest = source_lines()
    lines = [line for path in laid.files for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    assert sorted(lines) == sorted(rest)
    assert {path.read_text(encoding="utf-8").splitlines()[0] for path in laid.files} == {header}
    laid.files[2].write_text("half", encoding="utf-8")
    assert prepare_prices(tmp_path).written == (laid.files[2],)


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (["date,symbol,price"], "date,symbol,price"),
        ([], "expected symbol,date,price"),
        (["symbol,date,price", "IBM,Jan 1 2000,1.0", "XYZ,Jan 1 2000,1.0"], "IBM, XYZ"),
    ],
    ids=["another header", "an empty file", "other symbols"],
)
def test_another_source_than_the_expected_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], named: str
) -> None:
    pretend_package(monkeypatch, tmp_path / "package", *lines)
    with pytest.raises(DemoError) as caught:
        prepare_prices(tmp_path / "landing")
    assert named in caught.value.reason
    assert not (tmp_path / "landing").exists()


def test_without_the_package_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices_landing, "PACKAGE", "vega_datasets_that_nobody_has")
    with pytest.raises(DemoError) as caught:
        prepare_prices(tmp_path)
    assert 'pip install "delta-first-pipeline[demo]"' in caught.value.hint


def test_a_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(DemoError) as caught:
        prepare_prices(tmp_path / "file" / "landing")
    assert str(tmp_path / "file" / "landing") in caught.value.reason


def test_neither_dagster_nor_the_package_itself_is_loaded(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", loading.__name__, "prices", str(tmp_path)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


def test_the_prices_of_a_file_fit_the_table_with_the_source_s_dates_and_prices(spark, landing: LandingFolder) -> None:
    file = f"{landing.folder('prices')}/GOOG.csv"
    found = prices_from_file(read_csv_files(spark, [file], PRICES_FILE, is_price_of_its_symbol))
    assert list(select_list(MARKET_PRICES, found.schema)) == ["symbol", "date", "price"]
    expected = [
        (symbol, dt.datetime.strptime(date, "%b %d %Y").date(), float(price))
        for symbol, date, price in csv.reader(source_lines()) if symbol == "GOOG"
    ]  # fmt: skip
    assert sorted(tuple(row) for row in found.collect()) == sorted(expected)
    assert expected[0] == ("GOOG", dt.date(2004, 8, 1), 102.37)


@pytest.mark.parametrize(
    ("old", "new"), [("GOOG,", "IBM,"), ("Sep 1 2004", "Sep 31 2004"), ("Sep 1 2004", "2004-09-01")],
    ids=["of another symbol", "on a day that there is not", "with a date in another form"],
)  # fmt: skip
def test_a_price_that_can_t_be_taken_is_named_with_its_line(
    classic: SparkSession, landing: LandingFolder, old: str, new: str
) -> None:
    file = Path(landing.folder("prices")) / "GOOG.csv"
    lines = file.read_text(encoding="utf-8").splitlines()
    lines[2] = lines[2].replace(old, new)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(SourceFileError) as caught:
        read_csv_files(classic, [str(file)], PRICES_FILE, is_price_of_its_symbol)
    assert (caught.value.line, caught.value.excerpt) == (3, lines[2])


@pytest.mark.exhaustive
def test_a_run_replaces_its_symbols_and_leaves_the_others(
    classic: SparkSession, root: str, spark_settings: SparkSettings, landing: LandingFolder
) -> None:
    with DagsterInstance.ephemeral() as instance:
        project = Project(root=root, spark=DeltaSparkResource.from_settings(spark_settings), instance=instance)
        options = {"resources": project.resources() | {"landing": landing}, "instance": instance}
        first = materialize([market_prices], tags={RANGE_START: "AAPL", RANGE_END: "MSFT"}, **options)
        told = materializations(first, MARKET_PRICES)
        assert {key: metadata["dagster/partition_row_count"] for key, metadata in told.items()} == COUNTS
        assert len(rows_of(MARKET_PRICES, root)) == 560
        file = Path(landing.folder("prices")) / "IBM.csv"
        file.write_text("".join(file.read_text("utf-8").splitlines(keepends=True)[:101]), "utf-8")
        materialize([market_prices], partition_key="IBM", **options)
    files = [a.get("add") or a.get("remove") for a in actions_of(MARKET_PRICES, root, 2) if "add" in a or "remove" in a]
    assert {file["partitionValues"]["symbol"] for file in files} == {"IBM"}
    rows = rows_of(MARKET_PRICES, root)
    assert {symbol: sum(row[0] == symbol for row in rows) for symbol in COUNTS} == COUNTS | {"IBM": 100}
    assert {row[1].day for row in rows} == {1}
