"""`dagster asset materialize`, `pipeline materialize` and `dg launch`; the first embedded, the rest on a server."""

import json
import subprocess
from pathlib import Path

import pytest
from dagster import DagsterEventType

from pipeline.assets.aviation.datasets import SIGHTINGS
from pipeline_tests.end_to_end.conftest import ProjectFolder, browser, keep_screenshot, metadata_row

NEW_YEAR_ROWS = 842
WEEK = [f"2013-01-0{day}" for day in range(1, 8)]


@pytest.fixture(scope="module")
def first_command(project_folder: ProjectFolder) -> subprocess.CompletedProcess[str]:
    """The project's first command, on an embedded Spark."""
    return project_folder.command(
        "dagster",
        "asset",
        "materialize",
        "-m",
        "pipeline.definitions",
        "--select",
        "sightings",
        "--partition",
        "2013-01-01",
    )


@pytest.fixture(scope="module")
def first(project_folder: ProjectFolder, first_command: subprocess.CompletedProcess[str]) -> ProjectFolder:
    """The project after its first command."""
    assert first_command.returncode == 0, first_command.stderr
    return project_folder


@pytest.fixture
def served(first: ProjectFolder, remote_url: str) -> ProjectFolder:
    """The same project, with Spark on a Connect server."""
    return ProjectFolder(first.folder, first.cache, {"SPARK_REMOTE": remote_url})


def test_the_first_day_has_its_842_rows_and_the_event_carries_version_and_fingerprint(first: ProjectFolder) -> None:
    partition, metadata = first.materializations("sightings")[-1]
    assert partition == "2013-01-01"
    assert metadata["dagster/partition_row_count"] == NEW_YEAR_ROWS
    assert metadata["delta/version"] == 1
    assert metadata["delta/schema_fingerprint"] == SIGHTINGS.fingerprint


def test_its_checks_ran_with_it(first: ProjectFolder) -> None:
    run = first.runs()[-1]
    with first.instance() as instance:
        records = instance.get_records_for_run(run.run_id, of_type=DagsterEventType.ASSET_CHECK_EVALUATION).records
    found = [record.event_log_entry.asset_check_evaluation for record in records]
    assert {one.check_name: one.passed for one in found} == {
        "schema": True, "row_count": True, "check_distance_is_positive": True,
    }  # fmt: skip


@pytest.mark.browser
def test_a_browser_shows_the_run_s_rows_version_and_fingerprint(first: ProjectFolder, tmp_path: Path) -> None:
    (run,) = first.runs()
    with first.web() as url, browser(url, tmp_path / "profile") as page:
        page.goto("/assets/sightings")
        assert "1" in metadata_row(page, "delta/version").inner_text().split()
        assert SIGHTINGS.fingerprint in metadata_row(page, "delta/schema_fingerprint").inner_text()
        assert str(NEW_YEAR_ROWS) in metadata_row(page, "delta/rows_written").inner_text().split()
        keep_screenshot(page, "sightings", tmp_path)
        page.goto(f"/runs/{run.run_id}")
        page.get_by_text("Success", exact=True).first.wait_for()


@pytest.mark.exhaustive
def test_the_run_is_listed_by_a_second_command(first: ProjectFolder) -> None:
    run = first.runs()[-1]
    listed = first.command("dagster", "run", "list")
    assert listed.returncode == 0, listed.stderr
    assert run.run_id in listed.stdout


def test_the_console_shows_dagster_and_nothing_of_the_jvm(
    first_command: subprocess.CompletedProcess[str],
) -> None:
    assert " - dagster - " in first_command.stderr
    foreign = [line for line in first_command.stderr.splitlines() if " - dagster - " not in line and line.strip()]
    assert [line for line in foreign if "WARN" in line or "Spark" in line or "log4j" in line] == []


@pytest.mark.exhaustive
def test_dagster_and_pipeline_share_a_server_by_default_with_the_same_rows_and_metadata(first: ProjectFolder) -> None:
    shared = ProjectFolder(first.folder, first.cache, {"PIPELINE_WARM": "auto", "CI": ""})
    _, embedded = first.materializations("sightings")[0]
    before = first.rows_by_day()
    try:
        done = shared.command(
            "dagster", "asset", "materialize", "-m", "pipeline.definitions", "--select", "sightings", "--partition",
            "2013-01-01",
        )  # fmt: skip
        assert (done.returncode, done.stderr.count("Starting Spark in the background")) == (0, 1), done.stderr
        again = shared.command("pipeline", "materialize", "sightings", "--partition", "2013-01-01", "--json")
        assert (again.returncode, again.stderr.count("Starting Spark")) == (0, 0), again.stderr
        state = json.loads(shared.command("pipeline", "spark", "status", "--json").stdout)
        assert [(one["kind"], one["answers"]) for one in state["servers"]] == [("warm", True)]
    finally:
        assert shared.command("pipeline", "spark", "stop").returncode == 0
    assert first.rows_by_day() == before
    of_server = first.materializations("sightings")[1::-1]
    for _, metadata in of_server:
        record = json.loads(Path(metadata["delta/record"]).read_text(encoding="utf-8"))
        assert record["runtime"]["mode"] == "connect"
        assert metadata.keys() == embedded.keys()
        assert metadata["dagster/partition_row_count"] == NEW_YEAR_ROWS
    assert [one["delta/version"] - embedded["delta/version"] for _, one in of_server] == [1, 2]


@pytest.mark.exhaustive
def test_the_same_partition_again_is_one_new_version_with_the_same_rows(served: ProjectFolder) -> None:
    version, before = served.table("sightings").version(), served.rows_by_day()
    files = {a["path"] for a in served.files("sightings")}
    done = served.command(
        "dagster",
        "asset",
        "materialize",
        "-m",
        "pipeline.definitions",
        "--select",
        "sightings",
        "--partition",
        "2013-01-01",
    )
    assert done.returncode == 0, done.stderr
    assert served.table("sightings").version() == version + 1
    assert served.rows_by_day() == before
    after = {a["path"] for a in served.files("sightings")}
    assert {path.split("/")[0] for path in files ^ after} == {"seen_date=2013-01-01"}


def test_a_range_is_one_run_with_seven_counts_and_one_commit(served: ProjectFolder) -> None:
    version, runs = served.table("sightings").version(), len(served.runs())
    done = served.command(
        "pipeline", "materialize", "sightings", "--partition-range", "2013-01-01...2013-01-07", "--json"
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert [printed["run_id"]] == [run.run_id for run in served.runs()[:-runs]]
    assert served.table("sightings").version() == version + 1
    found = dict(served.materializations("sightings")[:7])
    assert sorted(found) == WEEK
    counts = {day: metadata["dagster/partition_row_count"] for day, metadata in found.items()}
    assert counts == {day: served.rows_by_day()[day] for day in WEEK}
    assert counts["2013-01-01"] == NEW_YEAR_ROWS
    assert {metadata["delta/version"] for metadata in found.values()} == {version + 1}
    (result,) = printed["assets"]
    assert result["seconds"] > 0
    assert {name: value for name, value in result.items() if name != "seconds"} == {
        "dataset": "sightings", "rows_written": sum(counts.values()), "partitions": 7, "version": version + 1,
        "committed": True, "cached": False, "fingerprint": SIGHTINGS.fingerprint, "checks_failed": [],
        "checks_passed": ["check_distance_is_positive", "row_count", "schema"],
    }  # fmt: skip
    assert "sightings: started" in done.stderr


@pytest.mark.exhaustive
def test_dg_launch_does_the_same(served: ProjectFolder) -> None:
    done = served.command("dg", "launch", "--assets", "sightings", "--partition", "2013-01-08")
    assert done.returncode == 0, done.stderr
    partition, metadata = served.materializations("sightings")[0]
    assert (partition, metadata["delta/version"]) == ("2013-01-08", served.table("sightings").version())
    assert metadata["dagster/partition_row_count"] == served.rows_by_day()["2013-01-08"] > 0


@pytest.mark.exhaustive
def test_a_corrupt_line_is_named_and_the_day_is_not_half_written(served: ProjectFolder) -> None:
    path = Path(served.folder / ".pipeline" / "landing" / "flights" / "2013-01-10.csv")
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[41] = lines[41].replace(",", ";", 3)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    version = served.table("sightings").version()
    done = served.command(
        "dagster",
        "asset",
        "materialize",
        "-m",
        "pipeline.definitions",
        "--select",
        "sightings",
        "--partition",
        "2013-01-10",
    )
    assert done.returncode != 0
    assert "SourceFileError" in done.stderr
    assert "2013-01-10.csv, line 42" in done.stderr
    assert served.table("sightings").version() == version
    assert "2013-01-10" not in served.rows_by_day()


@pytest.mark.exhaustive
def test_a_day_that_was_not_delivered_is_named(served: ProjectFolder) -> None:
    version = served.table("sightings").version()
    done = served.command(
        "dagster",
        "asset",
        "materialize",
        "-m",
        "pipeline.definitions",
        "--select",
        "sightings",
        "--partition",
        "2013-02-20",
    )
    assert done.returncode != 0
    assert "2013-02-20.csv" in done.stderr
    assert served.table("sightings").version() == version
