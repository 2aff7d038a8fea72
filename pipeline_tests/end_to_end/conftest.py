"""A project folder as a user has it, and its commands as real child processes."""

from __future__ import annotations

import http
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from click.testing import CliRunner
from dagster import AssetKey, DagsterInstance, DagsterRun
from deltalake import DeltaTable
from playwright.sync_api import Locator, Page, sync_playwright

from pipeline.assets.aviation.landing import prepare_landing
from pipeline.assets.portfolio.landing import prepare_prices
from pipeline.cli import main
from pipeline.definitions import shipped_definitions
from pipeline.settings import SparkSettings, load_settings
from pipeline_tests.conftest import BRIEF_JVM, free_port

REPOSITORY = Path(__file__).parents[2]
PROJECTS = REPOSITORY / "pipeline_tests" / "projects"
FILES = ("pyproject.toml", "dagster.yaml", "workspace.yaml")
SCRIPTS = Path(sys.executable).parent
COMMAND_SECONDS = 300
STOP_SECONDS = 90
BROWSER_SECONDS = 240
BROWSER_ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
WINDOW = {"width": 1500, "height": 950}
# For a server of a test's own; Java says that it has picked this up, so not where the console is looked at.
BRIEF = {"JDK_JAVA_OPTIONS": BRIEF_JVM}


@contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    """Make a folder the current one for the time of the block."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def browser(url: str, profile: Path) -> Iterator[Page]:
    """A page of a real browser, for which addresses are relative to the URL."""
    program = shutil.which("chromium")
    if program is None:
        pytest.fail(
            "There is no `chromium` on the PATH: apt-get install chromium, or leave its tests out with "
            '-m "quick and not browser".'
        )
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch_persistent_context(
            profile, executable_path=program, args=BROWSER_ARGUMENTS, viewport=WINDOW, base_url=url,
            timeout=BROWSER_SECONDS * 1000,
        ) as context,
    ):  # fmt: skip
        context.set_default_timeout(BROWSER_SECONDS * 1000)
        yield context.pages[0]


def metadata_row(page: Page, key: str) -> Locator:
    """A line of a table of metadata, by its key."""
    return page.locator("tr").filter(has=page.get_by_text(key, exact=True)).first


def keep_screenshot(page: Page, name: str, folder: Path) -> None:
    """What the page shows, in the folder and in the one that BROWSER_SCREENSHOTS names."""
    shot = folder / f"{name}.png"
    page.screenshot(path=shot)
    if "BROWSER_SCREENSHOTS" in os.environ:
        shutil.copy(shot, os.environ["BROWSER_SCREENSHOTS"])


def until(condition: Callable[[], bool], possible: Callable[[], bool]) -> None:
    """Wait for a condition for as long as it is possible."""
    end = time.monotonic() + COMMAND_SECONDS
    while not condition():
        assert possible()
        assert time.monotonic() < end
        time.sleep(0.1)


def answers(url: str) -> bool:
    """Whether a web server does."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == http.HTTPStatus.OK)
    except OSError:
        return False


@dataclass(frozen=True)
class Up:
    """A `pipeline up` that has said where its UI and its Spark are."""

    process: subprocess.Popen[str]
    url: str
    remote: str

    def interrupt(self) -> int:
        """Ctrl-C, and the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(STOP_SECONDS)


@dataclass
class ProjectFolder:
    """A folder with the project's files, a landing folder and an instance of its own."""

    folder: Path
    cache: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def command(self, name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run an installed command from the project's root; Dagster's own are told of the project's instance."""
        home = {"DAGSTER_HOME": str(self.folder)} if name in ("dagster", "dg") else {}
        return subprocess.run(
            [str(SCRIPTS / name), *arguments], cwd=self.folder, env=self.variables() | home | environment,
            capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False,
        )  # fmt: skip

    def invoke(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the `pipeline` command from the project's root in this process, and so on its Spark.

        A server is used if this call names one. What is no error of ours is raised.
        """
        variables = self.variables()
        variables.pop("SPARK_REMOTE", None)
        variables |= environment
        cleared = dict.fromkeys(os.environ.keys() - variables.keys())
        with in_folder(self.folder), pytest.MonkeyPatch.context() as patched:
            for path in reversed(variables["PYTHONPATH"].split(os.pathsep)):
                patched.syspath_prepend(path)
            runner = CliRunner()
            done = runner.invoke(main, arguments, "", cleared | variables, prog_name="pipeline", catch_exceptions=False)
        return subprocess.CompletedProcess(["pipeline", *arguments], done.exit_code, done.stdout, done.stderr)

    def materialize(self, spark: SparkSettings, name: str, partition: str | None = None) -> None:
        """Materialize a shipped asset in this process, and so on its Spark, with a run in the project's instance."""
        definitions = shipped_definitions(replace(load_settings(start=self.folder), spark=spark))
        job = definitions.resolve_implicit_global_asset_job_def()
        with self.instance() as instance:
            done = job.execute_in_process(instance=instance, asset_selection=[AssetKey(name)], partition_key=partition)
        assert done.success

    @contextmanager
    def up(self) -> Iterator[Up]:
        """Run `pipeline up` from the project's root, on ports of its own."""
        port, spark_port = free_port(), free_port()
        command = [str(SCRIPTS / "pipeline"), "up", "--port", str(port), "--spark-port", str(spark_port)]
        complaints = self.folder / "up.stderr"
        with complaints.open("w") as stderr, subprocess.Popen(
            command, cwd=self.folder, env=self.variables() | BRIEF, text=True, stdout=subprocess.PIPE, stderr=stderr,
            start_new_session=True,
        ) as process:  # fmt: skip
            found = Up(process, f"http://127.0.0.1:{port}", f"sc://127.0.0.1:{spark_port}")
            try:
                assert process.stdout is not None
                assert found.url in process.stdout.readline(), complaints.read_text(encoding="utf-8")
                yield found
            finally:
                if process.poll() is None:
                    found.interrupt()
                process.kill()

    @contextmanager
    def web(self) -> Iterator[str]:
        """Run Dagster's web server alone on the project, and give its URL."""
        port = free_port()
        log = self.folder / "web.log"
        command = [str(SCRIPTS / "dagster-webserver"), "-m", "pipeline.definitions", "--port", str(port)]
        with log.open("w") as output, subprocess.Popen(
            command, cwd=self.folder, env=self.variables() | {"DAGSTER_HOME": str(self.folder)}, stdout=output,
            stderr=output, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                until(lambda: answers(f"http://127.0.0.1:{port}/server_info"), lambda: process.poll() is None)
                yield f"http://127.0.0.1:{port}"
            finally:
                process.terminate()
                process.wait(STOP_SECONDS)

    def variables(self) -> dict[str, str]:
        """The environment of a command: this process's, without what would name another project or Spark."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIPELINE_", "DAGSTER", "SPARK_"))}
        ours = {"PYTHONPATH": str(REPOSITORY), "PIPELINE_CACHE": str(self.cache), "PIPELINE_WARM": "never"}
        return kept | ours | dict(self.environment)

    def table(self, name: str) -> DeltaTable:
        return DeltaTable(self.folder / ".pipeline" / "tables" / name)

    def files(self, name: str) -> list[dict[str, Any]]:
        """The files of the newest version, as another engine than the one that wrote them reads the log."""
        actions = pyarrow.table(self.table(name).get_add_actions(flatten=True))
        return list(actions.to_pylist())

    def rows_by_day(self, name: str = "sightings") -> dict[str, int]:
        """Rows by partition, from the files' statistics."""
        counts: dict[str, int] = {}
        for action in self.files(name):
            day = action["partition.seen_date"].isoformat()
            counts[day] = counts.get(day, 0) + action["num_records"]
        return counts

    @contextmanager
    def instance(self) -> Iterator[DagsterInstance]:
        """The project's instance, which `dagster.yaml` puts below the folder that a command is run from."""
        with in_folder(self.folder), DagsterInstance.from_config(str(self.folder)) as instance:
            yield instance

    def runs(self) -> list[DagsterRun]:
        with self.instance() as instance:
            return list(instance.get_runs())

    def materializations(self, name: str) -> list[tuple[str | None, dict[str, Any]]]:
        """Partition and metadata values of every materialization, newest first."""
        with self.instance() as instance:
            records = instance.fetch_materializations(AssetKey(name), limit=100).records
        found = [record.asset_materialization for record in records]
        return [(m.partition, {k: v.value for k, v in m.metadata.items()}) for m in found if m is not None]


@pytest.fixture(scope="module")
def project_folder(tmp_path_factory: pytest.TempPathFactory, spark_settings: SparkSettings) -> ProjectFolder:
    folder = tmp_path_factory.mktemp("project")
    for name in FILES:
        shutil.copy(REPOSITORY / name, folder / name)
    prepare_landing(folder / ".pipeline" / "landing", 10)
    prepare_prices(folder / ".pipeline" / "landing")
    return ProjectFolder(folder=folder, cache=spark_settings.cache)
