"""A run in which nothing has changed: its steps and checks need no Java."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from pipeline_tests.end_to_end.conftest import PROJECTS, ProjectFolder


def materialized(project: ProjectFolder, *options: str, **environment: str) -> dict[str, dict[str, Any]]:
    command = ("pipeline", "materialize", "first,second", "--json", *options)
    done = project.command(*command, PIPELINE_WARM="never", **environment)
    assert done.returncode == 0, done.stderr
    return {one["dataset"]: one for one in json.loads(done.stdout)["assets"]}


@pytest.mark.exhaustive
def test_a_cached_run_and_its_checks_are_done_without_java(project_folder: ProjectFolder) -> None:
    shutil.copy(PROJECTS / "cached.py", project_folder.folder / "outside.py")
    declared = '[tool.dagster]\nmodule_name = "outside"\n\n[tool.pipeline]\n'
    (project_folder.folder / "pyproject.toml").write_text(declared, encoding="utf-8")
    before = materialized(project_folder)
    assert {name: (one["version"], one["committed"], one["cached"]) for name, one in before.items()} == {
        "first": (1, True, False), "second": (1, True, False),
    }  # fmt: skip
    after = materialized(project_folder, JAVA_HOME="/nowhere")
    assert {name: (one["version"], one["rows_written"], one["cached"]) for name, one in after.items()} == {
        "first": (1, 0, True), "second": (1, 0, True),
    }  # fmt: skip
    assert after["first"]["checks_passed"] == before["first"]["checks_passed"] == ["row_count", "schema", "unique_id"]
    again = materialized(project_folder, "--no-cache")
    assert [(one["version"], one["cached"]) for one in again.values()] == [(2, False), (2, False)]
