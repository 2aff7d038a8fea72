"""The user interface as a person has it: a real browser on a real `pipeline up`, clicked and read.

One project for all tests, one that adds to the shipped definitions as a user's does. The tests run in this order, since
each finds what those before it have made.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Locator, Page, expect

from pipeline.assets.aviation.datasets import AIRPORTS
from pipeline_tests.end_to_end.conftest import (
    BROWSER_SECONDS,
    PROJECTS,
    ProjectFolder,
    Up,
    browser,
    keep_screenshot,
    metadata_row,
)

pytestmark = [pytest.mark.browser, pytest.mark.exhaustive]

INTERRUPTED = 130
AIRPORTS_ROWS = 1458
DAYS = ["2013-01-01", "2013-01-02", "2013-01-03"]
ARRIVING = "2013-01-04"


@pytest.fixture(scope="module")
def outside(project_folder: ProjectFolder) -> ProjectFolder:
    """A project of a user's own, into whose landing folder nothing has been delivered yet."""
    folder = project_folder.folder
    shutil.copy(PROJECTS / "browsed.py", folder / "outside.py")
    declared = (folder / "pyproject.toml").read_text(encoding="utf-8")
    ours = declared.replace('module_name = "pipeline.definitions"', 'module_name = "outside"')
    assert ours != declared
    (folder / "pyproject.toml").write_text(ours, encoding="utf-8")
    landing = folder / ".pipeline" / "landing" / "flights"
    landing.rename(folder / "withheld")
    landing.mkdir()
    return project_folder


@pytest.fixture(scope="module")
def up(outside: ProjectFolder) -> Iterator[Up]:
    """The running project; it ends on Ctrl-C and leaves no process behind."""
    with outside.up() as found:
        yield found
        family = psutil.Process(found.process.pid).children(recursive=True)
        assert found.interrupt() == INTERRUPTED
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


@pytest.fixture(scope="module")
def page(up: Up, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(up.url, tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(autouse=True)
def _screenshot(request: pytest.FixtureRequest, page: Page, tmp_path: Path) -> Iterator[None]:
    """What the page shows when a test ends."""
    yield
    keep_screenshot(page, request.node.name, tmp_path)


def deliver(project: ProjectFolder, day: str) -> None:
    file = project.folder / "withheld" / f"{day}.csv"
    file.rename(project.folder / ".pipeline" / "landing" / "flights" / file.name)


def switch(page: Page) -> None:
    """Turn the one switch of a sensor's or schedule's page."""
    page.locator("label:has(input[type=checkbox])").click()


def materialize(page: Page) -> None:
    """The button of an asset's page."""
    page.get_by_role("button", name="Materialize").first.click()


def follow(page: Page, link: Locator) -> None:
    """Go where a link leads, in this tab whatever it wants."""
    page.goto(str(link.get_attribute("href")))


def succeed(page: Page, run: Locator) -> None:
    """Follow the link to a run, and wait on the run's own page until it has succeeded."""
    follow(page, run)
    page.get_by_text("Success", exact=True).first.wait_for()


def launched(page: Page) -> Locator:
    """The link of the message that something was launched."""
    return page.get_by_role("link", name="View", exact=True)


def run_of_a_tick(page: Page) -> Locator:
    """The link to a run by its short id."""
    page.get_by_text("1 run requested").first.wait_for()
    return page.get_by_role("link", name=re.compile("^[0-9a-f]{8}$")).first


def test_the_graph_shows_the_assets_of_a_subject(page: Page) -> None:
    page.goto("/locations/outside/asset-groups/aviation")
    for name in ("airports", "planes", "sightings", "airport_traffic"):
        page.get_by_role("link", name=name, exact=True).or_(page.get_by_text(name, exact=True)).first.wait_for()


def test_a_schedule_that_is_due_starts_a_run(page: Page, outside: ProjectFolder) -> None:
    schedule = "/locations/outside/schedules/every_minute"
    page.goto(schedule)
    switch(page)
    run_of_a_tick(page).wait_for()
    switch(page)
    succeed(page, run_of_a_tick(page))
    assert outside.table("planes").version() >= 1
    page.goto(schedule)
    run_of_a_tick(page).wait_for()


def test_a_materialization_is_shown_with_version_fingerprint_and_rows(page: Page) -> None:
    page.goto("/assets/airports")
    materialize(page)
    succeed(page, launched(page))
    page.goto("/assets/airports")
    assert "1" in metadata_row(page, "delta/version").inner_text().split()
    assert AIRPORTS.fingerprint in metadata_row(page, "delta/schema_fingerprint").inner_text()
    assert str(AIRPORTS_ROWS) in metadata_row(page, "delta/rows_written").inner_text().split()
    metadata_row(page, "delta/version").scroll_into_view_if_needed()


def test_numeric_metadata_is_plotted(page: Page) -> None:
    page.goto("/assets/airports")
    page.get_by_role("button", name="Plots").click()
    for name in ("dagster/row_count", "delta/rows_written", "delta/version", "delta/bytes_added"):
        page.get_by_text(name, exact=True).wait_for()
    page.locator("canvas").first.scroll_into_view_if_needed()


def test_a_check_that_failed_is_shown_as_failed(page: Page) -> None:
    page.goto("/assets/airports?view=checks")
    page.get_by_text("Evaluation result").wait_for()
    assert metadata_row(page, "airports_elsewhere").inner_text().split() == ["airports_elsewhere", "1458"]
    # In the list and of the check that is open; the two are asked for apart.
    expect(page.get_by_text("Failed", exact=True)).to_have_count(2, timeout=BROWSER_SECONDS * 1000)


def test_what_a_write_has_set_apart_is_counted_in_the_check_and_shown_as_an_asset(page: Page) -> None:
    page.goto("/assets/weights")
    materialize(page)
    succeed(page, launched(page))
    page.goto("/assets/weights?view=checks&checkDetail=check_positive")
    page.get_by_text("Evaluation result").wait_for()
    assert metadata_row(page, "rows").inner_text().split() == ["rows", "3"]
    page.goto("/assets/weights__quarantine")
    assert "3" in metadata_row(page, "delta/rows_written").inner_text().split()


def test_a_backfill_over_three_days_writes_exactly_these(page: Page, outside: ProjectFolder) -> None:
    for day in DAYS:
        deliver(outside, day)
    page.goto("/assets/sightings?view=partitions")
    materialize(page)
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Show all partitions").click()
    dialog.get_by_text("All time").wait_for()
    days = dialog.get_by_role("textbox").first
    days.fill(f"[{DAYS[0]}...{DAYS[-1]}]")
    days.press("Enter")
    dialog.get_by_text("3 partitions", exact=True).wait_for()
    dialog.get_by_role("button", name="Launch backfill").click()
    follow(page, launched(page))
    page.get_by_text("100% completed").wait_for()
    page.goto("/assets/sightings?view=partitions")
    page.get_by_text("Materialized (3)").wait_for()
    page.get_by_text("Failed (0)").wait_for()
    assert sorted(outside.rows_by_day()) == DAYS


def test_a_file_that_arrives_starts_a_run_of_its_day(page: Page, outside: ProjectFolder) -> None:
    for file in (outside.folder / ".pipeline" / "landing" / "flights").iterdir():
        file.unlink()
    sensor = "/locations/outside/sensors/flights_arrived"
    page.goto(sensor)
    switch(page)
    page.get_by_text("0 runs requested").first.wait_for()
    deliver(outside, ARRIVING)
    succeed(page, run_of_a_tick(page))
    page.goto("/assets/sightings?view=partitions")
    page.get_by_text("Materialized (4)").wait_for()
    assert sorted(outside.rows_by_day()) == [*DAYS, ARRIVING]
    page.goto(sensor)
    run_of_a_tick(page).wait_for()
