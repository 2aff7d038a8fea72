"""One run at a time writes a table, and a run that was killed does not hold it for ever."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from dagster import DagsterRunStatus

from pipeline_tests.end_to_end.conftest import COMMAND_SECONDS, PROJECTS, SCRIPTS, ProjectFolder


@pytest.mark.exhaustive
def test_the_slot_of_a_killed_run_is_given_back_before_the_next_run_and_the_run_is_told_as_failed(
    project_folder: ProjectFolder,
) -> None:
    shutil.copy(PROJECTS / "holding.py", project_folder.folder)
    command = [str(SCRIPTS / "dagster"), "asset", "materialize", "-m", "holding", "--select", "held"]
    started: Path = project_folder.folder / "started"
    with subprocess.Popen(
        command, cwd=project_folder.folder,
        env=project_folder.variables() | {"DAGSTER_HOME": str(project_folder.folder)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as killed:  # fmt: skip
        deadline = time.monotonic() + COMMAND_SECONDS
        while not started.exists() and time.monotonic() < deadline:
            killed.poll()
            time.sleep(0.05)
        assert started.exists()
        killed.kill()
    (project_folder.folder / "go").touch()
    with project_folder.instance() as instance:
        info = instance.event_log_storage.get_concurrency_info("delta/held")
        assert [slot.run_id for slot in info.claimed_slots] == [run.run_id for run in instance.get_runs()]
    done = project_folder.command("dagster", *command[1:])
    assert done.returncode == 0, done.stderr
    second, first = project_folder.runs()
    assert (first.status, second.status) == (DagsterRunStatus.FAILURE, DagsterRunStatus.SUCCESS)
    assert f"The process of run {first.run_id} has ended" in done.stderr
